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

import numpy as np

from rgals.kernels.compile import inner
from rgals.kernels.gather import gather_scaled
from rgals.kernels.library import kernel
from rgals.kernels.plain_rows import add_normal, add_normal_and_right, add_transposed
from rgals.kernels.row import NEXT, Way, ask_for_next, gather_weights
from rgals.kernels.tiles import add, copy, divided, dot, zero
from rgals.kernels.vectors import LINE

_LOOK = 4  # steps between two looks at the pace
CG = 4  # the flag of rows that are iterated first
CLOSE = 4.0  # times eps: the error of a solution, relative to it

# ---------------------------------------------------------------- a step: passes over whole vectors


@kernel("vvvvi", "r")
def _residual(e, r, p, b, image, n_blocks):
    """``r = b - image``, ``p = 0``; returns ``r . r``."""
    (squares,) = e.variables(1)
    with e.blocks(n_blocks) as at:
        rest = b[at] - image[at]
        r[at] = rest
        p[at] = e.zero()
        squares += rest * rest
    return e.total(squares)


@kernel("vvvri")
def _turn(e, p, image, r, beta, n_blocks):
    """``p = image = r + beta p``: the next direction, and what the product with X^T S X is added to."""
    with e.blocks(n_blocks) as at:
        direction = r[at] + beta * p[at]
        p[at] = direction
        image[at] = direction


@kernel("vvvvri", "r")
def _move(e, x, r, p, image, alpha, n_blocks):
    """``x += alpha p``, ``r -= alpha image``; returns ``r . r``."""
    # One pass over four vectors, with the square of the new residual on the way.
    (acc,) = e.variables(1)
    with e.blocks(n_blocks) as at:
        x[at] = x[at] + alpha * p[at]
        rest = r[at] - alpha * image[at]
        r[at] = rest
        acc += rest * rest
    return e.total(acc)


# ---------------------------------------------------------------- a row


