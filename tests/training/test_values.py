"""`values=`: one transformation, with the statistics of the fitted matrix, wherever a model meets values."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import interactions

from rgals import RGALS, CheckpointError, ModelFileError, ParameterError, ValuesWarning
from rgals.datasets import Interactions, read_interactions
from rgals.files.archive import load_npz, save_npz
from rgals.matrix.validate import as_csr
from rgals.matrix.weighting import Weighting
from rgals.model.file import SPEC
from rgals.model_selection import tune
from rgals.sgd import SGDRanker

KINDS = ("log1p", "binary", "bm25")


def counts():
    X = interactions(80, 50, seed=2)
    X.data = np.random.default_rng(0).lognormal(2.0, 1.5, X.nnz).astype(np.float32)
    return X


def stars():
    X = interactions(120, 50, seed=2)
    X.data = np.random.default_rng(0).choice([1.0, 2, 3, 4, 5], X.nnz, p=[0.06, 0.11, 0.27, 0.34, 0.22])
    assert X.nnz > 1000
    return X


def weighted(kind, X, dtype=np.float64):
    matrix = as_csr(X, dtype=dtype)
    return Weighting.of(kind, matrix).rows(matrix).to_scipy(dtype)


def make(kind, values, **params):
    iterations = {"n_iter": 3} if kind is RGALS else {"n_epochs": 3}
    return kind(K=5, random_state=0, dtype="float64", values=values, **{**iterations, **params})


@pytest.mark.parametrize("kind", [RGALS, SGDRanker])
@pytest.mark.parametrize("values", KINDS)
def test_a_fit_is_that_of_the_weights(kind, values):
    X = counts()
    model, plain = make(kind, values).fit(X), make(kind, "raw").fit(weighted(values, X))
    np.testing.assert_array_equal(model.user_factors_, plain.user_factors_)
    np.testing.assert_array_equal(model.item_factors_, plain.item_factors_)
    assert (model.seen_ != X).nnz == 0
    different = make(kind, "raw").fit(X)
    assert not np.allclose(model.item_factors_, different.item_factors_)


@pytest.mark.parametrize("values", KINDS)
def test_every_method_takes_the_weights_of_the_fit(values, tmp_path):
    X = counts()
    model, plain = make(RGALS, values).fit(X), make(RGALS, "raw").fit(weighted(values, X))
    model.save(tmp_path / "model.npz")
    few = X[[4, 60, 7]] * [[1.0], [5.0], [0.2]]
    few = sp.csr_array(few)
    matrix = as_csr(X, dtype=np.float64)
    told = Weighting.of(values, matrix).rows(as_csr(few, dtype=np.float64)).to_scipy(np.float64)
    for one in (model, RGALS.load(tmp_path / "model.npz")):
        np.testing.assert_array_equal(one.transform(X), model.user_factors_)
        np.testing.assert_array_equal(one.transform(few), plain.transform(told))
        np.testing.assert_array_equal(one.recommend_new(few, n=4)[0], plain.recommend_new(told, n=4)[0])
        assert one.objective(X) == pytest.approx(plain.objective(weighted(values, X)), rel=1e-12)
        assert one.objective(X) == pytest.approx(model.history_[-1]["objective"], rel=1e-9)
        why = one.explain(4, 9, n=None)
        assert why.contributions.sum() + why.all_pairs == pytest.approx(one.predict(4, 9)[0], rel=1e-9)
        np.testing.assert_allclose(
            one.transform_items(X), plain.transform_items(weighted(values, X)), rtol=1e-9
        )
        assert str(one.info()["users"]) == str(plain.info()["users"])
        assert one.fingerprint() == model.fingerprint()
    assert model.fingerprint() != plain.fingerprint()


@pytest.mark.parametrize("values", ["log1p", "binary"])
def test_the_score_hides_from_values_what_it_hides_from_weights(values):
    X = counts()
    model, plain = make(RGALS, values).fit(X[:50]), make(RGALS, "raw").fit(weighted(values, X[:50]))
    made = Weighting.of(values, as_csr(X[:50], dtype=np.float64))
    told = made.rows(as_csr(X[50:], dtype=np.float64)).to_scipy(np.float64)
    assert model.score(X[50:]) == plain.score(told)


@pytest.mark.parametrize("values", KINDS)
def test_updates_take_the_weights_of_the_fit(values):
    X = counts()
    model = make(RGALS, values).fit(X)
    history = sp.csr_array(X[[9]] * 3.0)
    model.partial_fit_users(sp.vstack([history, X[[4]]]).tocsr(), [80, 4])
    assert (model.seen_[[80]] != history).nnz == 0
    np.testing.assert_array_equal(model.transform(model.seen_[[80, 4]]), model.user_factors_[[80, 4]])
    degrees = model._state().degrees.user_sum[80]
    made = Weighting.of(values, as_csr(X, dtype=np.float64))
    assert degrees == pytest.approx(made.rows(as_csr(history, dtype=np.float64)).row_sums[0], rel=1e-12)

    fans = sp.csr_array(np.where(np.arange(80) % 9 == 0, 40.0, 0.0)[:, None])
    model = make(RGALS, values).fit(X).partial_fit_items(fans, [50])
    assert (model.seen_[:, [50]] != fans).nnz == 0
    np.testing.assert_allclose(model.transform_items(fans, [50])[0], model.item_factors_[50], rtol=1e-9)
    model = make(RGALS, values).fit(X).partial_fit_items(fans, [50], refresh_users=True)
    np.testing.assert_array_equal(model.transform(model.seen_), model.user_factors_)
    state = model._state()
    assert state.degrees.item_sum[50] == pytest.approx(state.weighting.rows(state.seen).col_sums[50])


def test_auto_leaves_ones_stars_and_small_counts_alone(recwarn):
    few = interactions(80, 50, valued=True)
    for X in (interactions(80, 50), few):
        a, b = make(RGALS, "auto").fit(X), make(RGALS, "raw").fit(X)
        np.testing.assert_array_equal(a.item_factors_, b.item_factors_)
        assert a.fingerprint() == b.fingerprint()
        assert a.params_["values"] == "raw" and "values" not in repr(a).partition("# fitted")[2]
    assert not [w for w in recwarn if issubclass(w.category, ValuesWarning)]


@pytest.mark.parametrize("kind", [RGALS, SGDRanker])
def test_a_heavy_tail_is_noticed_and_said_once(kind):
    X = counts()
    with pytest.warns(ValuesWarning, match="values='auto' took 'binary'.*Set values=") as said:
        model = make(kind, "auto").fit(X)
    assert [w.filename for w in said if w.category is ValuesWarning] == [__file__]
    np.testing.assert_array_equal(model.item_factors_, make(kind, "binary").fit(X).item_factors_)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ValuesWarning)
        for values in ("raw", *KINDS):
            make(kind, values).fit(X)
        if kind is RGALS:
            model.transform(X)
            model.partial_fit_users(X[[4]], [4])
            assert "values='binary'" in repr(model).partition("# fitted")[2]
            assert model.values == "auto" and model.params_["values"] == "binary"
            same = RGALS(K=5, n_iter=3, random_state=0, dtype="float64").set_params(**model.params_).fit(X)
            np.testing.assert_array_equal(same.item_factors_, model.item_factors_)


def test_stars_are_fitted_as_they_are_and_the_warning_names_min_value():
    X = stars()
    with pytest.warns(ValuesWarning, match=r"ratings up to 5.*min_value=4 .*--min-value 4"):
        model = make(RGALS, "auto").fit(X)
    np.testing.assert_array_equal(model.item_factors_, make(RGALS, "raw").fit(X).item_factors_)


def test_times_that_were_read_as_values_are_noticed():
    """A log without a header and stars has its time where the stars would be: weights of 1e9, in silence."""
    rng = np.random.default_rng(0)
    columns = (
        rng.integers(0, 30, 400),
        rng.integers(0, 20, 400),
        rng.integers(1_600_000_000, 1_700_000_000, 400),
    )
    with pytest.warns(ValuesWarning, match=r"values run from 16.* like times since 1970.*--timestamp-column"):
        make(RGALS, "auto").fit(read_interactions(columns, duplicates="max"))


def test_counts_of_which_the_largest_could_be_a_time_are_counts(rng):
    X = sp.csr_array((rng.random((30, 20)) < 0.4) * rng.integers(1, 9, (30, 20)).astype(float))
    X.data[7] = 1.65e9
    with pytest.warns(ValuesWarning, match="took 'binary'") as caught:
        make(RGALS, "auto").fit(X)
    assert not [one for one in caught if "like times" in str(one.message)]


@pytest.mark.parametrize("kind", [RGALS, SGDRanker])
def test_what_is_no_kind_is_refused_by_name(kind):
    for values in ("log", None, 1.0):
        with pytest.raises(ParameterError, match="values=.*'raw', 'log1p', 'binary', 'bm25'"):
            make(kind, values).fit(counts())
    with pytest.raises(ParameterError, match="values="):
        tune("rg2", counts(), {"K": 3}, values="tfidf")


def test_a_checkpoint_of_other_weights_is_refused_by_name(tmp_path):
    X = counts()
    whole = make(RGALS, "bm25").fit(X)
    make(RGALS, "bm25", n_iter=2).fit(X, checkpoint=tmp_path)
    for other in ("raw", "log1p", "binary"):
        with pytest.raises(CheckpointError, match=f"values is '{other}' here and 'bm25' there"):
            make(RGALS, other).fit(X, checkpoint=tmp_path)
    resumed = make(RGALS, "bm25").fit(X, checkpoint=tmp_path)
    np.testing.assert_array_equal(resumed.item_factors_, whole.item_factors_)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "auto"},
        {"kind": "other"},
        {"scale": 0.0},
        {"mean_length": float("inf")},
        {"n_users": "many"},
        {"kind": "log1p"},
        {"else": 1},
    ],
)
def test_damaged_statistics_are_refused(change, tmp_path):
    path = tmp_path / "model.npz"
    make(RGALS, "bm25").fit(counts()).save(path)
    arrays, meta = load_npz(path, expected=SPEC)
    meta["weighting"] |= change
    save_npz(path, arrays, meta, spec=SPEC)
    with pytest.raises(ModelFileError, match="damaged"):
        RGALS.load(path)


def test_tune_decides_once_and_its_search_may_choose():
    X = counts()
    with pytest.warns(ValuesWarning) as said:
        found = tune("rg2", X, {"K": 4, "alpha": 0.1, "reg": [0.05, 0.1]}, budget=2)
    assert [w.filename for w in said if w.category is ValuesWarning] == [__file__]
    assert found.model.values == "binary"
    with warnings.catch_warnings():
        warnings.simplefilter("error", ValuesWarning)
        fixed = {"K": 4, "alpha": 0.1, "reg": 0.1}
        assert tune("rg2", X, fixed, values="log1p", budget=1).model.values == "log1p"
        found = tune("rg2", X, {**fixed, "values": ["raw", "bm25"]}, budget=2)
    assert {row["params"]["values"] for row in found.trials} == {"raw", "bm25"}
    assert found.model.values == found.params["values"]


def test_the_command_line_takes_it(tmp_path, capsys):
    from rgals.cli import main

    X = counts()
    path = tmp_path / "counts.npz"
    Interactions(X, np.arange(80), np.arange(50)).save(path)
    command = [
        "fit",
        str(path),
        "-o",
        str(tmp_path / "model.npz"),
        "--K",
        "4",
        "--n-iter",
        "2",
        "--seed",
        "0",
    ]
    assert main(command) == 0
    said = capsys.readouterr().err
    assert said.count("rgals: warning: values run from") == 1
    assert RGALS.load(tmp_path / "model.npz").params_["values"] == "binary"
    assert main([*command, "--values", "log1p"]) == 0
    assert "warning" not in capsys.readouterr().err
    assert RGALS.load(tmp_path / "model.npz").params_["values"] == "log1p"
    assert main([*command, "--values", "log"]) != 0
    assert "'log1p'" in capsys.readouterr().err


@pytest.mark.parametrize(("sigma", "kind"), [(0.6, "raw"), (1.0, "binary")])
def test_a_tail_is_heavy_where_values_spread_more_than_their_mean(sigma, kind):
    X = interactions(60, 45)
    X.data = np.random.default_rng(0).lognormal(0.0, sigma, X.nnz)
    spread = X.data.std() / X.data.mean()
    assert (0.5 < spread < 0.9) if kind == "raw" else (1.1 < spread < 1.8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ValuesWarning)
        assert make(RGALS, "auto").fit(X)._state().weighting.kind == kind
