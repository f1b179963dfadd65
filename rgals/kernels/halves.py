"""Gramians from halves: float32 numbers as sums of two bfloat16 ones, multiplied by the matrix unit.

With ``X = H + L``, 8 significant bits in each, ``X^T X`` is ``H^T H + H^T L + L^T H`` but for about 2^-17 of
every product, and `rgals.kernels.amx` multiplies bfloat16 sixteen times as fast as vector units multiply
float32. What is factorised from that is accurate enough to start from (`rgals.kernels.refine`).

Rows are taken in groups of 32. The columns of a block of W of a group lie in memory twice, as tiles of 16 x
16 words, a word being two numbers of neighbouring rows: word j of line p of the *right* tile is column j of
rows 2p and 2p + 1; the *left* tile is its transpose. Either is followed by the same of the low halves. For
processors without the unit there is vector code for the same tiles: all can be tested anywhere.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils

from rgals.kernels import amx
from rgals.kernels.emitter import INT, kernel
from rgals.kernels.inner import inner
from rgals.kernels.tiles import triangle

GROUP = 32  # rows of a group: the depth of a product of two tiles
GROUPS = 2  # of rows taken at once: their tiles stay in the first-level cache
SIDE = 16  # of a tile
TILE = SIDE * SIDE  # words

_I32 = ir.IntType(32)
_LINE = ir.VectorType(_I32, SIDE)
_HALVES = ir.VectorType(ir.IntType(16), 2 * SIDE)


def _is_double(e):
    return e.real == ir.DoubleType()  # no halves of those: such code is compiled and never called


def _constant(number):
    return ir.Constant(_LINE, [number] * SIDE)


def _words(e, pointer):
    return e.builder.bitcast(pointer, _I32.as_pointer())


def _place(e, words, index, n=SIDE):
    return e.builder.bitcast(e.at(words, index), ir.VectorType(_I32, n).as_pointer())


def _shuffle(e, a, b, lanes):
    return e.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, len(lanes)), lanes))


def _is_two(e, n_parts):
    return e.builder.icmp_signed("==", n_parts, ir.Constant(INT, 2))


def _store_halves(e, pair, words, at):
    """A line of a tile: two vectors rounded to bfloat16, side by side; returns what they are then."""
    # To the nearest, half-way cases away from zero: what remains is at most 2^-9 of a number.
    builder = e.builder
    rounded = [builder.add(builder.bitcast(row, _LINE), _constant(0x8000)) for row in pair]
    first = builder.bitcast(builder.lshr(rounded[0], _constant(16)), _HALVES)
    second = builder.bitcast(rounded[1], _HALVES)
    by_turns = [j + 2 * SIDE * (j % 2) for j in range(2 * SIDE)]
    word = builder.bitcast(_shuffle(e, first, second, by_turns), _LINE)
    builder.store(word, _place(e, words, at), align=64)
    return [builder.bitcast(builder.and_(r, _constant(0xFFFF0000)), e.vector) for r in rounded]


@kernel("ppppppxii")
def _pack(e, right, rhs, source, scale, roots, w, indices, stride, n_parts):
    if _is_double(e):
        return
    builder, words = e.builder, _words(e, right)
    factor = e.load(scale)
    total = cgutils.alloca_once_value(builder, e.load(rhs))
    with cgutils.for_range(builder, ir.Constant(INT, GROUP // 2)) as loop:
        pair = []
        for i in range(2):
            number = builder.add(builder.shl(loop.index, ir.Constant(INT, 1)), ir.Constant(INT, i))
            row = e.load(e.at(source, builder.mul(e.index(indices, number), stride)))
            row = builder.fmul(row, builder.fmul(factor, e.spread(e.scalar(roots, number))))
            builder.store(e.fma(e.spread(e.scalar(w, number)), row, builder.load(total)), total)
            pair.append(row)
        at = builder.mul(loop.index, ir.Constant(INT, SIDE))
        high = _store_halves(e, pair, words, at)
        with builder.if_then(_is_two(e, n_parts)):
            rest = [builder.fsub(row, part) for row, part in zip(pair, high, strict=True)]
            _store_halves(e, rest, words, builder.add(at, ir.Constant(INT, TILE)))
    e.store(builder.load(total), rhs)


@kernel("ppii")
def _pack_rows(e, left, rows, stride, n_parts):
    if _is_double(e):
        return
    builder, words = e.builder, _words(e, left)
    with cgutils.for_range(builder, ir.Constant(INT, SIDE)) as loop:
        row = e.at(rows, builder.mul(loop.index, stride))
        pair = [e.load(row), e.load(row, SIDE)]
        at = builder.mul(loop.index, ir.Constant(INT, SIDE))
        high = _store_halves(e, pair, words, at)
        with builder.if_then(_is_two(e, n_parts)):
            rest = [builder.fsub(row, part) for row, part in zip(pair, high, strict=True)]
            _store_halves(e, rest, words, builder.add(at, ir.Constant(INT, TILE)))


@kernel("ppi")
def _transpose(e, left, right, n_parts):
    # Quarters of four lines side by side, then squares of 4 x 4: half of the work is done by loads.
    if _is_double(e):
        return
    builder = e.builder
    quads = range(0, SIDE, 4)
    by_turns = [[4 * k + x for k in range(4) for x in (at, SIDE + at, at + 1, SIDE + at + 1)] for at in (0, 2)]
    by_pairs = [[4 * k + x for k in range(4) for x in (at, at + 1, SIDE + at, SIDE + at + 1)] for at in (0, 2)]
    with cgutils.for_range(builder, n_parts) as part:
        start = builder.mul(part.index, ir.Constant(INT, TILE))
        to, source = e.at(_words(e, left), start), e.at(_words(e, right), start)
        for q in quads:
            lines = []
            for j in range(4):
                parts = [builder.load(_place(e, source, (j + i) * SIDE + q, 4), align=16) for i in quads]
                pairs = [_shuffle(e, *parts[i : i + 2], list(range(8))) for i in (0, 2)]
                lines.append(_shuffle(e, *pairs, list(range(16))))
            for i, lanes in enumerate(by_turns):
                one, two = _shuffle(e, *lines[:2], lanes), _shuffle(e, *lines[2:], lanes)
                for k, ends in enumerate(by_pairs):
                    place = _place(e, to, (q + 2 * i + k) * SIDE)
                    builder.store(_shuffle(e, one, two, ends), place, align=64)


def _on_unit(e, tiles, lefts, rights, n_groups, n_parts, beside):
    builder = e.builder
    for number, (c, _, _) in enumerate(tiles):
        amx.load(builder, number, c)
    with cgutils.for_range(builder, n_groups) as loop:
        group = builder.mul(loop.index, ir.Constant(INT, 2 * TILE))

        def load(first, panels, half):
            for i, panel in enumerate(panels):
                amx.load(builder, first + i, e.at(panel, builder.add(group, ir.Constant(INT, half * TILE))))

        def multiply():
            for number, (_, i, j) in enumerate(tiles):
                amx.multiply_add(builder, number, 4 + i, 6 + j)

        load(4, lefts, 0)
        with builder.if_then(_is_two(e, n_parts)):
            load(6, rights, 1)
            multiply()
        load(6, rights, 0)
        multiply()
        with builder.if_then(_is_two(e, n_parts)):
            load(4, lefts, 1)
            multiply()
        beside(loop.index)
    for number, (c, _, _) in enumerate(tiles):
        amx.store(builder, number, c)


def _without(e, tiles, lefts, rights, n_groups, n_parts, beside):
    builder = e.builder

    def ends(word):
        """The two numbers of a word or of every word of a line, the high half's bits in place."""
        upper = ir.Constant(word.type, [0xFFFF0000] * SIDE if word.type == _LINE else 0xFFFF0000)
        shift = ir.Constant(word.type, [16] * SIDE if word.type == _LINE else 16)
        real = e.vector if word.type == _LINE else e.real
        return [builder.bitcast(x, real) for x in (builder.shl(word, shift), builder.and_(word, upper))]

    for c, i, j in tiles:
        with cgutils.for_range(builder, ir.Constant(INT, SIDE)) as row:
            at = builder.mul(row.index, ir.Constant(INT, SIDE))
            total = cgutils.alloca_once_value(builder, e.load(c, at))
            with cgutils.for_range(builder, n_groups) as loop:
                group = builder.mul(loop.index, ir.Constant(INT, 2 * TILE))
                n_products = builder.sub(builder.shl(n_parts, ir.Constant(INT, 1)), ir.Constant(INT, 1))
                with cgutils.for_range(builder, n_products) as product:
                    # Halves of left and right: 0 0, 0 1, 1 0.
                    halves = [builder.icmp_signed("==", product.index, ir.Constant(INT, p)) for p in (2, 1)]
                    a, b = (
                        e.at(panel, builder.add(group, builder.shl(builder.zext(half, INT), ir.Constant(INT, 8))))
                        for panel, half in zip((lefts[i], rights[j]), halves, strict=True)
                    )
                    with cgutils.for_range(builder, ir.Constant(INT, SIDE)) as pair:
                        left = builder.load(e.at(a, builder.add(at, pair.index)))
                        place = _place(e, b, builder.mul(pair.index, ir.Constant(INT, SIDE)))
                        for x, y in zip(ends(left), ends(builder.load(place)), strict=True):
                            builder.store(e.fma(e.spread(x), y, builder.load(total)), total)
            e.store(builder.load(total), c, at)


