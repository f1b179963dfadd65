"""Solve the systems of rows whose positives carry no weight: one sparse product, nothing to factor.

In the rotated basis (see `rgals.solvers.cpu`) the system of every row is then diagonal::

    p = b / D,      b = sum_k l_k f_k + linear s,      D = scale d + ridge

What is left to pay is the gathering of ``f_k``. Rows are taken in their own order, so that their indices are
one stream: the factors of the next row are asked for while this one is summed.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba.core import cgutils

from rgals.kernels.compile import entry, inner
from rgals.kernels.emitter import INT, LINE, kernel
from rgals.kernels.gather import claim_row, gather_sum
from rgals.kernels.loops import ends, zero
from rgals.kernels.queue import fetch_add, launch
from rgals.kernels.systems import is_solvable
from rgals.kernels.workspace import workspace

CLAIM = 4  # rows ahead whose place in the result is asked for
_PIECE = 1024  # linear terms that are worked out at once


@kernel("ppppprrri")
def _divide(e, out, total, b, s, d, linear, scale, ridge, n_blocks):
    builder = e.builder
    (acc,) = e.variables(1)
    with cgutils.for_range(builder, n_blocks) as loop:
        at = builder.mul(loop.index, ir.Constant(INT, e.width))
        right = e.fma(e.spread(linear), e.load(e.at(s, at)), e.load(e.at(b, at)))
        diagonal = e.fma(e.spread(scale), e.load(e.at(d, at)), e.spread(ridge))
        solution = builder.fdiv(right, diagonal)
        e.store(solution, e.at(out, at))
        builder.store(e.fma(right, solution, builder.load(acc)), acc)
    builder.store(e.total(builder.load(acc)), total, align=e.align)


@inner
def _linear_terms(begin, end, indices, values, terms, col_terms, linear):
    """``l_k`` of the positives ``begin:end``."""
    for i in range(end - begin):
        v = values[begin + i] if len(values) else values.dtype.type(1.0)
        if len(col_terms):
            col = indices[begin + i]
            linear[i] = v * (terms[2] * col_terms[col, 2]) + terms[3] * col_terms[col, 3]
        else:
            linear[i] = v * terms[2] + terms[3]


@entry(nogil=True)
def _solve(
    counter, bounds, indptr, indices, values, factors, d, s, scale, linear_scale, ridge, row_terms, col_terms,
    out, value, info,
):  # fmt: skip
    k, kp = out.shape[1], len(d)
    n_blocks = kp // (LINE // factors.itemsize)
    same = len(values) == 0 and len(col_terms) == 0
    smallest, largest = ends(d)
    tiny = np.finfo(factors.dtype).tiny
    flat = out.reshape(-1)
    linear = workspace(_PIECE, factors)
    b = workspace(kp, factors)
    solution = workspace(kp, factors)
    total = np.zeros(1, factors.dtype)
    while True:
        piece = fetch_add(counter, 0, 1)
        if piece >= len(bounds) - 1:
            break
        stop = indptr[bounds[piece + 1]]
        for row in range(bounds[piece], bounds[piece + 1]):
            begin, end = indptr[row], indptr[row + 1]
            if not is_solvable(
                row, begin, end, scale, linear_scale, ridge, smallest, largest, tiny, out, info
            ):
                continue
            claim_row(flat, min(row + CLAIM, len(out) - 1) * k, n_blocks)
            if same:
                linear[0] = row_terms[row, 2] + row_terms[row, 3]
                gather_sum(b, factors, indices, begin, linear, 0, kp, end - begin, stop - begin, n_blocks)
            else:
                terms = row_terms[row]
                zero(b, kp)
                for start in range(begin, end, _PIECE):
                    n = min(_PIECE, end - start)
                    _linear_terms(start, start + n, indices, values, terms, col_terms, linear)
                    gather_sum(solution, factors, indices, start, linear, 1, kp, n, stop - start, n_blocks)
                    for j in range(kp):
                        b[j] += solution[j]
            to, at = (flat, row * k) if k == kp else (solution, 0)
            _divide(to, at, total, 0, b, 0, s, 0, d, 0, linear_scale[row], scale[row], ridge[row], n_blocks)
            value[row] = total[0]
            if k != kp:
                for j in range(k):
                    out[row, j] = solution[j]


def solve(
    bounds, indptr, indices, values, factors, d, s, scale, linear_scale, ridge, row_terms, col_terms, out,
    value, info, n_threads,
):  # fmt: skip
    """Solve all rows; results in the rotated basis.

    Parameters
    ----------
    bounds : ndarray of int64
        Rows ``bounds[i]:bounds[i + 1]`` are one piece of work.

    The other parameters are those of `rgals.kernels.rows.solve`.
    """
    launch(
        _solve, n_threads, bounds, indptr, indices, values, factors, d, s, scale, linear_scale, ridge,
        row_terms, col_terms, out, value, info,
    )  # fmt: skip
