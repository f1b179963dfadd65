"""The methods of the quality table: what each may tune, how it is fitted, where it is too large.

Every method gets the same search (`rgals.model_selection.tune` or the search below it). Seconds are CPU
seconds of the final fit, which on one thread hardly depend on what else the machine does.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from threadpoolctl import threadpool_limits

from rgals import IALS, RG2, RGALS, RGALSCV, RGX, WRMF
from rgals.baselines import EASE, Popularity
from rgals.files.journal import Journal
from rgals.losses import rule
from rgals.metrics import evaluate
from rgals.model_selection import Search, tune
from rgals.model_selection.tuning.halving import Trial, best_trial, search
from rgals.model_selection.tuning.prepared import Prepared
from rgals.model_selection.tuning.space import OneOf, Range, Space, default_space
from rgals.sgd import SGDRanker

PLAIN = {"user_exponent": 0.0, "item_exponent": 0.0}
#: Share of K and of the iterations at each level of the search, for methods other than ours.
LEVELS = ((0.5, 0.25), (1.0, 0.25), (1.0, 1.0))
TOP = len(LEVELS) - 1
EASE_ITEMS = 17_000  # N^3 seconds, and 1.2 GB in float32


@dataclass(frozen=True)
class Task:
    """What a method is asked to do.

    Attributes
    ----------
    data, protocol : as `tune` takes them
    prepared : Prepared
        The same splits, for methods that are not rgals'.
    K, n_jobs, seed, repeats : int
    budget : float
        In full fits, for two parameters.
    metric : str
    folder : Path
        For journals.
    """

    data: Any
    protocol: Any
    prepared: Prepared
    K: int
    n_jobs: int
    seed: int
    repeats: int
    budget: float
    metric: str
    folder: Path


@dataclass(frozen=True)
class Answer:
    """A tuned and refitted model.

    Attributes
    ----------
    scores : pair of factors, or callable
        For `rgals.metrics.evaluate`.
    setting : dict
    validation : float
    edges : list of str
    seconds : float or None
        CPU seconds of the final fit, where it is timed apart from the search.
    fits : int
    """

    scores: Any
    setting: dict[str, Any]
    validation: float
    edges: list[str]
    seconds: float | None
    fits: int


@dataclass(frozen=True)
class Method:
    """A row of the table."""

    run: Callable[[str, Task], Answer]
    has_factors: bool = True
    slow: bool = False
    max_items: int | None = None


def als(loss: Any, dimensions: int = 2, **space: Any) -> Method:
    """A loss of rgals. Plain WRMF has a ridge in other units: see `plain_ridge`."""

    def run(name: str, task: Task) -> Answer:
        train = task.prepared.splits[0].train
        chosen = {**PLAIN, **space, "K": task.K}  # None: the default range
        if chosen.get("reg_exponent") == 0.0:
            chosen["reg"] = plain_ridge(train)
        found = tune(  # its warning of edges becomes a mark in the table
            loss,
            task.data,
            {key: value for key, value in chosen.items() if value is not None},
            budget=task.budget * dimensions / 2,
            protocol=task.protocol,
            search=Search(repeats=task.repeats),
            metric=task.metric,
            journal=task.folder / f"{name}.jsonl",
            refit=False,
            random_state=task.seed,
            n_jobs=task.n_jobs,
        )
        started = time.process_time()
        model = found.model.fit(task.prepared.final)
        seconds = time.process_time() - started
        setting = {k: v for k, v in found.params.items() if v != 0.0 or k == "reg_exponent"}
        factors = model.user_factors_, model.item_factors_
        return Answer(factors, setting, found.figure, list(found.edges), seconds, len(found.trials))

    return Method(run)


def as_shown(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters of an estimator, those of its loss beside the others, hard negatives by their weight."""
    loss, shown = params["loss"], {name: getattr(value, "weight", value) for name, value in params.items()}
    return {**shown, "loss": loss.name, **loss.get_params()}


def default(loss: str) -> Method:
    """A loss of rgals as it comes."""

    def run(name: str, task: Task) -> Answer:
        model = RGALS(task.K, loss, random_state=task.seed, n_jobs=task.n_jobs)
        figures = []
        for split in task.prepared.splits:
            model.fit(split.train.to_scipy())
            got = evaluate(
                model, split.told, split.hidden, task.metric, users=split.users, n_jobs=task.n_jobs
            )
            figures.append(got[task.metric])
        started = time.process_time()
        model.fit(task.prepared.final)
        seconds = time.process_time() - started
        return Answer(model, as_shown(model.params_), float(np.mean(figures)), [], seconds, 1)

    return Method(run)


