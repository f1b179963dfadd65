"""Anything that ranks can be compared: figures by hand, significance, several data sets, kill -9."""

from __future__ import annotations

import functools
import importlib
import json
import re
import shutil
import signal
import subprocess
import sys
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import scipy.stats
from instruments import comparing
from instruments.comparing import Jitter, Neighbours, cosine
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

from rgals import IALS, RG2, RGALS, RGALSCV, RGX, ValuesWarning
from rgals.baselines import EASE, Popularity
from rgals.cli import main
from rgals.compare import METHODS, Against, Comparison, Effort, Method, Split, compare, outside, prepare
from rgals.compare.page import draw, page
from rgals.compare.report import significance_table
from rgals.datasets import make_implicit
from rgals.matrix.validate import as_csr
from rgals.metrics import effect_size, evaluate, judge, ndcg
from rgals.metrics.significance import against
from rgals.model_selection import Protocol
from rgals.runtime.errors import (
    InputError,
    InputTypeError,
    MissingDependencyError,
    ParameterError,
    RgalsError,
    ShapeError,
)

pytestmark = pytest.mark.filterwarnings("ignore:Method expects CSR")  # within implicit
ONE = {"seeds": 1, "effort": Effort(objective_iterations=0), "verbose": 0}


@pytest.fixture(scope="module")
def split():
    found = prepare(make_implicit(120, 80, mean_interactions=15, random_state=2))
    assert len(np.unique(found.train.row_counts)) > 5
    return found


@pytest.fixture
def undrawn(monkeypatch):
    """A report takes longer than the comparison: it is judged where it is the question."""
    monkeypatch.setattr(importlib.import_module("rgals.compare"), "write", lambda result, folder: None)


@pytest.fixture(scope="module")
def X(split):
    return sp.csr_matrix(split.train.to_scipy())


@pytest.fixture(scope="module")
def scores(X):
    """What the neighbours give, to be ranked by hand."""
    return np.asarray(X @ cosine(X, 20))


def by_hand(scores, split, k=10):
    """NDCG@k of every test user: a sort of their scores without what they have."""
    found = []
    known = split.known.to_scipy().toarray() > 0
    truth = split.test.to_scipy().toarray() > 0
    for user in np.flatnonzero(truth.any(axis=1)):
        ranked = [item for item in np.argsort(-scores[user], kind="stable") if not known[user, item]][:k]
        gains = truth[user, ranked] / np.log2(np.arange(2, len(ranked) + 2))
        ideal = (1 / np.log2(np.arange(2, min(k, truth[user].sum()) + 2))).sum()
        found.append(gains.sum() / ideal)
    return np.array(found)


class Listed:
    """Recommends the best of some scores: lists, with scores beside them where ``told``."""

    def __init__(self, scores, told=False, ragged=False):
        self.scores, self.told, self.ragged = scores, told, ragged

    def fit(self, X):
        return self

    def recommend(self, users, n):
        ids = np.argsort(-self.scores[users], kind="stable", axis=1)[:, :n]
        if self.ragged:
            return [row.tolist() for row in ids]
        return (ids, np.take_along_axis(self.scores[users], ids, axis=1)) if self.told else ids


class Scoring:
    """As irspack's recommenders answer, once they have learned."""

    def __init__(self, X):
        self.X, self.similar = X, cosine(X, 20)

    def get_score(self, users):
        return self.X[users] @ self.similar


# Figures.


def test_whatever_gives_the_scores_has_the_same_figure(split, X, scores):
    """An estimator, lists of several kinds, functions: NDCG@10 is that of a sort by hand."""
    factors = np.linalg.svd(scores, full_matrices=False)
    methods = {
        "predicts": Neighbours(20),
        "lists": Listed(scores),
        "lists with scores": Listed(scores, told=True),
        "ragged lists": Listed(scores, ragged=True),
        "scores": lambda X: X @ cosine(X, 20),
        "sparse scores": lambda X: sp.csr_array(X @ cosine(X, 20)),
        "float32": lambda X: (X @ cosine(X, 20)).astype(np.float32),
        "a function of users": lambda X: lambda users: X[users] @ cosine(X, 20),
        "get_score": lambda X: Scoring(X),
        "factors": lambda X: (factors[0] * factors[1], factors[2].T.copy()),
        "something fitted": lambda X: Neighbours(20).fit(X),
    }
    result = compare(split, methods, **ONE)
    expected = by_hand(scores, split)
    assert 0.05 < expected.mean() < 0.95 and expected.std() > 0.1
    rows = {row.method: row for row in result.rows}
    assert rows.keys() == methods.keys()
    for name, row in rows.items():
        np.testing.assert_allclose(row.users["ndcg@10"], expected, atol=1e-12, err_msg=name)
        assert row.test["ndcg@10"] == (pytest.approx(expected.mean()), 0.0)


@pytest.mark.parametrize("kind", ["als", "bpr", "nearest neighbours"])
def test_implicit_is_judged_by_what_it_recommends(split, X, kind):
    implicit = pytest.importorskip("implicit")
    made = {
        "als": lambda: implicit.als.AlternatingLeastSquares(factors=8, iterations=3, num_threads=1),
        "bpr": lambda: implicit.bpr.BayesianPersonalizedRanking(factors=8, iterations=20, num_threads=1),
        "nearest neighbours": lambda: implicit.nearest_neighbours.CosineRecommender(K=10, num_threads=1),
    }[kind]
    runs = 1 if kind == "nearest neighbours" else 2
    row = compare(split, {"theirs": made()}, **{**ONE, "seeds": 2}).rows[0]
    assert len(row.curves) == runs
    users, figures = np.flatnonzero(split.test.row_counts), []
    known = split.known.to_scipy().toarray() > 0
    for seed in range(runs):
        model = made()
        if runs > 1:
            model.random_state = seed
        model.fit(X, show_progress=False)
        ids, _ = model.recommend(users, X[users], N=80, filter_already_liked_items=True)
        lists = [
            [i for i in row if i >= 0 and not known[u, i]][:10] for u, row in zip(users, ids, strict=True)
        ]
        lists = np.array([row + [-1] * (10 - len(row)) for row in lists], np.int32)
        figures.append(ndcg(judge(lists, split.test.take_rows(users)), k=10))
    assert np.std(figures[0]) > 0.1
    np.testing.assert_allclose(row.users["ndcg@10"], np.mean(figures, axis=0), atol=1e-6)
    assert row.test["ndcg@10"][0] == pytest.approx(np.mean(figures), abs=1e-6)


def test_own_estimators_run_as_they_are(split):
    made = {
        "mine": RGALS(4, IALS(0.2), reg=0.01, n_iter=3, dtype="float64"),
        "ease": EASE(reg=20.0),
        "popular": Popularity(),
        "searched": RGALSCV(4, "ials", budget=1, n_splits=1),
    }
    result = compare(split, made, **ONE)
    for row in result.rows:
        model = made[row.method]
        if "random_state" in model.get_params():
            model.set_params(random_state=0)
        X = split.train.to_scipy()
        expected = evaluate(model.fit(X), split.known, split.test, "ndcg@10", per_user=True)[0]
        np.testing.assert_allclose(row.users["ndcg@10"], expected["ndcg@10"], atol=1e-9)
    curves = {row.method: len(row.curves[0]) for row in result.rows}
    assert curves == {"mine": 3, "ease": 1, "popular": 1, "searched": 1}
    named = compare(split, {"mine": "popularity"}, **ONE).rows[0]
    assert named.test == next(row for row in result.rows if row.method == "popular").test


