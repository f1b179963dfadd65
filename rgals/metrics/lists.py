"""Metrics of the top of a ranking, and those of the whole of it, one function each."""

# Every function takes ranked lists and the truth, or what `judge` made of them, and returns one figure per
# user, NaN for users without relevant items. Relevance is binary. ``h_i`` is 1 where the item at rank i = 1,
# 2, ... is relevant and 0 where it is not or the list has ended: missing ranks count as misses. ``T`` is the
# number of the user's relevant items. Those of the whole ranking take the exact number of irrelevant items
# above each relevant one.

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from rgals.metrics._judged import Outranked, documented, ratio, top
from rgals.runtime.checks import check_real, check_share

check_persistence = partial(check_share, "p")
check_rate = partial(check_real, "max_fpr", minimum=0.0, maximum=1.0, open_min=True)

_documented = documented(
    "ndarray of float64, shape (B,)\n    In [0, 1]; NaN for users without relevant items.",
    "from scipy.sparse import csr_array",
)

__all__ = ["ndcg", "mrr", "average_precision", "capped_average_precision", "recall", "capped_recall"]
__all__ += ["dislike_rate", "precision", "f1", "hit_rate", "rbp", "nrbp", "auc", "partial_auc"]


def _over_ideal(hits: np.ndarray, n_truth: np.ndarray, k: int, discount: Callable) -> np.ndarray:
    """Discounted hits over their largest possible sum, that of ``min(k, T)`` hits at the top."""
    n_ranks = max(hits.shape[1], min(k, int(n_truth.max(initial=1))))  # no ideal list is longer than T
    weights = discount(np.arange(n_ranks))
    ideal = np.concatenate([[0.0], np.cumsum(weights[:k])])
    # Added in the order of the ideal list: equal hits are equal to the last bit, and no list is above 1.
    gain = np.cumsum(hits * weights[: hits.shape[1]], axis=1)[:, -1:].sum(axis=1)
    return ratio(gain, ideal[np.minimum(n_truth, len(ideal) - 1)])


@_documented
def ndcg(ranked: Any, truth: Any = None, k: int | None = None) -> np.ndarray:
    """Normalised discounted cumulative gain at k.

    ``sum_{i<=k} h_i / log2(i + 1)``, divided by its largest possible value, which is the same sum over
    ``i <= min(k, T)`` of ones: a list of k relevant items has NDCG 1 even where T > k.

    References
    ----------
    Järvelin and Kekäläinen, "Cumulated gain-based evaluation of IR techniques", ACM TOIS 20(4), 2002.

    >>> ndcg([[2, 0, 1]], csr_array([[1, 0, 0]]), k=2).round(4)  # 1 / log2(3)
    array([0.6309])
    """
    hits, n_truth, k = top(ranked, truth, k)
    return _over_ideal(hits, n_truth, k, lambda rank: 1.0 / np.log2(rank + 2))


@_documented
def mrr(ranked: Any, truth: Any = None, k: int | None = None) -> np.ndarray:
    """Reciprocal rank of the first relevant item among the first k, 0 if there is none; its mean is MRR@k.

    References
    ----------
    Voorhees, "The TREC-8 question answering track report", 1999.

    >>> mrr([[2, 1, 0], [0, 1, 2]], csr_array([[1, 1, 0], [0, 0, 1]]), k=2)
    array([0.5, 0. ])
    """
    hits, n_truth, _ = top(ranked, truth, k)
    return ratio((hits / np.arange(1, hits.shape[1] + 1)).max(axis=1, initial=0.0), n_truth > 0)


def _average_precision(hits: np.ndarray) -> np.ndarray:
    ranks = np.arange(1, hits.shape[1] + 1)
    return (hits * np.cumsum(hits, axis=1) / ranks).sum(axis=1)


@_documented
def average_precision(ranked: Any, truth: Any = None, k: int | None = None) -> np.ndarray:
    """Average precision at k over all relevant items; its mean is MAP@k (``"map@k"``).

    ``1 / T * sum_{i<=k} h_i (h_1 + ... + h_i) / i``: trec_eval's definition (``map_cut``), also that of ranx.

    References
    ----------
    Buckley and Voorhees, "Evaluating evaluation measure stability", SIGIR 2000.

    >>> average_precision([[2, 0, 1, 3]], csr_array([[1, 0, 0, 1]]), k=4)  # (1/2 + 2/4) / 2
    array([0.5])
    """
    hits, n_truth, _ = top(ranked, truth, k)
    return ratio(_average_precision(hits), n_truth)


@_documented
def capped_average_precision(ranked: Any, truth: Any = None, k: int | None = None) -> np.ndarray:
    """Average precision at k over ``min(k, T)``: MAP@k of Kaggle and implicit (``"capped_map@k"``).

    >>> capped_average_precision([[0]], csr_array([[1, 1]]), k=1)
    array([1.])
    """
    hits, n_truth, k = top(ranked, truth, k)
    return ratio(_average_precision(hits), np.minimum(n_truth, k))


