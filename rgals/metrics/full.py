"""Metrics of the whole ranking, from the exact number of irrelevant items above each relevant one."""

from typing import Any

import numpy as np

from rgals.metrics._judged import Outranked, documented
from rgals.runtime.checks import check_real

_documented = documented(
    "ndarray of float64, shape (B,)\n    NaN for users without relevant or without irrelevant items.",
    *("import numpy as np", "from rgals.metrics import Outranked"),
    counts="Outranked",
)


@_documented
def auc(counts: Outranked) -> np.ndarray:
    """Area under the ROC curve: the probability that a relevant item outranks an irrelevant one.

    ``1 - mean over relevant items of (above + tied / 2) / n_negatives``, over every item that is not in the
    training set; equal scores count half. It is the Mann-Whitney statistic, counted exactly, not sampled.

    References
    ----------
    Hanley and McNeil, "The meaning and use of the area under a ROC curve", Radiology 143(1), 1982.

    >>> # one user with one relevant item, which one of four others outranks and one ties
    >>> auc(Outranked(np.array([0, 1]), above=np.array([1]), tied=np.array([1]), n_negatives=np.array([4])))
    array([0.625])
    """
    return partial_auc(counts, 1.0)


@_documented
def partial_auc(counts: Outranked, max_fpr: float = 0.1) -> np.ndarray:
    """Area under the ROC curve up to a false positive rate, divided by that rate (``"pauc(0.1)"``).

    The curve is the one that `sklearn.metrics.roc_curve` draws: straight through groups of equal scores. 1
    is a perfect ranking, ``max_fpr / 2`` is chance.

    References
    ----------
    Dodd and Pepe, "Partial AUC estimation and regression", Biometrics 59(3), 2003.

    >>> one = Outranked(np.array([0, 1]), above=np.array([1]), tied=np.array([0]), n_negatives=np.array([4]))
    >>> partial_auc(one, 0.5)  # half of the first two places for false positives
    array([0.5])
    """
    max_fpr = check_rate(max_fpr)
    limit = max_fpr * np.repeat(counts.n_negatives, counts.n_truth)
    # A relevant item of a group that spans [above, above + tied] on the axis of false positives rises there
    # linearly.
    inside = np.clip(limit - counts.above, 0, counts.tied)
    ramp = np.divide(inside**2, 2.0 * counts.tied, out=np.zeros(len(inside)), where=counts.tied > 0)
    area = ramp + np.maximum(limit - counts.above - counts.tied, 0)
    scale = max_fpr * counts.n_negatives * counts.n_truth
    users = np.repeat(np.arange(len(scale)), counts.n_truth)
    area = np.bincount(users, area, minlength=len(scale))
    return np.divide(area, scale, out=np.full(len(scale), np.nan), where=scale > 0)


def check_rate(max_fpr: Any) -> float:
    """Return ``max_fpr``, a number above 0 and up to 1."""
    return check_real("max_fpr", max_fpr, 0.0, 1.0, open_min=True)
