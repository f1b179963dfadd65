"""Solve the systems of many rows, each diagonal plus low rank, in parallel.

In the rotated basis (see `rgals.solvers.backends.cpu`) the system of a row with positives ``f_1 .. f_n`` is::

    (diag(D) + sum_k m_k f_k f_k^T) p = b,      b = sum_k l_k f_k + linear s,      D = scale d + ridge

Scaled by ``D^-1/2``, with ``X`` the n x K matrix of rows ``sqrt(m_k) D^-1/2 f_k``, ``w_k = l_k / sqrt(m_k)``
and ``c = D^-1/2 (linear s)``, it reads ``(I + X^T X) x = X^T w + c`` and ``p = D^-1/2 x``. Where no weight is
negative all its eigenvalues are at least 1. It is solved

- in its *dual*, n x n: ``(I + X X^T) z = w - X c``, ``x = c + X^T z`` (Woodbury), where n is below about K;
- in its *primal*, K x K, by Cholesky, where n is larger or a weight is negative.

Rows none of whose positives carries weight are left to `rgals.kernels.shared`.

A row that cannot be solved (D not positive, or a pivot that is not) leaves its code in ``info``.

Numbers of factors are padded to whole blocks of W (`rgals.kernels.tiles`): ``kp``; padded entries are zero.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from rgals._aligned import workspace
from rgals.kernels import gather, tiles
from rgals.kernels.inner import inner
from rgals.kernels.loops import copy, ends, zero
from rgals.kernels.queue import fetch_add, launch
from rgals.kernels.tiles import LINE, gram_add, panel_product, panels_transposed, scaled_copy, triangle

CHUNK = 128  # positives packed at once by the primal solver: with K = 64 they stay in the first-level cache
BATCH = 16  # rows taken from the queue at once
SOON = 128  # positives of the next row that are asked for while this row is solved
NOT_POSITIVE = -1  # info: the diagonal is not positive and finite


@inner
def few(kp):
    """Up to so many positives the dual is formed from plain rows: no panels to transpose, no padding."""
    return min(max(3 * kp // 8, 24), 96)


@inner
def _padded(n, w):
    return (n + w - 1) // w * w


@inner
def is_positive(scale, ridge, smallest, largest, tiny):
    """Whether ``scale d + ridge`` is above ``tiny`` and finite for d from ``smallest`` to ``largest``."""
    return scale * smallest + ridge > tiny and scale * largest + ridge < np.inf


@inner
def is_solvable(row, begin, end, scale, linear_scale, ridge, smallest, largest, tiny, out, info):
    """Whether a row has a system to solve; the others get zeros, those without a positive diagonal a code."""
    if begin == end and linear_scale[row] == 0.0:
        zero(out[row], out.shape[1])  # b = 0
        return False
    if not is_positive(scale[row], ridge[row], smallest, largest, tiny):
        zero(out[row], out.shape[1])
        info[row] = NOT_POSITIVE
        return False
    return True


@inner
def scale_row(inv_root, right, d, s, scale, linear_scale, ridge, n_blocks):
    """``D^-1/2`` of a row and ``c = D^-1/2 (linear s)``."""
    w = LINE // d.itemsize
    for b in range(n_blocks):
        at = b * w
        tiles.inverse_root(inv_root, at, d, at, scale, ridge)
        scaled_copy(right, at, s, at, inv_root, at, linear_scale)


@inner
def gather_weights(start, stop, indices, values, terms, col_terms, cols, roots, w, linear):
    """Columns, ``sqrt(|m_k|)``, ``l_k / sqrt(|m_k|)`` and ``l_k`` of the positives ``start:stop``, padded.

    A positive without weight has root 0 and w 0: only its ``linear`` counts. ``col_terms`` is empty where it
    is all ones.

    Returns
    -------
    (n_positive, n_negative) : how many weights are > 0 and < 0.
    """
    n = stop - start
    zero = roots.dtype.type(0.0)
    one = roots.dtype.type(1.0)
    n_positive = 0
    n_negative = 0
    same = terms[0] + terms[1]
    if len(values) == 0 and len(col_terms) == 0 and same > zero:
        # All positives of the row count alike: one square root and one division for all.
        slope = terms[2] + terms[3]
        root = np.sqrt(same)
        for i in range(n):
            cols[i] = indices[start + i]
            roots[i] = root
            linear[i] = slope
            w[i] = slope / root
        n_positive = n
        start = stop
    for i in range(stop - start):
        col = indices[start + i]
        v = values[start + i] if len(values) else one
        if len(col_terms):
            m = v * (terms[0] * col_terms[col, 0]) + terms[1] * col_terms[col, 1]
            slope = v * (terms[2] * col_terms[col, 2]) + terms[3] * col_terms[col, 3]
        else:
            m = v * terms[0] + terms[1]
            slope = v * terms[2] + terms[3]
        n_positive += m > zero
        n_negative += m < zero
        root = np.sqrt(abs(m))
        cols[i] = col
        roots[i] = root
        linear[i] = slope
        w[i] = slope / root if m != zero else zero
        if m < zero:
            roots[i] = -root
    for i in range(n, _padded(n, LINE // roots.itemsize)):
        cols[i] = cols[0]
        roots[i] = zero
        linear[i] = zero
        w[i] = zero
    return n_positive, n_negative


@inner
def pack_columns(n, kp, factors, cols, roots, inv_root, x, stride, sign):
    """Panels of columns: row i of every panel from positive i where ``sign * root > 0``, zero elsewhere."""
    w = LINE // x.itemsize
    gather.gather_scaled(x, w, stride, factors, inv_root, cols, roots, kp, n, kp // w, sign)


@inner
def pack_rows(n_panels, kp, factors, cols, roots, inv_root, x):
    """Panels of rows: W positives side by side, step j their factor j."""
    w = LINE // x.itemsize
    for q in range(n_panels):
        if q + 1 < n_panels:
            gather.prefetch_rows(factors, cols, (q + 1) * w, kp, w, kp // w)
        for b in range(kp // w):
            gather.gather_transposed(
                x, (q * kp + b * w) * w, factors, b * w, inv_root, b * w, cols, q * w, roots, q * w, kp
            )


@inner
def _identity(c, n_blocks):
    w = LINE // c.itemsize
    zero(c, triangle(w, n_blocks))
    for j in range(n_blocks):
        at = triangle(w, j) + j * w * w
        for i in range(w):
            c[at + i * (w + 1)] = 1.0


@inner
def add_unweighted(n, kp, factors, cols, roots, linear, inv_root, rhs):
    """Linear terms of the positives that carry no weight."""
    for i in range(n):
        if roots[i] == 0.0:
            for j in range(kp):
                rhs[j] += linear[i] * inv_root[j] * factors[cols[i] * kp + j]


@inner
def gram_add_and_ask(c, panels, stride, depth, n_blocks, factor, source, kp, indices, begin, n):
    """`tiles.gram_add`, and on the way ask for the ``n`` rows of ``source`` that will be packed next."""
    lines = kp // (LINE // source.itemsize)
    for j in range(n_blocks):
        tiles.gram_column(c, panels, stride, depth, j, factor)
        first, last = j * n // n_blocks, (j + 1) * n // n_blocks
        gather.prefetch_rows(source, indices, begin + first, kp, last - first, lines)


@inner
def _primal(
    begin, end, then, n_then, kp, indices, values, factors, terms, col_terms, inv_root, cols, roots, w,
    linear, x, c, inverse, rhs
):  # fmt: skip
    """Factor ``I + X^T X`` in ``c`` and add ``X^T w`` to ``rhs``; ask for ``n_then`` positives at ``then``.

    Returns 0 or the failing pivot.
    """
    width = LINE // x.itemsize
    n_blocks = kp // width
    stride = CHUNK * width
    _identity(c, n_blocks)
    for start in range(begin, end, CHUNK):
        stop = min(start + CHUNK, end)
        n = stop - start
        depth = (n + 3) // 4 * 4
        n_positive, n_negative = gather_weights(
            start, stop, indices, values, terms, col_terms, cols, roots, w, linear
        )
        for sign in (1.0, -1.0):
            if (n_positive if sign > 0 else n_negative) == 0:
                continue
            pack_columns(depth, kp, factors, cols, roots, inv_root, x, stride, sign)
            soon, n_soon = (stop, min(CHUNK, end - stop)) if stop < end else (then, n_then)
            gram_add_and_ask(c, x, stride, depth, n_blocks, sign, factors, kp, indices, soon, n_soon)
            for b in range(n_blocks):
                panel_product(rhs, b * width, x, b * stride, w, 0, depth, 1.0)
        if n_positive + n_negative < n:
            add_unweighted(n, kp, factors, cols, roots, linear, inv_root, rhs)
    return tiles.cholesky(c, inverse, n_blocks)


@inner
def _dual_factor(n_panels, kp, x, c, inverse, factors, indices, then, n_then):
    """Factor ``I + X X^T`` in ``c`` from panels of rows; ask for ``n_then`` positives at ``then``.

    Returns 0 or the failing pivot.
    """
    width = LINE // x.itemsize
    _identity(c, n_panels)
    gram_add_and_ask(c, x, kp * width, kp, n_panels, 1.0, factors, kp, indices, then, n_then)
    return tiles.cholesky(c, inverse, n_panels)


@inner
def _dual(
    n, kp, shifted, factors, indices, then, n_then, inv_root, cols, roots, w, x, c, inverse, z, solution, rhs
):  # fmt: skip
    """From ``c`` in ``solution`` and ``rhs``: solution ``x = c + X^T z`` and right-hand side ``c + X^T w``.

    ``shifted`` says whether ``c`` is not zero. Asks for ``n_then`` positives at ``then``. Returns 0 or the
    failing pivot.
    """
    width = LINE // x.itemsize
    n_blocks = kp // width
    n_panels = (n + width - 1) // width
    for i in range(n_panels * width):
        z[i] = w[i]
    if n <= few(kp):
        depth = (n + 3) // 4 * 4
        half = n_then // 2
        gather.gather_scaled(x, kp, width, factors, inv_root, cols, roots, kp, depth, n_blocks, 1.0)
        gather.prefetch_rows(factors, indices, then, kp, half, n_blocks)
        _identity(c, n_panels)
        tiles.rows_gram_add(c, x, n, n_blocks)
        gather.prefetch_rows(factors, indices, then + half, kp, n_then - half, n_blocks)
        if shifted:
            tiles.rows_product(z, x, solution, n, n_blocks, -1.0)
        code = tiles.cholesky(c, inverse, n_panels)
        tiles.cholesky_solve(c, inverse, z, n_panels)
        tiles.rows_transposed(solution, rhs, x, z, w, n, n_blocks)
        return code
    stride = kp * width
    pack_rows(n_panels, kp, factors, cols, roots, inv_root, x)
    if shifted:
        for q in range(n_panels):
            panel_product(z, q * width, x, q * stride, solution, 0, kp, -1.0)
    code = _dual_factor(n_panels, kp, x, c, inverse, factors, indices, then, n_then)
    tiles.cholesky_solve(c, inverse, z, n_panels)
    for b in range(n_blocks):
        square = b * width * width
        panels_transposed(solution, b * width, x, square, z, 0, stride, n_panels, 1.0)
        panels_transposed(rhs, b * width, x, square, w, 0, stride, n_panels, 1.0)
    return code


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


@njit(cache=True, nogil=True)
def _solve(
    counter, order, indptr, indices, values, factors, d, s, scale, linear_scale, ridge, row_terms, col_terms,
    out, value, info,
):  # fmt: skip
    k, kp, n_rows = out.shape[1], len(d), len(order)
    width = LINE // factors.itemsize
    n_blocks = kp // width
    longest = max(kp, CHUNK)
    smallest, largest = ends(d)
    tiny = np.finfo(factors.dtype).tiny
    flat = out.reshape(-1)
    x = workspace(longest * kp, factors)
    c = workspace(triangle(width, n_blocks), factors)
    cols = np.empty(longest, np.int32)
    roots = workspace(longest, factors)
    w = workspace(longest, factors)
    linear = workspace(longest, factors)
    z = workspace(kp, factors)
    inverse = workspace(kp, factors)
    inv_root = workspace(kp, factors)
    rhs = workspace(kp, factors)
    solution = workspace(kp, factors)
    total = np.zeros(1, factors.dtype)
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
            n_positive, n_negative = 0, 1
            if n <= kp and (n <= few(kp) or n <= kp - width):
                n_positive, n_negative = gather_weights(
                    begin, end, indices, values, terms, col_terms, cols, roots, w, linear
                )
            if n_negative > 0:
                code = _primal(
                    begin, end, then, n_then, kp, indices, values, factors, terms, col_terms, inv_root,
                    cols, roots, w, linear, x, c, inverse, rhs,
                )  # fmt: skip
                copy(solution, rhs)
                if code == 0:
                    tiles.cholesky_solve(c, inverse, solution, n_blocks)
            else:
                if n_positive < n:
                    add_unweighted(n, kp, factors, cols, roots, linear, inv_root, rhs)
                copy(solution, rhs)
                if n_positive > 0:
                    code = _dual(
                        n, kp, linear_scale[row] != 0.0 or n_positive < n, factors, indices, then, n_then,
                        inv_root, cols, roots, w, x, c, inverse, z, solution, rhs,
                    )  # fmt: skip
            tiles.dot(total, 0, rhs, 0, solution, 0, n_blocks)
            value[row] = total[0]
            info[row] = code
            for j in range(k):
                out[row, j] = solution[j] * inv_root[j]


def solve(
    order, indptr, indices, values, factors, d, s, scale, linear_scale, ridge, row_terms, col_terms, out,
    value, info, n_threads,
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
        Receives 0, `NOT_POSITIVE`, or the number of a failing pivot.
    n_threads : int
    """
    launch(
        _solve, n_threads, order, indptr, indices, values, factors, d, s, scale, linear_scale, ridge,
        row_terms, col_terms, out, value, info,
    )  # fmt: skip


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
                info[row] = _primal(
                    begin, end, 0, 0, kp, indices, values, factors, terms, col_terms, inv_root, cols,
                    roots, w, linear, x, c, inverse, rhs,
                )  # fmt: skip
                zero(x, kp * kp)
                for b in range(n_blocks):
                    for i in range(width):
                        x[b * kp * width + (b * width + i) * width + i] = inv_root[b * width + i]
                    tiles.panel_solve(c, inverse, x, b * kp * width, b, n_blocks)
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
                    info[row] = _dual_factor(n_panels, kp, x, c, inverse, factors, indices, 0, 0)
                    for j in range(kp):
                        inv_root[j] *= inv_root[j]
                    pack_columns(depth, kp, factors, cols, roots, inv_root, x, depth * width, 1.0)
                    for b in range(n_blocks):
                        tiles.panel_solve(c, inverse, x, b * depth * width, 0, n_panels)
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
    precision over a few rows, in float64 over all. Parameters as in `solve`.

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