def test_means_are_over_seeds_and_what_is_not_random_runs_once(split, X):
    result = compare(split, {"noisy": Jitter(), "plain": Neighbours()}, **{**ONE, "seeds": 3})
    rows = {row.method: row for row in result.rows}
    assert len(rows["noisy"].curves) == 3 and len(rows["plain"].curves) == 1
    each = []
    for seed in range(3):
        places = np.argsort(Jitter(seed).fit(X).ranked)
        each.append(by_hand(np.broadcast_to(-places, (X.shape[0], len(places))), split))
    assert np.std([figures.mean() for figures in each]) > 0
    means = [figures.mean() for figures in each]
    assert rows["noisy"].test["ndcg@10"] == (
        pytest.approx(np.mean(means)),
        pytest.approx(np.std(means, ddof=1)),
    )
    np.testing.assert_allclose(rows["noisy"].users["ndcg@10"], np.mean(each, axis=0), atol=1e-12)
    frame = result.to_frame().set_index("method")
    assert frame["seeds"].to_dict() == {"noisy": 3, "plain": 1} and set(frame["iterations"]) == {1}
    assert frame["seconds"].to_dict() == {name: row.seconds for name, row in rows.items()}
    assert frame["ndcg@10_std"]["noisy"] == rows["noisy"].test["ndcg@10"][1] > 0


def test_copies_of_estimators_have_the_seed_and_the_threads_of_the_run():
    """Steps of pipelines, too; what an estimator sets itself is kept, and it is left as it was."""
    inner = Pipeline([("same", FunctionTransformer()), ("als", RGALS(4, random_state=7))])
    assert outside.seeds_of(inner) == ["als__random_state"] and outside.seeds_of(Neighbours()) == []
    made = outside.copied(inner, {"als__K": 5}, 3, 1)
    assert made.named_steps["als"].random_state == 3 and made.named_steps["als"].K == 5
    assert inner.named_steps["als"].random_state == 7 and inner.named_steps["als"].K == 4
    for own, n_jobs in ((None, 1), (2, 2)):
        assert outside.copied(RGALS(n_jobs=own), {}, 3, 1).n_jobs == n_jobs
    plain, noisy = Neighbours(4), Jitter(9)
    assert outside.copied(plain, {"k": 6}, 3, 1).k == 6 and plain.k == 4
    assert outside.copied(noisy, {}, 3, 1).random_state == 3 and noisy.random_state == 9


def test_what_tells_estimators_apart_is_the_same_in_every_process():
    """The class and the parameters, without seeds, and without addresses in memory."""

    class Other(Neighbours):
        pass

    digest = outside.digest
    assert digest(Neighbours(object())) == digest(Neighbours(object())) != digest(Neighbours(20))
    assert digest(Neighbours(20)) != digest(Other(20)) and digest(Jitter(1)) == digest(Jitter(2))
    assert digest(functools.partial(cosine, k=3)) != digest(functools.partial(cosine, k=4))
    kept = Neighbours(20)
    kept.similar, kept._private = 1, object()
    assert "_private" not in outside.settings_of(kept)


def test_a_search_is_no_method_whose_objective_is_followed(split):
    searched = RGALSCV(4, "ials", budget=0.5, n_iter=2, n_splits=1)
    result = compare(split, {"searched": searched}, seeds=1, effort=Effort(objective_iterations=8), verbose=0)
    assert result.objectives == {} and result.rows[0].family == "other"


def test_the_verdict_is_that_of_the_corrected_test():
    rows = [SimpleNamespace(method=name, label=name, users={"auc": 1}) for name in ("best", "near", "far")]
    found = {"near": Against(-0.1, 0.04, 0.08, -0.2), "far": Against(-0.2, 0.01, 0.03, -0.4)}
    body = significance_table(SimpleNamespace(metric="auc", rows=rows, against=lambda: found))[1]
    assert [(line[0], line[-1]) for line in body] == [("near", "not significant"), ("far", "")]


def test_ladders_beside_an_estimator_are_climbed_on_validation(split, X):
    rungs = [1, 2, 5, 10, 20, 40]
    effort = Effort(max_trials=20)
    row = compare(split, {"knn": (Neighbours(20), {"k": rungs})}, **{**ONE, "effort": effort}).rows[0]
    judged = {
        k: evaluate(lambda u, k=k: np.asarray(X[u] @ cosine(X, k)), split.train, split.validation)["ndcg@10"]
        for k in rungs
    }
    assert len({round(figure, 6) for figure in judged.values()}) > 3
    k, at = int(row.params["k"]), rungs.index(int(row.params["k"]))
    assert row.tuning["best"] == pytest.approx(judged[k]) and row.tuning["finished"]
    assert all(judged[k] >= judged[other] for other in rungs[max(at - 1, 0) : at + 2]), (
        "no neighbour is better"
    )
    function = compare(split, {"f": (lambda X, k=5: X @ cosine(X, int(k)), {"k": rungs})}, **ONE).rows[0]
    assert function.tuning["trials"] > 1 and function.params["k"] in rungs


def test_the_closed_form_has_no_iterations_to_watch_and_is_compared(split):
    models = {"svd": RGALS(8, RG2(alpha=0), solver="svd", random_state=0), "als": RGALS(8, random_state=0)}
    rows = {row.label: row for row in compare(split, models, **ONE).rows}
    assert len(rows["svd"].curves[0]) == 1 < len(rows["als"].curves[0])
    assert all(row.test["ndcg@10"][0] > 0.05 for row in rows.values())


@pytest.mark.parametrize("rungs", [np.array([2, 4]), (np.int64(2), np.int64(4)), range(2, 6, 2)], ids=str)
def test_a_ladder_of_whole_numbers_may_be_numpys(split, rungs):
    row = compare(split, (RGALS(n_iter=1, random_state=0), {"K": rungs}), **ONE).rows[0]
    assert row.params["K"] in (2, 4) and row.tuning["trials"] == 2


@pytest.mark.parametrize("loss", ["rg2", RG2()], ids=["name", "object"])
def test_a_ladder_of_the_loss_is_climbed_also_where_that_is_a_name(split, loss):
    model = RGALS(K=4, n_iter=1, random_state=0, loss=loss)
    row = compare(split, (model, {"loss__alpha": [0.01, 0.1]}), **ONE).rows[0]
    assert row.params["loss__alpha"] in (0.01, 0.1) and row.tuning["trials"] == 2
    assert model.loss is loss
    with pytest.raises(ParameterError, match="ladder='loss__temper' .*choose one of .*loss__alpha"):
        compare(split, (model, {"loss__temper": [1, 2]}), **ONE)


def test_a_split_of_ones_own_is_of_any_matrices(split):
    parts = [getattr(split, name).to_scipy() for name in ("train", "validation", "test")]
    own = Split(parts[0].toarray(), parts[1].tocoo(), parts[2].tocsc())
    assert compare(own, "ease", **ONE).rows[0].test == compare(split, "ease", **ONE).rows[0].test
    with pytest.raises(ShapeError, match="test has shape"):
        Split(parts[0], parts[1], parts[2][:5])
    with pytest.raises(InputError, match="the validation part has no interactions"):
        Split(parts[0], 0 * parts[1], parts[2])


