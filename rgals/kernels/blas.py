"""BLAS and LAPACK calls from compiled code, without Python objects and without the GIL.

The routines are scipy's own (``scipy.linalg.cython_blas`` / ``cython_lapack``). Their addresses are
registered under symbol names of ours, so that compiled code refers to a *name*: such code can be cached
on disk and loaded by another process, which a baked-in address could not.

All arrays are C-ordered; the docstrings are written in terms of C-ordered matrices. Every routine works on
float32 and float64 and expects that BLAS runs on one thread (``rgals._threads.parallel``).
"""

from __future__ import annotations

import llvmlite.binding as llvm
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import get_cython_function_address, intrinsic

_MODULES = {
    "gemm": "scipy.linalg.cython_blas",
    "gemv": "scipy.linalg.cython_blas",
    "syrk": "scipy.linalg.cython_blas",
    "trsm": "scipy.linalg.cython_blas",
    "potrf": "scipy.linalg.cython_lapack",
    "potrs": "scipy.linalg.cython_lapack",
    "potri": "scipy.linalg.cython_lapack",
}

for _routine, _module in _MODULES.items():
    for _letter in "sd":
        llvm.add_symbol(
            f"rgals_{_letter}{_routine}", get_cython_function_address(_module, _letter + _routine)
        )


def _fortran(routine: str, kinds: str):
    """Make an intrinsic that calls a Fortran routine with a tuple of arguments.

    ``kinds`` has a letter per argument: ``c`` character code, ``i`` integer, ``r`` real scalar of the
    arrays' dtype, ``p`` array, ``o`` integer output (it takes no argument). The intrinsic returns
    the integer output, or 0 where there is none.
    """

    @intrinsic
    def call(typingctx, args):
        given = [kind for kind in kinds if kind != "o"]
        if not isinstance(args, types.BaseTuple) or len(args) != len(given):
            return None
        arrays = [t for t, kind in zip(args.types, given, strict=True) if kind == "p"]
        real = arrays[0].dtype
        if any(not isinstance(t, types.Array) or t.dtype != real for t in arrays):
            return None
        symbol = "rgals_" + {types.float32: "s", types.float64: "d"}[real] + routine

        def codegen(context, builder, signature, values):
            int_t, char_t = ir.IntType(32), ir.IntType(8)
            real_t = context.get_value_type(real)
            ctypes_of = {"c": char_t, "i": int_t, "r": real_t, "p": real_t, "o": int_t}
            fn_t = ir.FunctionType(ir.VoidType(), [ctypes_of[k].as_pointer() for k in kinds])
            fn = cgutils.get_or_insert_function(builder.module, fn_t, symbol)
            (packed,) = values
            pointers, info, pos = [], None, 0
            for kind in kinds:
                if kind == "o":
                    info = cgutils.alloca_once(builder, int_t)
                    pointers.append(info)
                    continue
                typ = args.types[pos]
                value = builder.extract_value(packed, pos)
                pos += 1
                if kind == "p":
                    array = context.make_array(typ)(context, builder, value)
                    pointers.append(array.data)
                    continue
                to = {"c": types.int8, "i": types.int32, "r": real}[kind]
                slot = cgutils.alloca_once(builder, ctypes_of[kind])
                builder.store(context.cast(builder, value, typ, to), slot)
                pointers.append(slot)
            builder.call(fn, pointers)
            return builder.load(info) if info is not None else ir.Constant(int_t, 0)

        return types.int32(args), codegen

    return call


_gemm = _fortran("gemm", "cciiirpipirpi")
_gemv = _fortran("gemv", "ciirpipirpi")
_syrk = _fortran("syrk", "cciirpirpi")
_trsm = _fortran("trsm", "cccciirpipi")
_potrf = _fortran("potrf", "cipio")
_potrs = _fortran("potrs", "ciipipio")
_potri = _fortran("potri", "cipio")

_N, _T, _L, _U, _R = ord("N"), ord("T"), ord("L"), ord("U"), ord("R")


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


@njit(inline="always")
def gemv_t(m, n, alpha, a, lda, x, beta, y):
    """``y (n) = alpha A (m,n)^T x (m) + beta y``."""
    _gemv((_N, n, m, alpha, a, lda, x, 1, beta, y, 1))


@njit(inline="always")
def syrk_t(n, k, alpha, a, lda, beta, c, ldc):
    """Upper triangle of ``C (k,k) = alpha A (n,k)^T A + beta C``."""
    _syrk((_L, _N, k, n, alpha, a, lda, beta, c, ldc))


@njit(inline="always")
def syrk_n(n, k, alpha, a, lda, beta, c, ldc):
    """Upper triangle of ``C (n,n) = alpha A (n,k) A^T + beta C``."""
    _syrk((_L, _T, n, k, alpha, a, lda, beta, c, ldc))


@njit(inline="always")
def potrf(n, a, lda):
    """Cholesky factor of the matrix in the upper triangle of ``a``, in place; 0, or the failing order."""
    return _potrf((_L, n, a, lda))


@njit(inline="always")
def potrs(n, nrhs, a, lda, b, ldb):
    """Solve for ``nrhs`` right-hand sides, the rows of ``b``, with the factor of `potrf`, in place."""
    return _potrs((_L, n, nrhs, a, lda, b, ldb))


@njit(inline="always")
def potri(n, a, lda):
    """Upper triangle of the inverse from the factor of `potrf`, in place."""
    return _potri((_L, n, a, lda))


@njit(inline="always")
def trsm_lower(m, n, a, lda, b, ldb):
    """``B (m,n) = L^-1 B`` with ``L L^T`` the factorisation that `potrf` left in ``a``, in place."""
    _trsm((_R, _L, _T, _N, n, m, 1.0, a, lda, b, ldb))
