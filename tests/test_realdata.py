"""Quality on real data with the recorded settings; skipped by name where the data are absent."""

from __future__ import annotations

import json

import numpy as np
import pytest
from conftest import ROOT

from rgals import IALS, RG2, RGALS, RGX, WRMF, ValuesWarning
from rgals.baselines import Popularity
from rgals.datasets import read_interactions
from rgals.metrics import evaluate
from rgals.model_selection import PROTOCOLS, split_interactions

SETTINGS = json.loads((ROOT / "benchmarks" / "quality_settings.json").read_text())
LOSSES = {"RG2": RG2, "iALS": IALS, "WRMF plain": WRMF}


def fit(data_set, method, train):
    setting = dict(SETTINGS[data_set][method])
    of_model = {name: setting.pop(name) for name in ("reg", "reg_exponent")}
    loss = LOSSES[method](**setting)  # tuned with 16 iterations from random factors
    return RGALS(64, loss, n_iter=16, init="random", random_state=0, **of_model).fit(train)


@pytest.mark.few(2)
@pytest.mark.realdata
@pytest.mark.parametrize(
    ("data_set", "floor"), [("amazon-health-10core", 0.143), ("amazon-electronics-10core", 0.056)]
)
@pytest.mark.parametrize("method", ["RG2", "iALS"])
def test_ndcg_on_fixed_splits(data_set, floor, method, data_file):
    data = read_interactions(data_file(data_set))
    model = fit(data_set, method, data.train)
    assert evaluate(model, data.train, data.test, ("ndcg@20",))["ndcg@20"] >= floor


@pytest.mark.realdata
@pytest.mark.few(0)
def test_rg2_leads_on_ml_1m(data_file):
    parts = PROTOCOLS["stars>=3 5-core user 80/10/10"].apply(read_interactions(data_file("ml-1m")))
    figures = {
        method: evaluate(fit("ml-1m", method, parts.train), parts.train, parts.test)["ndcg@10"]
        for method in LOSSES
    }
    assert figures["RG2"] >= 1.03 * figures["WRMF plain"]
    assert figures["RG2"] >= 0.99 * figures["iALS"]


@pytest.mark.realdata
def test_the_default_of_rgx_holds_a_constant_of_a_users_scores(data_file):
    """With all of the interaction a constant costs nothing, and takes what alpha gives: sparse data lose."""
    X = read_interactions(data_file("steam-200k-purchases"), binarize=True).matrix
    train, test = split_interactions(X, (0.8, 0.2), random_state=0)
    rg2, rgx, whole = (
        evaluate(RGALS(64, loss, random_state=0).fit(train), train, test)["ndcg@10"]
        for loss in ("rg2", "rgx", RGX(beta=1.0))
    )
    assert rgx >= 0.98 * rg2
    assert whole < 0.9 * rg2


@pytest.mark.realdata
@pytest.mark.parametrize("loss", ["rg2", "ials"])
@pytest.mark.parametrize("data_set", ["steam-200k-hours", "lastfm-hetrec2011"])
@pytest.mark.few(0)
def test_play_counts_are_fitted_as_well_as_by_the_best_of_three(data_set, loss, data_file):
    X = read_interactions(data_file(data_set)).matrix
    train, test = split_interactions(X, (0.8, 0.2), random_state=0)

    def figure(values):
        model = RGALS(32, loss, n_iter=8, values=values, random_state=0).fit(train)
        return evaluate(model, train, test)["ndcg@10"]

    with pytest.warns(ValuesWarning, match="'binary'"):
        auto = figure("auto")
    assert auto >= 0.98 * max(figure(values) for values in ("raw", "log1p", "binary"))
    assert auto >= 1.05 * figure("raw")


@pytest.mark.realdata
@pytest.mark.parametrize("n_items", [30, 100])
def test_the_rule_holds_where_a_catalogue_is_small(data_file, n_items):
    """Of few items a user has many, and with the weight of large catalogues positives hardly counted."""
    X = read_interactions(data_file("steam-200k-purchases"), binarize=True).matrix.tocsc()
    X = X[:, np.sort(np.argsort(-X.sum(axis=0), kind="stable")[:n_items])].tocsr()
    train, test = split_interactions(X[np.diff(X.indptr) > 2], (0.8, 0.2), random_state=0)
    default, large, popular = (
        evaluate(model.fit(train), train, test)["ndcg@10"]
        for model in (RGALS(random_state=0), RGALS(64, RG2(alpha=0.024), random_state=0), Popularity())
    )
    assert default > 1.02 * large and default > 1.9 * popular
