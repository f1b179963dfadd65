"""The boundary of single parameters: integers, numbers and choices, refused by name and range."""

import numbers
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from rgals.runtime.errors import InputTypeError, ParameterError


def check_int(name: str, value: Any, minimum: int, maximum: int | None = None) -> int:
    """Return ``value`` as an int in ``[minimum, maximum]`` or raise `ParameterError`."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool | np.bool_)
    if not whole or value < minimum or (maximum is not None and value > maximum):
        upper = "" if maximum is None else f" and <= {maximum}"
        raise ParameterError(name, value, f"give an integer >= {minimum}{upper}")
    return int(value)


def check_real(
    name: str, value: Any, minimum: float = -np.inf, maximum: float = np.inf, *, open_min: bool = False
) -> float:
    """Return ``value`` as a finite float in the range or raise `ParameterError`."""
    number = np.nan
    if isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_):
        with suppress(OverflowError):  # an integer beyond all floats
            number = float(value)
    below = number <= minimum if open_min else number < minimum
    if not np.isfinite(number) or below or number > maximum:
        lower = "" if minimum == -np.inf else f" {'>' if open_min else '>='} {minimum:g}"
        upper = "" if maximum == np.inf else f"{' and' if lower else ''} <= {maximum:g}"
        raise ParameterError(name, value, f"give a finite number{lower}{upper}")
    return number


def check_random_state(random_state: Any) -> np.random.RandomState:
    """Return the source of random numbers that a seed or one of numpy's stands for, or None for any."""
    from sklearn import utils  # costly to import

    if isinstance(random_state, np.random.Generator):
        random_state = int(random_state.integers(np.iinfo(np.int32).max))
    try:
        return utils.check_random_state(random_state)
    except ValueError:
        advice = "give None, a seed (0 to 2^32 - 1), a RandomState or a Generator"
        raise ParameterError("random_state", random_state, advice) from None


def check_choice(name: str, value: Any, choices: tuple | list) -> Any:
    """Return ``value`` if it is one of ``choices`` or raise `ParameterError`."""
    if not any(value is c or (isinstance(value, str) and value == c) for c in choices):
        raise ParameterError(name, value, "choose one of " + ", ".join(map(repr, choices)))
    return value


def record_of(name: str, given: Any, kind: type) -> Any:
    """What was given for a parameter that takes a record; None means one with its defaults."""
    if given is not None and not isinstance(given, kind):
        raise InputTypeError(f"{name} is a {type(given).__name__}: write {name}={kind.__name__}(...)")
    return kind() if given is None else given


def or_auto(check: Callable[..., Any], name: str, value: Any, *limits: Any, **how: Any) -> None:
    """Check a parameter that may be "auto" too; the message says so."""
    if not (isinstance(value, str) and value == "auto"):
        try:
            check(name, value, *limits, **how)
        except ParameterError as error:
            raise ParameterError(name, value, f"{error.expected}, or 'auto'") from None
