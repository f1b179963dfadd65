"""The one loop of every fit: a step, its time, what watches it, what is written down, when it ends."""

import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import numpy as np

from rgals.runtime.progress import ProgressBar
from rgals.training.checkpoint import Progress, Store
from rgals.training.steps import Callback, Iteration, Steps
from rgals.training.watch import BestIterate, Settled


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
