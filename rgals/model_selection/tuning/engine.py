"""The one search behind `tune`, `RGALSCV` and the command line: losses, their settings, and which to take."""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rgals.files.journal import Journal
from rgals.losses import LOSSES, Loss, get_loss
from rgals.matrix.validate import as_csr
from rgals.matrix.weighting import Weighting
from rgals.metrics._table import DISLIKES, parse
from rgals.model_selection.tuning import halving, refine
from rgals.model_selection.tuning.halving import SHARE, TOP, OutOfTimeError, Trial, best_trial, search
from rgals.model_selection.tuning.prepared import Prepared
from rgals.model_selection.tuning.space import make_space
from rgals.model_selection.tuning.trials import CONFIRMED, Choice, Measurement, beyond_noise
from rgals.runtime.bars import Bar
from rgals.runtime.errors import InputError, ParameterError
from rgals.runtime.memory import available_bytes, fit_bytes, readable
from rgals.training.data import weigh

_BAR = "{l_bar}{bar}| {n:.1f}/{total:.1f} fits [{elapsed}<{remaining}{postfix}]"


@dataclass(frozen=True)
class Found:
    """What a search found."""

    choice: Choice
    gain: float  # relative to the rule of the first loss; 0 where that was not measured
    edges: tuple[str, ...]
    finished: bool
    rows: list[dict[str, Any]]


def read_losses(given: Any) -> dict[str, Loss]:
    """Losses by the name that tables give them."""
    several = isinstance(given, Iterable) and not isinstance(given, str)
    objects = [get_loss(one) for one in (given if several else [given])]
    if not objects:
        raise ParameterError("loss", given, "give at least one loss")
    names = [next((n for n, kind in LOSSES.items() if kind is type(one)), one.name) for one in objects]
    repeated = {name for name in names if names.count(name) > 1}
    labels = [repr(one) if name in repeated else name for name, one in zip(names, objects, strict=True)]
    if len(set(labels)) != len(labels):
        raise ParameterError("loss", given, "give each loss once")
    return dict(zip(labels, objects, strict=True))


def find(
    losses: dict[str, Loss],  # by name in tables
    prepared: Prepared,
    given: Mapping[str, Any] | None,  # the space
    common: dict[str, Any],  # parameters of `RGALS` that all fits share
    metric: str,
    budget: float,
    min_gain: float,
    journal: Path | None,
    setting: Mapping[str, Any],  # that a journal belongs to, beside the data, the metric and the seed
    deadline: float | None = None,  # of `time.monotonic`
    verbose: int = 0,
) -> Found:
    """Search every loss with its share of the budget; the best setting of all, refitted nowhere."""
    if parse(metric).needs == DISLIKES:
        raise ParameterError("metric", metric, "a search needs one that is better when larger: 'ndcg@10'")
    record, seed = None, int(common["random_state"])
    if journal is not None:
        belongs = {"data": prepared.fingerprint(), "metric": metric, "random_state": seed, **setting}
        record = Journal(journal, belongs)
    train = prepared.splits[0].train
    train = Weighting.of(common["values"], train).rows(train)
    spaces = [make_space(one, train, own_space(given, name, losses)) for name, one in losses.items()]
    rows: list[dict[str, Any]] = []
    choices: list[Choice] = []
    finished, fits = True, set[int]()
    with Bar(desc="tune", total=budget, disable=not verbose, bar_format=_BAR) as bar:

        def say(row: dict[str, Any]) -> int:
            rows.append(row)
            best = max((r[metric] for r in rows if r["level"] >= TOP), default=0.0)
            bar.set_postfix_str(f"{row['loss']} K={row['params']['K']} best {best:.4f}", refresh=False)
            bar.total = max(bar.total, bar.n + row["cost"])
            bar.update(row["cost"])
            return len(rows) - 1

        def ahead(K: int) -> None:
            if verbose and K not in fits:
                fits.add(K)
                free, kept = available_bytes(), sum(train.shape) * K * 4  # the best of the iterations
                needed = readable(fit_bytes(train.shape, train.nnz, K, 4, watched=True) + kept)
                left = "" if free is None else f" of {readable(free)}"
                bar.write(f"K={K}: a fit needs about {needed}{left}", file=sys.stderr)

        same = prepared, metric, common, record, deadline, say, ahead
        named = zip(losses.items(), spaces, strict=True)
        measures = [Measurement(one, name, space, *same) for (name, one), space in named]
        for measure in measures:
            measure.check()
            if prepared.whole.has_dislikes and not measure.space.fixed.get("dislikes", measure.loss.dislikes):
                as_csr(prepared.final)  # refuses them
        # The last fit is paid for by the budget too, and so are the weights of hard negatives.
        kept = max(refine.reserve_for_weights(measure, SHARE * budget) for measure in measures)
        for_ages = max(refine.reserve_for_ages(measure, SHARE * budget) for measure in measures)
        share = max(budget - 1.0 - kept - for_ages, 0.0) / len(losses)
        for measure in measures:
            space, trials = measure.space, list[Trial]()
            proposer = halving.GaussianProcess(space, seed)
            options: dict[str, Any] = {"cost": measure.cost, "min_gain": min_gain, "trials": trials}
            options["climb"] = SHARE * budget / len(losses)
            try:
                search(space, measure, max(share - measure.spare(), 0.5 * share), proposer, **options)
            except OutOfTimeError:
                finished = False
            if trials:
                choices.append(_choose(measure, trials, min_gain))
        if not choices:
            raise InputError("the time limit ended the search before its first fit; give more time_limit")
        level = max(choice.trial.level for choice in choices)
        best = max((c for c in choices if c.trial.level == level), key=lambda c: c.judged.figure)
        first_K, left = best.measure.space.ladder[0], SHARE * budget
        if best.trial.params["K"] == first_K:
            spent = sum(row["cost"] for row in rows if row["params"]["K"] <= first_K)
            left = budget - 1.0 - for_ages - spent
        found = refine.try_weights(best, left)
        best = best if found is None else replace(best, judged=found)
        best = replace(best, half_life=refine.try_half_lives(best, for_ages))
    rule = next((c.middle for c in choices if c.measure is measures[0] and c.middle is not None), 0.0)
    gain = best.judged.figure / rule - 1.0 if rule else 0.0
    return Found(best, gain, best.measure.space.edges(best.trial.params), finished, rows)


