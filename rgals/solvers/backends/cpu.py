"""The CPU backend: one rotation per half-step makes every row system diagonal plus low rank.

With the eigendecomposition ``G = V diag(d) V^T`` (float64, once per half-step) and ``F V`` in place of ``F``,
the system of every row is ``diag(scale_r d + ridge_r)`` plus its own positives, whatever its scale and ridge.
Rows with few positives are then solved in their dual, without any K x K matrix (`rgals.kernels.systems`).
"""

from __future__ import annotations

import numpy as np
import scipy.linalg

from rgals._aligned import aligned, empty
from rgals._csr import CSR
from rgals._errors import NumericalError
from rgals._threads import workers
from rgals.kernels import gram, inverse, pcg, rows, shared, tiles
from rgals.losses.base import Side
from rgals.solvers.backends.base import HalfStep, HostFactors, raise_for_rows

_LAUNCH = 1 << 36  # multiplications of one launch: a second or two on two cores

_PIECES = 256  # of work, in which the shared solver cuts the rows
_AT_ONCE = 4096  # rows of a table of n_rows x K numbers that is never held as a whole
_ROW_COST = 8  # of a row beside its positives, in positives


class CPUBackend(HostFactors):
    """Exact half-steps in numba, parallel over rows; bitwise independent of the number of threads.

    Parameters
    ----------
    n_jobs : int or None, default=None
        Threads; ``None`` for all.
    steps : int or None, default=None
        Solve rows approximately, by that many conjugate gradient steps, instead of exactly; all but those of
        few positives, whose exact solution costs less.
    """

    name = "exact"

    def __init__(self, n_jobs: int | None = None, steps: int | None = None) -> None:
        self.n_jobs = n_jobs
        self.steps = steps
        self._plans: list[_Plan] = []  # of the two sides of a fit

    def upload(self, factors: np.ndarray) -> np.ndarray:
        """Factors whose rows begin on cache lines."""
        return aligned(factors)

    def half_step(
        self,
        rows: CSR,
        fixed: np.ndarray,
        side: Side,
        *,
        rotate: bool = False,
        out: np.ndarray | None = None,
        warm: bool = False,
    ) -> HalfStep:
        """See `Backend.half_step`."""
        if out is None:
            out = empty((rows.n_rows, fixed.shape[1]), fixed.dtype)
        with workers(self.n_jobs) as n_threads:
            plan = self._plan(rows, side, fixed.dtype)
            return _HalfStep(plan, fixed, out, n_threads, self.steps).run(rotate, warm)

    def _plan(self, rows: CSR, side: Side, dtype: np.dtype) -> _Plan:
        for plan in self._plans:
            if plan.matrix is rows and plan.side is side and plan.dtype == dtype:
                return plan
        self._plans = [*self._plans[-1:], _Plan(rows, side, dtype)]
        return self._plans[-1]


class _Plan:
    """What the half-steps of a side share: rows by cost, coefficients in the factors' precision."""

    def __init__(self, matrix: CSR, side: Side, dtype: np.dtype) -> None:
        self.matrix, self.side, self.dtype = matrix, side, dtype
        self.csr = (matrix.indptr, matrix.indices, matrix.values.astype(dtype, copy=False))
        # Where all columns count alike (no exponent, say) their terms move to the rows: kernels then read
        # nothing per positive.
        if len(side.col_terms) and (side.col_terms == side.col_terms[0]).all():
            row_terms, col_terms = side.row_terms * side.col_terms[0], np.empty((0, 4))
        else:
            row_terms, col_terms = side.row_terms, side.col_terms
        self.terms = (row_terms.astype(dtype), col_terms.astype(dtype))
        #: Whether no positive carries weight.
        self.shared = not any(
            row_terms[:, j].any() and (not len(col_terms) or col_terms[:, j].any()) for j in (0, 1)
        )
        #: The queue of work: rows, the most expensive first; or bounds of pieces of rows of equal cost.
        if self.shared:
            cost = matrix.indptr + _ROW_COST * np.arange(matrix.n_rows + 1)
            self.queue = np.unique(np.searchsorted(cost, np.linspace(0, cost[-1], _PIECES + 1)))
        else:
            self.queue = np.argsort(-matrix.row_counts, kind="stable")


