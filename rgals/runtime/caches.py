"""The cache of compiled code: its folders, and the names of its files."""

# Code is written to the first of numba's folders that is writable, and read from all of them. numba itself
# identifies a compiled function by its source file alone, although code of other files is inlined into it,
# and numbers the files that it writes, so that two processes may write two functions to one. Here the name of
# an entry is a digest of everything that determines its code: the contents of its source files, the versions
# of the compilers, numba's settings, the processor, and numba's own key. Thus no process loads stale or
# foreign code, wherever the cache lies and however many processes share it.

import functools
import hashlib
import inspect
import os
import re
import secrets
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numba
import numpy as np
from numba.cloudpickle import loads  # the inverse of numba's `dumps`: caches are pickles
from numba.core import caching
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys
from numba.core.serialize import dumps

from rgals.runtime.errors import RgalsError, warn

if numba.config.DISABLE_JIT:
    raise RgalsError("rgals runs compiled code only: unset NUMBA_DISABLE_JIT before Python starts")

#: Settings of numba that change compiled code and are not in its own key.
_SETTINGS = [
    "OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "ENABLE_AVX", "BOUNDSCHECK", "DEBUGINFO_DEFAULT",
    "ENABLE_PROFILING", "EXTEND_VARIABLE_LIFETIMES", "LLVM_REFPRUNE_PASS", "LLVM_REFPRUNE_FLAGS",
    "DISABLE_INTEL_SVML", "USING_SVML", "PARFOR_MAX_TUPLE_SIZE", "DEBUG_NRT", "NRT_STATS",
]  # fmt: skip
_MIN_AGE = 24 * 3600.0  # seconds for which entries of other sources stay: other processes may use them
_DIGEST_SIZE = hashlib.sha256().digest_size  # bytes at the start of an entry


@functools.cache
def warn_uncached(reason: str) -> None:
    """Warn, once for each reason, that compiled code is lost when the process ends."""
    said = f"compiled kernels are not cached, so that every process compiles them again: {reason}"
    warn(said, RuntimeWarning)


