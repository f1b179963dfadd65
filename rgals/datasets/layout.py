"""How the text of a table is cut into rows and fields: encoding, delimiter, header, columns."""

# The rules are those of Python's csv module; an error names the line that breaks one of them.

import bz2
import codecs
import csv
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, takewhile
from pathlib import Path
from typing import IO, Any

from rgals.datasets.columns import IDS, NUMBERS, Batches, choose, is_number, role_of
from rgals.datasets.interactions import numbers
from rgals.runtime.bars import Bar
from rgals.runtime.errors import FileFormatError, ParameterError, warn

_SNIFF_BYTES = 1 << 20
_MAX_ROW = _SNIFF_BYTES // 2  # characters of a line of a table
_BATCH = 1 << 10  # rows: few enough to stay in the processor's caches
# Characters of a line with a record: lists of items can be long, mysqldump writes statements of up to 16 MiB.
LONGEST = 1 << 26
Place = Path | zipfile.Path  # of a file, which may be a member of an archive
# The csv module cuts at one character, so "::" is replaced by one that no decoded text holds.
DOUBLED = "\udc00"
# A last line that is added to find open quotes: csv returns it as a row of its own, unless a quote is open.
END = "\udc01"
_DELIMITERS = ("\t", ";", "|", " ", ",")
_OPENERS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
_OPENERS[b""] = nullcontext
_BINARY = {b"PK\x03\x04": "a zip archive", b"PAR1": "a parquet file", b"\x93NUMPY": "a npy file"}


@contextmanager
def open_bytes(path: Place) -> Iterator[IO[bytes]]:
    """The bytes of a file, unpacked if it is gzip, bzip2 or xz; a damaged one is a `FileFormatError`."""
    if isinstance(path, Path) and path.is_fifo():
        raise FileFormatError(f"{path} is a pipe, which can be read only once; write a file first")
    try:
        with path.open("rb") as packed:
            start = packed.read(8)
            packed.seek(0)
            opener = next(opener for magic, opener in _OPENERS.items() if start.startswith(magic))
            with opener(packed) as file:
                yield file
    except (EOFError, zlib.error, OSError, lzma.LZMAError) as error:
        if getattr(error, "errno", None) is not None:  # of the system, not of what is packed
            raise
        raise FileFormatError(f"{path}: the compressed file is cut off or damaged ({error})") from error


def shown(text: str) -> str:
    """A line as messages quote it."""
    text = text.rstrip("\r\n" + END)
    return repr(text if len(text) <= 80 else text[:77] + "...")


@contextmanager
def open_lines(path: Place, encoding: str, longest: int = _MAX_ROW, **how: Any) -> Iterator[Iterator[str]]:
    """The lines of a text file. A line of ``longest`` characters is an error: it might fill the memory."""
    with open_bytes(path) as raw:
        file = io.TextIOWrapper(raw, encoding, **{"newline": "", **how})  # type: ignore[type-var]

        def lines() -> Iterator[str]:
            try:
                for number, line in enumerate(iter(partial(file.readline, longest), ""), 1):
                    if len(line) == longest and line[-1] not in "\r\n":
                        problem = f"the line is longer than {longest} characters"
                        raise bad(path, number, f"{problem}; this is no table of interactions", line)
                    yield line
            except UnicodeError as error:
                raise undecodable(path, encoding, error) from error

        yield lines()


def bad(path: Place, number: int, problem: str, text: str) -> FileFormatError:
    """The error for a line or a row that breaks a rule."""
    return FileFormatError(f"{path}, line {number}: {problem}: {shown(text)}")


def cut(lines: Iterable[str], delimiter: str) -> Any:
    """A reader of Python's csv module; for the delimiter "::", fields hold `DOUBLED` in place of "::"."""
    if delimiter == "::":
        lines, delimiter = (line.replace("::", DOUBLED) for line in lines), DOUBLED
    return csv.reader(lines, delimiter=delimiter, skipinitialspace=delimiter == " ")


def undecodable(path: Place, encoding: str, error: UnicodeError) -> FileFormatError:
    """The error for bytes that are no text in ``encoding``, naming the first such line."""
    plain = encoding.removesuffix("-sig")
    if isinstance(error, UnicodeDecodeError):
        with open_bytes(path) as raw:
            for number, line in enumerate(iter(partial(raw.readline, LONGEST), b""), 1):
                try:
                    line.decode(encoding)
                except UnicodeDecodeError as here:
                    advice = "give the right encoding, for example encoding='latin-1'"
                    problem = f"byte 0x{line[here.start]:02x} is not {plain}; {advice}"
                    return bad(path, number, problem, line.decode("ascii", "backslashreplace"))
    return FileFormatError(f"{path}: this is not {plain} text ({error}); give the right encoding")


