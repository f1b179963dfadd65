"""Columns of data frames, arrow tables, parquet files, arrays and matrices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rgals.datasets.columns import choose
from rgals.datasets.ids import as_labels, encode, sort_codes
from rgals.datasets.interactions import Columns, timestamps
from rgals.matrix.entries import entry_rows
from rgals.matrix.validate import as_csr
from rgals.runtime.errors import (
    FileFormatError,
    InputError,
    InputTypeError,
    MissingDependencyError,
    ShapeError,
)


def is_frame(source: Any) -> bool:
    """Whether the source is a pandas or polars DataFrame or an arrow table."""
    return all(hasattr(source, name) for name in ("columns", "shape", "__getitem__")) and (
        hasattr(source, "column_names") or hasattr(source, "get_column") or hasattr(source, "iloc")
    )


def _take(frame: Any, at: int) -> Any:
    if hasattr(frame, "column_names"):
        return frame.column(at)
    if hasattr(frame, "get_column"):
        return frame.to_series(at)
    return frame.iloc[:, at]


def _refuse_missing(missing: np.ndarray, role: str, where: Callable[[int], str]) -> None:
    bad = np.flatnonzero(missing)
    if len(bad):
        raise InputError(f"{where(int(bad[0]))}: the {role} is missing")


def _id_column(column: Any, role: str, where: Callable[[int], str]) -> tuple[np.ndarray, np.ndarray]:
    """Codes and sorted labels of a column of ids."""
    try:
        return _coded(column, role, where)
    except InputTypeError as error:
        raise InputTypeError(f"{role}: {error}") from error


def _coded(column: Any, role: str, where: Callable[[int], str]) -> tuple[np.ndarray, np.ndarray]:
    if hasattr(column, "combine_chunks"):  # arrow
        import pyarrow as pa

        if column.null_count:
            _refuse_missing(column.is_null().to_numpy(), role, where)
        if pa.types.is_integer(column.type):
            return encode(as_labels(column.to_numpy()))
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        column = column.unify_dictionaries()
        chunks = [np.asarray(chunk.indices) for chunk in column.chunks]
        distinct = column.chunk(0).dictionary.to_pylist() if chunks else []
        return sort_codes(np.concatenate([np.empty(0, np.int64), *chunks]), distinct)
    if hasattr(column, "is_null"):  # polars
        if column.null_count():
            _refuse_missing(column.is_null().to_numpy(), role, where)
        if column.dtype.is_integer():
            return encode(as_labels(column.to_numpy()))
        return encode(as_labels(column.to_list()))
    if hasattr(column, "isna"):  # pandas
        if column.isna().any():
            _refuse_missing(column.isna().to_numpy(), role, where)
        if getattr(column.dtype, "kind", "O") in "iu":
            return encode(as_labels(column.to_numpy(dtype=column.dtype.name.lower())))
        codes, distinct = column.factorize()
        return sort_codes(codes, list(distinct))
    return encode(as_labels(column))


def _number_column(column: Any, role: str, where: Callable[[int], str]) -> np.ndarray:
    array = np.asarray(column.to_numpy() if hasattr(column, "to_numpy") else column)
    if array.dtype.kind in "biuf":
        return array
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError):
        pass
    for k, value in enumerate(array.tolist()):
        try:
            float(value)
        except (TypeError, ValueError):
            raise InputError(f"{where(k)}: the {role} {value!r} is not a number") from None
    raise InputTypeError(f"{role} must hold numbers, not {array.dtype}")


def _time_column(column: Any, where: Callable[[int], str]) -> np.ndarray:
    array = np.asarray(column.to_numpy() if hasattr(column, "to_numpy") else column)
    if array.dtype.kind == "O" and hasattr(column, "dt"):  # time zones come as objects
        array = column.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy()
    if array.dtype.kind == "O":
        bad = [k for k, x in enumerate(array.tolist()) if x is None or x != x]
        if bad:
            raise InputError(f"{where(bad[0])}: the timestamp is missing")
        if hasattr(array[0] if len(array) else None, "isoformat"):
            array = array.astype("datetime64[ns]")
        elif not all(isinstance(x, str) for x in array.tolist()):
            array = array.astype(np.float64)
    return timestamps(array, where)


def frame_columns(frame: Any, wanted: dict[str, Any], origin: str) -> Columns:
    """Columns of a DataFrame or an arrow table."""

    def where(k: int) -> str:
        return f"{origin}, row {k}"

    names = list(frame.column_names if hasattr(frame, "column_names") else frame.columns)
    if frame.shape[0] == 0:
        raise InputError(f"{origin} holds no rows")
    at = choose(names, len(names), wanted, [True] * len(names), origin).positions()
    value = _number_column(_take(frame, at["value"]), "value", where) if "value" in at else None
    split = _number_column(_take(frame, at["split"]), "split", where) if "split" in at else None
    time = _time_column(_take(frame, at["timestamp"]), where) if "timestamp" in at else None
    user = _id_column(_take(frame, at["user"]), "user", where)
    item = _id_column(_take(frame, at["item"]), "item", where)
    return Columns(*user, *item, value, time, split, where)


def parquet_columns(path: Path, wanted: dict[str, Any]) -> Columns:
    """Columns of a parquet file; only those needed are read."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingDependencyError(
            f'{path}: reading parquet needs pyarrow: pip install "rgals[parquet]"'
        ) from error
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            choice = choose(names, len(names), wanted, [True] * len(names), str(path))
            positions = choice.positions()
            if len(set(names)) < len(names):
                raise FileFormatError(f"{path}: two columns have the same name")
            table = file.read(columns=[names[at] for at in positions.values()])
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise FileFormatError(f"{path} is no readable parquet file: {error}") from error
    table = table.select([names[at] for at in positions.values()]).rename_columns(list(positions))
    wanted = {role: role if role in positions else None for role in wanted}
    return frame_columns(table, wanted, str(path))


def array_columns(source: tuple, wanted: dict[str, Any]) -> Columns:
    """Columns given one by one: (users, items[, values[, timestamps]])."""

    def where(k: int) -> str:
        return f"row {k}"

    if not 2 <= len(source) <= 4:
        raise InputError(
            f"give (users, items), (users, items, values) or (users, items, values, timestamps), not "
            f"{len(source)} arrays"
        )
    sizes = [len(column) for column in source if column is not None]
    if len(set(sizes)) > 1:
        raise ShapeError(f"the arrays must have the same length; they have {sizes}")
    if not sizes or sizes[0] == 0:
        raise InputError("the arrays hold no rows")
    user, item, value, time = (*source, None, None)[:4]
    if wanted.get("value", "auto") is None:
        value = None
    return Columns(
        *_id_column(user, "user", where),
        *_id_column(item, "item", where),
        None if value is None else _number_column(value, "value", where),
        None if time is None else _time_column(time, where),
        None,
        where,
    )


def matrix_columns(X: Any) -> Columns:
    """Columns of a sparse matrix; its row and column numbers are the ids."""
    matrix = as_csr(X).to_scipy()
    if matrix.nnz == 0:
        raise InputError(f"the matrix of shape {matrix.shape} stores no interaction")
    user = entry_rows(matrix)
    item = matrix.indices.astype(np.int64)

    def where(k: int) -> str:
        return f"row {user[k]}, column {item[k]}"

    return Columns(
        user, np.arange(matrix.shape[0]), item, np.arange(matrix.shape[1]), matrix.data, None, None, where
    )
