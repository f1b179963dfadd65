"""The matrix unit of recent Intel processors (AMX): 16 x 16 x 32 bfloat16 numbers, sums in float32.

It has eight tile registers of 16 rows of 64 bytes. A product adds ``A B`` to a tile of float32, where A holds
16 rows of 32 numbers and B holds pairs of rows side by side: number ``2 j + i`` of its row p is entry j of
row ``2 p + i``.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

#: Whether compiled code has the instructions. Where it has not, `rgals.kernels.parts` does without.
COMPILED = bool(llvm.get_host_cpu_features().get("amx-bf16", False))

_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18  # Linux: arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA)
# Palette 1: eight tiles (then eight unused) of 64 bytes a row, all with 16 rows.
_CONFIG = bytes([1, 0, *[0] * 14, *[64, 0] * 8, *[0] * 16, *[16] * 8, *[0] * 8])


@functools.cache
def ready() -> bool:
    """Whether this process may use the matrix unit: Linux grants it on request, once for all threads.

    ``RGALS_AMX=0`` in the environment says no.
    """
    if not COMPILED or platform.system() != "Linux" or os.environ.get("RGALS_AMX") == "0":
        return False
    return ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA) == 0


def _call(builder, name, *arguments):
    """Call an LLVM intrinsic for tiles; Python integers are numbers of registers."""
    values = [ir.Constant(ir.IntType(8), a) if isinstance(a, int) else a for a in arguments]
    fn_type = ir.FunctionType(ir.VoidType(), [value.type for value in values])
    builder.call(cgutils.get_or_insert_function(builder.module, fn_type, f"llvm.x86.{name}"), values)


def _byte(builder, pointer):
    return builder.bitcast(pointer, ir.IntType(8).as_pointer())


_ROW = ir.Constant(ir.IntType(64), 64)  # bytes from one row of a tile in memory to the next


def load(builder, tile, pointer):
    """Fill a register from a tile in memory."""
    _call(builder, "tileloadd64", tile, _byte(builder, pointer), _ROW)


def store(builder, tile, pointer):
    """Write a register to a tile in memory."""
    _call(builder, "tilestored64", tile, _byte(builder, pointer), _ROW)


def multiply_add(builder, c, a, b):
    """``C += A B`` for three registers."""
    _call(builder, "tdpbf16ps", c, a, b)


@intrinsic
def configure(typingctx):
    """Set the registers of this thread up."""

    def codegen(context, builder, signature, arguments):
        if COMPILED:
            array = ir.Constant(ir.ArrayType(ir.IntType(8), len(_CONFIG)), bytearray(_CONFIG))
            _call(
                builder,
                "ldtilecfg",
                _byte(builder, cgutils.global_constant(builder, "amx_configuration", array)),
            )
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def release(typingctx):
    """Give the registers of this thread back: then nobody saves them when it is interrupted."""

    def codegen(context, builder, signature, arguments):
        if COMPILED:
            _call(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), codegen
