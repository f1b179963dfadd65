"""BLAS calls from compiled code, without Python objects and without the GIL."""

# The routines are those of ``scipy.linalg.cython_blas``. Their addresses are registered under symbol names,
# so that compiled code refers to a *name*: such code can be cached on disk and loaded by another process, in
# which addresses are others.
#
# All arrays are C-ordered, float32 or float64. BLAS is expected to run on one thread
# (``rgals.runtime.threads.workers``).

import llvmlite.binding as llvm
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import get_cython_function_address, intrinsic

for _letter in "sd":
    llvm.add_symbol(
        f"rgals_{_letter}gemm", get_cython_function_address("scipy.linalg.cython_blas", _letter + "gemm")
    )


@intrinsic
def _gemm(typingctx, args):
    """``?gemm`` of Fortran, with its arguments as a tuple; an offset follows every array."""
    kinds = "cciiirpoipoirpoi"  # c: character, i: integer, r: real number, p: array, o: its offset
    real = args[6].dtype
    symbol = {types.float32: "rgals_sgemm", types.float64: "rgals_dgemm"}[real]

    def codegen(context, builder, signature, values):
        real_t = context.get_value_type(real)
        # Fortran takes pointers only: numbers are put on the stack.
        stored = {"c": ir.IntType(8), "i": ir.IntType(32), "r": real_t}
        pointers: list = []
        for position, kind in enumerate(kinds):
            typ, value = args[position], builder.extract_value(values[0], position)
            if kind == "p":
                pointers.append(context.make_array(typ)(context, builder, value).data)
            elif kind == "o":
                offset = context.cast(builder, value, typ, types.int64)
                pointers[-1] = builder.gep(pointers[-1], [offset])
            else:
                to = {"c": types.int8, "i": types.int32, "r": real}[kind]
                pointers.append(cgutils.alloca_once(builder, stored[kind]))
                builder.store(context.cast(builder, value, typ, to), pointers[-1])
        fn_t = ir.FunctionType(ir.VoidType(), [pointer.type for pointer in pointers])
        builder.call(cgutils.get_or_insert_function(builder.module, fn_t, symbol), pointers)
        return context.get_dummy_value()

    return types.void(args), codegen


_N, _T = ord("N"), ord("T")


# Fortran is column-major: a C-ordered matrix is its transpose there. Hence C^T = B^T A^T, with the operands
# and their sizes exchanged.


@njit(inline="always")
def gemm_nn(m, n, k, a, oa, lda, b, ob, ldb, c, oc, ldc):
    """``C (m,n) = A (m,k) B (k,n)``; leading dimensions are row lengths."""
    _gemm((_N, _N, n, m, k, 1.0, b, ob, ldb, a, oa, lda, 0.0, c, oc, ldc))


@njit(inline="always")
def gemm_nt(m, n, k, a, oa, lda, b, ob, ldb, c, oc, ldc):
    """``C (m,n) = A (m,k) B (n,k)^T``."""
    _gemm((_T, _N, n, m, k, 1.0, b, ob, ldb, a, oa, lda, 0.0, c, oc, ldc))


@njit(inline="always")
def gemm_tn(m, n, k, a, oa, lda, b, ob, ldb, c, oc, ldc):
    """``C (m,n) = A (k,m)^T B (k,n)``."""
    _gemm((_N, _T, n, m, k, 1.0, b, ob, ldb, a, oa, lda, 0.0, c, oc, ldc))
