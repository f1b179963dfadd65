"""Softmax over the whole catalogue, fused: products, exponentials and gradient while a tile is in the cache.

Scores of a batch of users are computed a tile of items at a time. The first pass leaves ``exp(score - top)``
with each row's maximum and sum over the tile; once the sums of all tiles are known, the second pass turns
them into the gradient and multiplies it into both sides. Tiles depend on the shapes alone and partial results
are added in a fixed order, so the outcome does not depend on the number of threads.
"""

import numpy as np

from rgals.kernels import blas
from rgals.kernels.compile import entry, inner
from rgals.kernels.queue import spread
from rgals.kernels.smooth import FUSE, exponential
from rgals.kernels.tiles import dot

# A maximum is the same in any order; sums are not, so theirs is given (`rgals.kernels.tiles.dot`).
_MAX = {"reassoc", "nsz", "nnan"}


@inner(fastmath=_MAX)
def _largest(row):
    """Maximum of a row; a NaN need not show here, it does in the sum."""
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
    """Of some tiles ``exp(score - top)``, the maximum and sum of each row, and the positives' scores."""
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
    """Exponentials become gradients of scores, softmax weights less positives' own, then of both sides."""
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
    """Values (B,) and gradients of the softmax loss of B users over all N items, float32.

    ``users`` (B, K) are divided by the temperature; ``block`` is the `CSR` matrix of their positives. A tile
    has ``tile`` items; ``buffer`` (B * N,) is overwritten; ``user_grad`` is with respect to ``users``.
    """
    (size, width), n = users.shape, len(items)
    n_tiles = -(-n // tile)
    # Where the positives of a row enter each tile.
    ends = np.minimum(np.arange(n_tiles + 1) * tile, n)
    starts = np.searchsorted(block.positions, ends[:, None] + np.arange(size) * n)
    top, total = np.empty((2, n_tiles, size), np.float32)
    own = np.zeros((n_tiles, size))
    given = users, items, starts, block.indices, block.values, tile, buffer
    spread(_exponentiate, n_tiles, n_threads, *given, top, total, own)
    # log sum exp over all tiles from their maxima and sums, in float64.
    highest, count = top.max(axis=0), block.row_sums
    with np.errstate(invalid="ignore"):  # what diverges shows in the values
        shares = np.exp(top.astype(np.float64) - highest)
        every = (shares * total).sum(axis=0)
        values[:] = count * (np.log(every) + highest) - own.sum(axis=0)
        scale = (count * shares / every).astype(np.float32)
    partial = np.empty((n_tiles, size, width), np.float32)
    spread(_differentiate, n_tiles, n_threads, *given, scale, partial, item_grad)
    partial.sum(axis=0, out=user_grad)
