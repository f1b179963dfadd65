"""What the curves say: seconds to a quality, rates of convergence, means over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Curve = Sequence[Sequence[float]]  # (seconds, value) per iteration or epoch


def seconds_to(curve: Curve, target: float) -> float:
    """Training seconds until a curve first reaches a value; infinity if it never does.

    Examples
    --------
    >>> seconds_to([(1.0, 0.1), (2.0, 0.3), (3.0, 0.2)], 0.3), seconds_to([(1.0, 0.1)], 0.2)
    (2.0, inf)
    """
    for seconds, value in curve:
        if value >= target:
            return float(seconds)
    return float("inf")


def best_of(curve: Curve) -> float:
    """Best value of a curve."""
    return max(value for _, value in curve)


@dataclass(frozen=True)
class Rate:
    """A linear rate of convergence: the gap to the limit shrinks by ``factor`` per iteration.

    Attributes
    ----------
    factor : float
    r2 : float
        Share of the variance of log(gap) that a straight line explains.
    first, last : int
        Iterations, from 1, that the line was fitted to.
    power : float
        Exponent of the best power law ``gap ~ t^-power`` over the same iterations,
    power_r2 : float
        and how much that explains: a sublinear method is described better by it.
    """

    factor: float
    r2: float
    first: int
    last: int
    power: float
    power_r2: float


def _line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Slope and R^2 of a least-squares line."""
    slope, intercept = np.polyfit(x, y, 1)
    rest = y - (slope * x + intercept)
    total = ((y - y.mean()) ** 2).sum()
    return float(slope), float(1 - (rest**2).sum() / total) if total > 0 else 1.0


def linear_rate(objective: Sequence[float], limit: float | None = None, skip: int = 1) -> Rate | None:
    """Fit a linear rate to an objective that decreases to a limit.

    Parameters
    ----------
    objective : sequence of float
        Value after every iteration.
    limit : float, optional
        What it converges to. By default the smallest value, and only the first half of the iterations is
        used, because an unfinished run underestimates the gap near its end.
    skip : int, default 1
        Iterations at the start that are left out.

    Returns
    -------
    Rate or None
        None where fewer than 4 iterations can be used.

    Examples
    --------
    >>> rate = linear_rate([5 + 3 * 0.7**t for t in range(60)])
    >>> round(rate.factor, 3), rate.r2 > 0.999
    (0.7, True)
    """
    values = np.asarray(objective, dtype=np.float64)
    end = len(values) if limit is not None else (len(values) + 1) // 2
    floor = values.min() if limit is None else limit
    gap = values[:end] - floor
    t = np.arange(1, end + 1)
    usable = (t > skip) & (gap > 1e-10 * max(abs(floor), np.ptp(values)))
    if usable.sum() < 4:
        return None
    slope, r2 = _line(t[usable], np.log(gap[usable]))
    power, power_r2 = _line(np.log(t[usable]), np.log(gap[usable]))
    return Rate(float(np.exp(slope)), r2, int(t[usable][0]), int(t[usable][-1]), -power, power_r2)


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (0 for one value)."""
    array = np.asarray(values, dtype=np.float64)
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else 0.0
