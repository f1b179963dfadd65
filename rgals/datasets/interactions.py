"""Interactions: a matrix with ids of users and items, and how it is built from pairs."""

import dataclasses
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from rgals.datasets.columns import is_number
from rgals.datasets.ids import Coded, IdMap, as_labels, codes_of, numbering
from rgals.datasets.times import is_moment, moments
from rgals.files.atomic import atomic_file
from rgals.matrix.csr import CSR
from rgals.matrix.entries import entries, entry_rows, group
from rgals.matrix.validate import MAX_INDEX
from rgals.matrix.weighting import unit_of
from rgals.runtime.checks import check_choice, check_real
from rgals.runtime.errors import FileFormatError, InputError, InputTypeError, ParameterError, ShapeError, warn
from rgals.runtime.lazy import cached_property, optional

DUPLICATES = ("sum", "last", "max", "error")
TRAIN, TEST, VALIDATION = 0, 1, 2


_MOST_STARS = 10.0  # of a rating


@dataclass(frozen=True, eq=False, repr=False)
class Interactions:
    """A matrix of interactions, users x items, with the ids of its rows and columns.

    Attributes
    ----------
    matrix : scipy.sparse.csr_array of float32, shape (n_users, n_items)
        Weights > 0, and dislikes, of value -1, where asked for; rows sorted by column, no duplicates.
    user_ids : ndarray, shape (n_users,)
        External label of every row: int64, strings, or objects for a mixture.
    item_ids : ndarray, shape (n_items,)
        External label of every column.
    timestamp : ndarray of int64 or float64, shape (nnz,), or None
        Time of every entry, aligned with ``matrix.data``. Dates become nanoseconds since 1970 (UTC).
    split : ndarray of int8, shape (nnz,), or None
        0 training, 1 test, 2 validation, aligned with ``matrix.data``.

    Examples
    --------
    >>> from rgals.datasets import read_interactions
    >>> data = read_interactions((["ann", "bob", "ann"], ["tea", "tea", "milk"]))
    >>> data.matrix.toarray()
    array([[1., 1.],
           [0., 1.]], dtype=float32)
    >>> data.users.index(["bob"]), data.item_ids.tolist()
    (array([1]), ['milk', 'tea'])
    """

    matrix: sp.csr_array
    user_ids: np.ndarray
    item_ids: np.ndarray
    timestamp: np.ndarray | None = None
    split: np.ndarray | None = None

    def __repr__(self) -> str:
        more = [f", {name}" for name in ("timestamp", "split") if getattr(self, name) is not None]
        size = f"{self.n_users:,} users x {self.n_items:,} items, {self.nnz:,} interactions"
        return f"{type(self).__name__}({size}{''.join(more)})"

    def __post_init__(self) -> None:
        if self.user_ids is None or self.item_ids is None:
            raise InputError("Interactions have ids of users and items; give a matrix without ids as it is")
        aligned = self.timestamp is not None or self.split is not None
        csr = getattr(self.matrix, "format", None) == "csr"
        if not csr and not aligned:  # converting reorders entries
            matrix = self.matrix.to_scipy() if isinstance(self.matrix, CSR) else self.matrix
            try:
                object.__setattr__(self, "matrix", sp.csr_array(matrix))
            except (TypeError, ValueError) as error:
                found = type(matrix).__name__
                raise InputTypeError(f"matrix must be a matrix of numbers, not {found}: {error}") from error
        if aligned and not (csr and self.matrix.has_canonical_format and self.matrix.data.all()):
            reason = "the matrix must be CSR with sorted rows, no duplicates and no stored zeros"
            raise InputError(f"timestamps and splits belong to stored entries, so {reason}")
        sizes = *self.matrix.shape, self.nnz, self.nnz
        for name, size in zip(("user_ids", "item_ids", "timestamp", "split"), sizes, strict=True):
            value = getattr(self, name)
            if value is None:
                continue
            array = np.asanyarray(value)  # of a Series, as its ``[k]`` looks up its index
            if array.shape != (size,):
                stored = f"the matrix stores {self.nnz} entries in shape {self.matrix.shape}"
                raise ShapeError(f"{name} has shape {array.shape}; {stored}, which takes {size}")
            if name.endswith("_ids"):  # lists as they are: numpy turns integers beside texts into texts
                try:
                    array = as_labels(value if isinstance(value, list | tuple) else array)
                except InputTypeError as error:
                    raise InputTypeError(f"{name}: {error}") from error
            elif name == "timestamp":
                array = timestamps(array, "timestamp[{}]".format)
            elif name == "split":
                array = marks_of(array, "split[{}]".format)
            object.__setattr__(self, name, array)

    @property
    def n_users(self) -> int:
        """Number of rows."""
        return self.matrix.shape[0]

    @property
    def n_items(self) -> int:
        """Number of columns."""
        return self.matrix.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        """``(n_users, n_items)``."""
        return self.n_users, self.n_items

    @property
    def nnz(self) -> int:
        """Number of interactions."""
        return self.matrix.nnz

    @cached_property
    def users(self) -> IdMap:
        """Translation between user ids and row numbers."""
        return IdMap(self.user_ids, "user")

    @cached_property
    def items(self) -> IdMap:
        """Translation between item ids and column numbers."""
        return IdMap(self.item_ids, "item")

    @cached_property
    def train(self) -> sp.csr_array:
        """The training part, of the full shape (everything, where the data have no split)."""
        return self.matrix if self.split is None else self._part(TRAIN)

    @cached_property
    def test(self) -> sp.csr_array:
        """The test part, of the full shape."""
        return self._part(TEST)

    @cached_property
    def validation(self) -> sp.csr_array:
        """The validation part, of the full shape; empty where the data mark none."""
        return self._part(VALIDATION)

    def _part(self, which: int) -> sp.csr_array:
        if self.split is None:
            raise InputError("data without a split: make one with rgals.model_selection.split_interactions")
        return entries(self.matrix, self.split == which)

    def take(self, users: np.ndarray, items: np.ndarray) -> "Interactions":
        """Some rows and columns, with their ids, timestamps and split.

        Parameters
        ----------
        users, items : ndarray of int, shapes (m,) and (n,)
            Row and column numbers, each increasing.

        Returns
        -------
        Interactions
            Of shape (m, n).

        Examples
        --------
        >>> from rgals.datasets import read_interactions
        >>> data = read_interactions((["ann", "bob", "ann"], ["tea", "tea", "milk"]))
        >>> data.take([0], [0, 1])
        Interactions(1 users x 2 items, 2 interactions)
        """
        numbers = np.arange(self.nnz)
        places = sp.csr_array((numbers, self.matrix.indices, self.matrix.indptr), shape=self.shape)
        places = places[users][:, items].sorted_indices()
        numbers = places.data
        matrix = sp.csr_array((self.matrix.data[numbers], places.indices, places.indptr), shape=places.shape)
        marks = (None if mark is None else mark[numbers] for mark in (self.timestamp, self.split))
        return Interactions(matrix, self.user_ids[users], self.item_ids[items], *marks)

    def __getitem__(self, rows: Any) -> "Interactions":
        """``data[rows]``, as scikit-learn's splitters need it, or ``data[rows, columns]``."""
        asked = rows if isinstance(rows, tuple) else (rows,)
        if len(asked) > 2:
            raise IndexError(f"give data[rows] or data[rows, columns]; {len(asked)} were given")
        places = (np.arange(n)[which] for n, which in zip(self.shape, (*asked, ...), strict=False))
        return self.take(*map(np.atleast_1d, places))

    def to_frame(self) -> Any:
        """A pandas DataFrame with a row for every interaction: ``user``, ``item``, ``value``.

        Then ``timestamp`` and ``split`` where there are some, as they are stored: dates in nanoseconds since
        1970. Without pandas it raises a `MissingDependencyError`.

        Examples
        --------
        >>> from rgals.datasets import read_interactions
        >>> read_interactions((["ann", "bob", "ann"], ["tea", "tea", "milk"])).to_frame()["item"].tolist()
        ['milk', 'tea', 'tea']
        """
        pandas = optional("pandas", "a frame needs pandas: pip install pandas")
        users, items = self.user_ids[entry_rows(self.matrix)], self.item_ids[self.matrix.indices]
        marks = {"value": self.matrix.data, "timestamp": self.timestamp, "split": self.split}
        kept = {name: mark for name, mark in marks.items() if mark is not None}
        return pandas.DataFrame({"user": users, "item": items, **kept})

    def replace(self, **changes: Any) -> "Interactions":
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def save(self, path: str | os.PathLike) -> None:
        """Write everything to a file for `read_interactions`; an old one is replaced by the complete new one.

        Parameters
        ----------
        path : path-like
            Ends in ``.npz``.

        Raises
        ------
        ParameterError
            The name ends otherwise.
        """
        if not str(path).endswith(".npz"):
            raise ParameterError("path", path, "give a name that ends in .npz")
        user, item = entry_rows(self.matrix).astype(np.int32), self.matrix.indices.astype(np.int32)
        arrays = {"user": user, "item": item, "rating": self.matrix.data.astype(np.float32)}
        arrays |= {k: x for k, x in (("timestamp", self.timestamp), ("split", self.split)) if x is not None}
        arrays |= self.users.to_arrays("user_") | self.items.to_arrays("item_")
        with atomic_file(path) as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