def test_ids_of_a_split_of_ones_own_are_checked_before_the_first_fit(split):
    """A list ended in a `TypeError`, and too few in an `IndexError`, after all fits."""
    parts, names = (split.train, split.validation, split.test), [f"u{k}" for k in range(120)]
    result = compare(Split(*parts, names), "popularity", **ONE)
    assert result.user_ids.tolist() == [names[k] for k in np.flatnonzero(split.test.row_counts)]
    with pytest.raises(ShapeError, match="user_ids has 5 ids; give one for each of 120 users"):
        Split(*parts, names[:5])


def test_numbers_of_numpys_types_are_numbers(split):
    ladders = {"k": np.arange(2, 8, 2)}
    own = Method("own", "own", "other", lambda params, **_: Neighbours(int(params["k"])), ladders)
    found = compare(split, own, **{**ONE, "K": np.int32(4)})
    assert found.setting["K"] == 4 and found.rows[0].params["k"] in ladders["k"]


def test_a_folder_takes_nothing_that_was_found_on_other_ladders(split, tmp_path, undrawn):
    first = compare(split, {"e": (EASE(), {"reg": [1, 10]})}, out=tmp_path, **ONE).rows[0]
    other = compare(split, {"e": (EASE(), {"reg": [100, 1000]})}, out=tmp_path, **ONE).rows[0]
    assert first.params["reg"] in (1, 10) and other.params["reg"] in (100, 1000)
    alone = compare(split, {"e": EASE()}, out=tmp_path, **ONE).rows[0]
    assert alone.params == {} and alone.test == compare(split, {"e": EASE()}, **ONE).rows[0].test
    again = compare(split, {"e": (EASE(), {"reg": [100, 1000]})}, out=tmp_path, **ONE).rows[0]
    assert again.params == other.params and again.curves == other.curves  # the trials are not done again


def test_a_ladder_that_can_be_read_once_keeps_its_numbers(split):
    seen = []

    def blend(X, share=0.5):
        seen.append(share)
        return X @ (X.T @ X) * share

    row = compare(split, (blend, {"share": (value for value in (0.25, 0.75))}), **ONE).rows[0]
    assert set(seen) == {0.25, 0.75} and row.params["share"] in seen


def test_tuning_starts_in_the_middle_of_a_ladder_unless_it_is_told_where(split):
    seen = []

    def build(params, **common):
        seen.append(params["reg"])
        return EASE(**params)

    ladders = {"reg": (1.0, 10.0, 100.0, 1000.0, 10_000.0)}
    compare(split, Method("own", "own", "other", build, ladders), **ONE)
    assert seen[0] == 100.0 and len(set(seen)) > 2
    with pytest.raises(ParameterError, match=r"ladder of reg=\(3, 1\).*ascending"):
        Method("own", "own", "other", build, {"reg": (3, 1)})


def test_a_method_of_ones_own_is_built_with_the_options_of_the_call(split):
    calls = []

    def build(params, **common):
        calls.append(common)
        return RGALS(K=common["K"], reg=params["reg"], random_state=common["random_state"], n_iter=2)

    method = Method("own", "mine", "other", build, {"reg": (0.1, 1.0)}, {"reg": 0.1})
    row = compare(split, method, K=3, n_jobs=1, **{**ONE, "effort": Effort(max_trials=1)}).rows[0]
    assert {(c["K"], c["n_jobs"], c["random_state"]) for c in calls} == {(3, 1, 0)} and row.label == "mine"


def test_popularity_and_ease_have_names():
    assert {"popularity", "ease"} <= METHODS.keys()
    matrix = as_csr(make_implicit(100, 60, mean_interactions=10, random_state=0).matrix)
    start = METHODS["ease"].start_for(matrix, 8)["reg"]
    assert start == EASE().fit(matrix).reg_ == pytest.approx(4 * matrix.nnz / 100)


def test_a_method_that_writes_into_its_matrix_harms_no_other(split, scores):
    def rude(X):
        found = X @ cosine(X, 20)
        X.data[:] = 7.0
        X.indices[:] = 0
        return found

    result = compare(split, {"rude": rude, "knn": Neighbours(20), "rude again": lambda X: rude(X)}, **ONE)
    for row in result.rows:
        np.testing.assert_allclose(row.users["ndcg@10"], by_hand(scores, split), atol=1e-12)


# Users without interactions, short lists.


def test_what_an_object_of_a_loss_sets_is_kept(split):
    """It was tuned, so that two objects of a loss were one method."""
    effort = Effort(max_trials=0, objective_iterations=0)
    losses = {
        "much": RG2(alpha=0.5),
        "little": RG2(alpha=0.005),
        "iALS": IALS(alpha0=0.5),
        "beta": RGX(beta=0.3),
    }
    result = compare(split, losses, K=4, **{**ONE, "effort": effort})
    rows = {row.method: row for row in result.rows}
    assert {name: sorted(row.params) for name, row in rows.items()} == {
        "much": ["reg"],
        "little": ["reg"],
        "iALS": ["reg"],
        "beta": ["alpha", "reg"],
    }
    assert not np.array_equal(rows["much"].users["ndcg@10"], rows["little"].users["ndcg@10"])
    alone = RGALS(4, loss=IALS(alpha0=0.5), reg=rows["iALS"].params["reg"], n_iter=60, random_state=0)
    alone.set_params(early_stopping=True, patience=effort.patience, metric="ndcg@10")
    alone.fit(split.train, validation=split.validation)
    assert rows["iALS"].test["ndcg@10"][0] == pytest.approx(
        evaluate(alone, split.known, split.test)["ndcg@10"]
    )


def test_users_and_items_without_interactions(rng):
    """Cold users get nothing from lists of equal scores, and their own from functions that have an answer."""
    train, hidden, test = np.zeros((3, 40, 30))
    for user in range(39):
        items = rng.choice(28, 9, replace=False)
        train[user, items[:5]], hidden[user, items[5]], test[user, items[6:]] = 1, 1, 1
    train[:3], hidden[:3], test[2], test[39, 4] = 0, 0, 0, 1  # cold users, one of them the last
    hidden[2, 9] = test[2, :3] = 1  # one is known from validation, and has the first items of the catalogue
    parts = Split(as_csr(train), as_csr(hidden), as_csr(test))
    known, scores = sp.csr_matrix(train), np.asarray(train @ cosine(sp.csr_matrix(train), 5))
    assert (scores[:3] == 0).all() and known.nnz
    methods = {
        "lists": Listed(scores, told=True),
        "scores": lambda X: scores,
        "popular to all": lambda X: np.tile(np.asarray(X.sum(axis=0)), (40, 1)),
        "EASE": EASE(reg=5.0),
        "its scores": lambda X: X @ EASE(reg=5.0).fit(X).weights_,
        "all alike": lambda X: np.zeros((40, 30)),
    }
    rows = {row.method: row.users["ndcg@10"] for row in compare(parts, methods, **ONE).rows}
    np.testing.assert_allclose(rows["lists"], rows["scores"], atol=1e-12)
    assert (rows["lists"][:3] == 0).all() and rows["popular to all"][:3].max() > 0
    np.testing.assert_allclose(rows["EASE"], rows["its scores"], atol=1e-12)
    assert (rows["EASE"][:3] == 0).all() and rows["all alike"][:3].max() == 0 < rows["all alike"].max()
    assert len(rows["lists"]) == 40


