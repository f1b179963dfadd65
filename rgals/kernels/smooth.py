"""Smooth steps of many numbers and of pairs within lists: softplus ``log(1 + exp(x))`` and the sigmoid."""

import numpy as np
from numba import njit

from rgals.kernels.compile import entry
from rgals.kernels.tiles import add_scaled, dot

FUSE = {"contract"}  # fastmath: a product and a sum may become one multiply-add
_F = np.float32
# Coefficients of polynomials, the highest power first. exp(x) is that of Cephes' ``expf``; log(1 + x) has a
# relative error of 4e-8.
_NUMBERS = "1.9875692e-4 1.3981999507e-3 8.3334519e-3 4.1665796e-2 .16666665459 .50000001201 1 1"
_EXP = tuple(np.array(_NUMBERS.split(), np.float32))
_NUMBERS = "5.3648107e-3 -3.006574e-2 7.9204454e-2 -.13753796 .19153652 -.24857163 .33321323 -.49999648 1 0"
_LOG = tuple(np.array(_NUMBERS.split(), np.float32))


@njit(inline="always")
def _polynomial(x, coefficients):
    y = coefficients[0]
    for c in coefficients[1:]:
        y = y * x + c
    return y


@njit(inline="always")
def exponential(x):
    """``exp(x)`` of a float32 up to 88, 0 below -88, to 2e-7, in code that the compiler can vectorise."""
    # exp(x) = 2^n exp(x - n log 2) with n = round(x / log 2). log 2 is subtracted in two parts, of which the
    # first has few digits, so that its product with n is exact. 2^n is made from the bits of its exponent.
    x = _F(-88) if x < _F(-88) else x  # a NaN stays NaN
    n = np.floor(x * _F(1.44269504) + _F(0.5))
    x = x - n * _F(0.693359375)
    y = _polynomial(x + n * _F(2.12194440e-4), _EXP)
    return y * np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)


@entry(nogil=True, fastmath=FUSE, error_model="numpy")
def step(x, value, slope, n, plus):
    """Softplus ``log(1 + exp(x))`` if ``plus``, else the sigmoid ``1 / (1 + exp(-x))``, and the slope."""
    # The first ``n`` numbers may be infinite. In float32 the relative error is below 1e-6.
    # From exp(-|x|), which never overflows: softplus is max(x, 0) + log(1 + exp(-|x|)).
    real = x.dtype.type
    narrow, one = x.itemsize == 4, real(1)
    for j in range(n):
        small = real(exponential(_F(-abs(x[j])))) if narrow else real(np.exp(-abs(x[j])))
        above = below = one / (one + small)
        if x[j] < 0:
            above = small * below
        if plus:
            log = real(_polynomial(_F(small), _LOG)) if narrow else np.log1p(small)
            value[j], slope[j] = max(x[j], real(0)) + log, above
        else:
            value[j], slope[j] = above, small * below * below


@entry(nogil=True)
def pairs(scores, low, high, at, plus, factor, weights, values, grad):
    """``sum_j factor_i W_ij phi(s_j - s_i)`` over a run of items for every positive i, and its gradient."""
    # phi is a `step`. Positive p is item ``at[p]``, and j runs from ``low[p]`` to ``high[p]``. ``weights``
    # are (down, up, least, rank, by_distance, by_lower). With ``down``, ``up`` (T,) and ``least`` (P,) ``W =
    # max(min(down_i - down_j, least_i), up_j - up_i)``; with ``rank`` (T,) from 1 ``W = by_distance[|r_i -
    # r_j|] by_lower[max(r_i, r_j)]``; else 1. ``grad``, if not empty, is added to.
    down, up, least, rank, by_distance, by_lower = weights
    width = 0
    for p in range(len(at)):
        width = max(width, high[p] - low[p])
    weight = np.ones(width, scores.dtype)
    ones, x, value, slope = weight.copy(), weight.copy(), weight.copy(), weight.copy()
    for p in range(len(at)):
        i, first, n = at[p], low[p], high[p] - low[p]
        own, scale, others = scores[i], factor[p], scores[first : first + n]
        for j in range(n):
            x[j] = others[j] - own
        step(x, value, slope, n, plus)
        if len(down):
            own_down, own_up, most = down[i], up[i], least[p]
            downs, ups = down[first : first + n], up[first : first + n]
            for j in range(n):
                fall, rise = own_down - downs[j], ups[j] - own_up
                fall = fall if fall < most else most
                weight[j] = rise if rise > fall else fall
        elif len(rank):
            own_rank, ranks = rank[i], rank[first : first + n]
            for j in range(n):
                # Unsigned indices: for signed ones numba adds code that wraps negative indices around.
                lower = ranks[j] if ranks[j] > own_rank else own_rank
                weight[j] = by_distance[np.uint32(abs(ranks[j] - own_rank))] * by_lower[np.uint32(lower)]
        for j in range(n):
            slope[j] *= weight[j]
        values[p] = scale * dot(value, 0, weight, 0, n)
        if len(grad):
            add_scaled(grad, first, slope, 0, n, scale)
            grad[i] -= scale * dot(slope, 0, ones, 0, n)  # the sum of the slopes, in one fixed order
