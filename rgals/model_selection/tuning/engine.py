"""The search behind `tune`, `RGALSCV` and the command line: losses, spaces, and which setting to take."""

# The best setting is then moved a little, and tried with hard negatives and with half-lives.

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from rgals.datasets.times import half_life_in
from rgals.files.journal import Journal
from rgals.losses import AUTO, LOSSES, Degrees, Loss, get_loss
from rgals.losses.fitted import wants_mean
from rgals.matrix.csr import CSR
from rgals.matrix.weighting import Weighting
from rgals.metrics._table import rising
from rgals.model_selection.tuning import halving
from rgals.model_selection.tuning.halving import AGES, CONFIRM, TOP, OutOfTimeError, Trial, best_trial
from rgals.model_selection.tuning.prepared import Prepared
from rgals.model_selection.tuning.space import Range, Space, make_space
from rgals.model_selection.tuning.trials import N_CONFIRMED, Choice, Measurement, beyond_noise, outwards
from rgals.runtime.bars import Bar
from rgals.runtime.errors import InputError, InputTypeError, InsufficientMemoryError, ParameterError, warn
from rgals.runtime.memory import available_bytes, readable
from rgals.solvers.cuda import is_cuda
from rgals.solvers.footprint import Footprint
from rgals.training.data import weigh
from rgals.training.fit import DRAWS

_BAR = "{l_bar}{bar}| {n:.1f}/{total:.1f} fits [{elapsed}<{remaining}{postfix}]"
POLISH_SHARE = 0.4  # of the budget, for `polish`, counted in fits with the K that was climbed to
STEPS = (0.15, 0.075)  # by which `polish` moves a parameter, as shares of its range
WEIGHTS = (0.0, 0.5, 1.0, 2.0, 4.0)  # of hard negatives
REGS = (0.36, 0.6, 1.0, 1.7, 2.9)  # factors of the setting's reg that are tried beside hard negatives
#: Half-lives that "auto" tries, in units of the mean age of the interactions. The time from the first one to
#: the last would be that of a wrong date, or of the longest history where ages are counted in interactions.
AGES_TRIED = tuple(2.0**power for power in range(-7, 3))
_AGES_K = 32  # most factors of the fits that compare half-lives
_AGES_FITS = 6.0  # number of these fits that the budget keeps a share for


def read_losses(given: Any) -> dict[str, Loss]:
    """Losses by their names in tables."""
    listed = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    for one in listed:
        if hasattr(one, "fit"):
            name = (one if isinstance(one, type) else type(one)).__name__
            pair = f"({name}(...), {{parameter: values}})"
            what = f"losses are searched here, names or Loss objects, and {name} is a model"
            raise InputTypeError(f"{what}: rgals.compare.compare(X, [{pair}]) tunes models")
    objects = [get_loss(one) for one in listed]
    if not objects:
        raise ParameterError("loss", given, "give at least one loss")
    names = [next((n for n, kind in LOSSES.items() if kind is type(one)), one.name) for one in objects]
    labels = [repr(one) if names.count(name) > 1 else name for name, one in zip(names, objects, strict=True)]
    if len(set(labels)) != len(labels):
        raise ParameterError("loss", given, "give each loss once")
    return dict(zip(labels, objects, strict=True))


