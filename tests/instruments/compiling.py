"""Two processes of pytest (`-n 2`) that share numba's cache: what both need is compiled by one of them."""

from __future__ import annotations

import fcntl
import zlib
from pathlib import Path

from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher


def compile_once(path: Path) -> None:
    """From now on a function is compiled only while no other process compiles it for the same types.

    The other one waits, and finds it in the cache. A lock is one byte of a file, by function and types.
    It ends with its process, and forked children do not have it. The file stays open: closing it would end
    every lock.
    """
    file = path.open("w")
    compile_here = Dispatcher.compile

    def compile(self, signature):
        name = f"{self.py_func.__module__}.{self.py_func.__qualname__}{signature}"
        place = zlib.crc32(name.encode())
        with global_compiler_lock:  # the order in which numba takes its lock and this one is always the same
            fcntl.lockf(file, fcntl.LOCK_EX, 1, place)
            try:
                return compile_here(self, signature)
            finally:
                fcntl.lockf(file, fcntl.LOCK_UN, 1, place)

    Dispatcher.compile = compile
