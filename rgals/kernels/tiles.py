"""Register-blocked building blocks of small dense linear algebra, in explicit vector instructions.

Rows of a sparse problem give thousands of *small* systems. For those a BLAS call costs as much as its
arithmetic, and compilers do not keep two-dimensional tiles in registers by themselves. The functions here
are LLVM vector code for one W x W tile at a time, W being one cache line (16 float32, 8 float64). LLVM maps
it to whatever the processor has, and numba caches it as any other code.

Where a register holds half of W (no AVX-512) the factorisations of a tile work on quarters of it, which stay
in registers. A *panel* is ``depth x W`` numbers, contiguous: step t of W neighbouring columns.

Arrays are one-dimensional; every array argument is followed by its offset.
"""

from __future__ import annotations

from llvmlite import ir
from numba import njit
from numba.core import cgutils

from rgals.kernels.compile import inner
from rgals.kernels.emitter import INT, LINE, kernel, over_blocks


def row_sums(e, each):
    """The vector of ``sum_t tile_t z_t``; ``each(add)`` calls ``add(tile, z)`` for every t, in a loop or not.

    Called once for every part of the rows that the registers hold.
    """
    v = e.native()
    parts = []
    for first in range(0, e.width, v.width):
        acc = v.variables(v.width)

        def add(tile, z, first=first, acc=acc):
            for left in range(0, e.width, v.width):
                factor = v.load(z, left)
                for i, slot in enumerate(acc):
                    row = v.load(tile, (first + i) * e.width + left)
                    e.builder.store(v.fma(row, factor, e.builder.load(slot)), slot)

        each(add)
        parts.append(v.sums([e.builder.load(slot) for slot in acc]))
    return e.join(parts)


def _add_self(e, c, a, depth, sign, beside=None):
    # Of the lower half of the rows only the right half of the columns: the rest lies below the diagonal.
    half = e.narrower(e.width // 2)
    rows = [(e, i, 0) for i in range(half.width)] + [
        (half, i, half.width) for i in range(half.width, e.width)
    ]
    parts: list[list] = [[]]  # as many accumulators as the registers hold
    for row in rows:
        if sum(v.width for v, _, _ in parts[-1]) >= e.rows * e.width:
            parts.append([])
        parts[-1].append(row)
    for part in parts:
        acc = [(v.variables(1)[0], v, i, left) for v, i, left in part]
        with cgutils.for_range(e.builder, depth) as loop:
            if beside is not None and part is parts[0]:
                beside(loop.index)
            step = e.at(a, e.builder.mul(loop.index, ir.Constant(INT, e.width)))
            wide = e.load(step) if any(v is e for _, v, _, _ in acc) else None
            narrow = half.load(step, half.width)
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
def tile_add_self_and_ask(c, oc, a, oa, source, os, indices, oi, stride, n, depth, sign):
    """`tile_add_self`; step t asks for the line ``source[os + indices[oi + t] * stride]``, t below ``n``."""
    _tile_add_self_and_ask(c, oc, a, oa, source, os, indices, oi, stride, n, depth, sign)


@inner
def tile_add(c, oc, a, oa, b, ob, depth, sign):
    """``C += sign A^T B``: a W x W tile from two panels."""
    _tile_add(c, oc, a, oa, b, ob, depth, sign)


@inner
def tile_add_two(c, oc, od, a, oa, ob, other, depth, sign):
    """`tile_add` at ``oc`` and ``od``, of one left panel and two right ones."""
    _tile_add_two(c, oc, c, od, a, oa, a, ob, a, other, depth, sign)


def _minus_earlier(e, v, u, c, rows, first, left):
    """Rows ``first ..`` of ``C``, from column ``left``, less ``U^T C`` over the rows of both before them."""
    for i in range(first):
        solved = v.load(c, i * e.width + left)
        for j, row in enumerate(rows):
            factor = v.spread(e.scalar(u, i * e.width + first + j))
            rows[j] = v.fma(v.neg(factor), solved, row)
    return rows


def _factor_part(e, v, c, inverse, first):
    # L D L^T first, the square roots of all pivots at the end. The chain of dependent steps is division,
    # product, multiply-add: the next pivot is found ahead of its row, and rows are multiplied by lanes taken
    # before the division is done.
    builder = e.builder
    places = [(first + i) * e.width + first for i in range(v.width)]
    rows = _minus_earlier(e, v, c, c, [v.load(c, at) for at in places], first, first)
    one = v.ones()
    pivots = v.zero()
    pivot = v.lane(rows[0], 0)
    for i in range(v.width):
        pivots = v.shuffle(pivots, pivot, [v.width + i if k == i else k for k in range(v.width)])
        inverse_pivot = builder.fdiv(one, pivot)
        lanes = {j: v.lane(rows[i], j) for j in range(i + 1, v.width)}
        scaled = builder.fmul(rows[i], inverse_pivot)
        if i + 1 < v.width:
            ahead = builder.fmul(lanes[i + 1], inverse_pivot)
            pivot = v.fma(v.neg(lanes[i + 1]), ahead, v.lane(rows[i + 1], i + 1))
        for j, lane in lanes.items():
            rows[j] = v.fma(v.neg(lane), scaled, rows[j])
    inverses = builder.fdiv(one, v.root(pivots))
    for i, at in enumerate(places):
        v.store(v.from_lane(builder.fmul(rows[i], v.lane(inverses, i)), i), c, at)
        for left in range(0, first, v.width):
            v.store(v.zero(), c, at - first + left)
    v.store(inverses, inverse, first)
    return pivots


def _solve_part(e, v, c, u, inverse, first, left):
    places = [(first + i) * e.width + left for i in range(v.width)]
    rows = _minus_earlier(e, v, u, c, [v.load(c, at) for at in places], first, left)
    for i, at in enumerate(places):
        rows[i] = e.builder.fmul(rows[i], v.spread(e.scalar(inverse, first + i)))
        v.store(rows[i], c, at)
        minus = v.neg(rows[i])
        for j in range(i + 1, v.width):
            rows[j] = v.fma(v.spread(e.scalar(u, (first + i) * e.width + first + j)), minus, rows[j])


@kernel("pp")
def _tile_factor(e, c, inverse):
    v, builder = e.native(), e.builder
    pivots = []
    for first in range(0, e.width, v.width):
        pivots.append(_factor_part(e, v, c, inverse, first))
        for left in range(first + v.width, e.width, v.width):
            _solve_part(e, v, c, c, inverse, first, left)
    bits = ir.IntType(e.width)
    wrong = builder.fcmp_unordered("<=", e.join(pivots), e.zero())  # unordered: NaN counts as wrong
    mask = builder.bitcast(wrong, bits)
    count = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(bits, [bits, ir.IntType(1)]), f"llvm.cttz.i{e.width}"
    )
    failed = builder.zext(builder.call(count, [mask, ir.Constant(ir.IntType(1), 0)]), INT)
    number = builder.add(failed, ir.Constant(INT, 1))
    none = builder.icmp_unsigned("==", mask, ir.Constant(bits, 0))
    return builder.select(none, ir.Constant(INT, 0), number)


