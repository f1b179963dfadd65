"""Products with a square matrix on the matrix unit, from three parts of every number: as exact as in float32.

What `rgals.kernels.gram` does with vector units. Gramians gain nothing: reading and splitting a table takes
longer than multiplying it.
"""

from __future__ import annotations

import numpy as np

from rgals.kernels import amx, parts
from rgals.kernels.compile import entry, inner
from rgals.kernels.gather import padded_rows, scatter_rows
from rgals.kernels.loops import zero
from rgals.kernels.parts import GROUP, SIDE, SLOT, TILE
from rgals.kernels.queue import fetch_add
from rgals.kernels.sums import add_sums
from rgals.kernels.workspace import workspace

N_PARTS = 3


@entry(nogil=True)
def pack_matrix(counter, matrix, tiles):
    """Right tiles of a matrix whose number of rows is one of whole groups."""
    n_groups, width = len(matrix) // GROUP, matrix.shape[1]
    flat = matrix.reshape(-1)
    ones = np.ones(max(SIDE, GROUP), matrix.dtype)
    zeros = np.zeros(GROUP + SIDE, matrix.dtype)
    # As `parts.pack_rows` pairs the numbers of a row.
    by_turns = np.empty(len(matrix), np.int64)
    for i in range(len(matrix)):
        by_turns[i] = i // GROUP * GROUP + i % 2 * SIDE + i % GROUP // 2
    while True:
        b = fetch_add(counter, 0, 1)
        if b >= width // SIDE:
            break
        for g in range(n_groups):
            parts.pack(
                tiles, (b * n_groups + g) * SLOT, zeros, GROUP, flat, b * SIDE, ones, 0, ones, 0, zeros, 0,
                by_turns, g * GROUP, width, N_PARTS,
            )  # fmt: skip


@inner
def _multiply_strip(out, start, n_rows, source, width, right_tiles, begins, ends, left_tiles, product, flat):
    """Rows ``start : start + n_rows`` of a product with a matrix of `pack_matrix`, zeros left out."""
    k = out.shape[1]
    n_groups = (width + GROUP - 1) // GROUP
    stride = n_groups * SLOT
    n_blocks = (n_rows + SIDE - 1) // SIDE
    second = len(product) // 2
    for q in range(n_blocks):
        for g in range(n_groups):
            at = g * GROUP
            parts.pack_rows(
                left_tiles, q * stride + g * SLOT, source, q * SIDE * width + at, width, width - at, N_PARTS
            )
    for j in range(0, width // SIDE, 2):
        last = min(j + 1, width // SIDE - 1)
        first = min(begins[j], begins[last]) // GROUP
        end = (max(ends[j], ends[last]) + GROUP - 1) // GROUP
        zero(product, len(product))
        for q in range(0, n_blocks, 2):
            parts.square(
                product, q * TILE, product, second + q * TILE, left_tiles, q * stride + first * SLOT,
                right_tiles, j * stride + first * SLOT, stride, max(end - first, 0), N_PARTS,
                source, 0, begins, 0, 0, 0, 0, 0,
            )  # fmt: skip
        for column in range(j, last + 1):
            at = (column - j) * second
            if (column + 1) * SIDE <= k:
                scatter_rows(flat, start * k + column * SIDE, product, at, k, n_rows)
                continue
            for i in range(n_rows):
                for t in range(k - column * SIDE):
                    out[start + i, column * SIDE + t] = product[at + i * SIDE + t]


@entry(nogil=True)
def multiply(counter, factors, right_tiles, begins, ends, out, weight, linear_weight, sums, n_strip):
    """A product with the matrix of `pack_matrix`, ``n_strip`` rows at once, and the sums of its columns."""
    n, k = factors.shape
    width = (k + SIDE - 1) // SIDE * SIDE
    stride = (width + GROUP - 1) // GROUP * SLOT
    left_tiles = workspace(n_strip // SIDE * stride, factors)
    product = workspace(2 * n_strip * SIDE, factors)
    padded = np.zeros(n_strip * width, factors.dtype)
    flat = out.reshape(-1)
    n_strips = (n + n_strip - 1) // n_strip
    amx.configure()
    while True:
        chunk = fetch_add(counter, 0, 1)
        if chunk >= len(sums):
            break
        for strip in range(chunk * n_strips // len(sums), (chunk + 1) * n_strips // len(sums)):
            start = strip * n_strip
            stop = min(start + n_strip, n)
            source = padded_rows(factors, start, stop, SIDE, padded)
            _multiply_strip(
                out,
                start,
                stop - start,
                source,
                width,
                right_tiles,
                begins,
                ends,
                left_tiles,
                product,
                flat,
            )
            if len(weight):
                add_sums(out, start, stop, weight, linear_weight, sums[chunk].reshape(-1))
    amx.release()
