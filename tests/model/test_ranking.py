"""What a fitted factor model answers: filters by name, unknown ids, cold users, one snapshot per call."""

import threading
import time
import warnings
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from rgals import Positions
from rgals.matrix.validate import as_csr
from rgals.model.ranking import FactorRanker, Snapshot
from rgals.runtime.errors import InputError, InputTypeError, ParameterError, ShapeError, UnknownIdError

M, N, K = 30, 50, 4


class Model(FactorRanker):
    """Integer factors, and a fold-in that adds up the factors of a row's items."""

    def __init__(self, seed=0, cold=()):
        rng = np.random.default_rng(seed)
        seen = (rng.random((M, N)) < 0.2).astype(np.float32)
        seen[:, 0] = 1
        seen[list(cold)] = 0
        self.seen = seen
        factors = (rng.integers(-3, 4, (rows, K)).astype(np.float32) for rows in (M, N))
        self._snapshot = Snapshot(*factors, as_csr(seen))

    def _fold_in(self, snapshot, rows, prior=None):
        return rows.to_scipy() @ snapshot.item_factors

    @property
    def scores(self):
        return self.user_factors_ @ self.item_factors_.T


class Unfitted(FactorRanker, BaseEstimator):
    def fit(self, X):
        return self


def best(scores, n):
    ids = np.argsort(-scores, axis=1, kind="stable")[:, :n]
    top = np.take_along_axis(scores, ids, 1)
    return np.where(top > -np.inf, ids, -1), top


def test_recommend_leaves_training_items_out_by_default():
    model = Model()
    users = np.array([3, 3, 29, 0])
    want = best(np.where(model.seen == 1, -np.inf, model.scores)[users], 50)
    ids, scores = model.recommend(users, n=50)
    np.testing.assert_array_equal(ids, want[0])
    np.testing.assert_array_equal(scores, want[1])
    assert (ids == -1).any() and (ids[0] == ids[1]).all() and (ids[0] != ids[2]).any()
    np.testing.assert_array_equal(model.recommend(3, n=50)[0], ids[:1])


def test_recommend_excludes_what_it_is_told():
    model = Model()
    users = np.array([5, 2])
    np.testing.assert_array_equal(
        model.recommend(users, n=50, exclude=None)[0], best(model.scores[users], 50)[0]
    )
    other = sp.csr_array((np.random.default_rng(1).random((2, N)) < 0.5).astype(np.float32))
    want = best(np.where(other.toarray() != 0, -np.inf, model.scores[users]), 50)[0]
    np.testing.assert_array_equal(model.recommend(users, n=50, exclude=other)[0], want)
    ids, _ = model.recommend(users, n=50, candidates=[4, 9, 17, 30], exclude_items=[9])
    assert set(ids.ravel()) <= {-1, 4, 17, 30} and (ids != -1).any()
    ids, _ = model.recommend(users, n=50, exclude=None, candidates=other)
    assert [set(row) - {-1} for row in ids] == [set(other[[i]].indices) for i in range(2)]


def test_cold_users_get_padding_and_one_warning_that_counts_them():
    model = Model(cold=(4, 7, 8))
    for exclude in ("train", None):
        with pytest.warns(UserWarning, match="2 of 3 users have no training interactions") as record:
            ids, scores = model.recommend([7, 1, 4], n=5, exclude=exclude)
        assert len(record) == 1
        assert (ids[[0, 2]] == -1).all() and (scores[[0, 2]] == -np.inf).all() and (ids[1] >= 0).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.recommend([1, 2], n=5)


def test_cold_users_get_popular_items_that_the_filters_allow():
    model = Model(cold=(4, 7))
    counts = np.where(np.isin(np.arange(N), [0, 3]), -np.inf, model.seen.sum(axis=0))
    want, score = best(np.tile(counts, (2, 1)), N)
    ids, scores = model.recommend([7, 4], n=N, cold="popular", exclude_items=[3, 0])
    np.testing.assert_array_equal(ids, want)
    np.testing.assert_array_equal(scores, score)


