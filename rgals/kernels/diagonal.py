"""Rows whose positives have no weight m: their system is diagonal, and solving them is one sparse product."""

# In the rotated basis (see `rgals.solvers.cpu`) the system of such a row is diagonal::
#
#     p = b / D,      b = sum_k l_k f_k + linear s,      D = scale d + ridge
#
# The cost is the gathering of ``f_k``. Rows are taken in ascending order, so that their indices are one
# stream: the factors of the next row are prefetched while this one is summed.

from rgals.kernels.compile import entry, inner
from rgals.kernels.gather import gather_sum
from rgals.kernels.library import kernel
from rgals.kernels.loops import ends
from rgals.kernels.queue import fetch_add, launch
from rgals.kernels.row import FixedSide, Result, Rows, Work, coefficients, is_solvable
from rgals.kernels.tiles import add, copy, zero
from rgals.kernels.vectors import LINE
from rgals.kernels.workspace import workspace

_CHUNK = 1024  # positives whose linear coefficients are computed at once


@kernel("vvvvrrri", "r")
def _divide(e, out, b, s, d, linear, scale, ridge, n_blocks):
    """``out = p = (b + linear s) / (scale d + ridge)``; returns the right-hand side times p."""
    # One pass: the right-hand side, the diagonal D, their quotient, and the product for the objective.
    (product,) = e.variables(1)
    with e.blocks(n_blocks) as at:
        right = b[at] + linear * s[at]
        solution = right / (ridge + scale * d[at])
        out[at] = solution
        product += right * solution
    return e.total(product)


@inner(forceinline=True)
def _right_hand_side(number, stop, rows, fixed, b, part, linear, prior):
    """``b = sum_k l_k f_k + ridge prior``; factors of positives before ``stop`` are prefetched."""
    begin, end = rows.indptr[number], rows.indptr[number + 1]
    kp, n_blocks = len(b), len(b) // (LINE // b.itemsize)
    factors, indices = fixed.factors, rows.indices
    if len(rows.values) == 0 and len(rows.col_terms) == 0:
        # All positives of the row have one coefficient.
        linear[0] = rows.row_terms[number, 2] + rows.row_terms[number, 3]
        gather_sum(b, 0, factors, 0, indices, begin, linear, 0, 0, kp, end - begin, stop - begin, n_blocks)
    else:
        # In chunks: the coefficients of some positives, then the sum over the same ones.
        zero(b, 0, kp)
        for start in range(begin, end, _CHUNK):
            n = min(_CHUNK, end - start)
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
    linear = workspace(_CHUNK, fixed.d)
    b, solution = workspace(kp, fixed.d), workspace(kp, fixed.d)
    piece = fetch_add(counter, 0, 1)
    while piece < len(bounds) - 1:
        last = bounds[piece + 1] - 1
        # Where the positives of the piece end: up to there factors are prefetched beyond the current row.
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
    """Solve rows of kind `DIAGONAL`, in ascending order. Results are in the basis of the fixed factors."""
    launch(_run, n_threads, work, rows, fixed, result)
