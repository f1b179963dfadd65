"""What watches a run: validation metrics, early stopping, the caller's callbacks."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rgals.matrix.csr import CSR
from rgals.metrics._served import sample_users
from rgals.metrics.evaluation import evaluate
from rgals.runtime.errors import ParameterError
from rgals.training.steps import Callback, Iteration


class Validation:
    """Measures a metric on held-out interactions after every iteration and adds it to the history.

    ``n_users`` judges by a sample of so many users, the same in every iteration and every fit.
    """

    def __init__(
        self, train: CSR, held_out: CSR, metric: str, n_jobs: int | None, n_users: int | None = None
    ) -> None:
        self.train, self.held_out, self.metric, self.n_jobs = train, held_out, metric, n_jobs
        self.users = sample_users(held_out, n_users)

    def __call__(self, now: Iteration) -> None:
        """Evaluate the current factors."""
        started = time.perf_counter()
        factors, data = (now.user_factors, now.item_factors), (self.train, self.held_out)
        figures = evaluate(factors, *data, self.metric, users=self.users, n_jobs=self.n_jobs)
        now.record[self.metric] = float(figures[self.metric])
        now.record["evaluation_seconds"] = time.perf_counter() - started


@dataclass(frozen=True)
class Settled:
    """Whether an objective has settled: its last fall is less than ``share`` of all that it fell.

    ``origin`` is the objective of factors that are 0.
    """

    origin: float
    share: float

    def __call__(self, history: Sequence[dict[str, Any]]) -> bool:
        """Judge the last iteration."""
        last = [record["objective"] for record in history[-2:]]
        return len(last) == 2 and last[0] - last[1] < self.share * (self.origin - last[1])

    def within(self, history: Sequence[dict[str, Any]]) -> bool:
        """Whether it had settled at any iteration."""
        return any(self(history[:n]) for n in range(2, len(history) + 1))


class BestIterate:
    """Keeps the factors of the best iteration; asks to stop ``patience`` iterations after it."""

    def __init__(self, metric: str, patience: int) -> None:
        self.metric, self.patience = metric, patience
        self.best = -np.inf
        self.iteration = 0
        self.factors: dict[str, np.ndarray] = {}

    def __call__(self, now: Iteration) -> bool:
        """Compare with the best so far."""
        figure = now.record[self.metric]
        if figure > self.best or self.iteration == 0:
            self.best, self.iteration = figure, now.iteration
            self.factors = {}  # gone before the next are copied
            self.factors = now.outcome()
        return now.iteration - self.iteration >= self.patience


def make_watchers(
    model: Any, train: CSR, held_out: CSR | None, callbacks: Callback | Sequence[Callback] | None
) -> tuple[list[Callback], BestIterate | None]:
    """What is called after every iteration; and what keeps the best iterate, if anything does."""
    watchers: list[Callback] = []
    best = None
    if held_out is not None:
        sample = getattr(model, "validation_users", None)
        watchers.append(Validation(train, held_out, model.metric, model.n_jobs, sample))
        if model.early_stopping:
            best = BestIterate(model.metric, model.patience)
            watchers.append(best)
    if callbacks is not None:
        watchers += list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]
    for callback in watchers:
        if not callable(callback):
            raise ParameterError("callbacks", callback, "give callables that take one argument")
    return watchers, best
