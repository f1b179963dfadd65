"""Parsers of the forms in which public data sets are published.

Each returns `Columns`; what cannot be understood is a `FileFormatError` that names the line.
"""

from __future__ import annotations

import ast
import gzip
import json
import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from rgals.datasets.ids import encode, sort_codes
from rgals.datasets.interactions import TEST, TRAIN, Columns, text_timestamps
from rgals.datasets.layout import open_bytes
from rgals.datasets.text import read_text
from rgals.runtime.errors import FileFormatError

# mysqldump writes statements of up to 16 MiB, each on its line; reviews are far shorter.
_MAX_LINE = 1 << 26
_EVERY = dict.fromkeys(("user", "item", "value", "timestamp"), "auto") | {"split": None}


def _lines(path: Path, progress: bool = False) -> Iterator[tuple[int, bytes]]:
    """Numbered lines of a file that may be gzipped."""
    try:
        with (
            open_bytes(path) as file,
            tqdm(unit=" lines", unit_scale=True, desc=path.name, disable=not progress, leave=False) as bar,
        ):
            for number, line in enumerate(iter(partial(file.readline, _MAX_LINE), b""), 1):
                if len(line) == _MAX_LINE:
                    raise FileFormatError(f"{path}, line {number}: the line is longer than {_MAX_LINE} bytes")
                yield number, line
                if number % 10_000 == 0:
                    bar.update(10_000)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FileFormatError(f"{path}: the compressed file is cut off or damaged ({error})") from error


def _bad(path: Path, number: int, problem: str, line: bytes) -> FileFormatError:
    shown = line.decode("utf-8", "backslashreplace").strip()
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return FileFormatError(f"{path}, line {number}: {problem}: {shown!r}")


# ------------------------------------------------------------------ a table in a zip archive


