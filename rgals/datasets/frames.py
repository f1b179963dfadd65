"""Columns of sources other than text: data frames, arrow tables, parquet and npz files, arrays, matrices."""

import errno
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from rgals.datasets.columns import IDS, choose, column_at, column_names, indexed, is_number, roles_of, whole
from rgals.datasets.ids import Coded, IdMap, as_labels, codes_of, encode, numbering, sort_codes
from rgals.datasets.interactions import Columns, refuse, refuse_missing
from rgals.datasets.layout import NoRowsError
from rgals.files.archive import UNREADABLE
from rgals.matrix.entries import entry_rows
from rgals.matrix.validate import MAX_INDEX, as_csr
from rgals.runtime.errors import FileFormatError, InputError, InputTypeError, ShapeError
from rgals.runtime.lazy import optional

# Arrays of an npz file of interactions, and the kinds of dtype that each may have.
_COLUMNS = {"user": "iu", "item": "iu", "rating": "fiub", "timestamp": "iufM", "split": "iub"}
_ID_KEYS = [f"{side}_{key}" for side in ("user", "item") for key in ("labels", "text", "offsets", "integer")]
_SPARSE = {"format", "shape", "data"}  # arrays that scipy.sparse.save_npz writes for every format


def _id_column(column: Any, role: str, where: Callable[[int], str]) -> Coded:
    """Codes and sorted labels of a column of ids."""
    refuse_missing(column, f"the {role} is missing", where)
    try:
        if hasattr(column, "dictionary_encode"):  # arrow
            known, parts = numbering(), getattr(column, "chunks", [column])
            return sort_codes(np.concatenate([codes_of(part, known) for part in parts]), list(known))
        # pandas; categories say 0, an array of the other byte order, which it cannot number, says False.
        if hasattr(column, "factorize") and getattr(column.dtype, "isnative", True) is not False:
            return sort_codes(*column.factorize())
        zoned = getattr(getattr(column, "dtype", None), "time_zone", None)  # polars: to_numpy drops zones
        plain = hasattr(column, "to_numpy") and zoned is None
        return encode(as_labels(column.to_numpy() if plain else column))
    except (TypeError, NotImplementedError):
        # The package cannot number the column (lists), or one of its distinct entries is no id. Entry by
        # entry all become ids after all (arrow's UUIDs), or the row at fault is named.
        try:
            return encode(as_labels(column))
        except InputTypeError as error:
            raise InputTypeError(f"{role}: {error}") from error


def number_column(column: Any, role: str, where: Callable[[int], str]) -> np.ndarray:
    """A column of values or splits as numbers."""
    array = np.asarray(column)
    if array.ndim != 1:
        raise ShapeError(f"the {role}s must have one dimension, not the shape {array.shape}")
    if array.dtype.kind in "biuf":
        return array
    # `tolist` turns dates and durations in nanoseconds into integers.
    items = list(map(str, array)) if array.dtype.kind in "mM" else array.tolist()
    refuse([not is_number(item) for item in items], where, f"the {role} {{!r}} is not a number", items)
    return np.array(items, np.float64)


def frame_columns(frame: Any, wanted: dict[str, Any], origin: str) -> Columns:
    """Columns of a DataFrame or an arrow table."""
    names, (in_index, problem) = column_names(frame), indexed(frame, "frame")
    # Users or items in the index, as after a groupby: without an error, other columns would be taken.
    asked = {role for role in IDS if wanted[role] not in (None, "auto")}
    if in_index.keys() & {*IDS} - roles_of(names).keys() - asked:
        raise InputError(problem)
    at = choose(names, wanted, origin)
    return columns_of({role: column_at(frame, position) for role, position in at.items()}, origin)


