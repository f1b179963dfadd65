"""Features of users or items, given as a matrix or a frame: a matrix in the rows of the interactions."""

from collections.abc import Mapping
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
import scipy.sparse as sp

from rgals.datasets.columns import column_at, column_names, indexed, is_frame, is_number, role_of
from rgals.datasets.ids import IdMap, as_labels, joined, refuse_kind
from rgals.matrix.validate import as_csr
from rgals.runtime.errors import InputError, InputTypeError, ShapeError, warn

_FEW = 20  # rows up to which any may have a text of its own
#: How a frame was encoded: for each column its name, and its categories, or its mean and scale.
Encoding = list[dict[str, Any]]


def read_features(
    given: Any, n: int | None, ids: np.ndarray | None, name: str, encoding: Encoding | None = None
) -> tuple[sp.csr_array, np.ndarray | None, Encoding | None, np.ndarray]:
    """Features with a row for each of ``n`` users or items, followed by rows for those with new ids."""
    # `given`: a matrix in the rows of the interactions; or `(ids, matrix)`; or a frame, with or without a
    # column of ids, which is called `user` or `item` as the parameter `name`. `ids`: of the first `n` rows;
    # `n=None`: all are new. `encoding`: encode a frame as the one of the fit was.
    # Returns the matrix (float64), the ids of its rows, the encoding of a frame, and which rows were given.
    labels, label = None, name.partition("_")[0]
    if isinstance(given, tuple) and len(given) == 2:
        labels, given = given
    if is_frame(given):
        names, (in_index, problem) = list(map(str, column_names(given))), indexed(given, name)
        if len({*names}) < len(names):
            raise InputError(f"{name}: two columns have one name: {', '.join(sorted(names))}")
        table = {each: column_at(given, k) for k, each in enumerate(names)}
        of_ids = _column_of_ids(table, label, ids, encoding)
        labels = labels if of_ids is None else np.asarray(table.pop(of_ids))
        if labels is None and ids is not None:
            if label in in_index:
                raise InputError(problem)
            _refuse_ids(table, getattr(given, "index", None), ids, label, name)
        columns = {each: _plain(column, f"{name}: column {each!r}") for each, column in table.items()}
        encoding = _encode(columns, name) if encoding is None else encoding
        given = _encoded(columns, encoding, name)
    else:
        encoding = None
    if getattr(given, "ndim", 2) != 2:
        raise ShapeError(f"{name} must have two dimensions, rows x features")
    try:
        features = as_csr(given, name=name, dtype=np.float64, dislikes=True).to_scipy(np.float64)
    except InputTypeError as error:
        raise InputTypeError(f"{name} must be a matrix of numbers or a frame: {error}") from error
    if labels is None:
        if n is not None and features.shape[0] != n:
            raise ShapeError(f"{name} has {features.shape[0]} rows; one for each of {n} {label}s is needed")
        return features, ids, encoding, np.ones(features.shape[0], bool)
    if n is None:
        n, ids = 0, np.empty(0, object)
    if ids is None:
        raise InputError(f"{name} has ids and the interactions have none: give {n} rows without ids")
    rows, known = IdMap(as_labels(labels), label), IdMap(ids, label)
    if len(rows) != features.shape[0]:
        raise ShapeError(f"{name}: {len(rows)} ids for {features.shape[0]} rows; give one each")
    at = known.index(rows.labels, missing="mark")
    new = np.flatnonzero(at < 0)
    refuse_kind(known, rows.labels, name)
    at[new] = n + np.arange(len(new))
    pairs, shape = features.tocoo(), (n + len(new), features.shape[1])
    found = sp.csr_array((pairs.data, (at[pairs.row], pairs.col)), shape=shape)
    return found, joined(ids, rows.labels[new]), encoding, np.isin(np.arange(shape[0]), at)


def _column_of_ids(table: Mapping[str, Any], label: str, ids: Any, encoding: Encoding | None) -> str | None:
    """The column of ids: `user`, `user_id` or `userId`; else one with another usual name and distinct ids."""
    found = [key for key in (label, f"{label}_id", f"{label}Id") if key in table]
    # A feature may have such a name, too (the artists of songs). In a fit, ids are known from the
    # interactions; later, a column that was encoded in the fit is a feature.
    # Compared as texts: ids of another type are refused later.
    told, known = {column["name"] for column in encoding or ()}, _texts(() if ids is None else ids)
    for key in [key for key in table if len(key) > 1 and role_of(key) == label]:
        each = _texts(table[key])
        if key not in told and len(each) == len(table[key]) and (encoding is not None or each & known):
            found.append(key)
    return found[0] if found else None


def _texts(labels: Any) -> set[str]:
    return {*map(str, np.asarray(labels).tolist())}