def zip_table(path: Path, member: str) -> Columns:
    """The table ``member`` of a zip archive, such as ``ml-1m/ratings.dat``."""
    try:
        with zipfile.ZipFile(path) as archive, tempfile.TemporaryDirectory(dir=path.parent) as folder:
            if member not in archive.namelist():
                inside = ", ".join(archive.namelist()[:8])
                raise FileFormatError(f"{path} does not hold {member}; it holds {inside}")
            table = Path(folder) / Path(member).name
            with archive.open(member) as source, open(table, "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
            try:
                columns = read_text(table, _EVERY, "auto")
            except FileFormatError as error:
                raise FileFormatError(str(error).replace(str(table), f"{path}/{member}")) from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise FileFormatError(f"{path} is no readable zip archive: {error}") from error
    columns.where = partial("{0}/{1}, row {2}".format, path, member)  # the table itself is gone again
    return columns


# ----------------------------------------------------------------- one record on each line


@dataclass
class _Records:
    """Collected fields of records; labels are coded as they come, so that 8 million names cost little."""

    path: Path
    users: dict[str, int] = field(default_factory=dict)
    items: dict[str, int] = field(default_factory=dict)
    user: list[int] = field(default_factory=list)
    item: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    time: list[Any] = field(default_factory=list)
    line: list[int] = field(default_factory=list)

    def columns(self) -> Columns:
        if not self.user:
            raise FileFormatError(f"{self.path} holds no records")
        lines = np.array(self.line)

        def where(k: int) -> str:
            return f"{self.path}, line {lines[k]}"

        user, users = sort_codes(np.array(self.user), list(self.users))
        item, items = sort_codes(np.array(self.item), list(self.items))
        value = np.array(self.value) if self.value else None
        time = text_timestamps([str(t) for t in self.time], where) if self.time else None
        return Columns(user, users, item, items, value, time, None, where)


def record_lines(
    path: Path,
    *,
    literal: bool,
    user: str,
    item: str,
    value: str | None = None,
    timestamp: str | None = None,
    progress: bool = False,
) -> Columns:
    """Records, one a line: JSON (Amazon) or, with ``literal``, Python dictionaries, not evaluated (Steam)."""
    parse: Callable[[str], Any] = ast.literal_eval if literal else json.loads
    form = "a Python dictionary" if literal else "a JSON object"
    found = _Records(path)
    for number, line in _lines(path, progress):
        if not line.strip():
            continue
        try:
            record = parse(line.decode("utf-8").strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            raise _bad(path, number, f"this is not {form} ({type(error).__name__})", line) from error
        if not isinstance(record, dict):
            raise _bad(path, number, f"this is not {form}", line)
        missing = [key for key in (user, item, value, timestamp) if key is not None and key not in record]
        if missing:
            raise _bad(path, number, f"the record has no {missing[0]!r}", line)
        who, what = record[user], record[item]
        if not isinstance(who, str | int) or not isinstance(what, str | int) or who == "" or what == "":
            raise _bad(path, number, f"{user!r} and {item!r} must be texts or integers", line)
        found.user.append(found.users.setdefault(str(who), len(found.users)))
        found.item.append(found.items.setdefault(str(what), len(found.items)))
        found.line.append(number)
        if value is not None:
            if isinstance(record[value], bool) or not isinstance(record[value], int | float):
                raise _bad(path, number, f"{value!r} must be a number", line)
            found.value.append(float(record[value]))
        if timestamp is not None:
            found.time.append(record[timestamp])
    return found.columns()


# ------------------------------------------------------- links from a MySQL dump of MediaWiki

_NUMBER = rb"-?\d+"
_TEXT = rb"'(?:[^'\\]|\\.|'')*'"
_COLUMN = re.compile(rb"\s*`(\w+)`\s+(\w+)")
_ESCAPE = re.compile(rb"\\(.)|('')", re.DOTALL)
_CONTROL = {b"0": b"\0", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"Z": b"\x1a"}


def _unescape(text: bytes) -> str:
    raw = _ESCAPE.sub(lambda m: b"'" if m[2] else _CONTROL.get(m[1], m[1]), text[1:-1])
    return raw.decode("utf-8", "backslashreplace")


class _LinkTable:
    """The columns of a ``pagelinks`` table in the order in which the dump declares them."""

    def __init__(self, names: list[str], kinds: list[str], path: Path) -> None:
        self.names = names
        numeric = ["int" in kind for kind in kinds]
        by_title = "pl_title" in names and "pl_namespace" in names
        if "pl_from" not in names or not (by_title or "pl_target_id" in names):
            raise FileFormatError(
                f"{path}: the table pagelinks needs pl_from and pl_target_id (or pl_namespace and pl_title); "
                f"it has {', '.join(names)}"
            )
        self.by_title = by_title
        fields = [rb"(" + (_NUMBER if n else _TEXT) + rb"|NULL)" for n in numeric]
        self.row = re.compile(rb"\s*\(" + rb",".join(fields) + rb"\)\s*")
        self.all_numbers = all(numeric)
        numbers = rb"\(" + rb",".join([_NUMBER] * len(names)) + rb"\)"
        self.statement = re.compile(rb"(?:" + numbers + rb",)*" + numbers)
        wanted = ("pl_from", "pl_namespace", "pl_title") if by_title else ("pl_from", "pl_target_id")
        self.at = [names.index(name) for name in wanted]

    def rows(self, values: bytes, path: Path, number: int) -> tuple[np.ndarray, list[Any] | np.ndarray]:
        """Sources and targets of one INSERT statement, given what stands between VALUES and the semicolon."""
        if self.all_numbers:
            fast = self._numbers(values)
            if fast is not None:
                return fast
        sources: list[int] = []
        targets: list[Any] = []
        at, end = 0, len(values)
        while True:
            match = self.row.match(values, at)
            if match is None:
                raise _bad(path, number, f"no row of {len(self.names)} values", values[at : at + 200])
            groups = match.groups()
            fields = [groups[k] for k in self.at]
            if b"NULL" in fields:
                raise _bad(path, number, "a link without an end", match[0])
            sources.append(int(fields[0]))
            if self.by_title:
                targets.append(f"{int(fields[1])}:{_unescape(fields[2])}")
            else:
                targets.append(int(fields[1]))
            at = match.end()
            if at == end:
                return np.array(sources, np.int64), targets
            if values[at : at + 1] != b",":
                raise _bad(path, number, "no comma between rows", values[at : at + 200])
            at += 1

    def _numbers(self, values: bytes) -> tuple[np.ndarray, np.ndarray] | None:
        """The same for a table of integers only, ten times faster; None where anything is unusual."""
        if self.statement.fullmatch(values) is None:
            return None
        plain = values[1:-1].replace(b"),(", b",")
        try:
            table = np.array(plain.split(b",")).astype(np.int64).reshape(-1, len(self.names))
        except (ValueError, OverflowError):
            return None
        return table[:, self.at[0]], table[:, self.at[1]]


def pagelinks(path: Path, progress: bool = False) -> Columns:
    """Links from a ``pagelinks`` dump of MediaWiki: users are the linking pages, from and to all namespaces.

    Items are ``pl_target_id`` in dumps since 2024, before that the namespace and the title (``"0:Moon"``).
    """
    table: _LinkTable | None = None
    names: list[str] = []
    kinds: list[str] = []
    inside = False
    sources: list[np.ndarray] = []
    targets: list[np.ndarray] = []
    known: dict[str, int] = {}
    for number, line in _lines(path, progress):
        start = line.lstrip()
        if start.upper().startswith(b"CREATE TABLE") and b"pagelinks" in start:
            inside, names, kinds = True, [], []
        elif inside:
            column = _COLUMN.match(line)
            if column is not None:
                names.append(column[1].decode())
                kinds.append(column[2].decode().lower())
            elif start.startswith(b")"):
                table, inside = _LinkTable(names, kinds, path), False
        elif start.upper().startswith(b"INSERT INTO") and b"pagelinks" in start[:40]:
            if table is None:
                raise _bad(path, number, "INSERT before CREATE TABLE; the columns are unknown", line)
            head, _, values = line.strip().partition(b"VALUES")
            if not values.endswith(b";"):
                raise _bad(
                    path, number, "the statement does not end with a semicolon; the dump is cut off", line
                )
            source, target = table.rows(values[:-1].strip(), path, number)
            if isinstance(target, list) and table.by_title:
                target = np.array([known.setdefault(title, len(known)) for title in target])
            sources.append(source)
            targets.append(np.asarray(target, dtype=np.int64))
    if table is None or not sources:
        raise FileFormatError(f"{path} holds no rows of a table pagelinks")
    user, users = encode(np.concatenate(sources))
    item = np.concatenate(targets)
    item, items = sort_codes(item, list(known)) if table.by_title else encode(item)
    return Columns(user, users, item, items, None, None, None, partial("{0}, link {1}".format, path))


# --------------------------------------------------------------------- one user on each line


def _adjacency(path: Path) -> tuple[np.ndarray, np.ndarray]:
    users, counts, items = [], [], []
    for number, line in _lines(path):
        fields = line.split()
        if not fields:
            continue
        try:
            row = np.array(fields, dtype="S20").astype(np.int64)
        except (ValueError, OverflowError):
            raise _bad(path, number, "expected a user and items, all of them integers", line) from None
        if (row < 0).any() or max(map(len, fields)) > 18:
            raise _bad(path, number, "ids must be integers from 0", line)
        users.append(row[0])
        counts.append(len(row) - 1)
        items.append(row[1:])
    if not items:
        raise FileFormatError(f"{path} holds no rows")
    return np.repeat(users, counts), np.concatenate(items)


def adjacency(train: Path, test: Path) -> Columns:
    """Training and test files in which each line is a user and the items of that user."""
    parts = [_adjacency(path) for path in (train, test)]
    user, users = encode(np.concatenate([part[0] for part in parts]))
    item, items = encode(np.concatenate([part[1] for part in parts]))
    sizes = [len(part[0]) for part in parts]
    split = np.repeat(np.array([TRAIN, TEST], np.int8), sizes)
    return Columns(user, users, item, items, None, None, split, partial("{0}, pair {1}".format, train))
