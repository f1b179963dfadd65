"""Threads: numba's are set, BLAS is held at one inside parallel code, both are restored."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import numba
from threadpoolctl import ThreadpoolController

from rgals._errors import ParameterError

_launch_lock = threading.RLock()
_blas_lock = threading.Lock()
_blas_users = 0
_blas_limiter = None
_controller: ThreadpoolController | None = None


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
    try:
        return numba.threading_layer() == "workqueue"
    except ValueError:  # no launch yet: the layer is not chosen, so be careful
        return True


@contextmanager
def parallel(n_jobs: int | None = None) -> Iterator[int]:
    """Run compiled parallel code on ``n_jobs`` threads with BLAS at one thread each.

    BLAS limits belong to the process, so they are counted: the first user sets them, the last one restores.
    Launches are serialised on numba's workqueue layer, which cannot take two at once.

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
    before = numba.get_num_threads()
    _limit_blas()
    try:
        with _launch_lock if _launch_is_unsafe() else nullcontext():
            numba.set_num_threads(threads)
            try:
                yield threads
            finally:
                numba.set_num_threads(before)
    finally:
        _restore_blas()
