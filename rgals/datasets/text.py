"""Reading csv, tsv, MovieLens ``::`` and similar text, plain or packed.

What pyarrow reads, where it is installed, is what the csv module reads, faster; it is asked for nothing
unusual. The csv module reads many rows at once, and where they break a rule one by one, to name the line.
"""

import codecs
import csv
import io
import re
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from rgals.datasets.ids import text_to_labels
from rgals.datasets.interactions import Columns, collect, numbers
from rgals.datasets.layout import (
    DOUBLED,
    END,
    Layout,
    check,
    cut,
    detect,
    locate,
    open_bytes,
    open_lines,
)
from rgals.runtime.errors import FileFormatError

_BATCH = 1 << 10  # rows: few enough to stay in the processor's caches
_BLOCK = 1 << 16  # bytes; a line of twice as many fills a block, and csv refuses longer fields
_IDS, _NUMBERS = ("user", "item"), ("value", "split")
# Columns by role of some rows after the other, ids and times as texts, and how many bytes are read.
Batches = Iterator[tuple[dict[str, Any], int]]


def csv_batches(layout: Layout) -> Batches:
    """The rows of a file by Python's csv module."""
    with open_lines(layout.path, layout.encoding) as lines:
        table = filter(None, cut(chain(lines, [END]), layout.delimiter))
        if layout.names is not None:
            next(table)
        closed = False
        while not closed:
            batch = list(islice(table, _BATCH))
            if batch == [[END]]:
                break
            closed = batch[-1:] == [[END]]
            columns = list(zip(*batch[: len(batch) - closed], strict=True))
            if len(columns) != layout.n_fields:
                raise ValueError("a quote is never closed, or all rows have another number of fields")
            yield {r: numbers(columns[k]) if r in _NUMBERS else columns[k] for r, k in layout.at.items()}, 0


def _suits_arrow(layout: Layout) -> bool:
    """Whether pyarrow must read a file as csv does: no very long line, no line end within quotes, no 0x10."""
    # pyarrow cuts a file into blocks at line ends, takes fields of any length, closes an open quote at the
    # end of the file, and reads hexadecimal integers.
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
    """The same by pyarrow: ids as dictionary arrays, times as numbers; ``whole``: the file is read at once.

    A `ValueError` says that pyarrow might read the file in another way than the csv module.
    """
    try:
        import pyarrow as pa
        import pyarrow.csv as pa_csv
    except ImportError as error:
        raise ValueError("there is no pyarrow") from error
    plain = layout.encoding == "utf-8-sig" and layout.delimiter.isascii() and layout.delimiter != " "
    if not plain or layout.starts_blank or not _suits_arrow(layout):
        raise ValueError("pyarrow might read this in another way")
    # pyarrow cuts at one character: "a::b" is then "a", nothing, "b".
    step = len(layout.delimiter)
    at = {role: f"f{step * position}" for role, position in layout.at.items()}
    names = [f"f{k}" for k in range(step * (layout.n_fields - 1) + 1)]
    between = [name for k, name in enumerate(names) if k % step]
    types = dict.fromkeys(between, pa.null())
    types |= {at[role]: pa.dictionary(pa.int32(), pa.string()) for role in _IDS}
    types |= {at[role]: pa.float64() for role in _NUMBERS if role in at}
    header: dict[str, Any] = {"column_names": names, "skip_rows": int(layout.names is not None)}
    used, nulls = [*at.values(), *between], [""] if between else []
    parse = pa_csv.ParseOptions(delimiter=layout.delimiter[0])
    convert = pa_csv.ConvertOptions(column_types=types, include_columns=used, null_values=nulls)
    try:
        with open_bytes(layout.path) as raw:
            # Threads of pyarrow that still hold a Python file when Python ends abort the process.
            is_plain = type(raw) is io.BufferedReader
            file: Any = pa.OSFile(raw.name) if is_plain else raw
            read = pa_csv.ReadOptions(use_threads=is_plain, block_size=1 << 24, **header)
            table = (pa_csv.read_csv if whole else pa_csv.open_csv)(file, read, parse, convert)
            for batch in table.to_batches() if whole else table:
                found = {role: batch.column(name) for role, name in at.items()}
                if any(column.null_count for column in found.values()):
                    raise ValueError("a field is empty")
                found |= {role: np.asarray(found[role]) for role in found.keys() - _IDS}
                time = found.get("timestamp", np.empty(0, int))
                if time.dtype not in (np.int64, np.float64) or not np.isfinite(time).all():
                    raise ValueError("the timestamps are no finite numbers")
                yield found, 0 if file.closed else file.tell()
    except (pa.ArrowKeyError, pa.ArrowNotImplementedError, OSError) as error:
        raise ValueError(str(error)) from error


def _collected(layout: Layout, batches: Batches) -> Columns:
    """All rows: columns of numbers, and for users and items of codes for sorted labels."""
    raw, known = collect(batch for batch, _ in batches)
    if not raw:
        raise FileFormatError(f"{layout.path} holds no rows")
    distinct = [[text.replace(DOUBLED, "::").strip() for text in texts] for texts in known]
    if not all(text for texts in distinct for text in texts):
        raise ValueError("an id is empty")
    if layout.names is not None:
        again = np.ones(len(raw["user"]), bool)
        for role, texts in zip(_IDS, distinct, strict=True):
            is_name = [text == layout.names[layout.at[role]] for text in texts]
            again &= np.array(is_name)[raw[role]]
        refuse_header(layout, again)
    user, item = (text_to_labels(raw[role], texts) for role, texts in zip(_IDS, distinct, strict=True))
    value, timestamp, split = map(raw.get, ("value", "timestamp", "split"))
    return Columns(*user, *item, value, timestamp, split, partial(locate, layout))


def refuse_header(layout: Layout, again: np.ndarray, first: int = 0) -> None:
    """Raise where a row, counted from ``first``, is ``again`` the header."""
    if again.any():
        where = locate(layout, int(again.argmax()), first)
        raise FileFormatError(f"{where}: the header occurs a second time")


def read_text(path: Path | zipfile.Path, wanted: dict[str, Any], engine: str, **options: Any) -> Columns:
    """Columns of a text file; ``engine`` is "auto", "pyarrow" or "python"."""
    layout = detect(path, wanted, **options)
    if engine in ("auto", "pyarrow"):
        with suppress(ValueError):  # the rules accept what pyarrow does not, or name its line
            return _collected(layout, arrow_batches(layout, whole=True))
    try:
        return _collected(layout, csv_batches(layout))
    except (ValueError, csv.Error):
        check(layout)
        raise
