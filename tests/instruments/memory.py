"""What fits take at their peak: jobs for processes of their own."""

from __future__ import annotations

import gc
import json
import os

import numpy as np
import scipy.sparse as sp

from rgals import RGALS, RGX, InsufficientMemoryError
from rgals.runtime import memory as _memory
from rgals.sgd import SGDRanker

try:
    import resource
except ImportError:  # Windows, where nothing that needs it runs
    resource = None

KINDS = {"als": RGALS, "svd": RGALS, "sgd": SGDRanker}


def status(name: str) -> int:
    """A figure of this process's memory in bytes."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    raise LookupError(name)


def matrix(n_users: int, n_items: int, each: int, valued: bool = False) -> sp.csr_array:
    """About ``each`` interactions a user, popular items among them, in canonical form."""
    rng = np.random.default_rng(0)
    items = (n_items * rng.random(n_users * each) ** 2).astype(np.int32)
    indptr = np.arange(0, n_users * each + 1, each, dtype=np.int32)
    X = sp.csr_array((np.ones(len(items), np.float32), items, indptr), shape=(n_users, n_items))
    X.sum_duplicates()
    X.data[:] = rng.integers(1, 9, X.nnz) if valued else 1
    return X


def peak(kind: str, n_users: int, n_items: int, each: int, valued: bool, settings: dict) -> dict:
    """Bytes that a fit takes beyond what was there before: predicted, and measured."""
    X = matrix(n_users, n_items, each, valued)
    dtype = np.dtype(settings.get("dtype", "float32"))
    X = X.astype(dtype, copy=False)
    of_kind = {
        "als": {"n_iter": 1, "user_mean": False},
        "svd": {"loss": RGX(alpha=0.0), "solver": "svd"},
        "sgd": {"n_epochs": 1},
    }[kind]
    settings = {**of_kind, "random_state": 0, "n_jobs": 2, **settings}
    small = matrix(600, 400, each, valued).astype(dtype)
    KINDS[kind](**{**settings, "K": min(settings["K"], 64)}).fit(small)  # compiled, and threads are there
    seen = []
    require = _memory.require
    _memory.require = lambda needed, *words: (seen.append(needed), require(needed, *words))
    before = status("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    model = KINDS[kind](**settings).fit(X)
    high = status("VmHWM")
    csr = 8 * (n_users + 1) + X.nnz * (4 + (dtype.itemsize if valued else 0))
    K, b = settings["K"], dtype.itemsize
    bound = 2 * csr + 2 * (n_users + n_items) * K * b + 2 * K * K * b
    return {
        "predicted": seen[-1] if seen else 0,
        "peak": high - before,
        "csr": csr,
        "bound": bound,
        "rows": len(model.user_factors_),
    }


def limited(kind: str) -> dict:
    """What becomes of a fit where the address space ends at 90 % of its needs: with and without the guard."""
    X = matrix(100_000 if kind == "als" else 50_000, 2_000, 5)
    few = {"n_iter": 1} if kind == "als" else {"n_epochs": 1, "loss": "bpr", "n_negatives": 2}
    K = 256 if kind == "als" else 128  # a table larger than what the heap may have free
    model = KINDS[kind](K=K, random_state=0, n_jobs=1, **few)
    model.fit(matrix(600, 400, 5))  # compiled, and threads are there
    seen = []
    require = _memory.require

    def note(needed: int, *words: str) -> None:
        seen.append(needed)
        raise InsufficientMemoryError("not yet")

    def predict() -> int:
        _memory.require = note
        try:
            model.fit(X)
        except InsufficientMemoryError:
            _memory.require = require
        return seen[-1]

    def attempt() -> dict:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        before = status("VmRSS")
        try:
            model.fit(X)
        except MemoryError as error:
            name, words = type(error).__name__, str(error)
        else:
            name, words = "none", ""
        grown = (status("VmHWM") - before) / needed
        return {"type": name, "words": words, "grown": grown, "predicted": _memory.readable(needed)}

    needed = predict()
    gc.collect()
    limit = status("VmSize") + needed * 9 // 10
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    refused = attempt()
    _memory.require = lambda *words: None
    resource.setrlimit(resource.RLIMIT_AS, (status("VmSize") + needed // 3, resource.RLIM_INFINITY))
    ran_out = attempt()
    _memory.require = require
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    fits = attempt()["type"] == "none"
    return {"refused": refused, "ran out": ran_out, "fits afterwards": fits}


if __name__ == "__main__":  # each kind in a child that shares what was imported, and no threads
    for kind in ("als", "sgd"):
        if (child := os.fork()) == 0:
            print(json.dumps(limited(kind)), flush=True)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            raise SystemExit(f"{kind} has failed")
