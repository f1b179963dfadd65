"""Solve the systems of many rows (`rgals.kernels.systems`) exactly, in parallel.

Rows none of whose positives carries weight are left to `rgals.kernels.shared`. Well conditioned rows are
solved by conjugate gradients (`rgals.kernels.krylov`), others by a factorisation; where a processor
multiplies rounded numbers much faster, it starts from a rough Gramian (`rgals.kernels.refine`). A row that
cannot be solved (its diagonal not positive, or a pivot that is not) leaves its code in ``info``.
"""

from __future__ import annotations

import numpy as np

from rgals.kernels import amx, gather, krylov, refine, tiles, triangles
from rgals.kernels.compile import entry, inner
from rgals.kernels.loops import copy, ends
from rgals.kernels.queue import fetch_add, launch
from rgals.kernels.rough import memory as memory_of_tiles
from rgals.kernels.systems import (
    CHUNK,
    add_unweighted,
    dual,
    few,
    gather_weights,
    heaviest,
    is_solvable,
    primal,
    scale_row,
)
from rgals.kernels.tiles import LINE
from rgals.kernels.triangles import triangle
from rgals.kernels.workspace import workspace

BATCH = 16  # rows taken from the queue at once
SOON = 128  # positives of the next row that are asked for while this row is solved


