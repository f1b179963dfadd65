"""`read_interactions`: every source gives the same matrix, every fault is named with its line."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import threading
import uuid
import warnings
from datetime import UTC

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from instruments.harness import POSIX

from rgals import RGALS
from rgals.datasets import Interactions, read_interactions
from rgals.datasets.features import read_features
from rgals.runtime.errors import (
    FileFormatError,
    InputError,
    InputTypeError,
    ParameterError,
    RgalsError,
    ShapeError,
)

ENGINES = ("auto", "numpy", "python")
ROWS = [("ann", "tea", 3.0, 10), ("bob", "tea", 5.0, 12), ("ann", "milk", 4.5, 11), ("cid", "東京", 1.0, 13)]
TABLE = "user,item,rating,timestamp\n" + "".join(f"{u},{i},{v},{t}\n" for u, i, v, t in ROWS)
COLUMNS = dict(zip(("user", "item", "rating", "timestamp"), map(list, zip(*ROWS, strict=True)), strict=True))


def check(data: Interactions) -> None:
    assert data.user_ids.tolist() == ["ann", "bob", "cid"]
    assert data.item_ids.tolist() == ["milk", "tea", "東京"]
    assert data.matrix.dtype == np.float32 and data.matrix.has_canonical_format
    np.testing.assert_array_equal(data.matrix.toarray(), [[4.5, 3, 0], [0, 5, 0], [0, 0, 1]])
    assert data.timestamp.tolist() == [11, 10, 12, 13]


@pytest.fixture(params=ENGINES)
def engine(request):
    return request.param


@pytest.fixture
def write(tmp_path):
    def writer(content: str | bytes, name: str = "data.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return writer


# ------------------------------------------------------------------ the same content in every form


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t,
        lambda t: "\ufeff" + t,
        lambda t: t.replace("\n", "\r\n"),
        lambda t: t.rstrip("\n"),
        lambda t: t.replace("\n", "\n\n"),
        lambda t: "\n" + t,
        lambda t: t.replace(",", "\t"),
        lambda t: t.replace(",", ";"),
        lambda t: t.replace(",", "|"),
        lambda t: t.replace(",", " "),
        lambda t: t.replace(",", "  "),
        lambda t: t.replace(",", "::"),
        lambda t: t.split("\n", 1)[1],
        lambda t: t.split("\n", 1)[1].replace(",", "::"),
        lambda t: t.replace("ann", '"ann"').replace("東京", '"東京"'),
        lambda t: t.replace(TABLE[:26], "user_id:token,item_id:token,rating:float,timestamp:float"),
        lambda t: t.replace(TABLE[:26], "userId,movieId,rating,timestamp"),
    ],
)  # fmt: skip
def test_text_forms(write, engine, change):
    check(read_interactions(write(change(TABLE)), engine=engine))


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_packed_text(write, engine, pack):
    check(read_interactions(write(pack(TABLE.encode()), "data.bin"), engine=engine))


def test_a_blank_first_line_does_not_turn_the_header_into_a_row(write, engine):
    data = read_interactions(write("\nuser,item\nann,tea\n"), engine=engine)
    assert data.user_ids.tolist() == ["ann"] and data.item_ids.tolist() == ["tea"]


def test_names_read_as_a_row_are_warned_of(write, engine):
    path = write("user_id,item_id\n1,2\n1,3\n")
    with pytest.warns(UserWarning, match=r"line 1 \('user_id,item_id'\).*leave header=False.*out") as told:
        assert read_interactions(path, header=False, engine=engine).n_users == 2
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_interactions(write("user,2\n1,item\n"), header=False, engine=engine).n_users == 2


def test_other_encodings(write, engine):
    check(read_interactions(write(TABLE.encode("utf-16")), encoding="utf-16", engine=engine))


def test_columns_by_name_and_position(write, engine):
    text = "when,what,who,much\n" + "".join(f"{t},{i},{u},{v}\n" for u, i, v, t in ROWS)
    names = {"user": "who", "item": "what", "value": "much", "timestamp": "when"}
    check(read_interactions(write(text), **names, engine=engine))
    check(read_interactions(write(text), user=2, item=1, value=-1, timestamp=0, header=True, engine=engine))
    bare = text.split("\n", 1)[1]
    check(read_interactions(write(bare), user=2, item=1, value=3, timestamp=0, engine=engine))


def test_frames():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(COLUMNS)
    check(read_interactions(frame))
    check(read_interactions(frame.astype({"user": "category", "item": "category"})))
    check(
        read_interactions(frame.astype({"rating": object, "timestamp": float}).sample(frac=1, random_state=0))
    )
    dated = frame.assign(timestamp=pd.to_datetime(frame.timestamp, unit="s"))
    assert read_interactions(dated).timestamp.tolist() == [k * 10**9 for k in (11, 10, 12, 13)]
    aware = dated.assign(timestamp=dated.timestamp.dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo"))
    assert read_interactions(aware).timestamp.tolist() == [k * 10**9 for k in (11, 10, 12, 13)]


def test_bytes_of_frames_may_be_in_another_order():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"user": [7, -1, 7], "item": [5, 5, 3], "rating": [1.5, 2, 3], "time": [1, 3, 2]})
    big = frame.astype({"user": ">i4", "item": ">f8", "rating": ">f4", "time": ">i8"})
    mine, other = read_interactions(big), read_interactions(frame)
    assert (mine.matrix != other.matrix).nnz == 0 and mine.timestamp.tolist() == other.timestamp.tolist()
    assert mine.user_ids.tolist() == [-1, 7] and mine.item_ids.tolist() == [3, 5]


def test_what_is_missing_in_a_dictionary_of_arrow_is_missing(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for values in ([1, None, 2], [1.5, None, 2], ["1", None, "2.5"]):
        parts = [pa.array(values).dictionary_encode(), pa.array(values[:1] + values[2:]).dictionary_encode()]
        numbers = range(5)
        table = pa.table({"user": numbers, "item": numbers, "rating": pa.chunked_array(parts)})
        pq.write_table(table, tmp_path / "a.parquet")
        for source in (table, tmp_path / "a.parquet", tuple(table.columns)):
            with pytest.raises(InputError, match="row 1: the value (is NaN|None is not a number)"):
                read_interactions(source)
        told = read_interactions(table.filter(table["rating"].is_valid())).matrix.data
        assert told.tolist() == [float(values[0]), float(values[2])] * 2
    wide = pa.chunked_array([pa.array([1.0, None, 2.0]).dictionary_encode()])
    with pytest.raises(InputError, match="NaN at row 1"):
        RGALS(K=1, n_iter=1).fit(pa.table(dict.fromkeys("abcdef", wide)), columns="matrix")
    column = pa.chunked_array([pa.array(["m", None, "f"]).dictionary_encode()])
    encoding = read_features(pa.table({"sex": column}), 3, None, "user_features")[2]
    assert encoding == [{"name": "sex", "categories": ["f", "m", "nan"]}]


def test_polars_frames():
    pl = pytest.importorskip("polars")
    check(read_interactions(pl.DataFrame(COLUMNS)))
    check(read_interactions(pl.DataFrame(COLUMNS).with_columns(pl.col("user").cast(pl.Categorical))))


def test_dates_as_text_in_polars_frames():
    pl = pytest.importorskip("polars")
    pairs = {"user": ["a", "b"], "item": ["x", "x"]}
    data = read_interactions(pl.DataFrame({**pairs, "date": ["1970-01-02", "1970-01-03"]}))
    assert data.timestamp.tolist() == [k * 86_400 * 10**9 for k in (1, 2)]
    with pytest.raises(InputError, match="row 1: the timestamp is missing"):
        read_interactions(pl.DataFrame({**pairs, "date": ["1970-01-02", None]}))


def test_arrow_and_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    table = pa.table(COLUMNS)
    check(read_interactions(table))
    check(read_interactions(pa.concat_tables([table.slice(0, 1), table.slice(1)])))
    pq.write_table(table.append_column("text", pa.array(["x"] * 4)), tmp_path / "a.parquet")
    check(read_interactions(tmp_path / "a.parquet"))
    os.rename(tmp_path / "a.parquet", tmp_path / "no_suffix")
    check(read_interactions(tmp_path / "no_suffix", user="user", item=1))
    with pytest.raises(InputError, match=r"no column 'who' for user\. The columns are: user, item, rating"):
        read_interactions(tmp_path / "no_suffix", user="who")
    with pytest.raises(FileFormatError, match="no readable parquet"):
        (tmp_path / "cut").write_bytes((tmp_path / "no_suffix").read_bytes()[:200])
        read_interactions(tmp_path / "cut")


def test_arrays_and_matrices():
    check(read_interactions(tuple(COLUMNS.values())))
    check(read_interactions([np.array(c) for c in COLUMNS.values()]))
    X = sp.csr_array(np.array([[0, 2.0], [0, 0], [1, 0]]))
    data = read_interactions(X)
    assert data.user_ids.tolist() == [0, 2] and data.item_ids.tolist() == [0, 1]
    np.testing.assert_array_equal(data.matrix.toarray(), [[0, 2], [1, 0]])
    assert read_interactions((["a"], ["b"], [3.0]), value=None).matrix.data.tolist() == [1.0]


def test_npz_form_and_save(tmp_path):
    path = tmp_path / "a.npz"
    arrays = {
        "user": np.array([0, 0, 1], np.int32), "item": np.array([0, 2, 1], np.int32),
        "rating": np.array([1, 3, 5], np.float32), "split": np.array([0, 1, 0], np.int8),
    }  # fmt: skip
    np.savez_compressed(path, **arrays)
    data = read_interactions(path)
    np.testing.assert_array_equal(data.train.toarray(), [[1, 0, 0], [0, 5, 0]])
    np.testing.assert_array_equal(data.test.toarray(), [[0, 0, 3], [0, 0, 0]])
    assert data.validation.nnz == 0
    for form in ("bsr", "coo", "csc", "csr", "dia"):
        sp.save_npz(tmp_path / "scipy.npz", data.matrix.asformat(form))
        again = read_interactions(tmp_path / "scipy.npz").matrix
        np.testing.assert_array_equal(again.toarray(), data.matrix.toarray())
    named = read_interactions(tuple(COLUMNS.values()))
    named.replace(split=np.array([0, 1, 2, 0], np.int8)).save(tmp_path / "named.npz")
    again = read_interactions(tmp_path / "named.npz")
    check(again)
    assert again.split.tolist() == [0, 1, 2, 0] and again.validation.nnz == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npz", "named.npz", "scipy.npz"]


def test_dislikes_that_were_saved_are_read_again(tmp_path):
    """`rgals fit --dislike-below 3 --held-out FILE` wrote what `rgals evaluate` refused."""
    data = read_interactions(([7, 7, 9], ["a", "b", "a"], [5, 1, 4]), dislike_below=3, binarize=True)
    data.save(tmp_path / "data.npz")
    again = read_interactions(tmp_path / "data.npz")
    assert again.matrix.toarray().tolist() == data.matrix.toarray().tolist() == [[1, -1], [1, 0]]
    assert read_interactions(tmp_path / "data.npz", min_value=1).matrix.toarray().tolist() == [[1], [1]]
    twice = read_interactions(tmp_path / "data.npz", binarize=True)
    assert twice.matrix.toarray().tolist() == [[1, -1], [1, 0]]
    Interactions(sp.csr_array([[2.0, -3.0]]), ["u"], ["a", "b"]).save(tmp_path / "strong.npz")
    assert read_interactions(tmp_path / "strong.npz").matrix.toarray().tolist() == [[2, -3]]
    stars = read_interactions(tmp_path / "strong.npz", dislike_below=3)
    assert stars.matrix.toarray().tolist() == [[-1, -3]]
    np.savez(tmp_path / "other.npz", user=[0, 1], item=[0, 0], rating=[1, -1])  # -1 may mean anything here
    with pytest.raises(InputError, match="the value -1 is negative"):
        read_interactions(tmp_path / "other.npz")


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    data = read_interactions(tuple(COLUMNS.values()))
    data.save(tmp_path / "a.npz")
    before = (tmp_path / "a.npz").read_bytes()

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(OSError, match="No space"):
        data.save(tmp_path / "a.npz")
    assert (tmp_path / "a.npz").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]


def test_real_sets_have_the_published_size(data_file):
    data = read_interactions(data_file("ml-1m"))
    assert (data.n_users, data.n_items, data.nnz) == (6040, 3706, 1_000_209)
    stars = np.bincount(data.matrix.data.astype(int), minlength=6)[1:]
    assert stars.tolist() == [56174, 107557, 261197, 348971, 226310]
    fixed = read_interactions(data_file("amazon-health-10core"))
    assert (fixed.n_users, fixed.n_items, fixed.nnz) == (1974, 1200, 48189)
    assert (fixed.train.nnz, fixed.test.nnz) == (37784, 10405)
    assert fixed.train.shape == fixed.test.shape == fixed.matrix.shape


# ------------------------------------------------------------------------------- options


def test_interactions_become_a_frame_and_back():
    pd = pytest.importorskip("pandas")
    rows = ["bob", "ann", "bob"], ["tea", "tea", "rum"], [2.0, 1.0, 0.5], [30, 10, 20]
    data = read_interactions(rows)
    frame = data.to_frame()
    assert frame.to_dict("list") == {
        "user": ["ann", "bob", "bob"],
        "item": ["tea", "rum", "tea"],
        "value": [1, 0.5, 2],
        "timestamp": [10, 20, 30],
    }
    again = read_interactions(frame)
    assert again.to_frame().equals(frame) and again.user_ids.tolist() == data.user_ids.tolist()
    plain = read_interactions(pd.DataFrame({"user": [3, 1], "item": [1, 1], "split": [0, 1]})).to_frame()
    assert plain.columns.tolist() == ["user", "item", "value", "split"] and plain["user"].tolist() == [1, 3]


def test_low_stars_that_reach_a_threshold_by_their_sum_are_warned_of():
    rows = [7, 7, 9, 9], ["a", "a", "a", "b"], [2, 2.5, 5, 1]
    with pytest.warns(UserWarning, match="min_value=4 is reached by the sum .* 1 pairs; duplicates='max'"):
        assert read_interactions(rows, min_value=4).user_ids.tolist() == [7, 9]
    for how in ("max", "last"):
        assert read_interactions(rows, min_value=4, duplicates=how).user_ids.tolist() == [9]
    for counts in ([2, 2, 1], [2, 2, 40]):  # none reaches it alone, or they are no stars
        found = read_interactions(([7, 7, 9], ["a", "a", "b"], counts), min_value=4)
        assert found.user_ids.tolist() == [7, 9][: 1 + (40 in counts)]


@pytest.mark.parametrize("way", ["collect", "read_all", "df"])
def test_what_holds_no_rows_yet_names_how_it_gets_them(way):
    later = type("Later", (), {way: None})()
    with pytest.raises(InputTypeError, match=rf"not Later; give its \.{way}\(\)"):
        read_interactions(later)


def test_threshold_and_binarize(write, engine):
    path = write(TABLE)
    kept = read_interactions(path, min_value=4, engine=engine)
    assert kept.user_ids.tolist() == ["ann", "bob"] and kept.item_ids.tolist() == ["milk", "tea"]
    assert kept.matrix.data.tolist() == [1, 1] and kept.timestamp.tolist() == [11, 12]
    with pytest.raises(InputError, match=r"no interaction is left: min_value=6; .* go up to 5$"):
        read_interactions(path, min_value=6, engine=engine)
    with pytest.raises(InputError, match=r"min_value=4; .* go up to 1$"):
        read_interactions(path, min_value=4, value=None, engine=engine)
    stars = read_interactions(path, min_value=4, binarize=False, engine=engine)
    assert stars.matrix.data.tolist() == [4.5, 5]
    assert set(read_interactions(path, binarize=True, engine=engine).matrix.data) == {1.0}


def test_a_threshold_means_what_the_file_says(write):
    assert read_interactions(write("a,b,3.3\na,c,3.2\n"), min_value=3.3).nnz == 1


@pytest.mark.parametrize(
    ("how", "value", "time"),
    [("sum", 8.0, 9), ("last", 5.0, 9), ("max", 5.0, 9), ("error", None, None)],
)
def test_duplicates(write, engine, how, value, time):
    path = write("a,x,1,3\nb,x,2,1\na,x,5,9\na,x,2,7\n")
    if value is None:
        with pytest.raises(InputError, match=r"line 3 .*user a and item x occur together before.*line 1"):
            read_interactions(path, duplicates="error", engine=engine)
        return
    data = read_interactions(path, duplicates=how, engine=engine)
    assert data.matrix.toarray().ravel().tolist() == [value, 2.0]
    assert data.timestamp.tolist() == [time, 1]


def test_last_without_timestamps_is_the_last_of_the_file(write, engine):
    path = write("a,x,1\na,x,5\na,x,2\n")
    assert read_interactions(path, duplicates="last", engine=engine).matrix.data.tolist() == [2.0]
    # The threshold looks at what is left after merging.
    assert read_interactions(write("a,x,5\na,x,1\na,y,5\n"), duplicates="last", min_value=4).nnz == 1


def test_zeros_are_no_interactions(write):
    data = read_interactions(write("a,x,0\nb,y,2\n"))
    assert data.matrix.shape == (1, 1) and data.user_ids.tolist() == ["b"]


def test_a_value_of_another_name_is_told_of(write):
    """As of a frame: all interactions weighed 1, and nobody said so."""
    with pytest.warns(
        UserWarning, match=r"no column is called like a value.*value='amount' .*--value-column"
    ):
        data = read_interactions(write("customer_id,product_id,amount,shop\na,x,5,s\nb,y,2,t\n"))
    assert data.matrix.data.tolist() == [1, 1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_interactions(write("user,item,amount\na,x,5\nb,y,2\n"), value=None)
        read_interactions(write("user,item,shop\na,x,s\nb,y,t\n"))


def test_id_types(write, engine):
    ids = read_interactions(write("10,a\n-2,b\n9,c\n"), engine=engine).user_ids
    assert ids.tolist() == [-2, 9, 10] and ids.dtype == np.int64
    assert read_interactions(write("007,a\n7,b\n"), engine=engine).user_ids.tolist() == ["007", "7"]
    assert read_interactions(write(" a,x\na ,y\n"), engine=engine).user_ids.tolist() == ["a"]
    snowflakes = [1234567890123456789, 1234567890123456790]
    data = read_interactions(write(f"5,a\n{snowflakes[1]},b\n{snowflakes[0]},c\n"), engine=engine)
    assert data.user_ids.tolist() == [5, *snowflakes] and data.user_ids.dtype == np.int64
    huge = str(2**63)
    assert read_interactions(write(f"{huge},a\n7,b\n"), engine=engine).user_ids.tolist() == ["7", huge]
    huge = str(2**70)
    assert read_interactions(write(f"{huge},a\n7,b\n"), engine=engine).user_ids.tolist() == [huge, "7"]


@given(
    st.lists(
        st.tuples(st.integers(-5, 10), st.text("abcé,\"' ", min_size=1).filter(str.strip), st.integers(0, 9)),
        min_size=2, max_size=40,
    )
)  # fmt: skip
def test_engines_agree_with_a_dictionary(rows):
    import csv
    import tempfile

    expected: dict[tuple[str, str], float] = {}
    for u, i, v in rows:
        key = (str(u), i.strip())
        expected[key] = expected.get(key, 0.0) + v
    expected = {pair: v for pair, v in expected.items() if v}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "x.csv")
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["user", "item", "rating"])
            writer.writerows(rows)
        for engine in ENGINES:
            data = read_interactions(path, delimiter=",", engine=engine)
            coo = data.matrix.tocoo()
            got = {
                (str(data.user_ids[r]), str(data.item_ids[c])): float(v)
                for r, c, v in zip(*coo.coords, coo.data, strict=True)
            }
            assert got == expected


# ------------------------------------------------------------------------- faults are named

OVER = TABLE + "dan,tea,1,2,3\nx,y,1,2\n"
FAULTS = {
    "too few fields": (TABLE + "dan,tea\n", r"line 6: expected 4 fields separated by ',', found 2: 'dan"),
    "too many fields": (OVER, r"line 6: expected 4 fields .* found 5"),
    "blank lines count": (TABLE + "\n\ndan,tea\n", r"line 8: expected 4 fields"),
    "no number": (TABLE + "dan,tea,many,2\n", r"line 6: the value 'many' is not a number: 'dan,tea,many,2'"),
    "underscore": (TABLE + "dan,tea,1_0,2\n", r"line 6: the value '1_0' is not a number"),
    "empty value": (TABLE + "dan,tea,,2\n", r"line 6: the value '' is not a number"),
    "NaN": (TABLE + "dan,tea,nan,2\n", r"line 6 \('dan,tea,nan,2'\): the value is NaN"),
    "infinite": (TABLE + "dan,tea,inf,2\n", r"line 6 .*infinite"),
    "negative": (TABLE + "dan,tea,-1,2\n", r"line 6 .*the value -1 is negative"),
    "empty user": (TABLE + ",tea,1,2\n", r"line 6: the user is empty"),
    "blank item": (TABLE + "dan,  ,1,2\n", r"line 6: the item is empty"),
    "no time": (TABLE + "dan,tea,1,soon\n", r"line 6 .*timestamp 'soon' is neither a number nor a date"),
    "header twice": (TABLE + TABLE, r"line 6: the value 'rating' is not a number"),
    "header twice, ids": ("user,item\na,b\nuser,item\n", r"line 3: the header occurs a second time"),
    "same name twice": ("user,user,item\na,b,c\n", r"two columns are called 'user'"),
    "empty": ("", r"is empty"),
    "blank": ("\n  \n\n", r"is empty"),
    "header only": ("user,item,rating\n", r"has a header but no rows"),
    "one column": ("user\na\nb\n", r"line 1: no delimiter found"),
    "latin-1": (TABLE.encode() + "é,tea,1,2\n".encode("latin-1"), r"line 6: byte 0xe9 is not utf-8"),
    "utf-16": (TABLE.encode("utf-16"), r"this is UTF-16.*iconv -f UTF-16 -t UTF-8"),
    "garbage": (bytes(range(256)) * 40, r"binary"),
    "zip": (b"PK\x03\x04" + b"x" * 99, r"zip archive"),
    "open quote": (TABLE + 'dan,"tea,1,2\n' + "a,b,1,2\n" * 5, r"line 6: a quote is opened and never closed"),
    "open quote, ::": ('a::b::1\nc::"d::2\n', r"line 2: a quote is opened and never closed: 'c::d::2"),
    "packed parquet": (gzip.compress(b"PAR1" + bytes(99)), r"is a packed parquet file; unpack it first"),
    "cut gzip": (gzip.compress(TABLE.encode() * 50)[:-20], r"cut off or damaged"),
    "broken bzip2": (bz2.compress(TABLE.encode() * 50)[:60] + b"\0" * 60, r"cut off or damaged"),
    "broken gzip": (gzip.compress(os.urandom(99))[:30] + b"\0" * 60, r"cut off or damaged"),
    "7 MB line": (b"user,item\n1," + b"x" * 7_000_000, r"line 2: the line is longer than"),
    "7 MB line after good ones": (b"1,2\n" * 300_000 + b"1," + b"x," * 3_500_000, r"line 300001:"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_named(write, engine, fault):
    content, message = FAULTS[fault]
    path = write(content)
    with pytest.raises(InputError, match=message) as caught:
        read_interactions(path, engine=engine)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@POSIX
def test_a_pipe_is_refused_at_once(tmp_path):
    """Without a writer it was opened, and waited for without end."""
    os.mkfifo(tmp_path / "pipe")
    told = []

    def read():
        with pytest.raises(FileFormatError, match="is a pipe, which can be read only once") as caught:
            read_interactions(tmp_path / "pipe")
        told.append(caught)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(20)
    assert told


def test_missing_columns_list_what_there_is(write):
    with pytest.raises(
        InputError, match=r"no column 'who' for user\. The columns are: user, item, rating, time"
    ):
        read_interactions(write(TABLE), user="who")
    with pytest.raises(InputError, match=r"numbered 0 to 2"):
        read_interactions(write("a,b,1\n"), item=7)
    with pytest.raises(
        InputError,
        match=r"no column is called like item_id.*--item-column NAME.*columns are: user, rating, x",
    ):
        read_interactions(write("user,rating,x\na,1,b\n"))
    with pytest.raises(InputError, match="both user and item"):
        read_interactions(write(TABLE), user="user", item="user")


def test_options_are_checked(write):
    path = write(TABLE)
    for bad in ({"duplicates": "first"}, {"engine": "rust"}, {"min_value": "3"}, {"binarize": 1},
                {"encoding": "utf-9"}, {"delimiter": "ab"}, {"user": 1.5}):  # fmt: skip
        with pytest.raises(ParameterError, match=next(iter(bad))):
            read_interactions(path, **bad)
    with pytest.raises(InputTypeError, match="not int"):
        read_interactions(5)
    with pytest.raises(FileNotFoundError):
        read_interactions("no/such/file.csv")
    with pytest.raises(IsADirectoryError, match="open_matrix opens"):
        read_interactions(path.parent)


def test_columns_of_arrow_and_of_several_levels_are_read():
    pa, pd = (pytest.importorskip(name) for name in ("pyarrow", "pandas"))
    check(read_interactions(pa.RecordBatch.from_pydict(COLUMNS)))
    users, items = pa.array(["b", "a"]), pa.array([uuid.UUID(int=k).bytes for k in (1, 2)], pa.uuid())
    data = read_interactions((users, items))
    assert data.user_ids.tolist() == ["a", "b"] and data.item_ids[1].endswith("-000000000002")
    frame = pd.DataFrame({("who", "x"): ["b", "a"], ("what", "x"): [1, 2]})
    data = read_interactions(frame, user=("who", "x"), item=("what", "x"))
    assert data.user_ids.tolist() == ["a", "b"] and data.matrix.toarray().tolist() == [[0, 1], [1, 0]]


def test_odd_columns_are_refused_with_their_row_whatever_the_package():
    pa, pd, pl = (pytest.importorskip(name) for name in ("pyarrow", "pandas", "polars"))
    good = {"user": [1, 1, 2], "item": [1, 2, 2]}
    for kind in (pd.DataFrame, pl.DataFrame, pa.table, lambda columns: tuple(columns.values())):
        with pytest.raises(InputTypeError, match="user: ids must be integers or strings; row 2 holds 2.5"):
            read_interactions(kind(good | {"user": [1.0, 1.0, 2.5]}))
        with pytest.raises(InputTypeError, match="user: ids must be integers or strings; row 0 holds"):
            read_interactions(kind(good | {"user": [[1], [1], [2]]}))
        hours = np.array([1, 2, 3], "m8[h]").astype("m8[ns]")
        for column in (hours, np.datetime64("2024-01-01", "ns") + hours):
            with pytest.raises(InputError, match="row 0: the value .* is not a number"):
                read_interactions(kind(good | {"value": column}))
    frame = pd.DataFrame(good)
    for column in (pd.array(["2024-01-01", None, "2024-01-02"], "string"), pd.array([1, None, 2], "Int64")):
        with pytest.raises(InputError, match="row 1: the timestamp is missing"):
            read_interactions(frame.assign(time=column))
        with pytest.raises(InputError, match="row 1: the timestamp is missing"):
            read_interactions((*good.values(), None, list(column)))
    with pytest.raises(
        FileFormatError, match="row 0: the timestamp '2024-01' is neither a number nor a date"
    ):
        read_interactions(frame.assign(time=pd.period_range("2024-01", periods=3, freq="M")))
    with pytest.raises(RgalsError, match="the values must have one dimension"):
        read_interactions((*good.values(), np.ones((3, 1))))
    masked = np.ma.array([1, 2, 3], mask=[False, True, False])
    for k, role in enumerate(("user", "item", "value", "timestamp")):
        columns = [*good.values(), [1, 1, 1], [1, 2, 3]]
        columns[k] = masked
        with pytest.raises(InputError, match=f"row 1: the {role} is missing"):
            read_interactions(tuple(columns))
    late = read_interactions((*good.values(), None, np.array([2**63, 1, 2], np.uint64)))
    assert late.timestamp.tolist() == [2.0**63, 1, 2]


def test_faults_in_arrays_name_the_row():
    with pytest.raises(InputError, match="row 1: the value -2 is negative"):
        read_interactions((["a", "b"], ["x", "y"], [1, -2]))
    with pytest.raises(InputError, match="row 0: the value is NaN"):
        read_interactions((["a", "b"], ["x", "y"], [np.nan, 1]))
    with pytest.raises(RgalsError, match=r"same length; they have \[2, 1\]"):
        read_interactions((["a", "b"], ["x"]))
    with pytest.raises(RgalsError, match="user: ids must be integers or strings; row 1 holds None"):
        read_interactions((["a", None], ["x", "y"]))
    with pytest.raises(InputError, match="row 1: the timestamp"):
        read_interactions((["a", "b"], ["x", "y"], [1, 1], [3.0, np.inf]))
    with pytest.raises(InputError, match="no rows"):
        read_interactions(([], []))
    with pytest.raises(InputTypeError, match=r"give arrays \(users.* the item is array\(2\)"):
        read_interactions((np.array([1]), np.array(2)))


def test_missing_ids_in_frames_name_the_row():
    pd = pytest.importorskip("pandas")
    with pytest.raises(InputError, match="row 1: the user is missing"):
        read_interactions(pd.DataFrame({"user": ["a", None], "item": [1, 2]}))
    with pytest.raises(InputError, match="row 0: the value 'x' is not a number"):
        read_interactions(pd.DataFrame({"user": ["a"], "item": [1], "rating": ["x"]}))


def npz_bytes(**arrays):
    import io

    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def lying_header():
    """A member whose header declares far more than is stored."""
    import io
    import zipfile

    good = npz_bytes(user=np.zeros(3, np.int32), item=np.zeros(3, np.int32))
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(good)) as source, zipfile.ZipFile(out, "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name).replace(b"(3,)", b"(3" + b"0" * 11 + b",)"[:2]))
    return out.getvalue()


I0 = np.zeros(1, int)
I2 = np.zeros(2, int)
NPZ_FAULTS = {
    "garbage": (b"PK\x03\x04" + b"x" * 200, "no readable npz"),
    "not a zip": (b"user,item\n1,2\n", "no readable npz"),
    "missing item": (npz_bytes(user=I2, rating=np.ones(2)), r"needs the arrays user and item.*user, rating"),
    "floats": (npz_bytes(user=np.zeros(2), item=I2), "user must hold integers, not float64"),
    "objects": (npz_bytes(user=np.array([1, "a"], object), item=np.zeros(2, int)), "Python objects"),
    "lengths": (npz_bytes(user=np.zeros(2, int), item=np.zeros(3, int)), r"item has shape \(3,\)"),
    "two-dimensional": (npz_bytes(user=np.zeros((2, 2), int), item=np.zeros((2, 2), int)), "shape"),
    "negative": (npz_bytes(user=I2 - [0, 1], item=I2), r"row 1 \(user -1, item 0\): the user is outside"),
    "too large": (npz_bytes(user=np.array([2**40]), item=np.zeros(1, int)), "outside 0..2147483647"),
    "NaN": (npz_bytes(user=I0, item=I0, rating=np.array([np.nan])), r"row 0 .*NaN"),
    "split": (npz_bytes(user=I0, item=I0, split=np.array([7], np.int8)), "split is 7"),
    "empty": (npz_bytes(user=np.zeros(0, int), item=np.zeros(0, int)), "no rows"),
    "id outside": (npz_bytes(user=np.array([0, 1]), item=I2, user_labels=np.array([5])), r"outside 0\.\.0"),
    "id twice": (npz_bytes(user=I0, item=I0, user_labels=np.array([5, 5])), "occurs twice"),
    "lying header": (lying_header(), "declares shape|no readable npz"),
}  # fmt: skip


@pytest.mark.parametrize("fault", NPZ_FAULTS)
def test_npz_faults_are_named(write, fault):
    content, message = NPZ_FAULTS[fault]
    path = write(content, "data.npz")
    with pytest.raises(InputError, match=message) as caught:
        read_interactions(path)
    assert str(path) in str(caught.value)


def test_truncated_npz_never_crashes_or_lies(write, rng):
    good = npz_bytes(user=np.arange(50), item=np.arange(50) % 7, rating=rng.integers(1, 6, 50))
    want = read_interactions(write(good, "good.npz")).matrix
    loaded = 0
    for _ in range(150):
        bad = bytearray(good[: rng.integers(1, len(good))] if rng.random() < 0.3 else good)
        for at in rng.integers(0, len(bad), 3):
            bad[at] ^= 1 << rng.integers(8)
        try:
            got = read_interactions(write(bytes(bad), "bad.npz")).matrix
        except RgalsError:
            continue
        loaded += 1
        assert got.shape == want.shape and (got != want).nnz == 0
    assert 0 < loaded < 150  # a flipped date of the archive does no harm, most flips do


def test_the_callers_arrays_are_not_modified():
    user, item, value = np.array([2, 1, 2]), np.array([1, 1, 1]), np.array([1.0, 2.0, 3.0])
    copies = [x.copy() for x in (user, item, value)]
    for x in (user, item, value):
        x.flags.writeable = False
    read_interactions((user, item, value))
    for x, before in zip((user, item, value), copies, strict=True):
        np.testing.assert_array_equal(x, before)


def test_take_keeps_ids_and_times_together():
    data = read_interactions(tuple(COLUMNS.values()))
    part = data.take(np.array([0, 2]), np.array([0, 2]))
    assert part.user_ids.tolist() == ["ann", "cid"] and part.item_ids.tolist() == ["milk", "東京"]
    np.testing.assert_array_equal(part.matrix.toarray(), [[4.5, 0], [0, 1]])
    assert part.timestamp.tolist() == [11, 13]


def test_interactions_refuse_arrays_that_do_not_belong_together():
    X = sp.csr_array(np.array([[1.0, 2.0]], np.float32))
    with pytest.raises(InputError, match=r"user_ids has shape \(2,\).*which takes 1"):
        Interactions(X, np.arange(2), np.arange(2))
    with pytest.raises(InputError, match=r"timestamp has shape \(1,\); the matrix stores 2"):
        Interactions(X, np.arange(1), np.arange(2), timestamp=np.zeros(1))
    with pytest.raises(InputError, match="must be CSR"):
        Interactions(X.tocsc(), np.arange(1), np.arange(2), timestamp=np.zeros(2))
    unsorted = sp.csr_array((np.ones(2, np.float32), [1, 0], [0, 2]), shape=(1, 2))
    with pytest.raises(InputError, match="sorted rows"):
        Interactions(unsorted, np.arange(1), np.arange(2), timestamp=np.zeros(2))
    with pytest.raises(InputError, match="without a split"):
        _ = Interactions(X, np.arange(1), np.arange(2)).test


@pytest.mark.parametrize(
    "form", [sp.csc_array, sp.coo_array, sp.csr_array.toarray], ids=lambda form: form.__name__
)
def test_interactions_take_matrices_of_any_format(form, tmp_path):
    """Of CSC, rows and what `save` wrote were those of the transpose."""
    dense = np.array([[1, 2, 0], [0, 3, 4], [5, 0, 6]], np.float32)
    data = Interactions(form(sp.csr_array(dense)), ["a", "b", "c"], ["x", "y", "z"])
    np.testing.assert_array_equal(data[[0, 2]].matrix.toarray(), dense[[0, 2]])
    data.save(tmp_path / "data.npz")
    np.testing.assert_array_equal(read_interactions(tmp_path / "data.npz").matrix.toarray(), dense)


def test_interactions_take_columns_of_a_frame_by_place():
    """A Series with another index gave rows the ids, and entries the times, of others."""
    pandas = pytest.importorskip("pandas")
    X = sp.csr_array(np.array([[1, 2], [0, 3]], np.float32))
    ids = pandas.Series(["a", "b"], index=[1, 0])
    data = Interactions(X, ids, ids, pandas.Series([5, 6, 7], index=[2, 1, 0]))
    assert data[[0, 1]].user_ids.tolist() == ["a", "b"] and data[[0, 1]].timestamp.tolist() == [5, 6, 7]
    assert data.replace(timestamp=[8, 9, 10])[[1]].timestamp.tolist() == [10]


def test_dislikes_need_values():
    """Without any, each interaction counted as 1, which is below 3 stars: all of them became dislikes."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"user": [1, 2], "item": [3, 4], "given stars": [5, 1]})
    for more in ({}, {"value": None}):
        with pytest.raises(InputError, match="dislike_below needs values.*give value=NAME"):
            read_interactions(frame, dislike_below=3, **more)
    assert read_interactions(frame, dislike_below=3, value="given stars").matrix.data.tolist() == [5, -1]