@inner(forceinline=True)
def _pack(start, n, number, rows, fixed, scratch):
    """Rows ``sqrt(|m_k|) D^-1/2 f_k`` in ``x``, the signs of their weights, and ``w`` with ``b += X^T w``.

    A positive without weight gets a row too, so that its linear term counts, and the sign 0. Returns the
    number of rows, padded with zeros to a multiple of 4, and how many weights are negative.
    """
    # A weight m becomes its sign s and the row sqrt(|m|) D^-1/2 f, so that X^T S X is sum_k m_k f_k f_k^T in
    # the scaled system; without weight the row is D^-1/2 f with s = 0 and w = l.
    kp, w = len(fixed.d), LINE // fixed.d.itemsize
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
    x, cols = scratch.x, scratch.cols
    gather_scaled(x, 0, fixed.factors, 0, scale, 0, cols, 0, roots, 0, kp, w, kp, padded, kp // w, 1.0)
    return padded, n_negative


@inner(inline="always")  # numba's own inlining: it is compiled once less
def _descend(row, n, most, rows, fixed, scratch, rr, beta, enough, steps):
    """Up to ``steps`` steps, until ``r . r <= enough``.

    A row of at most ``most`` positives is packed already, ``n`` rows of it; a longer one is packed in pieces
    at every step. Returns whether a direction has no positive curvature, and what the next call is given.
    """
    n_blocks = len(fixed.d) // (LINE // fixed.d.itemsize)
    r, p, image = scratch.rest, scratch.direction, scratch.image
    # Hestenes and Stiefel: p = r + beta p, alpha = r . r / p . A p, x += alpha p, r -= alpha A p.
    for _step in range(steps):
        if not rr > enough:
            break
        _turn(p, image, r, beta, n_blocks)
        start = row.begin
        while start < row.end:  # image = p + X^T S X p
            if row.end - row.begin > most:
                n, _ = _pack(start, min(most, row.end - start), row.number, rows, fixed, scratch)
            add_normal(image, 0, scratch.x, 0, p, 0, scratch.sign, 0, n, n_blocks)
            start += most
        curvature = dot(p, 0, image, 0, len(p))
        if not curvature > 0.0:  # NaN counts as none
            return True, rr, beta
        before, rr = rr, _move(scratch.solution, r, p, image, rr / curvature, n_blocks)
        beta = rr / before
    return False, rr, beta


@inner
def solve(row, work, rows, fixed, scratch):
    """Solve ``(I + X^T X) x = rhs + X^T w`` to rounding, from zero; see `Way`.

    It gives up if a weight is negative, a factorisation would cost less, or something is not finite.
    """
    worth, most = work.worth[row.number], work.most
    # The largest eigenvalue is unknown: whether CG pays is seen by the pace of its first steps.
    eps = np.finfo(fixed.d.dtype).eps
    n_blocks = len(fixed.d) // (LINE // fixed.d.itemsize)
    b, x = scratch.right, scratch.solution
    # b = c + X^T w in a vector of its own: where this gives up, the factorisation starts from c again.
    copy(b, 0, scratch.rhs, 0, len(b))
    n = 0
    for start in range(row.begin, row.end, most):
        n, n_negative = _pack(start, min(most, row.end - start), row.number, rows, fixed, scratch)
        if n_negative > 0:
            return NEXT
        add_transposed(b, 0, scratch.x, 0, scratch.w, 0, n, n_blocks)
    ask_for_next(row, rows, fixed)
    # From x = 0 the residual is b.
    zero(x, 0, len(x))
    zero(scratch.image, 0, len(x))
    right = rr = _residual(scratch.rest, scratch.direction, b, scratch.image, n_blocks)
    enough = right * (CLOSE * eps) ** 2
    beta = x.dtype.type(0.0)
    for done in range(_LOOK, 2 * worth, _LOOK):
        failed, rr, beta = _descend(row, n, most, rows, fixed, scratch, rr, beta, enough, _LOOK)
        if failed:
            return NEXT
        if done == _LOOK:
            # No eigenvalue is below 1: the error is no longer than the residual.
            enough = dot(x, 0, x, 0, len(x)) * (CLOSE * eps) ** 2
        if rr <= enough and enough > 0.0:  # 0: squares of tiny numbers are lost
            copy(scratch.rhs, 0, b, 0, len(b))
            return 0
        # At the pace until now the steps to come would cost more. (A division by zero would raise.)
        if not (enough > 0.0 and np.log(right / rr) * (worth + done) > np.log(right / enough) * done):
            return NEXT
    return NEXT


@inner
def improve(row, steps, most, rows, fixed, result, scratch):
    """Improve a row by ``steps`` steps from what ``result.out`` holds.

    Leaves the solution and ``b + r``, the right-hand side plus the residual, in ``scratch``: half of the
    objective's part is minus their product. Returns 1 where a direction has no positive curvature, which
    takes a negative weight, else 0.
    """
    k, n_blocks = result.out.shape[1], len(fixed.d) // (LINE // fixed.d.itemsize)
    b, x, image = scratch.rhs, scratch.solution, scratch.image
    # x = D^1/2 p, so that the current factor is the start of the scaled system.
    zero(x, 0, len(x))
    divided(x, 0, result.out, row.number * k, scratch.inv_root, 0, k)
    copy(image, 0, x, 0, len(x))
    # The right-hand side and the operator at the start, in one pass over the positives.
    n = 0
    for start in range(row.begin, row.end, most):
        n, _ = _pack(start, min(most, row.end - start), row.number, rows, fixed, scratch)
        add_normal_and_right(image, 0, b, 0, scratch.x, 0, x, 0, scratch.sign, 0, scratch.w, 0, n, n_blocks)
    ask_for_next(row, rows, fixed)
    rr = _residual(scratch.rest, scratch.direction, b, image, n_blocks)
    enough = dot(b, 0, b, 0, len(b)) * np.finfo(x.dtype).eps ** 2
    failed, _, _ = _descend(row, n, most, rows, fixed, scratch, rr, x.dtype.type(0.0), enough, steps)
    add(b, 0, scratch.rest, 0, len(b))
    return 1 if failed else 0


WAYS = (Way(CG, "by CG", solve),)
