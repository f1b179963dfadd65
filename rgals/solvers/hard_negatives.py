"""Hard negatives: more weight for the pairs with the highest current scores, in exact half-steps."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rgals.kernels import hard as kernel
from rgals.kernels import topk
from rgals.kernels.queue import launch
from rgals.losses.base import Coefficients, Side, weight_sums
from rgals.matrix.csr import CSR
from rgals.runtime.aligned import read_only
from rgals.runtime.checks import check_int, check_real, plain_copy
from rgals.runtime.sklearn import BaseEstimator
from rgals.runtime.threads import workers
from rgals.solvers.base import Backend

_AT_ONCE = 1 << 22  # pairs of a fold-in, or items of shares, that are in memory at once
_BLOCKS = 16  # blocks of users whose shares are dealt at once, at least
# A group has 1.5 N / T items. Four of five items that are best of their group are then in the user's top T.
GROUP = 1.5


@dataclass(eq=False, repr=False)
class HardNegatives(BaseEstimator):
    """More weight for the highest-scored pairs: ``RGALS(hard_negatives=HardNegatives(...))``.

    Least squares spreads its penalty over all pairs. Here the set T_x of the T items with user x's highest
    current scores, without the user's own items, gets additional weight gamma. With the notation of
    `rgals.losses`, and tau_x = t_x / g_x (-1 for RG2 and RGX, 0 for WRMF and iALS), the loss becomes::

        L' = L + gamma sum_x g_x sum_{y in T_x} h_y (o_xy - tau_x)^2

    This is the second-order expansion of softmax around the current scores: the curvature of a pair is its
    probability, which lies with the items ranked first. Training samples T_x. A random share of the catalogue
    is dealt into groups of 1.5 N / T items, and the user's best item of each group, other than the user's
    own, is drawn with the weight gamma g_x N / (items of the share). Every block of 512 users has a share of
    its own, dealt again before every iteration. In the end, and in fold-in, nothing is random: a half-step
    without hard negatives ranks the items, and it is repeated with the first T of them.

    Parameters
    ----------
    weight : float, default=0.5
        gamma; 0 fits without hard negatives. 1 to 4 help on many sparse catalogues, 0 is best on small dense
        ones: search it together with ``reg``, as `rgals.RGALSCV` does.
    share : float, default=0.01
        T as a share of the catalogue. T is at least twice ``n_samples``, because the very first items are too
        often ones that the user will want.
    n_samples : int, default=50
        Items drawn for each user, one per group. With fewer, each has more weight, and noise grows.
    warmup : int, default=4
        Iterations before the first, at least 1; at least 10 with ``n_iter="auto"``, unless it stops early.

    Notes
    -----
    The sets T_x change with the factors, so that the objective may rise from one iteration to the next. The
    history has its value with the sets of the iteration. Regularisation weights count positives only.

    References
    ----------
    Zhang et al., "Optimizing top-N collaborative filtering via dynamic negative item sampling", 2013, choose
    by the current scores, with gradient steps. He et al., "Fast matrix factorization for online
    recommendation with implicit feedback", 2016 (eALS), weigh unobserved pairs in exact updates, by
    popularity. Pu et al., "NDCG-Consistent Softmax Approximation with Accelerated Convergence": the expansion
    of softmax at scores of 0, which is RG2.

    Examples
    --------
    >>> from rgals import RGALS, HardNegatives
    >>> from rgals.datasets import make_implicit
    >>> X = make_implicit(200, 100, random_state=0).matrix
    >>> model = RGALS(K=16, hard_negatives=HardNegatives(weight=1, n_samples=20), random_state=0).fit(X)
    >>> bool((model.transform(X) == model.user_factors_).all())
    True
    """

    weight: float = 0.5
    share: float = 0.01
    n_samples: int = 50
    warmup: int = 4

    def check(self) -> None:
        """Check the parameters; a `ParameterError` names one that is out of its range."""
        check_real("hard_negatives.weight", self.weight, 0.0)
        check_real("hard_negatives.share", self.share, 0.0, 1.0, open_min=True)
        check_int("hard_negatives.n_samples", self.n_samples, 1)
        check_int("hard_negatives.warmup", self.warmup, 1)

    def n_top(self, n_items: int) -> int:
        """T, the number of items that a user's extra weight is on."""
        return min(max(int(np.ceil(self.share * n_items)), 2 * self.n_samples), n_items)

    def group_size(self, n_items: int) -> int:
        """Items of a group, of which the best one is drawn."""
        return max(1, int(GROUP * n_items / self.n_top(n_items)))

    def best_of(self, scores: np.ndarray, own: np.ndarray) -> np.ndarray:
        """The hard negatives T_x of one user, best first."""
        order = np.argsort(-scores, kind="stable")
        return order[~np.isin(order, own)][: self.n_top(len(scores))]


