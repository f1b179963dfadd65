"""The system of one row, diagonal plus low rank: its weights, its packing, its factorisations.

In the rotated basis (see `rgals.solvers.cpu`) the system of a row with positives ``f_1 .. f_n`` is::

    (diag(D) + sum_k m_k f_k f_k^T) p = b,      b = sum_k l_k f_k + linear s,      D = scale d + ridge

Scaled by ``D^-1/2``, with ``X`` the n x K matrix of rows ``sqrt(m_k) D^-1/2 f_k``, ``w_k = l_k / sqrt(m_k)``
and ``c = D^-1/2 (linear s)``, it reads ``(I + X^T X) x = X^T w + c`` and ``p = D^-1/2 x``. Where no weight is
negative all its eigenvalues are at least 1. It is solved

- by conjugate gradients (`rgals.kernels.krylov`), where they take few steps;
- in its *dual*, n x n: ``(I + X X^T) z = w - X c``, ``x = c + X^T z`` (Woodbury), where n is below about K;
- in its *primal*, K x K, by Cholesky, where n is larger or a weight is negative.

Numbers of factors are padded to whole blocks of W (`rgals.kernels.tiles`): ``kp``; padded entries are zero.
"""

from __future__ import annotations

import numpy as np

from rgals.kernels import gather, plain_rows, tiles, triangles
from rgals.kernels.compile import inner
from rgals.kernels.loops import zero
from rgals.kernels.tiles import LINE, panel_product, panels_transposed, scaled_copy
from rgals.kernels.triangles import triangle

CHUNK = 128  # positives packed at once by the primal solver: with K = 64 they stay in the first-level cache
NOT_POSITIVE = -1  # info: the diagonal is not positive and finite


@inner
def few(kp):
    """Up to so many positives the dual is formed from plain rows: no panels to transpose, no padding."""
    return min(max(kp - 20, 24), 512)


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
def heaviest(begin, end, indices, values, terms, col_terms):
    """The largest weight of a row's first positives: an estimate of the largest of all."""
    if len(values) == 0 and len(col_terms) == 0:
        return np.float64(terms[0] + terms[1])
    top = -np.inf
    for i in range(begin, min(begin + CHUNK, end)):
        v = values[i] if len(values) else terms.dtype.type(1.0)
        if len(col_terms):
            col = indices[i]
            weight = v * (terms[0] * col_terms[col, 0]) + terms[1] * col_terms[col, 1]
        else:
            weight = v * terms[0] + terms[1]
        top = max(top, np.float64(weight))
    return top


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
def identity(c, n_blocks):
    """The identity as a packed triangle."""
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
def primal(
    begin, end, then, n_then, kp, indices, values, factors, terms, col_terms, inv_root, cols, roots, w,
    linear, x, c, inverse, rhs
):  # fmt: skip
    """Factor ``I + X^T X`` in ``c`` and add ``X^T w`` to ``rhs``; ask for ``n_then`` positives at ``then``.

    Returns 0 or the failing pivot.
    """
    width = LINE // x.itemsize
    n_blocks = kp // width
    stride = CHUNK * width
    identity(c, n_blocks)
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
            asked = triangles.gram_add_and_ask(
                c, x, stride, depth, n_blocks, sign, factors, indices, soon, n_soon
            )
            gather.prefetch_rows(factors, indices, soon + asked, kp, n_soon - asked, n_blocks)
            for b in range(n_blocks):
                panel_product(rhs, b * width, x, b * stride, w, 0, depth, 1.0)
        if n_positive + n_negative < n:
            add_unweighted(n, kp, factors, cols, roots, linear, inv_root, rhs)
    return triangles.cholesky(c, inverse, n_blocks)


@inner
def dual_factor(n_panels, kp, x, c, inverse, factors, indices, then, n_then):
    """Factor ``I + X X^T`` in ``c`` from panels of rows; ask for ``n_then`` positives at ``then``.

    Returns 0 or the failing pivot.
    """
    width = LINE // x.itemsize
    identity(c, n_panels)
    gather.prefetch_rows(factors, indices, then, kp, n_then, kp // width)
    triangles.gram_add(c, x, kp * width, kp, n_panels, 1.0)
    return triangles.cholesky(c, inverse, n_panels)


@inner
def dual(
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
        beside = min(n_then, plain_rows.n_quads(n, width))
        half = (n_then - beside) // 2
        gather.gather_scaled(x, kp, width, factors, inv_root, cols, roots, kp, depth, n_blocks, 1.0)
        gather.prefetch_rows(factors, indices, then + beside, kp, half, n_blocks)
        identity(c, n_panels)
        plain_rows.rows_gram_add(c, x, n, n_blocks, factors, indices, then, beside)
        gather.prefetch_rows(factors, indices, then + beside + half, kp, n_then - beside - half, n_blocks)
        if shifted:
            plain_rows.rows_product(z, x, solution, n, n_blocks, -1.0)
        code = triangles.cholesky(c, inverse, n_panels)
        triangles.cholesky_solve(c, inverse, z, n_panels)
        plain_rows.rows_transposed_two(solution, rhs, x, z, w, n, n_blocks)
        return code
    stride = kp * width
    pack_rows(n_panels, kp, factors, cols, roots, inv_root, x)
    if shifted:
        for q in range(n_panels):
            panel_product(z, q * width, x, q * stride, solution, 0, kp, -1.0)
    code = dual_factor(n_panels, kp, x, c, inverse, factors, indices, then, n_then)
    triangles.cholesky_solve(c, inverse, z, n_panels)
    for b in range(n_blocks):
        square = b * width * width
        panels_transposed(solution, b * width, x, square, z, 0, stride, n_panels, 1.0)
        panels_transposed(rhs, b * width, x, square, w, 0, stride, n_panels, 1.0)
    return code
