"""The CPU backend: one change of basis per half-step makes every row system diagonal plus low rank."""

# With the eigendecomposition ``G = V diag(d) V^T`` (float64, once per half-step) and ``F V`` in place of
# ``F``, the system of every row is ``diag(scale_r d + ridge_r)`` plus its own positives, whatever its scale
# and ridge. Most rows are then so well conditioned that a few CG steps solve them to rounding, and rows of
# few positives are solved in the dual: neither needs a K x K matrix. `rgals.solvers.plan` chooses how each
# row is solved.

from typing import Any

import numpy as np
import scipy.linalg

from rgals.kernels import diagonal, gram, rows
from rgals.kernels.row import NOT_POSITIVE, FixedSide, Result, Rows
from rgals.losses.base import Side
from rgals.matrix.csr import CSR
from rgals.runtime.aligned import aligned, empty
from rgals.runtime.errors import NumericalError
from rgals.runtime.threads import workers
from rgals.solvers.base import Backend, HalfStep, raise_for_rows
from rgals.solvers.plan import Plan
from rgals.solvers.prior import Prior

# Tolerance of the test that the items' joint system is positive definite. Adding a constant to all scores of
# a user costs nothing but reg: one eigenvalue is 0 up to rounding, which must not count as a saddle point.
SLACK = 1e-4
_ROWS_AT_ONCE = 4096  # rows of temporary tables with K columns


class CPUBackend(Backend):
    """Exact half-steps in numba, parallel over rows; bitwise independent of the number of threads."""

    # `n_jobs`: threads, None for all. `steps`: CG steps that improve rows instead of solving them (`Plan`).

    def __init__(self, n_jobs: int | None = None, steps: int | None = None) -> None:
        self.n_jobs, self.steps = n_jobs, steps
        self._plans: list[Plan] = []  # the last two: a fit has two sides

    def upload(self, factors: np.ndarray) -> np.ndarray:
        """Factors whose rows begin on cache lines."""
        return aligned(factors)

    def half_step(
        self, rows: CSR, fixed: Any, side: Side, *, rotate: bool = False, out: Any = None, warm: bool = False
    ) -> HalfStep:
        """See `Backend.half_step`."""
        out = empty((rows.n_rows, fixed.shape[1]), fixed.dtype) if out is None else out
        with workers(self.n_jobs) as n_threads:
            plan = self._plan(rows, side, fixed, n_threads)
            return Solve(plan, fixed, out, n_threads).run(rotate, warm)

    def _plan(self, rows: CSR, side: Side, fixed: np.ndarray, n_threads: int) -> Plan:
        K, dtype = fixed.shape[1], fixed.dtype
        for plan in self._plans:
            if plan.matrix is rows and plan.side is side and (plan.dtype, plan.K) == (dtype, K):
                return plan
        self._plans = [*self._plans[-1:], Plan(rows, side, dtype, K, self.steps, n_threads)]
        return self._plans[-1]


