"""What a conversion writes is what `read_interactions` reads, in bounded memory; a kill leaves nothing."""

from __future__ import annotations

import errno
import os
import signal
from collections import Counter
from datetime import date

import numpy as np
import pytest
from instruments.harness import LINUX, POSIX

from rgals.datasets import batches, numbering, read_interactions
from rgals.datasets import convert as module
from rgals.datasets.columns import AUTOMATIC
from rgals.datasets.frames import parquet_parts
from rgals.datasets.layout import detect
from rgals.datasets.numbering import Numbering
from rgals.matrix import convert, open_matrix
from rgals.runtime.errors import (
    FileFormatError,
    InputError,
    InputTypeError,
    InsufficientMemoryError,
    ParameterError,
    RgalsError,
)

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def check_same(store, data) -> None:
    found = store.matrix.load()
    np.testing.assert_array_equal(found.indptr, data.matrix.indptr)
    np.testing.assert_array_equal(found.indices, data.matrix.indices)
    values = np.ones(found.nnz, np.float32) if found.is_binary else found.values
    np.testing.assert_array_equal(values, data.matrix.data, strict=True)
    for name in ("user_ids", "item_ids"):
        mine, other = np.asarray(getattr(store, name)), getattr(data, name)
        assert mine.dtype.kind == other.dtype.kind and mine.tolist() == other.tolist()
    turned, other = store.matrix.transpose().load(), data.matrix.T.tocsr()
    for name in ("indptr", "indices"):
        np.testing.assert_array_equal(getattr(turned, name), getattr(other, name))
    if not turned.is_binary:
        np.testing.assert_array_equal(turned.values, other.data)
    assert turned.is_binary == found.is_binary == bool((data.matrix.data == 1).all())


