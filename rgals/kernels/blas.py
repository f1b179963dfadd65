"""BLAS calls from compiled code, without Python objects and without the GIL.

The routines are scipy's own (``scipy.linalg.cython_blas``). Their addresses are
registered under symbol names of ours, so that compiled code refers to a *name*: such code can be cached
on disk and loaded by another process, which a baked-in address could not.

All arrays are C-ordered; the docstrings are written in terms of C-ordered matrices. Every routine works on
float32 and float64 and expects that BLAS runs on one thread (``rgals.runtime.threads.parallel``).
"""

from __future__ import annotations

import llvmlite.binding as llvm
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import get_cython_function_address, intrinsic

for _routine in ("gemm", "gemv"):
    for _letter in "sd":
        _address = get_cython_function_address("scipy.linalg.cython_blas", _letter + _routine)
        llvm.add_symbol(f"rgals_{_letter}{_routine}", _address)


def _fortran(routine: str, kinds: str):
    """Make an intrinsic that calls a Fortran routine with a tuple of arguments.

    ``kinds`` has a letter per argument: ``c`` character code, ``i`` integer, ``r`` real scalar of the
    arrays' dtype, ``p`` array.
    """

    @intrinsic
    def call(typingctx, args):
        if not isinstance(args, types.BaseTuple) or len(args) != len(kinds):
            return None
        arrays = [t for t, kind in zip(args.types, kinds, strict=True) if kind == "p"]
        real = arrays[0].dtype
        if any(not isinstance(t, types.Array) or t.dtype != real for t in arrays):
            return None
        symbol = "rgals_" + {types.float32: "s", types.float64: "d"}[real] + routine

        def codegen(context, builder, signature, values):
            real_t = context.get_value_type(real)
            stored = {"c": ir.IntType(8), "i": ir.IntType(32), "r": real_t, "p": real_t}
            fn_t = ir.FunctionType(ir.VoidType(), [stored[kind].as_pointer() for kind in kinds])
            fn = cgutils.get_or_insert_function(builder.module, fn_t, symbol)
            (packed,) = values
            pointers = []
            for pos, kind in enumerate(kinds):
                typ = args.types[pos]
                value = builder.extract_value(packed, pos)
                if kind == "p":
                    pointers.append(context.make_array(typ)(context, builder, value).data)
                    continue
                to = {"c": types.int8, "i": types.int32, "r": real}[kind]
                slot = cgutils.alloca_once(builder, stored[kind])
                builder.store(context.cast(builder, value, typ, to), slot)
                pointers.append(slot)
            builder.call(fn, pointers)
            return context.get_dummy_value()

        return types.void(args), codegen

    return call


_gemm = _fortran("gemm", "cciiirpipirpi")
_gemv = _fortran("gemv", "ciirpipirpi")

_N, _T = ord("N"), ord("T")


# Fortran is column-major: a C-ordered matrix is its transpose there. Hence C^T = B^T A^T, with the operands
# and their sizes exchanged.


@njit(inline="always")
def gemm_nn(m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
    """``C (m,n) = alpha A (m,k) B (k,n) + beta C``; leading dimensions are row lengths."""
    _gemm((_N, _N, n, m, k, alpha, b, ldb, a, lda, beta, c, ldc))


@njit(inline="always")
def gemm_nt(m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
    """``C (m,n) = alpha A (m,k) B (n,k)^T + beta C``."""
    _gemm((_T, _N, n, m, k, alpha, b, ldb, a, lda, beta, c, ldc))


@njit(inline="always")
def gemm_tn(m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
    """``C (m,n) = alpha A (k,m)^T B (k,n) + beta C``."""
    _gemm((_N, _T, n, m, k, alpha, b, ldb, a, lda, beta, c, ldc))


@njit(inline="always")
def gemv_n(m, n, alpha, a, lda, x, beta, y):
    """``y (m) = alpha A (m,n) x (n) + beta y``."""
    _gemv((_T, n, m, alpha, a, lda, x, 1, beta, y, 1))
