"""Solve the systems of many rows, each diagonal plus low rank, in parallel.

In the rotated basis (see `rgals.solvers.backends.cpu`) the system of a row with positives ``f_1 .. f_n`` is::

    (diag(D) + sum_k m_k f_k f_k^T) p = b,      b = sum_k l_k f_k + linear s,      D = scale d + ridge

Scaled by ``D^-1/2``, with ``X`` the n x K matrix of rows ``sqrt(m_k) D^-1/2 f_k``, ``w_k = l_k / sqrt(m_k)`` and
``c = D^-1/2 (linear s)``, it reads ``(I + X^T X) x = X^T w + c`` and ``p = D^-1/2 x``. All its eigenvalues are at
least 1, so no factorisation can fail unless a number overflows. It is solved

- at once, ``x = c`` plus the linear terms, where no positive carries weight;
- in its *dual*, n x n: ``(I + X X^T) z = w - X c``, ``x = c + X^T z`` (Woodbury), where n <= K;
- in its *primal*, K x K, by Cholesky, where n > K or a weight is negative.

A row that cannot be solved (D not positive, or a pivot that is not) leaves its number in ``info``.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from rgals.kernels.blas import gemv_n, gemv_t, potrf, potri, potrs, syrk_n, syrk_t, trsm_lower
from rgals.kernels.queue import fetch_add

CHUNK = 256  # positives packed at once by the primal solver


@njit(cache=True)
def _pack(start, stop, indices, values, factors, row_terms, col_terms, inv_root, x, w, linear_sum):
    """Rows ``sqrt(m_k) D^-1/2 f_k`` into ``x``, ``l_k / sqrt(m_k)`` into ``w``, ``sum l_k D^-1/2 f_k`` added.

    A positive without weight (m = 0) gets a row of zeros: only its linear term counts.

    Returns
    -------
    (n_positive, n_negative) : how many weights are > 0 and < 0. A negative one leaves ``sqrt(-m_k)`` in its row
        and -1 in ``w``.
    """
    k = factors.shape[1]
    one = factors.dtype.type(1.0)
    zero = factors.dtype.type(0.0)
    n_positive = 0
    n_negative = 0
    for p in range(start, stop):
        i = p - start
        col = indices[p]
        v = values[p] if len(values) else one
        m = v * (row_terms[0] * col_terms[col, 0]) + row_terms[1] * col_terms[col, 1]
        linear = v * (row_terms[2] * col_terms[col, 2]) + row_terms[3] * col_terms[col, 3]
        n_positive += m > zero
        n_negative += m < zero
        root = np.sqrt(abs(m))
        w[i] = linear / root if m > zero else (-one if m < zero else zero)
        for j in range(k):
            f = factors[col, j] * inv_root[j]
            x[i, j] = root * f
            linear_sum[j] += linear * f
    return n_positive, n_negative


@njit(cache=True)
def _dual(n, k, x, w, c, small, z):
    """``z`` of ``(I + X X^T) z = w - X c``; the Cholesky factor stays in ``small``. Returns LAPACK's info."""
    syrk_n(n, k, 1.0, x, k, 0.0, small, n)
    for i in range(n):
        small[i * n + i] += small.dtype.type(1.0)
        z[i] = w[i]
    gemv_n(n, k, -1.0, x, k, c, 1.0, z)
    info = potrf(n, small, n)
    if info == 0:
        potrs(n, 1, small, n, z, n)
    return info


@njit(cache=True)
def _primal(begin, end, indices, values, factors, row_terms, col_terms, inv_root, x, w, rhs, small):
    """Cholesky factor of ``I + X^T X`` in ``small``, ``sum l_k D^-1/2 f_k`` added to ``rhs``. Returns info."""
    k = factors.shape[1]
    small[: k * k] = 0.0
    for i in range(k):
        small[i * k + i] = 1.0
    start = begin
    while start < end:
        stop = min(start + CHUNK, end)
        n = stop - start
        _, n_negative = _pack(
            start, stop, indices, values, factors, row_terms, col_terms, inv_root, x, w, rhs
        )
        if n_negative == 0:
            syrk_t(n, k, 1.0, x, k, 1.0, small, k)
        else:
            for i in range(n):
                sign = -1.0 if w[i] == -1.0 else 1.0
                syrk_t(1, k, sign, x[i:], k, 1.0, small, k)
        start = stop
    return potrf(k, small, k)


@njit(cache=True)
def _diagonal(scale, ridge, d, inv_root):
    """``D^-1/2`` of a row into ``inv_root``; False where D is not positive and finite."""
    for j in range(len(d)):
        diagonal = scale * d[j] + ridge
        if not (diagonal > 0.0 and diagonal < np.inf):
            return False
        inv_root[j] = 1.0 / np.sqrt(diagonal)
    return True