TEXTS = {
    "plain": "user,item\nb,x\na,y\na,x\n",
    "integers": "user,item\n10,7\n9,8\n-1,7\n",
    "leading zero": "user,item\n007,1\n7,2\n",
    "mixed": "user,item\n7,1\nx,2\n",
    "no header": "u1\ti1\t5\nu2\ti1\t3\n",
    "values": "user,item,rating\na,x,5\na,y,.5\nb,x,1e2\n",
    "all ones": "user,item,rating\na,x,1\nb,x,1\n",
    "zeros": "user,item,rating\na,x,0\na,y,2\nb,y,0\n",
    "duplicates": "user,item\n" + "a,x\nb,y\na,x\n" * 3,
    "duplicate values": "user,item,rating\na,x,.1\na,x,.2\na,x,.3\nb,x,1e8\nb,x,1\n",
    "spaces": "user,item\n a ,x\na, x\n",
    "colons": "1::2::3::4\n1::3::4::5\n",
    "quotes": 'user,item\n"a,b",x\na,"y ""z"""\n',
    "line ends in quotes": 'user,item\n"a\nb",x\na,y\n',
    "blank lines": "user,item\n\na,x\n\nb,y\n\n",
    "long label": "user,item\n" + "x" * 3000 + ",a\ny,b\n",
    "unicode": "user,item\nß,東京\nz,é\n😀,a\n",
    "mark": "\ufeffuser,item\na,x\n",
    "columns in another order": "rating,item,user\n4,x,a\n3,y,b\n",
    "times are left out": "user,item,rating,timestamp\na,x,4,2024-01-31\na,y,3,2024-02-01\n",
    "a space before a number": "user,item,rating\na,x, 5\na,y,3\n",
    "last line without end": "user,item\na,x\nb,y",
    "windows": "user,item\r\na,x\r\nb,y\r\n",
    "jsonl": '{"user": "a", "item": 5, "rating": 2}\n\n{"user": "b", "item": 7, "rating": 1.5}\n',
    "jsonl without values": '{"user": 1, "item": " x "}\n{"user": 2, "item": "y", "note": [1]}\n',
    "lists": "0 1 2\n1 2\n3 0 1 7\n",
    # what cannot be read
    "jsonl, no item": '{"user": 1, "item": "x"}\n{"user": 2}\n',
    "jsonl, negative": '{"user": 1, "item": "x", "value": 1}\n{"user": 2, "item": "x", "value": -1}\n',
    "one JSON document": '[{"user": 1, "item": "x"}]',
    "lists, no user": "0 1 2\n1 2\n3 0 1 7\n2 x\n" * 40,
    "header twice, with a space": "user, item\na, x\nuser, item\n",
    "empty": "",
    "header alone": "user,item\n",
    "missing user": "user,item\na,x\n,y\n",
    "missing field": "user,item,rating\na,x,1\nb,y\n",
    "no number": "user,item,rating\na,x,1\nb,y,many\n",
    "negative": "user,item,rating\na,x,1\nb,y,-2\n",
    "nan": "user,item,rating\na,x,1\nb,y,nan\n",
    "infinite": "user,item,rating\na,x,1\nb,y,inf\n",
    "overflow": "user,item,rating\na,x,1\nb,y,1e39\n",
    "open quote": 'user,item\na,x\n"b,y\n',
    "header twice": "user,item\na,x\nuser,item\n",
    "no such columns": "who,what,where\na,x,1\nb,y,2\n",
    "nothing left": "user,item,rating\na,x,0\n",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_odd_text_is_read_as_in_memory(text, tmp_path, monkeypatch):
    compare(tmp_path / "events.csv", text, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "options",
    [
        {"min_value": 3},
        {"min_value": 2, "binarize": False},
        {"binarize": True},
        {"min_value": -1, "binarize": True},
        {"duplicates": "max"},
        {"duplicates": "error"},
        {"min_value": 9},
    ],
    ids=str,
)
@pytest.mark.parametrize("valued", [True, False])
def test_options_are_those_of_memory(options, valued, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    lines = [f"{u},{i},{v}\n" for u, i, v in rng.integers(0, 8, (60, 3))]
    text = "user,item,rating\n" + "".join(lines)
    if not valued:
        text = "user,item\n" + "".join(line.rpartition(",")[0] + "\n" for line in lines)
    compare(tmp_path / "events.csv", text, tmp_path, monkeypatch, **options)


def compare(path, text, folder, monkeypatch, **options) -> None:
    """In buckets of a few rows, and in one."""
    path.write_bytes(text.encode())
    try:
        expected = read_interactions(path, timestamp=None, split=None, **options)
    except (RgalsError, OSError) as error:
        with pytest.raises(type(error)) as caught:
            convert(path, folder / "x.rgals", **options)
        if "occur together" not in str(error) and "no interaction is left" not in str(caught.value):
            assert str(caught.value) == str(error)
        assert [p.name for p in folder.iterdir()] == [path.name]
        return
    if not expected.nnz:
        with pytest.raises(InputError, match="no interaction is left"):
            convert(path, folder / "x.rgals", **options)
        return
    check_same(convert(path, folder / "x.rgals", **options), expected)
    monkeypatch.setattr(module, "_SORT_BYTES", 1 << 27)
    monkeypatch.setattr(module, "_CHUNK", 3)
    check_same(convert(path, folder / "y.rgals", **options), expected)


FRAMES = {
    "text": {"user": ["b", "a", "a"], "item": ["x", "y", "x"]},
    "text of digits stays text": {"user": ["7", "10"], "item": ["x", "y"]},
    "integers": {"user": [3, -1, 3], "item": [10**12, 5, 5], "rating": [1, 2, 3]},
    "large integers": {"user": pa.array([2**64 - 1, 1], pa.uint64()), "item": [1, 2]},
    "whole numbers": {"user": [1.0, 2.0], "item": ["x", "y"]},
    "dates": {"user": [date(2024, 1, 31), date(2024, 1, 30)], "item": ["x", "y"]},
    "categories": {"user": pa.array(["b", "a", "b"]).dictionary_encode(), "item": ["x", "y", "z"]},
    "bytes": {"user": [b"b", b"a"], "item": ["x", "y"]},
    "wide text": {"user": pa.array(["b", "a"], pa.large_string()), "item": ["x", "y"]},
    "an empty text is an id": {"user": ["", "a"], "item": ["x", "y"]},
    "small numbers": {"user": [1, 2], "item": [1, 2], "rating": pa.array([1, 7], pa.int8())},
    # what cannot be read
    "missing user": {"user": ["a", None], "item": ["x", "y"]},
    "missing value": {"user": ["a", "b"], "item": ["x", "y"], "rating": [1.0, None]},
    "fractions": {"user": [1.5, 2.0], "item": ["x", "y"]},
    "too different": {
        "user": pa.array([2**64 - 1, 1], pa.uint64()),
        "item": ["x", "y"],
        "rating": ["1", "b"],
    },
    "no rows": {"user": pa.array([], pa.string()), "item": pa.array([], pa.string())},
}


@pytest.mark.parametrize("columns", FRAMES.values(), ids=FRAMES)
def test_odd_parquet_is_read_as_in_memory(columns, tmp_path):
    path = tmp_path / "events.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=2)
    try:
        expected = read_interactions(path)
    except RgalsError as error:
        with pytest.raises(type(error)):
            convert(path, tmp_path / "x.rgals")
        return
    check_same(convert(path, tmp_path / "x.rgals"), expected)


@pytest.mark.parametrize("text", ["user,item\n", ""], ids=["header alone", "empty"])
def test_parts_without_rows_hold_nothing(text, tmp_path):
    parts = tmp_path / "parts"
    parts.mkdir()
    for name, lines in {"a": text, "b": "user,item\na,x\nb,x\nb,y\n", "c": text}.items():
        (parts / f"{name}.csv").write_text(lines)
    check_same(convert(parts, tmp_path / "x.rgals"), read_interactions(parts / "b.csv"))
    (parts / "b.csv").write_text(text)
    with pytest.raises(RgalsError, match=r"a\.csv and others hold no rows"):
        convert(parts, tmp_path / "y.rgals")


def test_a_quote_that_the_header_opens_does_not_hide_a_part(tmp_path):
    """Its rows were fields of the header, and the part was left out as one without rows."""
    parts = tmp_path / "parts"
    parts.mkdir()
    (parts / "a.csv").write_text("user,item\na,x\n")
    (parts / "b.csv").write_text('user,item,"note\nb,y,1\nc,x,2\n')
    with pytest.raises(FileFormatError, match=r"b\.csv, line 1: a quote is opened and never closed"):
        convert(parts, tmp_path / "x.rgals")
    (parts / "b.csv").write_text('user,item,"note\nof the day"\n')
    assert convert(parts, tmp_path / "x.rgals").nnz == 1


def test_what_pyarrow_refuses_far_behind_is_read_by_csv_from_there(tmp_path, monkeypatch):
    """A number of wide digits; each row counts once."""
    lines = [f"u{k % 700},i{k % 31},{k % 5 + 1},{'x' * 500}\n" for k in range(14_000)]
    lines[10_000] = "a,b,１,x\n"
    path = tmp_path / "events.csv"
    path.write_text("user,item,rating,note\n" + "".join(lines), encoding="utf-8")
    seen = []
    monkeypatch.setattr(batches, "arrow_batches", watched(batches.arrow_batches, seen))
    check_same(convert(path, tmp_path / "x.rgals"), read_interactions(path))
    assert 0 < sum(seen) < 10_000


def watched(read, seen):
    def reader(*args):
        for part, done in read(*args):
            seen.append(len(part["user"]))
            yield part, done

    return reader


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "a.csv").write_text("user,item\n1,2\n3,4\n")
    monkeypatch.setattr(module, "_write", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*a\.rgals'"):
        convert(tmp_path / "a.csv", tmp_path / "a.rgals")
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


@pytest.mark.parametrize("name", ["events.xlsx", "events.pkl", "events.json"])
def test_what_is_not_read_in_memory_is_not_converted(name, tmp_path, monkeypatch):
    text = "[1]" if name.endswith("json") else "user,item\n1,2\n3,4\n"
    compare(tmp_path / name, text, tmp_path, monkeypatch)
    assert not list(tmp_path.glob("*.rgals"))


@pytest.mark.parametrize(
    ("counts", "room"),
    [
        (np.ones(200_000, np.int64), 0),
        (np.arange(1000), 80_000),
        (np.array([3, 0, 90_000, 5, 20_000]), 80_000),
    ],
)
def test_buckets_are_consecutive_and_neither_large_nor_too_many(tmp_path, counts, room):
    """Rows are cut, too, where they have more than a bucket."""
    rows = np.repeat(np.arange(len(counts)), counts)
    cols = np.arange(len(rows)) % 500
    buckets = module._Buckets(tmp_path, counts, 500, room, lambda: iter([(rows, cols)]), None)
    assert (np.diff(buckets._ends) >= 0).all() and buckets.pairs(buckets._ends[-1]) == (len(counts), 0)
    assert len(buckets._ends) <= 3 * module._MOST_BUCKETS
    some = max(room // 4 // module._SORT_BYTES, counts.sum() // module._MOST_BUCKETS, 1)
    keys = np.sort(rows << buckets.bits | cols)
    held = np.diff(np.searchsorted(keys, buckets._ends), prepend=0)
    assert held.tolist() == np.diff(buckets._places).tolist() and held.sum() == counts.sum()
    assert held.max() <= 2 * some and buckets.largest[0] == held.max()


@pytest.mark.parametrize("cells", [18, 8])
def test_a_row_that_fills_many_buckets_is_cut(cells, tmp_path, monkeypatch):
    """Of users and of items; whether single columns are counted or ranges of them."""
    path = tmp_path / "a.parquet"
    rng = np.random.default_rng(1)
    users, items = rng.integers(0, 40, 4000), rng.integers(0, 700, 4000)
    users[::2], items[1::4] = 7, 3
    columns = {"user": users, "item": items, "rating": rng.integers(1, 9, 4000) / 8}
    pq.write_table(pa.table(columns), path)
    monkeypatch.setattr(module, "of_process", lambda which: 0)  # whatever else it holds
    for name, value in {"_SORT_BYTES": 1 << 20, "_CHUNK": 300, "_CELL_BITS": cells}.items():
        monkeypatch.setattr(module, name, value)
    sizes, by_key = [], module._Buckets._by_key
    monkeypatch.setattr(
        module._Buckets, "_by_key", lambda self, part: (sizes.append(len(part)), by_key(self, part))[1]
    )
    check_same(convert(path, tmp_path / "x.rgals"), read_interactions(path))
    assert max(sizes) <= 300 < (users == 7).sum()


def test_a_pair_that_fills_many_buckets_is_refused(tmp_path, monkeypatch):
    """What is merged at once cannot be cut."""
    users = np.where(np.arange(5000) % 5, 7, np.arange(5000))
    pq.write_table(pa.table({"user": users, "item": np.zeros(5000, int)}), tmp_path / "a.parquet")
    monkeypatch.setattr(module, "_SORT_BYTES", 1 << 19)
    monkeypatch.setattr(module, "of_process", lambda which: 0)
    with pytest.raises(
        InsufficientMemoryError, match=r"user 7 has 4,\d+ interactions with one item.*by at least"
    ):
        convert(tmp_path / "a.parquet", tmp_path / "x.rgals", memory=10**9)
    assert not list(tmp_path.glob("*.rgals"))
    convert(tmp_path / "a.parquet", tmp_path / "x.rgals", memory=4 * 10**9)


def test_folders_of_parts_are_one_source(tmp_path):
    rng = np.random.default_rng(2)
    users, items = rng.integers(0, 300, 5000), rng.integers(0, 100, 5000)
    parts = tmp_path / "events" / "day=1"
    parts.mkdir(parents=True)
    for k in range(5):
        some = slice(1000 * k, 1000 * k + 1000)
        table = pa.table({"user": users[some], "item": [f"i{i}" for i in items[some]]})
        pq.write_table(table, parts / f"{k}.parquet")
    (parts / "_SUCCESS").write_text("")
    expected = read_interactions((users, [f"i{i}" for i in items]))
    check_same(convert(tmp_path / "events", tmp_path / "x.rgals"), expected)
    again = convert(
        [parts / "0.parquet", *(parts / f"{k}.parquet" for k in range(1, 5))], tmp_path / "y.rgals"
    )
    check_same(again, expected)


def test_parts_of_a_table_have_all_a_header_or_none(tmp_path):
    """`split` leaves it in the first: in the others the times were the users."""
    rows = [f"{1_600_000_000 + k},i{k % 7},u{k % 11}\n" for k in range(60)]
    parts = tmp_path / "events"
    parts.mkdir()
    for name, start, head in (("a", 0, "timestamp,item,user\n"), ("b", 30, "")):
        (parts / name).write_text(head + "".join(rows[start : start + 30]))
    with pytest.raises(InputError, match="b has no line of names of columns, unlike others; give one to all"):
        convert(parts, tmp_path / "x.rgals")
    store = convert(parts, tmp_path / "x.rgals", columns={"user": 2, "item": 1})
    assert store.shape == (11, 7)
    (parts / "b").write_text(
        "item,user,timestamp\n" + "".join(f"i{k % 7},u{k % 11},{k}\n" for k in range(30))
    )
    assert convert(parts, tmp_path / "y.rgals").shape == (11, 7)  # each by its names, in any order


def test_what_a_folder_hides_is_no_source_and_links_are_not_lost(tmp_path):
    text = "user,item\na,x\nb,y\n"
    for folder in ("", ".ipynb_checkpoints", "_temporary/0", "day=1"):
        (tmp_path / "events" / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "events" / folder / "part.csv").write_text(text)
    store = convert(tmp_path / "events", tmp_path / "x.rgals")
    assert store.matrix.to_scipy().toarray().tolist() == [[2, 0], [0, 2]]
    with pytest.raises(InputError, match=r"x\.rgals is a store already; rgals\.matrix\.open_matrix"):
        convert([tmp_path / "x.rgals"], tmp_path / "y.rgals")
    link = tmp_path / "events" / "day=2"
    for target in ("day=1", "gone"):
        link.symlink_to(tmp_path / "events" / target, target_is_directory=True)
        with pytest.raises(InputError, match="day=2 is a link that is not followed"):
            convert(tmp_path / "events", tmp_path / "y.rgals")
        link.unlink()


def test_values_of_some_files_and_columns_by_name(tmp_path, monkeypatch):
    """Rows of files without values count 1, also where these come first and are many pieces."""
    monkeypatch.setattr(module, "_CHUNK", 1)
    (tmp_path / "a.csv").write_text("who,what\na,x\nb,x\n")
    (tmp_path / "b.csv").write_text("who,what,n\na,x,2\nb,y,4\n")
    files, columns = [tmp_path / "a.csv", tmp_path / "b.csv"], {"user": "who", "item": "what"}
    with pytest.raises(InputError, match="'n'"):
        convert(files, tmp_path / "x.rgals", columns={**columns, "value": "n"})
    store = convert(files[1:], tmp_path / "x.rgals", columns={**columns, "value": "n"})
    assert store.matrix.to_scipy().toarray().tolist() == [[2, 0], [0, 4]]
    (tmp_path / "b.csv").write_text("who,what,value\na,x,2\nb,y,4\n")
    store = convert(files, tmp_path / "y.rgals", columns=columns)
    assert store.matrix.to_scipy().toarray().tolist() == [[3, 0], [1, 4]]


def test_ids_of_two_kinds_are_refused(tmp_path):
    pq.write_table(pa.table({"user": [1], "item": ["x"]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"user": ["1"], "item": ["x"]}), tmp_path / "b.parquet")
    with pytest.raises(InputError, match="users are integers in one source and texts in another"):
        convert([tmp_path / "a.parquet", tmp_path / "b.parquet"], tmp_path / "x.rgals")


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (1, 2, 0), (2, 0, 1)])
def test_integers_of_text_are_those_of_parquet(order, tmp_path, monkeypatch):
    """Whichever file is the first, and where numbers follow."""
    monkeypatch.setattr(numbering, "_FIRST", 4)
    monkeypatch.setattr(module, "of_process", lambda which: 0)  # whatever else it holds
    users, items = np.random.default_rng(0).integers(-40, 40, (2, 600))
    files = [tmp_path / name for name in ("a.parquet", "b.csv", "c.jsonl")]
    pq.write_table(pa.table({"user": pa.array(users[:200], pa.int16()), "item": items[:200]}), files[0])
    pairs = list(zip(users.tolist(), items.tolist(), strict=True))
    files[1].write_text("user,item\n" + "".join(f" {u},{i}\n" for u, i in pairs[200:400]))
    files[2].write_text("".join(f'{{"user": {u}, "item": "{i}"}}\n' for u, i in pairs[400:]))
    store = convert([files[k] for k in order], tmp_path / "x.rgals")
    check_same(store, read_interactions((users, items)))
    (tmp_path / "d.csv").write_text("user,item\n07,1\n")
    pq.write_table(pa.table({"user": [1], "item": ["1"]}), tmp_path / "e.parquet")
    for other, what in {"d.csv": "users are", "e.parquet": "items are"}.items():
        for sources in ([files[k] for k in order] + [tmp_path / other], [tmp_path / other, *files]):
            with pytest.raises(InputError, match=f"{what} (texts|integers) in one source and"):
                convert(sources, tmp_path / "y.rgals")
    large = pa.table({"user": pa.array([2**64 - 1], pa.uint64()), "item": [1]})
    pq.write_table(large, tmp_path / "f.parquet")
    with pytest.raises(InputTypeError, match="must fit 64 bits"):
        convert([files[1], tmp_path / "f.parquet"], tmp_path / "y.rgals")


def test_texts_of_parquet_stay_texts_beside_integers_of_text(tmp_path):
    pq.write_table(pa.table({"user": ["7"], "item": ["x"]}), tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text("user,item\n7,x\n8,y\n")
    for sources in (["a.parquet", "b.csv"], ["b.csv", "a.parquet"]):
        store = convert([tmp_path / name for name in sources], tmp_path / f"{sources[0]}.rgals")
        assert store.user_ids.tolist() == ["7", "8"]


def test_arguments_are_checked_by_name(tmp_path):
    (tmp_path / "a.csv").write_text("user,item\na,x\n")
    for options in (
        {"memory": "1MB"},
        {"memory": "much"},
        {"duplicates": "last"},
        {"columns": {"who": 1}},
        {"header": "yes"},
    ):
        with pytest.raises(ParameterError) as caught:
            convert(tmp_path / "a.csv", tmp_path / "x.rgals", **options)
        assert caught.value.name == next(iter(options))
    with pytest.raises(InputError, match="exists"):
        convert(tmp_path / "a.csv", tmp_path)
    (tmp_path / "nothing").mkdir()
    for sources in ([], tmp_path / "nothing"):
        with pytest.raises(InputError):
            convert(sources, tmp_path / "x.rgals")
    table = pa.table({"user": [1], "item": [2]})
    for sources in (None, 5, table, table.to_pandas(), open_matrix):
        with pytest.raises(InputTypeError, match="give paths of parquet or text files"):
            convert(sources, tmp_path / "x.rgals")
    read_interactions(([1], [2])).save(tmp_path / "a.npz")
    with pytest.raises(FileFormatError, match="give text or parquet"):
        convert(tmp_path / "a.npz", tmp_path / "x.rgals")
    assert module._bytes("2GiB") == 2 << 30 and module._bytes("1.5 GB") == 1_500_000_000
    assert module._bytes(10**9) == 10**9


@pytest.mark.parametrize("bad", [b"\xff", 1.5, True])
def test_what_is_no_id_is_refused_by_its_file_and_row(bad, tmp_path, monkeypatch):
    monkeypatch.setattr(batches, "_PARQUET_ROWS", 3)
    users = [type(bad)(1) if not isinstance(bad, bytes) else b"a"] * 7 + [bad]
    pq.write_table(pa.table({"user": users, "item": [1] * 8}), tmp_path / "a.parquet")
    with pytest.raises(
        InputTypeError, match=f"a.parquet, row {0 if bad is True else 7}: the user .* cannot be"
    ):
        convert(tmp_path / "a.parquet", tmp_path / "x.rgals")
    (tmp_path / "a.jsonl").write_text('{"user": "a", "item": 1}\n\n{"user": "\\ud800", "item": 1}\n')
    with pytest.raises(
        InputTypeError, match="a.jsonl, line 3: the user .* is no integer and no text in UTF-8"
    ):
        convert(tmp_path / "a.jsonl", tmp_path / "x.rgals")


def test_numbering_is_that_of_a_dict(monkeypatch):
    monkeypatch.setattr(numbering, "_FIRST", 4)
    rng = np.random.default_rng(0)
    batches = [[f"{'x' * int(k % 30)}{k}" for k in rng.integers(0, 3000, 500)] for _ in range(20)]
    numbers, known = Numbering("user", 1 << 30), {}
    for k, batch in enumerate(batches):
        kind = pa.large_string() if k % 3 else pa.string()
        codes = numbers.codes(pa.array(["before", *batch, "behind"], kind)[1:-1])
        assert codes.tolist() == [known.setdefault(text, len(known)) for text in batch]
    assert numbers.known == len(known) > 2000
    times = Counter(text for batch in batches for text in batch)
    assert numbers.counts.tolist() == [times[text] for text in known]
    assert numbers.bytes > 16 * len(known)
    labels = list(known)
    numbers.sort()
    assert [labels[k] for k in numbers.order] == sorted(labels)
    assert numbers.label(17) == sorted(labels)[17]


def test_ids_beyond_the_memory_are_refused_with_both_numbers():
    numbers = Numbering("item", 4_000_000)
    with pytest.raises(InsufficientMemoryError, match=r"items and more, take .* leaves them 3\.8 MiB"):
        numbers.codes(pa.array(np.arange(300_000)))


@LINUX
def test_memory_is_bounded(zygote, tmp_path):
    """In many buckets about 90 MB are needed beside the process, in one bucket 380 MB."""
    before, after = zygote.run("datasets.test_convert:converted_at_once", str(tmp_path)).value
    assert after - before < 230_000_000


def converted_at_once(folder: str) -> tuple[int, int]:
    import resource

    rng = np.random.default_rng(0)
    for k in range(4):
        users, items = rng.integers(0, 50_000, 1_000_000), rng.integers(0, 20_000, 1_000_000)
        pq.write_table(pa.table({"user": users, "item": items}), f"{folder}/{k}.parquet")
    module._CHUNK, module._LEAST_MEMORY = 1 << 18, 0
    module._bytes = lambda memory: module.of_process(1) + 60_000_000
    before = module.of_process(1)
    convert(folder, f"{folder}/x.rgals")
    return before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_arrow_holds_few_groups_of_rows_at_once(tmp_path):
    """It kept all that an iterator had read until its end: most of a file."""
    numbers = np.random.default_rng(0).integers(0, 1 << 40, 400_000)
    pq.write_table(
        pa.table({"user": numbers, "item": numbers}), tmp_path / "a.parquet", row_group_size=10_000
    )
    before, held, found = pa.total_allocated_bytes(), [], []
    for part, _ in parquet_parts(tmp_path / "a.parquet", AUTOMATIC, 20_000):
        found += part["user"].to_pylist()
        held.append(pa.total_allocated_bytes() - before)
    assert found == numbers.tolist() and len(held) == 20
    assert max(held) < 2_000_000 < numbers.nbytes


def test_text_is_read_in_small_blocks(tmp_path):
    """Whose dictionaries, where all ids are different, take many times the text."""
    (tmp_path / "a.csv").write_text("user,item\n" + "".join(f"u{k},i{k}\n" for k in range(150_000)))
    layout = detect(tmp_path / "a.csv", AUTOMATIC)
    sizes = [len(part["user"]) for part, _ in batches.arrow_batches(layout)]
    assert sum(sizes) == 150_000 and max(sizes) < 100_000


# ---------------------------------------------------------------------------------------------- kills


@POSIX
def test_folders_in_use_and_complete_ones_are_no_leftovers(tmp_path):
    """Until it has its name a folder is locked: another conversion to that name leaves it alone."""
    target = tmp_path / "x[1].rgals"
    left = tmp_path / ".x[1].rgals-0.part"  # of one that was killed
    left.mkdir()
    left.with_suffix(".lock").touch()
    with module._folder(target) as folder:
        (folder / "rows").write_text("1")
        with pytest.raises(InputError, match="exists; give another name"), module._folder(target) as other:
            (other / "rows").write_text("2")
            target.mkdir()
            (target / "rows").write_text("3")  # by a third one, which ends first
        assert folder.exists() and not other.exists()
        (target / "rows").unlink()
        target.rmdir()
    assert (target / "rows").read_text() == "1"
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


def convert_for_ever(folder: str) -> None:
    while True:
        if os.path.exists(f"{folder}/x.rgals"):  # also that of a run which was killed just then
            os.rename(f"{folder}/x.rgals", f"{folder}/old-{os.urandom(4).hex()}")
        convert_once(folder)


def convert_once(folder: str) -> None:
    module._CHUNK, module._SORT_BYTES = 500, 1 << 22
    convert(f"{folder}/events.csv", f"{folder}/x.rgals")


@POSIX
def test_a_killed_conversion_leaves_nothing_that_opens(zygote, tmp_path, tally):
    count = tally("kill -9 while converting", 4, 100)
    rng = np.random.default_rng(0)
    pairs = rng.integers(0, 900, (4000, 2))
    (tmp_path / "events.csv").write_text("user,item\n" + "".join(f"u{u},i{i}\n" for u, i in pairs))
    expected = read_interactions(tmp_path / "events.csv")
    began = zygote.run("datasets.test_convert:convert_once", str(tmp_path))
    assert began.returned, began
    for k in range(count.figure):
        with count.case(f"kill {k}"):
            delay = began.seconds * rng.random()
            outcome = zygote.run(
                "datasets.test_convert:convert_for_ever", str(tmp_path), signal_after=(signal.SIGKILL, delay)
            )
            assert outcome.signal == signal.SIGKILL
            for path in tmp_path.glob("*.rgals"):
                check_same(open_matrix(path, verify=True), expected)
    count.check()
    for path in tmp_path.glob("x.rgals"):
        os.rename(path, tmp_path / "last")
    zygote.run("datasets.test_convert:convert_once", str(tmp_path))
    assert not list(tmp_path.glob(".*")), "the next run removes what is left"
    check_same(open_matrix(tmp_path / "x.rgals"), expected)