def searched(loss: str | list[str], K: str | None = None) -> Method:
    """`RGALSCV`, which hides parts of its own of training and validation part together."""

    def run(name: str, task: Task) -> Answer:
        model = RGALSCV(
            K or task.K, loss, budget=task.budget, random_state=task.seed, n_jobs=task.n_jobs
        ).fit(task.prepared.final, folder=task.folder / name)
        found, setting = len(model.cv_results_["cost"]), as_shown(model.best_params_)
        return Answer(model, setting, float(model.best_score_), [], None, found)

    return Method(run, has_factors=K is None)


def plain_ridge(train: Any) -> tuple[float, float]:
    """Range of an unscaled ridge: the scaled one times the mean weight of a user and of an item."""
    n_users, n_items = train.shape
    centre = rule(WRMF, train)
    total = n_users * n_items + centre["alpha"] * train.nnz
    middle = centre["reg"] * total / np.sqrt(n_users * n_items)
    return float(f"{middle / 10:.2g}"), float(f"{middle * 10:.2g}")


def other(
    fit: Callable[[sp.csr_array, dict[str, Any], int, Task], Any],
    space: Callable[[Any], dict[str, Any]],
    *,
    share: float = 1.0,
    has_factors: bool = True,
    **more: Any,
) -> Method:
    """A method outside of rgals' solvers, tuned by the same search.

    ``fit(train, params, level, task)`` gives scores for `evaluate`; ``space(train)`` its ranges and choices;
    ``share`` says how much of the budget it needs.
    """

    def run(name: str, task: Task) -> Answer:
        dimensions = {
            key: OneOf(tuple(v)) if isinstance(v, list) else Range(*v, log=v[0] > 0)
            for key, v in space(task.prepared.splits[0].train).items()
        }
        searched = Space(dimensions, {}, {}, (task.K,))
        setting = {"data": task.prepared.fingerprint(), "metric": task.metric}
        journal = Journal(task.folder / f"{name}.jsonl", setting)

        def measure(params: dict[str, Any], asked: int) -> Trial:
            level = asked if has_factors else TOP  # without factors and iterations nothing is cheaper
            key = json.dumps([level, params], sort_keys=True)
            row = journal.get(key)
            if row is None:
                figures = []
                for split in task.prepared.splits:
                    scores = fit(split.train.to_scipy(), params, level, task)
                    users = split.users
                    got = evaluate(
                        scores, split.told, split.hidden, task.metric, users=users, n_jobs=task.n_jobs
                    )
                    figures.append(got[task.metric])
                row = journal.add(key, {"figure": float(np.mean(figures))})
            return Trial(params, asked, row["figure"])

        def cost(K: int, level: int, n_iter: int | None = None) -> float:
            return 3.0 ** (level - TOP)

        trials = search(searched, measure, task.budget * share, cost, random_state=task.seed)
        best = best_trial(trials)
        started = time.process_time()
        scores = fit(task.prepared.final, best.params, TOP, task)
        seconds = time.process_time() - started
        found = {k: v for k, v in best.params.items() if k != "K" or has_factors}
        return Answer(scores, found, best.figure, list(searched.edges(best.params)), seconds, len(trials))

    return Method(run, has_factors=has_factors, **more)


def popularity(train: sp.csr_array, params: dict[str, Any], level: int, task: Task) -> Any:
    """Interactions of every item."""
    return Popularity().fit(train)


def ease(train: sp.csr_array, params: dict[str, Any], level: int, task: Task) -> Any:
    """`rgals.baselines.EASE`."""
    return EASE(reg=params["l2"], values="raw", n_jobs=task.n_jobs).fit(train)


def implicit_als(train: sp.csr_array, params: dict[str, Any], level: int, task: Task) -> Any:
    """implicit's default solver (conjugate gradients), confidence alpha, plain ridge."""
    from implicit.cpu.als import AlternatingLeastSquares

    share, iterations = LEVELS[level]
    model = AlternatingLeastSquares(
        factors=max(1, round(task.K * share)),
        alpha=params["alpha"],
        regularization=params["reg"],
        iterations=max(1, round(16 * iterations)),
        num_threads=task.n_jobs,
        random_state=task.seed,
    )
    return _implicit(model, train)


def implicit_default(train: sp.csr_array, params: dict[str, Any], level: int, task: Task) -> Any:
    """implicit's ALS as it comes: 100 factors, 15 iterations."""
    from implicit.cpu.als import AlternatingLeastSquares

    return _implicit(AlternatingLeastSquares(num_threads=task.n_jobs, random_state=task.seed), train)


