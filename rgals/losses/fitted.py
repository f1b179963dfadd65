"""Rules: settings from margins, cohesion and K; that of RG2 and its kin is fitted to real data."""

import math
from typing import NamedTuple

import numpy as np

from rgals.losses.degrees import Degrees
from rgals.matrix.cohesion import largest_pull


class Numbers(NamedTuple):
    """Numbers of the rule, fitted by `benchmarks/rule.py`: they lose least to the best of a grid."""

    # Except the powers of K (`..._factors`), which plain fits at K = 512 chose (`rule.py --powers`): the
    # grids at K = 256 to 1024 are flat around them (their best are .36 and .09).
    alpha: float = 0.024
    alpha_factors: float = 0.2
    reg: float = 2.4
    reg_cohesion: float = 0.7
    reg_length: float = 0.15
    reg_factors: float = 0.06
    exponent: float = 0.22


NUMBERS = Numbers()
# Ranges of the data sets that the rule was fitted to, of reg the range of its values; it is constant beyond.
_COHESIONS = 1.0, 25.0
_LENGTHS = 2.0, 2000.0
_FACTORS = 64.0, 1024.0
_REGS = 0.01, 0.7
# Range of N in which alpha is proportional to 1 / N, and the power by which reg falls there. No data set has
# so few items: with the 300, 100 and 30 most popular items of 16 sets RG2 gained 1, 4 and 6 %, iALS 1, 4 and
# 2, measured once; `benchmarks/rule.py --popularity --items` measures what the rule reaches there.
_FEW_ITEMS, _REG_POWER_OF_ITEMS = (20.0, 700.0), 0.12
# `doubt`: `strength` below which it begins, the fall in strength that adds 1 to it, its largest value, and
# the factor of alpha per unit. Data sets have a strength of 2.4 and more. Of 94 small parts of them and
# random matrices that are below 1.4, 35 ranked below popularity without it, 25 with it; RG2 gained 6 % in the
# mean, iALS 2.
_CERTAIN, _DOUBT_STEP, _LARGEST_DOUBT, _ALPHA_PER_DOUBT = 1.4, 0.4, 2.0, 5.0
# `wants_mean`: length of rows below which they are short, the strength below which short rows want a mean of
# all users, that of rows of a catalogue that is small, and the number of items from which on it is not. With
# few items the large alpha of `_FEW_ITEMS` draws all scores to popularity already, except where there is
# next to nothing else: users with one interaction each ranked at half of popularity. With 150 and 500 users
# of the sets RG2 gained 46 and 14 %, iALS 45 and 13, where the mean is taken; with their 300 most popular
# items 5 and -1 %.
_SHORT_ROW, _CERTAIN_IF_SHORT, _CERTAIN_IF_FEW_ITEMS, _CATALOGUE = 20.0, 2.0, 0.7, 300
# Bounds of reg as shares of the largest pull: the smallest, that of a cohesion of 1 and more, the largest;
# and the factor of the noise. No data set reaches its bound (0.3 of the pull at most), but parts of few users
# do: against 0.4 everywhere NDCG@10 rose by 8, 1 and 0 % with 150, 500 and 1,500 users.
_SMALLEST_SHARE, _COHESIVE_SHARE, _LARGEST_SHARE, _NOISE = 0.3, 0.4, 0.7, 0.9
# Rows longer than 20 and than twice the columns: the power by which reg falls with their length, and the
# cohesions between which the power rises from 0. Of 20 sets 400 users gained 6 %, 1,000 7 % (-4 to 55 %).
_LONG_ROW, _COLUMNS_PER_ROW, _LONG_POWER, _COHESIONS_OF_POWER = 20.0, 2.0, 0.3, (0.8, 1.0)


class Setting(NamedTuple):
    """A setting of `RG2`, from which those of its kin follow by comparing coefficients."""

    alpha: float
    reg: float
    item_exponent: float


def spectral_edge(n_users: int, n_items: int, nnz: int) -> float:
    """``sqrt(max(M, N) / n)``, at least half the edge of the noise: the default ``reg`` of a `Loss`.

    The closed form of RG2 with alpha=0 subtracts ``reg`` from every singular value. Of a random matrix of n
    interactions it leaves nothing from the edge on, ``reg = sqrt(M / n) + sqrt(N / n)``.

    Parameters
    ----------
    n_users, n_items, nnz : int

    Returns
    -------
    float

    Examples
    --------
    >>> from rgals.losses import spectral_edge
    >>> spectral_edge(100, 400, 10_000)
    0.2
    """
    return math.sqrt(max(n_users, n_items, 1) / max(nnz, 1))


