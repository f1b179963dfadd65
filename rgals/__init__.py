"""Exact alternating least squares for top-K recommendation from implicit feedback."""

from rgals.estimator import RGALS
from rgals.losses import IALS, RG2, RGX, WRMF
from rgals.runtime.errors import (
    CheckpointError,
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
)
from rgals.runtime.version import __version__
from rgals.training.checkpoint import Checkpoint

__all__ = [
    "IALS",
    "RG2",
    "RGALS",
    "RGX",
    "WRMF",
    "Checkpoint",
    "CheckpointError",
    "FileFormatError",
    "ForkError",
    "InputError",
    "InputTypeError",
    "InsufficientMemoryError",
    "MissingDependencyError",
    "ModelFileError",
    "NumericalError",
    "ParameterError",
    "PrecisionWarning",
    "RgalsError",
    "ShapeError",
    "UnknownIdError",
    "__version__",
]
