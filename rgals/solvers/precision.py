"""Whether a fit's precision is enough: rows that rounding may spoil are solved again in float64 and compared.

A row loses about ``eps c`` of its scores, where ``c`` is the condition of what all rows share, in the row's
units, plus what its own positives weigh in units of the same (the trace of ``X^T X`` in
`rgals.kernels.row`). Where ``c`` is small, as in most fits, there is nothing to measure; a bound that
needs no Gramian says so.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import scipy.linalg

from rgals.losses.base import Coefficients, Side, positive_coefficients, weight_sums
from rgals.matrix.csr import CSR
from rgals.runtime.errors import NumericalError, PrecisionWarning, warn
from rgals.solvers.base import Backend
from rgals.solvers.dense import shared, system
from rgals.solvers.hard_negatives import HardNegatives, hard_rows

# A condition from which on rounding may show. Of float32, where this costs a tenth of a thousandth, rows are
# measured then. Of float64 the smallest eigenvalue is rounding itself, as with reg=0 and more factors than
# users or items: objectives rose from there on.
RISKY = {"float32": 2e3, "float64": 1 / np.finfo(np.float64).eps}
LIMIT = 3e-4  # error of a row's scores that is warned of
_RANKED = 256  # rows whose risk is computed from their positives
_MEASURED = 32  # rows that are solved again


def warn_of_rounding(
    rows: CSR,
    solved: np.ndarray | None,
    fixed: np.ndarray,
    side: Side,
    backend: Backend,
    what: str,
    numbers: np.ndarray | None = None,
) -> None:
    """Warn where rounding shows in a row's scores: in float32 an error beyond `LIMIT` of the largest."""
    # ``solved``: factors of the rows of the half-step; None: what ``backend`` makes of those that are
    # checked. Where a side is coupled, its systems are judged without what couples them. ``what`` is a row's
    # name, and ``numbers`` what the rows are called, where it is not their place.
    if side.coupled:
        side = replace(side, interaction=0.0)
    at = rows_at_risk(rows, fixed, side)
    if not len(at):
        return
    names = at if numbers is None else numbers[at]
    singular = f"the system of {what} {{}} is singular to rounding"
    if fixed.dtype == np.float64:  # nothing to compare with
        return _warn(singular.format(names[0]), "float64")
    G, s, _ = shared(fixed, side.gram_weight, side.linear_weight, side.interaction)
    some, part = rows.take_rows(at), side.take_rows(at)
    found = backend.half_step(some, fixed, part).factors if solved is None else solved[at]
    right = np.empty(found.shape)
    for i in range(len(at)):
        A, b = system(some, i, fixed, part, G, s)
        try:
            right[i] = scipy.linalg.cho_solve(scipy.linalg.cho_factor(A, check_finite=False), b)
        except np.linalg.LinAlgError:  # in float64; float32 solved rounding errors then
            return _warn(singular.format(names[i]))
    scores, exact = found.astype(np.float64) @ fixed.T, right @ fixed.T
    largest = np.abs(exact).max(axis=1, initial=0.0)
    error = np.abs(scores - exact).max(axis=1, initial=0.0)
    error = np.divide(error, largest, out=np.zeros(len(at)), where=largest > 0)
    worst = int(np.argmax(error))
    if error[worst] > LIMIT:
        _warn(f"scores of {what} {names[worst]} are off by {error[worst]:.1e} of its largest")


def hard_rows_at_risk(
    rows: CSR,
    fixed: np.ndarray,
    side: Side,
    coefficients: Coefficients,
    hard: HardNegatives,
    backend: Backend,
    n_jobs: int | None,
) -> tuple[CSR, Side, np.ndarray]:
    """Users at risk who are folded in with hard negatives, for `warn_of_rounding`: rows, side and numbers."""
    # Such pairs weigh as much as all pairs do, times their weight: they alone put no row at risk.
    at = rows_at_risk(rows, fixed, side)
    some, part = rows.take_rows(at), side.take_rows(at)
    own = replace(coefficients, g=coefficients.g[at], t=coefficients.t[at])
    users = backend.half_step(some, fixed, part).factors
    for _, merged, with_pairs in hard_rows(some, fixed, users, part, own, hard, n_jobs):
        some, part = merged, with_pairs  # one block: rows at risk are some dozens
    return some, part, at


