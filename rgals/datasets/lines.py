"""Text files that are no tables: a record (a JSON object) a line, and a user with a list of items a line."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from rgals.datasets.columns import choose
from rgals.datasets.ids import Coded, text_to_labels
from rgals.datasets.interactions import TEST, TRAIN, Columns, collect, is_number
from rgals.datasets.layout import known_encoding, open_bytes, sample, shown
from rgals.runtime.bars import Bar
from rgals.runtime.errors import FileFormatError

# Bytes. Lists of items can be long; mysqldump writes statements of up to 16 MiB, each on its line.
_MAX_LINE = 1 << 26
_PAIRS = 1 << 12  # of a batch
_FIELDS: dict[str, tuple[Any, str]] = dict.fromkeys(("user", "item"), (int | str, "a text or an integer"))
_FIELDS |= {"timestamp": (int | float | str, "a number or a text")}
_NUMBERS = {"value", "split"}
_FIELDS |= dict.fromkeys(_NUMBERS, (int | float, "a number"))
Pair = tuple[int, dict[str, Any]]  # the number of a line, and what it says of an interaction by role
Labels = Callable[[np.ndarray, Any], Coded]  # sorts distinct ids and their codes


def numbered(path: Path, progress: bool = False) -> Iterator[tuple[int, bytes]]:
    """Numbered lines of a file that may be packed, with a bar if there is to be progress."""
    bar = Bar(unit=" lines", unit_scale=True, desc=path.name, disable=not progress, leave=False)
    with open_bytes(path) as file, bar:
        for number, line in enumerate(iter(partial(file.readline, _MAX_LINE), b""), 1):
            if len(line) == _MAX_LINE:
                raise FileFormatError(f"{path}, line {number}: the line is longer than {_MAX_LINE} bytes")
            yield number, line
            if number % 10_000 == 0:
                bar.update(10_000)


def _texts(path: Path, encoding: str, progress: bool = False) -> Iterator[tuple[int, str]]:
    """Numbered lines that are not blank."""
    for number, line in numbered(path, progress):
        try:
            text = line.decode(encoding).strip("\ufeff\r\n\t ")
        except UnicodeDecodeError as error:
            raise FileFormatError(f"{path}, line {number}: {error}; give the right encoding") from error
        if text:
            yield number, text


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


def bad(path: Path, number: int, problem: str, line: str | bytes) -> FileFormatError:
    """The error for a line that cannot be understood."""
    text = line if isinstance(line, str) else line.decode("utf-8", "backslashreplace").strip()
    return FileFormatError(f"{path}, line {number}: {problem}: {shown(text)}")


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
    for number, line in _texts(path, encoding, progress):
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
    for number, line in _texts(path, encoding):
        user, *items = line.split()
        yield from ((number, {"user": user, "item": item}) for item in items)


def is_lists(path: Path, encoding: str) -> bool:
    """Whether every line is a user and its items: different integers first, lines of different lengths."""
    rows = [line.split() for line in sample(path, known_encoding(encoding)) if line.strip()]
    whole = all(field.isascii() and field.isdigit() for row in rows for field in row)
    return whole and len({row[0] for row in rows}) == len(rows) and len(set(map(len, rows))) > 1