def _products(e, tiles, left, right, stride, n_groups, n_parts, source, soon, n_soon, n_each, n_lines):
    if _is_double(e):
        return
    builder = e.builder
    width, zero = builder.mul(n_lines, ir.Constant(INT, e.width)), ir.Constant(INT, 0)

    def beside(group):
        # Memory works while the unit does: asked for in bursts, rows would wait for each other.
        first = builder.mul(group, n_each)
        rest = builder.sub(n_soon, first)
        rest = builder.select(builder.icmp_signed("<", rest, n_each), rest, n_each)
        rest = builder.select(builder.icmp_signed(">", rest, zero), rest, zero)
        with cgutils.for_range(builder, rest) as loop:
            number = e.index(soon, builder.add(first, loop.index))
            row = e.at(source, builder.mul(number, width))
            with cgutils.for_range(builder, n_lines) as line:
                e.prefetch(e.at(row, builder.mul(line.index, ir.Constant(INT, e.width))), 2)

    lefts, rights = ([_words(e, p), e.at(_words(e, p), stride)] for p in (left, right))
    (_on_unit if amx.COMPILED else _without)(e, tiles, lefts, rights, n_groups, n_parts, beside)


@kernel("ppppiiipxiii")
def _square(e, c, d, left, right, *rest):
    tiles = [(e.at(first, i * TILE), i, j) for i in (0, 1) for j, first in enumerate((c, d))]
    _products(e, tiles, left, right, *rest)


