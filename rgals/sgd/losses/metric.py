"""Losses of a whole list: smooth ranking metrics, and pairs weighted by what a swap would change."""

from typing import Any, NamedTuple

import numpy as np

from rgals.kernels.smooth import pairs
from rgals.matrix.csr import CSR
from rgals.runtime.checks import parameter
from rgals.runtime.lazy import cached_property
from rgals.sgd.losses._base import Full, List

__all__ = ["ListNDCG", "ListAP", "ListRR", "ListNRBP", "LambdaRank", "LambdaLoss", "FullLambdaRank"]
__all__ += ["FullLambdaLoss", "FullBPR"]


def _discount(ranks: np.ndarray) -> np.ndarray:
    return 1 / np.log2(1 + ranks)


class Weights(NamedTuple):
    """Weights W_ij of pairs, in the terms of `rgals.kernels.smooth.pairs`."""

    # All are 1 by default; with ``down`` and ``up`` differences of two numbers of each item; with ``rank`` a
    # table by the distance of two ranks times one by the lower of them.
    down: Any = ()
    up: Any = ()
    least: Any = np.inf
    rank: Any = ()
    by_distance: Any = ()
    by_lower: Any = ()


_EQUAL = Weights()
ALL, POSITIVES, NEGATIVES = [0, 2], [0, 1], [1, 2]  # runs of a list, as rows of `Lists._edges`
SIGMOID, LOGISTIC = False, True  # phi(x) = 1 / (1 + exp(-x)), and log(1 + exp(x))


class Lists:
    """B lists in one array: scores (T,), list b from ``indptr[b]`` on, its ``m[b]`` positives first."""

    def __init__(self, scores: np.ndarray, indptr: np.ndarray, m: np.ndarray) -> None:
        self.scores, self.grad, self.m, self.indptr = scores, np.zeros_like(scores), m, indptr
        # Of each of the P positives: its list, and its place in ``scores``.
        self.list_of = np.repeat(np.arange(len(m)), m)
        self.at = np.arange(len(self.list_of)) + (indptr[:-1] - np.cumsum(m) + m)[self.list_of]
        # Of each list: its start, the end of its positives, its end.
        self._edges = np.stack([indptr[:-1], indptr[:-1] + m, indptr[1:]])

    def add(self, phi: bool, run: list[int], factor: Any = None, weights: Weights = _EQUAL) -> np.ndarray:
        """``factor_i sum_j W_ij phi(s_j - s_i)`` of every positive i, (P,), over a run of its items."""
        # With a factor the gradient of the sum over all positives is added to ``grad``.
        (low, high), real = self._edges[run][:, self.list_of], self.scores.dtype
        values, one = np.empty(len(self.at)), np.ones(len(self.at))
        given = weights._replace(least=weights.least * one)
        numbers = tuple(np.asarray(part).astype(real) for part in given)
        factors = (one if factor is None else factor * one).astype(real)
        grad = self.grad[:0] if factor is None else self.grad
        pairs(self.scores, low, high, self.at, phi, factors, numbers, values, grad)
        return values

    @cached_property
    def rank(self) -> np.ndarray:
        """Ranks of the items in their lists, from 1, by falling score and then by place, (T,)."""
        rank = np.empty(len(self.scores))
        for start, end in zip(self.indptr[:-1], self.indptr[1:], strict=True):
            scores = self.scores[start:end]
            if scores.itemsize > 4:
                order = np.argsort(-scores, kind="stable")
            else:  # sort integers that rise as scores fall, with the place in their lower half: twice as fast
                bits = (0 - scores).view(np.int32)
                order = (bits ^ (bits >> 31 & 0x7FFFFFFF)).astype(np.int64) << 32 | np.arange(len(bits))
                order.sort()
                order &= 0xFFFFFFFF
            rank[start:end][order] = np.arange(1, len(order) + 1)
        return rank


# All losses here are made of sums over the items j of a list, of functions of s_j - s_i for a positive i.
class _Pairwise(List):
    """``L = sum_{i in I, j not in I} W_ij phi(s_j - s_i)``, W a constant for the gradient."""

    smooth = "logistic"  # phi is log(1 + exp(x)); with "sigmoid" 1 / (1 + exp(-x))

    def _weights(self, lists: Lists) -> tuple[Any, Weights]:
        """Factors of the positives (P,) and weights of the pairs, whose product is W."""
        return 1.0, _EQUAL

    def _add(self, lists: Lists, of: Any) -> np.ndarray:
        # Values (P,) of the positives, which weigh ``of``; their gradient is added to ``lists.grad``.
        own, weights = self._weights(lists)
        return lists.add(self.smooth == "logistic", NEGATIVES, of * own, weights)

    def value_and_grad(
        self, scores: np.ndarray, indptr: np.ndarray, n_positives: np.ndarray, weights: Any = None
    ) -> tuple[np.ndarray, np.ndarray]:
        lists = Lists(scores, np.asarray(indptr, np.int64), np.asarray(n_positives, np.int64))
        values = self._add(lists, 1.0 if weights is None else weights)
        return np.bincount(lists.list_of, values, minlength=len(lists.m)), lists.grad


