"""WRMF: weighted regularised matrix factorisation."""

from __future__ import annotations

import numpy as np

from rgals._csr import CSR
from rgals.losses.base import Coefficients, Degrees, Loss, positive_coefficients


class WRMF(Loss):
    """Weighted squared loss on all pairs with confidence ``1 + alpha v`` (Hu, Koren, Volinsky 2008, Eq. 3)::

        L = sum_{x,y} (1 + alpha v_xy) (r_xy - o_xy)^2,      r_xy = 1 where v_xy > 0, else 0

    As published, the regularisation is plain (``reg_exponent=0``); ``reg_exponent=1`` scales it with
    frequency and is much the stronger baseline.

    Parameters
    ----------
    alpha : float, default=10.0
        Confidence gained per unit of value, >= 0.
    user_exponent, item_exponent : float, default=0.0
        Degree weighting of the positives, as in `RG2`.

    Examples
    --------
    >>> from rgals import WRMF
    >>> import numpy as np, scipy.sparse as sp
    >>> X = sp.csr_array(np.array([[1, 0]]))
    >>> WRMF(alpha=2.0).objective(X, np.array([[1.0]]), np.array([[0.5], [0.5]]))  # 3 * 0.5^2 + 0.5^2
    1.0
    """

    name = "WRMF"

    def __init__(
        self, alpha: float = 10.0, *, user_exponent: float = 0.0, item_exponent: float = 0.0
    ) -> None:
        self.alpha = alpha
        self.user_exponent = user_exponent
        self.item_exponent = item_exponent

    def coefficients(self, degrees: Degrees) -> Coefficients:
        """Coefficient arrays (see `rgals.losses.base`)."""
        boost = degrees.user_factor(self.user_exponent)
        zero = np.zeros(len(boost))
        return Coefficients(
            g=np.ones(len(boost)),
            h=np.ones(len(degrees.item_sum)),
            t=zero,
            user_terms=np.stack([self.alpha * boost, zero, self.alpha * boost, boost], 1),
            item_terms=np.repeat(degrees.item_factor(self.item_exponent)[:, None], 4, axis=1),
        )

    def constant(self, matrix: CSR, coefficients: Coefficients) -> float:
        """Sum of the confidences of the positives: their targets are 1, of all else 0."""
        step = 1 << 20
        chunks = range(0, matrix.nnz, step)
        ends = [(start, min(start + step, matrix.nnz)) for start in chunks]
        terms = coefficients.user_terms, coefficients.item_terms
        return float(sum(positive_coefficients(matrix, *terms, *edge)[2].sum() for edge in ends))
