"""Scripts for processes of their own: determinism, readers during refits, forks, growth."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time

import numpy as np
from helpers import LOSSES, interactions
from instruments.memory import status
from threadpoolctl import ThreadpoolController

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


def everything(folder: str) -> dict[str, str]:
    """Digests of what is computed, of a size that BLAS would compute on threads, and of model files."""
    X = interactions(500, 260, valued=True, seed=1)
    users = np.flatnonzero(np.diff(X.indptr))[::3]
    models = {
        name: RGALS(K=96, n_iter=2, random_state=0, loss=LOSSES[name], **settings)
        for name, settings in {
            "rg2": {},
            "rgx": {},
            "wrmf": {"solver": "pcg"},
            "ials": {"dtype": "float64", "reg_exponent": 0.5},
        }.items()
    }
    models["svd"] = RGALS(K=8, solver="svd", loss=LOSSES["rg2-row-only"], random_state=0)
    models["softmax"] = SGDRanker(K=96, n_epochs=1, random_state=0, dtype="float64")
    models["bpr"] = SGDRanker(K=96, n_epochs=1, random_state=0, loss="bpr", n_jobs=2)
    out = {}
    for name, model in models.items():
        model.fit(X)
        if isinstance(model, RGALS):
            history = [record["objective"] for record in model.history_]
            out[f"{name}: objective"] = digest([*history, model.objective(X)])
            out[f"{name}: new users"] = digest(model.transform(X[:40]))
        out[f"{name}: factors"] = digest(model.user_factors_, model.item_factors_)
        asked = *model.recommend(users, n=7), *model.similar_items(np.arange(200), n=3)
        out[f"{name}: scores"] = digest(*asked, model.predict(users, users % 260))
        for record in model.history_:
            record["seconds"] = 0.0  # the rest of the file must be the same
        path = os.path.join(folder, f"{name}.npz")
        model.save(path)
        with open(path, "rb") as file:
            out[f"{name}: file"] = hashlib.sha256(file.read()).hexdigest()
    return out


def places() -> dict[str, dict[str, str]]:
    """What is computed by the main thread and by two others at once."""

    def work(name: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            out[name] = everything(folder)

    out: dict[str, dict[str, str]] = {}
    work("main thread")
    threads = [threading.Thread(target=work, args=(f"thread {k}",)) for k in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
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


class TornALS(RGALS):
    """The naive version: the record of a fit is published before its factors."""

    def fit(self, X, y=None, **more):
        return publish_in_two_steps(self, super().fit, X, more)


class TornSGD(SGDRanker):
    """The same."""

    def fit(self, X, y=None, **more):
        return publish_in_two_steps(self, super().fit, X, more)


def publish_in_two_steps(model, fit, X, more):
    from dataclasses import replace

    kept = getattr(model, "_snapshot", None)
    fit(X, **more)
    if kept is not None:
        new = model._snapshot
        model._snapshot = replace(kept, record=new.record)
        time.sleep(0.01)
        model._snapshot = new
    return model


SAVED = {"als": RGALS, "sgd": SGDRanker, "torn als": TornALS, "torn sgd": TornSGD}


def saves(what: str, amount: int) -> dict:
    """Two threads save while one refits; every file must load and be one of the fits in all of its parts."""
    kind = SAVED[what]
    iterations = "n_iter" if issubclass(kind, RGALS) else "n_epochs"
    known, found, broken, seconds = set(), [], [], []
    stop = threading.Event()
    with tempfile.TemporaryDirectory() as folder:

        def everything(model) -> str:
            record = repr(model), model.n_iter_, model.n_features_in_
            record += getattr(model, "solver_", ""), json.dumps(model.history_)
            seen = model.seen_
            arrays = model.user_ids_, model.item_ids_, seen.data, seen.indices, seen.indptr
            return digest(np.frombuffer(repr(record).encode(), np.uint8), *model.factors_, *arrays)

        def refit(number: int) -> None:
            n_users, n_items = 40 + number % 5, 25 + number % 3  # no two in a row have the same shapes
            X = interactions(n_users, n_items, valued=number % 2 == 1, seed=number % 7)
            model.set_params(K=2 + number % 4, random_state=number, **{iterations: 1 + number % 2})
            model.fit(X, user_ids=np.arange(n_users) + number, item_ids=np.arange(n_items) + 7 * number)
            known.add(everything(model))

        def save(k: int) -> None:
            path = os.path.join(folder, str(k))
            while not stop.is_set():
                started = time.perf_counter()
                model.save(path)
                seconds.append(time.perf_counter() - started)
                try:
                    found.append(everything(kind.load(path)))
                except Exception as error:
                    broken.append(repr(error)[:200])

        model = kind()
        refit(0)
        threads = [threading.Thread(target=save, args=(k,), daemon=True) for k in range(2)]
        for thread in threads:
            thread.start()
        refits = 0
        while len(found) + len(broken) < amount or refits < amount // 50:
            refits += 1
            refit(refits)
        stop.set()
        for thread in threads:
            thread.join()
    return {
        "saves": len(found) + len(broken),
        "refits": refits,
        "different": len(set(found)),
        "broken": len(broken),
        "mixed": sum(one not in known for one in found),
        "faults": broken[:3],
        "slowest": max(seconds),
    }


def small_fit() -> str:
    model = RGALS(K=4, n_iter=2, random_state=0).fit(interactions(60, 30))
    return digest(model.user_factors_, *model.recommend([0, 1], n=3))


def small_sgd() -> str:
    model = SGDRanker(K=4, n_epochs=1, random_state=0).fit(interactions(60, 30))
    return digest(model.user_factors_, model.item_factors_)


FITS = {"als": small_fit, "sgd": small_sgd}


def _answer(pipe, what: str) -> None:
    pipe.send(FITS[what]())


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


def _answer_of_fork(pipe, blas) -> None:
    before = blas()
    pipe.send([small_fit(), before, blas()])


def forks(number: int) -> dict:
    """What children say that were forked while two threads fit, of how many threads BLAS has there."""
    # Looked for once: a child that is forked while another thread looks for libraries cannot look itself.
    libraries = ThreadpoolController().select(user_api="blas").lib_controllers

    def blas() -> list[int]:
        return sorted(library.num_threads for library in libraries)

    expected, before = small_fit(), blas()
    stop, inside = threading.Event(), []

    def work() -> None:
        X = interactions(500, 260, seed=1)
        while not stop.is_set():
            RGALS(K=96, n_iter=1, random_state=0).fit(X, callbacks=lambda now: inside.append(blas()))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    while not inside:
        time.sleep(0.001)
    context = multiprocessing.get_context("fork")
    faults, slowest = [], 0.0
    for k in range(number):
        here, there = context.Pipe()
        child = context.Process(target=_answer_of_fork, args=(there, blas))
        started = time.perf_counter()
        child.start()
        answer = here.recv() if here.poll(AT_MOST) else "no answer"
        slowest = max(slowest, time.perf_counter() - started)
        if answer != [expected, before, before]:
            faults.append(f"child {k}: {answer}")
            child.kill()
        child.join()
        if len(faults) == 3:
            break
    stop.set()
    for thread in threads:
        thread.join()
    during = sorted({count for counts in inside for count in counts})
    return {"cases": k + 1, "faults": faults, "slowest": slowest, "during": during, "left": blas() == before}


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
