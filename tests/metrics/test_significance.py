"""Errors, intervals and paired tests against scipy, closed forms and full enumeration."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from rgals.metrics import bootstrap_interval, compare, effect_size, holm, paired_test, standard_error
from rgals.metrics.significance import METHODS
from rgals.runtime.errors import InputError, InputTypeError, ParameterError, ShapeError


def two_models(n, effect, seed=0):
    rng = np.random.default_rng(seed)
    base = rng.random(n)
    return base + effect + 0.1 * rng.standard_normal(n), base


def test_standard_error_equals_scipy_and_skips_nan():
    values = np.random.default_rng(0).random(50)
    assert standard_error(values) == pytest.approx(stats.sem(values), rel=1e-14)
    assert standard_error(np.append(values, np.nan)) == standard_error(values)
    assert math.isnan(standard_error([1.0])) and math.isnan(standard_error([]))


def test_bootstrap_interval_approaches_the_normal_one_and_is_reproducible():
    values = np.random.default_rng(1).random(2000)
    low, high = bootstrap_interval(values, 0.9)
    half = stats.norm.ppf(0.95) * standard_error(values)
    assert low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert high == pytest.approx(values.mean() + half, abs=0.1 * half)
    assert bootstrap_interval(values, 0.9) == (low, high) != bootstrap_interval(values, 0.9, random_state=1)
    narrow = bootstrap_interval(values, 0.5)
    assert low < narrow[0] < narrow[1] < high
    assert all(map(math.isnan, bootstrap_interval([np.nan])))


@pytest.mark.parametrize(("n", "share"), [(5, 0.77), (10, 0.87), (30, 0.92), (300, 0.94)])
def test_bootstrap_interval_covers_as_its_docstring_says(n, share):
    rng, hits, trials = np.random.default_rng(n), 0, min(600, 60_000 // n)
    for trial in range(trials):
        low, high = bootstrap_interval(rng.exponential(1, n), n_resamples=400, random_state=trial)
        hits += low <= 1 <= high
    assert hits / trials == pytest.approx(share, abs=0.03)
    assert f"{100 * share:.0f} %" in bootstrap_interval.__doc__


def test_t_and_wilcoxon_equal_scipy():
    a, b = two_models(60, 0.02)
    assert paired_test(a, b) == pytest.approx(stats.ttest_rel(a, b).pvalue, rel=1e-12)
    assert paired_test(a, b, "wilcoxon") == pytest.approx(stats.wilcoxon(a, b).pvalue, rel=1e-12)
    a[0] = np.nan
    assert paired_test(a, b) == pytest.approx(stats.ttest_rel(a[1:], b[1:]).pvalue, rel=1e-12)


def test_randomisation_equals_the_enumeration_of_all_signs():
    a, b = two_models(10, 0.03, seed=4)
    difference = a - b
    signs = np.array(list(itertools.product([-1, 1], repeat=10)))
    exact = np.mean(np.abs(signs @ difference) >= abs(difference.sum()) - 1e-12)
    assert 0.01 < exact < 0.9
    sampled = paired_test(a, b, "randomisation", n_resamples=40_000)
    assert sampled == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 40_000))
    assert sampled == paired_test(a, b, "randomisation", n_resamples=40_000)
    assert paired_test([1.0] * 30, [0.0] * 30, "randomisation", n_resamples=99) == 1 / 100


@pytest.mark.parametrize("method", ["t", "wilcoxon", "randomisation"])
def test_no_difference_and_a_clear_one(method):
    a, b = two_models(200, 0.1)
    assert paired_test(a, b, method, n_resamples=999) <= 1e-3
    assert paired_test(a, a, method) == 1.0
    assert math.isnan(paired_test([1.0], [2.0], method))


@pytest.mark.parametrize("method", ["t", "wilcoxon", "randomisation"])
def test_false_alarms_are_as_rare_as_the_level_says(method):
    alarms = sum(
        paired_test(*two_models(40, 0.0, seed), method, n_resamples=300, random_state=seed) < 0.1
        for seed in range(200)
    )
    assert 0.05 < alarms / 200 < 0.16


def test_ties_stay_ties_where_rounding_parts_them():
    """Of figures such as 0.7 - 0.4 and 0.3 - 0: other last bits made other ranks, and a t-test of noise."""
    rng = np.random.default_rng(5)
    parted = 0
    for _ in range(20):
        x, y = rng.integers(0, 11, (2, 30))
        exact, got = stats.wilcoxon(x - y).pvalue, paired_test(x / 10, y / 10, "wilcoxon")
        assert got == pytest.approx(exact, rel=1e-12)
        parted += len(np.unique(np.abs(x / 10 - y / 10))) > len(np.unique(np.abs(x - y)))
    assert parted > 15
    a = np.array([0.3, 0.4, 0.5, 0.6])
    assert len(np.unique(a - (a - 0.1))) > 1
    assert effect_size(a, a - 0.1) == math.inf and paired_test(a, a - 0.1) == 0.0
    noise = a * (1 + 1e-16 * np.arange(1, 5))
    assert (noise != a).any()
    for method in METHODS:
        assert paired_test(noise, a, method) == 1.0
    assert effect_size(noise, a) == 0.0
    assert paired_test(a * 1e-200, a * 1e-200 - 1e-201) == 0.0


def test_users_without_figures_raise_no_warnings():
    rows = compare({"new": [math.nan] * 3, "old": [0.1, 0.2, 0.3]}, "old")
    assert math.isnan(rows[0].mean) and math.isnan(rows[0].difference) and math.isnan(rows[0].p_value)


def test_holm_by_hand():
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm([0.5, 0.9]), [1, 1])
    np.testing.assert_allclose(holm([0.04, np.nan, 0.01]), [0.04, np.nan, 0.02])
    assert holm([]).shape == (0,)


def test_compare_corrects_for_the_number_of_models():
    a, b = two_models(100, 0.02)
    figures = {
        "a": a,
        "b": b,
        "c": b + 1e-3 * np.sin(np.arange(100)),
        "d": b - 0.2 * np.linspace(0.5, 1.5, 100),
    }
    rows = compare(figures, "b", n_resamples=500)
    assert [row.name for row in rows] == ["a", "c", "d"]
    np.testing.assert_allclose([row.corrected for row in rows], holm([row.p_value for row in rows]))
    assert rows[0].difference == pytest.approx(a.mean() - b.mean())
    assert rows[0].interval[0] < rows[0].difference < rows[0].interval[1]
    assert rows[2].corrected < 1e-3 < rows[1].corrected and rows[2].difference == pytest.approx(-0.2)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: paired_test([1, 2], [1, 2, 3]), ShapeError, "2 users and b 3"),
        (lambda: paired_test([1, 2], [1, 2], "z"), ParameterError, "method='z'"),
        (lambda: paired_test([np.inf, 2], [1, 2]), InputError, "finite"),
        (lambda: effect_size([np.inf, 2], [np.inf, 2]), InputError, "a must be finite"),
        (lambda: bootstrap_interval([np.inf, 2]), InputError, "values must be finite"),
        (lambda: compare({"a": ({"ndcg@3": [1]}, [0, 1]), "b": [1]}, "b"), InputTypeError, "per_user=True"),
        (lambda: standard_error([[1, 2]]), ShapeError, "one dimension"),
        (lambda: standard_error(["a"]), InputTypeError, "numbers"),
        (lambda: bootstrap_interval([1, 2], 1.5), ParameterError, "level"),
        (lambda: holm([2.0]), InputError, "between 0 and 1"),
        (lambda: holm(["a"]), InputTypeError, "one for each test, not <U1$"),
        (lambda: holm([[0.1]]), ShapeError, "one dimension, tests,"),
        (lambda: compare({"a": [1, 2]}, "b"), ParameterError, "'a'"),
    ],
)
def test_bad_input_is_named(call, error, words):
    with pytest.raises(error, match=words):
        call()
