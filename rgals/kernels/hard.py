"""Hard negatives: every user's best items of a share of the catalogue, and rows with more pairs in them."""

from __future__ import annotations

import numpy as np

from rgals.kernels.blas import gemm_nt
from rgals.kernels.compile import entry
from rgals.kernels.queue import fetch_add
from rgals.kernels.tiles import copy
from rgals.kernels.topk import ITEMS, USERS, mask, scan
from rgals.kernels.workspace import workspace


@entry(nogil=True)
def draw(counter, queries, items, shares, start, indptr, indices, most, out):
    """The best items of each query in the share of its block, without its own.

    ``shares`` (blocks, size) holds sorted items for the blocks of `USERS` queries from block ``start`` on;
    ``indptr`` and ``indices`` are the items that a query has, ``most`` in any block. A row of ``out`` (B, n),
    -1 before, receives items in ascending order, behind -1 for want of more; none where a query has none.
    """
    k, n, size = queries.shape[1], out.shape[1], shares.shape[1]
    tile, packed = workspace(USERS * ITEMS, queries), workspace(ITEMS * k, queries)
    scores, ids = workspace(USERS * n, queries), np.empty(USERS * n, np.int32)
    place, own = np.empty(len(items), np.int32), np.empty(most + 1, np.int32)
    cursor, ends = np.empty(USERS, np.int64), np.empty(USERS, np.int64)
    block = fetch_add(counter, 0, 1)
    while block < len(shares):
        q0, at = (start + block) * USERS, 0
        m = min(USERS, len(queries) - q0)
        # What every user has of the share, by its places there.
        place.fill(-1)
        for j in range(size):
            place[shares[block, j]] = j
        for r in range(m):
            cursor[r] = at
            for e in range(indptr[q0 + r], indptr[q0 + r + 1]):
                own[at] = place[indices[e]]
                at += own[at] >= 0
            ends[r] = at
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
        # In the order of the items; a share is sorted, so that its places are.
        for r in range(m):
            for i in range(n if indptr[q0 + r + 1] > indptr[q0 + r] else 0):
                item, at = shares[block, ids[r * n + i]] if ids[r * n + i] >= 0 else -1, i
                while at > 0 and out[q0 + r, at - 1] > item:
                    out[q0 + r, at] = out[q0 + r, at - 1]
                    at -= 1
                out[q0 + r, at] = item
        block = fetch_add(counter, 0, 1)


@entry(nogil=True, _nrt=False)
def merge(counter, indptr, indices, values, more_ptr, more, out, out_values):
    """Sorted rows of two matrices without common entries; those of the second get the value -1."""
    row = fetch_add(counter, 0, 1)
    while row < len(indptr) - 1:
        one, two = indptr[row], more_ptr[row]
        for at in range(one + two, indptr[row + 1] + more_ptr[row + 1]):
            second = two < more_ptr[row + 1] and (one == indptr[row + 1] or more[two] < indices[one])
            out[at] = more[two] if second else indices[one]
            out_values[at] = -1.0 if second else (values[one] if len(values) else 1.0)
            one, two = one + (not second), two + second
        row = fetch_add(counter, 0, 1)
