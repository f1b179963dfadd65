"""The instruments catch what they are for: each is shown a naive version first."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest
from instruments.harness import Tally


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