def irspack_default(train: sp.csr_array, params: dict[str, Any], level: int, task: Task) -> Any:
    """irspack's iALS as it comes: 20 factors, 16 epochs of conjugate gradients."""
    from irspack.recommenders import IALSRecommender

    model = IALSRecommender(sp.csr_matrix(train), n_threads=task.n_jobs, random_seed=task.seed).learn()
    return model.get_user_embedding(), model.get_item_embedding()


def implicit_bpr(train: sp.csr_array, params: dict[str, Any], level: int, task: Task) -> Any:
    """implicit's BPR: uniform negatives, plain SGD, 40 epochs.

    Many small steps overfit like few large ones, so that the product of rate and epochs decides, and cheaper
    levels take longer steps.
    """
    from implicit.cpu.bpr import BayesianPersonalizedRanking
    from implicit.recommender_base import ModelFitError

    share, iterations = LEVELS[level]
    model = BayesianPersonalizedRanking(
        factors=max(1, round(task.K * share)),
        learning_rate=params["lr"] / iterations,
        regularization=params["reg"],
        iterations=max(1, round(40 * iterations)),
        num_threads=task.n_jobs,
        random_state=task.seed,
    )
    try:
        return _implicit(model, train)
    except ModelFitError:  # diverged: a setting of no worth, not the end of the search
        return np.zeros((train.shape[0], 1), np.float32), np.zeros((train.shape[1], 1), np.float32)


def _implicit(model: Any, train: sp.csr_array) -> Any:
    with threadpool_limits(1, "blas"):
        model.fit(sp.csr_matrix(train), show_progress=False)
    return np.asarray(model.user_factors), np.asarray(model.item_factors)


def sgd_softmax(train: sp.csr_array, params: dict[str, Any], level: int, task: Task) -> Any:
    """Full softmax over all items, cosine scores, lazy Adam, 40 epochs of at least a hundred steps."""
    share, epochs = LEVELS[level]
    model = SGDRanker(
        max(1, round(task.K * share)),
        loss="softmax",
        score="cosine",
        n_epochs=max(1, round(40 * epochs)),
        batch_size=int(np.clip(train.shape[0] // 100, 32, 512)),
        random_state=task.seed,
        n_jobs=task.n_jobs,
        **params_without_k(params),
    ).fit(train)
    return model.user_factors_, model.item_factors_


def params_without_k(params: dict[str, Any]) -> dict[str, Any]:
    """The searched parameters alone."""
    return {key: value for key, value in params.items() if key != "K"}


def _wrmf_ranges(train: Any) -> dict[str, Any]:
    return {"alpha": default_space(WRMF(), train)["alpha"], "reg": plain_ridge(train)}


METHODS: dict[str, Method] = {
    "popularity": other(popularity, lambda train: {}, has_factors=False),
    "default RG2": default("rg2"),
    "default RGx": default("rgx"),
    "default iALS": default("ials"),
    "default WRMF": default("wrmf"),
    "RGALSCV RG2": searched("rg2"),
    "RGALSCV iALS": searched("ials"),
    "RGALSCV K=auto": searched(["rg2", "ials"], K="auto"),
    "RG2": als(RG2()),
    "RG2 + exponents": als(RG2(), 4, user_exponent=None, item_exponent=None),
    "RGx": als(RGX(beta=1.0)),  # whose default it was when this was recorded
    "RGx gramian": als(RGX(form="gramian"), 3, beta=(0.0, 0.98)),
    "iALS": als(IALS()),
    "iALS + exponents": als(IALS(), 4, user_exponent=None, item_exponent=None),
    "WRMF plain": als(WRMF(), reg_exponent=0.0),
    "WRMF scaled": als(WRMF()),
    "implicit default": other(implicit_default, lambda train: {}, has_factors=False),
    "irspack default": other(irspack_default, lambda train: {}, has_factors=False),
    "implicit ALS": other(implicit_als, _wrmf_ranges),
    "EASE": other(
        ease, lambda train: {"l2": (3.0, 3000.0)}, share=0.3, has_factors=False, max_items=EASE_ITEMS
    ),
    "implicit BPR": other(implicit_bpr, lambda train: {"lr": (0.001, 0.1), "reg": (0.0001, 0.1)}, slow=True),
    "SGD softmax": other(
        sgd_softmax, lambda train: {"lr": (0.02, 0.3), "temperature": (0.05, 0.5)}, share=0.4, slow=True
    ),
}
