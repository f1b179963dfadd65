"""Whether float32 is enough for the systems of a fit: their condition, and a warning that offers float64."""

from __future__ import annotations

import warnings

import numpy as np
import scipy.linalg

from rgals._errors import PrecisionWarning
from rgals._threads import workers
from rgals.kernels import gram, sums
from rgals.losses.base import Side


def worst_condition(factors: np.ndarray, side: Side, n_jobs: int | None) -> tuple[float, int]:
    """Largest condition number of the rows' systems without their own positives, and the row.

    ``(scale_r d_max + ridge_r) / (scale_r d_min + ridge_r)`` with the extreme eigenvalues d of the Gramian of
    the fixed side.

    Parameters
    ----------
    factors : ndarray, shape (n_fixed, K)
    side : Side
    n_jobs : int or None

    Returns
    -------
    (condition, row) : (float, int)
        1 where no row has a system.
    """
    with workers(n_jobs) as threads:
        G = gram.gram(factors, side.gram_weight, threads)
        if side.interaction and not side.coupled:
            total = sums.column_sums(factors, side.gram_weight, side.linear_weight, threads)[1]
            G -= side.interaction * np.outer(total, total)
        d = scipy.linalg.eigvalsh(G, check_finite=False)
    low = side.scale * max(d[0], 0.0) + side.ridge
    high = side.scale * max(d[-1], 0.0) + side.ridge
    ratio = np.divide(high, low, out=np.full(len(low), np.inf), where=low > 0)
    ratio[high <= 0] = 1.0  # nothing to solve: a row without weight
    row = int(np.argmax(ratio)) if len(ratio) else 0
    return (float(ratio[row]) if len(ratio) else 1.0), row


def warn_of_float32(factors: np.ndarray, side: Side, n_jobs: int | None) -> None:
    """Warn where a fit in float32 cannot be trusted.

    Warns
    -----
    PrecisionWarning
        The condition of a row is beyond ``1 / eps``: rounding may have taken every digit of its factors.
        (Rows are solved in the Gramian's eigenbasis, which loses far fewer than that for smaller ones.)
    """
    if factors.dtype != np.float32:
        return
    condition, row = worst_condition(factors, side, n_jobs)
    if condition * np.finfo(np.float32).eps > 1.0:
        warnings.warn(
            f"float32 is not enough for this fit: the system of user {row} has condition {condition:.1e}, so "
            "that rounding may have taken every digit of its factors. Use dtype='float64' or raise reg",
            PrecisionWarning,
            stacklevel=5,  # of the caller of `fit`, which is decorated
        )
