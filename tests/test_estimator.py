"""RGALS keeps its promises: scikit-learn's contract, fold-in, files, stopping, telling errors."""

from __future__ import annotations

import warnings
from contextlib import closing

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import sklearn
from helpers import LOSSES, interactions
from numba import njit
from sklearn.base import clone
from sklearn.decomposition import TruncatedSVD
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer
from sklearn.utils.estimator_checks import parametrize_with_checks
from threadpoolctl import threadpool_info, threadpool_limits

import rgals
from rgals import (
    IALS,
    RG2,
    RGALS,
    RGX,
    WRMF,
    InputError,
    InputTypeError,
    ModelFileError,
    NumericalError,
    ParameterError,
    Positions,
    ShapeError,
    UnknownIdError,
)
from rgals.datasets import Interactions, make_implicit, read_interactions
from rgals.kernels import diagonal, rows
from rgals.matrix.entries import hold_out
from rgals.matrix.validate import as_csr
from rgals.metrics import evaluate
from rgals.model_selection import split_interactions, tune
from rgals.runtime import errors
from rgals.runtime.progress import FIRST_FIT, ProgressBar
from rgals.training import fit


@pytest.fixture(scope="module")
def X():
    return interactions(80, 50, valued=True)


@pytest.fixture(scope="module")
def model(X):
    return RGALS(K=8, n_iter=4, random_state=0).fit(X)


@pytest.mark.few(48)
@parametrize_with_checks([RGALS(K=4, n_iter=3), RGALS(K=3, loss=IALS(), n_iter=2, dtype="float64")])
@pytest.mark.filterwarnings("ignore:.*have no interactions")
def test_scikit_learns_checks(estimator, check):
    check(estimator)


# ---------------------------------------------------------------- fit


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", LOSSES)
def test_fold_in_equals_the_training_rows(name, dtype, X):
    model = RGALS(K=8, loss=LOSSES[name], n_iter=3, dtype=dtype, random_state=0).fit(X)
    np.testing.assert_array_equal(model.transform(X), model.user_factors_)
    some = model.transform(X[[7, 3, 7]])
    np.testing.assert_allclose(some, model.user_factors_[[7, 3, 7]], rtol=1e-6, atol=1e-7)
    assert model.user_factors_.dtype == dtype


def test_objective_is_that_of_the_history_and_falls(X):
    for loss in (RG2(), RGX(), IALS(), WRMF()):
        model = RGALS(K=8, loss=loss, n_iter=8, random_state=1).fit(X)
        values = [record["objective"] for record in model.history_]
        assert values[0] > values[-1]
        assert (np.diff(values) <= 1e-6 * np.abs(values[1:])).all()
        assert model.objective(X) == pytest.approx(values[-1], rel=1e-5)
        assert [record["iteration"] for record in model.history_] == list(range(1, 9))
        assert model.n_iter_ == 8


def test_the_solver_that_ran_is_named(X):
    assert RGALS(K=4, n_iter=1).fit(X).solver_ == "exact"
    assert RGALS(K=4, n_iter=1, loss=RG2(alpha=0.0)).fit(X).solver_ == "shared"
    # Pairs that are drawn give every row a matrix of its own.
    assert RGALS(K=4, n_iter=5, loss=RG2(alpha=0.0), hard_negatives=1.0).fit(X).solver_ == "exact"
    assert RGALS(K=4, loss=RG2(alpha=0.0), solver="svd").fit(X).solver_ == "svd"
    assert RGALS(K=4, n_iter=1, solver="dense").fit(X).solver_ == "dense"
    model = RGALS(K=4, n_iter=1, solver="pcg", pcg_steps=2).fit(X)
    assert model.solver_ == "pcg"
    np.testing.assert_array_equal(model.transform(X), model.user_factors_)


def test_dense_and_exact_solvers_give_the_same_model(X):
    kwargs = {"K": 6, "n_iter": 3, "dtype": "float64", "random_state": 0}
    for loss in (RG2(), RGX()):
        a = RGALS(loss=loss, **kwargs).fit(X)
        b = RGALS(loss=loss, solver="dense", **kwargs).fit(X)
        scores = a.user_factors_ @ a.item_factors_.T
        np.testing.assert_allclose(b.user_factors_ @ b.item_factors_.T, scores, atol=1e-9)
        assert a.history_[-1]["objective"] == pytest.approx(b.history_[-1]["objective"], rel=1e-11)


def test_svd_is_below_every_als_fit(X):
    best = RGALS(K=5, loss=RG2(alpha=0.0), solver="svd", dtype="float64").fit(X).objective(X)
    for seed in range(3):
        model = RGALS(K=5, loss=RG2(alpha=0.0), n_iter=40, dtype="float64", random_state=seed).fit(X)
        assert model.objective(X) >= best - 1e-9 * abs(best)


