"""jsonl, lists of items, RecBole's and MovieLens' files; names that end in what is not read."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from rgals import RGALS
from rgals.cli import main
from rgals.datasets import layout, read_interactions
from rgals.runtime.errors import FileFormatError, InputError, ParameterError
from rgals.scoring import recommend_all

RECORDS = [
    {"user_id": "ann", "item_id": 5, "rating": 3, "timestamp": 10, "note": None},
    {"user_id": "bob", "item_id": 5, "rating": 5.0, "timestamp": 12, "note": "x"},
    {"item_id": 7, "user_id": "ann", "rating": 4.5, "timestamp": 11},
]


def lines(records):
    return "".join(json.dumps(record) + "\n" for record in records)


def check(data):
    assert data.user_ids.tolist() == ["ann", "bob"] and data.item_ids.tolist() == [5, 7]
    assert data.matrix.toarray().tolist() == [[3, 4.5], [5, 0]] and data.timestamp.tolist() == [10, 11, 12]


@pytest.mark.parametrize("name", ["x.jsonl", "x.ndjson", "x.json", "x.txt"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_jsonl(tmp_path, name, pack):
    for text in (lines(RECORDS), "\ufeff\n" + lines(RECORDS).replace("\n", "\r\n\r\n").rstrip()):
        (tmp_path / name).write_bytes(pack(text.encode()))
        check(read_interactions(tmp_path / name))
    renamed = [{"who": r["user_id"], "what": r["item_id"], "much": r["rating"]} for r in RECORDS]
    (tmp_path / name).write_bytes(pack(lines(renamed).encode()))
    data = read_interactions(tmp_path / name, user="who", item="what", value="much")
    assert data.matrix.toarray().tolist() == [[3, 4.5], [5, 0]]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2: this is no JSON object"),
        ("[1, 2]", "line 2: this is no JSON object"),
        ('{"user": 1}', r"line 2: the item \('item'\) is missing"),
        ('{"user": null, "item": 2}', r"line 2: the user \('user'\) is missing"),
        ('{"user": "", "item": 2}', "line 2: the user must be a text or an integer"),
        ('{"user": 1.5, "item": 2}', "line 2: the user must be a text or an integer"),
        ('{"user": true, "item": 2}', "line 2: the user must be a text or an integer"),
        ('{"user": 1, "item": 2, "rating": "5", "time": 1}', "line 2: the value must be a number"),
        (
            f'{{"user": 1, "item": 2, "rating": 1{"0" * 400}, "time": 1}}',
            "line 2: the value must be a number",
        ),
        ('{"user": 1, "item": 2, "rating": -5, "time": 1}', "line 2: the value -5 is negative"),
        ('{"user": 1, "item": 2, "rating": NaN, "time": 1}', "line 2: the value is NaN"),
        ('{"user": 1, "item": 2, "rating": 5, "time": "soon"}', "line 2: the timestamp 'soon'"),
        ('{"user": 1, "item": 2, "rating": 5, "time": [1]}', "line 2: the timestamp must be"),
    ],
)
def test_wrong_lines_of_jsonl_are_named(tmp_path, line, words):
    first = (
        '{"user": 1, "item": 2, "rating": 5, "time": 1}\n' if "time" in line else '{"user": 1, "item": 2}\n'
    )
    (tmp_path / "x.jsonl").write_text(first + line + "\n")
    with pytest.raises(InputError, match=words):
        read_interactions(tmp_path / "x.jsonl")


def test_a_line_that_might_fill_the_memory_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "x.jsonl"
    path.write_text('{"user": 1, "item": 2}\n{"user": 1, "item": "' + "x" * 80 + '"}\n')
    assert read_interactions(path).nnz == 2
    monkeypatch.setattr(layout, "LONGEST", 80)
    with pytest.raises(FileFormatError, match="line 2: the line is longer than 80 characters"):
        read_interactions(path)


@pytest.mark.parametrize(("role", "key"), [("value", "rating"), ("timestamp", "time")])
def test_a_key_that_the_first_lines_do_not_have_is_not_left_out(tmp_path, role, key):
    path = tmp_path / "x.jsonl"
    path.write_text(f'{{"user": 1, "item": 2}}\n\n{{"user": 1, "item": 3, "more": 1, "{key}": 5}}\n')
    with pytest.raises(FileFormatError, match=rf"line 3: the {role} \('{key}'\) is here.*give {role}=None"):
        read_interactions(path)
    assert read_interactions(path, **{role: None}).nnz == 2  # "more" is no role


def test_recommendations_are_written_as_jsonl_and_read_again(tmp_path):
    data = read_interactions((["ann", "ann", "bob"], ["a", "b", "b"]))
    model = RGALS(K=2, random_state=0).fit(data.matrix, user_ids=["ann", "bob"], item_ids=[7, "7"])
    for suffix in (".jsonl", ".ndjson"):
        out = tmp_path / f"out{suffix}"
        recommend_all(model, out, 2)
        records = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
        assert [(r["user"], r["item"], r["rank"]) for r in records] == [("bob", 7, 1)]
        assert records[0]["score"] == pytest.approx(float(model.recommend("bob", 1)[1][0, 0]), rel=1e-5)
    assert read_interactions(out, value="rank").user_ids.tolist() == ["bob"]  # a score may be below 0


def test_what_cannot_be_written_is_refused_by_name_before_any_work(tmp_path, capsys):
    model = RGALS(K=2, random_state=0).fit(np.eye(3))
    for name in ("x.xlsx", "x.csv.gz", "x"):
        with pytest.raises(ParameterError, match=rf"{name}.*\.csv, \.tsv, \.jsonl"):
            recommend_all(model, tmp_path / name, 2)
        assert main(["recommend", str(tmp_path / "no model"), "-o", str(tmp_path / name)]) == 1
        assert ".jsonl" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("x.xlsx", r'give read_interactions\(pandas.read_excel\(".*x.xlsx"\)\)'),
        ("x.XLS", "pandas.read_excel"),
        ("x.feather", "pandas.read_feather"),
        ("x.h5", "pandas.read_hdf"),
        ("x.npy", "numpy.load"),
        ("x.mtx", "scipy.io.mmread"),
        ("x.pkl", "csv, jsonl or parquet"),
        ("x.zip", "csv, jsonl or parquet"),
        ("x.sqlite", "csv, jsonl or parquet"),
    ],
)
def test_what_is_not_read_is_refused_by_name(tmp_path, name, words):
    (tmp_path / name).write_text("user,item\na,b\n")
    with pytest.raises(FileFormatError, match=words):
        read_interactions(tmp_path / name)


@pytest.mark.parametrize("name", ["x.json", "x.jsonl", "x.ndjson", "x.jsonl.gz"])
def test_json_arrays_are_refused_with_the_line_that_reads_them(tmp_path, name):
    """They were a table of fields such as `[{"user_id":`, in silence."""
    pandas = pytest.importorskip("pandas")
    path, pack = tmp_path / name, gzip.compress if name.endswith(".gz") else bytes
    for indent in (None, 1):
        path.write_bytes(pack(b"\n" + json.dumps(RECORDS, indent=indent).encode() + b"\n"))
        with pytest.raises(FileFormatError, match=r'give read_interactions\(pandas.read_json\(".*"\)\), or'):
            read_interactions(path)
        check(read_interactions(pandas.read_json(path)))
    path.write_bytes(pack(b'["ann", 5]\n["bob", 7]\n'))
    for form in ("auto", "jsonl"):
        with pytest.raises(FileFormatError, match=r"first line begins.*lines=True\), user=0, item=1\)"):
            read_interactions(path, form=form)
    data = read_interactions(pandas.read_json(path, lines=True), user=0, item=1)
    assert data.user_ids.tolist() == ["ann", "bob"] and data.item_ids.tolist() == [5, 7]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("text", [lines(RECORDS), "user_id,item_id\nann,5\nbob,7\n", "1 2 3\n2 3\n"])
def test_wide_encodings_are_named_and_read(tmp_path, encoding, text):
    """Of jsonl in UTF-16 rgals read a table with users such as `{"user_id"`."""
    path, wide = tmp_path / "x", encoding[:6]
    path.write_bytes(("\ufeff" * encoding.endswith("be") + text).encode(encoding))
    with pytest.raises(
        FileFormatError, match=rf"this is {wide.upper()}.*'{wide}'.*iconv -f {wide.upper()} -t UTF-8"
    ):
        read_interactions(path)
    found = read_interactions(path, encoding=encoding)
    path.write_text(text)
    wanted = read_interactions(path)
    assert found.user_ids.tolist() == wanted.user_ids.tolist()
    assert found.matrix.toarray().tolist() == wanted.matrix.toarray().tolist()


def test_a_mark_of_utf_16_may_be_text_of_latin_1(tmp_path):
    (tmp_path / "x").write_bytes("þÿ,a\nþ,b\n".encode("latin-1"))
    assert read_interactions(tmp_path / "x", encoding="latin-1").user_ids.tolist() == ["þ", "þÿ"]


# ------------------------------------------------------------------ lists


@pytest.mark.parametrize("delimiter", [" ", "\t", "  "])
def test_lists_of_items(tmp_path, delimiter):
    rows = [[0, 5, 7, 9], [1, 5], [2], [10, 7, 5, 11, 12]]
    text = "\n".join(delimiter.join(map(str, row)) for row in rows)
    for content in (text, text + " \n\n"):
        (tmp_path / "train.txt").write_text(content)
        data = read_interactions(tmp_path / "train.txt")
        assert data.user_ids.tolist() == [0, 1, 10] and data.item_ids.tolist() == [5, 7, 9, 11, 12]
        assert data.matrix.toarray().tolist() == [[1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [1, 1, 0, 1, 1]]


def test_tables_are_no_lists_and_the_caller_decides(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("1 5 3\n2 6 4\n3 7 5\n")  # equally long: a table of user, item, value
    assert read_interactions(path).matrix.nnz == 3
    assert read_interactions(path, form="lists").matrix.nnz == 6
    path.write_text("1 5 3\n1 6\n2 7 5\n")  # a user twice: a table with a line that is too short
    with pytest.raises(FileFormatError, match="line 2: expected 3 fields"):
        read_interactions(path)
    assert read_interactions(path, form="lists").matrix.nnz == 5
    path.write_text("1 5 3\n2 6\n")
    with pytest.raises(FileFormatError, match="line 2: expected 3 fields"):
        read_interactions(path, form="table")
    with pytest.raises(ParameterError, match="form"):
        read_interactions(path, form="list")
    path.write_text("ann 5 3\nbob\n")
    with pytest.raises(FileFormatError, match="line 2"):
        read_interactions(path)


# ------------------------------------------------------------------ tables of others


@pytest.mark.parametrize("delimiter", [";", "|", " ", "\t"])
@pytest.mark.parametrize("engine", ["auto", "python"])
def test_decimal_commas_do_not_separate_fields(tmp_path, delimiter, engine):
    """Without names, 1;7;2,5 was the user "1;7;2" and the item 5; by its delimiter, values were left out."""
    rows = [("1", "7", "2,5"), ("2", "8", "3,0"), ("3", "9", "4")]
    (tmp_path / "x.csv").write_text("".join(delimiter.join(row) + "\n" for row in rows))
    for given in (None, delimiter):
        with pytest.raises(FileFormatError, match="line 1: the value '2,5' is not a number"):
            read_interactions(tmp_path / "x.csv", delimiter=given, engine=engine)
    data = read_interactions(tmp_path / "x.csv", value=None, engine=engine)
    assert data.user_ids.tolist() == [1, 2, 3] and data.item_ids.tolist() == [7, 8, 9]


@pytest.mark.parametrize(
    "rows",
    [
        [("auth0|ab", "i1"), ("auth0|cd", "i2")],
        [("1", "a;b"), ("2", "c;d")],
        [("1", "7;8"), ("2", "8;9")],
        [("John Smith", "Item one"), ("Jane Doe", "Item two")],
        [("1", "x;2;3"), ("2", "y;2;4")],
    ],
)
def test_other_signs_within_ids_leave_the_comma_what_it_is(tmp_path, rows):
    (tmp_path / "x.csv").write_text("".join(",".join(row) + "\n" for row in rows))
    data = read_interactions(tmp_path / "x.csv")
    assert {str(user) for user in data.user_ids.tolist()} == {user for user, _ in rows}
    assert data.item_ids.tolist() == sorted(item for _, item in rows)


def test_a_column_that_is_asked_for_is_not_taken_for_another_role(tmp_path, capsys):
    """It was "asked for as both value and timestamp", and the command line has no word for no times."""
    path = tmp_path / "watched.csv"
    path.write_text("user,item,time,rating\na,x,30,1\nb,y,60,2\n")
    data = read_interactions(path, value="time")
    assert data.matrix.data.tolist() == [30, 60] and data.timestamp is None
    data = read_interactions(path, timestamp="rating")
    assert data.matrix.data.tolist() == [1, 1] and data.timestamp.tolist() == [1, 2]
    fit = ["fit", str(path), "-o", str(tmp_path / "m.npz"), "--value-column", "2", "-K", "2", "--n-iter", "1"]
    assert main(fit) == 0
    with pytest.raises(InputError, match="asked for as both value and timestamp"):
        read_interactions(path, value="time", timestamp=2)


@pytest.mark.parametrize("engine", ["auto", "pyarrow", "numpy", "python"])
def test_files_of_recbole_and_movielens(tmp_path, engine):
    header = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    rows = [(1, 1193, 5.0, 978300760), (2, 661, 3.0, 978302109), (1, 661, 4.0, 978301968)]
    (tmp_path / "ml.inter").write_text(header + "".join("\t".join(map(str, row)) + "\n" for row in rows))
    (tmp_path / "ratings.dat").write_text("".join("::".join(map(str, row)) + "\n" for row in rows))
    (tmp_path / "u.data").write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    for name in ("ml.inter", "ratings.dat", "u.data"):
        data = read_interactions(tmp_path / name, engine=engine)
        assert data.user_ids.tolist() == [1, 2] and data.item_ids.tolist() == [661, 1193]
        assert data.matrix.toarray().tolist() == [[4, 5], [3, 0]]
        assert data.timestamp.tolist() == [978301968, 978300760, 978302109]
    (tmp_path / "seq.inter").write_text("user_id:token\titem_id_list:token_seq\n1\t2 3\n")
    with pytest.raises(InputError, match="no column is called like item_id|not a usual name|item_id_list"):
        read_interactions(tmp_path / "seq.inter", engine=engine)
