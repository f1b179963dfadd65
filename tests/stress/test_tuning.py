"""In full: searches and comparisons that are killed, and the README's with the budgets that it shows."""

from __future__ import annotations

from compare.test_open import test_a_comparison_killed_at_any_fit_ends_as_if_nothing_had_happened
from model_selection.test_cv import data, test_killed_searches_end_as_if_nothing_had_happened
from test_readme import test_the_tuning_lines_find_a_model

__all__ = [
    "data",
    "test_a_comparison_killed_at_any_fit_ends_as_if_nothing_had_happened",
    "test_killed_searches_end_as_if_nothing_had_happened",
    "test_the_tuning_lines_find_a_model",
]