def test_results_repeat_from_a_seed_and_differ_between_seeds(X):
    a, b, c = (RGALS(K=5, n_iter=2, random_state=seed).fit(X) for seed in (3, 3, 4))
    np.testing.assert_array_equal(a.item_factors_, b.item_factors_)
    assert not np.allclose(a.item_factors_, c.item_factors_)


def test_any_form_of_the_matrix_gives_the_same_model_and_is_not_modified(X):
    expected = RGALS(K=5, n_iter=2, random_state=0).fit(X).item_factors_
    dense = X.toarray()
    rows, cols = np.nonzero(dense)
    order = np.random.default_rng(0).permutation(len(rows))
    half = dense[rows, cols] / 2
    doubled = sp.coo_array(
        (np.tile(half[order], 2), (np.tile(rows[order], 2), np.tile(cols[order], 2))), shape=X.shape
    )
    unsorted = sp.csr_array(X[:, ::-1])[:, ::-1]
    for form in (dense, X.tocsc(), X.tolil(), doubled, unsorted, X.astype(np.float32), dense.astype(int)):
        before = form.copy()
        got = RGALS(K=5, n_iter=2, random_state=0).fit(form).item_factors_
        np.testing.assert_allclose(got, expected, atol=1e-5)
        same = form == before if isinstance(form, np.ndarray) else (form != before).nnz == 0
        assert np.all(same)


def test_read_only_and_memory_mapped_input(X, tmp_path):
    dense = X.toarray()
    dense.flags.writeable = False
    frozen = X.copy()
    for array in (frozen.data, frozen.indices, frozen.indptr):
        array.flags.writeable = False
    np.save(tmp_path / "x.npy", X.toarray())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    expected = RGALS(K=3, n_iter=1, random_state=0).fit(X.astype(np.float32)).item_factors_
    compiled = compiled_for()
    for form in (dense, frozen, frozen.astype(np.float32), mapped):
        got = RGALS(K=3, n_iter=1, random_state=0).fit(form).item_factors_
        np.testing.assert_array_equal(got, expected)
    assert compiled
    assert compiled_for() == compiled  # nobody waits for the compilers again


def test_arrays_with_gaps_are_read_right(X):
    gaps = X.copy()
    gaps.indices, gaps.indptr, gaps.data = (
        np.repeat(array, 3)[::3] for array in (X.indices, X.indptr.astype(np.int64), X.data)
    )
    assert gaps.indices.strides == (12,)
    expected = RGALS(K=3, n_iter=1, random_state=0).fit(X).item_factors_
    np.testing.assert_array_equal(RGALS(K=3, n_iter=1, random_state=0).fit(gaps).item_factors_, expected)


def compiled_for() -> dict[str, int]:
    """How many kinds of arguments the solvers' kernels are compiled for."""
    functions = [value for module in (rows, diagonal) for value in vars(module).values()]
    return {f.__qualname__: len(f.signatures) for f in functions if hasattr(f, "signatures")}


def test_rows_and_columns_may_be_permuted(X):
    rng = np.random.default_rng(0)
    rows, cols = rng.permutation(X.shape[0]), rng.permutation(X.shape[1])
    kwargs = {"K": 5, "n_iter": 5000, "tol": 1e-11, "dtype": "float64", "n_jobs": 1}
    kwargs |= {"loss": RG2(alpha=0.0), "reg": 0.002}
    a = RGALS(random_state=0, **kwargs).fit(X)
    b = RGALS(random_state=1, **kwargs).fit(X[rows][:, cols])
    assert a.objective(X) == pytest.approx(b.objective(X[rows][:, cols]), rel=1e-6)


def test_warm_start_continues_and_a_refit_starts_fresh(X):
    whole = RGALS(K=5, n_iter=6, dtype="float64", random_state=0).fit(X)
    model = RGALS(K=5, n_iter=3, dtype="float64", random_state=0).fit(X)
    half = model.history_[-1]["objective"]
    model.set_params(warm_start=True).fit(X)
    assert model.history_[-1]["objective"] == pytest.approx(whole.history_[-1]["objective"], rel=1e-9)
    assert model.history_[0]["objective"] < half
    with pytest.raises(InputError, match="warm_start"):
        model.fit(X[:40])
    model.set_params(warm_start=False).fit(X[:40])
    assert model.user_factors_.shape == (40, 5)
    fresh = RGALS(K=5, n_iter=3, dtype="float64", random_state=0).fit(X[:40])
    np.testing.assert_array_equal(model.item_factors_, fresh.item_factors_)


def test_tol_ends_the_fit_when_the_objective_settles(X):
    model = RGALS(K=5, n_iter=500, tol=1e-4, random_state=0).fit(X)
    assert 3 < model.n_iter_ < 200


