"""Parsers of the forms in which public data sets are published.

Each returns `Columns`; what cannot be understood is a `FileFormatError` that names the line.
"""

import ast
import re
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from rgals.datasets.ids import sort_codes
from rgals.datasets.interactions import Columns
from rgals.datasets.lines import Pair, bad, gathered, numbered, records
from rgals.datasets.registry import Source
from rgals.datasets.text import read_text
from rgals.runtime.errors import FileFormatError

_EVERY = dict.fromkeys(("user", "item", "value", "timestamp"), "auto") | {"split": None}


# ------------------------------------------------------------------ a table in a zip archive


def zip_table(path: Path, member: str) -> Columns:
    """The table ``member`` of a zip archive, such as ``ml-1m/ratings.dat``."""
    try:
        archive = zipfile.ZipFile(path)
        if member not in archive.namelist():
            inside = ", ".join(archive.namelist()[:8])
            raise FileFormatError(f"{path} does not hold {member}; it holds {inside}")
        return read_text(zipfile.Path(archive, member), _EVERY, "auto")
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise FileFormatError(f"{path} is no readable zip archive: {error}") from error


# ------------------------------------------------------------------------ one pair after the other

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
        needed = "pl_from and pl_target_id (or pl_namespace and pl_title)"
        raise FileFormatError(f"{path}: the table pagelinks needs {needed}; it has {', '.join(kinds)}")
    fields = [b"(%b|NULL)" % (_NUMBER if "int" in kind else _TEXT) for kind in kinds.values()]
    row = re.compile(rb"\s*\(" + b",".join(fields) + rb"\)\s*")
    return row, [1 + list(kinds).index(name) for name in wanted]


def _pagelinks(path: Path, progress: bool) -> Iterator[Pair]:
    """Links from a ``pagelinks`` dump of MediaWiki: users are the linking pages; of all namespaces."""
    # Items are `pl_target_id` in dumps since 2024, before that the namespace and the title (`"0:Moon"`).
    row: re.Pattern[bytes] | None = None
    kinds: dict[str, str] | None = None  # by column, while the declaration of the table is read
    at = 0
    for number, line in numbered(path, progress):
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
                raise bad(path, number, "INSERT before CREATE TABLE; the columns are unknown", line)
            values = line.strip().partition(b"VALUES")[2]
            if not values.endswith(b";"):
                problem = "the statement does not end with a semicolon; the dump is cut off"
                raise bad(path, number, problem, line)
            values = values[:-1].strip() + b","
            at = 0
            while at < len(values):
                match = row.match(values, at)
                if match is None:
                    raise bad(path, number, f"no row of {row.groups} values", values[at : at + 200])
                source, *target = match.group(*groups)
                if b"NULL" in (source, *target):
                    raise bad(path, number, "a link without an end", match[0])
                page = int(target[0]) if len(target) == 1 else f"{int(target[0])}:{_unescape(target[1])}"
                yield number, {"user": int(source), "item": page}
                at = match.end() + 1
                if values[at - 1 : at] != b",":
                    raise bad(path, number, "no comma between rows", values[at - 1 : at + 199])
    if at == 0:
        raise FileFormatError(f"{path} holds no rows of a table pagelinks")


def _adjacency(path: Path, progress: bool) -> Iterator[Pair]:
    """One user a line, and the items of that user."""
    for number, line in numbered(path, progress):
        fields = line.split()
        if not all(field.isdigit() and len(field) <= 18 for field in fields):
            raise bad(path, number, "expected a user and items, all of them integers from 0", line)
        yield from ((number, {"user": int(fields[0]), "item": int(item)}) for item in fields[1:])


_AMAZON = {"user": "reviewerID", "item": "asin", "value": "overall", "timestamp": "unixReviewTime"}
_STEAM = {"user": "username", "item": "product_id", "timestamp": "date"}
_READERS: dict[str, Callable[..., Iterator[Pair]]] = {
    "json": partial(records, keys_of=lambda _: _AMAZON),
    # literal_eval evaluates nothing.
    "literal": partial(records, keys_of=lambda _: _STEAM, parse=ast.literal_eval, form="Python dictionary"),
    "pagelinks": _pagelinks,
    "adjacency": _adjacency,
}


def parse(source: Source, paths: list[Path], progress: bool = False) -> Columns:
    """The columns of the files of a data set, in the form in which it is published."""
    if source.form == "zip":
        return zip_table(paths[0], source.member)
    read = partial(_READERS[source.form], progress=progress)
    return gathered(read, paths[: len(source.files)], sort_codes)
