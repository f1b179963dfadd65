"""Reading csv, tsv, MovieLens ``::`` and similar text, plain or packed.

What pyarrow reads, where it is installed, is what the csv module reads, faster; it is asked for nothing
unusual. The csv module reads many rows at once, and where they break a rule one by one, to name the line.
"""

import codecs
import csv
import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from rgals.datasets.ids import arrow_codes, numbering, text_to_labels
from rgals.datasets.interactions import Columns, numbers, text_timestamps
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
from rgals.runtime.lazy import optional

_BATCH = 256  # rows: few enough to stay in the processor's caches
_BLOCK = 1 << 16  # bytes; a line of twice as many fills a block, and csv refuses longer fields
_IDS, _NUMBERS = ("user", "item"), ("value", "split")


def batches(layout: Layout) -> Iterator[dict[str, Any]]:
    """Columns by role of one batch of rows after the other."""
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
            yield {r: numbers(columns[k]) if r in _NUMBERS else columns[k] for r, k in layout.at.items()}


def _csv_columns(layout: Layout) -> Columns:
    """The columns of a file by Python's csv module."""
    known = {role: numbering() for role in _IDS}
    parts: dict[str, list] = {role: [] for role in layout.at}
    for batch in batches(layout):
        for role, column in batch.items():
            codes = known.get(role)
            numbered = column if codes is None else np.fromiter(map(codes.__getitem__, column), np.int64)
            parts[role].append(numbered)
    if not parts["user"]:
        raise FileFormatError(f"{layout.path} holds no rows")
    times = chain.from_iterable(parts.pop("timestamp", ()))
    raw = {role: np.concatenate(arrays) for role, arrays in parts.items()}
    if "timestamp" in layout.at:
        raw["timestamp"] = text_timestamps(list(times), partial(locate, layout))
    distinct = {role: [text.replace(DOUBLED, "::") for text in codes] for role, codes in known.items()}
    return _finish(layout, raw, distinct)


def _finish(layout: Layout, raw: dict[str, np.ndarray], distinct: dict[str, list[str]]) -> Columns:
    """Columns of numbers, and for users and items of codes for distinct texts."""
    if not all(text.strip() for texts in distinct.values() for text in texts):
        raise ValueError("an id is empty")
    if layout.names is not None:
        again = np.ones(len(raw["user"]), bool)
        for role in _IDS:
            name, texts = layout.names[layout.at[role]], distinct[role]
            again &= raw[role] == (texts.index(name) if name in texts else -1)
        if again.any():
            raise FileFormatError(f"{locate(layout, int(again.argmax()))}: the header occurs a second time")
    user, item = (text_to_labels(raw[role], distinct[role]) for role in _IDS)
    value, timestamp, split = map(raw.get, ("value", "timestamp", "split"))
    return Columns(*user, *item, value, timestamp, split, partial(locate, layout))


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


def arrow_options(layout: Layout, ids: Callable[[Any], Any]) -> tuple[Any, Any, dict[str, str]]:
    """`pyarrow.csv`, its options for a file, and the column of every role; ``ids(pa)``: type of ids.

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
    types |= {at[role]: ids(pa) for role in _IDS}
    types |= {at[role]: pa.float64() for role in _NUMBERS if role in at}
    has_header, used, nulls = int(layout.names is not None), [*at.values(), *between], [""] if between else []
    read = pa_csv.ReadOptions(column_names=names, skip_rows=has_header, block_size=1 << 24)
    parse = pa_csv.ParseOptions(delimiter=layout.delimiter[0])
    convert = pa_csv.ConvertOptions(column_types=types, include_columns=used, null_values=nulls)
    return pa_csv, (read, parse, convert), at


def _arrow_columns(layout: Layout) -> Columns:
    """The same by pyarrow."""
    pa_csv, options, at = arrow_options(layout, lambda pa: pa.dictionary(pa.int32(), pa.string()))
    pa = optional("pyarrow", "")
    try:
        with open_bytes(layout.path) as raw:
            table = pa_csv.read_csv(raw, *options)
    except (pa.ArrowKeyError, pa.ArrowNotImplementedError, OSError) as error:
        raise ValueError(str(error)) from error
    columns = {role: table[name] for role, name in at.items()}
    codes = {role: arrow_codes(columns.pop(role)) for role in _IDS}
    found = {role: column.to_numpy() for role, column in columns.items()}
    time = found.get("timestamp", np.empty(0, int))
    if any(table[name].null_count for name in at.values()) or table.num_rows == 0:
        raise ValueError("a field is empty, or all are")
    if time.dtype not in (np.int64, np.float64) or not np.isfinite(time).all():
        raise ValueError("the timestamps are no finite numbers")
    found |= {role: code for role, (code, _) in codes.items()}
    return _finish(layout, found, {role: texts for role, (_, texts) in codes.items()})


def read_text(path: Path | zipfile.Path, wanted: dict[str, Any], engine: str, **options: Any) -> Columns:
    """Columns of a text file; ``engine`` is "auto", "pyarrow" or "python"."""
    layout = detect(path, wanted, **options)
    if engine in ("auto", "pyarrow"):
        with suppress(ValueError):  # the rules accept what pyarrow does not, or name its line
            return _arrow_columns(layout)
    try:
        return _csv_columns(layout)
    except (ValueError, csv.Error):
        check(layout)
        raise
