"""A stand-in for CuPy in host memory: arrays that do not mix with numpy's, cuBLAS and cuSOLVER by pointers.

Everything above CuPy runs unchanged on it, with the kernels emulated (`emulator.EmulatedModule`) or written
in numpy (`numpy_kernels.NumpyModule`).
"""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import scipy.linalg

from rgals.solvers.cuda import Device


class FakeArray(np.ndarray):
    """Memory of the pretended device."""

    @staticmethod
    def _bare(args):
        for value in args:
            if isinstance(value, np.ndarray) and not isinstance(value, FakeArray) and value.ndim:
                raise TypeError("an array of the host among arrays of the device")
        return [np.asarray(a).view(np.ndarray) if isinstance(a, FakeArray) else a for a in args]

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **kwargs):
        inputs = self._bare(inputs)
        if out is not None:
            kwargs["out"] = tuple(self._bare(out))
        result = getattr(ufunc, method)(*inputs, **kwargs)
        if out is not None:
            return out[0]
        return result.view(FakeArray) if isinstance(result, np.ndarray) else result

    def __setitem__(self, key, value):
        self._bare([value])
        super().__setitem__(key, value)


def _garbage(shape, dtype=np.float64):
    """Fresh memory holds anything."""
    dtype = np.dtype(dtype)
    return np.full(shape, np.nan if dtype.kind == "f" else -77 if dtype.kind == "i" else 77, dtype).view(
        FakeArray
    )


def _view(pointer, rows, cols, ld, stride, batch, dtype):
    """Matrices as cuBLAS sees them: down columns."""
    assert ld >= rows
    size = (batch - 1) * stride + (cols - 1) * ld + rows
    kind = ctypes.c_float if dtype == np.float32 else ctypes.c_double
    flat = np.ctypeslib.as_array((kind * size).from_address(int(pointer)))
    step = flat.itemsize
    return np.lib.stride_tricks.as_strided(flat, (batch, rows, cols), (stride * step, step, ld * step))


def _integers(pointer, n, kind):
    return np.ctypeslib.as_array((kind * n).from_address(int(pointer)))


def _gemm(dtype):
    def gemm(handle, ta, tb, m, n, k, alpha, a, lda, step_a, b, ldb, step_b, beta, c, ldc, step_c, batch):
        shape_a, shape_b = ((k, m) if ta else (m, k)), ((n, k) if tb else (k, n))
        A = _view(a, *shape_a, lda, step_a, batch, dtype)
        B = _view(b, *shape_b, ldb, step_b, batch, dtype)
        C = _view(c, m, n, ldc, step_c, batch, dtype)
        alpha, beta = (_view(x, 1, 1, 1, 1, 1, dtype)[0, 0, 0] for x in (alpha, beta))
        A, B = (A.swapaxes(1, 2) if ta else A), (B.swapaxes(1, 2) if tb else B)
        with np.errstate(invalid="ignore"):
            C[:] = alpha * (A @ B) + (beta * C if beta else 0)  # beta = 0 does not read C

    return gemm


def _potrf(dtype):
    def potrf(handle, uplo, n, matrices, lda, info, batch):
        for i, pointer in enumerate(_integers(matrices, batch, ctypes.c_uint64)):
            A = _view(pointer, n, n, lda, n * lda, 1, dtype)[0]
            factor, code = scipy.linalg.lapack.get_lapack_funcs("potrf", (A,))(A, lower=1 - uplo, clean=0)
            keep = np.triu(np.ones((n, n), bool)) if uplo else np.tril(np.ones((n, n), bool))
            A[keep] = factor[keep]
            _integers(info, batch, ctypes.c_int)[i] = code

    return potrf


def _potrs(dtype):
    def potrs(handle, uplo, n, nrhs, matrices, lda, sides, ldb, info, batch):
        assert nrhs == 1, "cuSOLVER takes one right-hand side"
        pointers = _integers(matrices, batch, ctypes.c_uint64), _integers(sides, batch, ctypes.c_uint64)
        for matrix, side in zip(*pointers):
            A = _view(matrix, n, n, lda, n * lda, 1, dtype)[0]
            b = _view(side, n, 1, ldb, ldb, 1, dtype)[0]
            b[:] = scipy.linalg.cho_solve((A, uplo == 0), b, check_finite=False)
        _integers(info, 1, ctypes.c_int)[0] = 0

    return potrs


