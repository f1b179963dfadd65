"""Reads rows of a table in the order of a list of indices and arranges them for `rgals.kernels.tiles`.

The rows of a sparse problem lie anywhere in the fixed side's factors. What costs here is the latency of
memory, so every loop asks for rows some steps before it needs them.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from rgals.kernels.compile import inner
from rgals.kernels.emitter import HAS_AVX512, INT, LINE, Emitter, kernel

_AHEAD = 12  # rows asked for in advance: about the latency of memory over the time of a row
_LINES_AHEAD = 48  # the same in lines of 64 bytes


@kernel("pppxpi")
def _gather_transposed(e, out, source, factors, indices, roots, stride):
    builder = e.builder
    v = e.native()
    for top in range(0, e.width, v.width):
        numbers = range(top, top + v.width)
        places = [e.at(source, builder.mul(e.index(indices, i), stride)) for i in numbers]
        for left in range(0, e.width, v.width):
            scale = v.load(factors, left)
            scales = [builder.fmul(scale, v.spread(e.scalar(roots, i))) for i in numbers]
            rows = [builder.fmul(v.load(at, left), by) for at, by in zip(places, scales, strict=True)]
            for j, column in enumerate(v.transpose(rows)):
                v.store(column, out, (left + j) * e.width + top)


@inner
def gather_transposed(out, oo, source, os, factors, of, indices, oi, roots, oroots, stride):
    """A tile of a panel: W rows ``source[indices[i] * stride + os :]``, each times ``factors * roots[i]``."""
    _gather_transposed(out, oo, source, os, factors, of, indices, oi, roots, oroots, stride)


def _make_gather_sum(n_vectors: int):
    @kernel("ppxpiiii")
    def gather(e, out, source, indices, factors, step, stride, n, reach):
        acc = e.variables(n_vectors)
        last = e.builder.sub(reach, ir.Constant(INT, 1))
        with cgutils.for_range(e.builder, n) as loop:
            soon = e.builder.add(loop.index, ir.Constant(INT, _AHEAD))
            soon = e.builder.select(e.builder.icmp_signed("<", soon, last), soon, last)
            next_row = e.at(source, e.builder.mul(e.index(indices, soon), stride))
            for i in range(n_vectors):
                e.prefetch(e.at(next_row, i * e.width))
            row = e.at(source, e.builder.mul(e.index(indices, loop.index), stride))
            factor = e.spread(e.scalar(factors, e.builder.mul(loop.index, step)))
            for i in range(n_vectors):
                total = e.fma(e.load(row, i * e.width), factor, e.builder.load(acc[i]))
                e.builder.store(total, acc[i])
        for i in range(n_vectors):
            e.store(e.builder.load(acc[i]), out, i * e.width)

    return gather


_gather_sum_1 = _make_gather_sum(1)
_gather_sum_4 = _make_gather_sum(4)
_gather_sum_8 = _make_gather_sum(8)


@inner
def gather_sum(out, source, indices, oi, factors, step, stride, n, reach, n_blocks):
    """``out = sum_k factors[k * step] source[indices[k] * stride :]``: ``n`` rows, ``n_blocks`` blocks of W.

    ``step`` 0 takes one factor for all rows. The next indices, up to ``reach``, say what to ask for.
    """
    w = LINE // out.itemsize
    block = 0
    while HAS_AVX512 and block + 8 <= n_blocks:  # else the sums of 8 do not stay in registers
        at = block * w
        _gather_sum_8(out, at, source, at, indices, oi, factors, 0, step, stride, n, reach)
        block += 8
    while block + 4 <= n_blocks:
        at = block * w
        _gather_sum_4(out, at, source, at, indices, oi, factors, 0, step, stride, n, reach)
        block += 4
    while block < n_blocks:
        at = block * w
        _gather_sum_1(out, at, source, at, indices, oi, factors, 0, step, stride, n, reach)
        block += 1


@kernel("pppxpiiiiiir")
def _gather_scaled(
    e, out, source, scale, indices, roots, step, stride, source_stride, ahead, n, n_blocks, sign
):
    # Row by row: wide ones are read as streams, and every line of a row asks for that of a row to come.
    builder, zero = e.builder, ir.Constant(e.real, 0.0)
    last = builder.sub(n, ir.Constant(INT, 1))
    fours = builder.udiv(n_blocks, ir.Constant(INT, 4))
    with cgutils.for_range(builder, n) as loop:
        soon = builder.add(loop.index, ahead)
        soon = builder.select(builder.icmp_signed("<", soon, last), soon, last)
        next_row = e.at(source, builder.mul(e.index(indices, soon), source_stride))
        row = e.at(source, builder.mul(e.index(indices, loop.index), source_stride))
        root = builder.fmul(sign, e.scalar(roots, loop.index))
        root = e.spread(builder.select(builder.fcmp_ordered(">", root, zero), root, zero))
        to = e.at(out, builder.mul(loop.index, step))

        def copy(block, n_vectors):
            at = builder.mul(block, ir.Constant(INT, e.width))
            for v in range(n_vectors):
                e.prefetch(e.at(next_row, builder.add(at, ir.Constant(INT, v * e.width))))
            for v in range(n_vectors):
                here = builder.add(at, ir.Constant(INT, v * e.width))
                value = builder.fmul(e.load(e.at(row, here)), builder.fmul(e.load(e.at(scale, here)), root))
                number = builder.add(block, ir.Constant(INT, v))
                e.store(value, e.at(to, builder.mul(stride, number)))

        with cgutils.for_range(builder, fours) as four:
            copy(builder.mul(four.index, ir.Constant(INT, 4)), 4)
        with cgutils.for_range_slice(
            builder, builder.mul(fours, ir.Constant(INT, 4)), n_blocks, ir.Constant(INT, 1), INT
        ) as (block, _):
            copy(block, 1)


@inner
def gather_scaled(out, step, stride, source, scale, indices, roots, source_stride, n, n_blocks, sign):
    """Rows ``source[indices[i] * source_stride :] * scale * max(sign * roots[i], 0)`` for ``i < n``.

    Block b of row i goes to ``out[i * step + b * stride :]``: panels of columns with ``step`` W, plain rows
    with ``stride`` W.
    """
    ahead = max(1, _LINES_AHEAD // n_blocks)
    _gather_scaled(
        out, 0, source, 0, scale, 0, indices, 0, roots, 0, step, stride, source_stride, ahead, n, n_blocks,
        sign,
    )  # fmt: skip


@inner(_nrt=True)
def padded_rows(table, start, stop, multiple, buffer):
    """Rows in whole blocks of W: themselves where they are, else a copy with zeros at the end of each.

    ``multiple``: numbers of rows that are no multiple of it are copied too, as the caller reads beyond them.
    """
    k = table.shape[1]
    w = LINE // table.itemsize
    if k % w == 0 and (stop - start) % multiple == 0:
        return table[start:stop].reshape(-1)
    width = (k + w - 1) // w * w
    for i in range(stop - start):
        for j in range(k):
            buffer[i * width + j] = table[start + i, j]
    return buffer


@kernel("ppii")
def _scatter_rows(e, out, source, stride, n):
    with cgutils.for_range(e.builder, n) as loop:
        row = e.load(source, e.builder.mul(loop.index, ir.Constant(INT, e.width)))
        e.store(row, out, e.builder.mul(loop.index, stride))


@inner
def scatter_rows(out, oo, source, os, stride, n):
    """``out[oo + i * stride :]``, W numbers, from ``n`` rows of W at ``source[os:]``."""
    _scatter_rows(out, oo, source, os, stride, n)


@intrinsic
def prefetch(typingctx, array, index):
    """Ask for the cache line of an entry, or of the start of a row, of any array."""

    def codegen(context, builder, signature, arguments):
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        index = context.cast(builder, arguments[1], signature.args[1], types.int64)
        (stride, *_) = cgutils.unpack_tuple(builder, view.strides)
        byte = ir.IntType(8).as_pointer()
        address = builder.gep(builder.bitcast(view.data, byte), [builder.mul(index, stride)])
        Emitter(builder, types.float32).prefetch(address)
        return context.get_dummy_value()

    return types.void(array, index), codegen


@kernel("pxiii")
def _prefetch_rows(e, source, indices, stride, n, n_lines):
    with cgutils.for_range(e.builder, n) as loop:
        row = e.at(source, e.builder.mul(e.index(indices, loop.index), stride))
        with cgutils.for_range(e.builder, n_lines) as line:
            e.prefetch(e.at(row, e.builder.mul(line.index, ir.Constant(INT, e.width))), 2)


@inner
def prefetch_rows(source, indices, oi, stride, n, n_lines):
    """Ask for the first ``n_lines`` cache lines of ``n`` rows ``source[indices[i] * stride :]``."""
    _prefetch_rows(source, 0, indices, oi, stride, n, n_lines)


@kernel("pi")
def _claim_row(e, out, n_lines):
    with cgutils.for_range(e.builder, n_lines) as line:
        e.prefetch(e.at(out, e.builder.mul(line.index, ir.Constant(INT, e.width))), write=1)


@inner
def claim_row(out, at, n_lines):
    """Ask for ``n_lines`` cache lines of a result, to write them: else every store waits for its line."""
    _claim_row(out, at, n_lines)
