"""Interactions in any form that a caller may give them, as a matrix with the ids of its rows and columns."""

# A table of users and items becomes a matrix with ids; it is never mistaken for a matrix of numbers.

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from rgals.datasets.columns import (
    AUTOMATIC,
    IDS,
    column_at,
    column_names,
    indexed,
    is_column,
    is_frame,
    roles_of,
)
from rgals.datasets.ids import IdMap, as_labels, refuse_kind, same_kind
from rgals.matrix.csr import CSR, TimedMatrix
from rgals.matrix.entries import entries, union
from rgals.matrix.validate import as_csr, on_host
from rgals.runtime.errors import InputError, InputTypeError, ParameterError, ShapeError, UnknownIdError, warn

_ALIASES = {"time": "timestamp", "rating": "value"}  # other names of roles in ``columns``
_RISING = 10  # fewer rows may rise by chance
_TABLE = range(2, 5)  # numbers of columns with which a table may be users, items, values and times
_READ = "rgals.datasets.read_interactions"
_KINDS = {"int": "i", "uint": "i", "float": "f", "double": "f", "halffloat": "f", "decimal": "f"}
_KINDS |= {"bool": "b", "boolean": "b"}


@dataclass(frozen=True)
class Given:
    """Interactions that a caller gave: an unchecked matrix, and what else the data say."""

    matrix: Any  # of scipy, a `CSR` or an array, not checked yet
    user_ids: np.ndarray | None = None  # shape (n_users,)
    item_ids: np.ndarray | None = None  # shape (n_items,); there if and only if user_ids are
    timestamp: np.ndarray | None = None  # shape (nnz,), in the order of the matrix's entries
    split: np.ndarray | None = None  # shape (nnz,), marks of training, test and validation
    frame: Any = None  # the caller's frame, if its columns are items
    of_rows: bool = False  # whether the matrix was made from a table, whose rows are in another order

    @property
    def labelled(self) -> bool:
        """Whether rows and columns have ids."""
        return self.user_ids is not None

    @property
    def timed(self) -> Any:
        """The matrix, with its times if there are any."""
        return self.matrix if self.timestamp is None else TimedMatrix.of(self.matrix, self.timestamp)

    def warned(self, name: str = "X", update: bool = False) -> "Given":
        """Itself, after a warning if interactions marked as test or validation are about to be fitted."""
        advice = f"{_READ}(..., split=None) reads no marks"
        if not update:
            advice = f"fit(X.train, user_ids=X.user_ids, item_ids=X.item_ids) leaves them out, and {advice}"
        warn_of_marks(self.n_marked, advice, name)
        return self

    @property
    def n_marked(self) -> int:
        """Interactions that are marked as test or validation."""
        return 0 if self.split is None else int(np.count_nonzero(self.split))

    def refuse_beside(self, **arrays: Any) -> None:
        """Raise if an array that must have the order of the matrix was given beside a table of rows."""
        # It most likely has the order of the rows, and would silently be assigned to other entries.
        for name, array in arrays.items():
            if self.of_rows and array is not None:
                role = re.sub("_ids$|s$", "", name)
                why = f"{name} is in the order of a matrix, which is sorted; a frame has rows in any order"
                give = f"make it a column of the frame, and give {_READ}(frame, {role}=NAME) with its name"
                raise InputError(f"{why}; {give}")

    def ids(self, user_ids: Any, item_ids: Any) -> tuple[Any, Any]:
        """Ids of rows and columns: those given as arguments, else those of the data."""
        self.refuse_beside(user_ids=user_ids, item_ids=item_ids)
        users = self.user_ids if user_ids is None else user_ids
        return users, self.item_ids if item_ids is None else item_ids

    def csr(self) -> sp.csr_array:
        """The matrix, checked and canonical; float64 stays, all other types become float32."""
        dtype = np.float64 if getattr(self.matrix, "dtype", None) == np.float64 else np.float32
        return as_csr(self.matrix, dtype=dtype, dislikes=True).to_scipy(dtype)

    def where(self, matrix: sp.csr_array, mask: np.ndarray) -> Any:
        """The entries of `csr` where ``mask`` is true; with ids and timestamps if there are any."""
        part, time = entries(matrix, mask), None if self.timestamp is None else self.timestamp[mask]
        if self.user_ids is None or self.item_ids is None:
            return part if time is None else TimedMatrix.of(part, time)
        from rgals.datasets.interactions import Interactions

        return Interactions(part, self.user_ids, self.item_ids, time)

    def take(self, matrix: sp.csr_array, users: np.ndarray, items: Any = slice(None)) -> Any:
        """Some rows and columns of `csr`; with ids and timestamps if there are any."""
        whole = self.where(matrix, np.ones(matrix.nnz, bool))
        return whole.take(users, items) if self.labelled else whole[users][:, items]

    def laid_out(
        self, users: Any, items: Any, name: str, *, grow: bool = False
    ) -> tuple[Any, np.ndarray, np.ndarray]:
        """The matrix in the rows and columns of two `IdMap`, and the user and item ids unknown to them."""
        # Interactions of unknown ids are left out, or with `grow` get rows and columns behind the known ones.
        # `users=None` leaves the rows as they are.
        places, unknown, shape = [], [], []
        for side, (ids, labels) in enumerate(((users, self.user_ids), (items, self.item_ids))):
            assert labels is not None
            at, new = np.arange(self.matrix.shape[side]), np.empty(0, np.int64)
            # A model that was fitted to a store shares the memory of its labels: nothing to look up.
            if ids is not None and ids.labels.__array_interface__ != labels.__array_interface__:
                refuse_kind(ids, labels, name)
                at = ids.index(labels, missing="mark")
                new = np.flatnonzero(at < 0)
            n = len(at if ids is None else ids)
            if grow:
                at[new] = n + np.arange(len(new))
                n += len(new)
            places.append(at)
            unknown.append(labels[new])
            shape.append(n)
        if all(np.array_equal(at, np.arange(n)) for at, n in zip(places, shape, strict=True)):
            return self.timed, unknown[0], unknown[1]
        pairs = sp.coo_array(self.matrix.to_scipy() if isinstance(self.matrix, CSR) else self.matrix)
        row, col = (at[index] for at, index in zip(places, pairs.coords, strict=True))
        kept = (row >= 0) & (col >= 0)
        place = row[kept], col[kept]
        out = sp.csr_array((pairs.data[kept], place), shape=(shape[0], shape[1]))
        if self.timestamp is not None:
            times = sp.csr_array((self.timestamp[kept], place), shape=(shape[0], shape[1]))
            out = TimedMatrix.of(out, times.data)
        return out, unknown[0], unknown[1]


