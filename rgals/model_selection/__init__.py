"""Splits, k-cores, protocols, and `tune`."""

from typing import TYPE_CHECKING, Any

from rgals.model_selection.core import Core, k_core
from rgals.model_selection.folds import InteractionSplit, UserFold, UserSplit
from rgals.model_selection.protocol import PROTOCOLS, Parts, Protocol
from rgals.model_selection.splits import leave_last_out, split_interactions, temporal_split

if TYPE_CHECKING:
    from rgals.model_selection.tuning import EdgeWarning, TuneResult, default_space, tune

__all__ = [
    "PROTOCOLS",
    "Core",
    "EdgeWarning",
    "InteractionSplit",
    "Parts",
    "Protocol",
    "TuneResult",
    "UserFold",
    "UserSplit",
    "default_space",
    "k_core",
    "leave_last_out",
    "split_interactions",
    "temporal_split",
    "tune",
]

_TUNING = ("EdgeWarning", "TuneResult", "default_space", "tune")


def __getattr__(name: str) -> Any:
    """Tuning fits models, and models split data with this package: it is imported when it is asked for."""
    if name in _TUNING:
        from rgals.model_selection import tuning

        return getattr(tuning, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
