"""Rows of many positives from a rough Gramian: factorised as it is, the solution refined until it is exact.

`rgals.kernels.halves` forms ``I + X^T X`` to about 2^-17. What that does to a solution shows in the residual
``b - (I + X^T X) x``, which is computed in float32 from the factors themselves; the rough Cholesky factor
turns it into a correction. One correction is the rule: no weight is negative, so that the condition of these
systems is at most one plus the largest weight of a positive over that of all pairs.
"""

from __future__ import annotations

import numpy as np

from rgals.kernels import halves, plain_rows, tiles
from rgals.kernels.emitter import LINE, kernel, over_blocks
from rgals.kernels.inner import inner
from rgals.kernels.loops import copy, zero
from rgals.kernels.systems import add_unweighted, gather_weights, identity
from rgals.kernels.tiles import scaled_copy

ROUGH = -2  # code of a row that has to be solved by `systems.primal`
CHUNK = halves.GROUPS * halves.GROUP
_MARGIN = 64.0  # a correction may be that much worse than the one before
_PASSES = 6
_STAYS = 1 << 20  # bytes of a row's factors that are still in the second-level cache when read again


@kernel("ppppppi")
def _remainder(e, out, r, b, x, product, factors, n_blocks):
    (acc,) = e.variables(1)

    def step(here):
        rest = e.builder.fsub(e.load(here(b)), e.load(here(x)))
        rest = e.fma(e.neg(e.load(here(product))), e.load(here(factors)), rest)
        e.store(rest, here(r))
        e.builder.store(e.fma(rest, rest, e.builder.load(acc)), acc)

    over_blocks(e, n_blocks, step)
    e.builder.store(e.total(e.builder.load(acc)), out, align=e.align)


@kernel("ppi")
def _add(e, x, correction, n_blocks):
    over_blocks(e, n_blocks, lambda at: e.store(e.builder.fadd(e.load(at(x)), e.load(at(correction))), at(x)))


@inner
def heaviest(begin, end, indices, values, terms, col_terms):
    """The largest weight of a row's first positives: an estimate of the largest of all."""
    if len(values) == 0 and len(col_terms) == 0:
        return np.float64(terms[0] + terms[1])
    top = -np.inf
    for i in range(begin, min(begin + CHUNK, end)):
        v = values[i] if len(values) else terms.dtype.type(1.0)
        if len(col_terms):
            col = indices[i]
            weight = v * (terms[0] * col_terms[col, 0]) + terms[1] * col_terms[col, 1]
        else:
            weight = v * terms[0] + terms[1]
        top = max(top, np.float64(weight))
    return top


@inner
def n_parts(n_bytes, weight, scale):
    """Halves to start from: the upper alone where corrections are cheap and as good as thousandfold."""
    return 1 if n_bytes <= _STAYS and weight <= 32.0 * scale else 2


@inner
def _residual(
    begin, end, kp, indices, values, factors, terms, col_terms, inv_root, cols, roots, w, linear, rhs, x,
    scaled, product, rest, total
):  # fmt: skip
    """``rest = rhs - (I + X^T X) x`` and the square of its length."""
    n_blocks = kp // (LINE // rhs.itemsize)
    for b in range(n_blocks):
        at = b * (LINE // rhs.itemsize)
        scaled_copy(scaled, at, x, at, inv_root, at, 1.0)
    zero(product, kp)
    for start in range(begin, end, len(cols)):
        stop = min(start + len(cols), end)
        gather_weights(start, stop, indices, values, terms, col_terms, cols, roots, w, linear)
        n = (stop - start + 3) // 4 * 4
        for i in range(n):
            roots[i] *= roots[i]
        plain_rows.gathered_rows_normal(product, factors, cols, scaled, roots, n, n_blocks)
    _remainder(total, 0, rest, 0, rhs, 0, x, 0, product, 0, inv_root, 0, n_blocks)
    return total[0]


@inner
def solve(
    begin, end, then, n_then, kp, indices, values, factors, terms, col_terms, inv_root, cols, roots, w,
    linear, memory, c, inverse, rhs, x, scaled, product, rest, total, parts
):  # fmt: skip
    """Solve ``(I + X^T X) x = rhs + X^T w`` for weights that are not negative.

    Arguments as for `systems.primal`; ``scaled``, ``product`` and ``rest`` are memory for a vector each,
    ``total`` for a number; ``parts`` as `halves.gram_add` has them.

    Returns
    -------
    int
        0, or `ROUGH`: a weight is negative, or the rough factor is too rough. ``rhs`` is spoiled then.
    """
    n_blocks = kp // (LINE // rhs.itemsize)
    identity(c, n_blocks)
    for start in range(begin, end, CHUNK):
        stop = min(start + CHUNK, end)
        n = stop - start
        n_positive, n_negative = gather_weights(
            start, stop, indices, values, terms, col_terms, cols, roots, w, linear
        )
        if n_negative > 0:
            return ROUGH
        for i in range(n, (n + halves.GROUP - 1) // halves.GROUP * halves.GROUP):
            cols[i], roots[i], w[i] = cols[0], 0.0, 0.0
        soon, n_soon = (stop, min(CHUNK, end - stop)) if stop < end else (then, n_then)
        halves.gram_add(c, memory, factors, cols, roots, w, inv_root, rhs, kp, n, parts, indices, soon, n_soon)
        if n_positive < n:
            add_unweighted(n, kp, factors, cols, roots, linear, inv_root, rhs)
    if tiles.cholesky(c, inverse, n_blocks):
        return ROUGH
    copy(x, rhs)
    tiles.cholesky_solve(c, inverse, x, n_blocks)
    tiles.dot(total, 0, rhs, 0, rhs, 0, n_blocks)
    before = total[0]
    eps = np.finfo(rhs.dtype).eps
    enough, floor = (4.0 * eps) ** 2 * before, 2.0**-26 * before
    for _ in range(_PASSES):
        squares = _residual(
            begin, end, kp, indices, values, factors, terms, col_terms, inv_root, cols, roots, w, linear,
            rhs, x, scaled, product, rest, total
        )  # fmt: skip
        if not squares <= before / 16.0:  # no gain: rounding, or a factor that is too rough; NaN too
            return 0 if squares <= floor else ROUGH
        tiles.cholesky_solve(c, inverse, rest, n_blocks)
        _add(x, 0, rest, 0, n_blocks)
        if before == 0.0 or squares * (squares / before) * _MARGIN**2 <= enough:
            return 0
        before = squares
    return 0
