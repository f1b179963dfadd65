"""What the curves say: seconds to a quality, rates of convergence, means over seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rgals.metrics import effect_size, holm, paired_test
from rgals.metrics.significance import METHODS as TESTS
from rgals.runtime.checks import check_choice

Curve = Sequence[Sequence[float]]  # (seconds, value) per iteration or epoch


def seconds_to(curve: Curve, target: float) -> float:
    """Training seconds until a curve first reaches a value; infinity if it never does."""
    return next((float(seconds) for seconds, value in curve if value >= target), float("inf"))


@dataclass(frozen=True)
class Rate:
    """A linear rate of convergence: the gap to the limit shrinks by ``factor`` per iteration."""

    factor: float
    r2: float  # share of the variance of log(gap) that a straight line explains
    first: int  # iterations, from 1, that the line was fitted to
    last: int
    power: float  # exponent of the best power law gap ~ t^-power over the same iterations
    power_r2: float  # what that explains: more than r2 where a method is sublinear


def linear_rate(objective: Sequence[float], limit: float | None = None, skip: int = 1) -> Rate | None:
    """Fit a linear rate to an objective that decreases to ``limit``; None below 4 usable iterations."""
    values = np.asarray(objective, dtype=np.float64)
    # Without a limit it is the smallest value, and only the first half of the iterations is used, because an
    # unfinished run underestimates the gap near its end. The first ``skip`` iterations are left out.
    end = len(values) if limit is not None else (len(values) + 1) // 2
    floor = values.min() if limit is None else limit
    gap = values[:end] - floor
    t = np.arange(1, end + 1)
    usable = (t > skip) & (gap > 1e-10 * max(abs(floor), np.ptp(values)))
    if usable.sum() < 4:
        return None
    from scipy.stats import linregress  # costly to import

    t, y = t[usable], np.log(gap[usable])
    line, power = linregress(t, y), linregress(np.log(t), y)
    fit = float(np.exp(line.slope)), float(line.rvalue**2)
    return Rate(*fit, int(t[0]), int(t[-1]), -float(power.slope), float(power.rvalue**2))


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (0 for one value)."""
    array = np.asarray(values, dtype=np.float64)
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else 0.0


@dataclass(frozen=True)
class Against:
    """A method beside the one that it is compared with, on the same users.

    Attributes
    ----------
    difference : float
        Of the means over users.
    p_value, corrected : float
        Of a paired test, and after Holm's correction for all methods of the table.
    effect : float
        `rgals.metrics.effect_size`.
    """

    difference: float
    p_value: float
    corrected: float
    effect: float


def against(figures: Mapping[str, np.ndarray], reference: str, test: str = "t") -> dict[str, Against]:
    """All methods but the reference beside it. ``figures``: of every user."""
    check_choice("test", test, TESTS)
    base = figures[reference]
    others = {name: values for name, values in figures.items() if name != reference}
    p_values = [paired_test(values, base, test) for values in others.values()]
    return {
        name: Against(float(np.nanmean(values - base)), p, float(corrected), effect_size(values, base))
        for (name, values), p, corrected in zip(others.items(), p_values, holm(p_values), strict=True)
    }