class _HalfStep:
    """One half-step: the arrays that its phases share."""

    def __init__(
        self, plan: _Plan, fixed: np.ndarray, out: np.ndarray, n_threads: int, steps: int | None
    ) -> None:
        self.steps = None if plan.shared else steps  # the shared solver is exact at the price of a step
        self.plan = plan
        self.side, self.csr, self.terms = plan.side, plan.csr, plan.terms
        self.n_threads = n_threads
        self.fixed = fixed
        self.out = out
        self.n_rows = plan.matrix.n_rows
        self.k = fixed.shape[1]
        self.width = tiles.LINE // fixed.dtype.itemsize
        self.kp = -(-self.k // self.width) * self.width
        self.n_iterated = (
            0 if self.steps is None else int((plan.matrix.row_counts > pcg.direct(self.kp)).sum())
        )

    def run(self, rotate: bool, warm: bool) -> HalfStep:
        basis = self._rotate(in_place=rotate)
        coupled = self.side.coupled and self.side.interaction
        if self.steps is not None:
            if not warm:
                self.out[:] = 0.0
            if coupled:
                shift = self._majorised_coupling(basis)
            self._rotate_start(basis)
        if coupled:
            if self.steps is None:
                shift = self._coupling()
            factors, value = self._solve(self.s + shift)
            # The rows were charged for ``shift . v``; the objective has ``v^T H v`` (half of it when exact).
            v = self._pull(factors)
            H = self.side.interaction * self.d[: self.k]
            value += float(v @ (H * v) - 2.0 * (shift[: self.k] @ v))
        else:
            factors, value = self._solve(self.s)
        if not np.isfinite(value):
            bad = ~np.isfinite(factors).all(axis=1)
            raise_for_rows(np.where(bad, -2, 0), factors.dtype)
        if not rotate:
            gram.multiply(factors, np.ascontiguousarray(basis.T), factors, self.n_threads)
        return HalfStep(factors, value)

    def _rotate(self, in_place: bool) -> np.ndarray:
        """Eigenbasis of the Gramian; ``self.rotated``, ``self.d`` and ``self.s`` are in it."""
        side, fixed = self.side, self.fixed
        G = gram.gram(fixed, side.gram_weight, self.n_threads)
        interaction = 0.0 if side.coupled else side.interaction
        if interaction:
            u = self._sums(fixed)[1]
            G -= interaction * np.outer(u, u)
        if not np.isfinite(G).all():
            row = int(np.argmin(np.isfinite(fixed).all(axis=1)))
            raise NumericalError(f"the Gramian of the fixed side is not finite; see its row {row}")
        _, V = scipy.linalg.eigh(G, driver="evd", overwrite_a=True, check_finite=False)
        basis = np.ascontiguousarray(V.astype(fixed.dtype))
        rotated = fixed if in_place else empty(fixed.shape, fixed.dtype)
        # Of the rotated factors themselves: a float32 Gramian cannot resolve its weak directions, these sums
        # do.
        d, u, s = gram.multiply(fixed, basis, rotated, self.n_threads, side.gram_weight, side.linear_weight)
        d = np.maximum(d - interaction * u**2, 0.0)  # positive semidefinite: below zero is rounding
        self.d = np.full(self.kp, d.max())
        self.s = np.zeros(self.kp)
        self.d[: self.k], self.s[: self.k] = d, s
        if self.kp != self.k:
            padded = empty((len(rotated), self.kp), rotated.dtype)
            padded[:, : self.k], padded[:, self.k :] = rotated, 0.0
            rotated = padded
        self.rotated = rotated.reshape(-1)
        return basis

    def _rotate_start(self, basis: np.ndarray) -> None:
        """Rotate the current factors, where iterations start; rows that are solved directly need none."""
        iterated = self.plan.queue[: self.n_iterated]
        if 2 * len(iterated) > self.n_rows:
            gram.multiply(self.out, basis, self.out, self.n_threads)
            return
        for start in range(0, len(iterated), _AT_ONCE):
            some = iterated[start : start + _AT_ONCE]
            block = self.out[some]
            gram.multiply(block, basis, block, self.n_threads)
            self.out[some] = block

    def _sums(self, factors: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return gram.column_sums(factors, self.side.gram_weight, self.side.linear_weight, self.n_threads)

    def _solve(self, s: np.ndarray) -> tuple[np.ndarray, float]:
        dtype = self.rotated.dtype
        value = np.zeros(self.n_rows)
        info = np.zeros(self.n_rows, np.int32)
        side = self.side
        # The kernels differ in how they solve a row, not in what a row is.
        problem = (
            *self.csr, self.rotated, aligned(self.d.astype(dtype)), aligned(s.astype(dtype)), side.scale,
            side.linear, side.ridge, *self.terms, self.out, value, info,
        )  # fmt: skip
        if self.plan.shared:
            shared.solve(self.plan.queue, *problem, self.n_threads)
        else:
            iterated, direct = np.split(self.plan.queue, [self.n_iterated])
            # Ctrl-C is answered between two launches.
            for part in _seconds_of_work(iterated, self.csr[0], self.kp):
                pcg.solve(part, *problem, self.steps, self.n_threads)
            for part in _seconds_of_work(direct, self.csr[0], self.kp):
                rows.solve(part, *problem, self.n_threads)
        raise_for_rows(info, dtype)
        return self.out, float(value.sum())

    def _coupling(self) -> np.ndarray:
        """``H v``: what the shared interaction adds to ``s`` for every row.

        ``v = sum_r scale_r p_r`` solves ``(I - B H) v = sum_r scale_r A_r^-1 b_r`` with
        ``B = sum_r scale_r^2 A_r^-1`` and ``H = i G``, diagonal in this basis.
        """
        k = self.k
        uncoupled, _ = self._solve(self.s)
        B = self._inverse_sum()
        H = self.side.interaction * self.d[:k]
        v = np.linalg.solve(np.eye(k) - B * H, self._pull(uncoupled))
        shift = np.zeros(self.kp)
        shift[:k] = H * v
        return shift

    def _inverse_sum(self) -> np.ndarray:
        """``sum_r scale_r^2 A_r^-1``."""
        side, k = self.side, self.k
        if self.plan.shared:
            total = np.zeros(k)
            for start in range(0, self.n_rows, _AT_ONCE):
                scale = side.scale[start : start + _AT_ONCE]
                diagonal = np.outer(scale, self.d[:k]) + side.ridge[start : start + _AT_ONCE, None]
                # Rows with scale 0 add nothing, and may have no ridge either.
                total += (scale**2) @ np.divide(1.0, diagonal, out=diagonal, where=scale[:, None] > 0)
            return np.diag(total)
        dtype = self.rotated.dtype
        info = np.zeros(self.n_rows, np.int32)
        n_parts = 16 if k <= 256 else 4
        parts = inverse.inverse_sum(
            self.plan.queue, *self.csr, self.rotated, aligned(self.d.astype(dtype)), side.scale, side.ridge,
            *self.terms, n_parts, info, self.n_threads,
        )  # fmt: skip
        raise_for_rows(info, dtype)
        return inverse.unpack(parts.sum(axis=0), self.kp, self.width)[:k, :k]

    def _majorised_coupling(self, basis: np.ndarray) -> np.ndarray:
        """``H v`` at the current factors, which are not rotated yet.

        ``- i v^T G v`` is concave: its tangent there lies above it, so that a step which lowers the
        objective with the tangent lowers the objective itself.
        """
        shift = np.zeros(self.kp)
        shift[: self.k] = self.side.interaction * self.d[: self.k] * (self._pull(self.out) @ basis)
        return shift

    def _pull(self, solved: np.ndarray) -> np.ndarray:
        """``sum_r scale_r p_r``."""
        return gram.column_sums(solved, self.side.scale, self.side.scale, self.n_threads)[1]


def _seconds_of_work(order: np.ndarray, indptr: np.ndarray, width: int) -> list[np.ndarray]:
    """The rows in pieces that take no more than seconds to solve; one piece in all but huge problems."""
    most = len(order) * width**3 + int(indptr[-1]) * width**2  # of multiplications, whatever the path
    if most <= _LAUNCH or not len(order):
        return [order][: len(order)]
    counts = np.diff(indptr)[order].astype(np.float64)
    work = np.cumsum(np.minimum(counts, width) ** 3 + counts * np.minimum(counts, width) * width)
    cuts = np.searchsorted(work, np.arange(_LAUNCH, work[-1], _LAUNCH))
    return [part for part in np.split(order, cuts) if len(part)]