def ideal_dcg(m: np.ndarray) -> np.ndarray:
    """DCG of lists whose m positives come first."""
    return np.cumsum(_discount(np.arange(1, max(int(m.max(initial=1)), 1) + 1)))[np.maximum(m, 1) - 1]


class ListNDCG(_Pairwise):
    """Smooth nDCG: ``L = -1/Z sum_{i in I} 1 / log2(1 + R_i)``, Z the ideal DCG.

    ``R_i = 1 + sum_{j != i} sigmoid(s_j - s_i)`` over the list, here and in the other listwise losses. Li et
    al., "New Insights into Metric Optimization for Ranking-based Recommendation", Eq. 14.
    """

    def _add(self, lists: Lists, of: Any) -> np.ndarray:
        ideal, rank = ideal_dcg(lists.m)[lists.list_of], _smooth_rank(lists)
        lists.add(SIGMOID, ALL, of * np.log(2) / (ideal * (1 + rank) * np.log(1 + rank) ** 2))
        return -of * _discount(rank) / ideal


def _smooth_rank(lists: Lists) -> np.ndarray:
    # R_i (P,): 0.5 and not 1, as the sum has the term sigmoid(0) of the positive itself, whose gradient is 0.
    return 0.5 + lists.add(SIGMOID, ALL)


class ListAP(_Pairwise):
    """Smooth average precision: ``L = -1/m sum_{i in I} A_i / R_i``.

    ``A_i = 1 + sum_{j in I, j != i} sigmoid(s_j - s_i)``. Li et al., Eq. 15. Public code divides by
    the positives of the whole batch instead of the user's m.
    """

    def _add(self, lists: Lists, of: Any) -> np.ndarray:
        rank, hits = _smooth_rank(lists), 0.5 + lists.add(SIGMOID, POSITIVES)
        direct = of / (lists.m[lists.list_of] * rank)
        lists.add(SIGMOID, ALL, direct * hits / rank)
        lists.add(SIGMOID, POSITIVES, -direct)
        return -direct * hits


class ListRR(_Pairwise):
    """Smooth reciprocal rank: ``L = -sum_{i in I} B_i / R_i``.

    ``B_i = prod_{j in I, j != i} (1 - sigmoid(s_j - s_i))``. Li et al., Eq. 16. At equal scores it is
    ``2^-(m - 1)``: for users of many positives value and gradient are 0 to the precision of floats, which is
    why this loss hardly learns.
    """

    def _add(self, lists: Lists, of: Any) -> np.ndarray:
        rank = _smooth_rank(lists)
        direct = of * np.exp(np.log(2) - lists.add(LOGISTIC, POSITIVES)) / rank
        lists.add(SIGMOID, ALL, direct / rank)
        lists.add(LOGISTIC, POSITIVES, direct)
        return -direct


class ListNRBP(_Pairwise):
    """The loss that Li et al. derive from nRBP: ``L = sum_{i in I, j not in I} sigmoid(s_j - s_i)``.

    Li et al., Eq. 19, ``sum_i (R_i - 1) - m (m - 1) / 2``: pairs of positives cancel, and what is left is the
    sigmoid AUC loss, blind to the order of the top. It is no bound on RBP: their Eqs. 17 to 19 subtract
    bounds of opposite directions. The sum is divided by nothing, as printed, so that active users dominate;
    by m; or by the number of pairs, which ranks 5 to 50 % better by plain defaults.
    """

    normalise: str = parameter("none", ("none", "positives", "pairs"), "Divisor of the sum; see above.")
    smooth = "sigmoid"

    def _weights(self, lists: Lists) -> tuple[Any, Weights]:
        pairs = np.maximum(lists.m * (np.diff(lists.indptr) - lists.m), 1)
        divisor = {"none": np.ones_like(lists.m), "positives": lists.m, "pairs": pairs}
        return 1 / divisor[self.normalise][lists.list_of], _EQUAL


# |Delta_ij|: the change of a metric if positive i and negative j exchange their ranks. ``p`` is that of nRBP.


def _swap_ndcg(lists: Lists, p: float) -> tuple[Any, Weights]:
    discount = _discount(lists.rank)
    return 1 / ideal_dcg(lists.m)[lists.list_of], Weights(discount, discount)


def _swap_nrbp(lists: Lists, p: float) -> tuple[Any, Weights]:
    share = np.expm1((lists.rank - 1) * np.log(p))  # p^(r - 1) - 1: near p = 1 float32 holds its differences
    return (1 - p) / (1 - p ** lists.m[lists.list_of].astype(float)), Weights(share, share)


