"""Running a comparison: split, tune every method on validation, run the seeds, follow the objective."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

from rgals.compare.methods import Method, get_methods, params_text
from rgals.datasets import read_interactions
from rgals.datasets.given import given
from rgals.files.journal import Journal
from rgals.losses import RG2
from rgals.matrix.csr import CSR
from rgals.matrix.digest import short_digest
from rgals.matrix.entries import union
from rgals.matrix.validate import as_csr
from rgals.metrics._served import sample_users
from rgals.metrics.evaluation import evaluate
from rgals.model_selection import Protocol
from rgals.runtime.bars import Bar
from rgals.runtime.checks import check_int, check_real
from rgals.runtime.errors import InputError, NumericalError, ParameterError
from rgals.runtime.threads import n_threads
from rgals.runtime.version import __version__
from rgals.sgd import SGDRanker
from rgals.sgd import losses as sgd_losses

TEST_METRICS = ("mrr@10", "ndcg@10")
OBJECTIVE_RATES = (0.003, 0.01, 0.03)  # learning rates among which gradient descent picks its best


@dataclass(frozen=True)
class Split:
    """Training, validation and test interactions, each users x items."""

    train: CSR
    validation: CSR
    test: CSR

    @property
    def known(self) -> CSR | None:
        """Training and validation together: what is left out of the ranking on test."""
        return union([self.train, self.validation])


def prepare(
    data: Any, *, min_value: float | None = None, core: int | None = None, random_state: int = 0
) -> Split:
    """Read data and split them.

    Parameters
    ----------
    data : path, matrix, Interactions or Split
        Where it marks a test part, that is kept and a tenth of every user's training part becomes
        validation; otherwise 80 / 10 / 10 per user.
    min_value : float, optional
        Values from here on count as positives of weight 1.
    core : int, optional
        Drop users and items with fewer interactions, repeatedly.
    random_state : int

    Returns
    -------
    Split
    """
    if isinstance(data, Split):
        return data
    if isinstance(data, str | os.PathLike):
        data, min_value = read_interactions(data, min_value=min_value), None
    data = given(data, name="data")
    if not data.labelled:  # users and items without interactions do not count
        data = given(read_interactions(data.csr()))
    kind = "given" if data.split is not None and core is None else "user"
    found = Protocol(kind, min_value=min_value, core=core, seed=random_state).apply(data)
    split = Split(as_csr(found.train), as_csr(found.validation), as_csr(found.test))
    for name in ("train", "validation", "test"):
        if getattr(split, name).nnz == 0:
            raise InputError(f"the {name} part has no interactions; the data are too small to be split")
    return split


def _some_users(validation: CSR, n_users: int | None) -> CSR:
    """Validation interactions of ``n_users`` users drawn at random; the rows of the others are empty."""
    users = sample_users(validation, n_users)
    if len(users) == np.count_nonzero(validation.row_counts):
        return validation
    return validation.where(np.isin(validation.rows, users))


def machine(n_jobs: int | None) -> dict[str, Any]:
    """Where the seconds were measured."""
    import numba

    blas = [info for info in threadpool_info() if info.get("user_api") == "blas"]
    described = sorted(
        {f"{i.get('internal_api')} {i.get('version')} ({i.get('architecture')})" for i in blas}
    )
    return {
        "threads": n_threads(n_jobs),
        "cpu": platform.processor() or platform.machine(),
        "blas": ", ".join(described),
        "numba": numba.__version__,
        "numpy": np.__version__,
        "rgals": __version__,
    }


@dataclass(frozen=True)
class Options:
    """Options of a comparison; see `rgals.compare.compare`, which has the defaults."""

    K: int
    seeds: int
    max_trials: int
    time_limit: float
    patience: int
    metric: str
    objective_iterations: int
    validation_users: int | None
    start: Mapping[str, Mapping[str, float]]
    tune_only: bool
    n_jobs: int | None
    verbose: int

    def check(self, methods: Sequence[Method]) -> None:
        """Check the options of a comparison of these methods."""
        least = {"K": 1, "seeds": 1, "max_trials": 0, "patience": 1, "objective_iterations": 8}
        if self.validation_users is not None:
            least["validation_users"] = 1
        for name, minimum in least.items():
            check_int(name, getattr(self, name), minimum)
        check_real("time_limit", self.time_limit, 0, open_min=True)
        ladders = {method.name: method.ladders for method in methods}
        for name, params in self.start.items():
            known = (ladders.get(name) or get_methods([name])[0].ladders).keys()
            for param, value in params.items():
                if param not in known:
                    raise ParameterError("start", f"{name}: {param}", "choose from " + ", ".join(known))
                check_real(f"start of {name}: {param}", value, 0)


class Runner:
    """Carries a comparison out; results that ``results.jsonl`` in ``folder`` holds are not computed again."""

    def __init__(self, split: Split, methods: list[Method], options: Options, folder: Path) -> None:
        self.split, self.methods, self.options = split, methods, options
        self.known = split.known
        self.watched = _some_users(split.validation, options.validation_users)
        self._is_warm = False
        setting = {
            "data": short_digest(split.train, split.validation, split.test),
            "shape": list(split.train.shape),
            "interactions": [split.train.nnz, split.validation.nnz, split.test.nnz],
            "K": options.K,
            "metric": options.metric,
            "patience": options.patience,
            "objective_iterations": options.objective_iterations,
            "validation_users": int(np.count_nonzero(self.watched.row_counts)),
        }
        self.journal = Journal(folder / "results.jsonl", setting)

    def run(self) -> None:
        """Everything that is not in the journal yet."""
        options = self.options
        als = [method for method in self.methods if method.family == "ALS"]
        objectives = len(als) + (len(OBJECTIVE_RATES) if self._follows_gradient() else 0)
        total = len(self.methods) * (options.max_trials + options.seeds) + objectives
        if options.tune_only:
            total = len(self.methods) * options.max_trials
        else:
            self._one_machine()
        with Bar(total=total, desc="compare", unit="fit", disable=not options.verbose) as bar:
            chosen = {}
            for method in self.methods:
                bar.set_postfix_str(f"tune {method.name}")
                chosen[method.name] = self._tuned(method, bar)["params"]
            if options.tune_only:
                return
            # Seeds take turns over the methods, so that a slow spell of the machine meets all of them.
            jobs = [
                (f"{method.name}, seed {seed}", partial(self._final, method, chosen[method.name], seed))
                for seed in range(options.seeds)
                for method in self.methods
            ]
            jobs += [(f"objective of {m.name}", partial(self._objective, m, chosen[m.name])) for m in als]
            for lr in OBJECTIVE_RATES if self._follows_gradient() else ():
                job = partial(self._gradient_objective, chosen["rg2"], lr)
                jobs.append((f"objective by gradient, lr={lr:g}", job))
            for name, job in jobs:
                bar.set_postfix_str(name)
                job()
                bar.update()

    def _one_machine(self) -> None:
        """Seconds that are compared come from one machine and one limit; tuning may be done anywhere."""
        now = json.loads(json.dumps({**machine(self.options.n_jobs), "time_limit": self.options.time_limit}))
        record = self.journal.get("timing")
        if record is None:
            self.journal.add("timing", {"timing": now})
        elif record["timing"] != now:
            differ = [
                f"{k}: {record['timing'].get(k)} then, {v} now"
                for k, v in now.items()
                if record["timing"].get(k) != v
            ]
            raise InputError(
                f"{self.journal.path} holds runs that were timed otherwise ({'; '.join(differ)}); choose "
                "another folder"
            )

    def _tuned(self, method: Method, bar: Bar) -> dict[str, Any]:
        """What tuning found, now or before; a larger budget goes on where a smaller one was spent."""
        key, most = f"tuned {method.name}", self.options.max_trials
        found = self.journal.get(key)
        if found is not None and (found["finished"] or found["trials"] >= most):
            bar.update(most)
            return found
        start = method.start_for(self.split.train, self.options.K)
        start |= self.options.start.get(method.name, {})
        result = climb(method, most, self._trial(method, bar), start)
        bar.update(most - result["trials"])  # found before the budget was spent
        return self.journal.add(key, result)

    def _follows_gradient(self) -> bool:
        return any(method.name == "rg2" for method in self.methods)

    def _once(self, key: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The record of a key: what the journal holds, or what is measured now."""
        found = self.journal.get(key)
        if found is None:
            self._warm()
            found = self.journal.add(key, measure())
        return found

    def _warm(self) -> None:
        """Before the first fit of this process, fit every method briefly: no clock sees a compilation."""
        if self._is_warm:
            return
        started = time.perf_counter()
        users = np.flatnonzero(self.split.train.row_counts)[:50]
        part = self.split.train.take_rows(users)
        for method in self.methods:
            model = self._make(method, method.start, 0)
            model.fit(part, callbacks=lambda now: True)
            if method.family == "ALS":
                model.set_params(dtype="float64").fit(part, callbacks=lambda now: True)
        if self._follows_gradient():
            SGDRanker(K=2, loss="rg2", score="dot", n_epochs=1, n_jobs=self.options.n_jobs).fit(part)
        self._is_warm = True
        if self.journal.get("compile") is None:
            self.journal.add("compile", {"seconds": time.perf_counter() - started})

    def _make(self, method: Method, params: Mapping[str, float], seed: int) -> Any:
        return method.build(params, K=self.options.K, n_jobs=self.options.n_jobs, random_state=seed)

    def _fit(
        self, method: Method, params: Mapping[str, float], seed: int
    ) -> tuple[Any, list[dict[str, Any]], str]:
        """Fit with early stopping on validation; the model, its history and why a diverged one ended."""
        options = self.options
        model = self._make(method, params, seed)
        model.set_params(early_stopping=True, patience=options.patience, metric=options.metric)
        history: list[dict[str, Any]] = []

        def watch(now: Any) -> bool:
            history.append(now.record)
            return now.seconds > options.time_limit

        try:
            model.fit(self.split.train, validation=self.watched, callbacks=watch)
        except NumericalError as error:
            return None, history, str(error)
        return model, history, ""

    def _curve(self, history: list[dict[str, Any]]) -> list[list[float]]:
        return [[record["seconds"], record[self.options.metric]] for record in history]

    def _trial(self, method: Method, bar: Bar) -> Callable[[dict[str, float]], float]:
        def trial(params: dict[str, float]) -> float:
            def measure() -> dict[str, Any]:
                _, history, error = self._fit(method, params, seed=0)
                curve = self._curve(history)
                best = max((value for _, value in curve), default=0.0) if not error else 0.0
                seconds = curve[-1][0] if curve else 0.0
                return {"best": best, "seconds": seconds, "epochs": len(curve), "error": error}

            record = self._once(f"trial {method.name} {params_text(params)}", measure)
            bar.update()
            return record["best"]

        return trial

    def _final(self, method: Method, params: Mapping[str, float], seed: int) -> None:
        def measure() -> dict[str, Any]:
            clocks = time.perf_counter(), time.process_time()
            model, history, error = self._fit(method, params, seed)
            wall, cpu = time.perf_counter() - clocks[0], time.process_time() - clocks[1]
            test = {}
            if model is not None:
                n_jobs = self.options.n_jobs
                test = evaluate(model, self.known, self.split.test, metrics=TEST_METRICS, n_jobs=n_jobs)
            return {
                "method": method.name,
                "seed": seed,
                "params": dict(params),
                "curve": self._curve(history),
                "objective": [record["objective"] for record in history],
                "test": test,
                "error": error,
                "cpu_share": cpu / wall / n_threads(self.options.n_jobs),
            }

        self._once(f"run {method.name} {params_text(params)} {seed}", measure)

    def _objective(self, method: Method, params: Mapping[str, float]) -> None:
        """The exact objective after every iteration, in double precision and without a stop."""

        def measure() -> dict[str, Any]:
            model = self._make(method, params, 0)
            model.set_params(n_iter=2 * self.options.objective_iterations, dtype="float64")
            model.fit(self.split.train, callbacks=lambda now: now.seconds > self.options.time_limit)
            curves = {name: [record[name] for record in model.history_] for name in ("objective", "seconds")}
            return {"method": method.name, **curves}

        self._once(f"objective {method.name} {params_text(params)}", measure)

    def _gradient_objective(self, params: Mapping[str, float], lr: float) -> None:
        """The objective of RG2, the same one, under gradient descent (Adam)."""
        reference = RG2(alpha=params["alpha"])
        values: list[float] = []
        seconds: list[float] = []

        def watch(now: Any) -> bool:
            factors = now.user_factors, now.item_factors
            values.append(reference.objective(self.split.train, *factors, params["reg"], 1.0))
            seconds.append(now.seconds)
            return now.seconds > self.options.time_limit

        def measure() -> dict[str, Any]:
            model = SGDRanker(
                K=self.options.K,
                loss=sgd_losses.RG2(alpha=params["alpha"], reg=params["reg"]),
                score="dot",
                temperature=1.0,
                lr=lr,
                n_epochs=self.options.objective_iterations,
                n_jobs=self.options.n_jobs,
                random_state=0,
            )
            error = ""
            try:
                model.fit(self.split.train, callbacks=watch)
            except NumericalError as problem:
                error = str(problem)
            curves = {"objective": values, "seconds": seconds}
            return {"method": "rg2 by gradient", "lr": lr, **curves, "error": error}

        self._once(f"objective gradient {params_text(params)} {lr:g}", measure)


