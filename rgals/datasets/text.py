"""Text files: tables (csv, tsv, MovieLens ``::``), and lines with a record, or with a user and its items."""

# A table is read by pyarrow if it is installed, which is faster, and else by Python's csv module. pyarrow is
# asked only for files of which it reads the same as csv; what it refuses is read by csv, which names the
# line.

import codecs
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from rgals.datasets.columns import IDS, NUMBERS, Batches, choose, is_number
from rgals.datasets.ids import Coded, text_to_labels
from rgals.datasets.interactions import TEST, TRAIN, Columns, collect
from rgals.datasets.layout import Layout, bad, detect, known_encoding, numbered, open_bytes, sample
from rgals.runtime.errors import FileFormatError
from rgals.runtime.lazy import optional

_BLOCK = 1 << 16  # bytes; a line that fills a block may have a field beyond csv's limit, twice as many
_PAIRS = 1 << 12  # pairs in a batch
_is_whole = re.compile(r"[0-9]+").fullmatch
# Types that a field of a record may have by its role, and their names in a message.
_FIELDS: dict[str, tuple[Any, str]] = dict.fromkeys(IDS, (int | str, "a text or an integer"))
_FIELDS |= {"timestamp": (int | float | str, "a number or a text")}
_FIELDS |= dict.fromkeys(NUMBERS, (int | float, "a number"))
Pair = tuple[int, dict[str, Any]]  # one interaction: the number of its line, and its fields by role
Labels = Callable[[np.ndarray, Any], Coded]  # gives codes and distinct ids in the order of the labels


def _suits_arrow(layout: Layout) -> bool:
    """Whether csv reads the same: no very long line, no line end within quotes, no 0x10 as a time."""
    # pyarrow cuts a file into blocks at line ends, also at those within quotes, takes fields of any length,
    # closes an open quote at the end of the file, and reads hexadecimal integers.
    end = re.escape(layout.delimiter[-1].encode()) + rb"\r\n"  # of a field; also what is before one
    quoted = re.compile(rb'(?<![^%b])"[^"\r\n]*(?:""[^"\r\n]*)*"(?=[%b]|\Z)' % (end, end))
    with open_bytes(layout.path) as raw:
        if raw.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
            raw.seek(0)
        while block := raw.read(_BLOCK):
            rest = raw.readline(_BLOCK)
            block += rest
            if len(rest) == _BLOCK or ("timestamp" in layout.at and b"0x" in block.lower()):
                return False
            if b'"' in block and b'"' in quoted.sub(b"", block):
                return False
    return True


def arrow_batches(layout: Layout, whole: bool = False) -> Batches:
    """The rows of a table by pyarrow, ids as trimmed dictionary arrays; ``whole``: all are read at once."""
    # A `ValueError` says that the csv module might read the file in another way, or that a row breaks a rule.
    names_of = "pyarrow", "pyarrow.csv", "pyarrow.compute"
    pa, pa_csv, pc = (optional(name, "there is no pyarrow") for name in names_of)
    plain = layout.encoding == "utf-8-sig" and layout.delimiter.isascii() and layout.delimiter != " "
    if not plain or layout.starts_blank or not _suits_arrow(layout):
        raise ValueError("pyarrow might read this in another way")
    # pyarrow cuts at one character: "a::b" is then "a", an empty field that must be null, and "b".
    step = len(layout.delimiter)
    at = {role: f"f{step * position}" for role, position in layout.at.items()}
    names = [f"f{k}" for k in range(step * (layout.n_fields - 1) + 1)]
    between = [name for k, name in enumerate(names) if k % step]
    types = dict.fromkeys(between, pa.null())
    types |= {at[role]: pa.dictionary(pa.int32(), pa.string()) for role in IDS}
    types |= {at[role]: pa.float64() for role in NUMBERS if role in at}
    header: dict[str, Any] = {"column_names": names, "skip_rows": int(layout.names is not None)}
    used, nulls = [*at.values(), *between], [""] if between else []
    parse = pa_csv.ParseOptions(delimiter=layout.delimiter[0])
    convert = pa_csv.ConvertOptions(column_types=types, include_columns=used, null_values=nulls)
    try:
        with open_bytes(layout.path) as raw:
            # Only plain files get threads: at exit, a thread that holds a Python file aborts the process.
            is_plain = type(raw) is io.BufferedReader
            file: Any = pa.OSFile(raw.name) if is_plain else raw
            # A stream keeps some blocks in memory, each with a dictionary of its ids: they must be small.
            size = 1 << (24 if whole else 20)
            read = pa_csv.ReadOptions(use_threads=is_plain, block_size=size, **header)
            table = (pa_csv.read_csv if whole else pa_csv.open_csv)(file, read, parse, convert)
            for batch in table.to_batches() if whole else table:
                found = {role: batch.column(name) for role, name in at.items()}
                if any(column.null_count for column in found.values()):
                    raise ValueError("a field is empty")
                ids = [pc.utf8_trim_whitespace(found[role].dictionary) for role in IDS]
                if any(texts.index("").as_py() >= 0 for texts in ids):
                    raise ValueError("an id is empty")
                if layout.header and all(x.index(name).as_py() >= 0 for x, name in zip(ids, layout.header)):
                    raise ValueError("a row may be the header")
                for role, texts in zip(IDS, ids, strict=True):
                    found[role] = pa.DictionaryArray.from_arrays(found[role].indices, texts)
                found |= {role: np.asarray(found[role]) for role in found.keys() - IDS}
                time = found.get("timestamp", np.empty(0, int))
                if time.dtype not in (np.int64, np.float64) or not np.isfinite(time).all():
                    raise ValueError("the timestamps are no finite numbers")
                yield found, 0 if file.closed else file.tell()
    except (pa.ArrowKeyError, pa.ArrowNotImplementedError, OSError) as error:
        raise ValueError(str(error)) from error