def _swap_rr(lists: Lists, p: float) -> tuple[Any, Weights]:
    reciprocal, of = 1 / lists.rank, lists.list_of
    own = reciprocal[lists.at]
    first, second = np.zeros((2, len(lists.m)))  # 1 / rank of each list's best positive, and of the next
    np.maximum.at(first, of, own)
    np.maximum.at(second, of, np.where(own == first[of], 0, own))
    # The metric falls only with the best positive, at most to the next one's, and rises with any positive
    # that a swap puts above the best.
    reciprocal[lists.at] = first[of]
    return 1.0, Weights(reciprocal, reciprocal, np.where(own == first[of], first[of] - second[of], 0))


def _swap_ap(lists: Lists, p: float) -> tuple[Any, Weights]:
    # down: precision at an item less the sum of 1 / rank over the positives down to it; up: the same with one
    # more hit at the item. Both fall with the rank: a falling positive i changes the metric by a difference
    # of down, a rising one by a difference of up.
    rank, hit = lists.rank, np.zeros(len(lists.rank))
    first = np.repeat(lists.indptr[:-1], np.diff(lists.indptr))
    place = first + lists.rank.astype(np.int64) - 1  # of every item, if lists were sorted by rank
    hit[place[lists.at]] = 1
    by_rank = np.empty_like(hit)
    by_rank[place] = rank
    hits, harmonic = (np.append(0, np.cumsum(part)) for part in (hit, hit / by_rank))
    down = (hits[place + 1] - hits[first]) / rank - (harmonic[place + 1] - harmonic[first])
    return 1 / lists.m[lists.list_of], Weights(down, down + 1 / rank)


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

    def _weights(self, lists: Lists) -> tuple[Any, Weights]:
        return SWAPS[self.metric](lists, self.p)


class LambdaLoss(_Pairwise):
    """LambdaLoss for nDCG, and for nDCG@K.

    `LambdaRank` with ``W_ij = 1/log2(1 + |d|) - 1/log2(2 + |d|)``, d the difference of the ranks; with ``k``
    times ``1 / (1 - 1/log2(1 + max(r_i, r_j)))`` where that maximum is above K.

    SL@K, Eqs. 2.3 to 2.5. Its public code takes ``1/log2(1 + |d|)`` and ``1 / (1 - 1/max)`` with one negative
    for a positive, the default: NDCG@20 on ml-100k is .366, and .227 with the printed ones (published: .347).
    """

    k: int | None = parameter(None, "int > 0, optional", "None for the whole list.")
    published: bool = parameter(True, "bool", "The weights of the public code; False for the printed ones.")

    def _weights(self, lists: Lists) -> tuple[Any, Weights]:
        longest = int(np.diff(lists.indptr).max(initial=1))
        discount = _discount(np.arange(1.0, longest + 2))
        by_distance, by_lower = np.zeros(longest + 1), np.ones(longest + 1)
        by_distance[1:] = discount[:-1] - (0 if self.published else discount[1:])
        if self.k is not None:
            ranks = np.arange(max(self.k + 1, 2), longest + 1)  # the lower rank of a pair is 2 at least
            by_lower[ranks] = 1 / (1 - (1 / ranks if self.published else _discount(ranks)))
        return 1.0, Weights(rank=lists.rank, by_distance=by_distance, by_lower=by_lower)


class _OnCatalogue(Full):
    """Mixin that makes a list loss, the next base class, a full loss with the catalogue as every list."""

    def value_and_grad(self, scores: np.ndarray, positives: CSR) -> tuple[np.ndarray, np.ndarray]:
        values, n = np.empty(len(scores)), positives.n_cols
        for x, own in enumerate(scores):  # user by user, as a list takes about 100 bytes per item
            of = positives.slice_rows(x, x + 1)
            order = np.append(of.indices, np.delete(np.arange(n), of.indices))  # positives first
            lists = np.array([0, n]), of.row_counts, None if of.is_binary else of.values
            values[x : x + 1], own[order] = super().value_and_grad(own[order], *lists)  # type: ignore[safe-super]
        return values, scores


class FullLambdaRank(_OnCatalogue, LambdaRank):  # type: ignore[misc]
    """`LambdaRank` with the catalogue as the list of every user, as SL@K's appendix G.1 defines it."""


class FullLambdaLoss(_OnCatalogue, LambdaLoss):  # type: ignore[misc]
    """`LambdaLoss` with the catalogue as the list of every user."""


class FullBPR(_OnCatalogue, _Pairwise):  # type: ignore[misc]
    """`BPR` with all items that are no positives of the user.

    ``L_x = sum_{i in I, j not in I} v_xi log(1 + exp(s_j - s_i))``

    Di Teodoro et al., Eq. 3.
    """
