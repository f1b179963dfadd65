"""Comparisons of 64 numbers at once, as the bits of one integer.

LLVM turns a comparison of 64-element vectors into whatever the processor has; loops over booleans it often
leaves scalar.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

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
            real = context.get_value_type(typ.dtype)
            vector = ir.VectorType(real, WIDTH)
            view = context.make_array(typ)(context, builder, args[0])
            first = context.cast(builder, args[1], signature.args[1], types.intp)
            pointer = cgutils.get_item_pointer(context, builder, typ, view, [first])
            numbers = builder.load(builder.bitcast(pointer, vector.as_pointer()))
            numbers.align = context.get_abi_sizeof(real)
            scalar = context.cast(builder, args[2], signature.args[2], typ.dtype)
            undefined, lane = ir.Constant(vector, ir.Undefined), ir.IntType(32)
            one = builder.insert_element(undefined, scalar, ir.Constant(lane, 0))
            splat = builder.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(lane, WIDTH), None))
            bits = builder.fcmp_ordered(operator, numbers, splat)
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
