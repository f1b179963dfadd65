"""Exact top-K: tiles of scores by gemm, a bounded heap per user carried across the tiles."""

# A user's heap is a row of the output arrays. Its root is the worst entry: the smallest score and, among
# equal scores, the largest id. Items arrive in increasing order of id, so a score enters only if it is
# *greater* than the root's. NaN and -inf never enter, and ties go to the smaller id.
#
# Tiles have fixed sizes and work is cut by the shape of the problem only, so that the number of threads
# changes no bit of the result.

import numpy as np

from rgals.kernels.blas import gemm_nt
from rgals.kernels.compile import entry, inner
from rgals.kernels.library import kernel
from rgals.kernels.loops import lower_bound
from rgals.kernels.queue import fetch_add, launch, spread
from rgals.kernels.tiles import copy, dot, times
from rgals.kernels.workspace import workspace

USERS = 512  # rows of a score tile: enough for gemm's packing of the items to pay
ITEMS = 512  # columns of a score tile: 1 MiB in float32, which stays in the cache between gemm and scan
LISTED = 256  # candidates that are scored at once if every user has a list of candidates


def _empty(ids, scores):
    """Flat arrays of empty heaps, one after the other."""
    ids.fill(-1)
    scores.fill(-np.inf)
    return ids.reshape(-1), scores.reshape(-1)


@kernel("piir", "i")
def first_above(e, row, start, n, low):
    """The first position from ``start`` on whose number is greater than ``low``, or ``n``; NaN never is."""
    # 64 comparisons at once give the bits of an integer: nearly always 0, once a heap has good entries.
    many, one = e.narrower(64), e.narrower(1)
    whole = (n - start) // 64
    with e.loop(whole) as i:
        at = start + i * 64
        above = many.bits(">", many.view(row)[at], low.on(many))
        with e.when(above.is_("!=", 0)):
            e.give_back(at + above.lowest_bit())
    with (
        e.loop(n, start + whole * 64) as at,
        e.when(one.bits(">", one.view(row)[at], low.on(one)).is_("!=", 0)),
    ):
        e.give_back(at)
    return n


@inner
def _sift(scores, ids, heap, n, score, item):
    """Replace the root of the heap of ``n`` entries that begins at ``heap``."""
    at, child = 0, 1
    while child < n:
        worse = scores[heap + child]
        if child + 1 < n:
            other = scores[heap + child + 1]
            if other < worse or (other == worse and ids[heap + child + 1] > ids[heap + child]):
                child, worse = child + 1, other
        if score < worse or (score == worse and ids[heap + child] <= item):
            break
        scores[heap + at], ids[heap + at] = worse, ids[heap + child]
        at, child = child, 2 * child + 1
    scores[heap + at] = score
    ids[heap + at] = item


@inner
def scan(row, at, width, first, scores, ids, heap, n):
    """Offer the scores ``row[at : at + width]``, of the items from ``first`` on, to a heap."""
    j = first_above(row, at, 0, width, scores[heap])
    while j < width:
        _sift(scores, ids, heap, n, row[at + j], first + j)
        j = first_above(row, at, j + 1, width, scores[heap])


@inner
def _sort(scores, ids, heap, n):
    """Turn a heap into a list, best first."""
    for last in range(n - 1, 0, -1):
        score, item = scores[heap], ids[heap]
        _sift(scores, ids, heap, last, scores[heap + last], np.int64(ids[heap + last]))
        scores[heap + last] = score
        ids[heap + last] = item


@inner
def mask(row, at, width, first, indices, start, end):
    """Write -inf over the items of sorted ``indices[start:end]`` that a tile has; returns the next start."""
    while start < end and indices[start] < first + width:
        row[at + indices[start] - first] = -np.inf
        start += 1
    return start