def test_callbacks_see_every_iteration_and_may_stop(X):
    seen = []

    def stop_at_three(now):
        assert not now.item_factors.flags.writeable
        now.record["mine"] = now.iteration * 10
        seen.append(now.iteration)
        return now.iteration == 3

    model = RGALS(K=4, n_iter=9, random_state=0).fit(X, callbacks=stop_at_three)
    assert seen == [1, 2, 3]
    assert model.n_iter_ == 3
    assert [record["mine"] for record in model.history_] == [10, 20, 30]
    np.testing.assert_array_equal(model.transform(X), model.user_factors_)
    for wrong in ([3], np.zeros((2, 2))):
        with pytest.raises(ParameterError, match="callbacks"):
            RGALS(K=4).fit(X, callbacks=wrong)
    for many in (np.array([2, 3]), np.zeros(0)):
        with pytest.raises(ParameterError, match="n_jobs"):
            RGALS(K=4, n_jobs=many).fit(X)
    for pairs in ([[1, 2], [3]], [[1, 2]] * X.shape[0]):
        with pytest.raises(InputError, match="user_ids has shape"):
            RGALS(K=4).fit(X, user_ids=pairs)


def test_a_failing_fit_leaves_the_model_as_it_was(X):
    model = RGALS(K=4, n_iter=2, random_state=0).fit(X)
    before = model.item_factors_
    model.set_params(loss=IALS(alpha0=0.0), reg=0.0, K=60)
    with pytest.raises(NumericalError, match=r"iteration 1, item half-step: .* row \d+"):
        model.fit(X)
    assert model.item_factors_ is before


def test_blas_is_held_at_one_thread_from_before_the_first_iteration_on(X, monkeypatch):
    """Its threads, once woken, would spin beside those of the first iterations."""
    seen, real = [], fit.choose_reg

    def choose_reg(*args):
        seen.append(blas_threads())
        return real(*args)

    with threadpool_limits(3, "blas"):
        monkeypatch.setattr(fit, "choose_reg", choose_reg)
        RGALS(K=4, n_iter=2).fit(X, callbacks=lambda now: seen.append(blas_threads()))
        assert seen == [{1}] * 3
        assert blas_threads() == {3}
        seen.clear()
        RGALS(K=4, loss=RG2(alpha=0.0), solver="svd").fit(X)
        assert seen == [{3}]  # whose work BLAS does


def blas_threads() -> set[int]:
    """Threads of the libraries that fits use: other packages of the tests load some of their own."""
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    used = [pool for pool in pools if "numpy" in pool["filepath"] or "scipy" in pool["filepath"]]
    return {pool["num_threads"] for pool in used or pools}


def test_progress_is_shown_only_when_asked_for(X, capsys):
    RGALS(K=4, n_iter=2).fit(X)
    assert capsys.readouterr().err == ""
    RGALS(K=4, n_iter=2, verbose=1).fit(X)
    shown = capsys.readouterr().err
    assert "2/2" in shown and "objective=" in shown
    assert "compiling" not in shown  # the first fit has


def test_progress_says_once_what_the_first_iteration_waits_for(capsys, monkeypatch):
    monkeypatch.setattr(ProgressBar, "told", False)
    bar = ProgressBar(2, "ALS", "it")
    njit(lambda x: x)(1)  # not the business of a bar that has not begun
    bar.begin()
    assert "compiling" not in capsys.readouterr().err
    njit(lambda x: x + 1)(1)
    njit(lambda x: x + 2)(1)
    assert capsys.readouterr().err.count(f"ALS, compiling (about {FIRST_FIT} s, once on this machine)") == 1
    bar.advance({"iteration": 1, "seconds": 2.0, "objective": 0.123456, "state": "good"})
    njit(lambda x: x + 3)(1)  # nobody listens any more
    bar.close()
    shown = capsys.readouterr().err
    assert "ALS:  50%" in shown and "objective=0.12346" in shown
    with closing(ProgressBar(2, "ALS", "it")) as bar:
        bar.begin()
        njit(lambda x: x + 4)(1)  # in another precision, for example
    assert "compiling" not in capsys.readouterr().err
    assert not any(word in shown for word in ("compiling", "seconds", "iteration=", "good"))


# ---------------------------------------------------------------- validation and early stopping


@pytest.fixture(scope="module")
def split():
    data = make_implicit(400, 200, random_state=0).matrix
    return split_interactions(data, (0.8, 0.1, 0.1), random_state=0)


def test_validation_metrics_are_those_of_evaluate(split):
    train, held_out, _ = split
    model = RGALS(K=8, n_iter=3, metric="recall@20", random_state=0).fit(train, validation=held_out)
    expected = evaluate(model, train, held_out, metrics=("recall@20",))["recall@20"]
    assert model.history_[-1]["recall@20"] == pytest.approx(expected, rel=1e-4)
    assert len({record["recall@20"] for record in model.history_}) > 1


