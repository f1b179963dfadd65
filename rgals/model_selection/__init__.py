"""Splits, k-cores, protocols, and `tune`."""

from rgals.datasets.splits import leave_last_out, split_interactions, temporal_split
from rgals.model_selection.core import Core, k_core
from rgals.model_selection.folds import InteractionSplit, UserFold, UserSplit
from rgals.model_selection.protocol import PROTOCOLS, Parts, Protocol
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
