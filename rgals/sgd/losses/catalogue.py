"""Losses over the whole catalogue: softmax, its kin and expansions, sparsemax, binary cross-entropy."""

import numpy as np

from rgals.losses.degrees import power
from rgals.matrix.csr import CSR
from rgals.runtime.checks import parameter
from rgals.sgd.losses._base import Full, FullThresholds, row_softmax, row_sums, softplus, weights_of

__all__ = ["Softmax", "SoftmaxAtK", "Sparsemax", "RG2", "RGX", "FullBSL", "FullBCE"]


class Softmax(Full):
    """Softmax loss (SM), categorical cross-entropy over the catalogue.

    ``L_x = sum_{y in I_x} v_xy [ log sum_{y'} exp(o_xy') - o_xy ]``

    Pu et al., "NDCG-Consistent Softmax Approximation with Accelerated Convergence", Eqs. 4-6. The
    log-sum-exp is shared by all positives of a user, so one row of scores serves them all.

    Examples
    --------
    >>> import numpy as np
    >>> from rgals.matrix.csr import CSR
    >>> one = CSR(np.array([0, 1]), np.array([2], np.int32), np.empty(0), 4)
    >>> value, grad = Softmax().value_and_grad(np.zeros((1, 4)), one)
    >>> value.round(4).tolist(), grad.tolist()
    ([1.3863], [[0.25, 0.25, -0.75, 0.25]])
    """

    positive_temperature = negative_temperature = 1.0  # those of `FullBSL`

    def value_and_grad(self, scores: np.ndarray, positives: CSR) -> tuple[np.ndarray, np.ndarray]:
        first, second = self.positive_temperature, self.negative_temperature
        where, weights, count = positives.positions, weights_of(positives), positives.row_sums
        own = row_sums(scores.reshape(-1)[where].astype(np.float64) * weights, positives)
        value, grad = row_softmax(scores, second)
        grad *= count.astype(grad.dtype)[:, None]
        grad.reshape(-1)[where] -= weights
        if first != 1:
            grad /= grad.dtype.type(first)
        return count * value * (second / first) - own / first, grad


class Sparsemax(Full, warmth=15.0):
    """Sparsemax loss: like softmax, but most items get probability zero.

    ``L_x = sum_{y in I_x} v_xy [ -o_xy + 1/2 sum_{y' in S} (o_xy'^2 - tau^2) + 1/2 ]`` with
    ``S = {y' : o_xy' > tau}`` and tau such that ``sum_S (o - tau) = 1``.

    Martins & Astudillo (2016), Eq. 21; Pu et al., appendix B.2. The latter prints ``(o - tau)^2``, whose
    gradient is not sparsemax minus the indicator; the original form is used here. Its probabilities are
    differences of scores, 1/c of a user with c positives at best, so that scores must be close to each other:
    cosines at a temperature of ``15 sqrt(c)``, the default, where softmax has 0.2; of dot products factors
    and steps a tenth as long as softmax has them, ``init_scale=0.01, lr=0.003``.
    """

    def value_and_grad(self, scores: np.ndarray, positives: CSR) -> tuple[np.ndarray, np.ndarray]:
        where, weights, count = positives.positions, weights_of(positives), positives.row_sums
        scores -= scores.max(axis=1, keepdims=True)  # does not change the loss and puts tau in [-1, 0)
        flat = scores.reshape(-1)
        own = flat[where]
        np.maximum(scores, -2, out=scores)  # scores below -1 have probability 0; this keeps the sums exact
        tau = self._threshold(scores)[:, None]
        inside = scores > tau
        half = 0.5 * np.where(inside, scores * scores - tau * tau, 0).sum(axis=1, dtype=np.float64)
        value = count * (half + 0.5) - row_sums(own * weights, positives)
        scores -= tau
        np.maximum(scores, 0, out=scores)
        scores *= count.astype(scores.dtype)[:, None]
        flat[where] -= weights
        return value, scores

    @staticmethod
    def _threshold(shifted: np.ndarray) -> np.ndarray:
        """Tau (B,) of rows whose maximum is 0, by Michelot's algorithm, exact after finitely many steps."""
        inside = shifted > -1
        while True:
            size = inside.sum(axis=1)
            tau = ((shifted * inside).sum(axis=1, dtype=np.float64) - 1) / size
            smaller = inside & (shifted > tau[:, None])
            if not smaller.any(axis=1).all() or (smaller == inside).all():
                return tau.astype(shifted.dtype)
            inside = smaller


