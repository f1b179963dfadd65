"""Threads: how many to use; BLAS limited to one beside them, and restored; forks while they run."""

import functools
import itertools
import math
import numbers
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numba
from llvmlite.binding import ffi
from numba.core.compiler_lock import global_compiler_lock
from threadpoolctl import ThreadpoolController

from rgals.runtime import cgroups
from rgals.runtime.errors import ParameterError


def n_threads(n_jobs: int | None) -> int:
    """Number of threads that ``n_jobs`` asks for: at least 1, at most what ``None`` gives."""
    # ``None`` or ``-1``: ``NUMBA_NUM_THREADS``, or else the number of processors that this process may run on
    # and that its control group grants time for. ``-2``: one fewer, and so on. 0 and anything but an integer
    # raise a `ParameterError`.
    available = numba.config.NUMBA_NUM_THREADS
    if "NUMBA_NUM_THREADS" not in os.environ:
        available = max(1, math.ceil(min(available, cgroups.processors())))
    if n_jobs is None:
        return available
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, numbers.Integral) or n_jobs == 0:
        raise ParameterError("n_jobs", n_jobs, "give None, a positive integer or -1 for all cores")
    wanted = n_jobs if n_jobs > 0 else available + 1 + n_jobs
    return max(1, min(int(wanted), available))


class _Limit(NamedTuple):
    """A limit on the threads of a BLAS library: of the process, or of the calling thread alone."""

    get: Callable[[], int]
    set: Callable[[int], object]
    of_thread: bool = False


# threadpoolctl finds the libraries, but their own functions set the limits, as its versions differ. From 3.8
# on, one thread owns the limit of OpenBLAS, and what other threads set is ignored. Before 3.7, a limit has no
# effect on an OpenBLAS with OpenMP.
def _limits_of(library: Any) -> list[_Limit]:
    """The limits that a library obeys, given its controller of threadpoolctl."""
    functions = library.dynlib
    if library.internal_api == "openblas":
        if library.threading_layer == "openmp" and hasattr(functions, "omp_set_num_threads"):
            return [_Limit(functions.omp_get_max_threads, functions.omp_set_num_threads, of_thread=True)]
        for prefix, suffix in itertools.product(("", "scipy_"), ("", "64_", "_64")):
            names = (f"{prefix}openblas_{verb}_num_threads{suffix}" for verb in ("get", "set"))
            get, set_ = (getattr(functions, name, None) for name in names)
            if get is not None and set_ is not None:
                return [_Limit(get, set_)]
    if library.internal_api == "mkl" and hasattr(functions, "MKL_Set_Num_Threads"):
        # The limit of a thread overrides that of the process if it is not 0; setting it returns the old one.
        swap = functions.MKL_Set_Num_Threads_Local

        def number(of_thread: bool) -> int:
            own = swap(0)
            found = own if of_thread else functions.MKL_Get_Max_Threads()
            swap(own)
            return found

        common = _Limit(partial(number, False), functions.MKL_Set_Num_Threads)
        return [common, _Limit(partial(number, True), swap, of_thread=True)]
    if library.get_num_threads() is None:
        return []  # a library without such a function
    return [_Limit(library.get_num_threads, library.set_num_threads)]


class _Held:
    """Limits held from the first holder's entry to the last one's exit, in whatever order they do so."""

    # The limit is the least of the numbers that the holders want.

    def __init__(self) -> None:
        self.holders: dict[object, tuple[int, int]] = {}  # number of threads wanted, and the holder's thread
        self.before: list[tuple[_Limit, int, set[int]]] = []  # the number found, and those set since

    def add(self, holder: object, number: int, limits: list[_Limit]) -> None:
        self.holders[holder] = number, threading.get_ident()
        for limit in limits[len(self.before) :]:
            self.before.append((limit, limit.get(), set()))
        self._set()

    def remove(self, holder: object) -> None:
        self.holders.pop(holder, None)
        if self.holders:
            self._set()
        while self.before and not self.holders:
            limit, number, ours = self.before[-1]
            if limit.get() in ours:  # otherwise other code has set it since: leave it
                limit.set(number)
            self.before.pop()

    def _set(self) -> None:
        least = min(number for number, _ in self.holders.values())
        for limit, _, ours in self.before:
            if not ours or limit.get() in ours - {least}:
                ours.add(least)  # before it is set: a Ctrl-C between the two lines must not lose it
                limit.set(least)


class _HeldByThread(_Held, threading.local):
    """Limits of single threads, held for each thread."""


_blas_lock = threading.RLock()
_by_process, _by_thread = _Held(), _HeldByThread()


@functools.cache
def _limits(of_thread: bool) -> list[_Limit]:
    """The limits of all BLAS libraries, found once."""
    libraries = ThreadpoolController().select(user_api="blas").lib_controllers
    found = [limit for library in libraries for limit in _limits_of(library)]
    return [limit for limit in found if limit.of_thread == of_thread]


def hold_thread() -> None:
    """Limit BLAS to one thread in the calling thread until that ends: the initialiser of compute pools."""
    # Only limits of single threads are set; `workers` holds those of the process.
    with _blas_lock:
        for limit in _limits(of_thread=True):
            limit.set(1)


# A forked child would inherit locks of other threads, which nobody releases there, over data that is half
# changed. So forks wait until no thread compiles, loads compiled code or sets limits.
_locks = global_compiler_lock, getattr(ffi.lib, "_lock", None), _blas_lock  # llvmlite's is undocumented
_held_for_forks = [lock for lock in _locks if lock is not None]


def _before_fork() -> None:
    for lock in _held_for_forks:
        lock.__enter__()


def _after_fork() -> None:
    for lock in reversed(_held_for_forks):
        lock.__exit__(None, None, None)


def _in_child() -> None:
    """Release in the child what other threads held at the fork: they do not exist here."""
    _after_fork()
    for holder, (_, thread) in list(_by_process.holders.items()):
        if thread != threading.get_ident():
            _by_process.remove(holder)


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)


@contextmanager
def workers(n_jobs: int | None = None, *, of_blas: bool = False) -> Iterator[int]:
    """Limit BLAS to one thread; yields the number of threads for `rgals.kernels.queue.launch`."""
    # The first holder, in any thread, sets the limits of the process, and the last one restores them. If a
    # library also has a limit for each thread (MKL, OpenBLAS with OpenMP), that of this thread is held, too.
    # ``of_blas``, for LAPACK on large matrices: BLAS gets the threads, or one while others limit it to one.
    threads, holder = n_threads(n_jobs), object()
    number = threads if of_blas else 1
    try:
        with _blas_lock:
            _by_process.add(holder, number, _limits(of_thread=False))
            _by_thread.add(holder, number, _limits(of_thread=True))
        yield threads
    finally:
        with _blas_lock:
            _by_thread.remove(holder)
            _by_process.remove(holder)
