"""Smooth steps against numpy in float64."""

import numpy as np
import pytest

from rgals.kernels.smooth import step

EXTREMES = [-np.inf, -3e37, -1e4, -89.0, 0.0, 1e4, 3e37, np.inf, np.nan]


def of(x, plus):
    value, slope = np.empty_like(x), np.empty_like(x)
    step(x, value, slope, len(x), plus)
    return value, slope


def sigmoid(x):
    return np.exp(-np.logaddexp(0, -x))


@pytest.mark.parametrize("plus", [True, False])
@pytest.mark.parametrize("dtype, near", [("float32", 1e-6), ("float64", 1e-13)])
def test_steps_are_those_of_numpy(plus, dtype, near):
    x = np.linspace(-80, 80, 100_003).astype(dtype)
    wide = x.astype(float)
    slope = sigmoid(wide) if plus else np.exp(-np.logaddexp(0, wide) - np.logaddexp(0, -wide))
    expected = (np.logaddexp(0, wide) if plus else sigmoid(wide)), slope
    for found, right in zip(of(x, plus), expected, strict=True):
        np.testing.assert_allclose(found, right, rtol=near)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_far_away_is_exact(dtype):
    """An absent item, of score -inf, adds nothing; what is not a number shows."""
    x, nan = np.array(EXTREMES, dtype), np.nan
    big = [x[5], x[6], np.inf, nan]
    np.testing.assert_allclose(of(x, True)[0], [0, 0, 0, 0, np.log(2), *big], atol=1e-37)
    np.testing.assert_allclose(of(x, True)[1], [0, 0, 0, 0, 0.5, 1, 1, 1, nan], atol=1e-37)
    np.testing.assert_allclose(of(x, False)[0], [0, 0, 0, 0, 0.5, 1, 1, 1, nan], atol=1e-37)
    np.testing.assert_allclose(of(x, False)[1], [0, 0, 0, 0, 0.25, 0, 0, 0, nan], atol=1e-37)
    assert not any(part[0] for plus in (True, False) for part in of(x, plus))
