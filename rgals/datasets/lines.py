"""Text files that are no tables: a JSON object a line, and a user with a list of items a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rgals.datasets.columns import choose
from rgals.datasets.ids import text_to_labels
from rgals.datasets.interactions import Columns, text_timestamps
from rgals.datasets.layout import known_encoding, open_bytes, sample, shown
from rgals.runtime.errors import FileFormatError

# Bytes. Lists of items can be long; mysqldump writes statements of up to 16 MiB, each on its line.
_MAX_LINE = 1 << 26


def numbered(path: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered lines of a file that may be packed."""
    with open_bytes(path) as file:
        for number, line in enumerate(iter(partial(file.readline, _MAX_LINE), b""), 1):
            if len(line) == _MAX_LINE:
                raise FileFormatError(f"{path}, line {number}: the line is longer than {_MAX_LINE} bytes")
            yield number, line


def _lines(path: Path, encoding: str) -> Iterator[tuple[int, str]]:
    """Numbered lines that are not blank."""
    for number, line in numbered(path):
        try:
            text = line.decode(encoding).strip("\ufeff\r\n\t ")
        except UnicodeDecodeError as error:
            raise FileFormatError(f"{path}, line {number}: {error}; give the right encoding") from error
        if text:
            yield number, text


def _columns(users: list, items: list, rest: dict[str, list], numbers: list[int], path: Path) -> Columns:
    if not users:
        raise FileFormatError(f"{path} holds no interactions")

    def where(k: int) -> str:
        return f"{path}, line {numbers[k]}"

    user, item = (text_to_labels(np.arange(len(texts)), texts) for texts in (users, items))
    time = text_timestamps(rest["timestamp"], where) if "timestamp" in rest else None
    numbers_of = {role: np.array(rest[role], np.float64) for role in ("value", "split") if role in rest}
    return Columns(*user, *item, numbers_of.get("value"), time, numbers_of.get("split"), where)


def is_jsonl(start: bytes) -> bool:
    """Whether a file that begins so holds JSON objects."""
    return start.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{"


def jsonl_columns(path: Path, wanted: dict[str, Any], encoding: str = "utf-8") -> Columns:
    """Columns of a file with a JSON object a line; the keys of the first are the names of the columns."""
    keys: dict[str, str] = {}
    found: dict[str, list] = {}
    numbers: list[int] = []
    for number, line in _lines(path, encoding):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise FileFormatError(f"{path}, line {number}: this is no JSON object: {shown(line)}")
        if not keys:
            names = list(record)
            at = choose(names, len(names), wanted, [True] * len(names), str(path))
            keys = {role: names[position] for role, position in at.items()}
            found = {role: [] for role in keys}
        for role, key in keys.items():
            found[role].append(_field(record, role, key, f"{path}, line {number}", line))
        numbers.append(number)
    users, items = (found.pop(role, []) for role in ("user", "item"))
    return _columns(users, items, found, numbers, path)


def _field(record: dict, role: str, key: str, where: str, line: str) -> Any:
    """The value of a key, as its role needs it."""
    field = record.get(key)
    if field is None:
        raise FileFormatError(f"{where}: the {role} ({key!r}) is missing: {shown(line)}")
    is_number = isinstance(field, int | float) and not isinstance(field, bool)
    if role in ("user", "item"):
        if isinstance(field, bool) or not isinstance(field, int | str) or not str(field).strip():
            raise FileFormatError(f"{where}: the {role} must be a text or an integer: {shown(line)}")
        return str(field)
    if role == "timestamp":
        if not is_number and not isinstance(field, str):
            raise FileFormatError(f"{where}: the timestamp must be a number or a text: {shown(line)}")
        return str(field)
    if not is_number:
        raise FileFormatError(f"{where}: the {role} {field!r} is not a number: {shown(line)}")
    return field


def is_lists(path: Path, encoding: str) -> bool:
    """Whether every line is a user and its items: different integers first, lines of different lengths."""
    rows = [line.split() for line in sample(path, known_encoding(encoding)) if line.strip()]
    whole = all(field.isascii() and field.isdigit() for row in rows for field in row)
    return whole and len({row[0] for row in rows}) == len(rows) and len(set(map(len, rows))) > 1


def list_columns(path: Path, encoding: str = "utf-8") -> Columns:
    """Columns of a file with a user and its items a line, as LightGCN's, divided by spaces or tabs."""
    users: list[str] = []
    items: list[str] = []
    numbers: list[int] = []
    for number, line in _lines(path, encoding):
        user, *mine = line.split()
        users += [user] * len(mine)
        items += mine
        numbers += [number] * len(mine)
    return _columns(users, items, {}, numbers, path)