@_documented
def recall(ranked: Any, truth: Any = None, k: int | None = None) -> np.ndarray:
    """Share of the relevant items that are among the first k: ``sum_{i<=k} h_i / T``.

    See Also
    --------
    capped_recall : divides by ``min(k, T)``, as the papers on variational autoencoders and iALS do.

    >>> recall([[0, 1]], csr_array([[1, 0, 1, 1]]), k=2).round(4)
    array([0.3333])
    """
    hits, n_truth, _ = top(ranked, truth, k)
    return ratio(hits.sum(axis=1), n_truth)


@_documented
def capped_recall(ranked: Any, truth: Any = None, k: int | None = None) -> np.ndarray:
    """Recall over what fits into the list: ``sum_{i<=k} h_i / min(k, T)``, so that 1 can be reached.

    References
    ----------
    Liang et al., "Variational autoencoders for collaborative filtering", WWW 2018, section 4.2.

    >>> capped_recall([[0, 1]], csr_array([[1, 0, 1, 1]]), k=2)
    array([0.5])
    """
    hits, n_truth, k = top(ranked, truth, k)
    return ratio(hits.sum(axis=1), np.minimum(n_truth, k))


@_documented
def dislike_rate(ranked: Any, truth: Any = None, k: int | None = None) -> np.ndarray:
    """Share of disliked items among the first k; ``truth`` are the dislikes, NaN for users without.

    `evaluate` takes test interactions of negative value for dislikes.

    >>> dislike_rate([[2, 0, 1]], csr_array([[1, 0, 0]]), k=2)
    array([0.5])
    """
    return precision(ranked, truth, k)


@_documented
def precision(ranked: Any, truth: Any = None, k: int | None = None) -> np.ndarray:
    """Share of the first k ranks that hold a relevant item: ``sum_{i<=k} h_i / k``.

    >>> precision([[0, 1, -1, -1]], csr_array([[1, 0]]), k=4)
    array([0.25])
    """
    hits, n_truth, k = top(ranked, truth, k)
    return ratio(hits.sum(axis=1), k * (n_truth > 0))


@_documented
def f1(ranked: Any, truth: Any = None, k: int | None = None) -> np.ndarray:
    """Harmonic mean of precision and recall at k: ``2 sum_{i<=k} h_i / (k + T)``, 0 where there is no hit.

    References
    ----------
    Van Rijsbergen, Information Retrieval, 1979, chapter 7.

    >>> f1([[0, 1]], csr_array([[1, 0, 1, 1]]), k=2)  # precision 1/2, recall 1/3
    array([0.4])
    """
    hits, n_truth, k = top(ranked, truth, k)
    return ratio(2.0 * hits.sum(axis=1), (k + n_truth) * (n_truth > 0))


@_documented
def hit_rate(ranked: Any, truth: Any = None, k: int | None = None) -> np.ndarray:
    """1 where a relevant item is among the first k, else 0 (HR@k).

    >>> hit_rate([[0, 1], [1, 0]], csr_array([[1, 0], [1, 0]]), k=1)
    array([1., 0.])
    """
    hits, n_truth, _ = top(ranked, truth, k)
    return ratio(hits.sum(axis=1) > 0, n_truth > 0)


@_documented
def rbp(ranked: Any, truth: Any = None, k: int | None = None, p: float = 0.8) -> np.ndarray:
    """Rank-biased precision at k: ``(1 - p) sum_{i<=k} h_i p^(i-1)``.

    A reader who looks at the next item with probability p finds relevant items at this rate. It stays below
    1: a perfect list of T <= k items reaches ``1 - p^T`` only. See `nrbp`.

    References
    ----------
    Moffat and Zobel, "Rank-biased precision for measurement of retrieval effectiveness", TOIS 27(1), 2008.

    >>> rbp([[2, 0, 1]], csr_array([[1, 1, 0]]), k=3, p=0.5)  # 0.5 * (0.5 + 0.25)
    array([0.375])
    """
    hits, n_truth, _ = top(ranked, truth, k)
    p = check_persistence(p)
    return ratio((1 - p) * (hits * p ** np.arange(hits.shape[1])).sum(axis=1), n_truth > 0)


@_documented
def nrbp(ranked: Any, truth: Any = None, k: int | None = None, p: float = 0.8) -> np.ndarray:
    """Rank-biased precision at k over its largest possible value, that of ``min(k, T)`` hits at the top.

    ``sum_{i<=k} h_i p^(i-1) / sum_{i<=min(k,T)} p^(i-1)``: NDCG with the discount of `rbp`.

    >>> nrbp([[2, 0, 1]], csr_array([[1, 1, 0]]), k=3, p=0.5)  # (0.5 + 0.25) / (1 + 0.5)
    array([0.5])
    """
    hits, n_truth, k = top(ranked, truth, k)
    p = check_persistence(p)
    return _over_ideal(hits, n_truth, k, lambda rank: p**rank)


_documented_whole = documented(
    "ndarray of float64, shape (B,)\n    NaN for users without relevant or without irrelevant items.",
    *("import numpy as np", "from rgals.metrics import Outranked"),
    counts="Outranked",
)


@_documented_whole
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


@_documented_whole
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
    return ratio(np.bincount(users, area, minlength=len(scale)), scale)
