"""The boundary: every matrix from outside is checked and made canonical here before anything uses it."""

from collections.abc import Iterator, Set
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from rgals.matrix.csr import CSR
from rgals.runtime import memory as _memory
from rgals.runtime.aligned import read_only
from rgals.runtime.errors import InputError, InputTypeError, ShapeError, UnknownIdError

_LARGE = 1 << 26  # interactions above which memory is checked before they are converted
MAX_INDEX = np.iinfo(np.int32).max


def check_ids(name: str, ids: Any, n: int, what: str) -> np.ndarray:
    """Return ``ids`` as int64 indices in ``[0, n)`` (1-D) or raise `UnknownIdError` / `InputTypeError`."""
    array = integers(name, ids)
    bad = np.flatnonzero((array < 0) | (array >= n))
    if len(bad):
        problem = f"they run from 0 to {n - 1}"
        raise UnknownIdError(f"{name}[{bad[0]}]={array[bad[0]]} is no {what} of this model: {problem}")
    return array.astype(np.int64)


def integers(name: str, given: Any) -> np.ndarray:
    """One or more integers in one dimension, or an `InputTypeError`."""
    try:
        array = np.atleast_1d(np.asarray(list(given) if isinstance(given, Set | Iterator) else given))
    except ValueError as error:
        raise InputTypeError(f"{name} must be integers in one dimension: {error}") from error
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        found = f"{array.dtype} of shape {array.shape}"
        raise InputTypeError(f"{name} must be integers in one dimension, not {found}")
    return array


def _check_kind(dtype: np.dtype, name: str) -> None:
    if dtype.kind == "c":
        raise InputError(f"Complex data not supported: {name} holds {dtype}; give real weights >= 0")
    if dtype.kind not in "biuf":
        raise InputTypeError(f"{name} holds {dtype} values; give numbers (float, int or bool)")


def _compressed(X: Any, name: str) -> Any:
    """Any scipy matrix as CSR or CSC, with only its dtype and the indices of COO checked."""
    if X.ndim != 2:
        raise ShapeError(f"{name} must have two dimensions, users x items, not {X.ndim}")
    _check_kind(X.dtype, name)
    if X.format == "coo":
        for axis, index, size in (("row", X.row, X.shape[0]), ("column", X.col, X.shape[1])):
            bad = np.flatnonzero((index < 0) | (index >= size))
            if len(bad):
                at = f"{axis} index {index[bad[0]]}, outside 0..{size - 1}"
                raise InputError(f"{name}: entry {bad[0]} has {at}")
        if X.dtype.kind in "biuf" and X.dtype.itemsize < 8:  # `tocsr` adds duplicates in this type
            X = X.astype(np.float64)
    return X if X.format == "csc" else X.tocsr()


def fault(
    indptr: np.ndarray, indices: np.ndarray, n_values: int, n_cols: int, by_column: bool = False
) -> str | None:
    """What makes raw arrays no CSR matrix (``by_column``: CSC), or None."""
    line, cross = ("column", "row") if by_column else ("row", "column")
    n_stored = min(len(indices), n_values)
    if indptr[0] != 0:
        return f"indptr must start with 0, not {indptr[0]}"
    wrong = np.flatnonzero((indptr[1:] < indptr[:-1]) | (indptr[1:] > n_stored))
    if len(wrong):
        row, end = wrong[0], indptr[wrong[0] + 1]
        if end < indptr[row]:
            return f"indptr decreases after {line} {row} (to {end}); the matrix is corrupt"
        return f"{line} {row} ends at entry {end}, past the stored data; the matrix is corrupt"
    indices = indices[: indptr[-1]]
    if len(indices) and not 0 <= indices.min() <= indices.max() < n_cols:
        at = np.flatnonzero((indices < 0) | (indices >= n_cols))[0]
        row = np.searchsorted(indptr, at, side="right") - 1
        return f"{line} {row} holds {cross} index {indices[at]}, outside 0..{n_cols - 1}"
    return None