def columns_of(given: dict[str, Any], origin: str, row: str = "{}, row {}") -> Columns:
    """Columns from one array or column per role; there may be none of values, times and splits."""
    where = partial(row.format, origin)
    if not len(given["user"]):
        raise NoRowsError(f"{origin} holds no rows")
    numbers = {role: number_column(given[role], role, where) for role in ("value", "split") if role in given}
    user, item = (_id_column(given[role], role, where) for role in ("user", "item"))
    return Columns(user, item, where, numbers.get("value"), given.get("timestamp"), numbers.get("split"))


def parquet_parts(
    path: Path, wanted: dict[str, Any], rows: int | None = None
) -> Iterator[tuple[dict[str, Any], float]]:
    """Arrow arrays by role of ``rows`` rows at once (None: all), and the share of the file read so far."""
    needed = f'{path}: reading parquet needs pyarrow: pip install "rgals[parquet]"'
    pa, pq = (optional(name, needed) for name in ("pyarrow", "pyarrow.parquet"))
    try:
        with pq.ParquetFile(path, buffer_size=0 if rows is None else 1 << 20) as file:
            names = file.schema_arrow.names
            at = choose(names, wanted, str(path))
            if len(set(names)) < len(names):
                raise FileFormatError(f"{path}: two columns have the same name")
            at = {role: names[position] for role, position in at.items()}
            used, n, done = list(at.values()), max(file.metadata.num_rows, 1), 0
            # Arrow keeps all that an iterator has read until it ends: each reads only some row groups.
            groups, how = range(file.num_row_groups), {"columns": used, "use_threads": False}
            step = max((rows or 0) * len(groups) // n, 1)
            starts = (list(groups[k : k + step]) for k in groups[::step])
            some = (part for each in starts for part in file.iter_batches(rows, row_groups=each, **how))
            for part in [file.read(used)] if rows is None else some:
                done += part.num_rows
                yield {role: whole(part.column(name)) for role, name in at.items()}, done / n
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise FileFormatError(f"{path} is no readable parquet file: {error}") from error


def array_columns(source: tuple | list, wanted: dict[str, Any]) -> Columns:
    """Columns given one by one: (users, items[, values[, timestamps]])."""
    if isinstance(source, list) and all(isinstance(row, tuple) for row in source):
        raise InputTypeError("a list of tuples holds records; give tuple(zip(*records)) for columns")
    if not 2 <= len(source) <= 4:
        raise InputError(f"give arrays (users, items[, values[, timestamps]]), not {len(source)} arrays")
    columns = zip(("user", "item", "value", "timestamp"), map(whole, source), strict=False)
    given = {role: column for role, column in columns if role in IDS or column is not None}
    for role, column in given.items():
        is_column = hasattr(column, "__len__") and getattr(column, "ndim", 1) > 0
        if isinstance(column, str | bytes | set | frozenset) or not is_column:
            found = f"the {role} is {column!r:.40}"
            raise InputTypeError(f"give arrays (users, items[, values[, timestamps]]); {found}")
        if isinstance(column, np.ma.MaskedArray):
            refuse(np.ma.getmaskarray(column), "row {}".format, f"the {role} is missing")
    sizes = list(map(len, given.values()))
    if len(set(sizes)) > 1:
        raise ShapeError(f"the arrays must have the same length; they have {sizes}")
    if wanted["value"] is None:
        given.pop("value", None)
    return columns_of(given, f"the {type(source).__name__} of arrays", "row {1}")


def matrix_columns(X: Any) -> Columns:
    """Columns of a sparse matrix; its row and column numbers are the ids."""
    matrix = as_csr(X, dislikes=True).to_scipy()  # `build` checks negative values
    if matrix.nnz == 0:
        raise InputError(f"the matrix of shape {matrix.shape} stores no interaction")
    user, item = entry_rows(matrix), matrix.indices.astype(np.int64)
    users, items = map(np.arange, matrix.shape)
    return Columns((user, users), (item, items), lambda k: f"row {user[k]}, column {item[k]}", matrix.data)


# ------------------------------------------------------------------ npz: never with pickle


def holds_arrays(path: Path) -> bool:
    """Whether a file is a zip archive of npy members, whatever its name."""
    with suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        return any(name.endswith(".npy") for name in archive.namelist())
    return False


def read_npz(path: Path) -> Columns:
    """Columns of a npz in the project's form, or of a matrix that scipy wrote."""
    try:
        with open(path, "rb") as raw, zipfile.ZipFile(raw) as archive:
            damaged = archive.testzip()  # checks names, too, and members that are not read below
            raw.seek(-12, os.SEEK_END)
            if damaged or int.from_bytes(raw.read(2), "little") != len(archive.namelist()):
                # A damaged entry of the directory can hide the entries after it.
                raise zipfile.BadZipFile(f"{damaged or 'the directory'} is damaged")
        with np.load(path) as file:
            if {"user", "item"} <= set(file):
                arrays = _checked(file, path)
            elif set(file) >= _SPARSE:
                return matrix_columns(as_csr(sp.load_npz(path), name=str(path), dislikes=True))
            else:
                needed = "the arrays user and item (and may hold rating, timestamp, split)"
                other = f"a matrix written by scipy.sparse.save_npz; it holds: {', '.join(file) or 'nothing'}"
                raise FileFormatError(f"{path} needs {needed}, or {other}")
    except InputError:
        raise
    except (*UNREADABLE, zlib.error, MemoryError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise FileFormatError(f"{path} is no readable npz file: {error}") from error

    def where(k: int) -> str:
        return f"{path}, row {k} (user {arrays['user'][k]}, item {arrays['item'][k]})"

    if len(arrays["user"]) == 0:
        raise NoRowsError(f"{path} holds no rows")
    user, item = (_side(arrays, side, path, where) for side in ("user", "item"))
    rating, timestamp, split = map(arrays.get, ("rating", "timestamp", "split"))
    saved = not arrays.keys().isdisjoint(_ID_KEYS)
    return Columns(user, item, where, rating, timestamp, split, saved)


def _checked(file: Mapping[str, np.ndarray], path: Path) -> dict[str, np.ndarray]:
    """The arrays of a npz in the project's form: plain numbers of the right kinds, equally long."""
    arrays = {}
    for key in (key for key in (*_COLUMNS, *_ID_KEYS) if key in file):
        try:
            array = arrays[key] = file[key]
        except ValueError as error:
            advice = f"only plain numbers are read ({error})"
            raise FileFormatError(f"{path}: {key} holds Python objects or is damaged; {advice}") from error
        kinds = _COLUMNS.get(key)
        if kinds is not None and array.dtype.kind not in kinds:
            what = "numbers" if "f" in kinds else "integers"
            raise FileFormatError(f"{path}: {key} must hold {what}, not {array.dtype}")
        if kinds is not None and (array.ndim != 1 or array.shape != arrays["user"].shape):
            advice = f"all arrays must be as long as user, {arrays['user'].shape}"
            raise FileFormatError(f"{path}: {key} has shape {array.shape}; {advice}")
    return arrays


def _side(arrays: dict[str, np.ndarray], side: str, path: Path, where: Callable[[int], str]) -> Coded:
    """Codes and labels of the users or of the items."""
    codes, labels = arrays[side], None
    if f"{side}_labels" in arrays or f"{side}_text" in arrays:
        try:
            labels = IdMap.from_arrays(arrays, f"{side}_", side).labels
        except InputError as error:
            raise FileFormatError(f"{path}: {error}") from error
    limit = MAX_INDEX if labels is None else len(labels) - 1
    bad = np.flatnonzero((codes < 0) | (codes > limit))
    if len(bad):
        raise FileFormatError(f"{where(int(bad[0]))}: the {side} is outside 0..{limit}")
    codes = codes.astype(np.int64)
    return encode(codes) if labels is None else (codes, labels)