@entry(nogil=True)
def _fill(counter, queries, items, scale, blocked, indptr, indices, n_segments, n, ids, scores):
    """The best items of every query in each segment of the items, best first."""
    # A piece of work is one block of queries in one segment, tile after tile.
    n_queries, k = queries.shape
    n_items = len(items)
    n_tiles = (n_items + ITEMS - 1) // ITEMS
    n_blocks = (n_queries + USERS - 1) // USERS
    tile = workspace(min(USERS, n_queries) * ITEMS, queries)
    cursor = np.empty(USERS, np.int64)
    work = fetch_add(counter, 0, 1)
    while work < n_blocks * n_segments:
        segment = work // n_blocks
        q0 = (work % n_blocks) * USERS
        m = min(USERS, n_queries - q0)
        first_tile = segment * n_tiles // n_segments
        end_tile = (segment + 1) * n_tiles // n_segments
        heaps = (segment * n_queries + q0) * n
        for r in range(m):
            cursor[r] = lower_bound(indices, indptr[q0 + r], indptr[q0 + r + 1], first_tile * ITEMS)
        for t in range(first_tile, end_tile):
            first = t * ITEMS
            width = min(ITEMS, n_items - first)
            gemm_nt(m, width, k, queries, q0 * k, k, items, first * k, k, tile, 0, ITEMS)
            low = lower_bound(blocked, np.int64(0), len(blocked), first)
            high = lower_bound(blocked, low, len(blocked), first + width)
            for r in range(m):
                row = r * ITEMS
                if len(scale):
                    times(tile, row, tile, row, scale, first, width)
                for b in range(low, high):
                    tile[row + blocked[b] - first] = -np.inf
                cursor[r] = mask(tile, row, width, first, indices, cursor[r], indptr[q0 + r + 1])
                scan(tile, row, width, first, scores, ids, heaps + r * n, n)
        for r in range(m):
            _sort(scores, ids, heaps + r * n, n)
        work = fetch_add(counter, 0, 1)


def topk(queries, items, scale, blocked, indptr, indices, n_threads, ids, scores):
    """The best items of every query, filtered."""
    # Queries (B, K) and items (N, K) are C-ordered, of one dtype. ``scale`` (N,) or empty multiplies an
    # item's scores, NaN removes it. ``blocked``, sorted, are items for nobody, ``indptr`` and ``indices``
    # those that a query must not get. ``ids`` and ``scores`` (S, B, n) receive the lists in their first part,
    # best first, -1 and -inf where nothing is left. Items are searched in S segments, so that few queries
    # occupy all threads.
    filters = scale, blocked, indptr, indices
    launch(_fill, n_threads, queries, items, *filters, len(ids), ids.shape[2], *_empty(ids, scores))
    if len(ids) > 1:
        # A stable sort keeps the smaller id first among equal scores: segments are in the order of the ids.
        every = [np.concatenate(parts, axis=1) for parts in (ids, scores)]
        order = np.argsort(-every[1], axis=1, kind="stable")[:, : ids.shape[2]]
        ids[0], scores[0] = (np.take_along_axis(parts, order, axis=1) for parts in every)


@entry(nogil=True)
def _fill_lists(first, last, queries, items, scale, allowed_ptr, allowed, indptr, indices, n, ids, scores):
    k = queries.shape[1]
    row = workspace(LISTED, queries)
    for q in range(first, last):
        begin, stop = allowed_ptr[q], allowed_ptr[q + 1]
        excluded, end = indptr[q], indptr[q + 1]
        for start in range(begin, stop, LISTED):
            width = min(LISTED, stop - start)
            for j in range(width):
                item = allowed[start + j]
                while excluded < end and indices[excluded] < item:
                    excluded += 1
                if excluded < end and indices[excluded] == item:
                    row[j] = -np.inf
                    continue
                row[j] = dot(queries, q * k, items, item * k, k)
                if len(scale):
                    row[j] *= scale[item]
            scan(row, 0, width, start - begin, scores, ids, q * n, n)
        _sort(scores, ids, q * n, n)
        for at in range(q * n, q * n + n):  # from positions in the list of candidates to items
            if ids[at] >= 0:
                ids[at] = allowed[begin + ids[at]]


def topk_lists(queries, items, scale, allowed_ptr, allowed, indptr, indices, n_threads, ids, scores):
    """The best items of every query among its own candidates, ``allowed``; otherwise as `topk`."""
    # Only candidates are scored, so that the cost does not depend on the size of the catalogue.
    filters = scale, allowed_ptr, allowed, indptr, indices
    spread(_fill_lists, len(queries), n_threads, queries, items, *filters, ids.shape[1], *_empty(ids, scores))


@entry(nogil=True)
def _fill_dense(first, last, dense, indptr, indices, n, ids, scores):
    width = dense.shape[1]
    row = workspace(width, dense)
    for q in range(first, last):
        copy(row, 0, dense, q * width, width)
        mask(row, 0, width, 0, indices, indptr[q], indptr[q + 1])
        scan(row, 0, width, 0, scores, ids, q * n, n)
        _sort(scores, ids, q * n, n)


def topk_dense(dense, indptr, indices, n_threads, ids, scores):
    """The best columns of every row of a given score matrix, without those in ``indices``."""
    spread(_fill_dense, len(dense), n_threads, dense, indptr, indices, ids.shape[1], *_empty(ids, scores))