def test_validation_that_the_fit_knows_is_refused_before_the_first_iteration(split):
    train, held_out, _ = split
    seen = []
    with pytest.raises(InputError, match="^validation holds no interaction that is not in X too; leave some"):
        RGALS(K=8, n_iter=3).fit(train, validation=train, callbacks=seen.append)
    assert not seen
    past = read_interactions((["a", "a", "b", "b"], [0, 1, 1, 2]))
    coming = read_interactions((["a", "new"], [0, 2]))  # what a new user has is not in X
    with pytest.warns(UserWarning, match="1 users and 0 items that the model does not know"):
        model = RGALS(K=2, n_iter=1, random_state=0).fit(past, validation=coming)
    assert model.history_[-1]["ndcg@10"] == 0


def test_early_stopping_keeps_the_best_iterate(split):
    train, held_out, _ = split
    model = RGALS(K=32, n_iter=60, reg=1e-4, early_stopping=True, patience=3, random_state=0)
    model.fit(train, validation=held_out)
    figures = [record["ndcg@10"] for record in model.history_]
    assert model.n_iter_ < 60
    assert model.n_iter_ - 1 - int(np.argmax(figures)) == 3
    got = evaluate(model, train, held_out, metrics=("ndcg@10",))["ndcg@10"]
    assert got == pytest.approx(max(figures), rel=1e-3)
    assert figures[-1] < max(figures)


def test_early_stopping_without_validation_holds_interactions_out(split):
    train, _, _ = split
    model = RGALS(K=16, n_iter=40, reg=1e-4, early_stopping=True, patience=2, random_state=0)
    factors = model.fit_transform(train)
    assert "ndcg@10" in model.history_[-1]
    np.testing.assert_array_equal(model.transform(train), factors)
    ids, _ = model.recommend(np.arange(50), n=10)  # what was held out is known all the same
    seen = train.toarray()[np.repeat(np.arange(50), 10), ids.ravel()]
    assert not seen[ids.ravel() >= 0].any()


def test_a_good_default_beats_popularity(split):
    train, _, test = split
    popularity = np.asarray(train.sum(axis=0)).ravel()
    baseline = evaluate(lambda users: np.tile(popularity, (len(users), 1)), train, test)["ndcg@10"]
    for loss in ("rg2", "rgx"):
        figure = evaluate(RGALS(K=16, loss=loss, random_state=0).fit(train), train, test)["ndcg@10"]
        assert figure > 1.3 * baseline


# ---------------------------------------------------------------- scikit-learn


def test_parameters_of_a_loss_that_is_a_name_can_be_set(X):
    """scikit-learn ended in: 'str' object has no attribute 'set_params'."""
    model = RGALS(4, n_iter=1)
    assert model.set_params(loss__alpha=0.5, reg=0.1).loss.get_params() == RG2(alpha=0.5).get_params()
    assert model.set_params(loss="ials", loss__alpha0=2.0).loss.alpha0 == 2.0
    search = GridSearchCV(RGALS(4, n_iter=1), {"loss__alpha": [0.1, 0.2]}, cv=2, error_score="raise").fit(X)
    assert search.best_estimator_.loss_.alpha in (0.1, 0.2) and search.estimator.loss == "rg2"


def test_grid_search_clone_and_pipeline_run_on_csr(split):
    train, _, _ = split
    grid = {"loss__alpha": [0.01, 0.2], "reg": [0.02, 5.0]}
    search = GridSearchCV(RGALS(K=8, n_iter=3, loss=RG2(), random_state=0), grid, cv=3).fit(train)
    assert search.best_params_["reg"] == 0.02
    assert np.ptp(search.cv_results_["mean_test_score"]) > 0
    twin = clone(search.best_estimator_)
    assert twin.get_params()["loss__alpha"] == search.best_params_["loss__alpha"]
    assert not hasattr(twin, "history_")
    pipe = Pipeline([("log", FunctionTransformer(np.log1p, accept_sparse=True)), ("als", clone(twin))])
    factors = pipe.fit_transform(train)
    assert factors.shape == (400, 8)
    assert 0 < pipe.score(train) <= 1
    two = Pipeline([("als", clone(twin)), ("svd", TruncatedSVD(2))]).fit_transform(train)
    assert two.shape == (400, 2)


def test_what_a_fitted_model_says_of_its_fit_is_not_changed_from_outside(X):
    model = RGALS(4, n_iter=2, random_state=0).fit(X)
    before, alpha = model.params_["values"], model.loss_.alpha
    model.loss_.set_params(alpha=99.0)
    model.set_params(K=7, values="binary", n_iter=9, init="spectral")
    assert model.loss_.alpha == alpha and model.params_["values"] == before == "raw"
    assert model.params_["n_iter"] == 2 and len(model.get_feature_names_out()) == 4
    assert model.item_scale_.tolist() == [1.0] * X.shape[1]


