"""An NVIDIA GPU through CuPy's array functions, loaded on demand."""

from rgals.solvers.cuda.device import Device, is_cuda, open_device

__all__ = ["Device", "is_cuda", "open_device"]
