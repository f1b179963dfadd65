"""The process behind `harness.Zygote`: reads jobs from standard input, forks for each, writes outcomes.

``python zygote.py bare`` knows nothing of the package, only what this is made of.
"""

from __future__ import annotations

import importlib
import os
import pickle
import select
import signal
import struct
import sys
import time

import numpy as np

try:
    import resource
except ImportError:  # Windows, where nothing that needs it runs
    resource = None


def warm_up() -> None:
    from helpers import interactions

    from rgals import IALS, RG2, RGALS

    X = interactions(60, 45, valued=True)
    for dtype in ("float32", "float64"):
        for loss in (RG2(), IALS()):
            model = RGALS(K=4, loss=loss, n_iter=2, dtype=dtype, random_state=0).fit(X)
    model = RGALS(K=4, n_iter=1, random_state=0).fit((X > 0).astype(float))
    model.recommend([0], n=3)
    model.recommend([0], n=3, candidates=[1, 2])
    model.similar_items([0], n=2)
    model.score(X)


class Absent:
    """As if no optional package were installed: scikit-learn loads some of them where it finds them."""

    def __init__(self, names: list[str]) -> None:
        self.names, self.tried = set(names), []

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            self.tried.append(name)
            raise ModuleNotFoundError(name)


def import_others(optional: list[str]) -> None:
    sys.meta_path.insert(0, Absent(optional))
    for name in ("numba", "scipy.sparse", "sklearn.base", "sklearn.utils"):
        importlib.import_module(name)


def run_child(job: str, args: tuple, out: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    started = time.perf_counter()
    try:
        module, _, name = job.partition(":")
        result = {"value": getattr(importlib.import_module(module), name)(*args)}
    except BaseException as error:
        result = {"error": ([kind.__name__ for kind in type(error).__mro__], str(error))}
    result["seconds"] = time.perf_counter() - started
    with os.fdopen(out, "wb") as pipe:
        pickle.dump(result, pipe)


def serve(job: str, args: tuple, timeout: float, signal_after: tuple | None) -> dict:
    sys.stdout.flush()
    reading, writing = os.pipe()
    waiting, ready = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            os.close(waiting)
            os.environ["RELIABILITY_READY"] = str(ready)
            # What a job prints must not reach the pipe of the outcomes.
            os.dup2(2, 1)
            run_child(job, args, writing)
        finally:
            os._exit(0)
    os.close(writing)
    os.close(ready)
    if signal_after is not None and signal_after[2:]:  # the delay counts from when the job says so
        select.select([waiting, reading], [], [], timeout)
    os.close(waiting)
    started = time.monotonic()
    parts, late, sent = [], False, None
    while True:
        left = timeout - (time.monotonic() - started)
        if signal_after is not None:
            left = min(left, max(0.0, signal_after[1] - (time.monotonic() - started)))
        if not select.select([reading], [], [], max(0.0, left))[0]:
            if signal_after is not None and time.monotonic() - started >= signal_after[1]:
                sent = time.monotonic()
                os.kill(child, signal_after[0])
                signal_after = None
            elif time.monotonic() - started >= timeout:
                late = True
                os.kill(child, signal.SIGKILL)
            continue
        part = os.read(reading, 1 << 20)
        if not part:
            break
        parts.append(part)
    os.close(reading)
    _, status = os.waitpid(child, 0)
    seconds = time.monotonic() - started
    if late:
        return {"late": True, "seconds": seconds}
    if os.WIFSIGNALED(status):
        return {"signal": os.WTERMSIG(status), "seconds": seconds}
    if not parts:
        return {"signal": 0, "seconds": seconds}
    return {**pickle.loads(b"".join(parts)), "sent": sent}


def main() -> None:
    # Outcomes go to a descriptor of their own: whatever else prints here goes to standard error.
    outcomes = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    np.seterr(all="warn")
    if sys.argv[1:2] == ["bare"]:
        import_others(sys.argv[2:])
    else:
        warm_up()
    while True:
        header = sys.stdin.buffer.read(8)
        if len(header) < 8:
            return
        request = pickle.loads(sys.stdin.buffer.read(struct.unpack("<Q", header)[0]))
        importlib.import_module(request[0].partition(":")[0])  # once, and not in each child
        data = pickle.dumps(serve(*request))
        outcomes.write(struct.pack("<Q", len(data)) + data)
        outcomes.flush()


if __name__ == "__main__":
    main()
