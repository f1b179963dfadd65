"""The rule of RG2 and its kin: a setting by margins, cohesion and K, fitted to the best ones on real data."""

import math
from typing import NamedTuple

import numpy as np

from rgals.losses.degrees import Degrees
from rgals.matrix.cohesion import largest_pull


class Numbers(NamedTuple):
    """What was fitted: `benchmarks/rule.py` minimises what the rule loses to the best of a grid."""

    # But the powers of K (`..._factors`) are chosen by plain fits at K = 512 (`rule.py --powers`): around
    # them the grids at K = 256 to 1024 are flat (their best is .36 and .09).
    alpha: float = 0.024
    alpha_factors: float = 0.2
    reg: float = 2.4
    reg_cohesion: float = 0.7
    reg_length: float = 0.15
    reg_factors: float = 0.06
    exponent: float = 0.22


NUMBERS = Numbers()
# No data set of the fit lies beyond these: the rule is constant there.
_COHESION = 1.0, 25.0
_LENGTH = 2.0, 2000.0
_FACTORS = 64.0, 1024.0
_REGS = 0.01, 0.7
# Numbers of items between which alpha is inverse to it, and the power by which reg falls. No data set has so
# few: of the 300, 100 and 30 most popular items of 16 sets RG2 gained 1, 4 and 6 %, iALS 1, 4 and 2, measured
# once; what the rule reaches there, `benchmarks/rule.py --popularity --items` measures.
_ITEMS, _ITEMS_POWER = (20.0, 700.0), 0.12
# Strength, over that of noise, below which all but popularity is doubted; the step that takes alpha times 5,
# and steps at most. Data sets are at 2.4 and more. Of 94 small parts of them and matrices of chance that are
# below, 35 ranked below popularity, and 25 do; RG2 gained 6 % in the mean, iALS 2.
_SURE, _STEP, _MOST_DOUBT, _DOUBT = 1.4, 0.4, 2.0, 5.0
# Lengths of rows below which a mean of all users pays at a larger strength, too; items from which on it does:
# of fewer, a large alpha (`_ITEMS`) draws all scores to popularity already, but where next to nothing else is
# told: users with one interaction each ranked at half of popularity. Of 150, 500 users of the sets RG2 gained
# 46 and 14 %, iALS 45 and 13, where it is taken; of their 300 most popular items 5 and -1 %.
_SHORT, _SURE_OF_SHORT, _SURE_OF_FEW, _CATALOGUE = 20.0, 2.0, 0.7, 300
# Shares of the largest pull that bound reg: the least, where r is 1 and more, the most; what noise counts.
# No data set reaches its bound (0.3 of the pull at most), but parts of few users do: against 0.4 of it
# everywhere NDCG@10 rose by 8, 1 and 0 % where 150, 500 and 1,500 were left.
_LEAST, _PULL, _MOST, _NOISE = 0.3, 0.4, 0.7, 0.9
# Of rows that are longer than 20 and than twice the columns: the power by which reg falls, and cohesions from
# which on it does, and does in full. Of 20 sets 400 users gained 6 %, 1,000 7 % (-4 to 55 %).
_LONG, _TWICE, _POWER, _FALLS = 20.0, 2.0, 0.3, (0.8, 1.0)


class Setting(NamedTuple):
    """A setting of `RG2`, from which those of its kin follow by comparing coefficients."""

    alpha: float
    reg: float
    item_exponent: float


