"""What is searched: ranges and choices by parameter, and the defaults of each loss, which follow the data."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rgals.losses import Loss, rule
from rgals.matrix.csr import CSR
from rgals.runtime.errors import ParameterError

#: Parameters of the estimator that a space may name; all others belong to the loss.
OF_MODEL = ("K", "reg", "reg_exponent", "n_iter", "init_scale")
_DIGITS = 4  # of a searched value: enough for any optimum, and the same on every machine
_EXPONENTS = {"user_exponent": (-0.6, 0.6), "item_exponent": (-0.7, 0.4)}
_EDGE = 0.05  # share of a range at either end that counts as its edge


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, on a logarithmic or a linear scale."""

    low: float
    high: float
    log: bool

    def value(self, place: float) -> float:
        """The number at a place in [0, 1]."""
        if self.log:
            raw = math.exp(math.log(self.low) + place * (math.log(self.high) - math.log(self.low)))
        else:
            raw = self.low + place * (self.high - self.low)
        return min(max(float(f"{raw:.{_DIGITS}g}"), self.low), self.high)

    def place(self, value: float) -> float:
        """Where a number lies, in [0, 1]."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, 1e-300))
        return min(max((value - low) / (high - low), 0.0), 1.0)

    @property
    def neutral(self) -> float | None:
        """The place of 0 where the range has it inside: an exponent that changes nothing."""
        return self.place(0.0) if self.low < 0 < self.high else None

    def at_edge(self, value: float) -> bool:
        """Whether a number lies within a twentieth of either end."""
        return not _EDGE < self.place(value) < 1 - _EDGE


@dataclass(frozen=True)
class OneOf:
    """One of several values."""

    options: tuple[Any, ...]

    def value(self, place: float) -> Any:
        """The option at a place in [0, 1]."""
        return self.options[min(int(place * len(self.options)), len(self.options) - 1)]

    def place(self, value: Any) -> float:
        """The middle of an option's part of [0, 1]."""
        return (self.options.index(value) + 0.5) / len(self.options)

    def at_edge(self, value: Any) -> bool:
        """Whether an option of an ordered list of at least three numbers is its first or last."""
        numbers = [v for v in self.options if isinstance(v, int | float) and not isinstance(v, bool)]
        if len(numbers) < max(len(self.options), 3) or numbers != sorted(numbers):
            return False
        return value in (numbers[0], numbers[-1])


Dimension = Range | OneOf


@dataclass(frozen=True)
class Space:
    """Everything that a search may vary."""

    dimensions: dict[str, Dimension]  # searched parameters, without K
    fixed: dict[str, Any]
    # values of K, ascending: the search begins with the first and climbs while that pays
    ladder: tuple[int, ...]

    def params(self, point: np.ndarray) -> dict[str, Any]:
        """The parameters at a point of the unit cube."""
        found = {name: d.value(float(u)) for (name, d), u in zip(self.dimensions.items(), point, strict=True)}
        return {**self.fixed, **found}

    def point(self, params: Mapping[str, Any]) -> np.ndarray:
        """Where parameters lie in the unit cube."""
        return np.array([d.place(params[name]) for name, d in self.dimensions.items()])

    def edges(self, params: Mapping[str, Any]) -> tuple[str, ...]:
        """Parameters whose value lies at the edge of what was searched."""
        found = [name for name, d in self.dimensions.items() if d.at_edge(params[name])]
        if len(self.ladder) > 1 and params["K"] == self.ladder[-1]:
            found.append("K")
        return tuple(found)


def default_space(loss: Loss, X: CSR) -> dict[str, Any]:
    """Where good values of a loss's parameters lie for a matrix of this shape and density.

    The ranges are centred on `rgals.losses.rule` and reach a factor of 10 to either side.

    Parameters
    ----------
    loss : Loss
    X : CSR
        Training interactions.

    Returns
    -------
    dict of str to tuple (range), list (choices) or value (fixed)
        As `tune` takes it: parameters of the loss, ``reg``, ``reg_exponent`` and ``K``.

    Examples
    --------
    >>> from rgals import IALS
    >>> from rgals.matrix.validate import as_csr
    >>> from rgals.datasets import make_implicit
    >>> X = as_csr(make_implicit(200, 3000, random_state=0).matrix)
    >>> sorted(default_space(IALS(), X))
    ['K', 'alpha0', 'item_exponent', 'reg', 'reg_exponent', 'user_exponent']
    """
    small = min(X.shape)
    ladder = [K for K in (64, 128, 256, 512, 1024) if small >= K] or [max(1, small // 2)]
    centre = rule(loss, X, ladder[0])
    space: dict[str, Any] = {k: _around(v, 10) for k, v in centre.items() if not k.endswith("_exponent")}
    known = inspect.signature(type(loss)).parameters
    space |= {name: value for name, value in _EXPONENTS.items() if name in known}
    return {**space, "reg_exponent": 1.0, "K": ladder}


def _around(centre: float, factor: float) -> tuple[float, float]:
    return float(f"{centre / factor:.2g}"), float(f"{centre * factor:.2g}")


def make_space(loss: Loss, X: CSR, given: Mapping[str, Any] | None) -> Space:
    """The default space of a loss, changed by what the caller gave and by what the loss object sets."""
    names = list(inspect.signature(type(loss)).parameters)
    defaults = type(loss)().get_params()
    chosen = {name: value for name, value in loss.get_params().items() if value != defaults[name]}
    space: dict[str, Any] = {**default_space(loss, X), **chosen}
    for name, value in (given or {}).items():
        if name not in names and name not in OF_MODEL:
            raise ParameterError("space", name, f"{type(loss).__name__} has {', '.join([*names, *OF_MODEL])}")
        space[name] = value
    dimensions: dict[str, Dimension] = {}
    fixed: dict[str, Any] = {}
    ladder = _ladder(space.pop("K"))
    for name, value in space.items():
        if isinstance(value, tuple):
            dimensions[name] = _range(name, value)
        elif isinstance(value, list):
            if not value:
                raise ParameterError("space", {name: value}, "give at least one choice")
            dimensions[name] = OneOf(tuple(value))
        else:
            fixed[name] = value
    return Space(dimensions, fixed, ladder)


def _range(name: str, value: tuple) -> Range:
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in value)
    if len(value) != 2 or not numbers or not all(map(math.isfinite, value)) or value[0] >= value[1]:
        raise ParameterError(
            "space",
            {name: value},
            "a tuple is a range (low, high) with low < high; give choices as a list, a fixed value bare",
        )
    low, high = map(float, value)
    return Range(low, high, log=low > 0)


def _ladder(given: Any) -> tuple[int, ...]:
    values = given if isinstance(given, list) else [given]
    good = bool(values) and all(isinstance(K, int | np.integer) and K >= 1 for K in values)
    if not good or sorted(set(values)) != list(values):
        raise ParameterError("space", {"K": given}, "give one integer, or a list that ascends: 64, 128, 256")
    return tuple(int(K) for K in values)
