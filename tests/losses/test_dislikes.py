"""Dislikes: negative values as targets below zero, in every backend, method and reader."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from rgals import IALS, RGALS, WRMF
from rgals.datasets import read_interactions
from rgals.losses import Degrees
from rgals.matrix.validate import as_csr
from rgals.matrix.weighting import Weighting
from rgals.metrics import evaluate
from rgals.runtime.errors import InputError, ParameterError

LOSSES = [
    IALS(alpha0=0.1, dislikes=True, dislike_weight=2.0),
    WRMF(alpha=3.0, dislikes=True, dislike_weight=1.0),
]


@pytest.fixture
def X(rng) -> sp.csr_array:
    values = rng.choice([1.0, 2.0, -1.0, -2.0], size=(40, 25), p=[0.4, 0.3, 0.2, 0.1])
    return sp.csr_array(values * (rng.random((40, 25)) < 0.3))


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_the_objective_is_the_formula_and_the_gradient_its_slope(loss, X, rng):
    P, Q, A = rng.standard_normal((40, 3)), rng.standard_normal((25, 3)), X.toarray()
    scores = P @ Q.T
    if loss.name == "iALS" or isinstance(loss, IALS):
        expected = (np.maximum(A, 0) * (scores - 1) ** 2).sum() + 0.1 * (scores**2).sum()
        expected += 2 * (np.maximum(-A, 0) * (scores + 1) ** 2).sum()
    else:
        likes = (1 + 3 * A) * (scores - 1) ** 2
        expected = np.where(A > 0, likes, scores**2).sum() + 3 * (np.maximum(-A, 0) * (scores + 1) ** 2).sum()
    assert loss.objective(X, P, Q) == pytest.approx(expected, rel=1e-12)
    gradients = loss.gradient(X, P, Q, 0.1)
    for _ in range(4):  # along random directions; of a quadratic differences are exact but for rounding
        ways = rng.standard_normal(P.shape), rng.standard_normal(Q.shape)
        for side, (way, gradient) in enumerate(zip(ways, gradients, strict=True)):
            moved = [(P + h * way, Q) if side == 0 else (P, Q + h * way) for h in (1e-3, -1e-3)]
            above, below = (loss.objective(X, *factors, 0.1) for factors in moved)
            assert (gradient * way).sum() == pytest.approx((above - below) / 2e-3, rel=1e-8)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("float64", 1e-12)])
def test_a_fit_has_the_scores_of_the_dense_oracle(loss, dtype, tolerance, X):
    options = {"K": 6, "loss": loss, "reg": 0.1, "dtype": dtype, "n_iter": 4, "random_state": 0}
    model, dense = RGALS(**options).fit(X), RGALS(**options, solver="dense").fit(X)
    scores, expected = (m.user_factors_ @ m.item_factors_.T for m in (model, dense))
    np.testing.assert_allclose(scores, expected, atol=tolerance)
    objectives = [row["objective"] for row in model.history_]
    assert objectives == sorted(objectives, reverse=True)
    assert model.objective(X) == pytest.approx(objectives[-1], rel=1e-5)
    slope = model.loss_.gradient(X, model.user_factors_, model.item_factors_, model.reg_)[0]
    assert abs(slope).max() < 100 * tolerance
    assert scores[X.toarray() < 0].mean() < 0 < scores[X.toarray() > 0].mean()


def test_a_spectral_start_is_that_of_the_likes(X):
    """Dislikes of weight 0 change nothing else, where every row has a like."""
    likes = X.multiply(X > 0).tocsr()
    assert min(likes.sum(axis=0).min(), likes.sum(axis=1).min()) > 0 > X.min()
    options = {"K": 6, "init": "spectral", "reg": 0.1, "n_iter": 1, "dtype": "float64", "random_state": 0}
    loss = IALS(alpha0=0.1, dislikes=True, dislike_weight=0.0)
    model, expected = RGALS(loss=loss, **options).fit(X), RGALS(loss=IALS(alpha0=0.1), **options).fit(likes)
    np.testing.assert_allclose(model.item_factors_, expected.item_factors_, atol=1e-10)


def test_margins_and_weights_are_those_of_likes(X):
    likes = X.multiply(X > 0).tocsr()
    degrees, expected = Degrees.of(as_csr(X, dislikes=True)), Degrees.of(as_csr(likes))
    assert (degrees.user_sum == expected.user_sum).all() and (degrees.item_count == expected.item_count).all()
    matrix = as_csr(X, dislikes=True)
    for kind in ("binary", "log1p", "bm25"):
        weights = Weighting.of(kind, matrix).rows(matrix).to_scipy().toarray()
        own = Weighting.of(kind, as_csr(likes)).rows(as_csr(likes)).to_scipy().toarray()
        np.testing.assert_array_equal(weights, np.where(X.toarray() < 0, X.toarray(), own))


def test_a_fitted_model_takes_dislikes_in_every_method(X, tmp_path):
    model = RGALS(K=6, loss=IALS(dislikes=True), random_state=0).fit(X)
    np.testing.assert_array_equal(model.transform(X), model.user_factors_)
    ids, _ = model.recommend(np.arange(40), n=25)
    for user, row in enumerate(ids):  # neither what they like nor what they dislike
        assert not set(row[row >= 0]) & set(X[[user]].indices)
    why = model.explain(0, 3)
    assert why.score == pytest.approx(model.predict([0], [3])[0], abs=1e-5)
    model.save(tmp_path / "model.npz")
    again = RGALS.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(again.recommend_new(X, n=3)[0], model.recommend_new(X, n=3)[0])
    row = int(np.flatnonzero(X.sum(axis=1) > 0)[0])
    opposite = sp.csr_array(X[[row]] * -1)
    events = sp.vstack([sp.csr_array((row, 25)), opposite]).tocsr()
    again.partial_fit(events)  # a like and a dislike of the same size: nothing is left
    assert again.seen_[[row]].nnz == 0


def test_dislikes_may_be_a_boolean_of_numpy(X, tmp_path):
    """As a search over ``np.array([True, False])`` sets it; it was refused as neither True nor False."""
    options = {"K": 2, "n_iter": 2, "random_state": 0}
    given, plain = (RGALS(loss=IALS(dislikes=each), **options) for each in (np.True_, True))
    given.fit(X, checkpoint=tmp_path).save(tmp_path / "model.npz")
    np.testing.assert_array_equal(given.item_factors_, plain.fit(X).item_factors_)
    assert RGALS.load(tmp_path / "model.npz").loss.dislikes is True
    with pytest.raises(ParameterError, match="IALS.dislikes=1 is not valid"):
        RGALS(loss=IALS(dislikes=1)).fit(X)


def test_dislikes_are_refused_where_nobody_asked_for_them(X):
    with pytest.raises(InputError, match=r"Negative values.*IALS\(dislikes=True\)"):
        RGALS(K=2).fit(X)
    with pytest.raises(ParameterError, match="go with no dislikes"):
        RGALS(K=2, loss=IALS(dislikes=True), hard_negatives=1.0).fit(X)
    with pytest.raises(InputError, match="no interactions"):
        RGALS(K=2, loss=IALS(dislikes=True)).fit(sp.csr_array(-np.ones((2, 2))))


def test_readers_make_dislikes_of_low_ratings_and_thumbs():
    users, items = ["a", "a", "a", "b"], ["x", "y", "z", "x"]
    stars = read_interactions((users, items, [5, 3, 1, 4]), min_value=4, dislike_below=3)
    assert stars.matrix.toarray().tolist() == [[1, -1], [1, 0]] and stars.item_ids.tolist() == ["x", "z"]
    kept = read_interactions((users, items, [5, 3, 1, 4]), dislike_below=3)
    assert kept.matrix.toarray().tolist() == [[5, 3, -1], [4, 0, 0]]
    for below, thumbs in ((0, [1, -1, 1, -1]), (1, [1, 0, 1, 0])):
        read = read_interactions((users, items, thumbs), dislike_below=below)
        assert read.matrix.toarray().tolist() == [[1, -1, 1], [-1, 0, 0]]
    with pytest.raises(InputError, match="dislike_below=0"):
        read_interactions((users, items, [1, -1, 1, 1]))
    with pytest.raises(ParameterError, match="dislike_below"):
        read_interactions((users, items, [5, 3, 1, 4]), min_value=2, dislike_below=3)


@pytest.mark.parametrize("solver", ["dense", "exact", "pcg"])
@pytest.mark.parametrize("reg_exponent", [0.0, 1.0])
def test_who_has_dislikes_of_no_weight_alone_is_zero(solver, reg_exponent):
    """No pair and no ridge was left of their systems: fits said to raise reg, which did not help."""
    X = sp.csr_array([[1.0, 2, 0, -1], [0, 1, 1, -1], [0, 0, -2, 0], [1, 0, 1, 0]])
    loss = IALS(alpha0=0, dislikes=True, dislike_weight=0)
    options = {"K": 2, "loss": loss, "reg": 0.1, "reg_exponent": reg_exponent, "random_state": 0}
    model = RGALS(**options, solver=solver, n_iter=3).fit(X)
    assert not model.user_factors_[2].any() and not model.item_factors_[3].any()
    assert model.user_factors_[[0, 1, 3]].any(axis=1).all() and model.item_factors_[:3].any(axis=1).all()
    assert model.objective(X) == pytest.approx(model.history_[-1]["objective"], rel=1e-5)
    np.testing.assert_array_equal(model.transform(X)[2], [0, 0])


@pytest.mark.parametrize("merge", ["sum", "max", "last"])
def test_every_rating_is_judged_before_duplicates_are_merged(merge):
    """Two ratings of 1 and 2 were a like of 3."""

    def read(*values, **rules):
        pair = ["a"] * len(values), ["x"] * len(values), [*values]
        more = ["b"], ["y"], [5.0]  # so that something is left
        columns = tuple(one + other for one, other in zip(pair, more, strict=True))
        data = read_interactions(columns, duplicates=merge, **rules)
        return data.matrix.toarray()[0, 0] if "a" in data.user_ids else 0

    low = np.float32(3.3)
    assert read(1, 2, dislike_below=3) == read(2, 2, 2, min_value=4, dislike_below=3) == -1
    assert read(low, low, dislike_below=3.3) > 0
    assert read(5, 1, dislike_below=3) == {"sum": 4, "max": 5, "last": -1}[merge]
    assert read(3, 1, min_value=4, dislike_below=3) == {"sum": 0, "max": 0, "last": -1}[merge]
    assert read(0, 0, dislike_below=1) == read(-1, -1, dislike_below=0) == -1
    assert read(0, 1, dislike_below=1) == read(-1, 1, dislike_below=0) == (0 if merge == "sum" else 1)
    # Of values to both sides of 0 those between are neither, whatever their sum was before.
    assert read(-9, 2, min_value=3, dislike_below=-3) == {"sum": -1, "max": 0, "last": 0}[merge]


def test_evaluate_counts_dislikes_that_are_shown():
    P, Q = np.ones((2, 1)), np.array([[4.0], [3.0], [2.0], [1.0]])
    test = sp.csr_array([[1, -1, 0, 0], [0, 0, 1, -1]])
    found = evaluate((P, Q), None, test, ("recall@2", "dislike_rate@2"), per_user=True)[0]
    assert found["recall@2"].tolist() == [1, 0] and found["dislike_rate@2"].tolist() == [0.5, 0]
    # Who dislikes all of it is no user with a relevant item, and one with dislikes.
    more = np.ones((3, 1)), Q
    judged = sp.csr_array([*test.toarray(), -np.ones(4)])
    every = evaluate(more, None, judged, ("recall@2", "dislike_rate@2", "auc"))
    assert every == pytest.approx({"recall@2": 0.5, "dislike_rate@2": 0.5, "auc": every["auc"]})
    assert every.n_users == 3 and evaluate(more, None, judged, ("recall@2",)).n_users == 2
    few, rows = evaluate(more, None, judged, ("recall@2", "dislike_rate@2"), users=[2], per_user=True)
    assert np.isnan(few["recall@2"]).all() and few["dislike_rate@2"].tolist() == [1] and rows.tolist() == [2]
    likes = sp.csr_array([[1, 0, 0, 0], [0, 0, 1, 0]])
    assert evaluate((P, Q), None, likes, "recall@2") == evaluate((P, Q), None, test, "recall@2")


def test_validation_has_dislikes_whatever_the_loss_takes(X):
    likes = X.multiply(X > 0).tocsr()
    hidden = sp.csr_array((np.where(np.arange(X.nnz) % 2, X.data, 0), X.indices, X.indptr), shape=X.shape)
    train = sp.csr_array(likes - hidden.multiply(hidden > 0))
    for part in (hidden, train):
        part.eliminate_zeros()
    assert (hidden.data < 0).any() and (hidden.data > 0).any()
    model = RGALS(K=3, n_iter=2, metric="dislike_rate@5", random_state=0).fit(train, validation=hidden)
    found = evaluate(model, train, hidden, "dislike_rate@5")["dislike_rate@5"]
    assert 0 < found < 1 and model.history_[-1]["dislike_rate@5"] == pytest.approx(found)
