"""What a caller may give as interactions: one matrix with ids from every form, and nothing guessed wrong."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import uuid
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

from rgals import IALS, RGALS, Positions
from rgals.baselines import EASE, Popularity
from rgals.compare import prepare
from rgals.datasets import Interactions, read_interactions
from rgals.datasets.given import given
from rgals.matrix.digest import short_digest
from rgals.matrix.validate import as_csr
from rgals.metrics import evaluate
from rgals.model_selection import (
    InteractionSplit,
    UserSplit,
    k_core,
    leave_last_out,
    split_interactions,
    temporal_split,
    tune,
)
from rgals.runtime.errors import InputError, InputTypeError, ParameterError, RgalsError, UnknownIdError
from rgals.scoring import recommend_all
from rgals.sgd import SGDRanker

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")

USERS, ITEMS = [901, 7, 901, 55, 7], [30, 20, 20, 10, 10]
VALUES, TIMES = [3.0, 1.0, 5.0, 2.0, 4.0], [50, 10, 40, 20, 30]
TABLE = {"user": USERS, "item": ITEMS, "rating": VALUES, "timestamp": TIMES}
DENSE = np.array([[4, 1, 0], [2, 0, 0], [0, 5, 3]], np.float32)  # users 7, 55, 901


def model(**more):
    return RGALS(K=2, n_iter=2, random_state=0, **more)


def sparse_frame():
    return pd.DataFrame.sparse.from_spmatrix(sp.csr_matrix(np.tile(DENSE, 2)))


# ------------------------------------------------------------------ what is understood


def test_a_frame_of_ids_is_never_trained_as_numbers():
    fitted = model().fit(pd.DataFrame({"user": USERS, "item": ITEMS}))
    assert fitted.user_ids_.tolist() == [7, 55, 901] and fitted.item_ids_.tolist() == [10, 20, 30]
    np.testing.assert_array_equal(fitted.seen_.toarray(), DENSE > 0)


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame, pa.table], ids=["pandas", "polars", "arrow"])
@pytest.mark.parametrize("estimator", [RGALS, SGDRanker])
def test_frames_of_every_kind_give_the_same_model_with_ids(kind, estimator):
    same = read_interactions((USERS, ITEMS, VALUES, TIMES))
    fitted = estimator(K=2, random_state=0).fit(kind(TABLE))
    assert fitted.fingerprint() == estimator(K=2, random_state=0).fit(same).fingerprint()
    assert fitted.user_ids_.tolist() == [7, 55, 901] and fitted.item_ids_.tolist() == [10, 20, 30]
    assert not hasattr(fitted, "feature_names_in_")


@pytest.mark.parametrize(
    "names",
    [
        ("userId", "movieId", "rating", "timestamp"),
        ("User ID", "Item-ID", "Rating", "Time"),
        ("USER_ID", "ASIN", "stars", "unixReviewTime"),
        ("customer_id", "product_id", "quantity", "date"),
        ("user_id:token", "item_id:token", "rating:float", "timestamp:float"),
        ("u", "i", "count", "ts"),
    ],
)
def test_shuffled_and_renamed_columns_and_shuffled_rows_change_nothing(names, rng):
    frame = pd.DataFrame(dict(zip(names, TABLE.values(), strict=True)))
    frame = frame[rng.permutation(list(names))].iloc[rng.permutation(len(frame))]
    found = given(frame)
    np.testing.assert_array_equal(found.matrix.toarray(), DENSE)
    assert found.user_ids.tolist() == [7, 55, 901] and found.timestamp.tolist() == [30, 10, 20, 40, 50]


def test_the_caller_names_the_columns():
    frame = pd.DataFrame({"who": USERS, "what": ITEMS, "much": VALUES, "rating": TIMES})
    for columns in (
        {"user": "who", "item": "what", "value": "much"},
        {"user": 0, "item": 1, "rating": 2},
    ):
        np.testing.assert_array_equal(model().fit(frame, columns=columns).seen_.toarray(), DENSE)
    for columns in ({"user": "who", "item": "nothing"}, {"user": "who", "item": "who"}):
        with pytest.raises(InputError, match=r"item"):
            model().fit(frame, columns=columns)
    for columns in ("long", {"person": "who"}, {"time": 1, "timestamp": 2}, 3):
        with pytest.raises(ParameterError, match=r'columns.*"user": "who"'):
            model().fit(frame, columns=columns)
    with pytest.raises(ParameterError, match="csr_array|frame"):
        model().fit(sp.csr_array(DENSE).toarray(), columns={"user": 0, "item": 1})


def test_what_is_hidden_or_not_there_is_no_number():
    X = np.tile(DENSE, (1, 2))
    masked = np.ma.masked_equal(X, X.max())
    for fit in (lambda: model().fit(masked), lambda: model().fit(X, user_features=masked)):
        with pytest.raises(InputError, match=r"has masked entries; give .*\.filled\(0\)"):
            fit()
    frame = pd.DataFrame(np.where(X, X, np.nan)).astype("Sparse[float]")  # which fills up with NaN
    with pytest.raises(InputError, match=r"X: NaN at row .*; give X\.fillna\(0\) of a frame"):
        model().fit(frame)
    np.testing.assert_array_equal(model().fit(frame.fillna(0)).seen_.toarray(), X)
    frame = pd.DataFrame(np.where(X, X, np.nan)).astype("Int64")  # whose NA no float is
    with pytest.raises(InputError, match=r"X: NaN at row 0, column 2; .*give X\.fillna\(0\) of a frame"):
        model().fit(frame)
    np.testing.assert_array_equal(model().fit(frame.fillna(0)).seen_.toarray(), X)
    with pytest.raises(InputTypeError, match="row 1 holds masked"):
        model().fit(X, item_ids=np.ma.array(np.arange(X.shape[1]), mask=np.arange(X.shape[1]) == 1))


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("pandas", lambda X: pd.DataFrame(X, columns=[f"i{k}" for k in range(X.shape[1])])),
        ("polars", lambda X: pl.DataFrame(X, schema=[f"i{k}" for k in range(X.shape[1])])),
        ("arrow", lambda X: pa.table({f"i{k}": column for k, column in enumerate(X.T)})),
        ("integers", lambda X: pd.DataFrame(X.astype(int))),
        ("truth values", lambda X: pd.DataFrame(X > 0).astype(bool)),
        ("sparse frame", lambda X: pd.DataFrame.sparse.from_spmatrix(sp.csr_matrix(X))),
        ("sparse frame of ones", lambda X: pd.DataFrame(X).astype(pd.SparseDtype(float, 1.0))),
        ("bytes in another order", lambda X: X.astype(X.dtype.newbyteorder())),
        ("an array that hides nothing", lambda X: np.ma.array(X, mask=False)),
        ("array", lambda X: X),
        ("lists", lambda X: X.tolist()),
        ("coo", sp.coo_array),
        ("csc matrix", sp.csc_matrix),
        ("torch", lambda X: Torch(X)),
        ("sparse torch", lambda X: Torch(X, "torch.sparse_coo")),
        (
            "cupy",
            lambda X: SimpleNamespace(get=lambda: X, __cuda_array_interface__={}, ndim=2, shape=X.shape),
        ),
        ("sparse cupy", lambda X: SimpleNamespace(get=lambda: sp.csr_matrix(X), nnz=4, shape=X.shape)),
    ],
)
def test_matrices_of_every_kind_have_no_ids(name, make):
    X = np.tile(DENSE, (1, 2))
    fitted = model().fit(make(X))
    np.testing.assert_array_equal(fitted.seen_.toarray(), X > 0 if name == "truth values" else X)
    assert fitted.user_ids_ is None and fitted.item_ids_ is None


class Torch:
    """What rgals asks of a torch tensor: it is on a device, wants gradients, and may be sparse."""

    def __init__(self, X, layout="torch.strided", at="cuda", grad=True):
        self.X, self.layout, self.at, self.grad, self.shape, self.ndim = X, layout, at, grad, X.shape, X.ndim
        self.dtype = X.dtype

    def detach(self):
        return Torch(self.X, self.layout, self.at, False)

    def cpu(self):
        return Torch(self.X, self.layout, "cpu", self.grad)

    def to_sparse_coo(self):
        return self

    coalesce = to_sparse_coo

    def indices(self):
        return np.array(sp.coo_array(self.X).coords)

    def values(self):
        return sp.coo_array(self.X).data

    def __array__(self, dtype=None, copy=None):
        if self.at != "cpu" or self.grad or "sparse" in self.layout:
            raise TypeError("can't convert to numpy")
        return self.X


def test_a_frame_is_a_matrix_when_the_caller_says_so():
    frame = pd.DataFrame(DENSE.astype(int), columns=["user", "item", "time"])
    fitted = model().fit(frame, columns="matrix")
    np.testing.assert_array_equal(fitted.seen_.toarray(), DENSE)
    assert fitted.feature_names_in_.tolist() == ["user", "item", "time"]
    letters = pd.DataFrame(np.eye(26), columns=list("abcdefghijklmnopqrstuvwxyz"))
    assert model().fit(letters).n_features_in_ == 26


def test_a_pivot_table_brings_the_ids_of_its_axes():
    pivot = pd.DataFrame(TABLE).pivot_table(index="user", columns="item", values="rating", fill_value=0.0)
    fitted = model().fit(pivot)
    np.testing.assert_array_equal(fitted.seen_.toarray(), DENSE)
    assert fitted.user_ids_.tolist() == [7, 55, 901] and fitted.item_ids_.tolist() == [10, 20, 30]
    np.testing.assert_array_equal(fitted.transform(pivot[[30, 10, 20]]), fitted.transform(DENSE))


@pytest.mark.parametrize("columns", [None, "matrix"])
def test_a_pivot_table_of_items_and_users_is_refused_by_the_axis_that_says_so(columns):
    right = pd.DataFrame(TABLE).pivot_table(index="user", columns="item", values="rating", fill_value=0.0)
    turned, unnamed = right.T, right.rename_axis(index=None, columns=None)
    assert len(set(right.to_numpy().ravel())) == 6 and not np.array_equal(right, turned)
    for X, axis, role in (
        (turned, "index", "'item'"),
        (turned.rename_axis(columns=None), "index", "'item'"),
        (turned.rename_axis(index=None), "columns", "'user'"),
        (turned.rename_axis(index="sku", columns="Customer ID"), "index", "'sku'"),
    ):
        words = rf"X\.{axis} is called {role}.*give X\.T, or X\.rename_axis\({axis}=None\)"
        with pytest.raises(InputError, match=words):
            model().fit(X, columns=columns)
        with pytest.raises(InputError, match=r"give validation\.T"):
            model().fit(right, validation=X)
    for X in (right, unnamed, right.rename_axis(columns=None), right.rename_axis(index=None)):
        np.testing.assert_array_equal(model().fit(X, columns=columns or "matrix").seen_.toarray(), right)
    as_it_is = turned.rename_axis(index=None, columns=None)
    np.testing.assert_array_equal(model().fit(as_it_is, columns="matrix").seen_.toarray(), turned)


def test_the_index_of_a_pivot_that_was_saved_is_no_item(tmp_path):
    """Ids of users were the weights of a first item, and every item had the number of the next."""
    counts = np.random.default_rng(0).integers(1, 4, (12, 6)).astype(float)
    pd.DataFrame(counts, index=np.arange(7, 19)).to_csv(tmp_path / "pivot.csv")
    read = pd.read_csv(tmp_path / "pivot.csv")
    for frame in (read, pl.from_pandas(read), read.assign(**{"Unnamed: 0": np.arange(12.0)})):
        with pytest.raises(InputError, match=r"'Unnamed: 0' of X rises.*X.set_index.*; columns=\"matrix\""):
            model().fit(frame)
    np.testing.assert_array_equal(model().fit(read.set_index("Unnamed: 0")).seen_.toarray(), counts)
    np.testing.assert_array_equal(model().fit(read, columns="matrix").seen_.toarray(), read)
    odd = read.assign(**{"Unnamed: 0": np.arange(12) % 2 == 1})  # whose differences never fall
    for frame in (read.iloc[::-1], read[:9], read[["0", "Unnamed: 0", "1", "2", "3"]], odd):
        assert model().fit(frame).n_features_in_ == frame.shape[1]


# ------------------------------------------------------------------ ids


BIG = 1 << 62
TWO = dt.datetime(2024, 1, 2, 3, 4, 5)
KEY = uuid.UUID(int=7)


@pytest.mark.parametrize(
    ("column", "labels"),
    [
        (pd.Series(["b", "a", "b"], dtype="category"), ["a", "b"]),
        (pd.Series([BIG, 3, BIG], dtype="Int64"), [3, BIG]),
        (pd.Series([BIG * 3, 3, BIG * 3], dtype="uint64"), [3, BIG * 3]),
        (pd.Series([2**31 + 1, 2**31, 2**31 + 1], dtype="category"), [2**31, 2**31 + 1]),
        (pd.Series(["é", "a", "é"], dtype="string"), ["a", "é"]),
        (pd.Series([7.0, 5.0, 7.0]), [5, 7]),
        (pd.Series([KEY, uuid.UUID(int=3), KEY]), [str(uuid.UUID(int=3)), str(KEY)]),
        (pd.Series([TWO, dt.datetime(2024, 1, 1), TWO]), ["2024-01-01", "2024-01-02T03:04:05"]),
        (pd.Series([TWO, TWO, TWO]).dt.tz_localize("Europe/Berlin"), ["2024-01-02T02:04:05Z"]),
        (pd.Series([2, 1, 2], dtype="int64[pyarrow]"), [1, 2]),
        (pl.Series(["b", "a", "b"], dtype=pl.Categorical), ["a", "b"]),
        (pl.Series([BIG, 3, BIG]), [3, BIG]),
        (pl.Series([TWO, dt.datetime(2024, 1, 1), TWO]), ["2024-01-01", "2024-01-02T03:04:05"]),
        (pl.Series([TWO] * 3).dt.replace_time_zone("Europe/Berlin"), ["2024-01-02T02:04:05Z"]),
        (pa.array(["b", "a", "b"]).dictionary_encode(), ["a", "b"]),
        (pa.array([BIG, 3, BIG]), [3, BIG]),
        (pa.array([TWO, dt.datetime(2024, 1, 1), TWO]), ["2024-01-01", "2024-01-02T03:04:05"]),
        (pa.array([dt.date(2024, 1, 2), dt.date(2024, 1, 1), None])[:2], ["2024-01-01", "2024-01-02"]),
    ],
    ids=lambda value: "" if isinstance(value, list) else f"{type(value).__module__.split('.')[0]}",
)
def test_ids_of_every_type(column, labels):
    kind = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.table}[
        type(column).__module__.split(".")[0]
    ]
    items = [1, 1, 2][: len(column)]
    found = given(kind({"user_id": column, "item_id": items}))
    assert found.user_ids.tolist() == labels
    ids = column.to_list() if hasattr(column, "to_list") else column.to_pylist()
    data = Interactions(found.matrix, found.user_ids, found.item_ids)
    np.testing.assert_array_equal(data.users.index(list(dict.fromkeys(ids)))[:1], [len(labels) - 1])


def test_interactions_are_made_of_any_matrix_and_name_what_is_none():
    """The matrix of a store, and None, were a TypeError about a missing `shape`."""
    for X in (as_csr(DENSE), sp.coo_array(DENSE), DENSE, DENSE.tolist(), pd.DataFrame(DENSE)):
        np.testing.assert_array_equal(Interactions(X, [7, 55, 901], [10, 20, 30]).matrix.toarray(), DENSE)
    for wrong, kind in ((None, "NoneType"), ("ratings.csv", "str"), (np.array([["a", "b"]]), "ndarray")):
        with pytest.raises(InputTypeError, match=f"matrix must be a matrix of numbers, not {kind}"):
            Interactions(wrong, [1], [1, 2])


def test_duplicates_are_added_as_read_interactions_does():
    frame = pd.DataFrame({"user": [1, 1, 2], "item": [5, 5, 5], "rating": [2.0, 3.0, 4.0]})
    assert given(frame).matrix.toarray().tolist() == [[5.0], [4.0]]
    with pytest.raises(InputError, match="row 1: user 1 and item 5 occur together before.*row 0"):
        read_interactions(frame, duplicates="error")


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame, pa.table], ids=["pandas", "polars", "arrow"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"user": ["a", None, "b"]}, "row 1: the user is missing"),
        ({"item": [1, 2, None]}, "row 2: the item is missing"),
        ({"rating": [1.0, 2.0, float("nan")]}, "row 2: the value is NaN"),
        ({"rating": [1.0, -2.0, 3.0]}, "row 1: the value -2 is negative"),
        ({"rating": [1.0, float("inf"), 3.0]}, "row 1: the value is infinite"),
        ({"user": [1.5, 2.0, 3.0]}, "user: ids must be integers or strings.*1.5"),
        ({"user": [True, False, True]}, "user: ids must be integers or strings"),
        ({"rating": ["1", "many", "2"]}, "row 1: the value 'many' is not a number"),
        ({"timestamp": ["2024-01-01", "2024-01-02", "soon"]}, "row 2: the timestamp 'soon'"),
    ],
)
def test_what_is_missing_or_wrong_is_refused_with_its_row(kind, change, words):
    frame = kind({"user": ["a", "b", "c"], "item": [1, 2, 3], **change})
    with pytest.raises(RgalsError, match=words):
        model().fit(frame)


def test_numbers_beside_users_and_items_are_asked_about():
    frame = pd.DataFrame({"user": USERS, "item": ITEMS, "bought": VALUES})
    with pytest.warns(UserWarning, match=r'weight 1; .*read_interactions\(X, value="bought"\) takes that'):
        assert given(frame).matrix.max() == 1
    with pytest.warns(UserWarning, match=r'; columns=\{"value": "bought"\} or .*read_interactions'):
        model().fit(frame)
    with pytest.warns(UserWarning, match="weight 1; rgals.datasets.read_interactions"):  # has no `columns`
        Popularity().fit(frame)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert given(frame, {"value": "bought"}).matrix.max() == 5
        assert given(frame, {"value": None}).matrix.max() == 1


# ------------------------------------------------------------------ what is refused

READ = r"rgals\.datasets\.read_interactions"
IDS = np.array([USERS, ITEMS]).T
WRONG = [
    (pd.DataFrame({"a": USERS, "b": ITEMS}), r'columns=\{"user": "a", "item": "b"\}, or .*columns="matrix"'),
    (pd.DataFrame({"a": USERS, "b": ITEMS, "c": TIMES}), r'columns=\{"user": "a", "item": "b"\}'),
    (pd.DataFrame({"a": USERS, "b": ITEMS, "c": TIMES, "d": TIMES}), r'columns=\{"user": "a", "item": "b"\}'),
    (pd.DataFrame(IDS), r'columns=\{"user": 0, "item": 1\}.*columns="matrix"'),
    (pd.DataFrame(IDS, dtype="Int64"), r'columns=\{"user": 0, "item": 1\}'),
    (pd.DataFrame({"who": ["a", "b"], "what": ["x", "y"]}), r'columns=\{"user": "who", "item": "what"\}'),
    (pd.DataFrame({"who": ["a", "b"], "what": [1, 2], "n": [1.0, 2]}), r'\{"user": "who", "item": "what"\}'),
    (pd.DataFrame({"user": USERS, "thing": ITEMS}), r'\{"user": "user", "item": "thing"\}'),
    (pd.DataFrame({"person": USERS, "item": ITEMS}), r'\{"user": "person", "item": "item"\}'),
    (pd.DataFrame({"user": USERS}), r"'user' of X is called like one of users"),
    (pd.DataFrame({"who": USERS, "what": ITEMS, "rating": VALUES}), r'\{"user": "who", "item": "what"\}'),
    (pd.DataFrame({"who": USERS, "what": ITEMS, "time": VALUES}), r'\{"user": "who", "item": "what"\}'),
    (pd.DataFrame({"a": pd.Categorical(["x", "y"]), "b": [1, 2]}), r'\{"user": "a", "item": "b"\}'),
    (pd.DataFrame({"a": pd.to_datetime(["2024"] * 2), "b": [1, 2]}), r"'a' of X does not hold numbers"),
    (pd.DataFrame(TABLE).set_index(["user", "item"]), r"'user', 'item' in its index.*X.reset_index\(\)"),
    (pd.DataFrame(TABLE).set_index("user"), r"X.reset_index\(\)"),
    (pd.DataFrame(TABLE).set_index(["user", "item"])["rating"], r"X.reset_index\(\)"),
    (pd.Series(USERS), "2D"),
    (pd.DataFrame(TABLE).groupby("user"), "X"),
    (pl.DataFrame({"a": USERS, "b": ITEMS}), r'columns=\{"user": "a", "item": "b"\}'),
    (pl.DataFrame(TABLE).lazy(), r"X.collect\(\)"),
    (pl.Series(USERS), "2D"),
    (pa.table({"a": USERS, "b": ITEMS}), r'columns=\{"user": "a", "item": "b"\}'),
    ({"user": USERS, "item": ITEMS}, READ + r"\(\(X\['user'\], X\['item'\]\)\)"),
    ({"time": TIMES, "stars": VALUES, "item": ITEMS, "who": USERS}, r"'who'\], X\['item'\], X\['stars'\]\)"),
    ({"a": USERS, "b": ITEMS}, READ + r"\(\(X\['a'\], X\['b'\]\)\)"),
    (iter([("ann", "tea"), ("bob", "milk")]), READ + r"\(tuple\(zip\(\*X\)\)\)"),
    ((np.array(USERS), np.array(ITEMS)), READ + r"\(X\)"),
    ((pd.Series(USERS), pd.Series(ITEMS), pd.Series(VALUES)), READ + r"\(X\)"),
    ([("ann", "tea"), ("bob", "milk")], READ + r"\(tuple\(zip\(\*X\)\)\)"),
    ([{"user": 1, "item": 2}], r"pandas.DataFrame\(X\)"),
    (IDS, READ + r"\(tuple\(X\.T\)\)"),
    ([*zip(USERS, ITEMS, VALUES, strict=True)], READ + r"\(tuple\(zip\(\*X\)\)\).*csr_array\(X\)"),
    (tuple([*row] for row in zip(USERS, ITEMS, VALUES, strict=True)), READ + r"\(tuple\(zip\(\*X\)\)\)"),
    ((USERS, ITEMS), READ + r"\(X\)"),
    ((USERS, ITEMS, VALUES), READ + r"\(X\)"),
    (np.column_stack([IDS, TIMES]), READ + r"\(tuple\(X\.T\)\)"),
    (np.column_stack([IDS, VALUES]), READ + r"\(tuple\(X\.T\)\).*csr_array\(X\)"),
    (pd.DataFrame(np.column_stack([IDS, VALUES])), r'columns=\{"user": 0, "item": 1\}'),
    (pl.DataFrame(np.column_stack([IDS, VALUES])), r'columns=\{"user": "column_0", "item": "column_1"\}'),
    (np.array([(1, 2)], dtype=[("user", int), ("item", int)]), READ + r"\(\(X\['user'\], X\['item'\]\)\)"),
    (np.array([["ann", "tea"], ["bob", "milk"]]), "text, not of numbers.*" + READ + r"\(tuple\(X\.T\)\)"),
    (np.array([["ann", "tea"], ["bob", "milk"]], object), READ + r"\(tuple\(X\.T\)\)"),
    ("ratings.csv", READ + r'\("ratings.csv"\)'),
    (pd.DataFrame({"a": [1, np.nan, 0], "b": [2, 1, 0], "c": [0.0] * 3}), "NaN at row 1, column 0.*X.fillna"),
    (pd.DataFrame({"user": [], "item": []}), "no rows"),
    (zip(USERS, ITEMS, strict=True), "zip"),
]  # fmt: skip


@pytest.fixture(scope="module")
def fitted():
    return model().fit(sp.csr_array(DENSE))


@pytest.mark.parametrize("number", range(len(WRONG)))
@pytest.mark.parametrize("call", ["fit", "evaluate", "split_interactions", "k_core", "transform"])
def test_no_wrong_input_is_trained_in_silence(number, call, fitted):
    X, words = WRONG[number]
    X = pd.DataFrame(TABLE).groupby("user") if "groupby" in type(X).__name__.lower() else X
    assert len(WRONG) >= 30
    calls = {
        "fit": lambda: model().fit(X),
        "evaluate": lambda: evaluate(fitted, None, X),
        "split_interactions": lambda: split_interactions(X),
        "k_core": lambda: k_core(X, 1),
        "transform": lambda: fitted.transform(X),
    }
    if call == "transform":  # it takes no `columns`
        words = re.sub(r'[^{]*{"user": (.*?), "item": (.*?)\\}.*', r"user=\1, item=\2\\)", words)
    with pytest.raises(RgalsError, match=words if call != "evaluate" else words.replace("X", "test")):
        calls[call]()


def test_columns_of_ids_in_a_tuple_get_the_line_that_takes_them():
    """`partial_fit((users, items))`: columns are not records; a list of records still is one."""
    columns = ["ann", "bob", "eve"], ["tea", "rum", "tea"]
    model = RGALS(K=2, n_iter=2, random_state=0).fit(read_interactions(columns))
    with pytest.raises(InputError, match=r"give rgals\.datasets\.read_interactions\(X\) if it holds columns"):
        model.partial_fit(columns)
    with pytest.raises(InputError, match=r"list of records.*give .*tuple\(zip\(\*X\)\)"):
        model.partial_fit(list(zip(*columns, strict=True)))
    model.partial_fit(read_interactions(columns))
    basket = ["tea", "rum"]  # not the item rum of a user tea
    with pytest.raises(InputError, match=r"of one user's ITEMS .*read_interactions\(\(\[0\] \* len") as found:
        model.recommend_new([basket])
    line = str(found.value).partition("ITEMS rgals.datasets.")[2].replace("ITEMS", "basket")
    assert model.recommend_new(eval(line), exclude=None).ids.shape == (1, 10)


def test_filters_take_frames_by_their_ids_and_none_for_a_matrix():
    frame = pd.DataFrame({"user": USERS, "item": ITEMS})
    fitted, known = model().fit(frame), read_interactions(frame)
    for kind in (pd.DataFrame, pytest.importorskip("polars").from_pandas):
        for name in ("exclude", "candidates"):
            got = fitted.recommend(Positions([0]), **{name: kind(frame)})
            np.testing.assert_array_equal(got.ids, fitted.recommend(Positions([0]), **{name: known}).ids)
            # Rows and columns without ids might be others than the model's.
            wide = kind(pd.DataFrame(np.ones((1, len(set(ITEMS))))).rename(columns=str))
            with pytest.raises(RgalsError, match="is a frame and must be a matrix here; give .*to_numpy"):
                fitted.recommend(Positions([0]), **{name: wide})


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame, pa.table], ids=["pandas", "polars", "arrow"])
def test_a_frame_of_one_column_is_ids_wherever_ids_are_taken(events, kind):
    fitted = model().fit(events)
    users, items = ["u3", "u0", "u9"], fitted.item_ids_[[7, 2, 11]].tolist()
    who, what = kind({"user_id": users}), kind({"item_id": items})
    for call in (
        lambda users, items: fitted.recommend(users, 2, candidates=items),
        lambda users, items: fitted.recommend(users, 2, exclude_items=items),
        lambda users, items: fitted.recommend_ids(users, 2, candidates=items),
        lambda users, items: fitted.similar_items(items, 2, candidates=items),
    ):
        got, wanted = call(who, what), call(users, items)
        assert wanted.ids.tolist() == got.ids.tolist() and len({*wanted.ids.ravel()}) > 1
    assert fitted.predict(who, what).tolist() == fitted.predict(users, items).tolist()
    both = kind({"user_id": users, "item_id": items})
    with pytest.raises(InputTypeError, match=r"users: .*\(3, 2\); give one of the columns, \['user_id',"):
        fitted.recommend(both)


@pytest.mark.skipif(not hasattr(pl, "Int128"), reason="polars has integers of 128 bits from 1.18 on")
@pytest.mark.parametrize("first", [5, 1 << 63, -(1 << 62)])
def test_integers_of_128_bits_are_ids_values_and_times_where_64_hold_them(first):
    numbers = [first + k // 3 for k in range(12)]
    frame = {"user_id": numbers, "item_id": [k % 5 for k in range(12)], "rating": range(1, 13)}
    wide = pl.DataFrame({name: pl.Series(list(x), dtype=pl.Int128) for name, x in frame.items()})
    found = given(wide)
    assert found.user_ids.tolist() == sorted({*numbers}) and found.matrix.sum() == 78
    fitted = model(values="raw").fit(wide.with_columns(timestamp=pl.Series(range(12), dtype=pl.Int128)))
    assert fitted.recommend_ids(wide["user_id"][:1]).ids.shape == (1, 10)
    with pytest.raises(InputTypeError, match="user: integer ids must fit 64 bits; give larger ones as"):
        given(wide.with_columns(pl.col("user_id") + (1 << 66)))
    many = {f"i{k}": pl.Series([1, 0, 2 + k], dtype=pl.Int128) for k in range(6)}
    assert model(values="raw").fit(pl.DataFrame(many)).seen_.toarray()[2].tolist() == [2, 3, 4, 5, 6, 7]
    unnamed = pl.DataFrame({"a": wide["user_id"], "b": wide["item_id"]})
    with pytest.raises(InputError, match=r'columns=\{"user": "a", "item": "b"\}'):
        given(unnamed, None)


def test_none_in_place_of_data_or_of_a_path_is_refused_by_name(events):
    fitted, data = model().fit(events), read_interactions(events)
    with pytest.raises(InputTypeError, match="X must be a matrix or a frame.* not NoneType"):
        fitted.score(None)
    with pytest.raises(ParameterError, match=r"path=None .*ends in \.npz"):
        data.save(None)
    with pytest.raises(ParameterError, match=r"out='None' .*end the name in"):
        recommend_all(fitted, out=None)


# ------------------------------------------------------------------ ids travel


@pytest.fixture
def events(rng):
    dense = rng.random((40, 25)) < 0.3
    rows, cols = np.nonzero(dense)
    frame = pd.DataFrame({"user": [f"u{k}" for k in rows], "item": cols + 2**40})
    return frame.assign(timestamp=rng.permutation(len(frame))).sample(frac=1, random_state=0)


def test_splits_and_folds_keep_the_ids(events):
    data = read_interactions(events)
    parts = {
        "random": split_interactions(events, random_state=0),
        "last": leave_last_out(events),
        "time": temporal_split(events, 200),
        "fold": next(iter(InteractionSplit(3, random_state=0).split(events))),
    }
    for made in parts.values():
        assert all(isinstance(part, Interactions) for part in made)
        assert sum(part.nnz for part in made) == len(events)
        assert all(part.user_ids.tolist() == data.user_ids.tolist() for part in made)
    fold = next(iter(UserSplit(4, random_state=0).split(events)))
    assert fold.train.user_ids.tolist() == data.user_ids[fold.train_users].tolist()
    assert fold.held_out.user_ids.tolist() == data.user_ids[fold.test_users].tolist()
    core = k_core(events, 7)
    assert 0 < len(core.items) < len(data.item_ids)
    assert core.matrix.item_ids.tolist() == data.item_ids[core.items].tolist()
    again = temporal_split(k_core(parts["time"][0], 2).matrix, 100)
    assert min(part.nnz for part in again) > 10 and again[0].timestamp.max() < 100 <= again[1].timestamp.min()
    renamed = events.rename(columns={"user": "who", "item": "what"})
    again = split_interactions(renamed, random_state=0, columns={"user": "who", "item": "what"})
    assert all((a.matrix != b.matrix).nnz == 0 for a, b in zip(again, parts["random"], strict=True))


def test_evaluate_lays_frames_out_as_the_model_is(events):
    train, test = split_interactions(events, (0.7, 0.3), random_state=0)
    fitted = model().fit(train)
    wanted = evaluate(fitted, train.matrix, test.matrix, ("ndcg@5", "auc"))
    pairs = sp.coo_array(test.matrix)
    frame = pd.DataFrame({"item": test.item_ids[pairs.coords[1]], "user": test.user_ids[pairs.coords[0]]})
    assert evaluate(fitted, train, frame.sample(frac=1, random_state=1), ("ndcg@5", "auc")) == wanted
    values, users = evaluate(fitted, train, frame, ("ndcg@5",), per_user=True)
    by_row, rows = evaluate(fitted, train.matrix, test.matrix, ("ndcg@5",), per_user=True)
    assert users.tolist() == fitted.user_ids_[rows].tolist()
    np.testing.assert_array_equal(values["ndcg@5"], by_row["ndcg@5"])
    with pytest.raises(InputError, match=r"test has ids.*give test.matrix"):
        evaluate((fitted.user_factors_, fitted.item_factors_), train.matrix, frame)


def test_the_objective_of_a_frame_is_that_of_its_matrix(events):
    fitted = model().fit(events)
    assert fitted.objective(events.sample(frac=1, random_state=3)) == fitted.objective(fitted.seen_)
    with pytest.raises(UnknownIdError, match="user 'zoe' is not known"):
        fitted.objective(pd.DataFrame({"user": ["zoe", "u1"], "item": [2**40, 2**40]}))


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame, pa.table], ids=["pandas", "polars", "arrow"])
def test_arrays_in_the_order_of_the_rows_of_a_frame_are_refused(events, kind):
    """They were taken in the order of the matrix, whose entries are sorted: for other interactions."""
    plain, times = events.drop(columns="timestamp"), events["timestamp"].to_numpy()
    assert not np.array_equal(times, read_interactions(events).timestamp)
    users, fitted = sorted({*events["user"]}), model().fit(events)
    frame = kind(plain.to_dict("list"))
    some = kind(plain[plain["user"].isin(users[:2])].to_dict("list"))
    for name, role, call in (
        ("timestamp", "timestamp", lambda: leave_last_out(frame, timestamp=times)),
        ("timestamp", "timestamp", lambda: temporal_split(frame, 200, timestamp=times)),
        ("user_ids", "user", lambda: model().fit(frame, user_ids=users)),
        ("item_ids", "item", lambda: EASE().fit(frame, item_ids=range(25))),
        ("users", "user", lambda: fitted.partial_fit_users(some, ["u1", "u0"])),
    ):
        line = rf"{name} is in the order of a matrix.*{READ}\(frame, {role}=NAME\)"
        with pytest.raises(InputError, match=line):
            call()
    data = read_interactions(plain.assign(when=times), timestamp="when")
    same = zip(leave_last_out(data), leave_last_out(events), strict=True)
    assert all((a.matrix != b.matrix).nnz == 0 for a, b in same)
    assert model().fit(data, user_ids=users[::-1]).user_ids_.tolist() == users[::-1]  # of its rows
    pivot = plain.assign(n=1.0).pivot(index="user", columns="item", values="n").fillna(0)
    assert model().fit(pivot, user_ids=users[::-1]).user_ids_.tolist() == users[::-1]


def test_what_takes_no_columns_is_not_told_to_be_given_them():
    """`recommend_new(frame, columns=...)`, as its error advised, was a TypeError."""
    frame = pd.DataFrame({"who": USERS, "what": ITEMS})
    fitted = model().fit(read_interactions((USERS, ITEMS)))
    for ask, name in ((fitted.recommend_new, "X_rows"), (fitted.transform, "X"), (fitted.objective, "X")):
        line = rf'give {READ}\({name}, user="who", item="what"\), .*csr_array\({name}.to_numpy\(\)\)'
        with pytest.raises(InputError, match=line) as caught:
            ask(frame)
        assert "columns=" not in str(caught.value)
    with pytest.raises(InputError, match=r'give columns=\{"user": "who", "item": "what"\}, or rgals'):
        fitted.partial_fit(frame)


def test_a_column_of_times_that_cannot_be_read_may_be_left_out():
    frame = pd.DataFrame({"user": USERS, "item": ITEMS, "date": ["01/02/2024"] * 5})
    with pytest.raises(InputError, match=r"told apart.*\(X, timestamp=None\) leaves the column out"):
        model().fit(frame)
    assert model().fit(frame, columns={"timestamp": None}).seen_.nnz == 5


def test_negative_values_of_a_frame_are_told_who_makes_them_dislikes():
    frame = pd.DataFrame({"user": ["a", "b"], "item": ["x", "y"], "value": [1, -1]})
    with pytest.raises(InputError, match=r"row 1.*dislike_below=0.*arguments of .*read_interactions$"):
        RGALS(K=2, loss=IALS(dislikes=True)).fit(frame)


def test_columns_called_like_attributes_of_other_inputs_are_columns():
    frame = pd.DataFrame(
        {"user_id": USERS, "item_id": ITEMS, "matrix": "x", "user_ids": "y", "get": 1, "nnz": 2}
    )
    with pytest.warns(UserWarning, match='"get"'):
        assert given(frame).matrix.nnz == 5


def test_new_users_of_a_frame_are_folded_in(events):
    fitted = model().fit(events)
    items = fitted.item_ids_
    frame = pd.DataFrame({"user": ["new", "new", "other"], "item": items[[3, 8, 5]]})
    rows = np.zeros((2, len(items)))
    rows[[0, 0, 1], [3, 8, 5]] = 1
    ids, scores = fitted.recommend_new(rows, 4)
    named, same = fitted.recommend_new(frame, 4)
    assert (
        named.tolist() == items[ids].tolist() and fitted.predict(frame).tolist() == items[ids[:, 0]].tolist()
    )
    np.testing.assert_array_equal(same, scores)
    np.testing.assert_array_equal(fitted.transform(frame), fitted.transform(rows))
    with pytest.raises(UnknownIdError, match=r"item -1 is not known"):
        fitted.recommend_new(pd.DataFrame({"user": ["new"], "item": [-1]}))


def test_tuning_and_comparing_take_frames(events):
    space = {"K": 2, "alpha": [0.01, 0.1], "reg": 0.01}
    result = tune("rg2", events, space, budget=2, random_state=0)
    assert result.model.user_ids_.tolist() == sorted({*events.user})
    split, same = prepare(events), prepare(read_interactions(events))
    assert split.train.nnz > 100 and short_digest(split.train) == short_digest(same.train)


def test_validation_in_another_order_is_the_same(events):
    train, held = split_interactions(events, (0.7, 0.3), random_state=0)
    pairs = sp.coo_array(held.matrix)
    frame = pd.DataFrame({"item": held.item_ids[pairs.coords[1]], "user": held.user_ids[pairs.coords[0]]})
    histories = [
        [row["ndcg@10"] for row in model().fit(train, validation=given_as).history_]
        for given_as in (held.matrix, held, frame.sample(frac=1, random_state=2))
    ]
    assert histories[0] == histories[1] == histories[2]


def test_the_name_of_a_file_or_of_a_store_gets_the_line_that_opens_it(tmp_path):
    for name, line in ((tmp_path / "shop.csv", "read_interactions"), (tmp_path, "open_matrix")):
        with pytest.raises(InputTypeError, match=rf'{line}\("{re.escape(str(name))}"\)'):
            model().fit(str(name))


def test_warnings_name_the_line_of_the_caller():
    """However deep a frame is read: who was warned of a line of rgals did not know which call was meant."""
    frame = pd.DataFrame({"user": USERS, "item": ITEMS, "grade": VALUES, "time": TIMES})
    fitted = model().fit(read_interactions(frame))
    news = pd.DataFrame({"user": [901, 8], "item": [10, 30], "rating": [1.0, 1.0]})
    calls = {
        "value": [
            lambda: model().fit(frame),
            lambda: EASE().fit(frame),
            lambda: split_interactions(frame),
            lambda: leave_last_out(frame),
            lambda: temporal_split(frame, 25),
            lambda: prepare(frame),
            lambda: evaluate(fitted, frame, news),
        ],
        "does not know": [lambda: evaluate(fitted, None, news), lambda: evaluate(fitted, news, news)],
        "also in train": [lambda: evaluate(fitted, news.head(1), news)],
    }
    for text, some in calls.items():
        for call in some:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                with contextlib.suppress(InputError):  # of so few interactions
                    call()
            found = [told.filename for told in said if text in str(told.message)]
            assert found and set(found) == {__file__}, (text, call)


def test_ids_in_the_index_of_a_frame_are_not_passed_over():
    """A table grouped by users and items: two columns of figures were read as its users and items."""
    events = pd.DataFrame({"user": USERS, "item": ITEMS, "price": TIMES})
    grouped = events.groupby(["user", "item"]).agg(n=("price", "size"), last=("price", "max"))
    for frame in (grouped, grouped.reset_index("item"), events.set_index("user")[["price", "item"]]):
        with pytest.raises(InputError, match=r"frame has 'user'.* in its index.*give frame.reset_index\(\)"):
            read_interactions(frame)
        assert read_interactions(frame.reset_index()).user_ids.tolist() == [7, 55, 901]
    with pytest.raises(InputError, match=r"'user', 'item' in its index.*reset_index"):
        split_interactions(grouped, columns={"value": "n"})
    data = read_interactions(grouped, user="last", item="n", value=None)
    assert data.user_ids.tolist() == sorted(TIMES)


def test_weights_that_rise_from_row_to_row_are_no_ids():
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame(np.random.default_rng(0).random((30, 8)), columns=[f"i{k}" for k in range(8)])
    table = table.sort_values("i0")
    assert table["i0"].is_monotonic_increasing and given(table).frame is table
    table["i0"] = np.arange(30.0)
    with pytest.raises(InputError, match="rises from row to row, like ids"):
        given(table)