def on_host(X: Any, name: str = "X") -> Any:
    """Arrays of torch, cupy and sparse as arrays of numpy or matrices of scipy; all else as it is."""
    # None of these packages is imported: their objects are told by their attributes.
    if np.ma.is_masked(X):
        raise InputError(f"{name} has masked entries; give {name}.filled(0) if these are no interactions")
    if isinstance(X, np.ndarray) or sp.issparse(X):
        return X
    if hasattr(X, "detach") and hasattr(X, "layout"):  # torch
        X = X.detach().cpu()
        X = X.float() if "bfloat16" in str(X.dtype) else X  # a type that numpy lacks
        if "sparse" not in str(X.layout):
            return np.asarray(X)
        X = X.to_sparse_coo().coalesce()
        row, col = np.asarray(X.indices())
        return sp.coo_array((np.asarray(X.values()), (row, col)), shape=tuple(X.shape))
    if hasattr(X, "get") and (hasattr(X, "__cuda_array_interface__") or hasattr(X, "nnz")):  # cupy
        return X.get()
    if hasattr(X, "to_scipy_sparse"):  # sparse
        return X.to_scipy_sparse()
    return X


def _dense_to_sparse(X: Any, name: str) -> sp.csr_array:
    if hasattr(X, "shape") and hasattr(X, "columns"):
        places = "of a table of users and items, rgals.datasets.IdMap(ids).index finds rows and columns"
        advice = f"give {name}.to_numpy() if it has the rows and columns that are needed; {places}"
        raise InputTypeError(f"{name} is a frame and must be a matrix here; {advice}")
    try:
        array = np.asarray(X)
    except Exception as error:
        raise InputTypeError(f"{name} cannot be read as a matrix: {error}") from error
    if array.dtype.kind == "O":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            must = f"{name} must be a sparse matrix or a numeric array"
            found = f"of objects: {error!s:.100}" if array.ndim else type(X).__name__
            raise InputTypeError(f"{must}, not {found}") from error
    _check_kind(array.dtype, name)
    if array.ndim != 2:
        advice = "for one user's row use X.reshape(1, -1), for one item's column X.reshape(-1, 1)"
        found = f"Expected 2D array, users x items, got {array.ndim}D"
        raise ShapeError(f"{name}: {found}. Reshape your data: {advice}")
    # scipy has no sparse matrices of half floats, nor of another byte order.
    dtype = np.float32 if array.dtype == np.float16 else array.dtype.newbyteorder("=")
    return sp.csr_array(array.astype(dtype, copy=False))


