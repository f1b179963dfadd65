"""The read-out: after a fit, the factors of each item are multiplied by a power of its popularity."""

from typing import Any

import numpy as np

from rgals.losses import Degrees
from rgals.runtime.errors import ParameterError


def readout_scale(
    degrees: Degrees, exponent: float, dtype: Any, like: tuple[Degrees, np.ndarray] | None = None
) -> np.ndarray | None:
    """The scale of each item's factors: ``c_y^exponent``, with mean 1 over interactions, or None if all 1."""
    # An item without interactions is scaled like the least popular one. ``like``: the degrees of other items
    # and their scale, in whose units the new one is then.
    if exponent == 0:
        return None
    reference, scaled = (degrees, None) if like is None else like
    sums, counts = reference.item_sum, reference.item_count
    least = max(reference.least, sums[sums > 0].min(initial=np.inf))
    total = float(counts.sum() if scaled is None else counts @ scaled.astype(np.float64))
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        mean = float(counts @ np.maximum(sums, least) ** exponent)
        scale = (np.maximum(degrees.item_sum, least) ** exponent * (total / mean)).astype(dtype)
        good = np.isfinite(scale) & (scale >= np.finfo(dtype).tiny)
    if not good.all():
        what = f"it takes the sums of the items' values, {least:g} to {sums.max():g}, beyond"
        advice = f"{what} {np.dtype(dtype)}; lower it, or scale the values"
        raise ParameterError("readout_exponent", exponent, advice)
    return scale


def with_scale(factors: np.ndarray, scale: np.ndarray | None) -> np.ndarray:
    """Factors that score, from factors as they were solved."""
    return factors if scale is None else factors * scale[:, None]


def without_scale(factors: np.ndarray, scale: np.ndarray | None) -> np.ndarray:
    """Factors as they were solved, from factors that score."""
    return factors if scale is None else factors / scale[:, None]
