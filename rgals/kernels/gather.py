"""Gathers rows of a table by a list of indices, and packs them for `rgals.kernels.tiles`."""

# The positives of a row lie anywhere in the fixed side's factors. The cost is the latency of memory, so every
# loop prefetches rows some steps before it reads them.

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from rgals.kernels.library import kernel
from rgals.kernels.tiles import copy, zero
from rgals.kernels.vectors import HAS_AVX512, Emitter, Pointer

_ROWS_AHEAD = 12  # rows prefetched in advance: about the latency of memory over the time of a row
_LINES_AHEAD = 48  # the same in cache lines of 64 bytes, for rows that are packed


def gather_transposed(e, out, source, indices, stride):
    """A tile of a panel: column i is row ``source[indices[i] * stride :]``."""
    # W rows of W numbers are transposed in registers. Without AVX-512 a register holds half of W: then it is
    # done in quarters.
    v = e.native()
    for top in range(0, e.width, v.width):
        places = [v.view(source + indices[i] * stride) for i in range(top, top + v.width)]
        for left in range(0, e.width, v.width):
            for j, column in enumerate(v.transpose([place[left] for place in places])):
                v.view(out)[(left + j) * e.width + top] = column


@kernel("ppxpiiiii")
def gather_sum(e, out, source, indices, factors, step, stride, n, reach, n_blocks):
    """``out = sum_k factors[k * step] source[indices[k] * stride :]``, ``n`` rows of ``n_blocks`` blocks."""
    # ``step`` 0 takes one factor for all rows. Rows of later indices, below ``reach``, are prefetched.

    def sum_blocks(first, n_vectors):
        places = [(first + v) * e.width for v in range(n_vectors)]
        # The sums of these blocks stay in registers down all rows.
        acc = e.variables(n_vectors)
        with e.loop(n) as k:
            next_row = source + indices[(k + _ROWS_AHEAD).at_most(reach - 1)] * stride
            for at in places:
                next_row.prefetch(at)
            row = source + indices[k] * stride
            factor = factors.spread(k * step)
            for at, slot in zip(places, acc, strict=True):
                slot += row[at] * factor
        for at, slot in zip(places, acc, strict=True):
            out[at] = slot

    # As many blocks at once as the registers hold (8 need the 32 registers of AVX-512), then what is left.
    done = e.index(0)
    for n_vectors in (8, 4, 1) if HAS_AVX512 else (4, 1):
        groups = (n_blocks - done) // n_vectors
        with e.loop(groups) as group:
            sum_blocks(done + group * n_vectors, n_vectors)
        done = done + groups * n_vectors


@kernel("pppxpiiiiir")
def gather_scaled(e, out, source, scale, indices, roots, step, stride, source_stride, n, n_blocks, sign):
    """Rows ``source[indices[i] * source_stride :] * scale * max(sign * roots[i], 0)`` for ``i < n``."""
    # Block b of row i goes to ``out[i * step + b * stride :]``. With ``step`` W these are panels of columns,
    # with ``stride`` W plain rows.
    # Row by row, so that a wide row is read as a stream. Each line prefetches the same line of a later row.
    ahead = (e.index(_LINES_AHEAD) // n_blocks).at_least(1)
    with e.loop(n) as i:
        next_row = source + indices[(i + ahead).at_most(n - 1)] * source_stride
        row = source + indices[i] * source_stride
        # Roots carry the sign of the weight: rows of the other sign become zero.
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


# ---------------------------------------------------------------- prefetching


@intrinsic
def prefetch(typingctx, array, index):
    """Prefetch the cache line of an entry of any array, or of the start of a row."""

    def codegen(context, builder, signature, arguments):
        # The address is computed from the strides: for any layout, and without reading the array.
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
    """Prefetch the first ``n_lines`` cache lines of ``n`` rows ``source[indices[i] * stride :]``."""
    # To the second-level cache: the first level is full of the row that is being solved.
    with e.loop(n) as i:
        row = source + indices[i] * stride
        with e.blocks(n_lines) as at:
            row.prefetch(at, keep=2)


@kernel("pi")
def claim_row(e, out, n_lines):
    """Prefetch ``n_lines`` cache lines of a result for writing: else each store would wait for its line."""
    with e.blocks(n_lines) as at:
        out.prefetch(at, write=1)
