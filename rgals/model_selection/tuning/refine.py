"""What is tried on the setting that was found: weights of hard negatives, and how fast interactions age."""

import warnings
from functools import cache

import numpy as np

from rgals.datasets.times import half_life_in
from rgals.losses import AUTO
from rgals.model_selection.tuning.halving import TOP, Trial
from rgals.model_selection.tuning.space import Range
from rgals.model_selection.tuning.trials import Choice, Measurement, beyond_noise, outwards
from rgals.runtime.errors import InsufficientMemoryError, ParameterError
from rgals.training.fit import DRAWS

WEIGHTS = (0.0, 0.5, 1.0, 2.0, 4.0)
REGS = (0.36, 0.6, 1.0, 1.7, 2.9)  # of the setting's, where it is searched
#: Half-lives that "auto" tries, in units of the time from the first interaction to the last.
SPANS = tuple(2.0**power for power in range(-8, 2))
_K = 32  # factors of these fits, at most
_MOST = 6.0  # fits that a search takes, about
_LEVEL = -1  # of rows of the table, which are not compared with others


def iterations(measure: Measurement, found: int) -> int:
    """Those of a fit with hard negatives: as many as were best without, and the draws; 0 if none are left."""
    n_iter = min(measure.iterations[-1], found + DRAWS)
    return n_iter if n_iter > 1 else 0


def reserve_for_weights(measure: Measurement, most: float) -> float:
    """What of a budget is kept for the weights: enough for all, at most ``most``; 0 if that buys none."""
    weights = [weight for weight in measure.space.weights if weight > 0]
    n_iter = iterations(measure, measure.iterations[-1])
    if not weights or not n_iter:
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
    n_iter = iterations(measure, given.judged.taken["n_iter"])
    if len(weights) == 1 or not n_iter or given.middle is None or reference is None:
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
        if measure.late or measure.hard_cost(params, searched) + last > left:
            return None
        try:
            trial = measure.again("hard negatives", params, taken, searched, TOP)
        except InsufficientMemoryError as error:
            warnings.warn(f"hard negatives do not fit, so that none are tried: {error}", stacklevel=2)
            return None
        left -= trial.cost or 0.0
        return trial

    def figure(weight: float, times: float = 1.0) -> float:
        if weight == 0:
            return without
        trial = tried(weight, times)
        return -np.inf if trial is None else trial.figure

    start = weights.index(1.0) if 1.0 in weights else len(weights) // 2
    weight, times = weights[outwards(lambda at: figure(weights[at]), len(weights), start)], 1.0
    if not figure(weight) > without:
        return None
    if isinstance(measure.space.dimensions.get("reg"), Range):
        times = REGS[outwards(lambda at: figure(weight, REGS[at]), len(REGS), REGS.index(1.0))]
    best = tried(weight, times)
    assert best is not None
    if others:
        best = measure.again("hard negatives confirmed", best.params, taken, others, TOP + 1)
        reference = given.judged.users
    return best if beyond_noise(best.users, reference) else None


def candidates(measure: Measurement) -> tuple[float, ...]:
    """The half-lives to try, ascending, in the unit of the times; none where these are not known."""
    asked, later = measure.space.half_lives, measure.prepared.later
    times = None if later is None else later.train.times
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
    return min(_MOST * _cost(measure, min(measure.space.ladder[0], _K), measure.iterations[-1]), most)


def _cost(measure: Measurement, K: int, n_iter: int) -> float:
    """Of judging a setting by what came last, in default fits with the first K."""
    assert measure.prepared.later is not None
    return measure.price([measure.prepared.later], measure.space.ladder[0], n_iter, 1, K)


def try_half_lives(given: Choice, most: float) -> float | None:
    """The half-life that ranks what came last best, as far as a budget goes; None where none is better."""
    measure, taken, lives = given.measure, given.judged.taken, candidates(given.measure)
    later = measure.prepared.later
    params = {**given.trial.params, **taken, "K": min(given.trial.params["K"], _K)}
    left = int(most / _cost(measure, params["K"], params["n_iter"])) if lives else 0

    @cache
    def users(at: int) -> np.ndarray | None:
        if later is None or measure.late or users.cache_info().currsize >= left:
            return None
        asked = params if at < 0 else {**params, "half_life": lives[at]}
        return measure.again("half-life", asked, taken, [later], _LEVEL).users

    def figure(at: int) -> float:
        found = users(at)
        return -np.inf if found is None else float(np.nanmean(found))

    if left < 2 or figure(-1) == -np.inf:
        return None
    best = outwards(figure, len(lives), len(lives) // 2)
    return lives[best] if beyond_noise(users(best), users(-1)) else None
