"""Measuring one setting: fits on the training part of every split, quality on its validation part."""

import json
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from rgals.datasets.given import given, known_part
from rgals.datasets.splits import split_interactions
from rgals.estimator import RGALS
from rgals.files.journal import Journal
from rgals.losses import Degrees, Loss, rule
from rgals.matrix.csr import CSR, TimedMatrix
from rgals.matrix.digest import short_digest
from rgals.matrix.entries import merged, times_of
from rgals.matrix.validate import as_csr
from rgals.matrix.weighting import Weighting
from rgals.metrics._served import sample_users
from rgals.metrics._table import EXPOSURE, parse
from rgals.metrics.evaluation import evaluate
from rgals.model.state import readout_scale, with_scale
from rgals.model_selection.protocol import PROTOCOLS, Parts, Protocol
from rgals.model_selection.tuning.cost import LEAST, fit_cost, judge_cost
from rgals.model_selection.tuning.halving import TOP, Judged, OutOfTimeError, Trial, size
from rgals.model_selection.tuning.space import OF_MODEL, Space
from rgals.runtime.errors import InputError, NumericalError, ParameterError, PrecisionWarning
from rgals.runtime.lazy import cached_property
from rgals.solvers.hard_negatives import HardNegatives
from rgals.training.start import DRAWS
from rgals.training.steps import Iteration

