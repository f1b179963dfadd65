"""Learning-rate schedules: a factor of the learning rate as a function of training progress."""

from collections.abc import Callable
from typing import Any

import numpy as np

from rgals.runtime.errors import ParameterError

Schedule = Callable[[float], float]

SCHEDULES: dict[str, Schedule] = {
    "constant": lambda progress: 1.0,
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + float(np.cos(np.pi * progress))),
    "sqrt": lambda progress: float(1.0 - np.sqrt(progress)),
}


def get_schedule(schedule: Any, warmup: float = 0.0) -> Schedule:
    """The factor as a function of the progress in [0, 1), as a callable ``schedule`` is one.

    >>> factor = get_schedule("linear", warmup=0.1)  # in which it rises from 0
    >>> [round(factor(p), 2) for p in (0.0, 0.05, 0.1, 0.55)]
    [0.0, 0.5, 1.0, 0.5]
    """
    if not callable(schedule) and schedule not in SCHEDULES:
        advice = f"choose one of {', '.join(map(repr, SCHEDULES))} or give a function"
        raise ParameterError("schedule", schedule, advice)
    curve = schedule if callable(schedule) else SCHEDULES[schedule]

    def factor(progress: float) -> float:
        if progress < warmup:
            return progress / warmup
        return float(curve((progress - warmup) / (1 - warmup)))

    return factor
