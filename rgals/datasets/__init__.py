"""Reading, making and fetching interactions."""

from rgals.datasets.ids import IdMap
from rgals.datasets.interactions import Interactions
from rgals.datasets.read import read_interactions
from rgals.datasets.synthetic import SyntheticInteractions, make_implicit

__all__ = ["IdMap", "Interactions", "SyntheticInteractions", "make_implicit", "read_interactions"]
