"""float32 numbers as sums of bfloat16 parts, multiplied by the matrix unit.

A bfloat16 number has 8 significant bits: three parts hold a float32 number, two hold it to about 2^-16, one
to 2^-8. Of the products of parts those are formed that are no smaller than what the last part leaves out: 6
for three parts, which are as good as a product in float32; 3 for two; 1 for one. `rgals.kernels.amx`
multiplies bfloat16 sixteen times as fast as vector units multiply float32.

Tiles are 16 x 16 words of two numbers each, for products that are 32 deep (a *group*). Word j of line p of a
*right* tile is column j of rows 2p and 2p + 1; a *left* tile is the transpose of such a one. The tiles of the
parts follow each other. For processors without the unit there is vector code for the same tiles: what the
unit computes can be tested anywhere.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils

from rgals.kernels import amx
from rgals.kernels.emitter import INT, kernel

GROUP = 32  # the depth of a product of two tiles
SIDE = 16  # of a tile
TILE = SIDE * SIDE  # words
SLOT = 3 * TILE  # of a group: room for all of its parts

_I32 = ir.IntType(32)
_LINE = ir.VectorType(_I32, SIDE)
_PAIRS = ir.VectorType(ir.IntType(16), 2 * SIDE)


def _is_double(e):
    return e.real == ir.DoubleType()  # no parts of those: such code is compiled and never called


def _constant(number):
    return ir.Constant(_LINE, [number] * SIDE)


def _words(e, pointer):
    return e.builder.bitcast(pointer, _I32.as_pointer())


def _place(e, words, index, n=SIDE):
    return e.builder.bitcast(e.at(words, index), ir.VectorType(_I32, n).as_pointer())


def _shuffle(e, a, b, lanes):
    return e.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, len(lanes)), lanes))


def _if_parts(e, n_parts, least):
    return e.builder.if_then(e.builder.icmp_signed(">=", n_parts, ir.Constant(INT, least)))


def _store_parts(e, pair, words, at, n_parts, part=0):
    """A line of the tiles of all parts: two vectors side by side, in bfloat16."""
    # Rounded to the nearest, half-way cases away from zero: what remains is at most 2^-8 of a number.
    builder = e.builder
    rounded = [builder.add(builder.bitcast(row, _LINE), _constant(0x8000)) for row in pair]
    first = builder.bitcast(builder.lshr(rounded[0], _constant(16)), _PAIRS)
    second = builder.bitcast(rounded[1], _PAIRS)
    by_turns = [j + 2 * SIDE * (j % 2) for j in range(2 * SIDE)]
    word = builder.bitcast(_shuffle(e, first, second, by_turns), _LINE)
    builder.store(word, _place(e, words, builder.add(at, ir.Constant(INT, part * TILE))), align=64)
    if part < 2:
        with _if_parts(e, n_parts, part + 2):
            kept = [builder.bitcast(builder.and_(r, _constant(0xFFFF0000)), e.vector) for r in rounded]
            rest = [builder.fsub(row, k) for row, k in zip(pair, kept, strict=True)]
            _store_parts(e, rest, words, at, n_parts, part + 1)


@kernel("ppppppxii")
def pack(e, right, rhs, source, scale, roots, w, indices, stride, n_parts):
    """A right tile from 32 rows ``x_i = source[indices[i] * stride :] * scale * roots[i]``.

    On the way ``rhs += sum_i w_i x_i``.
    """
    if _is_double(e):
        return
    builder, words = e.builder, _words(e, right)
    factor = e.load(scale)
    totals = e.variables(2)  # two chains of dependent additions are half as long as one
    with cgutils.for_range(builder, ir.Constant(INT, GROUP // 2)) as loop:
        pair = []
        for i in range(2):
            number = builder.add(builder.shl(loop.index, ir.Constant(INT, 1)), ir.Constant(INT, i))
            row = e.load(e.at(source, builder.mul(e.index(indices, number), stride)))
            row = builder.fmul(row, builder.fmul(factor, e.spread(e.scalar(roots, number))))
            builder.store(e.fma(e.spread(e.scalar(w, number)), row, builder.load(totals[i])), totals[i])
            pair.append(row)
        at = builder.mul(loop.index, ir.Constant(INT, SIDE))
        _store_parts(e, pair, words, at, n_parts)
    total = builder.fadd(*(builder.load(slot) for slot in totals))
    e.store(builder.fadd(e.load(rhs), total), rhs)


@kernel("ppiii")
def pack_rows(e, left, rows, stride, n_numbers, n_parts):
    """A left tile from 16 rows: numbers j and 16 + j side by side; with 16 numbers the second are zeros."""
    if _is_double(e):
        return
    builder, words = e.builder, _words(e, left)
    both = builder.icmp_signed(">", n_numbers, ir.Constant(INT, SIDE))
    second = builder.select(both, ir.Constant(INT, SIDE), ir.Constant(INT, 0))
    with cgutils.for_range(builder, ir.Constant(INT, SIDE)) as loop:
        row = e.at(rows, builder.mul(loop.index, stride))
        pair = [e.load(row), builder.select(both, e.load(row, second), e.zero())]
        at = builder.mul(loop.index, ir.Constant(INT, SIDE))
        _store_parts(e, pair, words, at, n_parts)


@kernel("ppi")
def transpose(e, left, right, n_parts):
    """Left tiles from right tiles of the same numbers, or the other way."""
    # Quarters of four lines side by side, then squares of 4 x 4: half of the work is done by loads.
    if _is_double(e):
        return
    builder = e.builder
    quads = range(0, SIDE, 4)
    by_turns = [
        [4 * k + x for k in range(4) for x in (at, SIDE + at, at + 1, SIDE + at + 1)] for at in (0, 2)
    ]
    by_pairs = [
        [4 * k + x for k in range(4) for x in (at, at + 1, SIDE + at, SIDE + at + 1)] for at in (0, 2)
    ]
    with cgutils.for_range(builder, n_parts) as part:
        start = builder.mul(part.index, ir.Constant(INT, TILE))
        to, source = e.at(_words(e, left), start), e.at(_words(e, right), start)
        for q in quads:
            lines = []
            for j in range(4):
                parts = [builder.load(_place(e, source, (j + i) * SIDE + q, 4), align=16) for i in quads]
                pairs = [_shuffle(e, parts[i], parts[i + 1], list(range(8))) for i in (0, 2)]
                lines.append(_shuffle(e, pairs[0], pairs[1], list(range(16))))
            for i, lanes in enumerate(by_turns):
                one, two = (_shuffle(e, lines[at], lines[at + 1], lanes) for at in (0, 2))
                for k, ends in enumerate(by_pairs):
                    place = _place(e, to, (q + 2 * i + k) * SIDE)
                    builder.store(_shuffle(e, one, two, ends), place, align=64)


# Of the products of parts: how many parts they take, and what is loaded for them. A table times the identity,
# or the identity times a table, is the table itself: its parts are added in an order that rounds nothing.
_PRODUCTS = ((3, 1, 1), (2, 0, 1), (3, None, 2), (1, 0, 0), (2, 1, None), (3, 2, None))
_PAIRS_OF_PARTS = ((1, 1), (0, 1), (0, 2), (0, 0), (1, 0), (2, 0))


def _on_unit(e, tiles, lefts, rights, n_groups, n_parts, beside):
    builder = e.builder
    for number, (c, _, _) in enumerate(tiles):
        amx.load(builder, number, c)
    with cgutils.for_range(builder, n_groups) as loop:
        group = builder.mul(loop.index, ir.Constant(INT, SLOT))

        def load(first, panels, part):
            for i, panel in enumerate(panels):
                amx.load(builder, first + i, e.at(panel, builder.add(group, ir.Constant(INT, part * TILE))))

        def multiply():
            for number, (_, i, j) in enumerate(tiles):
                amx.multiply_add(builder, number, 4 + i, 6 + j)

        for least, left, right in _PRODUCTS:
            with _if_parts(e, n_parts, least):
                if left is not None:
                    load(4, lefts, left)
                if right is not None:
                    load(6, rights, right)
                multiply()
        beside(loop.index)
    for number, (c, _, _) in enumerate(tiles):
        amx.store(builder, number, c)


def _without(e, tiles, lefts, rights, n_groups, n_parts, beside):
    builder = e.builder

    def ends(word):
        """The two numbers of a word, or of every word of a line."""
        upper = ir.Constant(word.type, [0xFFFF0000] * SIDE if word.type == _LINE else 0xFFFF0000)
        shift = ir.Constant(word.type, [16] * SIDE if word.type == _LINE else 16)
        real = e.vector if word.type == _LINE else e.real
        return [builder.bitcast(x, real) for x in (builder.shl(word, shift), builder.and_(word, upper))]

    for c, i, j in tiles:
        with cgutils.for_range(builder, ir.Constant(INT, SIDE)) as row:
            at = builder.mul(row.index, ir.Constant(INT, SIDE))
            total = cgutils.alloca_once_value(builder, e.load(c, at))
            with cgutils.for_range(builder, n_groups) as loop:
                group = builder.mul(loop.index, ir.Constant(INT, SLOT))
                for parts in _PAIRS_OF_PARTS:
                    a, b = (
                        e.at(panel, builder.add(group, ir.Constant(INT, part * TILE)))
                        for panel, part in zip((lefts[i], rights[j]), parts, strict=True)
                    )
                    n_pairs = ir.Constant(INT, SIDE)
                    if any(parts):
                        needed = ir.Constant(INT, sum(parts) + 1)
                        wanted = builder.icmp_signed(">=", n_parts, needed)
                        n_pairs = builder.select(wanted, n_pairs, ir.Constant(INT, 0))
                    with cgutils.for_range(builder, n_pairs) as pair:
                        left = builder.load(e.at(a, builder.add(at, pair.index)))
                        place = _place(e, b, builder.mul(pair.index, ir.Constant(INT, SIDE)))
                        for x, y in zip(ends(left), ends(builder.load(place)), strict=True):
                            builder.store(e.fma(e.spread(x), y, builder.load(total)), total)
            e.store(builder.load(total), c, at)


def _products(
    e, tiles, left, right, stride, n_groups, n_parts, source, soon, n_soon, n_each, n_lines, row_stride
):  # fmt: skip
    if _is_double(e):
        return
    builder = e.builder
    zero = ir.Constant(INT, 0)

    def beside(group):
        # Memory works while the unit does: asked for in bursts, rows would wait for each other.
        first = builder.mul(group, n_each)
        rest = builder.sub(n_soon, first)
        rest = builder.select(builder.icmp_signed("<", rest, n_each), rest, n_each)
        rest = builder.select(builder.icmp_signed(">", rest, zero), rest, zero)
        with cgutils.for_range(builder, rest) as loop:
            number = e.index(soon, builder.add(first, loop.index))
            row = e.at(source, builder.mul(number, row_stride))
            with cgutils.for_range(builder, n_lines) as line:
                e.prefetch(e.at(row, builder.mul(line.index, ir.Constant(INT, e.width))), 2)

    lefts, rights = ([_words(e, p), e.at(_words(e, p), stride)] for p in (left, right))
    (_on_unit if amx.COMPILED else _without)(e, tiles, lefts, rights, n_groups, n_parts, beside)


@kernel("ppppiiipxiiii")
def square(e, c, d, left, right, *rest):
    """``C += L R`` for 2 x 2 tiles: two below each other at ``c``, their neighbours on the right at ``d``.

    Left tiles of the second row of C, and right tiles of its second column, begin ``stride`` words after the
    first. ``rest``: ``stride, n_groups, n_parts``, then the rows to ask for on the way, ``n_each``
    of ``n_soon`` with every group: ``source, indices, n_soon, n_each, n_lines, row_stride``.
    """
    tiles = [(e.at(first, i * TILE), i, j) for i in (0, 1) for j, first in enumerate((c, d))]
    _products(e, tiles, left, right, *rest)


@kernel("ppppiiipxiiii")
def diagonal(e, c, d, left, right, *rest):
    """`square` without the tile below the diagonal."""
    tiles = [(c, 0, 0), (d, 0, 1), (e.at(d, TILE), 1, 1)]
    _products(e, tiles, left, right, *rest)