@inner
def tile_factor(c, oc, inverse, oi):
    """Cholesky ``U^T U`` of a diagonal tile in place, and ``1 / diag(U)``. Returns 0 or the failing pivot."""
    return _tile_factor(c, oc, inverse, oi)


@kernel("ppp")
def _tile_solve(e, c, u, inverse):
    v = e.native()
    for first in range(0, e.width, v.width):
        for left in range(0, e.width, v.width):
            _solve_part(e, v, c, u, inverse, first, left)


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
    v = e.native()
    for first in reversed(range(0, e.width, v.width)):
        places = [(first + i) * e.width for i in range(v.width)]
        columns = v.transpose([v.load(u, at + first) for at in places])
        rest = v.load(y, first)
        for later in range(first + v.width, e.width, v.width):
            solved = v.load(y, later)
            products = [e.builder.fmul(v.load(u, at + later), solved) for at in places]
            rest = e.builder.fsub(rest, v.sums(products))
        out = v.zero()
        for i in reversed(range(v.width)):
            solved = e.builder.fmul(v.lane(rest, i), v.spread(e.scalar(inverse, first + i)))
            lanes = [v.width + i if k == i else k for k in range(v.width)]
            out = v.shuffle(out, solved, lanes)
            rest = v.fma(v.neg(solved), columns[i], rest)
        v.store(out, y, first)


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
    e.store(row_sums(e, lambda add: add(u, y)), y)


@inner
def tile_invert(u, ou, inverse, oi):
    """A factored diagonal tile becomes its inverse."""
    _tile_invert(u, ou, inverse, oi)


@inner
def forward_by_inverse(y, oy, u, ou, inverse, oi):
    """`forward_tile` after `tile_invert`."""
    _forward_by_inverse(y, oy, u, ou)


@inner
def backward_by_inverse(y, oy, u, ou, inverse, oi):
    """`backward_tile` after `tile_invert`."""
    _backward_by_inverse(y, oy, u, ou)


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
    def over_panels(add):
        with cgutils.for_range(e.builder, n_panels) as loop:
            block = e.at(panel, e.builder.mul(loop.index, stride))
            add(block, e.at(z, e.builder.mul(loop.index, ir.Constant(INT, e.width))))

    e.store(e.fma(e.spread(sign), row_sums(e, over_panels), e.load(y)), y)


@inner
def panels_transposed(y, oy, panel, op, z, oz, stride, n_panels, sign):
    """``y (W) += sign sum_p tile_p z_p`` over the W steps at ``op`` in each of ``n_panels`` panels."""
    _panels_transposed(y, oy, panel, op, z, oz, stride, n_panels, sign)


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