def _refuse_ids(table: Mapping[str, Any], index: Any, ids: np.ndarray, label: str, name: str) -> None:
    """Raise if rows that would be taken in the order of ``ids`` have ids of their own."""
    known = _texts(ids)
    # Numbers from 0 say nothing, nor do labels in the order of the ids.
    bare = index is None or hasattr(index, "step") or np.array_equal(np.asarray(index), ids)
    for place, labels in (*table.items(), *([] if bare else [("", index)])):
        found = _texts(labels)
        if len(found) == len(labels) < 2 * len(found & known):
            where = f"column {place!r}" if place else "the index"
            order = f"or give ({label}_ids, {name}) if its rows have the order of these ids"
            raise InputError(f"{name}: {where} looks like ids of {label}s; call it {label!r}, {order}")


def _encode(columns: Mapping[str, np.ndarray], name: str) -> Encoding:
    """The encoding of a frame: numbers are standardised, any other column is encoded one-hot."""
    found: Encoding = []
    for column, values in columns.items():
        if not len(values):
            raise InputError(f"{name} has no rows; leave it out")
        if values.dtype.kind not in "iuf":
            found.append({"name": column, "categories": sorted({str(value) for value in values})})
            if _FEW < len(values) < 2 * (n := len(found[-1]["categories"])):  # titles, or days
                many = f"{name}: column {column!r} has {n:,} different entries in {len(values):,} rows"
                warn(f"{many}, each a feature that few or none share; make numbers or groups of them")
            continue
        if len(bad := np.flatnonzero(~np.isfinite(values))):
            raise InputError(f"{name}: column {column!r} has {values[bad[0]]} in row {bad[0]}; give a number")
        # The computed deviation of a constant is a rounding error, 1e-17 and not 0: do not divide by it.
        scale = float(values.std(dtype=float)) if len(np.unique(values)) > 1 else 1.0
        found.append({"name": column, "mean": float(values.mean(dtype=float)), "scale": scale})
    return found


def _plain(column: Any, where: str) -> np.ndarray:
    """A column as numbers or as texts; numeric categories are texts, what is missing in any package "nan"."""
    values, kind = np.asarray(column), str(getattr(column, "dtype", getattr(column, "type", "")))
    if kind.startswith(("category", "dictionary")) and values.dtype.kind in "iuf":  # float: some are missing
        return np.array([f"{value:.17g}" for value in values.tolist()], object)
    if values.dtype.kind == "M":  # so that times of every unit become the same texts
        values = values.astype("M8[D]" if values.dtype == "M8[D]" else "M8[us]").astype(object)
    if values.dtype != object:
        return values
    if all(isinstance(value, Real | Decimal) and not isinstance(value, bool) for value in values):
        return values.astype(np.float64)
    if any(isinstance(value, list | np.ndarray) for value in values):
        raise InputTypeError(f"{where} holds lists; sklearn.preprocessing.MultiLabelBinarizer encodes them")
    return np.array(["nan" if str(v) in ("None", "NaT", "<NA>") else str(v) for v in values], object)


def _encoded(columns: Mapping[str, np.ndarray], encoding: Encoding, name: str) -> sp.csr_array:
    """The columns as a matrix, by an encoding."""
    blocks: list[Any] = []
    for column in encoding:
        if column["name"] not in columns:
            raise InputError(f"{name} has no column {column['name']!r}, which those of the fit had")
        values = columns[column["name"]]
        if not len(values):  # an empty column often has no type
            values = np.empty(0, np.float64 if "mean" in column else object)
        if "mean" in column:
            if values.dtype.kind not in "iuf":
                raise InputTypeError(f"{name}: column {column['name']!r} held numbers in the fit")
            blocks.append(((values.astype(np.float64) - column["mean"]) / column["scale"])[:, None])
            continue
        known = {category: at for at, category in enumerate(column["categories"])}
        if values.dtype.kind in "iuf":
            if not any(is_number(text) and text != "nan" for text in known):
                told = ", ".join(map(repr, column["categories"][:3]))
                raise InputTypeError(f"{name}: column {column['name']!r} held {told} in the fit; give such")
            values = np.array([f"{value:.17g}" for value in values.tolist()], object)
        at = np.array([known.get(str(value), -1) for value in values], np.int64)  # -1: not seen in the fit
        rows = np.flatnonzero(at >= 0)
        blocks.append(sp.csr_array((np.ones(len(rows)), (rows, at[rows])), shape=(len(values), len(known))))
    if not blocks:
        raise InputError(f"{name} has no columns beside the ids")
    return sp.csr_array(sp.hstack([sp.csr_array(block) for block in blocks]))
