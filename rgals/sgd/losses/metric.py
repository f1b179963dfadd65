"""Losses of a whole list: smooth ranking metrics, and pairs weighted by what a swap would change."""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

from rgals.matrix.csr import CSR
from rgals.runtime.checks import parameter
from rgals.runtime.lazy import cached_property
from rgals.sgd.losses._base import Full, List, logistic, softplus

__all__ = ["ListNDCG", "ListAP", "ListRR", "ListNRBP", "LambdaRank", "LambdaLoss", "FullLambdaRank"]
__all__ += ["FullLambdaLoss", "FullBPR"]
_PAIRS = 1 << 15  # pairs of a block, which stay in the cache of a core


def _discount(ranks: np.ndarray) -> np.ndarray:
    return 1 / np.log2(1 + ranks)


class Lists:
    """Lists one after the other: scores (T,), of list b from ``indptr[b]`` on, its positives first."""

    def __init__(self, scores: np.ndarray, indptr: np.ndarray, n_positives: np.ndarray) -> None:
        self.scores, self.indptr, self.n_positives = scores, indptr, n_positives
        self.list_of = np.repeat(np.arange(len(n_positives)), n_positives)  # (P,) list of each positive
        before = np.cumsum(n_positives) - n_positives
        self.at = np.arange(len(self.list_of)) + (indptr[:-1] - before)[self.list_of]  # (P,) in the scores

    @cached_property
    def ranks(self) -> "Ranks":
        """For weights that depend on them."""
        return Ranks(self)

    def blocks(self, low: np.ndarray) -> "Iterator[Block]":
        """Pairs of each positive with the items from ``low`` (P,) to the end of its list, some at a time."""
        high = self.indptr[self.list_of + 1]
        some = np.flatnonzero(high > low)
        ends = np.cumsum((high - low)[some])
        start = done = 0
        while start < len(some):
            stop = max(int(np.searchsorted(ends, done + _PAIRS, "right")), start + 1)
            p = some[start:stop]
            yield Block(self, p, low[p], high[p])
            start, done = stop, ends[stop - 1]


class Ranks:
    """The ranks in every list, by falling score and distinct, and what swaps are made of."""

    def __init__(self, lists: Lists) -> None:
        at, list_of, length = lists.at, lists.list_of, np.diff(lists.indptr)
        order = np.lexsort((-lists.scores, np.repeat(np.arange(len(length)), length)))
        start = np.repeat(lists.indptr[:-1], length)
        self.rank = np.empty(len(order), np.int64)  # (T,)
        self.rank[order] = np.arange(len(order)) - start + 1
        self.discount = _discount(self.rank)  # (T,) of DCG
        hits = np.zeros(len(order))
        hits[at] = 1
        # Of the positives at or above an item, their number and the sum of their 1 / rank, (T,).
        self.hits, self.harmonic = np.empty((2, len(order)))
        for sums, terms in ((self.hits, hits[order]), (self.harmonic, hits[order] / self.rank[order])):
            total = np.concatenate([[0.0], np.cumsum(terms)])
            sums[order] = total[1:] - total[start]
        # (B,) rank of the first positive, and of the second, infinite where there is none.
        self.best, self.second = top = np.full((2, len(length)), np.inf)
        own = self.rank[at]
        for position in (1, 2):
            here = np.rint(self.hits[at]) == position
            top[position - 1][list_of[here]] = own[here]