def as_csr(
    X: Any,
    *,
    name: str = "X",
    dtype: Any = np.float32,
    n_rows: int | None = None,
    n_cols: int | None = None,
    dislikes: bool = False,
) -> CSR:
    """Check a matrix (scipy, array, `CSR`) and make it canonical, with values of ``dtype``."""
    # Duplicates are added, explicit zeros dropped, rows sorted. The caller's matrix is never modified; arrays
    # are shared if nothing had to change. Errors call it ``name`` and name the row and column at fault.
    # ``n_rows`` and ``n_cols`` are the shape it must have; for a transposed matrix the error says so.
    # ``dislikes`` permits negative values.
    if isinstance(X, CSR):
        out = X.as_dtype(dtype)
        _check_shape(out.shape, n_rows, n_cols, name)
        if dislikes or not out.has_dislikes:
            return out
        X = X.to_scipy()  # the check of values below names the first negative one
    X = on_host(X, name)
    dense = not sp.issparse(X)
    X = _compressed(_dense_to_sparse(X, name) if dense else X, name)
    raw_indptr, raw_indices, data, by_column = X.indptr, X.indices, X.data, X.format == "csc"
    shape = X.shape[::-1] if by_column else X.shape
    _check_shape(X.shape, n_rows, n_cols, name)
    if max(shape) > MAX_INDEX:
        raise ShapeError(f"{name} has shape {X.shape}; at most {MAX_INDEX} rows and columns are supported")
    if raw_indptr.ndim != 1 or len(raw_indptr) != shape[0] + 1:
        wanted = f"shape {X.shape} needs {shape[0] + 1}"
        raise InputError(f"{name}: indptr has {raw_indptr.size} entries; {wanted}")
    if raw_indptr.dtype.kind not in "iu" or raw_indices.dtype.kind not in "iu":
        raise InputTypeError(f"{name}: indptr and indices must be integers")
    if len(raw_indices) > _LARGE:
        # The worst case: converted indices and values, masks, and two transposed copies for sorting.
        needed = len(raw_indices) * (3 * (4 + np.dtype(dtype).itemsize) + 4)
        work = f"checking {name} with {len(raw_indices):,} interactions"
        _memory.require(needed, work, "give fewer of them at once")
    wrong = fault(raw_indptr, raw_indices, len(data), shape[1], by_column)
    if wrong:
        raise InputError(f"{name}: {wrong}")

    nnz = int(raw_indptr[-1])
    indptr = read_only(raw_indptr.astype(np.int64, copy=False))
    indices = read_only(raw_indices[:nnz].astype(np.int32, copy=False))
    data = data[:nnz]
    with np.errstate(over="ignore"):
        values = read_only(data.astype(dtype, copy=False))
    bad = np.flatnonzero(~(np.isfinite(values) & ((values >= 0) | dislikes)))
    if len(bad):
        line, cross = int(np.searchsorted(indptr, bad[0], side="right")) - 1, indices[bad[0]]
        row, column = (cross, line) if by_column else (line, cross)
        where, what = f"row {row}, column {column}", data[bad[0]]
        must = "values must be finite" if dislikes else "weights must be finite and >= 0"
        if np.isnan(values[bad[0]]):
            lines = f"{name}.fillna(0) of a frame, numpy.nan_to_num({name}) of an array"
            give = f"; give {lines}, if NaN is no interaction" if dense else ""
            raise InputError(f"{name}: NaN at {where}; {must}{give}")
        if np.isinf(values[bad[0]]):
            problem = f"is infinity or too large for {np.dtype(dtype)}; {must}"
            raise InputError(f"{name}: value {what} at {where} {problem}")
        advice = "weights must be >= 0, or dislikes, for WRMF(dislikes=True) and IALS(dislikes=True)"
        raise InputError(f"Negative values in data passed to rgals: {name} holds {what} at {where}; {advice}")
    times = getattr(X, "times", None)
    if times is not None and len(times) != nnz:
        raise InputError(f"{name} has {len(times)} times for {nnz} entries; times belong to stored entries")
    made = CSR(indptr, indices, values, shape[1], times)
    if by_column:
        made = made.transpose()
    if not made.rises.all():
        made = made.transpose().transpose()  # sorts every row in linear time
        first = made.rises
        if not first.all():
            # Duplicates are neighbours now: each run is added in float64 into its first entry.
            with np.errstate(over="ignore"):  # refused below
                total = np.add.reduceat(made.values, np.flatnonzero(first), dtype=np.float64).astype(dtype)
            if not np.isfinite(total).all():
                raise InputError(f"{name}: the sum of duplicate entries overflows {np.dtype(dtype)}")
            values = np.zeros(made.nnz, dtype)
            values[first] = total
            made = replace(made, values=values, times=None)
    return made.tidy()


def _check_shape(shape: tuple, n_rows: int | None, n_cols: int | None, name: str) -> None:
    wanted = (shape[0] if n_rows is None else n_rows, shape[1] if n_cols is None else n_cols)
    if tuple(shape) == wanted:
        return
    rows = "users" if n_rows is None else str(n_rows)
    cols = "items" if n_cols is None else str(n_cols)
    hint = ""
    if (n_rows is None or shape[1] == n_rows) and (n_cols is None or shape[0] == n_cols):
        hint = f"; it looks transposed: give {name}.T (users are rows, items are columns)"
    raise ShapeError(f"{name} has shape {tuple(shape)}, expected ({rows}, {cols}){hint}")
