"""Judging rankings: which recommended items are relevant, and how many items outrank each relevant one."""

from __future__ import annotations

import numpy as np

from rgals.kernels.blas import gemm_nt
from rgals.kernels.compile import entry, inner
from rgals.kernels.loops import lower_bound
from rgals.kernels.queue import fetch_add, launch
from rgals.kernels.simd import WIDTH, count_bits, equal, greater

ROWS = 64  # rows that a thread takes at once
FEW = 16  # up to so many relevant items, a SIMD count for each beats a search in their sorted scores


@entry(nogil=True)
def _find_hits(counter, ids, indptr, indices, hits):
    while True:
        first = fetch_add(counter, 0, ROWS)
        if first >= len(ids):
            break
        for u in range(first, min(first + ROWS, len(ids))):
            begin, end = indptr[u], indptr[u + 1]
            for j in range(ids.shape[1]):
                at = lower_bound(indices, begin, end, ids[u, j])
                hits[u, j] = at < end and indices[at] == ids[u, j]


def find_hits(ids, indptr, indices, n_threads, hits):
    """``hits[u, j]``: whether ``ids[u, j]`` is in the sorted row u of a CSR matrix."""
    launch(_find_hits, n_threads, ids, indptr, indices, hits)


@inner
def _count_few(scores, positive):
    """Scores greater than and equal to one score, in SIMD."""
    above, tied = 0, 0
    whole = len(scores) // WIDTH * WIDTH
    for start in range(0, whole, WIDTH):
        above += count_bits(greater(scores, start, positive))
        tied += count_bits(equal(scores, start, positive))
    for j in range(whole, len(scores)):
        above += scores[j] > positive
        tied += scores[j] == positive
    return above, tied


@inner(_nrt=True)
def _count_many(scores, positives, above, tied):
    """The same for many scores at once: one binary search for each of ``scores``."""
    n = len(positives)
    # How many scores lie above j of the sorted positives, then sums from the top.
    order = np.argsort(positives)
    ordered = positives[order]
    greater, equal = np.zeros(n + 1, np.int64), np.zeros(n + 1, np.int64)
    for score in scores:
        if score == score:  # NaN marks what does not count
            at = lower_bound(ordered, 0, n, score)
            greater[at] += 1  # it is above the first ``at`` positives
            equal[at] += at < n and ordered[at] == score
    total, same = 0, 0
    for j in range(n - 1, -1, -1):
        total += greater[j + 1]
        above[order[j]] = total
    for j in range(n):
        if j == 0 or ordered[j] != ordered[j - 1]:
            same = equal[j]
        tied[order[j]] = same


@inner(_nrt=True)
def _count_row(row, seen, truth, above, tied):
    """Count over one complete row of scores, which is used as workspace."""
    if len(truth) == 0:
        return
    for item in seen:
        row[item] = np.nan
    positives = np.empty(len(truth), row.dtype)
    for j, item in enumerate(truth):
        positives[j] = row[item] if row[item] == row[item] else -np.inf
        row[item] = np.nan
    if len(truth) <= FEW:
        for j in range(len(truth)):
            above[j], tied[j] = _count_few(row, positives[j])
    else:
        _count_many(row, positives, above, tied)


@entry(nogil=True)
def _count_above(counter, queries, items, truth_ptr, truth, seen_ptr, seen, block, above, tied):
    n_queries, k = queries.shape
    n_items = len(items)
    rows = np.empty((block, n_items), queries.dtype)
    while True:
        first = fetch_add(counter, 0, block)
        if first >= n_queries:
            break
        m = min(block, n_queries - first)
        gemm_nt(m, n_items, k, 1.0, queries[first:], k, items, k, 0.0, rows, n_items)
        for r in range(m):
            u = first + r
            here, unseen = slice(truth_ptr[u], truth_ptr[u + 1]), seen[seen_ptr[u] : seen_ptr[u + 1]]
            _count_row(rows[r], unseen, truth[here], above[here], tied[here])


def count_above(queries, items, truth_ptr, truth, seen_ptr, seen, block, n_threads, above, tied):
    """For each relevant item, the irrelevant items with a greater and with an equal score.

    Of queries (B, K) and items (N, K), C-ordered, of one dtype. ``truth_ptr`` (B + 1,) and ``truth`` are the
    relevant items of each query, ``seen_ptr`` and ``seen`` items that take no part, none of them relevant. A
    thread holds ``block`` rows of complete scores. ``above`` and ``tied`` receive the counts, an entry for
    each of ``truth``; NaN is less than everything.
    """
    launch(_count_above, n_threads, queries, items, truth_ptr, truth, seen_ptr, seen, block, above, tied)


@entry(nogil=True)
def _count_above_dense(counter, scores, truth_ptr, truth, seen_ptr, seen, above, tied):
    while True:
        u = fetch_add(counter, 0, 1)
        if u >= len(scores):
            break
        here, unseen = slice(truth_ptr[u], truth_ptr[u + 1]), seen[seen_ptr[u] : seen_ptr[u + 1]]
        _count_row(scores[u], unseen, truth[here], above[here], tied[here])


def count_above_dense(scores, truth_ptr, truth, seen_ptr, seen, n_threads, above, tied):
    """`count_above` for given scores, which are used as workspace (overwritten)."""
    launch(_count_above_dense, n_threads, scores, truth_ptr, truth, seen_ptr, seen, above, tied)
