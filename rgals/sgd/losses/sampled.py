"""One positive against sampled negatives: softmax, CCE, SL, BPR, BCE, squared error, learned margins."""

from dataclasses import dataclass

import numpy as np

from rgals.runtime.checks import check_real
from rgals.sgd.losses._base import Rows, Sampled, State, hinge, row_softmax, softplus


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


class SampledSoftmax(SampledCCE, corrects_proposal=True):
    """Sampled softmax loss (SSM) with the correction for the proposal.

    ``l = -log [ exp(o_+) / (exp(o_+) + sum_j exp(o_j - log(N q_j))) ]``

    Pu et al., Eqs. 8-10. The trainer subtracts ``log(N q_j)``, which is zero for uniform negatives; what is
    left is `SampledCCE`.
    """


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


@dataclass(eq=False, repr=False)
class UIB(Sampled, raw_scores=True, score="dot"):
    """User interest boundary: a score per user that positives shall exceed and negatives shall not.

    ``l = phi(b_u - s_+) + sum_j phi(s_j - b_u)``, ``phi(x) = [x + margin]_+``

    Pu et al., appendix B.2, where phi is "MarginLoss", undefined: the hinge and its margin of 1 are our
    choice. b_u is learned with the learning rate of the factors.

    Parameters
    ----------
    margin : float >= 0, default 1
    """

    state = (State("boundary"),)

    margin: float = 1.0

    def value_and_grad(self, pos: np.ndarray, neg: np.ndarray, rows: Rows) -> tuple[np.ndarray, ...]:
        """Values (B,) and gradients (B,), (B, n), and (B, 1) of the boundary."""
        margin = check_real("margin", self.margin, 0)
        boundary = rows.state[:, 0].astype(pos.dtype, copy=False)
        first, dpos = hinge(boundary - pos + margin)
        rest, dneg = hinge(neg - boundary[:, None] + margin)
        value = first + rest.sum(axis=1, dtype=np.float64)
        return value, -dpos, dneg, (dpos - dneg.sum(axis=1))[:, None]


@dataclass(eq=False, repr=False)
class SML(Sampled, raw_scores=True):
    """Symmetric metric learning without its item-item term (lambda = 0): margins learned per user.

    ``l = sum_j [ D(u, i) - D(u, j) + m_u ]_+ - gamma mean_u m_u``, ``m_u in (0, limit]``; on unit rows
    ``D = 2 - 2 s``, so that the hinge is ``[2 (s_j - s_+) + m_u]_+``.

    Pu et al., appendix B.2. The term with lambda needs distances between items, which no loss sees here. The
    reward of wide margins, ``-gamma / M``, acts on every user at every step; it is not part of the value.

    Parameters
    ----------
    gamma : float >= 0, default 0.1
        Not published.
    limit : float > 0, default 1
        Largest margin, and the first.
    """

    gamma: float = 0.1
    limit: float = 1.0

    @property
    def state(self) -> tuple[State, ...]:
        """The margin of every user."""
        gamma, limit = check_real("gamma", self.gamma, 0), check_real("limit", self.limit, 0, open_min=True)
        return (State("margin", start=limit, low=1e-6 * limit, high=limit, drift=-gamma),)

    def value_and_grad(self, pos: np.ndarray, neg: np.ndarray, rows: Rows) -> tuple[np.ndarray, ...]:
        """Values (B,) and gradients (B,), (B, n), and (B, 1) of the margin."""
        margin = rows.state[:, :1].astype(pos.dtype, copy=False)
        value, active = hinge(2 * (neg - pos[:, None]) + margin)
        total = active.sum(axis=1)
        return value.sum(axis=1, dtype=np.float64), -2 * total, 2 * active, total[:, None]
