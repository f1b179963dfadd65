"""Splits, k-cores, protocols, `tune`, and `RGALSCV`, the estimator that tunes itself."""

from rgals.datasets.splits import leave_last_out, split_interactions, temporal_split
from rgals.model_selection.cv import RGALSCV
from rgals.model_selection.folds import InteractionSplit, UserFold, UserSplit
from rgals.model_selection.protocol import PROTOCOLS, Core, Parts, Protocol, k_core
from rgals.model_selection.tuning import EdgeWarning, Search, TuneResult, default_space, tune

__all__ = ["PROTOCOLS", "RGALSCV", "Core", "EdgeWarning", "InteractionSplit", "Parts", "Protocol", "Search"]
__all__ += ["TuneResult", "UserFold", "UserSplit", "default_space", "k_core", "leave_last_out"]
__all__ += ["split_interactions", "temporal_split", "tune"]