def read_spaces(
    losses: dict[str, Loss], prepared: Prepared, given: Any, common: dict[str, Any], defaults: dict[str, Any]
) -> tuple[dict[str, Space], str]:
    """The space of each loss, and the kind of values of all fits whose space names none."""
    whole, train, shared = prepared.whole, prepared.splits[0].train, common["values"]
    found = {} if given is None else given
    by_loss = isinstance(found, Mapping) and bool(found) and set(found) <= set(losses)
    own = {name: found.get(name, {}) if by_loss else found for name in losses}
    if not all(isinstance(its, Mapping) for its in own.values()):
        raise ParameterError("space", given, "give a dict of ranges, choices and values by parameter")
    if not all("values" in its for its in own.values()):
        shared = weigh(shared, whole).kind
    # Decide on user means by all users, as a fit with reg="auto" does: in a sample columns are shorter.
    cuda, spaces = is_cuda(common.get("device", "cpu")), dict[str, Space]()
    described = "user_features" in prepared.splits[0].features
    mean = {"user_mean": True} if wants_mean(Degrees.of(whole)) and not (cuda or described) else {}
    for name, loss in losses.items():
        its = {**mean, **defaults, **own[name]}
        disliked = its.get("dislikes", loss.dislikes) is not False
        if "hard_negatives" not in own[name] and (cuda or described or disliked):
            its["hard_negatives"] = 0.0  # which dislikes, features of users and GPUs do not go with
        asked = its.get("values", shared)
        listed = asked if isinstance(asked, list) else [asked]
        kinds = list(dict.fromkeys(weigh(k, whole).kind if k == AUTO else k for k in listed))
        if "values" in its:
            its["values"] = kinds if listed is asked else kinds[0]
        spaces[name] = make_space(loss, Weighting.of(kinds[0] if kinds else "raw", train).rows(train), its)
        if described and any(weights := spaces[name].weights):
            raise ParameterError(
                "space", {"hard_negatives": [*weights]}, "user_features go with none of them"
            )
    return spaces, shared


@dataclass
class Report:
    """The table of a search, a row for every trial, and what its progress bar shows."""

    metric: str
    bar: Bar
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, row: dict[str, Any]) -> int:
        """Add a row; returns its number."""
        self.rows.append(row)
        best = max((r[self.metric] for r in self.rows if r["level"] >= TOP), default=None)
        so_far = "" if best is None else f" best {best:.4f}"
        self.bar.set_postfix_str(f"{row['loss']} K={row['params']['K']}{so_far}", refresh=False)
        self.bar.total = max(self.bar.total, self.bar.n + row["cost"])
        self.bar.update(row["cost"])
        return len(self.rows) - 1

    def ahead(self, train: CSR, K: int) -> None:
        """Say what full fits with K factors need."""
        if not self.bar.disable:
            free, kept = available_bytes(), sum(train.shape) * K * 4  # factors of the best iteration
            needed = readable(Footprint(train.shape, train.nnz, K, 4).peak() + kept)
            left = "" if free == np.inf else f" of {readable(free)}"
            self.bar.write(f"K={K}: a fit needs about {needed}{left}", file=sys.stderr)

    def show(self, choice: Choice) -> None:
        """Give the row of the rule, where that was taken, the figures of what is taken."""
        # The rule is taken with all iterations and no read-out, even if its fit was better with others.
        judged, row = choice.judged, self.rows[choice.judged.row]
        if judged.plain is not None and judged.users is not None:
            splits = by_split(choice.measure, judged.level, judged.users)
            row |= {"params": {**row["params"], **judged.taken}, self.metric: judged.figure, "splits": splits}


