"""iALS: squared loss with a separate, small weight on all pairs."""

from __future__ import annotations

import numpy as np

from rgals.losses.base import Coefficients, Degrees, Loss


class IALS(Loss):
    """Positives to 1, everything lightly to 0: iALS.

    Eq. 1 of Rendle et al. 2022, "Revisiting the performance of iALS"::

        L = sum_{x, y in I_x} v_xy (o_xy - 1)^2 + alpha0 sum_x sum_y h_y o_xy^2

    With ``reg_exponent=1`` the regularisation is their frequency scaling, ``reg (|I_x| + alpha0 N)^nu``.

    Parameters
    ----------
    alpha0 : float, default=0.1
        Weight of all pairs (their "unobserved weight"), >= 0. Good values shrink as the catalogue grows.
    proposal_exponent : float, default=0.0
        All pairs weigh ``h_y`` proportional to ``c_y^proposal_exponent`` with mean 1 (popular items count as
        stronger negatives).
    user_exponent, item_exponent : float, default=0.0
        Degree weighting of the positives, as in `RG2`. About -0.4 raises quality on sparse catalogues.

    Examples
    --------
    >>> from rgals import IALS
    >>> import numpy as np, scipy.sparse as sp
    >>> X = sp.csr_array(np.array([[1, 0]]))
    >>> IALS(alpha0=0.5).objective(X, np.array([[1.0]]), np.array([[1.0], [2.0]]))  # 0 + 0.5 (1 + 4)
    2.5
    """

    name = "IALS"

    def __init__(
        self,
        alpha0: float = 0.1,
        *,
        proposal_exponent: float = 0.0,
        user_exponent: float = 0.0,
        item_exponent: float = 0.0,
    ) -> None:
        self.alpha0 = alpha0
        self.proposal_exponent = proposal_exponent
        self.user_exponent = user_exponent
        self.item_exponent = item_exponent

    def coefficients(self, degrees: Degrees) -> Coefficients:
        """Coefficient arrays (see `rgals.losses.base`)."""
        boost = degrees.user_factor(self.user_exponent)
        zero = np.zeros(len(boost))
        return Coefficients(
            g=np.full(len(boost), float(self.alpha0)),
            h=degrees.proposal(self.proposal_exponent),
            t=zero,
            user_terms=np.stack([boost, zero, boost, zero], 1),
            item_terms=np.repeat(degrees.item_factor(self.item_exponent)[:, None], 4, axis=1),
        )
