"""A CUDA device: what rgals needs of CuPy, cuBLAS and cuSOLVER, and the errors where it is missing."""

import os
import re
from importlib import resources
from typing import Any

import numpy as np

from rgals.runtime.errors import DeviceError, MissingDependencyError, ParameterError

#: A lane of a warp keeps K / 32 numbers of a row in registers, several times over: 1024 is what fits.
LARGEST_K = 1024
WARP = 32
WARPS_IN_A_BLOCK = 8
#: Files that are compiled together; the selection does not depend on the number of factors.
SOURCES = {"rows": ("common.cu", "rows.cu", "pcg.cu"), "topk": ("common.cu", "topk.cu")}
_SELECTION = ("mask", "select_best")
_HOST_EIGH = 192  # up to so many factors LAPACK beats cuSOLVER, whose call alone takes milliseconds
_WORKSPACE = 2 << 30  # bytes, where the device has eight times as much
_UPPER, _NO_TRANSPOSE, _TRANSPOSE = 1, 0, 1  # cuBLAS names
_DEFAULT_MATH, _TF32_MATH = 0, 3

_OPEN: dict[tuple[int, bool], "Device"] = {}  # devices keep their compiled kernels
_INSTALL = "pip install 'rgals[cuda13]' (or 'rgals[cuda12]', by the CUDA version that nvidia-smi shows)"


def is_cuda(device: Any) -> bool:
    """Whether ``device`` is ``"cuda"`` or ``"cuda:N"``."""
    return isinstance(device, str) and re.fullmatch(r"cuda(:\d+)?", device) is not None


def _import_cupy() -> tuple[Any, Any, Any]:
    """CuPy, its cuBLAS and its cuSOLVER bindings; errors hold the line that installs what is missing."""
    needed = "device='cuda' needs CuPy"
    try:
        import cupy

        needed = "CuPy is here, but CUDA's libraries are not"
        from cupy.cuda import cublas, cusolver
    except ImportError as error:
        said = str(error).partition("\n")[0]
        raise MissingDependencyError(f"{needed} ({said}): {_INSTALL}") from error
    return cupy, cublas, cusolver


def open_device(name: str = "cuda", *, tf32: bool | None = None) -> "Device":
    """The device that ``name`` stands for: ``"cuda"`` is the first, ``"cuda:1"`` the second."""
    # tf32 lets float32 products run in TF32: about three decimal digits, faster. None: as the environment
    # variable CUPY_TF32 says, off where it is not set.
    if not is_cuda(name):
        raise ParameterError("device", name, "give 'cpu', 'cuda' or 'cuda:N'")
    cp, cublas, cusolver = _import_cupy()
    ordinal = int(name.partition(":")[2] or 0)
    try:
        count = cp.cuda.runtime.getDeviceCount()
    except RuntimeError as error:  # CUDARuntimeError: no driver, or one that is too old
        what = f"device={name!r}: no CUDA device can be used ({error})"
        raise DeviceError(f"{what}; see what nvidia-smi says, or set device='cpu'") from error
    if count == 0:
        raise DeviceError(f"device={name!r}: this machine has no CUDA device; set device='cpu'")
    if ordinal >= count:
        raise ParameterError("device", name, f"this machine has the devices cuda:0 to cuda:{count - 1}")
    if tf32 is None:
        tf32 = os.environ.get("CUPY_TF32", "0") == "1"
    key = (ordinal, tf32)
    if key not in _OPEN:
        _OPEN[key] = Device(cp, cublas, cusolver, ordinal=ordinal, tf32=tf32)
    return _OPEN[key]


def check_factors(k: int) -> None:
    """Refuse numbers of factors that the kernels cannot hold."""
    if k > LARGEST_K:
        why = "a warp keeps a row's factors in registers; set device='cpu'"
        raise ParameterError("K", k, f"device='cuda' takes at most {LARGEST_K}: {why}")


def kernel_source(group: str) -> str:
    """The source of a group of kernels."""
    folder = resources.files("rgals.solvers.cuda")
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in SOURCES[group])


def kernel_options(dtype: np.dtype, k: int) -> tuple[str, ...]:
    """Compiler options for one precision and number of factors."""
    info, wide = np.finfo(dtype), dtype == np.float64
    real, suffix = ("double", "") if wide else ("float", "f")
    limits = f"-DEPS={float(info.eps)!r}", f"-DTINY={float(info.tiny)!r}{suffix}"
    return "-std=c++17", f"-DREAL={real}", f"-DK={k}", f"-DWIDE={int(wide)}", *limits