@kernel("ppppiiipxiii")
def _diagonal(e, c, d, left, right, *rest):
    tiles = [(c, 0, 0), (d, 0, 1), (e.at(d, TILE), 1, 1)]
    _products(e, tiles, left, right, *rest)


@inner
def n_tiles_memory(n_blocks):
    """Numbers that the tiles of ``n_blocks`` blocks take as memory."""
    return (n_blocks + n_blocks % 2 + 2) * GROUPS * 2 * TILE


@inner
def _column(
    c, tiles, j, right, n_groups, n_parts, factors, indices, then, asked, n_then, n_each, n_lines
):  # fmt: skip
    """Block columns j and j + 1 of ``C += L R``; returns how many rows have been asked for until now."""
    stride = GROUPS * 2 * TILE
    one, two = triangle(SIDE, j), triangle(SIDE, j + 1)
    for i in range(0, j, 2):
        _square(
            c, one + i * TILE, c, two + i * TILE, tiles, i * stride, tiles, right, stride, n_groups, n_parts,
            factors, 0, indices, then + asked, n_then - asked, n_each, n_lines,
        )  # fmt: skip
        asked += n_each * n_groups
    _diagonal(
        c, one + j * TILE, c, two + j * TILE, tiles, j * stride, tiles, right, stride, n_groups, n_parts,
        factors, 0, indices, then + asked, n_then - asked, n_each, n_lines,
    )  # fmt: skip
    return asked + n_each * n_groups


