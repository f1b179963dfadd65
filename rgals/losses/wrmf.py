"""WRMF: weighted regularised matrix factorisation."""

from dataclasses import KW_ONLY, dataclass

import numpy as np

from rgals.losses.base import AUTO, Coefficients, Loss, positive_terms, weight_sums
from rgals.losses.degrees import Degrees
from rgals.losses.ials import IALS
from rgals.matrix.csr import CSR


@dataclass(eq=False, repr=False)
class WRMF(Loss):
    """Weighted squared loss on all pairs with confidence ``1 + alpha v``.

    Eq. 3 of Hu, Koren and Volinsky, 2008::

        L = sum_{x,y} (1 + alpha v_xy) (r_xy - o_xy)^2,      r_xy = 1 where v_xy > 0, else 0

    Published with plain regularisation (``reg_exponent=0``); 1, scaled with frequency, is much stronger.

    Parameters
    ----------
    alpha : float or "auto", default="auto"
        Confidence gained per unit of value, >= 0. "auto" is ``1 / alpha0`` with the ``alpha0`` that `IALS`
        would take: both then rank alike.
    user_exponent : float, default=0.0
        Degree weighting of the positives, as in `RG2`: to the ``o_xy^2`` of all pairs, one of weight w adds
        ``w ((1 + alpha v_xy) (o_xy - 1)^2 - o_xy^2)``. For w other than 1, its target is not 1.
    item_exponent : float or "auto", default="auto"
        As in `RG2`; 0 where ``alpha`` is set.
    dislikes : bool, default=False
        Negative values are dislikes, which add ``dislike_weight alpha |v_xy| (o_xy + 1)^2``; see `IALS`.
    dislike_weight : float, default=0.3
        See ``dislikes``; >= 0.

    Examples
    --------
    >>> from rgals import WRMF
    >>> import numpy as np, scipy.sparse as sp
    >>> X = sp.csr_array(np.array([[1, 0]]))
    >>> WRMF(alpha=2.0).objective(X, np.array([[1.0]]), np.array([[0.5], [0.5]]))  # 3 * 0.5^2 + 0.5^2
    1.0
    """

    _auto = ("alpha", "item_exponent")

    alpha: float | str = AUTO
    _: KW_ONLY
    user_exponent: float = 0.0
    item_exponent: float | str = AUTO
    dislikes: bool = False
    dislike_weight: float = 0.3

    def defaults(self, degrees: Degrees, K: int) -> dict[str, float]:
        """Those of `IALS` in the scale of this loss, exact if all values are equal (see `Loss.defaults`)."""
        ials = IALS().defaults(degrees, K)
        exponent = ials["item_exponent"] if self.alpha == AUTO else 0.0
        mean_value = degrees.user_sum.sum() / max(degrees.nnz, 1) or 1.0
        reg = ials["reg"] * (1 + ials["alpha0"] / float(mean_value))
        return {"alpha": 1 / ials["alpha0"], "item_exponent": exponent, "reg": reg}

    def coefficients(self, degrees: Degrees) -> Coefficients:
        alpha = float(self.alpha)
        n_users, n_items = degrees.shape
        terms = positive_terms(self, degrees, alpha, 0.0, alpha, 1.0)
        found = Coefficients(np.ones(n_users), np.ones(n_items), np.zeros(n_users), *terms)
        return found.with_dislikes(alpha * float(self.dislike_weight)) if self.dislikes else found

    def constant(self, matrix: CSR, coefficients: Coefficients) -> float:
        """Sum of the confidences: targets of positives are 1, of dislikes -1, of all else 0."""
        # The confidence of a positive is its l, that of a dislike its m.
        at = [2, 3, 2, 3, 4, 5][: coefficients.user_terms.shape[1]]
        linear = coefficients.user_terms[:, at], coefficients.item_terms[:, at]
        return float(weight_sums(matrix, *linear).sum())
