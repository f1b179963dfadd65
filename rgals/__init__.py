"""Exact alternating least squares for top-K recommendation from implicit feedback."""

from typing import TYPE_CHECKING

from rgals.runtime import errors as _errors
from rgals.runtime.errors import *  # noqa: F403
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

__all__ = ["IALS", "RG2", "RGALS", "RGALSCV", "RGX", "WRMF", "Checkpoint", "HardNegatives", "Positions"]
__all__ += ["__version__", "plots", "warmup"]
__all__ += _errors.__all__

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
