"""Threads that drain a queue: every one takes the next piece of work when it is done with one.

Compiled functions without the interpreter's lock run on Python's own threads. Against numba's parallel loops
this compiles each kernel once instead of four times, survives forks, lets any number of callers launch at
once, and never spins for more than about a tenth of a millisecond.
"""

import _thread
import functools
import os
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from rgals.kernels.compile import entry
from rgals.runtime.threads import hold_thread

_LOOKS = 50_000  # for new work before a thread goes to sleep: about a tenth of a millisecond

_launches = np.zeros(1, np.int64)
#: What waits for a thread: a list of one call, which is taken from it, or taken back, exactly once. Queue and
#: lists are C and stay whole when Ctrl-C raises in any line. Locks in Python, as an executor has them, can be
#: left behind locked: the next fit would wait for ever.
_jobs: SimpleQueue[list[Callable[[], object]]] = SimpleQueue()
_unstarted = [None] * numba.config.NUMBA_NUM_THREADS  # an entry for every thread that may still be started


def _serve(jobs: SimpleQueue) -> None:
    hold_thread()
    while True:
        job = jobs.get()
        with suppress(IndexError):  # taken back
            job.pop()()
        del job


def _start_threads(n: int) -> None:
    """Have at least ``n`` threads that wait for jobs, as far as this process may have so many."""
    # Another caller started the last, or the system has none left for us: fewer take all the pieces.
    with suppress(IndexError, RuntimeError):
        while numba.config.NUMBA_NUM_THREADS - len(_unstarted) < n:
            _unstarted.pop()
            _thread.start_new_thread(_serve, (_jobs,))


def _after_fork() -> None:
    """A forked child has none of its parent's threads."""
    global _jobs
    _jobs = SimpleQueue()
    _unstarted[:] = [None] * numba.config.NUMBA_NUM_THREADS


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

    ``work``, compiled to release the interpreter's lock, takes pieces off ``counter`` (`fetch_add`) until
    none is left, so that it does not matter how many threads run it, nor when they start.
    """
    counter = np.zeros(1, np.int64)
    if n_threads == 1:
        work(counter, *args)
        return
    _launches[0] += 1
    _start_threads(n_threads - 1)
    ended: SimpleQueue[BaseException | None] = SimpleQueue()

    def help_out() -> None:
        try:
            work(counter, *args)
        except BaseException as error:
            ended.put(error)
        else:
            ended.put(None)

    jobs: list[list[Callable[[], object]]] = [[help_out] for _ in range(n_threads - 1)]
    for job in jobs:
        _jobs.put(job)
    faults: list[BaseException | None] = []
    try:
        work(counter, *args)
    finally:
        for job in jobs:
            try:
                job.pop()  # has not begun, and has nothing left to do: its thread has other work
            except IndexError:
                faults.append(ended.get())
    for fault in faults:
        if fault is not None:
            raise fault
        _jobs.put([functools.partial(_stay_awake, _launches, _launches[0])])


def spread(work: Callable[..., Any], n: int, n_threads: int, *args: Any) -> None:
    """Call ``work(first, stop, *args)`` for pieces that make up all of ``range(n)``, on some threads."""
    size = n if n_threads == 1 else max(1, n // (4 * n_threads))
    starts = iter(range(0, n, max(size, 1)))  # whoever asks next gets the next: Python's lock sees to that

    def pieces(counter: np.ndarray) -> None:
        for first in starts:
            work(first, min(first + size, n), *args)

    launch(pieces, n_threads)
