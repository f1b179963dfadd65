"""What goes in with ids comes out with ids; rows by number are `Positions`, or those that have no ids."""

from __future__ import annotations

import csv
import pickle
import uuid

import numpy as np
import pytest
import scipy.sparse as sp

from rgals import IALS, RGALS, Positions, UnknownIdError
from rgals.baselines import EASE
from rgals.datasets import Interactions, make_implicit
from rgals.runtime.errors import InputError, InputTypeError, ParameterError
from rgals.scoring import recommend_all

pd = pytest.importorskip("pandas")

M, N = 60, 40
KINDS = {
    "text": [f"u{k}" for k in range(M)],
    "integers that are other rows": [(k + 7) % M for k in range(M)],
    "beyond 2^31": [2**40 + 3 * k for k in range(M)],
    "uuids": [uuid.UUID(int=k * 7919 + 1) for k in range(M)],
    "timestamps": list(np.datetime64("2024-01-01T10:00") + np.arange(M)),
}


@pytest.fixture(scope="module")
def X():
    return make_implicit(M, N, n_clusters=3, mean_interactions=8, random_state=2).matrix


def models(X, ids):
    """The same model with ids and without, and the items' ids."""
    items = [100 * k + 5 for k in range(N)]
    plain = RGALS(6, IALS(0.1), n_iter=3, random_state=0, values="raw").fit(X)
    named = RGALS(6, IALS(0.1), n_iter=3, random_state=0, values="raw").fit(X, user_ids=ids, item_ids=items)
    return named, plain, np.array(items, object)


def told(numbers, labels):
    out = np.full(numbers.shape, None, object)
    out[numbers >= 0] = np.array(labels, object)[numbers[numbers >= 0]]
    return out.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_every_call_takes_ids_and_answers_in_ids(kind, X):
    ids = KINDS[kind]
    named, plain, items = models(X, ids)
    rows, who = np.array([3, 41, 3]), [ids[3], ids[41], ids[3]]
    some = [items[k] for k in (2, 30, 11)]
    filters = {"candidates": items[:25].tolist(), "exclude_items": some}
    columns = {"candidates": np.arange(25), "exclude_items": [2, 30, 11]}
    for mine, theirs in ((named.recommend(who, 30, **filters), plain.recommend(rows, 30, **columns)),):
        assert mine[0].tolist() == told(theirs[0], items) and None in mine[0]
        np.testing.assert_array_equal(mine[1], theirs[1])
    at, scores = named.recommend(Positions(rows), 5, candidates=Positions(np.arange(25)))
    np.testing.assert_array_equal(at, plain.recommend(rows, 5, candidates=np.arange(25))[0])
    assert at.dtype == np.int32 and scores.shape == (3, 5)
    found, _ = named.similar_items(some, 4, exclude_items=some[:1])
    assert found.tolist() == told(plain.similar_items([2, 30, 11], 4, exclude_items=[2])[0], items)
    found, _ = named.similar_users(who[:2], 4, candidates=ids[:20])
    assert found.tolist() == told(plain.similar_users([3, 41], 4, candidates=range(20))[0], named.user_ids_)
    want = plain.predict([3, 41, 3], [2, 30, 11])
    np.testing.assert_array_equal(named.predict(who, some), want)
    np.testing.assert_array_equal(named.predict(Positions(rows), Positions([2, 30, 11])), want)
    why, other = named.explain(ids[3], items[2], None), plain.explain(3, 2, None)
    assert why.items.tolist() == told(other.items, items) and why.score == other.score
    assert (why.user, why.item) == (named.user_ids_[3], 205) and other.item == 2
    np.testing.assert_array_equal(
        named.transform_items(X[:, [2, 30]], some[:2]), plain.transform_items(X[:, [2, 30]], [2, 30])
    )


