"""Memory for kernels to work in."""

from __future__ import annotations

import numpy as np

from rgals.kernels.compile import inner
from rgals.kernels.vectors import LINE


@inner(_nrt=True)
def workspace(n, like):
    """``n`` numbers of the type of ``like``, uninitialised, on a cache line (see `rgals.runtime.aligned`)."""
    memory = np.empty(n + LINE // like.itemsize, like.dtype)
    start = -memory.ctypes.data % LINE // like.itemsize
    return memory[start : start + n]
