"""Memory: how much there is, how much a fit needs, and a refusal before anything is allocated."""

from __future__ import annotations

import os
from pathlib import Path

from rgals._aligned import CACHE
from rgals._errors import InsufficientMemoryError

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_CGROUPS = (  # limit, usage and the statistics that name reclaimable page cache, of cgroup v2 and v1
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
    ),
)
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def available_bytes() -> int | None:
    """Memory that this process may still take: of the machine, its control group and its own limit.

    Returns
    -------
    int or None
        None where the system does not say.
    """
    amounts = [_machine(), *(_control_group(*files) for files in _CGROUPS), _own_limit()]
    known = [amount for amount in amounts if amount is not None]
    return max(0, min(known)) if known else None


def require(needed: int, what: str, advice: str) -> None:
    """Raise `InsufficientMemoryError` where ``needed`` bytes are more than there are.

    Parameters
    ----------
    needed : int
    what : str
        What needs them, with the sizes that decide: ``"a fit with K=64 ..."``.
    advice : str
        What would need less.
    """
    free = available_bytes()
    if free is not None and needed > free:
        raise InsufficientMemoryError(
            f"{what} needs about {readable(needed)} of memory, but {readable(free)} are available; {advice}"
        )


def readable(n_bytes: int) -> str:
    """A number of bytes for people.

    Examples
    --------
    >>> readable(1536), readable(3 << 30)
    ('1.5 KiB', '3.0 GiB')
    """
    amount, unit = float(n_bytes), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.1f} {_UNITS[unit]}" if unit else f"{n_bytes} bytes"


def fit_bytes(
    shape: tuple[int, int],
    nnz: int,
    K: int,
    itemsize: int,
    *,
    valued: bool = True,
    coupled: bool = False,
    best: bool = False,
    threads: int = 1,
    longest: int | None = None,
) -> int:
    """Bytes that a fit allocates at its peak, beyond the matrix it is given in canonical form.

    Parameters
    ----------
    shape : (int, int)
        Users and items.
    nnz : int
        Interactions.
    K : int
    itemsize : int
        4 or 8, of the factors.
    valued : bool
        Whether interactions have values other than 1.
    coupled : bool
        Whether the loss has an interaction term, which takes sums of inverses.
    best : bool
        Whether the best iterate is kept (early stopping).
    threads : int
    longest : int, optional
        Interactions of the longest row or column.

    Returns
    -------
    int
    """
    n_users, n_items = shape
    most = max(n_users, n_items)
    line = 64 // itemsize
    padded = -(-K // line) * line
    width = K * itemsize
    # The transpose; and of both sides the order of rows and the coefficients (float64, then the dtype of the
    # factors).
    transpose = 8 * (n_items + 1) + nnz * (4 + (itemsize if valued else 0))
    per_row = 8 + 4 * (8 + itemsize) + 8 * 8
    rows = (n_users + n_items) * per_row
    # Factors of both sides and, in the last half-step, rotated item factors; a copy of the fixed side with
    # padded columns where K is not a multiple of a cache line.
    copy = padded * itemsize if padded != K else 0
    factors = max(
        (n_users + n_items) * width + most * copy, (n_users + 2 * n_items) * width + n_items * copy
    ) + (n_items * width if best else 0)
    squares = 16 * K * K * 8 if K <= 256 else 4 * K * K * 8 + 4 * K * K * 8
    squares += 16 * padded * padded * 8 if coupled else 0
    longest = most if longest is None else longest
    scratch = threads * (2 * padded * padded + 2 * padded * min(padded, longest)) * itemsize
    scratch += threads * min(CACHE, longest * padded * itemsize)
    # Before the factors are there: sums of the weights of the interactions, a chunk at a time
    # (rgals.losses.base).
    chunk = 16 * min(nnz, 1 << 20)
    return transpose + rows + max(factors + squares + scratch, chunk)


def _machine() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None


def _control_group(limit: str, usage: str, statistics: str) -> int | None:
    try:
        bound, used = int(Path(limit).read_text()), int(Path(usage).read_text())
        cache = 0
        for line in Path(statistics).read_text().splitlines():
            name, _, amount = line.partition(" ")
            if name in ("inactive_file", "total_inactive_file"):
                cache = max(cache, int(amount))
    except (OSError, ValueError):  # no such group, or "max": no limit
        return None
    return bound - max(0, used - cache)


def _own_limit() -> int | None:
    if resource is None:
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
    return limit - taken