def test_lists_that_end_early_miss_what_is_not_in_them(split):
    class Few:
        def fit(self, X):
            self.first = split.test.to_scipy().tocsr()

        def recommend(self, users, n):
            return [self.first[[u]].indices[:1] for u in users]

    row = compare(split, Few(), metric="recall@10, mrr@5", **ONE).rows[0]
    assert list(row.test) == ["recall@10", "mrr@5", "mrr@10", "ndcg@10"]
    counts = split.test.row_counts[split.test.row_counts > 0]
    np.testing.assert_allclose(row.users["recall@10"], 1 / counts)


def test_what_is_known_takes_no_place_and_no_item_is_none():
    """Lists may hold what is known; where they end, -1 stands for nothing, not for the last item."""
    train, hidden, test = np.zeros((3, 4, 20))
    train[:, :5], hidden[:, 5:18], test[:2, 18], test[2:, 19] = 1, 1, 1, 1
    parts = Split(as_csr(train), as_csr(hidden), as_csr(test))
    lists = np.tile([*range(19), -1], (4, 1))

    class Told(Silent):
        def recommend(self, users, n):
            return lists[users, :n]

    row = compare(parts, Told(), metric="recall@3", **ONE).rows[0]
    assert row.users["recall@3"].tolist() == [1, 1, 0, 0]


# What is refused.


class Silent:
    def fit(self, X):
        return self


class Wide(Silent):
    def recommend(self, users, n):
        return np.full((len(users), n), 10_000)


class Below(Silent):
    def recommend(self, users, n):
        return np.full((len(users), n), -7)


class Again(Silent):
    def recommend(self, users, n):
        return np.tile([3, 5, 3], (len(users), 1))


class Named(Silent):
    def recommend(self, users, n):
        return np.full((len(users), n), "tea")


class Labels(Silent):
    def predict(self, X):
        return np.zeros(X.shape[0])


@pytest.mark.parametrize(
    ("method", "error", "words"),
    [
        (Neighbours, ParameterError, "not its class"),
        (3, ParameterError, "methods=3"),
        (RGALS(half_life="30d"), ParameterError, "methods=.*have no times"),
        ({"old": Popularity(half_life="30d")}, ParameterError, "have no times"),
        ([EASE(), EASE(2.0)], ParameterError, "a dict gives names"),
        ((EASE(), {"regg": [1, 2]}), ParameterError, "'regg'.*reg"),
        ((EASE(), {"reg": []}), ParameterError, "ladder of reg=.*ascending"),
        ((lambda X, k=1, **more: X, {"more": [1, 2]}), ParameterError, "ladder='more' .*choose one of 'k'"),
        ((lambda X, k=1: X, {"X": [1, 2]}), ParameterError, "ladder='X' .*choose one of 'k'"),
        ({"a": (EASE(), {"regg": [1, 2]})}, ParameterError, "'regg'.*reg"),
        ("rg2,svd", ParameterError, "'svd'.*popularity"),
        ({}, ParameterError, "at least one"),
        (Silent(), InputTypeError, "nothing ranks items in Silent"),
        (Wide(), InputError, "item 10000 at rank 1, outside -1"),
        (Below(), InputError, "item -7 at rank 1, outside -1"),
        (Again(), InputError, "row 0 holds item 3 twice"),
        (Named(), InputError, "column numbers"),
        (Labels(), ShapeError, "users x items"),
        ({"f": lambda X: np.zeros((3, 3))}, ShapeError, r"\(3, 3\)"),
        ({"f": lambda X: X.toarray() * np.nan}, InputError, "NaN"),
    ],
)
def test_what_cannot_be_compared_is_named(split, method, error, words):
    with pytest.raises(error, match=words) as raised:
        compare(split, method, **ONE)
    if error is not ParameterError:
        assert "in the method" in raised.value.__notes__[0]


def test_some_items_without_a_score_rank_last_as_in_evaluate(split, scores):
    """They were refused here, and ranked there."""
    unknown = np.where(scores > np.quantile(scores, 0.9), np.nan, scores)
    methods = {"nan": lambda X: unknown, "last": lambda X: np.where(np.isnan(unknown), -np.inf, unknown)}
    first, second = compare(split, methods, **ONE).rows
    assert first.test == second.test


def test_lists_have_no_figure_of_the_whole_ranking(split, scores):
    for whole in ("auc", "pauc(0.1)"):
        with pytest.raises(ParameterError, match=f"metric='{re.escape(whole)}'.*cutoff"):
            compare(split, Listed(scores), metric=f"ndcg@10,{whole}", **ONE)
    row = compare(split, Neighbours(), metric=["ndcg@10", "auc", "coverage@10"], **ONE).rows[0]
    told = evaluate(lambda users: scores[users], split.known, split.test, ["auc", "coverage@10"])
    assert {name: row.test[name][0] for name in told} == pytest.approx(dict(told))
    assert "coverage@10" not in row.users
    result = compare(split, Neighbours(), metric="coverage@10", **ONE)
    assert "below the best" not in result.text()
    assert result.to_frame()["difference"].isna().all()
    with pytest.raises(ParameterError, match="coverage@10"):
        result.to_frame(reference="popular")
    for wrong, error in ((3, InputTypeError), ([], ParameterError)):
        with pytest.raises(error, match="metrics"):
            compare(split, Neighbours(), metric=wrong, **ONE)


def test_the_least_dislike_rate_is_the_best(rng):
    """The largest was, and the others were tested against it; what is sorted by is better when larger."""
    data = make_implicit(120, 80, mean_interactions=30, random_state=2).matrix.tocoo()
    data.data[rng.random(data.nnz) < 0.3] = -1
    place = rng.integers(0, 3, data.nnz)
    parts = [
        sp.csr_matrix((data.data[k], (data.row[k], data.col[k])), data.shape)
        for k in place == [[0], [1], [2]]
    ]
    how = {"n_iter": 5, "user_mean": False, "random_state": 0}  # of so few items a mean would rank alike
    methods = {f"{K}": RGALS(K, IALS(0.1, dislikes=True), **how) for K in (2, 16)}
    result = compare(Split(*parts), methods, metric="ndcg@10,dislike_rate@10", **ONE)
    rates = {row.method: row.test["dislike_rate@10"][0] for row in result.rows}
    assert len(set(rates.values())) == 2
    frame, least = result.to_frame("dislike_rate@10"), min(rates, key=rates.get)
    assert frame["method"].tolist() == sorted(rates, key=rates.get) and frame["best"].tolist() == [
        True,
        False,
    ]
    assert least not in result.against(metric="dislike_rate@10") and frame["difference"][1] > 0
    with pytest.raises(ParameterError, match="better when larger"):
        compare(Split(*parts), methods, metric="dislike_rate@10", **ONE)
    for method in ("rg2", "wrmf", "softmax", "popularity", {"own": RGALS(4)}):  # had them as negative weights
        with pytest.raises(InputError, match="Negative values .* dislikes, for WRMF"):
            compare(Split(*parts), method, **ONE)


