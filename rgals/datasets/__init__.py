"""Reading, making and fetching interactions."""

from rgals.datasets.ids import IdMap
from rgals.datasets.interactions import Interactions
from rgals.datasets.read import read_interactions

__all__ = ["IdMap", "Interactions", "read_interactions"]
