"""Memory for kernels to work in."""

from __future__ import annotations

import numpy as np
from numba import njit

from rgals.kernels.vectors import LINE


@njit(cache=True)
def workspace(n, like):
    """``n`` numbers of the type of ``like``, uninitialised, on a cache line (see `rgals._aligned`)."""
    memory = np.empty(n + LINE // like.itemsize, like.dtype)
    start = -memory.ctypes.data % LINE // like.itemsize
    return memory[start : start + n]