@dataclass
class Columns:
    """Columns of a table that `build` makes a matrix of, all with one entry per row."""

    user: Coded
    item: Coded
    where: Callable[[int], str]  # for messages, where row k came from: "ratings.csv, line 17"
    value: np.ndarray | None = None
    timestamp: Any = None  # any form that `timestamps` reads
    split: np.ndarray | None = None
    saved: bool = False  # by `Interactions.save`, so that negative values are dislikes


def collect(batches: Iterable[dict[str, Any]]) -> tuple[dict[str, np.ndarray], list[list]]:
    """All rows of batches of columns by role, with ids as codes; and the distinct users and items."""
    # Ids are coded batch by batch, so that each distinct one is in memory once.
    known = {"user": numbering(), "item": numbering()}
    parts: dict[str, list[np.ndarray]] = defaultdict(list)
    for batch in batches:
        for role, column in batch.items():
            column = codes_of(column, known[role]) if role in known else column
            parts[role].append(column if isinstance(column, np.ndarray) else np.array(column, object))
    return {role: np.concatenate(arrays) for role, arrays in parts.items()}, list(map(list, known.values()))


class Rules(NamedTuple):
    """How rows become entries of a matrix: options of `read_interactions`, checked."""

    min_value: float | None = None
    binarize: bool = False
    duplicates: str = "sum"
    dislike_below: float | None = None