def _choose(measure: Measurement, trials: list[Trial], min_gain: float) -> Choice:
    """The best setting; the middle of the space where that is no worse than noise can tell."""
    # The best of many owes a part of its figure to luck, so that the first few are judged by hidden parts
    # that did not choose them, and the middle is left for what is better there by more than the standard
    # error.
    best = best_trial(trials, min_gain)
    same = [t for t in trials if t.level == best.level and t.params["K"] == best.params["K"]]
    middle = next((t for t in same if t.plain is not None), None)
    last = measure.stops(best.params)[-1]  # the same for all settings of a K
    plain = {"n_iter": last, "readout_exponent": min(measure.space.readouts, key=abs)}
    if middle is None:
        return Choice(measure, best, best if best.level == TOP else replace(best, taken=plain))
    first = sorted((t for t in same if t is not middle), key=lambda t: -t.figure)[:CONFIRMED]
    confirmed = [(trial, measure.confirmed(trial)) for trial in (middle, *first)]
    trial, judged = replace(middle, users=middle.plain), confirmed[0][1]
    reference = judged.plain
    assert reference is not None
    base = float(np.nanmean(reference))
    judged = replace(judged, figure=base, users=reference, taken=plain)
    for one, found in confirmed:
        figure = -np.inf if found.users is None else float(np.nanmean(found.users))
        if figure > judged.figure and beyond_noise(found.users, reference):
            trial, judged = one, replace(found, figure=figure)
    return Choice(measure, trial, judged, base)


def settle_values(
    values: str, prepared: Prepared, losses: Mapping[str, Loss], space: Mapping[str, Any] | None, depth: int
) -> str:
    """What values become in all fits, where "auto" and not the space decides; see `weigh` for ``depth``."""
    if all("values" in own_space(space, name, losses) for name in losses):
        return values
    return weigh(values, prepared.whole, depth=depth + 1).kind


def own_space(space: Mapping[str, Any] | None, name: str, losses: Mapping[str, Loss]) -> Mapping[str, Any]:
    """The part of ``space`` that is for this loss."""
    found = {} if space is None else space
    if isinstance(found, Mapping) and found and set(found) <= set(losses):
        found = found.get(name, {})
    if not isinstance(found, Mapping):
        raise ParameterError("space", space, "give a dict of ranges, choices and values by parameter")
    return found
