"""The read-out: what the factors of items are multiplied by after a fit, to score."""

from typing import Any

import numpy as np

from rgals.losses import Degrees
from rgals.runtime.errors import ParameterError


def readout_scale(
    degrees: Degrees, exponent: float, dtype: Any, like: tuple[Degrees, np.ndarray] | None = None
) -> np.ndarray | None:
    """What the read-out multiplies items' factors by: ``c_y^exponent``, mean 1 over interactions, or None."""
    # An item without interactions is scaled as the least popular one. `like`: margins of other items and the
    # scale that these have, which is then gone on with.
    if exponent == 0:
        return None
    reference, scaled = (degrees, None) if like is None else like
    sums, counts = reference.item_sum, reference.item_count
    least = sums[sums > 0].min(initial=np.inf)
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
    """Factors that score, from those that were solved."""
    return factors if scale is None else factors * scale[:, None]


def without_scale(factors: np.ndarray, scale: np.ndarray | None) -> np.ndarray:
    """Factors as they were solved, from those that score."""
    return factors if scale is None else factors / scale[:, None]
