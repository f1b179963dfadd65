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

ETA = 3  # a third of the settings of a level is promoted to the next
#: Most factors and iterations of a fit at each level. Fits at level 0 start from the user factors of a fit
#: at the middle of the space. Rank correlation with 12 iterations of K=64, over 25 settings of RG2 and of
#: iALS on food-10core: .63 and .96 after two iterations from there, .55 and .66 after two from random
#: factors, .84 and .90 after five.
LEVELS = ((32, 2), (32, 5), (1 << 30, 1 << 30))
TOP = len(LEVELS) - 1
CONFIRM = TOP + 1  # level of full fits that are judged by splits which chose nothing
AGES = -1  # level of fits with half-lives, judged by the last interactions
_CHEAP_SHARE = 0.4  # of the budget, for the levels below the full one
#: Most trials at each level per unit of the budget: more would fit the noise of the validation part.
_TRIALS_PER_FIT = (4.8, 1.6, 1.6)
_PROMOTED_SHARE = 0.6  # of the full trials, from the cheap levels; the Gaussian process proposes the others
CLIMB_SHARE = 0.2  # of the budget, for each larger K, counted in fits with that K
LED_FACTOR = 1.5  # budget of the first K of the ladder over that of the smaller K which led to it
_CANDIDATES = 1024  # points around the best that each proposal chooses from
# Distances are the largest difference of a coordinate in the unit cube, where each range has length 1.
_FAR = 0.1  # promoted settings are first taken at least this far from each other
_NEW = 0.02  # a proposal closer than this to a measured setting would tell nothing new
_WORTH_A_FIT = 0.95  # a cheap figure below this share of the best one does not earn a full fit
_MOST_POINTS = 80  # trials that the Gaussian process is fitted to
_LEARN_EVERY = 3  # proposals between two estimates of its length scales


@dataclass(frozen=True)
class Trial:
    """A setting that was measured, and what was found."""

    params: dict[str, Any]  # K is the one asked for, even where the level has fewer factors
    level: int  # position in `LEVELS`, or `CONFIRM` or `AGES`
    figure: float  # validation metric; larger is better
    taken: dict[str, Any] = field(default_factory=dict)  # best number of iterations and read-out exponent
    users: np.ndarray | None = None  # metric of each judged user; `figure` is the mean of the splits' means
    plain: np.ndarray | None = None  # the same after all iterations and without a read-out
    row: int = -1  # in the table of trials
    cost: float | None = None  # in default fits with its K; None: as planned


class OutOfTimeError(Exception):
    """Raised where a measurement would start after the deadline."""


def size(level: int, K: int, n_iter: int) -> tuple[int, int]:
    """Factors and iterations of a fit at a level."""
    return min(K, LEVELS[level][0]), min(n_iter, LEVELS[level][1])


def counts(budget: float, costs: list[float]) -> tuple[list[int], int]:
    """Most trials at each level before the refinement, and most full trials with it."""
    # `costs`: of a trial at each level. At least two trials are full: the middle of the space and the best of
    # the cheap levels.
    caps = [budget * most for most in _TRIALS_PER_FIT]
    second = max(1, min(int(_CHEAP_SHARE * budget / (ETA * costs[0] + costs[1])), round(caps[1])))
    first = min(ETA * second, max(ETA, round(caps[0])))
    left = (budget - first * costs[0] - second * costs[1]) / costs[2]
    most = max(2, int(caps[2]))
    promoted = min(max(2, round(_PROMOTED_SHARE * min(left, most))), second + 1)
    return [first, second, promoted], most


