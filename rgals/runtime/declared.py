"""Parameters that are declared once: a field has its default, its range and its lines in the docstring."""

from collections.abc import Callable, Collection
from dataclasses import Field, dataclass, field
from functools import partial
from inspect import cleandoc, signature
from typing import Any, ClassVar, dataclass_transform

from rgals.runtime.checks import check_choice, check_int, check_real
from rgals.runtime.errors import ParameterError


def _below_one(name: str, value: Any, zero: bool = True) -> None:
    if not 0 <= check_real(name, value) < 1 or (value == 0 and not zero):
        raise ParameterError(name, value, f"give a number in {'[' if zero else '('}0, 1)")


def _optional_int(name: str, value: Any, minimum: int) -> None:
    if value is not None:
        check_int(name, value, minimum)


def _choice(name: str, value: Any, choices: Collection[Any]) -> None:
    if float in choices and not isinstance(value, str):
        check_real(name, value)
    else:
        check_choice(name, value, [each for each in choices if each is not float])


#: What a parameter may be, in the words of its docstring, and the check that refuses all else.
RANGES: dict[str, Callable[[str, Any], Any]] = {
    "bool": lambda name, value: value,
    "int > 0": partial(check_int, minimum=1),
    "int > 0, optional": partial(_optional_int, minimum=1),
    "int >= 0, optional": partial(_optional_int, minimum=0),
    "float": check_real,
    "float >= 0": partial(check_real, minimum=0),
    "float > 0": partial(check_real, minimum=0, open_min=True),
    "float in [0, 1]": partial(check_real, minimum=0, maximum=1),
    "float in (0, 1]": partial(check_real, minimum=0, maximum=1, open_min=True),
    "float in [0, 1)": _below_one,
    "float in (0, 1)": partial(_below_one, zero=False),
}


def parameter(default: Any, kind: str | Collection[Any], text: str = "") -> Any:
    """A parameter, of a key of `RANGES`, or one of some names, and ``float`` for a number; its lines."""
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
    """Base of classes whose parameters are declared by `parameter`: they become dataclasses."""

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
        """Check the parameters; a `ParameterError` names one that is out of its range."""
        for each in self._parameters():
            each.metadata["check"](each.name, getattr(self, each.name))
