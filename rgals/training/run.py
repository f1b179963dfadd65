"""One run of ALS or SGD: what it repeats, who watches it, and the loop, which keeps time and history."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np

from rgals.matrix.csr import CSR
from rgals.metrics._served import sample_users
from rgals.metrics.evaluation import evaluate
from rgals.runtime.aligned import read_only
from rgals.runtime.errors import ParameterError
from rgals.runtime.lazy import cached_property
from rgals.runtime.progress import ProgressBar
from rgals.training.checkpoint import Progress, Store


class Steps(Protocol):
    """A training method, iteration by iteration: all that ALS and SGD do not share."""

    label: ClassVar[str]  # the method,
    unit: ClassVar[str]  # and what it counts, for the progress bar
    # "user_factors" or "item_factors" or both: what a run returns of the last iteration, or of the best
    outcome: tuple[str, ...]

    def step(self, iteration: int) -> float:
        """Run one iteration, counted from 1; the objective. Raises NumericalError, which names it."""

    def user_factors(self) -> np.ndarray:
        """The current factors of the users; overwritten by the next step."""

    def item_factors(self) -> np.ndarray:
        """The current factors of the items; overwritten by the next step."""

    def state(self) -> dict[str, np.ndarray]:
        """All that the next step reads, to the bit."""

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from a `state` of an earlier run."""


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

    def outcome(self) -> dict[str, np.ndarray]:
        """Copies of the factors that a fit keeps of an iteration."""
        return {name: getattr(self, name).copy() for name in self._steps.outcome}


#: Called after every iteration; a true answer ends the fit.
Callback = Callable[[Iteration], object]


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


def run(
    steps: Steps,
    n_iter: int,
    *,
    tol: float | None = None,
    settled: Settled | None = None,
    began: float | None = None,
    watchers: Sequence[Callback] = (),
    best: BestIterate | None = None,
    store: Store | None = None,
    verbose: bool = False,
) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
    """Iterate until ``n_iter``, until the objective settles or until a watcher ends it.

    Returns the ``outcome`` of ``steps``, and the history: ``iteration``, ``seconds``, ``objective`` and what
    watchers added. Nothing is published: an error or Ctrl-C loses the results, but for checkpoints.

    The objective has settled when it falls by less than ``tol`` times its magnitude in an iteration, or as
    ``settled`` says; None: it ends no run. ``began`` is when the start was begun, by `time.perf_counter`: its
    seconds are of the first iteration. All ``watchers`` are called after every iteration; ``best`` is one of
    them, whose iterate is returned instead of the last. ``store`` is where checkpoints are, to go on from and
    to write.
    """
    spent = 0.0 if began is None else time.perf_counter() - began
    history: list[dict[str, Any]] = []
    done = None if store is None else store.resume(n_iter)
    if done is not None:
        steps.restore(done.state)
        history = list(done.history)
        n_iter = len(history) if done.stopped or (settled and settled.within(history)) else n_iter
        if best is not None and done.best is not None:
            best.best, best.iteration, best.factors = done.best
        del done  # SGD has copied its arrays
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
            answers = [watcher(now) for watcher in watchers]  # every one is called
            stop = any(answers) or (tol is not None and previous - objective < tol * abs(objective))
            # Not written down as a stop: a fit that asks for more iterations goes on from there.
            last = stop or iteration == n_iter or (settled is not None and settled(history))
            if store is not None and (last or store.due(iteration)):
                kept = None if best is None else (best.best, best.iteration, best.factors)
                store.write(Progress(steps.state(), history, stop, kept))
            bar.advance(record)
            if last:
                break
            previous = objective
            del now  # and with it copies of the factors that somebody asked for
    if best is not None:
        return best.factors, history
    return {name: getattr(steps, name)() for name in steps.outcome}, history
