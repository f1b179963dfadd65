"""Threads: numba's are set, BLAS is held at one in parallel code, both are restored; forks are survived."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import numba
from threadpoolctl import ThreadpoolController

from rgals._errors import ForkError, ParameterError

_launch_lock = threading.RLock()
_blas_lock = threading.Lock()
_blas_users = 0
_blas_limiter = None
_controller: ThreadpoolController | None = None
_forked_from_openmp = False


def n_threads(n_jobs: int | None) -> int:
    """Number of threads that ``n_jobs`` asks for.

    Parameters
    ----------
    n_jobs : int or None
        ``None`` or ``-1``: all that numba may use (``NUMBA_NUM_THREADS``). ``-2``: all but one, and so on.

    Returns
    -------
    int
        At least 1, at most ``numba.config.NUMBA_NUM_THREADS``.

    Raises
    ------
    ParameterError
        If ``n_jobs`` is 0 or not an integer.
    """
    available = numba.config.NUMBA_NUM_THREADS
    if n_jobs is None:
        return available
    if isinstance(n_jobs, bool) or not hasattr(n_jobs, "__index__") or n_jobs == 0:
        raise ParameterError("n_jobs", n_jobs, "give None, a positive integer or -1 for all cores")
    wanted = n_jobs if n_jobs > 0 else available + 1 + n_jobs
    return max(1, min(int(wanted), available))


def _layer() -> str | None:
    """The threading layer of numba; None while it is not chosen, before the first launch."""
    try:
        return numba.threading_layer()
    except ValueError:
        return None


def _after_fork() -> None:
    """Make a forked child usable: locks that other threads held at the fork are nobody's here."""
    global _launch_lock, _blas_lock, _blas_users, _blas_limiter, _forked_from_openmp
    _launch_lock, _blas_lock = threading.RLock(), threading.Lock()
    limiter, _blas_limiter, _blas_users = _blas_limiter, None, 0
    if limiter is not None:  # the fork happened inside parallel code of the parent
        limiter.restore_original_limits()
    _forked_from_openmp = _forked_from_openmp or _layer() == "omp"


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_after_fork)


def _refuse_openmp_after_fork() -> None:
    # GNU's OpenMP cannot start its threads again in a child: numba ends the process if it is tried.
    if _forked_from_openmp:
        raise ForkError(
            "this process was forked from one that had already run SGD on OpenMP, which cannot run here. "
            "Start processes with multiprocessing's 'spawn' or 'forkserver'; or fork before the first "
            "SGDRanker.fit; or set NUMBA_THREADING_LAYER=workqueue (or tbb) before Python starts"
        )


def _limit_blas() -> None:
    global _blas_users, _blas_limiter, _controller
    with _blas_lock:
        if _blas_users == 0:
            if _controller is None:
                _controller = ThreadpoolController()
            _blas_limiter = _controller.limit(limits=1, user_api="blas")
        _blas_users += 1


def _restore_blas() -> None:
    global _blas_users, _blas_limiter
    with _blas_lock:
        _blas_users -= 1
        if _blas_users == 0 and _blas_limiter is not None:
            _blas_limiter.restore_original_limits()
            _blas_limiter = None


def _launch_is_unsafe() -> bool:
    """Whether two threads must not launch at once: the workqueue layer ends the process if they do."""
    return _layer() in ("workqueue", None)  # not chosen yet: be careful


@contextmanager
def workers(n_jobs: int | None = None) -> Iterator[int]:
    """Hold BLAS at one thread, for threads that `rgals.kernels.queue.launch` starts.

    BLAS limits belong to the process, so they are counted: the first user sets them, the last one restores.

    Parameters
    ----------
    n_jobs : int or None
        See `n_threads`.

    Yields
    ------
    int
        The number of threads.
    """
    threads = n_threads(n_jobs)
    _limit_blas()
    try:
        yield threads
    finally:
        _restore_blas()


@contextmanager
def parallel(n_jobs: int | None = None) -> Iterator[int]:
    """`workers` for numba's own parallel loops, which SGD uses.

    Launches are serialised on numba's workqueue layer, which cannot take two at once.

    Parameters
    ----------
    n_jobs : int or None
        See `n_threads`.

    Yields
    ------
    int
        The number of threads.

    Raises
    ------
    ForkError
        In a child that was forked after its parent had run such loops on OpenMP.
    """
    _refuse_openmp_after_fork()
    with workers(n_jobs) as threads, _launch_lock if _launch_is_unsafe() else nullcontext():
        before = numba.get_num_threads()
        numba.set_num_threads(threads)
        try:
            yield threads
        finally:
            numba.set_num_threads(before)
