"""One positive against sampled negatives: softmax and its kin, BPR, BCE, squared error, learned margins."""

from collections.abc import Callable

import numpy as np

from rgals.runtime.checks import parameter
from rgals.sgd.losses._base import Adversary, Rows, Sampled, State, hinge, row_softmax, softplus

__all__ = ["SampledSoftmax", "SampledCCE", "SL", "BPR", "BCE", "MSE", "BSL", "PSL", "AdvInfoNCE", "UIB"]
__all__ += ["SML"]


class SampledCCE(Sampled):
    """Categorical cross-entropy over the positive and its sampled negatives.

    ``l = log(1 + sum_j exp(o_j - o_+))``

    Di Teodoro et al., "A Theoretical Analysis of Recommendation Loss Functions under Negative Sampling", Eq.
    2, which prints a minus in front of the sum.
    """

    with_positive: bool = parameter(True, "bool", "Whether the positive has a term, the 1; False is `SL`.")

    def value_and_grad(self, pos: np.ndarray, neg: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        value, dneg = row_softmax(neg - pos[:, None], beside=0.0 if self.with_positive else -np.inf)
        return value, -dneg.sum(axis=1), dneg


class SL(SampledCCE):
    """Softmax loss as the papers on SL@K and Talos train it: the sum is over the sampled negatives alone.

    ``l = log sum_j exp(o_j - o_+)``

    SL@K, Eq. 2.2 and Algorithm E.1; Talos, Eq. 2.3. Eq. 2.2 sums over all items; the algorithm and the
    public code of both leave the positive out, so that the loss goes below 0.
    """

    with_positive: bool = parameter(False, "bool", "True is `SampledCCE`.")


class SampledSoftmax(SampledCCE, corrects_proposal=True):
    """Sampled softmax loss (SSM) with the correction for the proposal.

    ``l = -log [ exp(o_+) / (exp(o_+) + sum_j exp(o_j - log(N q_j))) ]``

    Pu et al., Eqs. 8-10. The trainer subtracts ``log(N q_j)``, which is zero for uniform negatives; what is
    left is `SampledCCE`.
    """


class BSL(Sampled, raw_scores=True):
    """Bilateral softmax loss: temperatures of their own for the positive and for the negatives.

    ``l = -s_+ / t1 + (t2 / t1) log sum_j exp(s_j / t2)``

    Compared in SL@K, appendix F.4, and Talos, appendix D.5; neither prints the formula, which is that of the
    public code. That takes exp and a power in single precision, which overflow for small temperatures; here
    both stay logarithms. Equal temperatures give `SL`. The value has no lower bound in s_+: for cosines.
    """

    positive_temperature: float = parameter(0.2, "float > 0", "t1. Published: 0.5 (Electronics).")
    negative_temperature: float = parameter(0.2, "float > 0", "t2. Published: 0.2 (Electronics).")
    with_positive: bool = parameter(False, "bool", "Whether the positive has a term in the sum.")

    def value_and_grad(self, pos: np.ndarray, neg: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        first, second = self.positive_temperature, self.negative_temperature
        any_left = (neg > -np.inf).any(axis=1)
        rest, dneg = row_softmax(neg.copy(), second, pos if self.with_positive else -np.inf)
        value = np.where(any_left, second / first * rest - pos.astype(np.float64) / first, 0.0)
        dpos = np.where(any_left, -(dneg.sum(axis=1) if self.with_positive else pos.dtype.type(1)), 0)
        dneg /= dneg.dtype.type(first)
        return value, (dpos / first).astype(pos.dtype), dneg


def _tanh(d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``log(1 + tanh(d / 2)) = log 2 - log(1 + exp(-d))``: the second form does not underflow."""
    value, slope = softplus(-d)
    return np.log(d.dtype.type(2)) - value, slope


def _atan(d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    half = np.clip(d / 2, -1e15, 1e15)  # keeps its square finite in single precision
    base = 1 + np.arctan(half)
    return _logarithm(base, 0.5 / (1 + half * half))


def _logarithm(base: np.ndarray, slope: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``log(base)`` and its derivative, from ``slope``, that of the base; -inf and 0 for base <= 0."""
    inside = base > 0
    value = np.log(base, out=np.full_like(base, -np.inf), where=inside)
    return value, np.divide(slope, base, out=np.zeros_like(base), where=inside)


#: Logarithms of the activations, which replace ``d / 2`` in softmax, and their derivatives.
ACTIVATIONS: dict[str, Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]] = {
    "tanh": _tanh,
    "atan": _atan,
    "relu": lambda d: _logarithm(1 + d / 2, np.full_like(d, 0.5)),
    "exp": lambda d: (d / 2, np.full_like(d, 0.5)),
}


class PSL(Sampled, raw_scores=True):
    """Pairwise softmax loss: another activation in place of the exponential.

    ``l = log sum_j exp(a(s_j - s_+) / t)`` with ``a(d) = log(1 + tanh(d/2))``, ``log(1 + atan(d/2))``,
    ``log [1 + d/2]_+`` or, which is `SL` at the temperature 2t, ``d/2``.

    Talos, appendix D.5, in words. Where an activation is 0 ("relu": d <= -2, "atan": d <= -2 tan 1) the
    negative is absent.
    """

    temperature: float = parameter(0.1, "float > 0")
    activation: str = parameter("tanh", ACTIVATIONS)
    with_positive: bool = parameter(False, "bool", "Whether the positive has a term in the sum, 1: a(0) = 0.")

    def value_and_grad(self, pos: np.ndarray, neg: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        logits, slope = ACTIVATIONS[self.activation](neg - pos[:, None])
        logits[neg == -np.inf] = -np.inf
        rest, dneg = row_softmax(logits, self.temperature, 0.0 if self.with_positive else -np.inf)
        dneg *= slope
        dneg /= dneg.dtype.type(self.temperature)
        return rest, -dneg.sum(axis=1), dneg


class AdvInfoNCE(Sampled, raw_scores=True):
    """Softmax whose negatives are weighted by an adversary, a second pair of factors.

    ``l = log [ 1 + sum_j exp((s_j - s_+) / t) k n q_j ]``, ``q = softmax(g)`` over the row's n negatives, g
    their scores by the adversary. In every ``every``-th epoch the adversary alone steps, upwards:
    ``dl/dg_j = p_j - q_j sum_k p_k``.

    SL@K, appendix F.4, and Talos, appendix D.5, in words; scores of the adversary are cosines in their code,
    dot products in the original. With a constant adversary and ``weight=1`` it is `SampledCCE`.
    """

    temperature: float = parameter(0.2, "float > 0")
    weight: float = parameter(64.0, "float > 0", "k.")
    every: int = parameter(5, "int > 0", "Epochs between two of the adversary (published: 5 to 20).")
    adversary_lr: float = parameter(5e-5, "float > 0")
    adversary_epochs: int | None = parameter(None, "int >= 0, optional", "Of the adversary, at most.")
    adversary_score: str = parameter("cosine", ("cosine", "dot"))

    @property
    def adversary(self) -> Adversary:
        """The second pair of factors."""
        return Adversary(self.every, self.adversary_lr, self.adversary_score, self.adversary_epochs)

    def value_and_grad(self, pos: np.ndarray, neg: np.ndarray, rows: Rows) -> tuple[np.ndarray, ...]:
        there = neg > -np.inf
        assert rows.adversary is not None
        g = np.where(there, rows.adversary, -np.inf).astype(neg.dtype, copy=False)
        log_sum, q = row_softmax(g.copy())
        # log(k n q_j), times the temperature by which `row_softmax` divides.
        shift = np.log(self.weight * np.maximum(there.sum(axis=1), 1)) - log_sum
        logits = neg - pos[:, None]
        logits += self.temperature * (g + shift.astype(g.dtype)[:, None])
        value, dneg = row_softmax(logits, self.temperature, 0.0)
        dg = dneg - q * dneg.sum(axis=1)[:, None]
        dneg /= dneg.dtype.type(self.temperature)
        return value, -dneg.sum(axis=1), dneg, dg


class BPR(Sampled):
    """Bayesian personalised ranking, summed over the negatives.

    ``l = -sum_j log sigmoid(o_+ - o_j)``

    Rendle et al. (2009); Di Teodoro et al., Eq. 3; Pu et al., appendix B.2.
    """

    def value_and_grad(self, pos: np.ndarray, neg: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        value, dneg = softplus(neg - pos[:, None])
        return value.sum(axis=1, dtype=np.float64), -dneg.sum(axis=1), dneg


class BCE(Sampled, contrasts_noise=True):
    """Binary cross-entropy of the positive and its negatives.

    ``l = -log sigmoid(o_+) - sum_j log(1 - sigmoid(o_j))``

    He et al. (2017); Di Teodoro et al., Eq. 1; Pu et al., appendix B.2. Where ``SGDRanker(offset=)`` takes
    log n from the scores, n being the negatives, it is noise-contrastive estimation (Gutmann & Hyvarinen,
    2010).
    """

    def value_and_grad(self, pos: np.ndarray, neg: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        first, slope = softplus(-pos)
        rest, dneg = softplus(neg)
        return first + rest.sum(axis=1, dtype=np.float64), -slope, dneg


class MSE(Sampled, score="dot"):
    """Squared error: 1 for the positive, 0 for its negatives.

    ``l = (o_+ - 1)^2 + sum_j o_j^2``

    Named, without a formula, in appendix A of SL@K.
    """

    def value_and_grad(self, pos: np.ndarray, neg: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rest = np.where(neg == -np.inf, neg.dtype.type(0), neg)
        error = pos - 1
        value = error.astype(np.float64) ** 2 + np.einsum("bn,bn->b", rest, rest, dtype=np.float64)
        return value, 2 * error, 2 * rest


class UIB(Sampled, raw_scores=True, n_negatives=5):
    """User interest boundary: a score per user that positives shall exceed and negatives shall not.

    ``l = phi(b_u - s_+) + sum_j phi(s_j - b_u)``, ``phi(x) = [x + margin]_+``

    Pu et al., appendix B.2, where phi is "MarginLoss", undefined: the hinge and its margin are our choice.
    b_u is learned with the learning rate of the factors; many negatives pull it up.
    """

    state = (State("boundary"),)
    margin: float = parameter(0.3, "float >= 0", "Over cosines; dot products: 1.")

    def value_and_grad(self, pos: np.ndarray, neg: np.ndarray, rows: Rows) -> tuple[np.ndarray, ...]:
        boundary = rows.state[:, 0].astype(pos.dtype, copy=False)
        first, dpos = hinge(boundary - pos + self.margin)
        rest, dneg = hinge(neg - boundary[:, None] + self.margin)
        value = first + rest.sum(axis=1, dtype=np.float64)
        return value, -dpos, dneg, (dpos - dneg.sum(axis=1))[:, None]


class SML(Sampled, raw_scores=True):
    """Symmetric metric learning without its item-item term (lambda = 0): margins learned per user.

    ``l = sum_j [ D(u, i) - D(u, j) + m_u ]_+ - gamma mean_u m_u``, ``m_u in (0, limit]``; on unit rows
    ``D = 2 - 2 s``, so that the hinge is ``[2 (s_j - s_+) + m_u]_+``.

    Pu et al., appendix B.2. The term with lambda needs distances between items, which no loss sees here. The
    reward of wide margins, ``-gamma / M``, acts on every user at every step; it is not part of the value.
    """

    gamma: float = parameter(30.0, "float >= 0", "Not published: a tenth of it lost 10 % and more.")
    limit: float = parameter(1.0, "float > 0", "Largest margin, and the first.")

    @property
    def state(self) -> tuple[State, ...]:
        """The margin of every user."""
        return (State("margin", "user", self.limit, 1e-6 * self.limit, self.limit, drift=-self.gamma),)

    def value_and_grad(self, pos: np.ndarray, neg: np.ndarray, rows: Rows) -> tuple[np.ndarray, ...]:
        margin = rows.state[:, :1].astype(pos.dtype, copy=False)
        value, active = hinge(2 * (neg - pos[:, None]) + margin)
        total = active.sum(axis=1)
        return value.sum(axis=1, dtype=np.float64), -2 * total, 2 * active, total[:, None]
