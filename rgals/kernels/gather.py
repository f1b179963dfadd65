"""Reads rows of a table in the order of a list of indices and arranges them for `rgals.kernels.tiles`.

The rows of a sparse problem lie anywhere in the fixed side's factors. What costs here is the latency of
memory, so every loop asks for rows some steps before it needs them.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from rgals.kernels.library import kernel
from rgals.kernels.tiles import copy, zero
from rgals.kernels.vectors import HAS_AVX512, Emitter, Pointer

_AHEAD = 12  # rows asked for in advance: about the latency of memory over the time of a row
_LINES_AHEAD = 48  # the same in lines of 64 bytes


def gather_transposed(e, out, source, indices, stride):
    """A tile of a panel: column i is row ``source[indices[i] * stride :]``."""
    # W rows of W numbers are transposed in registers, a quarter at a time where a register holds half of W.
    v = e.native()
    for top in range(0, e.width, v.width):
        places = [v.view(source + indices[i] * stride) for i in range(top, top + v.width)]
        for left in range(0, e.width, v.width):
            for j, column in enumerate(v.transpose([place[left] for place in places])):
                v.view(out)[(left + j) * e.width + top] = column


@kernel("ppxpiiiii")
def gather_sum(e, out, source, indices, factors, step, stride, n, reach, n_blocks):
    """``out = sum_k factors[k * step] source[indices[k] * stride :]``: ``n`` rows, ``n_blocks`` blocks of W.

    ``step`` 0 takes one factor for all rows. The next indices, up to ``reach``, say what to ask for.
    """

    def some(first, n_vectors):
        places = [(first + v) * e.width for v in range(n_vectors)]
        # The sums of all blocks stay in registers; each row is read once, and asked for 12 rows before.
        acc = e.variables(n_vectors)
        with e.loop(n) as k:
            next_row = source + indices[(k + _AHEAD).at_most(reach - 1)] * stride
            for at in places:
                next_row.prefetch(at)
            row = source + indices[k] * stride
            factor = factors.spread(k * step)
            for at, slot in zip(places, acc, strict=True):
                slot += row[at] * factor
        for at, slot in zip(places, acc, strict=True):
            out[at] = slot

    # As many blocks of columns at once as the registers hold, then what is left.
    done = e.index(0)
    for n_vectors in (8, 4, 1) if HAS_AVX512 else (4, 1):  # else the sums of 8 do not stay in registers
        groups = (n_blocks - done) // n_vectors
        with e.loop(groups) as group:
            some(done + group * n_vectors, n_vectors)
        done = done + groups * n_vectors


@kernel("pppxpiiiiir")
def gather_scaled(e, out, source, scale, indices, roots, step, stride, source_stride, n, n_blocks, sign):
    """Rows ``source[indices[i] * source_stride :] * scale * max(sign * roots[i], 0)`` for ``i < n``.

    Block b of row i goes to ``out[i * step + b * stride :]``: panels of columns with ``step`` W, plain rows
    with ``stride`` W.
    """
    # Row by row: wide ones are read as streams, and every line of a row asks for that of a row to come.
    ahead = (e.index(_LINES_AHEAD) // n_blocks).at_least(1)
    with e.loop(n) as i:
        next_row = source + indices[(i + ahead).at_most(n - 1)] * source_stride
        row = source + indices[i] * source_stride
        # A root carries the sign of its weight: rows of the other sign become zero.
        root = e.positive(sign * roots.spread(i))
        to = out + i * step

        with e.loop(n_blocks) as block:
            at = block * e.width
            next_row.prefetch(at)
            to[stride * block] = row[at] * (scale[at] * root)


@kernel("ppiii")
def padded_rows(e, out, table, n, k, width):
    """``n`` rows of ``k`` numbers, each followed by zeros up to ``width``."""
    with e.loop(n) as i:
        to, row = out + i * width, table + i * k
        e.call(copy, to, row, k)
        e.call(zero, to + k, width - k)


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


@kernel("pxiii")
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
