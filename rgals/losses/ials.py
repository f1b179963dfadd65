"""iALS: squared loss with a separate, small weight on all pairs."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np

from rgals.losses.base import AUTO, Coefficients, Loss, spectral_edge
from rgals.losses.degrees import Degrees
from rgals.losses.rg2 import positive_weight

_MOST = 10.0  # of alpha0 by the rule: a small dense matrix would ask for more


@dataclass(eq=False, repr=False)
class IALS(Loss):
    """Positives to 1, everything lightly to 0: iALS.

    Eq. 1 of Rendle et al. 2022, "Revisiting the performance of iALS"::

        L = sum_{x, y in I_x} v_xy (o_xy - 1)^2 + alpha0 sum_x sum_y h_y o_xy^2

    With ``reg_exponent=1`` the regularisation is their frequency scaling, ``reg (|I_x| + alpha0 N)^nu``.

    Parameters
    ----------
    alpha0 : float or "auto", default="auto"
        Weight of all pairs (their "unobserved weight"), >= 0. "auto" is ``n / (2 M N alpha)`` for n
        interactions of M users and N items, with the ``alpha`` that `RG2` would take: at the mean user both
        losses then have the same coefficients.
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
    _weights = ("alpha0",)

    alpha0: float | str = AUTO
    _: KW_ONLY
    proposal_exponent: float = 0.0
    user_exponent: float = 0.0
    item_exponent: float = 0.0

    def defaults(self, n_users: int, n_items: int, nnz: int) -> dict[str, float]:
        """Those of `RG2`, by comparing coefficients at the mean user (see `Loss.defaults`)."""
        alpha = positive_weight(n_items)
        pairs = 2.0 * max(n_users, 1) * max(n_items, 1)
        reg = spectral_edge(n_users, n_items, nnz) * 2 * alpha / (1 + 2 * alpha)
        return {"alpha0": min(max(nnz, 1) / (pairs * alpha), _MOST), "reg": reg}

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