def warn_of_marks(n: Any, advice: str, name: str = "X") -> None:
    """Warn that ``n`` marked interactions are about to be fitted, if there are any."""
    if n:
        warn(f"{n:,} interactions of {name} are marked as test or validation, and are fitted, too: {advice}")


def given(X: Any, columns: Any = ..., name: str = "X") -> Given:
    """Interactions in any form."""
    # `columns` says how to read a frame: a dict of the columns by role, "matrix" if the columns are items, or
    # None to decide by the names and types of the columns. `...` is None of callers without this argument,
    # so that errors do not advise it.
    wanted = wanted_columns(columns)
    if isinstance(X, Given):
        return X
    of_rows = is_frame(X)
    if of_rows:  # before attributes are looked up, as columns of a frame are attributes
        X = X.to_pandas() if hasattr(X, "iloc") and hasattr(X, "to_pandas") else X  # cudf's
        if _is_matrix(X, columns, name):
            user_ids, item_ids = _axes(X, name)
            return Given(_matrix(X), user_ids, item_ids, frame=X)
        X = _read(X, wanted, name, columns is not ...)
    if hasattr(X, "matrix") and hasattr(X, "user_ids"):
        times, split = getattr(X, "timestamp", None), getattr(X, "split", None)
        times = getattr(X.matrix, "times", None) if times is None else times
        return Given(X.matrix, as_labels(X.user_ids), as_labels(X.item_ids), times, split, of_rows=of_rows)
    X = on_host(getattr(X, "matrix", X), name)
    if isinstance(X, CSR):
        return Given(X)
    if sp.issparse(X) and getattr(X, "times", None) is not None:
        dtype = np.float64 if X.dtype == np.float64 else np.float32
        made = as_csr(X, name=name, dtype=dtype, dislikes=True)  # sorts times with the entries
        X = made.to_scipy(dtype)
        if made.times is not None:  # else entries were added up
            return Given(TimedMatrix.of(X, made.times), timestamp=made.times)
    if sp.issparse(X):
        return Given(X)
    if hasattr(X, "collect_schema") and hasattr(X, "collect"):
        raise InputTypeError(f"{name} is a lazy frame, which holds no rows yet; give {name}.collect()")
    if isinstance(columns, Mapping):
        problem = f"they are those of a frame, and {name} is a {type(X).__name__}"
        raise ParameterError("columns", columns, problem)
    if columns != "matrix":
        _refuse_lists(X, name)
    return Given(X)


