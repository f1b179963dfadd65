"""Exact top-K: tiles of scores by gemm, a bounded heap per user carried across the tiles.

Every heap is a row of the output arrays. Its root is the worst entry: the smallest score and, among equal
scores, the largest id. Items arrive in increasing order of id, so a score enters only where it is *greater*
than the root's: NaN and -inf never do, and ties go to the smaller id.

Blocks and tiles have fixed sizes and the work is cut by the shape of the problem only, so the number of
threads changes no bit of the result.
"""

from __future__ import annotations

import numpy as np

from rgals.kernels.blas import gemm_nt, gemv_n
from rgals.kernels.compile import entry, inner
from rgals.kernels.loops import lower_bound
from rgals.kernels.queue import fetch_add, launch
from rgals.kernels.simd import WIDTH, greater, lowest_bit

USERS = 512  # rows of a score tile: enough to pay for packing the items
ITEMS = 512  # columns of a score tile: 1 MiB in float32, which stays in cache between gemm and scan
GATHER = 256  # candidates gathered at once where every user has a list of their own


@inner
def _sift(scores, ids, n, score, item):
    """Replace the root of a heap of ``n`` entries."""
    at = 0
    while True:
        child = 2 * at + 1
        if child >= n:
            break
        right = child + 1
        if right < n and (
            scores[right] < scores[child] or (scores[right] == scores[child] and ids[right] > ids[child])
        ):
            child = right
        if not (scores[child] < score or (scores[child] == score and ids[child] > item)):
            break
        scores[at] = scores[child]
        ids[at] = ids[child]
        at = child
    scores[at] = score
    ids[at] = item


@inner
def _scan(row, first, names, scores, ids):
    """Let the scores of consecutive items enter a heap.

    The item of ``row[j]`` is ``names[first + j]``, or ``first + j`` where ``names`` is empty.
    """
    n = len(scores)
    low = scores[0]
    for start in range(0, len(row), WIDTH):
        if start + WIDTH <= len(row):
            above = greater(row, start, low)
        else:
            above = np.uint64(0)
            for j in range(start, len(row)):
                if row[j] > low:
                    above |= np.uint64(1) << np.uint64(j - start)
        while above != 0:
            j = start + lowest_bit(above)
            above &= above - np.uint64(1)
            if row[j] > low:
                item = names[first + j] if len(names) else np.int32(first + j)
                _sift(scores, ids, n, row[j], item)
                low = scores[0]


@inner
def _clear(scores, ids):
    """An empty heap."""
    for j in range(len(ids)):
        scores[j] = -np.inf
        ids[j] = -1


@inner
def _sort(scores, ids):
    """Turn a heap into a list, best first."""
    for n in range(len(scores) - 1, 0, -1):
        score, item = scores[0], ids[0]
        last_score, last_item = scores[n], ids[n]
        _sift(scores, ids, n, last_score, last_item)
        scores[n] = score
        ids[n] = item


@inner
def _mask(row, first, names, indices, start, end):
    """Write -inf over the items ``indices[start:end]`` (sorted) of a row of a tile; return the next start."""
    width = len(row)
    if len(names) == 0:
        while start < end and indices[start] < first + width:
            row[indices[start] - first] = -np.inf
            start += 1
        return start
    last = names[first + width - 1]
    at = first
    while start < end and indices[start] <= last:
        at = lower_bound(names, at, first + width, indices[start])
        if names[at] == indices[start]:
            row[at - first] = -np.inf
        start += 1
    return start


@entry(nogil=True)
def _fill(counter, queries, items, scale, names, blocked, indptr, indices, n_segments, ids, scores):
    """The best items of every query in each segment, as heaps."""
    n_queries, k = queries.shape
    n_items = len(names) if len(names) else len(items)
    n_tiles = (n_items + ITEMS - 1) // ITEMS
    n_blocks = (n_queries + USERS - 1) // USERS
    tile = np.empty((min(USERS, n_queries), ITEMS), queries.dtype)
    gathered = np.empty((ITEMS if len(names) else 0, k), queries.dtype)
    cursor = np.empty(USERS, np.int64)
    while True:
        work = fetch_add(counter, 0, 1)
        if work >= n_blocks * n_segments:
            break
        segment = work // n_blocks
        q0 = (work % n_blocks) * USERS
        m = min(USERS, n_queries - q0)
        first_tile = segment * n_tiles // n_segments
        end_tile = (segment + 1) * n_tiles // n_segments
        for r in range(m):
            _clear(scores[segment, q0 + r], ids[segment, q0 + r])
        if first_tile >= end_tile:
            continue
        start_item = first_tile * ITEMS
        lowest = names[start_item] if len(names) else start_item
        for r in range(m):
            cursor[r] = lower_bound(indices, indptr[q0 + r], indptr[q0 + r + 1], lowest)
        for t in range(first_tile, end_tile):
            first = t * ITEMS
            width = min(ITEMS, n_items - first)
            if len(names):
                for j in range(width):
                    gathered[j] = items[names[first + j]]
                gemm_nt(m, width, k, 1.0, queries[q0:], k, gathered, k, 0.0, tile, ITEMS)
            else:
                gemm_nt(m, width, k, 1.0, queries[q0:], k, items[first:], k, 0.0, tile, ITEMS)
            low = lower_bound(blocked, 0, len(blocked), first)
            high = lower_bound(blocked, low, len(blocked), first + width)
            for r in range(m):
                row = tile[r, :width]
                if len(scale):
                    for j in range(width):
                        row[j] *= scale[names[first + j] if len(names) else first + j]
                for b in range(low, high):
                    row[blocked[b] - first] = -np.inf
                cursor[r] = _mask(row, first, names, indices, cursor[r], indptr[q0 + r + 1])
                _scan(row, first, names, scores[segment, q0 + r], ids[segment, q0 + r])


