"""A few conjugate gradient steps (`rgals.kernels.krylov`) for many rows, from the last iterate."""

from __future__ import annotations

import numpy as np

from rgals.kernels import conjugate, gather, krylov, plain_rows
from rgals.kernels.compile import entry
from rgals.kernels.loops import copy, ends
from rgals.kernels.queue import fetch_add, launch
from rgals.kernels.rows import BATCH, longest_row, look_ahead
from rgals.kernels.systems import is_solvable, scale_row
from rgals.kernels.tiles import LINE
from rgals.kernels.workspace import workspace


def direct(kp: int) -> int:
    """Up to so many positives an exact solution costs no more than to turn a row's start and iterate."""
    return 3 * kp // 32 if kp > 128 else 0


@entry(nogil=True)
def _solve(
    counter, order, indptr, indices, values, factors, d, s, scale, linear_scale, ridge, row_terms, col_terms,
    out, value, info, longest, steps,
):  # fmt: skip
    k, kp, n_rows = out.shape[1], len(d), len(order)
    width = LINE // factors.itemsize
    n_blocks = kp // width
    most = krylov.capacity(kp, factors.itemsize)
    longest = krylov.room(longest, kp, factors.itemsize)
    smallest, largest = ends(d)
    tiny = np.finfo(factors.dtype).tiny
    flat = out.reshape(-1)
    packed = workspace(longest * kp, factors)
    cols = np.empty(longest, np.int32)
    roots = workspace(longest, factors)
    w = workspace(longest, factors)
    linear = workspace(longest, factors)
    sign = workspace(longest, factors)
    inv_root = workspace(kp, factors)
    b = workspace(kp, factors)
    x = workspace(kp, factors)
    r = workspace(kp, factors)
    p = workspace(kp, factors)
    ap = workspace(kp, factors)
    whole = np.zeros(kp, factors.dtype)
    total = np.zeros(2, factors.dtype)
    while True:
        first = fetch_add(counter, 0, BATCH)
        if first >= n_rows:
            break
        stop_at = min(first + BATCH, n_rows)
        for at in range(first, stop_at):
            row = order[at]
            begin, end = indptr[row], indptr[row + 1]
            if not is_solvable(
                row, begin, end, scale, linear_scale, ridge, smallest, largest, tiny, out, info
            ):
                continue
            scale_row(inv_root, b, d, s, scale[row], linear_scale[row], ridge[row], n_blocks)
            then, n_then = look_ahead(
                at, stop_at, order, indptr, indices, scale, linear_scale, ridge, row_terms, flat, k,
                value, info,
            )  # fmt: skip
            if k != kp:
                copy(whole, out[row])
            place, at_row = (flat, row * k) if k == kp else (whole, 0)
            conjugate.start(x, ap, place, at_row, inv_root, n_blocks)
            # The right-hand side and the operator at the start, in one pass over the positives.
            n = 0
            for start in range(begin, end, most):
                n, _ = krylov.pack(
                    start, min(most, end - start), indices, values, factors, row_terms[row], col_terms,
                    inv_root, cols, roots, w, linear, sign, packed, n_blocks,
                )  # fmt: skip
                plain_rows.rows_normal_and_right(ap, b, packed, x, sign, w, n, n_blocks)
            gather.prefetch_rows(factors, indices, then, kp, n_then, n_blocks)
            conjugate.residual(total, r, p, b, ap, n_blocks)
            rr, enough = total[0], total[1] * np.finfo(factors.dtype).eps ** 2
            beta = factors.dtype.type(0.0)
            failed, _, _ = krylov.descend(
                begin, end, n, most, indices, values, factors, row_terms[row], col_terms, inv_root, cols,
                roots, w, linear, sign, packed, x, r, p, ap, rr, beta, enough, steps, total,
            )  # fmt: skip
            if failed:
                info[row] = 1
            conjugate.finish(total, place, at_row, x, b, r, inv_root, n_blocks)
            value[row] = total[0]
            if k != kp:
                for j in range(k):
                    out[row, j] = whole[j]


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
        row_terms, col_terms, out, value, info, longest_row(order, indptr), steps,
    )  # fmt: skip
