"""Running a comparison: tune every method on validation, run the seeds, record the objectives."""

import base64
import inspect
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numba
import numpy as np
import scipy.sparse as sp
from llvmlite import binding
from threadpoolctl import threadpool_info

from rgals.compare import outside
from rgals.compare.data import Split, some_users
from rgals.compare.methods import Method, Params, get_methods, params_text
from rgals.files.journal import Journal
from rgals.losses import RG2
from rgals.matrix.csr import CSR
from rgals.matrix.digest import short_digest
from rgals.matrix.weighting import AUTO
from rgals.metrics._served import COLD, served, users_with_truth
from rgals.metrics._table import Metric
from rgals.metrics.evaluation import evaluate, figures
from rgals.model.ranking import FactorRanker
from rgals.runtime.bars import Bar
from rgals.runtime.checks import RANGES, check_choice, check_int, check_real
from rgals.runtime.errors import InputError, InsufficientMemoryError, NumericalError, ValuesWarning
from rgals.runtime.threads import n_threads
from rgals.runtime.version import __version__
from rgals.sgd import SGDRanker
from rgals.sgd import losses as sgd_losses
from rgals.training.data import weigh

TEST_METRICS = ("mrr@10", "ndcg@10")
OBJECTIVE_RATES = (0.003, 0.01, 0.03)  # learning rates tried for gradient descent; the best one is shown
_FAILURES = (NumericalError, InsufficientMemoryError)  # of a fit: reported without stopping the rest


def machine(n_jobs: int | None) -> dict[str, Any]:
    """The machine on which seconds are measured: threads, processor, BLAS, versions."""
    blas = [info for info in threadpool_info() if info.get("user_api") == "blas"]
    described = {f"{i.get('internal_api')} {i.get('version')} ({i.get('architecture')})" for i in blas}
    found = {"threads": n_threads(n_jobs), "cpu": binding.get_host_cpu_name()}
    versions = {"numba": numba.__version__, "numpy": np.__version__, "rgals": __version__}
    return {**found, "blas": ", ".join(sorted(described)), **versions}


@dataclass(frozen=True, kw_only=True)
class Effort:
    """What a comparison spends on tuning and on every fit.

    Parameters
    ----------
    max_trials : int, default 16
        Fits that tuning a method may use; with 0 a method runs with the parameters that its tuning would
        start from. Tuning results of the folder are reused if they are of the same ladders, unless tuning ran
        out of trials and this allows more.
    time_limit : float, default 120
        Training seconds after which a fit ends, in tuning and in timed runs. It applies to methods by name,
        losses, `rgals.RGALS` and `rgals.sgd.SGDRanker`.
    patience : int, default 8
        Iterations or epochs without improvement after which a fit of a method by name or a loss ends.
    validation_users : int, optional
        Number of users, drawn at random, that validation looks at instead of all: validation after every
        iteration takes long on large data. Test metrics are over all users.
    objective_iterations : int, default 60
        Length of the runs that record the objective, twice as long for ALS, at least 8; 0 for no such runs.
    start : mapping of str to mapping of str to float, optional
        By method: parameters from whose nearest rungs tuning starts, instead of the method's own, such as
        ``{"softmax": {"temperature": 0.1}}``. With ``max_trials=0`` they are used unchanged.
    tune_only : bool, default False
        Tune every method and stop, for instance on a busy machine. The same call without it then does the
        timed runs, on an idle one. Curves and times come from timed runs alone, all of which need the same
        machine, ``n_jobs`` and ``time_limit``; tuning may use others.

    Raises
    ------
    ParameterError
        A parameter is out of its range.
    """

    max_trials: int = 16
    time_limit: float = 120.0
    patience: int = 8
    validation_users: int | None = None
    objective_iterations: int = 60
    start: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    tune_only: bool = False

    def __post_init__(self) -> None:
        check_int("max_trials", self.max_trials, 0)
        check_int("patience", self.patience, 1)
        check_real("time_limit", self.time_limit, 0, open_min=True)
        check_int("objective_iterations", self.objective_iterations, 8 if self.objective_iterations else 0)
        RANGES["int > 0, optional"]("validation_users", self.validation_users)

    def check(self, methods: Sequence[Method]) -> None:
        """Refuse a `start` that names unknown methods or parameters."""
        start, ladders = self.start, {method.name: method.ladders for method in methods}
        if not isinstance(start, Mapping) or not all(isinstance(p, Mapping) for p in start.values()):
            raise InputError(f"start={start!r}: give parameters by method, {{'ials': {{'reg': 0.1}}}}")
        for name, params in start.items():
            known = (ladders[name] if name in ladders else get_methods([name])[0].ladders).keys()
            for param, value in params.items():
                check_choice(f"start of {name}", param, tuple(known))
                check_real(f"start of {name}: {param}", value, 0)


