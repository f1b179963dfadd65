"""Checks of single parameters, whose errors give name and range; classes that declare their parameters."""

import numbers
from collections.abc import Callable, Collection
from contextlib import suppress
from copy import copy
from dataclasses import Field, dataclass, field
from functools import partial
from inspect import cleandoc, signature
from typing import Any, ClassVar, dataclass_transform

import numpy as np

from rgals.runtime.errors import InputTypeError, ParameterError


def plain_number(value: Any) -> Any:
    """A number or boolean of numpy as one of Python, which no product overflows; all else as it is."""
    if isinstance(value, np.floating):
        return float(value)  # `item` of a long double returns a long double
    is_plain = isinstance(value, np.integer | np.bool_) and not isinstance(value, np.timedelta64)
    return value.item() if is_plain else value


def plain_copy(value: Any) -> Any:
    """A copy of an object with parameters, such as a loss, whose numpy numbers become Python numbers."""
    made = copy(value)
    if isinstance(getattr(made, "__dict__", None), dict):  # no string, and no class given by mistake
        vars(made).update({name: plain_number(each) for name, each in vars(made).items()})
    return made


def check_int(name: str, value: Any, minimum: int, maximum: int | None = None) -> int:
    """Return ``value`` as an int in ``[minimum, maximum]`` or raise `ParameterError`."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool | np.timedelta64)
    if not whole or value < minimum or (maximum is not None and value > maximum):
        upper = "" if maximum is None else f" and <= {maximum}"
        raise ParameterError(name, plain_number(value), f"give an integer >= {minimum}{upper}")
    return int(value)


def check_real(
    name: str, value: Any, minimum: float = -np.inf, maximum: float = np.inf, *, open_min: bool = False
) -> float:
    """Return ``value`` as a finite float in the range or raise `ParameterError`."""
    number = np.nan
    if isinstance(value, numbers.Real) and not isinstance(value, bool | np.timedelta64):
        with suppress(OverflowError):  # an integer beyond the range of floats
            number = float(value)
    below = number <= minimum if open_min else number < minimum
    if not np.isfinite(number) or below or number > maximum:
        lower = "" if minimum == -np.inf else f" {'>' if open_min else '>='} {minimum:g}"
        upper = "" if maximum == np.inf else f"{' and' if lower else ''} <= {maximum:g}"
        raise ParameterError(name, value, f"give a finite number{lower}{upper}")
    return number


def check_share(name: str, value: Any, *, zero: bool = False) -> float:
    """Return ``value`` as a float in (0, 1), or with ``zero`` in [0, 1), or raise `ParameterError`."""
    share = check_real(name, value)
    if not 0 <= share < 1 or (share == 0 and not zero):
        both = "0 included" if zero else "neither of them included"
        raise ParameterError(name, value, f"give a number between 0 and 1, {both}")
    return share


def check_random_state(random_state: Any) -> np.random.RandomState:
    """Return the `RandomState` of a seed, of a generator of numpy, or of None for any seed."""
    from sklearn import utils  # slow to import

    if isinstance(random_state, np.random.Generator):
        random_state = int(random_state.integers(np.iinfo(np.int32).max))
    try:
        return utils.check_random_state(random_state)
    except ValueError:
        advice = "give None, a seed (0 to 2^32 - 1), a RandomState or a Generator"
        raise ParameterError("random_state", random_state, advice) from None


def check_choice(name: str, value: Any, choices: tuple | list) -> Any:
    """Return ``value`` if it is one of ``choices`` or raise `ParameterError`."""
    value = plain_number(value)
    if not any(value is c or (isinstance(value, str) and value == c) for c in choices):
        raise ParameterError(name, value, "choose one of " + ", ".join(map(repr, choices)))
    return value


def record_of(name: str, given: Any, kind: type) -> Any:
    """Return the value of a parameter that takes a record of type ``kind``; None becomes its defaults."""
    if given is not None and not isinstance(given, kind):
        raise InputTypeError(f"{name} is a {type(given).__name__}: write {name}={kind.__name__}(...)")
    return kind() if given is None else given


def or_auto(check: Callable[..., Any], name: str, value: Any, *limits: Any, **how: Any) -> None:
    """Check a parameter that may also be "auto", which the message adds."""
    if not (isinstance(value, str) and value == "auto"):
        try:
            check(name, value, *limits, **how)
        except ParameterError as error:
            raise ParameterError(name, value, f"{error.expected}, or 'auto'") from None


def _choice(name: str, value: Any, choices: Collection[Any]) -> None:
    if float in choices and not isinstance(value, str):
        check_real(name, value)
    else:
        check_choice(name, value, [each for each in choices if each is not float])


#: Ranges of parameters, in the words of docstrings, and their checks.
RANGES: dict[str, Callable[[str, Any], Any]] = {
    "bool": partial(check_choice, choices=(True, False)),
    "int > 0": partial(check_int, minimum=1),
    "int > 0, optional": lambda name, value: value is None or check_int(name, value, 1),
    "int >= 0, optional": lambda name, value: value is None or check_int(name, value, 0),
    "float": check_real,
    "float >= 0": partial(check_real, minimum=0),
    "float > 0": partial(check_real, minimum=0, open_min=True),
    "float in [0, 1]": partial(check_real, minimum=0, maximum=1),
    "float in (0, 1]": partial(check_real, minimum=0, maximum=1, open_min=True),
    "float in [0, 1)": partial(check_share, zero=True),
    "float in (0, 1)": check_share,
}


def parameter(default: Any, kind: str | Collection[Any], text: str = "") -> Any:
    """A field of `Declared`: a key of `RANGES`, or the allowed names (`float`: any number); its text."""
    if isinstance(kind, str):
        words, check = kind, RANGES[kind]
    else:
        words = "{" + ", ".join(f'"{name}"' for name in kind if name is not float) + "}"
        words += " or float" if float in kind else ""
        check = partial(_choice, choices=tuple(kind))
    shown = f'"{default}"' if isinstance(default, str) else default
    said = words if default is None else f"{words}, default {shown}"
    lines = "".join(f"\n    {line}" for line in cleandoc(text).splitlines())
    return field(default=default, metadata={"check": check, "said": f"{said}{lines}"})


@dataclass_transform(eq_default=False)
class Declared:
    """Base of classes whose fields are `parameter`: they become dataclasses, documented by their fields."""

    _dataclass: ClassVar[dict[str, bool]] = {"eq": False, "repr": False}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if any(isinstance(value, Field) for value in vars(cls).values()):
            dataclass(**cls._dataclass)(cls)
        text, taken = cleandoc(cls.__doc__ or ""), signature(cls).parameters
        lines = [f"{x.name} : {x.metadata['said']}" for x in cls._parameters() if x.name in taken]
        if text and lines and "\nParameters\n" not in text:
            cls.__doc__ = "\n".join([text, "", "Parameters", "-" * 10, *lines])

    @classmethod
    def _parameters(cls) -> list[Field]:
        found = getattr(cls, "__dataclass_fields__", {}).values()
        return [each for each in found if "said" in each.metadata]

    def validate(self) -> None:
        """Raise `ParameterError` for the first parameter that is out of its range."""
        for each in self._parameters():
            each.metadata["check"](each.name, getattr(self, each.name))
