"""Control groups of Linux: where the limits of this process stand, and how many processors they give."""

import functools
import math
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
ROOT = Path("/sys/fs/cgroup")


def folders(controller: str) -> Iterator[Path]:
    """Groups of this process, whose limits all hold: its own and those above; "" stands for version 2."""
    own = "/"
    try:
        for line in (PROC / "self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            own = path if controller in controllers.split(",") else own
    except (OSError, ValueError):  # no such file: the mounted folders themselves are looked at
        pass
    root = ROOT / controller
    group = root / own.strip("/")
    # In a container the path may be that of the host, which is not mounted: its files are then absent.
    yield from (group, *(above for above in group.parents if above.is_relative_to(root)))


@functools.cache
def processors() -> float:
    """How many processors' time this process is given; infinite without a limit."""
    v2 = [_processors(folder / "cpu.max") for folder in folders("")]
    v1 = [_processors(folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us") for folder in folders("cpu")]
    return min(v2 + v1)


def _processors(*files: Path) -> float:
    try:
        quota, period = " ".join(file.read_text() for file in files).split()
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    except (OSError, ValueError):  # no such group, or "max": no limit
        return math.inf
