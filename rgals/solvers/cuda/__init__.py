"""An NVIDIA GPU through CuPy, loaded on demand."""

from rgals.solvers.cuda.device import MOST_FACTORS, Device, is_cuda, open_device

__all__ = ["MOST_FACTORS", "Device", "is_cuda", "open_device"]
