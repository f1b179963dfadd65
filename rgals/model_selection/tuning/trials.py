"""Measuring one setting: fits on the training part of every split, judged by its hidden interactions."""

import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rgals.estimator import RGALS
from rgals.files.journal import Journal
from rgals.losses import Degrees, Loss, rule
from rgals.matrix.csr import CSR
from rgals.matrix.weighting import Weighting
from rgals.metrics._judged import mean_of_known
from rgals.metrics._table import EXPOSURE, parse
from rgals.metrics.evaluation import evaluate
from rgals.metrics.significance import standard_error
from rgals.model_selection.tuning.halving import TOP, OutOfTimeError, Trial, size
from rgals.model_selection.tuning.prepared import Fold, Prepared, fit_cost, judge_cost
from rgals.model_selection.tuning.space import OF_MODEL, Range, Space
from rgals.runtime.errors import NumericalError, ParameterError, PrecisionWarning
from rgals.solvers.hard_negatives import HardNegatives
from rgals.solvers.readout import readout_scale, with_scale
from rgals.training.fit import DRAWS
from rgals.training.run import Iteration

_WARM = 5  # iterations of the fit that cheap ones start from
CONFIRMED = 3  # settings that are judged by other hidden parts too, beside the middle of the space
Factors = tuple[np.ndarray, np.ndarray]  # of users and of items


