"""Device arrays, kernels and batched linear algebra on an NVIDIA GPU, through CuPy, loaded on demand.

The kernels are the ``.cu`` files of this folder. They are compiled for one precision and number of factors
when first needed, and kept by CuPy in its cache.
"""

from rgals.solvers.cuda.device import LARGEST_K, Device, check_factors, is_cuda, open_device
from rgals.solvers.cuda.room import Room

__all__ = ["LARGEST_K", "Device", "Room", "check_factors", "is_cuda", "open_device"]
