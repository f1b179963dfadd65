"""iALS: squared loss with a separate, small weight on all pairs."""

import math
from dataclasses import KW_ONLY, dataclass

import numpy as np

from rgals.losses.base import AUTO, Coefficients, Loss, constant_of_ones, positive_terms
from rgals.losses.degrees import Degrees
from rgals.losses.fitted import setting, typical

_LARGEST_ALPHA0 = 10.0  # of the rule, times the mean value: small dense matrices would exceed it


@dataclass(eq=False, repr=False)
class IALS(Loss):
    """Squared loss that pulls positives to 1 and all pairs, with weight ``alpha0``, to 0: iALS.

    Eq. 1 of Rendle et al. 2022, "Revisiting the performance of iALS"::

        L = sum_{x, y in I_x} v_xy (o_xy - 1)^2 + alpha0 sum_x sum_y h_y o_xy^2

    With ``reg_exponent=1`` the regularisation is their frequency scaling, ``reg (c_x + alpha0 N)^nu``,
    c_x the sum of a row's values, theirs the number.

    Parameters
    ----------
    alpha0 : float or "auto", default="auto"
        Weight of all pairs (their "unobserved weight"), >= 0. "auto" is ``c / (2 N alpha)`` for N items and
        users whose values sum to c in the mean, with the ``alpha`` that `RG2` would take: at the mean user
        both losses then have the same coefficients. It is at most 10 times the mean value. Items without
        interactions do not count in N where they are over a quarter, nor in the "auto" of ``reg``.
    proposal_exponent : float, default=0.0
        All pairs weigh ``h_y`` proportional to ``c_y^proposal_exponent`` with mean 1 (popular items count as
        stronger negatives).
    user_exponent : float, default=0.0
        Degree weighting of the positives, as in `RG2`.
    item_exponent : float or "auto", default="auto"
        As in `RG2`; 0 where ``alpha0`` is set.
    dislikes : bool, default=False
        Take negative values as dislikes, which add ``dislike_weight |v_xy| (o_xy + 1)^2`` to the loss.
        ``c_x`` and ``c_y``, and with them all that is "auto", are those of the other values. Otherwise a
        negative value is refused.
    dislike_weight : float, default=0.3
        See ``dislikes``; >= 0. They trade accuracy: on MovieLens 1M, .3 takes 23 % of the dislikes out of the
        first ten and costs 2 % of NDCG@10, 1 takes 45 % and costs 11 % (docs/quality.md).

    Examples
    --------
    >>> from rgals import IALS
    >>> import numpy as np, scipy.sparse as sp
    >>> X = sp.csr_array(np.array([[1, 0]]))
    >>> IALS(alpha0=0.5).objective(X, np.array([[1.0]]), np.array([[1.0], [2.0]]))  # 0 + 0.5 (1 + 4)
    2.5
    """

    _auto = ("alpha0", "item_exponent")
    constant = constant_of_ones

    alpha0: float | str = AUTO
    _: KW_ONLY
    proposal_exponent: float = 0.0
    user_exponent: float = 0.0
    item_exponent: float | str = AUTO
    dislikes: bool = False
    dislike_weight: float = 0.3

    def defaults(self, degrees: Degrees, K: int) -> dict[str, float]:
        """Those of `RG2`, converted by comparing coefficients at the mean user (see `Loss.defaults`)."""
        found = setting(degrees, K)
        total = float(degrees.user_sum.sum()) or 1.0
        mean = total / max(degrees.nnz, 1)
        pairs = 2.0 * max(degrees.filled[0], 1) * max(degrees.counted[1], 1)
        alpha0 = min(total / (pairs * found.alpha), _LARGEST_ALPHA0 * total / max(degrees.nnz, 1))
        reg = found.reg * 2 * found.alpha / (1 + 2 * found.alpha)
        # Ridges grow with the number of pairs of a row, empty ones too. For the fit only the product of the
        # ridges of both sides matters: that of typical rows shall be what it is without empty ones.
        lengths = typical(degrees.item_count) * mean, typical(degrees.user_count) * mean
        for length, counted, n in zip(lengths, degrees.counted, degrees.shape, strict=True):
            if counted < n:
                reg *= math.sqrt((length + alpha0 * counted) / (length + alpha0 * n))
        exponent = found.item_exponent if self.alpha0 == AUTO else 0.0
        return {"alpha0": alpha0, "item_exponent": exponent, "reg": reg}

    def coefficients(self, degrees: Degrees) -> Coefficients:
        zero = np.zeros(len(degrees.user_sum))
        h, terms = degrees.proposal(self.proposal_exponent), positive_terms(self, degrees, 1.0, 0.0, 1.0, 0.0)
        found = Coefficients(zero + float(self.alpha0), h, zero, *terms)
        return found.with_dislikes(float(self.dislike_weight)) if self.dislikes else found
