"""Searches with features of users and items: all of their fits have them, those of samples too."""

import numpy as np
import pytest
import scipy.sparse as sp

from rgals import IALS, RGALS, RGALSCV, InputError, ParameterError
from rgals.cli import main
from rgals.datasets import Interactions, make_implicit
from rgals.metrics import evaluate
from rgals.model_selection import Search, split_interactions, tune
from rgals.model_selection.tuning import prepared as preparation
from rgals.model_selection.tuning.prepared import split_for_tuning


@pytest.fixture(scope="module")
def told():
    """Interactions, and features of users and items that tell what the interactions follow."""
    data = make_implicit(300, 120, random_state=3)
    truth = RGALS(K=4, random_state=0).fit(data.matrix)
    assert np.ptp(truth.user_factors_) > 0
    assert np.ptp(truth.item_factors_) > 0
    return data.matrix, {
        "user_features": sp.csr_array(truth.user_factors_.astype(np.float64)),
        "item_features": sp.csr_array(truth.item_factors_.astype(np.float64)),
    }


@pytest.mark.parametrize("sides", [["item_features"], ["user_features"], ["user_features", "item_features"]])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_figures_of_a_search_are_those_of_fits_with_the_features(told, sides, dtype):
    X, features = told
    features = {name: features[name] for name in sides}
    train, held_out = split_interactions(X, (0.8, 0.2), random_state=0)
    how = {"random_state": 0, "dtype": dtype}
    model = RGALSCV(K=8, budget=0.2, n_iter=4, **how).fit(train, validation=held_out, **features)
    found = model.cv_results_
    full = np.flatnonzero(found["level"] == 2)
    assert len(full) >= 1
    for row in full:
        fitted = RGALS(**{**found["params"][row], **how}).fit(train, **features)
        own = evaluate(fitted, train, held_out, "ndcg@10")["ndcg@10"]
        assert found["mean_test_score"][row] == pytest.approx(own, rel=1e-6)
    without = RGALSCV(K=8, budget=0.2, n_iter=4, **how).fit(train, validation=held_out).cv_results_
    assert not np.allclose(without["mean_test_score"][:1], found["mean_test_score"][:1], rtol=1e-6)
    last = RGALS(**{**model.best_params_, **how}).fit(train + held_out, **features)
    np.testing.assert_array_equal(model.item_factors_, last.item_factors_)
    np.testing.assert_array_equal(model.user_factors_, last.user_factors_)


def test_float64_and_times_stay_in_searches_with_features(told):
    """Values that float32 does not hold were rounded on the way, or gone, and their times were not."""
    X, features = told
    rng = np.random.default_rng(0)
    valued = sp.csr_array(X, dtype=np.float64)
    valued.data = np.where(rng.random(X.nnz) < 0.05, 1e-60, 1 + rng.random(X.nnz))
    users, items = np.arange(X.shape[0]), np.arange(X.shape[1])
    data = Interactions(valued, users, items, rng.integers(10**9, 10**9 + 10**7, X.nnz))
    how = {"random_state": 0, "dtype": "float64"}
    model = RGALSCV(K=8, budget=1, n_iter=4, n_splits=1, values="raw", **how).fit(data, **features)
    assert -1 in model.cv_results_["level"] and model.seen_.nnz == X.nnz
    last = RGALS(**{**model.best_params_, **how}).fit(data, **features)
    np.testing.assert_array_equal(model.item_factors_, last.item_factors_)


def test_items_with_features_alone_are_found_and_served(told, tmp_path):
    pd = pytest.importorskip("pandas")
    X, features = told
    ids = np.array([f"i{k}" for k in range(X.shape[1] + 5)])
    data = Interactions(X, np.array([f"u{k}" for k in range(X.shape[0])]), ids[:-5])
    kinds = np.arange(len(ids)) % 3
    table = pd.DataFrame({"item": ids, "kind": [f"k{k}" for k in kinds]}).sample(frac=1, random_state=0)
    model = RGALSCV(K=8, budget=0.2, n_iter=4, n_splits=1, random_state=0).fit(data, item_features=table)
    assert set(model.item_ids_) == set(ids)
    expected = RGALS(**model.best_params_, random_state=0).fit(data, item_features=table)
    np.testing.assert_array_equal(model.item_ids_, expected.item_ids_)
    np.testing.assert_array_equal(model.item_factors_, expected.item_factors_)
    model.save(tmp_path / "model.npz")
    loaded = RGALS.load(tmp_path / "model.npz")
    more = pd.DataFrame({"item": ["new"], "kind": ["k1"]})
    assert loaded.partial_fit(None, item_features=more).item_ids_[-1] == "new"
    result = tune("ials", data, {"K": 8}, budget=0.2, item_features=table)
    assert set(result.model.item_ids_) == set(ids)
    cold = result.model.item_factors_[np.flatnonzero(result.model.item_ids_ == "i120")[0]]
    assert np.abs(cold).max() > 0


