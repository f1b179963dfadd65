"""The ways to solve the system of one row; a file of this folder is found by itself.

A file lists its ways as ``WAYS``. The plan gives every row a kind: a factorisation, and flags for what is
tried before it, from the highest flag down.
"""

from collections.abc import Callable, Iterable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from rgals.kernels.compile import inner
from rgals.kernels.row import FACTORED, NEXT, Way


def _before(way: Way, others: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled function that solves rows of this kind in this way, all that are left as ``others`` does."""
    own, solve = way.kind, way.solve
    mask = FACTORED if own <= FACTORED else own

    @inner(forceinline=True)
    def solve_row(kind, row, work, rows, fixed, scratch):
        code = solve(row, work, rows, fixed, scratch) if kind & mask == own else NEXT
        return others(kind, row, work, rows, fixed, scratch) if code == NEXT else code

    return solve_row


def _chain(ways: Iterable[Way]) -> Callable[..., Any]:
    """A compiled function (kind, row, work, rows, fixed, scratch) that tries them, the last one first."""

    @inner(forceinline=True)
    def solve_row(kind, row, work, rows, fixed, scratch):
        return NEXT

    for way in ways:
        solve_row = _before(way, solve_row)
    return solve_row


_files = (import_module(f"{__name__}.{file.name}") for file in iter_modules(__path__))
#: All ways, in the order of their kinds.
WAYS: tuple[Way, ...] = tuple(sorted(way for file in _files for way in file.WAYS))
solve_row = _chain(WAYS)
#: The same without flags: it always leaves a factor.
factorise_row = _chain(way for way in WAYS if way.kind <= FACTORED)
