"""Whether the precision of a fit is enough: rows at risk are solved again in float64 and compared."""

# The scores of a row have a relative error of about ``eps c``. Here c is the condition of the row's D (see
# `rgals.kernels.row`), plus the weight of its own positives in units of D, the trace of ``X^T X``. In most
# fits c is small, which a bound without a Gramian shows; then nothing is measured.

from dataclasses import replace
from typing import Any

import numpy as np
import scipy.linalg

from rgals.losses.base import Side, positive_coefficients, weight_sums
from rgals.matrix.csr import CSR
from rgals.runtime.errors import NumericalError, PrecisionWarning, warn
from rgals.solvers.base import Backend
from rgals.solvers.dense import shared, system
from rgals.solvers.hard_negatives import Half, HardNegatives, hard_rows

# The c from which on rounding may show. In float32, where it means an error of about 1e-4, rows are then
# measured. In float64 the smallest eigenvalue is itself rounding, as with reg=0 and more factors than users
# or items: from there on objectives rose.
RISKY = {"float32": 2e3, "float64": 1 / np.finfo(np.float64).eps}
LIMIT = 3e-4  # relative error of a row's scores beyond which a warning is given
_MOST_RANKED = 256  # rows, those of the largest bound, whose risk is computed from their positives
_MOST_MEASURED = 32  # rows, those of the largest risk, that are solved again


def warn_of_rounding(
    rows: CSR,
    solved: np.ndarray | None,
    fixed: np.ndarray,
    side: Side,
    backend: Backend,
    what: str,
    numbers: np.ndarray | None = None,
) -> None:
    """Warn if rounding shows in a row's scores: in float32, as an error beyond `LIMIT` of the largest."""
    # ``solved``: the rows' factors; None: ``backend`` solves those that are checked. Rows of a coupled side
    # are judged by their own systems, without the coupling. ``what`` is what messages call a row, ``numbers``
    # are the rows' numbers, if they are not their positions.
    if side.coupled:
        side = replace(side, interaction=0.0)
    at = rows_at_risk(rows, fixed, side)
    if not len(at):
        return
    names = at if numbers is None else numbers[at]
    singular = f"the system of {what} {{}} is singular to rounding"
    if fixed.dtype == np.float64:  # there is no higher precision to compare with
        return _warn(singular.format(names[0]), "float64")
    G, s, _ = shared(fixed, side.gram_weight, side.linear_weight, side.interaction)
    some, part = rows.take_rows(at), side.take_rows(at)
    found = backend.half_step(some, fixed, part).factors if solved is None else solved[at]
    right = np.empty(found.shape)
    for i in range(len(at)):
        A, b = system(some, i, fixed, part, G, s)
        try:
            right[i] = scipy.linalg.cho_solve(scipy.linalg.cho_factor(A, check_finite=False), b)
        except np.linalg.LinAlgError:  # singular even in float64
            return _warn(singular.format(names[i]))
    scores, exact = found.astype(np.float64) @ fixed.T, right @ fixed.T
    largest = np.abs(exact).max(axis=1, initial=0.0)
    error = np.abs(scores - exact).max(axis=1, initial=0.0)
    error = np.divide(error, largest, out=np.zeros(len(at)), where=largest > 0)
    worst = int(np.argmax(error))
    if error[worst] > LIMIT:
        _warn(f"scores of {what} {names[worst]} are off by {error[worst]:.1e} of its largest")


def hard_rows_at_risk(
    half: Half, fixed: np.ndarray, hard: HardNegatives, n_jobs: int | None
) -> tuple[CSR, Side, np.ndarray]:
    """Users at risk who are folded in with hard negatives, for `warn_of_rounding`: rows, side and numbers."""
    # A hard negative weighs as much as any pair does, times `hard.weight`: alone it puts no row at risk.
    rows, coefficients, side, backend = half
    at = rows_at_risk(rows, fixed, side)
    some, part = rows.take_rows(at), side.take_rows(at)
    own = replace(coefficients, g=coefficients.g[at], t=coefficients.t[at])
    users = backend.half_step(some, fixed, part).factors
    for _, merged, with_pairs in hard_rows((some, own, part, backend), fixed, users, hard, n_jobs):
        some, part = merged, with_pairs  # a single block, because rows at risk are a few dozen
    return some, part, at