def test_what_took_the_place_of_auto_is_told_and_what_was_given_stays(X):
    auto = RGALS(4, random_state=0).fit(X)
    assert (auto.params_["init"], auto.params_["n_iter"]) == ("random", auto.n_iter_)
    assert f"n_iter={auto.n_iter_}" in repr(auto).partition("# fitted with")[2]
    given = RGALS(4, n_iter=500, init="spectral", tol=1e-2, random_state=0).fit(X)
    assert (given.params_["init"], given.params_["n_iter"]) == ("spectral", 500) and given.n_iter_ < 500
    assert "n_iter=" not in repr(given).partition("# fitted with")[2]


def test_the_tags_say_what_goes_in_and_comes_out():
    for model, positive, dtype in (
        (RGALS(), True, "float32"),
        (RGALS(loss=IALS(dislikes=True), dtype="float64"), False, "float64"),
    ):
        tags = model.__sklearn_tags__()
        assert tags.input_tags.positive_only is positive
        assert tags.transformer_tags.preserves_dtype == [dtype]


def test_factors_of_a_fit_that_held_some_out_are_those_of_users_with_their_features(rng):
    X = sp.csr_array((rng.random((60, 30)) < 0.3) * 1.0)
    told = {"user_features": np.eye(3)[np.arange(60) % 3]}
    model = RGALS(4, n_iter=2, early_stopping=True, random_state=0)
    factors = model.fit_transform(X, **told)
    np.testing.assert_array_equal(factors, model.transform(X, **told))
    assert not np.allclose(factors, model.transform(X))


def test_what_a_pipeline_does_to_factors_leaves_the_model_as_it_is(X):
    """It was given those of the model itself: a step that works in place changed its recommendations."""
    model = RGALS(4, n_iter=1, random_state=0)
    make_pipeline(model, Normalizer(copy=False)).fit_transform(X)
    np.testing.assert_array_equal(model.transform(X), model.user_factors_)


def test_searches_and_splitters_take_interactions_with_ids():
    """As the matrix alone, and what is fitted at the end knows the ids."""
    matrix = make_implicit(90, 80, mean_interactions=15, random_state=0).matrix
    users, items = ([f"{side}{k}" for k in range(n)] for side, n in zip("ui", matrix.shape, strict=True))
    data = Interactions(matrix, np.array(users), np.array(items), timestamp=np.arange(matrix.nnz))
    grid = {"reg": [0.01, 0.5]}
    with_ids, plain = (GridSearchCV(RGALS(4, random_state=0), grid, cv=3).fit(X) for X in (data, matrix))
    scores = with_ids.cv_results_["mean_test_score"]
    np.testing.assert_array_equal(scores, plain.cv_results_["mean_test_score"])
    assert np.ptp(scores) > 0 and with_ids.best_estimator_.user_ids_.tolist() == users
    first, second = train_test_split(data, random_state=0)
    assert {*first.user_ids, *second.user_ids} == set(users) and first.nnz + second.nnz == matrix.nnz
    assert {*first.timestamp, *second.timestamp} == set(range(matrix.nnz))
    assert data[3].user_ids.tolist() == ["u3"] and (data[3].matrix != matrix[[3]]).nnz == 0


def test_changing_the_loss_after_the_fit_does_not_change_the_model(X):
    loss = RG2(alpha=0.1)
    model = RGALS(K=4, n_iter=2, loss=loss, random_state=0).fit(X)
    loss.alpha = 5.0
    np.testing.assert_array_equal(model.transform(X), model.user_factors_)


def test_score_is_the_ranking_of_hidden_interactions_and_repeats(split):
    train, _, _ = split
    model = RGALS(K=16, random_state=0).fit(train[:300])
    figure = model.score(train[300:])
    assert figure == model.score(train[300:])
    assert figure > RGALS(K=16, reg=50.0, random_state=0).fit(train[:300]).score(train[300:])
    for falling in ("gini@10", "dislike_rate@10"):  # scikit-learn's searches took the worst by them
        with pytest.raises(ParameterError, match="metric=.*better when larger"):
            model.set_params(metric=falling).score(train[300:])


def test_searches_judge_users_by_their_features_too(rng):
    group = rng.integers(0, 4, 120)
    X = sp.csr_array((rng.random((120, 60)) < np.kron(np.eye(4), np.full(15, 0.4))[group] + 0.02) * 1.0)
    told, features = X[:80], np.eye(4)[group]
    model = RGALS(K=4, reg=0.3, random_state=0).fit(told, user_features=features[:80])
    shown, hidden = hold_out(as_csr(X[80:]), 0.2, seed=0)
    folded = model.transform(shown.to_scipy(), user_features=features[80:])
    expected = evaluate((folded, model.item_factors_), shown, hidden)["ndcg@10"]
    assert model.score(X[80:], user_features=features[80:]) == pytest.approx(expected)
    with pytest.warns(UserWarning, match="give it user_features"):
        assert model.score(X[80:]) < expected
    with sklearn.config_context(enable_metadata_routing=True):
        routed = RGALS(K=4, reg=0.3, random_state=0).set_fit_request(user_features=True)
        routed.set_score_request(user_features=True)
        search = GridSearchCV(routed, {"feature_reg": [0.1, 1.0]}, cv=[(np.arange(80), np.arange(80, 120))])
        search.fit(X, user_features=features)
    best = RGALS(K=4, reg=0.3, random_state=0, feature_reg=0.1).fit(told, user_features=features[:80])
    assert search.cv_results_["mean_test_score"][0] == best.score(X[80:], user_features=features[80:])


