"""How kernels are compiled, and what a compiled function is found by in numba's cache.

numba finds a compiled function by the file that it stands in, although code of other files is inlined into
it, and numbers the files that it writes, so that two processes may write two functions to one. Here an entry
is named by all that decides about its code: the contents of the files that kernels are made of, the versions
of what compiles them, numba's settings, the processor, and numba's own key. No process runs stale code or
that of another one then, wherever the cache lies and however many processes share it.
"""

from __future__ import annotations

import functools
import hashlib
import os
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
from numba import njit
from numba.core import caching

from rgals.runtime.caches import cache_of, find, warn_uncached

_HERE = Path(__file__).parent
_RUNTIME = _HERE.parent / "runtime"
#: The files that kernels are made of: these modules, what they import from outside, and our version.
SOURCES = [*sorted(_HERE.rglob("*.py")), _RUNTIME / "aligned.py", _RUNTIME / "version.py"]
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


class _Entries:
    """The cache files of a function: an index and a data file for every signature, processor and setting.

    Stands in for `numba.core.caching.IndexDataCacheFile`, which has one index for all of them.
    """

    def __init__(self, cache: Any, stamp: str) -> None:
        self._python, self._folder, self._stamp = cache._py_func, cache.cache_path, stamp
        self._function = cache._impl.filename_base

    def _entry(self, folder: str, key: tuple) -> caching.IndexDataCacheFile:
        settings = [str(getattr(numba.config, name, None)) for name in _SETTINGS]
        digest = _digest(self._stamp, settings, _processor(), key)
        return caching.IndexDataCacheFile(folder, f"{self._function}-{self._stamp}-{digest}", digest)

    def load(self, key: tuple) -> Any:
        """What was saved, or None."""
        return find(self._python, self._folder, lambda folder: self._entry(folder, key).load(key))

    def save(self, key: tuple, data: Any) -> None:
        """Write an entry."""
        if _stamp() != self._stamp:
            return  # edited since it was imported: nobody knows from what this process compiles
        try:
            os.makedirs(self._folder, exist_ok=True)
            self._entry(self._folder, key).save(key, data)
            _remove_old(self._folder, self._function.rpartition(".")[2], self._stamp)
        except OSError as error:
            warn_uncached(f"{self._folder}: {error.strerror}. Set NUMBA_CACHE_DIR before Python starts")

    def flush(self) -> None:
        """Forget all entries."""
        for path in Path(self._folder).glob(f"{self._function}-{self._stamp}-*.nb[ic]"):
            path.unlink(missing_ok=True)


@functools.cache
def _remove_old(folder: str, python: str, stamp: str) -> None:
    """Remove entries of other sources, once in a process; those of a day stay, as others may share them."""
    named = re.compile(rf".*\.{python}-([0-9a-f]{{16}})-[0-9a-f]{{16}}\.(1\.nbc|nbi)")
    for path in Path(folder).iterdir():
        entry = named.fullmatch(path.name)
        if entry and entry[1] != stamp:
            with suppress(OSError):  # another process was first, or has it open
                if time.time() - path.stat().st_mtime > _DAY:
                    path.unlink()


def _cache(function: Callable[..., Any]) -> Any:
    """Numba's cache of a function, which finds its entries by our names."""
    cache = cache_of(function)
    if not isinstance(cache._cache_file, caching.IndexDataCacheFile):
        raise AttributeError("its files are not where they used to be")
    cache._cache_file = _Entries(cache, STAMP)
    return cache


def _compiled(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """A dispatcher with such a cache; one without, and a warning, where there can be none."""
    dispatcher = njit(**options)(function)
    if numba.config.DISABLE_JIT:
        return dispatcher
    try:
        if not isinstance(dispatcher._cache, caching.NullCache):
            raise AttributeError("a function has a cache before it is given one")
        dispatcher._cache = _cache(function)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        warn_uncached("numba can write to no folder. Set NUMBA_CACHE_DIR to one before Python starts")
    except (AttributeError, TypeError) as error:
        warn_uncached(f"numba {numba.__version__} keeps its cache in another way ({error})")
    return dispatcher


def entry(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile a function that Python calls.

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
        return lambda function: _compiled(function, options)
    return _compiled(function, options)


def inner(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile a function that compiled code calls, with arrays of its caller: it counts no references.

    Counting takes two atomic instructions for every array of every call, some percent of the time of short
    rows. Such a function may neither allocate nor return an array, unless it is told ``_nrt=True``.

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
    return entry(function, **{"_nrt": False, **options})
