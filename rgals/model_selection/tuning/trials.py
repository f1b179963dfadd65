"""Measuring one setting: fits on the training part of every split, quality on its validation part."""

import json
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rgals.estimator import RGALS
from rgals.files.journal import Journal
from rgals.losses import Loss, rule
from rgals.matrix.csr import CSR
from rgals.matrix.weighting import Weighting
from rgals.model_selection.tuning.cost import fit_cost, judge_cost
from rgals.model_selection.tuning.halving import TOP, Judged, OutOfTimeError, Trial, size
from rgals.model_selection.tuning.judging import Look, beyond_noise, each_user, factors_of
from rgals.model_selection.tuning.prepared import Fold, Prepared
from rgals.model_selection.tuning.space import OF_MODEL, Space
from rgals.runtime.errors import NumericalError, PrecisionWarning
from rgals.solvers.hard_negatives import HardNegatives
from rgals.training.fit import DRAWS

_WARM = 5  # iterations of the fit that cheap ones start from


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


def make_model(loss: Loss, params: Mapping[str, Any], level: int, **common: Any) -> RGALS:
    """The estimator of a setting, as cheap as its level says."""
    given = {**common, **of_estimator(loss, params)}
    given["K"], given["n_iter"] = size(level, given["K"], given["n_iter"])
    return RGALS(**given)


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
    _rules: dict[tuple[int, int], dict[str, float]] = field(default_factory=dict)

    def __call__(self, params: dict[str, Any], level: int) -> Judged:
        """Mean of the metric over the splits; 0 where a system could not be solved."""
        asked = {"params": params, "stops": self.iterations, "readouts": self.space.readouts}
        key = json.dumps([self.name, level, asked if level == TOP else params], sort_keys=True, default=str)

        def measure() -> dict[str, Any]:
            if self.late:
                raise OutOfTimeError
            if level < TOP:
                return self._cheap(params, level)
            self.ahead(params["K"])
            return self._in_full(params, self.prepared.searched)

        return self._recorded(key, level, measure)

    def _recorded(self, key: str, level: int, measure: Callable[[], dict[str, Any]]) -> Judged:
        """What the journal has under a key, or else what is measured, which it has from then on; reported."""
        row = self.journal.get(key) if self.journal is not None else None
        if row is None:
            with warnings.catch_warnings():
                # Of what the search tries, not of what it finds.
                warnings.simplefilter("ignore", PrecisionWarning)
                row = {"loss": self.name, "level": level, **measure()}
            if self.journal is not None:
                row = self.journal.add(key, row)
        number = self.report({k: v for k, v in row.items() if k not in ("key", "users", "plain")})
        taken = {name: row["params"][name] for name in ("n_iter", "readout_exponent")}
        users, plain = (np.array(row[name]) if name in row else None for name in ("users", "plain"))
        return Judged(row[self.metric], taken, users, plain, number, row["cost"])

    @property
    def late(self) -> bool:
        """Whether no fit may start any more."""
        return self.deadline is not None and time.monotonic() > self.deadline

    @property
    def iterations(self) -> tuple[int, ...]:
        """Those after which a full fit is judged: eighth, quarter, half and all, or what the space says."""
        n = self.common["n_iter"]
        return self.space.stops or tuple(sorted({-(-n // k) for k in (8, 4, 2, 1)}))

    def stops(self, params: Mapping[str, Any]) -> tuple[int, ...]:
        """Iterations after which a setting in full is judged: a larger K takes no more than one before."""
        # With hard negatives after the last, whose users are not those of a draw.
        if "hard_negatives" in params:
            return (params["n_iter"],)
        return tuple(n for n in self.iterations if n <= params.get("n_iter", n))

    def cost(self, K: int, level: int, n_iter: int | None = None) -> float:
        """Of a measurement, in default fits with that K, at most."""
        stops = [n for n in self.iterations if n_iter is None or n <= n_iter]
        width, n_iter = size(level, K, stops[-1])
        # The line search of the read-out looks at three exponents beside 0, in the mean.
        looks = len(stops) + min(3, len(self.space.readouts) - 1) if level == TOP else 1
        splits = self.prepared.searched if level == TOP else self.prepared.cheap
        return self._price(splits, K, width, n_iter, looks)

    def confirming_cost(self, K: int) -> float:
        """Of judging a setting again by the other splits: a look or two, but for the middle."""
        return self._price(self.prepared.others, K, K, self.iterations[-1], 2)

    def _price(
        self, splits: list[Fold], K: int, width: int, n_iter: Any, looks: Any, weight: float = 0.0
    ) -> float:
        """Of fits with so many factors and iterations that are judged so many times: of all, or of each."""
        n_iter, looks = (np.broadcast_to(number, len(splits)).tolist() for number in (n_iter, looks))
        total = 0.0
        for split, n, m in zip(splits, n_iter, looks, strict=True):
            total += fit_cost(split.train, width, n, weight)
            total += m * judge_cost(len(split.users), split.train.n_cols, width)
        return total / self.prepared.default_cost(K, self.common["n_iter"])

    def later_cost(self, K: int, n_iter: int) -> float:
        """Of judging a setting by what came last, in default fits with the first K."""
        assert self.prepared.later is not None
        return self._price([self.prepared.later], self.space.ladder[0], K, n_iter, 1)

    def hard_cost(self, params: Mapping[str, Any], splits: list[Fold]) -> float:
        """Of a setting with hard negatives: a look, and one with its read-out."""
        K = params["K"]
        return self._price(splits, K, K, params["n_iter"], 2, params["hard_negatives"])

    def extra_cost(self, params: Mapping[str, Any]) -> float:
        """Of the last fit, beyond the one that the budget has for it."""
        K = params["K"]
        fit = fit_cost(self.prepared.whole, K, params["n_iter"], params["hard_negatives"])
        return max(fit / self.prepared.default_cost(K, self.common["n_iter"]) - 1.0, 0.0)

    def first_cost(self) -> float:
        """Of the fits that the lowest level starts from."""
        K = self.space.ladder[0]
        total = sum(fit_cost(split.train, size(0, K, 1)[0], _WARM) for split in self.prepared.cheap)
        return total / self.prepared.default_cost(K, self.common["n_iter"])

    def settings(self, params: Mapping[str, Any], matrix: CSR, K: int) -> dict[str, Any]:
        """Parameters as the rule carries them over: to other data, and from the first K to another."""
        key = id(matrix), K
        if key not in self._rules:
            weighted = Weighting.of(self.common["values"], matrix).rows(matrix)
            self._rules[key] = rule(self.loss, weighted, K)
        return {**self.space.carried(params, self._rules[key]), "K": K}

    def _start(self, k: int, params: dict[str, Any]) -> RGALS | None:
        """A fit in the middle of the space, from whose user factors cheap fits start; None where it fails."""
        if k not in self._starts:
            train, middle = self.prepared.cheap[k].train, self.space.params(self.space.middle)
            model = make_model(self.loss, self.settings(middle, train, params["K"]), TOP, **self.common)
            try:
                self._starts[k] = model.set_params(n_iter=_WARM).fit(train)
            except NumericalError:
                self._starts[k] = None
        return self._starts[k]

    def _cheap(self, params: dict[str, Any], level: int) -> dict[str, Any]:
        """A setting with few factors and iterations; at the lowest level from the factors of the middle."""
        figures, started, fault = [], time.perf_counter(), ""
        width, n_iter = size(level, params["K"], self.iterations[-1])
        for k, split in enumerate(self.prepared.cheap):
            shown = self.settings({**params, "n_iter": n_iter}, split.train, width)
            model = make_model(self.loss, shown, level, **self.common)
            start = self._start(k, shown) if level == 0 else None
            if start is not None:
                model.set_params(warm_start=True)
                model._snapshot = start._snapshot
            try:
                model.fit(split.train)
            except NumericalError as error:
                figures, fault = [0.0], str(error)
                break
            of_users = each_user(factors_of(model, split), split, self.metric, model.n_jobs)
            figures.append(float(np.nanmean(of_users)))
        row = self._row({**shown, "readout_exponent": 0.0}, figures, started, fault)
        return {**row, "cost": self.cost(params["K"], level)}

    def confirmed(self, trial: Trial) -> Judged:
        """A setting in full, as it was taken, judged by the other splits."""
        if not self.prepared.others or trial.judged.users is None:
            return trial.judged
        return self.again("confirmed", trial.params, trial.judged.taken, self.prepared.others, TOP + 1)

    def again(self, why: str, params: dict, taken: dict, splits: list[Fold], level: int) -> Judged:
        """A setting with iterations and a read-out that are known, judged by some splits."""
        key = json.dumps([why, self.name, params, taken], sort_keys=True, default=str)
        return self._recorded(key, level, lambda: self._in_full(params, splits, taken))

    def _in_full(self, params: dict, splits: list[Fold], taken: dict | None = None) -> dict[str, Any]:
        """A setting in full: judged along the fit, and with exponents of the read-out where that was best."""
        # A fit that has become worse beyond noise ends there. `taken`: iterations and read-out, where known.
        middle, iterations = self.space.params(self.space.middle), self.stops(params)
        last, K = iterations[-1], params["K"]
        best, exponents = None, self.space.readouts
        if taken is not None:
            best, exponents = taken["n_iter"], (taken["readout_exponent"],)
        weight = params.get("hard_negatives", 0.0)
        reference = not weight and all(params[name] == value for name, value in middle.items())
        looks: list[Look] = []
        started = time.perf_counter()
        for split in splits:
            # The first part says how many iterations are best; the plain fit is judged on all of them.
            stops = set(iterations) if best is None else {best, *((last,) if reference else ())}
            stops = {last} if split.fold_in else stops
            look = Look(split, self.metric, stops, best, self.common["n_jobs"], reference)
            shown = self.settings({**params, "n_iter": max(look.stops)}, split.train, K)
            model = make_model(self.loss, shown, TOP, **self.common)
            try:
                model.fit(split.train, callbacks=look)
                look.end(model)
            except NumericalError as error:
                row = self._row({**shown, "readout_exponent": 0.0}, [0.0], started, str(error))
                return {**row, "cost": self.hard_cost(params, splits) if weight else self.cost(K, TOP, last)}
            look.read_out(exponents)
            best = look.kept
            looks.append(look)
        common = [e for e in exponents if all(e in look.scores for look in looks)]
        found = {e: np.concatenate([look.scores[e] for look in looks]) for e in common}
        plain = min(found, key=abs)
        e = max(found, key=lambda e: (float(np.nanmean(found[e])), -abs(e)))
        if not beyond_noise(found[e], found[plain]):
            e = plain
        shown |= {"n_iter": best, "readout_exponent": e}
        row = self._row(shown, [float(np.nanmean(look.scores[e])) for look in looks], started, "")
        row["users"] = found[e].tolist()
        run, judged = [max(look.stops) for look in looks], [look.judged for look in looks]
        row["cost"] = self._price(splits, K, K, run, judged, weight)
        if reference:
            row["plain"] = np.concatenate([look.figures[last] for look in looks]).tolist()
        return row

    def _row(self, params: dict, figures: list[float], started: float, fault: str) -> dict[str, Any]:
        found = {"params": params, self.metric: float(np.mean(figures)), "splits": figures}
        return {**found, "seconds": time.perf_counter() - started, "error": fault}