def check_underflow(rows: CSR, solved: np.ndarray, side: Side, what: str, first: int = 0) -> None:
    """Raise if factors are 0 because the weights of their rows are too small for the precision."""
    # Rows are counted from ``first``. If regularisation brought the factors to 0 over the iterations, that is
    # a `PrecisionWarning`.
    kind = np.finfo(solved.dtype)
    held = kind.tiny / kind.eps  # below this, numbers lose digits
    lost = (rows.row_counts > 0) & (solved.max(axis=1) < held) & (solved.min(axis=1) > -held)
    for row in np.flatnonzero(lost):
        linear = positive_coefficients(rows, side.row_terms, side.col_terms, *rows.indptr[row : row + 2])[2]
        pull = np.abs(linear).max(initial=0.0)
        if pull == 0.0:  # zero is the solution
            continue
        named, more = first + int(row), f" (and of up to {lost.sum() - 1} more)" if lost.sum() > 1 else ""
        against = max(float(side.ridge[row]), float(side.scale[row]))
        if pull < kind.eps * against:
            wider = "" if kind.dtype == np.float64 else ", or use dtype='float64'"
            raise NumericalError(
                f"the factors of {what} {named}{more} are too small for {kind.dtype}: its weights, at most "
                f"{pull:.1e}, vanish beside {against:.1e} for reg and all pairs. Scale the values of the "
                f"matrix to about 1, lower reg or lengthen half_life{wider}"
            )
        said = f"the factors of {what} {named}{more} have come to 0"
        warn(f"{said}: reg leaves nothing of them. Lower reg", PrecisionWarning)
        return


def _warn(finding: str, dtype: str = "float32") -> None:
    advice = "Use dtype='float64', raise reg" if dtype == "float32" else "Raise reg"
    said = f"{dtype} is not enough for this fit: {finding}, and its objectives may be off as much. {advice}"
    warn(f"{said}, or lower the largest values of the matrix or the loss's weight on them", PrecisionWarning)


def rows_at_risk(rows: CSR, fixed: np.ndarray, side: Side) -> np.ndarray:
    """The rows whose scores may suffer from rounding, the largest risk first; at most a few dozen."""
    lengths = np.einsum("ij,ij->i", fixed, fixed, dtype=np.float64)
    weight = np.abs(weight_sums(rows, side.row_terms, side.col_terms))
    needed, risky = (rows.row_counts > 0) | (side.linear != 0), RISKY[fixed.dtype.name]
    # A positive f is itself part of the Gramian G, with a weight h: so f^T G^-1 f is at most 1 / h.
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

    # A bound without the Gramian: its eigenvalues lie between 0 and its trace.
    if bound(0.0, float(side.gram_weight @ lengths)).max(initial=0.0) < risky:
        return np.empty(0, np.int64)
    G, _, removed = shared(fixed, side.gram_weight, side.linear_weight, side.interaction)
    d, V = scipy.linalg.eigh(G, check_finite=False)
    d = np.maximum(d, 0.0)  # negative ones are rounding
    ends = float(d[0]), float(d[-1]) + removed
    risk = bound(*ends)
    top = np.argsort(-risk, kind="stable")[:_MOST_RANKED]
    top = top[risk[top] >= risky]
    risk = shared_risk(*ends)[top] + _own_risk(rows.take_rows(top), fixed, side.take_rows(top), d, V)
    order = np.argsort(-risk, kind="stable")[:_MOST_MEASURED]
    return top[order[risk[order] >= risky]]


def _own_risk(rows: CSR, fixed: np.ndarray, side: Side, d: np.ndarray, V: np.ndarray) -> np.ndarray:
    """The weight of a row's positives in units of D: the trace of ``X^T X``."""
    _, m, _ = positive_coefficients(rows, side.row_terms, side.col_terms)
    total = np.zeros(rows.n_rows)
    for r in range(rows.n_rows):
        here = slice(rows.indptr[r], rows.indptr[r + 1])
        weights = np.abs(m[here]) @ (fixed[rows.indices[here]] @ V) ** 2
        total[r] = _ratio(weights, side.scale[r] * d + side.ridge[r]).sum()
    return total


def _ratio(above: Any, below: np.ndarray) -> np.ndarray:
    """``above / below``, with ``x / 0 = inf`` for x > 0 and ``0 / 0 = 0``."""
    above = np.broadcast_to(above, below.shape)
    return np.divide(above, below, out=np.where(above > 0, np.inf, 0.0), where=below > 0)
