"""Counting cases, and running each in a process of its own without paying for a start each time."""

from __future__ import annotations

import io
import os
import pickle
import struct
import subprocess
import sys
import time
import traceback
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE = 300  # seconds until a process counts as hanging: the machine may be stopped for minutes

#: Of tests that need what not every system has.
POSIX = pytest.mark.skipif(os.name != "posix", reason="pipes, links, permissions and signals of POSIX")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="Linux says in /proc what a process takes")


class Tally:
    """The cases of one area: how many were tried, which failed, how long the slowest took."""

    def __init__(self, area: str, figure: int) -> None:
        self.area, self.figure = area, figure
        self.cases, self.failures, self.worst = 0, [], 0.0

    def add(self, seconds: float = 0.0, fault: str | None = None, cases: int = 1) -> None:
        self.cases += cases
        self.worst = max(self.worst, seconds)
        if fault is not None:
            self.failures.append(fault)

    @contextmanager
    def case(self, name: str):
        """Count what happens inside; an exception is a failure, and the next case goes on."""
        started = time.perf_counter()
        fault = None
        try:
            yield
        except Exception as error:
            fault = f"{name}: {type(error).__name__}: {error}"
        self.add(time.perf_counter() - started, fault)

    def check(self) -> None:
        assert not self.failures, f"{len(self.failures)} of {self.cases} failed:\n" + "\n".join(
            fault[:400] for fault in self.failures[:40]
        )
        assert self.cases >= self.figure, f"only {self.cases} cases; the figure is {self.figure}"


class Outcome:
    """How a job ended: ``value`` where it returned, ``error`` (names of its types, message) where it raised,
    ``signal`` where the process died, ``late`` where it had to be ended."""

    def __init__(self, **fields) -> None:
        self.value = fields.get("value")
        self.error = fields.get("error")
        self.signal = fields.get("signal")
        self.late = fields.get("late", False)
        self.seconds = fields.get("seconds", 0.0)
        self.sent = fields.get("sent")  # when the signal was sent, by the monotonic clock

    @property
    def returned(self) -> bool:
        return self.error is None and self.signal is None and not self.late

    def __repr__(self) -> str:
        if self.late:
            return f"still running after {self.seconds:.0f} s"
        if self.signal is not None:
            return f"killed by signal {self.signal}"
        return f"raised {self.error[0][0]}: {self.error[1]}" if self.error else f"returned {self.value!r}"


def environment(**changes: str | int | Path) -> dict[str, str]:
    """The environment of a child: the checkout first, threads that wait give way, and ``changes``."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    out = {**os.environ, "PYTHONPATH": path, "OMP_WAIT_POLICY": "passive"}
    out.setdefault("NUMBA_NUM_THREADS", "4")
    return out | {name: str(value) for name, value in changes.items()}


class Zygote:
    """A process that has imported and compiled everything and forks a child for every job.

    Jobs are functions named ``"module:function"``. A crash of one is its outcome and touches no other.
    """

    def __init__(self, *arguments: str, **changes: str | int | Path) -> None:
        script = Path(__file__).with_name("zygote.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(NUMBA_NUM_THREADS=2, **changes),
        )

    def run(self, job: str, *args, timeout: float = PATIENCE, signal_after: tuple | None = None):
        """Run one job; ``signal_after`` is a signal, after how many seconds it is sent, and "ready" if these
        count from the moment at which the job calls `ready`.
        """
        data = pickle.dumps((job, args, timeout, signal_after))
        self.process.stdin.write(struct.pack("<Q", len(data)) + data)
        self.process.stdin.flush()
        header = self.process.stdout.read(8)
        assert len(header) == 8, "the zygote itself has died"
        return Outcome(**pickle.loads(self.process.stdout.read(struct.unpack("<Q", header)[0])))

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(PATIENCE)
        self.process.stdout.close()


class Bare(Zygote):
    """A process that has imported what the package is made of, but neither the package nor anything optional.

    It runs code as a new Python would, two seconds sooner, and an empty cache of kernels is in ``folder``.
    """

    OPTIONAL = (
        "cupy", "dask", "distributed", "fastapi", "faiss", "implicit", "matplotlib", "pandas",
        "polars", "pyarrow", "torch", "jax",
    )  # fmt: skip

    def __init__(self, folder: Path) -> None:
        super().__init__("bare", *self.OPTIONAL, NUMBA_CACHE_DIR=folder)
        self.folder = folder

    def python(self, code: str) -> tuple[str, str]:
        """What code prints, and the traceback that it ends with."""
        outcome = self.run("instruments.harness:execute", code)
        assert outcome.returned, outcome
        return outcome.value


def execute(code: str) -> tuple[str, str]:
    """The job of `Bare.python`."""
    said = io.StringIO(), io.StringIO()
    with redirect_stdout(said[0]), redirect_stderr(said[1]):
        try:
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        except Exception:
            traceback.print_exc()
    return said[0].getvalue(), said[1].getvalue()


def ready() -> None:
    """Called by a job: from now on it may get its signal."""
    os.write(int(os.environ["RELIABILITY_READY"]), b"!")


def python(*arguments: str, timeout: float = PATIENCE, **changes) -> subprocess.CompletedProcess:
    """Run Python with arguments and changes of the environment."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment(**changes),
        cwd=ROOT,
    )
