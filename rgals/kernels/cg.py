"""The system of one row by conjugate gradients, to rounding or a few steps: nothing K x K, nothing n x n.

In the rotated basis the preconditioner ``D = scale d + ridge`` is diagonal and yet holds the whole
Gramian; scaled by ``D^-1/2`` the system ``(I + X^T S X) x = b``, S being the signs of the weights, needs no
preconditioner at all. Its smallest eigenvalue is 1 and its largest is small wherever a row's positives weigh
little beside all pairs: five to fifteen steps reach the rounding of the arithmetic, fewer reach what
approximate solvers are content with.

The positives of a row are gathered once and stay in the cache for all steps, unless they are too many; a step
reads them once. Factorisations multiply every positive with every other, or every factor with every other:
with many of both that costs more than the steps.
"""

from __future__ import annotations

import numpy as np

from rgals.kernels.compile import inner
from rgals.kernels.gather import gather_scaled
from rgals.kernels.loops import copy, zero
from rgals.kernels.plain_rows import rows_normal, rows_normal_and_right, rows_transposed
from rgals.kernels.row import ask_for_next, gather_weights
from rgals.kernels.tiles import dot
from rgals.kernels.vectors import LINE, kernel

_LOOK = 4  # steps between two looks at the pace
CLOSE = 4.0  # times eps: the error of a solution, relative to it

# ---------------------------------------------------------------- a step: passes over whole vectors


@kernel("vvvvvi")
def _residual(e, out, r, p, b, image, n_blocks):
    """``r = b - image``, ``p = 0``, ``out = (r . r, b . b)``."""
    squares, right = e.variables(2)
    with e.blocks(n_blocks) as at:
        value = b[at]
        rest = value - image[at]
        r[at] = rest
        p[at] = e.zero()
        squares += rest * rest
        right += value * value
    out.put(0, e.total(squares))
    out.put(1, e.total(right))


@kernel("vvvri")
def _turn(e, p, image, r, beta, n_blocks):
    """``p = image = r + beta p``: the next direction, and what the product with X^T S X is added to."""
    with e.blocks(n_blocks) as at:
        direction = r[at] + beta * p[at]
        p[at] = direction
        image[at] = direction


@kernel("vvvvvri")
def _move(e, out, x, r, p, image, alpha, n_blocks):
    """``x += alpha p``, ``r -= alpha image``, ``out = r . r``."""
    # One pass over five vectors, with the square of the new residual on the way.
    (acc,) = e.variables(1)
    with e.blocks(n_blocks) as at:
        x[at] = x[at] + alpha * p[at]
        rest = r[at] - alpha * image[at]
        r[at] = rest
        acc += rest * rest
    out.put(0, e.total(acc))


# ---------------------------------------------------------------- a row


