"""In full: searches and comparisons that are killed."""

from __future__ import annotations

from compare.test_open import test_a_comparison_killed_at_any_fit_ends_as_if_nothing_had_happened
from model_selection.test_ages import (
    test_the_half_life_of_a_log_whose_truth_is_known_is_found_and_pays,
)
from model_selection.test_cv import data, test_killed_searches_end_as_if_nothing_had_happened

__all__ = [
    "data",
    "test_a_comparison_killed_at_any_fit_ends_as_if_nothing_had_happened",
    "test_killed_searches_end_as_if_nothing_had_happened",
    "test_the_half_life_of_a_log_whose_truth_is_known_is_found_and_pays",
]