@inner
def look_ahead(
    at, stop, order, indptr, indices, scale, linear_scale, ridge, row_terms, out, n_factors, value, info
):
    """Ask for what the rows after ``order[at]`` will read: each stage needs what the one before has brought.

    Returns
    -------
    (start, n) : the next row's first positives, whose factors are to be asked for.
    """
    if at + 3 < stop:
        row = order[at + 3]
        gather.prefetch(indptr, row)
        gather.prefetch(scale, row)
        gather.prefetch(linear_scale, row)
        gather.prefetch(ridge, row)
        gather.prefetch(row_terms, row)
    if at + 2 < stop:
        row = order[at + 2]
        gather.prefetch(indices, indptr[row])
        gather.prefetch(value, row)
        gather.prefetch(info, row)
        gather.claim_row(out, row * n_factors, n_factors // (LINE // out.itemsize))
    if at + 1 == stop:
        return np.int64(0), np.int64(0)
    row = order[at + 1]
    return indptr[row], min(indptr[row + 1] - indptr[row], SOON)


def longest_row(order, indptr):
    """The largest number of positives that a row has: how much memory a thread needs."""
    return np.int64((indptr[order + 1] - indptr[order]).max(initial=0))


@inner
def dual_up_to(kp, width):
    """Up to so many positives the dual of a row costs less than its primal."""
    return min(kp, max(few(kp), kp - width))


@inner
def _factorise(
    begin, end, then, n_then, indices, values, factors, d, s, scale, linear_scale, ridge, terms, col_terms,
    weight, inv_root, cols, roots, w, linear, x, c, of_tiles, inverse, rhs, z, solution, scaled, product,
    rest, right, total, rough,
):  # fmt: skip
    """Solve a row by the factorisation that costs least; ``solution``, ``rhs`` and a code come out.

    ``rough``: True or None; with None numba drops what is not used, and nobody waits for its compilation.
    """
    n, kp = end - begin, len(d)
    width = LINE // factors.itemsize
    n_blocks = kp // width
    first_parts = 3  # none: from float32 at once
    if rough is not None and n >= refine.FROM:
        first_parts = refine.first_parts(weight, scale)
    is_short = n <= dual_up_to(kp, width)
    n_positive, n_negative = 0, 1
    if is_short:
        n_positive, n_negative = gather_weights(
            begin, end, indices, values, terms, col_terms, cols, roots, w, linear
        )
    if n_negative == 0:
        if n_positive < n:
            add_unweighted(n, kp, factors, cols, roots, linear, inv_root, rhs)
        copy(solution, rhs)
        if n_positive == 0:
            return 0
        shifted = linear_scale != 0.0 or n_positive < n
        if rough is not None:
            for n_parts in range(first_parts, 3):
                code = refine.dual(
                    n, kp, shifted, factors, indices, then, n_then, inv_root, cols, roots, w, x, of_tiles, c,
                    inverse, z, right, rest, product, solution, rhs, total, n_parts,
                )  # fmt: skip
                if code != refine.ROUGH:
                    return code
        return dual(
            n, kp, shifted, factors, indices, then, n_then, inv_root, cols, roots, w, x, c, inverse, z,
            solution, rhs,
        )  # fmt: skip
    if rough is not None and not is_short:
        for n_parts in range(first_parts, 3):
            code = refine.primal(
                begin, end, then, n_then, kp, indices, values, factors, terms, col_terms, inv_root, cols,
                roots, w, linear, of_tiles, c, inverse, rhs, solution, scaled, product, rest, total, n_parts,
            )  # fmt: skip
            if code != refine.ROUGH:
                return code
            scale_row(inv_root, rhs, d, s, scale, linear_scale, ridge, n_blocks)
    code = primal(
        begin, end, then, n_then, kp, indices, values, factors, terms, col_terms, inv_root, cols, roots, w,
        linear, x, c, inverse, rhs,
    )  # fmt: skip
    copy(solution, rhs)
    if code == 0:
        triangles.cholesky_solve(c, inverse, solution, n_blocks)
    return code


@entry(nogil=True)
def _solve(
    counter, order, indptr, indices, values, factors, d, s, scale, linear_scale, ridge, row_terms, col_terms,
    out, value, info, longest, iterate, rough, unit,
):  # fmt: skip
    k, kp, n_rows = out.shape[1], len(d), len(order)
    width = LINE // factors.itemsize
    n_blocks = kp // width
    if unit:
        amx.configure()
    most = krylov.capacity(kp, factors.itemsize)
    longest = max(kp, CHUNK, krylov.room(longest, kp, factors.itemsize))
    smallest, largest = ends(d)
    eps = np.finfo(factors.dtype).eps
    tiny = np.finfo(factors.dtype).tiny
    flat = out.reshape(-1)
    x = workspace(longest * kp, factors)
    c = workspace(triangle(width, n_blocks + n_blocks % 2), factors)
    cols = np.empty(longest, np.int32)
    roots = workspace(longest, factors)
    w = workspace(longest, factors)
    linear = workspace(longest, factors)
    z = workspace(kp, factors)
    inverse = workspace(kp, factors)
    inv_root = workspace(kp, factors)
    rhs = workspace(kp, factors)
    solution = workspace(kp, factors)
    scaled = workspace(kp, factors)
    product = workspace(kp, factors)
    rest = workspace(kp, factors)
    right = workspace(kp, factors)
    of_tiles = workspace(memory_of_tiles(n_blocks) if rough is not None else 0, factors)
    sign = workspace(longest, factors)
    total = np.zeros(2, factors.dtype)
    while True:
        first = fetch_add(counter, 0, BATCH)
        if first >= n_rows:
            break
        stop_at = min(first + BATCH, n_rows)
        for at in range(first, stop_at):
            row = order[at]
            begin, end = indptr[row], indptr[row + 1]
            n = end - begin
            if not is_solvable(
                row, begin, end, scale, linear_scale, ridge, smallest, largest, tiny, out, info
            ):
                continue
            scale_row(inv_root, rhs, d, s, scale[row], linear_scale[row], ridge[row], n_blocks)
            then, n_then = look_ahead(
                at, stop_at, order, indptr, indices, scale, linear_scale, ridge, row_terms, flat, k,
                value, info,
            )  # fmt: skip
            terms = row_terms[row]
            code = 0
            weight = 0.0
            if n >= krylov.FROM:
                weight = heaviest(begin, end, indices, values, terms, col_terms)
            tried = iterate and krylov.pays(n, kp, most, rough is not None, weight, scale[row], eps)
            if tried and krylov.solve(
                begin, end, then, n_then, most, indices, values, factors, terms, col_terms, inv_root, cols,
                roots, w, linear, sign, x, rhs, right, solution, rest, scaled, product, total,
            ):  # fmt: skip
                copy(rhs, right)
            else:
                code = _factorise(
                    begin, end, then, n_then, indices, values, factors, d, s, scale[row], linear_scale[row],
                    ridge[row], terms, col_terms, weight, inv_root, cols, roots, w, linear, x, c, of_tiles,
                    inverse, rhs, z, solution, scaled, product, rest, right, total, rough,
                )  # fmt: skip
            tiles.dot(total, 0, rhs, 0, solution, 0, n_blocks)
            value[row] = total[0]
            info[row] = code
            for j in range(k):
                out[row, j] = solution[j] * inv_root[j]
    if unit:
        amx.release()


def solve(
    order, indptr, indices, values, factors, d, s, scale, linear_scale, ridge, row_terms, col_terms, out,
    value, info, n_threads, rough=None, iterate=True,
):  # fmt: skip
    """Solve all rows; results in the rotated basis.

    Parameters
    ----------
    order : ndarray of int64
        The rows, most expensive first.
    indptr, indices, values
        CSR arrays of the positives; ``values`` is empty for ones.
    factors : ndarray, shape (n_fixed * kp,)
        The fixed side, rotated and padded, row after row.
    d, s : ndarray of the factors' dtype, shape (kp,)
        Eigenvalues of the Gramian (padded with a positive number) and the all-pairs linear term (padded with
        0).
    scale, linear_scale, ridge : ndarray of float64, shape (n_rows,)
    row_terms, col_terms : ndarray of the factors' dtype, shapes (n_rows, 4) and (n_fixed, 4)
        ``col_terms`` of shape (0, 4) stands for ones.
    out : ndarray, shape (n_rows, K)
        Receives the solutions.
    value : ndarray of float64, shape (n_rows,)
        Receives ``b . p``: minus the row's part of the objective.
    info : ndarray of int32, shape (n_rows,)
        Receives 0, `rgals.kernels.systems.NOT_POSITIVE`, or the number of a failing pivot.
    n_threads : int
    rough : bool or None
        Whether rows of many positives start from a rough Gramian (`rgals.kernels.refine`); None: where the
        processor has a unit for that.
    iterate : bool
        Whether rows that take few steps are solved by conjugate gradients (`rgals.kernels.krylov`).
    """
    unit = amx.ready()
    rough = unit if rough is None else rough and (unit or not amx.COMPILED)
    # None and not False: `_factorise` is then compiled without that path.
    rough = True if rough and factors.dtype == np.float32 and len(d) >= 32 else None
    launch(
        _solve, n_threads, order, indptr, indices, values, factors, d, s, scale, linear_scale, ridge,
        row_terms, col_terms, out, value, info, longest_row(order, indptr), iterate, rough,
        unit and rough is not None,
    )  # fmt: skip