def check_rules(min_value: Any, binarize: Any, duplicates: Any, dislike_below: Any = None) -> Rules:
    """The checked rules of a caller; ``binarize`` None is True if there is a ``min_value``."""
    check_choice("duplicates", duplicates, DUPLICATES)
    check_choice("binarize", binarize, (None, True, False))
    least = None if min_value is None else check_real("min_value", min_value)
    if dislike_below is not None:
        check_real("dislike_below", dislike_below, maximum=np.inf if least is None else least)
    return Rules(least, least is not None if binarize is None else binarize, duplicates, dislike_below)


def refuse(bad: Any, where: Callable[[int], str], problem: str, column: Any = None) -> None:
    """Raise for the first row that is ``bad``; given a ``column``, ``problem`` is a format for its entry."""
    if len(rows := np.flatnonzero(bad)):
        k = int(rows[0])
        raise InputError(f"{where(k)}: {problem if column is None else problem.format(column[k])}")


def refuse_missing(column: Any, problem: str, where: Callable[[int], str]) -> None:
    """Raise for the first missing entry of a column of pandas, polars or arrow."""
    if is_missing := getattr(column, "is_null", None) or getattr(column, "isna", None):
        refuse(is_missing(), where, problem)


def check_values(value: np.ndarray | None, where: Callable[[int], str], rules: Rules) -> None:
    """Refuse values that are not finite, and negative ones unless a rule drops or keeps them."""
    if value is None:
        return
    for bad, what in ((np.isnan(value), "NaN"), (np.isinf(value), "infinite")):
        refuse(bad, where, f"the value is {what}; values must be finite and >= 0")
    keep = "give min_value to keep only the rows from that value on"
    must = f"values must be >= 0 (or {keep}; read_interactions(..., dislike_below=0) reads dislikes)"
    if rules.min_value is None and rules.dislike_below is None:
        refuse(value < 0, where, f"the value {{:g}} is negative; {must}", value)


