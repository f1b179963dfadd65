"""Successive halving over cheap fits, then refinement at full cost, guided by a Gaussian process."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

from rgals.model_selection.tuning.space import OneOf, Space
from rgals.runtime.errors import InsufficientMemoryError, warn
from rgals.runtime.threads import workers

ETA = 3  # one of so many settings goes on to the next level
#: Most factors and iterations of each level. Fits of the lowest start from the factors of one in the middle
#: of the space: rank correlation with 12 iterations of K=64 over 25 settings of RG2 and of iALS on
#: food-10core was .63 and .96 for two iterations from there, .55 and .66 for two from random, .84 and .90 for
#: five.
LEVELS = ((32, 2), (32, 5), (1 << 30, 1 << 30))
TOP = len(LEVELS) - 1
_CHEAP = 0.4  # share of the budget for the cheap levels,
_MOST = (4.8, 1.6, 1.6)  # settings at each level for a fit of the budget, at most: more would fit the noise
_PROMOTED = 0.6  # share of the settings in full that come from there; the others refine
SHARE = 0.2  # of the budget for each larger K, in fits with that
LED = 1.5  # times the budget of a K that leads, for the K that it leads to
_CANDIDATES = 1024
_OTHER = 0.1  # of the range of some parameter: what goes on to the next level is first taken so far apart
_NEAR = 0.95  # of the best of a cheap level: what is worse there is not worth a fit in full
_APART = 0.02  # of the range of some parameter: settings that are closer tell nothing new
_POINTS = 80  # that the Gaussian process is fitted to at most
_LEARN = 3  # its length scales are learned anew after so many proposals


@dataclass(frozen=True)
class Trial:
    """A setting that was measured, and what was found."""

    params: dict[str, Any]  # with K, but not as lowered by the level
    level: int  # position in `LEVELS`
    figure: float  # validation quality; larger is better
    taken: dict[str, Any] = field(default_factory=dict)  # what the fit itself chose: iterations, read-out
    users: np.ndarray | None = None  # the figures that it is the mean of
    plain: np.ndarray | None = None  # those of all iterations without read-out
    row: int = -1  # of the table
    cost: float | None = None  # in default fits with its K; None: as planned


class OutOfTimeError(Exception):
    """Raised by a measurement that may not start any more."""


Measure = Callable[[dict[str, Any], int], Trial]
#: What a measurement with so many factors costs at a level, in default fits with that K; the third argument
#: is the most iterations, where they are fewer than a fit's.
Cost = Callable[[int, int, int | None], float]


def size(level: int, K: int, n_iter: int) -> tuple[int, int]:
    """Factors and iterations of a fit at a level."""
    return min(K, LEVELS[level][0]), min(n_iter, LEVELS[level][1])


def counts(budget: float, costs: list[float]) -> tuple[list[int], int]:
    """Most trials at each level, and in full with the refinement, for a budget and the cost of each level."""
    # Two settings in full at least: the middle of the space and the best of the cheap levels.
    pair = ETA * costs[0] + costs[1]
    second, first = (max(1, round(most * budget)) for most in _MOST[1::-1])
    second = min(max(1, int(_CHEAP * budget / pair)), second)
    first = min(ETA * second, max(first, ETA))
    left = (budget - first * costs[0] - second * costs[1]) / costs[2]
    most = max(2, int(_MOST[2] * budget))
    promoted = min(max(2, round(_PROMOTED * min(left, most))), second + 1)
    return [first, second, promoted], most


def search(
    space: Space,
    measure: Measure,
    budget: float,
    proposer: "GaussianProcess",
    cost: Cost,
    *,
    min_gain: float = 0.0,
    climb: float | None = None,
    trials: list[Trial] | None = None,
) -> list[Trial]:
    """Look for the best setting of a space; ``measure(params, level)`` is the trial of one."""
    # Many settings at the lowest level, the best third of them at the next, the best of these in full, beside
    # the middle of the space; then refinement in full. `budget` is in fits at full cost with the first K of
    # the ladder; a larger K has `climb`, in fits with that K (default: a fifth of the budget), and must gain
    # `min_gain`, relatively. `trials` is filled as the search goes on, so that what was found before
    # `OutOfTimeError` is not lost. A larger K without memory for it ends the ladder. All of this is done with
    # the K that leads, where there is one, and the first of the ladder is then climbed to whatever it gains.
    done: list[Trial] = [] if trials is None else trials
    spent = 0.0

    def run(point: np.ndarray, level: int, K: int, **more: Any) -> None:
        nonlocal spent
        params = {**space.params(point), "K": K, **more}
        if any(t.level == level and t.params == params for t in done):
            return
        trial = measure(params, level)
        spent += cost(K, level, None) if trial.cost is None else trial.cost
        done.append(trial)

    def promote(ranked: list[Trial], level: int, K: int, most: int, **more: Any) -> None:
        for point in _apart_first([space.point(trial.params) for trial in ranked]):
            if sum(t.level == level and t.params["K"] == K for t in done) < most:
                run(point, level, K, **more)

    K, *above = *space.lead, *space.ladder
    middle = space.middle
    if not space.dimensions:
        run(np.empty(0), TOP, K)
    else:
        per_level, most = counts(budget, [cost(K, level, None) for level in range(TOP + 1)])
        spread = max(2 * len(space.dimensions) + 2, per_level[0] // 2)
        for n in range(per_level[0]):
            # First a picture of the whole space; then two of three settings go where it looks best.
            informed = n >= spread and n % 3 > 0
            run(proposer.refine(done, K, 0) if informed else proposer.next(n), 0, K)
        for level in range(1, TOP + 1):
            if level == TOP:
                run(middle, level, K)
            ranked = sorted((t for t in done if t.level == level - 1), key=lambda t: -t.figure)
            near = [t for k, t in enumerate(ranked) if k == 0 or t.figure >= _NEAR * ranked[0].figure]
            promote(near if level == TOP else ranked, level, K, per_level[level])
        # What fits left that ended early is for more of them.
        for _ in range(most - sum(t.level == TOP for t in done)):
            if spent + cost(K, TOP, None) <= budget + 1e-9:
                run(proposer.refine(done, K, TOP), TOP, K)
    best = best_trial(done, min_gain)
    for larger in above:
        # Where so many iterations were best, more are not with more factors; a K that leads is less to go by.
        led = larger == space.ladder[0]
        enough = {k: n for k, n in best.taken.items() if k == "n_iter" and not led}
        try:
            run(space.point(best.params), TOP, larger, **enough)
        except InsufficientMemoryError as error:
            if led:
                raise
            warn(f"K={larger} does not fit, so that the search ends below: {error}")
            break
        if space.dimensions:
            run(middle, TOP, larger, **enough)
            share = LED * budget if led else climb or SHARE * budget
            fits = int(share / cost(larger, TOP, enough.get("n_iter")))
            if led:  # its best may be another: those that were good with fewer, as long as they are apart
                ranked = sorted((t for t in done if t.level == TOP), key=lambda t: -t.figure)
                promote([t for t in ranked if t.params["K"] == K], TOP, larger, fits)
            for _ in range(fits - sum(t.params["K"] == larger for t in done)):
                run(proposer.refine(done, larger, TOP), TOP, larger, **enough)
        found = best_trial(done, min_gain, space.ladder[0])
        if found.params["K"] != larger:
            break
        best = found
    return done


def _apart_first(ranked: list[np.ndarray]) -> list[np.ndarray]:
    """The order in which points go on: the best, the best of those far from all before, then the rest."""
    # Cheap figures are noisy, and a search that trusts them measures one peak many times.
    first, rest = list[np.ndarray](), list[np.ndarray]()
    for point in ranked:
        far = all(np.abs(point - other).max(initial=0.0) > _OTHER for other in first)
        (first if far else rest).append(point)
    return first + rest


def best_trial(trials: list[Trial], min_gain: float = 0.0, least: int = 0) -> Trial:
    """The best of the costliest level with at least so many factors; a larger K must gain ``min_gain``."""
    level = max(t.level for t in trials)
    full = [t for t in trials if t.level == level]
    full = [t for t in full if t.params["K"] >= least] or full
    ladder = sorted({t.params["K"] for t in full})
    best = (max((t for t in full if t.params["K"] == K), key=lambda t: t.figure) for K in ladder)
    return reduce(lambda a, b: b if b.figure > a.figure + min_gain * abs(a.figure) else a, best)


class GaussianProcess:
    """Evenly spread first points, then the largest expected improvement under a Gaussian process."""

    # The process sees every fit, cheap ones too: the logarithm of K and the level are two more coordinates.
    # Qualities are taken relative to the best of the same cost, and failures are cut off, so that a collapse
    # far from the optimum does not shape the model near it.

    def __init__(self, space: Space, random_state: int) -> None:
        from sklearn.gaussian_process import GaussianProcessRegressor  # costly to import
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        self.space, self.neutral, self.asked = space, space.neutral, 0
        self.rng = np.random.default_rng(random_state)
        self.start = self.rng.random(len(space.dimensions))
        lengths = Matern(np.full(len(self.start) + 2, 0.5), (0.08, 8.0), nu=2.5)
        kernel = ConstantKernel(1.0, (0.05, 50.0)) * lengths + WhiteKernel(0.01, (1e-5, 0.5))
        self.model = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)

    def next(self, n: int) -> np.ndarray:
        """The centre, then an additive recurrence, which fills the cube evenly for any number of points."""
        # Three of four points leave out what can be left out: exponents are the rule's there. Weights and the
        # regularisation decide most, and a part of the cube is filled with fewer points than the whole.
        d = len(self.start)
        point = self.space.middle
        if n > 0:
            root = 2.0
            for _ in range(40):  # the generalised golden ratio: root^(d + 1) = root + 1
                root = (1 + root) ** (1 / (d + 1))
            point = (self.start + n * root ** -np.arange(1.0, d + 1)) % 1.0
        if n % 4 != 3:
            for k, place in self.neutral.items():
                point[k] = place
        return point

    def refine(self, trials: list[Trial], K: int, level: int) -> np.ndarray:
        """The candidate of the largest expected improvement at this level and K."""
        from scipy.spatial.distance import cdist  # costly to import
        from scipy.special import ndtr
        from sklearn.exceptions import ConvergenceWarning

        rng = self.rng
        inputs, values = self._data(trials)
        here = self._cost(K, level)
        same = [t for t in trials if t.level == level]
        centre = self.space.point(best_trial(same).params)
        spread = rng.choice([0.03, 0.08, 0.2], size=(_CANDIDATES, 1))
        near = centre + spread * rng.standard_normal((_CANDIDATES, len(centre)))
        candidates = np.vstack([np.clip(near, 0.0, 1.0), rng.random((_CANDIDATES // 4, len(centre)))])
        for k, place in self.neutral.items():
            candidates[rng.random(len(candidates)) < 0.2, k] = place
        # A choice is one point, wherever in its part of the axis a candidate fell.
        for k, dimension in enumerate(self.space.dimensions.values()):
            if isinstance(dimension, OneOf):
                candidates[:, k] = [dimension.place(dimension.value(u)) for u in candidates[:, k]]
        measured = [self.space.point(t.params) for t in same if t.params["K"] == K]
        apart = cdist(candidates, np.reshape(measured, (-1, len(centre))), "chebyshev")
        fresh = apart.min(axis=1, initial=1.0) > _APART
        candidates = candidates[fresh] if fresh.any() else candidates[:1]
        at = np.hstack([candidates, np.tile(here, (len(candidates), 1))])
        self.model.set_params(optimizer="fmin_l_bfgs_b" if self.asked % _LEARN == 0 else None)
        with workers(), warnings.catch_warnings():
            # A length at its bound (a parameter that does not matter) is no fault of the search.
            warnings.simplefilter("ignore", ConvergenceWarning)
            mean, deviation = self.model.fit(inputs, values).predict(at, return_std=True)
        self.model.kernel, self.asked = self.model.kernel_, self.asked + 1
        best = values[np.all(inputs[:, len(centre) :] == here, axis=1)]
        above = mean - (best.max() if len(best) else values.max())
        deviation = np.maximum(deviation, 1e-12)
        z = above / deviation
        expected = above * ndtr(z) + deviation * np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
        return candidates[int(np.argmax(expected))]

    def _cost(self, K: int, level: int) -> np.ndarray:
        return np.array([0.25 * np.log2(size(level, K, 1)[0] / self.space.ladder[0]), level / TOP])

    def _data(self, trials: list[Trial]) -> tuple[np.ndarray, np.ndarray]:
        rows, values = [], []
        for cost in sorted({(t.params["K"], t.level) for t in trials}):
            group = [t for t in trials if (t.params["K"], t.level) == cost]
            top = max(t.figure for t in group)
            for t in group:
                rows.append(np.hstack([self.space.point(t.params), self._cost(*cost)]))
                values.append(t.figure / top if top > 0 else 0.0)
        inputs, relative = np.array(rows), np.array(values)
        keep = np.sort(np.argsort(-relative, kind="stable")[:_POINTS])
        inputs, relative = inputs[keep], relative[keep]
        floor = min(np.median(relative), 0.9)
        return inputs, np.maximum(relative, floor)