def _letter(array: Any) -> str:
    """What the names of cuBLAS and cuSOLVER begin with for its type."""
    return "d" if array.dtype == np.float64 else "s"


class Device:
    """One device: C-ordered arrays, products, factorisations, kernels, by CuPy and its bindings."""

    def __init__(self, cp: Any, cublas: Any, cusolver: Any, *, ordinal: int = 0, tf32: bool = False) -> None:
        self.xp = cp
        self._cublas, self._cusolver = cublas, cusolver
        self.ordinal, self.tf32 = ordinal, tf32
        self._modules: dict[tuple[str, str, int], Any] = {}

    def active(self) -> Any:
        """A context in which this is the current device."""
        return self.xp.cuda.Device(self.ordinal)

    # ------------------------------------------------------------------ memory

    @property
    def workspace(self) -> int:
        """Bytes of temporary memory: a constant of the device."""
        return min(_WORKSPACE, self.memory()[1] // 8)

    def memory(self) -> tuple[int, int]:
        """Bytes of the device that are free, and all."""
        return self.xp.cuda.runtime.memGetInfo()

    def free(self) -> None:
        """Give unused memory back."""
        self.xp.get_default_memory_pool().free_all_blocks()

    def upload(self, array: np.ndarray) -> Any:
        """A copy on the device."""
        return self.xp.asarray(np.ascontiguousarray(array))

    def upload_if_host(self, array: Any) -> Any:
        """The array itself where it is on the device."""
        return array if self.owns(array) else self.upload(array)

    def download(self, array: Any) -> np.ndarray:
        """A copy in the host's memory."""
        return self.xp.asnumpy(array)

    def pinned(self, shape: tuple[int, int], dtype: Any) -> np.ndarray:
        """Host memory that the device copies to while it computes."""
        n = shape[0] * shape[1]
        memory = self.xp.cuda.alloc_pinned_memory(max(1, n * np.dtype(dtype).itemsize))
        return np.frombuffer(memory, dtype, n).reshape(shape)

    def owns(self, array: Any) -> bool:
        """Whether an array is one of the device's."""
        return not isinstance(array, np.ndarray)

    def pointer(self, array: Any) -> int:
        """Address of an array."""
        return array.data.ptr

    # ------------------------------------------------------------------ linear algebra

    def gemm(
        self, a: Any, b: Any, out: Any, ta: bool = False, tb: bool = False, alpha: float = 1, beta: float = 0
    ) -> Any:
        """``out = alpha op(a) op(b) + beta out`` for matrices or batches; ``ta``, ``tb`` transpose."""
        # All are C-ordered device arrays of one dtype, of shapes (..., rows, columns).
        batch = out.shape[0] if out.ndim == 3 else 1
        m, n = out.shape[-2:]
        k = a.shape[-2] if ta else a.shape[-1]
        if batch == 0 or m == 0 or n == 0:
            return out
        # cuBLAS counts down columns: it computes the transposed product, operands exchanged.
        product = getattr(self._cublas, f"{_letter(out)}gemmStridedBatched")
        one, zero = np.array(alpha, out.dtype), np.array(beta, out.dtype)
        handle = self.xp.cuda.device.get_cublas_handle()
        self._cublas.setMathMode(handle, _TF32_MATH if self.tf32 else _DEFAULT_MATH)
        try:
            transposed = [_TRANSPOSE if t else _NO_TRANSPOSE for t in (tb, ta)]
            left, right = ((self.pointer(x), x.shape[-1], x.shape[-2] * x.shape[-1]) for x in (b, a))
            result = self.pointer(out), n, m * n, batch
            product(handle, *transposed, n, m, k, one.ctypes.data, *left, *right, zero.ctypes.data, *result)
        finally:
            self._cublas.setMathMode(handle, _DEFAULT_MATH)
        return out

    def _pointers(self, batch: Any) -> Any:
        step = batch.dtype.itemsize * int(np.prod(batch.shape[1:]))
        offsets = self.xp.arange(batch.shape[0], dtype=np.uint64) * np.uint64(step)
        return offsets + np.uint64(self.pointer(batch))

    def cholesky(self, batch: Any) -> Any:
        """Replace the lower triangles of symmetric n x n matrices by L with ``L L^T = A``."""
        # For each 0, or the number of the first pivot that is not positive.
        info = self.xp.zeros(batch.shape[0], np.int32)
        # The upper triangle as cuSOLVER reads it, down columns, is the lower one here.
        factor = getattr(self._cusolver, f"{_letter(batch)}potrfBatched")
        pointers = self._pointers(batch)
        n = batch.shape[1]
        handle = self.xp.cuda.device.get_cusolver_handle()
        factor(handle, _UPPER, n, self.pointer(pointers), n, self.pointer(info), batch.shape[0])
        return info

    def cholesky_solve(self, lower: Any, rhs: Any) -> None:
        """Replace each row of ``rhs``, shape (batch, n), by the solution of its ``L L^T z = rhs``."""
        solve = getattr(self._cusolver, f"{_letter(lower)}potrsBatched")
        info = self.xp.zeros(1, np.int32)
        matrices, sides = self._pointers(lower), self._pointers(rhs)
        n = lower.shape[1]
        handle = self.xp.cuda.device.get_cusolver_handle()
        arrays = self.pointer(matrices), n, self.pointer(sides), n, self.pointer(info)
        solve(handle, _UPPER, n, 1, *arrays, lower.shape[0])

    def lower_solve(self, lower: Any, x: Any) -> None:
        """Replace the n x K matrices of ``x`` by ``L^-1 x``."""
        batch, n, k = x.shape
        self.launch("lower_solve", x.dtype, k, batch * -(-k // WARP), (WARP, 8), np.int32(n), lower, x)

    def eigenvectors(self, symmetric: Any) -> Any:
        """Orthogonal V, float64 on the device, that makes ``V^T A V`` diagonal."""
        if len(symmetric) <= _HOST_EIGH:
            return self.upload(np.linalg.eigh(self.download(symmetric))[1])
        return self.xp.ascontiguousarray(self.xp.linalg.eigh(symmetric)[1])

    def inverse(self, symmetric: Any) -> Any | None:
        """Inverse of a positive definite float64 matrix; None where a pivot is not positive."""
        n = len(symmetric)
        lower = symmetric[None].copy()
        if int(self.cholesky(lower)[0]):
            return None
        solved = self.xp.eye(n, dtype=np.float64)[None].copy()
        self.lower_solve(lower, solved)
        return self.gemm(solved[0], solved[0], self.xp.empty((n, n), np.float64), ta=True)

    # ------------------------------------------------------------------ kernels

    def kernel(self, name: str, dtype: Any, k: int) -> Any:
        """A kernel for one precision and number of factors, compiled when first asked for."""
        dtype = np.dtype(dtype)
        group = "topk" if name in _SELECTION else "rows"
        key = (group, dtype.name, k)
        if key not in self._modules:
            check_factors(k)
            options = kernel_options(dtype, k)
            self._modules[key] = self.xp.RawModule(code=kernel_source(group), options=options)
        return self._modules[key].get_function(name)

    def launch(self, name: str, dtype: Any, k: int, blocks: int, threads: tuple, *args: Any) -> None:
        """Run a kernel on ``blocks`` blocks."""
        if blocks:
            self.kernel(name, dtype, k)((blocks,), threads, args)

    def launch_warps(self, name: str, dtype: Any, k: int, n: int, *args: Any) -> None:
        """Run a kernel that gives each of ``n`` pieces of work to a warp."""
        threads = WARP * WARPS_IN_A_BLOCK
        self.launch(name, dtype, k, -(-n // WARPS_IN_A_BLOCK), (threads,), np.int64(n), *args)

    def segment_add(self, target: Any, first: Any, count: Any, parts: Any, sums: Any) -> None:
        """``sums[target[i]] += parts[first[i]] + ... (count[i] of them)``, in this order; int32, (n,)."""
        k = sums.shape[-1]
        size = int(np.prod(sums.shape[1:]))
        n = len(target) * size
        work = "segment_add", sums.dtype, k, -(-n // 256), (256,), np.int64(n), np.int64(size)
        self.launch(*work, target, first, count, parts, sums)

    def column_sums(self, factors: Any, weight: Any, linear_weight: Any) -> np.ndarray:
        """``sum w f^2``, ``sum w f`` and ``sum lw f`` over the rows: a host array of float64, (3, K)."""
        # Both weights are device arrays of float64.
        n, k = factors.shape
        n_parts = max(1, min(256, n // 64))
        rows_each = -(-n // n_parts)
        parts = self.xp.zeros((n_parts, 3, k), np.float64)
        work = "column_sums", factors.dtype, k, n_parts * -(-k // WARP), (WARP, 8)
        self.launch(*work, np.int64(n), np.int64(rows_each), factors, weight, linear_weight, parts)
        return self.download(parts.sum(axis=0))
