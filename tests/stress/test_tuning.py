"""In full: searches and comparisons that are killed."""

from __future__ import annotations

from compare.test_open import test_a_comparison_killed_at_any_fit_ends_as_if_nothing_had_happened
from model_selection.test_cv import data, test_killed_searches_end_as_if_nothing_had_happened

__all__ = [
    "data",
    "test_a_comparison_killed_at_any_fit_ends_as_if_nothing_had_happened",
    "test_killed_searches_end_as_if_nothing_had_happened",
]