def find(
    losses: dict[str, Loss],  # by their names in tables
    prepared: Prepared,
    given: Mapping[str, Any] | None,  # the space
    common: dict[str, Any],  # parameters of `RGALS` that all fits share; values="auto" is decided here
    metric: str,
    budget: float,
    min_gain: float,
    journal: str | Path | None,
    setting: Mapping[str, Any],  # what identifies the journal beside data, metric, seed and values
    defaults: dict[str, Any],  # entries of every space that the caller's replace
    deadline: float | None = None,  # of `time.monotonic`
    verbose: int = 0,
) -> Choice:
    """Search every loss with its share of the budget; return the best setting of all, without a last fit."""
    rising(metric)
    record, seed, climb = None, int(common["random_state"]), halving.CLIMB_SHARE * budget
    spaces, values = read_spaces(losses, prepared, given, common, defaults)
    common = {**common, "values": values}
    if journal is not None:
        # Journals of `tune`, which has no `setting`, are of values="raw" where they say nothing.
        weighed = {"values": values} if setting or values != "raw" else {}
        belongs = {"data": prepared.fingerprint(), "metric": metric, "random_state": seed}
        record = Journal(Path(journal), {**belongs, **weighed, **setting})
    with Bar(desc="tune", total=budget, disable=not verbose, bar_format=_BAR) as bar:
        report = Report(metric, bar)
        ahead = cache(partial(report.ahead, prepared.splits[0].train))
        same = prepared, metric, common, record, deadline, report.add, ahead
        measures = [Measurement(losses[name], name, space, *same) for name, space in spaces.items()]
        for measure in measures:
            measure.check()
        # The budget also pays for the last fit, for hard negatives and for half-lives.
        kept = max(reserve_for_weights(measure, climb) for measure in measures)
        for_ages = max(reserve_for_ages(measure, climb) for measure in measures)
        share = max(budget - 1.0 - kept - for_ages, 0.0) / len(losses)
        found: list[tuple[Choice, list[Trial]]] = []  # the choice and the trials of each loss
        finished = True
        # Settings that are confirmed; after a climb that is still to come none.
        several = {measure.name: 0 if measure.space.lead else N_CONFIRMED for measure in measures}
        for measure in measures:
            space, trials = measure.space, list[Trial]()
            own = max(share - measure.spare(), 0.5 * share) * (0.5 if space.lead else 1.0)
            how: dict[str, Any] = {"min_gain": min_gain, "climb": climb / len(losses), "trials": trials}
            try:
                halving.search(space, measure, own, measure.cost, random_state=seed, **how)
            except OutOfTimeError:
                finished = False
            if trials:
                found.append((choose(measure, trials, min_gain, several[measure.name]), trials))
        if any(measure.late for measure in measures):  # figures of other hidden parts do not compare
            finished = False
            found = [
                (choose(c.measure, trials, min_gain, several[c.measure.name], confirm=False), trials)
                for c, trials in found
            ]
        if not found:
            raise InputError("the time limit ended the search before its first fit; give more time_limit")
        best, trials = max(found, key=lambda pair: (pair[0].trial.level, pair[0].judged.figure))
        measure, least = best.measure, best.measure.space.ladder[0]
        climbed = best.trial.params["K"] != least
        if climbed:
            trials += polish(measure, best_trial(trials, min_gain, least), POLISH_SHARE * budget)
        if climbed or measure.space.lead:
            best = choose(measure, trials, min_gain, N_CONFIRMED if climbed else 1, not measure.late)
        spent = sum(row["cost"] for row in report.rows if row["params"]["K"] <= least)
        left = climb if climbed else budget - 1.0 - for_ages - spent
        best = replace(best, judged=try_weights(best, left) or best.judged)
        best = replace(best, half_life=try_half_lives(best, for_ages))
    report.show(best)
    first = [c.middle for c, _ in found if c.measure is measures[0] and c.trial.params["K"] == least]
    rule = (first[0] if first and not climbed else None) or best.middle or 0.0
    gain = best.judged.figure / rule - 1.0 if rule else 0.0
    finished = finished and not any(measure.late for measure in measures)
    return replace(best, gain=gain, finished=finished, rows=report.rows)