def test_a_name_of_two_lines_stays_in_its_row_and_what_is_none_is_not_called(split):
    """It broke the table; and `recommend = None`, as mixins have it, ended in a `TypeError` of inspect."""
    scores = np.ones(split.train.shape)
    text = compare(split, {"a\nb": lambda X: scores}, **ONE).markdown()
    assert "| a b |" in text and all(line[:1] in ("|", "*", "") for line in text.splitlines())

    class Lists:
        recommend = None

        def fit(self, X):
            return self

    with pytest.raises(InputTypeError, match="nothing ranks items in Lists"):
        compare(split, Lists(), **ONE)


def test_the_least_gini_is_the_best():
    """The most unequal lists led the table, and a search took them."""
    result = compare(
        make_implicit(120, 80, random_state=2), "popularity,ease", metric="ndcg@10,gini@5", **ONE
    )
    figures = {row.method: row.test["gini@5"][0] for row in result.rows}
    assert figures["ease"] < figures["popularity"]
    assert result.to_frame("gini@5")["method"].tolist() == ["ease", "popularity"]


# Significance and order.


def holm_by_hand(p_values):
    out, worst = {}, 0.0
    for rank, name in enumerate(sorted(p_values, key=p_values.get)):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[name]))
        out[name] = worst
    return out


@pytest.mark.parametrize("test", ["t", "wilcoxon"])
def test_tests_are_those_of_scipy_corrected_by_hand(rng, test):
    base = rng.beta(2, 5, 200)
    figures = {
        "best": base,
        "far": base - 0.1 * rng.random(200),
        "level": base + rng.normal(0, 0.02, 200) - 1e-4,
    }
    figures |= {f"near {k}": base - 0.002 * k + rng.normal(0, 0.03, 200) for k in range(4)}
    found = against(figures, "best", test)
    theirs = scipy.stats.ttest_rel if test == "t" else scipy.stats.wilcoxon
    p_values = {name: theirs(values, base).pvalue for name, values in figures.items() if name != "best"}
    assert {name: one.p_value for name, one in found.items()} == pytest.approx(p_values)
    assert {name: one.corrected for name, one in found.items()} == pytest.approx(holm_by_hand(p_values))
    for name, one in found.items():
        differences = figures[name] - base
        assert one.difference == pytest.approx(differences.mean())
        assert one.effect == pytest.approx(differences.mean() / np.std(differences, ddof=1))
    assert found["far"].corrected < 1e-6 and found["level"].corrected > 0.05


def test_effect_sizes_at_the_edges():
    assert effect_size([1.0, 2.0], [1.0, 2.0]) == 0
    assert effect_size([2.0, 3.0], [1.0, 2.0]) == np.inf and effect_size([0.0, 1.0], [1.0, 2.0]) == -np.inf
    assert np.isnan(effect_size([1.0], [2.0])) and effect_size([1, 3, np.nan], [0, 0, 1]) == pytest.approx(
        2**0.5
    )
    with pytest.raises(ShapeError, match="2 users and b 3"):
        effect_size([1, 2], [1, 2, 3])


def test_rows_come_in_the_order_of_what_was_asked(split, scores):
    """By the first metric, in the frame by any; the best and what is level with it are marked."""
    rng = np.random.default_rng(0)
    methods = {
        f"noise {noise}": functools.partial(
            lambda X, noise: scores + noise * rng.random(scores.shape), noise=noise
        )
        for noise in (0.001, 0.3, 3.0)
    }
    result = compare(split, methods | {"popularity": "popularity"}, metric="recall@20,mrr@5", **ONE)
    assert result.metrics == ("recall@20", "mrr@5", "mrr@10", "ndcg@10")
    means = [row.test["recall@20"][0] for row in result.rows]
    assert means == sorted(means, reverse=True) and len(set(means)) == 4
    frame = result.to_frame()
    assert frame["method"].tolist() == [row.method for row in result.rows]
    other = result.to_frame("mrr@5")
    assert (np.diff(other["mrr@5"]) <= 0).all() and other["best"].tolist() == [True, False, False, False]
    figures = {row.method: row.users["recall@20"] for row in result.rows}
    best = figures.pop(frame["method"][0])
    p_values = {name: scipy.stats.ttest_rel(values, best).pvalue for name, values in figures.items()}
    corrected = holm_by_hand(p_values)
    for line in frame.iloc[1:].itertuples():
        assert line.p_value == pytest.approx(p_values[line.method])
        assert line.p_corrected == pytest.approx(corrected[line.method])
        assert line.tied == (corrected[line.method] >= 0.05)
    assert np.isnan(frame["p_value"][0]) and not frame["tied"][0]
    assert set(frame["tied"]) == {True, False}
    beside = result.to_frame(reference="popularity", test="wilcoxon").set_index("method")
    theirs = scipy.stats.wilcoxon(best, figures["popularity"]).pvalue
    assert beside.loc[frame["method"][0], "p_value"] == pytest.approx(theirs)
    for wrong in ({"metric": "recall@21"}, {"reference": "svd"}, {"test": "z"}, {"level": 2}):
        with pytest.raises(ParameterError, match=next(iter(wrong))):
            result.to_frame(**wrong)


def test_the_order_is_that_of_the_metric_that_was_asked_for(split):
    """One method finds something at once and then nothing, the other everything, but late."""
    truth, known = (part.to_scipy().toarray() > 0 for part in (split.test, split.known))
    popular = np.argsort(np.argsort(truth.sum(axis=0)))
    early, late = np.where(truth, -1.0, 0.0), np.where(truth, 10.0, 0.0)
    for user in range(len(truth)):
        early[user, np.flatnonzero(truth[user])[:1]] = 1.0
        others = np.flatnonzero(~truth[user] & ~known[user])[:10]
        late[user, others] = 20.0 + popular[others]
    methods = {"early": lambda X: early, "late": lambda X: late}
    results = {m: compare(split, methods, metric=m, **ONE) for m in ("recall@20", "mrr@5")}
    assert [row.method for row in results["recall@20"].rows] == ["late", "early"]
    assert [row.method for row in results["mrr@5"].rows] == ["early", "late"]
    frame = results["recall@20"].to_frame("ndcg@10")
    assert frame["method"].tolist() == ["early", "late"] and frame["difference"][1] < 0


def test_the_tables_have_the_tests(split):
    result = compare(split, {"knn": Neighbours(), "popularity": "popularity"}, **ONE)
    assert repr(result) == str(result) == result.text()
    beside = result.against()["popularity"]
    line = next(line for line in result.text().splitlines() if f"{beside.difference:+.4f}" in line)
    assert f"{beside.effect:+.3f}" in line and f"{beside.corrected:.2g}" in line
    html = page(result, "<svg></svg>")
    assert "Significance" in html and "Holm" in html and f"{beside.difference:+.4f}" in html


def test_to_frame_says_what_is_missing(split, monkeypatch):
    result = compare(split, "popularity", **ONE)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match="pip install pandas"):
        result.to_frame()


def test_a_missing_matplotlib_is_named_before_the_first_fit(split, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match=r"rgals\[plot\]"):
        compare(split, "popularity", out=tmp_path / "out", **ONE)
    assert not (tmp_path / "out").exists()
    assert compare(split, "popularity", **ONE).rows
    tuned = {**ONE, "effort": Effort(tune_only=True)}
    assert compare(split, "popularity", out=tmp_path / "out", **tuned).rows, "tuning alone draws nothing"