def check_underflow(rows: CSR, solved: np.ndarray, side: Side, what: str, first: int = 0) -> None:
    """Refuse factors that are 0 because the weights of their rows are next to nothing."""
    # Rows are counted from ``first``. Factors that regularisation brought to 0, iteration after iteration,
    # are a `PrecisionWarning`.
    kind = np.finfo(solved.dtype)
    held = kind.tiny / kind.eps  # below, numbers have fewer digits than others, or none
    lost = (rows.row_counts > 0) & (solved.max(axis=1) < held) & (solved.min(axis=1) > -held)
    for row in np.flatnonzero(lost):
        linear = positive_coefficients(rows, side.row_terms, side.col_terms, *rows.indptr[row : row + 2])[2]
        pull = np.abs(linear).max(initial=0.0)
        if pull == 0.0:
            continue
        named, more = first + int(row), f" (and of up to {lost.sum() - 1} more)" if lost.sum() > 1 else ""
        against = max(float(side.ridge[row]), float(side.scale[row]))
        if pull < kind.eps * against:
            raise NumericalError(
                f"the factors of {what} {named}{more} are too small for {kind.dtype}: its weights, at most "
                f"{pull:.1e}, are nothing beside {against:.1e} of all else. Scale the values of the matrix "
                "to about 1, lower reg, lengthen half_life, or take dtype='float64'"
            )
        said = f"the factors of {what} {named}{more} have come to 0"
        warn(f"{said}: reg leaves nothing of them. Lower reg", PrecisionWarning)
        return


def _warn(finding: str, dtype: str = "float32") -> None:
    advice = "Use dtype='float64', raise reg" if dtype == "float32" else "Raise reg"
    said = f"{dtype} is not enough for this fit: {finding}, and its objectives may be off as much. {advice}"
    warn(f"{said}, or lower the largest values of the matrix or the loss's weight on them", PrecisionWarning)


def rows_at_risk(rows: CSR, fixed: np.ndarray, side: Side) -> np.ndarray:
    """The rows whose scores rounding may reach, those at most risk first, some dozens at most."""
    lengths = np.einsum("ij,ij->i", fixed, fixed, dtype=np.float64)
    weight = np.abs(weight_sums(rows, side.row_terms, side.col_terms))
    needed, risky = (rows.row_counts > 0) | (side.linear != 0), RISKY[fixed.dtype.name]
    # What a positive weighs in units of what is shared: it is itself part of that, with its own weight.
    alone = np.inf
    if not side.interaction and side.gram_weight.min(initial=np.inf) > 0:
        alone = 1.0 / side.gram_weight.min()

    def shared_risk(least: float, most: float) -> np.ndarray:
        return _ratio(side.scale * most + side.ridge, side.scale * least + side.ridge)

    def bound(least: float, most: float) -> np.ndarray:
        low = side.scale * least + side.ridge
        lever = np.minimum(_ratio(lengths.max(initial=0.0), low), _ratio(alone, side.scale))
        own = np.multiply(weight, lever, out=np.zeros(len(weight)), where=weight > 0)
        return np.where(needed, shared_risk(least, most) + own, 0.0)

    # Eigenvalues of the Gramian lie between 0 and its trace.
    if bound(0.0, float(side.gram_weight @ lengths)).max(initial=0.0) < risky:
        return np.empty(0, np.int64)
    G, _, removed = shared(fixed, side.gram_weight, side.linear_weight, side.interaction)
    d, V = scipy.linalg.eigh(G, check_finite=False)
    d = np.maximum(d, 0.0)  # below is rounding
    ends = float(d[0]), float(d[-1]) + removed
    risk = bound(*ends)
    top = np.argsort(-risk, kind="stable")[:_RANKED]
    top = top[risk[top] >= risky]
    risk = shared_risk(*ends)[top] + _own_risk(rows.take_rows(top), fixed, side.take_rows(top), d, V)
    order = np.argsort(-risk, kind="stable")[:_MEASURED]
    return top[order[risk[order] >= risky]]


def _own_risk(rows: CSR, fixed: np.ndarray, side: Side, d: np.ndarray, V: np.ndarray) -> np.ndarray:
    """What the positives of a row weigh, in units of what is shared: the trace of ``X^T X``."""
    _, m, _ = positive_coefficients(rows, side.row_terms, side.col_terms)
    total = np.zeros(rows.n_rows)
    for r in range(rows.n_rows):
        here = slice(rows.indptr[r], rows.indptr[r + 1])
        weights = np.abs(m[here]) @ (fixed[rows.indices[here]] @ V) ** 2
        total[r] = _ratio(weights, side.scale[r] * d + side.ridge[r]).sum()
    return total


def _ratio(above: Any, below: np.ndarray) -> np.ndarray:
    """``above / below``; infinite where something is above nothing, 0 where nothing is."""
    above = np.broadcast_to(above, below.shape)
    return np.divide(above, below, out=np.where(above > 0, np.inf, 0.0), where=below > 0)
