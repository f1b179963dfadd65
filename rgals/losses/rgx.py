"""RGx: RG2 with the interaction term of the softmax expansion."""

from dataclasses import dataclass, replace

from rgals.losses.base import Coefficients
from rgals.losses.degrees import Degrees
from rgals.losses.rg2 import RG2
from rgals.runtime.checks import check_choice, check_real


@dataclass(eq=False, repr=False)
class RGX(RG2):
    """Ranking-generalizable interactive loss: the full second-order expansion of softmax at zero scores.

    `RG2` minus, with strength ``beta``, the squared sum of a user's scores::

        L = L_RG2 - sum_x beta g_x / (sum_y h_y) (sum_y h_y o_xy)^2,      g_x = c_x / (2N)

    (times e with ``n_negatives``), for ``h = 1`` ``c_x / (2 N^2) (sum_y o_xy)^2``: Pu et al., Eqs. 14 and 15.
    For ``0 <= beta <= 1`` the all-pairs part stays positive semidefinite (Cauchy-Schwarz), half-steps have
    one minimiser; with ``n_negatives >= N`` positives lose weight, and fits may end in a `NumericalError`.

    The paper's update formulas (Eqs. 31, 38, 39) put ``Q^T Q`` where the expansion has ``Q^T 1 1^T Q``. This
    is not the term of Eq. 14: it only scales the Gramian by ``1 - beta``. It is offered as ``form="gramian"``
    to compare with published numbers. (Eq. 17 further has the interaction inside the sum over y, N times too
    large.)

    For ``alpha = 0`` the optimum has scores that sum to zero for every user, so the interaction vanishes
    there and RGx and RG2 have the same minimum; they differ once positives carry extra weight.

    Parameters
    ----------
    alpha : float or "auto", default="auto"
        As in `RG2`.
    beta : float, default=0.9
        Strength of the interaction, in [0, 1]; 1 is the expansion itself. There a constant may be added to a
        user's scores at no cost but the ridge's: on sparse data the positives are drawn to 1 by such a
        constant, with everything else, and lists are worse.
    form : {"exact", "gramian"}, default="exact"
        See above.
    n_negatives, proposal_exponent, user_exponent, item_exponent
        As in `RG2`.

    Examples
    --------
    >>> from rgals import RGX
    >>> import numpy as np, scipy.sparse as sp
    >>> X = sp.csr_array(np.array([[1, 0], [1, 1]]))
    >>> P, Q = np.array([[1.0], [1.0]]), np.array([[1.0], [0.0]])
    >>> shifted = Q + 5.0  # adds a constant to every score of a user
    >>> whole = RGX(alpha=0.0, beta=1.0)
    >>> bool(np.isclose(whole.objective(X, P, Q), whole.objective(X, P, shifted)))
    True
    """

    beta: float = 0.9
    form: str = "exact"

    def validate(self) -> None:
        super().validate()
        check_real("RGX.beta", self.beta, 0.0, 1.0)
        check_choice("RGX.form", self.form, ("exact", "gramian"))

    def couples_items(self) -> bool:
        return self.form == "exact" and self.beta > 0

    def lacks_closed_form(self) -> str | None:
        return super().lacks_closed_form() or (None if self.form == "exact" else "it needs form='exact'")

    def coefficients(self, degrees: Degrees) -> Coefficients:
        rg2 = super().coefficients(degrees)
        if self.form == "gramian":
            return replace(rg2, removed=self.beta)
        # h has mean 1 over the training items: sum_y h_y = N, also where ``degrees`` describes other items.
        return replace(rg2, interaction=self.beta / degrees.n_items)
