"""Compiled building blocks: plain functions on arrays, numpy and numba only.

numba caches a compiled function beside its source and recompiles it when *that file* changes, although code
of other kernels may be inlined into it. So that an edited or updated kernel never runs stale code, the cache
indices of this package are dropped here when any of its files has changed.
"""

import hashlib
from contextlib import suppress
from pathlib import Path


def _drop_stale_caches(folder: Path) -> None:
    """Remove numba's cache indices in ``folder/__pycache__`` when a source file of the folder has changed."""
    cache = folder / "__pycache__"
    files = sorted((f.name, f.stat().st_mtime_ns, f.stat().st_size) for f in folder.glob("*.py"))
    state = hashlib.sha256(repr(files).encode()).hexdigest()
    stamp = cache / "kernels.state"
    with suppress(OSError):  # a folder that cannot be written holds no caches either
        if stamp.is_file() and stamp.read_text() == state:
            return
        for index in cache.glob("*.nbi"):
            index.unlink(missing_ok=True)
        cache.mkdir(exist_ok=True)
        stamp.write_text(state)


_drop_stale_caches(Path(__file__).parent)
