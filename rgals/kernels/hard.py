"""Hard negatives: every user's best items of a share of the catalogue, and rows with more pairs in them."""

from __future__ import annotations

import numpy as np

from rgals.kernels.blas import gemm_nt
from rgals.kernels.compile import entry
from rgals.kernels.queue import fetch_add, launch
from rgals.kernels.tiles import copy
from rgals.kernels.topk import ITEMS, USERS, mask, scan
from rgals.kernels.workspace import workspace

_ROWS = 64  # that a thread merges at once


@entry(nogil=True)
def _draw(counter, queries, items, shares, start, indptr, indices, most, out):
    (n_queries, k), n, size = queries.shape, out.shape[1], shares.shape[1]
    tile, packed = workspace(USERS * ITEMS, queries), workspace(ITEMS * k, queries)
    scores, ids = workspace(USERS * n, queries), np.empty(USERS * n, np.int32)
    place, own = np.full(len(items), np.int32(-1)), np.empty(most + 1, np.int32)
    cursor, ends = np.empty(USERS, np.int64), np.empty(USERS, np.int64)
    while True:
        block = fetch_add(counter, 0, 1)
        if block >= len(shares):
            break
        q0 = (start + block) * USERS
        m = min(USERS, n_queries - q0)
        # What every user has of the share, by its places there.
        for j in range(size):
            place[shares[block, j]] = j
        at = 0
        for r in range(m):
            cursor[r] = at
            for e in range(indptr[q0 + r], indptr[q0 + r + 1]):
                own[at] = place[indices[e]]
                at += own[at] >= 0
            ends[r] = at
        for j in range(size):
            place[shares[block, j]] = -1
        for i in range(m * n):
            scores[i], ids[i] = -np.inf, -1
        # Scores against the share, a tile at a time: the loop of `rgals.kernels.topk`.
        for first in range(0, size, ITEMS):
            width = min(ITEMS, size - first)
            for j in range(width):
                copy(packed, j * k, items, shares[block, first + j] * k, k)
            gemm_nt(m, width, k, 1.0, queries, q0 * k, k, packed, 0, k, 0.0, tile, 0, ITEMS)
            for r in range(m):
                cursor[r] = mask(tile, r * ITEMS, width, first, own, cursor[r], ends[r])
                scan(tile, r * ITEMS, width, first, scores, ids, r * n, n)
        # In the order of the items, -1 first; a share is sorted, so that its places are.
        for r in range(m):
            for i in range(n):
                item = ids[r * n + i] if indptr[q0 + r + 1] > indptr[q0 + r] else -1
                item, at = shares[block, item] if item >= 0 else item, i
                while at > 0 and out[q0 + r, at - 1] > item:
                    out[q0 + r, at] = out[q0 + r, at - 1]
                    at -= 1
                out[q0 + r, at] = item


def draw(queries, items, shares, start, indptr, indices, most, n_threads, out):
    """The best items of each query in the share of its block, without its own.

    ``shares`` (blocks, size) holds sorted items for the blocks of `USERS` queries from block ``start`` on;
    ``indptr`` and ``indices`` are the items that a query has, ``most`` in any block. A row of ``out`` (B, n)
    receives items in ascending order, behind -1 where there are fewer; a query that has no items gets none.
    """
    launch(_draw, n_threads, queries, items, shares, start, indptr, indices, most, out)


@entry(nogil=True, _nrt=False)
def _merge(counter, indptr, indices, values, more_ptr, more, out, out_values):
    n_rows = len(indptr) - 1
    while True:
        first = fetch_add(counter, 0, _ROWS)
        if first >= n_rows:
            break
        for row in range(first, min(first + _ROWS, n_rows)):
            one, two, end = indptr[row], more_ptr[row], more_ptr[row + 1]
            for at in range(one + two, indptr[row + 1] + end):
                if two == end or (one < indptr[row + 1] and indices[one] < more[two]):
                    out[at] = indices[one]
                    out_values[at] = values[one] if len(values) else 1.0
                    one += 1
                else:
                    out[at], out_values[at] = more[two], -1.0
                    two += 1


def merge(indptr, indices, values, more_ptr, more, n_threads, out, out_values):
    """Sorted rows of two matrices without common entries; those of the second get the value -1."""
    launch(_merge, n_threads, indptr, indices, values, more_ptr, more, out, out_values)
