"""Sums over the systems of many rows (`rgals.kernels.systems`), of inverses and of solutions.

They are what couples the rows of RGx's item side. A row is factored once for both sums.
"""

from __future__ import annotations

import numpy as np

from rgals.kernels import triangles
from rgals.kernels.compile import entry
from rgals.kernels.loops import copy, ends, zero
from rgals.kernels.queue import fetch_add, launch
from rgals.kernels.rows import SOON
from rgals.kernels.systems import (
    CHUNK,
    NOT_POSITIVE,
    add_unweighted,
    dual,
    gather_weights,
    is_positive,
    pack_columns,
    primal,
    scale_row,
)
from rgals.kernels.tiles import LINE
from rgals.kernels.triangles import gram_add, triangle
from rgals.kernels.workspace import workspace


@entry(nogil=True)
def _coupling_sums(
    counter, order, indptr, indices, values, factors, d, s, scale, linear_scale, ridge, row_terms, col_terms,
    inverses, solutions, info
):  # fmt: skip
    kp, n_rows = len(d), len(order)
    width = LINE // factors.itemsize
    n_blocks = kp // width
    longest = max(kp, CHUNK)
    smallest, largest = ends(d)
    tiny = np.finfo(factors.dtype).tiny
    n_parts = len(inverses)
    x = workspace(longest * kp, factors)
    c = workspace(triangle(width, n_blocks), factors)
    few = workspace(triangle(width, n_blocks), factors)
    cols = np.empty(longest, np.int32)
    roots = workspace(longest, factors)
    w = workspace(longest, factors)
    linear = workspace(longest, factors)
    z = workspace(kp, factors)
    inverse = workspace(kp, factors)
    inv_root = workspace(kp, factors)
    rhs = workspace(kp, factors)
    solution = workspace(kp, factors)
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
            following = order[min(at + n_parts, n_rows - 1)]
            then = indptr[following]
            n_then = min(indptr[following + 1] - then, SOON)
            scale_row(inv_root, rhs, d, s, scale[row], linear_scale[row], ridge[row], n_blocks)
            terms = row_terms[row]
            square = scale[row] * scale[row]
            n_positive, n_negative = 0, 1 if n > kp else 0
            if n <= kp:
                n_positive, n_negative = gather_weights(
                    begin, end, indices, values, terms, col_terms, cols, roots, w, linear
                )
            if n_negative > 0:
                # A^-1 = Z^T Z with Z = U^-T D^-1/2, lower triangular.
                code = primal(
                    begin, end, then, n_then, kp, indices, values, factors, terms, col_terms, inv_root, cols,
                    roots, w, linear, x, c, inverse, rhs,
                )  # fmt: skip
                copy(solution, rhs)
                if code == 0:
                    triangles.cholesky_solve(c, inverse, solution, n_blocks)
                info[row] = code
                zero(x, kp * kp)
                for b in range(n_blocks):
                    for i in range(width):
                        x[b * kp * width + (b * width + i) * width + i] = inv_root[b * width + i]
                    triangles.panel_solve(c, inverse, x, b * kp * width, b, n_blocks)
                for b in range(n_blocks):
                    gram_add(few, x[b * width * width :], kp * width, width, b + 1, square)
            else:
                for b in range(n_blocks):
                    tile = triangle(width, b) + b * width * width
                    for i in range(width):
                        few[tile + i * (width + 1)] += square * inv_root[b * width + i] ** 2
                if n_positive < n:
                    add_unweighted(n, kp, factors, cols, roots, linear, inv_root, rhs)
                copy(solution, rhs)
                if n_positive > 0:
                    # A^-1 = D^-1 - Z^T Z with Z = U^-T X D^-1/2 and U^T U = I + X X^T.
                    shifted = linear_scale[row] != 0.0 or n_positive < n
                    info[row] = dual(
                        n, kp, shifted, factors, indices, then, n_then, inv_root, cols, roots, w, x, c,
                        inverse, z, solution, rhs,
                    )  # fmt: skip
                    n_panels = (n + width - 1) // width
                    depth = n_panels * width
                    for j in range(kp):
                        z[j] = inv_root[j] * inv_root[j]
                    pack_columns(depth, kp, factors, cols, roots, z, x, depth * width, 1.0)
                    for b in range(n_blocks):
                        triangles.panel_solve(c, inverse, x, b * depth * width, 0, n_panels)
                    gram_add(few, x, depth * width, n, n_blocks, -square)
            for j in range(kp):
                solutions[part, j] += scale[row] * (solution[j] * inv_root[j])
            pending += 1
            if pending == 32:
                for i in range(len(few)):
                    inverses[part, i] += few[i]
                zero(few, len(few))
                pending = 0
        for i in range(len(few)):
            inverses[part, i] += few[i]


def coupling_sums(
    order, indptr, indices, values, factors, d, s, scale, linear_scale, ridge, row_terms, col_terms, n_parts,
    info, n_threads
):  # fmt: skip
    """``sum_r scale_r^2 A_r^-1`` and ``sum_r scale_r A_r^-1 b_r`` over all rows.

    Rows are dealt to a fixed number of parts, each summed in a fixed order by one thread: inverses in the
    factors' precision over a few rows, in float64 over all. Parameters as in `rgals.kernels.rows.solve`.

    Returns
    -------
    inverses : ndarray of float64, shape (kp, kp)
    solutions : ndarray of float64, shape (kp,)
    """
    kp = len(d)
    width = LINE // factors.itemsize
    inverses = np.zeros((n_parts, triangle(width, kp // width)))
    solutions = np.zeros((n_parts, kp))
    launch(
        _coupling_sums, n_threads, order, indptr, indices, values, factors, d, s, scale, linear_scale, ridge,
        row_terms, col_terms, inverses, solutions, info,
    )  # fmt: skip
    return unpack(inverses.sum(axis=0), kp, width), solutions.sum(axis=0)


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
