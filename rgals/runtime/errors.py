"""The typed errors and warnings of rgals: each names what is wrong, where, and what would be right."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["RgalsError", "InputError", "InputTypeError", "ParameterError", "ShapeError", "UnknownIdError"]
__all__ += ["FileFormatError", "ModelFileError", "CheckpointError", "InsufficientMemoryError", "ForkError"]
__all__ += ["NumericalError", "MissingDependencyError", "DeviceError", "DeviceMemoryError", "DownloadError"]
__all__ += ["ValuesWarning", "PrecisionWarning"]


class RgalsError(Exception):
    """Base class of every error that rgals raises on purpose."""


class InputError(RgalsError, ValueError):
    """Data or an argument cannot be used: wrong values, range, shape or content."""


class InputTypeError(RgalsError, TypeError):
    """Data or an argument is of a type that cannot be used."""


class ParameterError(InputError):
    """A parameter of an estimator, loss or function is out of its range.

    Parameters
    ----------
    name : str
        The parameter, as the caller wrote it.
    value : object
        What was given.
    expected : str
        What would have been right.
    """

    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(f"{name}={value!r} is not valid: {expected}")
        self.name = name
        self.value = value
        self.expected = expected

    def __reduce__(self) -> tuple:
        return type(self), (self.name, self.value, self.expected)


class ShapeError(InputError):
    """The dimensions of two things do not fit; the message names both."""


class UnknownIdError(InputError, LookupError):
    """A user or an item that the model does not know."""


class FileFormatError(InputError):
    """A file cannot be understood; the message names the file and, for text, the line."""


class ModelFileError(RgalsError, ValueError):
    """A saved model or checkpoint cannot be loaded: damaged, hostile or of a newer version."""


class CheckpointError(InputError):
    """A checkpoint belongs to another fit; the message names what differs."""


class InsufficientMemoryError(RgalsError, MemoryError):
    """A computation would need more memory than there is; raised before anything is allocated."""


class ForkError(RgalsError, RuntimeError):
    """Raised by version 0.1 where SGD could not run in a forked process; nothing raises it now."""


class NumericalError(RgalsError, ArithmeticError):
    """A system is not positive definite or a value is not finite; the message names the row."""


class MissingDependencyError(RgalsError, ImportError):
    """An optional package is needed; the message holds the line that installs it."""


class DeviceError(RgalsError, RuntimeError):
    """A GPU was asked for that is not there or cannot be used; the message says what would help."""


class DeviceMemoryError(DeviceError, MemoryError):
    """The device has too little memory, also for the smallest pieces that the work can be cut into."""


class DownloadError(RgalsError, OSError):
    """A file cannot be fetched; the message names it and where to put it by hand."""


class ValuesWarning(UserWarning):
    """Values may be unfit as weights; the message says what ``values="auto"`` took, and the other ways."""


class PrecisionWarning(UserWarning):
    """A result in float32 cannot be trusted; the message says why and what to do."""


_heard: ContextVar[list[str] | None] = ContextVar("_heard", default=None)


@contextmanager
def hear() -> Iterator[list[str]]:
    """Collect what `warn` says in this thread; `warnings.catch_warnings` would act on all threads."""
    token = _heard.set(said := list[str]())
    try:
        yield said
    finally:
        _heard.reset(token)


def warn(said: str, kind: type[Warning] = UserWarning) -> None:
    """Warn with the location of the code that called rgals, outside all functions of the package."""
    heard = _heard.get()
    if heard is not None:
        heard.append(said)
        return
    frame, depth = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "rgals":
        frame, depth = frame.f_back, depth + 1
    warnings.warn(said, kind, stacklevel=depth)