def test_a_file_is_no_folder_and_names_are_of_one_data_set(split, tmp_path):
    (tmp_path / "one").write_text("mine")
    for data, out in ((split, tmp_path / "one"), ({"one": split}, tmp_path)):
        with pytest.raises(InputError, match="is a file; out must be a folder"):
            compare(data, "popularity", out=out, **ONE)
    with pytest.raises(ParameterError, match="names of data sets"):
        compare({"one": split}, "popularity", name="mine", **ONE)
    assert (tmp_path / "one").read_text() == "mine"


def test_two_methods_of_one_label_are_refused(split):
    """Nothing told their rows and curves apart, and one of them had no objective."""
    for methods in (["rg2", RG2(alpha=0.3)], [METHODS["rg2"], replace(METHODS["rg2"], name="other")]):
        with pytest.raises(ParameterError, match="its own label; a dict"):
            compare(split, methods, **ONE)
    effort = Effort(max_trials=0, objective_iterations=0)
    result = compare(split, {"rg2": "rg2", "mine": RG2(alpha=0.3)}, K=2, **{**ONE, "effort": effort})
    assert sorted(row.label for row in result.rows) == ["RG2 (ALS)", "mine"]


def test_names_of_data_and_methods_are_drawn_and_printed_as_they_are(split):
    """Two dollars enclose a formula of matplotlib, whose legends leave out what begins with an underscore."""
    methods = {"_own": Popularity(), "5$ <b> $\\frac": EASE(), "als": RGALS(4, n_iter=3)}
    effort = Effort(objective_iterations=8)
    result = compare(split, methods, name=r"$\x$ & co", seeds=1, effort=effort, verbose=0)
    figure = draw(result)
    figure.draw_without_rendering()  # which reads formulas
    ax = figure.axes[0]
    drawn = [text.get_text().strip().replace(r"\$", "$") for text in ax.get_legend().get_texts()]
    assert sorted(drawn) == sorted(methods) and r"\$\x\$ & co" in ax.get_title()
    html = page(result, "<svg></svg>")
    assert "<b>" not in html and "5$ &lt;b&gt; $\\frac</td>" in html and "$\\x$ &amp; co: time" in html


def test_popularity_is_in_the_picture(split):
    """Curves of many iterations begin far below, and are cut there; so was what has one value only."""
    result = compare(split, {"als": RGALS(4, n_iter=3), "popularity": Popularity()}, **ONE)
    curves = {"als": [(t, 0.9 - 0.3 / t) for t in range(1, 200)], "popularity": [(0.1, 0.2)]}
    rows = [replace(row, curves=[curves[row.method]]) for row in result.rows]
    low, high = draw(replace(result, rows=rows, best=0.9)).axes[0].get_ylim()
    assert 0.1 < low < 0.2 and high > 0.9
    curves["popularity"] = [(0.1, float("nan"))]
    rows = [replace(row, curves=[curves[row.method]]) for row in result.rows]
    assert draw(replace(result, rows=rows, best=0.9)).axes[0].get_ylim()[0] == 0.45


def test_no_panel_is_empty_where_no_objective_is_followed(split):
    figure = draw(compare(split, {"als": RGALS(4, n_iter=3)}, **ONE))
    assert [ax.get_ylabel() for ax in figure.axes] == ["validation NDCG@10"]
    effort = Effort(objective_iterations=8)
    figure = draw(compare(split, {"als": RGALS(4, n_iter=3)}, **{**ONE, "effort": effort}))
    assert len(figure.axes) == 2 and all(ax.lines for ax in figure.axes)


def test_the_recipe_makes_a_table_of_latex(split, tmp_path):
    """The lines of the docstring, on names that LaTeX would stumble over."""
    example = re.findall(r"^ +(?:>>>|\.\.\.) ?(.*)$", Comparison.to_frame.__doc__, re.MULTILINE)
    start = next(n for n, line in enumerate(example) if line.startswith("frame ="))
    data = {
        f"set_{seed}": make_implicit(100, 60, mean_interactions=10, random_state=seed) for seed in (0, 1, 2)
    }
    methods = {
        "my_knn & 100 %": Neighbours(),
        "knn_again {#1} ~^": Neighbours(19),
        "popularity": "popularity",
    }
    told = []
    names = {"result": compare(data, methods, **ONE), "print": told.append}
    exec("\n".join(example[start:]), names)
    table = told[0]
    start, *lines, end = table.splitlines()
    assert start == r"\begin{tabular}{llll}" and end == r"\end{tabular}"  # a dagger moves no digit
    body = [line for line in lines if line != r"\hline"]
    assert [lines[k] for k in (0, 2, -1)] == [r"\hline"] * 3 and len(lines) == len(body) + 3
    assert len(body) == 4 and all(line.endswith(r" \\") for line in body)
    assert all(len(re.findall(r"(?<!\\)&", line)) == 3 for line in body)
    assert table.count("{") == table.count("}") and not re.search(r"(?<!\\)[_#%~]", table)
    best_first = [row.label[:2] for row in names["result"]["set_0"].rows]
    assert [line[:2] for line in body[1:]] == best_first
    bold, daggers = table.count(r"\textbf{"), table.count(r"$^\dagger$")
    frame = names["result"].to_frame()
    assert bold == 3 == frame["best"].sum() and daggers == frame["tied"].sum() > 0
    if shutil.which("pdflatex"):
        page = tmp_path / "page.tex"
        page.write_text("\\documentclass{article}\\begin{document}\n" + table + "\n\\end{document}\n")
        subprocess.run(
            ["pdflatex", "-halt-on-error", page.name],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            timeout=60,
        )


# Data.


