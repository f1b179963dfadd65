"""The system of one row by conjugate gradients, to rounding or by a few steps, without a matrix."""

# In the rotated basis ``D = scale d + ridge`` is diagonal and yet holds the whole Gramian. It is the
# preconditioner: scaled by ``D^-1/2`` the system is ``(I + X^T S X) x = b``, with the signs S of the weights.
# Without negative weights its smallest eigenvalue is at least 1, and its largest is small where a row's
# positives weigh little beside all pairs. Five to fifteen steps then reach rounding.
#
# The positives of a row are gathered once and stay in the cache for all steps, unless they are too many
# (``max_packed``). A step reads them once: 4 n K operations. A factorisation costs n^2 K or n K^2, which for
# large n and K is more than the steps.

import numpy as np

from rgals.kernels.compile import inner
from rgals.kernels.gather import gather_scaled
from rgals.kernels.library import kernel
from rgals.kernels.plain_rows import add_normal, add_normal_and_right, add_transposed
from rgals.kernels.row import NEXT, Way, ask_for_next, gather_weights
from rgals.kernels.tiles import add, copy, divided, dot, zero
from rgals.kernels.vectors import LINE

CG = 4  # the flag of rows for which CG is tried before a factorisation
CG_ERROR = 4.0  # error of a solution, relative to its length, in units of eps
_CHECK_STEPS = 4  # steps between two checks of convergence and of the pace

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
    """``p = image = r + beta p``: the next direction p. ``X^T S X p`` is added to ``image`` afterwards."""
    with e.blocks(n_blocks) as at:
        direction = r[at] + beta * p[at]
        p[at] = direction
        image[at] = direction


@kernel("vvvvri", "r")
def _move(e, x, r, p, image, alpha, n_blocks):
    """``x += alpha p``, ``r -= alpha image``; returns ``r . r``."""
    # One pass over the four vectors, which also sums the squares of the new residual.
    (squares,) = e.variables(1)
    with e.blocks(n_blocks) as at:
        x[at] = x[at] + alpha * p[at]
        rest = r[at] - alpha * image[at]
        r[at] = rest
        squares += rest * rest
    return e.total(squares)


# ---------------------------------------------------------------- a row


@inner(forceinline=True)
def _pack(start, n, number, rows, fixed, scratch):
    """Pack ``n`` positives from ``start`` on: rows in ``x``, signs in ``sign``, linear terms in ``w``."""
    # Returns the number of rows, padded with zeros to a multiple of 4, and how many weights are negative.
    # A weight m becomes its sign s and the row sqrt(|m|) D^-1/2 f: then X^T S X is the scaled sum of
    # m_k f_k f_k^T, and X^T w that of l_k f_k. With m = 0 the row is D^-1/2 f with s = 0 and w = l, so that
    # the linear term counts.
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


@inner(inline="always")  # inlined by numba, before compilation: one function less to compile
def _descend(row, n, max_packed, rows, fixed, scratch, rr, beta, enough, steps):
    """Up to ``steps`` CG steps, until ``rr = r . r <= enough``."""
    # A row of at most ``max_packed`` positives is packed already, as ``n`` rows; a longer one is packed in
    # pieces at every step. Returns whether a direction has no positive curvature, and the next rr and beta.
    n_blocks = len(fixed.d) // (LINE // fixed.d.itemsize)
    r, p, image = scratch.rest, scratch.direction, scratch.image
    # Hestenes and Stiefel: p = r + beta p, alpha = r . r / p . A p, x += alpha p, r -= alpha A p.
    for _step in range(steps):
        if not rr > enough:
            break
        _turn(p, image, r, beta, n_blocks)
        start = row.begin
        while start < row.end:  # image = p + X^T S X p
            if row.end - row.begin > max_packed:
                n, _ = _pack(start, min(max_packed, row.end - start), row.number, rows, fixed, scratch)
            add_normal(image, 0, scratch.x, 0, p, 0, scratch.sign, 0, n, n_blocks)
            start += max_packed
        curvature = dot(p, 0, image, 0, len(p))
        if not curvature > 0.0:  # true for NaN, too
            return True, rr, beta
        before, rr = rr, _move(scratch.solution, r, p, image, rr / curvature, n_blocks)
        beta = rr / before
    return False, rr, beta


