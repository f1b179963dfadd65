"""Exact alternating least squares for top-K recommendation from implicit feedback."""

import importlib
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from rgals.estimator import RGALS
    from rgals.losses import IALS, RG2, RGX, WRMF
    from rgals.training.checkpoint import Checkpoint
    from rgals.warm import warmup

#: What is imported when it is asked for, by its module.
_LATER = {"RGALS": "estimator", "Checkpoint": "training.checkpoint", "warmup": "warm"}
_LATER |= dict.fromkeys(("IALS", "RG2", "RGX", "WRMF"), "losses")

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
    "warmup",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(importlib.import_module(f"rgals.{_LATER[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