class Solve:
    """One half-step and the arrays that its phases share; errors count its rows from ``first``."""

    def __init__(
        self, plan: Plan, fixed: np.ndarray, out: np.ndarray, n_threads: int, first: int = 0
    ) -> None:
        self.plan, self.side, self.steps, self.n_threads = plan, plan.side, plan.steps, n_threads
        self.fixed, self.out, self.first = fixed, out, first
        self.n_rows, self.k, self.kp = plan.matrix.n_rows, self.out.shape[1], plan.kp
        #: What rows are pulled to (n_rows, K), if the side has features or a mean.
        self.prior: np.ndarray | None = None
        #: Coefficients of the fixed side, if the plan has none (`Plan.forget_columns`).
        self.col_terms: np.ndarray | None = None
        self.offset = 0.0

    def run(self, rotate: bool, warm: bool) -> HalfStep:
        """All phases of a half-step with both sides in this memory; a cluster calls them one by one."""
        V = self._eigenbasis()
        self._turn_fixed(V, in_place=rotate)
        coupled = self.side.coupled and self.side.interaction
        if self.steps is not None:
            turned = V.astype(self.out.dtype)
            if not warm:
                self.out[:] = 0.0
            if coupled:
                # ``H v`` at the current factors, which are not rotated yet. ``- i v^T G v`` is concave and
                # lies below its tangent there: a step that lowers the objective with the tangent in its place
                # lowers the objective itself.
                shift = np.zeros(self.kp)
                shift[: self.k] = self.side.interaction * self.d[: self.k] * (self.pull(self.out) @ turned)
            self._turn_start(turned)
        if self.side.prior is not None:
            self._predict(self.side.prior, V)
        if coupled:
            if self.steps is None:
                shift = coupling_shift(*self.coupling_sums(), self.side.interaction, self.d)
            factors, value = self.solve(shift)
            value += coupling_value(self.pull(factors), shift, self.side.interaction, self.d)
        else:
            factors, value = self.solve()
        if not rotate:
            gram.multiply(factors, V.T.astype(factors.dtype), factors, self.n_threads)
        return HalfStep(factors, value - self.offset, V if rotate else None)

    def _predict(self, prior: Prior, V: np.ndarray) -> None:
        """Compute what the rows are pulled to. Empty rows take it as their solution."""
        weights = prior.weights_of(self.k) @ V
        # If every row is solved once, its solution overwrites its prediction, and no second table is needed.
        once = self.steps is None and not (self.side.coupled and self.side.interaction)
        table = self.out if once else empty(self.out.shape, self.out.dtype)
        # ``sum_r ridge_r |F_r W|^2 + reg |W|^2``.
        self.offset = float((prior.moments(self.k, self.side.ridge) @ V * weights).sum())
        with np.errstate(over="ignore"):
            prior.predict_into(table, weights, self.n_threads)
        for start in range(0, len(self.plan.empty), _ROWS_AT_ONCE):
            if not np.isfinite(table[self.plan.empty[start : start + _ROWS_AT_ONCE]]).all():
                raise NumericalError(f"features predict factors beyond {table.dtype}; scale the features")
        self.prior = table

    def _eigenbasis(self) -> np.ndarray:
        """V, which makes diagonal what all rows share."""
        side, fixed, u = self.side, self.fixed, None
        G = gram.gram(fixed, side.gram_weight, self.n_threads)
        if side.interaction and not side.coupled:
            u = gram.column_sums(fixed, side.gram_weight, self.n_threads)
        if not np.isfinite(G).all():
            row = int(np.argmin(np.isfinite(fixed).all(axis=1)))
            raise NumericalError(f"the Gramian of the fixed side is not finite; see its row {row}")
        return eigenbasis(G, u, side.interaction)

    def _turn_fixed(self, V: np.ndarray, in_place: bool) -> None:
        side, fixed = self.side, self.fixed
        rotated = fixed if in_place else empty(fixed.shape, fixed.dtype)
        forth = V.astype(fixed.dtype)
        # d is summed over the rotated factors in float64. The eigenvalues of G would not do: products in
        # float32 lose its weak directions.
        sums = gram.multiply(fixed, forth, rotated, self.n_threads, side.gram_weight, side.linear_weight)
        interaction = 0.0 if side.coupled else side.interaction
        self.rotated, self.d, self.s = fixed_side(rotated, sums, interaction, self.kp)

    def _turn_start(self, V: np.ndarray) -> None:
        """Rotate the current factors of the rows that are iterated; rows solved directly need no start."""
        iterated = self.plan.iterated
        if 2 * len(iterated) > self.n_rows:  # most rows: all of them in place, without copies
            gram.multiply(self.out, V, self.out, self.n_threads)
            return
        for start in range(0, len(iterated), _ROWS_AT_ONCE):
            some = iterated[start : start + _ROWS_AT_ONCE]
            block = self.out[some]
            gram.multiply(block, V, block, self.n_threads)
            self.out[some] = block

    def _fixed(self, s: np.ndarray) -> FixedSide:
        dtype = self.rotated.dtype
        return FixedSide(self.rotated, aligned(self.d.astype(dtype)), aligned(s.astype(dtype)))

    def _result(self) -> Result:
        return Result(self.out, np.zeros(self.n_rows), np.zeros(self.n_rows, np.int32))

    def _part(self, at: slice, given: Rows, result: Result) -> tuple[Rows, Result]:
        """The rows of a block with the arrays of this half-step, and views of their results."""
        if self.prior is not None:
            given = given._replace(prior=self.prior[at])
        if self.col_terms is not None:
            given = given._replace(col_terms=self.col_terms)
        return given, Result(*(array[at] for array in result))

    def solve(self, shift: np.ndarray | None = None) -> tuple[np.ndarray, float]:
        """Solve all rows: their factors, and ``sum_r b_r . p_r``; RGx's item side adds ``shift`` to ``s``."""
        plan, result = self.plan, self._result()
        fixed = self._fixed(self.s if shift is None else self.s + shift)
        if self.prior is None:
            self.out[plan.empty] = 0.0
        elif self.prior is not self.out:
            self.out[plan.empty] = self.prior[plan.empty]
        for block in plan.blocks():
            given, found = self._part(block.at, block.rows, result)
            if len(block.diagonal.order):
                diagonal.solve(block.diagonal, given, fixed, found, self.n_threads)
            for all_work, steps in ((block.iterated, self.steps), (block.exact, None)):
                for work in plan.launches(block, all_work):  # Ctrl-C is answered between two launches
                    rows.solve(work, given, fixed, found, self.n_threads, steps)
        raise_for_rows(result.info, self.out.dtype, self.first)
        value = float(result.value.sum())
        if not np.isfinite(value):
            bad = ~np.isfinite(self.out).all(axis=1)
            raise_for_rows(np.where(bad, -2, 0), self.out.dtype, self.first)
        return self.out, value

    def coupling_sums(self) -> tuple[np.ndarray, np.ndarray]:
        """``B = sum_r scale_r^2 A_r^-1`` and ``sum_r scale_r A_r^-1 b_r``: see `coupling_shift`."""
        plan, k, result = self.plan, self.k, self._result()
        B, solutions = np.zeros((k, k)), np.zeros(k)
        if len(plan.coupled):
            parts = ((work, *self._part(at, given, result)) for at, given, work in plan.coupled_blocks())
            B, solutions = rows.coupling_sums(parts, self._fixed(self.s), self.n_threads)
            raise_for_rows(result.info, self.out.dtype, self.first)
        inverses, pulled = self._sums_of_diagonal()
        return B[:k, :k] + inverses, solutions[:k] + pulled

    def _sums_of_diagonal(self) -> tuple[np.ndarray, np.ndarray]:
        """The same sums over the rows without weights, whose systems are diagonal."""
        plan, side, k, result = self.plan, self.side, self.k, self._result()
        total = np.zeros(k)
        others = np.concatenate([plan.empty, plan.diagonal])
        # Rows of scale 0 add nothing, and their systems may be singular.
        others = others[side.scale[others] != 0]
        for start in range(0, len(others), _ROWS_AT_ONCE):
            some = others[start : start + _ROWS_AT_ONCE]
            D = np.outer(side.scale[some], self.d[:k]) + side.ridge[some, None]
            result.info[some[~(D.min(axis=1) > np.finfo(self.out.dtype).tiny)]] = NOT_POSITIVE
            raise_for_rows(result.info, self.out.dtype, self.first)
            total += side.scale[some] ** 2 @ (1.0 / D)
        if not len(plan.diagonal):
            return np.diag(total), np.zeros(k)
        self.out[plan.empty] = self.out[plan.exact] = 0.0
        for block in plan.blocks():
            given, found = self._part(block.at, block.rows, result)
            diagonal.solve(block.diagonal, given, self._fixed(self.s), found, self.n_threads)
        raise_for_rows(result.info, self.out.dtype, self.first)
        return np.diag(total), self.pull(self.out)

    def pull(self, solved: np.ndarray) -> np.ndarray:
        """``sum_r scale_r p_r``."""
        return gram.column_sums(solved, self.side.scale, self.n_threads)


