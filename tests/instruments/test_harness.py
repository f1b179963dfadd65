"""The instruments catch what they are for: each is shown a naive version first."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest
from instruments.harness import Tally, python


def _segfault():
    import ctypes

    ctypes.string_at(0)


def _abort():
    os.abort()


def _sleep():
    time.sleep(600)


def _raise():
    raise LookupError("not here")


def _answer(x):
    return x + 1


def _unvalidated_kernel():
    """What happens to a column index far outside where nobody looks at it first."""
    from rgals.matrix.csr import CSR

    indices = np.array([1 << 30], np.int32)
    CSR(np.array([0, 1]), indices, np.empty(0, np.float32), 3).transpose()
    for _ in range(2000):  # memory that was written at random shows when it is used
        np.ones(200)


def test_a_crash_a_hang_and_an_error_are_told_apart(zygote):
    me = "instruments.test_harness"
    assert zygote.run(f"{me}:_answer", 1).value == 2
    assert zygote.run(f"{me}:_segfault").signal == signal.SIGSEGV
    assert zygote.run(f"{me}:_abort").signal == signal.SIGABRT
    assert zygote.run(f"{me}:_sleep", timeout=0.2).late
    assert "LookupError" in zygote.run(f"{me}:_raise").error[0]
    assert zygote.run(f"{me}:_answer", 2).value == 3, "the zygote lives on"


def test_an_unvalidated_kernel_is_caught(zygote):
    assert zygote.run("instruments.test_harness:_unvalidated_kernel").signal is not None


UNLOCKED = """
import threading, numba, numpy as np
from rgals.runtime.threads import parallel
@numba.njit(parallel=True, nogil=True)
def work(x):
    total = 0.0
    for i in numba.prange(len(x)):
        total += np.sin(x[i])
    return total
x = np.ones(200_000)
with parallel(2):
    work(x)
def launch():
    for _ in range(200):
        if LOCKED:
            with parallel(2):
                work(x)
        else:
            work(x)
threads = [threading.Thread(target=launch) for _ in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
print("done")
"""


@pytest.mark.parametrize("locked", [False, True])
def test_an_unlocked_launch_ends_the_process_and_a_locked_one_does_not(locked):
    code = UNLOCKED.replace("LOCKED", str(locked))
    run = python("-c", code, NUMBA_THREADING_LAYER="workqueue", NUMBA_NUM_THREADS=2)
    if locked:
        assert run.returncode == 0, run.stderr
        assert "done" in run.stdout
    else:
        assert run.returncode != 0
        assert "Concurrent access has been detected" in run.stderr


def test_a_tally_counts_failures_and_missing_cases():
    tally = Tally("area", 2)
    with tally.case("good"):
        pass
    with pytest.raises(AssertionError, match="only 1 cases"):
        tally.check()
    with tally.case("bad"):
        raise KeyError("x")
    with pytest.raises(AssertionError, match="1 of 2 failed"):
        tally.check()
