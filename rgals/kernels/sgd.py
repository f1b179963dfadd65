"""Compiled parts of SGD: drawing and scoring negatives, and the optimisers."""

# Functions take a range of rows. Rows are independent and each sum runs in a fixed order, so that results do
# not depend on how `rgals.kernels.queue.spread` divides rows among threads. Random numbers come from
# splitmix64, a generator that starts from a key: here of the batch and the row.

import numpy as np
from numba import njit

from rgals.kernels.compile import entry
from rgals.kernels.loops import contains
from rgals.kernels.tiles import add_scaled, dot, zero

SGD, ADAGRAD, ADAM = range(3)
# Positions in the vector of numbers that `apply` takes. One array of numbers keeps it at few signatures, each
# of which takes time to compile.
LR, FIRST, SECOND, EPS, COUPLED, DECOUPLED, GRAD_SCALE, RIDGE_SCALE = range(8)

_TRIES = 64  # draws of a negative before the next admissible item is taken instead
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
def _is_free(item, b, marked, mark, exclude, indices, low, high):
    """Whether row ``b`` may draw an item: by a mark, or by binary search in the user's positives."""
    if marked:
        return mark[item] != b
    return not (exclude and contains(indices, low, high, item))


@entry(nogil=True)
def draw(first, stop, key, users, indptr, indices, n_items, accept, alias, exclude, distinct, out):
    """Fill ``out[:, 1:]`` with negatives, or -1 if no admissible item is left."""
    # ``exclude`` forbids the user's positives, ``distinct`` items that the row has already. ``accept``
    # (uint64 thresholds below 2^32) and ``alias`` are Walker's alias table; empty: the distribution is
    # uniform.
    # After `_TRIES` forbidden draws a row takes the next admissible item in the order of the catalogue.
    size = np.uint64(n_items)
    n = out.shape[1]
    # Marks of forbidden items take memory and time in proportion to the catalogue. For few draws a binary
    # search for each is cheaper.
    marked = distinct or (exclude and n * (stop - first) * 16 >= n_items)
    mark = np.full(n_items if marked else 0, -1, np.int32)
    for b in range(first, stop):
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
                # The upper 32 bits of r give the item, the lower 32 decide between it and its alias.
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


@entry(nogil=True)
def pair_scores(first, stop, user_rows, item_rows, items, out):
    """``out[b, j] = user_rows[b] . item_rows[items[b, j]]``; -inf where the item is -1."""
    width = user_rows.shape[1]
    for b in range(first, stop):
        for j in range(items.shape[1]):
            item = items[b, j]
            out[b, j] = dot(user_rows, b * width, item_rows, item * width, width) if item >= 0 else -np.inf


@entry(nogil=True)
def user_gradients(first, stop, grad, items, item_rows, out):
    """``out[b] = sum_j grad[b, j] item_rows[items[b, j]]``."""
    width = out.shape[1]
    zero(out, first * width, (stop - first) * width)
    for b in range(first, stop):
        for j in range(items.shape[1]):
            if grad[b, j] != 0 and items[b, j] >= 0:
                add_scaled(out, b * width, item_rows, items[b, j] * width, width, grad[b, j])


@entry(nogil=True)
def group_sum(first, stop, starts, order, weights, width, vectors, out):
    """``out[g] = sum_e weights[e] vectors[e // width]`` over the positions e of group g, in order."""
    # Group g is ``order[starts[g] : starts[g + 1]]``: positions in a table of ``width`` columns.
    k = out.shape[1]
    zero(out, first * k, (stop - first) * k)
    for g in range(first, stop):
        for at in range(starts[g], starts[g + 1]):
            e = order[at]
            if weights[e] != 0:
                add_scaled(out, g * k, vectors, e // width * k, k, weights[e])


@entry(nogil=True)
def mask_items(first, stop, scores, users, indptr, indices, own, starts_of, order, all_positives):
    """Set scores of shared negatives to -inf if they are the row's positive, or any of the user's."""
    # ``order[starts_of[i] : starts_of[i + 1]]`` are the columns that hold item i.
    for b in range(first, stop):
        for at in range(starts_of[own[b]], starts_of[own[b] + 1]):
            scores[b, order[at]] = -np.inf
        if all_positives:
            for e in range(indptr[users[b]], indptr[users[b] + 1]):
                for at in range(starts_of[indices[e]], starts_of[indices[e] + 1]):
                    scores[b, order[at]] = -np.inf


@njit(inline="always")
def _refresh_row(row, param, rows_out, inverse_norm):
    width = param.shape[1]
    square = dot(param, row * width, param, row * width, width)
    # 0 stays 0. An overflow stays infinite, so that the trainer sees it.
    inverse_norm[row] = 1.0 / np.sqrt(square) if 0.0 < square < np.inf else square
    for k in range(width):
        rows_out[row, k] = param[row, k] * inverse_norm[row]


@entry(nogil=True)
def normalise(first, stop, param, rows_out, inverse_norm):
    """Unit rows of ``param`` and the inverse norms; a zero row stays zero."""
    for row in range(first, stop):
        _refresh_row(row, param, rows_out, inverse_norm)


@entry(nogil=True)
def apply(begin, stop, rows, slots, grad, ridge, factors, moments, steps, kind, numbers, cosine):
    """One step of an optimiser on the given rows: gradient of the parameters, decay, update, scoring rows."""
    # Row ``rows[r]`` has the gradient ``grad[slots[r]]`` with respect to its *effective* row (of unit length
    # if ``cosine``), zero if the slot is -1. ``ridge`` (n,), if not empty, adds ``ridge[row] param[row]``.
    # ``factors`` are the parameters, their effective rows and their inverse norms, ``moments`` those of the
    # optimiser; ``steps`` counts the updates of each row.
    param, effective, inverse_norm = factors
    first, second = moments
    width = param.shape[1]
    lr, a, c, eps = numbers[LR], numbers[FIRST], numbers[SECOND], numbers[EPS]
    g = np.empty(width, param.dtype)
    for r in range(begin, stop):
        row, slot = rows[r], slots[r]
        decay = numbers[COUPLED]
        if len(ridge) > 0:
            decay = decay + numbers[RIDGE_SCALE] * ridge[row]
        for k in range(width):
            g[k] = grad[slot, k] * numbers[GRAD_SCALE] if slot >= 0 else 0.0
        # The chain rule of p / |p|: the part of the gradient along the row is removed, the rest over |p|.
        if cosine and slot >= 0:
            along = dot(g, 0, effective, row * width, width)
            for k in range(width):
                g[k] = (g[k] - along * effective[row, k]) * inverse_norm[row]
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
            # Adam, with the bias of both moments corrected for the row's number of updates.
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