def test_predict_gives_pairs_or_the_next_item(model, X):
    users, items = np.array([0, 5, 5]), np.array([1, 0, 7])
    expected = (model.user_factors_[users] * model.item_factors_[items]).sum(axis=1)
    np.testing.assert_allclose(model.predict(users, items), expected, rtol=1e-5)
    best = model.predict(X[:3])
    np.testing.assert_array_equal(best, model.recommend_new(X[:3], n=1)[0][:, 0])


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("name", ["rg2", "rgx-half", "rgx-gramian", "ials-proposal", "wrmf-exponents"])
def test_a_saved_model_is_the_same_model(name, X, tmp_path):
    users = [f"user {i} \N{SNOWMAN}" for i in range(X.shape[0])]
    items = list(range(1000, 1000 + X.shape[1]))
    model = RGALS(K=6, loss=LOSSES[name], n_iter=2, random_state=7)
    model.fit(X, user_ids=users, item_ids=items)
    model.save(tmp_path / "model")
    twin = RGALS.load(tmp_path / "model")
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    np.testing.assert_array_equal(twin.user_factors_, model.user_factors_)
    np.testing.assert_array_equal(twin.transform(X), model.transform(X))
    np.testing.assert_array_equal(*(m.recommend(Positions([0, 1]), 5).ids for m in (twin, model)))
    assert twin.history_ == model.history_
    assert twin.solver_ == model.solver_
    assert str(twin.get_params()) == str(model.get_params())
    assert twin.user_ids_.tolist() == users
    assert twin.item_ids_.tolist() == items


def test_ids_come_along_with_interactions(tmp_path):
    data = read_interactions((["ann", "bob", "ann", "cy"], ["tea", "tea", "milk", "milk"]))
    model = RGALS(K=1, n_iter=1, random_state=0).fit(data)
    model.save(tmp_path / "m")
    assert RGALS.load(tmp_path / "m").item_ids_.tolist() == data.item_ids.tolist()


