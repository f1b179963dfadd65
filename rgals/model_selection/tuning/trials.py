"""Measuring one setting: a fit to the training part of every split, judged by its hidden interactions."""

import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rgals.estimator import RGALS
from rgals.files.journal import Journal
from rgals.losses import Degrees, Loss, rule
from rgals.losses.base import takes_dislikes
from rgals.matrix.csr import CSR
from rgals.matrix.validate import as_csr
from rgals.matrix.weighting import Weighting
from rgals.metrics._judged import mean_of_known
from rgals.metrics._table import EXPOSURE, parse
from rgals.metrics.evaluation import evaluate
from rgals.metrics.significance import standard_error
from rgals.model_selection.tuning.halving import AGES, CONFIRM, TOP, OutOfTimeError, Trial, size
from rgals.model_selection.tuning.prepared import Fold, Prepared, fit_cost, judge_cost
from rgals.model_selection.tuning.space import OF_MODEL, Range, Space
from rgals.runtime.errors import NumericalError, ParameterError, PrecisionWarning
from rgals.solvers.hard_negatives import HardNegatives
from rgals.solvers.readout import readout_scale, with_scale
from rgals.training.fit import DRAWS
from rgals.training.run import Iteration

_WARM = 5  # iterations of the fit whose user factors start the fits at level 0
N_CONFIRMED = 3  # settings that are confirmed on other hidden parts, beside the middle of the space
Factors = tuple[np.ndarray, np.ndarray]  # of users, shape (M, K), and of items, shape (N, K)