def search(
    space: Space,
    measure: Callable[[dict[str, Any], int], Trial],
    budget: float,
    cost: Callable[[int, int, int | None], float],
    *,
    random_state: int = 0,
    min_gain: float = 0.0,
    climb: float | None = None,
    trials: list[Trial] | None = None,
) -> list[Trial]:
    """Look for the best setting of a space; ``measure(params, level)`` is the trial of one."""
    # `cost(K, level, n_iter)` is that of a trial in default fits with that K; n_iter=None: all iterations.
    #
    # Successive halving at the first K: many settings at level 0, the best third at level 1, the best of
    # these in full, beside the middle of the space. The Gaussian process then proposes further full trials
    # for the rest of `budget`, counted in default fits with that K. Each larger K has `climb`, in fits with
    # itself (default: a fifth of the budget); the ladder ends where the relative gain is below `min_gain` or
    # memory runs out. If the space has a smaller K that leads, halving is done with that one, and the first K
    # of the ladder follows whatever it gains. `trials` grows during the search, so that the caller has them
    # after an `OutOfTimeError`.
    done: list[Trial] = [] if trials is None else trials
    proposer, spent = GaussianProcess(space, random_state), 0.0

    def run(point: np.ndarray, level: int, K: int, **more: Any) -> None:
        nonlocal spent
        params = {**space.params(point), "K": K, **more}
        if any(t.level == level and t.params == params for t in done):
            return
        trial = measure(params, level)
        spent += cost(K, level, None) if trial.cost is None else trial.cost
        done.append(trial)

    def promote(ranked: list[Trial], level: int, K: int, most: int) -> None:
        for point in _apart_first([space.point(trial.params) for trial in ranked]):
            if sum(t.level == level and t.params["K"] == K for t in done) < most:
                run(point, level, K)

    K, *above = *space.lead, *space.ladder
    middle = space.middle
    if not space.dimensions:
        run(middle, TOP, K)
    else:
        per_level, most = counts(budget, [cost(K, level, None) for level in range(TOP + 1)])
        spread = max(2 * len(space.dimensions) + 2, per_level[0] // 2)
        for n in range(per_level[0]):
            # First cover the whole space; then let the Gaussian process propose two of three settings.
            informed = n >= spread and n % 3 > 0
            run(proposer.refine(done, K, 0) if informed else proposer.next(n), 0, K)
        for level in range(1, TOP + 1):
            if level == TOP:
                run(middle, level, K)
            ranked = sorted((t for t in done if t.level == level - 1), key=lambda t: -t.figure)
            near = [t for k, t in enumerate(ranked) if k == 0 or t.figure >= _WORTH_A_FIT * ranked[0].figure]
            promote(near if level == TOP else ranked, level, K, per_level[level])
        # Spend the budget left over by fits that stopped early on further proposals.
        for _ in range(most - sum(t.level == TOP for t in done)):
            if spent + cost(K, TOP, None) <= budget + 1e-9:
                run(proposer.refine(done, K, TOP), TOP, K)
    best = best_trial(done, min_gain)
    for larger in above:
        # A larger K needs no more iterations than were best before; those of a K that leads say less.
        led = larger == space.ladder[0]
        enough = {k: n for k, n in best.taken.items() if k == "n_iter" and not led}
        try:
            run(space.point(best.params), TOP, larger, **enough)
        except InsufficientMemoryError as error:
            if led:
                raise
            warn(f"K={larger} does not fit into memory, so the search ends below it: {error}")
            break
        if space.dimensions:
            run(middle, TOP, larger, **enough)
            share = LED_FACTOR * budget if led else climb or CLIMB_SHARE * budget
            fits = int(share / cost(larger, TOP, enough.get("n_iter")))
            if led:  # another setting may be best here: try the good ones of the smaller K, far apart first
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
    """Points in the order of promotion: each one far from all better ones first, then the others."""
    # Cheap figures are noisy: promoted by rank alone, most settings would come from one peak.
    first, rest = list[np.ndarray](), list[np.ndarray]()
    for point in ranked:
        far = all(np.abs(point - other).max(initial=0.0) > _FAR for other in first)
        (first if far else rest).append(point)
    return first + rest


def best_trial(trials: list[Trial], min_gain: float = 0.0, least: int = 0) -> Trial:
    """The best of the highest level with K >= ``least``; a larger K must gain ``min_gain`` relatively."""
    level = max(t.level for t in trials)
    full = [t for t in trials if t.level == level]
    full = [t for t in full if t.params["K"] >= least] or full
    ladder = sorted({t.params["K"] for t in full})
    best = (max((t for t in full if t.params["K"] == K), key=lambda t: t.figure) for K in ladder)
    return reduce(lambda a, b: b if b.figure > a.figure + min_gain * abs(a.figure) else a, best)


class GaussianProcess:
    """Proposes points: evenly spread ones first, then the largest expected improvement."""

    # The process is fitted to trials of every level: the logarithm of K and the level are two more
    # coordinates. Figures are relative to the best of the same K and level, and low ones are clipped, so that
    # a collapse far from the optimum does not shape the model near it.

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
        """Point ``n``: the middle, then an additive recurrence, even for any number of points."""
        # Three of four points keep the exponents of the rule. Weights and the regularisation matter most, and
        # fewer dimensions are covered by fewer points.
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

        inputs, values = self._data(trials)
        here = self._fidelity(K, level)
        same = [t for t in trials if t.level == level]
        centre = self.space.point(best_trial(same).params)
        spread = self.rng.choice([0.03, 0.08, 0.2], size=(_CANDIDATES, 1))
        near = centre + spread * self.rng.standard_normal((_CANDIDATES, len(centre)))
        candidates = np.vstack([np.clip(near, 0.0, 1.0), self.rng.random((_CANDIDATES // 4, len(centre)))])
        for k, place in self.neutral.items():
            candidates[self.rng.random(len(candidates)) < 0.2, k] = place
        # Candidates that stand for the same choice get the same coordinate.
        for k, dimension in enumerate(self.space.dimensions.values()):
            if isinstance(dimension, OneOf):
                candidates[:, k] = [dimension.place(dimension.value(u)) for u in candidates[:, k]]
        measured = [self.space.point(t.params) for t in same if t.params["K"] == K]
        apart = cdist(candidates, np.reshape(measured, (-1, len(centre))), "chebyshev")
        fresh = apart.min(axis=1, initial=1.0) > _NEW
        candidates = candidates[fresh] if fresh.any() else candidates[:1]
        at = np.hstack([candidates, np.tile(here, (len(candidates), 1))])
        self.model.set_params(optimizer="fmin_l_bfgs_b" if self.asked % _LEARN_EVERY == 0 else None)
        with workers(), warnings.catch_warnings():
            # A length scale at its bound belongs to a parameter that does not matter: no reason to warn.
            warnings.simplefilter("ignore", ConvergenceWarning)
            mean, deviation = self.model.fit(inputs, values).predict(at, return_std=True)
        self.model.kernel, self.asked = self.model.kernel_, self.asked + 1
        best = values[np.all(inputs[:, len(centre) :] == here, axis=1)]
        above = mean - (best.max() if len(best) else values.max())
        deviation = np.maximum(deviation, 1e-12)
        z = above / deviation
        expected = above * ndtr(z) + deviation * np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
        return candidates[int(np.argmax(expected))]

    def _fidelity(self, K: int, level: int) -> np.ndarray:
        """Coordinates of K and the level, shape (2,), which follow those of the setting."""
        return np.array([0.25 * np.log2(size(level, K, 1)[0] / self.space.ladder[0]), level / TOP])

    def _data(self, trials: list[Trial]) -> tuple[np.ndarray, np.ndarray]:
        """What the process is fitted to: coordinates, shape (n, d + 2), and relative figures, shape (n,)."""
        rows, values = [], []
        for fidelity in sorted({(t.params["K"], t.level) for t in trials}):
            group = [t for t in trials if (t.params["K"], t.level) == fidelity]
            top = max(t.figure for t in group)
            for t in group:
                rows.append(np.hstack([self.space.point(t.params), self._fidelity(*fidelity)]))
                values.append(t.figure / top if top > 0 else 0.0)
        inputs, relative = np.array(rows), np.array(values)
        keep = np.sort(np.argsort(-relative, kind="stable")[:_MOST_POINTS])
        inputs, relative = inputs[keep], relative[keep]
        floor = min(np.median(relative), 0.9)
        return inputs, np.maximum(relative, floor)
