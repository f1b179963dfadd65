"""Where compiled code is kept: written to the first of numba's folders that can be, read from all of them."""

from __future__ import annotations

import functools
import inspect
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any

from numba.core import caching, config


@functools.cache
def warn_uncached(reason: str) -> None:
    """Warn, once for each reason, that compiled code is lost with the process."""
    warnings.warn(
        f"compiled kernels are not cached, so that every process compiles them again: {reason}",
        RuntimeWarning,
        stacklevel=2,
    )


@functools.cache
def _writable(folder: str) -> bool:
    try:
        os.makedirs(folder, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def _locators(implementation: Any, test: Callable[[str], bool]) -> list[Any]:
    """Numba's classes of places, with another test of the folder."""

    def ensure_cache_path(self: Any) -> None:
        folder = self.get_cache_path()
        if folder.startswith("~") or not test(folder):  # there is no home: no folder of that name either
            raise OSError(folder)

    changed = {"ensure_cache_path": ensure_cache_path}
    return [type(place.__name__, (place,), changed) for place in implementation._locator_classes]


@functools.cache
def _kind(cache: Any) -> Any:
    """Numba's caches, in the first folder that can be written, else in the first that is there."""
    places = [*_locators(cache._impl_class, _writable), *_locators(cache._impl_class, os.path.isdir)]
    implementation = type("Implementation", (cache._impl_class,), {"_locator_classes": places})
    return type("Cache", (cache,), {"_impl_class": implementation})


def cache_of(function: Callable[..., Any]) -> Any:
    """Numba's cache of a function; `RuntimeError` where no folder is there."""
    return _kind(caching.FunctionCache)(function)


def find(function: Callable[..., Any], first: str, load: Callable[[str], Any]) -> Any:
    """What ``load`` gives for the first folder that has the function, or None; ``first`` is its own."""
    for folder in chain([first], _folders(function)):
        with suppress(OSError):  # somebody else's, who lets nobody read it
            data = load(folder)
            if data is not None:
                return data
    return None


def _folders(function: Callable[..., Any]) -> Iterator[str]:
    places = _locators(caching.FunctionCache._impl_class, os.path.isdir)
    for locator in places[:1] if config.CACHE_DIR else places:  # a folder that was named is the only one
        place = locator.from_function(function, inspect.getfile(function))
        if place is not None:
            yield place.get_cache_path()
