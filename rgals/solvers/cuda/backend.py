"""The GPU backend: the same half-steps in batches on a CUDA device, through CuPy."""

from typing import Any

import numpy as np

from rgals.losses.base import Side
from rgals.matrix.csr import CSR
from rgals.runtime.errors import DeviceMemoryError, NumericalError
from rgals.solvers.base import HalfStep, raise_for_rows
from rgals.solvers.cpu import coupling_shift, coupling_value
from rgals.solvers.cuda import Device, Room, check_factors, open_device
from rgals.solvers.cuda.room import LESS
from rgals.solvers.cuda.systems import DeviceMatrix, DeviceSide, Systems, gram


# As on the CPU one rotation per half-step makes every row system diagonal plus low rank. Rows of similar
# length are packed into one array and solved together, in their dual or primal. Where no positive carries
# weight and all rows share one matrix up to a factor, that matrix is inverted instead and nothing is rotated.
# The matrix, the coefficients and both sides' factors stay on the device for a whole fit.
class CuPyBackend:
    """Half-steps on a GPU. Two runs on the same device give the same bits."""

    name = "cupy"

    def __init__(self, device: str | Device = "cuda", steps: int | None = None) -> None:
        self.device = open_device(device) if isinstance(device, str) else device
        self.steps = steps  # of conjugate gradients, by which rows are solved; None: exactly
        with self.device.active():
            self.room = Room(self.device.workspace, self.device.free)
        self._matrices: list[DeviceMatrix] = []  # of the two sides of a fit
        self._sides: list[DeviceSide] = []

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
        """A copy in the host's memory; bases stay orthogonal here."""
        return self.download(factors), None

    def ridge(self, factors: Any, ridge: np.ndarray) -> float:
        """``sum_r ridge_r |f_r|^2``."""
        device = self.device
        with device.active():
            weight = device.upload(ridge)
            return float(device.column_sums(device.upload_if_host(factors), weight, weight)[0].sum())

    # ------------------------------------------------------------------ half-step

    def half_step(
        self, rows: CSR, fixed: Any, side: Side, *, rotate: bool = False, out: Any = None, warm: bool = False
    ) -> HalfStep:
        """See `Backend.half_step`; factors may be arrays of the device, and are then left there."""
        # Raises besides a DeviceMemoryError where the device is too small even for the smallest pieces of the
        # work, and a ParameterError for more than 1024 factors.
        k = fixed.shape[1]
        check_factors(k)
        device = self.device
        with device.active():
            inside = device.owns(fixed)
            try:
                plan = self._plan(rows, side, fixed.dtype, k)
                on_device = device.upload_if_host(fixed)
                result = device.xp.empty((rows.n_rows, k), fixed.dtype)
                if out is not None:
                    result = out if device.owns(out) else device.upload(out)
                step = _HalfStep(device, self.room, plan, on_device, result, self.steps)
                factors, decrease = step.run(rotate and inside, warm)
                return HalfStep(factors if inside else device.download(factors), decrease)
            except DeviceMemoryError:
                raise
            except MemoryError as error:
                raise self._too_large(rows, fixed) from error

    def _too_large(self, rows: CSR, fixed: Any) -> DeviceMemoryError:
        free, total = self.device.memory()
        size = fixed.dtype.itemsize
        matrix = rows.nnz * (4 + (0 if rows.is_binary else size)) * 2
        factors = (rows.n_rows + len(fixed)) * fixed.shape[1] * size
        return DeviceMemoryError(
            f"the device has {free / 2**30:.1f} of {total / 2**30:.1f} GiB free; a fit of {rows.nnz} "
            f"interactions with {fixed.shape[1]} factors holds {(matrix + factors) / 2**30:.1f} GiB there "
            f"and needs {self.room.size / 2**30:.1f} GiB to work in; {LESS}"
        )

    def _plan(self, rows: CSR, side: Side, dtype: np.dtype, k: int) -> DeviceSide:
        for plan in self._sides:
            matrix = plan.matrix
            if matrix.host is rows and plan.side is side and matrix.dtype == dtype and plan.k == k:
                return plan
        held = [m for m in self._matrices if m.host is rows and m.dtype == dtype]
        if not held:
            # The older of two goes first: a fit needs two, a fold-in one.
            self._matrices = self._matrices[-1:]
            self._sides = [s for s in self._sides if s.matrix in self._matrices]
            held = [DeviceMatrix(self.device, rows, np.dtype(dtype))]
            self._matrices += held
        plan = DeviceSide(self.device, held[0], side, k)
        self._sides = [*self._sides[-1:], plan]
        return plan


