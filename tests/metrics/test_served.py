"""`evaluate` judges what `recommend` serves: cold users, ids, renumbered rows, outside evaluators."""

from __future__ import annotations

import copy
import json
import math
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from helpers import interactions
from sklearn.metrics import roc_auc_score

from rgals import RG2, RGALS, metrics, plots
from rgals.baselines import EASE, Popularity
from rgals.datasets import Interactions
from rgals.matrix.csr import TimedMatrix
from rgals.matrix.entries import entries
from rgals.matrix.validate import as_csr
from rgals.metrics import Evaluation, evaluate
from rgals.model.state import Snapshot
from rgals.runtime.errors import InputError, ParameterError, ShapeError
from rgals.sgd import SGDRanker

N_COLD = 8  # five of them by choice
NAMES = ("ndcg@10", "recall@5", "map@10", "precision@3", "hit_rate@1", "mrr@10")


@pytest.fixture(scope="module")
def parts():
    """Training and test interactions; five users and one item have test interactions only."""
    X = interactions(70, 40, seed=3)
    X = X[np.argsort(np.diff(X.indptr) == 0, kind="stable")[::-1]]  # the last have interactions
    rng = np.random.default_rng(0)
    rows = np.repeat(np.arange(70), np.diff(X.indptr))
    held = (rng.random(X.nnz) < 0.3) | (rows >= 65) | (X.indices == 7)
    train, test = entries(X, ~held), entries(X, held)
    counts = [np.diff(part.indptr) for part in (train, test)]
    assert (counts[0][65:] == 0).all() and (counts[1][65:] > 0).all()
    assert ((counts[0] == 0) & (counts[1] > 0)).sum() == N_COLD
    return train, test


@pytest.fixture(scope="module", params=[RGALS, SGDRanker])
def model(request, parts):
    settings = {"reg": 0.02} if request.param is RGALS else {}  # enough is left that nothing but ties ties
    return request.param(K=6, dtype="float64", random_state=0, **settings).fit(parts[0])


def by_hand(lists, test, k=10):
    """NDCG, recall, average precision, reciprocal rank at k of lists, -1 where they end."""
    figures = []
    for u in np.flatnonzero(np.diff(test.indptr)):
        truth = set(test.indices[test.indptr[u] : test.indptr[u + 1]].tolist())
        hits = [int(i) in truth for i in lists[u][:k]]
        ranks = [r for r, hit in enumerate(hits, 1) if hit]
        ideal = sum(1 / math.log2(r + 1) for r in range(1, min(k, len(truth)) + 1))
        figures.append(
            (
                sum(1 / math.log2(r + 1) for r in ranks) / ideal,
                len(ranks) / len(truth),
                sum(n / r for n, r in enumerate(ranks, 1)) / len(truth),
                1 / ranks[0] if ranks else 0,
            )
        )
    return np.mean(figures, axis=0)


def test_metrics_take_what_recommend_gives(model, parts):
    lists = model.recommend(range(65), n=5)
    np.testing.assert_array_equal(metrics.ndcg(lists, parts[1][:65]), metrics.ndcg(lists.ids, parts[1][:65]))


@pytest.mark.filterwarnings("ignore:.*users have no training interactions")
@pytest.mark.parametrize("cold", ["empty", "popular"])
def test_the_lists_of_recommend_judged_by_hand(model, parts, cold):
    train, test = parts
    lists = model.recommend(np.arange(70), 10, cold=cold)[0]
    got = evaluate(model, train, test, ("ndcg@10", "recall@10", "map@10", "mrr@10"), cold=cold)
    np.testing.assert_allclose(list(got.values()), by_hand(lists, test), rtol=1e-13)
    assert got.n_users == (np.diff(test.indptr) > 0).sum() and got.n_cold == N_COLD
    cold_only = evaluate(model, train, test, "hit_rate@10", users=np.arange(65, 70), cold=cold)
    assert (cold_only["hit_rate@10"] == 0) == (cold == "empty") and cold_only.n_cold == cold_only.n_users == 5
    # A pair of factors, and training interactions, say the same.
    assert evaluate(model.factors_, train, test, NAMES, cold=cold) == evaluate(
        model, train, test, NAMES, cold=cold
    )


