"""Scripts for processes of their own: determinism, readers during refits, forks, growth."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import sys
import threading
import time

import numpy as np
from helpers import LOSSES, interactions

from rgals import RGALS
from rgals.sgd import SGDRanker


def digest(*arrays) -> str:
    out = hashlib.sha256()
    for array in arrays:
        out.update(np.ascontiguousarray(array).tobytes())
    return out.hexdigest()


def determinism(threads: list[int], seeds: list[int]) -> dict[str, str]:
    """Digest of everything that is computed, by number of threads and seed."""
    out = {}
    for seed in seeds:
        X = interactions(400, 150, valued=seed % 2 == 1, seed=seed)
        for n in threads:
            parts = []
            for settings in (
                {"loss": LOSSES["rg2"]},
                {"loss": LOSSES["rgx"], "K": 33},
                {"loss": LOSSES["ials-proposal"], "dtype": "float64"},
                {"loss": LOSSES["wrmf"], "solver": "pcg"},
            ):
                model = RGALS(**{"K": 16, "n_iter": 3, "random_state": seed, "n_jobs": n, **settings}).fit(X)
                parts += [model.user_factors_, model.item_factors_]
                parts += [[record["objective"] for record in model.history_]]
                parts += model.recommend(np.arange(0, 400, 7), n=5)
                parts += model.similar_items(np.arange(150), n=3)
            sgd = SGDRanker(K=8, n_epochs=1, random_state=seed, n_jobs=n).fit(X)
            parts += [sgd.user_factors_, sgd.item_factors_]
            out[f"threads {n}, seed {seed}"] = digest(*parts)
    return out


def sgd() -> dict[str, str]:
    """Digest of what SGD computes with each of its compiled parts."""
    X = interactions(400, 150, seed=1)
    out = {}
    for loss in ("softmax", "sampled_softmax", "bpr"):
        for score in ("dot", "cosine"):
            model = SGDRanker(K=24, loss=loss, score=score, n_epochs=2, random_state=0).fit(X)
            out[f"{loss}, {score}"] = digest(model.user_factors_, model.item_factors_)
    return out


class Torn(RGALS):
    """The naive version: what a fit found is published in two steps."""

    def fit(self, X, y=None, **more):
        kept = getattr(self, "_snapshot", None)
        super().fit(X, **more)
        if kept is not None:
            from dataclasses import replace

            new = self._snapshot
            self._snapshot = replace(new, item_factors=kept.item_factors)
            time.sleep(0.01)
            self._snapshot = new
        return self


AT_MOST = 60.0  # seconds that a busy machine may take to give every thread its turn


def concurrency(seconds: float, refits: int, naive: bool) -> dict:
    """16 threads ask while one refits; every answer must be that of one of the fits.

    On a busy machine it goes on until every thread has answered and, of a naive model, until it is caught.
    """
    X = interactions(300, 120, seed=1)
    users = np.arange(0, 300, 11)
    params = {"K": 8, "n_iter": 2}
    model = (Torn if naive else RGALS)(**params, random_state=0).fit(X)
    known = {digest(*model.recommend(users, n=7))}
    answers, faults, slowest = [set() for _ in range(16)], [], [0.0] * 16
    counts = [0] * 16
    stop = threading.Event()

    def ask(k: int) -> None:
        try:
            while not stop.is_set():
                started = time.perf_counter()
                answers[k].add(digest(*model.recommend(users, n=7)))
                slowest[k] = max(slowest[k], time.perf_counter() - started)
                counts[k] += 1
        except Exception as error:
            faults.append(repr(error))

    threads = [threading.Thread(target=ask, args=(k,)) for k in range(16)]
    for thread in threads:
        thread.start()
    started = time.monotonic()
    done = 0
    caught = not naive
    while (
        done < refits
        or time.monotonic() - started < seconds
        or not (caught and all(counts))
        and time.monotonic() - started < AT_MOST
    ):
        done += 1
        model.random_state = done % 25
        model.fit(X)
        known.add(digest(*model.recommend(users, n=7)))
        caught = caught or bool(set().union(*answers) - known)
    stop.set()
    for thread in threads:
        thread.join()
    unknown = set().union(*answers) - known
    return {
        "answers": sum(counts),
        "refits": done,
        "different": len(known),
        "unknown": len(unknown),
        "faults": faults[:3],
        "idle": sum(count == 0 for count in counts),
        "slowest": max(slowest),
    }


def small_fit() -> str:
    model = RGALS(K=4, n_iter=2, random_state=0).fit(interactions(60, 30))
    return digest(model.user_factors_, *model.recommend([0, 1], n=3))


def small_sgd() -> str:
    model = SGDRanker(K=4, n_epochs=1, random_state=0).fit(interactions(60, 30))
    return digest(model.user_factors_, model.item_factors_)


FITS = {"als": small_fit, "sgd": small_sgd}


def _answer(pipe, what: str) -> None:
    from rgals import ForkError

    try:
        pipe.send(FITS[what]())
    except ForkError as error:
        pipe.send(f"ForkError: {error}")


def fork(method: str, when: str, what: str) -> dict:
    """What a child says that was started before or after the parent's first fit, and during another."""
    small_fit = FITS[what]
    expected = None
    if when != "before":
        expected = small_fit()
    busy = None
    stop = threading.Event()
    if when == "during":

        def work() -> None:
            while not stop.is_set():
                small_fit()

        busy = threading.Thread(target=work)
        busy.start()
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    child = context.Process(target=_answer, args=(there, what))
    child.start()
    answered = here.poll(240)
    answer = here.recv() if answered else "no answer"
    child.join(30)
    stop.set()
    if busy is not None:
        busy.join()
    return {
        "answer": answer,
        "expected": expected or small_fit(),
        "exit": child.exitcode,
        "parent": small_fit(),
    }


def status(name: str) -> int:
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    raise LookupError(name)


def soak(fits: int) -> dict:
    """Growth of resident memory over many fits, by hundreds."""
    X = interactions(80, 40)
    marks = []
    slowest = 0.0
    for number in range(fits + 101):
        started = time.perf_counter()
        model = RGALS(K=6, n_iter=2, random_state=number, loss=("rg2", "ials")[number % 2]).fit(X)
        model.recommend([0, 1, 2], n=4)
        slowest = max(slowest, time.perf_counter() - started)
        if number >= 100 and number % 50 == 0:
            marks.append(status("VmRSS"))
    return {"marks": marks, "slowest": slowest}


if __name__ == "__main__":
    name, arguments = sys.argv[1], json.loads(sys.argv[2])
    result = globals()[name](*arguments)
    print(json.dumps(result), flush=True)
    os._exit(0)
