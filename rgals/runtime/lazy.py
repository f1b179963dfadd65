"""Made on first use: names of a package, properties of an object, imports of optional packages."""

import functools
import gc
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

from rgals.runtime.errors import MissingDependencyError

Value = TypeVar("Value")


def later(package: str, modules: dict[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package that imports its names, listed by module, on first use."""
    # A module with an empty string of names is itself an attribute of the package.
    names = {name: f"{package}.{module}" for module, listed in modules.items() for name in listed.split()}
    whole = {module: f"{package}.{module}" for module, listed in modules.items() if not listed}
    here = vars(sys.modules[package])

    def find(name: str) -> Any:
        if name in whole:
            return importlib.import_module(whole[name])  # importing binds it in the package
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with uncollected():
            here[name] = found = getattr(importlib.import_module(names[name]), name)
        return found

    def public() -> list[str]:
        rooms = {f"{package}.{name}": name for name in here if not name.startswith("_")}
        loaded = {name for room, name in rooms.items() if hasattr(sys.modules.get(room), "__all__")}
        return sorted({*here.get("__all__", ()), *loaded, *names, *whole})

    return find, public


@contextmanager
def uncollected() -> Iterator[None]:
    """Import something large without looking for garbage on the way."""
    # Every few imports the collector goes through all objects of all modules, and finds next to nothing.
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def optional(module: str, needed: str) -> Any:
    """Import a module of an optional package, or raise a `MissingDependencyError` that says ``needed``."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(needed) from error
    except ImportError as error:  # installed, but not with the versions of other packages
        raise MissingDependencyError(f"{needed} ({error})") from error


class cached_property(functools.cached_property[Value]):  # noqa: N801
    """`functools.cached_property` without a lock."""

    # In Python 3.11 all objects of a class share a lock for each property: a child that is forked while
    # another thread computes the property of any object would wait for ever.

    def __init__(self, make: Callable[[Any], Value]) -> None:
        super().__init__(make)
        self.lock: Any = nullcontext()
