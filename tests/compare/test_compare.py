"""The comparison: analysis by hand, tuning, resuming, and what the page holds."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import re
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from rgals import RGALS
from rgals.baselines import EASE
from rgals.compare import METHODS, Effort, Method, Split, compare, prepare
from rgals.compare import runner as runner_module
from rgals.compare.data import some_users
from rgals.compare.methods import get_methods
from rgals.compare.page import draw
from rgals.compare.report import (
    _objectives,
    _parameters,
    _row,
    _sort_key,
    linear_rate,
    mean_and_spread,
    seconds_to,
)
from rgals.compare.runner import Runner, climb, packed
from rgals.datasets import make_implicit, read_interactions
from rgals.files.journal import Journal
from rgals.losses import IALS, RG2, Degrees, rule
from rgals.matrix.validate import as_csr
from rgals.matrix.weighting import Weighting
from rgals.metrics import evaluate
from rgals.metrics._table import parse_all
from rgals.runtime.errors import InputError, InputTypeError, NumericalError, ParameterError
from rgals.sgd.defaults import setting

EFFORT = Effort(max_trials=3, time_limit=5.0, objective_iterations=10)
OPTIONS = {"K": 4, "seeds": 2, "effort": EFFORT, "verbose": 0}


@pytest.fixture(scope="module")
def data():
    return make_implicit(150, 80, random_state=0)


@pytest.fixture
def undrawn(monkeypatch):
    """A report takes longer than the comparison: it is judged where it is the question."""
    monkeypatch.setattr(importlib.import_module("rgals.compare"), "write", lambda result, folder: None)


def with_effort(**changes):
    return {**OPTIONS, "effort": dataclasses.replace(EFFORT, **changes)}


# Analysis.


def test_seconds_to_is_the_first_time_at_or_above():
    curve = [(1.0, 0.10), (2.5, 0.30), (4.0, 0.25), (5.0, 0.40)]
    assert [seconds_to(curve, q) for q in (0.05, 0.30, 0.31, 0.5)] == [1.0, 2.5, 5.0, math.inf]


@pytest.mark.parametrize("factor", [0.3, 0.8, 0.95])
def test_a_geometric_decrease_is_recognised(factor):
    rate = linear_rate([7 + 4 * factor**t for t in range(200)])
    assert rate["factor"] == pytest.approx(factor, abs=2e-3) and rate["r2"] > 0.999
    assert rate["power_r2"] < rate["r2"]


def test_a_power_law_is_recognised_as_sublinear():
    rate = linear_rate([2 + t**-0.5 for t in range(1, 300)], limit=2.0)
    assert rate["power"] == pytest.approx(0.5, abs=1e-3) and rate["power_r2"] > 0.999 > rate["r2"]


def test_too_few_iterations_give_no_rate():
    assert linear_rate([3.0, 2.0, 1.5]) is None
    assert linear_rate([1.0] * 40) is None


def test_a_rate_has_the_iterations_that_it_was_fitted_to():
    """With a limit all of them but the first ``skip``, without one those of the first half."""
    gaps = [1 + 0.5**t for t in range(10)]
    assert linear_rate(gaps[:4], limit=1.0) is None, "three are too few"
    for skip, last in ((1, 5), (2, 6)):
        rate = linear_rate(gaps[:last], limit=1.0, skip=skip)
        assert (rate["first"], rate["last"]) == (skip + 1, last) and rate["factor"] == pytest.approx(0.5)
    assert linear_rate(gaps)["last"] == 5


def test_a_row_is_what_its_runs_were():
    """Of three that ended well and one that failed, which reaches no share of the best."""
    curves = [
        [[1.0, 0.1], [2.0, 0.5], [3.0, 0.2]],
        [[4.0, 0.4], [5.0, 0.6]],
        [[5.0, 0.49], [6.0, 0.3], [7.0, 0.2], [9.0, 0.1]],
    ]
    shares, figures = (0.9, 0.5, 0.7), ([0.1, 0.3], [0.2, 0.4], [0.9, 0.5])
    runs = []
    for curve, share, users in zip(curves, shares, figures, strict=True):
        measured = {"test": {"mrr@10": np.mean(users)}, "users": {"mrr@10": packed(np.array(users))}}
        runs.append({"curve": curve, "error": "", "cpu_share": share, **measured})
    runs.append({"curve": [[1.0, 0.9]], "error": "diverged", "cpu_share": 0.1, "test": {}, "users": {}})
    tuned = {"params": {"reg": 1.0}, "trials": 3, "finished": True, "edges": [], "best": 0.7}
    method = Method("m", "M", "other", lambda params, **_: None)
    row = _row(method, tuned, [runs[3], *runs[:3]], {"error": "lost"}, ("mrr@10",), best=0.5)
    assert row.curves == curves and row.errors == ["diverged", "lost"]
    assert row.test["mrr@10"] == (
        pytest.approx(np.mean(figures)),
        pytest.approx(np.std([0.2, 0.3, 0.7], ddof=1)),
    )
    assert row.validation[0] == pytest.approx((0.5 + 0.6 + 0.49) / 3)
    assert row.seconds == 5 and row.epochs == 3 and row.cpu_share == 0.5
    np.testing.assert_allclose(row.users["mrr@10"], [0.4, 0.4])
    runs[3]["curve"] = []
    times = _row(method, tuned, runs, {}, ("mrr@10",), best=0.5).seconds_to
    assert times == {0.95: 5.0, 0.99: math.inf}, "of 2, 5, 5 and never; of 2, 5, never and never"


def test_rows_without_a_figure_come_last_and_equal_ones_in_the_order_of_tuning():
    figures = {
        "a": (0.2, 0.5),
        "b": (math.nan, 0.9),
        "c": (0.3, 0.1),
        "d": (0.2, 0.6),
        "e": (math.nan, math.nan),
    }
    rows = [
        SimpleNamespace(name=name, test={} if math.isnan(one) else {"auc": (one, 0.0)}, tuning={"best": best})
        for name, (one, best) in figures.items()
    ]
    assert "".join(row.name for row in sorted(rows, key=lambda row: _sort_key(row, "auc"))) == "cdabe"


def test_parameters_say_how_they_were_found():
    for trials, finished, edges, said in (
        (0, False, [], "reg=0.1 (not tuned)"),
        (3, False, [], "reg=0.1 (trials ran out)"),
        (3, True, [], "reg=0.1"),
        (3, True, ["reg"], "reg=0.1 (reg at an end of its ladder)"),
    ):
        tuning = {"trials": trials, "finished": finished, "edges": edges}
        assert _parameters(SimpleNamespace(params={"reg": 0.1}, tuning=tuning)) == said


def test_an_estimator_is_tuned_from_its_own_value_on_an_ascending_ladder():
    (method,) = get_methods((EASE(10.0), {"reg": [10_000, 1, 1000, 10]}))
    assert method.ladders == {"reg": (1, 10, 1000, 10_000)} and method.start_for(None, 4) == {"reg": 10}


def test_of_gradient_descent_the_rate_is_shown_that_ended_lowest():
    """Beside the run by least squares, whose limit both share."""
    method, params = METHODS["rg2"], {"alpha": 0.1, "reg": 0.01}
    key, start = method.key(params).removeprefix("rg2 "), "objective gradient "
    als, slow = [1 + 0.5**t for t in range(20)], [2.0, 1.7, 1.5] + [1.4 - 0.01 * t for t in range(17)]
    records = {
        f"objective {method.key(params)}": {"objective": als, "error": ""},
        f"{start}{key} 0.01": {"objective": slow, "error": "", "lr": 0.01},
        f"{start}{key} 0.03": {"objective": [2.0, 1.1, 1.6], "error": "", "lr": 0.03},
        f"{start}{key} 0.1": {"objective": [0.5], "error": "diverged", "lr": 0.1},
        f"{start}other 0.1": {"objective": [0.4], "error": "", "lr": 0.1},
    }
    found = _objectives(records, [method], {"rg2": {"params": params}})
    gradient = "RG2 by gradient (Adam, lr=0.01)"
    assert list(found) == ["RG2 (ALS)", gradient] and found[gradient]["same_as"] == "RG2 (ALS)"
    # A fifth is left out, and the half of the run that found the limit; the other has that limit.
    assert (found["RG2 (ALS)"]["rate"]["first"], found["RG2 (ALS)"]["rate"]["last"]) == (5, 10)
    assert (found[gradient]["rate"]["first"], found[gradient]["rate"]["last"]) == (5, 20)


def test_mean_and_spread():
    assert mean_and_spread([1.0, 3.0]) == (2.0, pytest.approx(np.sqrt(2)))
    assert mean_and_spread([5.0]) == (5.0, 0.0)


# Tuning.


def hill(method_start=(0.0, 0.0), peak=(3, 1)):
    ladders = {"a": tuple(map(float, range(6))), "b": tuple(map(float, range(4)))}
    method = Method("hill", "hill", "ALS", lambda: None, ladders, dict(zip("ab", method_start)))
    calls = []

    def trial(params):
        calls.append(tuple(params.values()))
        return -((params["a"] - peak[0]) ** 2) - 2 * (params["b"] - peak[1]) ** 2

    return method, trial, calls


@pytest.mark.parametrize(("trials", "finished"), [(1, False), (2, False), (3, True), (4, True)])
def test_a_climb_whose_last_trial_was_the_last_neighbour_is_finished(trials, finished):
    method = Method("a", "a", "x", lambda params, **_: None, {"reg": (10.0, 100.0, 300.0)})
    found = climb(method, trials, lambda params: -params["reg"], {"reg": 100.0})
    assert found["finished"] == finished and found["trials"] == min(trials, 3)


def test_tuning_climbs_to_the_peak_and_tries_nothing_twice():
    method, trial, calls = hill()
    found = climb(method, 50, trial, method.start)
    assert found["params"] == {"a": 3.0, "b": 1.0} and found["best"] == 0
    assert found["finished"] and found["edges"] == [] and found["trials"] == len(calls) == len(set(calls))
    assert {(2.0, 1.0), (4.0, 1.0), (3.0, 0.0), (3.0, 2.0)} <= set(calls), "every neighbour was tried"


def test_tuning_says_when_trials_ran_out_and_when_the_best_is_at_an_end():
    method, trial, calls = hill()
    found = climb(method, 3, trial, method.start)
    assert not found["finished"] and found["trials"] == 3 == len(calls)
    method, trial, _ = hill(peak=(9, 1))
    found = climb(method, 50, trial, method.start)
    assert found["edges"] == ["a"] and found["params"]["a"] == 5.0


@pytest.mark.parametrize("unknown", [(2.0, 1.0), (3.0, 2.0), "start"])
def test_tuning_takes_no_nan_for_better(unknown):
    method, trial, _ = hill()
    unknown = tuple(method.start.values()) if unknown == "start" else unknown

    def doubtful(params):
        return float("nan") if tuple(params.values()) == unknown else trial(params)

    found = climb(method, 50, doubtful, method.start)
    assert found["best"] == 0 and found["params"] == {"a": 3.0, "b": 1.0}


def test_a_plateau_is_no_hill():
    """Neighbours that are as good are tried, and left."""
    method, _, _ = hill(method_start=(2.0, 2.0))
    found = climb(method, 50, lambda params: 0.5, method.start)
    assert found["params"] == {"a": 2.0, "b": 2.0} and found["trials"] == 5 and found["finished"]


def test_a_trial_that_failed_has_found_nothing():
    runner = Runner.__new__(Runner)
    runner.metric = "auc"
    runner._fit = lambda method, params, seed: (None, [{"auc": 0.7, "seconds": 1.0}], "diverged")
    runner._once = lambda key, method, measure: measure()
    assert runner._trial(hill()[0], SimpleNamespace(update=lambda: None), hill()[0].start) == 0


def test_a_history_that_begins_with_nan_has_the_best_of_the_others():
    runner = Runner.__new__(Runner)
    runner.metric = "auc"
    history = [{"auc": auc, "seconds": 1.0} for auc in (np.nan, 0.7, 0.6)]
    runner._fit = lambda method, params, seed: (None, history, "")
    runner._once = lambda key, method, measure: measure()
    assert runner._trial(hill()[0], SimpleNamespace(update=lambda: None), hill()[0].start) == 0.7


# The journal.


def test_a_torn_last_line_is_dropped_and_damage_is_an_error(tmp_path):
    path = tmp_path / "results.jsonl"
    Journal(path, {"K": 4}).add("x", {"value": 1.5})
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"key": "y", "val')
    again = Journal(path, {"K": 4})
    assert again.get("x")["value"] == 1.5 and again.get("y") is None and path.read_bytes() == whole
    with pytest.raises(InputError, match=r"other settings \(K\)"):
        Journal(path, {"K": 5})
    path.write_bytes(whole.replace(b'"value"', b'value"'))
    with pytest.raises(InputError, match="line 2 is damaged"):
        Journal(path, {"K": 4})


def test_one_line_of_something_else_is_no_torn_journal(tmp_path):
    path = tmp_path / "settings.json"
    for text in ('{"my": "settings"}', "x"):
        path.write_text(text)
        with pytest.raises(InputError, match="is not a journal"):
            Journal(path, {"K": 4})
        assert path.read_text() == text
    for torn in ("", '{"ke', '{"key": "setting", "setting": {"K'):
        path.write_text(torn)
        assert Journal(path, {"K": 4}).add("x", {"value": 1}) == Journal(path, {"K": 4}).get("x")
        path.unlink()


# The whole.


def test_methods_are_what_their_labels_say():
    built = {name: method.build({}, K=4) for name, method in METHODS.items()}
    assert built["wrmf_plain"].reg_exponent == 0 != built["wrmf"].reg_exponent
    assert built["rgx_gramian"].loss.form == "gramian" != built["rgx"].loss.form
    assert max(METHODS["rgx_gramian"].ladders["beta"]) < 1 == max(METHODS["rgx"].ladders["beta"])
    for name, method in METHODS.items():
        assert method.seeded == (name not in ("ease", "popularity")), name
        assert method.stops == (method.family in ("ALS", "SGD")), name
        if method.family == "SGD":
            assert built[name].score == (
                "dot" if name.endswith("_dot") or "dot" in method.label else "cosine"
            )
            assert built[name].score == "cosine" or built[name].temperature == 1
    start = Method("a", "a", "x", None, {"reg": (1, 2, 3)}, {"reg": 1}, rule=lambda train, K: {"reg": K})
    assert start.start_for(None, 3) == {"reg": 3}, "what follows from the data goes before"


def test_every_method_can_be_built_and_its_start_is_on_its_ladders():
    X = as_csr(make_implicit(200, 100, random_state=0).matrix)
    for method in METHODS.values():
        start = method.start_for(X, 3)
        assert set(start) == set(method.ladders)
        for name, ladder in method.ladders.items():
            assert list(ladder) == sorted(set(ladder)) and ladder[0] <= start[name] <= ladder[-1]
        model = method.build(start, K=3, n_jobs=1, random_state=0)
        assert model.get_params().get("K", 3) == 3 and model.get_params()["n_jobs"] == 1
    with pytest.raises(ParameterError, match="'svd'"):
        get_methods("rg2,svd")
    with pytest.raises(ParameterError, match="once"):
        get_methods("rg2,rg2")
    with pytest.raises(
        InputTypeError, match=r"not ndarray; the interactions come first: compare\(X, methods\)"
    ):
        compare(["rg2"], np.eye(3))


def test_split_keeps_a_given_test_part(data):
    split = np.zeros(data.nnz, np.int8)
    split[::5] = 1
    marked = data.replace(split=split)
    parts = prepare(marked)
    np.testing.assert_array_equal(parts.test.to_scipy().toarray() > 0, marked.test.toarray() > 0)
    together = parts.train.to_scipy() + parts.validation.to_scipy() + parts.test.to_scipy()
    np.testing.assert_array_equal(together.toarray() > 0, data.matrix.toarray() > 0)
    assert parts.train.nnz > 5 * parts.validation.nnz > 0
    smaller = prepare(data, core=10)
    assert smaller.train.shape < parts.train.shape


def test_a_threshold_holds_for_interactions_as_for_a_file(tmp_path):
    rated = make_implicit(120, 80, mean_interactions=20, valued=True, timestamps=True, random_state=3)
    rated.save(tmp_path / "rated.npz")
    from_file, given = (prepare(one, min_value=2) for one in (tmp_path / "rated.npz", rated))
    assert 0 < from_file.train.nnz < 0.75 * rated.nnz and from_file.train.is_binary
    for part in ("train", "validation", "test"):
        one, other = getattr(from_file, part).to_scipy(), getattr(given, part).to_scipy()
        assert (one != other).nnz == 0


def test_a_sample_of_users_can_be_watched(data):
    split = prepare(data)
    users = np.flatnonzero(split.validation.row_counts)
    some = some_users(split.validation, 40)
    kept = np.flatnonzero(some.row_counts)
    assert len(users) > 60 and len(kept) == 40
    whole = split.validation.to_scipy().toarray()
    np.testing.assert_array_equal(some.to_scipy().toarray()[kept], whole[kept])
    for most in (None, len(users)):
        np.testing.assert_array_equal(some_users(split.validation, most).to_scipy().toarray(), whole)
    whole[::2] *= -1  # who likes nothing is not among them
    liked = some_users(as_csr(whole, dislikes=True), 20).row_counts
    assert np.count_nonzero(liked) == np.count_nonzero(liked[1::2]) == 20
    with pytest.raises(ParameterError, match="validation_users"):
        Effort(validation_users=0)


def test_a_comparison_from_one_call(data, tmp_path):
    result = compare(data, "rg2,bpr", out=tmp_path, name="made up <data>", **OPTIONS)
    assert {row.method for row in result.rows} == {"rg2", "bpr"}
    for row in result.rows:
        assert len(row.curves) == 2 and 0 < row.test["mrr@10"][0] <= 1 and 0 < row.test["ndcg@10"][0] <= 1
        for curve in row.curves:
            assert (np.diff([seconds for seconds, _ in curve]) > 0).all()
    assert result.best == max(row.validation[0] for row in result.rows)
    leader = max(result.rows, key=lambda row: row.validation[0])
    assert leader.seconds_to[0.95] <= leader.seconds_to[0.99]
    assert set(result.objectives) >= {"RG2 (ALS)"} and len(result.objectives) == 2
    assert (np.diff(result.objectives["RG2 (ALS)"]["objective"]) <= 1e-9).all(), "ALS never rises"
    text = result.text()
    assert (
        "RG2 (ALS)" in text
        and "BPR, cosine (SGD)" in text
        and f"{result.rows[0].test['ndcg@10'][0]:.4f}" in text
    )
    table = [line for line in result.markdown().splitlines() if line.startswith("| BPR")]
    assert len(table) == 2 and table[0].count("|") == result.markdown().splitlines()[2].count("|")
    assert f"{result.against()['bpr'].corrected:.2g}" in table[1]
    page = (tmp_path / "report.html").read_text()
    assert "made up &lt;data&gt;" in page and "<svg" in page and "</html>" in page
    assert f"{result.rows[0].test['mrr@10'][0]:.4f}" in page
    loaded = re.findall(r"(?:src|href)\s*=\s*['\"]([^'\"#]+)", page)
    assert not loaded and "<script" not in page and "@import" not in page, "nothing comes from elsewhere"
    assert (tmp_path / "convergence.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    for line in (tmp_path / "results.jsonl").read_text().splitlines():
        assert "key" in json.loads(line)


@pytest.mark.few(0)
def test_an_interrupted_comparison_resumes(data, tmp_path, monkeypatch, undrawn):
    """Stopped in the middle and started again, it fits exactly what was missing."""
    fits = []
    whole = Runner._fit

    def counting(self, method, params, seed):
        fits.append((method.name, tuple(params.items()), seed))
        if len(fits) == stop_at:
            raise KeyboardInterrupt
        return whole(self, method, params, seed)

    monkeypatch.setattr(runner_module.Runner, "_fit", counting)
    stop_at = 5
    with pytest.raises(KeyboardInterrupt):
        compare(data, "rg2,bpr", out=tmp_path, **OPTIONS)
    stop_at = -1
    first = len(fits)
    result = compare(data, "rg2,bpr", out=tmp_path, **OPTIONS)
    pieced = fits[: first - 1] + fits[first:]
    fits.clear()
    compare(data, "rg2,bpr", out=tmp_path / "at once", **OPTIONS)
    assert pieced == fits, "what was finished is not done again, what was interrupted is"
    before = len(fits)
    again = compare(data, "rg2,bpr", out=tmp_path, **OPTIONS)
    assert len(fits) == before and again == result
    with pytest.raises(InputError, match="other settings"):
        compare(data, "rg2", out=tmp_path, **{**OPTIONS, "K": 5})


def test_a_folder_is_of_its_data_and_effort(data, tmp_path, undrawn):
    split = prepare(data)

    def run(one=split, **changes):
        return compare(one, "popularity", out=tmp_path, **with_effort(**changes))

    run()
    turned = Split(split.train, split.test, split.validation)
    for what, again in (
        ("data", lambda: run(turned)),
        ("patience", lambda: run(patience=2)),
        ("objective_iterations", lambda: run(objective_iterations=9)),
        ("validation_users", lambda: run(validation_users=30)),
        ("metric", lambda: compare(split, "popularity", out=tmp_path, metric="mrr@10", **OPTIONS)),
    ):
        with pytest.raises(InputError, match=rf"other settings \(.*{what}"):
            again()
    assert run().rows


def test_a_watched_sample_and_a_patience_are_heeded(data):
    """Validation is that of the sample; fits end so many iterations after their best one."""
    split, sample = prepare(data), 40
    effort = Effort(max_trials=0, patience=2, validation_users=sample, objective_iterations=0)
    how = {"K": 4, "seeds": 1, "effort": effort, "verbose": 0}
    methods = {"rg2": "rg2", "bpr": "bpr", "own": RGALS(4, n_iter=25, random_state=0), "ease": EASE(20.0)}
    result = compare(split, methods, **how)
    rows = {row.method: row for row in result.rows}
    assert result.setting["validation_users"] == sample
    for name in ("rg2", "bpr"):
        figures = [value for _, value in rows[name].curves[0]]
        assert len(figures) - 1 - int(np.argmax(figures)) == 2, name
    assert len(rows["own"].curves[0]) == 25, "as it is"
    short = dataclasses.replace(effort, time_limit=1e-9)
    assert len(compare(split, "rg2", **{**how, "effort": short}).rows[0].curves[0]) == 1
    some = some_users(split.validation, sample)
    for name, model in (("own", methods["own"]), ("ease", methods["ease"])):
        figure = evaluate(model.fit(split.train.to_scipy()), split.train, some)["ndcg@10"]
        assert rows[name].curves[0][-1][1] == pytest.approx(figure, rel=1e-6)


def test_objectives_are_exact_and_twice_as_long_by_least_squares():
    """In double precision, of the values as they are weighed, to the last iteration."""
    valued = make_implicit(100, 60, valued=True, random_state=0)
    split = prepare(valued)
    assert not split.train.is_binary
    effort = Effort(max_trials=0, patience=1, objective_iterations=8)
    result = compare(split, "rg2", values="log1p", **{**OPTIONS, "seeds": 1, "effort": effort})
    params = result.rows[0].params
    kept = []
    model = RGALS(
        4, RG2(alpha=params["alpha"]), reg=params["reg"], n_iter=16, values="log1p", dtype="float64"
    )
    model.set_params(random_state=0).fit(
        split.train.to_scipy(), callbacks=lambda now: kept.append(now.objective)
    )
    assert len(kept) == 16
    np.testing.assert_allclose(result.objectives["RG2 (ALS)"]["objective"], kept, rtol=1e-9)
    assert max(len(found["objective"]) for label, found in result.objectives.items() if "grad" in label) == 8
    own = RGALS(4, n_iter=3, early_stopping=True, patience=1)
    result = compare(split, {"own": own}, values="log1p", **{**OPTIONS, "seeds": 1, "effort": effort})
    assert len(result.objectives["own"]["objective"]) == 16, "without early stopping"


def test_by_gradient_the_objective_is_that_of_least_squares(tmp_path, monkeypatch):
    split = prepare(make_implicit(100, 60, valued=True, random_state=0))
    metrics = tuple(parse_all(["ndcg@10"]))
    runner = Runner(split, get_methods("rg2"), tmp_path, 4, 1, metrics, EFFORT, "log1p", None, 0)
    U, V = np.random.default_rng(0).random((2, 100, 4))
    now, asked = SimpleNamespace(user_factors=U, item_factors=V[:60], seconds=1.0), []

    def recorded(model, X, record):
        asked.append(X)
        return [record(now)], ""

    monkeypatch.setattr(runner, "_recorded", recorded)
    found = runner._gradient_objective({"alpha": 0.1, "reg": 0.05}, 0.01)
    weighted = Weighting.of("log1p", split.train).rows(split.train)
    np.testing.assert_array_equal(asked[0].values, weighted.values)
    assert found["objective"] == [RG2(alpha=0.1).objective(weighted, U, V[:60], 0.05, 1.0)]


@pytest.mark.few(0)
def test_tuning_can_be_done_beforehand_with_other_threads_and_times_come_from_one_machine(
    data, tmp_path, undrawn
):
    """Timed runs follow in a second call; they do not mix with runs of other threads."""
    first = compare(data, "rg2,bpr", out=tmp_path, n_jobs=1, **with_effort(tune_only=True))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results.jsonl"]
    keys = [json.loads(line)["key"] for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [key for key in keys if key.startswith("tuned")] == ["tuned rg2", "tuned bpr"]
    assert not any(key.startswith(("run", "objective", "timing")) for key in keys)
    assert [row.tuning["best"] for row in first.rows] == sorted(r.tuning["best"] for r in first.rows)[::-1]
    table = first.text()
    assert all(f"{row.tuning['best']:.4f}" in table for row in first.rows) and "test" not in table
    result = compare(data, "rg2,bpr", out=tmp_path, n_jobs=2, **OPTIONS)
    again = [json.loads(line)["key"] for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert again[: len(keys)] == keys, "nothing is tuned twice"
    assert not any(key.startswith(("trial", "tuned")) for key in again[len(keys) :])
    assert result.setting["machine"]["threads"] == 2 and all(row.cpu_share > 0 for row in result.rows)
    with pytest.raises(InputError, match="timed otherwise .*threads: 2 then, 1 now"):
        compare(data, "rg2,bpr", out=tmp_path, n_jobs=1, **OPTIONS)
    with pytest.raises(InputError, match=r"time_limit: 5\.0 then, 6\.0 now"):
        compare(data, "rg2,bpr", out=tmp_path, n_jobs=2, **with_effort(time_limit=6.0))


def test_tuning_goes_on_where_its_trials_ran_out(data, tmp_path, undrawn):
    def keys():
        lines = (tmp_path / "results.jsonl").read_text().splitlines()
        return [key for key in (json.loads(line)["key"] for line in lines) if key.startswith("trial")]

    def tuned(most):
        return compare(data, "rg2", out=tmp_path, **with_effort(tune_only=True, max_trials=most)).rows[0]

    small = tuned(1)
    assert len(keys()) == 1 and not small.tuning["finished"]
    larger = tuned(4)
    assert len(keys()) == len(set(keys())) == larger.tuning["trials"] > 1
    assert larger.tuning["best"] >= small.tuning["best"]
    again = tuned(2)
    assert again == larger and len(keys()) == larger.tuning["trials"], "a smaller budget undoes nothing"


def test_tuning_of_als_starts_from_the_rule():
    margins = Degrees.even(20_000, 30_000, 1_000_000), 256
    start = METHODS["ials"].start_for(*margins)
    expected = rule(IALS, *margins)
    assert start == {"alpha0": expected["alpha0"], "reg": expected["reg"]}
    assert METHODS["rgx"].start_for(*margins)["beta"] == 0.9
    tried = []
    method = METHODS["ials"]
    climb(method, 1, lambda params: tried.append(params) or 0.0, {"alpha0": 0.012, "reg": 0.025})
    assert tried == [{"alpha0": 0.01, "reg": 0.03}], "the nearest rungs, by ratio"


def test_tuning_of_sgd_starts_from_its_rule():
    margins = Degrees.even(20_000, 30_000, 1_000_000), 256
    for name, method in METHODS.items():
        if method.family != "SGD":
            continue
        model = method.build({}, K=256, random_state=0)
        said, start = setting(model.set_params(early_stopping=False), margins[0]), method.start_for(*margins)
        assert start.keys() == method.ladders.keys(), name
        assert start["lr"] == pytest.approx(said["lr"] * model.init_scale / 0.1), name
        if "temperature" in start:
            assert start["temperature"] == said["temperature"], name
    # Random factors of 0.1 are larger than what sparsemax wants to tell apart.
    assert METHODS["sparsemax_dot"].build({}, K=4).init_scale == 0.01
    ridge = METHODS["softmax_dot"].start_for(*margins)
    assert ridge["weight_decay"] == pytest.approx(0.6 * rule(RG2, *margins)["reg"])
    matrix = as_csr(make_implicit(200, 100, random_state=0).matrix)
    same = METHODS["softmax"].start_for(matrix, 16)
    assert same == METHODS["softmax"].start_for(Degrees.of(matrix), 16)


def test_a_start_of_ones_own_is_where_tuning_begins(data, tmp_path):

    def found_from(start, methods="bpr"):
        options = with_effort(max_trials=0, tune_only=True, start=start)
        return compare(data, methods, out=tmp_path, **options)

    start = {"ials": {"alpha0": 0.3}, "bpr": {"lr": 0.1, "temperature": 0.5}}
    result = found_from(start, "ials,bpr")
    assert result.text().count("not tuned") == 2
    assert '"trial ' not in (tmp_path / "results.jsonl").read_text()
    found = {row.method: row.params for row in result.rows}
    assert found["ials"]["alpha0"] == 0.3 and found["bpr"] == {"lr": 0.1, "temperature": 0.5}
    before = (tmp_path / "results.jsonl").read_bytes()
    found_from(start, "ials,bpr")
    assert (tmp_path / "results.jsonl").read_bytes() == before
    other = found_from({"bpr": {"lr": np.float32(0.25)}}).rows[0].params
    assert other["lr"] == 0.25 and other["temperature"] != 0.5, "the start of this call, not that of the last"
    given = found_from({"ials": {"alpha0": 0.29, "reg": 0}}, "ials").rows[0].params
    assert given == {"alpha0": 0.29, "reg": 0}, "without trials not the nearest rungs"
    with pytest.raises(ParameterError, match=r"start of bpr='reg'.*choose one of 'temperature', 'lr'"):
        found_from({"bpr": {"reg": 1}})
    with pytest.raises(ParameterError, match="start of bpr: lr=-1"):
        found_from({"bpr": {"lr": -1}})
    with pytest.raises(ParameterError, match="'brp'"):
        found_from({"brp": {"lr": 1}})


@pytest.mark.few(0)
def test_a_method_that_diverges_is_reported_and_does_not_stop_the_rest(data, tmp_path, monkeypatch):
    wild = METHODS["softmax_dot"]
    broken = Method(
        "bpr",
        "BPR (SGD)",
        "SGD",
        lambda params, **common: wild.build({"lr": 1e30, "weight_decay": 0.1}, **common).set_params(
            optimizer="sgd"
        ),
        {"lr": (1.0, 2.0)},
        {"lr": 1.0},
        stops=True,
    )
    monkeypatch.setitem(METHODS, "bpr", broken)
    result = compare(data, "rg2,bpr", out=tmp_path, **OPTIONS)
    rows = {row.method: row for row in result.rows}
    assert result.rows[-1] is rows["bpr"], "what has no figure comes last"
    assert rows["bpr"].errors and "diverged" in rows["bpr"].errors[0] and not rows["rg2"].errors
    assert "diverged" in result.text() and "Runs that failed" in (tmp_path / "report.html").read_text()


class Late(RGALS):
    """Solves nothing in double precision, in which the objective is followed."""

    def fit(self, X, y=None, **options):
        if self.dtype == "float64":
            raise NumericalError("row 3 is not positive definite")
        return super().fit(X, y, **options)


def test_an_objective_that_cannot_be_followed_is_reported_and_does_not_stop_the_rest(data):
    effort = Effort(objective_iterations=8)
    methods = {"late": Late(4, n_iter=2), "als": RGALS(4, n_iter=2)}
    result = compare(data, methods, seeds=1, effort=effort, verbose=0)
    rows = {row.method: row for row in result.rows}
    assert rows["late"].errors == ["row 3 is not positive definite"] and not rows["als"].errors
    assert rows["late"].test["ndcg@10"] == rows["als"].test["ndcg@10"]
    assert list(result.objectives) == ["als"] and "diverged" not in result.text()
    alone = compare(data, {"late": Late(4, n_iter=2, dtype="float64")}, seeds=1, effort=effort, verbose=0)
    assert not alone.rows[0].curves and "diverged" in alone.text()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw(alone).canvas.draw()


def test_only_the_tuned_rg2_is_followed_by_gradient(data):
    """Another method may have its name, and no alpha, or another objective."""
    for other in (RGALS(4, n_iter=2), RG2(item_exponent=-0.4)):
        result = compare(data, {"rg2": other}, **{**with_effort(max_trials=0), "seeds": 1})
        assert list(result.objectives) == ["rg2"]


def test_bad_requests_are_refused_before_anything_is_written(data, tmp_path):
    for wrong in ({"max_trials": -1}, {"time_limit": 0}, {"patience": 0}, {"objective_iterations": 7}):
        with pytest.raises(ParameterError, match=next(iter(wrong))):
            Effort(**wrong)
    for start in ({"ials": 0.1}, ["ials"]):
        with pytest.raises(InputError, match="start=.*'reg': 0.1"):
            compare(data, "ials", effort=Effort(start=start))
    for wrong in (
        {"methods": "svd"}, {"seeds": 0}, {"K": 0}, {"metric": "ndgc@10"}, {"protocol": "mine"},
        {"metric": "dislike_rate@10"}, {"metric": "gini@5"}, {"protocol": 5},
    ):  # fmt: skip
        with pytest.raises(ParameterError, match=next(iter(wrong))):
            compare(data, **{"methods": "rg2", **OPTIONS, **wrong}, out=tmp_path / "new")
    for wrong in ({"max_trials": 1}, Effort):
        with pytest.raises(InputTypeError, match=r"effort is a \w+: write effort=Effort"):
            compare(data, "rg2", effort=wrong, out=tmp_path / "new")
    with pytest.raises(InputError, match="too small"):
        compare(read_interactions(([1, 2], [1, 2])), "rg2", out=tmp_path / "new", **OPTIONS)
    assert not (tmp_path / "new").exists()