def setting(degrees: Degrees, K: int, numbers: Numbers = NUMBERS) -> Setting:
    """A good setting of `RG2` for a matrix."""
    # With K factors, N items that somebody has, the cohesion r of the matrix (`rgals.matrix.cohesion`), and
    # the lengths l of the row and m of the column of a typical interaction (geometric means over
    # interactions):
    #
    #     alpha         = 0.024 (K / 64)^0.2 5^d / f,      f = min(1, N / 700),      d = `doubt`
    #     reg           = 2.4 s r^-0.7 (20 / m)^0.15 (64 / K)^0.06 f^0.12,      s = 1 / sqrt(min(l, m))
    #     item_exponent = -0.22 log r
    #
    # K counts as 64 to 1024, N as 20 at least, r as 1 to 25, l and m as 2 to 2000, and reg without f is 0.01
    # to 0.7. It is at most 0.3 to 0.7 of what makes all factors 0 (`rgals.matrix.cohesion.largest_pull`), and
    # then times ``min(1, max(20, 2 m) / l)^0.3`` for r >= 1; the power rises from 0 at r = 0.8.
    #
    # r tells how much there is besides noise and popularity. If users who share an item share others more
    # often than by chance, many weak directions are signal: they want less ridge, and a larger weight of rare
    # items, which hold communities together, than of popular ones. Margins do not tell this: food recipes and
    # citations have the same density, rows and columns, r = 1.1 and 21, and best values of reg 10 apart.
    r = float(np.clip(known := np.nan_to_num(degrees.cohesion, nan=1.0), *_COHESIONS))
    # More factors fit more of the positives; few have to serve all pairs. The effect is small: with powers of
    # 0.6 and 0.18, plain fits of dense sets lost up to 8 % at K = 512 and 1024. Settings of K = 64 serve
    # smaller K, too (three sets at K = 16).
    k = float(np.clip(K, *_FACTORS)) / 64
    row, column = np.clip([typical(degrees.user_count), typical(degrees.item_count)], *_LENGTHS).tolist()
    # Users have a large share of few items, and all pairs weigh c_x / 2N: alpha keeps its ratio to that.
    few = few_items(degrees)
    alpha = numbers.alpha * k**numbers.alpha_factors / few
    # s is the edge of the noise: weaker directions cannot be told from a random matrix. If all rows have one
    # length, and all columns, it is `spectral_edge`. Means over rows and columns in place of means over
    # interactions would be those of the many rare items of a long tail. In long columns the sparser side is
    # not all that counts: hence the power of m.
    reg = numbers.reg / math.sqrt(min(row, column)) / r**numbers.reg_cohesion
    reg *= (20 / column) ** numbers.reg_length / k**numbers.reg_factors
    reg = float(np.clip(reg, *_REGS))
    if degrees.matrix is not None:
        # In small matrices such a reg would take away popularity, too. For long rows and columns noise is
        # below 1 / sqrt(l) + 1 / sqrt(m) of the largest pull; for short ones by a margin that grows as the
        # cohesion falls.
        noise, bound = _NOISE * (row**-0.5 + column**-0.5), _COHESIVE_SHARE / max(known, 1e-9)
        share = max(_SMALLEST_SHARE, min(noise, _LARGEST_SHARE, max(_COHESIVE_SHARE, bound)))
        reg = min(reg, share * largest_pull(degrees.matrix, alpha, reg / share))
        # Few users make short columns, and thus a large reg, however much their long rows tell.
        power = _LONG_POWER * float(np.interp(known, _COHESIONS_OF_POWER, (0.0, 1.0)))
        reg *= min(1.0, max(_LONG_ROW, _COLUMNS_PER_ROW * column) / row) ** power
    # A large weight of positives draws all scores to 1, those of rare items less: a ranking by popularity.
    alpha *= _ALPHA_PER_DOUBT ** doubt(degrees, row, column)
    return Setting(alpha, reg * few**_REG_POWER_OF_ITEMS, numbers.exponent * math.log(1 / r))


def strength(degrees: Degrees, row: float, column: float) -> float:
    """The strongest direction of a matrix beside its popularity, in units of the edge of the noise."""
    # The cohesion r exceeds its value c in a random matrix by the fourth power of a singular value, which is
    # divided by the edge of the noise, with l and m of `setting`:
    #     (r / c - 1)^(1/4) / (1 / sqrt(l) + 1 / sqrt(m))
    (users, items), n = degrees.filled, max(degrees.nnz, 1)
    by_chance = ((1 - users / n) * (1 - items / n)) ** 2
    if math.isnan(degrees.cohesion):
        return math.inf
    if by_chance == 0:  # no user has a second item, or no item a second user
        return 0.0
    return max(degrees.cohesion / by_chance - 1, 0.0) ** 0.25 / (row**-0.5 + column**-0.5)


def doubt(degrees: Degrees, row: float, column: float) -> float:
    """The doubt d of the rule, from 0 to 2, that a matrix holds more than popularity and chance."""
    # ``(1.4 - s) / 0.4`` with the `strength` s.
    return float(np.clip((_CERTAIN - strength(degrees, row, column)) / _DOUBT_STEP, 0.0, _LARGEST_DOUBT))


def wants_mean(degrees: Degrees) -> bool:
    """Whether pulling users to the mean of all users ranks better than pulling them to zero."""
    # It does if the `strength` is below 1.4, 2 for rows shorter than 20, or 0.7 for fewer than 300 items.
    row, column = (typical(counts) for counts in (degrees.user_count, degrees.item_count))
    few, short = degrees.filled[1] < _CATALOGUE, row < _SHORT_ROW
    certain = _CERTAIN_IF_FEW_ITEMS if few else _CERTAIN_IF_SHORT if short else _CERTAIN
    return strength(degrees, row, column) < certain


def few_items(degrees: Degrees) -> float:
    """The factor f of the rule: the number of items over 700, at most 1."""
    return float(np.clip(degrees.filled[1], *_FEW_ITEMS)) / _FEW_ITEMS[1]


def typical(counts: np.ndarray) -> float:
    """Geometric mean over the interactions of the lengths of their rows; 1 without interactions."""
    filled = counts[counts > 0].astype(np.float64)
    return math.exp(float((filled * np.log(filled)).sum()) / filled.sum()) if len(filled) else 1.0
