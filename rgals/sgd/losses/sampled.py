"""Losses of one positive against sampled negatives: sampled softmax, sampled CCE, BPR and BCE."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from rgals.sgd.losses._base import Sampled, softplus


class SampledCCE(Sampled):
    """Categorical cross-entropy over the positive and its sampled negatives.

    ``l = log(1 + sum_j exp(o_j - o_+))``

    Di Teodoro et al., "A Theoretical Analysis of Recommendation Loss Functions under Negative Sampling", Eq.
    2.

    Examples
    --------
    >>> import numpy as np
    >>> value, dpos, dneg = SampledCCE().value_and_grad(np.zeros(1), np.zeros((1, 3)))
    >>> value.round(4).tolist(), dpos.tolist(), dneg.tolist()
    ([1.3863], [-0.75], [[0.25, 0.25, 0.25]])
    """

    def value_and_grad(self, pos: np.ndarray, neg: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Values (B,) and gradients (B,), (B, n)."""
        difference = neg - pos[:, None]
        top = np.maximum(difference.max(axis=1, initial=-np.inf), 0)
        difference -= top[:, None]
        dneg = np.exp(difference, out=difference)
        total = dneg.sum(axis=1) + np.exp(-top)
        dneg /= total[:, None]
        return top + np.log(total.astype(np.float64)), -dneg.sum(axis=1), dneg


class SampledSoftmax(SampledCCE):
    """Sampled softmax loss (SSM) with the correction for the proposal.

    ``l = -log [ exp(o_+) / (exp(o_+) + sum_j exp(o_j - log(N q_j))) ]``

    Pu et al., Eqs. 8-10. The trainer subtracts ``log(N q_j)``, which is zero for uniform negatives; what is
    left is `SampledCCE`.

    Examples
    --------
    >>> from rgals.sgd.losses import SampledSoftmax
    >>> SampledSoftmax().corrects_proposal
    True
    """

    corrects_proposal: ClassVar[bool] = True


class BPR(Sampled):
    """Bayesian personalised ranking, summed over the negatives.

    ``l = -sum_j log sigmoid(o_+ - o_j)``

    Rendle et al. (2009); Di Teodoro et al., Eq. 3; Pu et al., appendix B.2.

    Examples
    --------
    >>> import numpy as np
    >>> value, dpos, dneg = BPR().value_and_grad(np.zeros(1), np.zeros((1, 2)))
    >>> value.round(4).tolist(), dpos.tolist(), dneg.tolist()
    ([1.3863], [-1.0], [[0.5, 0.5]])
    """

    def value_and_grad(self, pos: np.ndarray, neg: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Values (B,) and gradients (B,), (B, n)."""
        value, dneg = softplus(neg - pos[:, None])
        return value.sum(axis=1, dtype=np.float64), -dneg.sum(axis=1), dneg


class BCE(Sampled):
    """Binary cross-entropy of the positive and its negatives.

    ``l = -log sigmoid(o_+) - sum_j log(1 - sigmoid(o_j))``

    He et al. (2017); Di Teodoro et al., Eq. 1; Pu et al., appendix B.2.

    Examples
    --------
    >>> import numpy as np
    >>> value, dpos, dneg = BCE().value_and_grad(np.zeros(1), np.zeros((1, 1)))
    >>> value.round(4).tolist(), dpos.tolist(), dneg.tolist()
    ([1.3863], [-0.5], [[0.5]])
    """

    def value_and_grad(self, pos: np.ndarray, neg: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Values (B,) and gradients (B,), (B, n)."""
        first, slope = softplus(-pos)
        rest, dneg = softplus(neg)
        return first + rest.sum(axis=1, dtype=np.float64), -slope, dneg
