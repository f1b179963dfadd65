"""Reading csv, tsv, MovieLens ``::`` and similar text, plain or gzipped.

The rules are those of `_python_columns`, which reads with Python's csv module. pyarrow, where it is
installed, and `numpy.loadtxt` only make it faster: whatever they refuse is read again by the rules, which
either accept it or name the line.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import lzma
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from rgals.datasets.columns import Choice, choose, looks_like_header
from rgals.datasets.ids import first_seen, text_to_labels
from rgals.datasets.interactions import Columns, numbers, text_timestamps
from rgals.runtime.errors import FileFormatError, ParameterError

SNIFF_BYTES = 1 << 20
MAX_LINE = SNIFF_BYTES // 2
_CHUNK, _BATCH = 1 << 10, 1 << 18
_BLOCK = 1 << 16  # bytes; a line of twice as many fills a block, and csv refuses longer fields
_DOUBLED = "\udc00"  # stands for "::", as csv cuts at one character; no decoded text holds it
_DELIMITERS = ("\t", ",", ";", "|", " ")
_OPENERS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
_BINARY = {b"PK\x03\x04": "a zip archive", b"PAR1": "a parquet file", b"\x93NUMPY": "a npy file"}
_DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)


@dataclass(frozen=True)
class Layout:
    """How the text of a file is to be cut."""

    path: Path
    delimiter: str
    quote: str | None
    encoding: str
    header: bool
    names: list[str] | None
    n_fields: int
    choice: Choice
    starts_blank: bool = False


def open_bytes(path: Path) -> IO[bytes]:
    """The bytes of a file, unpacked if it is gzip, bzip2 or xz."""
    with open(path, "rb") as file:
        start = file.read(8)
    for magic, opener in _OPENERS.items():
        if start.startswith(magic):
            return opener(path, "rb")
    return open(path, "rb")


def _shown(text: str) -> str:
    text = text.rstrip("\r\n")
    return repr(text if len(text) <= 80 else text[:77] + "...")


def _lines(file: IO[str], path: Path, longest: int = MAX_LINE) -> Iterator[str]:
    """Lines of bounded length, so that a file without line ends cannot fill the memory."""
    for number, line in enumerate(iter(partial(file.readline, longest), ""), 1):
        if len(line) == longest and line[-1] not in "\r\n":
            raise _too_long(path, number, line)
        yield line


def _too_long(path: Path, number: int, line: str) -> FileFormatError:
    return FileFormatError(
        f"{path}, line {number}: the line is longer than {MAX_LINE} characters; this is no table of "
        f"interactions: {_shown(line)}"
    )


def _reader(lines: Iterable[str], delimiter: str, quote: str | None) -> Any:
    """Python's csv reader over lines, the one place that says how a line is cut."""
    doubled = delimiter == "::"
    return csv.reader(
        (line.replace("::", _DOUBLED) for line in lines) if doubled else lines,
        delimiter=_DOUBLED if doubled else delimiter,
        quotechar=quote,
        quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
        skipinitialspace=delimiter == " ",
    )


