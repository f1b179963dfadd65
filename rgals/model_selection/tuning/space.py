"""The search space: ranges and choices by parameter, and the default of each loss, which follows the data."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from rgals.losses import AUTO, Degrees, Loss, get_loss, rule
from rgals.matrix.csr import CSR
from rgals.matrix.validate import as_csr
from rgals.runtime.errors import ParameterError

#: Parameters of the estimator that a space may name; all others belong to the loss.
OF_MODEL: tuple[str, ...] = ("K", "reg", "reg_exponent", "n_iter", "init", "init_scale", "values")
OF_MODEL += ("readout_exponent", "hard_negatives", "half_life", "user_mean")
#: Read-out exponents tried on the factors of every full fit, from 0 outwards while that pays.
READOUTS = (-0.2, -0.1, -0.05, 0.0, 0.05, 0.1, 0.15, 0.2, 0.3)
_AUTO_K = tuple(64 << k for k in range(8))  # the ladder of K="auto"
#: From this first K of the ladder on, a search begins with a quarter of it: on amazon-book-kgat, K=512, RG2
#: and iALS, ten fits then found NDCG@20 of .0994 on test, .0951 without.
LEAD = 256
_DIGITS = 4  # significant digits of a searched value: enough for any optimum, and the same on every machine
_EXPONENTS = {"user_exponent": (-0.6, 0.6), "item_exponent": (-0.9, 0.4)}
_EDGE = 0.05  # share of a range, at either end, that counts as its edge


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
        """The place of 0, an exponent without effect; None if the range does not contain 0 inside."""
        return self.place(0.0) if self.low < 0 < self.high else None

    def at_edge(self, value: float) -> bool:
        """Whether a number lies at either end of the range."""
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
        ordered = len(numbers) >= max(len(self.options), 3) and numbers == sorted(numbers)
        return ordered and value in (numbers[0], numbers[-1])


Dimension = Range | OneOf


@dataclass(frozen=True)
class Space:
    """Everything that a search may vary."""

    dimensions: dict[str, Dimension]  # searched parameters, without K
    fixed: dict[str, Any]
    centre: Mapping[str, float]  # values of the rule for the training part and the first K
    # values of K, ascending: the search begins with the first and climbs while that pays
    ladder: tuple[int, ...]
    lead: tuple[int, ...] = ()  # one smaller K to begin with, which is never the result
    readouts: tuple[float, ...] = (0.0,)  # exponents tried on the factors of every full fit
    # iterations after which full fits are judged; empty: those of `Measurement.iterations`
    stops: tuple[int, ...] = ()
    weights: tuple[float, ...] = (0.0,)  # of hard negatives, tried on the best setting
    half_lives: tuple[Any, ...] = ()  # or "auto", tried on the best setting too

    @property
    def neutral(self) -> dict[int, float]:
        """Places in `middle` of the dimensions that are exponents, by position."""
        middle, ranges = self.middle, enumerate(self.dimensions.values())
        return {k: middle[k] for k, d in ranges if isinstance(d, Range) and d.neutral is not None}

    @property
    def middle(self) -> np.ndarray:
        """The point of the rule; outside a range, exponents are 0 and others in the middle of the range."""
        point = np.full(len(self.dimensions), 0.5)
        for k, (name, d) in enumerate(self.dimensions.items()):
            value = self.centre.get(name, np.nan)
            if isinstance(d, Range) and d.low <= value <= d.high:
                point[k] = d.place(value)
            elif isinstance(d, Range) and d.neutral is not None:
                point[k] = d.neutral
        return point

    def carried(self, params: Mapping[str, Any], there: Mapping[str, float]) -> dict[str, Any]:
        """Parameters moved to other data or another K by as much as the rule moves, to ``there``."""
        out = dict(params)
        for name, d in self.dimensions.items():
            if not isinstance(d, Range) or there.get(name) == self.centre.get(name):
                continue
            if name.endswith("_exponent"):
                moved = params[name] + there[name] - self.centre[name]
            else:
                moved = params[name] * there[name] / self.centre[name]
            out[name] = float(f"{moved:.{_DIGITS}g}")
        return out

    def params(self, point: np.ndarray) -> dict[str, Any]:
        """The parameters at a point of the unit cube."""
        found = {name: d.value(float(u)) for (name, d), u in zip(self.dimensions.items(), point, strict=True)}
        return {**self.fixed, **found}

    def point(self, params: Mapping[str, Any]) -> np.ndarray:
        """The point of parameters in the unit cube, shape (d,)."""
        return np.array([d.place(params[name]) for name, d in self.dimensions.items()])

    def edges(self, params: Mapping[str, Any]) -> tuple[str, ...]:
        """Parameters whose value lies at the edge of what was searched."""
        found = [name for name, d in self.dimensions.items() if d.at_edge(params[name])]
        if len(self.ladder) > 1 and params["K"] == self.ladder[-1]:
            found.append("K")
        return tuple(found)


def default_space(loss: str | Loss, X: Any) -> dict[str, Any]:
    """Where good values of a loss's parameters lie for a matrix of this shape and density.

    The ranges are centred on `rgals.losses.rule` and reach a factor of 10 to either side, of ``reg`` 6.

    Parameters
    ----------
    loss : str or Loss
    X : matrix
        Training interactions.

    Returns
    -------
    dict of str to tuple (range), list (choices) or value (fixed)
        As `tune` takes it: parameters of the loss, ``reg``, ``reg_exponent`` and ``K``.

    Examples
    --------
    >>> from rgals import IALS
    >>> from rgals.datasets import make_implicit
    >>> X = make_implicit(200, 3000, random_state=0).matrix
    >>> sorted(default_space(IALS(), X))
    ['K', 'alpha0', 'item_exponent', 'readout_exponent', 'reg', 'reg_exponent', 'user_exponent']
    """
    X = X if isinstance(X, CSR) else as_csr(X, dislikes=True)
    loss, ladder = get_loss(loss), list(_ladder(AUTO, X)[:5])
    centre = rule(loss, Degrees.of(X), ladder[0])
    space: dict[str, Any] = {}
    for name, value in centre.items():
        if value and not name.endswith("_exponent"):
            reach = 6.0 if name == "reg" else 10.0
            low = float(f"{value / reach:.4g}")
            space[name] = tuple(sorted((low, low * reach * reach)))
    space |= {name: value for name, value in _EXPONENTS.items() if name in loss.get_params()}
    if empty := getattr(loss.resolve(Degrees.of(X), ladder[0]), "proposal_exponent", 0.0):
        space["proposal_exponent"] = empty  # where items without interactions drop out
    return {**space, "reg_exponent": 1.0, "readout_exponent": list(READOUTS), "K": ladder}


def make_space(loss: Loss, X: CSR, given: Mapping[str, Any]) -> Space:
    """The default space of a loss, changed by parameters that the loss object sets and by the caller's."""
    defaults = type(loss)().get_params()
    chosen = {k: v for k, v in loss.get_params().items() if not np.array_equal(v, defaults[k])}
    space: dict[str, Any] = {**default_space(loss, X), **chosen}
    for name, value in given.items():
        if name not in defaults and name not in OF_MODEL:
            known = ", ".join([*defaults, *OF_MODEL])
            raise ParameterError("space", name, f"{type(loss).__name__} has {known}")
        space[name] = value
    dimensions: dict[str, Dimension] = {}
    fixed: dict[str, Any] = {}
    ladder = _ladder(space.pop("K"), X)
    readouts = _listed("readout_exponent", space.pop("readout_exponent"), -1.0, 1.0)
    stops = _listed("n_iter", space.pop("n_iter", []), 1, 1 << 30, Integral)
    weights = _listed("hard_negatives", space.pop("hard_negatives", 0.0), 0.0, math.inf)
    if any(weights) and space.get("dislikes", loss.dislikes) is not False:
        raise ParameterError("space", {"hard_negatives": list(weights)}, "hard negatives need dislikes=False")
    ages = space.pop("half_life", None)
    ages = ages.tolist() if isinstance(ages, np.ndarray) else ages
    half_lives = tuple(ages) if isinstance(ages, list) else () if ages in (None, 0) else (ages,)
    for name, value in space.items():
        if isinstance(value, tuple):
            dimensions[name] = _range(name, value)
        elif isinstance(value, list):
            if not value:
                raise ParameterError("space", {name: value}, "give at least one choice")
            dimensions[name] = OneOf(tuple(value))
        else:
            fixed[name] = value
    centre = rule(loss, Degrees.of(X), ladder[0])
    lead = (ladder[0] // 4,) if ladder[0] >= LEAD and dimensions else ()
    return Space(dimensions, fixed, centre, ladder, lead, readouts, stops, weights, half_lives)


def _listed(name: str, given: Any, low: float, high: float, kind: Any = Real) -> tuple[Any, ...]:
    """The checked values of a parameter that is given as one number or a list, ascending."""
    values = given if isinstance(given, list) else [given]
    good = all(isinstance(v, kind) and not isinstance(v, bool) and low <= v <= high for v in values)
    if not good or (name == "readout_exponent" and not values):
        what = "number" if kind is Real else "integer"
        raise ParameterError("space", {name: given}, f"give one {what}, or a list, from {low:g} to {high:g}")
    return tuple(sorted({v.item() if isinstance(v, np.generic) else v for v in values}))


def _range(name: str, value: tuple) -> Range:
    good = all(isinstance(v, Real) and not isinstance(v, bool) for v in value)
    if len(value) != 2 or not good or not all(map(math.isfinite, value)) or value[0] >= value[1]:
        advice = "a tuple is a range (low, high) with low < high; give choices as a list, a fixed value bare"
        raise ParameterError("space", {name: value}, advice)
    low, high = map(float, value)
    return Range(low, high, log=low > 0)


def _ladder(given: Any, X: CSR) -> tuple[int, ...]:
    """The checked values of K; "auto" doubles from 64 on, up to the smaller side of the matrix."""
    if isinstance(given, str) and given == AUTO:
        small = min(X.shape)
        return tuple(K for K in _AUTO_K if small >= K) or (max(1, small // 2),)
    values = given if isinstance(given, list) else [given]
    good = bool(values) and all(isinstance(K, int | np.integer) and K is not True and K >= 1 for K in values)
    if not good or sorted(set(values)) != list(values):
        advice = "give one integer, a list that ascends: 64, 128, 256, or 'auto'"
        raise ParameterError("space", {"K": given}, advice)
    return tuple(int(K) for K in values)
