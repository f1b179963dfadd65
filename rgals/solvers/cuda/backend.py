"""The GPU backend: the half-steps of the CPU by CuPy, and one kernel that solves rows (solve_rows.cu)."""

from typing import Any

import numpy as np

from rgals.kernels.row import EMPTY
from rgals.losses.base import Side
from rgals.matrix.csr import CSR
from rgals.runtime.errors import NumericalError, ParameterError
from rgals.solvers.base import HalfStep, raise_for_rows
from rgals.solvers.cpu import coupling_shift, coupling_value
from rgals.solvers.cuda.device import Device, open_device
from rgals.solvers.plan import GPU, classify, fold_terms, rows_of, weigh

FOUR = 4  # K is padded to a multiple of this: the kernel reads four factors at once
BLOCKS = 8  # blocks of threads per multiprocessor, at most: more than it can run at once
_ROWS_PER_SUM = 1 << 14  # rows whose products are summed in the factors' precision, before float64


class CuPyBackend:
    """Half-steps on a GPU. Two runs on the same device give the same bits."""

    def __init__(self, device: str | Device = "cuda") -> None:
        self.device = open_device(device) if isinstance(device, str) else device
        self._sides: list[_DeviceSide] = []  # the last two: a fit has two sides

    # ------------------------------------------------------------------ factors

    def upload(self, factors: np.ndarray) -> Any:
        """A copy on the device. `half_step` takes and returns such arrays without moving them."""
        with self.device.active():
            return self.device.upload(factors)

    def download(self, factors: Any) -> np.ndarray:
        """A copy in the host's memory."""
        with self.device.active():
            return self.device.download(factors)

    def ridge(self, factors: Any, ridge: np.ndarray) -> float:
        """``sum_r ridge_r |f_r|^2``."""
        with self.device.active():
            factors = self.device.upload(factors)
            return float(column_sums(self.device, factors, self.device.upload(ridge[None]))[-1].sum())

    # ------------------------------------------------------------------ half-step

    def half_step(
        self, rows: CSR, fixed: Any, side: Side, *, rotate: bool = False, out: Any = None, warm: bool = False
    ) -> HalfStep:
        """See `Backend.half_step`; factors may be arrays of the device, and are then left there."""
        if side.prior is not None or side.row_terms.shape[1] != 4:
            why = "features, user_mean, dislikes and hard_negatives are solved on device='cpu' only"
            raise ParameterError("device", f"cuda:{self.device.ordinal}", why)
        with self.device.active():
            on_device = self._side(rows, side, np.dtype(fixed.dtype), fixed.shape[1])
            factors, decrease = _HalfStep(self.device, on_device, self.upload(fixed)).run()
            return HalfStep(factors if self.device.owns(fixed) else self.download(factors), decrease)

    def _side(self, rows: CSR, side: Side, dtype: np.dtype, K: int) -> "_DeviceSide":
        for known in self._sides:
            if (known.matrix is rows, known.side is side, known.dtype, known.K) == (True, True, dtype, K):
                return known
        self._sides = self._sides[-1:]  # frees the older one before memory for the new one is taken
        self._sides.append(_DeviceSide(self.device, rows, side, dtype, K))
        return self._sides[-1]


class _DeviceSide:
    """One side of a fit on the device: matrix, coefficients, and the order in which rows are solved."""

    def __init__(self, device: Device, matrix: CSR, side: Side, dtype: np.dtype, K: int) -> None:
        self.matrix, self.side, self.dtype, self.K = matrix, side, dtype, K
        counts, up = matrix.row_counts, device.upload
        rows = rows_of(matrix, side, fold_terms(side, dtype))
        kind = classify((counts, *weigh(rows)), side, K, dtype, GPU)
        order = np.argsort(-counts, kind="stable")
        self.order = up(order[kind[order] != EMPTY].astype(np.int32))
        self.weights = [up(a) for a in (side.scale, side.linear, side.ridge)]
        self.fixed_weights = up(np.stack([side.linear_weight, side.gram_weight]))
        self.solved = (counts > 0) | (side.linear != 0)
        #: The kernel's arguments that belong to a side, in their order.
        of_positives = matrix.indptr, matrix.indices, rows.values, rows.row_terms, rows.col_terms
        self.arrays = [*map(up, (kind, *of_positives)), *self.weights]