@inner
def solve(row, work, rows, fixed, scratch):
    """Solve ``(I + X^T X) x = c + X^T w`` to rounding, from zero; see `Way`."""
    # It gives up if a weight is negative, if a factorisation would cost less, or if something is not finite.
    budget, max_packed = work.factorisation_steps[row.number], work.max_packed
    eps = np.finfo(fixed.d.dtype).eps
    n_blocks = len(fixed.d) // (LINE // fixed.d.itemsize)
    b, x = scratch.right, scratch.solution
    # b = c + X^T w goes to a vector of its own: if CG gives up, the factorisation starts from c again.
    copy(b, 0, scratch.rhs, 0, len(b))
    n = 0
    for start in range(row.begin, row.end, max_packed):
        n, n_negative = _pack(start, min(max_packed, row.end - start), row.number, rows, fixed, scratch)
        if n_negative > 0:
            return NEXT
        add_transposed(b, 0, scratch.x, 0, scratch.w, 0, n, n_blocks)
    ask_for_next(row, rows, fixed)
    # From x = 0 the residual is b.
    zero(x, 0, len(x))
    zero(scratch.image, 0, len(x))
    right = rr = _residual(scratch.rest, scratch.direction, b, scratch.image, n_blocks)
    enough = right * (CG_ERROR * eps) ** 2
    beta = x.dtype.type(0.0)
    # The plan has only an estimate of the condition. Whether CG pays shows in the pace of its first steps.
    for done in range(_CHECK_STEPS, 2 * budget, _CHECK_STEPS):
        failed, rr, beta = _descend(row, n, max_packed, rows, fixed, scratch, rr, beta, enough, _CHECK_STEPS)
        if failed:
            return NEXT
        if done == _CHECK_STEPS:
            # No eigenvalue is below 1, so the error of x is at most the residual: |r| <= 4 eps |x| is enough.
            # |x| grows from step to step; that of the first ones errs on the safe side.
            enough = dot(x, 0, x, 0, len(x)) * (CG_ERROR * eps) ** 2
        if rr <= enough and enough > 0.0:  # enough is 0 if squares of tiny numbers underflow
            copy(scratch.rhs, 0, b, 0, len(b))
            return 0
        # log(right / rr) / done is the pace. Give up if the whole way, log(right / enough), would take more
        # than budget + done steps at that pace: steps to come would cost more than a factorisation. Written
        # without a division, because a division by zero raises in compiled code.
        if not (enough > 0.0 and np.log(right / rr) * (budget + done) > np.log(right / enough) * done):
            return NEXT
    return NEXT


@inner
def improve(row, steps, max_packed, rows, fixed, result, scratch):
    """Improve a row by ``steps`` CG steps from what ``result.out`` holds."""
    # Leaves x in ``scratch.solution`` and ``b + r``, with the residual r, in ``scratch.rhs``: minus their
    # product is the row's part of the objective. Returns 1 if a direction has no positive curvature, which
    # only happens with negative weights, else 0.
    k, n_blocks = result.out.shape[1], len(fixed.d) // (LINE // fixed.d.itemsize)
    b, x, image = scratch.rhs, scratch.solution, scratch.image
    # The current factor p is the start: x = D^1/2 p in the scaled system.
    zero(x, 0, len(x))
    divided(x, 0, result.out, row.number * k, scratch.inv_root, 0, k)
    copy(image, 0, x, 0, len(x))
    # b += X^T w and image = (I + X^T S X) x, in one pass over the positives.
    n = 0
    for start in range(row.begin, row.end, max_packed):
        n, _ = _pack(start, min(max_packed, row.end - start), row.number, rows, fixed, scratch)
        add_normal_and_right(image, 0, b, 0, scratch.x, 0, x, 0, scratch.sign, 0, scratch.w, 0, n, n_blocks)
    ask_for_next(row, rows, fixed)
    rr = _residual(scratch.rest, scratch.direction, b, image, n_blocks)
    enough = dot(b, 0, b, 0, len(b)) * np.finfo(x.dtype).eps ** 2
    failed, _, _ = _descend(row, n, max_packed, rows, fixed, scratch, rr, x.dtype.type(0.0), enough, steps)
    add(b, 0, scratch.rest, 0, len(b))
    return 1 if failed else 0


WAYS = (Way(CG, "by CG", solve),)
