"""Threads for compiled functions: each thread takes the next piece of work when it is done with one."""

# Compiled functions release the interpreter's lock and run on Python's own threads. Compared with numba's
# parallel loops this compiles each function once instead of four times, survives forks, lets any number of
# callers launch at once, and never spins for more than about a tenth of a millisecond.

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

_SPINS = 50_000  # looks for a new launch before a thread goes to sleep: about a tenth of a millisecond

_launches = np.zeros(1, np.int64)  # how often work was launched in this process
#: Jobs that wait for a thread. A job is a list of one call, so that `pop` hands the call to exactly one
#: taker: to a thread, or back to the launch. Queues and lists are written in C and stay whole if Ctrl-C
#: raises in any line. A lock in Python, as an executor has, could stay locked: the next fit would hang.
_jobs: SimpleQueue[list[Callable[[], object]]] = SimpleQueue()
_unstarted = [None] * numba.config.NUMBA_NUM_THREADS  # one entry for each thread that may still be started


def _serve(jobs: SimpleQueue) -> None:
    hold_thread()
    while True:
        job = jobs.get()
        with suppress(IndexError):  # the launch took the call back
            job.pop()()
        del job


def _start_threads(n: int) -> None:
    """Have at least ``n`` threads that wait for jobs, or as many as this process may have."""
    # IndexError: another caller started the last one. RuntimeError: the system allows no more threads. Either
    # way fewer threads do all the work.
    with suppress(IndexError, RuntimeError):
        while numba.config.NUMBA_NUM_THREADS - len(_unstarted) < n:
            _unstarted.pop()
            _thread.start_new_thread(_serve, (_jobs,))


def _after_fork() -> None:
    """Forget the threads of the parent: a forked child has none of them."""
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
    """Spin for a moment until the next launch: waking a sleeping thread costs more than a short kernel."""
    for _ in range(_SPINS):
        if fetch_add(launches, 0, 0) != seen:
            break


def launch(work: Callable[..., Any], n_threads: int, *args: Any) -> None:
    """Run ``work(counter, *args)`` on ``n_threads`` threads at once, of which the calling thread is one."""
    # ``work``, compiled to release the interpreter's lock, takes pieces of work off ``counter`` (`fetch_add`)
    # until none is left. It does not matter how many threads run it, nor when they start.
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
        # No piece is left, or `work` raised: take back jobs that no thread has begun, wait for the others.
        for job in jobs:
            try:
                job.pop()
            except IndexError:
                faults.append(ended.get())
    for fault in faults:
        if fault is not None:
            raise fault
        _jobs.put([functools.partial(_stay_awake, _launches, _launches[0])])


def spread(work: Callable[..., Any], n: int, n_threads: int, *args: Any) -> None:
    """Call ``work(first, stop, *args)`` for pieces that make up ``range(n)``, on ``n_threads`` threads."""
    size = n if n_threads == 1 else max(1, n // (4 * n_threads))  # four pieces a thread even out the load
    starts = iter(range(0, n, max(size, 1)))  # shared by the threads: the interpreter's lock guards it

    def pieces(counter: np.ndarray) -> None:
        for first in starts:
            work(first, min(first + size, n), *args)

    launch(pieces, n_threads)
