"""In full: formulas, properties, metrics, scikit-learn's checks, failures, float32, Ctrl-C."""

from __future__ import annotations

import time

from kernels.ways.test_cg import test_one_system
from metrics.test_evaluation import test_evaluate_equals_the_oracle_on_random_problems
from model.test_ranking_properties import test_random_calls_equal_a_dense_argsort
from scoring.test_topk import test_random_cases_equal_a_stable_argsort
from sklearn.utils.estimator_checks import check_estimator
from solvers.test_cpu import (
    test_bases_that_change_from_half_step_to_half_step_change_no_iterate,
    test_no_perturbation_lowers_the_objective_after_a_half_step,
    test_row_only_losses_reach_the_closed_form_from_every_start,
)
from solvers.test_precision import test_every_error_of_a_score_is_small_or_warned_of
from test_numerics import (
    test_ctrl_c_during_a_fit,
    test_formulas,
    test_metrics_equal_an_outside_evaluator,
    test_numerical_failure_names_the_row_and_leaves_the_last_good_state,
    test_properties,
)

from rgals import IALS, RGALS

__all__ = [
    "test_bases_that_change_from_half_step_to_half_step_change_no_iterate",
    "test_ctrl_c_during_a_fit",
    "test_evaluate_equals_the_oracle_on_random_problems",
    "test_every_error_of_a_score_is_small_or_warned_of",
    "test_formulas",
    "test_metrics_equal_an_outside_evaluator",
    "test_no_perturbation_lowers_the_objective_after_a_half_step",
    "test_numerical_failure_names_the_row_and_leaves_the_last_good_state",
    "test_one_system",
    "test_properties",
    "test_random_calls_equal_a_dense_argsort",
    "test_random_cases_equal_a_stable_argsort",
    "test_row_only_losses_reach_the_closed_form_from_every_start",
]


def test_scikit_learns_checks(tally):
    """Of one more estimator than tests/test_estimator.py, where each check is a test."""
    count = tally("check_estimator", 80, 80)
    for estimator in (RGALS(K=4, n_iter=3), RGALS(K=3, loss=IALS(), n_iter=2, dtype="float64")):
        started = time.perf_counter()
        for result in check_estimator(estimator, on_fail=None, on_skip=None):
            bad = result["status"] in ("failed", "xfail")
            count.add(0.0, f"{result['check_name']}: {result['exception']}" if bad else None)
        count.worst = max(count.worst, time.perf_counter() - started)
    count.check()