def test_what_is_no_model_is_not_loaded(tmp_path, model):
    (tmp_path / "text").write_text("hello")
    np.savez(tmp_path / "other.npz", user_factors=np.ones((2, 2)))
    model.save(tmp_path / "cut")
    whole = (tmp_path / "cut").read_bytes()
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    for name in ("text", "other.npz", "cut"):
        with pytest.raises(ModelFileError, match=name):
            RGALS.load(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        RGALS.load(tmp_path / "nothing")
    with pytest.raises(NotFittedError):
        RGALS().save(tmp_path / "unfitted")
    assert not (tmp_path / "unfitted").exists()


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("params", "error", "words"),
    [
        ({"K": 0}, ParameterError, "K=0"),
        ({"K": "auto"}, ParameterError, "K='auto' .*RGALSCV"),
        ({"K": -3}, ParameterError, "K=-3"),
        ({"K": 2.5}, ParameterError, "K=2.5"),
        ({"K": True}, ParameterError, "K=True"),
        ({"K": "8"}, ParameterError, "K='8'"),
        ({"reg": -0.1}, ParameterError, "reg"),
        ({"reg": np.nan}, ParameterError, "reg"),
        ({"reg_exponent": np.inf}, ParameterError, "reg_exponent"),
        ({"n_iter": 0}, ParameterError, "n_iter"),
        ({"early_stopping": "no"}, ParameterError, "early_stopping='no'"),
        ({"warm_start": "False"}, ParameterError, "warm_start='False'"),
        ({"loss": "bpr"}, ParameterError, "'rg2', 'rgx', 'wrmf', 'ials'"),
        ({"loss": RG2(alpha=-1.0)}, ParameterError, "RG2.alpha"),
        ({"loss": RGX}, InputTypeError, "RGX()"),
        ({"loss": None}, InputTypeError, "loss"),
        ({"solver": "magic"}, ParameterError, "solver"),
        ({"solver": "svd"}, ParameterError, "alpha=0"),
        ({"dtype": "float16"}, ParameterError, "dtype"),
        ({"dtype": 7}, ParameterError, "dtype"),
        ({"device": "tpu"}, ParameterError, "device"),
        ({"n_jobs": 0}, ParameterError, "n_jobs"),
        ({"init_scale": 0.0}, ParameterError, "init_scale"),
        ({"tol": -1}, ParameterError, "tol"),
        ({"patience": 0}, ParameterError, "patience"),
        ({"metric": "nothing@3", "early_stopping": True}, ParameterError, "nothing"),
        ({"metric": "dislike_rate@5", "early_stopping": True}, ParameterError, "better when larger"),
        ({"metric": "gini@5", "early_stopping": True}, ParameterError, "better when larger"),
        ({"random_state": "x"}, ValueError, "seed"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_bad_parameters(params, error, words, X):
    with pytest.raises(error, match=words.replace("(", r"\(").replace(")", r"\)")):
        RGALS(**params).fit(X)


def csr(data, indices, indptr, shape):
    """A matrix that scipy would not build: its arrays are put in by hand."""
    out = sp.csr_array(shape)
    out.data, out.indices, out.indptr = np.asarray(data), np.asarray(indices), np.asarray(indptr)
    return out


def with_value(value):
    return sp.csr_array((np.array([1.0, value]), ([0, 2], [1, 3])), shape=(4, 5))


@pytest.mark.parametrize(
    ("matrix", "error", "words"),
    [
        (None, InputTypeError, "not NoneType"),
        ("text", InputTypeError, "not str"),
        ({"a": 1}, InputTypeError, "not dict"),
        (3.0, InputTypeError, "not float"),
        ([["a", "b"]], ValueError, "numeric|convert"),
        (np.array([[1.0, np.nan]]), InputError, "NaN at row 0, column 1"),
        (np.ones(5), ValueError, "2D|two dimensions"),
        (np.ones((2, 2, 2)), ValueError, "dim"),
        (sp.csr_array((0, 5)), InputError, "no users"),
        (sp.csr_array((5, 0)), InputError, "no items"),
        (sp.csr_array((5, 4)), InputError, "no interactions"),
        (np.zeros((5, 4)), InputError, "no interactions"),
        (with_value(np.nan), InputError, "NaN at row 2, column 3"),
        (with_value(np.inf), InputError, "row 2, column 3"),
        (with_value(-1.0), InputError, "-1.0 at row 2, column 3"),
        (with_value(-1.0).tocsc(), InputError, "-1.0 at row 2, column 3"),
        (with_value(1e300), InputError, "row 2, column 3"),
        (with_value(1j), ValueError, "[Cc]omplex"),
        (csr([1.0, 1.0], [0, 9], [0, 1, 2], (2, 5)), InputError, "row 1 holds column index 9, outside 0..4"),
        (csr([1.0, 1.0], [0, -1], [0, 1, 2], (2, 5)), InputError, "row 1 holds column index -1"),
        (csr([1.0, 1.0], [0, 1], [0, 2, 1], (2, 5)), InputError, "decreases after row 1"),
        (csr([1.0, 1.0], [0, 1], [0, 1, 7], (2, 5)), InputError, "row 1 ends at entry 7"),
        (csr([1.0, 1.0], [0, 1], [1, 1, 2], (2, 5)), InputError, "indptr must start with 0"),
        (csr([1.0, 1.0], [0, 1], [0, 2], (2, 5)), InputError, "indptr has 2 entries"),
    ],
)
def test_bad_matrices(matrix, error, words):
    with pytest.raises(error, match=words):
        RGALS(K=2, n_iter=1).fit(matrix)


def test_calls_that_do_not_fit_the_model(model, X):
    n_users, n_items = X.shape
    with pytest.raises(ShapeError, match=r"\(50, 80\).*transposed"):
        model.transform(X.T)
    for method in (model.transform, model.predict, model.score):
        with pytest.raises(ShapeError, match="49 features, but RGALS is expecting 50"):
            method(X.toarray()[:, 1:])  # dense, whose number of columns scikit-learn checks
    with pytest.raises(ShapeError, match="transposed"):
        model.recommend_new(sp.csr_array(X.T))
    with pytest.raises(ShapeError):
        model.recommend([0, 1], exclude=sp.csr_array(X.T))
    with pytest.raises(ShapeError):
        model.objective(X[:10])
    for users in ([n_users], [-1], [0, 10**6]):
        with pytest.raises(UnknownIdError, match="user"):
            model.recommend(users)
    with pytest.raises(UnknownIdError, match="item"):
        model.predict([0], [n_items])
    with pytest.raises(InputTypeError):
        model.recommend([0.5])
    with pytest.raises(ParameterError, match="n="):
        model.recommend([0], n=0)
    with pytest.raises(ShapeError, match="validation"):
        RGALS(K=2).fit(X, validation=X[:5])
    with pytest.raises(InputError, match="user_ids"):
        RGALS(K=2).fit(X, user_ids=["a"])
    for call in ("transform", "recommend", "score", "objective"):
        with pytest.raises(NotFittedError):
            getattr(RGALS(), call)(X)


def test_users_without_interactions_get_nothing_invented(model, X):
    assert X[[3]].nnz == 0
    with pytest.warns(UserWarning, match="1 of 2 users"):
        ids, scores = model.recommend([3, 4], n=5)
    assert (ids[0] == -1).all()
    assert (scores[0] == -np.inf).all()
    assert (ids[1] >= 0).all()


@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (6, 1), (3, 4)])
def test_tiny_matrices_and_more_factors_than_anything(shape):
    for loss in ("rg2", "rgx", "ials", "wrmf"):
        model = RGALS(K=20, loss=loss, n_iter=2, random_state=0).fit(np.ones(shape))
        assert np.isfinite(model.user_factors_).all()
        assert np.isfinite(model.item_factors_).all()


def test_every_public_error_is_caught_by_the_base_class():
    names = [name for name in rgals.__all__ if name.endswith("Error")]
    for name in names:
        assert issubclass(getattr(rgals, name), rgals.RgalsError)
    # Three were raised and documented, and could be imported from no public module.
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert {kind.__name__ for kind in kinds} <= set(rgals.__all__)


class Own(RGALS):
    """A model with an ``__init__`` of its own, as scikit-learn's users write them."""

    def __init__(self, strength: float = 0.1, random_state: int | None = None) -> None:
        super().__init__(K=4, loss="ials", reg=strength, n_iter=3, random_state=random_state)
        self.strength = strength


def test_a_subclass_with_parameters_of_its_own_shows_itself_updates_and_is_saved(tmp_path):
    X = interactions(40, 30)
    model, plain = Own(0.2, random_state=0).fit(X), RGALS(4, "ials", reg=0.2, n_iter=3, random_state=0).fit(X)
    assert model.fingerprint() == plain.fingerprint() and model.params_["n_iter"] == 3
    assert repr(model).startswith("Own(random_state=0, strength=0.2)  # fitted with ")
    model.save(tmp_path / "m.npz")
    loaded = Own.load(tmp_path / "m.npz")
    assert loaded.fingerprint() == model.fingerprint() and repr(loaded) == repr(model)
    assert loaded.get_params() == model.get_params() and loaded.partial_fit(X[:3]).K == 4


def test_a_frame_of_users_has_their_ids_and_not_the_index_of_events():
    """``set_output`` would take the index of what came in: as many events as users were mislabelled."""
    events = pd.DataFrame({"user": ["zoe", "ann"], "item": ["tea", "rum"]}, index=["first", "second"])
    model = RGALS(K=2, random_state=0).fit(pd.concat([events, events.assign(item="milk")]))
    plain = model.transform(events)
    model.set_output(transform="pandas")
    found = model.transform(events)
    assert found.index.tolist() == ["ann", "zoe"]
    np.testing.assert_array_equal(found, plain)
    np.testing.assert_array_equal(model.transform(events[:1]).loc["zoe"], found.loc["zoe"])
    with sklearn.config_context(transform_output="pandas"):
        fresh = RGALS(K=2, random_state=0).fit(pd.concat([events, events.assign(item="milk")]))
        assert fresh.transform(events).index.tolist() == ["ann", "zoe"]
    whole = model.fit_transform(pd.concat([events, events.assign(item="milk")]))
    assert whole.index.tolist() == ["ann", "zoe"] and np.any(whole)


def test_fit_transform_reads_validation_by_the_columns_too():
    """It read X by them and left validation without: an error advised the argument that was given."""
    events = pd.DataFrame({"who": ["ann", "ann", "bob", "bob"], "what": ["tea", "milk", "tea", "rum"]})
    shown = {"columns": {"user": "who", "item": "what"}, "validation": events[1:2].assign(what="rum")}
    model = RGALS(K=2, n_iter=1, random_state=0)
    assert model.fit_transform(events, **shown).shape == (2, 2) and "ndcg@10" in model.history_[-1]


def test_marked_test_interactions_are_not_fitted_in_silence():
    data = read_interactions(
        pd.DataFrame({"user": [1, 1, 2, 2], "item": [1, 2, 1, 3], "split": [0, 1, 0, 1]})
    )
    with pytest.warns(UserWarning, match="2 interactions of X are marked as test"):
        RGALS(K=2).fit(data)
    with pytest.warns(UserWarning, match="2 interactions of X are marked as test"):
        tune("rg2", data, {"K": 2}, budget=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model = RGALS(K=2).fit(data.train, user_ids=data.user_ids, item_ids=data.item_ids)
    with pytest.warns(UserWarning, match="2 interactions of X are marked as test"):
        model.partial_fit(data)
    with pytest.warns(UserWarning, match="2 interactions of X_rows are marked as test"):
        model.partial_fit_users(data)
