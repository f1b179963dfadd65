"""The GPU backend: the same half-steps in batches, by CuPy's array functions alone."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

from rgals.kernels.row import DIAGONAL, DUAL, PRIMAL
from rgals.losses.base import Side
from rgals.matrix.csr import CSR
from rgals.runtime.errors import DeviceMemoryError, NumericalError
from rgals.solvers.base import HalfStep, raise_for_rows
from rgals.solvers.cpu import coupling_shift, coupling_value
from rgals.solvers.cuda.device import LESS, Device, open_device
from rgals.solvers.plan import GPU, classify, rows_of, weigh

SEGMENT = 1 << 13  # positives of a row that are gathered at once, but for the dual, which needs them all
_BLOCK = 1 << 14  # rows of factors that a product sums in their own precision


class CuPyBackend:
    """Half-steps on a GPU. Two runs on the same device give the same bits."""

    def __init__(self, device: str | Device = "cuda", steps: int | None = None) -> None:
        self.device = open_device(device) if isinstance(device, str) else device
        self.steps = steps  # of conjugate gradients, by which rows are solved; None: exactly
        self._sides: list[_DeviceSide] = []  # of a fit, which has two

    # ------------------------------------------------------------------ factors

    def upload(self, factors: np.ndarray, basis: np.ndarray | None = None) -> Any:
        """A copy on the device, which `half_step` takes and returns without moving it."""
        with self.device.active():
            return self.device.upload(factors)

    def download(self, factors: Any) -> np.ndarray:
        """A copy in the host's memory."""
        with self.device.active():
            return self.device.download(factors)

    def state(self, factors: Any) -> tuple[np.ndarray, None]:
        """A copy in the host's memory; factors are never turned here."""
        return self.download(factors), None

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
        # Raises besides a DeviceMemoryError where the device is too small even for the smallest pieces.
        device = self.device
        with device.active():
            try:
                on_device = self._side(rows, side, np.dtype(fixed.dtype), fixed.shape[1])
                step = _HalfStep(device, on_device, device.upload(fixed), self.steps)
                factors, decrease = step.run(device.upload(out) if warm and self.steps else None)
                return HalfStep(factors if device.owns(fixed) else device.download(factors), decrease)
            except DeviceMemoryError:
                raise
            except MemoryError as error:
                raise self._too_large(rows, fixed) from error

    def _side(self, rows: CSR, side: Side, dtype: np.dtype, K: int) -> "_DeviceSide":
        for known in self._sides:
            if (known.matrix is rows, known.side is side, known.dtype, known.K) == (True, True, dtype, K):
                return known
        self._sides = self._sides[-1:]  # the older of two goes first
        self._sides.append(_DeviceSide(self.device, rows, side, dtype, K))
        return self._sides[-1]

    def _too_large(self, rows: CSR, fixed: Any) -> DeviceMemoryError:
        free, total = self.device.memory()
        size = fixed.dtype.itemsize
        matrix = rows.nnz * (4 + (0 if rows.is_binary else size)) * 2
        factors = (rows.n_rows + len(fixed)) * fixed.shape[1] * size
        return DeviceMemoryError(
            f"the device has {free / 2**30:.1f} of {total / 2**30:.1f} GiB free; a fit of {rows.nnz} "
            f"interactions with {fixed.shape[1]} factors holds {(matrix + factors) / 2**30:.1f} GiB there "
            f"and needs {self.device.room / 2**30:.1f} GiB to work in; {LESS}"
        )