def climb(
    method: Method,
    max_trials: int,
    trial: Callable[[dict[str, float]], float],
    start: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Climb the ladders of a method's parameters one rung at a time until every neighbour is worse.

    Starts at the rungs nearest to ``start``; with ``max_trials=0`` it takes those as they are. Returns
    ``params``, ``best``, ``trials``, ``finished`` (every neighbour was tried) and ``edges``, the parameters
    whose best value is the first or last rung.
    """
    start = method.start if start is None else start
    here = {name: _rung(ladder, start[name]) for name, ladder in method.ladders.items()}
    tried: dict[tuple[int, ...], float] = {}

    def value(point: dict[str, int]) -> float:
        key = tuple(point.values())
        if key not in tried:
            tried[key] = trial({name: method.ladders[name][rung] for name, rung in point.items()})
        return tried[key]

    best = value(here) if max_trials > 0 else float("nan")
    moved, finished = max_trials > 0, False
    while moved and len(tried) < max_trials:
        moved, finished = False, True
        for name, ladder in method.ladders.items():
            for step in (1, -1):
                # Keep going in a direction as long as it helps.
                while 0 <= here[name] + step < len(ladder):
                    point = {**here, name: here[name] + step}
                    if tuple(point.values()) not in tried and len(tried) >= max_trials:
                        finished = False
                        break
                    if value(point) <= best:
                        break
                    here, best, moved = point, value(point), True
    edges = [name for name, ladder in method.ladders.items() if here[name] in (0, len(ladder) - 1)]
    params = {name: method.ladders[name][rung] for name, rung in here.items()}
    return {
        "params": params,
        "best": best,
        "trials": len(tried),
        "finished": finished and not moved,
        "edges": edges,
    }


def _rung(ladder: tuple[float, ...], value: float) -> int:
    """The nearest rung, by ratio where the ladder has no zero."""
    rungs = np.asarray(ladder)
    if rungs[0] > 0:
        rungs, value = np.log(rungs), np.log(value)
    return int(np.argmin(np.abs(rungs - value)))
