"""One positive against sampled negatives: sampled softmax, CCE, SL, BPR, BCE, squared error."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rgals.matrix.csr import CSR
from rgals.sgd.losses._base import Full, Sampled, row_softmax, row_sums, softplus, weights_of


@dataclass(eq=False, repr=False)
class SampledCCE(Sampled):
    """Categorical cross-entropy over the positive and its sampled negatives.

    ``l = log(1 + sum_j exp(o_j - o_+))``

    Di Teodoro et al., "A Theoretical Analysis of Recommendation Loss Functions under Negative Sampling", Eq.
    2, which prints a minus in front of the sum.

    Parameters
    ----------
    with_positive : bool, default True
        Whether the positive has a term in the sum, the 1. Without it the loss is `SL`.
    """

    with_positive: bool = True

    def value_and_grad(self, pos: np.ndarray, neg: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Values (B,) and gradients (B,), (B, n)."""
        value, dneg = row_softmax(neg - pos[:, None], beside=0.0 if self.with_positive else None)
        return value, -dneg.sum(axis=1), dneg


@dataclass(eq=False, repr=False)
class SL(SampledCCE):
    """Softmax loss as the papers on SL@K and Talos train it: the sum is over the sampled negatives alone.

    ``l = log sum_j exp(o_j - o_+)``

    SL@K, Eq. 2.2 and Algorithm E.1; Talos, Eq. 2.3. Eq. 2.2 sums over all items; the algorithm and the
    public code of both leave the positive out, so that the loss goes below 0.

    Parameters
    ----------
    with_positive : bool, default False
        True is `SampledCCE`.
    """

    with_positive: bool = False


class SampledSoftmax(SampledCCE):
    """Sampled softmax loss (SSM) with the correction for the proposal.

    ``l = -log [ exp(o_+) / (exp(o_+) + sum_j exp(o_j - log(N q_j))) ]``

    Pu et al., Eqs. 8-10. The trainer subtracts ``log(N q_j)``, which is zero for uniform negatives; what is
    left is `SampledCCE`.
    """

    corrects_proposal: ClassVar[bool] = True


class BPR(Sampled):
    """Bayesian personalised ranking, summed over the negatives.

    ``l = -sum_j log sigmoid(o_+ - o_j)``

    Rendle et al. (2009); Di Teodoro et al., Eq. 3; Pu et al., appendix B.2.
    """

    def value_and_grad(self, pos: np.ndarray, neg: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Values (B,) and gradients (B,), (B, n)."""
        value, dneg = softplus(neg - pos[:, None])
        return value.sum(axis=1, dtype=np.float64), -dneg.sum(axis=1), dneg


class BCE(Sampled, score="dot"):
    """Binary cross-entropy of the positive and its negatives.

    ``l = -log sigmoid(o_+) - sum_j log(1 - sigmoid(o_j))``

    He et al. (2017); Di Teodoro et al., Eq. 1; Pu et al., appendix B.2.
    """

    def value_and_grad(self, pos: np.ndarray, neg: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Values (B,) and gradients (B,), (B, n)."""
        first, slope = softplus(-pos)
        rest, dneg = softplus(neg)
        return first + rest.sum(axis=1, dtype=np.float64), -slope, dneg


class MSE(Sampled, score="dot"):
    """Squared error: 1 for the positive, 0 for its negatives.

    ``l = (o_+ - 1)^2 + sum_j o_j^2``

    Named, without a formula, in appendix A of SL@K.
    """

    def value_and_grad(self, pos: np.ndarray, neg: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Values (B,) and gradients (B,), (B, n)."""
        rest = np.where(neg == -np.inf, neg.dtype.type(0), neg)
        error = pos - 1
        value = error.astype(np.float64) ** 2 + np.einsum("bn,bn->b", rest, rest, dtype=np.float64)
        return value, 2 * error, 2 * rest


class FullBCE(Full, score="dot"):
    """`BCE` with all items that are no positives of the user, every positive with its own copy of them.

    ``L_x = sum_{i in I} v_xi log(1 + exp(-s_i)) + sum_{i in I} v_xi sum_{j not in I} log(1 + exp(s_j))``

    Di Teodoro et al., Eq. 1. Pu et al., appendix B.2, count a user's negatives once.
    """

    def value_and_grad(self, scores: np.ndarray, positives: CSR) -> tuple[np.ndarray, np.ndarray]:
        """Values (B,) and gradient (B, N)."""
        where, v, count = positives.positions, weights_of(positives), positives.row_sums
        own, slope = softplus(-scores.reshape(-1)[where])
        rest, grad = softplus(scores)
        rest.reshape(-1)[where] = 0
        grad *= count.astype(grad.dtype)[:, None]
        grad.reshape(-1)[where] = -v * slope
        return row_sums(v * own, positives) + count * rest.sum(axis=1, dtype=np.float64), grad
