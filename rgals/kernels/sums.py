"""Weighted sums over the rows of a table, in float64 and a fixed order."""

import numpy as np

from rgals.kernels.compile import entry
from rgals.kernels.library import kernel
from rgals.kernels.queue import spread


@kernel("pdddii")
def add_sums(e, table, weight, linear_weight, sums, k, n):
    """Add the three sums of `column_sums` over ``n`` rows; ``sums`` holds one after the other."""
    # sum_i w_i f_i^2, sum_i w_i f_i and sum_i v_i f_i of some columns at a time, down all rows, in float64.
    for v, at in e.pieces(k):
        wide = v.wide()
        squares, plain, linear = slots = wide.variables(3)
        with e.loop(n) as row:
            numbers = wide.widened(v.view(table)[at + row * k])
            weighted = (wide.view(weight).spread(row) * numbers).rounded()
            squares += weighted * numbers
            plain += weighted
            linear += wide.view(linear_weight).spread(row) * numbers
        for number, slot in enumerate(slots):
            to = at + k * number
            wide.view(sums)[to] = wide.view(sums)[to] + slot


@entry(nogil=True)
def _column_sums(first, stop, factors, weight, linear_weight, out):
    n, k = factors.shape
    for chunk in range(first, stop):
        at, last = chunk * n // len(out), (chunk + 1) * n // len(out)
        add_sums(factors, at * k, weight, at, linear_weight, at, out, chunk * 3 * k, k, last - at)


def column_sums(
    factors: np.ndarray, weight: np.ndarray, linear_weight: np.ndarray, n_threads: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Diagonal of ``F^T diag(weight) F``, ``F^T weight`` and ``F^T linear_weight``, summed in float64."""
    # Sixteen parts, whatever the number of threads: the order of the sums is fixed.
    partial = np.zeros((16, 3, factors.shape[1]))
    spread(_column_sums, len(partial), n_threads, factors, weight, linear_weight, partial)
    squares, sums, linear = partial.sum(axis=0)
    return squares, sums, linear
