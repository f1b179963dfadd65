"""Weighted sums over the rows of a table, in float64 and a fixed order."""

from __future__ import annotations

import numpy as np
from numba import types

from rgals.kernels.compile import entry, inner
from rgals.kernels.queue import fetch_add, launch
from rgals.kernels.vectors import LINE, Emitter, kernel


@kernel("ppppiii")
def _add_blocks(e, table, weight, linear_weight, sums, k, n, n_blocks):
    """The three sums of `column_sums` for whole blocks of columns, in float64."""
    # sum_i w_i f_i^2, sum_i w_i f_i and sum_i v_i f_i of W columns at a time, down all rows, in float64.
    wide = Emitter(e.builder, types.float64, e.width)
    weight, linear_weight, sums = (wide.view(p) for p in (weight, linear_weight, sums))
    with e.blocks(n_blocks) as at:
        squares, plain, linear = slots = wide.variables(3)
        with e.loop(n) as row:
            numbers = wide.widened(table[at + row * k])
            weighted = (weight.spread(row) * numbers).rounded()
            squares += weighted * numbers
            plain += weighted
            linear += linear_weight.spread(row) * numbers
        for number, slot in enumerate(slots):
            to = at + k * number
            sums[to] = sums[to] + slot


@inner
def add_sums(factors, start, stop, weight, linear_weight, sums):
    """Add the three sums of `column_sums` over some rows; ``sums`` holds one after the other."""
    k = factors.shape[1]
    whole = k // (LINE // factors.itemsize)
    _add_blocks(factors, start * k, weight, start, linear_weight, start, sums, 0, k, stop - start, whole)
    # The columns of the last block, where it is not whole.
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
    """Diagonal of ``F^T diag(weight) F``, ``F^T weight`` and ``F^T linear_weight``, summed in float64."""
    # Sixteen parts, whatever the number of threads: the order of the sums is fixed.
    partial = np.zeros((16, 3, factors.shape[1]))
    launch(_column_sums, n_threads, factors, weight, linear_weight, partial)
    squares, sums, linear = partial.sum(axis=0)
    return squares, sums, linear