def test_interactions_have_rows_and_columns():
    """The columns that were asked for were passed over in silence."""
    X = sp.csr_array(np.arange(1.0, 13).reshape(3, 4))
    data = Interactions(X, ["a", "b", "c"], [5, 6, 7, 8], timestamp=np.arange(12))
    for rows, columns in (([0, 2], [1, 3]), (slice(1, None), slice(0, 2)), (1, ...), (..., 2)):
        part = data[rows, columns]
        at = np.ix_(np.atleast_1d(np.arange(3)[rows]), np.atleast_1d(np.arange(4)[columns]))
        np.testing.assert_array_equal(part.matrix.toarray(), X.toarray()[at])
        np.testing.assert_array_equal(part.timestamp, np.arange(12).reshape(3, 4)[at].ravel())
        assert part.item_ids.tolist() == data.item_ids[at[1].ravel()].tolist()
    assert data[[0, 2]].shape == data[[0, 2],].shape == (2, 4)
    with pytest.raises(IndexError, match=r"data\[rows, columns\]; 3 were given"):
        data[0, 1, 2]


def test_interactions_keep_ids_of_both_kinds_apart():
    """Of a list of texts and integers numpy made texts: 5 was "5", and unknown."""
    data = Interactions(sp.csr_array(np.eye(3)), ["a", 5, "b"], [7, 8, 9])
    assert data.user_ids.tolist() == ["a", 5, "b"] and data.users.index([5]) == [1]
    assert data[[1, 2]].user_ids.tolist() == [5, "b"]
    for wrong in (["a", None, "b"], [0.5, 1, 2]):
        with pytest.raises(InputTypeError, match="item_ids: ids must be"):
            Interactions(sp.csr_array(np.eye(3)), [7, 8, 9], wrong)
    with pytest.raises(ShapeError, match=r"item_ids has shape \(3, 1\)"):
        Interactions(sp.csr_array(np.eye(3)), [7, 8, 9], np.ones((3, 1), int))