@inner
def _n_products(n_blocks):
    n_pairs = (n_blocks + 1) // 2
    return n_pairs * (n_pairs + 1) // 2


@inner
def gram_add(c, tiles, factors, cols, roots, w, inv_root, rhs, kp, n, n_parts, indices, then, n_then):
    """``C += X^T X`` as a packed triangle and ``rhs += X^T w``, X being ``n`` rows as in `systems`.

    Parameters
    ----------
    c : packed triangle of an even number of block columns; one that pads it receives anything
    tiles : memory, see `n_tiles_memory`
    cols, roots, w : of the rows, padded to whole groups by entries with root 0 and w 0
    n : int
        At most ``GROUPS * GROUP``.
    n_parts : int
        1: of the upper halves alone, to about 2^-9; 2: to about 2^-17.
    indices, then, n_then
        Rows to ask for on the way: ``factors[indices[then + i]]``.
    """
    n_groups = (n + GROUP - 1) // GROUP
    n_blocks = kp // SIDE
    stride = GROUPS * 2 * TILE
    right = (n_blocks + n_blocks % 2) * stride
    n_products = _n_products(n_blocks) * n_groups
    n_each = (n_then + n_products - 1) // n_products
    asked = 0
    for j in range(0, n_blocks, 2):
        for b in range(j, min(j + 2, n_blocks)):
            for g in range(n_groups):
                at = g * GROUP
                here = right + (b - j) * stride + g * 2 * TILE
                _pack(
                    tiles, here, rhs, b * SIDE, factors, b * SIDE, inv_root, b * SIDE, roots, at, w, at, cols,
                    at, kp, n_parts,
                )  # fmt: skip
                _transpose(tiles, b * stride + g * 2 * TILE, tiles, here, n_parts)
        asked = _column(
            c, tiles, j, right, n_groups, n_parts, factors, indices, then, asked, n_then, n_each, n_blocks
        )


@inner
def rows_gram_add(c, tiles, x, kp, n_panels, n_parts, factors, indices, then, n_then):
    """``C += X X^T`` as a packed triangle from ``n_panels * W`` plain rows; arguments as for `gram_add`."""
    stride = GROUPS * 2 * TILE
    right = (n_panels + n_panels % 2) * stride
    n_products = _n_products(n_panels) * ((kp + GROUP - 1) // GROUP)
    n_each = (n_then + n_products - 1) // n_products
    asked = 0
    for start in range(0, kp, GROUPS * GROUP):
        n_groups = (min(kp - start, GROUPS * GROUP) + GROUP - 1) // GROUP
        for j in range(0, n_panels, 2):
            for q in range(j, min(j + 2, n_panels)):
                for g in range(n_groups):
                    here = q * stride + g * 2 * TILE
                    _pack_rows(tiles, here, x, q * SIDE * kp + start + g * GROUP, kp, n_parts)
                    _transpose(tiles, right + (q - j) * stride + g * 2 * TILE, tiles, here, n_parts)
            asked = _column(
                c, tiles, j, right, n_groups, n_parts, factors, indices, then, asked, n_then, n_each,
                kp // SIDE,
            )  # fmt: skip
