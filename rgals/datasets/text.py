"""Reading csv, tsv, MovieLens ``::`` and similar text, plain or packed.

What pyarrow, where it is installed, and `numpy.loadtxt` read is what Python's csv module reads, faster. They
raise a ValueError at anything unusual; the csv module then reads the file, and accepts it or names the line.
"""

import codecs
import csv
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from rgals.datasets.ids import arrow_codes, first_seen, text_to_labels
from rgals.datasets.interactions import Columns, is_number, numbers, text_timestamps
from rgals.datasets.layout import DOUBLED, Layout, complain, cut, detect, locate, open_bytes, open_lines, rows
from rgals.runtime.errors import FileFormatError

_CHUNK, _BATCH = 1 << 10, 1 << 18  # rows
_BLOCK = 1 << 16  # bytes; a line of twice as many fills a block, and csv refuses longer fields
_IDS, _NUMBERS = ("user", "item"), ("value", "split")


def _check_rows(layout: Layout, numbered: Iterable[tuple[int, list[str]]]) -> None:
    """Raise for the first row that breaks a rule; called when something did not fit."""
    delimiter = {"\t": "tab", " ": "space"}.get(layout.delimiter, repr(layout.delimiter))
    for number, row in numbered:
        if len(row) != layout.n_fields:
            problem = f"expected {layout.n_fields} fields separated by {delimiter}, found {len(row)}"
            raise complain(layout, number, row, problem)
        for role, at in layout.at.items():
            if role in _IDS and not row[at].strip():
                raise complain(layout, number, row, f"the {role} is empty")
            if role in _NUMBERS and not is_number(row[at]):
                raise complain(layout, number, row, f"the {role} {row[at]!r} is not a number")


def _python_batches(layout: Layout) -> Iterator[dict[str, Any]]:
    """Columns by role of one batch of rows after the other."""
    numbered = rows(layout)
    while chunk := list(islice(numbered, _CHUNK)):
        try:
            columns = list(zip(*(row for _, row in chunk), strict=True))
            if len(columns) != layout.n_fields:
                raise ValueError("all rows have another number of fields")
            batch = {r: numbers(columns[k]) if r in _NUMBERS else columns[k] for r, k in layout.at.items()}
        except ValueError:
            _check_rows(layout, chunk)
            raise
        yield batch


def _collect(layout: Layout, batches: Iterable[dict[str, Any]]) -> Columns:
    """The columns of all batches."""
    known: dict[str, dict[str, int]] = {role: {} for role in _IDS}
    parts: dict[str, list] = {role: [] for role in layout.at}
    for batch in batches:
        for role, column in batch.items():
            parts[role].append(first_seen(column, known[role]) if role in known else column)
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
        _check_rows(layout, rows(layout))
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


def _numpy_batches(layout: Layout) -> Iterator[dict[str, Any]]:
    """The same by `numpy.loadtxt`."""
    if layout.delimiter == " ":
        raise ValueError("loadtxt takes every space for a delimiter")
    kinds = dict.fromkeys(range(layout.n_fields), "U1")
    kinds |= {at: "f8" if role in _NUMBERS else "O" for role, at in layout.at.items()}
    dtype = np.dtype([(f"f{k}", kind) for k, kind in kinds.items()])
    doubled, quote = layout.delimiter == "::", layout.quote
    delimiter = DOUBLED if doubled else layout.delimiter
    # The bound is that of csv, which refuses longer fields.
    with open_lines(layout.path, layout.encoding, csv.field_size_limit()) as within:
        lines = (line.replace("::", DOUBLED) if doubled else line for line in within if line.strip("\r\n"))
        if layout.names is not None:
            _refuse_open(next(lines), layout)
        while batch := list(islice(lines, _BATCH)):
            table = np.loadtxt(batch, dtype, comments=None, delimiter=delimiter, quotechar=quote, ndmin=1)
            # Fewer rows than lines: a quoted field holds a line end. In the last line that does not show.
            if len(table) != len(batch):
                raise ValueError("a quoted field holds a line end")
            _refuse_open(batch[-1], layout)
            columns = {role: table[f"f{at}"] for role, at in layout.at.items()}
            yield {r: column if r in _NUMBERS else column.tolist() for r, column in columns.items()}


def _refuse_open(line: str, layout: Layout) -> None:
    if len(list(cut([line, "next"], layout.delimiter, layout.quote))) == 1:
        raise ValueError("a line ends inside a quoted field")


def _suits_arrow(layout: Layout) -> bool:
    """Whether pyarrow must read the file as csv does: no very long line, no line end within quotes, no 0x10.

    pyarrow cuts a file into blocks at line ends, takes fields of any length, closes an open quote at the end
    of the file, and reads hexadecimal integers.
    """
    quote = ord(layout.quote) if layout.quote else None
    integers = "timestamp" in layout.at
    starts = [ord(layout.delimiter[-1]), ord("\n"), ord("\r")]  # the characters before a quoted field
    last, inside = starts[-1], False
    with open_bytes(layout.path) as raw:
        block = raw.read(_BLOCK).removeprefix(codecs.BOM_UTF8)
        while block:
            if len(block) == _BLOCK and b"\n" not in block and b"\r" not in block:
                return False
            if integers and any(prefix in bytes([last]) + block for prefix in (b"0x", b"0X")):
                return False
            if quote is not None and (inside or quote in block):
                at = np.frombuffer(block, np.uint8)
                is_quote = at == quote
                # Whether a quoted field is open behind each byte, if all that open do so at a field's start.
                open_ = np.logical_xor.accumulate(is_quote) ^ inside
                opens = np.flatnonzero(is_quote & open_)
                before = np.where(opens > 0, at[opens - 1], last)
                if not np.isin(before, [*starts, quote]).all():
                    return False
                if open_[(at == ord("\n")) | (at == ord("\r"))].any():
                    return False
                inside = bool(open_[-1])
            last = block[-1]
            block = raw.read(_BLOCK)
    return not inside


def _arrow_columns(layout: Layout) -> Columns:
    """The same by pyarrow."""
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
    has_header, used, nulls = int(layout.names is not None), [*at.values(), *between], [""] if between else []
    read = pa_csv.ReadOptions(column_names=names, skip_rows=has_header, block_size=1 << 24)
    parse = pa_csv.ParseOptions(delimiter=layout.delimiter[0], quote_char=layout.quote or False)
    convert = pa_csv.ConvertOptions(column_types=types, include_columns=used, null_values=nulls)
    try:
        with open_bytes(layout.path) as raw:
            table = pa_csv.read_csv(raw, read, parse, convert)
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


def read_text(path: Path, wanted: dict[str, Any], engine: str, **options: Any) -> Columns:
    """Columns of a text file; ``engine`` is "auto", "pyarrow", "numpy" or "python"."""
    layout = detect(path, wanted, **options)
    fast: dict[str, Callable[[Layout], Columns]] = {
        "pyarrow": _arrow_columns,
        "numpy": lambda layout: _collect(layout, _numpy_batches(layout)),
    }
    for name, read in fast.items():
        if engine in ("auto", name):
            try:
                return read(layout)
            except ValueError:  # the rules accept what this engine does not, or name its line
                continue
    return _collect(layout, _python_batches(layout))
