"""The CPU backend: one change of basis per half-step makes every row system diagonal plus low rank.

With the eigendecomposition ``G = V diag(d) V^T`` (float64, once per half-step) and ``F V`` in place of ``F``,
the system of every row is ``diag(scale_r d + ridge_r)`` plus its own positives, whatever its scale and ridge.
Where all scales are one multiple of the ridges, a Cholesky factor does the same at a fraction of the price
(`rgals.solvers.basis`). Most rows are then so well conditioned that a few conjugate gradient steps
solve them to rounding (`rgals.kernels.krylov`), and rows with few positives are solved in their dual
(`rgals.kernels.systems`): neither needs any K x K matrix.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rgals.kernels import gram, inverse, pcg, rows, shared, sums, tiles
from rgals.losses.base import Side
from rgals.matrix.csr import CSR, read_only
from rgals.runtime.aligned import aligned, empty
from rgals.runtime.errors import NumericalError
from rgals.runtime.threads import workers
from rgals.solvers.base import HalfStep, raise_for_rows, squared_lengths
from rgals.solvers.basis import Change, Factors, eigenbasis, metric, whitening

_LAUNCH = 1 << 36  # multiplications of one launch: a second or two on two cores

_PIECES = 256  # of work, in which the shared solver cuts the rows
_AT_ONCE = 4096  # rows of a table of n_rows x K numbers that is never held as a whole
_SAME = 1e-12  # rounding of what is meant to be one number
_ROW_COST = 8  # of a row beside its positives, in positives


class CPUBackend:
    """Exact half-steps in numba, parallel over rows; bitwise independent of the number of threads.

    Parameters
    ----------
    n_jobs : int or None, default=None
        Threads; ``None`` for all.
    steps : int or None, default=None
        Solve rows approximately, by that many conjugate gradient steps, instead of exactly; with more than
        128 factors all but those of few positives, whose exact solution costs less.
    """

    name = "exact"

    def __init__(self, n_jobs: int | None = None, steps: int | None = None) -> None:
        self.n_jobs = n_jobs
        self.steps = steps
        self._plans: list[_Plan] = []  # of the two sides of a fit

    def upload(self, factors: np.ndarray, basis: np.ndarray | None = None) -> Factors:
        """Factors whose rows begin on cache lines."""
        return Factors(aligned(factors), basis)

    def download(self, factors: Factors) -> np.ndarray:
        """The factors themselves where their basis is orthogonal, else a copy in one that is."""
        if factors.basis is None:
            return factors.array
        array = empty(factors.array.shape, factors.array.dtype)
        with workers(self.n_jobs) as n_threads:
            gram.multiply(factors.array, factors.basis.T.astype(array.dtype), array, n_threads)
        return array

    def state(self, factors: Factors) -> tuple[np.ndarray, np.ndarray | None]:
        """Array and basis."""
        return factors.array, factors.basis

    def ridge(self, factors: Factors, ridge: np.ndarray) -> float:
        """``sum_r ridge_r |f_r|^2``."""
        if factors.basis is None:
            return squared_lengths(factors.array, ridge)
        with workers(self.n_jobs) as n_threads:
            return float(np.sum(factors.gramian(ridge, n_threads) * metric(factors.basis, n_threads)))

    def half_step(
        self,
        rows: CSR,
        fixed: Any,
        side: Side,
        *,
        rotate: bool = False,
        out: Any = None,
        warm: bool = False,
    ) -> HalfStep:
        """See `Backend.half_step`; ``rotate`` needs factors from `upload`."""
        if not rotate:
            fixed, out = Factors(fixed), None if out is None else Factors(out)
        if out is None:
            basis = None if fixed.basis is None else np.linalg.inv(fixed.basis).T.copy()
            out = Factors(empty((rows.n_rows, fixed.array.shape[1]), fixed.array.dtype), basis)
        with workers(self.n_jobs) as n_threads:
            plan = self._plan(rows, side, fixed.array.dtype)
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
        self.csr = (matrix.indptr, matrix.indices, read_only(matrix.values.astype(dtype, copy=False)))
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
        self.ratio = self._scale_by_ridge()
        #: The queue of work: rows, the most expensive first; or bounds of pieces of rows of equal cost.
        if self.shared:
            cost = matrix.indptr + _ROW_COST * np.arange(matrix.n_rows + 1)
            self.queue = np.unique(np.searchsorted(cost, np.linspace(0, cost[-1], _PIECES + 1)))
        else:
            self.queue = np.argsort(-matrix.row_counts, kind="stable")

    def _scale_by_ridge(self) -> float | None:
        """What the scale of every row that has a system is of its ridge, where that is one number."""
        side = self.side
        if side.coupled and side.interaction:
            return None  # its rows are solved together, in an eigenbasis
        solved = (self.matrix.row_counts > 0) | (side.linear != 0)
        scale, ridge = side.scale[solved], side.ridge[solved]
        if not len(ridge) or not (ridge > 0).all():
            return None
        ratio = scale / ridge
        return float(ratio[0]) if np.ptp(ratio) <= _SAME * ratio[0] else None


class _HalfStep:
    """One half-step: the arrays that its phases share."""

    def __init__(self, plan: _Plan, fixed: Factors, out: Factors, n_threads: int, steps: int | None) -> None:
        self.steps = None if plan.shared else steps  # the shared solver is exact at the price of a step
        self.plan = plan
        self.side, self.csr, self.terms = plan.side, plan.csr, plan.terms
        self.n_threads = n_threads
        self.fixed = fixed
        self.solved = out
        self.out = out.array
        self.n_rows = plan.matrix.n_rows
        self.k = self.out.shape[1]
        self.width = tiles.LINE // self.out.itemsize
        self.kp = -(-self.k // self.width) * self.width
        self.n_iterated = (
            0 if self.steps is None else int((plan.matrix.row_counts > pcg.direct(self.kp)).sum())
        )

    def run(self, rotate: bool, warm: bool) -> HalfStep:
        change = self._find_basis(rotate)
        self._turn_fixed(change, in_place=rotate)
        coupled = self.side.coupled and self.side.interaction
        if self.steps is not None:
            back = change.back.astype(self.out.dtype)
            if not warm:
                self.out[:] = 0.0
            if coupled:
                shift = self._majorised_coupling(back)
            self._turn_start(back)
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
        if rotate:
            self.fixed.changed(change.fixed_basis)
            self.solved.changed(change.solved_basis)
            return HalfStep(self.solved, value)
        gram.multiply(factors, change.forth.T.astype(factors.dtype), factors, self.n_threads)
        return HalfStep(factors, value)

    def _find_basis(self, rotate: bool) -> Change:
        """The basis in which the part that all rows share is diagonal."""
        side, fixed = self.side, self.fixed
        G = fixed.gramian(side.gram_weight, self.n_threads)
        if side.interaction and not side.coupled:
            u = self._sums(fixed.array)[1]
            G -= side.interaction * np.outer(u, u)
        if not np.isfinite(G).all():
            row = int(np.argmin(np.isfinite(fixed.array).all(axis=1)))
            raise NumericalError(f"the Gramian of the fixed side is not finite; see its row {row}")
        bases = fixed.basis, self.solved.basis
        change = None
        # Not where rows are solved for themselves: one row alone always qualifies, and its bytes must not
        # depend on those that are solved beside it.
        if rotate and self.plan.ratio is not None:
            # Beyond that condition the directions which a Gramian of this precision cannot resolve would
            # count: `_turn_fixed` measures those of an eigenbasis.
            least = float(np.finfo(self.out.dtype).eps) ** 0.75
            change = whitening(G, self.plan.ratio, *bases, self.n_threads, least)
        return change or eigenbasis(G, *bases, self.n_threads)

    def _turn_fixed(self, change: Change, in_place: bool) -> None:
        """``self.rotated``, and in its basis the diagonal ``self.d`` and the sums ``self.s``."""
        side, fixed = self.side, self.fixed.array
        rotated = fixed if in_place else empty(fixed.shape, fixed.dtype)
        forth = change.forth.astype(fixed.dtype)
        # Of the rotated factors themselves: a float32 Gramian cannot resolve its weak directions, these sums
        # do.
        d, u, s = gram.multiply(fixed, forth, rotated, self.n_threads, side.gram_weight, side.linear_weight)
        self.s = np.zeros(self.kp)
        self.s[: self.k] = s
        if change.whitens:
            self.d = np.zeros(self.kp)  # all of the shared part is in units of the ridge
        else:
            interaction = 0.0 if side.coupled else side.interaction
            d = np.maximum(d - interaction * u**2, 0.0)  # positive semidefinite: below zero is rounding
            self.d = np.full(self.kp, d.max())
            self.d[: self.k] = d
        if self.kp != self.k:
            padded = empty((len(rotated), self.kp), rotated.dtype)
            padded[:, : self.k], padded[:, self.k :] = rotated, 0.0
            rotated = padded
        self.rotated = rotated.reshape(-1)

    def _turn_start(self, back: np.ndarray) -> None:
        """Turn the current factors, where iterations start; rows that are solved directly need none."""
        iterated = self.plan.queue[: self.n_iterated]
        if 2 * len(iterated) > self.n_rows:
            gram.multiply(self.out, back, self.out, self.n_threads)
            return
        for start in range(0, len(iterated), _AT_ONCE):
            some = iterated[start : start + _AT_ONCE]
            block = self.out[some]
            gram.multiply(block, back, block, self.n_threads)
            self.out[some] = block

    def _sums(self, factors: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return sums.column_sums(factors, self.side.gram_weight, self.side.linear_weight, self.n_threads)

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
        B, solutions = self._shared_sums() if self.plan.shared else self._sums_of_rows()
        H = self.side.interaction * self.d[:k]
        v = np.linalg.solve(np.eye(k) - B * H, solutions)
        shift = np.zeros(self.kp)
        shift[:k] = H * v
        return shift

    def _sums_of_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """``B`` and ``sum_r scale_r A_r^-1 b_r``."""
        side, k = self.side, self.k
        dtype = self.rotated.dtype
        info = np.zeros(self.n_rows, np.int32)
        n_parts = 16 if k <= 256 else 4
        B, solutions = inverse.coupling_sums(
            self.plan.queue, *self.csr, self.rotated, aligned(self.d.astype(dtype)),
            aligned(self.s.astype(dtype)), side.scale, side.linear, side.ridge, *self.terms, n_parts, info,
            self.n_threads,
        )  # fmt: skip
        raise_for_rows(info, dtype)
        return B[:k, :k], solutions[:k]

    def _shared_sums(self) -> tuple[np.ndarray, np.ndarray]:
        """The same where every system is diagonal."""
        side, k = self.side, self.k
        uncoupled, _ = self._solve(self.s)
        total = np.zeros(k)
        for start in range(0, self.n_rows, _AT_ONCE):
            scale = side.scale[start : start + _AT_ONCE]
            diagonal = np.outer(scale, self.d[:k]) + side.ridge[start : start + _AT_ONCE, None]
            # Rows with scale 0 add nothing, and may have no ridge either.
            total += (scale**2) @ np.divide(1.0, diagonal, out=diagonal, where=scale[:, None] > 0)
        return np.diag(total), self._pull(uncoupled)

    def _majorised_coupling(self, back: np.ndarray) -> np.ndarray:
        """``H v`` at the current factors, which are not turned yet.

        ``- i v^T G v`` is concave: its tangent there lies above it, so that a step which lowers the
        objective with the tangent lowers the objective itself.
        """
        shift = np.zeros(self.kp)
        shift[: self.k] = self.side.interaction * self.d[: self.k] * (self._pull(self.out) @ back)
        return shift

    def _pull(self, solved: np.ndarray) -> np.ndarray:
        """``sum_r scale_r p_r``."""
        return sums.column_sums(solved, self.side.scale, self.side.scale, self.n_threads)[1]


def _seconds_of_work(order: np.ndarray, indptr: np.ndarray, width: int) -> list[np.ndarray]:
    """The rows in pieces that take no more than seconds to solve; one piece in all but huge problems."""
    most = len(order) * width**3 + int(indptr[-1]) * width**2  # of multiplications, whatever the path
    if most <= _LAUNCH or not len(order):
        return [order][: len(order)]
    counts = np.diff(indptr)[order].astype(np.float64)
    work = np.cumsum(np.minimum(counts, width) ** 3 + counts * np.minimum(counts, width) * width)
    cuts = np.searchsorted(work, np.arange(_LAUNCH, work[-1], _LAUNCH))
    return [part for part in np.split(order, cuts) if len(part)]
