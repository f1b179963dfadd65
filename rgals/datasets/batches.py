"""Files of interactions in batches of rows: parquet, text, folders of them; for more than memory holds."""

import csv
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rgals.datasets.columns import Batches
from rgals.datasets.frames import number_column, parquet_parts
from rgals.datasets.given import is_frame
from rgals.datasets.ids import as_labels
from rgals.datasets.interactions import refuse_missing
from rgals.datasets.layout import DOUBLED, Layout, NoRowsError, detect
from rgals.datasets.read import form_of
from rgals.datasets.text import arrow_batches, line_batches, pairs, refuse_header
from rgals.matrix.store import DESCRIPTION
from rgals.runtime.errors import FileFormatError, InputError, InputTypeError
from rgals.runtime.lazy import optional

_ROWS = 1 << 18  # of a batch of parquet


class Batch(NamedTuple):
    """Some rows: arrow arrays of users and items, values (None: there is no such column)."""

    user: Any
    item: Any
    value: np.ndarray | None
    where: Callable[[int], str]  # says where row k of these is in its file
    trimmed: bool  # ids are those of a text file
    done: int  # bytes of the file that are read


def files_of(sources: Any) -> list[Path]:
    """The files of paths of files and folders, in the order of their names within a folder."""
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
        # Hidden folders hold copies and what is not complete: .ipynb_checkpoints, _temporary.
        names = (p.relative_to(path) for p in path.rglob("*"))
        inside = sorted(path / p for p in names if not any(part.startswith((".", "_")) for part in p.parts))
        for p in inside:
            if p.is_symlink() and not p.is_file():
                raise InputError(f"{p} is a link that is not followed; give what it leads to as a source")
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
    """The rows of a file in batches; where it holds none, an error if it is ``alone``."""
    try:
        yield from _read(path, wanted, options)
    except NoRowsError:
        if alone:
            raise


def _read(path: Path, wanted: dict[str, Any], options: dict[str, Any]) -> Iterator[Batch]:
    first, form = 0, form_of(path, wanted, "auto", options)
    if form == "parquet":
        for part, share in parquet_parts(path, wanted, _ROWS):
            where = partial(_where, f"{path}, row", range(first, first + len(part["user"])))
            value = number_column(part["value"], "value", where) if "value" in part else None
            user, item = (_ids(part[role], role, where) for role in ("user", "item"))
            yield Batch(user, item, value, where, False, int(share * os.path.getsize(path)))
            first += len(user)
        return
    if form in ("jsonl", "lists"):
        for part in line_batches(pairs(path, form, wanted, options["encoding"])):
            where = partial(_where, f"{path}, line", part["line"])
            user, item = (_ids([x.strip() for x in part[role]], role, where) for role in ("user", "item"))
            yield Batch(user, item, part.get("value"), where, True, 0)
        return
    pa, pc = (optional(name, "") for name in ("pyarrow", "pyarrow.compute"))
    if form == "npz":
        raise FileFormatError(f"{path} is npz, which holds no more than memory; give text or parquet")
    layout = detect(path, wanted, **options)
    try:
        for part, done in _rows(layout):
            ids, again = [], np.ones(len(part["user"]), bool)
            for role in ("user", "item"):
                coded = part[role]
                if not hasattr(coded, "dictionary"):
                    texts = pa.array([text.replace(DOUBLED, "::") for text in coded], pa.string())
                    coded = texts.dictionary_encode()
                texts = pc.utf8_trim_whitespace(coded.dictionary)
                if pc.any(pc.equal(pc.binary_length(texts), 0)).as_py():
                    raise ValueError("an id is empty")
                if layout.names is not None:
                    is_name = pc.equal(texts, layout.names[layout.at[role]])
                    again &= np.asarray(is_name)[np.asarray(coded.indices)]
                ids.append(pa.DictionaryArray.from_arrays(coded.indices, texts))
            if layout.names is not None:
                refuse_header(layout, again, first)
            user, item = ids
            yield Batch(user, item, part.get("value"), partial(layout.locate, first=first), True, done)
            first += len(again)
    except (ValueError, csv.Error) as error:
        if not isinstance(error, InputError):
            layout.check()  # names the line, if one breaks a rule
        raise
    if not first:
        raise NoRowsError(f"{path} holds no rows")


def _ids(column: Any, role: str, where: Callable[[int], str]) -> Any:
    """Ids as an arrow array of integers or texts, which dates, bytes and floats that are whole become."""
    pa = optional("pyarrow", "")
    refuse_missing(column, f"the {role} is missing", where)
    kind = getattr(column, "type", None)
    kind = kind.value_type if isinstance(kind, pa.DictionaryType) else kind
    if kind is not None and (pa.types.is_integer(kind) or kind in (pa.string(), pa.large_string())):
        return column
    items = column if kind is None else column.to_pylist()
    try:
        return pa.array(as_labels(items))
    except (InputTypeError, UnicodeError):
        for k, item in enumerate(items):
            try:
                pa.array(as_labels([item]))
            except (InputTypeError, UnicodeError) as error:
                why = "it is no integer and no text in UTF-8"
                raise InputTypeError(f"{where(k)}: the {role} {item!r} cannot be an id: {why}") from error
        raise


def _rows(layout: Layout) -> Batches:
    """The rows of a table by pyarrow; from where it finds what it does not accept by the csv module."""
    done = 0
    with suppress(ValueError):
        for part, at in arrow_batches(layout):
            yield part, at
            done += len(part["user"])
        return
    for part, at in layout.csv_batches():
        known = min(done, len(part["user"]))
        done -= known
        if known < len(part["user"]):
            yield {role: column[known:] for role, column in part.items()}, at


def _where(place: str, numbers: Any, k: int) -> str:
    return f"{place} {numbers[k]}"
