"""Rows whose positives carry no weight of their own: one sparse product, nothing to factor.

In the rotated basis (see `rgals.solvers.cpu`) the system of such a row is diagonal::

    p = b / D,      b = sum_k l_k f_k + linear s,      D = scale d + ridge

What is left to pay is the gathering of ``f_k``. Rows are taken in their own order, so that their indices are
one stream: the factors of the next row are asked for while this one is summed.
"""

from rgals.kernels.compile import entry, inner
from rgals.kernels.gather import gather_sum
from rgals.kernels.library import kernel
from rgals.kernels.loops import ends
from rgals.kernels.queue import fetch_add, launch
from rgals.kernels.row import FixedSide, Result, Rows, Work, coefficients, is_solvable
from rgals.kernels.tiles import add, copy, zero
from rgals.kernels.vectors import LINE
from rgals.kernels.workspace import workspace

_PIECE = 1024  # linear terms that are worked out at once


@kernel("vvvvrrri", "r")
def _divide(e, out, b, s, d, linear, scale, ridge, n_blocks):
    """``out = (b + linear s) / (scale d + ridge)``; returns its product with the right-hand side."""
    # One pass: the right-hand side, the diagonal D, their quotient, and b . p for the objective.
    (acc,) = e.variables(1)
    with e.blocks(n_blocks) as at:
        right = b[at] + linear * s[at]
        solution = right / (ridge + scale * d[at])
        out[at] = solution
        acc += right * solution
    return e.total(acc)


@inner(forceinline=True)
def _right_hand_side(number, stop, rows, fixed, b, part, linear, prior):
    """``b = sum_k l_k f_k + ridge prior``; asks for factors of the positives up to ``stop``."""
    begin, end = rows.indptr[number], rows.indptr[number + 1]
    kp, n_blocks = len(b), len(b) // (LINE // b.itemsize)
    factors, indices = fixed.factors, rows.indices
    if len(rows.values) == 0 and len(rows.col_terms) == 0:  # one coefficient for all positives
        linear[0] = rows.row_terms[number, 2] + rows.row_terms[number, 3]
        gather_sum(b, 0, factors, 0, indices, begin, linear, 0, 0, kp, end - begin, stop - begin, n_blocks)
    else:
        # Coefficients of their own: worked out for some positives at a time, then summed over the same ones.
        zero(b, 0, kp)
        for start in range(begin, end, _PIECE):
            n = min(_PIECE, end - start)
            for i in range(n):
                _, linear[i] = coefficients(start + i, number, rows)
            gather_sum(part, 0, factors, 0, indices, start, linear, 0, 1, kp, n, stop - start, n_blocks)
            add(b, 0, part, 0, kp)
    if len(prior):
        for j in range(prior.shape[1]):
            b[j] += b.dtype.type(rows.ridge[number]) * prior[number, j]


@entry(nogil=True)
def _run(counter, work, rows, fixed, result):
    k, kp = result.out.shape[1], len(fixed.d)
    n_blocks = kp // (LINE // fixed.d.itemsize)
    smallest, largest = ends(fixed.d)
    order, bounds, out = work.order, work.bounds, result.out
    linear = workspace(_PIECE, fixed.d)
    b, solution = workspace(kp, fixed.d), workspace(kp, fixed.d)
    piece = fetch_add(counter, 0, 1)
    while piece < len(bounds) - 1:
        last = bounds[piece + 1] - 1
        # Indices up to the end of the piece say what to ask for, beyond the row that is summed.
        stop = rows.indptr[order[last] + 1]
        for at in range(bounds[piece], last + 1):
            row = order[at]
            if not is_solvable(row, smallest, largest, rows, result):
                continue
            _right_hand_side(row, stop, rows, fixed, b, solution, linear, rows.prior)
            scale, ridge, slope = rows.scale[row], rows.ridge[row], rows.linear[row]
            result.value[row] = _divide(solution, b, fixed.s, fixed.d, slope, scale, ridge, n_blocks)
            copy(out, row * k, solution, 0, k)
        piece = fetch_add(counter, 0, 1)


def solve(work: Work, rows: Rows, fixed: FixedSide, result: Result, n_threads: int) -> None:
    """Solve rows of ``DIAGONAL`` kind, in ascending order; results in the basis of the factors."""
    launch(_run, n_threads, work, rows, fixed, result)
