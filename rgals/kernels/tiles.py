"""Register-blocked building blocks of small dense linear algebra, in explicit vector instructions."""

# A sparse problem has thousands of *small* systems. For those the overhead of a BLAS call is as large as its
# arithmetic, and compilers do not keep two-dimensional tiles in registers by themselves. The functions here
# work on one W x W tile at a time, stored row by row, W being one cache line (16 float32, 8 float64). A
# *panel* is a contiguous ``depth x W`` matrix: W neighbouring columns of a wider one.
#
# Without AVX-512 a register holds half of W. Tiles are then factorised in quarters, which stay in registers.
#
# Compiled functions pass one-dimensional arrays, each followed by an offset; kernels pass pointers.

from rgals.kernels.library import kernel
from rgals.kernels.vectors import Number

# ---------------------------------------------------------------- products


@kernel("pppir")
def tile_add(e, c, a, b, depth, sign):
    """``C += sign A^T B``: a W x W tile from two panels."""
    # As many rows of C at once as the registers hold. Step t adds the outer product of row t of A and of B.
    for first in range(0, e.width, e.rows):
        acc = e.variables(e.rows)
        with e.loop(depth) as t:
            step = a + t * e.width + first
            row = b[t * e.width]
            for i, slot in enumerate(acc):
                slot += step.spread(i) * row
        for i, slot in enumerate(acc):
            at = (first + i) * e.width
            c[at] = c[at] + sign * slot