class Block:
    """Some positives, each with a run of items of its list."""

    def __init__(self, lists: Lists, p: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
        self.lists, self.p, self.list = lists, p, lists.list_of[p]
        self.at = lists.at[p]  # where its positives stand in the scores
        length = high - low
        self.starts = np.cumsum(length) - length
        self.i = np.repeat(np.arange(len(p)), length)  # positive of each pair, within the block
        self.j = np.arange(len(self.i)) + (low - self.starts)[self.i]  # its item, in the scores
        self.x = lists.scores[self.j] - lists.scores[self.at][self.i]
        self.m = lists.n_positives[self.list]
        self.n_negatives = lists.indptr[self.list + 1] - lists.indptr[self.list] - self.m

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Sum over the pairs of each positive, float64."""
        return np.add.reduceat(values, self.starts, dtype=np.float64)

    @property
    def others(self) -> np.ndarray:
        """Whether each pair is of two different positives."""
        first = self.lists.indptr[self.list]
        return (self.j < (first + self.m)[self.i]) & (self.j != self.at[self.i])


Terms = tuple[np.ndarray, np.ndarray]  # the value of each positive, the derivative of each pair


# All losses here are sums over pairs of a positive i and an item j of the same list, of x = s_j - s_i. A loss
# is a function of a block of such pairs: for every positive its value, for every pair the derivative by x.
class _Pairwise(List):
    """``L = sum_{i in I, j not in I} W_ij phi(s_j - s_i)``, W a constant for the gradient; or by `_terms`."""

    negatives_only: ClassVar[bool] = True
    smooth = "logistic"  # phi is log(1 + exp(x)), else 1 / (1 + exp(-x))

    def _weights(self, block: Block) -> np.ndarray | float:
        return 1.0

    def _terms(self, block: Block) -> Terms:
        value, slope = softplus(block.x) if self.smooth == "logistic" else logistic(block.x)
        weights = self._weights(block)
        return block.sum(weights * value), weights * slope

    def value_and_grad(
        self, scores: np.ndarray, indptr: np.ndarray, n_positives: np.ndarray, weights: Any = None
    ) -> tuple[np.ndarray, np.ndarray]:
        lists = Lists(scores, np.asarray(indptr, np.int64), np.asarray(n_positives, np.int64))
        values, grad = np.zeros(len(n_positives)), np.zeros(len(scores))
        first = lists.indptr[lists.list_of]
        if self.negatives_only:
            first = first + lists.n_positives[lists.list_of]
        for block in lists.blocks(first):
            value, slope = self._terms(block)
            if weights is not None:
                value, slope = value * weights[block.p], slope * weights[block.p][block.i]
            values += np.bincount(block.list, value, minlength=len(values))
            low, high = int(block.j.min()), int(block.j.max()) + 1
            grad[low:high] += np.bincount(block.j - low, slope, minlength=high - low)
            grad[block.at] -= block.sum(slope)
        return values, grad.astype(scores.dtype)


def ideal_dcg(m: np.ndarray) -> np.ndarray:
    """DCG of lists whose m positives come first."""
    return np.cumsum(_discount(np.arange(1, max(int(m.max(initial=1)), 1) + 1)))[np.maximum(m, 1) - 1]


class _Listwise(_Pairwise):
    """A metric with the smooth rank ``R_i = 1 + sum_{j != i} sigmoid(s_j - s_i)`` in place of the rank."""

    negatives_only: ClassVar[bool] = False
    _metric: ClassVar[Callable[..., Terms]]  # from sigmoids, slopes and ranks

    def _terms(self, block: Block) -> Terms:
        above, slope = logistic(block.x)
        own = block.j == block.at[block.i]
        above[own], slope[own] = 0, 0
        return self._metric(block, above, slope, 1 + block.sum(above))


class ListNDCG(_Listwise):
    """Smooth nDCG: ``L = -1/Z sum_{i in I} 1 / log2(1 + R_i)``, Z the ideal DCG.

    ``R_i = 1 + sum_j sigmoid(s_j - s_i)`` over the user's list, here and in the other listwise losses. Li et
    al., "New Insights into Metric Optimization for Ranking-based Recommendation", Eq. 14.
    """

    def _metric(self, block: Block, above: np.ndarray, slope: np.ndarray, rank: np.ndarray) -> Terms:
        ideal, logarithm = ideal_dcg(block.m), np.log(1 + rank)
        by_rank = np.log(2) / (ideal * (1 + rank) * logarithm**2)
        return -np.log(2) / (ideal * logarithm), by_rank[block.i] * slope


class ListAP(_Listwise):
    """Smooth average precision: ``L = -1/m sum_{i in I} A_i / R_i``.

    ``A_i = 1 + sum_{j in I} sigmoid(s_j - s_i)``. Li et al., Eq. 15. Public code divides by
    the positives of the whole batch instead of the user's m.
    """

    def _metric(self, block: Block, above: np.ndarray, slope: np.ndarray, rank: np.ndarray) -> Terms:
        others = block.others
        hits = 1 + block.sum(above * others)
        by_rank, direct = hits / (block.m * rank**2), 1 / (block.m * rank)
        return -hits / (block.m * rank), (by_rank[block.i] - direct[block.i] * others) * slope


class ListRR(_Listwise):
    """Smooth reciprocal rank: ``L = -sum_{i in I} B_i / R_i``.

    ``B_i = prod_{j in I, j != i} (1 - sigmoid(s_j - s_i))``. Li et al., Eq. 16. At equal scores it is
    ``2^-(m - 1)``: for users of many positives value and gradient are 0 to the precision of floats, which is
    why this loss hardly learns.
    """

    def _metric(self, block: Block, above: np.ndarray, slope: np.ndarray, rank: np.ndarray) -> Terms:
        others = block.others
        first = np.exp(-block.sum(np.where(others, softplus(block.x)[0], 0)))
        by_rank, direct = first / rank**2, first / rank
        return -first / rank, by_rank[block.i] * slope + direct[block.i] * others * above


class ListNRBP(_Pairwise):
    """The loss that Li et al. derive from nRBP: ``L = sum_{i in I, j not in I} sigmoid(s_j - s_i)``.

    Li et al., Eq. 19, ``sum_i (R_i - 1) - m (m - 1) / 2``: pairs of positives cancel, and what is left is the
    sigmoid AUC loss, blind to the order of the top. It is no bound on RBP: their Eqs. 17 to 19 subtract
    bounds of opposite directions. The sum is divided by nothing, as printed, so that active users dominate;
    by m; or by the number of pairs.
    """

    normalise: str = parameter(
        "none", ("none", "positives", "pairs"), "By what the sum is divided; see above."
    )

    def _terms(self, block: Block) -> Terms:
        above, slope = logistic(block.x)
        divisor = {"none": 1, "positives": block.m, "pairs": block.m * block.n_negatives}
        scale = np.ones(len(block.m)) / divisor[self.normalise]
        return scale * block.sum(above), scale[block.i] * slope


# What swapping positive i and negative j, of ranks r_i and r_j, changes in a metric.


def _swap_ndcg(block: Block, known: Ranks, p: float) -> np.ndarray:
    change = np.abs(known.discount[block.at][block.i] - known.discount[block.j])
    return change / ideal_dcg(block.m)[block.i]


def _swap_nrbp(block: Block, known: Ranks, p: float) -> np.ndarray:
    change = np.abs(p ** (known.rank[block.at] - 1.0)[block.i] - p ** (known.rank[block.j] - 1.0))
    return change * ((1 - p) / (1 - p ** block.m.astype(np.float64)))[block.i]


def _swap_rr(block: Block, known: Ranks, p: float) -> np.ndarray:
    own, r = known.rank[block.at], known.rank[block.j]
    first, second = known.best[block.list], known.second[block.list]
    other = np.where(own == first, second, first)[block.i]  # the best positive beside i
    return np.abs(1 / np.minimum(other, r) - (1 / first)[block.i])


def _swap_ap(block: Block, known: Ranks, p: float) -> np.ndarray:
    at = block.at
    r_i, r_j = known.rank[at][block.i], known.rank[block.j]
    n_i, n_j = known.hits[at][block.i], known.hits[block.j]
    between = known.harmonic[block.j] - known.harmonic[at][block.i]
    up = (n_j + 1) / r_j - n_i / r_i - between - 1 / r_i
    down = n_i / r_i - n_j / r_j + between
    return np.abs(np.where(r_j < r_i, up, down)) / block.m[block.i]


#: Metrics of `LambdaRank`.
SWAPS = {"ndcg": _swap_ndcg, "ap": _swap_ap, "rr": _swap_rr, "nrbp": _swap_nrbp}


class LambdaRank(_Pairwise):
    """Pairs weighted by what their swap would change in a metric.

    ``L = sum_{i in I, j not in I} |Delta_ij| log(1 + exp(s_j - s_i))``, Delta the change of the metric if the
    ranks of i and j in the list were exchanged, a constant for the gradient: the value can rise along it.

    SL@K, appendix G.1; Li et al., Eqs. 7 to 10. Eq. 10 prints ``|y_i p^(R_i - 1) - y_j p^(R_j - 1)|`` for
    nRBP, in which the rank of the negative has no part; a swap changes ``|p^(R_i - 1) - p^(R_j - 1)|``. Ranks
    are distinct: with tied ones, as SL@K counts them, LambdaLoss would divide by 0. The public code of Li et
    al. differentiates ``sigmoid(s_j - s_i)`` in place of the logarithm: ``smooth="sigmoid"``.
    """

    metric: str = parameter("ndcg", SWAPS)
    p: float = parameter(0.9, "float in (0, 1)", "Persistence of nRBP (published: 0.8, 0.9, 0.95).")
    smooth: str = parameter("logistic", ("logistic", "sigmoid"), "The function of ``s_j - s_i``; see above.")

    def _weights(self, block: Block) -> np.ndarray:
        return SWAPS[self.metric](block, block.lists.ranks, self.p)


class LambdaLoss(_Pairwise):
    """LambdaLoss for nDCG, and for nDCG@K.

    `LambdaRank` with ``W_ij = 1/log2(1 + |d|) - 1/log2(2 + |d|)``, d the difference of the ranks; with ``k``
    times ``1 / (1 - 1/log2(1 + max(r_i, r_j)))`` where that maximum is above K.

    SL@K, Eqs. 2.3 to 2.5. Its public code takes ``1/log2(1 + |d|)`` and ``1 / (1 - 1/max)`` with one negative
    for a positive, the default: those rank far better. Over the catalogue of ml-100k NDCG@20 is .324 with
    them and .227 with the printed ones, .358 over cosines; published is .347 (``benchmarks/losses.py``).
    """

    k: int | None = parameter(None, "int > 0, optional", "None for the whole list.")
    published: bool = parameter(True, "bool", "The weights of the public code; False for the printed ones.")

    def _weights(self, block: Block) -> np.ndarray:
        rank = block.lists.ranks.rank
        own, other = rank[block.at][block.i], rank[block.j]
        distance, lower = np.abs(own - other), np.maximum(own, other)
        weight = _discount(distance) - (0 if self.published else _discount(1 + distance))
        if self.k is None:
            return weight
        beyond = lower > self.k
        # A lower rank of 1 cannot be: it is that of one of two items.
        return weight / np.where(beyond, 1 - (1 / lower if self.published else _discount(lower)), 1)


class _OnCatalogue(Full):
    """A list loss whose lists are the whole catalogue: before it in the bases of a class."""

    def value_and_grad(self, scores: np.ndarray, positives: CSR) -> tuple[np.ndarray, np.ndarray]:
        n = positives.n_cols
        rest = np.ones(scores.shape, bool)
        rest.reshape(-1)[positives.positions] = False
        # Of every row its positives, then the other items.
        order = (np.argsort(rest, axis=1, kind="stable") + n * np.arange(len(scores))[:, None]).ravel()
        weights = None if positives.is_binary else positives.values
        flat = scores.reshape(-1)
        lists = np.arange(len(scores) + 1) * n, positives.row_counts, weights
        values, grad = super().value_and_grad(flat[order], *lists)  # type: ignore[safe-super]
        flat[order] = grad
        return values, scores


class FullLambdaRank(_OnCatalogue, LambdaRank):  # type: ignore[misc]
    """`LambdaRank` with the catalogue as the list of every user, as SL@K's appendix G.1 defines it."""


class FullLambdaLoss(_OnCatalogue, LambdaLoss):  # type: ignore[misc]
    """`LambdaLoss` with the catalogue as the list of every user."""


class FullBPR(_OnCatalogue, _Pairwise):  # type: ignore[misc]
    """`BPR` with all items that are no positives of the user.

    ``L_x = sum_{i in I, j not in I} log(1 + exp(s_j - s_i))``

    Di Teodoro et al., Eq. 3.
    """
