"""Hard negatives: each user's best item of each group of items, and matrices with those pairs added."""

import numpy as np

from rgals.kernels.compile import entry, inner
from rgals.kernels.gram import transpose_strip
from rgals.kernels.library import kernel
from rgals.kernels.queue import fetch_add
from rgals.kernels.tiles import tile_add, zero
from rgals.kernels.topk import USERS
from rgals.kernels.vectors import LINE, Vector
from rgals.kernels.workspace import workspace

# Items (or one group, if it is larger) scored at once with W users: scores stay in the first-level cache.
AT_ONCE = 320


@kernel("pppi")
def _greatest(e, greatest, at, rows, n):
    """The maximum of each of W columns over ``n`` rows, and the first row that has it."""
    high, where = e.variables(2)
    high.set(rows[0])
    choose = e.builder.select
    with e.loop(n, 1) as i:
        row = rows[i * e.width]
        high.set(Vector(e, choose(e.builder.fcmp_ordered(">", row.ir, high.ir), row.ir, high.ir)))
    # The row is found in a second pass, from the last row to the first. In one pass each comparison would
    # wait for the one before, which takes three times as long.
    with e.down(n) as i:
        found = e.builder.fcmp_ordered("==", rows[i * e.width].ir, high.ir)
        where.set(Vector(e, choose(found, e.spread(e.builder.sitofp(i.ir, e.real)).ir, where.ir)))
    greatest[0] = high
    at[0] = where


@inner
def _columns(out, table, rows, numbers, k):
    """Transpose ``rows`` of a table into panels; the last row is repeated to fill the last panel."""
    w = LINE // out.itemsize
    n_panels = (len(rows) + w - 1) // w
    for i in range(n_panels * w):
        numbers[i] = rows[min(i, len(rows) - 1)]
    if k % w == 0:
        transpose_strip(out, 0, table, 0, numbers, 0, n_panels, k)
        return
    for i in range(n_panels * w):
        for t in range(k):
            out[(i // w * k + t) * w + i % w] = table[numbers[i], t]


@entry(nogil=True)
def draw(counter, queries, items, order, group, shares, first, indptr, indices, out):
    """Each query's best item of each group of items, but none of its own."""
    # Block ``first + i`` has `USERS` queries of ``order``, and its groups are runs of ``group`` items in row
    # i of ``shares``. A query's own items are its row of ``indptr`` and ``indices``. ``out`` (B, n) is -1
    # before.
    k, w = queries.shape[1], LINE // queries.itemsize
    size = max(AT_ONCE // group, 1) * group
    padded = (size + w - 1) // w * w
    mine, packed = workspace(USERS * k, queries), workspace(padded * k, queries)
    tile = workspace(padded * w, queries)
    best, at, place = workspace(w, queries), workspace(w, queries), np.empty(len(items), np.int32)
    numbers = np.empty(max(USERS, padded), np.int32)
    heads = np.empty((shares.shape[1] // size + 1, USERS // w), np.int32)
    block = fetch_add(counter, 0, 1)
    while block < len(shares):
        start, share = (first + block) * USERS, shares[block]
        some = order[start : start + USERS]
        n_groups, n_own = out.shape[1], 0
        for user in some:
            n_own += indptr[user + 1] - indptr[user]
        # Linked lists of the scores to be masked, one for each tile: W users times the items scored at once.
        place.fill(-1)
        heads.fill(-1)
        places, links, n_own = np.empty(n_own, np.int32), np.empty(n_own, np.int32), 0
        for j in range(n_groups * group):
            place[share[j]] = j
        for r, user in enumerate(some):
            for e in range(indptr[user], indptr[user + 1]):
                j = place[indices[e]]
                if j >= 0:
                    places[n_own], links[n_own] = j % size * w + r % w, heads[j // size, r // w]
                    heads[j // size, r // w] = n_own
                    n_own += 1
        _columns(mine, queries, some, numbers, k)
        for low in range(0, n_groups * group, size):
            among = share[low : min(low + size, n_groups * group)]
            _columns(packed, items, among, numbers, k)
            for part in range(0, len(some), w):
                zero(tile, 0, padded * w)
                for i in range(0, len(among), w):
                    tile_add(tile, i * w, packed, i * k, mine, part * k, k, 1.0)
                own = heads[low // size, part // w]
                while own >= 0:
                    tile[places[own]] = -np.inf
                    own = links[own]
                for i in range(0, len(among), group):
                    _greatest(best, 0, at, 0, tile, i * w, group)
                    for r, user in enumerate(some[part : part + w]):
                        if best[r] > -np.inf:
                            out[user, (low + i) // group] = among[i + np.int64(at[r])]
        block = fetch_add(counter, 0, 1)


@entry(nogil=True, _nrt=False)
def merge(counter, indptr, indices, values, more_ptr, more, out, out_values):
    """Merge the sorted rows of two matrices without common entries; entries of the second get value -1."""
    row = fetch_add(counter, 0, 1)
    while row < len(indptr) - 1:
        one, two = indptr[row], more_ptr[row]
        for at in range(one + two, indptr[row + 1] + more_ptr[row + 1]):
            second = two < more_ptr[row + 1] and (one == indptr[row + 1] or more[two] < indices[one])
            out[at] = more[two] if second else indices[one]
            out_values[at] = -1.0 if second else (values[one] if len(values) else 1.0)
            one, two = one + (not second), two + second
        row = fetch_add(counter, 0, 1)


@entry(nogil=True, _nrt=False)
def turn(counter, bounds, indptr, indices, values, cursor, out, out_values):
    """Transpose a matrix, in pieces of its rows between ``bounds``, in two calls."""
    # With an empty ``out`` entries are counted by column in ``cursor[piece]``, else written from there on.
    piece = fetch_add(counter, 0, 1)
    while piece < len(cursor):
        for row in range(bounds[piece], bounds[piece + 1]):
            for e in range(indptr[row], indptr[row + 1]):
                to = cursor[piece, indices[e]]
                cursor[piece, indices[e]] = to + 1
                if len(out):
                    out[to], out_values[to] = row, values[e]
        piece = fetch_add(counter, 0, 1)
