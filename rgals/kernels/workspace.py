"""Uninitialised, aligned memory for compiled functions."""

from numba import types
from numba.extending import intrinsic

from rgals.kernels.vectors import LINE


@intrinsic
def workspace(typingctx, n, like):
    """``n`` uninitialised numbers of the type of ``like``, aligned to a cache line."""
    array = types.Array(like.dtype, 1, "C")

    # np.empty aligns to 32 bytes in numba, and takes ten times as long to compile.
    def codegen(context, builder, signature, args):
        from numba.np import arrayobj  # takes a tenth of a second, so it waits until something is compiled

        size = context.get_abi_sizeof(context.get_data_type(array.dtype))
        length = context.cast(builder, args[0], signature.args[0], types.intp)
        n_bytes = builder.mul(length, length.type(size))
        meminfo = context.nrt.meminfo_alloc_aligned(builder, n_bytes, LINE)
        made = arrayobj.make_array(array)(context, builder)
        data = builder.bitcast(context.nrt.meminfo_data(builder, meminfo), made.data.type)
        arrayobj.populate_array(made, data, [length], [length.type(size)], size, meminfo)
        return made._getvalue()

    return array(n, like), codegen