_WARM = 5  # iterations of the fit that cheap ones start from
_LARGE = 1_000_000  # interactions beyond which cheap fits see a sample of the users,
_JUDGES = 3_000  # and users that they are judged by
Factors = tuple[np.ndarray, np.ndarray]  # of users and of items
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
    later: Fold | None = None  # where times are known: what came last, hidden from what came before

    @cached_property
    def cheap(self) -> list[Fold]:
        """The splits as cheap fits see them: on large data some of the users, and few judges anyway."""
        return [_sampled(split) for split in self.searched]

    @property
    def searched(self) -> list[Fold]:
        """The splits that all settings are judged by, a half; the best are confirmed on the others."""
        return self.splits[: max(1, len(self.splits) // 2)]

    @property
    def others(self) -> list[Fold]:
        """The splits that confirm."""
        return self.splits[len(self.searched) :]

    @cached_property
    def whole(self) -> CSR:
        """``final`` as a fit takes it."""
        return as_csr(self.final, dtype=np.float32, dislikes=True)

    def default_cost(self, K: int, n_iter: int) -> float:
        """What a default fit of everything counts as (see `rgals.model_selection.tuning.cost`)."""
        return max(fit_cost(self.whole, K, n_iter), LEAST)

    def fingerprint(self) -> str:
        """A digest of all parts that a figure depends on."""
        folds = self.splits if self.later is None else [*self.splits, self.later]
        return short_digest(*(x for s in folds for x in (s.train, s.told, s.hidden, s.users)))


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
    X, parts = given(X), None
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
        known, (n_rows, n_cols) = known_part(validation, user_ids, item_ids, "validation"), train.shape
        shape = {"n_rows": n_rows, "n_cols": n_cols, "dislikes": True}
        held_out = as_csr(known, name="validation", **shape).to_scipy()
    else:
        train, held_out = split_interactions(X.csr(), _DEFAULT, random_state=seed)
        if held_out.nnz == 0:
            raise InputError("no user has two interactions: nothing can be held out to tune on")
    final, later = sp.csr_array(train + held_out), None
    if protocol is None and X.timestamp is not None:
        told = hidden = as_csr(X.timed, dtype=np.float32, dislikes=True)
        if validation is not None:
            hidden = as_csr(known, name="validation", **shape)
        elif hidden.times is not None:
            last = hidden.times >= np.quantile(hidden.times, _DEFAULT[0])
            told, hidden = hidden.where(~last), hidden.where(last)
        if hidden.times is not None and told.nnz:
            whole, _, _ = merged(told, hidden, "add")
            final = TimedMatrix.of(whole.to_scipy(), times_of(whole))
            later = _fold(told, told, hidden, max_users, seed, False)
    pairs = [(train, held_out)]
    share = held_out.nnz / final.nnz
    for k in range(1, repeats):
        # Drawn from training and validation together: the test part of a protocol stays untouched.
        more = split_interactions(final, (1 - share, share), random_state=seed + k)
        pairs.append((more[0], more[1]))
    splits = [_fold(told, told, hidden, max_users, seed, False) for told, hidden in pairs]
    return Prepared(splits, final, parts, user_ids, item_ids, later)


def _fold(train: Any, told: Any, hidden: Any, max_users: int | None, seed: int, fold_in: bool) -> Fold:
    train, known, found = (as_csr(X, dtype=np.float32, dislikes=True) for X in (train, told, hidden))
    train, found = train if fold_in else known, found.likes
    return Fold(train, known, found, sample_users(found, max_users, seed), fold_in)


def _sampled(split: Fold) -> Fold:
    users = split.users
    if len(users) > _JUDGES:
        users = np.sort(np.random.default_rng(0).choice(users, _JUDGES, replace=False))
    share = _LARGE / max(split.train.nnz, 1)
    if share >= 1 or split.fold_in:
        return replace(split, users=users)
    n_users = split.train.n_rows
    others = np.setdiff1d(np.arange(n_users), users)
    n_others = min(max(round(share * n_users) - len(users), 0), len(others))
    rows = np.sort(np.r_[users, np.random.default_rng(0).choice(others, n_others, replace=False)])
    train = split.train.take_rows(rows)
    return Fold(train, train, split.hidden.take_rows(rows), np.searchsorted(rows, users), False)


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
    degrees: Degrees | None = None
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
        self.degrees = model._state().degrees
        for stop in sorted(self.stops - set(self.figures)):
            self._judge(stop, factors_of(model, self.split))

    def _judge(self, iteration: int, factors: Factors) -> None:
        self.judged += 1
        found = self.figures[iteration] = each_user(factors, self.split, self.metric, self.n_jobs)
        if self.keep is None:
            better = self.kept is None or np.nanmean(found) > np.nanmean(self.figures[self.kept])
        else:
            better = iteration == self.keep
        if better:
            self.kept, self.factors = iteration, (factors[0].copy(), factors[1].copy())

    def read_out(self, exponents: tuple[float, ...]) -> None:
        """Judge the kept factors with exponents: outwards from the one nearest to 0, while that pays."""
        assert self.factors is not None and self.kept is not None and self.degrees is not None
        (users, items), kept, degrees = self.factors, self.kept, self.degrees
        self.factors = None

        def judged(at: int) -> float:
            e = exponents[at]
            if e == 0:
                self.scores[e] = self.figures[kept]
            else:
                self.judged += 1
                scaled = with_scale(items, readout_scale(degrees, e, items.dtype))
                self.scores[e] = each_user((users, scaled), self.split, self.metric, self.n_jobs)
            return float(np.nanmean(self.scores[e]))

        outwards(judged, len(exponents), int(np.argmin(np.abs(exponents))))


def outwards(judged: Callable[[int], float], n: int, first: int) -> int:
    """The best of ``n`` ordered choices: from one of them upwards, else downwards, while that pays."""
    found, best = first, judged(first)
    for way in (1, -1):
        at = first + way
        while 0 <= at < n and (figure := judged(at)) > best:
            found, best, at = at, figure, at + way
        if found != first:
            break
    return found


def factors_of(model: RGALS, split: Fold) -> Factors:
    """Factors of the judged users' rows, and of the items."""
    users = model.transform(split.told) if split.fold_in else model.user_factors_
    return users, model.item_factors_


def each_user(factors: Factors, split: Fold, metric: str, n_jobs: int | None) -> np.ndarray:
    """The metric of every judged user; one figure, where it is of all users together."""
    known = split.told, split.hidden, (metric,)
    if parse(metric).needs == EXPOSURE:
        return np.array([evaluate(factors, *known, users=split.users, n_jobs=n_jobs)[metric]])
    return evaluate(factors, *known, users=split.users, per_user=True, n_jobs=n_jobs)[0][metric]


def beyond_noise(figures: np.ndarray, reference: np.ndarray) -> bool:
    """Whether figures of users are better than others of them by more than the standard error."""
    gains = figures - reference
    gains = gains[~np.isnan(gains)]
    if len(gains) < 2:
        return bool(gains.sum() > 0)
    return bool(gains.mean() > gains.std(ddof=1) / np.sqrt(len(gains)))
