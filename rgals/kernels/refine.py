"""Rows of many positives from a rough Gramian: factorised as it is, the solution refined until it is exact.

`rgals.kernels.rough` forms ``I + X^T X`` to about 2^-8 or 2^-16. What that does to a solution shows in the
residual ``b - (I + X^T X) x``, which is computed in float32 from the factors themselves; the rough Cholesky
factor turns it into a correction. One or two make the residual as small as that of a solution in float32: no
weight is negative, so that the condition of these systems is at most one plus the largest weight of a
positive over that of all pairs. Where corrections gain too little, more parts are tried, then float32.
"""

from __future__ import annotations

from rgals.kernels import gather, plain_rows, rough, tiles, triangles
from rgals.kernels.compile import inner
from rgals.kernels.emitter import LINE, kernel, over_blocks
from rgals.kernels.loops import copy, zero
from rgals.kernels.systems import add_unweighted, gather_weights, identity
from rgals.kernels.tiles import scaled_copy

ROUGH = -2  # code of a row that has to be solved from more parts, or in float32
CHUNK = rough.GROUPS * rough.GROUP
_MARGIN = 8.0  # a correction may gain that much less than the one before; up to 6 was seen
_PASSES = 6
FROM = 48  # positives: with fewer, parts cost more than they save


# What a residual says.
_MORE, _LAST, _ENOUGH, _BAD = 0, 1, 2, 3  # correct and look again; correct; leave it; the factor is useless


@inner
def _judge(squares, before, right):
    """What to do: squared lengths of the residual, of the one before, and of the right-hand side."""
    if not squares <= before / 16.0:  # no gain: rounding, or a factor that is too rough; NaN too
        return _ENOUGH if squares <= 2.0**-26 * right else _BAD
    if squares == 0.0:
        return _ENOUGH
    # The next residual will be shorter by the ratio of these two, or a little less.
    return _LAST if squares * (squares / before) * _MARGIN**2 <= (4.0 * 2.0**-23) ** 2 * right else _MORE


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
def first_parts(weight, scale):
    """Parts to start from: one where the condition of the system, at most ``1 + weight / scale``, is low."""
    return 1 if weight <= 32.0 * scale else 2


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
def primal(
    begin, end, then, n_then, kp, indices, values, factors, terms, col_terms, inv_root, cols, roots, w,
    linear, memory, c, inverse, rhs, x, scaled, product, rest, total, parts
):  # fmt: skip
    """Solve ``(I + X^T X) x = rhs + X^T w`` for weights that are not negative.

    Arguments as for `systems.primal`; ``scaled``, ``product`` and ``rest`` are memory for a vector each,
    ``total`` for a number; ``parts`` as `rough.gram_add` has them.

    Returns
    -------
    int
        0, or `ROUGH`: a weight is negative, or the factor is too rough. ``rhs`` is spoiled then.
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
        for i in range(n, (n + rough.GROUP - 1) // rough.GROUP * rough.GROUP):
            cols[i], roots[i], w[i] = cols[0], 0.0, 0.0
        soon, n_soon = (stop, min(CHUNK, end - stop)) if stop < end else (then, n_then)
        rough.gram_add(c, memory, factors, cols, roots, w, inv_root, rhs, kp, n, parts, indices, soon, n_soon)
        if n_positive < n:
            add_unweighted(n, kp, factors, cols, roots, linear, inv_root, rhs)
    if triangles.cholesky(c, inverse, n_blocks):
        return ROUGH
    triangles.invert_diagonal(c, inverse, n_blocks)
    copy(x, rhs)
    triangles.solve_by_inverses(c, inverse, x, n_blocks)
    tiles.dot(total, 0, rhs, 0, rhs, 0, n_blocks)
    right = before = total[0]
    for _ in range(_PASSES):
        squares = _residual(
            begin, end, kp, indices, values, factors, terms, col_terms, inv_root, cols, roots, w, linear,
            rhs, x, scaled, product, rest, total
        )  # fmt: skip
        verdict = _judge(squares, before, right)
        if verdict in (_ENOUGH, _BAD):
            return 0 if verdict == _ENOUGH else ROUGH
        triangles.solve_by_inverses(c, inverse, rest, n_blocks)
        _add(x, 0, rest, 0, n_blocks)
        if verdict == _LAST:
            return 0
        before = squares
    return ROUGH


@inner
def dual(
    n, kp, shifted, factors, indices, then, n_then, inv_root, cols, roots, w, x, memory, c, inverse, z, right,
    rest, product, solution, rhs, total, parts
):  # fmt: skip
    """`systems.dual` for weights that are not negative, from a rough factor; ``c`` in ``solution``, ``rhs``.

    ``right`` and ``rest`` are memory for a number a positive, ``product`` for a vector.

    Returns
    -------
    int
        0 or `ROUGH`; nothing is spoiled then.
    """
    width = LINE // rhs.itemsize
    n_blocks, n_panels = kp // width, (n + width - 1) // width
    depth = n_panels * width
    gather.gather_scaled(x, kp, width, factors, inv_root, cols, roots, kp, depth, n_blocks, 1.0)
    identity(c, n_panels)
    rough.rows_gram_add(c, memory, x, kp, n_panels, parts, factors, indices, then, n_then)
    for i in range(depth):
        right[i] = w[i]
    if shifted:
        plain_rows.rows_product(right, x, solution, n, n_blocks, -1.0)
    if triangles.cholesky(c, inverse, n_panels):
        return ROUGH
    triangles.invert_diagonal(c, inverse, n_panels)
    for i in range(depth):
        z[i] = right[i]
    triangles.solve_by_inverses(c, inverse, z, n_panels)
    tiles.dot(total, 0, right, 0, right, 0, n_panels)
    start = before = total[0]
    verdict = _BAD
    for _ in range(_PASSES):
        zero(product, kp)
        plain_rows.rows_transposed(product, x, z, n, n_blocks)
        for i in range(depth):
            rest[i] = right[i] - z[i]
        plain_rows.rows_product(rest, x, product, n, n_blocks, -1.0)
        tiles.dot(total, 0, rest, 0, rest, 0, n_panels)
        verdict = _judge(total[0], before, start)
        if verdict in (_ENOUGH, _BAD):
            break
        triangles.solve_by_inverses(c, inverse, rest, n_panels)
        _add(z, 0, rest, 0, n_panels)
        if verdict == _LAST:
            break
        before = total[0]
        verdict = _BAD
    if verdict == _BAD:
        return ROUGH
    plain_rows.rows_transposed_two(solution, rhs, x, z, w, n, n_blocks)
    return 0
