"""What `make test` leaves to `make stress`, which runs everything.

Of a grid of tests all pairs of their parameters' values are run: a fault that shows for a loss, a dtype and a
side mostly shows for two of these, whatever the third. Of tests marked ``few(n)`` only n, as far from each
other as can be; ``few(0)``, none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations

FEW = 6  # combinations that are not worth a choice


def all_pairs(rows: Sequence[Mapping[str, str]]) -> list[int]:
    """Places of rows in which each two values meet that meet in any of them; greedy, always the same."""
    pairs = [set(combinations(sorted(row.items()), 2)) for row in rows]
    missing, chosen = set().union(*pairs), []
    while missing:
        best = max(range(len(rows)), key=lambda k: (len(pairs[k] & missing), -k))
        missing -= pairs[best]
        chosen.append(best)
    return sorted(chosen)


def values(item) -> dict[str, str]:
    """What a test's parameters are, by name; those that one list gives together are one."""
    found = {name: repr(value) for name, value in item.callspec.params.items()}
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0]
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
        if len(names) > 1:
            found[",".join(names)] = repr([found.pop(name) for name in names])
    return found


def left_out(items: Sequence) -> list:
    """The tests that `make test` leaves to `make stress`."""
    grids = defaultdict(list)
    for item in items:
        if hasattr(item, "callspec"):
            grids[item.nodeid.partition("[")[0]].append(item)
    gone = [item for item in items for mark in item.iter_markers("few") if mark.args == (0,)]
    for grid in grids.values():
        for mark in grid[0].iter_markers("few"):
            n = min(*mark.args, len(grid))
            kept = {k * (len(grid) - 1) // max(n - 1, 1) for k in range(n)}
            gone += [item for k, item in enumerate(grid) if n and k not in kept]
            break
        else:
            gone += all_but_pairs(grid)
    return gone


def all_but_pairs(grid: Sequence) -> list:
    """The tests of a grid that pairs do not need."""
    rows = [values(item) for item in grid]
    if len(grid) <= FEW or len(rows[0]) <= 2:
        return []
    kept = set(all_pairs(rows))
    return [item for k, item in enumerate(grid) if k not in kept]
