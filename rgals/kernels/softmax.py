"""Softmax over the whole catalogue, fused: products, exponentials and gradient while a tile is in the cache.

Scores of a batch of users are computed a tile of items at a time. The first pass leaves ``exp(score - top)``
with each row's maximum and sum over the tile; once the sums of all tiles are known, the second pass turns
them into the gradient and multiplies it into both sides. Tiles depend on the shapes alone and partial results
are added in a fixed order, so the outcome does not depend on the number of threads.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from rgals.kernels import blas
from rgals.kernels.compile import entry, inner
from rgals.kernels.queue import fetch_add
from rgals.kernels.tiles import dot

# A maximum is the same in any order; sums are not, and `rgals.kernels.sgd` says why theirs is given.
_MAX = {"reassoc", "nsz", "nnan"}
_FUSE = {"contract"}  # a product and a sum into one instruction


@inner(fastmath=_MAX)
def _largest(row):
    """Maximum of a row; a NaN need not show here, it does in the sum."""
    top = row[0]
    for j in range(1, len(row)):
        top = max(top, row[j])
    return top


@inner(fastmath=_FUSE, _nrt=True)
def _exponentials(row, top, bits, power):
    """Replace a float32 row by ``exp(row - top)`` and return the sum; ``power`` is ``bits`` seen as float32.

    Range reduction by powers of two and the polynomial of Cephes' ``expf``: relative error below 2e-7. What
    is below exp(-87) stays there.
    """
    one, half, low = np.float32(1), np.float32(0.5), np.float32(-87)
    for j in range(len(row)):
        x = row[j] - top
        x = low if x < low else x  # a NaN stays
        n = np.floor(x * np.float32(1.44269504) + half)
        x = x - n * np.float32(0.693359375)
        x = x + n * np.float32(2.12194440e-4)
        y = np.float32(1.9875691500e-4)
        y = y * x + np.float32(1.3981999507e-3)
        y = y * x + np.float32(8.3334519073e-3)
        y = y * x + np.float32(4.1665795894e-2)
        y = y * x + np.float32(1.6666665459e-1)
        y = y * x + np.float32(5.0000001201e-1)
        row[j] = y * x * x + x + one
        bits[j] = (np.int32(n) + np.int32(127)) << np.int32(23)
    total = dot(row, 0, power, 0, len(row))
    for j in range(len(row)):
        row[j] *= power[j]
    return total


@entry(parallel=True)
def softmax_batch(
    users, items, indptr, indices, weights, tile, buffer, threads, values, user_grad, item_grad
):
    """Values (B,) and gradients of the softmax loss of B users over all N items, float32.

    ``users`` (B, K) are divided by the temperature; ``indptr, indices, weights`` are their positives, sorted
    within a row, ``weights`` empty where all are 1. A tile has ``tile`` items; ``buffer`` (B * N,) is
    overwritten; ``user_grad`` is with respect to ``users``.
    """
    size, width = users.shape
    n = len(items)
    tiles = (n + tile - 1) // tile
    one, zero = np.float32(1), np.float32(0)
    top = np.empty((tiles, size), np.float32)
    total = np.empty((tiles, size), np.float32)
    own = np.empty((tiles, size), np.float64)
    partial = np.empty((tiles, size, width), np.float32)
    starts = np.empty((tiles + 1, size), np.int64)  # where a row's positives enter each tile
    queue = np.zeros(16, np.int64)
    for b in prange(size):
        at = indptr[b]
        for t in range(tiles):
            starts[t, b] = at
            while at < indptr[b + 1] and indices[at] < (t + 1) * tile:
                at += 1
        starts[tiles, b] = at
    for _ in prange(threads):
        bits = np.empty(tile, np.int32)
        power = bits.view(np.float32)
        while True:
            t = fetch_add(queue, 0, 1)
            if t >= tiles:
                break
            first = t * tile
            here = min(tile, n - first)
            scores = buffer[size * first : size * (first + here)].reshape(size, here)
            blas.gemm_nt(
                size, here, width, one, users, 0, width, items, first * width, width, zero, scores, 0, here
            )
            for b in range(size):
                sum_own = 0.0
                for e in range(starts[t, b], starts[t + 1, b]):
                    weight = one if len(weights) == 0 else weights[e]
                    sum_own += np.float64(weight) * scores[b, indices[e] - first]
                own[t, b] = sum_own
                top[t, b] = _largest(scores[b])
                total[t, b] = _exponentials(scores[b], top[t, b], bits, power)
    # log sum exp over all tiles from their maxima and sums, in float64.
    scale = np.empty((tiles, size), np.float32)
    for b in range(size):
        highest = top[0, b]
        for t in range(1, tiles):
            highest = max(highest, top[t, b])
        every, mine, count = 0.0, 0.0, 0.0
        for t in range(tiles):
            every += np.exp(np.float64(top[t, b]) - highest) * total[t, b]
            mine += own[t, b]
        if len(weights) == 0:
            count = np.float64(indptr[b + 1] - indptr[b])
        else:
            for e in range(indptr[b], indptr[b + 1]):
                count += weights[e]
        values[b] = count * (np.log(every) + highest) - mine
        for t in range(tiles):
            scale[t, b] = count * np.exp(np.float64(top[t, b]) - highest) / every
    for _ in prange(threads):
        while True:
            t = fetch_add(queue, 8, 1)
            if t >= tiles:
                break
            # Scores become softmax weights, less the positives' own: the gradient with respect to the scores.
            first = t * tile
            here = min(tile, n - first)
            grad = buffer[size * first : size * (first + here)].reshape(size, here)
            for b in range(size):
                row, factor = grad[b], scale[t, b]
                for j in range(here):
                    row[j] *= factor
                for e in range(starts[t, b], starts[t + 1, b]):
                    row[indices[e] - first] -= one if len(weights) == 0 else weights[e]
            of, to = first * width, t * size * width
            blas.gemm_nn(size, width, here, one, grad, 0, here, items, of, width, zero, partial, to, width)
            blas.gemm_tn(here, width, size, one, grad, 0, here, users, 0, width, zero, item_grad, of, width)
    for b in prange(size):
        for k in range(width):
            user_grad[b, k] = partial[0, b, k]
        for t in range(1, tiles):
            for k in range(width):
                user_grad[b, k] += partial[t, b, k]
