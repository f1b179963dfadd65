"""Register-blocked building blocks of small dense linear algebra, in explicit vector instructions.

Rows of a sparse problem give thousands of *small* systems. For those a BLAS call costs as much as its
arithmetic, and compilers do not keep two-dimensional tiles in registers by themselves. The functions here
are LLVM vector code for one W x W tile at a time, W being one cache line (16 float32, 8 float64). LLVM maps
it to whatever the processor has, and numba caches it as any other code.

Two layouts serve everything:

panel
    ``depth x W`` numbers, contiguous: step t of W neighbouring columns.
packed triangle
    The upper triangle of a symmetric matrix by block columns: block column j is the panel of its block rows
    ``0 .. j``, so that it starts at ``j (j + 1) / 2 W^2``. A Cholesky factor in this layout is again a set of
    panels.

Arrays are one-dimensional; every array argument is followed by its offset.
"""

from __future__ import annotations

from llvmlite import ir
from numba import njit
from numba.core import cgutils

from rgals.kernels.emitter import INT, LINE, kernel, over_blocks
from rgals.kernels.inner import inner


def _add_self(e, c, a, depth, sign, beside=None):
    # Of the lower half of the rows only the right half of the columns: the rest lies below the diagonal.
    half = e.narrower(e.width // 2)
    rows = [(e, i, 0) for i in range(half.width)] + [
        (half, i, half.width) for i in range(half.width, e.width)
    ]
    for first in range(0, e.width, e.rows):
        part = rows[first : first + e.rows]
        acc = [(v.variables(1)[0], v, i, left) for v, i, left in part]
        with cgutils.for_range(e.builder, depth) as loop:
            if beside is not None and first == 0:
                beside(loop.index)
            step = e.at(a, e.builder.mul(loop.index, ir.Constant(INT, e.width)))
            wide, narrow = e.load(step), half.load(step, half.width)
            for slot, v, i, _ in acc:
                row = wide if v is e else narrow
                e.builder.store(v.fma(v.spread(e.scalar(step, i)), row, e.builder.load(slot)), slot)
        for slot, v, i, left in acc:
            at = i * e.width + left
            factor = v.spread(sign)
            v.store(v.fma(factor, e.builder.load(slot), v.load(c, at)), c, at)


@kernel("pppir")
def _tile_add(e, c, a, b, depth, sign):
    factor = e.spread(sign)
    for first in range(0, e.width, e.rows):
        acc = e.variables(e.rows)
        with cgutils.for_range(e.builder, depth) as loop:
            base = e.builder.mul(loop.index, ir.Constant(INT, e.width))
            row = e.load(e.at(b, base))
            step = e.at(a, base)
            for i in range(e.rows):
                left = e.spread(e.scalar(step, first + i))
                e.builder.store(e.fma(left, row, e.builder.load(acc[i])), acc[i])
        for i in range(e.rows):
            at = (first + i) * e.width
            e.store(e.fma(factor, e.builder.load(acc[i]), e.load(c, at)), c, at)


@kernel("pppppir")
def _tile_add_two(e, c, d, a, b, other, depth, sign):
    # Half of the rows at once, so that every element of the left panel is read for two vectors.
    factor, half = e.spread(sign), max(e.rows // 2, 1)
    for first in range(0, e.width, half):
        acc = e.variables(2 * half)
        with cgutils.for_range(e.builder, depth) as loop:
            base = e.builder.mul(loop.index, ir.Constant(INT, e.width))
            rows = [e.load(e.at(panel, base)) for panel in (b, other)]
            step = e.at(a, base)
            for i in range(half):
                left = e.spread(e.scalar(step, first + i))
                for slot, row in zip(acc[2 * i : 2 * i + 2], rows, strict=True):
                    e.builder.store(e.fma(left, row, e.builder.load(slot)), slot)
        for i in range(half):
            at = (first + i) * e.width
            for to, slot in zip((c, d), acc[2 * i : 2 * i + 2], strict=True):
                e.store(e.fma(factor, e.builder.load(slot), e.load(to, at)), to, at)


@kernel("ppir")
def _tile_add_self(e, c, a, depth, sign):
    _add_self(e, c, a, depth, sign)


@kernel("pppxiiir")
def _tile_add_self_and_ask(e, c, a, source, indices, stride, n, depth, sign):
    last = e.builder.sub(n, ir.Constant(INT, 1))

    def ask(t):
        t = e.builder.select(e.builder.icmp_signed("<", t, last), t, last)
        e.prefetch(e.at(source, e.builder.mul(e.index(indices, t), stride)), 2)

    _add_self(e, c, a, depth, sign, ask)


@inner
def tile_add_self(c, oc, a, oa, depth, sign):
    """``C += sign A^T A``, its upper triangle: a W x W tile from one panel."""
    _tile_add_self(c, oc, a, oa, depth, sign)


@inner
def tile_add(c, oc, a, oa, b, ob, depth, sign):
    """``C += sign A^T B``: a W x W tile from two panels."""
    _tile_add(c, oc, a, oa, b, ob, depth, sign)


@kernel("pp")
def _tile_factor(e, c, inverse):
    # L D L^T first, the square roots of all pivots at the end. The chain of dependent steps is division,
    # product, multiply-add: the next pivot is found ahead of its row, and rows are multiplied by lanes taken
    # before the division is done.
    w, builder = e.width, e.builder
    rows = [e.load(c, i * w) for i in range(w)]
    one = e.ones()
    pivots = e.zero()
    pivot = e.lane(rows[0], 0)
    for i in range(w):
        pivots = e.shuffle(pivots, pivot, [w + i if k == i else k for k in range(w)])
        inverse_pivot = builder.fdiv(one, pivot)
        lanes = {j: e.lane(rows[i], j) for j in range(i + 1, w)}
        scaled = builder.fmul(rows[i], inverse_pivot)
        if i + 1 < w:
            ahead = builder.fmul(lanes[i + 1], inverse_pivot)
            pivot = e.fma(e.neg(lanes[i + 1]), ahead, e.lane(rows[i + 1], i + 1))
        for j, lane in lanes.items():
            rows[j] = e.fma(e.neg(lane), scaled, rows[j])
    inverses = builder.fdiv(one, e.root(pivots))
    for i in range(w):
        e.store(e.from_lane(builder.fmul(rows[i], e.lane(inverses, i)), i), c, i * w)
    e.store(inverses, inverse)
    bits = ir.IntType(w)
    wrong = builder.fcmp_unordered("<=", pivots, e.zero())  # unordered: NaN counts as wrong
    mask = builder.bitcast(wrong, bits)
    count = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(bits, [bits, ir.IntType(1)]), f"llvm.cttz.i{w}"
    )
    first = builder.zext(builder.call(count, [mask, ir.Constant(ir.IntType(1), 0)]), INT)
    number = builder.add(first, ir.Constant(INT, 1))
    none = builder.icmp_unsigned("==", mask, ir.Constant(bits, 0))
    return builder.select(none, ir.Constant(INT, 0), number)


@inner
def tile_factor(c, oc, inverse, oi):
    """Cholesky ``U^T U`` of a diagonal tile in place, and ``1 / diag(U)``. Returns 0 or the failing pivot."""
    return _tile_factor(c, oc, inverse, oi)


@kernel("ppp")
def _tile_solve(e, c, u, inverse):
    w = e.width
    rows = [e.load(c, i * w) for i in range(w)]
    for i in range(w):
        rows[i] = e.builder.fmul(rows[i], e.spread(e.scalar(inverse, i)))
        minus = e.neg(rows[i])
        for j in range(i + 1, w):
            rows[j] = e.fma(e.spread(e.scalar(u, i * w + j)), minus, rows[j])
    for i in range(w):
        e.store(rows[i], c, i * w)


@inner
def tile_solve(c, oc, u, ou, inverse, oi):
    """``C = U^-T C`` for a tile and a factored diagonal tile."""
    _tile_solve(c, oc, u, ou, inverse, oi)


@kernel("ppp")
def _forward_tile(e, y, u, inverse):
    w = e.width
    rest = e.load(y)
    out = e.zero()
    for i in range(w):
        solved = e.builder.fmul(e.lane(rest, i), e.spread(e.scalar(inverse, i)))
        lanes = [w + i if k == i else k for k in range(w)]
        out = e.shuffle(out, solved, lanes)
        rest = e.fma(e.neg(solved), e.load(u, i * w), rest)
    e.store(out, y)


@inner
def forward_tile(y, oy, u, ou, inverse, oi):
    """``y = U^-T y`` for one tile."""
    _forward_tile(y, oy, u, ou, inverse, oi)


@kernel("ppp")
def _backward_tile(e, y, u, inverse):
    w = e.width
    columns = e.transpose([e.load(u, i * w) for i in range(w)])
    rest = e.load(y)
    out = e.zero()
    for i in reversed(range(w)):
        solved = e.builder.fmul(e.lane(rest, i), e.spread(e.scalar(inverse, i)))
        lanes = [w + i if k == i else k for k in range(w)]
        out = e.shuffle(out, solved, lanes)
        rest = e.fma(e.neg(solved), columns[i], rest)
    e.store(out, y)


@inner
def backward_tile(y, oy, u, ou, inverse, oi):
    """``y = U^-1 y`` for one tile."""
    _backward_tile(y, oy, u, ou, inverse, oi)


@kernel("pp")
def _tile_invert(e, u, inverse):
    rows = [None] * e.width
    for i in reversed(range(e.width)):
        row = ir.Constant(e.vector, [float(j == i) for j in range(e.width)])
        for j in reversed(range(i + 1, e.width)):  # the row that was found last, last
            row = e.fma(e.neg(e.spread(e.scalar(u, i * e.width + j))), rows[j], row)
        rows[i] = e.builder.fmul(row, e.spread(e.scalar(inverse, i)))
    for i, row in enumerate(rows):
        e.store(row, u, i * e.width)


@kernel("pp")
def _forward_by_inverse(e, y, u):
    parts = [e.zero()] * 4  # that do not wait for each other
    for i in range(e.width):
        parts[i % 4] = e.fma(e.spread(e.scalar(y, i)), e.load(u, i * e.width), parts[i % 4])
    add = e.builder.fadd
    e.store(add(add(parts[0], parts[1]), add(parts[2], parts[3])), y)


@kernel("pp")
def _backward_by_inverse(e, y, u):
    right = e.load(y)
    e.store(e.sums([e.builder.fmul(e.load(u, i * e.width), right) for i in range(e.width)]), y)


@kernel("pppir")
def _panel_product(e, y, panel, x, depth, sign):
    # Four accumulators hide the latency of the multiply-add.
    acc = e.variables(4)
    four = ir.Constant(INT, 4)
    with cgutils.for_range(e.builder, e.builder.udiv(depth, four)) as loop:
        base = e.builder.mul(loop.index, four)
        rows = e.at(panel, e.builder.mul(base, ir.Constant(INT, e.width)))
        factors = e.at(x, base)
        for i in range(4):
            product = e.fma(e.spread(e.scalar(factors, i)), e.load(rows, i * e.width), e.builder.load(acc[i]))
            e.builder.store(product, acc[i])
    a, b, c, d = (e.builder.load(slot) for slot in acc)
    total = e.builder.fadd(e.builder.fadd(a, b), e.builder.fadd(c, d))
    e.store(e.fma(e.spread(sign), total, e.load(y)), y)


@inner
def panel_product(y, oy, panel, op, x, ox, depth, sign):
    """``y (W) += sign panel^T x`` with ``x`` of length ``depth``, a multiple of 4."""
    _panel_product(y, oy, panel, op, x, ox, depth, sign)


@kernel("pppiir")
def _panels_transposed(e, y, panel, z, stride, n_panels, sign):
    acc = e.variables(e.width)
    with cgutils.for_range(e.builder, n_panels) as loop:
        block = e.at(panel, e.builder.mul(loop.index, stride))
        factor = e.load(z, e.builder.mul(loop.index, ir.Constant(INT, e.width)))
        for i in range(e.width):
            e.builder.store(e.fma(e.load(block, i * e.width), factor, e.builder.load(acc[i])), acc[i])
    total = e.sums([e.builder.load(slot) for slot in acc])
    e.store(e.fma(e.spread(sign), total, e.load(y)), y)


@inner
def panels_transposed(y, oy, panel, op, z, oz, stride, n_panels, sign):
    """``y (W) += sign sum_p tile_p z_p`` over the W steps at ``op`` in each of ``n_panels`` panels."""
    _panels_transposed(y, oy, panel, op, z, oz, stride, n_panels, sign)


@kernel("ppii")
def _subtract_later(e, y, c, j, n_blocks):
    builder, square = e.builder, e.width * e.width
    acc = e.variables(e.width)
    one = ir.Constant(INT, 1)
    with cgutils.for_range_slice(builder, builder.add(j, one), n_blocks, one, INT) as (i, _):
        number = builder.add(builder.lshr(builder.mul(i, builder.add(i, one)), one), j)
        tile = e.at(c, builder.mul(number, ir.Constant(INT, square)))
        solved = e.load(y, builder.mul(i, ir.Constant(INT, e.width)))
        for r in range(e.width):
            builder.store(e.fma(e.load(tile, r * e.width), solved, builder.load(acc[r])), acc[r])
    at = builder.mul(j, ir.Constant(INT, e.width))
    total = e.sums([builder.load(slot) for slot in acc])
    e.store(builder.fsub(e.load(y, at), total), y, at)


@inner
def subtract_later(y, c, j, n_blocks):
    """``y_j -= sum_i U_ji y_i`` over the blocks i > j of a factor ``U^T U``, a packed triangle."""
    _subtract_later(y, 0, c, 0, j, n_blocks)


@kernel("pppr")
def _scaled_copy(e, out, source, factors, factor):
    scaled = e.builder.fmul(e.load(factors), e.spread(factor))
    e.store(e.builder.fmul(e.load(source), scaled), out)


@inner
def scaled_copy(out, oo, source, os, factors, of, factor):
    """``out (W) = source * factors * factor``, element by element."""
    _scaled_copy(out, oo, source, os, factors, of, factor)


@kernel("pprr")
def _inverse_root(e, out, d, scale, ridge):
    diagonal = e.fma(e.load(d), e.spread(scale), e.spread(ridge))
    e.store(e.builder.fdiv(e.ones(), e.root(diagonal)), out)


@inner
def inverse_root(out, oo, d, od, scale, ridge):
    """``out (W) = 1 / sqrt(scale d + ridge)``."""
    _inverse_root(out, oo, d, od, scale, ridge)


@kernel("ppi")
def _widen_add(e, x, total, n_blocks):
    wide = ir.VectorType(ir.DoubleType(), e.width)

    def step(at):
        numbers = e.load(at(x))
        if e.real != ir.DoubleType():
            numbers = e.builder.fpext(numbers, wide)
        to = e.builder.bitcast(at(total), wide.as_pointer())
        e.builder.store(e.builder.fadd(e.builder.load(to, align=8), numbers), to, align=8)

    over_blocks(e, n_blocks, step)


@inner
def widen_add(x, ox, total, ot, n_blocks):
    """``total += x`` for whole blocks, in float64."""
    _widen_add(x, ox, total, ot, n_blocks)


@kernel("pppi")
def _dot(e, out, x, y, n_blocks):
    (acc,) = e.variables(1)
    with cgutils.for_range(e.builder, n_blocks) as loop:
        at = e.builder.mul(loop.index, ir.Constant(INT, e.width))
        e.builder.store(e.fma(e.load(e.at(x, at)), e.load(e.at(y, at)), e.builder.load(acc)), acc)
    e.builder.store(e.total(e.builder.load(acc)), out, align=e.align)


@inner
def dot(out, oo, x, ox, y, oy, n_blocks):
    """``out = x . y`` over ``n_blocks`` blocks of W."""
    _dot(out, oo, x, ox, y, oy, n_blocks)


@njit(inline="always")
def inner_product(x, ox, y, oy, n, total):
    """``x . y`` over ``n`` numbers, always summed in one order; ``total`` is memory for one number."""
    w = LINE // x.itemsize
    _dot(total, 0, x, ox, y, oy, n // w)
    value = total[0]
    for k in range(n // w * w, n):
        value += x[ox + k] * y[oy + k]
    return value


@inner
def triangle(width, n_blocks):
    """Numbers that a packed triangle of ``n_blocks`` block columns takes."""
    return n_blocks * (n_blocks + 1) // 2 * width * width


@inner
def tile_add_two(c, oc, od, a, oa, ob, other, depth, sign):
    """`tile_add` at ``oc`` and ``od``, of one left panel and two right ones."""
    _tile_add_two(c, oc, c, od, a, oa, a, ob, a, other, depth, sign)


@inner
def _above_diagonal(c, panels, stride, depth, j, last, factor):
    """The tiles of block columns j and, where it is not beyond ``last``, j + 1 above their own squares."""
    w = LINE // c.itemsize
    at, right = triangle(w, j), triangle(w, j + 1)
    for i in range(j):
        to, left = i * w * w, i * stride
        if j < last:
            tile_add_two(c, at + to, right + to, panels, left, j * stride, (j + 1) * stride, depth, factor)
        else:
            tile_add(c, at + to, panels, left, panels, j * stride, depth, factor)
    if j < last:
        tile_add(c, right + j * w * w, panels, j * stride, panels, (j + 1) * stride, depth, factor)


@inner
def gram_add(c, panels, stride, depth, n_blocks, factor):
    """``C += factor X^T X`` as a packed triangle; block column j of X is the panel at ``j * stride``."""
    w = LINE // c.itemsize
    for j in range(n_blocks):
        if j % 2 == 0:
            _above_diagonal(c, panels, stride, depth, j, n_blocks - 1, factor)
        tile_add_self(c, triangle(w, j) + j * w * w, panels, j * stride, depth, factor)


@inner
def gram_add_and_ask(c, panels, stride, depth, n_blocks, factor, source, indices, begin, n):
    """`gram_add`, asking on the way for rows ``source[indices[begin + i]]`` of ``n_blocks`` blocks each.

    For block j with block column j, a row with each step: memory then works while the arithmetic does.

    Returns
    -------
    int
        How many of the ``n`` rows were asked for: there may be fewer steps than rows.
    """
    w = LINE // c.itemsize
    for j in range(n_blocks):
        if j % 2 == 0:
            _above_diagonal(c, panels, stride, depth, j, n_blocks - 1, factor)
        at = triangle(w, j) + j * w * w
        if n == 0:
            tile_add_self(c, at, panels, j * stride, depth, factor)
        else:
            _tile_add_self_and_ask(
                c, at, panels, j * stride, source, j * w, indices, begin, n_blocks * w, n, depth, factor
            )
    return min(n, depth)


@inner
def cholesky(c, inverse, n_blocks):
    """Cholesky factor ``U^T U`` of a packed triangle in place, left-looking, and ``1 / diag(U)``.

    Returns 0, or the number of the first pivot that is not positive, from 1.
    """
    w = LINE // c.itemsize
    square = w * w
    for j in range(n_blocks):
        column = triangle(w, j)
        for i in range(j + 1):
            tile = column + i * square
            row = triangle(w, i)
            if 0 < i < j:
                tile_add(c, tile, c, row, c, column, i * w, -1.0)
            elif i > 0:
                tile_add_self(c, tile, c, column, i * w, -1.0)
            if i < j:
                tile_solve(c, tile, c, row + i * square, inverse, i * w)
            else:
                failed = tile_factor(c, tile, inverse, j * w)
                if failed:
                    return j * w + failed
    return 0


@inner
def cholesky_solve(c, inverse, y, n_blocks):
    """``y = (U^T U)^-1 y`` in place; ``y`` has whole blocks."""
    w = LINE // c.itemsize
    square = w * w
    for j in range(n_blocks):
        column = triangle(w, j)
        if j > 0:
            panel_product(y, j * w, c, column, y, 0, j * w, -1.0)
        forward_tile(y, j * w, c, column + j * square, inverse, j * w)
    for j in range(n_blocks - 1, -1, -1):
        column = triangle(w, j)
        subtract_later(y, c, j, n_blocks)
        backward_tile(y, j * w, c, column + j * square, inverse, j * w)
    return 0


@inner
def invert_diagonal(c, inverse, n_blocks):
    """The diagonal tiles of a factor become their inverses: for `solve_by_inverses`, more than once."""
    w = LINE // c.itemsize
    for j in range(n_blocks):
        _tile_invert(c, triangle(w, j) + j * w * w, inverse, j * w)


@inner
def solve_by_inverses(c, y, n_blocks):
    """`cholesky_solve` after `invert_diagonal`: no chain of dependent steps within a tile."""
    w = LINE // c.itemsize
    square = w * w
    for j in range(n_blocks):
        column = triangle(w, j)
        if j > 0:
            panel_product(y, j * w, c, column, y, 0, j * w, -1.0)
        _forward_by_inverse(y, j * w, c, column + j * square)
    for j in range(n_blocks - 1, -1, -1):
        subtract_later(y, c, j, n_blocks)
        _backward_by_inverse(y, j * w, c, triangle(w, j) + j * square)


@inner
def panel_solve(c, inverse, panel, op, first, n_blocks):
    """``panel = U^-T panel`` in place; ``n_blocks`` block rows, zero before block ``first``."""
    w = LINE // c.itemsize
    square = w * w
    for i in range(first, n_blocks):
        row = triangle(w, i)
        tile = op + i * square
        if i > first:
            tile_add(panel, tile, c, row + first * square, panel, op + first * square, (i - first) * w, -1.0)
        tile_solve(panel, tile, c, row + i * square, inverse, i * w)