def _collected(layout: Layout, batches: Batches) -> Columns:
    """The columns of all batches of a table."""
    raw, known = collect(batch for batch, _ in batches)
    if not raw:
        raise FileFormatError(f"{layout.path} holds no rows")
    return _columns(raw, known, layout.locate, text_to_labels)


def read_text(path: Path | zipfile.Path, wanted: dict[str, Any], engine: str, **options: Any) -> Columns:
    """Columns of a text file; ``engine`` is "auto", "pyarrow" or "python"."""
    layout = detect(path, wanted, **options)
    if engine in ("auto", "pyarrow"):
        with suppress(ValueError, ImportError):  # csv reads what pyarrow refuses, or names the line
            return _collected(layout, arrow_batches(layout, whole=True))
    return _collected(layout, layout.csv_batches())


# ------------------------------------------------------------------ records and lists


def line_batches(lines: Iterator[Pair]) -> Iterator[dict[str, Any]]:
    """Pairs in batches of columns by role; the column "line" holds the numbers of their lines."""
    while some := list(islice(lines, _PAIRS)):
        at, found = zip(*some, strict=True)
        columns: dict[str, Any] = {role: [pair[role] for pair in found] for role in found[0]}
        columns |= {role: np.array(columns[role], float) for role in columns.keys() & {*NUMBERS}}
        yield columns | {"line": np.array(at)}


def gathered(
    read: Callable[[Path], Iterator[Pair]], paths: list[Path], labels: Labels = text_to_labels
) -> Columns:
    """Columns of the pairs of one file, or of a training and a test file, which become the split."""

    def batches() -> Iterator[dict[str, Any]]:
        for part, path in zip((TRAIN, TEST), paths, strict=False):
            columns: dict[str, Any] = {}
            for columns in line_batches(read(path)):
                yield columns | {"file": np.full(len(columns["line"]), part)}
            if not columns:
                raise FileFormatError(f"{path} holds no interactions")

    raw, known = collect(batches())
    if len(paths) > 1:
        raw["split"] = raw["file"]
    return _columns(raw, known, lambda k: f"{paths[raw['file'][k]]}, line {raw['line'][k]}", labels)


def _columns(raw: dict[str, Any], known: list[list], where: Callable[[int], str], labels: Labels) -> Columns:
    """The columns from `collect`, their ids sorted by ``labels``."""
    user, item = (labels(raw[role], ids) for role, ids in zip(IDS, known, strict=True))
    return Columns(user, item, where, raw.get("value"), raw.get("timestamp"), raw.get("split"))


def records(
    path: Path,
    wanted: dict[str, Any],
    *,
    parse: Callable[[str], Any] = json.loads,
    form: str = "JSON object",
    encoding: str = "utf-8",
    progress: bool = False,
) -> Iterator[Pair]:
    """The pairs of a file with a record on every line, whose keys are chosen as columns by ``wanted``."""
    keys: dict[str, str] = {}  # by role
    names: dict[str, None] = {}  # all keys so far, in the order of their first occurrence
    for number, line in numbered(path, encoding, progress):
        try:
            record = parse(line)
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            raise bad(path, number, f"this is no {form} ({type(error).__name__})", line) from error
        if not isinstance(record, dict):
            raise bad(path, number, f"this is no {form}", line)
        if not keys or not record.keys() <= names.keys():
            names |= dict.fromkeys(record)
            found = {role: list(names)[at] for role, at in choose(list(names), wanted, str(path)).items()}
            keys = keys or found
            for role in found.keys() - keys.keys():
                problem = f"the {role} ({found[role]!r}) is here, but missing in the lines before"
                raise bad(path, number, f"{problem}; write it on every line, or give {role}=None", line)
        for role, key in keys.items():
            field, (kinds, what) = record.get(key), _FIELDS[role]
            if field is None:
                raise bad(path, number, f"the {role} ({key!r}) is missing", line)
            fits = isinstance(field, kinds) and not isinstance(field, bool) and str(field).strip()
            if not fits or (role in NUMBERS and not is_number(field)):  # an integer that no float holds
                raise bad(path, number, f"the {role} must be {what}", line)
        yield number, {r: record[k] if r in NUMBERS else str(record[k]) for r, k in keys.items()}


def pairs(path: Path, form: str, wanted: dict[str, Any], encoding: str) -> Iterator[Pair]:
    """The pairs of a file of the form "lists" (LightGCN's) or "jsonl"."""
    return lists(path, encoding) if form == "lists" else records(path, wanted, encoding=encoding)


def lists(path: Path, encoding: str = "utf-8", progress: bool = False, whole: bool = False) -> Iterator[Pair]:
    """The pairs of a file with a user and its items on every line; ``whole``: all must be integers from 0."""
    for number, line in numbered(path, encoding, progress):
        user, *items = line.split()
        if whole and not all(map(_is_whole, line.split())):
            raise bad(path, number, "expected a user and items, all of them integers from 0", line)
        yield from ((number, {"user": user, "item": item}) for item in items)


def is_lists(path: Path, encoding: str) -> bool:
    """Whether a file looks like lists: integers alone, a new user on every line, lines of several lengths."""
    rows = [line.split() for line in sample(path, known_encoding(encoding)) if line.strip()]
    whole = all(_is_whole(field) for row in rows for field in row)
    return whole and len({row[0] for row in rows}) == len(rows) and len(set(map(len, rows))) > 1
