"""Gramians and products of whole tables on the matrix unit, three parts each: as exact as in float32.

What `rgals.kernels.gram` does with vector units, in the same pieces.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from rgals.kernels import amx, parts
from rgals.kernels.gather import padded_rows, scatter_rows
from rgals.kernels.inner import inner
from rgals.kernels.loops import zero
from rgals.kernels.parts import GROUP, SIDE, SLOT, TILE
from rgals.kernels.queue import fetch_add
from rgals.kernels.sums import add_sums
from rgals.kernels.tiles import widen_add
from rgals.kernels.workspace import workspace

N_PARTS = 3
AT_ONCE = 4  # groups multiplied at once: two right tiles stay in the first-level cache for all left ones


@inner
def _right_tiles(tiles, rows, first, n_blocks, stride, n_groups, roots, numbers, ones, zeros, width):
    """Right tiles of ``n_blocks`` blocks of columns from column ``first`` on."""
    for b in range(n_blocks):
        for g in range(n_groups):
            parts.pack(
                tiles, b * stride + g * SLOT, zeros, GROUP, rows, first + b * SIDE, ones, 0, roots, g * GROUP,
                zeros, 0, numbers, g * GROUP, width, N_PARTS,
            )  # fmt: skip


@inner
def _left_tiles(left, right, n_blocks, stride, n_groups):
    for b in range(n_blocks):
        for g in range(n_groups):
            parts.transpose(left, b * stride + g * SLOT, right, b * stride + g * SLOT, N_PARTS)


@njit(cache=True, nogil=True)
def partial_gram(counter, factors, weight, uniform, gram, n_rows, n_columns):
    """Gramians of blocks of ``n_rows`` rows, summed in float64, for tiles of ``n_columns`` columns."""
    n, k = factors.shape
    width = (k + SIDE - 1) // SIDE * SIDE
    n_tiles = (width + n_columns - 1) // n_columns
    n_pairs = n_tiles * (n_tiles + 1) // 2
    n_chunks = len(gram) // n_pairs
    side = min(n_columns, width)
    n_blocks = (n + n_rows - 1) // n_rows
    stride = n_rows // GROUP * SLOT
    second = (side // SIDE + 1) * TILE
    left_tiles = workspace((side // SIDE + 1) * stride, factors)
    right_tiles = workspace((side // SIDE + 1) * stride, factors)
    product = workspace(2 * second, factors)
    padded = np.zeros(n_rows * width, factors.dtype)
    ones = np.ones(SIDE, factors.dtype)
    zeros = np.zeros(GROUP + SIDE, factors.dtype)
    numbers = np.empty(n_rows, np.int64)
    roots = workspace(n_rows, factors)
    flat = factors.reshape(-1)
    amx.configure()
    while True:
        task = fetch_add(counter, 0, 1)
        if task >= n_chunks * n_pairs:
            break
        chunk, pair = task // n_pairs, task % n_pairs
        left = 0
        while pair >= n_tiles - left:
            pair -= n_tiles - left
            left += 1
        a, b = left * n_columns, (left + pair) * n_columns
        n_left, n_right = (min(side, width - a)) // SIDE, (min(side, width - b)) // SIDE
        for block in range(chunk * n_blocks // n_chunks, (chunk + 1) * n_blocks // n_chunks):
            start = block * n_rows
            depth = min(n_rows, n - start)
            n_groups = (depth + GROUP - 1) // GROUP
            for i in range(n_groups * GROUP):
                numbers[i] = min(i, depth - 1)
                roots[i] = np.sqrt(weight[0 if uniform else start + i]) if i < depth else 0.0
            rows = padded_rows(factors, start, start + depth, 1, padded)
            if pair > 0:
                _right_tiles(
                    right_tiles, rows, a, n_left, stride, n_groups, roots, numbers, ones, zeros, width
                )
                _left_tiles(left_tiles, right_tiles, n_left, stride, n_groups)
            _right_tiles(right_tiles, rows, b, n_right, stride, n_groups, roots, numbers, ones, zeros, width)
            if pair == 0:
                _left_tiles(left_tiles, right_tiles, n_left, stride, n_groups)
            # The next block's rows are asked for meanwhile, first those of the one tile, then of the other.
            n_soon = min(n_rows, n - start - depth) if k == width else 0
            for i in range(n_soon):
                numbers[i] = start + depth + i
            asked, at = 0, 0
            for j in range(0, n_right, 2):
                zero(product, len(product))
                for deep in range(0, n_groups, AT_ONCE):
                    n_deep = min(AT_ONCE, n_groups - deep)
                    at_left, at_right = deep * SLOT, j * stride + deep * SLOT
                    for i in range(0, j if pair == 0 else n_left, 2):
                        column = a if asked < n_soon else b
                        now = asked if asked < n_soon else asked - n_soon
                        parts.square(
                            product, i * TILE, product, second + i * TILE, left_tiles, at_left + i * stride,
                            right_tiles, at_right, stride, n_deep, N_PARTS, flat, column, numbers, now,
                            n_soon - now, 1, side // SIDE, k,
                        )  # fmt: skip
                        asked += n_deep
                    if pair == 0:
                        parts.diagonal(
                            product, j * TILE, product, second + j * TILE, left_tiles, at_left + j * stride,
                            right_tiles, at_right, stride, n_deep, N_PARTS, flat, a, numbers, asked,
                            n_soon - asked, 1, side // SIDE, k,
                        )  # fmt: skip
                        asked += n_deep
                for column in range(j, min(j + 2, n_right)):
                    n_numbers = (column + 1 if pair == 0 else n_left) * TILE
                    widen_add(product, (column - j) * second, gram[task], at, n_numbers // SIDE)
                    at += n_numbers
    amx.release()


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
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
                add_sums(out, start, stop, weight, linear_weight, sums[chunk])
    amx.release()