class SoftmaxAtK(FullThresholds):
    """SoftmaxLoss@K (SL@K): softmax weighted towards positives near or inside the user's top K.

    ``L_x = sum_{y in I_x} v_xy w_xy [ log sum_{y'} exp(o_xy') - o_xy ]`` with
    ``w_xy = sigmoid((o_xy - beta_x) / weight_temperature)``, beta_x the K-th largest score of the user.

    SL@K, Eq. 3.5 and Algorithm E.1. There the quantile is estimated from sampled negatives every few epochs;
    here it is exact at every step. As there, it is a constant for the gradient. The weight is not, so small
    weight temperatures pull scores down; as they grow all weights approach 1/2 and the loss half of
    `Softmax`. What the loss sees is divided by ``temperature``: 12.5 is the paper's 2.5 at 0.2.
    """

    weight_temperature: float = parameter(12.5, "float > 0", "Of the scores that the loss sees; see above.")

    def value_and_grad(self, scores: np.ndarray, positives: CSR) -> tuple[np.ndarray, np.ndarray]:
        beta, temperature = self.thresholds(scores), scores.dtype.type(self.weight_temperature)
        where, v, rows = positives.positions, weights_of(positives), positives.rows
        own = scores.reshape(-1)[where]
        total, grad = row_softmax(scores)
        cost = total[rows] - own
        weight = softplus((own - beta[rows]) / temperature)[1] * v
        grad *= row_sums(weight, positives).astype(grad.dtype)[:, None]
        grad.reshape(-1)[where] += weight * (1 - weight / v) / temperature * cost - weight
        return row_sums(weight * cost, positives), grad


class FullBSL(Softmax, raw_scores=True):
    """`BSL` over the whole catalogue, the positives included: one log-sum serves all positives of a user.

    ``L_x = sum_{y in I_x} v_xy [ (t2 / t1) log sum_{y'} exp(s_xy' / t2) - s_xy / t1 ]``
    """

    positive_temperature: float = parameter(0.2, "float > 0", "t1. Published: 0.5 (Electronics).")
    negative_temperature: float = parameter(0.2, "float > 0", "t2. Published: 0.2 (Electronics).")


class FullBCE(Full, contrasts_noise=True):
    """`BCE` with all items that are no positives of the user, every positive with its own copy of them.

    ``L_x = sum_{i in I} v_xi log(1 + exp(-s_i)) + sum_{i in I} v_xi sum_{j not in I} log(1 + exp(s_j))``

    Di Teodoro et al., Eq. 1. Pu et al., appendix B.2, count a user's negatives once. As it stands all items
    are as likely as not at scores of 0, and cosines cannot say how few are liked: ``SGDRanker(offset=)``.
    """

    def value_and_grad(self, scores: np.ndarray, positives: CSR) -> tuple[np.ndarray, np.ndarray]:
        where, v, count = positives.positions, weights_of(positives), positives.row_sums
        own, slope = softplus(-scores.reshape(-1)[where])
        rest, grad = softplus(scores)
        rest.reshape(-1)[where] = 0
        grad *= count.astype(grad.dtype)[:, None]
        grad.reshape(-1)[where] = -v * slope
        return row_sums(v * own, positives) + count * rest.sum(axis=1, dtype=np.float64), grad


class RGX(Full, score="dot"):
    """RGx loss with positive weight alpha, interaction strength beta and frequency-scaled ridge.

    ``L_x = c_x/2N sum_y (o_xy^2 + 2 o_xy) - beta c_x/2N^2 (sum_y o_xy)^2
    + sum_{y in I_x} v_xy [ alpha o_xy^2 - (1 + 2 alpha) o_xy ]``

    Pu et al., Eqs. 14 and 15: the second-order expansion of the softmax loss at zero scores (without its
    constant ``c_x log N``), to which alpha adds ``alpha v (o - 1)^2`` on the positives. With ``reg > 0`` the
    ridge ``sum_x rho_x |p_x|^2 + sum_y rho_y |q_y|^2``, ``rho = reg (sum of the weights of the
    squares)^reg_exponent``, is part of the objective; it acts on raw factors and is meant for dot scoring.
    """

    alpha: float = parameter(0.05, "float >= 0")
    beta: float = parameter(1.0, "float in [0, 1]")
    reg: float = parameter(0.05, "float >= 0")
    reg_exponent: float = parameter(1.0, "float")

    def value_and_grad(self, scores: np.ndarray, positives: CSR) -> tuple[np.ndarray, np.ndarray]:
        where, weights, count = positives.positions, weights_of(positives), positives.row_sums
        n, beta = positives.n_cols, self.beta
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
        if self.reg == 0:
            return None
        users = (0.5 + self.alpha) * X.row_sums
        items = X.row_sums.sum() / (2 * X.n_cols) + self.alpha * X.col_sums
        return self.reg * power(users, self.reg_exponent), self.reg * power(items, self.reg_exponent)


class RG2(RGX):
    """RG2 loss by gradient: `RGX` without the interaction term (Pu et al., Eq. 16 for ``alpha = 0``)."""

    def __init__(self, alpha: float = 0.05, reg: float = 0.05, reg_exponent: float = 1.0) -> None:
        super().__init__(alpha, 0.0, reg, reg_exponent)
