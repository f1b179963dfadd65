"""Preconditioned conjugate gradients for the systems of `rgals.kernels.rows`: approximate, no K x K product.

In the rotated basis the preconditioner ``D = scale d + ridge`` is diagonal and yet holds the whole Gramian;
scaled by ``D^-1/2`` the system ``(I + X^T X) x = b`` needs no preconditioner at all, and a few steps from the
last iterate suffice. The positives of a row are gathered once and stay in the cache for all steps, unless
they are too many.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from rgals.kernels import tiles
from rgals.kernels.loops import ends, zero
from rgals.kernels.queue import fetch_add, launch
from rgals.kernels.rows import (
    BATCH,
    NOT_POSITIVE,
    add_unweighted,
    gather_weights,
    is_positive,
    pack_rows,
)
from rgals.kernels.tiles import LINE, panel_product, panels_transposed, scaled_copy

GATHERED = 1024  # positives that are kept packed: 256 KiB with K = 64


@njit(cache=True)
def _add_normal(n, kp, x, sign, v, t, y):
    """``y += X^T diag(sign) X v`` for packed rows; ``t`` is work space."""
    w = LINE // x.itemsize
    n_panels = (n + w - 1) // w
    for i in range(n_panels * w):
        t[i] = 0.0
    for q in range(n_panels):
        panel_product(t, q * w, x, q * kp * w, v, 0, kp, 1.0)
    for i in range(n):
        t[i] *= sign[i]
    for b in range(kp // w):
        panels_transposed(y, b * w, x, b * w * w, t, 0, kp * w, n_panels, 1.0)


@njit(cache=True, nogil=True)
def _solve(
    counter, order, indptr, indices, values, factors, d, s, scale, linear_scale, ridge, row_terms, col_terms,
    out, value, info, steps,
):  # fmt: skip
    k, kp, n_rows = out.shape[1], len(d), len(order)
    width = LINE // factors.itemsize
    n_blocks = kp // width
    smallest, largest = ends(d)
    tiny = np.finfo(factors.dtype).tiny
    packed = np.empty(GATHERED * kp, factors.dtype)
    cols = np.empty(GATHERED, np.int32)
    roots = np.empty(GATHERED, factors.dtype)
    w = np.empty(GATHERED, factors.dtype)
    linear = np.empty(GATHERED, factors.dtype)
    sign = np.empty(GATHERED, factors.dtype)
    t = np.empty(GATHERED, factors.dtype)
    inv_root = np.empty(kp, factors.dtype)
    b = np.empty(kp, factors.dtype)
    x = np.zeros(kp, factors.dtype)
    r = np.empty(kp, factors.dtype)
    p = np.empty(kp, factors.dtype)
    ap = np.empty(kp, factors.dtype)
    total = np.zeros(1, factors.dtype)
    while True:
        first = fetch_add(counter, 0, BATCH)
        if first >= n_rows:
            break
        for at in range(first, min(first + BATCH, n_rows)):
            row = order[at]
            begin, end = indptr[row], indptr[row + 1]
            n = end - begin
            if n == 0 and linear_scale[row] == 0.0:
                zero(out[row], k)  # b = 0
                continue
            if not is_positive(scale[row], ridge[row], smallest, largest, tiny):
                zero(out[row], k)
                info[row] = NOT_POSITIVE
                continue
            for j in range(0, kp, width):
                tiles.inverse_root(inv_root, j, d, j, scale[row], ridge[row])
                scaled_copy(b, j, s, j, inv_root, j, linear_scale[row])
            for j in range(k):
                x[j] = out[row, j] / inv_root[j]
            for j in range(kp):
                ap[j] = x[j]
            # The right-hand side and the operator at the start, in one pass over the positives.
            for start in range(begin, end, GATHERED):
                m = min(GATHERED, end - start)
                n_positive, n_negative = gather_weights(
                    start, start + m, indices, values, row_terms[row], col_terms, cols, roots, w, linear
                )
                for i in range(m):
                    sign[i] = -1.0 if roots[i] < 0.0 else 1.0
                pack_rows((m + width - 1) // width, kp, factors, cols, roots, inv_root, packed)
                for i in range(m):
                    t[i] = w[i] * sign[i]
                for i in range(m, (m + width - 1) // width * width):
                    t[i] = 0.0
                for j in range(n_blocks):
                    panels_transposed(
                        b, j * width, packed, j * width * width, t, 0, kp * width,
                        (m + width - 1) // width, 1.0,
                    )  # fmt: skip
                if n_positive + n_negative < m:
                    add_unweighted(m, kp, factors, cols, roots, linear, inv_root, b)
                _add_normal(m, kp, packed, sign, x, t, ap)
            for j in range(kp):
                r[j] = b[j] - ap[j]
                p[j] = r[j]
            tiles.dot(total, 0, r, 0, r, 0, n_blocks)
            rr = total[0]
            tiles.dot(total, 0, b, 0, b, 0, n_blocks)
            enough = total[0] * np.finfo(factors.dtype).eps ** 2
            for _step in range(steps):
                if not rr > enough:
                    break
                for j in range(kp):
                    ap[j] = p[j]
                for start in range(begin, end, GATHERED):
                    m = min(GATHERED, end - start)
                    if n > GATHERED:
                        gather_weights(
                            start, start + m, indices, values, row_terms[row], col_terms, cols, roots, w,
                            linear,
                        )  # fmt: skip
                        for i in range(m):
                            sign[i] = -1.0 if roots[i] < 0.0 else 1.0
                        pack_rows((m + width - 1) // width, kp, factors, cols, roots, inv_root, packed)
                    _add_normal(m, kp, packed, sign, p, t, ap)
                tiles.dot(total, 0, p, 0, ap, 0, n_blocks)
                if not total[0] > 0.0:
                    info[row] = 1
                    break
                alpha = rr / total[0]
                for j in range(kp):
                    x[j] += alpha * p[j]
                    r[j] -= alpha * ap[j]
                tiles.dot(total, 0, r, 0, r, 0, n_blocks)
                beta = total[0] / rr
                rr = total[0]
                for j in range(kp):
                    p[j] = r[j] + beta * p[j]
            for j in range(kp):
                b[j] += r[j]
            tiles.dot(total, 0, b, 0, x, 0, n_blocks)
            value[row] = total[0]
            for j in range(k):
                out[row, j] = x[j] * inv_root[j]


def solve(
    order, indptr, indices, values, factors, d, s, scale, linear_scale, ridge, row_terms, col_terms, out,
    value, info, steps, n_threads,
):  # fmt: skip
    """Improve all rows by ``steps`` conjugate gradient steps from what ``out`` holds.

    Parameters
    ----------
    steps : int
    out : ndarray, shape (n_rows, K)
        Where to start, in the rotated basis; receives the result.
    value : ndarray of float64, shape (n_rows,)
        Receives ``(b + r) . p`` with the residual ``r``: minus the row's part of the objective at p.

    The other parameters are those of `rgals.kernels.rows.solve`; a direction of non-positive curvature,
    possible with negative weights only, leaves 1 in ``info``.
    """
    launch(
        _solve, n_threads, order, indptr, indices, values, factors, d, s, scale, linear_scale, ridge,
        row_terms, col_terms, out, value, info, steps,
    )  # fmt: skip