def test_interactions_read_times_as_a_column_of_a_file_is_read(tmp_path):
    """A date that is missing was an age of centuries; dates in seconds kept their unit, texts no fit took."""
    X = sp.csr_array(np.array([[1, 2], [0, 3]], np.float32))
    texts = ["2024-01-01T00:00:00", "2024-03-01T12:30:00", "2024-02-01T00:00:00"]
    dates = np.array(texts, "datetime64[s]")
    expected = dates.astype("datetime64[ns]").astype(np.int64)
    zoned = [moment.replace(tzinfo=UTC) for moment in dates.astype("datetime64[us]").tolist()]
    for times in (dates, np.array(texts), texts, np.array(zoned, object), zoned):
        data = Interactions(X, ["a", "b"], ["x", "y"], times)
        assert data.timestamp.dtype == np.int64 and data.timestamp.tolist() == expected.tolist()
        data.save(tmp_path / "data.npz")  # of objects none could be read again
        assert read_interactions(tmp_path / "data.npz").timestamp.tolist() == expected.tolist()
        assert Interactions(X, ["a", "b"], ["x", "y"], data.timestamp).timestamp is data.timestamp
    for missing in (np.where(dates == dates[1], np.datetime64("NaT", "s"), dates), [1.0, np.nan, 2.0]):
        with pytest.raises(InputError, match=r"timestamp\[1\]: the timestamp is (missing|nan)"):
            Interactions(X, ["a", "b"], ["x", "y"], missing)