@njit(parallel=True, cache=True)
def solve(
    order, indptr, indices, values, factors, d, s, scale, linear, ridge, row_terms, col_terms, out, value,
    info, n_threads,
):  # fmt: skip
    """Solve all rows; results in the rotated basis.

    Parameters
    ----------
    order : ndarray of int64
        The rows, most expensive first.
    indptr, indices, values
        CSR arrays of the positives; ``values`` is empty for ones.
    factors : ndarray, shape (n_fixed, K)
        The fixed side, rotated.
    d : ndarray of float64, shape (K,)
        Eigenvalues of the Gramian.
    s : ndarray of float64, shape (K,)
        The all-pairs linear term, rotated.
    scale, linear, ridge : ndarray of float64, shape (n_rows,)
    row_terms, col_terms : ndarray of the factors' dtype, shapes (n_rows, 4), (n_fixed, 4)
    out : ndarray, shape (n_rows, K)
        Receives the solutions.
    value : ndarray of float64, shape (n_rows,)
        Receives ``b . p``: minus the row's part of the objective.
    info : ndarray of int32, shape (n_rows,)
        Receives 0, -1 where D is not positive, or the order of a failing pivot.
    n_threads : int
    """
    k = factors.shape[1]
    n_rows = len(order)
    counter = np.zeros(1, np.int64)
    for _ in prange(n_threads):
        x = np.empty((max(k, CHUNK), k), factors.dtype)
        small = np.empty(k * k, factors.dtype)
        w = np.empty(max(k, CHUNK), factors.dtype)
        z = np.empty(k, factors.dtype)
        inv_root = np.empty(k, factors.dtype)
        c = np.empty(k, factors.dtype)
        rhs = np.empty(k, factors.dtype)
        while True:
            first = fetch_add(counter, 0, 8)
            if first >= n_rows:
                break
            for at in range(first, min(first + 8, n_rows)):
                row = order[at]
                begin, end = indptr[row], indptr[row + 1]
                n = end - begin
                if n == 0 and linear[row] == 0.0:
                    out[row] = 0.0  # b = 0
                    continue
                if not _diagonal(scale[row], ridge[row], d, inv_root):
                    out[row] = 0.0
                    info[row] = -1
                    continue
                for j in range(k):
                    c[j] = linear[row] * s[j] * inv_root[j]
                    rhs[j] = c[j]
                terms = row_terms[row]
                solution = out[row]
                code = 0
                n_positive, n_negative = 0, 1 if n > k else 0
                if n <= k:
                    n_positive, n_negative = _pack(
                        begin, end, indices, values, factors, terms, col_terms, inv_root, x, w, rhs
                    )
                if n_negative > 0:
                    rhs[:] = c
                    code = _primal(
                        begin, end, indices, values, factors, terms, col_terms, inv_root, x, w, rhs, small
                    )
                    solution[:] = rhs
                    if code == 0:
                        potrs(k, 1, small, k, solution, k)
                elif n_positive > 0:
                    if n_positive < n:
                        # Positives without weight have their linear term in rhs only: c takes it over.
                        c[:] = rhs
                        gemv_t(n, k, -1.0, x, k, w, 1.0, c)
                    code = _dual(n, k, x, w, c, small, z)
                    solution[:] = c
                    gemv_t(n, k, 1.0, x, k, z, 1.0, solution)
                else:
                    solution[:] = rhs
                total = 0.0
                for j in range(k):
                    total += rhs[j] * solution[j]
                    solution[j] *= inv_root[j]
                value[row] = total
                info[row] = code


@njit(parallel=True, cache=True)
def inverse_sum(
    order, indptr, indices, values, factors, d, scale, ridge, row_terms, col_terms, n_blocks, info, n_threads
):  # fmt: skip
    """``sum_r scale_r^2 A_r^-1`` over all rows: what couples the rows of the item side of RGx.

    Rows are dealt to a fixed number of blocks, each summed in a fixed order by one thread.

    Returns
    -------
    ndarray of float64, shape (n_blocks, K, K) : upper triangles; their sum is the result.
    """
    k = factors.shape[1]
    n_rows = len(order)
    total = np.zeros((n_blocks, k, k))
    counter = np.zeros(1, np.int64)
    for _ in prange(n_threads):
        x = np.empty((max(k, CHUNK), k), factors.dtype)
        small = np.empty(k * k, factors.dtype)
        w = np.empty(max(k, CHUNK), factors.dtype)
        inv_root = np.empty(k, factors.dtype)
        rhs = np.empty(k, factors.dtype)
        while True:
            block = fetch_add(counter, 0, 1)
            if block >= n_blocks:
                break
            for at in range(block, n_rows, n_blocks):
                row = order[at]
                begin, end = indptr[row], indptr[row + 1]
                n = end - begin
                if scale[row] == 0.0:
                    continue
                if not _diagonal(scale[row], ridge[row], d, inv_root):
                    info[row] = -1
                    continue
                terms = row_terms[row]
                square = scale[row] * scale[row]
                n_positive, n_negative = 0, 1 if n > k else 0
                if n <= k:
                    n_positive, n_negative = _pack(
                        begin, end, indices, values, factors, terms, col_terms, inv_root, x, w, rhs
                    )
                if n_negative > 0:
                    code = _primal(
                        begin, end, indices, values, factors, terms, col_terms, inv_root, x, w, rhs, small
                    )
                    if code == 0:
                        code = potri(k, small, k)
                    for i in range(k):
                        factor = square * inv_root[i]
                        for j in range(i, k):
                            total[block, i, j] += factor * inv_root[j] * small[i * k + j]
                    info[row] = code
                    continue
                for i in range(k):
                    total[block, i, i] += square * inv_root[i] * inv_root[i]
                if n_positive == 0:
                    continue
                # A^-1 = D^-1 - Y^T Y with Y = L^-1 X D^-1/2 and L L^T = I + X X^T.
                syrk_n(n, k, 1.0, x, k, 0.0, small, n)
                for i in range(n):
                    small[i * n + i] += small.dtype.type(1.0)
                info[row] = potrf(n, small, n)
                if info[row] != 0:
                    continue
                trsm_lower(n, k, small, n, x, k)
                for i in range(n):
                    for j in range(k):
                        x[i, j] *= inv_root[j]
                syrk_t(n, k, 1.0, x, k, 0.0, small, k)
                for i in range(k):
                    for j in range(i, k):
                        total[block, i, j] -= square * small[i * k + j]
    return total