def known_encoding(encoding: str) -> str:
    """Python's name of an encoding; for UTF-8 the one that skips a byte order mark."""
    try:
        name = codecs.lookup(encoding).name
        "a".encode(encoding)
    except (LookupError, TypeError, UnicodeError):  # unknown, or no encoding of text: hex, rot13
        raise ParameterError("encoding", encoding, "give an encoding that Python knows") from None
    return "utf-8-sig" if name == "utf-8" else name


def numbered(
    path: Path, encoding: str = "utf-8", progress: bool = False, errors: str = "strict"
) -> Iterator[tuple[int, str]]:
    """Number and text of every line that is not blank; the file may be packed."""
    shown = {"unit": " lines", "unit_scale": True, "desc": path.name, "leave": False}
    with open_lines(path, known_encoding(encoding), LONGEST, errors=errors, newline="\n") as lines:
        for number, line in enumerate(Bar(lines, disable=not progress, **shown), 1):
            if text := line.strip("\ufeff\r\n\t "):
                yield number, text


class NoRowsError(FileFormatError):
    """A sound file or table without rows, which a part of a larger source may be."""


@dataclass(frozen=True)
class Layout:
    """How the text of a file is to be cut."""

    path: Place
    delimiter: str
    encoding: str
    names: list[str] | None  # of the columns; None without a header
    n_fields: int
    at: dict[str, int]  # position of the column by role
    starts_blank: bool  # whether the first line is blank

    @property
    def header(self) -> tuple[str, ...]:
        """The names of the columns of users and items; empty without a header."""
        return () if self.names is None else tuple(self.names[self.at[role]] for role in IDS)

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Line number and fields of every row but the header and blank ones."""
        before, is_header = 0, self.names is not None
        try:
            with open_lines(self.path, self.encoding) as lines:
                reader = cut(chain(lines, [END]), self.delimiter)
                for row in takewhile([END].__ne__, reader):
                    if self.delimiter == "::":
                        row = [field.replace(DOUBLED, "::") for field in row]
                    if row and row[-1].endswith(END):
                        raise self._fault(before + 1, row, "a quote is opened and never closed")
                    if row and not is_header:
                        yield reader.line_num, row
                    is_header &= not row
                    before = reader.line_num
        except csv.Error as error:
            problem = f"{error}; is a quote opened and never closed?"
            raise FileFormatError(f"{self.path}, line {before + 1}: {problem}") from error

    def csv_batches(self) -> Batches:
        """The rows by Python's csv module, in batches, ids trimmed; a row that breaks a rule is an error."""
        try:
            with open_lines(self.path, self.encoding) as lines:
                table = takewhile([END].__ne__, filter(None, cut(chain(lines, [END]), self.delimiter)))
                last = next(table)[-1] if self.names is not None else ""
                while batch := list(islice(table, _BATCH)):
                    columns, last = list(zip(*batch, strict=True)), batch[-1][-1]
                    found: dict[str, Any] = {role: columns[k] for role, k in self.at.items()}
                    found |= {role: numbers(found[role]) for role in NUMBERS if role in found}
                    ids = [list(map(str.strip, found[role])) for role in IDS]
                    if self.delimiter == "::":
                        ids = [[text.replace(DOUBLED, "::") for text in texts] for texts in ids]
                    if len(columns) != self.n_fields or not all(map(all, ids)) or self.header in zip(*ids):
                        raise ValueError("another number of fields, an empty id, or the header")
                    yield found | dict(zip(IDS, ids, strict=True)), 0
                if last.endswith(END):
                    raise ValueError("a quote is never closed")
        except (ValueError, IndexError, csv.Error):
            for number, row in self.rows():  # one of them breaks a rule
                self._check(number, row)
            raise

    def _check(self, number: int, row: list[str]) -> None:
        """Raise if a row breaks a rule."""
        if len(row) != self.n_fields:
            delimiter = {"\t": "tab", " ": "space"}.get(self.delimiter, repr(self.delimiter))
            problem = f"expected {self.n_fields} fields separated by {delimiter}, found {len(row)}"
            raise self._fault(number, row, problem)
        for role, at in self.at.items():
            if role in IDS and not row[at].strip():
                raise self._fault(number, row, f"the {role} is empty")
            if role in NUMBERS and not is_number(row[at]):
                raise self._fault(number, row, f"the {role} {row[at]!r} is not a number")
        if tuple(row[self.at[role]].strip() for role in IDS) == self.header:
            raise self._fault(number, row, "the header occurs a second time")

    def _fault(self, number: int, row: list[str], problem: str) -> FileFormatError:
        return bad(self.path, number, problem, self.delimiter.join(row))

    def locate(self, k: int, first: int = 0) -> str:
        """The file and line of row ``first + k``, with its content."""
        number, row = next(islice(self.rows(), first + k, None))
        return f"{self.path}, line {number} ({shown(self.delimiter.join(row))})"