def fixed_side(rotated: np.ndarray, sums: tuple[np.ndarray, ...], interaction: float, kp: int) -> FixedSide:
    """The record of a rotated table, its sums in float64; ``interaction``: of rows that are not coupled."""
    d, u, linear = sums
    k, s, diagonal = len(d), np.zeros(kp), np.zeros(kp)
    s[:k] = linear
    d = np.maximum(d - interaction * u**2, 0.0)  # positive semidefinite: below zero is rounding
    diagonal[:] = d.max()
    diagonal[:k] = d
    if kp != rotated.shape[1]:
        padded = empty((len(rotated), kp), rotated.dtype)
        padded[:, :k], padded[:, k:] = rotated, 0.0
        rotated = padded
    return FixedSide(rotated.reshape(-1), diagonal, s)


def eigenbasis(G: np.ndarray, u: np.ndarray | None, interaction: float) -> np.ndarray:
    """V that makes the Gramian diagonal, or ``G - i u u^T`` if ``u`` is given; G is overwritten."""
    if u is not None:
        G -= interaction * np.outer(u, u)
    return scipy.linalg.eigh(G, driver="evd", overwrite_a=True, check_finite=False)[1]


def coupling_shift(B: np.ndarray, solutions: np.ndarray, interaction: float, d: np.ndarray) -> np.ndarray:
    """``H v``: what the interaction that couples the rows adds to ``s``."""
    # The right-hand side of row r gets ``scale_r H v``: on the item side, ``linear`` and ``scale`` are equal.
    # ``v = sum_r scale_r p_r`` solves ``(I - B H) v = sum_r scale_r A_r^-1 b_r``, the vector ``solutions``,
    # with ``B = sum_r scale_r^2 A_r^-1`` and ``H = i G``, which is diagonal in this basis.
    k = len(B)
    H = interaction * d[:k]
    shift = np.zeros(len(d))
    try:
        root = np.sqrt(H)
        np.linalg.cholesky((1.0 + SLACK) * np.eye(k) - B * np.outer(root, root))
        shift[:k] = H * np.linalg.solve(np.eye(k) - B * H, solutions)
    except np.linalg.LinAlgError:
        why = "their interaction weighs as much as all else, or more"
        advice = "raise reg, or lower beta or n_negatives"
        raise NumericalError(f"the items have no single minimiser: {why}; {advice}") from None
    return shift


def coupling_value(v: np.ndarray, shift: np.ndarray, interaction: float, d: np.ndarray) -> float:
    """The correction of ``sum_r b_r . p_r`` for rows that were solved with `coupling_shift`."""
    # With the shift the rows' own terms contain ``-2 shift . v``; the objective has ``- v^T H v`` instead.
    k = len(v)
    return float(v @ (interaction * d[:k] * v) - 2.0 * (shift[:k] @ v))
