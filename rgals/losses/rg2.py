"""RG2: the squared, ranking-generalizable approximation of softmax."""

from dataclasses import KW_ONLY, dataclass
from typing import Self

from rgals.losses.base import AUTO, Coefficients, Loss, constant_of_ones, positive_terms
from rgals.losses.degrees import SEEN_ALONE, Degrees
from rgals.losses.fitted import setting
from rgals.runtime.checks import RANGES


@dataclass(eq=False, repr=False)
class RG2(Loss):
    """Ranking-generalizable squared loss, plus extra weight ``alpha`` on the positives.

    With ``c_x = sum_y v_xy`` and N items, up to the constant factor ``2N``::

        L = sum_x [ c_x / (2N) sum_y h_y (o_xy + 1)^2 - sum_{y in I_x} v_xy o_xy
                    + alpha sum_{y in I_x} v_xy (o_xy - 1)^2 ]

    For ``alpha = 0`` this is Eq. 16 of Pu et al., "NDCG-Consistent Softmax Approximation with Accelerated
    Convergence": the second-order expansion of softmax without its interaction term. It ranks poorly on its
    own; published results, and this package's default, use ``alpha > 0``.

    With ``n_negatives = n`` the loss is that of softmax *sampled* with n negatives (Eqs. 18, 19 and 32;
    ``e = (n + 1) / N``): all pairs weigh ``e c_x / 2N`` and positives ``(1 - e) c_x / 2N`` more.
    Line 7 of the paper's Algorithm 1 has 1/N where Eq. 32 has N; N is right and used here.

    Parameters
    ----------
    alpha : float or "auto", default="auto"
        Extra weight of the positives, >= 0. "auto" is ``0.024 (K / 64)^0.2`` for K from 64 to 1024, constant
        beyond, times 700 / N for 20 to 700 items, and more where nothing but popularity can be told from
        chance; a fit to what was best on real data (`rgals.losses.fitted`, ``benchmarks/rule.py``).
    n_negatives : int or None, default=None
        Negatives per positive of the sampled form; ``None`` for the full form.
    proposal_exponent : float, default=0.0
        Negatives are drawn with probability proportional to ``c_y^proposal_exponent``, which gives all pairs
        the weight ``h_y`` (mean 1). Sampled softmax with the correction of Eq. 9 has this expansion. Where
        ``alpha`` is "auto", ``n_negatives`` None and over a quarter of the items have no interactions, 0
        becomes 1e-9: they are left out of all pairs, and N is the number of the others.
    user_exponent : float, default=0.0
        Positives weigh ``c_x^user_exponent c_y^item_exponent`` more, each factor of mean 1 over interactions.
        With a half-life, c_x and c_y are at least the mean weight of an interaction here.
    item_exponent : float or "auto", default="auto"
        "auto" is ``-0.22 log r`` with the cohesion r of the matrix (`rgals.matrix.cohesion`), mostly -0.1 to
        -0.6, where ``alpha`` is "auto" too: they were fitted together. It is 0 where ``alpha`` is set.

    Examples
    --------
    >>> from rgals import RG2
    >>> RG2(alpha=0.1)
    RG2(alpha=0.1)
    >>> import numpy as np, scipy.sparse as sp
    >>> X = sp.csr_array(np.array([[1, 0], [1, 1]]))
    >>> P, Q = np.array([[1.0], [0.0]]), np.array([[1.0], [-1.0]])
    >>> RG2(alpha=0.0).objective(X, P, Q)  # 1/4 (2^2 + 0^2) - 1 + 2/4 (1 + 1)
    1.0
    """

    _auto = ("alpha", "item_exponent")
    constant = constant_of_ones

    alpha: float | str = AUTO
    _: KW_ONLY
    n_negatives: int | None = None
    proposal_exponent: float = 0.0
    user_exponent: float = 0.0
    item_exponent: float | str = AUTO

    def validate(self) -> None:
        super().validate()
        RANGES["int > 0, optional"](f"{self.name}.n_negatives", self.n_negatives)

    def defaults(self, degrees: Degrees, K: int) -> dict[str, float]:
        """Fitted to what was best on real data: see `rgals.losses.fitted.setting` and `Loss.defaults`."""
        found = setting(degrees, K)
        exponent = found.item_exponent if self.alpha == AUTO else 0.0
        return {"alpha": found.alpha, "item_exponent": exponent, "reg": found.reg}

    def resolve(self, degrees: Degrees, K: int) -> Self:
        """See `Loss.resolve`; without a number for alpha, items without interactions may drop out."""
        made = super().resolve(degrees, K)
        many_empty = degrees.counted[1] < degrees.shape[1]
        if many_empty and self.alpha == AUTO and self.proposal_exponent == 0 and self.n_negatives is None:
            made.proposal_exponent = SEEN_ALONE
        return made

    def lacks_closed_form(self) -> str | None:
        if self.alpha != 0 or self.n_negatives is not None or self.proposal_exponent != 0:
            return "it needs alpha=0, n_negatives=None and proposal_exponent=0"
        if self.user_exponent != 0 or self.item_exponent not in (0, AUTO):
            return "it needs user_exponent=0 and item_exponent=0"
        return None

    def coefficients(self, degrees: Degrees) -> Coefficients:
        alpha = float(self.alpha)
        base = degrees.user_sum / (2.0 * degrees.n_items)
        share = 1.0 if self.n_negatives is None else (self.n_negatives + 1) / degrees.n_items
        extra = (1.0 - share) * base
        terms = positive_terms(self, degrees, alpha, extra, 0.5 + alpha, -extra)
        return Coefficients(share * base, degrees.proposal(self.proposal_exponent), -share * base, *terms)
