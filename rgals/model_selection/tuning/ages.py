"""How fast interactions age: half-lives beside a setting that was found, judged by what came last."""

from functools import cache

import numpy as np

from rgals.datasets.times import half_life_in
from rgals.losses import AUTO
from rgals.model_selection.tuning.judging import beyond_noise, outwards
from rgals.model_selection.tuning.trials import Choice, Measurement
from rgals.runtime.errors import ParameterError

#: Half-lives that "auto" tries, in units of the time from the first interaction to the last.
SPANS = tuple(2.0**power for power in range(-8, 2))
_K = 32  # factors of these fits, at most
_MOST = 6.0  # fits that a search takes, about
_LEVEL = -1  # of rows of the table, which are not compared with others


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


def reserve(measure: Measurement, most: float) -> float:
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
