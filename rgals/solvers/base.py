"""The protocol of a backend, which computes half-steps."""

from typing import Any, NamedTuple, Protocol

import numpy as np

from rgals.losses.base import Side
from rgals.matrix.csr import CSR
from rgals.runtime.errors import NumericalError


class HalfStep(NamedTuple):
    """The outcome of one half-step."""

    # The minimiser over the rows, (n_rows, K): an array, or one of the device if ``fixed`` was (`upload`).
    factors: Any
    # ``sum_r b_r . p_r``: the objective is the constant plus the ridge of the fixed side minus this.
    decrease: float
    # V (K, K) if the fixed factors were rotated in place, ``F <- F V``.
    turned: np.ndarray | None = None


def squared_lengths(factors: np.ndarray, weight: np.ndarray) -> float:
    """``sum_r weight_r |f_r|^2``."""
    # Not a BLAS product: BLAS's threads would wake up, and spin beside those of the kernels.
    return float(np.sum(weight * np.einsum("ij,ij->i", factors, factors)))


class Backend(Protocol):
    """Solves half-steps exactly, or as exactly as it documents. The defaults are for backends on the host."""

    def upload(self, factors: np.ndarray) -> Any:
        """Move factors to where the backend computes: a fit passes these to `half_step`."""
        return factors

    def download(self, factors: Any) -> np.ndarray:
        """Factors in the host's memory, in the basis that both sides share at that time."""
        return factors

    def ridge(self, factors: Any, ridge: np.ndarray) -> float:
        """``sum_r ridge_r |f_r|^2`` of factors that `upload` or `half_step` returned."""
        return squared_lengths(factors, ridge)

    def half_step(
        self, rows: CSR, fixed: Any, side: Side, *, rotate: bool = False, out: Any = None, warm: bool = False
    ) -> HalfStep:
        """Minimise over the factors of ``rows``, (n_rows, n_fixed), given ``fixed``, (n_fixed, K)."""
        # `rotate` permits the backend to rotate `fixed` in place (F <- F V, V orthogonal) and to return the
        # result in the same basis. Neither scores nor lengths change, and a product per half-step is saved;
        # `fixed` and `out` then come from `upload` or an earlier half-step. `out`, (n_rows, K), is memory
        # that may be used for the result. With `warm` it holds the rows' current factors in the basis of
        # `fixed`, from which an iterative backend starts; otherwise from zero. A `NumericalError` names a
        # row whose system is not positive definite or whose solution is not finite.


def raise_for_rows(info: np.ndarray, dtype: np.dtype, first: int = 0) -> None:
    """Raise a `NumericalError` for the first row whose ``info`` is not 0; rows are counted from ``first``."""
    bad = np.flatnonzero(info)
    if not len(bad):
        return
    row, code = first + int(bad[0]), int(info[bad[0]])
    more = f" (and {len(bad) - 1} more rows)" if len(bad) > 1 else ""
    advice = "raise reg" if dtype == np.float64 else "raise reg or use dtype='float64'"
    known = {-1: "its diagonal is not positive and finite", -2: "its solution is not finite"}
    what = known.get(code, f"pivot {code} is not positive")
    raise NumericalError(f"the system of row {row} is not positive definite: {what}{more}; {advice}")