def test_recommend_ids_answers_in_the_ids_of_the_data():
    model = Model(cold=(4,))
    state = model._snapshot
    users, items = np.array([f"u{k}" for k in range(M)]), np.arange(N) * 10
    model._snapshot = Snapshot(state.user_factors, state.item_factors, state.seen, users, items)
    asked = ["u9", "nobody", "u4", "u2"]
    with pytest.raises(UnknownIdError, match="user 'nobody' is not known"):
        model.recommend_ids(asked)
    ids, scores = model.recommend(Positions([9, 2]), n=N, exclude_items=Positions([1, 0]))
    popular = np.argsort(-model.seen.sum(axis=0), kind="stable")
    popular = popular[~np.isin(popular, [0, 1])]
    for unknown in ("popular", "empty"):
        got, values = model.recommend_ids(asked, N, unknown=unknown, cold="popular", exclude_items=[10, 0])
        assert [[x for x in row if x is not None] for row in got[[0, 3]]] == [
            (row[row >= 0] * 10).tolist() for row in ids
        ]
        np.testing.assert_array_equal(values[[0, 3]], scores)
        assert got[2, : N - 2].tolist() == (popular * 10).tolist() and got[2, -1] is None
        if unknown == "popular":
            assert got[1].tolist() == got[2].tolist()
        else:
            assert (got[1] == None).all() and (values[1] == -np.inf).all()  # noqa: E711
    with pytest.raises(UnknownIdError, match="item 7 is not known"):
        model.recommend_ids("u9", candidates=[7])
    with pytest.raises(ParameterError, match="unknown='skip'"):
        model.recommend_ids("u9", unknown="skip")


def test_recommend_new_folds_in_and_leaves_the_given_items_out():
    model = Model()
    rows = sp.csr_array(model.seen[:3])
    scores = rows @ model.item_factors_ @ model.item_factors_.T
    want = best(np.where(model.seen[:3] == 1, -np.inf, scores), 50)
    ids, found = model.recommend_new(rows, n=50)
    np.testing.assert_array_equal(ids, want[0])
    np.testing.assert_array_equal(found, want[1])
    np.testing.assert_array_equal(model.recommend_new(rows, n=50, exclude=None)[0], best(scores, 50)[0])
    empty = sp.csr_array((2, N))
    with pytest.warns(UserWarning, match="2 of 2 users have no interactions") as seen:
        assert (model.recommend_new(empty)[0] == -1).all()
    assert [warning.filename for warning in seen] == [__file__]


def test_factors_that_are_next_to_nothing_have_no_direction():
    """One over their length is infinite in float32, and so was their likeness to any other item."""
    model = Model()
    state = model._state()
    factors = state.item_factors.astype(np.float32)
    factors[5] *= 1e-40
    model._snapshot = replace(state, item_factors=factors)
    ids, scores = model.similar_items([0, 5], n=N)
    assert 5 not in ids and (ids[1] == -1).all() and scores.max() < 1.01


@pytest.mark.parametrize("metric", ["cosine", "dot"])
def test_neighbours_equal_the_dense_similarity(metric):
    model = Model(seed=3)
    for factors, call in (
        (model.item_factors_, model.similar_items),
        (model.user_factors_, model.similar_users),
    ):
        size = len(factors)
        dense = factors.astype(float)
        if metric == "cosine":
            dense = dense / np.linalg.norm(dense, axis=1, keepdims=True)
        similarity = dense @ dense.T
        np.fill_diagonal(similarity, -np.inf)
        ids, scores = call(np.arange(size), n=size - 1, metric=metric)
        np.testing.assert_allclose(scores, -np.sort(-similarity, axis=1)[:, :-1], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            scores, np.take_along_axis(similarity, ids.astype(int), 1), rtol=1e-5, atol=1e-6
        )
        assert (ids != np.arange(size)[:, None]).all() and np.ptp(scores) > 0.5
        assert set(call(3, n=9, candidates=[1, 2, 3])[0][0]) == {1, 2, -1}
    assert 5 not in model.similar_items(2, n=N, exclude_items=[5])[0]
    assert 5 not in model.similar_users(2, n=M, exclude_users=[5])[0]


def test_an_item_without_direction_is_no_neighbour():
    factors = np.array([[1.0, 0], [0, 0], [2, 0]])
    model = Unfitted()
    model._snapshot = Snapshot(factors, factors)
    ids, _ = model.similar_items([0, 1], n=2)
    np.testing.assert_array_equal(ids, [[2, -1], [-1, -1]])
    assert factors[0, 0] == 1  # scaling happened on a copy


