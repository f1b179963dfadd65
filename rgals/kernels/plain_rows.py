"""Products with few or many gathered rows that lie one after the other, ``n_blocks`` blocks of W each.

What `rgals.kernels.tiles` is for panels: the dual of short rows and conjugate gradients need no panels.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba.core import cgutils

from rgals.kernels.compile import inner
from rgals.kernels.emitter import HAS_AVX512, INT, LINE, kernel, over_blocks
from rgals.kernels.triangles import triangle


@kernel("ppppii")
def _quad_gram(e, c, a, b, soon, stride, n_blocks):
    builder, four, v = e.builder, e.narrower(4), e.native()
    tall = e.width // 4
    n_rows = tall if v is e else 2  # whose products stay in registers

    def row(x, block, i):
        return e.at(x, builder.add(block, builder.mul(stride, ir.Constant(INT, i))))

    for top in range(0, tall, n_rows):
        acc = v.variables(4 * n_rows)
        with cgutils.for_range(builder, n_blocks) as loop:
            block = builder.mul(loop.index, ir.Constant(INT, e.width))
            if top == 0:
                e.prefetch(e.at(soon, block), 2)
            for at in range(0, e.width, v.width):
                right = [v.load(row(b, block, j), at) for j in range(4)]
                for i in range(n_rows):
                    left = v.load(row(a, block, top + i), at)
                    for j in range(4):
                        slot = acc[4 * i + j]
                        builder.store(v.fma(left, right[j], builder.load(slot)), slot)
        values = [builder.load(slot) for slot in acc]
        totals = [v.sums(values[i : i + v.width]) for i in range(0, len(values), v.width)]
        for i in range(n_rows):
            total, lane = totals[4 * i // v.width], 4 * i % v.width
            lanes = ir.Constant(ir.VectorType(ir.IntType(32), 4), list(range(lane, lane + 4)))
            part = builder.shuffle_vector(total, total, lanes)
            at = (top + i) * e.width
            four.store(builder.fadd(four.load(c, at), part), c, at)


@inner
def n_quads(n, w):
    """How many rows `rows_gram_add` can ask for beside its arithmetic."""
    tall = w // 4
    total = 0
    for b in range((n + 3) // 4):
        total += min((b * 4 + 3) // tall + 1, (n + tall - 1) // tall)
    return total


@inner
def rows_gram_add(c, x, n, n_blocks, source, indices, then, n_then):
    """``C += X X^T`` as a packed triangle from ``n`` plain rows, padded with zeros to a multiple of 4.

    Asks on the way for the rows ``source[indices[then + i]]``, one with each quad of rows that is multiplied:
    memory then works as long as the arithmetic takes.
    """
    w = LINE // c.itemsize
    tall = w // 4
    stride = n_blocks * w
    quad = 0
    for b in range((n + 3) // 4):
        column = triangle(w, b * 4 // w)
        for a in range((b * 4 + 3) // tall + 1):
            if a * tall < n:
                at = column + a * tall * w + b * 4 % w
                left, right = a * tall * stride, b * 4 * stride
                if quad < n_then:
                    soon = np.int64(indices[then + quad]) * stride
                    _quad_gram(c, at, x, left, x, right, source, soon, stride, n_blocks)
                else:
                    _quad_gram(c, at, x, left, x, right, x, right, stride, n_blocks)
                quad += 1


def _quad_sums(e, vectors):
    """A vector of four: the sums of the elements of four vectors."""
    while e.width > 4:
        vectors = [e.builder.fadd(*e.halves(vector)) for vector in vectors]
        e = e.narrower(e.width // 2)
    return e.sums(vectors)


@kernel("pppiir")
def _rows_product(e, y, x, v, stride, n_blocks, sign):
    builder, narrow = e.builder, e.narrower(4)
    acc = e.variables(4)
    with cgutils.for_range(builder, n_blocks) as loop:
        at = builder.mul(loop.index, ir.Constant(INT, e.width))
        factor = e.load(e.at(v, at))
        for i in range(4):
            row = e.load(e.at(x, builder.add(at, builder.mul(stride, ir.Constant(INT, i)))))
            builder.store(e.fma(row, factor, builder.load(acc[i])), acc[i])
    products = _quad_sums(e, [builder.load(slot) for slot in acc])
    narrow.store(narrow.fma(narrow.spread(sign), products, narrow.load(y)), y)


@inner
def rows_product(y, x, v, n, n_blocks, sign):
    """``y += sign X v`` for ``n`` plain rows, padded to a multiple of 4."""
    stride = n_blocks * (LINE // x.itemsize)
    for i in range(0, n, 4):
        _rows_product(y, i, x, i * stride, v, 0, stride, n_blocks, sign)


def _make_rows_transposed(n_vectors: int, both: bool):
    @kernel("pppppii")
    def combine(e, left, right, x, y, z, stride, n):
        builder = e.builder
        outs = [(left, y, e.variables(n_vectors))]
        if both:
            outs.append((right, z, e.variables(n_vectors)))
        with cgutils.for_range(builder, n) as loop:
            row = e.at(x, builder.mul(loop.index, stride))
            vectors = [e.load(row, v * e.width) for v in range(n_vectors)]
            for _, factors, acc in outs:
                factor = e.spread(e.scalar(factors, loop.index))
                for slot, vector in zip(acc, vectors, strict=True):
                    builder.store(e.fma(vector, factor, builder.load(slot)), slot)
        for out, _, acc in outs:
            for v, slot in enumerate(acc):
                e.store(builder.fadd(e.load(out, v * e.width), builder.load(slot)), out, v * e.width)

    return combine


def _transposed(both: bool):
    most = 2 if both and not HAS_AVX512 else 4  # blocks whose sums stay in registers
    one, many = (_make_rows_transposed(n_vectors, both) for n_vectors in (1, most))

    @inner
    def combine(left, right, x, y, z, n, n_blocks):
        w = LINE // x.itemsize
        stride = n_blocks * w
        block = 0
        while block + most <= n_blocks:
            at = block * w
            many(left, at, right, at, x, at, y, 0, z, 0, stride, n)
            block += most
        while block < n_blocks:
            at = block * w
            one(left, at, right, at, x, at, y, 0, z, 0, stride, n)
            block += 1

    return combine


_transposed_one, _transposed_two = _transposed(False), _transposed(True)


@inner
def rows_transposed(left, x, y, n, n_blocks):
    """``left += X^T y`` for ``n`` plain rows."""
    _transposed_one(left, left, x, y, y, n, n_blocks)


@inner
def rows_transposed_two(left, right, x, y, z, n, n_blocks):
    """``left += X^T y`` and ``right += X^T z`` for ``n`` plain rows."""
    _transposed_two(left, right, x, y, z, n, n_blocks)


def _make_rows_normal(with_right: bool, n_vectors: int | None = None, gathered: bool = False):
    """``n_vectors`` blocks of W: with AVX-512 they stay in registers. None: any number of blocks.

    ``gathered``: the rows lie where a list of indices says.
    """

    @kernel("ppppppii" + "x" * gathered)
    def normal(e, y, right, x, v, sign, w, n, n_blocks, indices=None):
        builder, narrow = e.builder, e.narrower(4)
        outs = [y, right] if with_right else [y]
        stride = builder.mul(n_blocks, ir.Constant(INT, e.width))
        kept = range(n_vectors or 0)
        fixed = [e.load(v, b * e.width) for b in kept]
        totals = [e.variables(n_vectors or 0) for _ in outs]
        quads = builder.udiv(builder.add(n, ir.Constant(INT, 3)), ir.Constant(INT, 4))
        with cgutils.for_range(builder, quads) as quad:
            first = builder.mul(quad.index, ir.Constant(INT, 4))
            numbers = [builder.add(first, ir.Constant(INT, i)) for i in range(4)]
            if gathered:
                last = builder.sub(n, ir.Constant(INT, 1))
                ahead = [builder.add(number, ir.Constant(INT, 8)) for number in numbers]
                ahead = [builder.select(builder.icmp_signed("<", t, last), t, last) for t in ahead]
                ahead = [e.at(x, builder.mul(e.index(indices, t), stride)) for t in ahead]
                numbers = [e.index(indices, number) for number in numbers]
            rows = [e.at(x, builder.mul(number, stride)) for number in numbers]
            acc = e.variables(4)

            def multiply(vectors, factor, acc=acc):
                for vector, slot in zip(vectors, acc, strict=True):
                    builder.store(e.fma(vector, factor, builder.load(slot)), slot)

            blocks = [[e.load(row, b * e.width) for row in rows] for b in kept]
            for vectors, factor in zip(blocks, fixed, strict=True):
                multiply(vectors, factor)
            if n_vectors is None:

                def step(here):
                    if gathered:
                        for row in ahead:
                            e.prefetch(here(row))
                    multiply([e.load(here(row)) for row in rows], e.load(here(v)))

                over_blocks(e, n_blocks, step)
            products = _quad_sums(e, [builder.load(slot) for slot in acc])
            products = builder.fmul(products, narrow.load(sign, first))
            factors = [[e.spread(narrow.element(products, i)) for i in range(4)]]
            if with_right:
                factors.append(
                    [e.spread(e.scalar(w, builder.add(first, ir.Constant(INT, i)))) for i in range(4)]
                )

            def add(vectors, total, spread):
                for vector, factor in zip(vectors, spread, strict=True):
                    total = e.fma(vector, factor, total)
                return total

            for slots, spread in zip(totals, factors, strict=True):
                for vectors, slot in zip(blocks, slots, strict=True):
                    builder.store(add(vectors, builder.load(slot), spread), slot)
            if n_vectors is None:

                def scatter(here):
                    vectors = [e.load(here(row)) for row in rows]
                    for out, spread in zip(outs, factors, strict=True):
                        e.store(add(vectors, e.load(here(out)), spread), here(out))

                over_blocks(e, n_blocks, scatter)
        for out, slots in zip(outs, totals, strict=True):
            for b, slot in enumerate(slots):
                e.store(builder.fadd(e.load(out, b * e.width), builder.load(slot)), out, b * e.width)

    return normal


_rows_normal = _make_rows_normal(False)
_rows_normal_2 = _make_rows_normal(False, 2)
_rows_normal_4 = _make_rows_normal(False, 4)
_rows_normal_and_right = _make_rows_normal(True)
_rows_normal_and_right_2 = _make_rows_normal(True, 2)
_rows_normal_and_right_4 = _make_rows_normal(True, 4)
_gathered_rows_normal = _make_rows_normal(False, gathered=True)
_gathered_rows_normal_4 = _make_rows_normal(False, 4, gathered=True)


@inner
def rows_normal(y, x, v, sign, n, n_blocks):
    """``y += X^T diag(sign) X v`` for ``n`` plain rows, padded with zeros to a multiple of 4, in one pass."""
    if HAS_AVX512 and n_blocks == 4:
        _rows_normal_4(y, 0, y, 0, x, 0, v, 0, sign, 0, sign, 0, n, n_blocks)
    elif HAS_AVX512 and n_blocks == 2:
        _rows_normal_2(y, 0, y, 0, x, 0, v, 0, sign, 0, sign, 0, n, n_blocks)
    else:
        _rows_normal(y, 0, y, 0, x, 0, v, 0, sign, 0, sign, 0, n, n_blocks)


@inner
def rows_normal_and_right(y, right, x, v, sign, w, n, n_blocks):
    """`rows_normal`, and in the same pass ``right += X^T w``."""
    if HAS_AVX512 and n_blocks == 4:
        _rows_normal_and_right_4(y, 0, right, 0, x, 0, v, 0, sign, 0, w, 0, n, n_blocks)
    elif HAS_AVX512 and n_blocks == 2:
        _rows_normal_and_right_2(y, 0, right, 0, x, 0, v, 0, sign, 0, w, 0, n, n_blocks)
    else:
        _rows_normal_and_right(y, 0, right, 0, x, 0, v, 0, sign, 0, w, 0, n, n_blocks)


@inner
def gathered_rows_normal(y, source, indices, v, weight, n, n_blocks):
    """`rows_normal` with weights for the rows ``source[indices[i] * n_blocks * W :]`` themselves."""
    if HAS_AVX512 and n_blocks == 4:
        _gathered_rows_normal_4(y, 0, y, 0, source, 0, v, 0, weight, 0, weight, 0, n, n_blocks, indices, 0)
    else:
        _gathered_rows_normal(y, 0, y, 0, source, 0, v, 0, weight, 0, weight, 0, n, n_blocks, indices, 0)
