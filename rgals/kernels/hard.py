"""Hard negatives: every user's best items of groups of the catalogue, and rows with more pairs in them."""

import numpy as np

from rgals.kernels.blas import gemm_nt
from rgals.kernels.compile import entry
from rgals.kernels.queue import fetch_add
from rgals.kernels.tiles import copy
from rgals.kernels.topk import USERS
from rgals.kernels.workspace import workspace

PART = 64  # queries that are scored at once: a block is a multiple


@entry(nogil=True)
def draw(counter, queries, items, order, shares, first, indptr, indices, out):
    """The best item of each group of items, of every query, without its own.

    Blocks, ``first`` and those after it, have `USERS` of the queries in ``order`` and a row of ``shares``,
    where item j is in group j modulo n. Rows of ``out`` (B, n) ascend; they are -1 before.
    """
    k, n, size = queries.shape[1], out.shape[1], shares.shape[1]
    tile, packed = workspace(PART * (size + 1), queries), workspace(size * k, queries)
    mine, place = workspace(PART * k, queries), np.empty(len(items), np.int32)
    best, at = workspace(n, queries), np.empty(n, np.int32)
    block = fetch_add(counter, 0, 1)
    while block < len(shares):
        place.fill(size)
        for j in range(size):
            place[shares[block, j]] = j
            copy(packed, j * k, items, shares[block, j] * k, k)
        start = (first + block) * USERS
        # All scores of a part stay in the cache until they are read.
        for part in range(start, min(start + USERS, len(order)), PART):
            m = min(PART, len(order) - part)
            for r in range(m):
                copy(mine, r * k, queries, order[part + r] * k, k)
            gemm_nt(m, size, k, 1.0, mine, 0, k, packed, 0, k, 0.0, tile, 0, size + 1)
            for r in range(m):
                row, user = r * (size + 1), order[part + r]
                for e in range(indptr[user], indptr[user + 1]):
                    # What is not in the share has the place behind it.
                    tile[row + place[indices[e]]] = -np.inf
                best.fill(-np.inf)
                at.fill(-1)
                # All groups side by side: vectors of scores are compared, without a branch.
                for i in range(0, size, n):
                    for j in range(n):
                        above = tile[row + i + j] > best[j]
                        best[j] = tile[row + i + j] if above else best[j]
                        at[j] = i + j if above else at[j]
                for j in range(n):
                    item, to = shares[block, at[j]] if at[j] >= 0 else -1, j
                    while to > 0 and out[user, to - 1] > item:
                        out[user, to] = out[user, to - 1]
                        to -= 1
                    out[user, to] = item
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
