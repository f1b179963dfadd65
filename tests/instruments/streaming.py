"""Jobs that write everybody's lists: slowly, to be killed, and of many users, to be measured."""

from __future__ import annotations

import os
import threading
import time

import numpy as np

from rgals import RGALS
from rgals.matrix.csr import CSR
from rgals.model.ranking import FactorRanker, Snapshot
from rgals.scoring import _streaming, recommend_all

from .harness import ready
from .memory import status


def slowly(model: str, out: str, size: float) -> None:
    """Ready for its end when the scratch file has grown beyond a size, whatever is done at that moment."""
    score = _streaming.Task.score

    def slow(self, start, stop):
        time.sleep(0.02)
        return score(self, start, stop)

    def watch() -> None:
        partial = out + ".partial"
        while not (os.path.exists(partial) and os.stat(partial).st_size > size):
            time.sleep(0.001)
        ready()

    _streaming.Task.score = slow
    threading.Thread(target=watch, daemon=True).start()
    recommend_all(RGALS.load(model), out, n=10, batch_size=50)


class Model(FactorRanker):
    n_jobs = 1


def _model(n_users: int) -> Model:
    rng = np.random.default_rng(0)
    five = np.tile(np.arange(5, dtype=np.int32), n_users)
    seen = CSR(np.arange(n_users + 1) * 5, five, np.empty(0, "f4"), 300)
    labels = np.array([f"user {k}" for k in range(n_users)])
    made = Model()
    made._snapshot = Snapshot(rng.random((n_users, 4), "f4"), rng.random((300, 4), "f4"), seen, labels)
    return made


def growth(out: str, n_users: int) -> float:
    """MiB that the lists of so many users take at their peak beyond the model."""
    made = _model(n_users)
    recommend_all(_model(20_000), out, batch_size=1000)  # libraries, compilation
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak from here on
    before = status("VmRSS")
    recommend_all(made, out, batch_size=1000)
    return (status("VmHWM") - before) / 2**20
