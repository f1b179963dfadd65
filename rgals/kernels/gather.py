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
from rgals.kernels.vectors import HAS_AVX512, LINE, Emitter, Pointer, kernel

_AHEAD = 12  # rows asked for in advance: about the latency of memory over the time of a row
_LINES_AHEAD = 48  # the same in lines of 64 bytes


@kernel("ppxi")
def gather_transposed(e, out, source, indices, stride):
    """A tile of a panel: column i is row ``source[indices[i] * stride :]``."""
    # W rows of W numbers are transposed in registers, a quarter at a time where a register holds half of W.
    v = e.native()
    for top in range(0, e.width, v.width):
        places = [v.view(source + indices[i] * stride) for i in range(top, top + v.width)]
        for left in range(0, e.width, v.width):
            for j, column in enumerate(v.transpose([place[left] for place in places])):
                v.view(out)[(left + j) * e.width + top] = column


def _make_gather_sum(n_vectors: int):
    @kernel("ppxviiii", f"gather_sum_{n_vectors}")
    def gather(e, out, source, indices, factors, step, stride, n, reach):
        """``out = sum_k factors[k * step] source[indices[k] * stride :]`` for some blocks of columns."""
        # The sums of all blocks stay in registers; each row is read once, and asked for 12 rows before.
        acc = e.variables(n_vectors)
        with e.loop(n) as k:
            next_row = source + indices[(k + _AHEAD).at_most(reach - 1)] * stride
            for i in range(n_vectors):
                next_row.prefetch(i * e.width)
            row = source + indices[k] * stride
            factor = factors.spread(k * step)
            for i, slot in enumerate(acc):
                slot += row[i * e.width] * factor
        for i, slot in enumerate(acc):
            out[i * e.width] = slot

    return gather


_gather_sum_1, _gather_sum_4, _gather_sum_8 = (_make_gather_sum(n) for n in (1, 4, 8))


@inner
def gather_sum(out, source, indices, oi, factors, step, stride, n, reach, n_blocks):
    """``out = sum_k factors[k * step] source[indices[k] * stride :]``: ``n`` rows, ``n_blocks`` blocks of W.

    ``step`` 0 takes one factor for all rows. The next indices, up to ``reach``, say what to ask for.
    """
    w = LINE // out.itemsize
    block = 0
    # As many blocks of columns at once as the registers hold, then what is left.
    while HAS_AVX512 and block + 8 <= n_blocks:  # else the sums of 8 do not stay in registers
        _gather_sum_8(out, block * w, source, block * w, indices, oi, factors, step, stride, n, reach)
        block += 8
    while block + 4 <= n_blocks:
        _gather_sum_4(out, block * w, source, block * w, indices, oi, factors, step, stride, n, reach)
        block += 4
    while block < n_blocks:
        _gather_sum_1(out, block * w, source, block * w, indices, oi, factors, step, stride, n, reach)
        block += 1


@kernel("vpvxviiiiiir")
def _gather_scaled(
    e, out, source, scale, indices, roots, step, stride, source_stride, ahead, n, n_blocks, sign
):
    """`gather_scaled`, asking for the row that follows ``ahead`` rows later."""
    # Row by row: wide ones are read as streams, and every line of a row asks for that of a row to come.
    with e.loop(n) as i:
        next_row = source + indices[(i + ahead).at_most(n - 1)] * source_stride
        row = source + indices[i] * source_stride
        # A root carries the sign of its weight: rows of the other sign become zero.
        root = e.positive(sign * roots.spread(i))
        to = out + i * step

        def copy(block, n_vectors, row=row, next_row=next_row, root=root, to=to):
            places = [block * e.width + v * e.width for v in range(n_vectors)]
            for at in places:
                next_row.prefetch(at)
            for v, at in enumerate(places):
                to[stride * (block + v)] = row[at] * (scale[at] * root)

        # Four blocks at a time hide the latency of the loads.
        with e.loop(n_blocks // 4) as four:
            copy(four * 4, 4)
        with e.loop(n_blocks, n_blocks // 4 * 4) as block:
            copy(block, 1)


@inner
def gather_scaled(out, step, stride, source, scale, indices, roots, source_stride, n, n_blocks, sign):
    """Rows ``source[indices[i] * source_stride :] * scale * max(sign * roots[i], 0)`` for ``i < n``.

    Block b of row i goes to ``out[i * step + b * stride :]``: panels of columns with ``step`` W, plain rows
    with ``stride`` W.
    """
    ahead = max(1, _LINES_AHEAD // n_blocks)
    _gather_scaled(
        out, source, 0, scale, indices, 0, roots, step, stride, source_stride, ahead, n, n_blocks, sign
    )


@inner(_nrt=True)
def padded_rows(table, start, stop, buffer):
    """Rows in whole blocks of W: themselves where they are, else a copy with zeros at the end of each."""
    k = table.shape[1]
    w = LINE // table.itemsize
    if k % w == 0:
        return table[start:stop].reshape(-1)
    width = (k + w - 1) // w * w
    for i in range(stop - start):
        for j in range(k):
            buffer[i * width + j] = table[start + i, j]
    return buffer


@kernel("ppii")
def scatter_rows(e, out, source, stride, n):
    """``out[i * stride :]``, W numbers, from ``n`` rows of W."""
    with e.loop(n) as i:
        out[i * stride] = source[i * e.width]


# ---------------------------------------------------------------- asking for memory ahead of its use


@intrinsic
def prefetch(typingctx, array, index):
    """Ask for the cache line of an entry, or of the start of a row, of any array."""

    def codegen(context, builder, signature, arguments):
        # The entry's address from the strides: works for any layout, and reads nothing.
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        index = context.cast(builder, arguments[1], signature.args[1], types.int64)
        (stride, *_) = cgutils.unpack_tuple(builder, view.strides)
        byte = ir.IntType(8).as_pointer()
        address = builder.gep(builder.bitcast(view.data, byte), [builder.mul(index, stride)])
        Pointer(Emitter(builder, types.float32), address).prefetch()
        return context.get_dummy_value()

    return types.void(array, index), codegen


@kernel("vxiii")
def prefetch_rows(e, source, indices, stride, n, n_lines):
    """Ask for the first ``n_lines`` cache lines of ``n`` rows ``source[indices[i] * stride :]``."""
    with e.loop(n) as i:
        row = source + indices[i] * stride
        with e.blocks(n_lines) as at:
            row.prefetch(at, keep=2)


@kernel("pi")
def claim_row(e, out, n_lines):
    """Ask for ``n_lines`` cache lines of a result, to write them: else every store waits for its line."""
    with e.blocks(n_lines) as at:
        out.prefetch(at, write=1)
