"""One run of ALS or SGD: the protocol of its steps, its watchers, and the loop with clock and history."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from rgals.matrix.csr import CSR
from rgals.metrics._served import sample_users
from rgals.metrics._table import parse, rising
from rgals.metrics.evaluation import evaluate
from rgals.runtime.aligned import read_only
from rgals.runtime.errors import ParameterError
from rgals.runtime.lazy import cached_property
from rgals.runtime.progress import ProgressBar
from rgals.training.checkpoint import Best, Store


class Steps(Protocol):
    """A training method, iteration by iteration: all that ALS and SGD do not share."""

    label: ClassVar[str]  # name of the method in the progress bar
    unit: ClassVar[str]  # name of an iteration in the progress bar
    # What a run returns of the last or the best iteration: "user_factors", "item_factors" or both.
    outcome: tuple[str, ...]

    def step(self, iteration: int) -> float:
        """Run one iteration, counted from 1; the objective. Raises NumericalError, which names it."""

    def user_factors(self) -> np.ndarray:
        """The current factors of the users; overwritten by the next step."""

    def item_factors(self) -> np.ndarray:
        """The current factors of the items; overwritten by the next step."""

    def state(self) -> dict[str, np.ndarray]:
        """Everything that the next step depends on: a run resumed from it gives the same bits."""

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Resume from the `state` of an earlier run."""


@dataclass
class Iteration:
    """What a callback sees after every iteration: of ALS two half-steps, of SGD an epoch.

    Attributes
    ----------
    iteration : int
        From 1.
    seconds : float
        Spent on training so far; time spent in validation and callbacks is not counted.
    objective : float
        ALS: the loss's stated objective at these factors. SGD: the mean loss per unit of positive weight over
        the epoch's batches, each taken before its step.
    user_factors, item_factors : ndarray
        The current factors as they are scored, read-only. Copy what must outlive the call. A device backend
        moves them to the host when they are first asked for.
    record : dict
        The entry of the history; a callback may add figures (metrics) to it.
    history : list of dict
        All entries so far, ``record`` being the last.
    """

    iteration: int
    seconds: float
    objective: float
    record: dict[str, Any]
    history: list[dict[str, Any]] = field(repr=False)
    _steps: Steps = field(repr=False)

    @cached_property
    def user_factors(self) -> np.ndarray:
        """The current factors of the users, read-only."""
        return read_only(self._steps.user_factors())

    @cached_property
    def item_factors(self) -> np.ndarray:
        """The current factors of the items, read-only."""
        return read_only(self._steps.item_factors())


#: Called after every iteration; a true answer ends the fit.
Callback = Callable[[Iteration], object]


def has_settled(origin: float, share: float, history: Sequence[dict[str, Any]]) -> bool:
    """Whether the last iteration lowered the objective by less than ``share`` of its fall from ``origin``."""
    # ``origin``: the objective of factors of 0.
    last = [record["objective"] for record in history[-2:]]
    return len(last) == 2 and last[0] - last[1] < share * (origin - last[1])