def _watches(model: Any) -> bool:
    """Whether ``fit`` takes callbacks and a validation set, as rgals defines them."""
    # Other packages may give these arguments another meaning; the closed form has no iterations.
    ours = isinstance(model, FactorRanker) and getattr(model, "solver", None) != "svd"
    return ours and {"validation", "callbacks"} <= inspect.signature(model.fit).parameters.keys()  # type: ignore[attr-defined]


@contextmanager
def _named(method: Method) -> Iterator[None]:
    """Add the name of the method to errors."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in the method {method.name!r} of the comparison")
        raise


def packed(values: np.ndarray) -> str:
    """An array as text for the journal: base64 of little-endian float64."""
    return base64.b64encode(values.astype("<f8").tobytes()).decode()


def unpacked(text: str) -> np.ndarray:
    """The array of a text that `packed` made."""
    return np.frombuffer(base64.b64decode(text), "<f8").astype(np.float64)


@dataclass
class Runner:
    """Carries out a comparison; results in ``results.jsonl`` of ``folder`` are not computed again."""

    split: Split
    methods: list[Method]
    folder: Path
    K: int
    seeds: int
    metrics: tuple[Metric, ...]  # the first is tuned, watched during fits, and sorted by
    effort: Effort
    values: str
    n_jobs: int | None
    verbose: int

    def __post_init__(self) -> None:
        split, effort = self.split, self.effort
        self.metric = self.metrics[0].name
        self.known = split.known
        self.scipy_train = sp.csr_matrix(split.train.to_scipy())  # for estimators of other packages
        self.watched = some_users(split.validation, effort.validation_users)
        # The weighting is decided once for all methods, so that its warning comes once, at the caller's line.
        self.weighting = weigh(self.values, split.train)
        self.weighted = self.weighting.rows(split.train)
        self._is_warm, parts = False, (split.train, split.validation, split.test)
        setting: dict[str, Any] = {"data": short_digest(*parts), "shape": list(split.train.shape)}
        setting |= {"interactions": [part.nnz for part in parts], "K": self.K, "metric": self.metric}
        setting |= {"patience": effort.patience, "objective_iterations": effort.objective_iterations}
        setting["validation_users"] = int(np.count_nonzero(self.watched.row_counts))
        names = [metric.name for metric in self.metrics]
        if set(names) - {self.metric} - set(TEST_METRICS):
            setting["metrics"] = names
        setting |= {} if self.values == AUTO else {"values": self.values}
        self.journal = Journal(self.folder / "results.jsonl", setting)

    def run(self) -> None:
        """Measure what the journal does not hold yet."""
        effort, rates = self.effort, self._rates()
        followed = [m for m in self.methods if m.family == "ALS" and effort.objective_iterations]
        # Every method once a seed: a slow spell of the machine then meets all methods.
        runs = [(m, seed) for seed in range(self.seeds) for m in self.methods if m.seeded or seed == 0]
        total = sum(bool(method.ladders) for method in self.methods) * effort.max_trials
        if not effort.tune_only:
            total += len(runs) + len(followed) + len(rates)
            self._one_machine()
        with Bar(total=total, desc="compare", unit="fit", disable=not self.verbose) as bar:
            chosen = {}
            for method in self.methods:
                bar.set_postfix_str(f"tune {method.name}")
                chosen[method.name] = self._tuned(method, bar)["params"]
            if effort.tune_only:
                return

            def step(method: Method, shown: str, key: str, measure: Callable[[], dict]) -> None:
                bar.set_postfix_str(f"{method.name}, {shown}")
                self._once(key, method, measure)
                bar.update()

            keys = {m.name: m.key(chosen[m.name]) for m in self.methods}
            for m, seed in runs:
                key, measure = f"run {keys[m.name]} {seed}", partial(self._run, m, chosen[m.name], seed)
                step(m, f"seed {seed}", key, measure)
            for m in followed:
                step(m, "objective", f"objective {keys[m.name]}", partial(self._objective, m, chosen[m.name]))
            for m, lr in rates:
                key = f"objective gradient {params_text(chosen[m.name])} {lr:g}"
                measure = partial(self._gradient_objective, chosen[m.name], lr)
                step(m, f"objective by gradient, lr={lr:g}", key, measure)

    def _one_machine(self) -> None:
        """Refuse to mix timed runs of other machines or time limits; tuning may be done anywhere."""
        now = {**machine(self.n_jobs), "time_limit": self.effort.time_limit}
        then = (self.journal.get("timing") or self.journal.add("timing", {"timing": now}))["timing"]
        if then != now:
            found = "; ".join(f"{k}: {then.get(k)} then, {v} now" for k, v in now.items() if then.get(k) != v)
            problem = f"runs that were timed otherwise ({found}); choose another folder"
            raise InputError(f"{self.journal.path} holds {problem}")

    def _tuned(self, method: Method, bar: Bar) -> dict[str, Any]:
        """Tuned parameters, from the journal or found now; a larger budget continues a smaller one."""
        key, effort = f"tuned {method.key()}", self.effort
        max_trials = effort.max_trials if method.ladders else 0
        ladders = {name: [float(rung) for rung in ladder] for name, ladder in method.ladders.items()}
        earlier = self.journal.get(key)
        earlier = earlier if earlier and earlier.get("ladders", ladders) == ladders else None
        if earlier is not None and (earlier["finished"] or earlier["trials"] >= max(max_trials, 1)):
            bar.update(max_trials)
            return earlier
        given = {name: float(value) for name, value in effort.start.get(method.name, {}).items()}
        start = {**method.start_for(self.weighted, self.K), **given}
        result = climb(method, max_trials, partial(self._trial, method, bar), start)
        result |= {"params": result["params"] | (given if max_trials == 0 else {}), "ladders": ladders}
        bar.update(max_trials - result["trials"])  # trials that were not needed
        if earlier is not None and earlier["params"] == result["params"] and max_trials == 0:
            return earlier
        return self.journal.add(key, result)

    def _rates(self) -> list[tuple[Method, float]]:
        """RG2, if its alpha and reg are tuned, with every learning rate that gradient descent is run with."""
        tuned = [m for m in self.methods if m.key() == "rg2" and {"alpha", "reg"} <= m.ladders.keys()]
        return list(product(tuned, OBJECTIVE_RATES)) if self.effort.objective_iterations else []

    def _once(self, key: str, method: Method, measure: Callable[[], dict]) -> dict[str, Any]:
        """The record of a key: from the journal, or measured now; errors name the method."""
        if (found := self.journal.get(key)) is not None:
            return found
        if not self._is_warm:
            self._warm()
        with _named(method):
            return self.journal.add(key, measure())

    def _warm(self) -> None:
        """Fit every method briefly, before the first fit of this process: compilation is not timed."""
        started = time.perf_counter()
        part = self.split.train.take_rows(np.flatnonzero(self.split.train.row_counts)[:50])
        for method in self.methods:
            model = self._make(method, method.start_for(self.weighted, self.K), 0)
            # The timed run fails again and reports it; warnings would be of 50 users.
            with _named(method), suppress(*_FAILURES), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if _watches(model):
                    model.fit(part, callbacks=lambda now: True)
                    if method.family == "ALS":
                        model.set_params(dtype="float64").fit(part, callbacks=lambda now: True)
        if self._rates():
            self._by_gradient(K=2, loss="rg2", n_epochs=1).fit(part)
        self._is_warm = True
        if self.journal.get("compile") is None:
            self.journal.add("compile", {"seconds": time.perf_counter() - started})

    def _make(self, method: Method, params: Params, seed: int) -> Any:
        model = method.build(params, K=self.K, n_jobs=self.n_jobs, random_state=seed)
        if isinstance(model, FactorRanker) and getattr(model, "values", None) == AUTO:
            model.set_params(values=self.weighting.kind)  # type: ignore[attr-defined]
        return model

    def _recorded(self, model: Any, X: CSR, record: Callable, **options: Any) -> tuple[list[Any], str]:
        """Records of every iteration of a fit until the time limit, and the error that ended it or ""."""
        found: list[Any] = []

        def watch(now: Any) -> bool:
            found.append(record(now))
            return now.seconds > self.effort.time_limit

        try:
            model.fit(X, callbacks=watch, **options)
        except _FAILURES as error:
            return found, str(error)
        return found, ""

    def _fit(self, method: Method, params: Params, seed: int) -> tuple[Any, list[dict[str, Any]], str]:
        """A fitted model, its history on validation, and the error that ended its fit or ""."""
        model, train = self._make(method, params, seed), self.split.train
        if _watches(model):
            model.set_params(metric=self.metric)
            if method.stops:
                model.set_params(early_stopping=True, patience=self.effort.patience)
            return model, *self._recorded(model, train, lambda now: now.record, validation=self.watched)
        X, started = self.scipy_train.copy(), time.perf_counter()  # a copy: a method may overwrite its input
        try:
            with warnings.catch_warnings():
                if self.values == AUTO:  # the comparison has warned already
                    warnings.simplefilter("ignore", ValuesWarning)
                model = outside.fitted(model, X)
            seconds, judged = time.perf_counter() - started, self._judged(model, train)
            found = evaluate(judged, train, self.watched, self.metric, n_jobs=self.n_jobs)
            return model, [{"seconds": seconds, **found}], ""
        except _FAILURES as error:
            return model, [], str(error)

    def _judged(self, model: Any, known: CSR) -> Any:
        """A model that was fitted to the training part, in a form that `evaluate` takes."""
        whole = [metric.name for metric in self.metrics if "k" not in metric.options]
        longest = whole[0] if whole else max(metric.options["k"] for metric in self.metrics)
        return outside.rankings(model, self.scipy_train, known, longest)

    def _on_test(self, model: Any) -> tuple[dict[str, float], dict[str, str]]:
        """Test metrics: means over users, and the values of each user, packed, where a metric has these."""
        judged = served(self._judged(model, self.known), self.known, self.split.test, COLD[0])
        # All models are fitted to the training part: to them users of validation alone are cold.
        judged = replace(judged, cold=self.split.train.row_counts == 0)
        rows = users_with_truth(judged, None, self.metrics)
        means, each, users = figures(judged, self.metrics, rows, self.n_jobs)
        if self.journal.get("users") is None:
            self.journal.add("users", {"rows": packed(users)})
        return dict(means), {name: packed(values) for name, values in each.items()}

    def _trial(self, method: Method, bar: Bar, params: Params) -> float:
        def measure() -> dict[str, Any]:
            _, history, error = self._fit(method, params, seed=0)
            # fmax ignores NaN, which is neither larger nor smaller than the others.
            best = float(np.fmax.reduce([0.0, *(record[self.metric] for record in history if not error)]))
            seconds = history[-1]["seconds"] if history else 0.0
            return {"best": best, "seconds": seconds, "epochs": len(history), "error": error}

        record = self._once(f"trial {method.key(params)}", method, measure)
        bar.update()
        return record["best"]

    def _run(self, method: Method, params: Params, seed: int) -> dict[str, Any]:
        """A timed run, and its test metrics."""
        clocks = time.perf_counter(), time.process_time()
        model, history, error = self._fit(method, params, seed)
        wall, cpu = time.perf_counter() - clocks[0], time.process_time() - clocks[1]
        test, users = ({}, {}) if error else self._on_test(model)
        curve = [[record["seconds"], record[self.metric]] for record in history]
        objective = [record["objective"] for record in history if "objective" in record]
        found = {"method": method.name, "seed": seed, "params": dict(params)}
        found |= {"curve": curve, "objective": objective, "test": test, "users": users}
        return {**found, "error": error, "cpu_share": cpu / wall / n_threads(self.n_jobs)}

    def _objective(self, method: Method, params: Params) -> dict[str, Any]:
        """The exact objective after every iteration, in float64 and without early stopping."""
        model, n_iter = self._make(method, params, 0), 2 * self.effort.objective_iterations
        model.set_params(n_iter=n_iter, dtype="float64", early_stopping=False)
        return {"method": method.name, **self._followed(model, self.split.train, lambda now: now.objective)}

    def _gradient_objective(self, params: Params, lr: float) -> dict[str, Any]:
        """The objective of RG2 after every epoch of gradient descent (Adam)."""
        alpha, reg = params["alpha"], params["reg"]
        loss, epochs = sgd_losses.RG2(alpha=alpha, reg=reg), self.effort.objective_iterations
        model = self._by_gradient(K=self.K, loss=loss, lr=lr, n_epochs=epochs)

        def objective(now: Any) -> float:
            return RG2(alpha=alpha).objective(self.weighted, now.user_factors, now.item_factors, reg, 1.0)

        return {"method": "rg2 by gradient", "lr": lr, **self._followed(model, self.weighted, objective)}

    def _followed(self, model: Any, X: CSR, objective: Callable[[Any], float]) -> dict[str, Any]:
        found, error = self._recorded(model, X, lambda now: (objective(now), now.seconds))
        return {"objective": [v for v, _ in found], "seconds": [at for _, at in found], "error": error}

    def _by_gradient(self, **params: Any) -> SGDRanker:
        return SGDRanker(**params, score="dot", values="raw", n_jobs=self.n_jobs, random_state=0)


def climb(method: Method, max_trials: int, trial: Callable[[Params], float], start: Params) -> dict[str, Any]:
    """Climb the ladders of a method's parameters one rung at a time until every neighbour is worse."""
    # The climb starts at the rungs nearest to ``start`` and, with max_trials=0, ends there.
    here = {}
    for name, ladder in method.ladders.items():  # nearest by ratio; by difference on ladders from 0
        scale = np.log if ladder[0] > 0 else np.asarray
        here[name] = int(np.argmin(np.abs(scale(ladder) - scale(max(start[name], ladder[0])))))
    tried: dict[tuple[int, ...], float] = {}

    def value(point: dict[str, int]) -> float:
        key = tuple(point.values())
        if key not in tried:
            found = trial({name: method.ladders[name][rung] for name, rung in point.items()})
            tried[key] = -np.inf if np.isnan(found) else found  # NaN would pass as no worse than the best
        return tried[key]

    best, finished = value(here) if max_trials else float("nan"), False
    began: dict[str, int] = {}
    while max_trials and not finished and here != began:
        began, finished = here, True  # unless a neighbour is better, or no trial is left for one
        for (name, ladder), step in product(method.ladders.items(), (1, -1)):
            # Keep going in one direction as long as quality rises.
            while 0 <= here[name] + step < len(ladder):
                point = {**here, name: here[name] + step}
                if tuple(point.values()) not in tried and len(tried) >= max_trials:
                    finished = False
                    break
                if value(point) <= best:
                    break
                here, best, finished = point, value(point), False
    # Parameters whose best value is the first or last rung.
    edges = [name for name, ladder in method.ladders.items() if here[name] in (0, len(ladder) - 1)]
    params = {name: method.ladders[name][rung] for name, rung in here.items()}
    return {"params": params, "best": best, "trials": len(tried), "finished": finished, "edges": edges}
