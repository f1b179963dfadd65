"""What every figure stands beside: popularity, and the closed-form item model EASE."""

from rgals.baselines.ease import EASE
from rgals.baselines.popularity import Popularity

__all__ = ["EASE", "Popularity"]
