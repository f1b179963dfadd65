"""`make_implicit`: the structure it promises is there and can be learned."""

from __future__ import annotations

import numpy as np
import pytest

from rgals.datasets import make_implicit, read_interactions
from rgals.model_selection import leave_last_out, split_interactions
from rgals.runtime.errors import ParameterError


@pytest.fixture(scope="module")
def data():
    return make_implicit(random_state=0, valued=True, timestamps=True)


def ndcg_at_10(scores: np.ndarray, train: np.ndarray, test: np.ndarray) -> float:
    top = np.argsort(np.where(train > 0, np.inf, -scores), axis=1, kind="stable")[:, :10]
    gain = 1 / np.log2(np.arange(2, 12))
    ideal = np.array([gain[: min(10, n)].sum() for n in (test > 0).sum(axis=1)])
    return float(((np.take_along_axis(test > 0, top, axis=1) * gain).sum(axis=1) / ideal).mean())


def test_shape_degrees_and_popularity_are_realistic(data):
    assert data.matrix.shape == (2000, 1500) and data.matrix.has_canonical_format
    users = np.diff(data.matrix.indptr)
    items = np.bincount(data.matrix.indices, minlength=1500)
    assert users.min() >= 5 and users.max() <= 750
    assert abs(users.mean() - 40) < 3
    assert users.max() > 8 * np.median(users) and users.std() > 30
    assert np.sort(items)[::-1][:150].sum() > 0.35 * data.nnz
    assert len(np.unique(items)) > 100


def test_the_truth_is_consistent(data):
    np.testing.assert_allclose(data.user_tastes.sum(axis=1), 1)
    assert data.item_popularity.sum() == pytest.approx(1)
    assert (data.user_tastes.argmax(axis=1) == data.user_clusters).mean() > 0.95
    assert np.bincount(data.item_clusters).min() >= 1500 // 16
    assert [label.split("-")[0] for label in data.item_ids[data.item_clusters == 1]] == ["jazz"] * 94
    users = np.repeat(np.arange(2000), np.diff(data.matrix.indptr))
    own = data.item_clusters[data.matrix.indices] == data.user_clusters[users]
    assert own.mean() > 0.4  # by chance it would be about 1/16
    assert data.matrix.data[own].mean() > 1.5 * data.matrix.data[~own].mean()
    # The interactions follow the stated popularity.
    items = np.bincount(data.matrix.indices, minlength=1500)
    assert np.corrcoef(np.log(items + 1), np.log(data.item_popularity))[0, 1] > 0.7


def test_taste_and_a_neighbourhood_model_beat_popularity_clearly(data):
    train, test = (part.toarray() > 0 for part in split_interactions(data.matrix, (0.8, 0.2), random_state=0))
    together = train.T.astype(np.float32) @ train.astype(np.float32)
    norm = np.sqrt(np.diag(together)) + 5
    similar = together / np.outer(norm, norm)
    np.fill_diagonal(similar, 0)
    asked = slice(None, None, 4)  # users who are judged; all of them are learned from
    item_counts, train, test = train.sum(axis=0), train[asked], test[asked]
    popular = ndcg_at_10(np.tile(item_counts, (len(train), 1)), train, test)
    truth = ndcg_at_10(data.user_tastes[asked][:, data.item_clusters] * data.item_popularity, train, test)
    neighbours = ndcg_at_10(train.astype(np.float32) @ similar, train, test)
    assert neighbours > 1.5 * popular
    assert truth > 2 * popular
    assert truth > neighbours


def test_counts_and_times(data):
    counts = data.matrix.data
    assert counts.min() == 1 and counts.max() >= 10 and (counts == np.rint(counts)).all()
    assert data.timestamp.dtype == np.int64 and len(np.unique(data.timestamp)) > 0.9 * data.nnz
    train, test = leave_last_out(data)
    assert test.nnz == 2000 and train.nnz == data.nnz - 2000
    # Time does not follow the order of the items.
    first = slice(*data.matrix.indptr[:2])
    assert abs(np.corrcoef(data.timestamp[first], data.matrix.indices[first])[0, 1]) < 0.9
    plain = make_implicit(50, 40, mean_interactions=8, random_state=0)
    assert plain.timestamp is None and set(plain.matrix.data) == {1.0}


