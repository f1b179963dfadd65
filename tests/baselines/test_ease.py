"""EASE against its closed form in float64, its own optimality, its memory."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import interactions
from sklearn.model_selection import GridSearchCV

from rgals import InsufficientMemoryError, NumericalError, ParameterError, ValuesWarning
from rgals.baselines import EASE, ease
from rgals.matrix.validate import as_csr
from rgals.runtime import memory


def closed_form(X, reg):
    """Algorithm 1 of the paper."""
    P = np.linalg.inv(X.T @ X + reg * np.eye(X.shape[1]))
    B = P / -np.diag(P)
    np.fill_diagonal(B, 0.0)
    return B


@pytest.fixture(scope="module", params=["ones", "values"])
def X(request):
    return interactions(70, 45, valued=request.param == "values", seed=1)


@pytest.mark.parametrize(("dtype", "error"), [("float32", 1e-4), ("float64", 1e-10)])
@pytest.mark.parametrize("reg", [0.5, 30.0])
def test_weights_are_the_closed_form(X, reg, dtype, error):
    model = EASE(reg=reg, dtype=dtype).fit(X)
    expected = closed_form(X.toarray(), reg)
    np.testing.assert_allclose(model.weights_, expected, atol=error * np.abs(expected).max())
    assert model.weights_.dtype == dtype and (np.diag(model.weights_) == 0).all()
    np.testing.assert_allclose(model.scores(np.arange(70)), X @ expected, atol=10 * error)
    np.testing.assert_allclose(model.predict([4, 9, 3], 7), (X @ expected)[[4, 9, 3], 7], atol=10 * error)


def test_no_weights_with_a_zero_diagonal_are_better(X):
    dense, model = X.toarray(), EASE(reg=5.0, dtype="float64").fit(X)

    def objective(B):
        return ((dense - dense @ B) ** 2).sum() + 5.0 * (B**2).sum()

    assert model.history_[0]["objective"] == pytest.approx(objective(model.weights_), rel=1e-10)
    rng = np.random.default_rng(0)
    for _ in range(20):
        step = rng.standard_normal((45, 45)) * 1e-3
        np.fill_diagonal(step, 0.0)
        assert objective(model.weights_ + step) > objective(model.weights_)


@pytest.mark.parametrize("block", [1, 45 * 8 * 7])
def test_blocks_change_nothing(X, block, monkeypatch):
    whole = EASE(reg=5.0, dtype="float64").fit(X)
    users = np.arange(4, 70)
    lists = whole.recommend(users, n=8)
    mine = sp.csr_array(np.random.default_rng(0).random((66, 45)) < 0.4)
    several = {"exclude": mine}, {"candidates": mine}, {"exclude_items": [3, 8], "candidates": [8, 9]}
    filtered = [whole.recommend(users, n=8, **filters) for filters in several]
    monkeypatch.setattr(ease, "_BLOCK_BYTES", block)
    monkeypatch.setattr(ease.EASE, "_pairs_at_once", 3)
    parts = EASE(reg=5.0, dtype="float64").fit(X)
    np.testing.assert_allclose(parts.weights_, whole.weights_, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(parts.recommend(users, n=8)[0], lists[0])
    np.testing.assert_allclose(parts.predict(users, 3), whole.predict(users, 3), rtol=1e-9)
    for filters, want in zip(several, filtered, strict=True):
        found = parts.recommend(users, n=8, **filters)
        np.testing.assert_array_equal(found.ids, want.ids)
        np.testing.assert_allclose(found.scores, want.scores, rtol=1e-9)


def test_tiles_are_mirrored_all_over_the_matrix(X, monkeypatch):
    whole = EASE(reg=5.0, dtype="float64").fit(X).weights_
    monkeypatch.setattr(ease, "_TILE", 7)
    np.testing.assert_array_equal(EASE(reg=5.0, dtype="float64").fit(X).weights_, whole)


def test_pairs_of_users_without_interactions_have_the_score_zero(X):
    last = sp.vstack([X, X[[3]]]).tocsr()  # nothing
    model = EASE(reg=5.0, dtype="float64").fit(last)
    found = model.predict([8, 70, 3], [1, 1, 2])
    np.testing.assert_allclose(found, model.scores([8, 70, 3])[range(3), [1, 1, 2]], rtol=1e-9)


def test_filters_are_those_of_every_model(X):
    model = EASE(reg=5.0, dtype="float64").fit(X)
    users, scores = np.array([8, 4, 30]), model.scores([8, 4, 30])

    def best(allowed, n=6):
        kept = np.where(allowed, scores, -np.inf)
        order = np.argsort(-kept, axis=1, kind="stable")[:, :n]
        return np.where(np.take_along_axis(kept, order, 1) > -np.inf, order, -1)

    unseen = X[users].toarray() == 0
    some = np.isin(np.arange(45), [3, 8, 9, 11, 30])
    mine = np.random.default_rng(0).random((3, 45)) < 0.2
    cases = [
        ({}, unseen),
        ({"exclude": None}, np.ones_like(unseen)),
        ({"candidates": [3, 8, 9, 11, 30]}, unseen & some),
        ({"exclude_items": [3, 8, 9, 11, 30]}, unseen & ~some),
        ({"candidates": sp.csr_array(mine)}, unseen & mine),
        ({"exclude": ("train", sp.csr_array(mine))}, unseen & ~mine),
    ]
    for filters, allowed in cases:
        np.testing.assert_array_equal(model.recommend(users, n=6, **filters)[0], best(allowed))


@pytest.mark.parametrize("n", [0, -1, 2.5, "many"])
def test_a_list_has_a_length(X, n):
    with pytest.raises(ParameterError, match="n="):
        EASE(reg=5.0).fit(X).recommend([4], n=n)


def test_new_users_are_those_of_the_fit_and_cold_ones_get_nothing_or_what_is_popular(X):
    model = EASE(reg=5.0).fit(X)
    for a, b in zip(model.recommend_new(X[[8, 4]], n=5), model.recommend([8, 4], n=5), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.warns(UserWarning, match="1 of 2 users have no training interactions"):
        ids, scores = model.recommend([3, 4], n=5)
    assert (ids[0] == -1).all() and (scores[0] == -np.inf).all() and (ids[1] >= 0).all()
    counts = np.diff(X.tocsc().indptr)
    np.testing.assert_array_equal(
        model.recommend([3], n=5, cold="popular")[0][0], np.argsort(-counts, kind="stable")[:5]
    )


def test_lists_of_nobody_and_of_unknown_users_alone(X):
    model = EASE(reg=1.0).fit(X, user_ids=[f"u{k}" for k in range(70)])
    assert model.recommend([], n=3).ids.shape == model.recommend_ids([], n=3)[0].shape == (0, 3)
    assert model.recommend_new(X[:0], n=3)[0].shape == (0, 3)
    items, scores = model.recommend_ids(["nobody"], n=3, unknown="popular")
    counts = X.astype(bool).sum(axis=0)
    assert scores[0].tolist() == np.sort(counts)[::-1][:3].tolist() == counts[items[0].astype(int)].tolist()


def test_values_become_weights_as_for_every_model():
    X = interactions(70, 45, seed=1)
    X.data = np.random.default_rng(0).lognormal(2.0, 1.5, X.nnz)
    with pytest.warns(ValuesWarning, match="took 'binary'") as said:
        model = EASE(reg=5.0).fit(X)
    assert {w.filename for w in said if w.category is ValuesWarning} == {__file__}
    ones = EASE(reg=5.0).fit(X > 0)
    np.testing.assert_array_equal(model.weights_, ones.weights_)
    np.testing.assert_array_equal(model.recommend_new(X[[8]], n=5)[0], ones.recommend([8], n=5)[0])
    np.testing.assert_allclose(
        EASE(reg=5.0, values="log1p", dtype="float64").fit(X).weights_,
        closed_form(np.log1p(X.toarray()) / np.log1p(X.data).mean(), 5.0),
        rtol=1e-6,
        atol=1e-9,
    )


def test_auto_is_in_the_scale_of_the_data_and_is_told(X, monkeypatch):
    clock = iter([10.0, 12.5])
    with monkeypatch.context() as patch:
        patch.setattr(ease, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
        model = EASE(dtype="float64").fit(X)
    assert model.n_iter_ == 1 and model.history_[0]["seconds"] == 2.5
    expected = 4 * (X.toarray() ** 2).sum(axis=1).mean()
    assert model.reg_ == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(model.weights_, closed_form(X.toarray(), expected), atol=1e-10)
    search = GridSearchCV(EASE(), {"reg": [1.0, 100.0]}, cv=2).fit(X[X.sum(axis=1) > 1])
    assert (search.cv_results_["mean_test_score"] > 0).all()


def test_it_works_in_place(monkeypatch):
    """The factor, the inverse and the weights are the memory of the Gramian."""
    made = []
    gramian = ease._gramian

    def kept(*args):
        made.append(gramian(*args))
        return made[-1]

    monkeypatch.setattr(ease, "_gramian", kept)
    for dtype in ("float32", "float64"):
        model = EASE(dtype=dtype).fit(interactions(70, 45, seed=1))
        assert np.shares_memory(model.weights_, made.pop())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_fit_takes_the_memory_that_is_predicted(dtype, monkeypatch):
    monkeypatch.setattr(ease, "_BLOCK_BYTES", 1 << 18)
    asked = []
    monkeypatch.setattr(memory, "admit", lambda needed, *_: asked.append(needed))
    X = sp.random_array((450, 600), density=0.05, format="csr", rng=np.random.default_rng(0))
    tracemalloc.start()
    EASE(dtype=dtype, values="raw").fit(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 600**2 * np.dtype(dtype).itemsize <= peak <= asked[0] <= 1.6 * peak


def test_memory_is_refused_before_it_is_allocated_with_both_numbers(monkeypatch):
    X = sp.csr_array(([1.0, 1.0], ([0, 1], [0, 39_999])), shape=(2, 40_000))
    monkeypatch.setattr(ease, "_gramian", lambda *_: pytest.fail("allocated"))
    with pytest.raises(InsufficientMemoryError, match=r"6\.\d GiB of memory, but max_memory allows 2\.0 GiB"):
        EASE(max_memory=2 << 30).fit(X)
    with pytest.raises(InsufficientMemoryError, match="but max_memory allows"):
        EASE(max_memory=4 * 40_000**2 + 1).fit(X)  # the weights alone
    monkeypatch.setattr(memory, "available_bytes", lambda: 5 << 30)
    with pytest.raises(
        InsufficientMemoryError, match=r"40,000 items.* 6\.\d GiB .*but 5\.0 GiB are available"
    ):
        EASE().fit(X)
    with pytest.raises(InsufficientMemoryError, match=r"12\.\d GiB.*dtype='float32'"):
        EASE(dtype="float64").fit(X)


def test_what_cannot_be_solved_is_said():
    rng = np.random.default_rng(0)
    X = as_csr(rng.random((4, 30)) * 1e3)
    with pytest.raises(NumericalError, match="not positive definite in float32: raise reg or use dtype"):
        EASE(reg=1e-9).fit(X)


@pytest.mark.parametrize(
    "wrong", [{"reg": 0.0}, {"reg": "rule"}, {"dtype": "int"}, {"max_memory": -1}, {"values": "tfidf"}]
)
def test_parameters_are_refused_by_name(wrong, X):
    with pytest.raises(ParameterError, match=f"{next(iter(wrong))}="):
        EASE(**wrong).fit(X)
