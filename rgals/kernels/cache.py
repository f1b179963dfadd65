"""What compiled code is found by in numba's cache.

numba finds a compiled function by the file that it stands in, although code of other files is inlined into
it, and numbers the files that it writes, so that two processes may write two functions to one. Here an entry
is named by all that decides about its code: the contents of the files that kernels are made of, the versions
of what compiles them, numba's settings, the processor, and numba's own key. No process runs stale code or
that of another one then, wherever the cache lies and however many processes share it.
"""

from __future__ import annotations

import functools
import hashlib
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numba
import numpy as np
from numba.core import caching

HERE = Path(__file__).parent
_RUNTIME = HERE.parent / "runtime"
#: The files that kernels are made of: these modules, what they import from outside, and our version.
SOURCES = [*sorted(HERE.rglob("*.py")), _RUNTIME / "aligned.py", _RUNTIME / "version.py"]
#: Settings of numba that change code and that its own key leaves out.
_SETTINGS = [
    "OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "ENABLE_AVX", "BOUNDSCHECK", "DEBUGINFO_DEFAULT",
    "ENABLE_PROFILING", "EXTEND_VARIABLE_LIFETIMES", "LLVM_REFPRUNE_PASS", "LLVM_REFPRUNE_FLAGS",
    "DISABLE_INTEL_SVML", "USING_SVML", "PARFOR_MAX_TUPLE_SIZE", "DEBUG_NRT", "NRT_STATS",
]  # fmt: skip
_DAY = 24 * 3600.0  # seconds


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _stamp() -> str:
    """Of the sources and of what compiles them, whatever the machine."""
    contents = [(path.name, hashlib.sha256(path.read_bytes()).digest()) for path in SOURCES]
    return _digest(contents, numba.__version__, llvmlite.__version__, np.__version__)


STAMP = _stamp()


@functools.cache
def _processor() -> str:
    """What kernels ask about, also where ``NUMBA_CPU_NAME`` tells numba something else."""
    return llvm.get_host_cpu_name() + llvm.get_host_cpu_features().flatten()


class Entries:
    """The cache files of a function: an index and a data file for every signature, processor and setting.

    Stands in for `numba.core.caching.IndexDataCacheFile`, which has one index for all of them.

    Parameters
    ----------
    folder : str
        Where they lie, as numba says.
    function : str
        What they are called by.
    """

    def __init__(self, folder: str, function: str) -> None:
        self._folder, self._function = folder, function

    def _entry(self, key: tuple) -> caching.IndexDataCacheFile:
        settings = [str(getattr(numba.config, name, None)) for name in _SETTINGS]
        digest = _digest(STAMP, settings, _processor(), key)
        return caching.IndexDataCacheFile(self._folder, f"{self._function}-{STAMP}-{digest}", digest)

    def load(self, key: tuple) -> Any:
        """What was saved, or None."""
        return self._entry(key).load(key)

    def save(self, key: tuple, data: Any) -> None:
        """Write an entry."""
        if _stamp() != STAMP:
            return  # edited since it was imported: nobody knows from what this process compiles
        self._entry(key).save(key, data)
        _remove_old(self._folder, self._function.rpartition(".")[2])

    def flush(self) -> None:
        """Forget all entries."""
        for path in Path(self._folder).glob(f"{self._function}-{STAMP}-*.nb[ic]"):
            path.unlink(missing_ok=True)


@functools.cache
def _remove_old(folder: str, python: str) -> None:
    """Remove entries of other sources, once in a process; those of a day stay, as others may share them."""
    named = re.compile(rf".*\.{python}-([0-9a-f]{{16}})-[0-9a-f]{{16}}\.(1\.nbc|nbi)")
    for path in Path(folder).iterdir():
        entry = named.fullmatch(path.name)
        if entry and entry[1] != STAMP:
            with suppress(OSError):  # another process was first, or has it open
                if time.time() - path.stat().st_mtime > _DAY:
                    path.unlink()


def cache_of(function: Callable[..., Any], kind: type[Entries] = Entries) -> Any:
    """Numba's cache of a function, which finds its entries by our names.

    Raises
    ------
    RuntimeError
        Where numba can write to no folder.
    AttributeError, TypeError
        Where numba keeps its cache in another way.
    """
    cache = caching.FunctionCache(function)
    if not isinstance(cache._cache_file, caching.IndexDataCacheFile):
        raise AttributeError("its files are not where they used to be")
    cache._cache_file = kind(cache.cache_path, cache._impl.filename_base)
    return cache
