"""Weighted Gramians and products with a small square matrix, parallel and bitwise independent of the threads.

Work is cut into pieces of fixed size; every piece is summed in a fixed order by one thread. Blocks of 256
rows are multiplied in the factors' own precision and added up in float64.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from rgals.kernels.blas import gemm_nn, gemm_tn
from rgals.kernels.queue import fetch_add

ROWS = 256  # rows of a block: its products stay in the L2 cache
TILE = 256  # columns of an output tile: its float64 sums stay in the L2 cache


@njit(parallel=True, cache=True)
def _partial(factors, weight, uniform, n_chunks, n_threads):
    n, k = factors.shape
    n_tiles = (k + TILE - 1) // TILE
    n_pairs = n_tiles * (n_tiles + 1) // 2
    gram = np.zeros((n_chunks, k, k))
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
                gemm_tn(wide_a, wide_b, rows, 1.0, scaled, TILE, factors[start:, b:], k, 0.0, product, TILE)
                for i in range(wide_a):
                    for j in range(wide_b):
                        gram[chunk, a + i, b + j] += product[i, j]
    return gram


def gram(factors: np.ndarray, weight: np.ndarray, n_threads: int) -> np.ndarray:
    """``F^T diag(weight) F`` in float64.

    Parameters
    ----------
    factors : ndarray, shape (n, K), C-ordered, float32 or float64
    weight : ndarray of float64, shape (n,)
    n_threads : int

    Returns
    -------
    ndarray of float64, shape (K, K)
    """
    n, k = factors.shape
    if n == 0:
        return np.zeros((k, k))
    n_tiles = -(-k // TILE)
    n_chunks = max(1, 16 // (n_tiles * (n_tiles + 1) // 2))
    uniform = bool((weight == weight[0]).all())
    partial = _partial(factors, weight, uniform, n_chunks, n_threads)
    total = partial[0]
    for chunk in range(1, n_chunks):  # in a fixed order
        total += partial[chunk]
    upper = np.triu(total)
    return upper + np.triu(upper, 1).T


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


@njit(parallel=True, cache=True)
def _column_sums(factors, weight, linear_weight, n_chunks, n_threads):
    n, k = factors.shape
    out = np.zeros((n_chunks, 3, k))
    counter = np.zeros(1, np.int64)
    for _ in prange(n_threads):
        while True:
            chunk = fetch_add(counter, 0, 1)
            if chunk >= n_chunks:
                break
            squares, sums, linear = out[chunk, 0], out[chunk, 1], out[chunk, 2]
            for i in range(chunk * n // n_chunks, (chunk + 1) * n // n_chunks):
                w = weight[i]
                lw = linear_weight[i]
                for j in range(k):
                    f = np.float64(factors[i, j])
                    squares[j] += w * f * f
                    sums[j] += w * f
                    linear[j] += lw * f
    return out


def column_sums(
    factors: np.ndarray, weight: np.ndarray, linear_weight: np.ndarray, n_threads: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Diagonal of ``F^T diag(weight) F``, ``F^T weight`` and ``F^T linear_weight``, summed in float64.

    Parameters
    ----------
    factors : ndarray, shape (n, K)
    weight, linear_weight : ndarray of float64, shape (n,)
    n_threads : int

    Returns
    -------
    tuple of three ndarrays of float64, shape (K,)
    """
    squares, sums, linear = _column_sums(factors, weight, linear_weight, 16, n_threads).sum(axis=0)
    return squares, sums, linear
