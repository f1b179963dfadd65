"""RGALSCV finds settings, says what they gained, resumes, and is then a fitted RGALS in every respect."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from rgals import (
    IALS,
    RG2,
    RGALS,
    RGALSCV,
    WRMF,
    HardNegatives,
    InsufficientMemoryError,
    Positions,
    ValuesWarning,
)
from rgals.baselines import EASE
from rgals.datasets import Interactions, make_implicit
from rgals.losses import Degrees, rule
from rgals.metrics import evaluate
from rgals.model_selection import Protocol, Search, cv, split_interactions, tune
from rgals.model_selection.tuning import engine, halving, space
from rgals.model_selection.tuning import prepared as preparing
from rgals.model_selection.tuning import trials as judging
from rgals.model_selection.tuning.halving import CONFIRM, TOP, Trial
from rgals.model_selection.tuning.prepared import LEAST, fit_cost, judge_cost, split_for_tuning
from rgals.model_selection.tuning.space import Range
from rgals.model_selection.tuning.trials import Choice, Look, beyond_noise, outwards
from rgals.runtime.errors import InputError, InputTypeError, NumericalError, ParameterError
from rgals.sgd import SGDRanker
from rgals.solvers.readout import readout_scale

OPTIONS = {"K": 6, "budget": 2, "n_iter": 6, "n_splits": 2, "random_state": 0}
SHORT = {**OPTIONS, "budget": 0.5}  # the fewest settings, and none with hard negatives


@pytest.fixture(scope="module")
def data():
    data = make_implicit(150, 100, n_clusters=5, mean_interactions=14, random_state=3)
    assert len(np.unique(np.diff(data.matrix.indptr))) > 5
    return data


@pytest.fixture(scope="module")
def model(data):
    return RGALSCV(loss=["rg2", "ials"], **{**SHORT, "n_splits": "auto"}).fit(data)


@parametrize_with_checks([RGALSCV(K=3, budget=0.5, n_iter=2, n_splits=2)])
@pytest.mark.filterwarnings("ignore")
@pytest.mark.few(8)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


# What it is afterwards.


def test_it_is_the_model_that_its_parameters_fit(model, data):
    assert isinstance(model, RGALS)
    again = RGALS(**model.best_params_, random_state=0).fit(data)
    assert again.fingerprint() == model.fingerprint() == model.best_estimator_.fingerprint()
    assert model.seen_.nnz == data.matrix.nnz and np.array_equal(model.item_ids_, data.item_ids)
    np.testing.assert_array_equal(model.transform(data.matrix), model.user_factors_)
    assert {"K", "loss", "reg", "n_iter", "readout_exponent"} <= set(model.best_params_)
    assert model.recommend(Positions([0, 1]), n=4)[0].shape == (2, 4) and model.K == 6


def test_its_file_is_one_of_rgals(model, data, tmp_path):
    model.save(tmp_path / "model.npz")
    for kind in (RGALS, RGALSCV):
        loaded = kind.load(tmp_path / "model.npz")
        assert type(loaded) is RGALS and loaded.fingerprint() == model.fingerprint()
        assert loaded.readout_exponent == model.best_params_["readout_exponent"]


def test_it_is_updated_as_any_model(model, data):
    grown = pickle.loads(pickle.dumps(model))
    row = data.matrix[[7]]
    grown.partial_fit_users(row, ["somebody"])
    assert grown.user_factors_.shape == (151, 6) and grown.best_estimator_.user_factors_.shape == (151, 6)
    np.testing.assert_allclose(grown.user_factors_[150], model.user_factors_[7], rtol=1e-4, atol=1e-5)
    assert grown.cv_results_.keys() == model.cv_results_.keys() and "found" in repr(grown)
    assert evaluate(model, data.matrix, data.matrix[:, ::-1])["ndcg@10"] > 0
    searched = RGALSCV(**{**SHORT, "n_iter": 2}).partial_fit(data.matrix[:40])  # was asked for features
    assert searched.user_factors_.shape == (40, 6) and len(searched.cv_results_["params"])


def test_parameters_are_those_of_an_estimator(data):
    model = RGALSCV(loss=[RG2(), "ials"], budget=3, random_state=1)
    again = clone(model)
    assert again.get_params()["budget"] == 3 and again.set_params(K=8).K == 8
    with pytest.raises(NotFittedError):
        _ = again.best_estimator_
    pipeline = Pipeline([("same", FunctionTransformer()), ("model", RGALSCV(**SHORT))])
    assert pipeline.fit_transform(data.matrix).shape == (150, 6)
    assert len(cross_val_score(RGALS(K=6, n_iter=3), data.matrix, cv=3)) == 3
    # Notebooks, pipelines and searches ask for the tags: several losses ended in an InputTypeError.
    assert "RGALSCV" in model._repr_html_() and model.__sklearn_tags__().input_tags.positive_only
    several = [IALS(dislikes=True), WRMF(dislikes=True)]
    assert not RGALSCV(loss=several).__sklearn_tags__().input_tags.positive_only


# What it found.


def test_results_are_those_of_a_search_in_scikit_learn(model):
    found = model.cv_results_
    n = len(found["params"])
    assert n > 8 and all(len(column) == n for column in found.values())
    assert set(found["param_loss"]) == {"rg2", "ials"} and model.n_splits_ == 8
    splits = np.stack([found[f"split{k}_test_score"] for k in range(8)], 1)
    np.testing.assert_allclose(np.nanmean(splits, axis=1), found["mean_test_score"], rtol=1e-12)
    assert (np.isnan(splits).sum(axis=1) == 4).all(), "half of the parts search, the others confirm"
    top = found["level"] == found["level"].max()
    assert found["rank_test_score"][top].max() == top.sum() and found["rank_test_score"].min() == 1
    assert found["level"][model.best_index_] == TOP + 1
    assert found["params"][model.best_index_]["loss"].name == model.best_params_["loss"].name
    assert RGALS(**found["params"][0]).K == 6


@pytest.mark.parametrize(("metric", "n_splits"), [("ndcg@10", 1), ("ndcg@10", 2), ("coverage@5", 2)])
def test_the_row_of_a_rule_that_is_kept_is_as_it_is_taken(metric, n_splits):
    """Without the read-out and with all iterations, whatever its fit was best with."""
    fixed = {"reg": 0.2, "user_exponent": 0.0, "item_exponent": 0.0, "hard_negatives": 0.0}
    fixed |= {"readout_exponent": [0.0, 0.3]}
    settings = {"loss": RG2(alpha=1.0), "space": fixed, "metric": metric, "n_splits": n_splits}
    X = make_implicit(120, 60, mean_interactions=12, random_state=0).matrix
    model = RGALSCV(K=4, budget=1, n_iter=2, **settings, random_state=0).fit(X)
    found, at = model.cv_results_, model.best_index_
    taken = {name: found["params"][at][name] for name in ("K", "n_iter", "readout_exponent", "reg")}
    assert taken == {name: model.best_params_[name] for name in taken}
    splits = [found[f"split{k}_test_score"][at] for k in range(n_splits)]
    assert found["mean_test_score"][at] == pytest.approx(model.best_score_, rel=1e-12)
    assert np.nanmean(splits) == pytest.approx(model.best_score_, rel=1e-12)


def test_the_parts_of_a_kept_rule_have_the_users_that_they_judge():
    """With dislikes, parts judge different numbers of users; the row took them for equally many."""
    X = make_implicit(60, 40, mean_interactions=6, random_state=0).matrix.astype(float)
    X.data[::3] = -1
    fixed = {"reg": 0.2, "user_exponent": 0.0, "item_exponent": 0.0, "readout_exponent": [0.0, 0.3]}
    loss = IALS(alpha0=0.1, dislikes=True)
    model = RGALSCV(4, loss, budget=1, n_iter=2, space=fixed, n_splits=4, random_state=0).fit(X)
    others = split_for_tuning(X, None, None, 4, 10_000, 0).others
    assert len({len(split.users) for split in others}) == 2 and model.gain_ == 0
    found, at = model.cv_results_, model.best_index_
    for k, split in enumerate(others, start=2):
        fit = RGALS(**found["params"][at], random_state=0).fit(split.train)
        figure = evaluate(fit, split.told, split.hidden)["ndcg@10"]
        assert found[f"split{k}_test_score"][at] == pytest.approx(figure, rel=1e-6)


def test_a_wrong_validation_is_named(data):
    with pytest.raises(InputTypeError, match="validation must be a matrix or a frame"):
        RGALSCV(K=4).fit(data, validation=5)


def test_the_rule_is_among_the_candidates_and_what_was_gained_is_said(data, capsys):
    model = RGALSCV(verbose=1, space={"n_iter": 6}, **{**SHORT, "n_splits": 4}).fit(data.matrix)
    found = model.cv_results_
    prepared = split_for_tuning(data.matrix, None, None, 4, 10_000, 0)
    known = rule(RG2(), prepared.splits[0].train, 6)
    first = int(np.flatnonzero(found["level"] == TOP)[0])
    assert found["param_alpha"][first] == pytest.approx(known["alpha"], rel=1e-2)
    # Of the fit of another part, where the rule says a little else.
    assert found["param_reg"][first] == pytest.approx(known["reg"], rel=5e-2)
    assert found["param_item_exponent"][first] == pytest.approx(known["item_exponent"], abs=0.02)
    plain = [
        evaluate(RGALS(6, n_iter=6, random_state=0).fit(s.train), s.told, s.hidden)["ndcg@10"]
        for s in prepared.others
    ]
    assert model.best_score_ / (1 + model.gain_) == pytest.approx(np.mean(plain), rel=1e-3)
    said = capsys.readouterr().err
    assert "RGALSCV: " in said and "K=6: a fit needs about" in said


@pytest.mark.few(0)
def test_the_budget_is_kept(data):
    for budget in (3, 8):
        found = RGALSCV(K=16, budget=budget, n_splits=2, random_state=0).fit(data.matrix).cv_results_
        assert found["cost"].sum() + 1 <= budget
    costs = [fit_cost(split.train, 64, 16) for split in split_for_tuning(data, None, None, 1, None, 0).splits]
    assert 0 < costs[0] < LEAST and judge_cost(10, 100, 64) < judge_cost(20, 100, 64)


def test_an_own_validation_part_judges_and_is_fitted_in_the_end(data):
    train, validation = split_interactions(data.matrix, (0.8, 0.2), random_state=5)
    model = RGALSCV(metric="recall@20", **SHORT).fit(train, validation=validation)
    assert model.n_splits_ == 1 and model.seen_.nnz == data.matrix.nnz
    first = int(np.flatnonzero(model.cv_results_["level"] == TOP)[0])
    tried = RGALS(**model.cv_results_["params"][first], random_state=0).fit(train)
    figure = evaluate(tried, train, validation, "recall@20")["recall@20"]
    assert model.cv_results_["mean_test_score"][first] == pytest.approx(figure, rel=0.01)


def test_threads_change_no_byte(data):
    one, two = (RGALSCV(n_jobs=n, **OPTIONS).fit(data.matrix) for n in (1, 2))
    assert one.fingerprint() == two.fingerprint() and same(one.cv_results_, two.cv_results_)
    assert "param_hard_negatives" in one.cv_results_


def same(one, two) -> bool:
    """Whether two results agree but for seconds."""
    assert one.keys() == two.keys()
    return all(repr(list(one[name])) == repr(list(two[name])) for name in one if name != "seconds")


# Noise.


def test_noise_is_told_from_a_gain():
    rng = np.random.default_rng(0)
    users = rng.random(1000)
    assert not beyond_noise(users, users) and beyond_noise(users + 0.001, users)
    assert beyond_noise(users + rng.normal(0.05, 1.0, 1000), users)
    assert not beyond_noise(users + rng.normal(-0.01, 1.0, 1000), users)
    assert not beyond_noise(np.where(np.arange(1000) == 3, users + 1, users - 0.0005), users)


class Measured:
    """Stands for a measurement whose figures are given."""

    def __init__(self, fresh):
        self.fresh, self.name, self.loss = fresh, "rg2", RG2()
        self.space = type("Space", (), {"readouts": (0.0, 0.1), "ladder": (4,)})()
        self.prepared = type("Prepared", (), {"whole": None, "others": ["one"]})()

    def again(self, why, params, taken, level):
        users = self.fresh[params["reg"]]
        plain = users if params["reg"] == 1 else None
        return Trial(params, level, users.mean(), taken, users, plain)

    def stops(self, params):
        return 8, 16

    def folds(self, level):
        return [SimpleNamespace(users=self.fresh[1.0])]

    def settings(self, params, matrix, K):
        return dict(params)


@pytest.mark.parametrize(
    ("gain", "fresh_gain", "chosen"), [(0.1, 0.1, 2), (0.0001, 0.0001, 1), (0.1, -0.05, 1)]
)
def test_the_rule_is_left_for_a_gain_that_other_hidden_parts_confirm(gain, fresh_gain, chosen):
    rng = np.random.default_rng(1)
    rule_users, noise = rng.random((2, 400))
    taken = {"n_iter": 8, "readout_exponent": 0.1}
    better = rule_users + gain + 0.3 * (noise - noise.mean())
    fresh = {1: rule_users, 2: rule_users + fresh_gain + 0.3 * (noise - noise.mean())}
    found = [
        Trial({"K": 4, "reg": reg}, TOP, users.mean(), taken, users, plain)
        for reg, users, plain in ((1, rule_users, rule_users), (2, better, None))
    ]
    choice = engine.choose(Measured(fresh), found, 0.0, 3)
    assert choice.params["reg"] == chosen
    assert choice.params["n_iter"] == (8 if chosen == 2 else 16)


def test_a_rule_that_cannot_be_solved_on_the_other_hidden_parts_is_judged_by_the_first(data, monkeypatch):
    """The search ended in a TypeError of numpy."""
    fit, trained = RGALS.fit, split_for_tuning(data, None, None, 2, 10_000, 0).others[0].train

    def fails_on_the_other_part(self, X, *args, **options):
        if X.nnz == trained.nnz:
            raise NumericalError("the system of row 3 is not positive definite")
        return fit(self, X, *args, **options)

    monkeypatch.setattr(RGALS, "fit", fails_on_the_other_part)
    found = tune("ials", data, {"K": 4}, budget=1, search=Search(n_iter=2, repeats=2), refit=False)
    errors = [row["error"] != "" for row in found.trials if row["level"] == CONFIRM]
    assert errors and all(errors) and found.figure > 0


@pytest.mark.parametrize(
    ("top", "asked"), [(0.0, {0, 1, -1}), (2.0, {0, 1, 2, 3}), (-2.0, {0, 1, -1, -2, -3})]
)
def test_exponents_of_the_read_out_are_judged_outwards_while_that_pays(data, monkeypatch, top, asked):
    """A metric that knows the best exponent; the factors of item 0 tell which one they were scaled by."""
    split = split_for_tuning(data, None, None, 1, None, 0).splits[0]
    scales = {e: readout_scale(Degrees.of(split.train), e / 10, np.float64) for e in range(-3, 4)}
    known = {1.0 if scale is None else scale[0]: e for e, scale in scales.items()}

    def figures(factors, split, metric, n_jobs):
        return np.array([-abs(known[factors[1][0, 0]] - top)])

    monkeypatch.setattr(judging, "each_user", figures)
    look = Look(split, "ndcg@10", {1}, None)
    factors = np.ones((150, 1)), np.ones((100, 1))
    look._judge(1, factors)
    for one in factors:
        one[:] = 7  # as a later iteration may
    look.read_out(tuple(e / 10 for e in range(-3, 4)), Degrees.of(split.train))
    assert {round(10 * e) for e in look.scores} == asked


@pytest.mark.parametrize(("patient", "kept", "seen"), [(False, 2, [1, 2, 4]), (True, 2, [1, 2, 4, 8])])
def test_a_fit_ends_where_it_has_become_worse_beyond_noise(data, monkeypatch, patient, kept, seen):
    split = split_for_tuning(data, None, None, 1, None, 0).splits[0]
    noise = np.random.default_rng(0).normal(0, 0.01, 150)
    quality = {1: 0.5, 2: 0.7, 4: 0.6, 8: 0.8}
    if patient:
        quality[8] = 0.65
    asked = []

    def figures(factors, *_):
        asked.append(len(asked))
        return quality[[1, 2, 4, 8][len(asked) - 1]] + noise

    monkeypatch.setattr(judging, "each_user", figures)
    look = Look(split, "ndcg@10", {1, 2, 4, 8}, None)
    look.patient = patient
    model = RGALS(3, n_iter=8, random_state=0).fit(split.train, callbacks=look)
    look.end(model)
    assert list(look.figures) == seen and look.kept == kept
    assert len(model.history_) == seen[-1], "what is worse than the best goes no further"


# K.


@pytest.mark.few(0)
def test_a_larger_k_takes_no_more_iterations_than_were_best(data):
    model = RGALSCV(K=[2, 4], budget=3, n_iter=8, n_splits=2, min_gain=0.0, random_state=0).fit(data)
    found = model.cv_results_
    K, n, level = (found[name] for name in ("param_K", "param_n_iter", "level"))
    first = (K == 2) & (level == TOP)
    best = n[first][np.argmax(found["mean_test_score"][first])]
    assert (K == 4).any() and (n[K == 4] <= best).all()


def test_k_is_doubled_while_that_pays(data):
    options = {"n_splits": 1, "min_gain": 0.3, "random_state": 0}
    model = RGALSCV(K=[2, 4, 8, 16], budget=0.25, n_iter=3, **options).fit(data)
    tried = sorted(set(model.cv_results_["param_K"][model.cv_results_["level"] >= TOP]))
    assert tried[: len(tried)] == [2, 4, 8, 16][: len(tried)] and model.best_params_["K"] in tried
    assert len(tried) < 4 or model.best_params_["K"] >= 8
    small = RGALSCV(K="auto", budget=0.5, n_iter=2, n_splits=2, random_state=0).fit(data)
    assert small.best_params_["K"] == 64, "128 is more than the 100 items"


def test_at_the_k_that_was_climbed_to_one_parameter_moves_at_a_time(data, monkeypatch):
    polished = []

    def polish(*args):
        polished.extend(tried := original(*args))
        return tried

    original = engine.polish
    monkeypatch.setattr(engine, "polish", polish)
    options = {"K": [2, 8], "budget": 0.2, "n_iter": 3, "n_splits": 2, "min_gain": 0.0, "random_state": 0}
    model = RGALSCV(**options).fit(data)
    found, moved = model.cv_results_, [trial.row for trial in polished]
    assert model.best_params_["K"] == 8 and (found["level"][moved] == TOP).all()
    assert len(moved) >= 2
    for k in moved:
        here, *earlier = ({**p["loss"].get_params(), **p} for p in found["params"][k::-1] if p["K"] == 8)
        searched = ("alpha", "reg", "user_exponent", "item_exponent")
        assert here["K"] == 8 and 1 in [sum(here[n] != p[n] for n in searched) for p in earlier]
    assert 0.3 * 0.2 < found["cost"][moved].sum() <= 0.4 * 0.2, "as far as its share goes"


def test_where_k_is_large_the_search_begins_with_a_quarter_of_it(data, monkeypatch):
    monkeypatch.setattr(space, "LEAD", 8)
    short = {"n_iter": 4, "n_splits": 1, "min_gain": 0.0, "random_state": 0, "n_jobs": 1}
    model = RGALSCV([8, 16], loss=["rg2", "ials"], budget=(budget := 1.2), **short).fit(data)
    found = model.cv_results_
    full, n = found["level"] == TOP, found["param_K"].astype(int)
    first = found["param_loss"] == "rg2"
    assert set(n) == {2, 8, 16}
    assert (n[~full] == 2).all() and n[full & first][0] == 2 and n[full & first][-1] >= 8
    assert model.best_params_["K"] >= 8
    # The rule is among what was tried with 8, and costs are in fits with as many.
    train = split_for_tuning(data.matrix, None, None, 1, 10_000, 0).splits[0].train
    alphas = found["param_alpha"][full & first & (n == 8)].astype(float)
    assert len(alphas) > 1 and np.isclose(alphas, rule(RG2(), train, 8)["alpha"], rtol=1e-3).any()
    assert found["cost"][n <= 8].sum() + 1 <= budget + 1e-9


def test_the_k_that_was_asked_for_is_taken_or_refused(data, monkeypatch):
    monkeypatch.setattr(space, "LEAD", 8)
    fit = RGALS.fit

    def full(self, *args, **options):
        if self.K > 4:
            raise InsufficientMemoryError("K=8 needs a palace")
        return fit(self, *args, **options)

    with monkeypatch.context() as patch, pytest.raises(InsufficientMemoryError, match="palace"):
        patch.setattr(RGALS, "fit", full)
        RGALSCV(K=8, budget=1, n_iter=3, n_splits=1, random_state=0).fit(data)
    clock = iter([*np.zeros(6), *np.full(1000, 1e9)])  # the time is over before a fit with all factors
    monkeypatch.setattr(judging.time, "monotonic", lambda: next(clock))
    limited = tune("rg2", data, {"K": 8}, budget=2, search=Search(n_iter=3, time_limit=1.0))
    assert not limited.finished and limited.params["K"] == limited.model.K == 8
    assert {row["params"]["K"] for row in limited.trials} == {2}


def test_a_k_that_does_not_fit_ends_the_ladder(data, monkeypatch):
    fit = RGALS.fit

    def full(self, *args, **options):
        if self.K > 4:
            raise InsufficientMemoryError("K=8 needs a palace")
        return fit(self, *args, **options)

    monkeypatch.setattr(RGALS, "fit", full)
    with pytest.warns(UserWarning, match=r"K=8 does not fit.*palace"):
        model = RGALSCV(K=[4, 8, 16], budget=1, n_iter=3, n_splits=2, min_gain=0.0, random_state=0).fit(data)
    assert model.best_params_["K"] == 4


# Hard negatives.


@pytest.fixture(scope="module")
def sparse():
    return make_implicit(1000, 3000, n_clusters=200, mean_interactions=20, random_state=1)


def test_weights_are_tried_last_and_are_those_of_the_model(sparse):
    model = RGALSCV(K=16, budget=2, n_splits=2, random_state=0).fit(sparse)
    found = model.cv_results_
    weights = found["param_hard_negatives"]
    tried = np.flatnonzero(~np.ma.getmaskarray(weights))
    assert len(tried) >= 3 and (tried == np.arange(len(weights))[-len(tried) :]).all()
    assert (found["level"][tried] == [TOP] * (len(tried) - 1) + [TOP + 1]).all()
    assert found["cost"].sum() + 1 <= 2 and model.gain_ > 0.1
    taken = model.best_params_["hard_negatives"]
    assert model.best_index_ == tried[-1] and taken.weight == weights[-1]
    # As many plain iterations as were best without, and six with draws, but for those that are the most.
    assert model.best_params_["n_iter"] - taken.warmup == 6 and model.best_params_["n_iter"] <= 16
    again = RGALS(**model.best_params_, random_state=0).fit(sparse)
    assert again.fingerprint() == model.fingerprint()
    split = split_for_tuning(sparse, None, None, 2, 10_000, 0).others[0]
    fit = RGALS(**found["params"][tried[-1]], random_state=0).fit(split.train)
    figure = evaluate(fit, split.told, split.hidden, "ndcg@10")["ndcg@10"]
    assert model.best_score_ == pytest.approx(figure, rel=0.01)


@pytest.mark.few(0)
def test_no_weights_are_tried_where_none_are_asked_for_or_paid_for(sparse):
    options = {"K": 8, "n_splits": 2, "random_state": 0}
    for more in (
        {"budget": 4, "space": {"hard_negatives": 0}},
        {"budget": 0.2, "n_iter": 2},
        {"budget": 4, "n_iter": 1},
    ):
        model = RGALSCV(**options, **more).fit(sparse)
        assert "param_hard_negatives" not in model.cv_results_ and "hard_negatives" not in model.best_params_
    both = RGALSCV(loss=["rg2", "ials"], budget=4, space={"ials": {"hard_negatives": 3.0}}, **options)
    listed = both.fit(sparse).cv_results_
    weighed = ~np.ma.getmaskarray(listed["param_hard_negatives"])
    assert len(set(listed["param_loss"][weighed])) == 1, "the best of the losses alone"
    with pytest.raises(ParameterError, match="hard_negatives"):
        RGALSCV(**options, space={"hard_negatives": [1, -1]}).fit(sparse)


def test_one_of_ordered_choices_is_found_outwards():
    for figures, best, asked in (
        ([1, 2, 3, 4, 5], 4, [2, 3, 4]),
        ([1, 2, 3, 2, 9], 2, [2, 3, 1]),
        ([5, 4, 3, 2, 9], 0, [2, 3, 1, 0]),
        ([9, 3, 3, 3, 9], 2, [2, 3, 1]),
    ):
        seen = []

        def judged(at, seen=seen, figures=figures):
            seen.append(at)
            return figures[at]

        assert outwards(judged, range(5), 2) == best and seen == asked


class Weighed:
    """Stands for a measurement with hard negatives: gains by weight and reg, for a cost of 1 each."""

    iterations = 2, 4, 8, 16

    def __init__(self, gains, fresh):
        self.gains, self.fresh, self.asked = gains, fresh, []
        dimensions = {"reg": Range(0.1, 10.0, log=True)}
        self.space = type("Space", (), {"weights": engine.WEIGHTS, "dimensions": dimensions})()
        self.prepared = type("Prepared", (), {"others": ["one"]})()

    def folds(self, level):
        return [SimpleNamespace(users=np.empty(50))]

    def hard_cost(self, params, level):
        return 1.0

    def extra_cost(self, params):
        return 0.25

    def again(self, why, params, taken, level):
        weight, reg = params["hard_negatives"], round(params["reg"], 2)
        self.asked.append((weight, reg, level))
        gain = self.fresh if level == CONFIRM else self.gains.get((weight, reg), -0.2)
        users = np.linspace(0.1, 0.9, 50) + gain
        return Trial(params, level, users.mean(), taken, users, None, len(self.asked), 1.0)


GAINS = {
    (0.5, 1): 0.01,
    (1, 1): 0.02,
    (2, 1): 0.03,
    (4, 1): 0.01,
    (2, 1.7): 0.02,
    (2, 0.6): 0.04,
    (2, 0.36): 0,
}


@pytest.mark.parametrize(
    ("gains", "fresh", "budget", "asked", "taken"),
    [
        # Weights first, then reg beside the best; confirmed on the other part.
        (GAINS, 0.02, 99, [(1, 1), (2, 1), (4, 1), (2, 1.7), (2, 0.6), (2, 0.36)], (2, 0.6)),
        (GAINS, -0.02, 99, [(1, 1), (2, 1), (4, 1), (2, 1.7), (2, 0.6), (2, 0.36)], None),
        # The budget of two settings, and of what confirms them.
        (GAINS, 0.02, 3.25, [(1, 1), (2, 1)], (2, 1)),
        (GAINS, 0.02, 2.2, [], None),
        # Downwards where 1 is too much, and nothing where 0 is best.
        (
            {(1, 1): -0.01, (0.5, 1): 0.01},
            0.02,
            99,
            [(1, 1), (2, 1), (0.5, 1), (0.5, 1.7), (0.5, 0.6)],
            (0.5, 1),
        ),
        ({}, 0.02, 99, [(1, 1), (2, 1), (0.5, 1)], None),
    ],
)
def test_weights_are_searched_within_the_budget(gains, fresh, budget, asked, taken):
    measure, users = Weighed(gains, fresh), np.linspace(0.1, 0.9, 50)
    taken_without = {"n_iter": 4, "readout_exponent": 0.1}
    without = Trial({"reg": 1.0, "K": 4}, TOP, users.mean(), taken_without, users)
    confirmed = replace(without, level=TOP + 1)
    found = engine.try_weights(Choice(measure, without, confirmed, 0.5), budget)
    assert [one[:2] for one in measure.asked if one[2] == TOP] == asked
    if taken is None:
        assert found is None
        return
    assert (found.params["hard_negatives"], found.params["reg"]) == taken and found.params["n_iter"] == 4 + 6
    assert measure.asked[-1] == (*taken, CONFIRM) and found.taken["readout_exponent"] == 0.1


def test_no_weights_are_tried_where_nothing_was_confirmed():
    measure, users = Weighed(GAINS, 0.02), np.linspace(0.1, 0.9, 50)
    without = Trial({"reg": 1.0, "K": 4}, TOP, users.mean(), {"n_iter": 4, "readout_exponent": 0.0}, users)
    assert engine.try_weights(Choice(measure, without, without, 0.5), 99) is None and not measure.asked


@pytest.mark.parametrize(("n_iter", "warmup"), [(16, 10), (12, 6), (5, 3), (1, 1)])
def test_hard_negatives_are_drawn_in_the_last_six_iterations_or_half_of_all(n_iter, warmup):
    found = judging.of_estimator(RG2(), {"n_iter": n_iter, "hard_negatives": 2.0, "alpha": 0.1})
    assert found["hard_negatives"].warmup == warmup and found["loss"].alpha == 0.1


@pytest.mark.parametrize(
    ("n_iter", "stops"), [(16, (2, 4, 8, 16)), (6, (1, 2, 3, 6)), (9, (2, 3, 5, 9)), (1, (1,))]
)
def test_full_fits_are_judged_after_an_eighth_a_quarter_a_half_and_all_iterations(n_iter, stops):
    like = SimpleNamespace(common={"n_iter": n_iter}, space=SimpleNamespace(stops=()))
    assert judging.Measurement.iterations.fget(like) == stops


def test_a_fit_with_hard_negatives_costs_more(sparse):
    split = split_for_tuning(sparse, None, None, 1, None, 0).splits[0]
    plain, hardened = (fit_cost(split.train, 64, 10, weight) for weight in (0.0, 1.0))
    assert plain < hardened < 40 * plain


def test_hard_negatives_that_do_not_fit_are_left_out(sparse, monkeypatch):
    fit = RGALS.fit

    def full(self, *args, **options):
        if isinstance(self.hard_negatives, HardNegatives):
            raise InsufficientMemoryError("lists need a palace")
        return fit(self, *args, **options)

    monkeypatch.setattr(RGALS, "fit", full)
    with pytest.warns(UserWarning, match="palace"):
        model = RGALSCV(K=16, budget=2, n_splits=2, random_state=0).fit(sparse)
    assert "hard_negatives" not in model.best_params_


# Large and small data.


@pytest.mark.parametrize(
    ("nnz", "parts"), [(99_999, 8), (100_000, 3), (299_999, 3), (300_000, 2), (599_999, 2), (600_000, 1)]
)
def test_the_number_of_hidden_parts_follows_the_data(nnz, parts, monkeypatch):
    class AskedError(Exception):
        pass

    def asked(*given):
        raise AskedError(*given[3:])

    monkeypatch.setattr(cv, "split_for_tuning", asked)
    starts = np.minimum(np.arange(0, nnz + 1000, 1000), nnz)
    X = sp.csr_array((np.ones(nnz, np.float32), np.arange(nnz) % 1000, starts))
    for n_splits, expected in (("auto", parts), (5, 5)):
        with pytest.raises(AskedError) as given:
            RGALSCV(4, n_splits=n_splits, validation_users=77, random_state=9).fit(X)
        assert given.value.args == (expected, 77, 9, {"user_features": None, "item_features": None})


def test_the_table_of_a_search_by_hand():
    """Full fits rank before cheap ones, confirmed ones first; of equal ones both have the better place."""
    made = [
        (0, 0.9, [0.8, 1.0]),
        (2, 0.3, [0.2, 0.4]),
        (2, 0.5, [0.5, 0.5]),
        (3, 0.1, [0.0, 0.2]),
        (2, 0.3, [0.3, 0.3]),
        (-1, 0.7, [0.7]),  # of half-lives, judged by the newest interactions
    ]
    row = {"loss": "rg2", "params": {"K": 4}, "cost": 1.0, "seconds": 2.0}
    rows = [{**row, "level": level, "auc": figure, "splits": splits} for level, figure, splits in made]
    found = cv.results(rows, "auc", {"rg2": RG2()}, 4)
    assert found["rank_test_score"].tolist() == [5, 3, 2, 1, 3, 6]
    splits = np.stack([found[f"split{k}_test_score"] for k in range(4)], axis=1)
    nan = np.nan
    np.testing.assert_array_equal(splits[:2], [[0.8, 1.0, nan, nan], [0.2, 0.4, nan, nan]])
    np.testing.assert_array_equal(splits[3], [nan, nan, 0.0, 0.2])
    np.testing.assert_array_equal(splits[5], [nan] * 4)
    np.testing.assert_allclose(found["std_test_score"], [0.1, 0.1, 0.0, 0.1, 0.0, 0.0])


def test_large_data_are_sampled_by_user(data, monkeypatch):
    monkeypatch.setattr(preparing, "_LARGE", 700)
    monkeypatch.setattr(preparing, "_JUDGES", 30)
    prepared = split_for_tuning(data, None, None, 1, None, 0)
    (split,), (cheap,) = prepared.splits, prepared.cheap
    assert 500 < cheap.train.nnz < 1000 < split.train.nnz and len(cheap.users) == 30
    rows = {tuple(split.train.slice_rows(k, k + 1).indices) for k in range(150)}
    assert all(tuple(cheap.train.slice_rows(k, k + 1).indices) in rows for k in range(cheap.train.n_rows))
    assert (cheap.hidden.row_counts[cheap.users] > 0).all()
    judges = np.sort(np.random.default_rng(0).choice(split.users, 30, replace=False))
    for one, whole in ((cheap.train, split.train), (cheap.hidden, split.hidden)):
        assert (one.take_rows(cheap.users).to_scipy() != whole.take_rows(judges).to_scipy()).nnz == 0
    held = split_for_tuning(data, Protocol(split="held_out_users", ratios=(0.5, 0.4, 0.1)), None, 1, None, 0)
    assert len(held.cheap[0].users) == 30 and held.cheap[0].train is held.splits[0].train


def test_the_digest_of_a_search_is_of_the_users_and_the_times_that_judge_too(data):
    ids, n, rng = (data.user_ids, data.item_ids), data.matrix.nnz, np.random.default_rng(0)
    timed = [Interactions(data.matrix, *ids, rng.permutation(n)) for _ in range(2)]
    given = [(data, 40), (data, 50), (timed[0], 50), (timed[1], 50)]
    found = {split_for_tuning(X, None, None, 1, most, 0).fingerprint() for X, most in given}
    assert len(found) == 4


def test_where_nothing_can_be_hidden_the_rule_is_taken():
    X = sp.csr_array(np.eye(6))
    with pytest.warns(UserWarning, match="the rule is taken"):
        model = RGALSCV(K=2, n_iter=3, random_state=0).fit(X)
    assert model.fingerprint() == RGALS(K=2, n_iter=3, random_state=0).fit(X).fingerprint()
    assert model.gain_ == 0 and model.cv_results_["params"] == [] and model.best_index_ == -1
    for K, first in (([3, 5], 3), ("auto", 64)):
        with pytest.warns(UserWarning, match="the rule is taken"):
            assert RGALSCV(K=K, n_iter=1, random_state=0).fit(X).best_params_["K"] == first


def test_frames_keep_their_columns(data):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(data.matrix.toarray(), columns=[f"i{k}" for k in range(100)])
    model = RGALSCV(**SHORT).fit(frame)
    assert list(model.feature_names_in_) == list(frame.columns)


def test_a_validation_frame_with_other_columns_is_refused(data):
    """It judged by other items, and was fitted to them in the end, in silence; `RGALS.fit` refused it."""
    pd = pytest.importorskip("pandas")
    parts = split_interactions(data.matrix, (0.8, 0.2), random_state=5)
    train, validation = (pd.DataFrame(X.toarray(), columns=[f"i{k}" for k in range(100)]) for X in parts)
    turned = validation[validation.columns[::-1]]
    for fit in (RGALSCV(**SHORT).fit, RGALS(K=6).fit, lambda X, **how: tune("rg2", X, {"K": 6}, **how)):
        with pytest.raises(InputError, match=r"validation: its columns .*; give validation\[X.columns\]"):
            fit(train, validation=turned)
    names = {"columns": {"user": "who", "item": "what"}}
    pairs = [pd.DataFrame(dict(zip(("who", "what"), sp.coo_array(X).coords, strict=True))) for X in parts]
    listed = RGALSCV(**SHORT).fit(pairs[0], validation=pairs[1], **names)
    assert listed.seen_.nnz == data.matrix.nnz
    model = RGALSCV(**SHORT).fit(train, validation=turned[train.columns])
    assert model.fingerprint() == RGALSCV(**SHORT).fit(parts[0], validation=parts[1]).fingerprint()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 0}, "budget"),
        ({"n_splits": 0}, "n_splits"),
        ({"n_iter": 0}, "n_iter"),
        ({"validation_users": 0}, "validation_users"),
        ({"K": "many"}, "K"),
        ({"K": []}, "K"),
        ({"loss": []}, "loss"),
        ({"min_gain": -1}, "min_gain"),
        ({"dtype": "int8"}, "dtype"),
        ({"metric": "ndgc@10"}, "ndgc"),
        ({"space": {"alpha0": 1.0}}, "space"),
        ({"space": ["reg"]}, "space=.*give a dict of ranges"),
        ({"space": {"rg2": [0.1]}}, "space=.*give a dict of ranges"),
        ({"space": {"half_life": np.ones(2)}}, "half_life"),
        ({"K": np.array([4, 8])}, "K"),
        ({"loss": IALS(dislikes=True), "metric": "dislike_rate@5"}, "metric=.*better when larger"),
        ({"metric": "gini@5"}, "metric=.*better when larger"),
        ({"random_state": "x"}, "random_state"),
    ],
)
def test_wrong_options_are_named(data, options, message):
    with pytest.raises(ParameterError, match=message):
        RGALSCV(**{**OPTIONS, **options}).fit(data)


def test_dislikes_need_losses_that_take_them(data, monkeypatch):
    """A list of such was refused; others were searched, and refused by the last fit."""
    X = data.matrix.astype(float)
    X.data[::9] = -1
    several = [IALS(dislikes=True), WRMF(dislikes=True)]
    found = RGALSCV(loss=several, **SHORT).fit(X)
    assert found.loss_.dislikes and found.seen_.min() == -1
    more = RGALSCV(loss=IALS(dislikes=True), **OPTIONS).fit(X)  # enough for hard negatives
    with pytest.raises(ParameterError, match="space=5"):
        RGALSCV(loss="ials", space=5, **SHORT).fit(data)
    with pytest.raises(InputError, match="Negative values"):
        RGALSCV(loss=IALS(dislikes=True), space={"dislikes": [True, False]}, **SHORT).fit(X)
    nested = RGALSCV(loss="ials", space={"ials": {"dislikes": True}}, **SHORT).fit(X)
    assert nested.loss_.dislikes
    space = {"dislikes": True}
    assert (
        RGALSCV(loss="ials", space=space, **SHORT).fit(X).fingerprint()
        == RGALSCV(loss=IALS(dislikes=True), **SHORT).fit(X).fingerprint()
    )
    assert more.loss_.dislikes and "param_hard_negatives" not in more.cv_results_
    assert "param_hard_negatives" in RGALSCV(loss=IALS(), **OPTIONS).fit(data).cv_results_
    with pytest.raises(ParameterError, match="space=.*hard negatives need dislikes=False"):
        tune("ials", X, {"K": 4, "dislikes": True, "hard_negatives": [1.0]}, budget=1)
    assert tune("ials", X, {"K": 4, "dislikes": True}, budget=1).model.loss_.dislikes
    monkeypatch.setattr(halving, "_CHEAP_SHARE", None)  # nothing is searched
    for loss in ([IALS(dislikes=True), "rg2"], "rg2"):
        with pytest.raises(InputError, match="Negative values"):
            tune(loss, X, {"K": 4}, budget=1)
        with pytest.raises(InputError, match="Negative values"):
            RGALSCV(loss=loss, **OPTIONS).fit(X)
    hidden = X.copy()
    hidden.data = np.where(np.arange(X.nnz) % 9 < 2, X.data, 0)
    with pytest.raises(InputError, match="Negative values"):
        RGALSCV(**OPTIONS).fit(data.matrix - abs(hidden), validation=hidden)


def test_no_loss_is_no_loss(data):
    with pytest.raises(InputTypeError, match="loss must be a name or a Loss object, not NoneType"):
        RGALSCV(**OPTIONS, loss=None).fit(data)
    for model in (EASE(), RGALS, ["rg2", SGDRanker()]):
        with pytest.raises(InputTypeError, match=r"(EASE|RGALS|SGDRanker) is a model: .*compare\(X, "):
            tune(model, data)


# Interruptions.


def test_a_folder_belongs_to_its_data_and_needs_a_seed(data, tmp_path):
    RGALSCV(**SHORT).fit(data, folder=tmp_path)
    with pytest.raises(InputError, match="data"):
        RGALSCV(**SHORT).fit(data.matrix[:100], folder=tmp_path)
    with pytest.raises(ParameterError, match="random_state"):
        RGALSCV(**{**SHORT, "random_state": None}).fit(data, folder=tmp_path)
    with pytest.raises(InputError, match=r"other settings \(dtype\)"):
        RGALSCV(**SHORT, dtype="float64").fit(data, folder=tmp_path)
    assert RGALSCV(**SHORT, dtype="float64").fit(data).item_factors_.dtype == np.float64


SCRIPT = """
import sys
from rgals import RGALSCV
from rgals.datasets import make_implicit
X = make_implicit(150, 100, n_clusters=5, mean_interactions=14, random_state=3).matrix
RGALSCV(loss=["rg2", "ials"], K=6, budget=2, n_iter=6, n_splits=2, random_state=0).fit(X, folder=sys.argv[1])
"""


@pytest.mark.few(0)
def test_killed_searches_end_as_if_nothing_had_happened(data, tmp_path, amount):
    options = {**OPTIONS, "loss": ["rg2", "ials"]}
    expected = RGALSCV(**options).fit(data.matrix)
    journal, rng = tmp_path / "search.jsonl", np.random.default_rng(0)

    def lines() -> int:
        return journal.read_bytes().count(b"\n") if journal.exists() else 0

    for _ in range(amount(1, 10)):
        before = lines()
        process = subprocess.Popen([sys.executable, "-c", SCRIPT, os.fspath(tmp_path)])
        try:
            while process.poll() is None and lines() <= before + 1:
                time.sleep(0.002)
            time.sleep(float(rng.random() * 0.2))
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    assert lines() > 1 and "param_hard_negatives" in expected.cv_results_
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        again = RGALSCV(**options).fit(data.matrix, folder=tmp_path)
    assert same(again.cv_results_, expected.cv_results_) and again.fingerprint() == expected.fingerprint()
    assert repr(again.best_params_) == repr(expected.best_params_) and again.gain_ == expected.gain_
    assert isinstance(again.best_params_["loss"], RG2 | IALS)


# Values.


@pytest.mark.few(0)
def test_heavy_tailed_values_are_settled_once_for_all_fits(data):
    counts = data.matrix.copy()
    counts.data = np.random.default_rng(0).lognormal(2.0, 2.0, counts.nnz).astype(np.float32)
    with pytest.warns(ValuesWarning) as said:
        model = RGALSCV(**OPTIONS).fit(counts)
    assert len(said) == 1 and model.best_params_["values"] == "binary"
    assert {params["reg"] for params in model.cv_results_["params"]}
    again = RGALS(**model.best_params_, random_state=0).fit(counts)
    assert again.fingerprint() == model.fingerprint()
    raw = RGALSCV(values="raw", **OPTIONS).fit(counts)
    # In the space, too, the rule is that of the values; it was that of values scaled to a mean of 1.
    by_space = RGALSCV(space={"values": "raw"}, **OPTIONS).fit(counts)
    assert by_space.fingerprint() == raw.fingerprint() and by_space.gain_ == raw.gain_
    first = [model.cv_results_["params"][0]["loss"].get_params() for model in (by_space, raw)]
    assert first[0] == first[1]
    assert raw.best_params_["values"] == "raw" and raw.best_score_ != model.best_score_
