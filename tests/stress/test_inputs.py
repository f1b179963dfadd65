"""In full: matrices, model files, text files and arguments that nobody should give."""

from __future__ import annotations

from cli.test_text_files import test_bad_files
from matrix.test_validate import (
    test_more_than_two_to_the_31_interactions,
    test_mutants_of_csr,
    test_shapes,
    test_weights,
)
from model.test_file import test_crafted_model_files, test_damaged_model_files
from test_bad_inputs import test_bad_inputs

__all__ = [
    "test_bad_files",
    "test_bad_inputs",
    "test_crafted_model_files",
    "test_damaged_model_files",
    "test_more_than_two_to_the_31_interactions",
    "test_mutants_of_csr",
    "test_shapes",
    "test_weights",
]
