"""Sums of inverses of the systems of many rows (`rgals.kernels.systems`): RGx's item side needs them."""

from __future__ import annotations

import numpy as np
from numba import njit

from rgals.kernels import tiles, triangles
from rgals.kernels.loops import ends, zero
from rgals.kernels.queue import fetch_add, launch
from rgals.kernels.systems import (
    CHUNK,
    NOT_POSITIVE,
    dual_factor,
    gather_weights,
    is_positive,
    pack_columns,
    pack_rows,
    primal,
)
from rgals.kernels.tiles import LINE
from rgals.kernels.triangles import gram_add, triangle
from rgals.kernels.workspace import workspace


@njit(cache=True, nogil=True)
def _inverse_sum(
    counter, order, indptr, indices, values, factors, d, scale, ridge, row_terms, col_terms, total, info
):  # fmt: skip
    kp, n_rows = len(d), len(order)
    width = LINE // factors.itemsize
    n_blocks = kp // width
    longest = max(kp, CHUNK)
    smallest, largest = ends(d)
    tiny = np.finfo(factors.dtype).tiny
    n_parts = len(total)
    x = workspace(longest * kp, factors)
    c = workspace(triangle(width, n_blocks), factors)
    few = workspace(triangle(width, n_blocks), factors)
    cols = np.empty(longest, np.int32)
    roots = workspace(longest, factors)
    w = workspace(longest, factors)
    linear = workspace(longest, factors)
    inverse = workspace(kp, factors)
    inv_root = workspace(kp, factors)
    rhs = workspace(kp, factors)
    while True:
        part = fetch_add(counter, 0, 1)
        if part >= n_parts:
            break
        zero(few, len(few))
        pending = 0
        for at in range(part, n_rows, n_parts):
            row = order[at]
            begin, end = indptr[row], indptr[row + 1]
            n = end - begin
            if scale[row] == 0.0:
                continue
            if not is_positive(scale[row], ridge[row], smallest, largest, tiny):
                info[row] = NOT_POSITIVE
                continue
            for b in range(n_blocks):
                tiles.inverse_root(inv_root, b * width, d, b * width, scale[row], ridge[row])
            terms = row_terms[row]
            square = scale[row] * scale[row]
            n_positive, n_negative = 0, 1 if n > kp else 0
            if n <= kp:
                n_positive, n_negative = gather_weights(
                    begin, end, indices, values, terms, col_terms, cols, roots, w, linear
                )
            if n_negative > 0:
                # A^-1 = Z^T Z with Z = U^-T D^-1/2, lower triangular.
                info[row] = primal(
                    begin, end, 0, 0, kp, indices, values, factors, terms, col_terms, inv_root, cols,
                    roots, w, linear, x, c, inverse, rhs,
                )  # fmt: skip
                zero(x, kp * kp)
                for b in range(n_blocks):
                    for i in range(width):
                        x[b * kp * width + (b * width + i) * width + i] = inv_root[b * width + i]
                    triangles.panel_solve(c, inverse, x, b * kp * width, b, n_blocks)
                gram_add(few, x, kp * width, kp, n_blocks, square)
            else:
                for b in range(n_blocks):
                    tile = triangle(width, b) + b * width * width
                    for i in range(width):
                        few[tile + i * (width + 1)] += square * inv_root[b * width + i] ** 2
                if n_positive > 0:
                    # A^-1 = D^-1 - Z^T Z with Z = U^-T X D^-1/2 and U^T U = I + X X^T.
                    n_panels = (n + width - 1) // width
                    depth = n_panels * width
                    pack_rows(n_panels, kp, factors, cols, roots, inv_root, x)
                    info[row] = dual_factor(n_panels, kp, x, c, inverse, factors, indices, 0, 0)
                    for j in range(kp):
                        inv_root[j] *= inv_root[j]
                    pack_columns(depth, kp, factors, cols, roots, inv_root, x, depth * width, 1.0)
                    for b in range(n_blocks):
                        triangles.panel_solve(c, inverse, x, b * depth * width, 0, n_panels)
                    gram_add(few, x, depth * width, depth, n_blocks, -square)
            pending += 1
            if pending == 32:
                for i in range(len(few)):
                    total[part, i] += few[i]
                zero(few, len(few))
                pending = 0
        for i in range(len(few)):
            total[part, i] += few[i]


def inverse_sum(
    order, indptr, indices, values, factors, d, scale, ridge, row_terms, col_terms, n_parts, info, n_threads
):  # fmt: skip
    """``sum_r scale_r^2 A_r^-1`` over all rows: what couples the rows of the item side of RGx.

    Rows are dealt to a fixed number of parts, each summed in a fixed order by one thread: in the factors'
    precision over a few rows, in float64 over all. Parameters as in `rgals.kernels.rows.solve`.

    Returns
    -------
    ndarray of float64, shape (n_parts, size of the packed triangle) : their sum is the result.
    """
    width = LINE // factors.itemsize
    total = np.zeros((n_parts, triangle(width, len(d) // width)))
    launch(
        _inverse_sum, n_threads, order, indptr, indices, values, factors, d, scale, ridge, row_terms,
        col_terms, total, info,
    )  # fmt: skip
    return total


def unpack(triangle_: np.ndarray, kp: int, width: int) -> np.ndarray:
    """The symmetric matrix of a packed triangle, for the shared K x K systems in numpy."""
    full = np.zeros((kp, kp))
    at = 0
    for j in range(kp // width):
        rows = (j + 1) * width
        full[:rows, j * width : rows] = triangle_[at : at + rows * width].reshape(rows, width)
        at += rows * width
    upper = np.triu(full)
    return upper + np.triu(upper, 1).T