def of_estimator(loss: Loss, params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of `RGALS` from those of a table, in which the loss's stand beside the others."""
    # A weight of hard negatives counts in the last iterations, in half of them at most.
    of_loss = {k: v for k, v in params.items() if k not in OF_MODEL}
    of_model = {k: v for k, v in params.items() if k in OF_MODEL}
    if of_model.get("hard_negatives"):
        n_iter = of_model["n_iter"]
        warmup = n_iter - min(DRAWS, n_iter // 2)
        of_model["hard_negatives"] = HardNegatives(of_model["hard_negatives"], warmup=warmup)
    return {"loss": type(loss)(**{**loss.get_params(), **of_loss}), **of_model}


@dataclass(eq=False)
class Look:
    """Judges a full fit after some of its iterations; keeps the factors of the best, or of a given one."""

    split: Fold
    metric: str
    stops: set[int]
    keep: int | None
    n_jobs: int | None = None
    patient: bool = True  # a fit goes on that has become worse
    judged: int = 0  # times
    figures: dict[int, np.ndarray] = field(default_factory=dict)  # of every judged user, by iteration
    kept: int | None = None
    factors: Factors | None = None
    scores: dict[float, np.ndarray] = field(default_factory=dict)  # by exponent of the read-out

    def __call__(self, now: Iteration) -> bool:
        """Judge an iteration that is a stop; the last is judged by what the fit publishes."""
        # True where it is worse than the best beyond noise, and nobody asks what comes after it.
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
        """Judge what the fit ended with, early or not."""
        for stop in sorted(self.stops - set(self.figures)):
            users = model.transform(self.split.told) if self.split.fold_in else model.user_factors_
            self._judge(stop, (users, model.item_factors_))

    def _judge(self, iteration: int, factors: Factors) -> None:
        self.judged += 1
        found = self.figures[iteration] = each_user(factors, self.split, self.metric, self.n_jobs)
        if np.isnan(found).all():  # which is of the data, whatever the setting
            raise ParameterError("metric", self.metric, "it has no value for any judged user; give 'ndcg@10'")
        better = iteration == self.keep
        if self.keep is None:
            better = self.kept is None or np.nanmean(found) > np.nanmean(self.figures[self.kept])
        if better:
            self.kept, self.factors = iteration, (factors[0].copy(), factors[1].copy())

    def read_out(self, exponents: tuple[float, ...], degrees: Degrees) -> None:
        """Judge the kept factors with exponents: outwards from the one nearest to 0, while that pays."""
        assert self.factors is not None and self.kept is not None
        (users, items), self.factors = self.factors, None
        self.scores[0.0] = self.figures[self.kept]

        def judged(e: float) -> float:
            if e not in self.scores:
                self.judged += 1
                scaled = with_scale(items, readout_scale(degrees, e, items.dtype))
                self.scores[e] = each_user((users, scaled), self.split, self.metric, self.n_jobs)
            return float(np.nanmean(self.scores[e]))

        outwards(judged, exponents, int(np.argmin(np.abs(exponents))))


@dataclass
class Measurement:
    """Measures settings of one loss; asks the journal first."""

    loss: Loss
    name: str  # of the loss in journal and table
    space: Space
    prepared: Prepared
    metric: str
    common: dict[str, Any]  # parameters of `RGALS` that all fits share
    journal: Journal | None
    deadline: float | None  # of `time.monotonic`; no fit starts after it
    report: Callable[[dict[str, Any]], int]  # hears of every row, and gives its number
    ahead: Callable[[int], None]  # hears of K before a full fit with it
    _starts: dict[int, RGALS | None] = field(default_factory=dict)
    _rules: dict[tuple[int, int, str], dict[str, float]] = field(default_factory=dict)

    def __call__(self, params: dict[str, Any], level: int) -> Trial:
        """Mean of the metric over the splits; 0 where a system could not be solved."""
        asked = {"params": params, "stops": self.iterations, "readouts": self.space.readouts}
        ended = size(level, 1, 1 << 30)[1] <= self.iterations[-1]  # by its level, whatever n_iter is
        key = [self.name, level, params if ended else asked]
        splits = self.prepared.searched if level == TOP else self.prepared.cheap
        return self._recorded(key, params, level, splits, None)

    def confirmed(self, trial: Trial) -> Trial | None:
        """A setting in full, as it was taken, judged by the other splits; None where the time is over."""
        if not self.prepared.others or trial.users is None:
            return trial
        return self.again("confirmed", trial.params, trial.taken, self.prepared.others, TOP + 1)

    def again(self, why: str, params: dict, taken: dict, splits: list[Fold], level: int) -> Trial | None:
        """A setting with iterations and a read-out that are known, judged by some splits; None as above."""
        with suppress(OutOfTimeError):
            return self._recorded([why, self.name, params, taken], params, level, splits, taken)
        return None

    def _recorded(self, key: list, params: dict, level: int, splits: list[Fold], taken: dict | None) -> Trial:
        """What the journal has under a key, or else what is measured, which it has from then on; reported."""
        key_text = json.dumps(key, sort_keys=True, default=str)
        row = self.journal.get(key_text) if self.journal is not None else None
        if row is None:
            if self.deadline is not None and time.monotonic() > self.deadline:
                raise OutOfTimeError
            if taken is None and level == TOP:
                self.ahead(params["K"])
            with warnings.catch_warnings():
                # Of what the search tries, not of what it finds.
                warnings.simplefilter("ignore", PrecisionWarning)
                row = {"loss": self.name, "level": level, **self._measured(params, splits, level, taken)}
            if self.journal is not None:
                row = self.journal.add(key_text, row)
        number = self.report({k: v for k, v in row.items() if k not in ("key", "users", "plain")})
        found = {name: row["params"][name] for name in ("n_iter", "readout_exponent")}
        users, plain = (np.array(row[name]) if name in row else None for name in ("users", "plain"))
        return Trial(params, level, row[self.metric], found, users, plain, number, row["cost"])

    @property
    def iterations(self) -> tuple[int, ...]:
        """Those after which a full fit is judged: eighth, quarter, half and all, or what the space says."""
        n = int(self.common["n_iter"])
        return self.space.stops or tuple(sorted({-(-n // k) for k in (8, 4, 2, 1)}))

    def stops(self, params: Mapping[str, Any]) -> tuple[int, ...]:
        """Iterations after which a setting in full is judged: a larger K takes no more than one before."""
        # With hard negatives after the last, whose users are not those of a draw.
        if "hard_negatives" in params:
            return (params["n_iter"],)
        return tuple(n for n in self.iterations if n <= params.get("n_iter", n))

    def cost(self, K: int, level: int, n_iter: int | None = None) -> float:
        """Of a measurement, in default fits with that K, at most."""
        width, n_iter = size(level, K, n_iter or self.iterations[-1])
        if level < TOP:
            return self.price(self.prepared.cheap, K, n_iter, 1, width)
        # The line search of the read-out looks at three exponents beside 0, in the mean.
        looks = len(self.stops({"n_iter": n_iter})) + min(3, len(self.space.readouts) - 1)
        return self.price(self.prepared.searched, K, n_iter, looks)

    def price(
        self, splits: list[Fold], K: int, n_iter: Any, looks: Any, width: int = 0, weight: float = 0.0
    ) -> float:
        """Of fits with so many iterations that are judged so many times, in default fits with that K."""
        # `n_iter` and `looks`: of all fits, or of each; `width`: their factors, K where it is 0.
        n_iter, looks = (np.broadcast_to(number, len(splits)).tolist() for number in (n_iter, looks))
        width, total = width or K, 0.0
        for split, n, m in zip(splits, n_iter, looks, strict=True):
            total += fit_cost(split.train, width, n, weight)
            total += m * judge_cost(len(split.users), split.train.n_cols, width)
        return total / self.prepared.default_cost(max(K, self.space.ladder[0]), self.common["n_iter"])

    def hard_cost(self, params: Mapping[str, Any], splits: list[Fold]) -> float:
        """Of a setting with hard negatives: a look, and one with its read-out."""
        return self.price(splits, params["K"], params["n_iter"], 2, weight=params["hard_negatives"])

    def extra_cost(self, params: Mapping[str, Any]) -> float:
        """Of the last fit, beyond the one that the budget has for it."""
        K = params["K"]
        fit = fit_cost(self.prepared.whole, K, params["n_iter"], params["hard_negatives"])
        return max(fit / self.prepared.default_cost(K, self.common["n_iter"]) - 1.0, 0.0)

    def spare(self) -> float:
        """Of what a search does beside its trials: the fits that cheap ones start from, and what confirms."""
        # A look or two, but for the middle.
        K = self.space.ladder[0]
        again = self.price(self.prepared.others, K, self.iterations[-1], 2)
        return (1 + CONFIRMED) * again + self.price(self.prepared.cheap, K, _WARM, 0, size(0, K, 1)[0])

    def settings(self, params: Mapping[str, Any], matrix: CSR, K: int) -> dict[str, Any]:
        """Parameters as the rule carries them over: to other data, and from the first K to another."""
        kind = params.get("values", self.common["values"])
        key = id(matrix), K, kind
        if key not in self._rules:
            self._rules[key] = rule(self.loss, Degrees.of(Weighting.of(kind, matrix).rows(matrix)), K)
        return {**self.space.carried(params, self._rules[key]), "K": K}

    def check(self) -> None:
        """Refuse what no fit takes before the first: ends of ranges, choices, the largest K."""
        middle = {**self.space.params(self.space.middle), "K": self.space.ladder[-1]}
        for name, d in self.space.dimensions.items():
            for value in (d.low, d.high) if isinstance(d, Range) else d.options:
                self.model({**middle, name: value})._check({})

    def model(self, params: dict[str, Any]) -> RGALS:
        """The estimator of parameters of a table, not fitted."""
        return RGALS(**{**self.common, **of_estimator(self.loss, params)})

    def _start(self, k: int, params: dict[str, Any]) -> RGALS | None:
        """A fit in the middle of the space, from whose user factors cheap fits start; None where it fails."""
        if k not in self._starts:
            train, middle = self.prepared.cheap[k].train, self.space.params(self.space.middle)
            model = self.model(self.settings({**middle, "n_iter": _WARM}, train, params["K"]))
            try:
                self._starts[k] = model.fit(train)
            except NumericalError:
                self._starts[k] = None
        return self._starts[k]

    def _measured(self, params: dict, splits: list[Fold], level: int, taken: dict | None) -> dict[str, Any]:
        """A setting, judged along its fits, and with exponents of the read-out where these were best."""
        # Cheap ones are judged at their end without a read-out, those of the lowest level start from the
        # factors of the middle. Others end where they have become worse beyond noise. `taken`: iterations and
        # read-out of a setting in full, where known.
        level = level if taken is None else TOP
        middle, iterations = self.space.params(self.space.middle), self.stops(params)
        width, last = size(level, params["K"], iterations[-1])
        if level < TOP:
            taken = {"n_iter": last, "readout_exponent": 0.0}
        best, exponents = None, self.space.readouts
        if taken is not None:
            best, exponents = taken["n_iter"], (taken["readout_exponent"],)
        weight = params.get("hard_negatives", 0.0)
        same = all(params[k] == middle[k] for k in self.space.dimensions)
        reference = level == TOP and not weight and same
        looks: list[Look] = []
        started = time.perf_counter()
        for k, split in enumerate(splits):
            # The first part says how many iterations are best; the plain fit is judged on all of them.
            stops = set(iterations) if best is None else {best, *((last,) if reference else ())}
            stops = {last} if split.fold_in else stops
            look = Look(split, self.metric, stops, best, self.common["n_jobs"], reference)
            shown = self.settings({**params, "n_iter": max(look.stops)}, split.train, width)
            model = self.model(shown)
            start = self._start(k, shown) if level == 0 else None
            if start is not None:
                model.set_params(warm_start=True)
                model._snapshot = start._snapshot
            try:
                model.fit(split.train, callbacks=look)
                look.end(model)
            except NumericalError as error:
                cost = self.hard_cost(params, splits) if weight else self.cost(params["K"], level, last)
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
        run, judged = [max(look.stops) for look in looks], [look.judged for look in looks]
        cost = self.price(splits, params["K"], run, judged, width, weight)
        row = self._row(shown, [float(np.nanmean(look.scores[e])) for look in looks], started, cost)
        if level == TOP:
            row["users"] = found[e].tolist()
        if reference:
            row["plain"] = np.concatenate([look.figures[last] for look in looks]).tolist()
        return row

    def _row(self, params: dict, figures: list[float], started: float, cost: float, fault: str = "") -> dict:
        found = {"params": params, self.metric: float(np.mean(figures)), "splits": figures}
        return {**found, "seconds": time.perf_counter() - started, "error": fault, "cost": cost}


@dataclass(frozen=True)
class Choice:
    """A setting for the last fit, and what it is worth."""

    measure: Measurement
    trial: Trial  # as it was searched,
    judged: Trial  # and as it was confirmed, with what it takes
    middle: float | None = None  # figure of the middle of the space, which is the rule's
    half_life: float | None = None
    gain: float = 0.0  # over the rule of the first loss, relatively; 0 where that was not measured
    finished: bool = True  # the search, before its deadline
    rows: list[dict[str, Any]] = field(default_factory=list)  # of all that was measured

    @property
    def params(self) -> dict[str, Any]:
        """As a fit of everything takes them; see `of_estimator`."""
        asked, least = self.judged.params, self.measure.space.ladder[0]  # fewer: the time was over before
        settled = self.measure.settings(asked, self.measure.prepared.whole, max(asked["K"], least))
        aged = {} if self.half_life is None else {"half_life": self.half_life}
        return {**settled, **self.judged.taken, **aged}


def outwards(judged: Callable[[Any], float], choices: Sequence[Any], first: int) -> Any:
    """The best of ordered choices: from the one at ``first`` upwards, else downwards, while that pays."""
    found, best = first, judged(choices[first])
    for way in (1, -1):
        at = first + way
        while 0 <= at < len(choices) and (figure := judged(choices[at])) > best:
            found, best, at = at, figure, at + way
        if found != first:
            break
    return choices[found]


def each_user(factors: Factors, split: Fold, metric: str, n_jobs: int | None) -> np.ndarray:
    """The metric of every judged user; one figure, where it is of all users together."""
    pooled, known = parse(metric).needs == EXPOSURE, (split.told, split.hidden, metric)
    found = evaluate(factors, *known, users=split.users, per_user=not pooled, n_jobs=n_jobs)
    return np.array([found[metric]]) if pooled else found[0][metric]


def beyond_noise(figures: np.ndarray | None, reference: np.ndarray | None) -> bool:
    """Whether figures of users, which a failed fit has not, beat others of them by over a standard error."""
    if figures is None or reference is None:
        return False
    gains = figures - reference
    return mean_of_known(gains) > np.nan_to_num(standard_error(gains))