def test_samples_of_users_keep_their_own_features(told, monkeypatch):
    X, features = told
    numbers = {
        "user_features": np.arange(X.shape[0], dtype=float)[:, None],
        "item_features": np.eye(X.shape[1]),
    }
    monkeypatch.setattr(preparation, "_LARGE", X.nnz // 3)
    monkeypatch.setattr(preparation, "_JUDGES", 20)
    prepared = split_for_tuning(X, None, None, 1, 10_000, 0, numbers)
    (whole,), (part,) = prepared.splits, prepared.cheap
    assert part.train.n_rows < whole.train.n_rows
    rows = part.features["user_features"].toarray().ravel().astype(int)
    assert len(rows) == part.train.n_rows
    np.testing.assert_array_equal(part.train.row_counts, whole.train.row_counts[rows])
    np.testing.assert_array_equal(part.train.indices, whole.train.take_rows(rows).indices)
    assert part.features["item_features"].shape == (X.shape[1], X.shape[1])
    model = RGALSCV(K=8, budget=0.2, n_iter=2, n_splits=1, random_state=0).fit(X, **features)
    assert np.isfinite(model.best_score_)


def test_hard_negatives_are_tried_with_features_of_items_and_not_of_users(told):
    X, features = told
    fixed = {"alpha": 0.1, "item_exponent": 0.0, "reg": 0.1, "reg_exponent": 1.0, "readout_exponent": 0.0}
    how = {"K": 8, "budget": 2, "n_iter": 4, "random_state": 0, "n_splits": 1}

    def weights(**given):
        columns = RGALSCV(**how, space=fixed).fit(X, **given).cv_results_
        return set(np.ma.compressed(columns.get("param_hard_negatives", np.ma.array([]))))

    assert weights(item_features=features["item_features"])
    assert not weights(user_features=features["user_features"])
    with pytest.raises(ParameterError, match="hard_negatives"):
        RGALSCV(**how, space={"hard_negatives": [1.0]}).fit(X, user_features=features["user_features"])


def test_a_folder_knows_its_features(told, tmp_path):
    X, features = told
    how = {"K": 8, "budget": 0.2, "n_iter": 2, "random_state": 0, "n_splits": 2}
    first = RGALSCV(**how).fit(X, **features, folder=tmp_path)
    again = RGALSCV(**how).fit(X, **features, folder=tmp_path)
    np.testing.assert_array_equal(first.cv_results_["seconds"], again.cv_results_["seconds"])  # read, not run
    twice = {name: 2 * F for name, F in features.items()}
    for others in ({}, twice, {"item_features": features["item_features"]}):
        with pytest.raises(InputError, match="other settings"):
            RGALSCV(**how).fit(X, **others, folder=tmp_path)


def test_what_goes_with_no_features_is_refused_by_name(told):
    X, features = told
    with pytest.raises(InputError, match="features or a protocol, not both"):
        tune("rg2", X, {"K": 4}, protocol="user 80/10/10", budget=1, **features)
    with pytest.raises(TypeError, match=r"tune\(\) got an unexpected keyword argument 'budgets'"):
        tune("rg2", X, {"K": 4}, budgets=1)
    with pytest.raises(InputError, match="item_features has 119 rows"):
        RGALSCV(K=4).fit(X, item_features=features["item_features"][1:])
    with pytest.raises(ParameterError, match="features act by the regularisation"):
        tune("rg2", X, {"K": 4, "reg": 0.0}, budget=1, **features)


def test_dislikes_and_features_are_searched_together(told):
    X, features = told
    signed = sp.csr_array(X, copy=True)
    signed.data = np.where(np.arange(X.nnz) % 7 == 0, -1.0, 1.0).astype(np.float32)
    how = {"n_iter": 4, "n_splits": 1, "random_state": 0}
    model = RGALSCV(K=8, loss=IALS(dislikes=True), budget=0.2, **how).fit(signed, **features)
    last = RGALS(**{**model.best_params_, "random_state": 0}).fit(signed, **features)
    np.testing.assert_array_equal(model.item_factors_, last.item_factors_)


def test_the_command_line_tunes_with_features(told, tmp_path, capsys):
    pd = pytest.importorskip("pandas")
    X, _ = told
    pairs = sp.coo_array(X)
    log = pd.DataFrame({"user": pairs.coords[0], "item": pairs.coords[1]})
    items = pd.DataFrame({"item": np.arange(125), "kind": [f"k{k % 3}" for k in range(125)]})
    log.to_csv(tmp_path / "log.csv", index=False)
    items.to_csv(tmp_path / "items.csv", index=False)
    path, out, table = (str(tmp_path / name) for name in ("log.csv", "model.npz", "items.csv"))
    how = ["--budget", "0.2", "--n-iter", "2", "-K", "4", "-q"]
    assert main(["tune", path, "-o", out, "--item-features", table, *how]) == 0
    model = RGALS.load(out)
    assert len(model.item_ids_) == 125
    expected = tune("rg2", log, {"K": 4}, budget=0.2, search=Search(n_iter=2), item_features=items).model
    np.testing.assert_array_equal(model.item_factors_, expected.item_factors_)
    assert main(["tune", path, "-o", table, "--item-features", table, *how]) == 1  # would replace its input
    assert "items.csv" in capsys.readouterr().err
    assert len(pd.read_csv(table)) == 125
