"""How kernels are compiled: entries, which Python calls, and inner functions, which compiled code calls."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import numba
from numba import njit
from numba.core import caching

from rgals.kernels import library
from rgals.kernels.cache import Entries, cache_of


class _Entries(Entries):
    def load(self, key: tuple) -> Any:
        """What was saved, or None; what it calls of the library is there."""
        data = super().load(key)
        if data is not None:
            library.load_for(data)
        return data


@functools.cache
def _warn_uncached(reason: str) -> None:
    warnings.warn(
        f"compiled kernels are not cached, so that every process compiles them again: {reason}",
        RuntimeWarning,
        stacklevel=2,
    )


def entry(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile a function that Python calls, and cache it; where that is not possible, warn.

    Parameters
    ----------
    function : function, optional
        What is decorated by a plain ``@entry``.
    **options
        Of `numba.njit`, for ``@entry(nogil=True)``.

    Returns
    -------
    numba dispatcher
    """
    if function is None:
        return lambda function: entry(function, **options)
    dispatcher: Any = njit(**options)(function)
    if numba.config.DISABLE_JIT:
        return dispatcher
    try:
        if not isinstance(dispatcher._cache, caching.NullCache):
            raise AttributeError("a function has a cache before it is given one")
        dispatcher._cache = cache_of(function, _Entries)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        _warn_uncached("numba can write to no folder. Set NUMBA_CACHE_DIR to one before Python starts")
    except (AttributeError, TypeError) as error:
        _warn_uncached(f"numba {numba.__version__} keeps its cache in another way ({error})")
    return dispatcher


def inner(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile a function that compiled code calls, with arrays of its caller: it counts no references.

    Counting takes two atomic instructions for every array of every call, some percent of the time of short
    rows. Such a function may neither allocate nor return an array, unless it is told ``_nrt=True``. Python
    cannot call it, and it is cached with its callers only: wrappers and files of its own take a third of the
    time to compile.

    Parameters
    ----------
    function : function, optional
        What is decorated by a plain ``@inner``.
    **options
        Of `numba.njit`.

    Returns
    -------
    numba dispatcher
    """
    if function is None:
        return lambda function: inner(function, **options)
    return njit(**{"_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True, **options})(function)
