"""Softmax over all items, fused: scores, exponentials and gradients while a tile of scores is in cache."""

# Scores of a batch of users are computed a tile of items at a time. The first pass leaves ``exp(score -
# top)`` with each user's maximum and sum over the tile. When the sums of all tiles are known, the second pass
# turns exponentials into gradients of scores and multiplies these into both sides. Tiles depend on the shapes
# alone and partial results are added in a fixed order: the result does not depend on the number of threads.

import numpy as np

from rgals.kernels import blas
from rgals.kernels.compile import entry, inner
from rgals.kernels.queue import spread
from rgals.kernels.smooth import FUSE, exponential
from rgals.kernels.tiles import dot

# fastmath for a maximum, which is the same in any order, so that the compiler may vectorise it. Sums are not:
# those are made by `rgals.kernels.tiles.dot`, whose order is fixed.
_ANY_ORDER = {"reassoc", "nsz", "nnan"}


@inner(fastmath=_ANY_ORDER)
def _largest(row):
    """The maximum of a row. It may miss a NaN, which then shows in the sum."""
    top = row[0]
    for j in range(1, len(row)):
        top = max(top, row[j])
    return top


@inner(fastmath=FUSE)
def _exponentials(row, top, ones):
    """Replace a float32 row by ``exp(row - top)`` and return the sum."""
    for j in range(len(row)):
        row[j] = exponential(row[j] - top)
    return dot(row, 0, ones, 0, len(row))


@entry(nogil=True)
def _exponentiate(begin, stop, users, items, starts, indices, weights, tile, buffer, top, total, own):
    """For some tiles: ``exp(score - top)``, its maximum and sum for each user, and the positives' scores."""
    size, width = users.shape
    n, one = len(items), np.float32(1)
    ones = np.ones(tile, np.float32)
    for t in range(begin, stop):
        first = t * tile
        here, at = min(tile, n - first), size * first
        scores = buffer[at : at + size * here].reshape(size, here)
        blas.gemm_nt(size, here, width, users, 0, width, items, first * width, width, buffer, at, here)
        for b in range(size):
            for e in range(starts[t, b], starts[t + 1, b]):
                weight = one if len(weights) == 0 else weights[e]
                own[t, b] += np.float64(weight) * scores[b, indices[e] - first]
            top[t, b] = _largest(scores[b])
            total[t, b] = _exponentials(scores[b], top[t, b], ones)


@entry(nogil=True)
def _differentiate(begin, stop, users, items, starts, indices, weights, tile, buffer, scale, partial, grads):
    """For some tiles: gradients of scores, softmax minus the positives' weights, then those of both sides."""
    size, width = users.shape
    n, one = len(items), np.float32(1)
    for t in range(begin, stop):
        first = t * tile
        here, at = min(tile, n - first), size * first
        grad = buffer[at : at + size * here].reshape(size, here)
        for b in range(size):
            factor = scale[t, b]
            for j in range(here):
                grad[b, j] *= factor
            for e in range(starts[t, b], starts[t + 1, b]):
                grad[b, indices[e] - first] -= one if len(weights) == 0 else weights[e]
        of, to = first * width, t * size * width
        blas.gemm_nn(size, width, here, buffer, at, here, items, of, width, partial, to, width)
        blas.gemm_tn(here, width, size, buffer, at, here, users, 0, width, grads, of, width)


def softmax_batch(users, items, block, tile, buffer, n_threads, values, user_grad, item_grad):
    """Values (B,) and gradients of the softmax loss of B users over all N items, in float32."""
    # ``users`` (B, K) are already divided by the temperature, and ``user_grad`` is with respect to these.
    # ``block`` is the `CSR` matrix of their positives. ``tile`` is in items; ``buffer`` (B * N,) is work
    # space.
    (size, width), n = users.shape, len(items)
    n_tiles = -(-n // tile)
    # starts[t, b]: the position of user b's first positive in tile t; positives are sorted by item.
    ends = np.minimum(np.arange(n_tiles + 1) * tile, n)
    starts = np.searchsorted(block.positions, ends[:, None] + np.arange(size) * n)
    top, total = np.empty((2, n_tiles, size), np.float32)
    own = np.zeros((n_tiles, size))
    given = users, items, starts, block.indices, block.values, tile, buffer
    spread(_exponentiate, n_tiles, n_threads, *given, top, total, own)
    # log sum exp over all tiles, from their maxima and sums, in float64.
    highest, count = top.max(axis=0), block.row_sums
    with np.errstate(invalid="ignore"):  # factors that diverge show in the values
        shares = np.exp(top.astype(np.float64) - highest)
        every = (shares * total).sum(axis=0)
        values[:] = count * (np.log(every) + highest) - own.sum(axis=0)
        scale = (count * shares / every).astype(np.float32)
    partial = np.empty((n_tiles, size, width), np.float32)
    spread(_differentiate, n_tiles, n_threads, *given, scale, partial, item_grad)
    partial.sum(axis=0, out=user_grad)