@functools.cache
def _writable(folder: str) -> bool:
    try:
        os.makedirs(folder, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def _locators(implementation: Any, test: Callable[[str], bool]) -> list[Any]:
    """Numba's cache locators, with another test of their folders; NUMBA_CACHE_DIR is the only one if set."""

    def ensure_cache_path(self: Any) -> None:
        folder = self.get_cache_path()
        if folder.startswith("~") or not test(folder):  # there is no home: create no "~"
            raise OSError(folder)

    changed = {"ensure_cache_path": ensure_cache_path}
    places = implementation._locator_classes[: 1 if numba.config.CACHE_DIR else None]
    return [type(place.__name__, (place,), changed) for place in places]


@functools.cache
def _kind(cache: Any) -> Any:
    """A subclass of a cache of numba, in the first writable folder, else in the first existing one."""
    places = [*_locators(cache._impl_class, _writable), *_locators(cache._impl_class, os.path.isdir)]
    implementation = type("Implementation", (cache._impl_class,), {"_locator_classes": places})

    def load_overload(self: Any, signature: Any, target: Any) -> Any:
        """What was compiled before, or None. Numba's own prepares to compile first, which is slow."""
        rtsys.initialize(target)  # reference counting, which compiled code calls
        with self._guard_against_spurious_io_errors():
            return self._load_overload(signature, target)

    return type("Cache", (cache,), {"_impl_class": implementation, "load_overload": load_overload})


# ---------------------------------------------------------------- names of entries


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def stamp(sources: tuple[Path, ...]) -> str:
    """Digest of source files and of the versions of the compilers, the same on all machines."""
    contents = [(path.name, hashlib.sha256(path.read_bytes()).digest()) for path in sources]
    return _digest(contents, numba.__version__, llvmlite.__version__, np.__version__)


_stamp_at_import = functools.cache(stamp)  # of the sources as they were imported


@contextmanager
def ctrl_c_waits() -> Iterator[None]:
    """Delay Ctrl-C: an interrupt inside numba or LLVM loses or double-frees objects, or leaves locks held."""
    received: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    # Only the main thread gets Ctrl-C, and a handler that was not set by Python (None) raises nothing here.
    waits = before is not None and threading.current_thread() is threading.main_thread()
    if waits:
        signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        yield
    finally:
        if waits:
            signal.signal(signal.SIGINT, before)
    if received:
        signal.raise_signal(signal.SIGINT)


class Entries:
    """The cache files of a function: for each signature, processor and setting, a digest and the code."""

    # Replaces `numba.core.caching.IndexDataCacheFile`, which has one index for all of them, and which reads
    # a file that a power failure cut short as if it were whole. `sources` are the files that the function's
    # code comes from, as they are now.

    def __init__(self, cache: Any, sources: tuple[Path, ...]) -> None:
        self._python, self._folder = cache._py_func, cache.cache_path
        self._function = cache._impl.filename_base
        self._sources, self._stamp = sources, _stamp_at_import(sources)

    def _path(self, folder: str, key: tuple) -> Path:
        settings = [str(getattr(numba.config, name, None)) for name in _SETTINGS]
        # Kernels ask about the processor itself, whatever ``NUMBA_CPU_NAME`` tells numba.
        processor = llvm.get_host_cpu_name() + llvm.get_host_cpu_features().flatten()
        digest = _digest(self._stamp, settings, processor, key)
        return Path(folder, f"{self._function}-{self._stamp}-{digest}.nbc")

    def load(self, key: tuple) -> Any:
        """What was saved, or None."""
        places = _locators(caching.FunctionCache._impl_class, os.path.isdir)
        made = (each.from_function(self._python, inspect.getfile(self._python)) for each in places)
        for folder in chain([self._folder], (place.get_cache_path() for place in made if place)):
            with suppress(OSError):  # absent, or not readable by this user
                content = self._path(folder, key).read_bytes()
                if hashlib.sha256(content[_DIGEST_SIZE:]).digest() == content[:_DIGEST_SIZE]:
                    return loads(content[_DIGEST_SIZE:])
        cpu_target.target_context.refresh()  # reads numba's registries, once
        return None

    def save(self, key: tuple, data: Any) -> None:
        """Write an entry."""
        if stamp(self._sources) != self._stamp:
            return  # edited since the import: this process may compile from either version
        path, code = self._path(self._folder, key), dumps(data)
        temporary = path.with_suffix(f".{secrets.token_hex(8)}")
        try:
            os.makedirs(self._folder, exist_ok=True)
            try:
                temporary.write_bytes(hashlib.sha256(code).digest() + code)
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
            _remove_old(self._folder, self._function.rpartition(".")[2], self._stamp)
        except OSError as error:
            warn_uncached(f"{self._folder}: {error.strerror}. Set NUMBA_CACHE_DIR before Python starts")

    def flush(self) -> None:
        """Remove the entries of this function; numba's `Dispatcher.recompile` calls it."""
        for path in Path(self._folder).glob(f"{self._function}-{self._stamp}-*.nbc"):
            path.unlink(missing_ok=True)


@functools.cache
def _remove_old(folder: str, python: str, stamp: str) -> None:
    """Remove entries of other sources, once in a process; those of the last `_MIN_AGE` seconds stay."""
    named = re.compile(rf".*\.{python}-([0-9a-f]{{16}})-[0-9a-f]{{16}}\.(1\.nbc|nbc|nbi)")
    for path in Path(folder).iterdir():
        entry = named.fullmatch(path.name)
        if entry and entry[1] != stamp:
            with suppress(OSError):  # another process removed it, or has it open
                if time.time() - path.stat().st_mtime > _MIN_AGE:
                    path.unlink()


def cache_of(function: Callable[..., Any], sources: tuple[Path, ...], kind: type[Entries] = Entries) -> Any:
    """Numba's cache of a function, with `Entries` for its files; None, after a warning, if there is none."""
    try:
        cache = _kind(caching.FunctionCache)(function)
        if not isinstance(cache._cache_file, caching.IndexDataCacheFile):
            raise AttributeError("its cache files are of another class")
        cache._cache_file = kind(cache, sources)
        return cache
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        warn_uncached("numba can write to no folder. Set NUMBA_CACHE_DIR to one before Python starts")
    except (AttributeError, TypeError) as error:
        warn_uncached(f"numba {numba.__version__} keeps its cache in another way ({error})")
    return None