def test_interactions_refuse_marks_that_are_of_no_part():
    """Of texts, `train` and `test` were empty, and what another number marked was nowhere."""
    X = sp.csr_array(np.array([[1, 2], [0, 3]], np.float32))
    for split, bad in ((["train", "test", "test"], "0\\]: the split is train"), ([0, 1, 5], "2.*is 5")):
        with pytest.raises(InputError, match=rf"split\[{bad}; it must be 0 \(train\), 1 \(test\)"):
            Interactions(X, ["a", "b"], ["x", "y"], split=split)
    for split in ([0, 1, 2], np.array([0.0, 1.0, 2.0]), np.array([0, 1, 2], np.int8)):
        data = Interactions(X, ["a", "b"], ["x", "y"], split=split)
        assert data.split.dtype == np.int8
        assert (data.train.nnz, data.test.nnz, data.validation.nnz) == (1, 1, 1)


# ------------------------------------------------------------------------ one behaviour of all engines


def outcome(path, engine, **options):
    """What reading gives, in a form that can be compared: the table, or the error and its message."""
    try:
        data = read_interactions(path, engine=engine, **options)
    except RgalsError as error:
        return type(error).__name__, str(error)
    times = None if data.timestamp is None else (data.timestamp.dtype.str, data.timestamp.tolist())
    return data.user_ids.tolist(), data.item_ids.tolist(), data.matrix.toarray().tolist(), times


