"""The rule of RG2 and its kin: a setting by margins, cohesion and K, fitted to the best ones on real data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from rgals.losses.base import spectral_edge
from rgals.losses.degrees import Degrees


class Numbers(NamedTuple):
    """What was fitted: `benchmarks/rule.py` minimises what the rule loses to the best of a grid."""

    alpha: float = 0.024
    alpha_factors: float = 0.6
    reg: float = 1.8
    reg_cohesion: float = 0.65
    reg_length: float = 0.27
    reg_factors: float = 0.14
    exponent: float = 0.23


NUMBERS = Numbers()
# No data set of the fit lies beyond these: the rule is constant there.
_COHESION = 1.0, 25.0
_LENGTH = 2.0, 500.0
_FACTORS = 16.0, 1024.0
_REGS = 0.01, 1.0


@dataclass(frozen=True)
class Setting:
    """A setting of `RG2`, from which those of its kin follow by comparing coefficients."""

    alpha: float
    reg: float
    item_exponent: float


def setting(degrees: Degrees, K: int, numbers: Numbers = NUMBERS) -> Setting:
    """Where good settings of `RG2` lie.

    With M users and N items that have interactions, n of these, K factors, and the cohesion r of the matrix
    (`rgals.matrix.cohesion`)::

        alpha         = 0.024 (K / 64)^0.6
        reg           = 1.8 s r^-0.65 (20 N / n)^0.27 (64 / K)^0.14,      s = sqrt(max(M, N) / n)
        item_exponent = -0.23 log r

    - s is the edge of the noise (`spectral_edge`): what lies below cannot be told from a random matrix.
    - r says how much there is besides noise and popularity. Where two users who share an item share others
      more often than by chance, many weak directions are real: less is taken off, and rare items, which
      bind communities together, weigh more than popular ones. Margins cannot tell this: food recipes and
      citations have the same density, rows and columns, r = 1.1 and 21, and best values of reg 10 apart.
    - s is the edge at the sparser side. Long columns lower the edge of the whole matrix further.
    - More factors can follow more of the positives; few have to spread over all pairs.
    """
    r = _within(degrees.cohesion, _COHESION) if math.isfinite(degrees.cohesion) else 1.0
    k = _within(K, _FACTORS) / 64
    n_users, n_items = degrees.filled
    length = _within(degrees.nnz / max(n_items, 1), _LENGTH)
    edge = spectral_edge(n_users, n_items, degrees.nnz)
    alpha = numbers.alpha * k**numbers.alpha_factors
    reg = numbers.reg * edge * r**-numbers.reg_cohesion
    reg *= (20 / length) ** numbers.reg_length / k**numbers.reg_factors
    return Setting(alpha, _within(reg, _REGS), numbers.exponent * math.log(1 / r))


def _within(value: float, limits: tuple[float, float]) -> float:
    return min(max(float(value), limits[0]), limits[1])
