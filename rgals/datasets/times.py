"""Dates and times in their usual written forms, as nanoseconds since 1970 (UTC)."""

import re
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from rgals.datasets.ids import codes_of, numbering
from rgals.matrix.weighting import unit_of
from rgals.runtime.checks import check_real
from rgals.runtime.errors import ParameterError

_SECOND, _DAY = 10**9, 86_400  # in nanoseconds, in seconds
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_NAME = r"(?P<name>[a-z]{3})[a-z]*\.?"
_CLOCK = (
    r"(?P<hour>\d{1,2}):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:[.,](?P<part>\d{1,9}))?)?"
    r"(?:\s?(?P<half>[ap])\.?m\.?)?"
)
_SECONDS_OF = {"s": 1, "min": 60, "h": 3600, "d": _DAY, "w": 7 * _DAY, "y": 365.25 * _DAY}  # in seconds
_ZONE = r"(?:z|utc|gmt|(?P<sign>[+-])(?P<zone_hours>\d\d)(?::?(?P<zone_minutes>\d\d))?)"
_DATES = (
    r"(?P<year>\d{4})(?P<mark>[-/.])(?P<month>\d{1,2})(?P=mark)(?P<day>\d{1,2})",  # 2024-01-31
    r"(?P<first>\d{1,2})(?P<mark>[-/.])(?P<other>\d{1,2})(?P=mark)(?P<year>\d{4})",  # 31.01.2024, 1/31/2024
    r"(?P<month>\d{1,2}) (?P<day>\d{1,2}), ?(?P<year>\d{4})",  # 01 31, 2024: Amazon's reviews
    rf"(?:[a-z]{{3,9}}, ?)?(?P<day>\d{{1,2}})[ -]{_NAME}[ -](?P<year>\d{{4}})",  # Wed, 31 Jan 2024
    rf"(?:[a-z]{{3,9}},? )?{_NAME} (?P<day>\d{{1,2}}),? (?P<year>\d{{4}})",  # January 31, 2024
)
_FORMS = [re.compile(rf"{day}(?:[t ,]\s*{_CLOCK})?(?:\s?{_ZONE})?") for day in _DATES] + [
    re.compile(rf"[a-z]{{3}} {_NAME} (?P<day>\d{{1,2}}) {_CLOCK} {_ZONE} (?P<year>\d{{4}})")  # Twitter's
]
# Dates that numpy parses, which is fast: 2024-01-31, with or without a time of day, without a zone.
_PLAIN = re.compile(r"(?:1[7-9]|2[01])\d\d-\d\d-\d\d(?:[T ]\d\d(?::\d\d(?::\d\d(?:\.\d{1,9})?)?)?)?")


def moments(items: list[Any]) -> np.ndarray:
    """Texts, dates and datetimes of one column, int64; without a zone they are UTC."""
    # A `ValueError` says which text is no date, or that the day and the month cannot be told apart.
    known = numbering()
    codes = codes_of(items, known)
    texts = list(map(_text, known))
    if all(map(_PLAIN.fullmatch, texts)):
        found = np.array(texts, "datetime64[ns]").astype(np.int64)
    else:
        fields = list(map(_fields, texts))
        day_first = _day_first(fields)
        numbers = [_nanoseconds(each, day_first) for each in fields]
        if any(abs(number) >= 1 << 63 for number in numbers):
            raise ValueError("dates must lie between 1678 and 2262")
        found = np.array(numbers, np.int64)
    return found[codes]


def _text(item: Any) -> str:
    """A text without spaces around it; a date or a datetime of Python, pandas or numpy in ISO 8601."""
    if isinstance(item, str):
        return item.strip()
    if isinstance(item, np.datetime64):
        return str(np.datetime_as_string(item, unit="auto"))  # which wraps no year, however far
    if not hasattr(item, "isoformat"):
        start = "; give .dt.to_timestamp() of it" if hasattr(item, "start_time") else ""
        raise ValueError(f"a {type(item).__name__} is no point in time{start}")
    return item.isoformat()


def _fields(text: str) -> dict[str, str]:
    """The parts of a date by the names of the groups in `_FORMS`."""
    words = text.lower()
    for form in _FORMS:
        if match := form.fullmatch(words):
            return {name: found for name, found in match.groupdict().items() if found is not None}
    raise ValueError(f"{text!r} is no date")


def _day_first(dates: list[dict[str, str]]) -> bool:
    """Whether 01/02/2024 is in February, as the other dates of the column say."""
    pairs = [(int(d["first"]), int(d["other"])) for d in dates if "first" in d and d["mark"] != "."]
    day_first = any(first > 12 for first, _ in pairs)
    month_first = any(first <= 12 < other for first, other in pairs)
    if day_first and month_first:
        raise ValueError("some dates have the day first and some the month")
    if not (day_first or month_first) and any(first != other for first, other in pairs):
        raise ValueError("the day and the month cannot be told apart; write 2024-01-31")
    return day_first


def _nanoseconds(found: dict[str, str], day_first: bool) -> int:
    """Nanoseconds from 1970 (UTC) to a date of `_fields`."""
    if "first" in found:
        turned = found["mark"] == "." or day_first
        found["day"], found["month"] = (found["first"], found["other"])[:: 1 if turned else -1]
    month = 1 + _MONTHS.index(found["name"]) if "name" in found else int(found["month"])
    hour, minute, second = (int(found.get(name, 0)) for name in ("hour", "minute", "second"))
    if "half" in found:
        if not 1 <= hour <= 12:
            raise ValueError(f"{hour} {found['half']}m is no hour")
        hour = hour % 12 + 12 * (found["half"] == "p")
    when = datetime(int(found["year"]), month, int(found["day"]), hour, minute, second)
    seconds = (when - datetime(1970, 1, 1)) // timedelta(seconds=1)
    ahead = 3600 * int(found.get("zone_hours", 0)) + 60 * int(found.get("zone_minutes", 0))
    seconds -= ahead if found.get("sign") == "+" else -ahead
    return seconds * _SECOND + int(found.get("part", "0").ljust(9, "0"))


def is_moment(item: Any) -> bool:
    """Whether something is a text, a date or a datetime rather than a number."""
    return isinstance(item, str | np.datetime64) or hasattr(item, "isoformat")


def in_unit_of(cut: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Nanoseconds converted to the unit of ``times`` (s, ms, us or ns), which their median tells."""
    middle = float(np.median(times)) if len(times) else 0.0
    if (power := unit_of(middle)) is None:
        raise ValueError(f"timestamps of about {middle:g} are no times since 1970; give the cut as a number")
    return cut / 10 ** (9 - power) if power < 9 else cut


def half_life_in(given: Any, times: np.ndarray | None = None) -> float:
    """A checked half-life in the unit of the timestamps: a number as it is, a text as "90d" converted."""
    if not isinstance(given, str | timedelta | np.timedelta64):
        return check_real("half_life", given, 0.0, open_min=True)
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", str(given).strip())
    if found is None or found[2] not in _SECONDS_OF or float(found[1]) == 0:
        advice = "give a number in the unit of the timestamps, or a text such as '90d'"
        raise ParameterError("half_life", given, f"{advice}, of {', '.join(_SECONDS_OF)}")
    nanoseconds = float(found[1]) * _SECONDS_OF[found[2]] * _SECOND
    try:
        return nanoseconds if times is None else float(in_unit_of(np.array(nanoseconds), times))
    except ValueError as error:
        why = str(error).partition(";")[0]
        raise ParameterError("half_life", given, f"{why}; give a number in their unit") from None