def same_outcome(path, **options):
    """The outcome, which must be that of every engine."""
    found = {engine: outcome(path, engine, **options) for engine in (*ENGINES, "pyarrow")}
    assert all(got == found["python"] for got in found.values()), found
    return found["python"]


FIELDS = st.sampled_from(
    [
        *"abc127",
        " 7",
        "007",
        "-8999999999999999999",
        "9000000000000000000",
        "2.5",
        "1e3",
        "nan",
        "inf",
        "-1",
        "+5",
        "1_0",
        "0x10",
        "",
        " ",
        " a ",
        "\t",
        "\0",
    ]
    + ['"a"', '"a,b"', '"a::b"', '"x\ny"', 'a"b', '"a"b', ' "a"', '"a" ', '""', '"', 'x"y', '"a""b"', "'a'"]
    + ["#c", "é", "東", "١", "１", "\x0b", "\x0c", "\x1c", "\x1f", "\x85", "\u2028", "\xa0", "\ufeff", "a\\b"]
    + ["NULL", "NA", "true", "1e400", "1" * 20, "2020-01-01", ":", "a:b", "-0", "Infinity"]
)
BLANKS = ["", " ", "\t", "\t\t", "\t\t\t", "  \t", ",", ",,", ",,,", ";", "::", "\x0c", "\xa0", '""', "\r"]


