"""Weights for values: formulas, statistics of the fitted matrix alone, what is noticed about values."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import interactions

from rgals.matrix import csr, weighting
from rgals.matrix.csr import TimedMatrix
from rgals.matrix.validate import as_csr
from rgals.matrix.weighting import VALUES, Values, Weighting

KINDS = [kind for kind in VALUES if kind != "auto"]


def counts(seed=0, n_users=60):
    X = interactions(n_users, 45, seed=seed)
    X.data = np.random.default_rng(seed).lognormal(2.0, 1.5, X.nnz)
    return X


def weights(kind, fitted, X):
    """The formulas of the class, dense."""
    V, T = X.toarray(), fitted.toarray()
    if kind == "raw":
        return V
    if kind == "binary":
        return (V > 0).astype(float)

    def unscaled(values):
        if kind == "log1p":
            return np.log(1 + values)
        n = (T > 0).sum(axis=0)
        idf = np.log(1 + (len(T) - n + 0.5) / (n + 0.5))
        length = values.sum(axis=1, keepdims=True) / T.sum(axis=1).mean()
        return idf * values * 2.2 / (values + 1.2 * (0.25 + 0.75 * length) + (values == 0))

    return unscaled(V) / unscaled(T)[T > 0].mean()


@pytest.mark.parametrize("chunk", [7, 1 << 20])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_those_of_the_formulas(kind, dtype, chunk, monkeypatch):
    monkeypatch.setattr(weighting, "_CHUNK", chunk)
    X, other = counts(), counts(seed=1, n_users=20)
    matrix = as_csr(X, dtype=dtype)
    made = Weighting.of(kind, matrix)
    for rows in (X, other):
        got = made.rows(as_csr(rows, dtype=dtype))
        np.testing.assert_allclose(got.to_scipy(dtype).toarray(), weights(kind, X, rows), rtol=1e-5)
        assert got.values.dtype == dtype and (got.nnz, got.n_cols) == (rows.nnz, rows.shape[1])
    if kind != "raw":
        assert made.rows(matrix).to_scipy(np.float64).data.mean() == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_alone_and_an_item_among_others_have_the_same_bits(kind):
    matrix = as_csr(counts())
    made = Weighting.of(kind, matrix)
    whole = made.rows(matrix)
    for row in (0, 17, 42):
        np.testing.assert_array_equal(
            made.rows(matrix.take_rows(np.array([row]))).to_scipy().data,
            whole.take_rows(np.array([row])).to_scipy().data,
        )
    items, few = matrix.transpose(), np.array([3, 8, 5])
    found = made.columns(items.take_rows(few), matrix).to_scipy()
    assert (found != whole.transpose().take_rows(few).to_scipy()).nnz == 0
    replaced = made.with_counts(few, items.row_counts[few[::-1]])
    if made.idf is not None:
        np.testing.assert_array_equal(replaced.idf[few], made.idf[few[::-1]])
        np.testing.assert_array_equal(np.delete(replaced.idf, few), np.delete(made.idf, few))


@pytest.mark.parametrize("kind", KINDS)
def test_items_that_some_dislike_weigh_as_in_the_matrix(kind):
    X = counts()
    disliked = np.random.default_rng(3).random(X.nnz) < 0.2
    X.data[disliked] *= -1
    assert 0 < disliked.sum() < X.nnz
    matrix = as_csr(X, dislikes=True)
    made = Weighting.of(kind, matrix)
    found, whole = made.columns(matrix.transpose(), matrix), made.rows(matrix).transpose()
    np.testing.assert_array_equal(found.to_scipy().toarray(), whole.to_scipy().toarray())


@pytest.mark.parametrize("kind", ["log1p", "binary"])
def test_ones_stay_ones(kind):
    matrix = as_csr(interactions())
    assert Weighting.of(kind, matrix).rows(matrix).is_binary


@pytest.mark.parametrize("least", [1e-38, 1e-45])  # the second over any scale above 2 is 0 in float32
@pytest.mark.parametrize("kind", KINDS)
def test_an_interaction_stays_one_however_small_its_value(kind, least):
    X = counts()
    X.data[:2] = least, 1e38
    matrix = as_csr(X)
    found = Weighting.of(kind, matrix).rows(matrix)
    assert found.nnz == X.nnz and (found.is_binary or (found.values > 0).all())
    assert found.is_binary or np.isfinite(found.values).all()


def test_what_came_after_the_fit_weighs_more_up_to_forty_half_lives():
    times, values = np.array([70.0, 90, 100]), np.array([1.0, 2.0, 3.0])
    fitted = TimedMatrix.of(sp.csr_array((values, [0, 1, 2], [0, 3]), shape=(1, 3)), times)
    made = Weighting().halving(10.0, as_csr(fitted, dtype=np.float64))
    later = TimedMatrix.of(sp.csr_array((values, [0, 1, 2], [0, 3]), shape=(1, 3)), times + [30, 20, 900])
    found = made.rows(as_csr(later, dtype=np.float64)).values
    np.testing.assert_allclose(found / found[0], [1, 2 * 2, 3 * 2.0**40])


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_predicted(kind, monkeypatch):
    """The weights; the rest is a chunk."""
    for module in (weighting, csr):
        monkeypatch.setattr(module, "_CHUNK", 1 << 12)
    X = sp.random_array((2000, 500), density=0.3, format="csr", rng=np.random.default_rng(0))
    matrix = as_csr(X)
    made = Weighting.of(kind, matrix)
    tracemalloc.start()
    made.rows(matrix)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert made.bytes(matrix) * 0.7 - 1e5 <= peak <= made.bytes(matrix) + 1e5


def test_spread_is_that_of_numpy_and_does_not_overflow():
    X = counts()
    expected = pytest.approx(X.data.std() / X.data.mean(), rel=1e-9)
    for scale in (1.0, 1e300):
        matrix = as_csr(scale * X, dtype=np.float64)
        assert Values.of(matrix).spread == expected
        parts = [Values.of(matrix.slice_rows(a, b)) for a, b in ((0, 7), (7, 7), (7, matrix.n_rows))]
        assert Values.together(parts).spread == expected
    assert Values.of(as_csr(interactions())).spread == 0


def of_values(values):
    n = -(-len(values) // 50)
    return as_csr(sp.csr_array(np.resize(values, (n, 50)).astype(float)))


def test_stars_are_told_from_counts():
    rng = np.random.default_rng(0)
    stars = rng.choice([1, 2, 3, 4, 5], 4000, p=[0.06, 0.11, 0.27, 0.34, 0.22])
    for ratings in (stars, 2 * stars, stars - rng.choice([0, 0.5], 4000)):
        assert Values.of(of_values(np.append(ratings, ratings.max()))).are_ratings
    others = {
        "counts, most of them 1": np.minimum(rng.geometric(0.6, 4000), 5),
        "liked alone": rng.choice([4, 5], 4000),
        "liked, in half steps": rng.choice([3.5, 4, 4.5, 5], 4000),
        "no steps": np.append(rng.uniform(1, 5, 4000), 5),
        "some between the steps": stars - 0.3 * (rng.random(4000) < 0.1),
        "of three levels": rng.choice([1, 4, 5], 4000, p=[0.2, 0.4, 0.4]),
        "larger": stars * 20,
        "few": stars[:500],
        "ones": np.ones(4000),
    }
    assert not [name for name, values in others.items() if Values.of(of_values(values)).are_ratings]