def choose(
    measure: Measurement, trials: list[Trial], min_gain: float, several: int, confirm: bool = True
) -> Choice:
    """The best setting, or the middle of the space if no setting is better than that beyond noise."""
    # The largest of many figures is partly luck. The best ``several`` settings are therefore judged again by
    # hidden parts that did not choose them, and one replaces the middle only if it is better there by more
    # than the standard error. Without a middle, or with several=0, the best is returned unconfirmed.
    best = best_trial(trials, min_gain, measure.space.ladder[0])
    same = [t for t in trials if t.level == best.level and t.params["K"] == best.params["K"]]
    middle = next((t for t in same if t.plain is not None), None)
    last = measure.stops(best.params)[-1]  # equal for all settings of one K
    plain = {"n_iter": last, "readout_exponent": min(measure.space.readouts, key=abs)}
    if middle is None or not several:
        return Choice(measure, best, best if best.level == TOP else replace(best, taken=plain))
    others = [t for t in same if t is not middle and t.users is not None]  # without failed fits
    chosen = found = [middle, *sorted(others, key=lambda t: -t.figure)[:several]]
    if measure.prepared.others and confirm:
        again = (measure.again("confirmed", t.params, t.taken, CONFIRM) for t in chosen)
        confirmed = [one for one in again if one is not None]
        # Past the deadline, or if the middle cannot be fitted there, the splits that searched decide.
        if len(confirmed) == len(chosen) and confirmed[0].plain is not None:
            found = confirmed
    trial, judged = replace(middle, users=middle.plain), found[0]
    reference: Any = judged.plain  # every trial of the middle has these
    base = worth(measure, judged.level, reference)
    judged = replace(judged, figure=base, users=reference, taken=plain)
    for one, measured in zip(chosen, found, strict=True):
        figure = worth(measure, measured.level, measured.users)
        if figure > judged.figure and beyond_noise(measured.users, reference):
            trial, judged = one, replace(measured, figure=figure)
    return Choice(measure, trial, judged, base)


def worth(measure: Measurement, level: int, users: np.ndarray | None) -> float:
    """The mean over splits of the mean figure of their users; -inf where nothing was measured."""
    return -np.inf if users is None else float(np.mean(by_split(measure, level, users)))


def by_split(measure: Measurement, level: int, users: np.ndarray) -> list[float]:
    """The mean figure of the users of each split."""
    sizes = [len(split.users) for split in measure.folds(level)]
    by_user = sum(sizes) == len(users)  # False: one figure a split
    ends = np.cumsum(sizes)[:-1] if by_user else len(sizes)
    return [float(np.nanmean(part)) for part in np.array_split(users, ends)]


def polish(measure: Measurement, best: Trial, budget: float) -> list[Trial]:
    """New trials around the best setting: one parameter after the other is moved while that pays."""
    # A K that was climbed to has few trials: with a small budget only the best of the K below and the rule.
    # Iterations and read-out stay those of the best.
    space, tried = measure.space, list[Trial]()
    signs, left = [-1.0] * len(space.dimensions), budget

    def better(k: int, sign: float, step: float) -> bool:
        nonlocal best, left
        point = space.point(best.params)
        point[k] = min(max(point[k] + sign * step, 0.0), 1.0)
        params = {**best.params, **space.params(point)}
        cost = measure.price(TOP, params["K"], best.taken["n_iter"], 2)
        if cost > left or any(params == trial.params for trial in [best, *tried]):
            return False
        found = measure.again("polished", params, best.taken, TOP)
        if found is None:
            return False
        tried.append(found)
        left -= found.cost or 0.0
        if not found.figure > best.figure:
            return False
        best, signs[k] = found, sign
        return True

    for step in STEPS:
        gained = [True]
        while any(gained):
            gained = [better(k, signs[k], step) or better(k, -signs[k], step) for k in range(len(signs))]
    return tried


def reserve_for_weights(measure: Measurement, most: float) -> float:
    """Budget kept for hard negatives: enough for all weights, at most ``most``; 0 if that buys none."""
    weights = [weight for weight in measure.space.weights if weight > 0]
    n_iter = measure.iterations[-1]
    if not weights or n_iter < 2:
        return 0.0
    params = {"K": measure.space.ladder[0], "n_iter": n_iter, "hard_negatives": weights[0]}
    one = measure.hard_cost(params, TOP)
    last = measure.hard_cost(params, CONFIRM) + measure.extra_cost(params)
    return min((len(weights) + 1) * one + last, most) if one + last <= most else 0.0