def test_the_popular_items_of_cold_users_are_those_that_are_popular_lately(parts):
    """Of a model with a half-life, `recommend` weighs them by age; `evaluate` took them without."""
    train, test = parts
    rng = np.random.default_rng(4)
    timed = TimedMatrix.of(train, 100 * rng.random(train.shape[1])[train.indices] + rng.random(train.nnz))
    model = RGALS(K=4, n_iter=2, half_life=20.0, random_state=0).fit(timed)
    cold = np.arange(65, 70)
    lists = model.recommend(cold, 10, cold="popular")[0]
    assert set(lists[0]) != set(np.argsort(-train.sum(axis=0), kind="stable")[:10])
    got = evaluate(model, train, test, ("ndcg@10", "recall@10"), users=cold, cold="popular")
    np.testing.assert_allclose(list(got.values()), by_hand(lists, test[cold])[:2], rtol=1e-13)


@pytest.mark.filterwarnings("ignore:.*users have no training interactions")
@pytest.mark.parametrize("cold", ["empty", "popular"])
def test_trec_eval_says_the_same_of_what_is_served(model, parts, cold):
    trec = pytest.importorskip("pytrec_eval")
    train, test = parts
    users = np.flatnonzero(np.diff(test.indptr))
    lists = model.recommend(users, 10, cold=cold)[0]
    run = {
        str(u): {f"i{i}": float(10 - r) for r, i in enumerate(one) if i >= 0}
        for u, one in zip(users, lists, strict=True)
    }
    relevant = {
        str(u): {f"i{i}": 1 for i in test.indices[test.indptr[u] : test.indptr[u + 1]]} for u in users
    }
    theirs = {"ndcg_cut.10": "ndcg@10", "recall.5": "recall@5", "map_cut.10": "map@10", "P.3": "precision@3"}
    theirs |= {"success.1": "hit_rate@1"}
    got, who = evaluate(model, train, test, tuple(theirs.values()), per_user=True, cold=cold)
    told = trec.RelevanceEvaluator(relevant, set(theirs)).evaluate(run)
    for name, ours in theirs.items():
        want = [told.get(str(u), {}).get(name.replace(".", "_"), 0.0) for u in who]
        np.testing.assert_allclose(got[ours], want, rtol=1e-12, err_msg=name)


@pytest.mark.filterwarnings("ignore:.*users have no training interactions")
@pytest.mark.parametrize("cold", ["empty", "popular"])
def test_renumbering_users_and_items_changes_nothing(model, parts, cold, amount):
    """Popular items with equal counts are ties, which the item number decides: counts here differ."""
    train, test = parts
    rng = np.random.default_rng(1)
    P, Q = model.factors_
    Q = Q * (1 + 1e-3 * rng.random((len(Q), 1)))  # items that nobody has would tie
    # Users without test items give every item a count of its own.
    missing = 60 + np.arange(40) - (train != 0).sum(axis=0)
    extra = sp.csr_array((np.arange(missing.max())[:, None] < missing).astype(float))
    known = sp.vstack([train, extra]).tocsr() if cold == "popular" else train
    hidden = sp.vstack([test, sp.csr_array((known.shape[0] - 70, 40))]).tocsr()
    P = np.vstack([P, np.ones((known.shape[0] - 70, P.shape[1]))])
    assert cold == "empty" or len(set(known.astype(bool).sum(axis=0))) == 40
    names = (*NAMES, "auc", "coverage@5", "gini@5", "novelty@5")
    want = evaluate((P, Q), known, hidden, names, cold=cold)
    assert want.n_cold == N_COLD
    for _ in range(20):
        users, items = rng.permutation(len(P)), rng.permutation(40)
        moved = (part[users][:, items] for part in (known, hidden))
        got = evaluate((P[users], Q[items]), *moved, names, cold=cold)
        np.testing.assert_allclose(list(got.values()), list(want.values()), rtol=0, atol=1e-12)
        assert (got.n_users, got.n_cold) == (want.n_users, want.n_cold)


@pytest.mark.filterwarnings("ignore:.*users have no training interactions")
def test_renumbered_models_serve_the_same_lists(parts):
    train, _ = parts
    rng = np.random.default_rng(2)
    model = RGALS(K=6, loss=RG2(alpha=0.024), dtype="float64", random_state=0).fit(train)
    lists, scores = model.recommend(np.arange(70), 11)
    equal = np.isclose(scores[:, 1:], scores[:, :-1], rtol=1e-13, atol=1e-15) & np.isfinite(scores[:, 1:])
    tied = equal | np.pad(equal, ((0, 0), (1, 0)))[:, :-1]  # with the item before or behind
    assert 0 < tied.sum() < 50
    for _ in range(20):
        users, items = rng.permutation(70), rng.permutation(40)
        P, Q = (f[p] for f, p in zip(model.factors_, (users, items), strict=True))
        moved = copy.copy(model)
        moved._snapshot = Snapshot(P, Q, as_csr(train[users][:, items], dtype=np.float64))
        ids, other = moved.recommend(np.arange(70), 11)
        same = np.where(ids >= 0, items[ids], -1)
        apart = ~tied[users]
        np.testing.assert_array_equal(same[:, :10][apart], lists[users][:, :10][apart])
        np.testing.assert_allclose(other, scores[users], rtol=1e-12)


