"""The one search behind `tune`, `RGALSCV` and the command line: losses, their settings, and which to take.

What was found is tried with hard negatives, and with half-lives of the interactions.
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rgals.datasets.times import half_life_in
from rgals.files.journal import Journal
from rgals.losses import AUTO, LOSSES, Degrees, Loss, get_loss
from rgals.losses.fitted import wants_mean
from rgals.matrix.validate import as_csr
from rgals.matrix.weighting import Weighting
from rgals.metrics._table import rising
from rgals.model_selection.tuning import halving
from rgals.model_selection.tuning.halving import SHARE, TOP, OutOfTimeError, Trial, best_trial, search
from rgals.model_selection.tuning.prepared import Prepared
from rgals.model_selection.tuning.space import Range, make_space
from rgals.model_selection.tuning.trials import CONFIRMED, Choice, Measurement, beyond_noise, outwards
from rgals.runtime.bars import Bar
from rgals.runtime.errors import InputError, InputTypeError, InsufficientMemoryError, ParameterError, warn
from rgals.runtime.memory import available_bytes, fit_bytes, readable
from rgals.solvers.cuda import is_cuda
from rgals.training.data import weigh
from rgals.training.fit import DRAWS

_BAR = "{l_bar}{bar}| {n:.1f}/{total:.1f} fits [{elapsed}<{remaining}{postfix}]"
POLISH = 0.4  # of the budget for `polish`, in fits with the K that was climbed to
STEPS = (0.15, 0.075)  # of the range of a parameter, that it is moved by
WEIGHTS = (0.0, 0.5, 1.0, 2.0, 4.0)  # of hard negatives
REGS = (0.36, 0.6, 1.0, 1.7, 2.9)  # beside them, of the setting's reg where that is searched
#: Half-lives that "auto" tries, in units of the time from the first interaction to the last.
SPANS = tuple(2.0**power for power in range(-8, 2))
# Of fits with half-lives: factors at most, about how many there are, and their level in the table, where
# they are not compared with others.
_K, _MOST, _LEVEL = 32, 6.0, -1


def read_losses(given: Any) -> dict[str, Loss]:
    """Losses by the name that tables give them."""
    listed = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    models = [one for one in listed if hasattr(one, "fit")]
    if models:
        name = (models[0] if isinstance(models[0], type) else type(models[0])).__name__
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


def find(
    losses: dict[str, Loss],  # by name in tables
    prepared: Prepared,
    given: Mapping[str, Any] | None,  # the space
    common: dict[str, Any],  # parameters of `RGALS` that all fits share; values "auto" are settled here
    metric: str,
    budget: float,
    min_gain: float,
    journal: str | Path | None,
    setting: Mapping[str, Any],  # that a journal belongs to, beside data, metric, seed and values
    deadline: float | None = None,  # of `time.monotonic`
    verbose: int = 0,
) -> Choice:
    """Search every loss with its share of the budget; the best setting of all, refitted nowhere."""
    rising(metric)
    record, seed, values = None, int(common["random_state"]), common["values"]
    if not all("values" in own_space(given, name, losses) for name in losses):
        values = weigh(values, prepared.whole).kind
        common = {**common, "values": values}
    if journal is not None:
        weighed = {"values": values} if setting or values != "raw" else {}  # journals of `tune` leave raw out
        belongs = {"data": prepared.fingerprint(), "metric": metric, "random_state": seed}
        record = Journal(Path(journal), {**belongs, **weighed, **setting})
    train = prepared.splits[0].train
    # As a fit with reg="auto" does it, by all users: their samples have shorter columns.
    mean = wants_mean(Degrees.of(prepared.whole)) and not is_cuda(common.get("device", "cpu"))
    fixed = {"user_mean": True} if mean else {}
    spaces = {}
    for name, one in losses.items():
        its = {**fixed, **own_space(given, name, losses)}
        kinds = its.get("values", values)
        several = isinstance(kinds, list)
        kinds = [weigh(k, prepared.whole).kind if k == AUTO else k for k in (kinds if several else [kinds])]
        kinds = list(dict.fromkeys(kinds))
        its |= {"values": kinds if several else kinds[0]} if "values" in its else {}
        spaces[name] = make_space(one, Weighting.of(kinds[0] if kinds else "raw", train).rows(train), its)
    rows: list[dict[str, Any]] = []
    found: list[tuple[Choice, list[Trial]]] = []  # of each loss, from its trials
    finished = True
    with Bar(desc="tune", total=budget, disable=not verbose, bar_format=_BAR) as bar:

        def say(row: dict[str, Any]) -> int:
            rows.append(row)
            best = max((r[metric] for r in rows if r["level"] >= TOP), default=0.0)
            bar.set_postfix_str(f"{row['loss']} K={row['params']['K']} best {best:.4f}", refresh=False)
            bar.total = max(bar.total, bar.n + row["cost"])
            bar.update(row["cost"])
            return len(rows) - 1

        @cache
        def ahead(K: int) -> None:
            if verbose:
                free, kept = available_bytes(), sum(train.shape) * K * 4  # the best of the iterations
                needed = readable(fit_bytes(train.shape, train.nnz, K, 4) + kept)
                left = "" if free is None else f" of {readable(free)}"
                bar.write(f"K={K}: a fit needs about {needed}{left}", file=sys.stderr)

        same = prepared, metric, common, record, deadline, say, ahead
        measures = [Measurement(losses[name], name, space, *same) for name, space in spaces.items()]
        for measure in measures:
            measure.check()
            asked = measure.space.fixed.get("dislikes", measure.loss.dislikes)
            choices = getattr(measure.space.dimensions.get("dislikes"), "options", (asked,))
            if prepared.whole.has_dislikes and not all(choices):
                as_csr(prepared.final)  # refuses them
        # The last fit is paid for by the budget too, and so are the weights of hard negatives.
        kept = max(reserve_for_weights(measure, SHARE * budget) for measure in measures)
        for_ages = max(reserve_for_ages(measure, SHARE * budget) for measure in measures)
        share = max(budget - 1.0 - kept - for_ages, 0.0) / len(losses)
        for measure in measures:
            space, trials = measure.space, list[Trial]()
            proposer = halving.GaussianProcess(space, seed)
            own = max(share - measure.spare(), 0.5 * share) * (0.5 if space.lead else 1.0)
            options = {"min_gain": min_gain, "climb": SHARE * budget / len(losses)}
            try:
                search(space, measure, own, proposer, measure.cost, **options, trials=trials)
            except OutOfTimeError:
                finished = False
            if trials:
                found.append((_choose(measure, trials, min_gain, 0 if space.lead else CONFIRMED), trials))
        if not found:
            raise InputError("the time limit ended the search before its first fit; give more time_limit")
        best, trials = max(found, key=lambda pair: (pair[0].trial.level, pair[0].judged.figure))
        measure, least = best.measure, best.measure.space.ladder[0]
        climbed = best.trial.params["K"] != least
        if climbed:
            trials += polish(measure, best_trial(trials, min_gain, least), POLISH * budget)
        if climbed or measure.space.lead:
            best = _choose(measure, trials, min_gain, CONFIRMED if climbed else 1)
        spent = sum(row["cost"] for row in rows if row["params"]["K"] <= least)
        left = SHARE * budget if climbed else budget - 1.0 - for_ages - spent
        best = replace(best, judged=try_weights(best, left) or best.judged)
        best = replace(best, half_life=try_half_lives(best, for_ages))
    judged, row = best.judged, rows[best.judged.row]
    if judged.plain is not None and judged.users is not None:
        # The rule, as it is taken: its fit may have been better with fewer iterations or a read-out.
        splits = [float(np.nanmean(part)) for part in np.array_split(judged.users, len(row["splits"]))]
        row |= {"params": {**row["params"], **judged.taken}, metric: judged.figure, "splits": splits}
    rule = next((c.middle for c, _ in found if c.measure is measures[0] and c.middle), best.middle or 0.0)
    gain = best.judged.figure / rule - 1.0 if rule else 0.0
    return replace(best, gain=gain, finished=finished, rows=rows)


def _choose(measure: Measurement, trials: list[Trial], min_gain: float, several: int) -> Choice:
    """The best setting; the middle of the space where that is no worse than noise can tell."""
    # The best of many owes a part of its figure to luck, so that the first few are judged by hidden parts
    # that did not choose them, and the middle is left for what is better there by more than the standard
    # error. Where none is confirmed, the best stays for the time being.
    best = best_trial(trials, min_gain, measure.space.ladder[0])
    same = [t for t in trials if t.level == best.level and t.params["K"] == best.params["K"]]
    middle = next((t for t in same if t.plain is not None), None)
    last = measure.stops(best.params)[-1]  # the same for all settings of a K
    plain = {"n_iter": last, "readout_exponent": min(measure.space.readouts, key=abs)}
    if middle is None or not several:
        return Choice(measure, best, best if best.level == TOP else replace(best, taken=plain))
    first = sorted((t for t in same if t is not middle), key=lambda t: -t.figure)[:several]
    chosen = [middle, *first]
    found = [one for one in map(measure.confirmed, chosen) if one is not None]
    found = found if len(found) == len(chosen) else chosen  # the time is over: all by what chose them
    trial, judged = replace(middle, users=middle.plain), found[0]
    reference: Any = judged.plain  # which a middle has
    base = float(np.nanmean(reference))
    judged = replace(judged, figure=base, users=reference, taken=plain)
    for one, again in zip(chosen, found, strict=True):
        figure = -np.inf if again.users is None else float(np.nanmean(again.users))
        if figure > judged.figure and beyond_noise(again.users, reference):
            trial, judged = one, replace(again, figure=figure)
    return Choice(measure, trial, judged, base)


def polish(measure: Measurement, best: Trial, budget: float) -> list[Trial]:
    """What moving one parameter of the best setting after the other tries, while that pays."""
    # At a K that was climbed to only few were tried, with little budget the best of the K below and the rule.
    # Iterations and read-out stay as they are.
    space, searched, tried = measure.space, measure.prepared.searched, list[Trial]()
    signs, left = [-1.0] * len(space.dimensions), budget

    def better(k: int, sign: float, step: float) -> bool:
        nonlocal best, left
        point = space.point(best.params)
        point[k] = min(max(point[k] + sign * step, 0.0), 1.0)
        params = {**best.params, **space.params(point)}
        cost = measure.price(searched, params["K"], best.taken["n_iter"], 2)
        if cost > left or any(params == trial.params for trial in [best, *tried]):
            return False
        found = measure.again("polished", params, best.taken, searched, TOP)
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


def own_space(space: Mapping[str, Any] | None, name: str, losses: Mapping[str, Loss]) -> Mapping[str, Any]:
    """The part of ``space`` that is for this loss."""
    found = {} if space is None else space
    if isinstance(found, Mapping) and found and set(found) <= set(losses):
        found = found.get(name, {})
    if not isinstance(found, Mapping):
        raise ParameterError("space", space, "give a dict of ranges, choices and values by parameter")
    return found


def reserve_for_weights(measure: Measurement, most: float) -> float:
    """What of a budget is kept for the weights: enough for all, at most ``most``; 0 if that buys none."""
    weights = [weight for weight in measure.space.weights if weight > 0]
    n_iter = measure.iterations[-1]
    if not weights or n_iter < 2:
        return 0.0
    params = {"K": measure.space.ladder[0], "n_iter": n_iter, "hard_negatives": weights[0]}
    one = measure.hard_cost(params, measure.prepared.searched)
    last = measure.hard_cost(params, measure.prepared.others) + measure.extra_cost(params)
    return min((len(weights) + 1) * one + last, most) if one + last <= most else 0.0


def try_weights(given: Choice, budget: float) -> Trial | None:
    """The setting with hard negatives where that is better beyond noise, as far as the budget goes."""
    # Weights from 1 outwards while that pays, then reg beside the best. What is best on the parts that search
    # is confirmed on the others.
    measure, reference = given.measure, given.trial.users
    weights = [0.0, *(weight for weight in measure.space.weights if weight > 0)]
    searched, others = measure.prepared.searched, measure.prepared.others
    n_iter = min(measure.iterations[-1], given.judged.taken["n_iter"] + DRAWS)
    late = bool(others) and given.judged.level == TOP  # the time was over before anything was confirmed
    if len(weights) == 1 or n_iter < 2 or given.middle is None or reference is None or late:
        return None
    without, left = float(np.nanmean(reference)), budget
    taken = {**given.judged.taken, "n_iter": n_iter}

    @cache
    def tried(weight: float, times: float) -> Trial | None:
        nonlocal left
        params = {**given.trial.params, "n_iter": n_iter, "hard_negatives": weight}
        if times != 1:
            params["reg"] = float(f"{params['reg'] * times:.4g}")
        last = measure.hard_cost(params, others) + measure.extra_cost(params)
        if measure.hard_cost(params, searched) + last > left:
            return None
        try:
            trial = measure.again("hard negatives", params, taken, searched, TOP)
        except InsufficientMemoryError as error:
            warn(f"hard negatives do not fit, so that none are tried: {error}")
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
        best = measure.again("hard negatives confirmed", best.params, taken, others, TOP + 1)
        reference = given.judged.users
    return best if best is not None and beyond_noise(best.users, reference) else None


def candidates(measure: Measurement) -> tuple[float, ...]:
    """The half-lives to try, ascending, in the unit of the times; none where these are not known."""
    asked, later = measure.space.half_lives, measure.prepared.later
    times = later[0].train.times if later else None
    if times is None:
        if asked not in ((), (AUTO,)):
            why = "it needs times, of validation too, and no protocol"
            raise ParameterError("space", {"half_life": list(asked)}, why)
        return ()
    span = float(times.max() - times.min())
    auto = tuple(float(f"{span * share:.4g}") for share in SPANS if span > 0)
    return auto if asked == (AUTO,) else tuple(sorted(half_life_in(one, times) for one in asked))


def reserve_for_ages(measure: Measurement, most: float) -> float:
    """What of a budget is kept for half-lives, at most ``most``."""
    if not candidates(measure):
        return 0.0
    K, n_iter = measure.space.ladder[0], measure.iterations[-1]
    return min(_MOST * measure.price(measure.prepared.later, K, n_iter, 1, min(K, _K)), most)


def try_half_lives(given: Choice, most: float) -> float | None:
    """The half-life that ranks what came last best, as far as a budget goes; None where none is better."""
    measure, taken, lives = given.measure, given.judged.taken, candidates(given.measure)
    later = measure.prepared.later
    params = {**given.trial.params, **taken, "K": min(given.trial.params["K"], _K)}
    one = measure.price(later, measure.space.ladder[0], params["n_iter"], 1, params["K"])
    left = int(most / one) if lives else 0

    @cache
    def users(life: float | None) -> np.ndarray | None:
        if users.cache_info().currsize >= left:
            return None
        asked = params if life is None else {**params, "half_life": life}
        found = measure.again("half-life", asked, taken, later, _LEVEL)
        return None if found is None else found.users

    def figure(life: float) -> float:
        found = users(life)
        return -np.inf if found is None else float(np.nanmean(found))

    if left < 2 or users(None) is None:
        return None
    best = outwards(figure, lives, len(lives) // 2)
    return best if beyond_noise(users(best), users(None)) else None
