"""Compiled parts of the sampled path and of the optimisers: plain functions on arrays.

Every parallel loop owns its output rows and every reduction runs in a fixed order, so results do not depend
on the number of threads. Negatives come from a counter-based generator (splitmix64) keyed by batch and row.

Sums are vectorised by hand: ``fastmath`` leaves their order to the compiler, which chooses another one for a
parallel loop that it has just compiled than for the same loop from the cache.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from rgals.kernels.compile import entry
from rgals.kernels.tiles import dot

SGD, ADAGRAD, ADAM = range(3)
# Positions in the vector of numbers that `apply` takes; one array keeps the number of compiled signatures
# down.
LR, FIRST, SECOND, EPS, COUPLED, DECOUPLED, GRAD_SCALE, RIDGE_SCALE = range(8)

_BLOCK = 64
_TRIES = 64
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_LOW = np.uint64(0xFFFFFFFF)


@njit(inline="always")
def _mix(z):
    z = (z ^ (z >> np.uint64(30))) * _MIX1
    z = (z ^ (z >> np.uint64(27))) * _MIX2
    return z ^ (z >> np.uint64(31))


@njit(inline="always")
def _contains(indices, low, high, item):
    while low < high:
        middle = (low + high) >> 1
        if indices[middle] < item:
            low = middle + 1
        elif indices[middle] > item:
            high = middle
        else:
            return True
    return False


@njit(inline="always")
def _is_free(item, b, marked, mark, exclude, indices, low, high):
    """Whether row ``b`` may draw an item: by its mark, or by a search in the row's positives."""
    if marked:
        return mark[item] != b
    return not (exclude and _contains(indices, low, high, item))


