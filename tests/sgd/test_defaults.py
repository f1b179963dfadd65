"""SGDRanker by its defaults: what is set is kept, what is not is chosen, shown, stored, and good."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import ROOT
from helpers import interactions
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from rgals import Checkpoint
from rgals.datasets import make_implicit
from rgals.losses import Degrees
from rgals.matrix.validate import as_csr
from rgals.metrics import evaluate
from rgals.model_selection import split_interactions
from rgals.runtime.errors import CheckpointError, ParameterError
from rgals.sgd import SGDRanker
from rgals.sgd.defaults import AUTOMATIC, setting

SET = {
    "score": "dot",
    "temperature": 0.7,
    "offset": 0.3,
    "lr": 0.013,
    "n_epochs": 3,
    "batch_size": 17,
    "n_negatives": 4,
}


@pytest.fixture(scope="module")
def X():
    return interactions(80, 40, seed=3)


def same(a, b):
    return (a.user_factors_ == b.user_factors_).all() and (a.item_factors_ == b.item_factors_).all()


@pytest.fixture(scope="module")
def chosen(X):
    """What a fit by the rule takes."""
    return SGDRanker(K=3, loss="bpr", random_state=0).fit(X).params_


@pytest.mark.parametrize("name", SET)
def test_what_is_set_is_kept(name, X, chosen):
    assert set(SET) == set(AUTOMATIC)
    model = SGDRanker(K=3, loss="bpr", random_state=0, **{"n_epochs": 1, name: SET[name]}).fit(X)
    assert model.params_[name] == SET[name] == model.get_params()[name]
    assert name not in model.history_[0] and f"{name}=" not in repr(model).partition("#")[2]
    assert chosen[name] != SET[name]


@pytest.mark.parametrize("loss", ["softmax", "sampled_softmax", "bpr", "rg2", "bce"])
def test_auto_is_resolved_and_shown(loss, X, tmp_path):
    model = SGDRanker(K=3, loss=loss, random_state=0).fit(X)
    assert all(model.get_params()[name] == "auto" for name in AUTOMATIC)
    taken = model.params_
    assert set(taken) == {*AUTOMATIC, "values"} and "auto" not in taken.values()
    assert all(record[name] == taken[name] for record in model.history_ for name in AUTOMATIC)
    assert taken["n_epochs"] == model.n_iter_
    for name in AUTOMATIC:
        assert f"{name}=" in repr(model).partition("# fitted with")[2]
    assert "#" not in repr(SGDRanker(loss=loss)) and "auto" not in repr(SGDRanker(loss=loss))
    twin = SGDRanker(K=3, loss=loss, random_state=0).set_params(**taken).fit(X)
    assert same(twin, model) and "fitted with" not in repr(twin)

    model.save(tmp_path / "model.npz")
    loaded = SGDRanker.load(tmp_path / "model.npz")
    assert loaded.params_ == taken and repr(loaded) == repr(model) and loaded.history_ == model.history_
    assert all(loaded.get_params()[name] == "auto" for name in AUTOMATIC)
    assert same(clone(loaded).set_params(random_state=0).fit(X), model)


def test_a_name_of_the_rule_is_taken_from_each_matrix_anew(X):
    model = SGDRanker(K=3, random_state=0, n_epochs=1)
    first = model.fit(X).params_
    wide = make_implicit(3400, 50, mean_interactions=5, random_state=0).matrix
    second = model.fit(wide).params_
    assert first["temperature"] != second["temperature"] and first["batch_size"] != second["batch_size"]
    assert model.get_params()["temperature"] == "auto"


def test_more_factors_take_a_lower_temperature():
    degrees = Degrees.of(as_csr(make_implicit(800, 900, mean_interactions=30, random_state=0).matrix))
    found = [setting(SGDRanker(K=K), degrees)["temperature"] for K in (64, 256)]
    assert found[1] < found[0]


@pytest.mark.parametrize("loss", ["softmax", "sampled_cce", "sampled_talos"])
def test_one_factor_is_no_cosine(loss):
    """Of one factor a cosine is its sign, which no gradient changes: such a fit learned nothing."""
    X = make_implicit(400, 100, mean_interactions=20, random_state=0).matrix
    model = SGDRanker(K=1, loss=loss, random_state=0).fit(X)
    two = setting(SGDRanker(K=2, loss=loss), Degrees.of(as_csr(X)))
    assert (model.params_["score"], two["score"]) == ("dot", "cosine")
    assert model.history_[-1]["objective"] < 0.985 * model.history_[0]["objective"]


def test_early_stopping_has_room_for_its_patience(X):
    plain = SGDRanker(K=3, random_state=0).fit(X).n_iter_
    model = SGDRanker(K=3, random_state=0, early_stopping=True, patience=3 * plain)
    model.fit(X, callbacks=lambda now: now.iteration > 2 * plain)
    assert model.params_["n_epochs"] == 10 * plain and len(model.history_) > 2 * plain


@pytest.mark.parametrize("name", AUTOMATIC)
@pytest.mark.parametrize("value", ["best", True, -np.inf])
def test_what_is_neither_a_value_nor_auto_is_refused(name, value, X):
    with pytest.raises(ParameterError, match=f"{name}={value!r}" + ".*auto" * (value == "best")):
        SGDRanker(**{name: value}).fit(X)


def test_none_is_what_it_was_as_a_batch_size(X):
    fits = [SGDRanker(K=3, n_epochs=2, random_state=0, batch_size=size).fit(X) for size in (None, 256)]
    assert same(*fits) and fits[0].params_["batch_size"] is None


def test_a_model_of_0_1_shows_what_it_was_fitted_with():
    model = SGDRanker.load(ROOT / "tests" / "data" / "v0_1" / "sgd.npz")
    then = {"score": "cosine", "temperature": 0.2, "lr": 0.02, "n_epochs": 2, "batch_size": None}
    assert model.params_ == {**then, "n_negatives": 100, "offset": 0.0, "values": "raw"}
    assert "fitted with" not in repr(model)


class KilledError(Exception):
    pass


@pytest.mark.parametrize("loss", ["softmax", "sampled_softmax"])
def test_an_interrupted_fit_by_the_rule_resumes_to_the_same_bytes(loss, X, tmp_path):
    make = {"K": 3, "loss": loss, "random_state": 0}
    whole = SGDRanker(**make).fit(X)

    def stop(now):
        if now.iteration == 4:
            raise KilledError

    with pytest.raises(KilledError):
        SGDRanker(**make).fit(X, checkpoint=tmp_path, callbacks=stop)
    stored = (tmp_path / Checkpoint.name).read_bytes()
    with pytest.raises(CheckpointError, match="lr is 0.013 here"):
        SGDRanker(**make, lr=0.013).fit(X, checkpoint=tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / Checkpoint.name).write_bytes(stored)
    given = SGDRanker(**make).set_params(**whole.params_).fit(X, checkpoint=tmp_path / "other")
    resumed = SGDRanker(**make).fit(X, checkpoint=tmp_path)
    assert same(resumed, whole) and same(given, whole)
    assert resumed.params_ == whole.params_ and resumed.n_iter_ == whole.n_iter_


# Users, items and interactions of a user: about as many of both, many users, many items.
SHAPES = [(500, 400, 20), (1500, 150, 10), (250, 1000, 30)]


@pytest.mark.few(3)
@pytest.mark.parametrize("loss", ["softmax", "sampled_softmax"])
@pytest.mark.parametrize("shape", SHAPES)
def test_defaults_rank_above_popularity(shape, loss):
    X = make_implicit(*shape[:2], mean_interactions=shape[2], n_clusters=10, noise=0.1, random_state=1).matrix
    train, hidden = split_interactions(X, (0.8, 0.2), random_state=0)
    counts = np.diff(as_csr(train).indptr), as_csr(train).col_counts
    assert all(len(np.unique(count)) > 5 for count in counts), "rows and columns differ"
    n, n_users, n_items = counts[0].sum(), *np.array([np.count_nonzero(count) for count in counts])
    chance = ((1 - n_users / n) * (1 - n_items / n)) ** 2
    assert Degrees.of(as_csr(train)).cohesion > 1.3 * chance, "there is more than popularity to be found"
    popular = np.ones((shape[0], 1)), counts[1][:, None].astype(float)
    floor = evaluate(popular, train, hidden, "ndcg@10")["ndcg@10"]
    model = SGDRanker(loss=loss, random_state=0).fit(train)
    assert evaluate(model, train, hidden, "ndcg@10")["ndcg@10"] > 1.1 * floor > 0


#: Where plain defaults, over dot products, ranked below popularity or little above.
WARM = (
    "bce",
    "full_bce",
    "uib",
    "sml",
    "rs_at_k",
    "sparsemax",
    "full_bpr",
    "full_lambda_rank",
    "list_ap",
    "list_ndcg",
    "list_nrbp",
    "lambda_rank",
)


@pytest.mark.few(4)
@pytest.mark.parametrize("loss", WARM)
def test_losses_that_compare_scores_with_each_other_rank_well_over_cosines(loss):
    X = make_implicit(400, 300, mean_interactions=15, n_clusters=10, noise=0.1, random_state=1).matrix
    train, hidden = split_interactions(X, (0.8, 0.2), random_state=0)
    popular = np.ones((400, 1)), as_csr(train).col_counts[:, None].astype(float)
    model = SGDRanker(loss=loss, random_state=0).fit(train)
    assert model.params_["score"] == "cosine"
    found, floor = (evaluate(m, train, hidden, "ndcg@10")["ndcg@10"] for m in (model, popular))
    assert found > 1.5 * floor > 0


def test_the_offset_is_log_of_the_negatives_and_is_taken_from_all_scores(X):
    """Noise-contrastive estimation: of cosines and of all items; scores of 0 then tell nothing."""
    n_items = X.shape[1]
    for loss, given, found in (
        ("bce", {}, np.log(25)),
        ("bce", {"n_negatives": 7}, np.log(7)),
        ("bce", {"sampler": "in_batch", "batch_size": 30}, np.log(30)),
        ("bce", {"sampler": "in_batch", "batch_size": None}, np.log(4096)),
        ("bce", {"score": "dot"}, 0.0),
        ("full_bce", {}, np.log(n_items)),
        ("full_bce", {"score": "dot"}, np.log(n_items)),
        ("bpr", {}, 0.0),
        ("softmax", {}, 0.0),
    ):
        model = SGDRanker(K=3, loss=loss, n_epochs=1, random_state=0, **given).fit(X)
        assert model.params_["offset"] == pytest.approx(found), (loss, given)
    one, other = (SGDRanker(K=3, loss="softmax", offset=o, n_epochs=2, random_state=0).fit(X) for o in (0, 9))
    assert same(one, other), "softmax compares scores with each other alone"
    one, other = (SGDRanker(K=3, loss="bce", offset=o, n_epochs=2, random_state=0).fit(X) for o in (0, 9))
    assert not same(one, other)


def test_sparsemax_is_as_warm_as_its_users_have_positives():
    """Its probabilities are differences of scores, a share of each positive at best."""
    for n in (4, 16):
        X = np.zeros((50, 80), np.float32)
        X[:, :n] = 1
        taken = SGDRanker(K=3, loss="sparsemax", n_epochs=1, random_state=0).fit(X).params_
        assert (taken["score"], taken["temperature"]) == ("cosine", 15 * n**0.5)


class WithoutPredict(SGDRanker):
    """`SGDRanker.predict` takes users and items, not a matrix: there is no fold-in by SGD."""

    @property
    def predict(self):
        raise AttributeError("predict")


#: They call `score`, which is a parameter here: how scores are made.
CALLING_SCORE = ("check_fit_score_takes_y", "check_n_features_in_after_fitting", "check_pipeline_consistency")


@pytest.mark.few(24)
@parametrize_with_checks(
    [WithoutPredict(K=4), WithoutPredict(K=3, loss="sampled_softmax", n_epochs=2)],
    expected_failed_checks=lambda _: dict.fromkeys(CALLING_SCORE, "score is a parameter"),
)
@pytest.mark.filterwarnings("ignore:.*have no interactions")
def test_scikit_learns_checks(estimator, check):
    check(estimator)
