"""Which column of a table holds the users, the items, the values and the timestamps."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rgals.runtime.errors import FileFormatError, InputError, ParameterError

ROLES = ("user", "item", "value", "timestamp", "split")
IDS, NUMBERS = ("user", "item"), ("value", "split")
# Batches of rows: columns by role, ids and times as texts, and the bytes of the file read so far.
Batches = Iterator[tuple[dict[str, Any], int]]
#: The columns that are asked for by default: found by their names.
AUTOMATIC: dict[str, Any] = dict(zip(ROLES, (None, None, "auto", "auto", "auto"), strict=True))
_SHOWN = 30  # column names listed in a message
_FEW = 5  # columns of a frame up to which a name of one letter ("u", "i") tells a role

# Usual names of columns in public data sets and logs, by role, the most telling first: see `role_of`.
_NAMES = {
    "user": """user userid users uid u reviewerid username visitorid visitor customerid customer clientid
        client accountid account memberid playerid readerid viewerid sessionid userkey useridx""",
    "item": """item itemid items iid i movieid movie asin parentasin productid product artistid artist bookid
        isbn animeid recipeid trackid songid videoid articleid newsid businessid gameid sku locationid
        poiid courseid itemkey itemidx""",
    "value": """value rating ratings bookrating count counts overall score stars weight weights plays
        playcount hours quantity confidence""",
    "timestamp": """timestamp time ts unixreviewtime unixtime datetime date createdat eventtime orderdate
        purchasedate""",
    "split": "split",
}
KNOWN_NAMES = {role: tuple(names.split()) for role, names in _NAMES.items()}
_ROLES_BY_NAME = {name: role for role, names in KNOWN_NAMES.items() for name in names}


def is_frame(X: Any) -> bool:
    """Whether something is a pandas or polars DataFrame or an arrow table."""
    # Attributes of arrow's, polars' and pandas' frames.
    return any(hasattr(X, name) for name in ("column_names", "get_column", "iloc")) and hasattr(X, "columns")


def is_column(X: Any) -> bool:
    """Whether something is a frame of one column, which is accepted wherever ids are."""
    return is_frame(X) and X.shape[1] == 1


def column_names(frame: Any) -> list:
    """The names of the columns of a frame."""
    return list(frame.column_names if hasattr(frame, "column_names") else frame.columns)


def column_at(frame: Any, k: int) -> Any:
    """A column of a frame by its position."""
    if hasattr(frame, "get_column"):
        column = frame.to_series(k)
        # numpy has no integers of 128 bits.
        return np.array(column.to_list(), object) if "128" in str(column.dtype) else column
    return whole(frame.column(k)) if hasattr(frame, "column_names") else frame.iloc[:, k]


def whole(column: Any) -> Any:
    """A column; arrow's chunks of dictionary arrays combined into one."""
    # numpy reads null in chunked dictionaries as the last entry of the dictionary.
    chunked = hasattr(column, "combine_chunks") and hasattr(column.type, "index_type")
    return column.combine_chunks() if chunked else column


def plain_name(name: str) -> str:
    """A name in lower case, without separators and the type that RecBole adds (``User_ID:token``)."""
    return re.sub(r'[\s"_.-]', "", str(name).lower().split(":")[0])


def role_of(name: Any) -> str | None:
    """The role that columns of this name usually have."""
    return _ROLES_BY_NAME.get(plain_name(name)) if isinstance(name, str) else None


def roles_of(names: list) -> dict[str, list]:
    """The columns that have a usual name of a role, by role."""
    told = [(name, role_of(name)) for name in names if len(names) <= _FEW or len(plain_name(name)) > 1]
    found = {role: [name for name, its in told if its == role] for role in KNOWN_NAMES}
    return {role: columns for role, columns in found.items() if columns}


def indexed(frame: Any, name: str) -> tuple[dict[str, list], str]:
    """Levels of a frame's index with usual names, by role, and the error if they are needed as columns."""
    index = [told for told in getattr(getattr(frame, "index", None), "names", []) if told]
    text = ", ".join(map(repr, index))
    return roles_of(index), f"{name} has {text} in its index, not in a column; give {name}.reset_index()"


def choose(
    names: Sequence[str] | None, wanted: dict[str, Any], origin: str, numeric: Sequence[bool] = ()
) -> dict[str, int]:
    """Position of the column of every role that there is; an `InputError` if a user or item is not found."""
    # `wanted`: by role a name, a position from 0 (negative: from the end), "auto", or None to leave it out.
    # `numeric`: whether each column of a table without `names` holds numbers, as automatic values and times
    # must. `origin` names the table in messages.
    listed, plain = list(names or ()), list(map(plain_name, names or ()))
    n_columns = len(numeric if names is None else listed)
    if names is None:
        there_are = f"The columns are numbered 0 to {n_columns - 1}; they have no names"
    else:
        more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
        there_are = "The columns are: " + ", ".join(map(str, listed[:_SHOWN])) + more

    def only(role: str, called: list, name: Any) -> int:
        if called.count(name) > 1:
            raise InputError(f"{origin}: two columns are called {name!r}; give {role} as a position from 0")
        return called.index(name)

    def locate(role: str, want: Any) -> int:
        if isinstance(want, bool) or not isinstance(want, str | int | tuple):  # tuple: of a MultiIndex
            raise ParameterError(role, want, "give a column name, a position from 0, or None")
        if want in listed:
            return only(role, listed, want)
        if isinstance(want, int) and -n_columns <= want < n_columns:
            return want % n_columns
        if isinstance(want, str) and plain.count(plain_name(want)) == 1:
            return plain.index(plain_name(want))
        raise InputError(f"{origin}: there is no column {want!r} for {role}. {there_are}")

    wanted = {role: "auto" if wanted[role] is None and role in IDS else wanted[role] for role in ROLES}
    found: dict[str, int] = {}
    # Columns that are asked for come first, so that none is found a second time by its usual name.
    for role, want in sorted(wanted.items(), key=lambda each: each[1] == "auto"):
        if want == "auto" and "auto" not in listed:
            left = [name for k, name in enumerate(plain) if role in IDS or k not in found.values()]
            if best := next((known for known in KNOWN_NAMES[role] if known in left), None):
                found[role] = only(role, plain, best)
        elif want is not None:
            found[role] = locate(role, want)
    if not found.keys() & {*IDS} and (names is None or n_columns == 2):
        if n_columns < 2:
            raise FileFormatError(f"{origin} has {n_columns} column; users and items need two")
        found |= {"user": 0, "item": 1}
    for position, role in ((2, "value"), (3, "timestamp")):
        # Without names: user, item, then value and timestamp, if these columns hold numbers.
        usual = names is None and all(found.get(before) == k for k, before in enumerate(ROLES[:position]))
        free = usual and position < n_columns and position not in found.values() and numeric[position]
        if free and wanted[role] == "auto":
            found[role] = position
    seen: dict[int, str] = {}
    for role in ROLES:
        if role in IDS and role not in found:
            give = f"give {role}=NAME (rgals: --{role}-column NAME) or a position. {there_are}"
            raise InputError(f"{origin}: no column is called like {role}_id; {give}")
        if role in found and seen.setdefault(found[role], role) != role:
            both = f"{seen[found[role]]} and {role}"
            raise InputError(f"{origin}: column {found[role]} is asked for as both {both}")
    return found


def is_number(item: Any) -> bool:
    """Whether something is a number or the text of one; ``1_000``, which Python accepts, is not."""
    try:
        float(item)
    except (ValueError, TypeError, OverflowError):
        return False
    return "_" not in str(item)