def test_predict_gives_the_scores_of_pairs():
    model = Model()
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, M, 200), rng.integers(0, N, 200)
    np.testing.assert_allclose(model.predict(users, items), model.scores[users, items], rtol=1e-6)
    np.testing.assert_allclose(model.predict(3, items), model.scores[3, items], rtol=1e-6)
    many = rng.integers(0, M, 70_000)
    np.testing.assert_allclose(model.predict(many, 2), model.scores[many, 2], rtol=1e-6)
    assert model.predict([], []).shape == (0,)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda m: m.recommend([0, M]), UnknownIdError, r"users\[1\]=30"),
        (lambda m: m.recommend(-1), UnknownIdError, "user of this model"),
        (lambda m: m.recommend("a"), InputTypeError, "users"),
        (lambda m: m.recommend(0, n=0), ParameterError, "n=0"),
        (lambda m: m.recommend(0, exclude="test"), ParameterError, "exclude='test'"),
        (lambda m: m.recommend(0, exclude=[1, 2]), ParameterError, "exclude=1 .* exclude_items"),
        (
            lambda m: m.recommend(0, exclude=np.array([1, 2])),
            ParameterError,
            r"exclude=array\(\[1, 2\]\) .* exclude_items",
        ),
        (lambda m: m.recommend(0, exclude=False), ParameterError, "exclude=False .* None"),
        (lambda m: m.recommend([0, 1], exclude=sp.csr_array((N, 2))), ShapeError, "transposed"),
        (lambda m: m.recommend([0, 1], exclude=sp.csr_array((M, N))), ShapeError, r"exclude\[users\]"),
        (lambda m: m.recommend([0, 1], candidates=sp.csr_array((2, 9))), ShapeError, "candidates"),
        (lambda m: m.recommend(0, candidates=[N]), UnknownIdError, "candidates"),
        (lambda m: m.recommend(0, exclude_items=[N]), UnknownIdError, "exclude_items"),
        (lambda m: m.recommend_new(sp.csr_array((N, 2))), ShapeError, "transposed"),
        (lambda m: m.recommend_new(-np.ones((1, N))), InputError, "row 0, column 0"),
        (lambda m: m.similar_items(N), UnknownIdError, "item of this model"),
        (lambda m: m.similar_users(M), UnknownIdError, "user of this model"),
        (lambda m: m.similar_users(0, candidates=[M]), UnknownIdError, "user of this model"),
        (lambda m: m.similar_items(0, metric="l2"), ParameterError, "metric='l2'"),
        (lambda m: m.predict([0, 1, 2], [0, 1]), ShapeError, "3 users and 2 items"),
        (lambda m: m.predict([0], [N]), UnknownIdError, "items"),
    ],
)
def test_bad_calls_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call(Model())


def test_unfitted_models_say_so():
    model = Unfitted()
    for call in (
        lambda: model.recommend(0),
        lambda: model.recommend_new(sp.csr_array((1, N))),
        lambda: model.similar_items(0),
        lambda: model.predict(0, 0),
        lambda: model.user_factors_,
        lambda: check_is_fitted(model),
    ):
        with pytest.raises(NotFittedError):
            call()
    assert not hasattr(model, "item_factors_")


def test_a_model_without_its_matrix_asks_what_to_exclude():
    model = Unfitted()
    model._snapshot = Snapshot(np.ones((2, 1)), np.ones((3, 1)))
    with pytest.raises(ParameterError, match="no training interactions"):
        model.recommend(0)
    with pytest.raises(InputError, match="by which items are popular"):
        model.recommend_ids([7], unknown="popular", exclude=None)
    assert model.recommend(0, n=1, exclude=None)[0][0, 0] == 0
    with pytest.raises(InputError, match="no transform"):
        model.recommend_new(sp.csr_array(np.ones((1, 3))))


def test_each_answer_comes_from_one_snapshot():
    """Two fits whose users and items only fit each other: a mixed answer has an impossible score."""
    model = Unfitted()
    fits = [Snapshot(np.full((5, 2), f), np.full((40, 2), f)) for f in (1.0, 100.0)]
    model._snapshot = fits[0]
    answers = []

    def ask():
        for _ in range(200):
            answers.append(model.recommend(np.arange(5), n=3, exclude=None)[1])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    swaps = 0
    while any(thread.is_alive() for thread in threads):
        model._snapshot = fits[swaps % 2]
        swaps += 1
        time.sleep(0)  # lets the others have the interpreter
    assert len(answers) == 800 and {scores.max() for scores in answers} == {2, 20_000}
    assert all((scores == scores[0, 0]).all() for scores in answers)
