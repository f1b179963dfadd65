"""In full: a search that is killed ten times ends with the results of one that was not."""

from __future__ import annotations

from model_selection.test_cv import data, test_killed_searches_end_as_if_nothing_had_happened

__all__ = ["data", "test_killed_searches_end_as_if_nothing_had_happened"]
