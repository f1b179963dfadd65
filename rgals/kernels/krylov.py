"""One system of `rgals.kernels.systems` by conjugate gradients: nothing K x K, nothing n x n.

In the rotated basis the preconditioner ``D = scale d + ridge`` is diagonal and yet holds the whole Gramian;
scaled by ``D^-1/2`` the system ``(I + X^T X) x = b`` needs no preconditioner at all. Its smallest eigenvalue
is 1 and its largest is small wherever a row's positives weigh little beside all pairs: five to fifteen steps
reach the rounding of the arithmetic, fewer reach what approximate solvers are content with.

The positives of a row are gathered once and stay in the cache for all steps, unless they are too many; a step
reads them once. Factorisations multiply every positive with every other, or every factor with every other:
with many of both that costs more than the steps.
"""

from __future__ import annotations

import numpy as np

from rgals.kernels import conjugate, gather, plain_rows, tiles
from rgals.kernels.compile import inner
from rgals.kernels.loops import copy, zero
from rgals.kernels.systems import gather_weights
from rgals.kernels.tiles import LINE
from rgals.runtime.aligned import CACHE

_LOOK = 4  # steps between two looks at the pace
# Steps of rows of real data until 6.3 digits are right (douban-book-music, K=128, float32): so many, and so
# many for every tenfold condition. 6 to 7 were seen at 11, 9 to 13 at 101, 12 at 390, 13 to 17 at 1001.
_DIGITS = 6.3
_STEPS = 1.5
_STEPS_TENFOLD = 4.3
_CLOSE = 4.0  # times eps: the error of a solution, relative to it
FROM = 32  # positives, and
_WIDE = 64  # factors: with fewer, a factorisation costs no more
_STREAMED = 256  # factors: with as many, rows that have to be gathered at every step are solved sooner too