def beside(
    X: Any, users: Any, items: Any, name: str, *, grow: bool = False
) -> tuple[Any, np.ndarray, np.ndarray]:
    """The matrix of ``X`` in the rows and columns of two `IdMap`, and the ids unknown there: `laid_out`."""
    # Data without ids are in the order of the model already.
    found = given(X, name=name)
    if not found.labelled:
        return found.matrix, np.empty(0, object), np.empty(0, object)
    if items is None:
        raise no_ids(name)
    matrix, *unknown = found.laid_out(users, items, name, grow=grow)
    if grow and (len(unknown[0]) or len(unknown[1])):
        new = f"{len(unknown[0])} users and {len(unknown[1])} items that the model does not know"
        warn(f"{name} has {new}: the users count as cold, the items as missed")
    return matrix, *unknown


def by_ids(name: str, filter_: Any, state: Any, rows: np.ndarray | None, labels: Any = None) -> Any:
    """A filter with ids (a store, `Interactions`, a frame) as a matrix; others as they are."""
    # Its rows are ``rows`` of the fit. Users who are not in it (-1) are found by their ``labels``, if these
    # are given; where rows are None, all are.
    if name == "exclude" and isinstance(filter_, tuple | list):
        return tuple(by_ids(name, part, state, rows, labels) for part in filter_)
    if is_frame(filter_) and not (name == "candidates" and is_column(filter_)):
        is_pairs = set(IDS) <= roles_of(column_names(filter_)).keys()  # whatever their score or time is
        if is_pairs and not len(filter_):
            asked = next(each for each in (rows, labels, state.user_factors) if each is not None)
            return None if name == "exclude" else CSR.empty(len(asked), len(state.item_factors))
        found = given(filter_, dict.fromkeys(("value", "timestamp", "split")) if is_pairs else ..., name)
        filter_ = found if found.labelled else filter_  # refused later: its columns may be in another order
    if not hasattr(filter_, "user_ids"):
        return filter_

    def pairs(users: IdMap, at: np.ndarray | None) -> CSR:
        laid_out = beside(filter_, users, state.labelled_items, name)[0]
        matrix = as_csr(laid_out, name=name, dislikes=name == "exclude")
        if at is None:
            return matrix
        taken = matrix.take_rows(np.maximum(at, 0))
        return taken.where((at >= 0)[taken.rows]) if at.min(initial=0) < 0 else taken

    if rows is None and labels is not None:
        return pairs(IdMap(labels, "user"), None)
    known = pairs(state.users, rows)
    if labels is None or rows is None or not (new := rows < 0).any():
        return known
    strangers = IdMap(as_labels([*dict.fromkeys(labels[new].tolist())]), "user")
    if not same_kind(strangers, filter_.user_ids):  # it has no pairs of these
        return known
    at = np.full(len(rows), -1)
    at[new] = strangers.index(labels[new])
    return union([known, pairs(strangers, at)])


def no_ids(name: str) -> InputError:
    """The error for interactions with ids where the model has none."""
    return InputError(
        f"{name} has ids, but what it is used with has none, so that rows and columns cannot be found; "
        f"fit the model to data with ids, or give {name}.matrix if its rows and columns are the model's"
    )