# As on the CPU, one rotation makes every row's system diagonal plus low rank; solve_rows.cu solves these.
class _HalfStep:
    """One half-step, and the arrays that its phases share."""

    def __init__(self, device: Device, on_device: _DeviceSide, fixed: Any) -> None:
        self.device, self.xp, self.on, self.side = device, device.xp, on_device, on_device.side
        self.fixed, self.dtype, self.K = fixed, fixed.dtype, fixed.shape[1]
        self.padded = -(-self.K // FOUR) * FOUR  # K as the kernel sees it
        self.out: Any = self.xp.zeros((on_device.matrix.n_rows, self.padded), self.dtype)

    def run(self) -> tuple[Any, float]:
        """The solutions, and ``sum_r b_r . p_r``."""
        side, K = self.side, self.K
        basis = self.xp.zeros((K, self.padded), self.dtype)
        basis[:, :K] = self.device.eigenvectors(self._gramian())
        self.rotated = self.fixed @ basis
        # d is summed over the rotated factors in float64, because a float32 Gramian loses weak directions.
        s, u, d = column_sums(self.device, self.rotated, self.on.fixed_weights)[:, :K]
        if not side.coupled:  # positive semidefinite: below zero is rounding
            d = np.maximum(d - side.interaction * u**2, 0.0)
        self.d = self._up(d, 1.0)
        self._check_diagonal(d)
        if not (side.coupled and side.interaction):
            value, _ = self._solve(s)
        else:
            B = self._solve(s, inverse=True)[1]
            shift = coupling_shift(B, self._pull(), side.interaction, d)
            value, _ = self._solve(s + shift)
            value += coupling_value(self._pull(), shift, side.interaction, d)
        if not np.isfinite(value):
            bad = ~self.device.download(self.xp.isfinite(self.out).all(axis=1))
            raise_for_rows(np.where(bad, -2, 0), np.dtype(self.dtype))
        return self.out @ basis.T, value

    def _up(self, vector: np.ndarray, rest: float) -> Any:
        """A vector (K,) on the device, padded with ``rest``."""
        filled = np.pad(vector, (0, self.padded - self.K), constant_values=rest)
        return self.device.upload(filled.astype(self.dtype))

    def _gramian(self) -> Any:
        """Gramian of the fixed side, float64, on the device."""
        G = gram(self.device, self.fixed, self.on.fixed_weights[1])
        if self.side.interaction and not self.side.coupled:
            u = self.device.upload(column_sums(self.device, self.fixed, self.on.fixed_weights)[1])
            G -= self.side.interaction * (u[:, None] * u)
        if not bool(self.xp.isfinite(G).all()):
            row = int(self.xp.isfinite(self.fixed).all(axis=1).argmin())
            raise NumericalError(f"the Gramian of the fixed side is not finite; see its row {row}")
        return G

    def _check_diagonal(self, d: np.ndarray) -> None:
        """Raise for a row whose diagonal is not positive and finite in the factors' precision."""
        finfo, side = np.finfo(self.dtype), self.side
        low, high = (side.scale * end + side.ridge for end in (d.min(), d.max()))
        bad = ~((low > float(finfo.tiny)) & (high < float(finfo.max))) & self.on.solved
        raise_for_rows(np.where(bad, -1, 0), np.dtype(self.dtype))

    def _pull(self) -> np.ndarray:
        """``sum_r scale_r p_r``."""
        return column_sums(self.device, self.out, self.on.weights[0][None])[0, : self.K]

    def _solve(self, s: np.ndarray, inverse: bool = False) -> tuple[float, Any]:
        """Solve every row with the all-pairs linear term ``s`` (K,)."""
        # Returns ``sum_r b_r . p_r`` and, with ``inverse``, ``sum_r scale_r^2 A_r^-1``.
        xp, n = self.xp, len(self.on.order)
        tile = 64 if self.dtype == np.float32 and self.padded > 32 else 32  # so that it fits shared memory
        kernel = self.device.kernel("solve_rows", self.dtype, K=self.padded, TILE=tile)
        tiles = -(-self.padded // tile)
        # Each block of threads has tiles for its row's matrix and inverse, and a sum of its rows' inverses.
        scratch = (1 + inverse, tiles, tiles, tile, tile) if tiles > 1 or inverse else (0,)
        total = (tiles * tile,) * 2 if inverse else (0,)
        each = int(np.prod(scratch)) * self.dtype.itemsize + int(np.prod(total)) * 8
        blocks = max(1, min(n, self.device.processors * BLOCKS, self.device.room // max(each, 1)))
        value, info = xp.zeros(len(self.out)), xp.zeros(len(self.out), np.int32)
        inverses = xp.zeros((blocks, *total))
        side = [a if a.size else 0 for a in self.on.arrays]  # an empty array is a null pointer
        read = self.rotated, self.d, self._up(s, 0.0)
        work = xp.empty((blocks, *scratch), self.dtype), inverses if inverse else 0, xp.zeros(1, np.int32)
        given = self.on.order, np.int32(n), *side, *read, self.out, value, info, *work
        kernel((blocks,), (tile * tile // 16,), given)
        if bool(info.any()):
            raise_for_rows(self.device.download(info), np.dtype(self.dtype))
        B = None
        if inverse:
            lower = np.tril(self.device.download(inverses.sum(axis=0))[: self.K, : self.K])
            B = lower + np.tril(lower, -1).T
        return float(value.sum()), B


def column_sums(device: Device, factors: Any, weights: Any) -> np.ndarray:
    """``sum_r w_r f_r`` for each of the weights (j, n), and ``sum_r w_r f_r^2`` for the last: (j + 1, K)."""
    # In float64; the result is in the host's memory.
    xp, sums = device.xp, []

    def work(start: int, stop: int) -> None:
        f, w = factors[start:stop].astype(np.float64), weights[:, start:stop]
        sums.append(xp.concatenate([w @ f, w[-1:] @ (f * f)]))

    device.chunks(len(factors), 16 * factors.shape[1], work)
    return device.download(sum(sums, xp.zeros((len(weights) + 1, factors.shape[1]))))


def gram(device: Device, factors: Any, weight: Any) -> Any:
    """``F^T diag(weight) F``: blocks of rows in the factors' precision, added up in float64 on the device."""
    total = device.xp.zeros((factors.shape[1],) * 2)
    for start in range(0, len(factors), _ROWS_PER_SUM):
        part = factors[start : start + _ROWS_PER_SUM]
        left = part * weight[start : start + _ROWS_PER_SUM, None].astype(part.dtype)
        total += left.T @ part
    return (total + total.T) / 2
