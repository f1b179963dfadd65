"""Threads that drain a queue: every one takes the next piece of work when it is done with one.

Compiled functions without the interpreter's lock run on Python's own threads. Against numba's parallel loops
this compiles each kernel once instead of four times, survives forks, lets any number of callers launch at
once, and never spins for more than about a tenth of a millisecond.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from rgals.kernels.compile import entry
from rgals.runtime.threads import hold_thread

_LOOKS = 50_000  # for new work before a thread goes to sleep: about a tenth of a millisecond

_pool: ThreadPoolExecutor | None = None
_launches = np.zeros(1, np.int64)
_pool_lock = threading.Lock()


def _threads() -> ThreadPoolExecutor:
    """The threads of this process, started when they are first needed."""
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(
                numba.config.NUMBA_NUM_THREADS, thread_name_prefix="rgals", initializer=hold_thread
            )
        return _pool


def _after_fork() -> None:
    """A forked child has none of its parent's threads."""
    global _pool, _pool_lock
    _pool, _pool_lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_after_fork)


@intrinsic
def fetch_add(typingctx, counter, index, amount):
    """Atomically add ``amount`` to ``counter[index]`` (int64 array) and return the value from before."""
    if not (isinstance(counter, types.Array) and counter.dtype == types.int64):
        return None

    def codegen(context, builder, signature, args):
        typ = signature.args[0]
        array = context.make_array(typ)(context, builder, args[0])
        i = context.cast(builder, args[1], signature.args[1], types.intp)
        amount = context.cast(builder, args[2], signature.args[2], types.int64)
        pointer = cgutils.get_item_pointer(context, builder, typ, array, [i])
        return builder.atomic_rmw("add", pointer, amount, "monotonic")

    return types.int64(counter, index, amount), codegen


@entry(nogil=True)
def _stay_awake(launches, seen):
    """Wait for the next launch, not for long: waking a sleeping processor costs more than a short phase."""
    for _ in range(_LOOKS):
        if fetch_add(launches, 0, 0) != seen:
            break


def launch(work: Callable[..., Any], n_threads: int, *args: Any) -> None:
    """Run ``work(counter, *args)`` on ``n_threads`` threads at once, this one being the first.

    Parameters
    ----------
    work : a compiled function that releases the interpreter's lock (``nogil``)
        Takes pieces of work off ``counter`` (`fetch_add`) until none is left, so that it does not matter how
        many threads run it, nor when they start.
    n_threads : int
    """
    counter = np.zeros(1, np.int64)
    if n_threads == 1:
        work(counter, *args)
        return
    _launches[0] += 1
    others = [_threads().submit(work, counter, *args) for _ in range(n_threads - 1)]
    try:
        work(counter, *args)
    finally:
        # Those that have not started have nothing left to do: what they wait for is somebody else's work.
        wait([other for other in others if not other.cancel()])
    for other in others:
        if not other.cancelled():
            other.result()
        _threads().submit(_stay_awake, _launches, _launches[0])


def spread(work: Callable[..., Any], n: int, n_threads: int, *args: Any) -> None:
    """Call ``work(first, stop, *args)`` for pieces that make up all of ``range(n)``, on some threads."""
    size = n if n_threads == 1 else max(1, n // (4 * n_threads))
    starts = iter(range(0, n, max(size, 1)))  # whoever asks next gets the next: Python's lock sees to that

    def pieces(counter: np.ndarray) -> None:
        for first in starts:
            work(first, min(first + size, n), *args)

    launch(pieces, n_threads)
