"""How fast interactions age: half-lives beside a setting that was found, judged by what came last."""

from typing import Any

import numpy as np

from rgals.datasets.times import half_life_in
from rgals.losses import AUTO
from rgals.model_selection.tuning.judging import beyond_noise, outwards
from rgals.model_selection.tuning.trials import Measurement
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
    return min(_MOST * measure.later_cost(min(measure.space.ladder[0], _K), measure.iterations[-1]), most)


def try_half_lives(measure: Measurement, params: dict[str, Any], taken: dict[str, Any], most: float) -> Any:
    """The half-life that ranks what came last best, as far as a budget goes; None where none is better."""
    later, lives = measure.prepared.later, candidates(measure)
    given = {**params, **taken, "K": min(params["K"], _K)}
    left = int(most / measure.later_cost(given["K"], given["n_iter"])) if lives else 0
    found: dict[int, np.ndarray | None] = {}

    def judged(at: int) -> float:
        if at not in found:
            if measure.late or later is None or len(found) >= left:
                return -np.inf
            asked = given if at < 0 else {**given, "half_life": lives[at]}
            found[at] = measure.again("half-life", asked, taken, [later], _LEVEL).users
        users = found[at]
        return -np.inf if users is None else float(np.nanmean(users))

    if left < 2 or judged(-1) == -np.inf:
        return None
    best = outwards(judged, len(lives), len(lives) // 2)
    users, plain = found.get(best), found[-1]
    return lives[best] if users is not None and plain is not None and beyond_noise(users, plain) else None
