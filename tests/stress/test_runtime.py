"""In full: threads, layers, forks, readers and writers during refits, memory, a service under load."""

from __future__ import annotations

from runtime.test_concurrency import (
    script,
    test_determinism,
    test_every_answer_comes_from_one_snapshot,
    test_every_file_saved_during_refits_is_one_of_the_fits,
    test_every_thread_computes_the_same_whatever_the_threads_of_blas,
    test_forks,
    test_forks_while_two_threads_fit,
    test_soak,
)
from runtime.test_memory import test_peak_memory_is_as_predicted
from scoring.test_streaming import test_memory_does_not_grow_with_the_users
from test_service import models, service, test_every_answer_is_right_while_the_model_changes

__all__ = [
    "models",
    "service",
    "test_determinism",
    "test_every_answer_comes_from_one_snapshot",
    "test_every_answer_is_right_while_the_model_changes",
    "test_every_file_saved_during_refits_is_one_of_the_fits",
    "test_every_thread_computes_the_same_whatever_the_threads_of_blas",
    "test_forks",
    "test_forks_while_two_threads_fit",
    "test_memory_does_not_grow_with_the_users",
    "test_peak_memory_is_as_predicted",
    "test_soak",
]


def test_what_was_just_compiled_computes_what_the_cache_does(tmp_path):
    first, _ = script("sgd", NUMBA_CACHE_DIR=tmp_path)
    second, _ = script("sgd", NUMBA_CACHE_DIR=tmp_path)
    assert isinstance(first, dict), first
    assert first == second
    assert len(set(first.values())) == len(first), "losses must differ"