class FakeCuPy:
    """The part of the ``cupy`` module that rgals uses.

    Parameters
    ----------
    module : type
        Takes the place of ``cupy.RawModule``.
    capacity : int, default 64 MiB
        Arrays made by ``empty`` and ``zeros`` must not be larger: `MemoryError`.
    """

    ndarray = FakeArray
    __version__ = "0"

    def __init__(self, module: type, capacity: int = 1 << 26) -> None:
        self.RawModule = module
        self.capacity = capacity
        self.refused = 0
        self.modes: list[int] = []
        self.cublas = SimpleNamespace(
            sgemmStridedBatched=_gemm(np.float32),
            dgemmStridedBatched=_gemm(np.float64),
            setMathMode=lambda handle, mode: self.modes.append(mode),
        )
        self.cusolver = SimpleNamespace(
            spotrfBatched=_potrf(np.float32),
            dpotrfBatched=_potrf(np.float64),
            spotrsBatched=_potrs(np.float32),
            dpotrsBatched=_potrs(np.float64),
        )
        self.cuda = SimpleNamespace(
            Device=lambda ordinal: nullcontext(),
            device=SimpleNamespace(get_cublas_handle=lambda: 0, get_cusolver_handle=lambda: 0),
            runtime=SimpleNamespace(
                memGetInfo=lambda: (capacity, capacity),
                getDeviceCount=lambda: 1,
                getDeviceProperties=lambda ordinal: {"name": b"stand-in"},
                deviceSynchronize=lambda: None,
            ),
            Stream=lambda non_blocking=False: SimpleNamespace(wait_event=lambda event: None),
            Event=lambda: SimpleNamespace(record=lambda stream=None: None, synchronize=lambda: None),
            alloc_pinned_memory=bytearray,
        )
        self.linalg = SimpleNamespace(
            eigh=lambda a: tuple(x.view(FakeArray) for x in np.linalg.eigh(np.asarray(a)))
        )

    def _room(self, shape, dtype):
        if int(np.prod(shape)) * np.dtype(dtype).itemsize > self.capacity:
            self.refused += 1
            raise MemoryError("out of memory of the pretended device")

    def get_default_memory_pool(self):
        return SimpleNamespace(free_all_blocks=lambda: None)

    def asarray(self, array):
        return np.array(array).view(FakeArray)

    def asnumpy(self, array, stream=None, out=None, blocking=True):
        assert isinstance(array, FakeArray)
        copy = np.array(array).view(np.ndarray)
        if out is not None:
            out[...] = copy
        return copy if out is None else out

    def empty(self, shape, dtype=np.float64):
        self._room(shape, dtype)
        return _garbage(shape, dtype)

    def zeros(self, shape, dtype=np.float64):
        self._room(shape, dtype)
        return np.zeros(shape, dtype).view(FakeArray)

    def empty_like(self, array):
        return self.empty(array.shape, array.dtype)

    def zeros_like(self, array):
        return self.zeros(array.shape, array.dtype)

    def __getattr__(self, name):
        function = getattr(np, name)

        def call(*args, **kwargs):
            result = function(*FakeArray._bare(args), **kwargs)
            return result.view(FakeArray) if isinstance(result, np.ndarray) else result

        return call


class FakeDevice(Device):
    """A `Device` on `FakeCuPy`."""

    def __init__(self, module: type, *, capacity: int = 1 << 26, tf32: bool = False) -> None:
        cp = FakeCuPy(module, capacity)
        super().__init__(cp, cp.cublas, cp.cusolver, tf32=tf32)

    def pointer(self, array):
        assert isinstance(array, FakeArray)
        assert array.flags.c_contiguous, "cuBLAS reads memory, not strides"
        return array.ctypes.data

    def owns(self, array):
        return isinstance(array, FakeArray)