class Watch:
    """What is done after every iteration: validation, early stopping by its metric, callbacks."""

    def __init__(
        self, callbacks: Any = None, model: Any = None, known: Any = None, held_out: CSR | None = None
    ) -> None:
        several = list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]
        self.callbacks: list[Callback] = [] if callbacks is None else several
        for callback in self.callbacks:
            if not callable(callback):
                raise ParameterError("callbacks", callback, "give callables that take one argument")
        self.model, self.known, self.held_out = model, known, held_out
        if held_out is not None:
            (rising if model.early_stopping else parse)(model.metric)
            self.users = sample_users(held_out, getattr(model, "validation_users", None))
        self.keeps = held_out is not None and model.early_stopping
        self.plain = 0  # first iterations, which patience does not count
        # User factors to validate after an iteration, if not those of the iteration itself.
        self.serve: Callable[[Iteration], np.ndarray] | None = None
        self.best: Best = -np.inf, 0, {}

    def __call__(self, now: Iteration) -> bool:
        """Measure, keep the best iterate, call all callbacks; returns whether to end the run."""
        model, known, stop = self.model, self.known, False
        if self.held_out is not None:
            started = time.perf_counter()
            judged = copy(model)  # a fitted model, so that `evaluate` asks for what it would serve
            users = now.user_factors if self.serve is None else self.serve(now)
            judged._snapshot = replace(known, user_factors=users, item_factors=now.item_factors)
            given = judged, known.seen, self.held_out, model.metric
            figures = evaluate(*given, users=self.users, n_jobs=model.n_jobs)
            now.record[model.metric] = float(figures[model.metric])
            now.record["evaluation_seconds"] = time.perf_counter() - started
        if self.keeps:
            (best, iteration), figure = self.best[:2], now.record[model.metric]
            if figure > best or iteration == 0:
                self.best = figure, now.iteration, {}  # frees the old factors before the new are copied
                kept = {name: getattr(now, name).copy() for name in now._steps.outcome}
                self.best = figure, now.iteration, kept
            stop = now.iteration - max(self.best[1], self.plain) >= model.patience
        answers = [callback(now) for callback in self.callbacks]  # every one is called
        return stop or any(answers)


def run(
    steps: Steps,
    n_iter: int,
    *,
    tol: float | None = None,
    settled: Callable[[Sequence[dict[str, Any]]], bool] | None = None,
    began: float | None = None,
    watch: Watch | None = None,
    store: Store | None = None,
    verbose: bool = False,
) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
    """Iterate until ``n_iter``, until the objective settles or until a watcher ends the run."""
    # Returns the ``outcome`` of ``steps``, and the history: ``iteration``, ``seconds``, ``objective`` and
    # what watchers added. Nothing is published: an error or Ctrl-C loses the results, but for checkpoints.
    # The objective has settled when an iteration lowers it by less than ``tol`` times its magnitude, or as
    # ``settled`` says; with None, neither ends the run. ``began`` is the `time.perf_counter` before the start
    # factors were made, which the first iteration's seconds include. If ``watch`` keeps the best iterate,
    # that is returned instead of the last. ``store`` holds the checkpoint to resume from and to write.
    spent = 0.0 if began is None else time.perf_counter() - began
    history: list[dict[str, Any]] = []
    watch = watch or Watch()
    done = None if store is None else store.resume(n_iter)
    if done is not None:
        state, history, stopped, best = done
        steps.restore(state)
        over = settled is not None and any(settled(history[:n]) for n in range(2, len(history) + 1))
        n_iter = len(history) if stopped or over else n_iter
        if watch.keeps and best is not None:
            watch.best = best
        del done, state, best  # SGD has copied its arrays
    seconds, previous = (history[-1]["seconds"], history[-1]["objective"]) if history else (spent, np.inf)
    with closing(ProgressBar(n_iter, steps.label, steps.unit, shown=verbose)) as bar:
        bar.begin(len(history))
        for iteration in range(len(history) + 1, n_iter + 1):
            started = time.perf_counter()
            objective = steps.step(iteration)
            seconds += time.perf_counter() - started
            record: dict[str, Any] = {"iteration": iteration, "seconds": seconds, "objective": objective}
            history.append(record)
            now = Iteration(iteration, seconds, objective, record, history, steps)
            stop = watch(now) or (tol is not None and previous - objective < tol * abs(objective))
            # A settled fit is not stored as stopped: one that asks for more iterations resumes from it.
            last = stop or iteration == n_iter or (settled is not None and settled(history))
            if store is not None and (last or iteration % store.checkpoint.every == 0):
                store.write(steps.state(), history, stop, watch.best if watch.keeps else None)
            bar.advance(record)
            if last:
                break
            previous = objective
            del now  # frees copies of the factors that a watcher asked for
    if watch.keeps:
        return watch.best[2], history
    return {name: getattr(steps, name)() for name in steps.outcome}, history
