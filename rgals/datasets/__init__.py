"""Reading, making and fetching interactions."""

from typing import TYPE_CHECKING

from rgals.runtime.lazy import later

if TYPE_CHECKING:
    from rgals.datasets.fetching import available, cache_folder, fetch
    from rgals.datasets.ids import IdMap
    from rgals.datasets.interactions import Interactions
    from rgals.datasets.paper import prepare_paper
    from rgals.datasets.read import read_interactions
    from rgals.datasets.synthetic import SyntheticInteractions, make_implicit

__all__ = ["IdMap", "Interactions", "SyntheticInteractions", "available", "cache_folder", "fetch"]
__all__ += ["make_implicit", "prepare_paper", "read_interactions"]

_MODULES = {"fetching": "available cache_folder fetch", "ids": "IdMap", "interactions": "Interactions"}
_MODULES |= {"paper": "prepare_paper", "read": "read_interactions"}
_MODULES |= {"synthetic": "SyntheticInteractions make_implicit"}
__getattr__, __dir__ = later(__name__, _MODULES)