def known_part(X: Any, users: Any, items: Any, name: str, why: str) -> Any:
    """The matrix of ``X`` in the rows and columns of two `IdMap`; a warning counts unknown ids, left out."""
    matrix, *unknown = beside(X, users, items, name)
    if len(unknown[0]) or len(unknown[1]):
        said = f"{name} has {len(unknown[0])} users and {len(unknown[1])} items that {why}"
        warn(f"{said}; their interactions were left out")
    return matrix


def refuse_unknown(unknown: Sequence[np.ndarray], name: str) -> None:
    """Raise for the first unknown user, else for the first unknown item."""
    for what, ids in zip(("user", "item"), unknown, strict=True):
        if len(ids):
            more = f" (and {len(ids) - 1} more are not)" if len(ids) > 1 else ""
            raise UnknownIdError(
                f"{name}: {what} {ids[:1].tolist()[0]!r} is not known to the model{more}; give the rows of "
                f"{name} whose {what} is among model.{what}_ids_"
            )


def wanted_columns(columns: Any) -> dict[str, Any]:
    """Columns by role as `read_interactions` names them; what is not asked for is found automatically."""
    if columns is None or columns is ... or (isinstance(columns, str) and columns == "matrix"):
        return AUTOMATIC
    if isinstance(columns, Mapping):
        wanted = {_ALIASES.get(str(role), str(role)): column for role, column in columns.items()}
        if wanted.keys() <= AUTOMATIC.keys() and len(wanted) == len(columns):
            return AUTOMATIC | wanted
    advice = 'give a dict such as {"user": "who", "item": "what"} (also value, timestamp and split)'
    raise ParameterError("columns", columns, f'{advice}, or "matrix" if rows are users and columns items')


# ------------------------------------------------------------------ frames


def _kinds(frame: Any) -> str:
    """A letter for the type of each column: i integer, f float, b boolean, O anything else."""
    # By the first word of its name: int64, UInt8, halffloat, boolean, Sparse[float64, 0], double[pyarrow].
    types = frame.schema.types if hasattr(frame, "column_names") else frame.dtypes
    words = (re.sub(r"^sparse\[|[^a-z].*", "", str(dtype).lower()) for dtype in types)
    return "".join(_KINDS.get(word, "O") for word in words)


def _is_sparse(frame: Any) -> bool:
    return hasattr(frame, "iloc") and all(getattr(dtype, "fill_value", None) == 0 for dtype in frame.dtypes)


def _matrix(frame: Any) -> Any:
    """The numbers of a frame whose columns are items."""
    if not hasattr(frame, "iloc"):
        columns = [np.asarray(column_at(frame, k)) for k in range(frame.shape[1])]
        return np.reshape(columns, frame.shape[::-1]).T
    if _is_sparse(frame) and frame.shape[1]:
        return frame.sparse.to_coo()
    array = frame.to_numpy()
    # pandas.NA as NaN, which `as_csr` refuses with its row and column.
    return np.where(frame.isna(), np.nan, array) if array.dtype == object else array


def _axes(frame: Any, name: str) -> tuple[Any, Any]:
    """The ids of rows and columns if the axes are named as those of a pivot table, else None twice."""
    axes: list[Any] = [getattr(frame, axis, None) for axis in ("index", "columns")]
    roles = [roles_of(list(getattr(axis, "names", ()))) for axis in axes]
    for axis, found, turned in zip(("index", "columns"), roles, ("item", "user"), strict=True):
        if [*found] == [turned]:  # a transposed pivot table
            why = f"{name}.{axis} is called {found[turned][0]!r}, like {turned}s; rows are users"
            right = f"give {name}.T, or {name}.rename_axis({axis}=None) if its rows are users all the same"
            raise InputError(f"{why} and columns items: {right}")
    if [list(found) for found in roles] != [["user"], ["item"]]:
        return None, None
    return as_labels(axes[0].to_numpy()), as_labels(axes[1].to_numpy())