@inner(forceinline=True)
def _pack(start, n, number, rows, basis, scratch):
    """Rows ``sqrt(|m_k|) D^-1/2 f_k`` in ``x``, the signs of their weights, and ``w`` with ``b += X^T w``.

    A positive without weight gets a row too, so that its linear term counts, and the sign 0. Returns the
    number of rows, padded with zeros to a multiple of 4, and how many weights are negative.
    """
    # A weight m becomes its sign s and the row sqrt(|m|) D^-1/2 f, so that X^T S X is sum_k m_k f_k f_k^T in
    # the scaled system; without weight the row is D^-1/2 f with s = 0 and w = l.
    kp, w = len(basis.d), LINE // basis.d.itemsize
    roots, sign = scratch.roots, scratch.sign
    n_positive, n_negative = gather_weights(start, start + n, number, rows, scratch)
    for i in range(n):
        sign[i] = np.sign(roots[i])
        roots[i] = abs(roots[i])
        if roots[i] == 0.0:
            roots[i] = 1.0
            scratch.w[i] = scratch.linear[i]
    padded = (n + 3) // 4 * 4
    for i in range(n, padded):
        sign[i] = 0.0
    scale = scratch.inv_root
    gather_scaled(scratch.x, kp, w, basis.factors, scale, scratch.cols, roots, kp, padded, kp // w, 1.0)
    return padded, n_negative


@inner(inline="always")  # numba's own inlining: it is compiled once less
def _descend(row, n, most, rows, basis, scratch, rr, beta, enough, steps):
    """Up to ``steps`` steps, until ``r . r <= enough``.

    A row of at most ``most`` positives is packed already, ``n`` rows of it; a longer one is packed in pieces
    at every step. Returns whether a direction has no positive curvature, and what the next call is given.
    """
    n_blocks = len(basis.d) // (LINE // basis.d.itemsize)
    r, p, image, total = scratch.rest, scratch.direction, scratch.image, scratch.total
    # Hestenes and Stiefel: p = r + beta p, alpha = r . r / p . A p, x += alpha p, r -= alpha A p.
    for _step in range(steps):
        if not rr > enough:
            break
        _turn(p, image, r, beta, n_blocks)
        start = row.begin
        while start < row.end:  # image = p + X^T S X p
            if row.end - row.begin > most:
                n, _ = _pack(start, min(most, row.end - start), row.number, rows, basis, scratch)
            rows_normal(image, scratch.x, p, scratch.sign, n, n_blocks)
            start += most
        dot(total, 0, p, 0, image, 0, n_blocks)
        if not total[0] > 0.0:  # NaN counts as no curvature
            return True, rr, beta
        _move(total, scratch.solution, r, p, image, rr / total[0], n_blocks)
        beta = total[0] / rr
        rr = total[0]
    return False, rr, beta


@inner(forceinline=True)
def solve(row, worth, most, rows, basis, scratch):
    """Solve ``(I + X^T X) x = rhs + X^T w`` to rounding, from zero, for weights that are not negative.

    ``worth``: as many steps cost as much as a factorisation. Leaves the solution and its right-hand side in
    ``scratch``. Returns whether that succeeded; else ``scratch.rhs`` is what it was: a weight is negative,
    the steps would be too many, or something is not finite.
    """
    # The largest eigenvalue is unknown: whether CG pays is seen by the pace of its first steps.
    eps = np.finfo(basis.d.dtype).eps
    n_blocks = len(basis.d) // (LINE // basis.d.itemsize)
    b, x, total = scratch.right, scratch.solution, scratch.total
    # b = c + X^T w in a vector of its own: where this gives up, the factorisation starts from c again.
    copy(b, scratch.rhs)
    n = 0
    for start in range(row.begin, row.end, most):
        n, n_negative = _pack(start, min(most, row.end - start), row.number, rows, basis, scratch)
        if n_negative > 0:
            return False
        rows_transposed(b, scratch.x, scratch.w, n, n_blocks)
    ask_for_next(row, rows, basis)
    # From x = 0 the residual is b.
    zero(x, len(x))
    zero(scratch.image, len(x))
    _residual(total, scratch.rest, scratch.direction, b, scratch.image, n_blocks)
    right = rr = total[0]
    enough = right * (CLOSE * eps) ** 2
    beta = x.dtype.type(0.0)
    for done in range(_LOOK, 2 * worth, _LOOK):
        failed, rr, beta = _descend(row, n, most, rows, basis, scratch, rr, beta, enough, _LOOK)
        if failed:
            return False
        if done == _LOOK:
            # No eigenvalue is below 1: the error is no longer than the residual.
            dot(total, 0, x, 0, x, 0, n_blocks)
            enough = total[0] * (CLOSE * eps) ** 2
        if rr <= enough:
            copy(scratch.rhs, b)
            return True
        # At the pace until now the steps to come would cost more. (A division by zero would raise.)
        if not (enough > 0.0 and np.log(right / rr) * (worth + done) > np.log(right / enough) * done):
            return False
    return False


@inner(forceinline=True)
def improve(row, steps, most, rows, basis, result, scratch):
    """Improve a row by ``steps`` steps from what ``result.out`` holds.

    Leaves the solution and ``b + r``, the right-hand side plus the residual, in ``scratch``: half of the
    objective's part is minus their product. Returns 1 where a direction has no positive curvature, which
    takes a negative weight, else 0.
    """
    k, n_blocks = result.out.shape[1], len(basis.d) // (LINE // basis.d.itemsize)
    b, x, image, total = scratch.rhs, scratch.solution, scratch.image, scratch.total
    # x = D^1/2 p, so that the current factor is the start of the scaled system.
    zero(x, len(x))
    for j in range(k):
        x[j] = result.out[row.number, j] / scratch.inv_root[j]
    copy(image, x)
    # The right-hand side and the operator at the start, in one pass over the positives.
    n = 0
    for start in range(row.begin, row.end, most):
        n, _ = _pack(start, min(most, row.end - start), row.number, rows, basis, scratch)
        rows_normal_and_right(image, b, scratch.x, x, scratch.sign, scratch.w, n, n_blocks)
    ask_for_next(row, rows, basis)
    _residual(total, scratch.rest, scratch.direction, b, image, n_blocks)
    rr, enough = total[0], total[1] * np.finfo(x.dtype).eps ** 2
    failed, _, _ = _descend(row, n, most, rows, basis, scratch, rr, x.dtype.type(0.0), enough, steps)
    for j in range(len(x)):
        b[j] += scratch.rest[j]
    return 1 if failed else 0