@kernel("pppppir")
def tile_add_two(e, c, d, a, b, other, depth, sign):
    """`tile_add` to two tiles, from one left panel and two right ones."""
    # Half as many rows at once, for two tiles: each number of the left panel is read once for two vectors.
    half = max(e.rows // 2, 1)
    for first in range(0, e.width, half):
        acc = e.variables(2 * half)
        with e.loop(depth) as t:
            step = a + t * e.width + first
            rows = [b[t * e.width], other[t * e.width]]
            for i in range(half):
                left = step.spread(i)
                for slot, row in zip(acc[2 * i : 2 * i + 2], rows, strict=True):
                    slot += left * row
        for i in range(half):
            at = (first + i) * e.width
            for to, slot in zip((c, d), acc[2 * i : 2 * i + 2], strict=True):
                to[at] = to[at] + sign * slot


@kernel("ppir")
def tile_add_self(e, c, a, depth, sign):
    """``C += sign A^T A``, its upper triangle: a W x W tile from one panel."""
    # Rows in the lower half need only the right half of the columns: the rest lies below the diagonal.
    half = e.narrower(e.width // 2)
    rows = [(e, i, 0) for i in range(half.width)]  # vector width, row, first column
    rows += [(half, i, half.width) for i in range(half.width, e.width)]
    # Rows are split into parts whose sums fit the registers.
    parts: list[list] = [[]]
    for row in rows:
        if sum(v.width for v, _, _ in parts[-1]) >= e.rows * e.width:
            parts.append([])
        parts[-1].append(row)
    for part in parts:
        acc = [(v.variables(1)[0], v, i, left) for v, i, left in part]
        with e.loop(depth) as t:
            step = a + t * e.width
            wide = step[0] if any(v is e for _, v, _, _ in acc) else None
            narrow = half.view(step)[half.width]
            for slot, v, i, _ in acc:
                slot += v.view(step).spread(i) * (wide if v is e else narrow)
        for slot, v, i, left in acc:
            at, to = i * e.width + left, v.view(c)
            to[at] = to[at] + (sign if v is e else e.part(sign, 0, v.width)) * slot


@kernel("pppir")
def panel_product(e, y, panel, x, depth, sign):
    """``y (W) += sign panel^T x`` with ``x`` of length ``depth``, a multiple of 4."""
    acc = e.variables(4)  # four independent sums hide the latency of the multiply-add
    with e.loop(depth // 4) as quad:
        rows, factors = panel + quad * (4 * e.width), x + quad * 4
        for i, slot in enumerate(acc):
            slot += factors.spread(i) * rows[i * e.width]
    y[0] = y[0] + sign * ((acc[0] + acc[1]) + (acc[2] + acc[3]))


# ---------------------------------------------------------------- the Cholesky factor U^T U of a tile


def _minus_earlier(e, u, c, rows, first, left):
    """``rows``, which are C's from ``first`` on and column ``left`` on, minus ``U^T C`` over earlier rows."""
    for i in range(first):
        solved = c[i * e.width + left]
        for j, row in enumerate(rows):
            rows[j] = row - u.spread(i * e.width + first + j) * solved
    return rows


def _factor_part(e, v, c, inverse, first):
    """Factorise the square of ``v.width`` rows on the diagonal from row ``first`` on; returns its pivots."""
    # The square is factorised as L D L^T. The square roots of all pivots come at the end, in one vector.
    # Each pivot depends on the one before by a division, a product and a multiply-add, and their latency is
    # the cost. To shorten this chain, the next pivot is computed before the rest of its row, and the factors
    # of later rows are taken (`lanes`) while the division is still running.
    places = [(first + i) * e.width + first for i in range(v.width)]
    rows = _minus_earlier(e, c, c, [c[at] for at in places], first, first)
    one, pivots = v.ones(), v.zero()
    pivot = v.lane(rows[0], 0)
    for i in range(v.width):
        pivots = v.with_lane(pivots, i, pivot)
        inverse_pivot = one / pivot
        lanes = {j: v.lane(rows[i], j) for j in range(i + 1, v.width)}
        scaled = (rows[i] * inverse_pivot).rounded()
        if i + 1 < v.width:
            ahead = (lanes[i + 1] * inverse_pivot).rounded()
            pivot = v.lane(rows[i + 1], i + 1) - lanes[i + 1] * ahead
        for j, lane in lanes.items():
            rows[j] = rows[j] - lane * scaled
    # From L D L^T to U^T U: row i of U is row i of D L^T divided by the root of its pivot.
    inverses = one / v.root(pivots)
    for i, at in enumerate(places):
        c[at] = v.from_lane(rows[i] * v.lane(inverses, i), i)
        for left in range(0, first, v.width):
            c[at - first + left] = v.zero()
    inverse[first] = inverses
    return pivots


def _solve_part(e, v, c, u, inverse, first, left):
    """Rows ``first ..`` of ``U^-T C``, from column ``left``: forward substitution, row by row."""
    places = [(first + i) * e.width + left for i in range(v.width)]
    rows = _minus_earlier(e, u, c, [c[at] for at in places], first, left)
    for i, at in enumerate(places):
        rows[i] = (rows[i] * inverse.spread(first + i)).rounded()
        c[at] = rows[i]
        for j in range(i + 1, v.width):
            rows[j] = rows[j] - rows[i] * u.spread((first + i) * e.width + first + j)


@kernel("pp", "i")
def tile_factor(e, c, inverse):
    """Cholesky ``U^T U`` of a diagonal tile in place, and ``1 / diag(U)``. Returns 0 or the failing pivot."""
    # One part with AVX-512. Otherwise the upper left quarter, the upper right one, the lower right one.
    v = e.native()
    c, inverse = v.view(c), v.view(inverse)
    pivots = []
    for first in range(0, e.width, v.width):
        pivots.append(_factor_part(e, v, c, inverse, first))
        for left in range(first + v.width, e.width, v.width):
            _solve_part(e, v, c, c, inverse, first, left)
    wrong = e.bits("<=", e.join(pivots), e.zero(), unordered=True)  # a NaN counts as wrong
    with e.when(wrong.is_("!=", 0)):
        e.give_back(wrong.lowest_bit() + 1)
    return e.index(0)


@kernel("ppp")
def tile_solve(e, c, u, inverse):
    """``C = U^-T C`` for a tile and a factored diagonal tile."""
    v = e.native()
    for first in range(0, e.width, v.width):
        for left in range(0, e.width, v.width):
            _solve_part(e, v, v.view(c), v.view(u), v.view(inverse), first, left)


@kernel("ppp")
def forward_tile(e, y, u, inverse):
    """``y = U^-T y`` for one tile."""
    # y_i = (y_i - sum_{j<i} U_ji y_j) / U_ii: a solved number is subtracted from all later ones at once.
    rest, out = y[0], e.zero()
    for i in range(e.width):
        solved = (e.lane(rest, i) * inverse.spread(i)).rounded()
        out = e.with_lane(out, i, solved)
        rest = rest - solved * u[i * e.width]
    y[0] = out


@kernel("ppp")
def backward_tile(e, y, u, inverse):
    """``y = U^-1 y`` for one tile."""
    # y_i = (y_i - sum_{j>i} U_ij y_j) / U_ii needs the columns of U: squares are transposed in registers.
    v = e.native()
    y, u, inverse = v.view(y), v.view(u), v.view(inverse)
    for first in reversed(range(0, e.width, v.width)):
        places = [(first + i) * e.width for i in range(v.width)]
        columns = v.transpose([u[at + first] for at in places])
        rest = y[first]
        for later in range(first + v.width, e.width, v.width):
            solved = y[later]
            rest = rest - v.sums([u[at + later] * solved for at in places])
        out = v.zero()
        for i in reversed(range(v.width)):
            solved = (v.lane(rest, i) * inverse.spread(first + i)).rounded()
            out = v.with_lane(out, i, solved)
            rest = rest - solved * columns[i]
        y[first] = out


# ---------------------------------------------------------------- vectors


def _number_by_number(name, kinds, formula):
    # The kernel ``out[:n] = formula(out, *arrays)``: on vectors, then on single numbers for what is left.
    def emit(e, out, *args):
        *arrays, n = args
        for v, at in e.pieces(n):
            v.view(out)[at] = formula(*(v.view(x)[at] for x in (out, *arrays)))

    emit.__name__, emit.__doc__ = name, f"`{name}`, number by number."
    return kernel(kinds)(emit)


#: ``to[:n] = 0``, ``to = x``, ``to += x``, ``to = x * y``, ``to = x / y``; a `kernel` each.
zero = _number_by_number("zero", "pi", lambda to: to.e.zero())
copy = _number_by_number("copy", "ppi", lambda to, x: x)
add = _number_by_number("add", "ppi", lambda to, x: to + x)
times = _number_by_number("times", "pppi", lambda to, x, y: x * y)
divided = _number_by_number("divided", "pppi", lambda to, x, y: x / y)


@kernel("ppir")
def add_scaled(e, to, x, n, factor):
    """``to += factor x``."""
    for v, at in e.pieces(n):
        v.view(to)[at] = v.view(to)[at] + factor.on(v) * v.view(x)[at]


@kernel("dppdi")
def add_times(e, total, x, y, factor, n):
    """``total += factor x y``, number by number, the factor and the sums in float64."""
    for v, at in e.pieces(n):
        wide = v.wide()
        product = wide.widened((v.view(x)[at] * v.view(y)[at]).rounded())
        added = (wide.view(factor).spread() * product).rounded()
        wide.view(total)[at] = wide.view(total)[at] + added


@kernel("dpi")
def widen_add(e, total, x, n):
    """``total += x``, in float64."""
    for v, at in e.pieces(n):
        wide = v.wide()
        wide.view(total)[at] = wide.view(total)[at] + wide.widened(v.view(x)[at])


@kernel("ppi", "r")
def dot(e, x, y, n):
    """``x . y``, always summed in one order."""
    (acc,) = e.variables(1)
    with e.blocks(n // e.width) as at:
        acc += x[at] * y[at]
    # Numbers beyond the last whole block are added to the total of the blocks one by one.
    one = e.narrower(1)
    (rest,) = one.variables(1)
    rest.set(e.total(acc).on(one))
    with one.loop(n, n // e.width * e.width) as at:
        rest += one.view(x)[at] * one.view(y)[at]
    return Number(e, one.element(rest, 0))