@st.composite
def tables(draw):
    """Text of a table, mostly sound, and how to read it."""
    delimiter = draw(st.sampled_from([",", "\t", ";", "|", "::"]))
    width = draw(st.integers(2, 4))
    plain = [
        st.sampled_from("abc"),
        st.sampled_from("xyz"),
        st.sampled_from(["1", "2.5"]),
        st.integers(1, 50),
    ]
    header = draw(st.booleans())
    rows = [["user", "item", "rating", "timestamp"][:width]] * header
    for _ in range(draw(st.integers(1, 5))):
        rows.append([str(draw(field)) for field in plain[:width]])
    for _ in range(draw(st.integers(0, 2))):
        row = draw(st.integers(0, len(rows) - 1))
        rows[row] = [*rows[row]]
        rows[row][draw(st.integers(0, width - 1))] = draw(FIELDS)
    lines = [delimiter.join(row) for row in rows]
    for _ in range(draw(st.integers(0, 2))):
        lines.insert(draw(st.integers(0, len(lines))), draw(st.sampled_from(BLANKS)))
    ends = [draw(st.sampled_from(["\n", "\n", "\n", "\r\n", "\r", "\n\n"])) for _ in lines]
    ends[-1] = draw(st.sampled_from(["", "\n"]))
    options = {"delimiter": delimiter, "header": header} if draw(st.booleans()) else {}
    return "".join(map("".join, zip(lines, ends, strict=True))), options


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tables())
def test_every_engine_reads_odd_text_alike(tmp_path, table):
    text, options = table
    (tmp_path / "odd.csv").write_text(text, encoding="utf-8", newline="")
    same_outcome(tmp_path / "odd.csv", **options)


