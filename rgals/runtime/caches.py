"""Where compiled code is kept, and what it is found by.

It is written to the first of numba's folders that can be, and read from all of them. numba finds a compiled
function by the file that it stands in, although code of other files is inlined into it, and numbers the files
that it writes, so that two processes may write two functions to one. Here an entry is named by all that
decides about its code: the contents of the files that it is made of, the versions of what compiles them,
numba's settings, the processor, and numba's own key. No process runs stale code or that of another one then,
wherever the cache lies and however many processes share it.
"""

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
from numba.cloudpickle import loads  # of what numba's `dumps` gives: its caches are pickles
from numba.core import caching
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys
from numba.core.serialize import dumps

from rgals.runtime.errors import RgalsError, warn

if numba.config.DISABLE_JIT:
    raise RgalsError("rgals runs compiled code only: unset NUMBA_DISABLE_JIT before Python starts")

#: Settings of numba that change code and that its own key leaves out.
_SETTINGS = [
    "OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "ENABLE_AVX", "BOUNDSCHECK", "DEBUGINFO_DEFAULT",
    "ENABLE_PROFILING", "EXTEND_VARIABLE_LIFETIMES", "LLVM_REFPRUNE_PASS", "LLVM_REFPRUNE_FLAGS",
    "DISABLE_INTEL_SVML", "USING_SVML", "PARFOR_MAX_TUPLE_SIZE", "DEBUG_NRT", "NRT_STATS",
]  # fmt: skip
_DAY = 24 * 3600.0  # seconds
_LENGTH = hashlib.sha256().digest_size


@functools.cache
def warn_uncached(reason: str) -> None:
    """Warn, once for each reason, that compiled code is lost with the process."""
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
    """Numba's classes of places, with another test of the folder."""

    def ensure_cache_path(self: Any) -> None:
        folder = self.get_cache_path()
        if folder.startswith("~") or not test(folder):  # there is no home: no folder of that name either
            raise OSError(folder)

    changed = {"ensure_cache_path": ensure_cache_path}
    return [type(place.__name__, (place,), changed) for place in implementation._locator_classes]


@functools.cache
def _kind(cache: Any) -> Any:
    """Numba's caches, in the first folder that can be written, else in the first that is there."""
    places = [*_locators(cache._impl_class, _writable), *_locators(cache._impl_class, os.path.isdir)]
    implementation = type("Implementation", (cache._impl_class,), {"_locator_classes": places})

    def load_overload(self: Any, signature: Any, target: Any) -> Any:
        """What was compiled before, or None; numba would get ready to compile first, which takes longer."""
        rtsys.initialize(target)  # reference counts, which compiled code asks for
        with self._guard_against_spurious_io_errors():
            return self._load_overload(signature, target)

    return type("Cache", (cache,), {"_impl_class": implementation, "load_overload": load_overload})


# ---------------------------------------------------------------- what an entry is found by


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def stamp(sources: tuple[Path, ...]) -> str:
    """Of source files and of what compiles them, whatever the machine."""
    contents = [(path.name, hashlib.sha256(path.read_bytes()).digest()) for path in sources]
    return _digest(contents, numba.__version__, llvmlite.__version__, np.__version__)


_stamp_at_first = functools.cache(stamp)  # of the sources as they were imported


@contextmanager
def ctrl_c_waits() -> Iterator[None]:
    """Keep Ctrl-C back: what it interrupts of numba and LLVM is lost, freed twice or locked for ever."""
    told: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    # Other threads do not hear of Ctrl-C, and a handler that is not Python's interrupts nothing of Python.
    waits = before is not None and threading.current_thread() is threading.main_thread()
    if waits:
        signal.signal(signal.SIGINT, lambda number, _: told.append(number))
    try:
        yield
    finally:
        if waits:
            signal.signal(signal.SIGINT, before)
    if told:
        signal.raise_signal(signal.SIGINT)


class Entries:
    """The cache files of a function: one for every signature, processor and setting; its digest, and code."""

    # Stands in for `numba.core.caching.IndexDataCacheFile`, which has one index for all of them, and reads
    # what a machine that lost its power left as if it were whole. `sources` are the files that the function's
    # code comes from, as they are now.

    def __init__(self, cache: Any, sources: tuple[Path, ...]) -> None:
        self._python, self._folder = cache._py_func, cache.cache_path
        self._function = cache._impl.filename_base
        self._sources, self._stamp = sources, _stamp_at_first(sources)

    def _path(self, folder: str, key: tuple) -> Path:
        settings = [str(getattr(numba.config, name, None)) for name in _SETTINGS]
        # What kernels ask about, also where ``NUMBA_CPU_NAME`` tells numba something else.
        processor = llvm.get_host_cpu_name() + llvm.get_host_cpu_features().flatten()
        digest = _digest(self._stamp, settings, processor, key)
        return Path(folder, f"{self._function}-{self._stamp}-{digest}.nbc")

    def load(self, key: tuple) -> Any:
        """What was saved, or None."""
        places = _locators(caching.FunctionCache._impl_class, os.path.isdir)
        named = places[: 1 if numba.config.CACHE_DIR else None]  # a folder that was named is the only one
        made = (each.from_function(self._python, inspect.getfile(self._python)) for each in named)
        for folder in chain([self._folder], (place.get_cache_path() for place in made if place)):
            with suppress(OSError):  # somebody else's, who lets nobody read it
                content = self._path(folder, key).read_bytes()
                if hashlib.sha256(content[_LENGTH:]).digest() == content[:_LENGTH]:
                    return loads(content[_LENGTH:])
        cpu_target.target_context.refresh()  # reads numba's registries, once
        return None

    def save(self, key: tuple, data: Any) -> None:
        """Write an entry."""
        if stamp(self._sources) != self._stamp:
            return  # edited since it was imported: nobody knows from what this process compiles
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
        """Forget all entries."""
        for path in Path(self._folder).glob(f"{self._function}-{self._stamp}-*.nbc"):
            path.unlink(missing_ok=True)


@functools.cache
def _remove_old(folder: str, python: str, stamp: str) -> None:
    """Remove entries of other sources, once in a process; those of a day stay, as others may share them."""
    named = re.compile(rf".*\.{python}-([0-9a-f]{{16}})-[0-9a-f]{{16}}\.(1\.nbc|nbc|nbi)")
    for path in Path(folder).iterdir():
        entry = named.fullmatch(path.name)
        if entry and entry[1] != stamp:
            with suppress(OSError):  # another process was first, or has it open
                if time.time() - path.stat().st_mtime > _DAY:
                    path.unlink()


def cache_of(function: Callable[..., Any], sources: tuple[Path, ...], kind: type[Entries] = Entries) -> Any:
    """Numba's cache of a function, which finds its entries by our names; None, and a warning, without one."""
    try:
        cache = _kind(caching.FunctionCache)(function)
        if not isinstance(cache._cache_file, caching.IndexDataCacheFile):
            raise AttributeError("its files are not where they used to be")
        cache._cache_file = kind(cache, sources)
        return cache
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        warn_uncached("numba can write to no folder. Set NUMBA_CACHE_DIR to one before Python starts")
    except (AttributeError, TypeError) as error:
        warn_uncached(f"numba {numba.__version__} keeps its cache in another way ({error})")
    return None
