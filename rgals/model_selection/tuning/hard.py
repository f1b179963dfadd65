"""Hard negatives beside a setting that was found: which weight, and how much regularisation."""

import warnings
from functools import cache

import numpy as np

from rgals.model_selection.tuning.halving import TOP, Trial
from rgals.model_selection.tuning.judging import beyond_noise, outwards
from rgals.model_selection.tuning.space import Range
from rgals.model_selection.tuning.trials import Choice, Measurement
from rgals.runtime.errors import InsufficientMemoryError
from rgals.training.fit import DRAWS

WEIGHTS = (0.0, 0.5, 1.0, 2.0, 4.0)
REGS = (0.36, 0.6, 1.0, 1.7, 2.9)  # of the setting's, where it is searched


def iterations(measure: Measurement, found: int) -> int:
    """Those of a fit with hard negatives: as many as were best without, and the draws; 0 if none are left."""
    n_iter = min(measure.iterations[-1], found + DRAWS)
    return n_iter if n_iter > 1 else 0


def reserve(measure: Measurement, most: float) -> float:
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