def _numbered(layout: Layout, lines: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    """Line number and fields of every row that is not blank; every quote must be closed."""
    ended = False

    def and_a_blank_line() -> Iterator[str]:  # which ends up in a row only if a quote is still open
        nonlocal ended
        yield from lines
        ended = True
        yield "\n"

    reader = _reader(and_a_blank_line(), layout.delimiter, layout.quote)
    before = 0
    try:
        for row in reader:
            if layout.delimiter == "::":
                row = [field.replace(_DOUBLED, "::") for field in row]
            if ended and row:
                raise _complain(layout, before + 1, row, "a quote is opened and never closed")
            if row:
                yield reader.line_num, row
            before = reader.line_num
    except csv.Error as error:
        raise FileFormatError(
            f"{layout.path}, line {before + 1}: {error}; is a quote opened and never closed?"
        ) from error


def _rows(layout: Layout) -> Iterator[tuple[int, list[str]]]:
    """Line number and fields of every row that is not blank, after the header."""
    with open_bytes(layout.path) as raw:
        file = io.TextIOWrapper(raw, encoding=layout.encoding, newline="")  # type: ignore[type-var]
        try:
            yield from islice(_numbered(layout, _lines(file, layout.path)), int(layout.header), None)
        except UnicodeError as error:
            raise undecodable(layout.path, layout.encoding, error) from error
        except _DAMAGED as error:
            raise FileFormatError(
                f"{layout.path}: the compressed file is cut off or damaged ({error})"
            ) from error


def undecodable(path: Path, encoding: str, error: UnicodeError) -> FileFormatError:
    """The error for bytes that are no text in ``encoding``, naming the first such line."""
    plain = encoding.removesuffix("-sig")
    if isinstance(error, UnicodeDecodeError):
        with open_bytes(path) as raw:
            for number, line in enumerate(iter(partial(raw.readline, MAX_LINE), b""), 1):
                try:
                    line.decode(encoding)
                except UnicodeDecodeError as here:
                    shown = _shown(line.decode("ascii", "backslashreplace"))
                    return FileFormatError(
                        f"{path}, line {number}: byte 0x{line[here.start]:02x} is not {plain}; give the "
                        f"right encoding, for example encoding='latin-1': {shown}"
                    )
    return FileFormatError(f"{path}: this is not {plain} text ({error}); give the right encoding")


def _sample(path: Path, encoding: str) -> list[str]:
    """The first lines of a file, complete ones only, after checks that this is text at all."""
    try:
        codecs.lookup(encoding)
    except LookupError:
        raise ParameterError("encoding", encoding, "give an encoding that Python knows") from None
    try:
        with open_bytes(path) as raw:
            start = raw.read(SNIFF_BYTES)
            more = bool(raw.read(1))
    except _DAMAGED as error:
        raise FileFormatError(f"{path}: the compressed file is cut off or damaged ({error})") from error
    if not start.strip() and not more:
        raise FileFormatError(f"{path} is empty")
    for magic, what in _BINARY.items():
        if start.startswith(magic):
            raise FileFormatError(f"{path} is {what}, not a text file")
    wide = encoding.lower().replace("_", "-").startswith(("utf-16", "utf-32"))
    if b"\0" in start and not wide:
        raise FileFormatError(f"{path} looks like a binary file, not text (byte {start.index(0)} is NUL)")
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        text = decoder.decode(start, final=not more)
    except UnicodeDecodeError as error:
        raise undecodable(path, encoding, error) from error
    lines = io.StringIO(text.removeprefix("\ufeff"), newline=None).read().split("\n")
    # The last line is cut off by the sample; if that is longer than any may be, this is no table.
    if more and len(lines[-1]) > MAX_LINE:
        raise _too_long(path, len(lines), lines[-1])
    if more or not lines[-1]:
        lines.pop()
    return lines[:200]


def _split(line: str, delimiter: str, quote: str | None) -> list[str]:
    row: list[str] = next(_reader([line], delimiter, quote), [])
    return [field.replace(_DOUBLED, "::") for field in row] if delimiter == "::" else row


def _n_fields(line: str, delimiter: str, quote: str | None) -> int:
    """Fields of a line; 1 where csv refuses it, as it does very long fields."""
    try:
        return len(_split(line, delimiter, quote))
    except csv.Error:
        return 1


def _sniff_delimiter(lines: list[str], quote: str | None, path: Path) -> str:
    if "::" in lines[0]:
        return "::"
    sample = lines[:20]
    best, fewest = None, 0
    for delimiter in _DELIMITERS:
        counts = [_n_fields(line, delimiter, quote) for line in sample]
        # The delimiter that cuts most lines alike; ties go to the order of the candidates.
        alike = sum(n == counts[0] for n in counts) if counts[0] > 1 else 0
        if alike > fewest:
            best, fewest = delimiter, alike
    if best is None:
        raise FileFormatError(
            f"{path}, line 1: no delimiter found (tab, comma, semicolon, '|', space or '::'); give "
            f"delimiter=...: {_shown(lines[0])}"
        )
    return best


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def _has_header(rows: list[list[str]], wanted: dict[str, Any]) -> bool:
    first = rows[0]
    if any(isinstance(want, str) and want != "auto" for want in wanted.values()) or looks_like_header(first):
        return True
    # A first line without any number above lines with numbers is a header too.
    below = rows[1] if len(rows) > 1 else []
    return not any(map(_is_number, first)) and any(map(_is_number, below))


def detect(
    path: Path,
    wanted: dict[str, Any],
    *,
    delimiter: str | None = None,
    header: bool | None = None,
    encoding: str = "utf-8",
    quote: str | None = '"',
) -> Layout:
    """Find delimiter, header and columns from the first lines of a file."""
    if encoding.lower().replace("_", "-") in ("utf-8", "utf8"):
        encoding = "utf-8-sig"
    sample = _sample(path, encoding)
    lines = [line for line in sample if line]
    if not lines:
        raise FileFormatError(f"{path} is empty: it starts with {len(sample)} blank lines")
    if delimiter is None:
        delimiter = _sniff_delimiter(lines, quote, path)
    elif not isinstance(delimiter, str) or (delimiter != "::" and len(delimiter) != 1):
        raise ParameterError("delimiter", delimiter, "give one character or '::'")
    elif delimiter in ("\r", "\n", quote):
        raise ParameterError("delimiter", delimiter, "a line end or a quote cannot separate fields")
    try:
        rows = [row for line in lines[:20] if (row := _split(line, delimiter, quote))]
    except csv.Error as error:
        longest = max(lines[:20], key=len)
        raise FileFormatError(
            f"{path}, line {sample.index(longest) + 1}: {error}; is this delimiter right? {_shown(longest)}"
        ) from error
    if header is None:
        header = _has_header(rows, wanted)
    names = [name.strip() for name in rows[0]] if header else None
    if header and len(rows) < 2:
        raise FileFormatError(f"{path} has a header but no rows: {_shown(lines[0])}")
    body = rows[int(header)]
    numeric = [_is_number(field) for field in body]
    n_fields = len(rows[0])
    if len(body) != n_fields:
        numeric = [False] * n_fields
    choice = choose(names, n_fields, wanted, numeric, str(path))
    return Layout(path, delimiter, quote, encoding, header, names, n_fields, choice, not sample[0])


def _complain(layout: Layout, number: int, row: list[str], problem: str) -> FileFormatError:
    line = layout.delimiter.join(row)
    return FileFormatError(f"{layout.path}, line {number}: {problem}: {_shown(line)}")


def _locate(layout: Layout, k: int) -> str:
    """The file and line of row ``k``, with its content."""
    number, row = next(islice(_rows(layout), k, None))
    return f"{layout.path}, line {number} ({_shown(layout.delimiter.join(row))})"


def _check_chunk(layout: Layout, chunk: list[tuple[int, list[str]]]) -> None:
    """Raise for the first row of a chunk that breaks a rule; called when something did not fit."""
    delimiter = {"\t": "tab", " ": "space"}.get(layout.delimiter, repr(layout.delimiter))
    at = layout.choice.positions()
    for number, row in chunk:
        if len(row) != layout.n_fields:
            problem = f"expected {layout.n_fields} fields separated by {delimiter}, found {len(row)}"
            raise _complain(layout, number, row, problem)
        for role in ("user", "item"):
            if not row[at[role]].strip():
                raise _complain(layout, number, row, f"the {role} is empty")
        for role in ("value", "split"):
            if role in at and not _is_number(row[at[role]]):
                raise _complain(layout, number, row, f"the {role} {row[at[role]]!r} is not a number")


def _python_columns(layout: Layout) -> Columns:
    at = layout.choice.positions()
    known: dict[str, dict[str, int]] = {"user": {}, "item": {}}
    parts: dict[str, list[np.ndarray]] = {role: [] for role in at if role != "timestamp"}
    times: list[str] = []
    rows = _rows(layout)
    while chunk := list(islice(rows, _CHUNK)):
        fields = [row for _, row in chunk]
        if set(map(len, fields)) != {layout.n_fields}:
            _check_chunk(layout, chunk)
        columns = list(zip(*fields, strict=True))
        for role in ("user", "item"):
            parts[role].append(first_seen(columns[at[role]], known[role]))
        for role in ("value", "split"):
            if role in at:
                try:
                    parts[role].append(numbers(columns[at[role]]))
                except ValueError:
                    _check_chunk(layout, chunk)
                    raise
        if "timestamp" in at:
            times.extend(columns[at["timestamp"]])
    if not parts["user"]:
        raise FileFormatError(f"{layout.path} holds no rows")
    if any(not text.strip() for role in ("user", "item") for text in known[role]):
        _check_chunk(layout, list(_rows(layout)))
    return _joined(layout, parts, known, times)


def _joined(
    layout: Layout, parts: dict[str, list[np.ndarray]], known: dict[str, dict[str, int]], times: list[str]
) -> Columns:
    raw = {role: np.concatenate(arrays) for role, arrays in parts.items()}
    timestamp = None
    if layout.choice.timestamp is not None:
        timestamp = text_timestamps(times, partial(_locate, layout))
    return _finish(layout, raw, {role: list(codes) for role, codes in known.items()}, timestamp)


def _finish(
    layout: Layout, raw: dict[str, np.ndarray], distinct: dict[str, list[str]], timestamp: np.ndarray | None
) -> Columns:
    where = partial(_locate, layout)
    if layout.names is not None:
        _refuse_second_header(layout, raw, distinct)
    user, user_labels = text_to_labels(raw["user"], distinct["user"])
    item, item_labels = text_to_labels(raw["item"], distinct["item"])
    split = raw.get("split")
    return Columns(user, user_labels, item, item_labels, raw.get("value"), timestamp, split, where)


def _refuse_second_header(layout: Layout, raw: dict[str, np.ndarray], distinct: dict[str, list[str]]) -> None:
    assert layout.names is not None
    user, item = layout.names[layout.choice.user], layout.names[layout.choice.item]
    if user in distinct["user"] and item in distinct["item"]:
        both = (raw["user"] == distinct["user"].index(user)) & (raw["item"] == distinct["item"].index(item))
        again = np.flatnonzero(both)
        if len(again):
            raise FileFormatError(f"{_locate(layout, int(again[0]))}: the header occurs a second time")


def _is_open(line: str, layout: Layout) -> bool:
    """Whether a line ends inside a quoted field."""
    return len(list(_reader([line, "next"], layout.delimiter, layout.quote))) == 1


def _numpy_columns(layout: Layout) -> Columns | None:
    """The same by `numpy.loadtxt`, or None where it sees anything unusual."""
    if layout.delimiter == " ":
        return None
    at = layout.choice.positions()
    kinds = ["U1"] * layout.n_fields
    for role, position in at.items():
        kinds[position] = "f8" if role in ("value", "split") else "O"
    dtype = np.dtype([(f"f{k}", kind) for k, kind in enumerate(kinds)])
    known: dict[str, dict[str, int]] = {"user": {}, "item": {}}
    parts: dict[str, list[np.ndarray]] = {role: [] for role in at if role != "timestamp"}
    times: list[str] = []
    doubled = layout.delimiter == "::"
    try:
        with open_bytes(layout.path) as raw:
            file = io.TextIOWrapper(raw, encoding=layout.encoding, newline="")  # type: ignore[type-var]
            within = _lines(file, layout.path, csv.field_size_limit())  # else csv might refuse a field
            lines = (line for line in within if line.strip("\r\n"))
            if doubled:
                lines = (line.replace("::", _DOUBLED) for line in lines)
            if layout.header and _is_open(next(lines), layout):
                return None
            while batch := list(islice(lines, _BATCH)):
                table = np.loadtxt(
                    batch,
                    dtype,
                    comments=None,
                    delimiter=_DOUBLED if doubled else layout.delimiter,
                    quotechar=layout.quote,
                    ndmin=1,
                )
                # Fewer rows than lines: a quoted field holds a line end. In the last line that does not show.
                if len(table) != len(batch) or _is_open(batch[-1], layout):
                    return None
                for role, position in at.items():
                    column = table[f"f{position}"]
                    if role == "timestamp":
                        times.extend(column.tolist())
                        continue
                    parts[role].append(first_seen(column.tolist(), known[role]) if role in known else column)
    except (ValueError, *_DAMAGED):
        return None
    if any(not text.strip() or _DOUBLED in text for role in ("user", "item") for text in known[role]):
        return None
    return _joined(layout, parts, known, times) if parts["user"] else None


def _suits_arrow(layout: Layout) -> bool:
    """Whether pyarrow must read the file as csv does: no very long line, no line end within quotes, no 0x10.

    pyarrow cuts a file into blocks at line ends, takes fields of any length, closes an open quote at the end
    of the file, and reads hexadecimal integers.
    """
    quote = ord(layout.quote) if layout.quote else None
    integers = layout.choice.timestamp is not None
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


def _arrow_columns(layout: Layout) -> Columns | None:
    """The same by pyarrow, or None where it is missing or sees anything unusual."""
    try:
        import pyarrow as pa
        import pyarrow.csv as pa_csv
    except ImportError:
        return None
    plain = layout.encoding == "utf-8-sig" and layout.delimiter.isascii() and layout.delimiter != " "
    if not plain or layout.starts_blank:
        return None
    # pyarrow cuts at one character: "a::b" is then "a", nothing, "b".
    step = 2 if layout.delimiter == "::" else 1
    at = {role: f"f{step * position}" for role, position in layout.choice.positions().items()}
    names = [f"f{k}" for k in range(step * (layout.n_fields - 1) + 1)]
    types: dict[str, Any] = {name: pa.null() for k, name in enumerate(names) if step == 2 and k % 2}
    types |= {at[role]: pa.dictionary(pa.int32(), pa.string()) for role in ("user", "item")}
    types |= {at[role]: pa.float64() for role in ("value", "split") if role in at}
    if "timestamp" in at:
        types[at["timestamp"]] = _time_type(layout, pa)
        if types[at["timestamp"]] is None:
            return None
    include = list(at.values()) + [name for name, kind in types.items() if kind == pa.null()]
    try:
        with open(layout.path, "rb") as file:
            start = file.read(8)
        if any(start.startswith(magic) and magic != b"\x1f\x8b" for magic in _OPENERS):
            return None
        if not _suits_arrow(layout):
            return None
        table = pa_csv.read_csv(
            pa.input_stream(str(layout.path), compression="gzip" if start[:2] == b"\x1f\x8b" else None),
            read_options=pa_csv.ReadOptions(
                column_names=names, skip_rows=int(layout.header), block_size=1 << 24
            ),
            parse_options=pa_csv.ParseOptions(
                delimiter=layout.delimiter[0], quote_char=layout.quote or False
            ),
            convert_options=pa_csv.ConvertOptions(
                column_types=types, include_columns=include, null_values=[""] if step == 2 else []
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowKeyError, pa.ArrowNotImplementedError, OSError, *_DAMAGED):
        return None
    if table.num_rows == 0:
        return None
    raw: dict[str, np.ndarray] = {}
    distinct: dict[str, list[str]] = {}
    for role in ("user", "item"):
        column = table[at[role]].unify_dictionaries()
        distinct[role] = column.chunk(0).dictionary.to_pylist()
        raw[role] = np.concatenate([chunk.indices.to_numpy(zero_copy_only=False) for chunk in column.chunks])
        if column.null_count or any(not text.strip() for text in distinct[role]):
            return None
    for role in ("value", "split", "timestamp"):
        if role in at:
            if table[at[role]].null_count:
                return None
            raw[role] = table[at[role]].to_numpy()
    timestamp = raw.pop("timestamp", None)
    if timestamp is not None and timestamp.dtype.kind == "f" and not np.isfinite(timestamp).all():
        return None
    return _finish(layout, raw, distinct, timestamp)


def _time_type(layout: Layout, pa: Any) -> Any:
    first = next(_rows(layout))[1]
    if len(first) != layout.n_fields:
        return None
    text = first[layout.choice.positions()["timestamp"]]
    try:
        int(text)
        return pa.int64()
    except ValueError:
        return pa.float64() if _is_number(text) else None


def read_text(path: Path, wanted: dict[str, Any], engine: str, **options: Any) -> Columns:
    """Columns of a text file; ``engine`` is "auto", "pyarrow", "numpy" or "python"."""
    layout = detect(path, wanted, **options)
    fast: dict[str, tuple] = {"auto": (_arrow_columns, _numpy_columns), "python": ()}
    fast |= {"pyarrow": (_arrow_columns,), "numpy": (_numpy_columns,)}
    for read in fast[engine]:
        columns = read(layout)
        if columns is not None:
            return columns
    return _python_columns(layout)
