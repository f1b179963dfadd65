"""Exact alternating least squares for top-K recommendation from implicit feedback."""

from typing import TYPE_CHECKING

from rgals.runtime.errors import (
    CheckpointError,
    DeviceError,
    DeviceMemoryError,
    DownloadError,
    FileFormatError,
    ForkError,
    InputError,
    InputTypeError,
    InsufficientMemoryError,
    MissingDependencyError,
    ModelFileError,
    NumericalError,
    ParameterError,
    PrecisionWarning,
    RgalsError,
    ShapeError,
    UnknownIdError,
    ValuesWarning,
)
from rgals.runtime.lazy import later
from rgals.runtime.version import __version__

if TYPE_CHECKING:
    from rgals import plots
    from rgals.datasets.ids import Positions
    from rgals.estimator import RGALS
    from rgals.losses import IALS, RG2, RGX, WRMF
    from rgals.model_selection.cv import RGALSCV
    from rgals.solvers.hard_negatives import HardNegatives
    from rgals.training.checkpoint import Checkpoint
    from rgals.warm import warmup

__all__ = [
    "IALS",
    "RG2",
    "RGALS",
    "RGALSCV",
    "RGX",
    "WRMF",
    "Checkpoint",
    "CheckpointError",
    "DeviceError",
    "DeviceMemoryError",
    "DownloadError",
    "FileFormatError",
    "ForkError",
    "HardNegatives",
    "InputError",
    "InputTypeError",
    "InsufficientMemoryError",
    "MissingDependencyError",
    "ModelFileError",
    "NumericalError",
    "ParameterError",
    "Positions",
    "PrecisionWarning",
    "RgalsError",
    "ShapeError",
    "UnknownIdError",
    "ValuesWarning",
    "__version__",
    "plots",
    "warmup",
]

__getattr__, __dir__ = later(
    __name__,
    {
        "datasets.ids": "Positions",
        "estimator": "RGALS",
        "losses": "IALS RG2 RGX WRMF",
        "model_selection.cv": "RGALSCV",
        "plots": "",
        "solvers.hard_negatives": "HardNegatives",
        "training.checkpoint": "Checkpoint",
        "warm": "warmup",
    },
)