def _is_matrix(frame: Any, columns: Any, name: str) -> bool:
    """Whether the columns of a frame are items; an ambiguous frame is refused with the lines that decide."""
    if columns is not None and columns is not ...:
        return isinstance(columns, str)
    names, kinds = column_names(frame), _kinds(frame)
    roles, (in_index, problem) = roles_of(names), indexed(frame, name)
    if {"user", "item"} <= roles.keys():
        return False
    numeric = "O" not in kinds
    if in_index and (roles or len(in_index) > 1 or not numeric or len(names) < 2):
        raise InputError(problem)
    few = len(names) in _TABLE and not _is_sparse(frame)
    ids = few and (set(kinds) == {"i"} or (numeric and _holds_ids(_matrix(frame))))
    plain = numeric and not roles and not ids
    first = np.asarray(column_at(frame, 0) if plain and len(names) > 1 else ())
    # Whole numbers that rise from row to row: an index that was read as a column.
    rises = len(first) >= _RISING and first.dtype.kind in "iuf" and (first[1:] > first[:-1]).all()
    if plain and not (rises and (first == np.rint(first)).all()):
        return True
    if plain:
        why = f"the column {names[0]!r} of {name} rises from row to row, like ids of users"
    elif ids and not roles:
        why = f"{name} has {len(names)} columns of integers, which look like ids"
    elif roles:
        role, (column, *_) = next(iter(roles.items()))
        why = f"the column {column!r} of {name} is called like one of {role}s, but users and items need two"
    else:
        why = f"the column {names[kinds.index('O')]!r} of {name} does not hold numbers"
    user, item = map(_quoted, _pair(names, roles, "..."))
    named, whole = f'columns={{"user": {user}, "item": {item}}}, or ', 'columns="matrix"'
    if columns is ...:
        named, whole = "", f"scipy.sparse.csr_array({name}.to_numpy())"
    line = f"give {named}{_READ}({name}, user={user}, item={item}), if each row is an interaction"
    line = f"leave it out, as {name}.set_index({names[0]!r}) does" if plain else line
    matrix = f"; {whole} if each row is a user and each column an item" if numeric else ""
    raise InputError(f"{why}; {line}{matrix}")


def _pair(names: list, roles: dict[str, list], other: Any) -> list:
    """The columns of users and items: by name, else the next unnamed one in order, else ``other``."""
    rest = iter([name for name in names if name not in sum(roles.values(), [])])
    return [roles[role][0] if role in roles else next(rest, other) for role in ("user", "item")]


def _quoted(name: Any) -> str:
    return f'"{name}"' if isinstance(name, str) else repr(name)


def _read(frame: Any, wanted: dict[str, Any], name: str, advised: bool) -> Any:
    """`Interactions` from a table of users and items; values of equal pairs are added."""
    from rgals.datasets.frames import frame_columns
    from rgals.datasets.interactions import Rules, build

    names = column_names(frame)
    used = [*wanted.values(), *sum(roles_of(names).values(), [])]
    unused = [n for n, kind in zip(names, _kinds(frame), strict=True) if kind in "if" and n not in used]
    try:
        columns = frame_columns(frame, wanted, "the table")
        data = build(columns, Rules())
    except (InputError, InputTypeError) as error:
        if "dislike_below" in str(error):
            raise type(error)(f"{error}; both are arguments of {_READ}") from error
        if "the timestamp" not in str(error) or wanted["timestamp"] != "auto":
            raise
        why = str(error).partition("; timestamp=None")[0]
        raise type(error)(f"{why}; {_READ}({name}, timestamp=None) leaves the column out") from error
    if columns.value is None and wanted["value"] is not None and unused:
        column = _quoted(unused[0])
        named = f'columns={{"value": {column}}} or ' if advised else ""
        why = f"no column of {name} is called like a value, so that every interaction has the weight 1"
        warn(f"{why}; {named}{_READ}({name}, value={column}) takes that column, value=None takes none")
    return data


# ------------------------------------------------------------------ what is neither a frame nor a matrix