def sample(path: Place, encoding: str) -> list[str]:
    """The first lines of a file, after checks that it holds text at all."""
    with open_bytes(path) as raw:
        start = raw.read(_SNIFF_BYTES)
    if not start.strip() and len(start) < _SNIFF_BYTES:
        raise NoRowsError(f"{path} is empty")
    for magic, what in _BINARY.items():
        if start.startswith(magic):
            raise FileFormatError(f"{path} is {what}, not a text file")
    if b"\0" in start and not encoding.startswith(("utf-16", "utf-32")):
        raise FileFormatError(f"{path} looks like a binary file, not text (byte {start.index(0)} is NUL)")
    with open_lines(path, encoding, newline=None) as lines:
        return [line.removeprefix("\ufeff").rstrip("\n") for line in islice(lines, 200)]


def _width(line: str, delimiter: str) -> int:
    """Number of fields of a line."""
    try:
        return len(next(cut([line], delimiter), []))
    except csv.Error:  # a field is too long
        return 1


def _leaves_commas(lines: list[str], delimiter: str) -> bool:
    """Whether fields hold commas, other than decimal commas of values and times as in 1;7;2,5."""
    fields = [(k, field) for line in lines for k, field in enumerate(line.split(delimiter)) if "," in field]
    return any(k < 2 or not is_number(field.replace(",", ".")) for k, field in fields)


def _sniff_delimiter(lines: list[str], path: Place) -> str:
    """The delimiter that cuts most lines into as many fields as the first one, two or more."""
    if "::" in lines[0]:
        return "::"
    ranks = {}
    for delimiter in _DELIMITERS:
        first, *others = (_width(line, delimiter) for line in lines)
        n_alike = 1 + others.count(first) if first > 1 else 0
        ranks[delimiter] = n_alike, delimiter == "," or not _leaves_commas(lines, delimiter)
    best = max(ranks, key=ranks.__getitem__)
    if ranks[best][0] == 0:
        tried = "tab, comma, semicolon, '|', space or '::'"
        raise bad(path, 1, f"no delimiter found ({tried}); give delimiter=...", lines[0])
    return best


def detect(
    path: Place,
    wanted: dict[str, Any],
    *,
    delimiter: str | None = None,
    header: bool | None = None,
    encoding: str = "utf-8",
) -> Layout:
    """Find delimiter, header and columns from the first lines of a file."""
    encoding = known_encoding(encoding)
    start = sample(path, encoding)
    lines = [line for line in start if line][:20]
    if not lines:
        raise NoRowsError(f"{path} is empty: it starts with {len(start)} blank lines")
    if delimiter is None:
        delimiter = _sniff_delimiter(lines, path)
    elif not isinstance(delimiter, str) or (delimiter != "::" and len(delimiter) != 1):
        raise ParameterError("delimiter", delimiter, "give one character or '::'")
    elif delimiter in ("\r", "\n", '"'):
        raise ParameterError("delimiter", delimiter, "a line end or a quote cannot separate fields")
    try:
        found = [row for line in lines for row in cut([line], delimiter) if row]
        first = [[field.replace(DOUBLED, "::") for field in row] for row in found]
    except csv.Error as error:
        longest = max(lines, key=len)
        problem = f"{error}; is this delimiter right?"
        raise bad(path, start.index(longest) + 1, problem, longest) from error
    named = sum(role_of(field) is not None for field in first[0]) >= 2
    if header is None:
        asked = any(isinstance(want, str) and want != "auto" for want in wanted.values())
        # A first line without numbers above a line with numbers is a header too.
        numbers_below = any(is_number(field) for row in first[1:2] for field in row)
        header = named or asked or (numbers_below and not any(map(is_number, first[0])))
    elif named and not header:
        said = f"{path}, line 1 ({shown(lines[0])}) is read as a user and an item, and holds names of columns"
        warn(f"{said}; leave header=False (rgals: --no-header) out")
    if header and len(first) < 2:
        raise NoRowsError(f"{path} has a header but no rows: {shown(lines[0])}")
    names = [name.strip() for name in first[0]] if header else None
    body, n_fields = first[int(header)], len(first[0])
    # A column of decimal commas counts as numeric: it is refused with its line, not ignored.
    is_value = [is_number(field.replace(",", ".")) for field in body]
    numeric = is_value if len(body) == n_fields else [False] * n_fields
    at = choose(names, wanted, str(path), numeric)
    unused = [name for k, name in enumerate(names or ()) if numeric[k] and k not in at.values()]
    if unused and "value" not in at and wanted["value"] == "auto":
        why = "no column is called like a value, so that every interaction has the weight 1"
        warn(f"{why}; value={unused[0]!r} (rgals: --value-column) takes that column, None (none) takes none")
    return Layout(path, delimiter, encoding, names, n_fields, at, not start[0])
