"""Splits, k-cores and protocols."""

from rgals.model_selection.core import Core, k_core
from rgals.model_selection.folds import InteractionSplit, UserFold, UserSplit
from rgals.model_selection.protocol import PROTOCOLS, Parts, Protocol
from rgals.model_selection.splits import leave_last_out, split_interactions, temporal_split

__all__ = [
    "PROTOCOLS",
    "Core",
    "InteractionSplit",
    "Parts",
    "Protocol",
    "UserFold",
    "UserSplit",
    "k_core",
    "leave_last_out",
    "split_interactions",
    "temporal_split",
]