@pytest.mark.parametrize("blank", [" ", "\t\t", "  \t ", "\x0c", "\xa0"])
@pytest.mark.parametrize("delimiter", [",", "\t", "::"])
def test_lines_of_spaces_or_delimiters_are_no_empty_lines(write, blank, delimiter):
    lines = ["user,item,rating", "a,b,1", "c,d,2"]
    lines = [line.replace(",", delimiter) for line in lines]
    assert same_outcome(write("\n\n".join(lines)))[0] == ["a", "c"]
    kind, message = same_outcome(write("\n".join([*lines[:2], blank, lines[2]])))
    assert kind == "FileFormatError" and "line 3: " in message


MANY = "".join(f"u{k % 50},i{k % 31},{k % 5 + 1},note {k}\n" for k in range(20_000))
HEAD = "user,item,rating,note\n"


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (HEAD + MANY + "a,b,1," + "x" * 200_000 + "\n", "line 20002: field larger than field limit"),
        (HEAD + MANY + "a" * 200_000 + ",b,1,x\n", "line 20002: field larger than field limit"),
        (HEAD + MANY + "a,b,1," + "x" * 600_000 + "\n", "line 20002: the line is longer than"),
        (HEAD + MANY + 'a,b,1,"' + "x\n" * 100_000 + '"\n', "line 20002: field larger than field limit"),
        (HEAD + MANY + 'a,b,1,"x\n', "line 20002: a quote is opened and never closed"),
        (HEAD + MANY + 'a,b,1,"x\n' + MANY, "line 20002: .*a quote opened and never closed"),
        (HEAD + 'a,b,1,"x\nc,d,2,y\n', "line 2: a quote is opened and never closed"),
        (HEAD + MANY + 'a,b,1,"two\nlines"\n' + MANY, None),
        ("user,item," + ",".join(f"c{k}" for k in range(40_000)) + "\n" + "1," * 40_001 + "1\n", None),
        (",".join(f"c{k}" for k in range(40_000)) + "\n" + "1," * 39_999 + "1\n", "c29 and 39970 more$"),
        ("1234567;" * 40_000 + "\n" + "1;" * 39_000 + "\n", "line 2: expected 40001 fields"),
        ("x" * 200_000 + "\n1\n", "no delimiter found"),
    ],
)
def test_long_fields_many_columns_and_open_quotes(write, content, words):
    """Refused or read by every engine alike; no engine takes half a file for one field."""
    got = same_outcome(write(content))
    if words is None:
        assert isinstance(got[0], list), got
    else:
        assert got[0] in ("FileFormatError", "InputError") and re.search(words, got[1]), got
        assert len(got[1]) < 500


