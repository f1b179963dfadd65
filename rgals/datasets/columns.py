"""Which column of a table holds the users, the items, the values and the timestamps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rgals.runtime.errors import FileFormatError, InputError, ParameterError

ROLES = ("user", "item", "value", "timestamp", "split")
_SHOWN = 30  # column names in a message

# Names under which public data sets and logs call their columns, most telling first.
KNOWN_NAMES = {
    "user": (
        "user", "user_id", "userid", "users", "uid", "u", "reviewerid", "reviewer_id", "username",
        "visitorid", "visitor_id", "customer_id", "customerid", "session_id", "sessionid", "member_id",
    ),
    "item": (
        "item", "item_id", "itemid", "items", "iid", "i", "movieid", "movie_id", "asin", "parent_asin",
        "product_id", "productid", "artistid", "artist_id", "book_id", "anime_id", "recipe_id", "track_id",
        "song_id", "business_id", "gameid", "game_id", "sku", "location_id",
    ),
    "value": (
        "value", "rating", "ratings", "count", "counts", "overall", "score", "stars", "weight", "weights",
        "plays", "play_count", "playcount", "hours", "quantity", "confidence",
    ),
    "timestamp": (
        "timestamp", "time", "ts", "unixreviewtime", "unix_time", "datetime", "date", "created_at",
    ),
    "split": ("split",),
}  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """Position of each column, or None where a role is not filled."""

    user: int
    item: int
    value: int | None = None
    timestamp: int | None = None
    split: int | None = None

    def positions(self) -> dict[str, int]:
        """Role to position, without the empty roles."""
        found = {role: getattr(self, role) for role in ROLES}
        return {role: at for role, at in found.items() if at is not None}


def plain_name(name: str) -> str:
    """A column name in lower case without the type that RecBole's files add (``user_id:token``)."""
    return str(name).strip().strip('"').lower().split(":")[0]


def looks_like_header(fields: Sequence[str]) -> bool:
    """Whether two of the fields are names that columns of interactions usually bear."""
    known = {name for names in KNOWN_NAMES.values() for name in names}
    return sum(plain_name(field) in known for field in fields) >= 2


def choose(
    names: Sequence[str] | None,
    n_columns: int,
    wanted: dict[str, str | int | None],
    numeric: Sequence[bool],
    origin: str,
) -> Choice:
    """Find the column of every role; an `InputError` lists the columns where one is missing or ambiguous.

    ``wanted``: by role a name, a position from 0 (negative from the end), "auto" or None for "not there".
    Without ``names``, an automatic value or timestamp must look ``numeric``. ``origin`` names the table in
    messages.
    """
    found: dict[str, int | None] = {}
    for role in ROLES:
        want = wanted.get(role, "auto")
        if want is None and role in ("user", "item"):
            want = "auto"
        if want is None:
            found[role] = None
        elif want == "auto" and "auto" not in (names or ()):
            found[role] = _guess(role, names, origin)
        else:
            found[role] = _locate(role, want, names, n_columns, origin)
    taken = {at for at in found.values() if at is not None}
    if found["user"] is None and found["item"] is None and (names is None or n_columns == 2):
        # Without names: user, item, then value and timestamp if those columns hold numbers.
        if n_columns < 2:
            raise FileFormatError(f"{origin} has {n_columns} column; users and items need two")
        found["user"], found["item"] = 0, 1
        taken |= {0, 1}
    for position, role in ((2, "value"), (3, "timestamp")):
        auto = wanted.get(role, "auto") == "auto" and found[role] is None and names is None
        free = position < n_columns and position not in taken and numeric[position]
        usual = (found["user"], found["item"]) == (0, 1) and (role == "value" or found["value"] == 2)
        if auto and free and usual:
            found[role] = position
    for role in ("user", "item"):
        if found[role] is None:
            raise InputError(
                f"{origin}: no column is called like {KNOWN_NAMES[role][1]}; give {role}=NAME or a position. "
                f"{_there_are(names, n_columns)}"
            )
    seen: dict[int, str] = {}
    for role, at in found.items():
        if at is not None and seen.setdefault(at, role) != role:
            raise InputError(f"{origin}: column {at} is asked for as both {seen[at]} and {role}")
    user, item = found.pop("user"), found.pop("item")
    assert user is not None and item is not None
    return Choice(user, item, **found)


def _guess(role: str, names: Sequence[str] | None, origin: str) -> int | None:
    if names is None:
        return None
    plain = [plain_name(name) for name in names]
    best = next((known for known in KNOWN_NAMES[role] if known in plain), None)
    if best is None:
        return None
    if plain.count(best) > 1:
        raise InputError(f"{origin}: two columns are called {best!r}; give {role} as a position from 0")
    return plain.index(best)


def _there_are(names: Sequence[str] | None, n_columns: int) -> str:
    if names is None:
        return f"The columns are numbered 0 to {n_columns - 1}; they have no names"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return "The columns are: " + ", ".join(map(str, names[:_SHOWN])) + more


def _locate(role: str, want: str | int, names: Sequence[str] | None, n_columns: int, origin: str) -> int:
    if isinstance(want, bool) or not isinstance(want, str | int):
        raise ParameterError(role, want, "give a column name, a position from 0, or None")
    if names is not None and want in names:
        if list(names).count(want) > 1:  # type: ignore[arg-type]
            raise InputError(f"{origin}: two columns are called {want!r}; give {role} as a position from 0")
        return list(names).index(want)  # type: ignore[arg-type]
    if isinstance(want, int) and -n_columns <= want < n_columns:
        return want % n_columns
    plain = None if names is None else [plain_name(name) for name in names]
    if plain is not None and isinstance(want, str) and plain.count(plain_name(want)) == 1:
        return plain.index(plain_name(want))
    raise InputError(f"{origin}: there is no column {want!r} for {role}. {_there_are(names, n_columns)}")