def of_estimator(loss: Loss, params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of `RGALS` from those of a trial, where the loss's own stand beside the others."""
    # Hard negatives are drawn in the last `DRAWS` iterations, in at most half of all.
    of_loss = {k: v for k, v in params.items() if k not in OF_MODEL}
    of_model = {k: v for k, v in params.items() if k in OF_MODEL}
    if of_model.get("hard_negatives"):
        n_iter = of_model["n_iter"]
        warmup = n_iter - min(DRAWS, n_iter // 2)
        of_model["hard_negatives"] = HardNegatives(of_model["hard_negatives"], warmup=warmup)
    return {"loss": type(loss)(**{**loss.get_params(), **of_loss}), **of_model}


@dataclass(eq=False)
class Look:
    """Judges a fit after some of its iterations; keeps the factors of the best, or of a given one."""

    split: Fold
    metric: str
    stops: set[int]  # iterations after which the fit is judged
    keep: int | None  # the iteration whose factors are kept; None: the best
    n_jobs: int | None = None
    patient: bool = True  # False ends the fit once it is worse than its best beyond noise
    figures: dict[int, np.ndarray] = field(default_factory=dict)  # metric of each judged user, by iteration
    kept: int | None = None  # iteration of `factors`
    factors: Factors | None = None
    scores: dict[float, np.ndarray] = field(default_factory=dict)  # the same by exponent of the read-out

    def __call__(self, now: Iteration) -> bool:
        """Judge an iteration that is a stop; True ends the fit."""
        # The last stop is left to `end`, which judges the factors that the model has then.
        if now.iteration not in self.stops or now.iteration == max(self.stops):
            return False
        self._judge(now.iteration, (now.user_factors, now.item_factors))
        if self.patient or self.keep is not None or self.kept is None:
            return False
        ended = beyond_noise(self.figures[self.kept], self.figures[now.iteration])
        if ended:
            self.stops = set(self.figures)
        return ended

    def end(self, model: RGALS) -> None:
        """Judge the factors that the fit ended with, unless it ended early."""
        for stop in sorted(self.stops - set(self.figures)):
            users = model.transform(self.split.told) if self.split.fold_in else model.user_factors_
            self._judge(stop, (users, model.item_factors_))

    def _judge(self, iteration: int, factors: Factors) -> None:
        found = self.figures[iteration] = each_user(factors, self.split, self.metric, self.n_jobs)
        if np.isnan(found).all():  # a property of the data, the same for every setting
            raise ParameterError("metric", self.metric, "it has no value for any judged user; give 'ndcg@10'")
        better = iteration == self.keep
        if self.keep is None:
            better = self.kept is None or np.nanmean(found) > np.nanmean(self.figures[self.kept])
        if better:
            self.kept, self.factors = iteration, (factors[0].copy(), factors[1].copy())

    def read_out(self, exponents: tuple[float, ...], degrees: Degrees) -> None:
        """Judge the kept factors with exponents, from the one nearest to 0 outwards while that pays."""
        assert self.factors is not None and self.kept is not None
        (users, items), self.factors = self.factors, None
        self.scores[0.0] = self.figures[self.kept]

        def judged(e: float) -> float:
            if e not in self.scores:
                scaled = with_scale(items, readout_scale(degrees, e, items.dtype))
                self.scores[e] = each_user((users, scaled), self.split, self.metric, self.n_jobs)
            return float(np.nanmean(self.scores[e]))

        outwards(judged, exponents, int(np.argmin(np.abs(exponents))))


@dataclass
class Measurement:
    """Measures settings of one loss, or reads their rows from the journal."""

    loss: Loss
    name: str  # of the loss in journal and table
    space: Space
    prepared: Prepared
    metric: str
    common: dict[str, Any]  # parameters of `RGALS` that all fits share
    journal: Journal | None
    deadline: float | None  # of `time.monotonic`; no fit starts after it
    report: Callable[[dict[str, Any]], int]  # called with every row; returns its number in the table
    ahead: Callable[[int], None]  # called with K before a full fit
    late: bool = False  # whether a setting was not measured again for want of time
    _starts: dict[int, RGALS | None] = field(default_factory=dict)  # by position of the split
    # by `id` of the training matrix, K and kind of values; each takes 5 to 16 % of the time of a cheap fit
    _rules: dict[tuple[int, int, str], dict[str, float]] = field(default_factory=dict)

    def __call__(self, params: dict[str, Any], level: int) -> Trial:
        """The trial of a setting; its figure is 0 where a system could not be solved."""
        asked = {"params": params, "stops": self.iterations, "readouts": self.space.readouts}
        # Fits at a cheap level have the iterations of that level, unless `n_iter` is less.
        ended = size(level, 1, 1 << 30)[1] <= self.iterations[-1]
        return self._recorded([self.name, level, params if ended else asked], params, level, None)

    def again(self, why: str, params: dict, taken: dict, level: int) -> Trial | None:
        """The trial of a setting whose iterations and read-out are given; None after the deadline."""
        # The row of the rule has its figure after all iterations, too.
        key = [why, self.name, params, taken, self.stops(params)[-1]]
        try:
            return self._recorded(key, params, level, taken)
        except OutOfTimeError:
            self.late = True
            return None

    def folds(self, level: int) -> list[Fold]:
        """The splits that judge the trials of a level."""
        prepared = self.prepared
        if level < TOP:
            return prepared.later if level == AGES else prepared.cheap
        return prepared.searched if level == TOP else prepared.others

    def _recorded(self, key: list, params: dict, level: int, taken: dict | None) -> Trial:
        """Report the row that the journal has under a key, or measure the setting and add its row."""
        key_text = json.dumps(key, sort_keys=True, default=str)
        row = self.journal.get(key_text) if self.journal is not None else None
        if row is None:
            if self.deadline is not None and time.monotonic() > self.deadline:
                raise OutOfTimeError
            if taken is None and level == TOP:
                self.ahead(params["K"])
            with warnings.catch_warnings():
                # Warn of a setting that is taken, not of every one that is tried.
                warnings.simplefilter("ignore", PrecisionWarning)
                row = {"loss": self.name, "level": level, **self._measured(params, level, taken)}
            if self.journal is not None:
                row = self.journal.add(key_text, row)
        number = self.report({k: v for k, v in row.items() if k not in ("key", "users", "plain")})
        found = {name: row["params"][name] for name in ("n_iter", "readout_exponent")}
        users, plain = (np.array(row[name]) if name in row else None for name in ("users", "plain"))
        return Trial(params, level, row[self.metric], found, users, plain, number, row["cost"])

    @property
    def iterations(self) -> tuple[int, ...]:
        """Iterations after which full fits are judged: an eighth, quarter, half and all, or the space's."""
        n = int(self.common["n_iter"])
        return self.space.stops or tuple(sorted({-(-n // k) for k in (8, 4, 2, 1)}))

    def stops(self, params: Mapping[str, Any]) -> tuple[int, ...]:
        """Iterations after which a full fit is judged, up to the ``n_iter`` of its parameters if given."""
        # With hard negatives after the last alone: before, users are solved with the items of one draw.
        if "hard_negatives" in params:
            return (params["n_iter"],)
        return tuple(n for n in self.iterations if n <= params.get("n_iter", n))

    def cost(self, K: int, level: int, n_iter: int | None = None) -> float:
        """Most that a trial can cost, in default fits with that K."""
        width, n_iter = size(level, K, n_iter or self.iterations[-1])
        # The search of the read-out judges three exponents beside 0 on average.
        more = min(3, len(self.space.readouts) - 1)
        looks = len(self.stops({"n_iter": n_iter})) + more if level == TOP else 1
        return self.price(level, K, n_iter, looks, width)

    def price(
        self, level: int, K: int, n_iter: Any, looks: Any, width: int = 0, weight: float = 0.0
    ) -> float:
        """Cost of fits to all splits of a level, in default fits with K factors."""
        # `n_iter` and `looks`, the number of evaluations: one for all fits, or one for each. The fits have
        # `width` factors, or K where that is 0, and hard negatives of `weight`.
        splits = self.folds(level)
        n_iter, looks = (np.broadcast_to(number, len(splits)).tolist() for number in (n_iter, looks))
        width, total = width or K, 0.0
        for split, n, m in zip(splits, n_iter, looks, strict=True):
            total += fit_cost(split.train, width, n, weight)
            total += m * judge_cost(len(split.users), split.train.n_cols, width)
        return total / self.prepared.default_cost(max(K, self.space.ladder[0]), self.common["n_iter"])

    def hard_cost(self, params: Mapping[str, Any], level: int) -> float:
        """Cost of a trial with hard negatives, judged without and with its read-out."""
        return self.price(level, params["K"], params["n_iter"], 2, weight=params["hard_negatives"])

    def extra_cost(self, params: Mapping[str, Any]) -> float:
        """Cost of a last fit with hard negatives, beyond the default fit that the budget keeps for it."""
        K = params["K"]
        fit = fit_cost(self.prepared.whole, K, params["n_iter"], params["hard_negatives"])
        return max(fit / self.prepared.default_cost(K, self.common["n_iter"]) - 1.0, 0.0)

    def spare(self) -> float:
        """Cost of a search beside its trials: the fits that those at level 0 start from, and confirmation."""
        K = self.space.ladder[0]
        again = self.price(CONFIRM, K, self.iterations[-1], 2)  # judged without and with the read-out
        return (1 + N_CONFIRMED) * again + self.price(0, K, _WARM, 0, size(0, K, 1)[0])

    def settings(self, params: Mapping[str, Any], matrix: CSR, K: int) -> dict[str, Any]:
        """Parameters for a fit of ``matrix`` with K factors: moved as the rule moves between data and K."""
        kind = params.get("values", self.common["values"])
        key = id(matrix), K, kind
        if key not in self._rules:
            self._rules[key] = rule(self.loss, Degrees.of(Weighting.of(kind, matrix).rows(matrix)), K)
        return {**self.space.carried(params, self._rules[key]), "K": K}

    def check(self) -> None:
        """Refuse values that no fit takes before the first one: ends of ranges, choices, the largest K."""
        middle = {**self.space.params(self.space.middle), "K": self.space.ladder[-1]}
        tried = list[tuple[str, Any]]()
        for name, d in self.space.dimensions.items():
            tried += [(name, end) for end in ((d.low, d.high) if isinstance(d, Range) else d.options)]
        disliked = self.prepared.whole.has_dislikes
        for name, value in [*tried, ("K", middle["K"])]:
            model = self.model({**middle, name: value})
            model._check(dict(self.prepared.splits[0].features))
            if disliked and not takes_dislikes(model):
                as_csr(self.prepared.final)  # refuses dislikes

    def model(self, params: dict[str, Any]) -> RGALS:
        """The estimator of a trial's parameters, not fitted."""
        return RGALS(**{**self.common, **of_estimator(self.loss, params)})

    def _start(self, k: int, params: dict[str, Any]) -> RGALS | None:
        """The fit at the middle of the space that level 0 starts from, for split ``k``; None if it failed."""
        if k not in self._starts:
            split, middle = self.prepared.cheap[k], self.space.params(self.space.middle)
            model = self.model(self.settings({**middle, "n_iter": _WARM}, split.train, params["K"]))
            try:
                self._starts[k] = model.fit(split.train, **split.features)
            except NumericalError:
                self._starts[k] = None
        return self._starts[k]

    def _measured(self, params: dict, level: int, taken: dict | None) -> dict[str, Any]:
        """The row of a setting. ``taken``: the iterations and the read-out, where they are known."""
        # Fits of the cheap levels are judged at their end without a read-out. Full ones are judged along the
        # way, end early once they are worse beyond noise, and are judged at their best iteration with several
        # exponents of the read-out.
        splits = self.folds(level)
        depth = level if taken is None else TOP  # position in `LEVELS`
        middle, iterations = self.space.params(self.space.middle), self.stops(params)
        width, last = size(depth, params["K"], iterations[-1])
        if depth < TOP:
            taken = {"n_iter": last, "readout_exponent": 0.0}
        best, exponents = None, self.space.readouts
        if taken is not None:
            best, exponents = taken["n_iter"], (taken["readout_exponent"],)
        weight = params.get("hard_negatives", 0.0)
        same = all(params[k] == middle[k] for k in self.space.dimensions)
        reference = depth == TOP and not weight and same
        looks: list[Look] = []
        started = time.perf_counter()
        for k, split in enumerate(splits):
            # The first split decides the number of iterations; the middle is also judged after all of them.
            stops = set(iterations) if best is None else {best, *((last,) if reference else ())}
            stops = {last} if split.fold_in else stops
            look = Look(split, self.metric, stops, best, self.common["n_jobs"], reference)
            shown = self.settings({**params, "n_iter": max(look.stops)}, split.train, width)
            model = self.model(shown)
            start = self._start(k, shown) if depth == 0 else None
            if start is not None:
                model.set_params(warm_start=True)
                model._snapshot = start._snapshot
            try:
                model.fit(split.train, callbacks=look, **split.features)
                look.end(model)
            except NumericalError as error:
                cost = self.hard_cost(params, level) if weight else self.cost(params["K"], depth, last)
                return self._row({**shown, "readout_exponent": 0.0}, [0.0], started, cost, str(error))
            look.read_out(exponents, model._state().degrees)
            best = look.kept
            looks.append(look)
        common = [e for e in exponents if all(e in look.scores for look in looks)]
        found = {e: np.concatenate([look.scores[e] for look in looks]) for e in common}
        plain = min(found, key=abs)
        e = max(found, key=lambda e: (float(np.nanmean(found[e])), -abs(e)))
        if not beyond_noise(found[e], found[plain]):
            e = plain
        shown |= {"n_iter": best, "readout_exponent": e}
        run = [max(look.stops) for look in looks]
        judged = [len(look.figures) + len(look.scores) - 1 for look in looks]  # exponent 0 is in both
        cost = self.price(level, params["K"], run, judged, width, weight)
        row = self._row(shown, [float(np.nanmean(look.scores[e])) for look in looks], started, cost)
        if depth == TOP:
            row["users"] = found[e].tolist()
        if reference:
            row["plain"] = np.concatenate([look.figures[last] for look in looks]).tolist()
        return row

    def _row(self, params: dict, figures: list[float], started: float, cost: float, fault: str = "") -> dict:
        found = {"params": params, self.metric: float(np.mean(figures)), "splits": figures}
        return {**found, "seconds": time.perf_counter() - started, "error": fault, "cost": cost}


@dataclass(frozen=True)
class Choice:
    """The setting of the last fit, and what it is worth."""

    measure: Measurement
    trial: Trial  # by the splits that searched
    judged: Trial  # by the splits that confirm; its `taken` are the last fit's
    middle: float | None = None  # figure of the middle of the space, by default that of the rule
    half_life: float | None = None
    gain: float = 0.0  # relative, over the rule of the first loss; 0 where that was not measured
    finished: bool = True  # False where the deadline ended the search
    rows: list[dict[str, Any]] = field(default_factory=list)  # the table: a row for each trial

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of the last fit, in the form of a trial's; see `of_estimator`."""
        # A search that ran out of time may have trials of a smaller K alone.
        asked, least = self.judged.params, self.measure.space.ladder[0]
        settled = self.measure.settings(asked, self.measure.prepared.whole, max(asked["K"], least))
        aged = {} if self.half_life is None else {"half_life": self.half_life}
        return {**settled, **self.judged.taken, **aged}


def outwards(judged: Callable[[Any], float], choices: Sequence[Any], first: int) -> Any:
    """The best of ordered choices: step up from position ``first`` while that pays, else step down."""
    found, best = first, judged(choices[first])
    for way in (1, -1):
        at = first + way
        while 0 <= at < len(choices) and (figure := judged(choices[at])) > best:
            found, best, at = at, figure, at + way
        if found != first:
            break
    return choices[found]


def each_user(factors: Factors, split: Fold, metric: str, n_jobs: int | None) -> np.ndarray:
    """The metric of each judged user, shape (n,); shape (1,) for a metric of all users together."""
    pooled, known = parse(metric).needs == EXPOSURE, (split.told, split.hidden, metric)
    found = evaluate(factors, *known, users=split.users, per_user=not pooled, n_jobs=n_jobs)
    return np.array([found[metric]]) if pooled else found[0][metric]


def beyond_noise(figures: np.ndarray | None, reference: np.ndarray | None) -> bool:
    """Whether the mean gain per user is above its standard error; False for a failed fit, which is None."""
    if figures is None or reference is None:
        return False
    gains = figures - reference
    return mean_of_known(gains) > np.nan_to_num(standard_error(gains))