def test_a_delimiter_of_long_fields_that_csv_refuses_is_an_error_with_its_line(write):
    path = write("user,item\n" + "a" * 200_000 + ",b\n")
    kind, message = same_outcome(path, delimiter=",")
    assert kind == "FileFormatError" and "line 2: field larger than field limit" in message


@pytest.mark.parametrize("delimiter", ["¦", "東", "\\", "\x1f"])
def test_any_character_may_be_the_delimiter(write, delimiter):
    text = "user,item\n1,2\n3,4\n".replace(",", delimiter)
    assert same_outcome(write(text), delimiter=delimiter)[:2] == ([1, 3], [2, 4])


@pytest.mark.parametrize("delimiter", ['"', "\n", "\r"])
def test_what_cannot_be_a_delimiter_is_refused(write, delimiter):
    assert same_outcome(write(TABLE), delimiter=delimiter)[0] == "ParameterError"


@pytest.mark.parametrize("option", [{"user": "who"}, {"value": "plays"}, {"timestamp": 3}])
def test_columns_are_not_asked_for_in_vain(write, tmp_path, option):
    """What has no named columns cannot be read by their names."""
    data = read_interactions((["a", "b"], ["x", "y"], [2, 3]))
    data.save(tmp_path / "data.npz")
    lists = write("0 1 2\n1 2\n", "lists.txt")
    (name,) = option
    for source in ((["a", "b"], ["x", "y"]), data.matrix, tmp_path / "data.npz", lists):
        with pytest.raises(ParameterError, match=f"{name}=.*no columns"):
            read_interactions(source, **option, form="lists" if source is lists else "auto")
    assert read_interactions(tmp_path / "data.npz", value=None).matrix.data.tolist() == [1, 1]


@pytest.mark.parametrize(
    "source",
    [(1, 2), (None, [1, 2]), ("train.csv", "train.txt"), ([1, 2], iter([1, 2])), ({"a", "b"}, ["x", "y"])],
)
def test_columns_that_are_none_are_refused(source):
    """Two paths are no users and items, letter by letter; a set has no order, and so no rows."""
    with pytest.raises(InputTypeError, match="arrays.*users, items"):
        read_interactions(source)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_records_are_not_taken_for_columns(n):
    records = [("ann", "tea"), ("bob", "rum"), ("eve", "tea"), ("joe", "gin"), ("kim", "rum")][:n]
    with pytest.raises(InputTypeError, match=r"records; give tuple\(zip"):
        read_interactions(records)
    assert read_interactions(tuple(zip(*records, strict=True))).user_ids.tolist() == [u for u, _ in records]


@pytest.mark.parametrize(
    "option", [{"encoding": None}, {"encoding": 5}, {"encoding": "hex"}, {"header": "yes"}, {"header": 2}]
)
def test_options_of_a_wrong_type_are_named(write, option):
    (name,) = option
    with pytest.raises(ParameterError, match=f"{name}="):
        read_interactions(write("user,item\n1,2\n"), **option)


def test_a_value_of_0_is_an_interaction_only_where_values_are_binarized():
    rows = ["a", "b", "b"], ["x", "x", "y"], [0.0, 3.0, 1.0]
    found = read_interactions(rows, min_value=0)
    assert found.matrix.toarray().tolist() == [[1, 0], [1, 1]]
    stars = read_interactions(rows, min_value=0, binarize=False)
    assert stars.user_ids.tolist() == ["b"] and stars.matrix.toarray().tolist() == [[3, 1]]


def test_a_threshold_is_compared_in_the_type_of_stored_values():
    values = np.array([3.3, 3.2, 3.4], np.float32)
    assert float(values[0]) < 3.3
    found = read_interactions((["a", "b", "c"], ["x", "x", "x"], values), min_value=3.3)
    assert found.user_ids.tolist() == ["a", "c"]


def test_of_rows_of_one_time_the_last_is_the_latest():
    rows = ["a"] * 4, ["x"] * 4, [1.0, 2.0, 3.0, 4.0], [7, 9, 9, 8]
    found = read_interactions(rows, duplicates="last")
    assert found.matrix.data.tolist() == [3.0] and found.timestamp.tolist() == [9]


def test_a_pair_of_training_and_test_is_trained_on():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"user": list("aabb"), "item": list("xxxy"), "split": [1, 0, 2, 1]})
    found = read_interactions(frame)
    assert found.train.toarray().tolist() == [[2, 0], [0, 0]]
    assert found.validation.toarray().tolist() == [[0, 0], [1, 0]] and found.test.nnz == 1


@pytest.mark.parametrize("values", [[1e39, 1.0, 2.0], [3e38, 3e38, 2.0]])
def test_values_and_sums_beyond_the_stored_type_are_named(values):
    with pytest.raises(InputError, match="user a, item x: the value inf is not usable"):
        read_interactions((["a", "a", "b"], ["x", "x", "x"], values))


def test_marks_need_a_matrix_of_which_every_entry_is_stored_once():
    ids = ["a", "b"], ["x", "y"]
    twice = sp.csr_array((np.ones(3), np.array([1, 1, 0]), np.array([0, 2, 3])), shape=(2, 2))
    zero = sp.csr_array((np.array([1.0, 0, 1]), np.array([0, 1, 0]), np.array([0, 2, 3])), shape=(2, 2))
    for matrix in (twice, zero):
        assert Interactions(matrix, *ids).nnz == 3
        for marks in ({"timestamp": [1, 2, 3]}, {"split": [0, 1, 0]}):
            with pytest.raises(InputError, match="sorted rows, no duplicates and no stored zeros"):
                Interactions(matrix, *ids, **marks)
