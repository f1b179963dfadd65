"""Compiles in two processes what others need: ``PYTHONPATH=tests python -m instruments.warm_up``.

Where the cache is empty, each process that a test starts would compile it again. What only the processes of
pytest need is compiled by one of them (`instruments.compiling`).
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from helpers import LOSSES, interactions
from instruments.compiling import compile_once
from threadpoolctl import threadpool_limits

from rgals import RGALS
from rgals.metrics import evaluate
from rgals.sgd import SGDRanker


def fit(dtype: str, loss: str, **settings) -> RGALS:
    X = interactions(60, 45, valued=True)
    model = RGALS(K=4, loss=LOSSES[loss], n_iter=2, dtype=dtype, random_state=0, **settings).fit(X)
    model.transform(X)
    return model


def answer(dtype: str) -> None:
    model, X = fit(dtype, "rg2"), interactions(60, 45)
    model.recommend([0], n=3)
    model.recommend([0], n=3, candidates=[1, 2])
    model.recommend_new(X[:2], n=3)
    model.similar_items([0], n=2)
    model.explain(0, 1)
    model.predict(np.array([0]), np.array([1]))
    evaluate(model, X, interactions(60, 45, seed=1))


def descend(dtype: str, loss: str) -> None:
    SGDRanker(K=4, n_epochs=1, loss=loss, dtype=dtype, random_state=0).fit(interactions())


def jobs() -> list[Callable]:
    """One after the other, so that two processes that start from the two ends meet in the middle."""
    halves = []
    for dtype in ("float32", "float64"):
        half: list[Callable] = [partial(fit, dtype, loss) for loss in ("rg2", "rgx", "rg2-signed", "ials")]
        half += [partial(fit, dtype, "ials", solver="pcg"), partial(answer, dtype)]
        half += [partial(descend, dtype, loss) for loss in ("softmax", "bpr")]
        halves.append(half)
    return halves[0] + halves[1][::-1]


def work(order: int, locks: Path) -> None:
    compile_once(locks)
    threadpool_limits(1, "blas")  # its threads would wait on the cores that compile
    warnings.simplefilter("ignore")
    for job in jobs()[::order]:
        job()


def main() -> int:
    context = get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        workers = [context.Process(target=work, args=(k, Path(folder, "compiling"))) for k in (1, -1)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    return max(abs(worker.exitcode or 0) for worker in workers)


if __name__ == "__main__":
    sys.exit(main())