def test_several_data_sets_are_each_as_alone(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(importlib.import_module("rgals.compare"), "write", lambda *args: written.append(args))
    data = {f"set {seed}": make_implicit(100, 60, mean_interactions=10, random_state=seed) for seed in (0, 1)}
    methods = {"knn": Neighbours(), "popularity": "popularity"}
    found = compare(data, methods, out=tmp_path, **ONE)
    assert list(found) == list(data) and {p.name for p in tmp_path.iterdir()} == set(data)
    for name, one in data.items():
        alone = compare(one, methods, name=name, **ONE)
        assert [row.test for row in alone.rows] == [row.test for row in found[name].rows]
        assert (found[name], tmp_path / name) in written and (tmp_path / name / "results.jsonl").exists()
    frame = found.to_frame("mrr@10")
    assert frame["data"].tolist() == ["set 0"] * 2 + ["set 1"] * 2 and frame["best"].sum() == 2
    assert found.text().count("set ") == found.markdown().count("**set ") == 2
    one = data["set 0"]
    table = compare(one, {"a|b": "popularity", "knn": Neighbours()}, **ONE).markdown().splitlines()
    assert {line.replace(r"\|", "").count("|") for line in table[2:6]} == {table[2].count("|")}
    for wrong in ({"a/b": one}, {"": one}, {"..": one}, {1: one, "1": one}, {}):
        with pytest.raises(ParameterError, match="names of data sets"):
            compare(wrong, methods, **ONE)


def test_frames_of_ids_are_compared_and_figures_belong_to_ids(rng):
    data = make_implicit(100, 60, mean_interactions=10, random_state=0)
    pairs = sp.coo_matrix(data.matrix)
    names = np.array([f"u{rng.integers(1 << 40)}" for _ in range(100)])
    frame = pd.DataFrame({"who": names[pairs.row], "what": pairs.col + (1 << 33), "n": 1.0})
    columns = {"user": "who", "item": "what", "value": "n"}
    result = compare(frame, {"knn": Neighbours()}, columns=columns, **ONE)
    parts = prepare(frame, columns=columns)
    counts = sum(part.row_counts for part in (parts.train, parts.validation, parts.test))
    assert dict(zip(parts.user_ids, counts, strict=True)) == frame["who"].value_counts().to_dict()
    assert len(set(counts)) > 5
    ids = parts.user_ids[parts.test.row_counts > 0]
    assert result.user_ids.tolist() == ids.tolist() and set(ids) <= set(names) and len(ids) > 50
    assert len(result.rows[0].users["ndcg@10"]) == len(ids)
    with pytest.raises(RgalsError, match="columns="):
        compare(frame, "popularity", **ONE)


def test_a_protocol_says_how_data_are_split():
    data = make_implicit(120, 80, mean_interactions=15, random_state=2)
    protocol = Protocol("global", (0.7, 0.1, 0.2), core=5, seed=4)
    parts, found = protocol.apply(data), prepare(data, protocol=protocol)
    for name in ("train", "validation", "test"):
        assert (getattr(parts, name) != getattr(found, name).to_scipy()).nnz == 0
    same = compare(data, "popularity", protocol=protocol, **ONE).rows[0].test
    assert same == compare(found, "popularity", **ONE).rows[0].test
    for wrong in ("mine", Protocol("held_out_users")):
        with pytest.raises(ParameterError, match="protocol"):
            compare(data, "popularity", protocol=wrong, **ONE)
    with pytest.raises(ParameterError, match="decides on min_value"):
        prepare(data, protocol=protocol, core=3)
    for more in ({"protocol": protocol}, {"columns": {"user": "u"}}):
        with pytest.raises(ParameterError, match="split already"):
            compare(found, "popularity", **more, **ONE)


def test_parts_are_of_the_rows_the_seed_and_the_core_that_were_asked_for():
    data = make_implicit(120, 80, mean_interactions=15, random_state=2)
    some = data.matrix.tolil()
    some[7], some[:, 5] = 0, 0
    assert prepare(some.tocsr()).train.shape == (119, 79), "without what nobody has"
    for seed in (0, 5):
        parts = Protocol(seed=seed).apply(data)
        assert (prepare(data, random_state=seed).test.to_scipy() != parts.test).nnz == 0
    marked = data.replace(split=(np.arange(data.nnz) % 5 == 0).astype(np.int8))
    small = prepare(marked, core=8, random_state=5)
    parts = Protocol(core=8, seed=5).apply(data)
    assert small.train.shape == parts.train.shape < data.matrix.shape
    assert (small.test.to_scipy() != parts.test).nnz == 0, "the test part is drawn anew"
    assert small.user_ids.tolist() == data.user_ids[parts.users].tolist()


def test_values_are_warned_of_once_for_each_data_set():
    rng = np.random.default_rng(0)
    data = {}
    for seed in (0, 1):
        matrix = make_implicit(100, 60, mean_interactions=10, random_state=seed).matrix.copy()
        matrix.data = np.exp(rng.normal(0, 3 + seed, matrix.nnz)).astype(np.float32)
        data[f"set {seed}"] = matrix
    methods = {"a": "rg2", "ease": EASE(), "bpr": "bpr", "own": RGALS(4, n_iter=2)}
    methods["function"] = lambda X: RGALS(4, n_iter=2).fit(X)
    effort = Effort(max_trials=1, objective_iterations=8, time_limit=0.2)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        compare(data, methods, K=4, seeds=1, effort=effort, verbose=0)
    said = [warning for warning in said if warning.category is ValuesWarning]
    assert [warning.filename for warning in said] == [__file__] * 2
    assert str(said[0].message) != str(said[1].message)
    with pytest.warns(ValuesWarning) as said:  # where nothing was decided, a fit of the caller's own decides
        compare(data["set 0"], methods["function"], values="raw", K=4, seeds=1, effort=effort, verbose=0)
    assert len(said) == 1


def test_the_command_measures_what_is_listed(tmp_path, capsys, undrawn):
    pairs = sp.coo_matrix(make_implicit(100, 60, mean_interactions=10, random_state=0).matrix)
    path = tmp_path / "events.csv"
    path.write_text("user,item\n" + "".join(f"u{u},i{i}\n" for u, i in zip(*pairs.coords, strict=True)))
    options = ["--methods", "popularity,ease", "--metric", "recall@20,mrr@5", "--max-trials", "0"]
    options += ["--core", "3", "--seed", "5", "--seeds", "1"]
    assert main(["compare", str(path), "-o", str(tmp_path / "out"), *options, "-q"]) == 0
    told = capsys.readouterr().out
    alone = compare(
        prepare(path, core=3, random_state=5),
        "popularity,ease",
        metric="recall@20,mrr@5",
        **{**ONE, "effort": Effort(max_trials=0)},
    )
    assert told.startswith("events\n") and "RECALL@20" in told and "MRR@5" in told
    assert all(f"{row.test['recall@20'][0]:.4f}" in told for row in alone.rows)


def test_values_are_weighed_as_asked(tmp_path, undrawn):
    data = make_implicit(120, 80, mean_interactions=15, valued=True, random_state=2)
    parts, options = prepare(data), {"K": 4, **ONE}
    assert not parts.train.is_binary
    mine = RGALS(4, n_iter=3, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ValuesWarning)
        methods = {"told": mine, "kept": RGALS(4, n_iter=3, values="binary", random_state=0)}
        result = compare(parts, methods, out=tmp_path, values="bm25", **options)
        for row in result.rows:
            values = {"told": "bm25", "kept": "binary"}[row.method]
            model = mine.set_params(values=values).fit(parts.train.to_scipy())
            expected = evaluate(model, parts.known, parts.test)["ndcg@10"]
            assert row.test["ndcg@10"][0] == pytest.approx(expected, rel=1e-6)
    assert len({row.test["ndcg@10"] for row in result.rows}) == 2
    with pytest.raises(InputError, match="values"):
        compare(parts, methods, out=tmp_path, values="raw", **options)
    with pytest.raises(ParameterError, match="values='tfidf'"):
        compare(parts, methods, values="tfidf", **options)


# Folders.


def fits(log):
    return log.read_text().splitlines()


def test_a_comparison_killed_at_any_fit_ends_as_if_nothing_had_happened(zygote, tmp_path, amount):
    """kill -9 within a fit: what was finished is not computed again, and the table is the same."""
    job, whole = "instruments.comparing:table", tmp_path / "whole.log"
    expected = zygote.run(job, str(tmp_path / "whole"), str(whole), None)
    assert expected.returned, expected
    everything = fits(whole)
    assert len(everything) == 12 and len(expected.value) == 6
    for at in amount((2, 8), range(1, len(everything) + 1)):
        folder, log = str(tmp_path / f"killed {at}"), tmp_path / f"{at}.log"
        assert zygote.run(job, folder, str(log), at).signal == signal.SIGKILL
        assert fits(log) == everything[:at]
        again = zygote.run(job, folder, str(log), None)
        assert again.returned, again
        assert fits(log) == everything[:at] + everything[at - 1 :], "only what was cut off is fitted again"
        pd.testing.assert_frame_equal(pd.DataFrame(again.value), pd.DataFrame(expected.value))


def test_a_folder_takes_nothing_from_an_estimator_with_other_parameters(
    split, tmp_path, undrawn, monkeypatch
):
    first = compare(split, {"m": Neighbours(20)}, out=tmp_path, **ONE).rows[0]
    log = tmp_path / "log"
    monkeypatch.setattr(comparing, "LOG", [log, None])
    other = compare(split, {"m": Neighbours(2)}, out=tmp_path, **ONE).rows[0]
    again = compare(split, {"m": Neighbours(20)}, out=tmp_path, **ONE).rows[0]
    assert again == first and fits(log) == ["neighbours 2"]
    one = compare(split, {"m": lambda X: X @ cosine(X, 3)}, out=tmp_path, **ONE).rows[0]
    two = compare(split, {"m": lambda X: X @ cosine(X, 30)}, out=tmp_path, **ONE).rows[0]
    assert len({row.test["ndcg@10"] for row in (first, other, one, two)}) == 4


def test_a_folder_takes_nothing_from_another_loss_or_method_of_the_same_name(split, tmp_path, undrawn):
    """Figures of `RG2(alpha=0.5)` were those of `RG2(alpha=0.001)`, and those of BPR were those of BCE."""
    how = {**ONE, "effort": Effort(max_trials=0, objective_iterations=0, time_limit=0.01), "K": 4}
    for pair in ((RG2(alpha=0.5), RG2(alpha=0.001)), ({"m": "bpr"}, {"m": "bce"})):
        rows = [compare(split, one, out=tmp_path, **how).rows[0] for one in (*pair, pair[0])]
        assert rows[0] == rows[2]
        rows[2] = compare(split, pair[1], **how).rows[0]
        first = [row.curves[0][0][1] for row in rows]  # later ones depend on the time
        assert first[0] != first[1] == first[2]


def test_a_folder_with_other_metrics_is_refused(split, tmp_path, undrawn):
    compare(split, "popularity", out=tmp_path, metric="ndcg@10,recall@5", **ONE)
    with pytest.raises(InputError, match="metrics"):
        compare(split, "popularity", out=tmp_path, **ONE)


def test_a_folder_of_0_1_has_no_figures_of_users(split, tmp_path, undrawn):
    """It is read, its figures are shown; tests need what it does not have."""
    result = compare(split, {"knn": Neighbours(), "popularity": "popularity"}, out=tmp_path, **ONE)
    path = tmp_path / "results.jsonl"
    lines = []
    for line in path.read_text().splitlines():
        record = json.loads(line)
        if record["key"].startswith("run "):
            del record["users"]
        if record["key"] != "users":
            lines.append(json.dumps(record))
    path.write_text("\n".join(lines) + "\n")
    again = compare(split, {"knn": Neighbours(), "popularity": "popularity"}, out=tmp_path, **ONE)
    assert again.rows == result.rows and "below the best" in result.text()
    for text in (again.text(), page(again, "<svg></svg>")):
        assert "below the best" not in text
    assert again.to_frame()["p_value"].isna().all()
    with pytest.raises(ParameterError, match="figures of users"):
        again.against()


def test_an_effort_is_a_record_and_other_keywords_are_none(tmp_path):
    data = make_implicit(150, 80, mean_interactions=20, valued=True, random_state=0)
    with pytest.raises(InputTypeError, match=r"effort is a dict: write effort=Effort\(...\)"):
        compare(data, "popularity", effort={"max_trials": 3})
    with pytest.raises(TypeError, match="unexpected keyword argument 'max_trials'"):
        compare(data, "popularity", max_trials=3)


def test_columns_of_a_file_are_named_as_those_of_a_frame(tmp_path):
    path = tmp_path / "plays.csv"
    rows = [f"{u},{i},{1 + (u + i) % 3},{u + i}" for u in range(30) for i in range(20)]
    path.write_text("\n".join(["user,item,plays,when", *rows]))
    found = prepare(path, columns={"rating": "plays", "time": "when"})
    assert set(found.train.values) == {1, 2, 3}
    for columns in ("matrix", {"foo": "plays"}, 7):
        with pytest.raises(ParameterError, match="columns="):
            prepare(path, columns=columns)


def test_one_run_has_no_spread():
    """It was "± 0.0000", as if other random choices gave the same."""
    data, effort = make_implicit(60, 30, random_state=0), Effort(max_trials=0, objective_iterations=8)
    methods = {"once": "popularity", "twice": RGALS(2, n_iter=2)}
    table = compare(data, methods, seeds=2, effort=effort, verbose=0).text().split("\n\n")[1]
    cells = {line.split()[0]: line for line in table.splitlines()}
    assert "±" not in cells["once"] and "±" in cells["twice"]
    assert "±" not in compare(data, methods, seeds=1, effort=effort, verbose=0).text()


def test_what_has_one_value_is_a_dot_in_the_legend():
    """It was a dashed line, which the page calls gradient descent."""
    data, effort = make_implicit(60, 30, random_state=0), Effort(max_trials=0)
    left = draw(compare(data, "popularity,softmax", K=4, seeds=1, effort=effort, verbose=0)).axes[0]
    shown = {line.get_label(): (line.get_linestyle(), line.get_marker()) for line in left.get_lines()}
    assert shown["Popularity"] == ("None", ".") and shown["Softmax, cosine (SGD)"][0] == "--"


def test_users_of_validation_alone_are_cold_to_methods_of_factors_as_to_models(undrawn):
    """They had lists of factors that no interaction had reached."""
    pairs = make_implicit(60, 40, mean_interactions=12, random_state=0).matrix.tocoo()
    part = np.random.default_rng(0).integers(0, 3, pairs.nnz)
    part[(pairs.coords[0] < 20) & (part == 0)] = 1
    rows = [(pairs.coords[0][part == k], pairs.coords[1][part == k]) for k in range(3)]
    parts = [sp.csr_array((np.ones(len(at[0])), at), shape=pairs.shape) for at in rows]
    given = Split(*parts)
    assert np.sum((given.train.row_counts == 0) & (given.test.row_counts > 0)) > 10

    def factors(train):
        model = RGALS(4, n_iter=3, random_state=0).fit(train)
        return model.user_factors_, model.item_factors_

    result = compare(given, {"pair": factors, "model": RGALS(4, n_iter=3, random_state=0)}, **ONE)
    pair, model = result.rows
    assert pair.test["ndcg@10"] == pytest.approx(model.test["ndcg@10"], rel=1e-6)
    assert model.test["ndcg@10"][0] > 0


def test_a_curve_by_gradient_in_a_folder_is_of_its_own_objective(split, tmp_path, undrawn):
    effort = Effort(max_trials=0, start={"rg2": {"alpha": 0.1, "reg": 0.01}}, objective_iterations=8)
    how = {"K": 4, "seeds": 1, "effort": effort, "verbose": 0, "out": tmp_path}
    assert any("gradient" in name for name in compare(split, "rg2", **how).objectives)
    other = compare(split, {"rg2": RG2(item_exponent=-0.4)}, **how).objectives
    assert other and not any("gradient" in name for name in other)


@pytest.mark.filterwarnings("error")
def test_a_core_draws_marked_parts_anew_without_a_warning():
    data = make_implicit(100, 90, random_state=0)
    marked = data.replace(split=(np.arange(data.nnz) % 5 == 0).astype(np.int8))
    assert prepare(marked, core=3).test.nnz != prepare(marked).test.nnz
