"""What a model says of itself is what was fitted."""

from __future__ import annotations

import re

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import interactions

import rgals
from rgals import IALS, RGALS, RGALSCV
from rgals.baselines import EASE, Popularity
from rgals.cli import main
from rgals.datasets import make_implicit, read_interactions
from rgals.model.fitted import _bytes
from rgals.sgd import SGDRanker


def rows(text: str) -> int:
    """All rows that a plan speaks of."""
    return sum(int(number.replace(",", "")) for number in re.findall(r"(?:^|, )([\d,]*\d)", text))


@pytest.mark.parametrize("loss", ["rg2", "rgx", IALS(0.1)], ids=str)
def test_it_names_the_data_the_fit_and_every_row(loss):
    X = interactions(80, 50)
    model = RGALS(6, loss, n_iter=3, random_state=0).fit(X)
    info = model.info()
    assert info["data"] == f"80 users x 50 items, {X.nnz:,} interactions"
    assert info["factors"].startswith("K=6, float32") and info["fit"].startswith("3 iterations in ")
    assert (rows(info["users"]), rows(info["items"])) == (80, 50)
    assert str(info).count("\n") == len(info) - 1 and info["fingerprint"] == model.info()["fingerprint"]


def test_sgd_has_no_plan():
    info = SGDRanker(K=4, n_epochs=1, random_state=0).fit(interactions(30, 20, valued=True)).info()
    assert "users" not in info and info["data"].endswith("interactions with values")


def test_it_says_what_was_set_what_was_taken_and_what_it_takes(tmp_path):
    X = interactions(80, 50)
    model = RGALS(6, reg_exponent=0.5, readout_exponent=0.1, random_state=0).fit(X, item_ids=range(50))
    info = model.info()
    assert info["data"].endswith(", ids of items") and "updates" not in info
    for text in (
        f"reg={model.reg_:.4g}",
        "reg_exponent=0.5",
        "readout_exponent=0.1",
        "values='raw'",
        "alpha=",
    ):
        assert text in info["parameters"], text
    assert "patience" not in info["parameters"] and "auto" not in info["parameters"]
    assert not re.search(r"\d\.\d{5}", info["parameters"]), "of a loss, too, four digits"
    assert info["versions"].count(" ") == 5 and info["memory"].endswith("KiB")
    model.partial_fit(X[:3])
    assert info["fingerprint"] != model.info()["fingerprint"]
    assert model.info()["updates"].startswith(f"{X[:3].nnz} interactions since the fit (")
    model.save(tmp_path / "m.npz")
    assert RGALS.load(tmp_path / "m.npz").info() == model.info()


def test_a_search_tells_no_defaults_of_its_last_fit():
    with pytest.warns(UserWarning, match="nothing can be hidden"):
        model = RGALSCV(K=2, random_state=0).fit(sp.eye_array(12, format="csr"))
    told = model.info()["parameters"]
    assert told == model.best_estimator_.info()["parameters"] and "patience" not in told and "reg=" in told


def test_memory_is_that_of_the_arrays():
    X = interactions(300, 200)
    state = RGALS(16, random_state=0).fit(X)._snapshot
    arrays = [
        state.user_factors,
        state.item_factors,
        state.seen.indptr,
        state.seen.indices,
        state.seen.values,
    ]
    arrays += [state.degrees.user_sum, state.degrees.item_sum]
    arrays += [state.degrees.user_count, state.degrees.item_count]
    assert _bytes(state) == sum(array.nbytes for array in arrays) > 300 * 16 * 4


@pytest.mark.parametrize("model", [SGDRanker(K=3, n_epochs=1), Popularity(), EASE()], ids=repr)
def test_every_model_tells(model, tmp_path, capsys):
    model.fit(interactions(40, 30)).save(tmp_path / "m.npz")
    assert main(["info", str(tmp_path / "m.npz")]) == 0
    assert capsys.readouterr().out == f"{model.info()}\n" and model.info()["model"] == type(model).__name__


def test_the_command_prints_it_or_names_the_fault(tmp_path, capsys):
    RGALS(4, random_state=0).fit(interactions(40, 30)).save(tmp_path / "m.npz")
    assert main(["info", str(tmp_path / "m.npz")]) == 0
    assert "data         40 users x 30 items" in capsys.readouterr().out
    (tmp_path / "m.npz").write_bytes(b"no model")
    assert main(["info", str(tmp_path / "m.npz")]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "m.npz: not an npz file" in err
    assert main(["info", str(tmp_path / "none.npz")]) == 1


def test_names_that_are_listed_are_public():
    model = RGALS(4, random_state=0).fit(interactions(40, 30))
    for one in (model, RGALS(), SGDRanker(), Popularity(), rgals, rgals.datasets, rgals.scoring):
        assert [n for n in dir(one) if n.startswith("_") and n != "__version__"] == []
    assert {"fit", "recommend", "item_factors_", "K"} <= set(dir(model))
    assert {"RGALS", "Positions", "warmup", "datasets"} <= set(dir(rgals))
    assert not {"kernels", "runtime", "TYPE_CHECKING", "later"} & set(dir(rgals))


def test_reprs_are_short_and_answers_have_names():
    data = make_implicit(40, 30, mean_interactions=5, timestamps=True, random_state=0)
    assert (
        repr(data)
        == f"SyntheticInteractions(40 users x 30 items, {data.matrix.nnz:,} interactions, timestamp)"
    )
    assert repr(read_interactions(([1], [2]))) == "Interactions(1 users x 1 items, 1 interactions)"
    found = RGALS(4, random_state=0).fit(data.matrix).recommend([0, 1], 3)
    assert found.ids is found[0] and found.scores is found[1] and found._fields == ("ids", "scores")


def test_info_says_which_features_a_model_has_and_what_their_regularisation_became(tmp_path):
    X = interactions(40, 30)
    rng = np.random.default_rng(0)
    of_users, of_items = rng.normal(size=(40, 3)), rng.normal(size=(30, 1200))
    model = RGALS(K=4, feature_reg=0.25, random_state=0).fit(
        X, user_features=of_users, item_features=of_items
    )
    assert model.info()["features"] == "3 of users, feature_reg=0.25; 1,200 of items, feature_reg=0.25"
    model.save(tmp_path / "m.npz")
    assert RGALS.load(tmp_path / "m.npz").info() == model.info()
    found = RGALS(K=4, random_state=0).fit(X, item_features=of_items).info()["features"]
    assert found.startswith("1,200 of items, feature_reg=") and "auto" not in found
    assert "features" not in RGALS(K=4, user_mean=True, random_state=0).fit(X).info()
    model.partial_fit(interactions(40, 30, seed=5))
    assert model.info()["features"] == "3 of users; 1,200 of items"  # the unit was the ridges of the fit
