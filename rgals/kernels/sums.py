"""Weighted sums over the rows of a table, in float64 and a fixed order."""

from __future__ import annotations

import numpy as np
from numba import njit

from rgals.kernels.queue import fetch_add, launch


@njit(cache=True)
def add_sums(factors, start, stop, weight, linear_weight, sums):
    """Add the three sums of `column_sums` over some rows."""
    k = factors.shape[1]
    squares, plain, linear = sums[0], sums[1], sums[2]
    for i in range(start, stop):
        w = weight[i]
        lw = linear_weight[i]
        for j in range(k):
            f = np.float64(factors[i, j])
            squares[j] += w * f * f
            plain[j] += w * f
            linear[j] += lw * f


@njit(cache=True, nogil=True)
def _column_sums(counter, factors, weight, linear_weight, out):
    n, n_chunks = len(factors), len(out)
    while True:
        chunk = fetch_add(counter, 0, 1)
        if chunk >= n_chunks:
            break
        first, last = chunk * n // n_chunks, (chunk + 1) * n // n_chunks
        add_sums(factors, first, last, weight, linear_weight, out[chunk])


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
    partial = np.zeros((16, 3, factors.shape[1]))
    launch(_column_sums, n_threads, factors, weight, linear_weight, partial)
    squares, sums, linear = partial.sum(axis=0)
    return squares, sums, linear