def read_hard_negatives(value: Any) -> HardNegatives | None:
    """A checked copy of the parameter ``hard_negatives``; None if there are none."""
    if value is None:
        return None
    own = isinstance(value, HardNegatives)
    value = plain_copy(value) if own else HardNegatives(check_real("hard_negatives", value, 0.0))
    value.check()
    return value if value.weight > 0 else None


# ---------------------------------------------------------------- drawing pairs, and adding them to rows


def merge(rows: CSR, pairs: CSR, dtype: Any, n_threads: int) -> CSR:
    """The rows with ``pairs`` added, which get the value -1: see `Side.with_pairs`."""
    n = rows.nnz + pairs.nnz
    indices, values = np.empty(n, np.int32), np.empty(n, dtype)
    given = rows.indptr, rows.indices, read_only(rows.values.astype(dtype, copy=False))
    launch(kernel.merge, n_threads, *given, pairs.indptr, pairs.indices, indices, values)
    return CSR(rows.indptr + pairs.indptr, indices, values, rows.n_cols)


def pair_terms(coefficients: Coefficients, weight: float | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The terms of users and of items for `Side.with_pairs`: pairs count ``weight`` times more."""
    users = np.stack([weight * coefficients.g, weight * coefficients.t], axis=1)
    return users, np.stack([coefficients.h, coefficients.h], axis=1)


def _of_lists(lists: np.ndarray, n_items: int) -> CSR:
    """The pairs of users' lists of items. Lists are sorted; -1 stands for no item."""
    kept = lists >= 0
    indptr = np.append(0, np.cumsum(kept.sum(axis=1, dtype=np.int64)))
    return CSR(indptr, lists.reshape(-1) if kept.all() else lists[kept], np.empty(0, np.float32), n_items)


class Blocks:
    """The users with positives, in blocks, of which each draws ``n`` items of as many groups."""

    def __init__(self, hard: HardNegatives, counts: np.ndarray, n_items: int) -> None:
        self.n_items, self.group = n_items, hard.group_size(n_items)
        self.n = min(hard.n_samples, n_items // self.group)
        self.size = self.n * self.group  # items of the share that a block draws from
        self.users = np.flatnonzero(counts > 0).astype(np.int32)

    def shares(self, rng: np.random.Generator) -> Iterator[tuple[int, np.ndarray]]:
        """The shares (blocks, size) of some blocks at a time, and the number of the first of them."""
        # A permutation of the catalogue is cut into whole shares, so that all items are in about as many
        # shares. Shares that are left over wait for the next blocks.
        n_blocks, at_once = -(-len(self.users) // topk.USERS), max(_AT_ONCE // self.size, _BLOCKS)
        waiting = np.empty((0, self.size), np.int32)
        for first in range(0, n_blocks, at_once):
            n, parts = min(at_once, n_blocks - first), [waiting]
            while sum(map(len, parts)) < n:
                order = rng.permutation(self.n_items).astype(np.int32)
                parts.append(order[: self.n_items // self.size * self.size].reshape(-1, self.size))
            found = np.concatenate(parts)
            waiting = found[n:]
            yield first, found[:n]


def draw(
    users: np.ndarray, items: np.ndarray, rows: CSR, blocks: Blocks, rng: np.random.Generator, n_threads: int
) -> CSR:
    """Each user's best item of every group, without those in ``rows``, as pairs."""
    lists = np.full((len(users), blocks.n), -1, np.int32)
    given = read_only(users), read_only(items), blocks.users, blocks.group
    for first, shares in blocks.shares(rng):
        launch(kernel.draw, n_threads, *given, shares, first, rows.indptr, rows.indices, lists)
    lists.sort(axis=1)
    return _of_lists(lists, len(items))


def best(
    users: np.ndarray, items: np.ndarray, rows: CSR, n: int, n_threads: int, without: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The ``n`` best items of every user, without those in ``rows`` and in ``without``; their scores."""
    ids, scores = np.empty((1, len(users), n), np.int32), np.empty((1, len(users), n), users.dtype)
    blocked = np.empty(0, np.int32) if without is None else np.sort(without).astype(np.int32)
    filters = read_only(np.empty(0, users.dtype)), read_only(blocked), rows.indptr, rows.indices
    topk.topk(read_only(users), read_only(items), *filters, n_threads, ids, scores)
    return ids[0], scores[0]


# ---------------------------------------------------------------- in a fit


@dataclass(eq=False)
class Sampler:
    """Draws the hard negatives of a fit; ``users`` is the matrix."""

    # Nothing is drawn in the first ``plain`` iterations. A draw depends on ``seed``, the iteration and the
    # factors, and on nothing else.
    hard: HardNegatives
    users: CSR
    coefficients: Coefficients
    plain: int
    seed: int
    n_jobs: Any

    def __post_init__(self) -> None:
        g, t, h = self.coefficients.g, self.coefficients.t, self.coefficients.h
        self.blocks = Blocks(self.hard, self.users.row_counts, len(h))
        # A share is a sample of the N items: a drawn pair counts N / size times.
        weight = self.hard.weight * len(h) / self.blocks.size
        self.user_terms, self.item_terms = pair_terms(self.coefficients, weight)
        offsets = np.divide(weight * t * t, g, out=np.zeros_like(g), where=g > 0)
        self._constant = np.zeros((len(g), 4)), np.zeros((len(h), 4))
        self._constant[0][:, 1], self._constant[1][:, 1] = offsets, h
        self._weighed = h > 0

    def draw(self, iteration: int, users: np.ndarray, items: np.ndarray) -> tuple[CSR, CSR, float]:
        """The rows of both sides with the pairs drawn by these factors, and what they add to the constant."""
        rng = np.random.default_rng([self.seed, iteration])
        with workers(self.n_jobs) as n_threads:
            pairs = draw(users, items, self.users, self.blocks, rng, n_threads)
            if not self._weighed.all():  # an item of weight 0 without positives must keep an empty row
                pairs = pairs.where(self._weighed[pairs.indices])
            constant = float(weight_sums(pairs, *self._constant).sum())
            by_user = merge(self.users, pairs, users.dtype, n_threads)
            return by_user, turned(by_user, n_threads), constant


def turned(rows: CSR, n_threads: int) -> CSR:
    """The transpose of rows with pairs in them, in parallel."""
    indices, values = np.empty(rows.nnz, np.int32), np.empty(rows.nnz, rows.values.dtype)
    # Each thread has a piece of the rows with about as many entries. It counts its entries of each column.
    # From the counts follows where each piece writes; columns keep the order of the rows.
    bounds = np.searchsorted(rows.indptr, np.linspace(0, rows.nnz, n_threads + 1).astype(np.int64))
    bounds[0], bounds[-1] = 0, rows.n_rows
    cursor = np.zeros((n_threads, rows.n_cols), np.int64)
    given = bounds, rows.indptr, rows.indices, rows.values, cursor
    launch(kernel.turn, n_threads, *given, indices[:0], values[:0])
    indptr = np.append(0, np.cumsum(cursor.sum(axis=0)))
    cursor[:] = indptr[:-1] + np.cumsum(cursor, axis=0) - cursor
    launch(kernel.turn, n_threads, *given, indices, values)
    return CSR(indptr, indices, values, rows.n_rows)


# ---------------------------------------------------------------- users after a fit, and new ones


# All that half-steps of some users, or items, share, as it does not depend on factors: their histories with
# weights for values, coefficients and systems without hard negatives, and the backend, which keeps the plan.
Half = tuple[CSR, Coefficients, Side, Backend]


def fold_in(users: Half, items: np.ndarray, hard: HardNegatives, n_jobs: int | None) -> np.ndarray:
    """Solve users by a half-step without hard negatives, then again with the T items that it ranks first."""
    rows, _, side, backend = users
    out = backend.half_step(rows, items, side).factors
    for part, merged, with_pairs in hard_rows(users, items, out, hard, n_jobs):
        out[part] = backend.half_step(merged, items, with_pairs).factors
    return out


def hard_rows(
    half: Half, items: np.ndarray, users: np.ndarray, hard: HardNegatives, n_jobs: int | None
) -> Iterator[tuple[np.ndarray, CSR, Side]]:
    """The rows that are not empty, in blocks, with the T best items by the factors ``users`` added."""
    # Yields the numbers of the rows, the rows, and their side.
    (rows, coefficients, side, _), n = half, hard.n_top(len(items))
    whole = side.with_pairs(*pair_terms(coefficients, hard.weight))
    for part in _parts((rows.row_counts > 0) | (side.linear != 0), n):
        some = rows.take_rows(part)
        with workers(n_jobs) as n_threads:
            lists = np.sort(best(users[part], items, some, n, n_threads)[0], axis=1)
            lists[some.row_counts == 0] = -1
            merged = merge(some, _of_lists(lists, len(items)), items.dtype, n_threads)
        yield part, merged, whole.take_rows(part)


def _parts(wanted: np.ndarray, n: int) -> Iterator[np.ndarray]:
    """The wanted users in parts that have lists of ``n`` items in memory at once."""
    # Whole blocks of `topk`: rounding of scores depends on the shape of the products.
    at_once, users = max(_AT_ONCE // n // topk.USERS, 1) * topk.USERS, np.flatnonzero(wanted)
    yield from (users[start : start + at_once] for start in range(0, len(users), at_once))


def with_users(
    columns: CSR,
    found: np.ndarray,
    state: tuple[np.ndarray, np.ndarray, CSR],
    known: np.ndarray,
    weighed: np.ndarray,
    hard: HardNegatives,
    n_jobs: int | None,
) -> CSR:
    """Histories of items (items x users), with the users among whose T best items each of them is added."""
    # ``found``: factors of these items without hard negatives. ``state``: the factors of users and items, and
    # the matrix. ``known``: the items of the matrix that are solved again and ranked by ``found``; if there
    # are none, all items of ``columns`` are new, and each is ranked on its own. ``weighed``: which items have
    # a weight; one without weight and without positives keeps an empty row.
    users, items, seen = state
    n, histories, m = hard.n_top(len(items)), columns.transpose(), len(known)
    counts, chosen = np.zeros(len(users), np.int64), [np.empty(0, np.int32)]
    for part in _parts(seen.row_counts > 0, n + len(found)):
        own = histories.take_rows(part)
        with workers(n_jobs) as n_threads:
            _, others = best(users[part], items, seen.take_rows(part), n, n_threads, known)
            scores = users[part] @ found.T
        scores[own.rows, own.indices] = -np.inf
        beyond = np.partition(np.hstack([others, scores]), m - 1, axis=1)[:, m - 1] if m else others[:, -1]
        above = (scores > beyond[:, None]) & weighed
        counts[part] = above.sum(axis=1)
        chosen.append(np.nonzero(above)[1].astype(np.int32))
    indptr = np.append(0, np.cumsum(counts))
    pairs = CSR(indptr, np.concatenate(chosen), np.empty(0, np.float32), len(found)).transpose()
    return merge(columns, pairs, found.dtype, 1)


def scratch_bytes(
    hard: HardNegatives, shape: tuple[int, int], nnz: int, K: int, itemsize: int, threads: int
) -> tuple[int, int]:
    """Bytes that hard negatives add at the peak of an iteration, and when users are solved in the end."""
    n_users, n_items = shape
    group, n = hard.group_size(n_items), hard.n_top(n_items)
    most, entry = min(hard.n_samples, n_items // group), 4 + itemsize
    size, pairs = most * group, n_users * most
    terms = 2 * 6 * 8 * (n_users + n_items)
    blocks = -(-n_users // topk.USERS)
    shares = 2 * 4 * size * min(max(_AT_ONCE // size, _BLOCKS), blocks) + 12 * n_items
    tiles = threads * ((topk.USERS * K + kernel.AT_ONCE + group * K) * 2 * itemsize + 12 * n_items)
    # The rows of both sides with pairs; the lists, and what the transposition takes.
    drawn = 2 * (nnz + pairs) * entry + 11 * pairs + terms + shares + tiles
    # Lists and scores, sorted lists, and the merged rows of a part.
    listed = min(max(_AT_ONCE, n * topk.USERS), n * n_users)
    return drawn, listed * (2 * entry + 6) + min(nnz, listed) * entry + terms // 2


def update_bytes(hard: HardNegatives, shape: tuple[int, int], changed: int, itemsize: int) -> int:
    """Bytes that an update of some items adds: their pairs, and lists and scores of a part of the users."""
    n_users, n = shape[0], hard.n_top(shape[1])
    at_once = min(max(_AT_ONCE, (n + changed) * topk.USERS), (n + changed) * n_users)
    return 24 * n_users * min(n, changed) + at_once * (8 + 2 * itemsize)
