"""How functions are compiled: those that Python calls, and those that kernels call for every row or tile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def inner(function: Callable[..., Any]) -> Any:
    """Compile a function that works on arrays of its caller: it counts no references to them.

    Counting takes two atomic instructions for every array of every call, some percent of the time of short
    rows. Such a function may neither allocate nor return an array.
    """
    return njit(cache=True, _nrt=False)(function)


def inlined(function: Callable[..., Any]) -> Any:
    """`inner` for a function of many arguments that is called in one or two places: it becomes part of them.

    Passing the records of a row costs some 200 stores.
    """
    return njit(cache=True, _nrt=False, forceinline=True)(function)
