"""Files of interactions in batches of rows: parquet, text, folders of them; for more than memory holds."""

import os
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rgals.datasets import text
from rgals.datasets.columns import choose
from rgals.datasets.frames import number_column
from rgals.datasets.interactions import check_values, refuse
from rgals.datasets.layout import DOUBLED, Layout, check, detect, locate, open_bytes
from rgals.runtime.errors import FileFormatError, InputError, InputTypeError
from rgals.runtime.lazy import optional

_ROWS = 1 << 18  # of a batch
_PYTHON_ROWS = 1 << 8  # batches of the csv module that make one


class Batch(NamedTuple):
    """Some rows: arrow arrays of users and items, values (None: there is no such column)."""

    user: Any
    item: Any
    value: np.ndarray | None
    trimmed: bool  # ids are those of a text file
    done: int  # bytes of the file that are read


class OtherRulesError(ValueError):
    """pyarrow refused a file that the csv module reads: it has to be read again, by that."""


def files_of(sources: Any) -> list[Path]:
    """The files of paths of files and folders, in the order of their names within a folder."""
    given = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    found: list[Path] = []
    for source in given:
        if not isinstance(source, str | os.PathLike):
            advice = "give paths of parquet or text files, or of folders of them"
            raise InputTypeError(f"{advice}, not {type(source).__name__}")
        path = Path(source)
        inside = sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith((".", "_")))
        if path.is_dir() and not inside:
            raise InputError(f"{path} is a folder without files; give parquet or text files")
        found += inside if path.is_dir() else [path]
    if not found:
        raise InputError("there are no sources; give paths of parquet or text files")
    return found


def read(
    path: Path, wanted: dict[str, Any], negatives: bool, by_csv: bool, options: dict[str, Any]
) -> Iterator[Batch]:
    """The rows of a file in batches; ``negatives``: values below 0 have a meaning."""
    with open(path, "rb") as file:
        start = file.read(4)
    if start == b"PAR1":
        yield from _parquet(path, wanted, negatives)
        return
    layout = detect(path, wanted, **options)
    if not by_csv:
        try:
            yield from _arrow(layout, negatives)
            return
        except ValueError as error:
            if isinstance(error, InputError):
                raise
            check(layout)  # names the line, if one breaks a rule
            raise OtherRulesError from error
    yield from _csv(layout, negatives)


def _parquet(path: Path, wanted: dict[str, Any], negatives: bool) -> Iterator[Batch]:
    needed = f'{path}: reading parquet needs pyarrow: pip install "rgals[parquet]"'
    pa, pq = (optional(name, needed) for name in ("pyarrow", "pyarrow.parquet"))
    size, first = os.path.getsize(path), 0
    try:
        with pq.ParquetFile(path, buffer_size=1 << 20) as file:
            names, n_rows = file.schema_arrow.names, file.metadata.num_rows
            at = choose(names, len(names), wanted, [True] * len(names), str(path))
            if len(set(names)) < len(names):
                raise FileFormatError(f"{path}: two columns have the same name")
            columns = [names[at[role]] for role in ("user", "item", "value") if role in at]
            for batch in file.iter_batches(_ROWS, columns=columns, use_threads=False):
                where = partial(_row, path, first)
                first += batch.num_rows
                found = {role: batch.column(names[at[role]]) for role in at}
                for role in ("user", "item"):
                    if found[role].null_count:
                        refuse(np.asarray(found[role].is_null()), where, f"the {role} is missing")
                value = number_column(found["value"], "value", where) if "value" in found else None
                check_values(value, where, negatives)
                yield Batch(found["user"], found["item"], value, False, size * first // max(n_rows, 1))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise FileFormatError(f"{path} is no readable parquet file: {error}") from error


def _row(path: Path, first: int, k: int) -> str:
    return f"{path}, row {first + k}"


def _arrow(layout: Layout, negatives: bool) -> Iterator[Batch]:
    pa_csv, options, at = text.arrow_options(layout, lambda pa: pa.string())
    pa, pc = (optional(name, "") for name in ("pyarrow", "pyarrow.compute"))
    first = 0
    try:
        with open_bytes(layout.path) as raw:
            for batch in pa_csv.open_csv(raw, *options):
                found = {role: batch.column(name) for role, name in at.items()}
                if any(column.null_count for column in found.values()):
                    raise ValueError("a field is empty")
                ids = [pc.utf8_trim_whitespace(found[role]) for role in ("user", "item")]
                if any(pc.any(pc.equal(pc.binary_length(column), 0)).as_py() for column in ids):
                    raise ValueError("an id is empty")
                value, done = found.get("value"), 0 if raw.closed else raw.tell()
                value = None if value is None else np.asarray(value)
                yield _checked(layout, Batch(ids[0], ids[1], value, True, done), first, negatives)
                first += batch.num_rows
    except (pa.ArrowKeyError, pa.ArrowNotImplementedError, OSError) as error:
        raise ValueError(str(error)) from error
    if not first:
        raise FileFormatError(f"{layout.path} holds no rows")


def _csv(layout: Layout, negatives: bool) -> Iterator[Batch]:
    pa = optional("pyarrow", 'a conversion needs pyarrow: pip install "rgals[parquet]"')
    rows, first, size = text.batches(layout), 0, os.path.getsize(str(layout.path))
    try:
        while some := list(islice(rows, _PYTHON_ROWS)):
            ids = []
            for role in ("user", "item"):
                texts = (text_.replace(DOUBLED, "::").strip() for part in some for text_ in part[role])
                ids.append(pa.array(texts, pa.string()))
            if any(not one for column in ids for one in column.to_pylist()):
                raise ValueError("an id is empty")
            values = np.concatenate([part["value"] for part in some]) if "value" in some[0] else None
            yield _checked(layout, Batch(ids[0], ids[1], values, True, size), first, negatives)
            first += len(ids[0])
    except InputError:
        raise
    except ValueError:
        check(layout)
        raise
    if not first:
        raise FileFormatError(f"{layout.path} holds no rows")


def _checked(layout: Layout, batch: Batch, first: int, negatives: bool) -> Batch:
    """A batch of text whose row 0 is row ``first`` of the file, after checks that need no other rows."""

    def where(k: int) -> str:
        return locate(layout, first + k)

    if layout.names is not None:
        pc = optional("pyarrow.compute", "")
        users, items = (layout.names[layout.at[role]] for role in ("user", "item"))
        again = pc.and_(pc.equal(batch.user, users), pc.equal(batch.item, items))
        if pc.any(again).as_py():
            problem = "the header occurs a second time"
            raise FileFormatError(f"{where(int(np.asarray(again).argmax()))}: {problem}")
    check_values(batch.value, where, negatives)
    return batch
