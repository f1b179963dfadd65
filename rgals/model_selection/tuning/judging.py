"""Judging fits by hidden interactions: along their iterations, with read-outs, and beyond noise."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from rgals.estimator import RGALS
from rgals.losses import Degrees
from rgals.metrics._table import EXPOSURE, parse
from rgals.metrics.evaluation import evaluate
from rgals.model_selection.tuning.prepared import Fold
from rgals.solvers.readout import readout_scale, with_scale
from rgals.training.run import Iteration

Factors = tuple[np.ndarray, np.ndarray]  # of users and of items


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
        if self.keep is None:
            better = self.kept is None or np.nanmean(found) > np.nanmean(self.figures[self.kept])
        else:
            better = iteration == self.keep
        if better:
            self.kept, self.factors = iteration, (factors[0].copy(), factors[1].copy())

    def read_out(self, exponents: tuple[float, ...], degrees: Degrees) -> None:
        """Judge the kept factors with exponents: outwards from the one nearest to 0, while that pays."""
        assert self.factors is not None and self.kept is not None
        (users, items), kept = self.factors, self.kept
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


def each_user(factors: Factors, split: Fold, metric: str, n_jobs: int | None) -> np.ndarray:
    """The metric of every judged user; one figure, where it is of all users together."""
    known = split.told, split.hidden, (metric,)
    if parse(metric).needs == EXPOSURE:
        return np.array([evaluate(factors, *known, users=split.users, n_jobs=n_jobs)[metric]])
    return evaluate(factors, *known, users=split.users, per_user=True, n_jobs=n_jobs)[0][metric]


def beyond_noise(figures: np.ndarray | None, reference: np.ndarray | None) -> bool:
    """Whether figures of users, which a failed fit has not, beat others of them by over a standard error."""
    if figures is None or reference is None:
        return False
    gains = figures - reference
    gains = gains[~np.isnan(gains)]
    if len(gains) < 2:
        return bool(gains.sum() > 0)
    return bool(gains.mean() > gains.std(ddof=1) / np.sqrt(len(gains)))