def test_seeds_reproduce_and_differ():
    a, b, c = (make_implicit(100, 80, mean_interactions=10, random_state=seed) for seed in (1, 1, 2))
    assert (a.matrix != b.matrix).nnz == 0 and np.array_equal(a.item_ids, b.item_ids)
    assert (a.matrix != c.matrix).nnz > 100


@pytest.mark.parametrize(
    "options",
    [
        {"n_users": 1, "n_items": 10, "mean_interactions": 5, "n_clusters": 1},
        {"n_users": 30, "n_items": 12, "mean_interactions": 6, "n_clusters": 12},
        {"n_users": 40, "n_items": 30, "mean_interactions": 15, "noise": 0.0, "n_clusters": 10},
        {"n_users": 40, "n_items": 500, "noise": 1.0, "n_clusters": 40, "popularity_exponent": 0.0},
    ],
)
def test_extreme_shapes(options):
    data = make_implicit(random_state=3, **options)
    assert data.matrix.shape == (options["n_users"], options["n_items"])
    assert np.diff(data.matrix.indptr).min() >= 5
    assert len(set(data.item_ids.tolist())) == options["n_items"]


@pytest.mark.parametrize(
    "bad",
    [
        {"n_users": 0}, {"n_items": 5}, {"n_clusters": 0}, {"n_clusters": 1501}, {"mean_interactions": 1},
        {"mean_interactions": 800}, {"noise": 1.5}, {"popularity_exponent": -1}, {"labels": "uuid"},
        {"n_users": 2.5},
    ],
)  # fmt: skip
def test_parameters_are_checked(bad):
    with pytest.raises(ParameterError, match=next(iter(bad))):
        make_implicit(**bad)


def test_an_exponent_that_leaves_nothing_of_any_popularity_is_refused():
    """Popularities were NaN, and interactions those of NaN."""
    with pytest.raises(ParameterError, match="popularity_exponent=400.* of 20 items none has a probability"):
        make_implicit(10, 20, popularity_exponent=400)
    made = make_implicit(10, 20, popularity_exponent=300, random_state=0)
    assert made.item_popularity.sum() == pytest.approx(1) and made.matrix.nnz >= 50


@pytest.mark.parametrize(("n_items", "mean"), [(10, 5), (60, 30), (80, 40), (300, 40)])
def test_the_defaults_fit_small_catalogues(n_items, mean):
    """60 items were refused for a mean of 40, which nobody had given."""
    given = {"mean_interactions": mean, "n_clusters": min(16, n_items)}
    made, told = (make_implicit(20, n_items, random_state=0, **k) for k in ({}, given))
    assert (made.matrix != told.matrix).nnz == 0


def test_it_survives_saving(tmp_path):
    data = make_implicit(60, 50, mean_interactions=9, valued=True, timestamps=True, random_state=0)
    data.save(tmp_path / "made.npz")
    again = read_interactions(tmp_path / "made.npz")
    chosen = np.unique(data.matrix.indices)  # reading leaves out items that nobody chose
    assert np.array_equal(again.user_ids, data.user_ids)
    assert np.array_equal(again.item_ids, data.item_ids[chosen])
    np.testing.assert_array_equal(again.matrix.toarray(), data.matrix.toarray()[:, chosen])
    assert np.array_equal(again.timestamp, data.timestamp)


@pytest.mark.parametrize("kind", [np.uint8, np.uint64])
def test_numbers_of_numpy_are_taken_as_those_of_python(kind):
    """The exponent's negative was 255, so that users had five items each."""
    numbers = {"n_clusters": 8, "mean_interactions": 20, "popularity_exponent": 1, "random_state": 0}
    odd = make_implicit(kind(60), kind(100), **{name: kind(n) for name, n in numbers.items()})
    assert (odd.matrix != make_implicit(60, 100, **numbers).matrix).nnz == 0
