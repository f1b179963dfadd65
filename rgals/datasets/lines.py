"""Text files that are no tables: a record (a JSON object) a line, and a user with a list of items a line."""

import json
import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from rgals.datasets.columns import choose
from rgals.datasets.ids import Coded, text_to_labels
from rgals.datasets.interactions import TEST, TRAIN, Columns, collect, is_number
from rgals.datasets.layout import LONGEST, bad, known_encoding, open_lines, sample, undecodable
from rgals.runtime.bars import Bar
from rgals.runtime.errors import FileFormatError

_PAIRS = 1 << 12  # of a batch
_WHOLE = re.compile(r"[0-9]+").fullmatch
_FIELDS: dict[str, tuple[Any, str]] = dict.fromkeys(("user", "item"), (int | str, "a text or an integer"))
_FIELDS |= {"timestamp": (int | float | str, "a number or a text")}
_NUMBERS = {"value", "split"}
_FIELDS |= dict.fromkeys(_NUMBERS, (int | float, "a number"))
Pair = tuple[int, dict[str, Any]]  # the number of a line, and what it says of an interaction by role
Labels = Callable[[np.ndarray, Any], Coded]  # sorts distinct ids and their codes


def numbered(
    path: Path, encoding: str = "utf-8", progress: bool = False, errors: str = "strict"
) -> Iterator[tuple[int, str]]:
    """Numbered lines of a file that may be packed, without blank ones; ``progress`` shows a bar."""
    bar = Bar(unit=" lines", unit_scale=True, desc=path.name, disable=not progress, leave=False)
    encoding = known_encoding(encoding)
    try:
        with open_lines(path, encoding, LONGEST, errors=errors, newline="\n") as lines, bar:
            for number, line in enumerate(lines, 1):
                if text := line.strip("\ufeff\r\n\t "):
                    yield number, text
                if number % 10_000 == 0:
                    bar.update(10_000)
    except UnicodeError as error:
        raise undecodable(path, encoding, error) from error


def line_batches(lines: Iterator[Pair]) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
    """Columns by role of some pairs after the other, and the numbers of their lines."""
    while some := list(islice(lines, _PAIRS)):
        numbers, found = zip(*some, strict=True)
        columns: dict[str, Any] = {role: [pair[role] for pair in found] for role in found[0]}
        columns |= {role: np.array(columns[role], float) for role in columns.keys() & _NUMBERS}
        yield columns, np.array(numbers)


def gathered(
    read: Callable[[Path], Iterator[Pair]], paths: list[Path], labels: Labels = text_to_labels
) -> Columns:
    """Columns of the pairs of one file, or of a training and a test file; ``labels`` sorts their ids."""

    def batches() -> Iterator[dict[str, Any]]:
        for part, path in zip((TRAIN, TEST), paths, strict=False):
            columns: dict[str, Any] = {}
            for columns, numbers in line_batches(read(path)):
                yield columns | {"line": numbers, "file": np.full(len(numbers), part)}
            if not columns:
                raise FileFormatError(f"{path} holds no interactions")

    raw, known = collect(batches())
    file, line = raw["file"], raw["line"]

    def where(k: int) -> str:
        return f"{paths[file[k]]}, line {line[k]}"

    user, item = (labels(raw[role], ids) for role, ids in zip(("user", "item"), known, strict=True))
    split = file if len(paths) > 1 else raw.get("split")
    return Columns(*user, *item, raw.get("value"), raw.get("timestamp"), split, where)


def records(
    path: Path,
    keys_of: Callable[[list[str]], dict[str, str]],
    *,
    parse: Callable[[str], Any] = json.loads,
    form: str = "JSON object",
    encoding: str = "utf-8",
    progress: bool = False,
) -> Iterator[Pair]:
    """The pairs of a file with a record a line; ``keys_of`` finds the key of each role in the first one."""
    keys: dict[str, str] = {}
    for number, line in numbered(path, encoding, progress):
        try:
            record = parse(line)
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            raise bad(path, number, f"this is no {form} ({type(error).__name__})", line) from error
        if not isinstance(record, dict):
            raise bad(path, number, f"this is no {form}", line)
        keys = keys or keys_of(list(record))
        for role, key in keys.items():
            field, (kinds, what) = record.get(key), _FIELDS[role]
            if field is None:
                raise bad(path, number, f"the {role} ({key!r}) is missing", line)
            fits = isinstance(field, kinds) and not isinstance(field, bool) and str(field).strip()
            if not fits or (role in _NUMBERS and not is_number(field)):  # as an integer beyond all floats
                raise bad(path, number, f"the {role} must be {what}", line)
        yield number, {r: record[k] if r in _NUMBERS else str(record[k]) for r, k in keys.items()}


def pairs(path: Path, form: str, wanted: dict[str, Any], encoding: str = "utf-8") -> Iterator[Pair]:
    """The pairs of a file with a JSON object a line, or (LightGCN's "lists") with a user and its items."""

    def keys_of(names: list[str]) -> dict[str, str]:
        at = choose(names, len(names), wanted, [True] * len(names), str(path))
        return {role: names[position] for role, position in at.items()}

    if form == "jsonl":  # the keys of the first are the names of the columns
        yield from records(path, keys_of, encoding=encoding)
        return
    yield from lists(path, encoding)


def lists(path: Path, encoding: str = "utf-8", progress: bool = False, whole: bool = False) -> Iterator[Pair]:
    """The pairs of a file with a user and its items a line; ``whole``: all must be integers from 0."""
    for number, line in numbered(path, encoding, progress):
        user, *items = line.split()
        if whole and not all(map(_WHOLE, line.split())):
            raise bad(path, number, "expected a user and items, all of them integers from 0", line)
        yield from ((number, {"user": user, "item": item}) for item in items)


def is_lists(path: Path, encoding: str) -> bool:
    """Whether every line is a user and its items: different integers first, lines of different lengths."""
    rows = [line.split() for line in sample(path, known_encoding(encoding)) if line.strip()]
    whole = all(_WHOLE(field) for row in rows for field in row)
    return whole and len({row[0] for row in rows}) == len(rows) and len(set(map(len, rows))) > 1