def test_equal_items_are_tied_wherever_they_stand():
    """BLAS rounds the last columns of a product in another way: half of a tie was lost or won."""
    rng = np.random.default_rng(4)
    kinds = rng.integers(0, 350, 1003)
    Q = rng.standard_normal((350, 32))[kinds]
    P = rng.standard_normal((155, 32))
    hidden = sp.csr_array((rng.random((155, 1003)) < 0.02).astype(float))
    scores = np.einsum("ik,jk->ij", P, Q[np.unique(kinds, return_index=True)[1]])
    scores = scores[:, np.unique(kinds, return_inverse=True)[1]]
    values, users = evaluate((P, Q), None, hidden, "auc", per_user=True)
    for u, value in zip(users, values["auc"], strict=True):
        relevant = hidden[[u]].toarray()[0] > 0
        assert value == pytest.approx(roc_auc_score(relevant, scores[u]), abs=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_items_with_the_same_factors_are_tied_for_every_processor(dtype):
    """Without AVX-512, BLAS rounds other columns in another way: users had an AUC of .03 to .84."""
    rng = np.random.default_rng(0)
    P, Q = rng.normal(size=(130, 64)).astype(dtype), np.tile(rng.normal(size=64).astype(dtype), (1024, 1))
    hidden = sp.csr_array((rng.random((130, 1024)) < 0.02).astype(float))
    values, _ = evaluate((P, Q), None, hidden, "auc", per_user=True)
    np.testing.assert_array_equal(values["auc"], 0.5)


def test_nobody_is_ranked_by_item_number():
    """The first items of a catalogue were found for users whom the model knows nothing about."""
    train = sp.csr_array([[0, 1, 1], [0, 0, 0]])
    test = sp.csr_array([[1, 0, 0], [1, 0, 0]])
    pair = np.array([[1.0], [0.0]]), np.array([[0.5], [1.0], [1.0]])
    for known in (train, None, sp.csr_array((2, 3))):
        values, users = evaluate(pair, known, test, ("hit_rate@1", "auc"), per_user=True)
        assert values["hit_rate@1"][users == 1] == 0 and values["auc"][users == 1] == 0.5
        assert values.n_cold == 1
    with pytest.raises(ParameterError, match="cold.*give train"):
        evaluate(pair, None, test, cold="popular")
    with pytest.raises(ParameterError, match="cold"):
        evaluate(pair, train, test, cold="nothing")


def test_a_function_answers_for_its_cold_users():
    train = sp.csr_array([[0, 1, 1], [0, 0, 0], [0, 0, 0]])
    test = sp.csr_array([[1, 0, 0], [0, 0, 1], [1, 0, 0]])
    popular = np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
    values, _ = evaluate(lambda users: popular[users], train, test, ("hit_rate@1", "auc"), per_user=True)
    assert values["hit_rate@1"].tolist() == [1, 1, 0] and values["auc"].tolist()[1:] == [1, 0.5]
    assert (values.n_users, values.n_cold) == (3, 2)


@pytest.mark.parametrize("cold", ["empty", "popular"])
def test_features_that_say_nothing_leave_a_user_cold(parts, cold):
    """Their items were ranked by number, and `recommend` served nothing, or what is popular."""
    train, test = parts
    features = np.zeros((70, 2))
    features[:65, 0] = features[65:, 1] = 1.0  # nobody with interactions has the second
    model = RGALS(K=3, reg=0.1, dtype="float64", random_state=0).fit(train, user_features=features)
    asked = np.arange(65, 70)
    assert not model.user_factors_[asked].any()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lists = model.recommend(asked, n=10, cold=cold)[0]
    found = evaluate(model, train, test, users=asked, cold=cold)
    assert found["ndcg@10"] == pytest.approx(by_hand(lists, test[asked])[0]) and found.n_cold == 5


def test_equal_scores_of_a_known_user_are_an_answer():
    """Items rank by number then; of a user of whom nothing is known they are none."""
    train, test = sp.csr_array([[0, 0, 1.0], [0, 0, 0]]), sp.csr_array([[1.0, 0, 0], [1.0, 0, 0]])
    values, _ = evaluate(lambda users: np.zeros((len(users), 3)), train, test, "hit_rate@1", per_user=True)
    assert values["hit_rate@1"].tolist() == [1.0, 0.0]


def test_dislikes_make_nothing_popular():
    train, test = sp.csr_array([[-1.0, 1, 0], [-1, 0, 0], [0, 0, 0]]), sp.csr_array((3, 3)).tolil()
    test[2, 1] = 1.0
    pair = np.array([[1.0], [1.0], [0.0]]), np.ones((3, 1))
    assert evaluate(pair, train, test.tocsr(), "hit_rate@1", cold="popular") == {"hit_rate@1": 1.0}


def test_unknown_users_are_cold_and_unknown_items_missed():
    known = Interactions(sp.csr_array(np.eye(3) + np.eye(3, k=1)), np.array(["a", "b", "c"]), np.arange(3))
    hidden = Interactions(
        sp.csr_array([[1, 1, 0], [0, 0, 1.0]]), np.array(["a", "zoe"]), np.array([2, 77, 78])
    )
    model = RGALS(K=2, dtype="float64", random_state=0).fit(known)
    words = "1 users and 2 items that the model does not know"
    with pytest.warns(UserWarning, match=words):
        values, users = evaluate(model, known, hidden, ("recall@3", "ndcg@3", "auc"), per_user=True)
    assert users.tolist() == ["a", "zoe"] and values.n_cold == 1
    # User a has one item left, 2, which is found; 77 is missed.
    np.testing.assert_allclose(values["recall@3"], [0.5, 0])
    np.testing.assert_allclose(values["ndcg@3"], [1 / (1 + 1 / math.log2(3)), 0])
    with pytest.warns(UserWarning, match=words):
        popular = evaluate(model, known, hidden, "hit_rate@3", users=["zoe"], cold="popular")
    assert popular == {"hit_rate@3": 0.0} and popular.n_cold == 1
    with pytest.warns(UserWarning, match=words):
        fitted = RGALS(K=2, dtype="float64", random_state=0, metric="recall@3").fit(known, validation=hidden)
    with pytest.warns(UserWarning, match=words):
        last = evaluate(fitted, known, hidden, "recall@3")
    assert fitted.history_[-1]["recall@3"] == pytest.approx(last["recall@3"]) == 0.25


@pytest.mark.parametrize("model", [RGALS(K=3, random_state=0), EASE(), SGDRanker(K=3, n_epochs=2)])
def test_ids_beside_a_model_without_ids_are_rows_and_columns_or_refused(model, parts):
    """Factors in the order of a log were judged by interactions in the order of ids: a tenth of it."""
    (train, test), rng = parts, np.random.default_rng(1)
    model = model.fit(train)
    users, items = (np.array([f"{rng.random():.6f}" for _ in range(n)]) for n in train.shape)
    sort = np.argsort(users), np.argsort(items)
    by_id = [part[sort[0]][:, sort[1]] for part in parts]
    turned = [Interactions(part, users[sort[0]], items[sort[1]]) for part in by_id]
    with pytest.raises(InputError, match="^train has ids, but what it is used with has none"):
        evaluate(model, *turned)
    with pytest.raises(InputError, match="^train has ids, but what it is used with has none"):
        plots.popularity_bias(model, turned[0])
    turned = [Interactions(part[:, sort[1]], np.arange(70), items[sort[1]]) for part in parts]
    assert (turned[0].matrix.sum(axis=1) == train.sum(axis=1)).all()  # rows are as long, items others
    with pytest.raises(InputError, match="^train has ids, but what it is used with has none"):
        evaluate(model, *turned)
    told = [Interactions(part, np.arange(70), np.arange(40)) for part in (train, test)]
    assert evaluate(model, *told) == evaluate(model, train, test)


@pytest.mark.parametrize("model", [RGALS(K=3, random_state=0), Popularity()])
def test_columns_of_frames_are_those_of_the_fit(model):
    drawn = np.random.default_rng(0).random((30, 8))
    names = [f"item {k}" for k in range(8)]
    train, test = (pd.DataFrame(part * 1.0, columns=names) for part in (drawn < 0.3, drawn > 0.8))
    assert evaluate(model.fit(train), train, test) == evaluate(model, train.to_numpy(), test.to_numpy())
    for name, parts in (("train", (train[names[::-1]], test)), ("test", (train, test[names[::-1]]))):
        with pytest.raises(InputError, match=f"{name}: The feature names should match"):
            evaluate(model, *parts)


def test_what_train_has_of_others_is_told():
    known = Interactions(sp.csr_array(np.eye(3)), np.array(["a", "b", "c"]), np.arange(3))
    more = Interactions(sp.csr_array(np.eye(4)), np.array(["a", "b", "c", "zoe"]), np.arange(4))
    hidden = Interactions(sp.csr_array([[0, 1.0]]), np.array(["a"]), np.arange(2))
    model = RGALS(K=2, random_state=0).fit(known)
    with pytest.warns(UserWarning, match="train has 1 users and 1 items that the model does not know"):
        assert evaluate(model, more, hidden) == evaluate(model, known, hidden)
    numbers = Interactions(sp.csr_array(np.eye(3)), np.arange(3), np.arange(3))
    with pytest.raises(InputError, match=r"train: its user ids are integers \(0\), those of the model text"):
        evaluate(model, numbers, hidden)


def test_validation_in_a_fit_counts_cold_users_as_missed(parts):
    train, test = parts
    model = RGALS(K=4, dtype="float64", random_state=0).fit(train, validation=test)
    figures, users = evaluate(model, train, test, "ndcg@10", per_user=True)
    assert (figures["ndcg@10"][users >= 65] == 0).all() and (users >= 65).sum() == 5
    assert model.history_[-1]["ndcg@10"] == pytest.approx(figures["ndcg@10"].mean(), abs=1e-9)


def test_figures_are_a_dict_that_knows_whom_they_are_about(parts, model):
    got = evaluate(model, *parts, NAMES)
    assert isinstance(got, Evaluation) and got == dict(got) and json.loads(json.dumps(got)) == got
    for again in (pickle.loads(pickle.dumps(got)), copy.copy(got), copy.deepcopy(got)):
        assert (again, again.n_users, again.n_cold) == (got, got.n_users, got.n_cold)


@pytest.mark.filterwarnings("ignore:.*have no training interactions", "ignore:.*that the model does not know")
@pytest.mark.parametrize("cold", ["empty", "popular"])
@pytest.mark.parametrize("kind", [RGALS, SGDRanker, Popularity, EASE])
def test_an_outside_evaluator_has_the_same_means_of_the_lists_by_id(kind, parts, cold):
    """Users and items by name, some of them unknown to the model, judged from lists as they are served."""
    ir = pytest.importorskip("ir_measures")
    train, test = parts
    users, items = np.array([f"u{k:02}" for k in range(70)]), np.array([f"i{k:02}" for k in range(40)])
    known = Interactions(train[:66], users[:66], items)  # of the others, 65 has no history either
    strange = sp.csr_array(([1.0, 1.0, 1.0], ([30, 31, 70], [40, 41, 3])), shape=(71, 42))
    hidden = sp.csr_array(sp.coo_array((test.data, sp.coo_array(test).coords), shape=(71, 42)) + strange)
    hidden = Interactions(hidden, np.append(users, "eve"), np.append(items, ["new 1", "new 2"]))
    settings = {"K": 6, "dtype": "float64", "random_state": 0} if kind in (RGALS, SGDRanker) else {}
    model = kind(**settings).fit(known)
    pairs = sp.coo_array(hidden.matrix).coords
    qrels = {u: {} for u in hidden.user_ids[np.unique(pairs[0])].tolist()}
    for user, item in zip(
        hidden.user_ids[pairs[0]].tolist(), hidden.item_ids[pairs[1]].tolist(), strict=True
    ):
        qrels[user][item] = 1
    lists = model.recommend_ids(list(qrels), 10, unknown=cold, cold=cold)[0]
    run = {
        u: {i: 10.0 - r for r, i in enumerate(one) if i is not None}
        for u, one in zip(qrels, lists, strict=True)
    }
    theirs = {ir.nDCG @ 10: "ndcg@10", ir.R @ 5: "recall@5", ir.AP @ 10: "map@10", ir.P @ 3: "precision@3"}
    theirs |= {ir.RR @ 10: "mrr@10", ir.Success @ 1: "hit_rate@1"}
    told = ir.calc_aggregate(list(theirs), qrels, run)
    got = evaluate(model, known, hidden, theirs.values(), cold=cold)
    assert (got.n_users, got.n_cold) == (len(qrels), N_COLD + 1) and len(qrels) > 50
    for measure, name in theirs.items():
        assert got[name] == pytest.approx(told[measure], rel=1e-12), name
        assert got[name] > 0


def test_one_row_of_test_interactions_is_refused_beside_ids(parts):
    train = Interactions(parts[0], [f"u{k}" for k in range(70)], [f"i{k}" for k in range(40)])
    with pytest.raises(ShapeError, match=r"test: Expected 2D array.*got 1D"):
        evaluate(Popularity().fit(train), train, np.ones(40))
