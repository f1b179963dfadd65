"""Measuring one setting: fits on the training part of every split, quality on its validation part."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from rgals.datasets.given import given, known_part
from rgals.datasets.splits import split_interactions
from rgals.estimator import RGALS
from rgals.files.journal import Journal
from rgals.losses import Loss
from rgals.matrix.csr import CSR
from rgals.matrix.digest import short_digest
from rgals.matrix.validate import as_csr
from rgals.metrics._served import sample_users
from rgals.metrics.evaluation import evaluate
from rgals.model_selection.protocol import PROTOCOLS, Parts, Protocol
from rgals.model_selection.tuning.halving import LEVELS, OutOfTimeError
from rgals.model_selection.tuning.space import OF_MODEL
from rgals.runtime.errors import InputError, NumericalError, ParameterError

_DEFAULT = (0.9, 0.1)  # training and validation of every user where no protocol is given


@dataclass(frozen=True)
class Fold:
    """A training part and what a model of it is judged by."""

    train: CSR
    told: CSR  # what is known of the judged users, and left out of their rankings
    hidden: CSR  # what is to be found, in the rows of told
    users: np.ndarray  # the judged rows: all with hidden interactions, or a sample of them
    fold_in: bool  # the judged users are not those of train


@dataclass(frozen=True)
class Prepared:
    """Everything that is made of the data once."""

    splits: list[Fold]
    final: sp.csr_array  # what the best model is refitted to
    parts: Parts | None  # what the protocol made, with the test part
    user_ids: np.ndarray | None  # labels of the rows and columns of final
    item_ids: np.ndarray | None

    def fingerprint(self) -> str:
        """A digest of all parts that a figure depends on."""
        return short_digest(*(x for s in self.splits for x in (s.train, s.told, s.hidden, s.users)))


def split_for_tuning(
    X: Any, protocol: Protocol | str | None, validation: Any, repeats: int, max_users: int | None, seed: int
) -> Prepared:
    """Split the data as `tune` says."""
    if protocol is not None and validation is not None:
        raise InputError("give a protocol or validation interactions, not both")
    if isinstance(protocol, str):
        if protocol not in PROTOCOLS:
            raise ParameterError("protocol", protocol, "choose from " + ", ".join(map(repr, PROTOCOLS)))
        protocol = PROTOCOLS[protocol]
    parts = None
    X = given(X)
    user_ids, item_ids = X.user_ids, X.item_ids
    if protocol is not None:
        parts = protocol.apply(X)
        if parts.validation.nnz == 0:
            raise InputError(f"the protocol makes no validation part: {protocol}")
        users = parts.users if parts.train_users is None else parts.users[parts.train_users]
        user_ids = None if user_ids is None else user_ids[users]
        item_ids = None if item_ids is None else item_ids[parts.items]
        if parts.validation_fold_in is not None:
            if repeats > 1:
                raise ParameterError("repeats", repeats, "give 1 where users are held out")
            split = _fold(parts.train, parts.validation_fold_in, parts.validation, max_users, seed, True)
            return Prepared([split], parts.train, parts, user_ids, item_ids)
        train, held_out = parts.train, parts.validation
    elif validation is not None:
        train = X.csr()
        held_out = as_csr(
            known_part(validation, user_ids, item_ids, "validation"),
            name="validation",
            n_rows=train.shape[0],
            n_cols=train.shape[1],
        ).to_scipy()
    else:
        train, held_out = split_interactions(X.csr(), _DEFAULT, random_state=seed)
        if held_out.nnz == 0:
            raise InputError("no user has two interactions: nothing can be held out to tune on")
    final = sp.csr_array(train + held_out)
    pairs = [(train, held_out)]
    share = held_out.nnz / final.nnz
    for k in range(1, repeats):
        # Drawn from training and validation together: the test part of a protocol stays untouched.
        more = split_interactions(final, (1 - share, share), random_state=seed + k)
        pairs.append((more[0], more[1]))
    splits = [_fold(told, told, hidden, max_users, seed, False) for told, hidden in pairs]
    return Prepared(splits, final, parts, user_ids, item_ids)


def _fold(train: Any, told: Any, hidden: Any, max_users: int | None, seed: int, fold_in: bool) -> Fold:
    known, found = as_csr(told, dtype=np.float32), as_csr(hidden, dtype=np.float32)
    train = as_csr(train, dtype=np.float32) if fold_in else known
    return Fold(train, known, found, sample_users(found, max_users, seed), fold_in)


def make_model(loss: Loss, params: Mapping[str, Any], level: int, **common: Any) -> RGALS:
    """The estimator of a setting, as cheap as its level says."""
    share, iterations = LEVELS[level]
    of_loss = {k: v for k, v in params.items() if k not in OF_MODEL}
    of_model = {**common, **{k: v for k, v in params.items() if k in OF_MODEL}}
    n_iter = of_model.pop("n_iter")
    return RGALS(
        **{**of_model, "K": max(1, round(of_model["K"] * share))},
        n_iter=max(1, round(n_iter * iterations)),
        loss=type(loss)(**{**loss.get_params(), **of_loss}),
    )


@dataclass(frozen=True)
class Measurement:
    """Measures settings of one loss; asks the journal first.

    ``name``: of the loss in journal and table. ``common``: parameters of `RGALS` that all fits share. No fit
    starts after ``deadline`` (of `time.monotonic`). ``report`` hears of every row.
    """

    loss: Loss
    name: str
    prepared: Prepared
    metric: str
    common: dict[str, Any]
    journal: Journal | None
    deadline: float | None
    report: Callable[[dict[str, Any]], None]

    def __call__(self, params: dict[str, Any], level: int) -> float:
        """Mean of the metric over the splits; 0 where a system could not be solved."""
        model = make_model(self.loss, params, level, **self.common)
        shown = {"K": model.K, "n_iter": model.n_iter}
        key = json.dumps([self.name, level, params, shown], sort_keys=True, default=str)
        row = self.journal.get(key) if self.journal is not None else None
        if row is None:
            if self.deadline is not None and time.monotonic() > self.deadline:
                raise OutOfTimeError
            row = {"loss": self.name, "level": level, "params": {**params, **shown}, **self._fit(model)}
            if self.journal is not None:
                self.journal.add(key, row)
        row = {k: v for k, v in row.items() if k != "key"}
        self.report(row)
        return row[self.metric]

    def _fit(self, model: RGALS) -> dict[str, Any]:
        figures, seconds, fault = [], 0.0, ""
        for split in self.prepared.splits:
            started = time.perf_counter()
            try:
                model.fit(split.train)
            except NumericalError as error:
                figures, fault = [0.0], str(error)
                break
            finally:
                seconds += time.perf_counter() - started
            figures.append(judge(model, split, (self.metric,))[self.metric])
        return {self.metric: float(np.mean(figures)), "seconds": seconds, "error": fault}


def judge(model: RGALS, split: Fold, metrics: tuple[str, ...]) -> dict[str, float]:
    """Quality of a fitted model on the judged users of a split."""
    users = model.transform(split.told) if split.fold_in else model.user_factors_
    factors = users, model.item_factors_
    return evaluate(factors, split.told, split.hidden, metrics, users=split.users, n_jobs=model.n_jobs)
