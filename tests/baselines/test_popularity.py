"""Popularity: counts, ages, and the surface of every model."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import interactions
from sklearn.utils.estimator_checks import parametrize_with_checks

from rgals import InputError, ModelFileError, ParameterError, Positions, UnknownIdError
from rgals.baselines import EASE, Popularity
from rgals.datasets import Interactions, make_implicit, read_interactions
from rgals.metrics import evaluate
from rgals.scoring import recommend_all


@pytest.fixture(scope="module")
def data():
    return make_implicit(150, 60, mean_interactions=9, timestamps=True, valued=True, random_state=0)


@pytest.mark.few(63)
@parametrize_with_checks([Popularity(), EASE(reg=1.0), EASE(reg=1.0, dtype="float64")])
@pytest.mark.filterwarnings("ignore:.*have no interactions")
def test_scikit_learns_checks(estimator, check):
    check(estimator)


def test_it_counts_users_whatever_the_values(data):
    model = Popularity().fit(data)
    counts = np.bincount(data.matrix.indices, minlength=60)
    np.testing.assert_array_equal(model.item_factors_.ravel(), counts)
    ids, scores = model.recommend(Positions(np.arange(150)), n=60)
    for user in range(150):
        left = np.setdiff1d(np.arange(60), data.matrix[[user]].indices)
        best = left[np.argsort(-counts[left], kind="stable")]
        np.testing.assert_array_equal(ids[user, : len(best)], best)
        np.testing.assert_array_equal(scores[user, : len(best)], counts[best])
    np.testing.assert_array_equal(model.predict(Positions([3, 4]), Positions([7, 7])), counts[[7, 7]])


def test_half_life_is_that_of_the_times(data):
    model = Popularity(half_life=3e6).fit(data)
    expected = np.zeros(60)
    pairs = sp.coo_array(data.matrix)
    for item, time in zip(pairs.coords[1], data.timestamp, strict=True):
        expected[item] += 0.5 ** ((data.timestamp.max() - time) / 3e6)
    np.testing.assert_allclose(model.item_factors_.ravel(), expected, rtol=1e-12)
    assert (np.argsort(-expected) != np.argsort(-np.bincount(data.matrix.indices))).any()
    endless = Popularity(half_life=1e15).fit(data)
    np.testing.assert_allclose(endless.item_factors_, Popularity().fit(data).item_factors_, rtol=1e-6)


def test_items_that_nobody_has_count_zero_and_ages_of_any_size_are_told_apart():
    assert Popularity().fit(sp.csr_array((np.ones(2), ([0, 2], [1, 1])), (3, 5))).item_factors_.shape == (
        5,
        1,
    )
    data = read_interactions((["u", "v", "w"], ["a", "b", "c"], None, [100, 150, 450]))
    ids = Popularity(half_life=1).fit(data).recommend_ids(["x"], n=3, unknown="popular").ids
    assert ids.tolist() == [["c", "b", "a"]]  # 0, 300 and 350 half-lives ago


def test_times_of_a_table_belong_to_its_own_rows():
    """They were taken in the order of the table, which is not that of the matrix."""
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame({"user": [3, 1, 2, 1], "item": [9, 8, 9, 9], "timestamp": [40, 10, 30, 20]})
    model = Popularity(half_life=10).fit(table)
    assert model.item_ids_.tolist() == [8, 9]
    np.testing.assert_allclose(model.item_factors_.ravel(), [2.0**-3, 1 + 2.0**-1 + 2.0**-2])


@pytest.mark.parametrize("model", [Popularity(), EASE()])
def test_dislikes_and_numbers_of_threads_that_are_none_are_refused(model, data):
    with pytest.raises(InputError, match="holds -1.0 at row 0"):
        model.fit(np.array([[-1.0, 1], [1, 1]]))
    with pytest.raises(ParameterError, match="n_jobs=0"):
        type(model)(n_jobs=0).fit(data)


def test_what_a_half_life_needs_is_said(data):
    for X in (data.matrix, Interactions(data.matrix, data.user_ids, data.item_ids)):
        with pytest.raises(ParameterError, match="half_life=3.* no times"):
            Popularity(half_life=3).fit(X)
        with pytest.raises(ParameterError, match="half_life='90d' .* no times"):  # as it was given
            Popularity(half_life="90d").fit(X)
    for time in (np.nan, np.inf):
        times = np.append(data.timestamp[1:].astype(float), time)
        with pytest.raises(InputError, match="it must be finite"):
            Popularity(half_life=3).fit(Interactions(data.matrix, data.user_ids, data.item_ids, times))
    for half_life in (0, -1.0, "week"):
        with pytest.raises(ParameterError, match="half_life="):
            Popularity(half_life=half_life).fit(data)


def test_users_without_interactions_get_the_list_of_all():
    X = interactions()
    model = Popularity().fit(X)
    assert X[[3]].nnz == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ids = model.recommend([3], n=5)[0]
        np.testing.assert_array_equal(model.recommend_new(X[[3]], n=5)[0], ids)
    counts = np.diff(X.tocsc().indptr)
    np.testing.assert_array_equal(ids[0], np.argsort(-counts, kind="stable")[:5])


@pytest.mark.parametrize("model", [Popularity(), Popularity(half_life=3e6), EASE(), EASE(values="bm25")])
def test_a_file_holds_the_model(model, data, tmp_path):
    model.fit(data)
    model.save(tmp_path / "model.npz")
    twin = type(model).load(tmp_path / "model.npz")
    users = np.arange(0, 150, 7)
    for name in ("recommend", "recommend_new"):
        asked = Positions(users) if name == "recommend" else data.matrix[users]
        for a, b in zip(getattr(model, name)(asked), getattr(twin, name)(asked), strict=True):
            np.testing.assert_array_equal(a, b)
    assert repr(twin) == repr(model) and twin.fingerprint() == model.fingerprint()
    assert twin.item_ids_.tolist() == list(data.item_ids)
    other = Popularity if isinstance(model, EASE) else EASE
    with pytest.raises(ModelFileError):
        other.load(tmp_path / "model.npz")


@pytest.mark.parametrize("model", [Popularity(), EASE(values="raw")])
def test_histories_with_ids_are_laid_out_as_the_fit(model, data):
    model.fit(data)
    turned = Interactions(data.matrix[:, ::-1], data.user_ids, data.item_ids[::-1])
    assert model.score(turned) == model.score(data) == model.score(data.matrix)
    columns = model.predict(data.matrix)
    assert model.predict(turned).tolist() == data.item_ids[columns].tolist()


@pytest.mark.parametrize("model", [Popularity(), EASE(values="raw")])
def test_a_frame_has_the_columns_of_the_fit(model):
    pandas = pytest.importorskip("pandas")
    X = pandas.DataFrame(np.eye(4), columns=list("abcd"))
    model.fit(X)
    for answer in (model.predict, model.score):
        with pytest.raises(ValueError, match="same order"):
            answer(X[["b", "a", "c", "d"]])


@pytest.mark.parametrize("model", [Popularity(), EASE()])
def test_what_the_error_of_a_frame_advises_can_be_done(model):
    """It gave `columns=`, which these fits do not take."""
    frame = pytest.importorskip("pandas").DataFrame({"who": [7, 7, 8], "what": [1, 2, 1]})
    with pytest.raises(InputError, match="give rgals.datasets.read_interactions") as caught:
        model.fit(frame)
    assert "columns=" not in str(caught.value)
    data = read_interactions(frame, user="who", item="what")
    assert model.fit(data).recommend([8], n=1)[0].tolist() == [[2]]


@pytest.mark.parametrize("model", [Popularity(), EASE()])
def test_lists_files_and_figures_agree_with_the_scores(model, data, tmp_path):
    model.fit(data)
    test = sp.csr_array(interactions(150, 60, seed=3))
    test = sp.csr_array(test - test.multiply(data.matrix > 0))
    test.eliminate_zeros()
    metrics = ("ndcg@5", "recall@10", "auc")
    figures = evaluate(model, data.matrix, test, metrics)
    dense = model.scores(np.arange(150))
    assert dense.shape == (150, 60)
    np.testing.assert_array_equal(model.scores(149), dense[149:])
    for row in (-1, 150):
        with pytest.raises(UnknownIdError, match=rf"users\[0\]={row}"):
            model.scores([row])
    assert figures == pytest.approx(
        evaluate(lambda users: dense[users], data.matrix, test, metrics), rel=1e-6
    )
    written = recommend_all(model, tmp_path / "lists.npz", n=4, batch_size=32)
    assert written.users == 150
    stored = np.load(tmp_path / "lists.npz")
    np.testing.assert_array_equal(stored["item"], model.recommend(Positions(np.arange(150)), n=4)[0])
    labels = model.recommend_ids(data.user_ids[:2], n=3)[0]
    np.testing.assert_array_equal(data.items.index(labels[1]), model.recommend(Positions([1]), n=3)[0][0])
    assert 0 < model.score(data.matrix) < 1
    with pytest.raises(InputError, match=r"X \(shape \(3, 60\)\) has no row of two interactions"):
        model.score(np.eye(3, 60))
    for what in (model.similar_items, model.similar_users):
        with pytest.raises(InputError, match=f"{type(model).__name__} has no factors"):
            what([1])
    assert model.info()["data"].startswith("150 users x 60 items")


def test_unknown_users_get_the_list_of_all_others_by_age():
    """They got counts, and evaluation judged these."""
    users, items = [f"u{k}" for k in range(5)], ["old", "old", "old", "new", "new"]
    data = read_interactions((users, items, None, [1, 1, 1, 99, 99]))
    model = Popularity(half_life=2).fit(data)
    found = model.recommend_ids(["u0", "who"], n=2, exclude=None, unknown="popular")
    assert found.ids[0].tolist() == found.ids[1].tolist() == ["new", "old"]
    np.testing.assert_array_equal(found.scores[0], found.scores[1])
    test = read_interactions((["who"], ["new"]))
    with pytest.warns(UserWarning, match="does not know"):
        assert evaluate(model, data, test, "hit_rate@1", cold="popular") == {"hit_rate@1": 1.0}
