"""Control groups of Linux: the folders that limit this process, and how many processors they grant it."""

import functools
import math
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
ROOT = Path("/sys/fs/cgroup")


def folders(controller: str) -> Iterator[Path]:
    """The folder of this process's group and those of its parents, whose limits all apply; "": version 2."""
    own = "/"
    try:
        for line in (PROC / "self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            own = path if controller in controllers.split(",") else own
    except (OSError, ValueError):  # no such file: look at the root of the mounted hierarchy
        pass
    root = ROOT / controller
    group = root / own.strip("/")
    # In a container the path may be of the host's hierarchy, which is not mounted: the files are absent then.
    yield from (group, *(above for above in group.parents if above.is_relative_to(root)))


@functools.cache
def processors() -> float:
    """Processors' worth of time that the groups grant this process; infinite without a limit."""
    v2 = [_processors(folder / "cpu.max") for folder in folders("")]
    v1 = [_processors(folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us") for folder in folders("cpu")]
    return min(v2 + v1)


def _processors(*files: Path) -> float:
    try:
        quota, period = " ".join(file.read_text() for file in files).split()
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    except (OSError, ValueError):  # no such group, or "max": no limit
        return math.inf