class _HalfStep:
    """One half-step: the arrays that its phases share."""

    def __init__(
        self, device: Device, room: Room, plan: DeviceSide, fixed: Any, out: Any, steps: int | None
    ) -> None:
        self.device, self.room, self.plan, self.side = device, room, plan, plan.side
        self.fixed, self.out, self.steps = fixed, out, steps
        self.k, self.dtype = fixed.shape[1], fixed.dtype

    def run(self, rotate: bool, warm: bool) -> tuple[Any, float]:
        coupled = self.side.coupled and self.side.interaction
        G = self._gramian()
        if self.plan.ratio is not None and self.steps is None and not coupled:
            value = self._shared(G)
            if value is not None:
                self._check_finite(value)
                return self.out, value
        basis = self._rotate(G, rotate)
        if self.steps is not None:
            if warm:
                self._multiply(self.out, basis, self.out)
            else:
                self.out.fill(0)
        systems = Systems(self.device, self.room, self.plan, self.rotated, self._up(self.d), self.out)
        if coupled:
            if self.steps is None:
                self._solve(systems, self.s, with_inverse=True)
                B = self.device.download(systems.inverse)
                shift = coupling_shift(B, self._pull(), self.side.interaction, self.d)
            else:  # the concave shared term lies below its tangent at the current factors
                shift = self.side.interaction * self.d * self._pull()
            value = self._solve(systems, self.s + shift)
            value += coupling_value(self._pull(), shift, self.side.interaction, self.d)
        else:
            value = self._solve(systems, self.s)
        self._check_finite(value)
        if not rotate:
            self._multiply(self.out, self.device.xp.ascontiguousarray(basis.T), self.out)
        return self.out, value

    def _up(self, vector: np.ndarray) -> Any:
        return self.device.upload(vector.astype(self.dtype))

    def _check_finite(self, value: float) -> None:
        if not np.isfinite(value):
            bad = ~self.device.download(self.device.xp.isfinite(self.out).all(axis=1))
            raise_for_rows(np.where(bad, -2, 0), np.dtype(self.dtype))

    def _gramian(self) -> Any:
        """Gramian of the fixed side, float64, on the device."""
        side, plan = self.side, self.plan
        if plan.uniform:
            G = gram(self.device, self.room, self.fixed, None)
            G *= float(side.gram_weight[0])
        else:
            G = gram(self.device, self.room, self.fixed, plan.gram_weight)
        if side.interaction and not side.coupled:
            u = self.device.upload(self._sums(self.fixed)[1])
            G -= side.interaction * (u[:, None] * u)
        xp = self.device.xp
        if not bool(xp.isfinite(G).all()):
            row = int(xp.isfinite(self.fixed).all(axis=1).argmin())
            raise NumericalError(f"the Gramian of the fixed side is not finite; see its row {row}")
        return G

    def _sums(self, factors: Any) -> np.ndarray:
        return self.device.column_sums(factors, self.plan.gram_weight, self.plan.linear_weight)

    def _multiply(self, factors: Any, matrix: Any, out: Any) -> None:
        """``out = factors @ matrix``; ``out`` may be ``factors``."""

        def work(start: int, stop: int) -> None:
            part = factors[start:stop]
            product = self.device.gemm(part, matrix, self.device.xp.empty(part.shape, part.dtype))
            out[start:stop] = product

        self.room.chunks(len(factors), self.k * self.dtype.itemsize, work, most=1 << 30)

    # ------------------------------------------------------------------ one matrix for all rows

    def _shared(self, G: Any) -> float | None:
        """``p_r = (G + ratio I)^-1 b_r / scale_r``; None where that matrix is not positive definite."""
        device, plan, xp = self.device, self.plan, self.device.xp
        assert plan.ratio is not None
        inverse = device.inverse(G + plan.ratio * xp.eye(self.k))
        if inverse is None:
            return None
        inverse = inverse.astype(self.dtype)
        s = self._up(self._sums(self.fixed)[2])
        weighed = plan.scale > 0
        over_scale = xp.where(weighed, 1 / xp.where(weighed, plan.scale, 1.0), 0.0).astype(self.dtype)
        b = xp.zeros_like(self.out)
        Systems(device, self.room, plan, self.fixed, s, self.out).add_up(b)
        values = []

        def work(start: int, stop: int) -> None:
            rhs = b[start:stop]
            rhs = rhs + plan.linear[start:stop].astype(self.dtype)[:, None] * s
            p = device.gemm(rhs, inverse, xp.empty(rhs.shape, rhs.dtype))
            p *= over_scale[start:stop, None]
            rhs *= p
            values.append(rhs.sum(dtype=np.float64))
            self.out[start:stop] = p

        self.room.chunks(len(b), self.k * self.dtype.itemsize * 4, work, most=1 << 30)
        return float(sum(float(value) for value in values))

    # ------------------------------------------------------------------ a matrix for every row

    def _rotate(self, G: Any, in_place: bool) -> Any:
        """Eigenbasis of the Gramian; ``self.rotated``, ``self.d`` and ``self.s`` are in it."""
        device, side = self.device, self.side
        basis = device.eigenvectors(G).astype(self.dtype)
        self.rotated = self.fixed if in_place else device.xp.empty_like(self.fixed)
        self._multiply(self.fixed, basis, self.rotated)
        # Of the rotated factors themselves: a float32 Gramian cannot resolve its weak directions, these sums
        # do.
        d, u, self.s = self._sums(self.rotated)
        interaction = 0.0 if side.coupled else side.interaction
        self.d = np.maximum(d - interaction * u**2, 0.0)  # positive semidefinite: below zero is rounding
        return basis

    def _solve(self, systems: Systems, s: np.ndarray, *, with_inverse: bool = False) -> float:
        if self.steps is None:
            systems.check_diagonal(float(self.d.min()), float(self.d.max()))
            self._raise(systems)
            systems.solve(self._up(s), with_inverse=with_inverse)
        else:
            systems.improve(self._up(s), self.steps)
        self._raise(systems)
        return float(systems.value.sum())

    def _raise(self, systems: Systems) -> None:
        if bool(systems.info.any()):
            raise_for_rows(self.device.download(systems.info), np.dtype(self.dtype))

    def _pull(self) -> np.ndarray:
        """``sum_r scale_r p_r``."""
        return self.device.column_sums(self.out, self.plan.scale, self.plan.scale)[1]