@entry(parallel=True)
def draw(key, users, indptr, indices, n_items, accept, alias, exclude, distinct, out):
    """Fill ``out[:, 1:]`` with negatives; -1 where no admissible item is left.

    ``accept`` (uint64 thresholds below 2^32) and ``alias`` form Walker's table; empty means uniform. A row
    that keeps hitting forbidden items takes the next admissible one in catalogue order.
    """
    size = np.uint64(n_items)
    n = out.shape[1]
    # Marks cost memory and time in proportion to the catalogue; a binary search per draw does not.
    marked = distinct or (exclude and n * _BLOCK * 16 >= n_items)
    for block in prange((len(users) + _BLOCK - 1) // _BLOCK):
        mark = np.full(n_items if marked else 0, -1, np.int32)
        for b in range(block * _BLOCK, min(len(users), (block + 1) * _BLOCK)):
            low, high = indptr[users[b]], indptr[users[b] + 1]
            if exclude and marked:
                for e in range(low, high):
                    mark[indices[e]] = b
            if distinct and out[b, 0] >= 0:
                mark[out[b, 0]] = b  # the row's own positive is not one of its distinct negatives
            state = _mix(key + np.uint64(b + 1) * _GOLDEN)
            for j in range(1, n):
                item, found = np.int64(0), False
                for _ in range(_TRIES):
                    state = state + _GOLDEN
                    r = _mix(state)
                    item = np.int64(((r >> np.uint64(32)) * size) >> np.uint64(32))
                    if len(accept) > 0 and (r & _LOW) >= accept[item]:
                        item = np.int64(alias[item])
                    found = _is_free(item, b, marked, mark, exclude, indices, low, high)
                    if found:
                        break
                if not found:
                    for _ in range(n_items):
                        item = np.int64((item + 1) % n_items)
                        found = _is_free(item, b, marked, mark, exclude, indices, low, high)
                        if found:
                            break
                out[b, j] = item if found else -1
                if found and distinct:
                    mark[item] = b


@entry(parallel=True)
def pair_scores(user_rows, item_rows, users, items, out):
    """``out[b, j] = user_rows[users[b]] . item_rows[items[b, j]]``; -inf where the item is -1."""
    width = user_rows.shape[1]
    for b in prange(len(users)):
        for j in range(items.shape[1]):
            item = items[b, j]
            if item < 0:
                out[b, j] = -np.inf
            else:
                out[b, j] = dot(user_rows, users[b] * width, item_rows, item * width, width)


@entry(parallel=True)
def user_gradients(grad, items, item_rows, out):
    """``out[b] = sum_j grad[b, j] item_rows[items[b, j]]``."""
    for b in prange(len(items)):
        out[b] = 0
        for j in range(items.shape[1]):
            g = grad[b, j]
            if g != 0 and items[b, j] >= 0:
                item = items[b, j]
                for k in range(out.shape[1]):
                    out[b, k] += g * item_rows[item, k]


@entry(parallel=True)
def group(ids, n):
    """Positions of every id by a stable counting sort; ids of -1 are left out.

    Returns
    -------
    (unique, starts, order) : ``order[starts[g]:starts[g + 1]]`` are the positions of ``unique[g]``,
    ascending.
    """
    parts = 1 if len(ids) < 32768 else 4  # fixed, so that nothing depends on the number of threads
    step = (len(ids) + parts - 1) // parts
    counts = np.zeros((parts, n), np.int32)
    for p in prange(parts):
        for e in range(p * step, min(len(ids), (p + 1) * step)):
            if ids[e] >= 0:
                counts[p, ids[e]] += 1
    unique = np.empty(min(n, len(ids)), np.int32)
    starts = np.empty(len(unique) + 1, np.int64)
    used, total = 0, 0
    for i in range(n):
        first = total
        for p in range(parts):
            here = counts[p, i]
            counts[p, i] = total
            total += here
        if total > first:
            unique[used] = i
            starts[used] = first
            used += 1
    starts[used] = total
    order = np.empty(total, np.int32)
    for p in prange(parts):
        for e in range(p * step, min(len(ids), (p + 1) * step)):
            if ids[e] >= 0:
                order[counts[p, ids[e]]] = e
                counts[p, ids[e]] += 1
    return unique[:used], starts[: used + 1], order


@entry(parallel=True)
def group_sum(starts, order, weights, width, vectors, out):
    """``out[g] = sum weights[e] vectors[e // width]`` over the positions e of group g, in order."""
    for g in prange(len(starts) - 1):
        out[g] = 0
        for at in range(starts[g], starts[g + 1]):
            e = order[at]
            w = weights[e]
            if w != 0:
                source = e // width
                for k in range(out.shape[1]):
                    out[g, k] += w * vectors[source, k]


@entry
def mask_items(scores, users, indptr, indices, own, starts_of, order, all_positives):
    """Set scores of shared negatives to -inf where they are the row's own positive or any of the user's.

    ``starts_of`` (n_items + 1) and ``order`` list the columns that hold each item.
    """
    for b in range(len(users)):
        for at in range(starts_of[own[b]], starts_of[own[b] + 1]):
            scores[b, order[at]] = -np.inf
        if all_positives:
            for e in range(indptr[users[b]], indptr[users[b] + 1]):
                for at in range(starts_of[indices[e]], starts_of[indices[e] + 1]):
                    scores[b, order[at]] = -np.inf


@njit(inline="always")
def _refresh_row(row, param, rows_out, inverse_norm):
    width = param.shape[1]
    first = second = third = fourth = 0.0
    for k in range(0, width - 3, 4):
        first += np.float64(param[row, k]) ** 2
        second += np.float64(param[row, k + 1]) ** 2
        third += np.float64(param[row, k + 2]) ** 2
        fourth += np.float64(param[row, k + 3]) ** 2
    square = (first + second) + (third + fourth)
    for k in range(width // 4 * 4, width):
        square += np.float64(param[row, k]) ** 2
    inverse = 1.0 / np.sqrt(square) if square > 0 else (0.0 if square == 0 else square)
    inverse_norm[row] = inverse
    for k in range(param.shape[1]):
        rows_out[row, k] = param[row, k] * inverse_norm[row]


@entry(parallel=True)
def normalise(param, rows_out, inverse_norm):
    """Unit rows of ``param`` and the inverse norms; a zero row stays zero."""
    for row in prange(len(param)):
        _refresh_row(row, param, rows_out, inverse_norm)


@entry(parallel=True)
def apply(
    rows, slots, grad, ridge, param, effective, inverse_norm, first, second, steps, kind, numbers, cosine
):
    """One optimiser step on the given rows: chain rule of the score, decay, update, new effective rows.

    Row ``rows[r]`` has the gradient ``grad[slots[r]]`` with respect to its *effective* vector (unit length
    when ``cosine``), or zero where the slot is -1. ``ridge`` (n,) adds ``ridge[row] param[row]``; it may be
    empty. ``first`` and ``second`` are the optimiser's moments, ``steps`` the number of updates of each row.
    """
    width = param.shape[1]
    lr, a, c, eps = numbers[LR], numbers[FIRST], numbers[SECOND], numbers[EPS]
    for block in prange((len(rows) + _BLOCK - 1) // _BLOCK):
        g = np.empty(width, param.dtype)
        for r in range(block * _BLOCK, min(len(rows), (block + 1) * _BLOCK)):
            row, slot = rows[r], slots[r]
            decay = numbers[COUPLED]
            if len(ridge) > 0:
                decay = decay + numbers[RIDGE_SCALE] * ridge[row]
            if slot < 0:
                g[:] = 0
            elif cosine:
                for k in range(width):
                    g[k] = grad[slot, k] * numbers[GRAD_SCALE]
                along = dot(g, 0, effective, row * width, width)
                for k in range(width):
                    g[k] = (g[k] - along * effective[row, k]) * inverse_norm[row]
            else:
                for k in range(width):
                    g[k] = grad[slot, k] * numbers[GRAD_SCALE]
            steps[row] += 1
            shrink = numbers[DECOUPLED] * lr
            for k in range(width):
                g[k] += decay * param[row, k]
                param[row, k] -= shrink * param[row, k]
            if kind == SGD:
                for k in range(width):
                    if len(first) > 0:
                        first[row, k] = a * first[row, k] + g[k]
                        g[k] = first[row, k]
                    param[row, k] -= lr * g[k]
            elif kind == ADAGRAD:
                for k in range(width):
                    first[row, k] += g[k] * g[k]
                    param[row, k] -= lr * g[k] / (np.sqrt(first[row, k]) + eps)
            else:
                t = np.float64(steps[row])
                unbias = param.dtype.type(1.0 / np.sqrt(1.0 - np.float64(c) ** t))
                rate = param.dtype.type(np.float64(lr) / (1.0 - np.float64(a) ** t))
                one = param.dtype.type(1.0)
                for k in range(width):
                    first[row, k] = a * first[row, k] + (one - a) * g[k]
                    second[row, k] = c * second[row, k] + (one - c) * g[k] * g[k]
                    param[row, k] -= rate * first[row, k] / (np.sqrt(second[row, k]) * unbias + eps)
            if cosine:
                _refresh_row(row, param, effective, inverse_norm)
