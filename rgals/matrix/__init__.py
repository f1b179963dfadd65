"""Stores: interactions on disk in place of a matrix. Inside, the one matrix type (canonical CSR)."""

import importlib
from typing import TYPE_CHECKING, Any

from rgals.runtime.lazy import later

if TYPE_CHECKING:
    from rgals.matrix.store import Store, open_matrix

__all__ = ["Store", "convert", "open_matrix"]

_find, __dir__ = later(__name__, {"store": "Store open_matrix"})


def __getattr__(name: str) -> Any:
    # Readers lie above this room, and so does what converts with them: this name alone passes on to it.
    return importlib.import_module("rgals.datasets.convert").convert if name == "convert" else _find(name)
