"""What a backend is."""

from typing import Any, NamedTuple, Protocol

import numpy as np

from rgals.losses.base import Side
from rgals.matrix.csr import CSR
from rgals.runtime.errors import NumericalError


class HalfStep(NamedTuple):
    """The outcome of one half-step."""

    # the minimiser over the rows that were solved, (n_rows, K): an array, or what `Backend.upload` makes of
    # one where such was given
    factors: Any
    # ``sum_r b_r . p_r``: the objective is its constant plus the ridge of the fixed side minus this
    decrease: float
    # V (K, K) where the fixed factors were turned in place, ``F <- F V``
    turned: np.ndarray | None = None


def squared_lengths(factors: np.ndarray, weight: np.ndarray) -> float:
    """``sum_r weight_r |f_r|^2``."""
    # Not a BLAS product: outside `workers` it would wake BLAS's threads, which spin beside the kernels'.
    return float(np.sum(weight * np.einsum("ij,ij->i", factors, factors)))


class Backend(Protocol):
    """Solves half-steps exactly (or as exactly as it documents); here, of one that computes on the host."""

    def upload(self, factors: np.ndarray) -> Any:
        """Factors where the backend computes: what a fit hands to `half_step` and gets back from it."""
        return factors

    def download(self, factors: Any) -> np.ndarray:
        """Factors in the host's memory, up to an orthogonal change of basis that both sides share."""
        return factors

    def ridge(self, factors: Any, ridge: np.ndarray) -> float:
        """``sum_r ridge_r |f_r|^2`` of factors that `upload` or `half_step` returned."""
        return squared_lengths(factors, ridge)

    def half_step(
        self, rows: CSR, fixed: Any, side: Side, *, rotate: bool = False, out: Any = None, warm: bool = False
    ) -> HalfStep:
        """Minimise over the factors of ``rows``, (n_rows, n_fixed), given ``fixed``, (n_fixed, K).

        ``rotate`` permits the backend to turn ``fixed`` in place (``F <- F V``) by an orthogonal matrix, and
        to return the result turned likewise; ``fixed`` and ``out`` then come from `upload` or an earlier
        half-step. Neither scores nor lengths change. It saves a product per half-step.
        ``out`` (n_rows, K) is memory that the backend may use for the result. ``warm``: it holds the rows'
        current factors (in the basis of ``fixed``), where an iterative backend starts, otherwise from zero.

        A `NumericalError` names a row whose system is not positive definite or whose solution is not finite.
        """


def raise_for_rows(info: np.ndarray, dtype: np.dtype, first: int = 0) -> None:
    """Raise `NumericalError` for the first row whose ``info`` is not 0; rows are counted from ``first``."""
    bad = np.flatnonzero(info)
    if not len(bad):
        return
    row, code = first + int(bad[0]), int(info[bad[0]])
    more = f" (and {len(bad) - 1} more rows)" if len(bad) > 1 else ""
    advice = "raise reg" if dtype == np.float64 else "raise reg or use dtype='float64'"
    known = {-1: "its diagonal is not positive and finite", -2: "its solution is not finite"}
    what = known.get(code, f"pivot {code} is not positive")
    raise NumericalError(f"the system of row {row} is not positive definite: {what}{more}; {advice}")
