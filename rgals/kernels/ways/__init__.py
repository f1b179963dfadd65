"""The ways to solve the system of one row. Files of this folder are found by themselves."""

# A file lists its ways as ``WAYS``. The plan gives every row a kind: `DUAL` or `PRIMAL`, by which it is
# factorised, and flags of the ways that are tried before, the highest flag first.

from collections.abc import Callable, Iterable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from rgals.kernels.compile import inner
from rgals.kernels.row import FACTORED, NEXT, Way


def _before(way: Way, others: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled function that solves rows of a kind by ``way``, and what is left by ``others``."""
    own, solve = way.kind, way.solve
    mask = FACTORED if own <= FACTORED else own  # a factorisation is two bits, a flag is one

    @inner(forceinline=True)
    def solve_row(kind, row, work, rows, fixed, scratch):
        code = solve(row, work, rows, fixed, scratch) if kind & mask == own else NEXT
        return others(kind, row, work, rows, fixed, scratch) if code == NEXT else code

    return solve_row


def _chain(ways: Iterable[Way]) -> Callable[..., Any]:
    """A compiled function (kind, row, work, rows, fixed, scratch) that tries ways, the last one first."""

    @inner(forceinline=True)
    def solve_row(kind, row, work, rows, fixed, scratch):
        return NEXT

    for way in ways:
        solve_row = _before(way, solve_row)
    return solve_row


_files = (import_module(f"{__name__}.{file.name}") for file in iter_modules(__path__))
#: All ways, in the order of their kinds: `DUAL`, `PRIMAL`, then flags.
WAYS: tuple[Way, ...] = tuple(sorted(way for file in _files for way in file.WAYS))
solve_row = _chain(WAYS)
#: By a factorisation alone: unlike CG it leaves a factor, from which the inverse can be computed.
factorise_row = _chain(way for way in WAYS if way.kind <= FACTORED)