@entry(nogil=True)
def _merge(counter, ids, scores):
    """The lists of all segments as one, sorted, in the first."""
    n_segments, n_queries = ids.shape[0], ids.shape[1]
    while True:
        q0 = fetch_add(counter, 0, USERS)
        if q0 >= n_queries:
            break
        for q in range(q0, min(q0 + USERS, n_queries)):
            # The first segment's heap takes in the entries of the others.
            best, names_of = scores[0, q], ids[0, q]
            for segment in range(1, n_segments):
                for j in range(len(best)):
                    score, item = scores[segment, q, j], ids[segment, q, j]
                    # Entries of one segment arrive in the order of its heap, not of their ids.
                    if score > best[0] or (score == best[0] and item < names_of[0]):
                        _sift(best, names_of, len(best), score, item)
            _sort(best, names_of)


def topk(queries, items, scale, names, blocked, indptr, indices, n_segments, n_threads, ids, scores):
    """The best items of every query, filtered.

    Of queries (B, K) and items (N, K), C-ordered, of one dtype. ``scale`` (N,) or empty multiplies an item's
    scores, NaN removes it; ``names``, sorted, are the only items to look at, empty for all; ``blocked``,
    sorted, those that nobody gets, empty where ``names`` is not; ``indptr`` and ``indices`` those that a
    query must not get. The items are cut into ``n_segments`` parts, so that few queries occupy many threads.
    ``ids`` and ``scores`` (n_segments, B, n) receive the lists in their first part, best first; -1 and -inf
    where nothing is left.
    """
    launch(_fill, n_threads, queries, items, scale, names, blocked, indptr, indices, n_segments, ids, scores)
    launch(_merge, n_threads, ids, scores)


@entry(nogil=True)
def _fill_lists(counter, queries, items, scale, allowed_ptr, allowed, indptr, indices, ids, scores):
    n_queries, k = queries.shape
    row = np.empty(GATHER, queries.dtype)
    gathered = np.empty((GATHER, k), queries.dtype)
    while True:
        q = fetch_add(counter, 0, 1)
        if q >= n_queries:
            break
        _clear(scores[q], ids[q])
        cursor, end = indptr[q], indptr[q + 1]
        for start in range(allowed_ptr[q], allowed_ptr[q + 1], GATHER):
            names = allowed[start : min(start + GATHER, allowed_ptr[q + 1])]
            for j in range(len(names)):
                gathered[j] = items[names[j]]
            gemv_n(len(names), k, 1.0, gathered, k, queries[q], 0.0, row)
            if len(scale):
                for j in range(len(names)):
                    row[j] *= scale[names[j]]
            cursor = lower_bound(indices, cursor, end, names[0])
            cursor = _mask(row[: len(names)], 0, names, indices, cursor, end)
            _scan(row[: len(names)], 0, names, scores[q], ids[q])
        _sort(scores[q], ids[q])


def topk_lists(queries, items, scale, allowed_ptr, allowed, indptr, indices, n_threads, ids, scores):
    """The best items of every query among a list of its own; the other arguments are those of `topk`.

    Only the listed items are scored: the cost is that of the lists, not of the catalogue.
    """
    launch(_fill_lists, n_threads, queries, items, scale, allowed_ptr, allowed, indptr, indices, ids, scores)


@entry(nogil=True)
def _fill_dense(counter, dense, indptr, indices, ids, scores):
    names = np.empty(0, np.int32)
    while True:
        q = fetch_add(counter, 0, 1)
        if q >= len(dense):
            break
        _clear(scores[q], ids[q])
        _mask(dense[q], 0, names, indices, indptr[q], indptr[q + 1])
        _scan(dense[q], 0, names, scores[q], ids[q])
        _sort(scores[q], ids[q])


def topk_dense(dense, indptr, indices, n_threads, ids, scores):
    """The best columns of every row of a given score matrix, filtered; excluded scores are overwritten."""
    launch(_fill_dense, n_threads, dense, indptr, indices, ids, scores)
