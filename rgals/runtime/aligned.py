"""Arrays that begin on a cache line: a vector register that straddles two lines costs two accesses."""

# Arrays of numpy begin 16 bytes after a line, so that a row of 64 float32 touches five lines instead of four.

import numpy as np

LINE = 64  # bytes
CACHE = 2**21  # bytes: a thread's assumed share of the processor's caches


def empty(shape: tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
    """`numpy.empty`, C-ordered, whose data begin on a cache line."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = np.empty(size + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    return memory[start : start + size].view(dtype).reshape(shape)


def read_only(array: np.ndarray) -> np.ndarray:
    """A contiguous, read-only view: kernels compile once, for memory-mapped and ordinary arrays alike."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def aligned(array: np.ndarray) -> np.ndarray:
    """The array itself where it begins on a cache line, else a copy that does."""
    if (array.ctypes.data % LINE == 0 or not array.size) and array.flags.c_contiguous:
        return array
    copy = empty(array.shape, array.dtype)
    copy[...] = array
    return copy