def padded_length(counts: np.ndarray) -> np.ndarray:
    """The next length on a ladder of multiples of 4 with steps of at most a quarter."""
    counts = np.maximum(np.asarray(counts, np.int64), 1)
    octave = np.maximum(np.floor(np.log2(counts)).astype(np.int64), 4)
    step = np.int64(1) << (octave - 2)
    return -(-counts // step) * step


class _Batch(NamedTuple):
    """Rows that are solved together."""

    kind: int
    length: int  # positives that every row is padded to
    rows: np.ndarray


class _DeviceSide:
    """One side of a fit on the device: matrix, coefficients, and rows in batches of similar length."""

    def __init__(self, device: Device, matrix: CSR, side: Side, dtype: np.dtype, K: int) -> None:
        self.matrix, self.side, self.dtype, self.K, self.xp = matrix, side, dtype, K, device.xp
        counts, up = matrix.row_counts, device.upload
        rows = rows_of(matrix, side, dtype)
        kind = classify(counts, *weigh(rows), side.linear, side.scale, K, dtype, GPU)
        self.indptr = up(matrix.indptr)
        self.indices = up(matrix.indices if matrix.nnz else np.zeros(1, np.int32))
        self.values = up(rows.values) if len(rows.values) else None
        self.row_terms = up(rows.row_terms)
        self.col_terms = up(rows.col_terms) if len(rows.col_terms) else None
        self.scale, self.linear, self.ridge = (up(a) for a in (side.scale, side.linear, side.ridge))
        self.gram_weight = up(side.gram_weight)
        self.fixed_weights = up(np.stack([side.linear_weight, side.gram_weight]))
        self.has_system = (counts > 0) | (side.linear != 0)
        length = padded_length(counts)
        self.batches = [
            _Batch(what, padded, np.flatnonzero((kind == what) & (length == padded)))
            for what in (DIAGONAL, DUAL, PRIMAL)
            for padded in np.unique(length[kind == what]).tolist()
        ]

    def positives(self, rows: Any, first: int, stop: int) -> tuple[Any, Any, Any]:
        """Columns, m and l of the positives ``first`` to ``stop`` of rows; 0 where a row has ended."""
        begin, nth = self.indptr[rows][:, None], self.xp.arange(first, stop)
        there = nth < self.indptr[rows + 1][:, None] - begin
        place = self.xp.where(there, begin + nth, 0)
        columns = self.indices[place]
        value = 1 if self.values is None else self.values[place]
        u = self.row_terms[rows].T[:, :, None]
        v = (1, 1, 1, 1) if self.col_terms is None else self.col_terms.T[:, columns]
        m, linear = (there * (value * u[i] * v[i] + u[i + 1] * v[i + 1]) for i in (0, 2))
        return columns, m, linear


# As on the CPU one rotation per half-step makes every row's system diagonal plus low rank. Scaled by D^-1/2,
# with D = scale d + ridge, X the rows D^-1/2 f_k and M their weights m_k, it is (I + X^T M X) x = b with
# b = D^-1/2 (linear s + sum l_k f_k) and p = D^-1/2 x. Where no weight is negative and n <= K it is solved in
# the dual: with Y = M^1/2 X, w_k = l_k / sqrt(m_k), and c what of b is of no positive with weight,
# x = c + Y^T z and (I + Y Y^T) z = w - Y c, which loses no digits to cancellation.
class _HalfStep:
    """One half-step: the arrays that its phases share."""

    def __init__(self, device: Device, on_device: _DeviceSide, fixed: Any, steps: int | None) -> None:
        self.device, self.xp, self.on, self.side = device, device.xp, on_device, on_device.side
        self.fixed, self.steps = fixed, steps
        self.K, self.dtype = fixed.shape[1], fixed.dtype
        self.out: Any = self.xp.zeros((on_device.matrix.n_rows, self.K), self.dtype)
        self.inverse: Any = None  # sum of scale_r^2 A_r^-1 over all rows, where asked for

    def run(self, start: Any = None) -> tuple[Any, float]:
        """The solutions, and ``sum_r b_r . p_r``; steps begin at ``start``."""
        side = self.side
        basis = self.device.eigenvectors(self._gramian()).astype(self.dtype)
        self.rotated = self.fixed @ basis
        # Of the rotated factors themselves: a float32 Gramian cannot resolve its weak directions, these sums
        # do.
        s, u, d = column_sums(self.device, self.rotated, self.on.fixed_weights)
        if not side.coupled:  # positive semidefinite: below zero is rounding
            d = np.maximum(d - side.interaction * u**2, 0.0)
        self.d = self.device.upload(d.astype(self.dtype))
        self._check_diagonal(d)
        if start is not None:
            self.out = start @ basis * self.device.upload(self.on.has_system[:, None])
        if not (side.coupled and side.interaction):
            value = self._solve(s)
        else:
            if self.steps is None:
                self.inverse = self.xp.zeros((self.K, self.K))
                self._solve(s)
                B, self.inverse = self.device.download(self.inverse), None
                shift = coupling_shift(B, self._pull(), side.interaction, d)
            else:  # the concave shared term lies below its tangent at the current factors
                shift = side.interaction * d * self._pull()
            value = self._solve(s + shift)
            value += coupling_value(self._pull(), shift, side.interaction, d)
        if not np.isfinite(value):
            bad = ~self.device.download(self.xp.isfinite(self.out).all(axis=1))
            raise_for_rows(np.where(bad, -2, 0), np.dtype(self.dtype))
        return self.out @ basis.T, value

    def _gramian(self) -> Any:
        """Gramian of the fixed side, float64, on the device."""
        G = gram(self.device, self.fixed, self.on.gram_weight)
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
        bad = ~((low > float(finfo.tiny)) & (high < float(finfo.max))) & self.on.has_system
        raise_for_rows(np.where(bad, -1, 0), np.dtype(self.dtype))

    def _pull(self) -> np.ndarray:
        """``sum_r scale_r p_r``."""
        return column_sums(self.device, self.out, self.on.scale[None])[0]

    # ------------------------------------------------------------------ rows

    def _solve(self, s: np.ndarray) -> float:
        """Solve, or improve, every row; ``s``, (K,): the all-pairs linear term. The sum of ``b_r . p_r``."""
        self.s = self.device.upload(s.astype(self.dtype))
        values: list[float] = []
        for batch in self.on.batches:
            solve = self._dual if batch.kind == DUAL else self._primal
            if self.steps is not None and batch.kind != DIAGONAL:
                solve = self._improve

            def work(start: int, stop: int, batch: _Batch = batch, solve: Any = solve) -> None:
                rows = self.device.upload(batch.rows[start:stop])
                scale, linear, ridge = (
                    a[rows].astype(self.dtype)[:, None]
                    for a in (self.on.scale, self.on.linear, self.on.ridge)
                )
                root = 1 / self.xp.sqrt(scale * self.d + ridge)
                # b is that of all pairs alone, and gets the positives' part.
                x, b, inverse = solve(batch, rows, root, linear * self.s * root)
                more = 0.0 if self.inverse is None else inverse(root * scale)
                value, p = float((b * x).sum(dtype=np.float64)), x * root
                # Last: a chunk that ran out of memory runs again.
                self.out[rows] = p
                values.append(value)
                if self.inverse is not None:
                    self.inverse += more

            self.device.chunks(len(batch.rows), self._bytes(batch), work)
        return sum(values)

    def _bytes(self, batch: _Batch) -> int:
        """Temporary memory of a row, about."""
        length = batch.length if batch.kind == DUAL else min(batch.length, SEGMENT)
        n = {DIAGONAL: 1, DUAL: length, PRIMAL: self.K}[batch.kind]  # of its matrix
        inverse = 2 * n * self.K if self.inverse is not None else 0
        return self.dtype.itemsize * (3 * length * (self.K + 8) + 3 * n * n + 8 * self.K + inverse)

    def _pieces(self, batch: _Batch, rows: Any, root: Any) -> Iterator[tuple[Any, Any, Any]]:
        """X, m and l of so many positives at once, (n, length, K) and (n, length)."""
        for first in range(0, batch.length, SEGMENT):
            stop = min(first + SEGMENT, batch.length)
            columns, m, linear = self.on.positives(rows, first, stop)
            yield self.rotated[columns] * root[:, None], m, linear

    def _primal(self, batch: _Batch, rows: Any, root: Any, b: Any) -> tuple[Any, Any, Any]:
        """By a K x K matrix for each row, where it has weights: x, b and what `inverse` grows by."""
        xp, K = self.xp, self.K
        if batch.kind == DIAGONAL:
            for x, _, linear in self._pieces(batch, rows, root):
                b += _times(linear, x)
            return b, b, lambda root: xp.diag((root.astype(np.float64) ** 2).sum(axis=0))
        A = xp.zeros((len(rows), K, K), self.dtype)
        for x, m, linear in self._pieces(batch, rows, root):
            b += _times(linear, x)
            A += x.swapaxes(1, 2) @ (m[:, :, None] * x)
        A += xp.eye(K, dtype=self.dtype)

        def inverse(root: Any) -> Any:
            right = root[:, :, None] * xp.eye(K, dtype=self.dtype)
            return (root[:, :, None] * xp.linalg.solve(A, right)).sum(axis=0, dtype=np.float64)

        return self._posv(A, b, rows), b, inverse

    def _dual(self, batch: _Batch, rows: Any, root: Any, c: Any) -> tuple[Any, Any, Any]:
        """By a matrix with a row for every positive: x, b and what `inverse` grows by."""
        xp = self.xp
        columns, m, linear = self.on.positives(rows, 0, batch.length)
        y = self.rotated[columns] * root[:, None]
        c += _times(linear * (m == 0), y)
        y *= xp.sqrt(m)[:, :, None]
        w = linear * (m > 0) / xp.sqrt(xp.where(m > 0, m, 1))
        A = y @ y.swapaxes(1, 2) + xp.eye(batch.length, dtype=self.dtype)
        z = self._posv(A, w - (y @ c[:, :, None])[:, :, 0], rows)

        def inverse(root: Any) -> Any:  # D^-1 - D^-1/2 Y^T (I + Y Y^T)^-1 Y D^-1/2
            right = y * root[:, None]
            solved = xp.linalg.solve(A, right)
            less = right.reshape(-1, self.K).T @ solved.reshape(-1, self.K)
            return xp.diag((root.astype(np.float64) ** 2).sum(axis=0)) - less

        return c + _times(z, y), c + _times(w, y), inverse

    def _improve(self, batch: _Batch, rows: Any, root: Any, b: Any) -> tuple[Any, Any, Any]:
        """Some steps of conjugate gradients from what `out` holds: x, and b plus what is left of it."""
        xp = self.xp
        pieces = self._pieces(batch, rows, root)
        held = list(pieces) if batch.length <= SEGMENT else None  # longer rows are gathered again and again

        def multiply(p: Any) -> Any:
            product = p.copy()
            for x, m, _ in held or self._pieces(batch, rows, root):
                product += _times(m * (x @ p[:, :, None])[:, :, 0], x)
            return product

        def dot(a: Any, b: Any) -> Any:
            return (a * b).sum(axis=1, dtype=np.float64)[:, None]

        for x, _, linear in held or pieces:
            b += _times(linear, x)
        x = self.out[rows] / root
        p = r = b - multiply(x)
        rr, enough = dot(r, r), dot(b, b) * float(np.finfo(self.dtype).eps) ** 2
        for _ in range(self.steps or 0):
            going = rr > enough
            if not bool(going.any()):
                break
            product = multiply(p)
            curvature = dot(p, product)
            bad = (going & ~(curvature > 0))[:, 0]
            if bool(bad.any()):
                self._raise(rows[int(bad.argmax())], 1)
            along = xp.where(going, rr / xp.where(going, curvature, 1), 0).astype(self.dtype)
            x, r = x + along * p, r - along * product
            after = xp.where(going, dot(r, r), rr)
            p = r + (after / xp.where(rr > 0, rr, 1)).astype(self.dtype) * p
            rr = after
        return x, (b + r), None

    def _posv(self, A: Any, b: Any, rows: Any) -> Any:
        """Solutions of positive definite systems; an error names the first row whose matrix is not."""
        try:
            return self.device.solve(A, b)
        except np.linalg.LinAlgError:
            if len(A) > 1:  # halves, until one is left
                half = len(A) // 2
                solved = [self._posv(A[at], b[at], rows[at]) for at in (slice(half), slice(half, None))]
                return self.xp.concatenate(solved)
            pivot = scipy.linalg.lapack.dpotrf(self.device.download(A[0]).astype(np.float64))[1]
            self._raise(rows[0], pivot or self.K)
            raise

    def _raise(self, row: Any, pivot: int) -> None:
        info = np.zeros(self.on.matrix.n_rows, np.int32)
        info[int(row)] = pivot
        raise_for_rows(info, np.dtype(self.dtype))


def _times(weights: Any, x: Any) -> Any:
    """Of each matrix of a batch the weighted sum of its rows: (n, length), (n, length, K) to (n, K)."""
    return (weights[:, None] @ x)[:, 0]


def column_sums(device: Device, factors: Any, weights: Any) -> np.ndarray:
    """``sum_r w_r f_r`` for each of the weights (j, n), and for the last ``sum_r w_r f_r^2``: (j + 1, K)."""
    # All in float64, the result in the host's memory.
    xp, sums = device.xp, []

    def work(start: int, stop: int) -> None:
        f, w = factors[start:stop].astype(np.float64), weights[:, start:stop]
        sums.append(xp.concatenate([w @ f, w[-1:] @ (f * f)]))

    device.chunks(len(factors), 16 * factors.shape[1], work, most=1 << 22)
    return device.download(sum(sums, xp.zeros((len(weights) + 1, factors.shape[1]))))


def gram(device: Device, factors: Any, weight: Any) -> Any:
    """``F^T diag(weight) F``: blocks of rows in the factors' precision, added up in float64 on the device."""
    total = device.xp.zeros((factors.shape[1],) * 2)
    for start in range(0, len(factors), _BLOCK):
        part = factors[start : start + _BLOCK]
        left = part * weight[start : start + _BLOCK, None].astype(part.dtype)
        total += left.T @ part
    return (total + total.T) / 2
