"""Evaluation of rankings: which listed items are relevant, and how many items outrank each relevant one."""

import numpy as np

from rgals.kernels.blas import gemm_nt
from rgals.kernels.compile import entry, inner
from rgals.kernels.library import kernel
from rgals.kernels.loops import contains
from rgals.kernels.queue import fetch_add, launch, spread
from rgals.kernels.tiles import copy
from rgals.kernels.workspace import workspace
from rgals.runtime.aligned import read_only


@entry(nogil=True)
def _find_hits(first, stop, ids, indptr, indices, hits):
    for u in range(first, stop):
        for j in range(ids.shape[1]):
            hits[u, j] = contains(indices, indptr[u], indptr[u + 1], ids[u, j])


def find_hits(ids, indptr, indices, n_threads, hits):
    """``hits[u, j]``: whether ``ids[u, j]`` is in the sorted row u of a CSR matrix."""
    spread(_find_hits, len(ids), n_threads, ids, indptr, indices, hits)


@kernel("pirxx")
def count_around(e, scores, n, score, above, tied):
    """Count how many of ``n`` scores are greater than ``score``, and how many equal; NaN is neither."""
    counts = [(">", above), ("==", tied)]
    for _, to in counts:
        to[0] = e.index(0)
    # 64 comparisons at once give the bits of an integer, which are counted.
    many, one, whole = e.narrower(64), e.narrower(1), n // 64
    for v, start, stop in ((many, 0, whole), (one, whole * 64, n)):
        with e.loop(stop, start) as i:
            numbers = v.view(scores)[i * 64 if v is many else i]
            for relation, to in counts:
                to[0] = to[0] + v.bits(relation, numbers, score.on(v)).count_bits()


@inner(_nrt=True)
def _count_row(row, at, n, u, truth_ptr, truth, seen_ptr, seen, above, tied):
    """The counts of query u from its scores of all items, ``row``, which are overwritten."""
    begin, end = truth_ptr[u], truth_ptr[u + 1]
    positives = workspace(end - begin, row)
    lowest = np.inf
    for e in range(begin, end):
        score = row[at + truth[e]]
        positives[e - begin] = score if score == score else -np.inf
        lowest = min(lowest, positives[e - begin])
    if lowest == -np.inf:  # a NaN ranks as -inf, and is tied with it
        for j in range(at, at + n):
            row[j] = row[j] if row[j] == row[j] else -np.inf
    # Seen and relevant items become NaN, which is neither greater nor equal: they are not counted.
    for e in range(seen_ptr[u], seen_ptr[u + 1]):
        row[at + seen[e]] = np.nan
    for e in range(begin, end):
        row[at + truth[e]] = np.nan
    # One pass over the scores for each relevant item. Sorting the relevant items and searching among them for
    # every score pays only from some 700 of them on.
    for e in range(begin, end):
        count_around(row, at, n, positives[e - begin], above, e, tied, e)


@entry(nogil=True)
def _count_above(counter, queries, items, n_items, truth_ptr, truth, seen_ptr, seen, block, above, tied):
    n_queries, k = queries.shape
    width = len(items)
    rows = workspace(block * width, queries)
    first = fetch_add(counter, 0, block)
    while first < n_queries:
        m = min(block, n_queries - first)
        gemm_nt(m, width, k, queries, first * k, k, items, 0, k, rows, 0, width)
        for r in range(m):
            at = r * width
            _count_row(rows, at, n_items, first + r, truth_ptr, truth, seen_ptr, seen, above, tied)
        first = fetch_add(counter, 0, block)


def count_above(queries, items, n_items, truth_ptr, truth, seen_ptr, seen, block, n_threads, above, tied):
    """For each relevant item, the irrelevant items with a greater and with an equal score."""
    # Queries (B, K) and items (N, K), of which the first ``n_items`` count, are C-ordered and of one dtype.
    # ``truth_ptr`` (B + 1,) and ``truth`` are the relevant items of each query. ``seen_ptr`` and ``seen`` are
    # items that are not counted, none of them relevant. A thread holds the scores of ``block`` queries at
    # once. ``above`` and ``tied`` receive the counts, an entry for each of ``truth``. NaN ranks as -inf.
    factors, filters = (read_only(queries), read_only(items)), (truth_ptr, truth, seen_ptr, seen)
    launch(_count_above, n_threads, *factors, n_items, *filters, block, above, tied)


@entry(nogil=True)
def _count_above_dense(first, stop, scores, truth_ptr, truth, seen_ptr, seen, above, tied):
    n_items = scores.shape[1]
    row = workspace(n_items, scores)
    for u in range(first, stop):
        copy(row, 0, scores, u * n_items, n_items)
        _count_row(row, 0, n_items, u, truth_ptr, truth, seen_ptr, seen, above, tied)


def count_above_dense(scores, truth_ptr, truth, seen_ptr, seen, n_threads, above, tied):
    """`count_above` for given scores."""
    filters = truth_ptr, truth, seen_ptr, seen
    spread(_count_above_dense, len(scores), n_threads, scores, *filters, above, tied)
