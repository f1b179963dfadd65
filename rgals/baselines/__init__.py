"""Baselines to compare models with: popularity, and the closed-form item-item model EASE."""

from rgals.baselines.ease import EASE
from rgals.baselines.popularity import Popularity

__all__ = ["EASE", "Popularity"]