def _refuse_lists(X: Any, name: str) -> None:
    """Refuse what is no numeric matrix, and arrays and lists whose columns look like users and items."""
    must = f"{name} must be a matrix or a frame"
    if isinstance(X, str | bytes) or hasattr(X, "__fspath__"):
        text = X.decode(errors="replace") if isinstance(X, bytes) else str(X)
        read = "rgals.matrix.open_matrix" if os.path.isdir(text) else _READ
        raise InputTypeError(f'{must}, not {type(X).__name__}; give {read}("{text}") if that names a file')
    fields = list(X) if isinstance(X, Mapping) else getattr(getattr(X, "dtype", None), "names", None)
    if fields is not None:  # a dict or a structured array
        keys, columns = list(fields), "users, items"
        if len(keys) > 1:
            roles = roles_of(keys)
            used = _pair(keys, roles, keys[0]) + roles.get("value", [])[:1]
            columns = ", ".join(f"{name}[{key!r}]" for key in used)
        give = f"give {_READ}(({columns})) if that holds columns"
        raise InputTypeError(f"{must}, not {type(X).__name__}; {give}")
    if hasattr(X, "reset_index") and getattr(X, "ndim", 0) == 1:  # a pandas Series
        advice = f"give {name}.reset_index() if its index holds the users and items"
        raise ShapeError(f"{name} is one column, a Series, and not a 2D matrix; {advice}")
    if isinstance(X, tuple) and len(X) in _TABLE and all(getattr(c, "ndim", 0) == 1 for c in X):
        raise InputTypeError(
            f"{name} is a tuple of {len(X)} arrays; give {_READ}({name}) if they are users and items (values "
            "and timestamps), np.array(...) if each is a user's row"
        )
    arrays = "__array__", "__array_interface__", "__array_struct__", "__dlpack__"
    if not isinstance(X, list | tuple) and not any(hasattr(X, kind) for kind in arrays):
        lines = f"; give {_READ}(tuple(zip(*{name}))) if it gives records" if hasattr(X, "__next__") else ""
        lines = f"; give {name}.read_all()" if hasattr(X, "read_all") else lines  # arrow's batches
        raise InputTypeError(f"{must}, users x items, not {type(X).__name__}{lines}")
    first = X[0] if isinstance(X, list | tuple) and len(X) else None
    if isinstance(first, Mapping):
        raise InputError(f"{name} is a list of records; give pandas.DataFrame({name})")
    if isinstance(first, list | tuple) and any(isinstance(field, str | bytes) for field in first):
        give = f"give {_READ}(tuple(zip(*{name})))"
        if isinstance(X, tuple):
            give = f"give {_READ}({name}) if it holds columns, {_READ}(tuple(zip(*{name})))"
        give += f" if each is a user and an item; of one user's ITEMS {_READ}(([0] * len(ITEMS), ITEMS))"
        raise InputError(f"{name} is a {type(X).__name__} of records, not of numeric rows; {give}")
    if isinstance(X, np.ndarray) and X.ndim == 2 and X.size and isinstance(X[0, 0], str | bytes):
        advice = f"give {_READ}(tuple({name}.T)) if each row is an interaction"
        raise InputTypeError(f"{name} is an array of text, not of numbers; {advice}")
    columns = f"tuple({name}.T)"
    if isinstance(first, list | tuple) and all(isinstance(row, list | tuple) for row in X):
        even = len({len(row) for row in X}) == 1
        if even and isinstance(X, tuple) and len(X) in _TABLE:  # columns, as `read_interactions` takes them
            X, columns = np.array(X).T, name
        elif even and len(first) in _TABLE:  # records, as of a cursor
            X, columns = np.array(X), f"tuple(zip(*{name}))"
    if isinstance(X, np.ndarray) and X.dtype.kind in "iuf" and X.ndim == 2 and _holds_ids(X):
        why = f"the first columns of {name} hold integers up to {X[:, :2].max():g}, which look like ids"
        whole = f"scipy.sparse.csr_array({name}) if each row is a user"
        raise InputError(f"{why}; give {_READ}({columns}) if each row is an interaction, {whole}")


def _holds_ids(X: np.ndarray) -> bool:
    """Whether the first two of a few columns look like ids rather than like weights of items."""
    # Weights of so few items are small, and some are zero.
    if X.dtype.kind not in "iuf" or X.shape[1] not in _TABLE or len(X) <= X.shape[1]:
        return False
    pair = X[:, :2]
    whole = np.isfinite(pair).all() and (pair == np.rint(pair)).all()
    return bool(whole and (pair == 0).mean() < 0.1 and pair.max() >= 10 and pair.min() >= 0)
