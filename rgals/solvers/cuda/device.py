"""A CUDA device through CuPy: its memory, its linear algebra, and errors that say what is missing."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rgals.runtime.errors import DeviceError, DeviceMemoryError, MissingDependencyError, ParameterError

MOST_FACTORS = 1024  # limit of K: the vectors of a row must fit the shared memory of a block of threads
_HOST_EIGH = 192  # up to this K LAPACK beats cuSOLVER, where a call alone takes milliseconds
_WORKSPACE = 2 << 30  # bytes of temporary memory; less on devices with under eight times as much
_MOST_AT_ONCE = 1 << 22  # size of a chunk, at most
LESS = "use fewer factors, dtype='float32' or device='cpu'"

_INSTALL = "pip install 'rgals[cuda13]' ('rgals[cuda12]': CUDA 12, GPUs before Turing), or set device='cpu'"


def is_cuda(device: Any) -> bool:
    """Whether ``device`` is ``"cuda"`` or ``"cuda:N"``."""
    return isinstance(device, str) and re.fullmatch(r"cuda(:\d+)?", device) is not None


def _import_cupy() -> Any:
    """Import CuPy; errors have the command that installs what is missing."""
    needed = "device='cuda' needs CuPy"
    try:
        import cupy

        needed = "CuPy is here, but CUDA's libraries are not"
        import cupyx.lapack  # noqa: F401 - which loads cuBLAS and cuSOLVER
    except ImportError as error:
        said = str(error).partition("\n")[0]
        raise MissingDependencyError(f"{needed} ({said}): {_INSTALL}") from error
    return cupy


def open_device(name: str = "cuda") -> "Device":
    """The device that ``name`` stands for: ``"cuda"`` is the first, ``"cuda:1"`` the second."""
    if not is_cuda(name):
        raise ParameterError("device", name, "give 'cpu', 'cuda' or 'cuda:N'")
    cupy = _import_cupy()
    ordinal = int(name.partition(":")[2] or 0)
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except RuntimeError as error:  # CUDARuntimeError: no driver, or one that is too old
        what = f"device={name!r}: no CUDA device can be used ({error})"
        raise DeviceError(f"{what}; see what nvidia-smi says, or set device='cpu'") from error
    if count == 0:
        raise DeviceError(f"device={name!r}: this machine has no CUDA device; set device='cpu'")
    if ordinal >= count:
        raise ParameterError("device", name, f"this machine has the devices cuda:0 to cuda:{count - 1}")
    return Device(cupy, ordinal)


class Device:
    """One device: arrays, kernels, and work in chunks that fit its memory."""

    def __init__(self, cupy: Any, ordinal: int = 0) -> None:
        self.xp, self.ordinal = cupy, ordinal
        with self.active():
            # Bytes of temporary memory. They depend on the device, not on what is free at the moment, so that
            # two runs cut their work alike and agree in every bit. If so much is not free, chunks are halved.
            self.room = min(_WORKSPACE, self.memory()[1] // 8)
        self.processors = cupy.cuda.Device(ordinal).attributes["MultiProcessorCount"]
        self._kernels: dict[Any, Any] = {}

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make this the current device. A `DeviceMemoryError` says that it is full."""
        with self.xp.cuda.Device(self.ordinal):
            try:
                yield
            except DeviceMemoryError:
                raise
            except MemoryError as error:
                free, total = (amount / 2**30 for amount in self.memory())
                what = f"the device has {free:.1f} of {total:.1f} GiB free"
                raise DeviceMemoryError(f"{what} ({error}); {LESS}") from error

    def memory(self) -> tuple[int, int]:
        """Bytes of memory of the device: free, and in total."""
        return self.xp.cuda.runtime.memGetInfo()

    def upload(self, array: Any) -> Any:
        """A copy on the device; the array itself where it is there."""
        return array if self.owns(array) else self.xp.asarray(np.ascontiguousarray(array))

    def download(self, array: Any) -> np.ndarray:
        """A copy in the host's memory."""
        return self.xp.asnumpy(array)

    def owns(self, array: Any) -> bool:
        """Whether an array is one of the device's."""
        return isinstance(array, self.xp.ndarray)

    def kernel(self, name: str, dtype: np.dtype, **macros: int) -> Any:
        """The kernel of the file ``name.cu``, compiled once for a ``dtype`` and these macros."""
        if (name, dtype, *macros.items()) not in self._kernels:
            given = {"REAL": {"float32": "float", "float64": "double"}[np.dtype(dtype).name], **macros}
            options = ("--std=c++17", *(f"-D{macro}={value}" for macro, value in given.items()))
            code = (Path(__file__).parent / f"{name}.cu").read_text()
            compiled = self.xp.RawModule(code=code, options=options).get_function(name)
            self._kernels[name, dtype, *macros.items()] = compiled
        return self._kernels[name, dtype, *macros.items()]

    def eigenvectors(self, symmetric: Any) -> Any:
        """Eigenvectors V of a symmetric matrix A, in float64: ``V^T A V`` is diagonal."""
        if len(symmetric) <= _HOST_EIGH:
            return self.upload(np.linalg.eigh(self.download(symmetric))[1])
        return self.xp.linalg.eigh(symmetric)[1]

    def chunks(self, n: int, bytes_each: int, work: Callable[[int, int], None]) -> None:
        """Call ``work(start, stop)`` for consecutive parts of ``range(n)``."""
        # ``bytes_each``: temporary memory for one of the n. If memory runs out, ``work`` is called again for
        # a smaller part, so it must be repeatable. A DeviceMemoryError says that even one does not fit.
        start = 0
        while start < n:
            size = max(1, min(n - start, self.room // max(1, bytes_each), _MOST_AT_ONCE))
            try:
                work(start, start + size)
            except MemoryError as error:
                self.xp.get_default_memory_pool().free_all_blocks()
                if size == 1:
                    piece = f"{bytes_each / 2**20:.1f} MiB, the smallest that the work can be cut into"
                    what = f"the device has no memory left for a piece of {piece}"
                    raise DeviceMemoryError(f"{what}; {LESS}") from error
                self.room = size * bytes_each // 2
                continue
            start += size
