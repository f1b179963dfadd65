"""Parsers of the forms in which public data sets are published.

Each returns `Columns`; what cannot be understood is a `FileFormatError` that names the line.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import tempfile
import zipfile
import zlib
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rgals.datasets.ids import sort_codes
from rgals.datasets.interactions import TEST, TRAIN, Columns, text_timestamps
from rgals.datasets.layout import shown
from rgals.datasets.lines import numbered
from rgals.datasets.registry import Source
from rgals.datasets.text import read_text
from rgals.runtime.bars import Bar
from rgals.runtime.errors import FileFormatError

_EVERY = dict.fromkeys(("user", "item", "value", "timestamp"), "auto") | {"split": None}


def _lines(path: Path, progress: bool) -> Iterator[tuple[int, bytes]]:
    """Numbered lines of a file, with a bar."""
    with Bar(unit=" lines", unit_scale=True, desc=path.name, disable=not progress, leave=False) as bar:
        for number, line in numbered(path):
            yield number, line
            if number % 10_000 == 0:
                bar.update(10_000)


def _bad(path: Path, number: int, problem: str, line: bytes) -> FileFormatError:
    text = line.decode("utf-8", "backslashreplace").strip()
    return FileFormatError(f"{path}, line {number}: {problem}: {shown(text)}")


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


# ------------------------------------------------------------------------ one pair after the other

# Line number, user, item, and the value and the time where the form has them.
_Pair = tuple[int, str | int, str | int, float | None, str | None]


def _columns(read: Callable[[Path, bool], Iterator[_Pair]], paths: list[Path], progress: bool) -> Columns:
    """Columns of the pairs of one file, or of a training and a test file.

    Labels are coded as they come, so that 8 million names cost little.
    """
    users: dict[str | int, int] = {}
    items: dict[str | int, int] = {}
    file, line, user, item = array("b"), array("q"), array("q"), array("q")
    value = array("d")
    times: list[str] = []
    for part, path in zip((TRAIN, TEST), paths, strict=False):
        for number, who, what, much, time in read(path, progress):
            file.append(part)
            line.append(number)
            user.append(users.setdefault(who, len(users)))
            item.append(items.setdefault(what, len(items)))
            if much is not None:
                value.append(much)
            if time is not None:
                times.append(time)
        if part not in file[-1:]:
            raise FileFormatError(f"{path} holds no records")

    def where(k: int) -> str:
        return f"{paths[file[k]]}, line {line[k]}"

    return Columns(
        *sort_codes(np.array(user), list(users)),
        *sort_codes(np.array(item), list(items)),
        np.array(value) if value else None,
        text_timestamps(times, where) if times else None,
        np.array(file) if len(paths) > 1 else None,
        where,
    )


def _records(
    parse: Callable[[str], Any], form: str, keys: dict[str, str], path: Path, progress: bool
) -> Iterator[_Pair]:
    """One dictionary a line; ``keys`` by role."""
    for number, line in _lines(path, progress):
        if not line.strip():
            continue
        try:
            record = parse(line.decode("utf-8").strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            raise _bad(path, number, f"this is not {form} ({type(error).__name__})", line) from error
        if not isinstance(record, dict):
            raise _bad(path, number, f"this is not {form}", line)
        for key in keys.values():
            if key not in record:
                raise _bad(path, number, f"the record has no {key!r}", line)
        found = {role: record[key] for role, key in keys.items()}
        ids = found["user"], found["item"]
        if not all(isinstance(label, str | int) for label in ids) or "" in ids:
            raise _bad(path, number, f"{keys['user']!r} and {keys['item']!r} must be texts or integers", line)
        value = found.get("value", 1)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _bad(path, number, f"{keys['value']!r} must be a number", line)
        yield number, str(ids[0]), str(ids[1]), found.get("value"), str(found["timestamp"])


# Links of MediaWiki: a table of a MySQL dump.
_NUMBER = rb"-?\d+"
_TEXT = rb"'(?:[^'\\]|\\.|'')*'"
_COLUMN = re.compile(rb"\s*`(\w+)`\s+(\w+)")
_ESCAPE = re.compile(rb"\\(.)|('')", re.DOTALL)
_CONTROL = {b"0": b"\0", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"Z": b"\x1a"}


def _unescape(text: bytes) -> str:
    raw = _ESCAPE.sub(lambda m: b"'" if m[2] else _CONTROL.get(m[1], m[1]), text[1:-1])
    return raw.decode("utf-8", "backslashreplace")


def _link(kinds: dict[str, str], path: Path) -> tuple[re.Pattern[bytes], list[int]]:
    """The pattern of a row of the table, and the groups of it that hold the page and the target of a link."""
    with_title = {"pl_title", "pl_namespace"} <= kinds.keys()
    wanted = ("pl_from", "pl_namespace", "pl_title") if with_title else ("pl_from", "pl_target_id")
    if not kinds.keys() >= set(wanted):
        raise FileFormatError(
            f"{path}: the table pagelinks needs pl_from and pl_target_id (or pl_namespace and pl_title); "
            f"it has {', '.join(kinds)}"
        )
    fields = [b"(%b|NULL)" % (_NUMBER if "int" in kind else _TEXT) for kind in kinds.values()]
    row = re.compile(rb"\s*\(" + b",".join(fields) + rb"\)\s*")
    return row, [1 + list(kinds).index(name) for name in wanted]


def _pagelinks(path: Path, progress: bool) -> Iterator[_Pair]:
    """Links from a ``pagelinks`` dump of MediaWiki: users are the linking pages, from and to all namespaces.

    Items are ``pl_target_id`` in dumps since 2024, before that the namespace and the title (``"0:Moon"``).
    """
    row: re.Pattern[bytes] | None = None
    kinds: dict[str, str] | None = None  # by column, while the declaration of the table is read
    at = 0
    for number, line in _lines(path, progress):
        start = line.lstrip()
        if start.upper().startswith(b"CREATE TABLE") and b"pagelinks" in start:
            kinds = {}
        elif kinds is not None:
            if column := _COLUMN.match(line):
                kinds[column[1].decode()] = column[2].decode().lower()
            elif start.startswith(b")"):
                row, groups = _link(kinds, path)
                kinds = None
        elif start.upper().startswith(b"INSERT INTO") and b"pagelinks" in start[:40]:
            if row is None:
                raise _bad(path, number, "INSERT before CREATE TABLE; the columns are unknown", line)
            values = line.strip().partition(b"VALUES")[2]
            if not values.endswith(b";"):
                problem = "the statement does not end with a semicolon; the dump is cut off"
                raise _bad(path, number, problem, line)
            values = values[:-1].strip() + b","
            at = 0
            while at < len(values):
                match = row.match(values, at)
                if match is None:
                    raise _bad(path, number, f"no row of {row.groups} values", values[at : at + 200])
                source, *target = match.group(*groups)
                if b"NULL" in (source, *target):
                    raise _bad(path, number, "a link without an end", match[0])
                page = int(target[0]) if len(target) == 1 else f"{int(target[0])}:{_unescape(target[1])}"
                yield number, int(source), page, None, None
                at = match.end() + 1
                if values[at - 1 : at] != b",":
                    raise _bad(path, number, "no comma between rows", values[at - 1 : at + 199])
    if at == 0:
        raise FileFormatError(f"{path} holds no rows of a table pagelinks")


def _adjacency(path: Path, progress: bool) -> Iterator[_Pair]:
    """One user a line, and the items of that user."""
    for number, line in _lines(path, progress):
        fields = line.split()
        if not all(field.removeprefix(b"-").isdigit() for field in fields):
            raise _bad(path, number, "expected a user and items, all of them integers", line)
        if any(field.startswith(b"-") or len(field) > 18 for field in fields):
            raise _bad(path, number, "ids must be integers from 0", line)
        yield from ((number, int(fields[0]), int(item), None, None) for item in fields[1:])


_AMAZON = {"user": "reviewerID", "item": "asin", "value": "overall", "timestamp": "unixReviewTime"}
_STEAM = {"user": "username", "item": "product_id", "timestamp": "date"}
_READERS: dict[str, Callable[[Path, bool], Iterator[_Pair]]] = {
    "json": partial(_records, json.loads, "a JSON object", _AMAZON),
    "literal": partial(_records, ast.literal_eval, "a Python dictionary", _STEAM),  # evaluates nothing
    "pagelinks": _pagelinks,
    "adjacency": _adjacency,
}


def parse(source: Source, paths: list[Path], progress: bool = False) -> Columns:
    """The columns of the files of a data set, in the form in which it is published."""
    if source.form == "zip":
        return zip_table(paths[0], source.member)
    return _columns(_READERS[source.form], paths[: len(source.files)], progress)