def setting(degrees: Degrees, K: int, numbers: Numbers = NUMBERS) -> Setting:
    """Where good settings of `RG2` lie.

    With K factors, N items that somebody has, the cohesion r of the matrix (`rgals.matrix.cohesion`), and the
    lengths l of the row and m of the column of a typical interaction (geometric means over interactions)::

        alpha         = 0.024 (K / 64)^0.2 5^d / f,      f = min(1, N / 700),      d = `doubt`
        reg           = 2.4 s r^-0.7 (20 / m)^0.15 (64 / K)^0.06 f^0.12,      s = 1 / sqrt(min(l, m))
        item_exponent = -0.22 log r

    K counts as 64 to 1024, N as 20 at least, r as 1 to 25, l and m as 2 to 2000, and reg without f is 0.01 to
    0.7. It is at most a share of what would leave nothing (`rgals.matrix.cohesion.largest_pull`), 0.3 to 0.7,
    and then times ``min(1, max(20, 2 m) / l)^0.3`` for r >= 1, up to which the power rises from 0 at r = 0.8.
    """
    # r says how much there is besides noise and popularity. Where two users who share an item share others
    # more often than by chance, many weak directions are real: less is taken off, and rare items, which bind
    # communities together, weigh more than popular ones. Margins cannot tell this: food recipes and citations
    # have the same density, rows and columns, r = 1.1 and 21, and best values of reg 10 apart.
    r = float(np.clip(known := np.nan_to_num(degrees.cohesion, nan=1.0), *_COHESION))
    # More factors can follow more of the positives; few have to spread over all pairs. It is little: with
    # the powers 0.6 and 0.18, plain fits of dense sets lost up to 8 % at K = 512 and 1024. Below K = 64 the
    # same settings serve (three sets at K = 16).
    k = float(np.clip(K, *_FACTORS)) / 64
    row, column = np.clip([typical(degrees.user_count), typical(degrees.item_count)], *_LENGTH).tolist()
    # Of few items a user has a large share, and all pairs weigh c_x / 2N: alpha keeps its ratio to that.
    few = few_items(degrees)
    alpha = numbers.alpha * k**numbers.alpha_factors / few
    # s is the edge of the noise: weaker directions cannot be told from a random matrix. Where all rows are as
    # long as each other, and all columns, it is `spectral_edge`; means over rows and columns would let the
    # many rare items of a long tail decide. Where columns are long, the sparser side is not all that counts.
    reg = numbers.reg / math.sqrt(min(row, column)) / r**numbers.reg_cohesion
    reg *= (20 / column) ** numbers.reg_length / k**numbers.reg_factors
    reg = float(np.clip(reg, *_REGS))
    if degrees.matrix is not None:
        # In small matrices even popularity would drown. Where rows and columns are long, noise stays below
        # 1 / sqrt(l) + 1 / sqrt(m) of it; where they are short, the more so the smaller the cohesion.
        noise, bound = _NOISE * (row**-0.5 + column**-0.5), _PULL / max(known, 1e-9)
        share = max(_LEAST, min(noise, _MOST, max(_PULL, bound)))
        reg = min(reg, share * largest_pull(degrees.matrix, alpha, reg / share))
        # Few users have short columns, however much there is in their long rows.
        power = _POWER * float(np.interp(known, _FALLS, (0.0, 1.0)))
        reg *= min(1.0, max(_LONG, _TWICE * column) / row) ** power
    # Heavy positives draw all scores to 1, less so those of rare items, and what is left is popularity.
    alpha *= _DOUBT ** doubt(degrees, row, column)
    return Setting(alpha, reg * few**_ITEMS_POWER, numbers.exponent * math.log(1 / r))


def strength(degrees: Degrees, row: float, column: float) -> float:
    """How far above noise the strongest direction of a matrix is that is not its popularity.

    What communities add to the cohesion r beyond its value c in a matrix of chance is the fourth power of a
    singular value, which stands beside the edge of the noise, with l and m of `setting`::

        (r / c - 1)^(1/4) / (1 / sqrt(l) + 1 / sqrt(m))
    """
    (users, items), n = degrees.filled, max(degrees.nnz, 1)
    by_chance = ((1 - users / n) * (1 - items / n)) ** 2
    if math.isnan(degrees.cohesion):
        return math.inf
    if by_chance == 0:  # no user has a second item, or no item a second user
        return 0.0
    return max(degrees.cohesion / by_chance - 1, 0.0) ** 0.25 / (row**-0.5 + column**-0.5)


def doubt(degrees: Degrees, row: float, column: float) -> float:
    """How little of a matrix is more than popularity and chance, d of the rule: 0 where much is, 2 at most.

    ``(1.4 - s) / 0.4`` with the `strength` s.
    """
    return float(np.clip((_SURE - strength(degrees, row, column)) / _STEP, 0.0, _MOST_DOUBT))


def wants_mean(degrees: Degrees) -> bool:
    """Whether users are better pulled to a mean of them all than to zero.

    Where the `strength` is below 1.4, of rows shorter than 20 below 2, of fewer than 300 items below 0.7.
    """
    row, column = (typical(counts) for counts in (degrees.user_count, degrees.item_count))
    sure = _SURE_OF_FEW if degrees.filled[1] < _CATALOGUE else _SURE_OF_SHORT if row < _SHORT else _SURE
    return strength(degrees, row, column) < sure


def few_items(degrees: Degrees) -> float:
    """The number of items over 700 where there are fewer, else 1: f of the rule."""
    return float(np.clip(degrees.filled[1], *_ITEMS)) / _ITEMS[1]


def typical(counts: np.ndarray) -> float:
    """Length of the row of a typical interaction, the geometric mean; 1 where there are none."""
    filled = counts[counts > 0].astype(np.float64)
    return math.exp(float((filled * np.log(filled)).sum()) / filled.sum()) if len(filled) else 1.0