@inner
def capacity(kp, itemsize):
    """So many positives are packed at once: whole blocks of W that stay in the caches."""
    width = LINE // itemsize
    return max(CACHE // itemsize // kp, width) // width * width


@inner
def room(longest, kp, itemsize):
    """So many positives a thread needs memory for whose longest row has ``longest``."""
    width = LINE // itemsize
    return max(width, min(capacity(kp, itemsize), (longest + width - 1) // width * width))


@inner
def _worth(n, kp):
    """How many steps cost as much as a factorisation."""
    return min(n, kp) // 8 + 4


@inner
def pays(n, kp, most, rough, weight, scale, eps):
    """Whether a row of ``n`` positives is to be tried, ``most`` of them fitting; ``rough``: see `refine`.

    The condition of its system is at most one plus the largest ``weight`` of a positive over the ``scale`` of
    all pairs; the steps grow with the logarithm of that.
    """
    if n < FROM or kp < _WIDE or not scale > 0.0:
        return False
    # Rough Gramians cost so little that only rows in the second-level cache are solved sooner.
    if 2 * n > most if rough else n > most and kp < _STREAMED:
        return False
    condition = 1.0 + max(weight, 0.0) / scale
    steps = (_STEPS + _STEPS_TENFOLD * np.log10(condition)) * -np.log10(_CLOSE * eps) / _DIGITS
    return steps <= _worth(n, kp)


@inner
def pack(
    begin, n, indices, values, factors, terms, col_terms, inv_root, cols, roots, w, linear, sign, x, n_blocks
):
    """Rows ``sqrt(|m_k|) D^-1/2 f_k`` in ``x``, the signs of their weights, and ``w`` with ``b += X^T w``.

    A positive without weight gets a row too, so that its linear term counts, and the sign 0.

    Returns
    -------
    (n_rows, n_negative) : the number of rows, padded with zeros to a multiple of 4; negative weights.
    """
    kp = len(inv_root)
    _, n_negative = gather_weights(
        begin, begin + n, indices, values, terms, col_terms, cols, roots, w, linear
    )
    for i in range(n):
        sign[i] = np.sign(roots[i])
        roots[i] = abs(roots[i])
        if roots[i] == 0.0:
            roots[i] = 1.0
            w[i] = linear[i]
    padded = (n + 3) // 4 * 4
    for i in range(n, padded):
        sign[i] = 0.0
    gather.gather_scaled(x, kp, LINE // x.itemsize, factors, inv_root, cols, roots, kp, padded, n_blocks, 1.0)
    return padded, n_negative


@inner
def descend(
    begin, end, n, most, indices, values, factors, terms, col_terms, inv_root, cols, roots, w, linear, sign,
    packed, x, r, p, ap, rr, beta, enough, steps, total
):  # fmt: skip
    """Up to ``steps`` steps, until ``r . r <= enough``; no more than ``most`` positives are packed at once.

    A row of at most so many is in ``packed`` already, ``n`` rows of it.

    Returns
    -------
    (failed, rr, beta) : whether a direction has no positive curvature; what the next call is to be given.
    """
    n_blocks = len(inv_root) // (LINE // x.itemsize)
    for _step in range(steps):
        if not rr > enough:
            break
        conjugate.turn(p, ap, r, beta, n_blocks)
        if end - begin <= most:
            plain_rows.rows_normal(ap, packed, p, sign, n, n_blocks)
        else:
            for start in range(begin, end, most):
                n, _ = pack(
                    start, min(most, end - start), indices, values, factors, terms, col_terms, inv_root,
                    cols, roots, w, linear, sign, packed, n_blocks,
                )  # fmt: skip
                plain_rows.rows_normal(ap, packed, p, sign, n, n_blocks)
        tiles.dot(total, 0, p, 0, ap, 0, n_blocks)
        if not total[0] > 0.0:
            return True, rr, beta
        conjugate.move(total, x, r, p, ap, rr / total[0], n_blocks)
        beta = total[0] / rr
        rr = total[0]
    return False, rr, beta


@inner
def solve(
    begin, end, then, n_then, most, indices, values, factors, terms, col_terms, inv_root, cols, roots, w,
    linear, sign, packed, rhs, b, x, r, p, ap, total
):  # fmt: skip
    """Solve ``(I + X^T X) x = b = rhs + X^T w`` to rounding, from zero, for weights that are not negative.

    What comes out is ``x`` and ``b``; the arguments are those of `systems.primal` and `descend`.

    Returns
    -------
    bool
        Whether that succeeded; else ``rhs`` is what it was: a weight is negative, the steps would be too
        many, or something is not finite.
    """
    eps = np.finfo(x.dtype).eps
    n_blocks = len(inv_root) // (LINE // x.itemsize)
    copy(b, rhs)
    n = 0
    for start in range(begin, end, most):
        n, n_negative = pack(
            start, min(most, end - start), indices, values, factors, terms, col_terms, inv_root, cols, roots,
            w, linear, sign, packed, n_blocks,
        )  # fmt: skip
        if n_negative > 0:
            return False
        plain_rows.rows_transposed(b, packed, w, n, n_blocks)
    gather.prefetch_rows(factors, indices, then, len(inv_root), n_then, n_blocks)
    zero(x, len(x))
    zero(ap, len(x))
    conjugate.residual(total, r, p, b, ap, n_blocks)
    right = rr = total[0]
    enough = right * (_CLOSE * eps) ** 2
    beta = x.dtype.type(0.0)
    worth = _worth(end - begin, len(x))
    for done in range(_LOOK, 2 * worth, _LOOK):
        failed, rr, beta = descend(
            begin, end, n, most, indices, values, factors, terms, col_terms, inv_root, cols, roots, w,
            linear, sign, packed, x, r, p, ap, rr, beta, enough, _LOOK, total
        )  # fmt: skip
        if failed:
            return False
        if done == _LOOK:
            # No eigenvalue is below 1: the error is no longer than the residual.
            tiles.dot(total, 0, x, 0, x, 0, n_blocks)
            enough = total[0] * (_CLOSE * eps) ** 2
        if rr <= enough:
            return True
        # At the pace until now the steps to come would cost more. (A division by zero would raise.)
        if not (enough > 0.0 and np.log(right / rr) * (worth + done) > np.log(right / enough) * done):
            return False
    return False
