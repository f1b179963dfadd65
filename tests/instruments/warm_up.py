"""Compiles in two processes what others need: ``PYTHONPATH=tests python -m instruments.warm_up``.

Where the cache is empty, each process that a test starts would compile it again. What only the processes of
pytest need is compiled by one of them (`rgals.warm.compile_once`).
"""

from __future__ import annotations

import sys

import numpy as np
from helpers import LOSSES, interactions

from rgals import RGALS
from rgals.metrics import evaluate
from rgals.sgd import SGDRanker
from rgals.warm import JOBS, warmup


def fit(dtype: str, loss: str, **settings) -> RGALS:
    X = interactions(60, 45, valued=True)
    model = RGALS(K=4, loss=LOSSES[loss], n_iter=2, dtype=dtype, random_state=0, **settings).fit(X)
    model.transform(X)
    return model


def step(dtype: str) -> None:
    fit(dtype, "ials", solver="pcg")


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


def jobs() -> list[tuple[str, ...]]:
    """In such an order that two processes that start from the two ends meet in the middle."""
    halves = []
    for dtype in ("float32", "float64"):
        half = [("fit", dtype, loss) for loss in ("rg2", "rgx", "rg2-signed", "ials")]
        half += [("step", dtype), ("answer", dtype)]
        half += [("descend", dtype, loss) for loss in ("softmax", "bpr")]
        halves.append([(f"{__spec__.name}:{name}", *arguments) for name, *arguments in half])
    return [*JOBS, *halves[0], *halves[1][::-1]]


if __name__ == "__main__":
    warmup(n_jobs=2, jobs=jobs(), verbose=int(sys.stderr.isatty()))
