"""Weighted sums over the rows of a table, in float64 and a fixed order."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from rgals.kernels.compile import entry, inner
from rgals.kernels.emitter import INT, LINE, Emitter, kernel
from rgals.kernels.queue import fetch_add, launch


@kernel("ppppiii")
def _add_blocks(e, table, weight, linear_weight, sums, k, n, n_blocks):
    builder, wide = e.builder, Emitter(e.builder, types.float64, e.width)
    with cgutils.for_range(builder, n_blocks) as block:
        at = builder.mul(block.index, ir.Constant(INT, e.width))
        squares, plain, linear = slots = wide.variables(3)
        with cgutils.for_range(builder, n) as row:
            numbers = e.load(e.at(table, builder.add(at, builder.mul(row.index, k))))
            if e.real != wide.real:
                numbers = builder.fpext(numbers, wide.vector)
            factor, linear_factor = (wide.spread(wide.scalar(w, row.index)) for w in (weight, linear_weight))
            weighted = builder.fmul(factor, numbers)
            builder.store(wide.fma(weighted, numbers, builder.load(squares)), squares)
            builder.store(builder.fadd(builder.load(plain), weighted), plain)
            builder.store(wide.fma(linear_factor, numbers, builder.load(linear)), linear)
        for number, slot in enumerate(slots):
            to = builder.add(at, builder.mul(k, ir.Constant(INT, number)))
            wide.store(builder.fadd(wide.load(sums, to), builder.load(slot)), sums, to)


@inner
def add_sums(factors, start, stop, weight, linear_weight, sums):
    """Add the three sums of `column_sums` over some rows; ``sums`` holds one after the other."""
    k = factors.shape[1]
    whole = k // (LINE // factors.itemsize)
    _add_blocks(factors, start * k, weight, start, linear_weight, start, sums, 0, k, stop - start, whole)
    for j in range(whole * (LINE // factors.itemsize), k):
        for i in range(start, stop):
            f = np.float64(factors[i, j])
            sums[j] += weight[i] * f * f
            sums[k + j] += weight[i] * f
            sums[2 * k + j] += linear_weight[i] * f


@entry(nogil=True)
def _column_sums(counter, factors, weight, linear_weight, out):
    n, n_chunks = len(factors), len(out)
    while True:
        chunk = fetch_add(counter, 0, 1)
        if chunk >= n_chunks:
            break
        first, last = chunk * n // n_chunks, (chunk + 1) * n // n_chunks
        add_sums(factors, first, last, weight, linear_weight, out[chunk].reshape(-1))


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