def try_weights(given: Choice, budget: float) -> Trial | None:
    """The chosen setting with hard negatives, if they make it better beyond noise within the budget."""
    # Weights are tried from 1 outwards while that pays, then reg beside the best weight. The best by the
    # splits that searched is confirmed on the others.
    measure, reference = given.measure, given.trial.users
    weights = [0.0, *(weight for weight in measure.space.weights if weight > 0)]
    others = measure.prepared.others
    n_iter = min(measure.iterations[-1], given.judged.taken["n_iter"] + DRAWS)
    late = bool(others) and given.judged.level == TOP  # nothing was confirmed, most likely past the deadline
    if len(weights) == 1 or n_iter < 2 or given.middle is None or reference is None or late:
        return None
    without, left = worth(measure, TOP, reference), budget
    taken = {**given.judged.taken, "n_iter": n_iter}

    @cache
    def tried(weight: float, times: float) -> Trial | None:
        nonlocal left
        params = {**given.trial.params, "n_iter": n_iter, "hard_negatives": weight}
        if times != 1:
            params["reg"] = float(f"{params['reg'] * times:.4g}")
        last = measure.hard_cost(params, CONFIRM) + measure.extra_cost(params)
        if measure.hard_cost(params, TOP) + last > left:
            return None
        try:
            trial = measure.again("hard negatives", params, taken, TOP)
        except InsufficientMemoryError as error:
            warn(f"hard negatives do not fit into memory, so none are tried: {error}")
            return None
        left -= 0.0 if trial is None else trial.cost or 0.0
        return trial

    def figure(weight: float, times: float = 1.0) -> float:
        if weight == 0:
            return without
        trial = tried(weight, times)
        return -np.inf if trial is None else trial.figure

    start = weights.index(1.0) if 1.0 in weights else len(weights) // 2
    weight, times = outwards(figure, weights, start), 1.0
    if not figure(weight) > without:
        return None
    if isinstance(measure.space.dimensions.get("reg"), Range):
        times = outwards(lambda times: figure(weight, times), REGS, REGS.index(1.0))
    best = tried(weight, times)
    assert best is not None
    if others:
        best = measure.again("hard negatives confirmed", best.params, taken, CONFIRM)
        reference = given.judged.users
    return best if best is not None and beyond_noise(best.users, reference) else None


def candidates(measure: Measurement) -> tuple[float, ...]:
    """The half-lives to try, ascending, in the unit of the times; none if the data have no times."""
    asked, later = measure.space.half_lives, measure.prepared.later
    times = later[0].train.times if later else None
    if times is None:
        if asked not in ((), (AUTO,)):
            why = "half-lives need times in X and in validation, and no protocol"
            raise ParameterError("space", {"half_life": list(asked)}, why)
        return ()
    age = float(np.mean(times.max() - times))
    auto = tuple(float(f"{age * share:.4g}") for share in AGES_TRIED if age > 0)
    return auto if asked == (AUTO,) else tuple(sorted(half_life_in(one, times) for one in asked))


def reserve_for_ages(measure: Measurement, most: float) -> float:
    """Budget kept for half-lives, at most ``most``."""
    if not candidates(measure):
        return 0.0
    K, n_iter = measure.space.ladder[0], measure.iterations[-1]
    return min(_AGES_FITS * measure.price(AGES, K, n_iter, 1, min(K, _AGES_K)), most)


def try_half_lives(given: Choice, most: float) -> float | None:
    """The half-life that ranks the last interactions best, within a budget; None if none is better."""
    measure, taken, lives = given.measure, given.judged.taken, candidates(given.measure)
    params = {**given.trial.params, **taken, "K": min(given.trial.params["K"], _AGES_K)}
    one = measure.price(AGES, measure.space.ladder[0], params["n_iter"], 1, params["K"])
    left = int(most / one) if lives else 0  # fits

    @cache
    def users(life: float | None) -> np.ndarray | None:
        nonlocal left
        if left == 0:
            return None
        left -= 1
        asked = params if life is None else {**params, "half_life": life}
        found = measure.again("half-life", asked, taken, AGES)
        return None if found is None else found.users

    if left < 2 or users(None) is None:
        return None
    best = outwards(lambda life: worth(measure, AGES, users(life)), lives, len(lives) // 2)
    return best if beyond_noise(users(best), users(None)) else None
