"""RG2 and RGx by gradient: the objective that alternating least squares minimises exactly."""

from dataclasses import dataclass

import numpy as np

from rgals.matrix.csr import CSR
from rgals.runtime.checks import check_real
from rgals.sgd.losses._base import Full, row_sums, weights_of


@dataclass(eq=False, repr=False)
class RGX(Full, score="dot"):
    """RGx loss with positive weight alpha, interaction strength beta and frequency-scaled ridge.

    ``L_x = c_x/2N sum_y (o_xy^2 + 2 o_xy) - beta c_x/2N^2 (sum_y o_xy)^2
    + sum_{y in I_x} v_xy [ alpha o_xy^2 - (1 + 2 alpha) o_xy ]``

    Pu et al., Eqs. 14 and 15: the second-order expansion of the softmax loss at zero scores (without its
    constant ``c_x log N``), to which alpha adds ``alpha v (o - 1)^2`` on the positives. With ``reg > 0`` the
    ridge ``sum_x rho_x |p_x|^2 + sum_y rho_y |q_y|^2``, ``rho = reg (sum of the weights of the
    squares)^reg_exponent``, is part of the objective; it acts on raw factors and is meant for dot scoring.

    Parameters
    ----------
    alpha, reg, reg_exponent : float, default 0.05, 0.05, 1
    beta : float in [0, 1], default 1
    """

    alpha: float = 0.05
    beta: float = 1.0
    reg: float = 0.05
    reg_exponent: float = 1.0

    def _interaction(self) -> float:
        return check_real("beta", self.beta, 0, 1)

    def value_and_grad(self, scores: np.ndarray, positives: CSR) -> tuple[np.ndarray, np.ndarray]:
        """Values (B,), without the ridge, and gradient (B, N); ``scores`` is overwritten by the gradient."""
        where, weights, count = positives.positions, weights_of(positives), positives.row_sums
        n, beta = positives.n_cols, self._interaction()
        flat = scores.reshape(-1)
        own = flat[where]
        total = scores.sum(axis=1, dtype=np.float64)
        square = np.einsum("bn,bn->b", scores, scores, dtype=np.float64)
        value = count / (2 * n) * (square + 2 * total - beta / n * total * total)
        value += row_sums(weights * (self.alpha * own * own - (1 + 2 * self.alpha) * own), positives)
        scores += (1 - beta / n * total).astype(scores.dtype)[:, None]
        scores *= (count / n).astype(scores.dtype)[:, None]
        flat[where] += weights * (2 * self.alpha * own - (1 + 2 * self.alpha))
        return value, scores

    def penalties(self, X: CSR) -> tuple[np.ndarray, np.ndarray] | None:
        """Ridge weights (n_users,), (n_items,), or None without ridge."""
        alpha, reg = check_real("alpha", self.alpha, 0), check_real("reg", self.reg, 0)
        if reg == 0:
            return None
        users = (0.5 + alpha) * X.row_sums
        items = X.row_sums.sum() / (2 * X.n_cols) + alpha * X.col_sums
        return reg * users**self.reg_exponent, reg * items**self.reg_exponent


class RG2(RGX):
    """RG2 loss by gradient: `RGX` without the interaction term (Pu et al., Eq. 16 for ``alpha = 0``).

    Parameters
    ----------
    alpha, reg, reg_exponent : float, default 0.05, 0.05, 1
    """

    def __init__(self, alpha: float = 0.05, reg: float = 0.05, reg_exponent: float = 1.0) -> None:
        self.alpha = alpha
        self.reg = reg
        self.reg_exponent = reg_exponent

    def _interaction(self) -> float:
        return 0.0