def test_histories_with_ids_are_answered_in_ids(X, tmp_path):
    named, plain, items = models(X, KINDS["text"])
    history = X[[4, 9]]
    frame = pd.DataFrame(
        {"user": np.array(["b", "a"])[history.nonzero()[0]], "item": items[history.nonzero()[1]]}
    )
    want, scores = plain.recommend_new(X[[9, 4]], 6)
    for data in (frame, Interactions(X[[9, 4]], np.array(["a", "b"]), items)):
        got = named.recommend_new(data, 6, exclude_items=[205])
        assert got[0].tolist() == told(plain.recommend_new(X[[9, 4]], 6, exclude_items=[2])[0], items)
        assert named.predict(data).tolist() == told(want[:, 0], items)
        recommend_all(named, tmp_path / "new.csv", 6, X_new=data)
        with open(tmp_path / "new.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        assert [row["user"] for row in rows] == ["a"] * 6 + ["b"] * 6
        assert [int(row["item"]) for row in rows] == items[want].ravel().tolist()
    ids, same = named.recommend_new(X[[9, 4]], 6)
    np.testing.assert_array_equal(ids, want)
    np.testing.assert_array_equal(same, scores)
    with pytest.raises(UnknownIdError, match="X_new: item 7 is not known"):
        recommend_all(named, tmp_path / "no.csv", X_new=pd.DataFrame({"user": ["a"], "item": [7]}))


def test_lists_of_some_users_are_written_by_id(X, tmp_path):
    named, plain, items = models(X, KINDS["text"])
    for users in (["u7", "u3"], Positions([7, 3])):
        recommend_all(named, tmp_path / "some.csv", 3, users=users, exclude_items=items[:4].tolist())
        with open(tmp_path / "some.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        assert [row["user"] for row in rows] == ["u7"] * 3 + ["u3"] * 3
        want = plain.recommend([7, 3], 3, exclude_items=range(4))[0]
        assert [int(row["item"]) for row in rows] == items[want].ravel().tolist()


def test_a_row_number_is_no_id(X):
    named, plain, _ = models(X, KINDS["text"])
    for call, words in (
        (lambda: named.recommend(3), r"users: user 3 is not known; .* rgals.Positions\(\[3\]\)"),
        (lambda: named.recommend("u3", candidates=[4]), r"candidates: item 4 is not known.*Positions"),
        (lambda: named.similar_items(N + 1), "items: item 41 is not known"),
        (lambda: named.predict("u3", [5, 6]), "items: item 6 is not known"),
        (lambda: named.explain("u99", 5), "user: user 'u99' is not known"),
        (lambda: named.recommend(Positions([M])), "=60 is no user of this model: they run from 0 to 59"),
        (lambda: named.recommend(Positions([-1])), "=-1 is no user of this model"),
        (lambda: plain.recommend(Positions([M])), "from 0 to 59"),
        (lambda: plain.similar_items([N]), "=40 is no item of this model"),
    ):
        with pytest.raises(UnknownIdError, match=words):
            call()
    np.testing.assert_array_equal(plain.recommend(Positions([3]))[0], plain.recommend(3)[0])
    for wrong in ([0.5], "a", [[1]], [None]):
        with pytest.raises(InputTypeError, match="positions must be integers"):
            Positions(wrong)
    assert repr(Positions(range(9))) == "Positions([0, 1, 2, ...])" and len(Positions(4)) == 1


def test_ids_come_one_by_one_or_in_columns_of_every_package(X):
    pa, pl = (pytest.importorskip(name) for name in ("pyarrow", "polars"))
    named, _, items = models(X, KINDS["text"])
    who = ["u3", "u7"]
    want = named.recommend(who, 2, candidates=items[:9])[0].tolist()
    for kind in (pa.array, lambda ids: pa.chunked_array([ids]), pl.Series, pd.Index, iter, dict.fromkeys):
        for call in (named.recommend, named.recommend_ids):
            assert call(kind(who), 2, candidates=kind(items[:9].tolist()))[0].tolist() == want
    for one in (float(items[2]), np.float64(items[2]), pa.scalar(items[2])):
        assert named.similar_items(one, 3)[0].tolist() == named.similar_items(items[2], 3)[0].tolist()
    lists = named.recommend_ids({"who": 1}, 2, unknown="popular")
    assert lists.asked.tolist() == ["who"] and (lists.scores > 0).all()
    assert named.recommend_ids(Positions([3, 99]), 2, unknown="popular").asked.tolist() == [3, 99]
    table = pd.DataFrame({"user": who, "item": who})
    for wrong in (None, float("nan"), pd.NA, table, pl.from_pandas(table), pa.table(table), True):
        with pytest.raises(InputTypeError, match="users: ids must be"):
            named.recommend(wrong)
        with pytest.raises(InputTypeError, match="ids must be"):
            named.recommend_ids(wrong, unknown="popular")


def test_baselines_speak_of_ids_too(X):
    items = [f"i{k}" for k in range(N)]
    model = EASE().fit(Interactions(X, np.array(KINDS["text"]), np.array(items)))
    found, _ = model.recommend(["u3"], 4, exclude_items=["i0"])
    numbers, _ = model.recommend(Positions([3]), 4, exclude_items=Positions([0]))
    assert found.tolist() == told(numbers, items)
    np.testing.assert_array_equal(
        model.predict("u3", found[0]), model.predict(Positions(3), Positions(numbers[0]))
    )


def test_ids_of_items_alone(X):
    titles = [f"film {k}" for k in range(N)]
    model = RGALS(4, random_state=0).fit(sp.csr_array(X), item_ids=titles)
    assert set(model.recommend([0, 1], 3)[0].ravel()) <= set(titles)
    assert model.recommend(Positions([0, 1]), 3)[0].dtype == np.int32


def test_frames_of_users_and_items_are_excluded_by_their_ids(X, tmp_path):
    named, plain, _ = models(X, KINDS["text"])
    users = ["u4", "u2"]
    before = named.recommend(users, 5)
    shown = pd.DataFrame({"user": ["u2", "nobody", "u9"], "item": [before.ids[1, 0], 5, 105]})
    after = named.recommend(users, 4, exclude=("train", shown))
    np.testing.assert_array_equal(after.ids, [before.ids[0, :4], before.ids[1, 1:]])
    recommend_all(named, out=tmp_path / "a.csv", n=4, users=users, exclude=("train", shown))
    written = pd.read_csv(tmp_path / "a.csv").groupby("user", sort=False)["item"].agg(list)
    np.testing.assert_array_equal(np.stack(written[users]), after.ids)
    with pytest.raises(InputError, match="exclude has ids, but what it is used with has none"):
        plain.recommend([4, 2], exclude=shown)


def test_lists_that_were_shown_are_a_filter_whatever_their_scores_are(X):
    """A score of 0 was no pair, and one below 0 an error: lists were shown again on the next day."""
    model, items = RGALS(4, n_iter=3, random_state=0), [f"i{k}" for k in range(X.shape[1])]
    model.fit(X, user_ids=range(X.shape[0]), item_ids=items)
    whole = model.recommend(range(6), n=len(items), exclude=None)
    shown = whole.to_frame()
    shown["score"] = np.resize([0.0, -1.0, 1.0], len(shown))
    assert (model.recommend(range(6), n=3, exclude=shown).ids == None).all()  # noqa: E711
    again = model.recommend(range(6), n=len(items), exclude=None, candidates=shown)
    assert (again.ids == whole.ids).all()
    dated = shown.assign(timestamp=np.datetime64("NaT", "s"))[["user", "item", "timestamp", "rank"]]
    assert (model.recommend(range(6), n=3, exclude=dated).ids == None).all()  # noqa: E711


def test_filters_with_ids_hold_for_unknown_and_new_users_too(X, tmp_path):
    named, *_ = models(X, KINDS["text"])
    asked, n = ["u9", "nobody", "u2", "u9"], 5  # one of them twice
    plain = named.recommend_ids(asked, n, unknown="popular")
    shown = plain.to_frame().groupby("user", sort=False).head(2).drop_duplicates(["user", "item"])
    assert len(shown) == 6 and shown["user"].nunique() == 3
    lists = named.recommend_ids(asked, n, unknown="popular", exclude=("train", shown))
    np.testing.assert_array_equal(lists.ids[:, : n - 2], plain.ids[:, 2:])
    among = named.recommend_ids(asked, n, unknown="popular", exclude=None, candidates=shown)
    np.testing.assert_array_equal(among.ids[:, :2], plain.ids[:, :2])
    assert (among.ids[:, 2:] == None).all()  # noqa: E711
    at = named.recommend_ids(Positions([9, 99, 2, 9]), n, unknown="popular", exclude=("train", shown))
    assert (at.ids[[0, 2, 3]] == lists.ids[[0, 2, 3]]).all()
    assert (at.ids[1] == plain.ids[1]).all()  # a number of nobody has no pairs
    with pytest.raises(ParameterError, match="exclude='given'"):
        named.recommend_ids(asked, n, unknown="popular", exclude="given")
    # New users, whose names say who is meant.
    history = named.recommend(["u1", "u3"], 3, exclude=None).to_frame()[["user", "item"]].iloc[::-1]
    new = named.recommend_new(history, n)
    shown = new.to_frame().groupby("user", sort=False).head(2).iloc[::-1]
    assert shown["user"].nunique() == 2
    after = named.recommend_new(history, n, exclude=("given", shown))
    np.testing.assert_array_equal(after.ids[:, : n - 2], new.ids[:, 2:])
    among = named.recommend_new(history, n, exclude=None, candidates=shown)
    np.testing.assert_array_equal(among.ids[:, :2], new.ids[:, :2])
    recommend_all(named, tmp_path / "a.csv", n - 2, X_new=history, exclude=("train", shown))
    written = pd.read_csv(tmp_path / "a.csv").groupby("user", sort=False)["item"].agg(list)
    np.testing.assert_array_equal(np.stack(written[after.asked]), after.ids[:, : n - 2])


def test_unknown_users_of_any_type_have_no_pairs_in_a_filter_of_the_others(X):
    ids = list(range(M))
    named = models(X, ids)[0]
    shown = named.recommend([3], 2).to_frame()
    plain = named.recommend_ids([3, "eve", 77, 3], 4, unknown="popular")
    lists = named.recommend_ids([3, "eve", 77, 3], 4, unknown="popular", exclude=("train", shown))
    np.testing.assert_array_equal(lists.ids[[1, 2]], plain.ids[[1, 2]])
    np.testing.assert_array_equal(lists.ids[[0, 3], :2], plain.ids[[0, 3], 2:])
    shown["user"] = 77
    lists = named.recommend_ids([3, "eve", 77], 4, unknown="popular", exclude=("train", shown))
    np.testing.assert_array_equal(lists.ids[:2], plain.ids[:2])
    assert not set(lists.ids[2]) & set(shown["item"])
    shown["user"] = "3"
    with pytest.raises(InputError, match="exclude: its user ids are text"):
        named.recommend_ids([3, 77], 4, unknown="popular", exclude=("train", shown))


def test_a_filter_without_rows_leaves_nothing_out_and_no_candidate(X):
    named = models(X, KINDS["text"])[0]
    none = pd.DataFrame({"user": [], "item": []})
    plain = named.recommend(["u3", "u5"], 4)
    for call in (named.recommend, named.recommend_ids):
        np.testing.assert_array_equal(call(["u3", "u5"], 4, exclude=("train", none)).ids, plain.ids)
        assert (call(["u3", "u5"], 4, exclude=None, candidates=none).ids == None).all()  # noqa: E711


@pytest.mark.parametrize("kind", [set, frozenset, iter, lambda ids: dict.fromkeys(ids).keys()])
def test_numbers_of_a_model_without_ids_come_in_any_collection(X, kind):
    model = RGALS(K=2, n_iter=1, random_state=0).fit(X)
    assert model.recommend(kind([0, 1]), n=2, exclude_items=kind([0])).ids.shape == (2, 2)
    for wrong in ({0: 1}, b"ab"):
        with pytest.raises(InputTypeError, match="users must be integers in one dimension"):
            model.recommend(wrong)


def test_lists_become_frames(X):
    named, plain, items = models(X, KINDS["integers that are other rows"])
    lists = named.recommend([10, 9], 3)
    frame = lists.to_frame()
    assert frame.columns.tolist() == ["user", "item", "rank", "score"] and frame["item"].dtype == np.int64
    assert frame["user"].tolist() == [10] * 3 + [9] * 3 and frame["rank"].tolist() == [1, 2, 3] * 2
    assert frame["item"].tolist() == lists.ids.ravel().tolist()
    np.testing.assert_array_equal(frame["score"], lists.scores.ravel())
    few = named.recommend([10], 5, candidates=items[:3].tolist(), exclude=None).to_frame()
    assert len(few) == 3  # None is no item
    assert plain.recommend([4], 2).to_frame()["user"].tolist() == [4, 4]
    assert named.recommend(Positions([4]), 2).to_frame()["user"].tolist() == [4, 4]
    strange = named.recommend_ids(["nobody", "me"], 2, unknown="popular").to_frame()
    assert strange["user"].tolist() == ["nobody"] * 2 + ["me"] * 2
    assert named.recommend_ids("nobody", 1, unknown="popular").asked.tolist() == ["nobody"]
    with pytest.raises(InputError, match="user_ids: its user ids are text .'10'., those of the model int"):
        named.recommend_ids(["10"], 2, unknown="popular")  # a known user would get popular items
    with pytest.raises(InputError, match="user_ids: its user ids are text .'10'., those of the model int"):
        named.recommend_ids([9, "nobody", "10"], 2, unknown="popular")  # in silence
    new = named.recommend_new(pd.DataFrame({"user": ["n"], "item": [205]}), 2).to_frame()
    assert new["user"].tolist() == ["n", "n"]
    near = named.similar_items([205], 2).to_frame()
    assert near.columns[:2].tolist() == ["item", "similar_item"] and near["item"].tolist() == [205, 205]
    again = pickle.loads(pickle.dumps(lists))
    assert again.to_frame().equals(frame) and isinstance(again, tuple) and len(again) == 2


def test_candidates_of_each_user_go_with_ids(X):
    ids = KINDS["text"]
    named, plain, items = models(X, ids)
    allowed = sp.csr_array((np.arange(3 * N).reshape(3, N) % np.array([[2], [3], [5]]) == 0).astype(float))
    found, scores = named.recommend_ids(
        [ids[3], "nobody", ids[41]], 30, unknown="popular", candidates=allowed
    )
    for row, user in ((0, 3), (2, 41)):
        wanted, best = plain.recommend([user], 30, candidates=allowed[[row]])
        assert found[[row]].tolist() == told(wanted, items)
        np.testing.assert_allclose(scores[[row]], best, rtol=1e-5)
    popular = set(items[allowed[[1]].indices].tolist())
    assert {x for x in found[1] if x is not None} == popular and len(popular) < 30


def test_new_users_in_columns_of_another_order_are_refused(X):
    frame = pd.DataFrame(X.toarray(), columns=[f"item {k}" for k in range(N)])
    model = RGALS(4, n_iter=2, random_state=0).fit(frame)
    assert model.recommend_new(frame[:2], 3)[0].tolist() == model.recommend_new(X[:2], 3)[0].tolist()
    with pytest.raises(ValueError, match="feature names"):
        model.recommend_new(frame.iloc[:2, ::-1], 3)
