"""Weighted Gramians and products with a small square matrix, parallel and bitwise independent of the threads.

Work is cut into pieces of fixed size; every piece is summed in a fixed order by one thread. Blocks of 256 rows are
multiplied in the factors' own precision and added up in float64.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from rgals.kernels.blas import gemm_nn, gemm_tn
from rgals.kernels.queue import fetch_add

ROWS = 256  # rows of a block: its products stay in the L2 cache
TILE = 256  # columns of an output tile: its float64 sums stay in the L2 cache


@njit(parallel=True, cache=True)
def _partial(factors, weight, uniform, linear_weight, n_chunks, n_threads):
    n, k = factors.shape
    n_tiles = (k + TILE - 1) // TILE
    n_pairs = n_tiles * (n_tiles + 1) // 2
    gram = np.zeros((n_chunks, k, k))
    linear = np.zeros((n_chunks, k))
    n_blocks = (n + ROWS - 1) // ROWS
    counter = np.zeros(1, np.int64)
    for _ in prange(n_threads):
        scaled = np.empty((ROWS, TILE), factors.dtype)
        product = np.empty((TILE, TILE), factors.dtype)
        while True:
            task = fetch_add(counter, 0, 1)
            if task >= n_chunks * n_pairs:
                break
            chunk, pair = task // n_pairs, task % n_pairs
            left = 0
            while pair >= n_tiles - left:
                pair -= n_tiles - left
                left += 1
            right = left + pair
            a, b = left * TILE, right * TILE
            wide_a, wide_b = min(TILE, k - a), min(TILE, k - b)
            for block in range(chunk * n_blocks // n_chunks, (chunk + 1) * n_blocks // n_chunks):
                start = block * ROWS
                rows = min(ROWS, n - start)
                for i in range(rows):
                    w = factors.dtype.type(weight[0 if uniform else start + i])
                    for j in range(wide_a):
                        scaled[i, j] = w * factors[start + i, a + j]
                gemm_tn(
                    wide_a, wide_b, rows, 1.0, scaled, TILE, factors[start:, b:], k, 0.0, product, TILE
                )
                for i in range(wide_a):
                    for j in range(wide_b):
                        gram[chunk, a + i, b + j] += product[i, j]
                if left == right:
                    for i in range(rows):
                        w = linear_weight[0 if uniform else start + i]
                        for j in range(wide_a):
                            linear[chunk, a + j] += w * factors[start + i, a + j]
    return gram, linear


def gram(
    factors: np.ndarray, weight: np.ndarray, linear_weight: np.ndarray, n_threads: int
) -> tuple[np.ndarray, np.ndarray]:
    """``F^T diag(weight) F`` and ``F^T linear_weight`` in float64.

    Parameters
    ----------
    factors : ndarray, shape (n, K), C-ordered, float32 or float64
    weight, linear_weight : ndarray of float64, shape (n,)
    n_threads : int

    Returns
    -------
    (G, s) : ndarray of float64, shapes (K, K) and (K,)
    """
    n, k = factors.shape
    if n == 0:
        return np.zeros((k, k)), np.zeros(k)
    n_tiles = -(-k // TILE)
    n_chunks = max(1, 16 // (n_tiles * (n_tiles + 1) // 2))
    uniform = bool((weight == weight[0]).all() and (linear_weight == linear_weight[0]).all())
    partial, linear = _partial(factors, weight, uniform, linear_weight, n_chunks, n_threads)
    total = partial[0]
    for chunk in range(1, n_chunks):  # in a fixed order
        total += partial[chunk]
    upper = np.triu(total)
    return upper + np.triu(upper, 1).T, linear.sum(axis=0)


@njit(parallel=True, cache=True)
def multiply(factors, matrix, out, n_threads):
    """``out = factors @ matrix``, shapes (n, K) and (K, K); ``out`` may be ``factors`` itself."""
    n, k = factors.shape
    counter = np.zeros(1, np.int64)
    for _ in prange(n_threads):
        buffer = np.empty((ROWS, k), factors.dtype)
        while True:
            start = fetch_add(counter, 0, 1) * ROWS
            if start >= n:
                break
            rows = min(ROWS, n - start)
            gemm_nn(rows, k, k, 1.0, factors[start:], k, matrix, k, 0.0, buffer, k)
            out[start : start + rows] = buffer[:rows]


@njit(cache=True)
def weighted_sum(factors, weight):
    """``F^T weight`` in float64, shape (K,)."""
    total = np.zeros(factors.shape[1])
    for i in range(len(factors)):
        for j in range(factors.shape[1]):
            total[j] += weight[i] * factors[i, j]
    return total