def stored_values(
    value: np.ndarray, rules: Rules, pair: Callable[[int], str], saved: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Merged values as float32 by the rules, and the mask of those that stay as interactions."""
    with np.errstate(over="ignore"):
        data = value.astype(np.float32)
    kept = data != 0
    if rules.min_value is not None:
        # Compared in float32, the type of stored values, so that 3.3 of a file is >= 3.3. A value of 0 that
        # reaches the threshold is an interaction only if values are binarized.
        kept = (data >= np.float32(rules.min_value)) & (kept | rules.binarize)
    below = rules.dislike_below
    disliked = np.zeros(len(data), bool) if below is None else data < np.float32(below)
    kept |= disliked
    if rules.binarize:
        data[kept] = 1
    problem = "the value {:g} is not usable; values must be >= 0 and fit float32"
    refuse(kept & ~disliked & ~((data >= 0) & np.isfinite(data)), pair, problem, data)
    data[disliked & ~(saved & (data < 0))] = -1  # saved dislikes keep their strength
    return data, kept


def build(columns: Columns, rules: Rules) -> Interactions:
    """The matrix of columns: duplicates are merged, then values below ``min_value`` dropped."""
    # Values below `dislike_below` become -1. Users and items left without interactions are dropped.
    (user, user_labels), (item, item_labels) = columns.user, columns.item
    n_users, n_items = len(user_labels), len(item_labels)
    if max(n_users, n_items) > MAX_INDEX:
        raise ShapeError(f"{n_users} users and {n_items} items: at most {MAX_INDEX} of either are supported")
    if columns.timestamp is not None:
        columns.timestamp = times = timestamps(columns.timestamp, columns.where)
        most = times.max(initial=1)
        least = np.min(times, where=times > 0, initial=most)  # 0 and -1 may stand for unknown times
        low, high = unit_of(float(least)), unit_of(float(most))
        if low is not None and high in (3, 6) and low < high:  # not 9: in nanoseconds, `least` is in 1970
            found = f"timestamps of {least} and {most} are in different units"
            warn(f"{found}, and their order is not that of time; write all in one, or as dates")
    if columns.split is not None:
        columns.split = marks_of(columns.split, columns.where)
    if columns.value is None and rules.dislike_below is not None:
        raise InputError(
            "dislike_below needs values, and there are none: give value=NAME (--value-column NAME)"
        )
    if columns.saved and rules.min_value is None and rules.dislike_below is None:
        rules = rules._replace(dislike_below=0)
    check_values(columns.value, columns.where, rules)
    order = np.arange(len(user))
    if rules.duplicates == "last" and columns.timestamp is not None:
        order = np.argsort(columns.timestamp, kind="stable")
    order = order[group(item[order], n_items)]
    order = order[group(user[order], n_users)]
    user, item = user[order], item[order]
    value = np.ones(len(order)) if columns.value is None else columns.value[order].astype(np.float64)
    if (below := rules.dislike_below or 0) > 0:  # each of some ratings tells, not their sum
        value = np.where((value < np.float32(below)) & ~(columns.saved & (value < 0)), -1, value)
        rules = rules._replace(dislike_below=0)
    marks = {"timestamp": columns.timestamp, "split": columns.split}
    rest = {name: array[order] for name, array in marks.items() if array is not None}

    keys = user * np.int64(n_items) + item  # ascending
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    if len(starts) < len(keys):
        if rules.duplicates == "error":
            k = int(np.diff(keys).argmin()) + 1
            first, again = (columns.where(int(order[at])) for at in (k - 1, k))
            both = f"user {user_labels[user[k]]} and item {item_labels[item[k]]} occur together before"
            raise InputError(f"{again}: {both} ({first}); give duplicates='sum', 'last' or 'max' to merge")
        if rules.duplicates == "last":
            value = value[np.append(starts[1:], len(order)) - 1]
        elif rules.duplicates == "max":
            value = np.maximum.reduceat(value, starts)
        else:
            rated, value = value, np.add.reduceat(value, starts)
            if rules.min_value is not None and rated.max() <= _MOST_STARS:
                highest, least = np.maximum.reduceat(rated, starts), rules.min_value
                risen = np.count_nonzero((value >= least) & (highest < least))
                # Of plays none may reach it alone. Of stars some do, and two low ones are no like.
                if risen and (highest >= least).any():
                    found = f"min_value={least:g} is reached by the sum of several rows by {risen:,} pairs"
                    warn(f"{found}; duplicates='max' or 'last' judges each pair by one row, as stars need it")
        user, item = user[starts], item[starts]
        merge = {"timestamp": np.maximum, "split": np.minimum}
        rest = {name: merge[name].reduceat(array, starts) for name, array in rest.items()}

    def pair(k: int) -> str:
        return f"user {user_labels[user[k]]}, item {item_labels[item[k]]}"

    data, kept = stored_values(value, rules, pair, columns.saved)
    if rules.min_value is not None and not kept.any():
        most = f"values go up to {value.max():g}"
        raise InputError(f"no interaction is left: min_value={rules.min_value:g}; {most}")
    if not kept.all():
        user, item, data = user[kept], item[kept], data[kept]
        rest = {name: array[kept] for name, array in rest.items()}
    user, user_ids = _compact(user, user_labels)
    item, item_ids = _compact(item, item_labels)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(user, minlength=len(user_ids)), dtype=np.int64)])
    matrix = sp.csr_array((data, item.astype(np.int32), indptr), shape=(len(user_ids), len(item_ids)))
    return Interactions(matrix, user_ids, item_ids, **rest)


def _compact(codes: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes and labels without the labels that no code has."""
    present = np.bincount(codes, minlength=len(labels)) > 0
    if present.all():
        return codes, labels
    return (np.cumsum(present) - 1)[codes], labels[present]


def marks_of(column: np.ndarray, where: Callable[[int], str]) -> np.ndarray:
    """A split as int8; marks that belong to none of its three parts are refused."""
    problem = "the split is {}; it must be 0 (train), 1 (test) or 2 (validation)"
    refuse(~np.isin(column, (0, 1, 2)), where, problem, column)
    return column.astype(np.int8, copy=False)


def timestamps(column: Any, where: Callable[[int], str]) -> np.ndarray:
    """Timestamps as int64 or float64; dates become nanoseconds since 1970."""
    missing = "the timestamp is missing; timestamp=None reads no times"
    refuse_missing(column, missing, where)
    if hasattr(getattr(column, "dtype", None), "tz"):  # pandas with zones
        column = column.dt.tz_convert("UTC").dt.tz_localize(None)
    column = np.asarray(column)
    if column.dtype.kind == "M":
        refuse(np.isnat(column), where, missing)
        # What does not fit 64 bits of nanoseconds wraps in numpy, or raises from 2.5 on. Years are compared
        # first, as those that do not fit 64 bits of seconds would wrap in the second comparison.
        for unit, most in (("Y", 292), ("s", 2**63 // 10**9)):
            far = np.abs(column.astype(f"datetime64[{unit}]").astype(np.int64)) > most
            refuse(far, where, "the timestamp {} is not in 1678 to 2262", column)
        return column.astype("datetime64[ns]").astype(np.int64)
    if column.dtype.kind == "m":  # refused here, as `tolist` makes integers of nanoseconds
        refuse([True] * len(column), where, "the timestamp {} is a duration, no point in time", column)
    if column.dtype.kind in "bui":
        wide = column.dtype == np.uint64 and column.max(initial=0) > np.iinfo(np.int64).max
        return column.astype(np.float64 if wide else np.int64, copy=False)
    if column.dtype.kind == "f":
        problem = "the timestamp is {}; it must be finite; timestamp=None reads no times"
        refuse(~np.isfinite(column), where, problem, column)
        return column.astype(np.float64, copy=False)
    items = column.tolist()
    refuse([str(x) in ("None", "nan", "NaT", "<NA>") for x in items], where, missing)
    if not any(map(is_moment, items)) and all(map(is_number, items)):
        return timestamps(column.astype(np.float64), where)
    # Texts or dates: read all as integers, else all as numbers, else all as dates.
    for read in (partial(numbers, kind=int), numbers, moments):
        found, reason = _tried(read, items)
        if found is not None:
            return found
    # The first entry tells what the column should hold; the first entry that is not that is at fault.
    read = moments if _tried(numbers, items[:1])[0] is None else numbers
    bad = next((k for k, item in enumerate(items) if _tried(read, [item])[0] is None), 0)
    neither = f"neither a number nor a date such as 2024-01-31 or 2024-01-31T12:00:00 ({reason[:80]})"
    raise FileFormatError(f"{where(bad)}: the timestamp {str(items[bad])[:60]!r} is {neither}")


def _tried(read: Callable[[list], np.ndarray], items: list) -> tuple[np.ndarray | None, str]:
    """The items as finite numbers; or None, and the reason, if one is none."""
    try:
        found = read(items)
    except (ValueError, OverflowError, TypeError, AttributeError) as error:
        return None, str(error)
    return found if np.isfinite(found).all() else None, ""


def numbers(items: Sequence[str], kind: type = float) -> np.ndarray:
    """Texts as float64 or int64; ``1_000`` is refused, as pyarrow refuses it."""
    if "_" in "".join(items):
        raise ValueError("not a number")
    return np.fromiter(map(kind, items), np.int64 if kind is int else np.float64)
