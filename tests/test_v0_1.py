"""Models and checkpoints that rgals 0.1 wrote go on working: `data/v0_1/make.py` made them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from rgals import IALS, RG2, RGALS, RGX, WRMF, Positions
from rgals.sgd import SGDRanker

DATA = Path(__file__).with_name("data") / "v0_1"
EXPECTED = json.loads((DATA / "expected.json").read_text())
#: How the fits were called, with the defaults that the losses and ``reg`` had in 0.1.
SETTINGS = {
    "rg2": {"loss": RG2(alpha=0.05)},
    "rgx": {"loss": RGX(alpha=0.05, beta=1.0), "dtype": "float64"},
    "ials-pcg": {"loss": IALS(alpha0=0.1), "solver": "pcg"},
    "wrmf-early": {"loss": WRMF(alpha=10.0), "early_stopping": True, "patience": 3, "metric": "ndcg@3"},
    "generator": {"loss": RG2(alpha=0.05), "random_state": None},
}

pytestmark = pytest.mark.filterwarnings("ignore:.*no training interactions")


def check_lists(model, wanted, rtol):
    users = np.arange(0, 30, 4)
    assert model.n_iter_ == wanted["n_iter"]
    np.testing.assert_allclose([r["objective"] for r in model.history_], wanted["objective"], rtol=rtol)
    for name, (ids, scores) in (
        ("recommend", model.recommend(Positions(users), 3)),
        ("similar", model.similar_items(Positions([0, 7]), 3)),
    ):
        np.testing.assert_array_equal(ids, wanted[name][0])
        np.testing.assert_allclose(scores, wanted[name][1], rtol=rtol, atol=rtol)


@pytest.mark.parametrize("name", EXPECTED["models"])
def test_models_load_and_give_equal_lists(name, tmp_path):
    kind = SGDRanker if name.startswith("sgd") else RGALS
    model = kind.load(DATA / f"{name}.npz")
    check_lists(model, EXPECTED["models"][name], 1e-6)
    assert model.values == "raw" and model.n_features_in_ == 20
    assert kind is SGDRanker or model.user_mean is False
    assert model.user_ids_[3] == "user 3 \N{SNOWMAN}" and model.item_ids_.tolist() == list(range(1000, 1020))
    X = sp.load_npz(DATA / "matrix.npz")
    np.testing.assert_array_equal(model.seen_.toarray(), X.toarray())
    if kind is RGALS and name != "rg2-early":  # there a part of X was held out
        np.testing.assert_allclose(model.transform(X), model.user_factors_, rtol=1e-4, atol=1e-5)
    model.save(tmp_path / "again.npz")
    twin = kind.load(tmp_path / "again.npz")
    check_lists(twin, EXPECTED["models"][name], 1e-6)
    assert repr(twin) == repr(model)


@pytest.mark.parametrize("name", EXPECTED["checkpoints"])
def test_checkpoints_go_on_to_equal_lists(name, tmp_path):
    shutil.copytree(DATA / "checkpoints" / name, tmp_path / "checkpoint")
    X = sp.load_npz(DATA / "matrix.npz")
    model = RGALS(**{"K": 3, "reg": 0.05, "n_iter": 5, "random_state": 0, **SETTINGS[name]})
    model.fit(X, checkpoint=tmp_path / "checkpoint")
    check_lists(model, EXPECTED["checkpoints"][name], 1e-4)
