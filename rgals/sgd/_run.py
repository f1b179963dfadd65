"""One SGD fit: epochs, validation, callbacks, the best epoch."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rgals._csr import CSR
from rgals._errors import InputError, NumericalError
from rgals._progress import ProgressBar
from rgals._threads import parallel
from rgals.metrics import evaluate
from rgals.sgd.losses import get_loss
from rgals.sgd.optimizers import get_optimizer
from rgals.sgd.samplers import Sampler
from rgals.sgd.schedules import get_schedule
from rgals.sgd.trainer import Factors, Settings, Trainer

_BATCH = {"full": 256, "sampled": 4096}


@dataclass(frozen=True)
class Epoch:
    """What a callback sees after every epoch.

    Attributes
    ----------
    iteration : int
        From 1.
    seconds : float
        Spent on training so far; time spent in callbacks and validation is not counted.
    objective : float
        Mean loss per unit of positive weight over the epoch's batches, each taken before its step.
    user_factors, item_factors : ndarray
        The current factors as they are scored (unit length for cosine), read-only. Copy what must outlive
        the call.
    record : dict
        The entry of the history; a callback may add figures to it.
    history : list of dict
        All entries so far, ``record`` being the last.
    """

    iteration: int
    seconds: float
    objective: float
    user_factors: np.ndarray
    item_factors: np.ndarray
    record: dict[str, Any]
    history: list[dict[str, Any]] = field(repr=False)


Callback = Callable[[Epoch], object]


class Run:
    """One fit: owns factors and history, so that the estimator changes only at the end."""

    def __init__(
        self,
        model: Any,
        train: CSR,
        seen: CSR,
        held_out: CSR | None,
        watchers: list[Callback],
        rng: np.random.Generator,
        dtype: np.dtype,
    ) -> None:
        self.model, self.train_matrix, self.seen, self.held_out = model, train, seen, held_out
        self.watchers = watchers
        loss = get_loss(model.loss)
        self.sampler = None
        if loss.kind == "sampled":
            self.sampler = Sampler(
                train,
                model.sampler,
                model.n_negatives,
                gamma=model.gamma,
                shared=model.shared_negatives,
                exclude_positives=model.exclude_positives,
                replacement=model.replacement,
            )
        self.settings = Settings(
            loss=loss,
            temperature=model.temperature,
            lr=model.lr,
            schedule=get_schedule(model.schedule, model.warmup),
            batch_size=model.batch_size or _BATCH[loss.kind],
            n_epochs=model.n_epochs,
            coupled=model.weight_decay if model.decay == "coupled" else 0.0,
            decoupled=model.weight_decay if model.decay == "decoupled" else 0.0,
            frequency=model.weight_decay if model.decay == "frequency" else 0.0,
            seed=int(rng.integers(1 << 62)),
        )
        self.start = self._start(rng, dtype)
        self.history: list[dict[str, Any]] = []

    def _start(self, rng: np.random.Generator, dtype: np.dtype) -> list[np.ndarray]:
        model = self.model
        last = getattr(model, "_snapshot", None)
        shapes = [(n, model.K) for n in self.seen.shape]
        if model.warm_start and last is not None:
            start = [last.user_factors.astype(dtype), last.item_factors.astype(dtype)]
            if [s.shape for s in start] != shapes:
                raise InputError(
                    f"warm_start: the last fit has factors of shapes {start[0].shape} and {start[1].shape}, "
                    f"which do not fit a matrix {self.seen.shape} with K={model.K}; set warm_start=False"
                )
            return start
        drawn = [rng.standard_normal(shape, dtype.type) for shape in shapes]
        for array in drawn:
            array *= dtype.type(model.init_scale)
        return drawn

    def train(self) -> tuple[np.ndarray, np.ndarray]:
        """Run all epochs; the factors of the last one, or of the best."""
        model, cosine = self.model, self.model.score == "cosine"
        optimizer = get_optimizer(model.optimizer, model.momentum)
        with parallel(model.n_jobs) as n_threads:
            users = Factors(self.start[0], cosine, optimizer)
            items = Factors(self.start[1], cosine, optimizer)
        trainer = Trainer(self.train_matrix, users, items, self.settings, self.sampler, n_threads)
        seconds, best, best_epoch = 0.0, -np.inf, 0
        bar = ProgressBar(model.n_epochs, "SGD", "epoch", shown=bool(model.verbose))
        with trainer, closing(bar):
            bar.begin()
            for epoch in range(model.n_epochs):
                started = time.perf_counter()
                with parallel(model.n_jobs):
                    objective = self._epoch(trainer, epoch)
                seconds += time.perf_counter() - started
                now = _copies(users, items)
                record: dict[str, Any] = {
                    "iteration": epoch + 1,
                    "seconds": seconds,
                    "objective": objective,
                }
                self.history.append(record)
                stop = self._watch(record, now)
                if self.held_out is not None and model.early_stopping:
                    if record[model.metric] > best or epoch == 0:
                        best, best_epoch, kept = record[model.metric], epoch, now
                    stop = stop or epoch - best_epoch >= model.patience
                bar.advance(record)
                if stop:
                    break
        return kept if self.held_out is not None and model.early_stopping else now

    def _epoch(self, trainer: Trainer, epoch: int) -> float:
        try:
            objective = trainer.epoch(epoch)
            for side, factors in (("user", trainer.users), ("item", trainer.items)):
                bad = np.flatnonzero(~np.isfinite(factors.param).all(axis=1))
                if len(bad):
                    raise NumericalError(f"the factors of {side} {bad[0]} are not finite: training diverged")
        except NumericalError as error:
            raise NumericalError(
                f"epoch {epoch + 1}: {error} (loss={self.model.loss!r}, lr={self.model.lr:g}). Lower lr or "
                "raise the temperature; the model is what it was before this fit"
            ) from None
        return objective

    def _watch(self, record: dict[str, Any], factors: tuple[np.ndarray, np.ndarray]) -> bool:
        """Validation, then callbacks; whether one of them asks to stop."""
        if self.held_out is not None:
            started = time.perf_counter()
            metric = self.model.metric
            figures = evaluate(
                factors, self.train_matrix, self.held_out, metrics=(metric,), n_jobs=self.model.n_jobs
            )
            record[metric] = float(figures[metric])
            record["evaluation_seconds"] = time.perf_counter() - started
        for array in factors:
            array.flags.writeable = False
        now = Epoch(
            iteration=record["iteration"],
            seconds=record["seconds"],
            objective=record["objective"],
            user_factors=factors[0],
            item_factors=factors[1],
            record=record,
            history=self.history,
        )
        answers = [watcher(now) for watcher in self.watchers]  # every one is called
        return any(map(bool, answers))


def _copies(users: Factors, items: Factors) -> tuple[np.ndarray, np.ndarray]:
    return users.effective.copy(), items.effective.copy()
