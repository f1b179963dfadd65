"""Files of interactions read in batches of rows, for `convert`: parquet and text, also whole folders."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rgals.datasets.columns import IDS, Batches, is_frame
from rgals.datasets.frames import number_column, parquet_parts
from rgals.datasets.ids import as_labels
from rgals.datasets.interactions import refuse_missing
from rgals.datasets.layout import Layout, NoRowsError, detect
from rgals.datasets.read import form_of
from rgals.datasets.text import arrow_batches, line_batches, pairs
from rgals.matrix.store import DESCRIPTION
from rgals.runtime.errors import FileFormatError, InputError, InputTypeError
from rgals.runtime.lazy import optional

_PARQUET_ROWS = 1 << 18  # of a batch


class Batch(NamedTuple):
    """Some consecutive rows of a file."""

    user: Any  # arrow array of integers or texts, or a dictionary of them
    item: Any
    value: np.ndarray | None  # None: the file has no such column
    where: Callable[[int], str]  # says where row k of the batch is in its file
    trimmed: bool  # whether ids are those of a text file, which become integers if all of them can
    done: int  # bytes of the file read so far
    named: bool | None = None  # of text: whether a line names the columns; None: they are given by position


def files_of(sources: Any) -> list[Path]:
    """The files given by their paths or by folders, those of a folder sorted by name."""
    many = isinstance(sources, Iterable) and not is_frame(sources) and not isinstance(sources, str | bytes)
    found: list[Path] = []
    for source in sources if many else [sources]:
        if not isinstance(source, str | os.PathLike):
            advice = "give paths of parquet or text files, or of folders of them"
            raise InputTypeError(f"{advice}, not {type(source).__name__}")
        path = Path(source)
        if not path.is_dir():
            found.append(path)
            continue
        # Hidden folders hold copies and unfinished files: .ipynb_checkpoints, _temporary.
        names = (p.relative_to(path) for p in path.rglob("*"))
        inside = sorted(path / p for p in names if not any(part.startswith((".", "_")) for part in p.parts))
        for p in inside:
            if p.is_symlink() and not p.is_file():
                raise InputError(f"{p} is a link that is not followed; give its target as a source")
            if p.name == DESCRIPTION:
                raise InputError(f"{p.parent} is a store already; rgals.matrix.open_matrix opens it")
        inside = [p for p in inside if p.is_file()]
        if not inside:
            raise InputError(f"{path} is a folder without files; give parquet or text files")
        found += inside
    if not found:
        raise InputError("there are no sources; give paths of parquet or text files")
    return found


def read(path: Path, wanted: dict[str, Any], options: dict[str, Any], alone: bool = True) -> Iterator[Batch]:
    """The rows of a file in batches. A file without rows is an error only if it is ``alone``."""
    try:
        form, first = form_of(path, wanted, "auto", options), 0
        if form == "npz":
            raise FileFormatError(f"{path} is npz, which holds no more than memory; give text or parquet")
        if form == "table":
            layout = detect(path, wanted, **options)
            named = None if isinstance(wanted["user"], int) else layout.names is not None
            for part, done in _rows(layout):
                yield _batch(part, partial(layout.locate, first=first), True, done, named)
                first += len(part["user"])
            if not first:
                raise NoRowsError(f"{layout.path} holds no rows")
        elif form == "parquet":
            for part, share in parquet_parts(path, wanted, _PARQUET_ROWS):
                numbers = range(first, first + len(part["user"]))
                where, done = partial(_place, f"{path}, row", numbers), int(share * os.path.getsize(path))
                yield _batch(part, where, False, done)
                first += len(numbers)
        else:
            for part in line_batches(pairs(path, form, wanted, options["encoding"])):
                part |= {role: [text.strip() for text in part[role]] for role in IDS}
                yield _batch(part, partial(_place, f"{path}, line", part["line"]), True, 0)
    except NoRowsError:
        if alone:
            raise


def _place(what: str, numbers: Any, k: int) -> str:
    return f"{what} {numbers[k]}"


def _batch(
    part: dict[str, Any], where: Callable[[int], str], trimmed: bool, done: int, named: bool | None = None
) -> Batch:
    """A batch of columns by role."""
    value = number_column(part["value"], "value", where) if "value" in part else None
    user, item = (_ids(part[role], role, where) for role in IDS)
    return Batch(user, item, value, where, trimmed, done, named)


def _ids(column: Any, role: str, where: Callable[[int], str]) -> Any:
    """Ids as an arrow array of integers or texts; dates and bytes become texts, whole floats integers."""
    pa = optional("pyarrow", "")
    refuse_missing(column, f"the {role} is missing", where)
    kind = getattr(column, "type", None)
    kind = kind.value_type if isinstance(kind, pa.DictionaryType) else kind
    if kind is not None and (pa.types.is_integer(kind) or kind in (pa.string(), pa.large_string())):
        return column
    items = column if kind is None else column.to_pylist()  # None: a list of texts
    try:
        return pa.array(items if kind is None else as_labels(items))
    except (InputTypeError, UnicodeError):
        for k, item in enumerate(items):
            try:
                pa.array(as_labels([item]))
            except (InputTypeError, UnicodeError) as error:
                why = "it is no integer and no text in UTF-8"
                raise InputTypeError(f"{where(k)}: the {role} {item!r} cannot be an id: {why}") from error
        raise


def _rows(layout: Layout) -> Batches:
    """The rows of a table by pyarrow; from the first block that it refuses on, by the csv module."""
    n_read = 0
    with suppress(ValueError):
        for part, done in arrow_batches(layout):
            yield part, done
            n_read += len(part["user"])
        return
    for part, done in layout.csv_batches():
        skipped = min(n_read, len(part["user"]))
        n_read -= skipped
        yield {role: column[skipped:] for role, column in part.items()}, done
