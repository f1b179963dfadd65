"""Comparisons of 64 numbers at once, as the bits of one integer.

LLVM turns a comparison of 64-element vectors into whatever the processor has; loops over booleans it often
leaves scalar.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from rgals.kernels.vectors import Emitter, Index, Pointer

WIDTH = 64


def _comparison(operator: str):
    """Make an intrinsic ``compare(array, start, value)`` for an ordered comparison: NaN gives 0."""

    @intrinsic
    def compare(typingctx, array, start, value):
        if not (isinstance(array, types.Array) and array.ndim == 1 and array.layout == "C"):
            return None
        if array.dtype not in (types.float32, types.float64):
            return None

        def codegen(context, builder, signature, args):
            typ = signature.args[0]
            e = Emitter(builder, typ.dtype, WIDTH)
            first = context.cast(builder, args[1], signature.args[1], types.int64)
            numbers = Pointer(e, context.make_array(typ)(context, builder, args[0]).data)
            scalar = context.cast(builder, args[2], signature.args[2], typ.dtype)
            at = Index(builder, first)
            bits = builder.fcmp_ordered(operator, numbers[at].ir, e.spread(scalar).ir)
            return builder.bitcast(bits, ir.IntType(WIDTH))

        return types.uint64(array, start, value), codegen

    return compare


greater = _comparison(">")  # bit j: array[start + j] > value; the caller sees to it that 64 numbers are there
equal = _comparison("==")


@intrinsic
def lowest_bit(typingctx, bits):
    """Index of the lowest set bit of a uint64 other than 0."""
    if bits != types.uint64:
        return None

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(bits), codegen


@intrinsic
def count_bits(typingctx, bits):
    """Number of set bits of a uint64."""
    if bits != types.uint64:
        return None

    def codegen(context, builder, signature, args):
        return builder.ctpop(args[0])

    return types.int64(bits), codegen
