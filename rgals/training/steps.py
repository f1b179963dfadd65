"""What a run repeats, and what those who watch it see after every iteration."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np

from rgals.runtime.aligned import read_only
from rgals.runtime.lazy import cached_property


class Steps(Protocol):
    """A training method, iteration by iteration: all that ALS and SGD do not share."""

    label: ClassVar[str]  # the method,
    unit: ClassVar[str]  # and what it counts, for the progress bar
    # "user_factors" or "item_factors" or both: what a run returns of the last iteration, or of the best
    outcome: tuple[str, ...]

    def step(self, iteration: int) -> float:
        """Run one iteration, counted from 1; the objective. Raises NumericalError, which names it."""

    def user_factors(self) -> np.ndarray:
        """The current factors of the users; overwritten by the next step."""

    def item_factors(self) -> np.ndarray:
        """The current factors of the items; overwritten by the next step."""

    def state(self) -> dict[str, np.ndarray]:
        """All that the next step reads, to the bit."""

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from a `state` of an earlier run."""


@dataclass
class Iteration:
    """What a callback sees after every iteration: of ALS two half-steps, of SGD an epoch.

    Attributes
    ----------
    iteration : int
        From 1.
    seconds : float
        Spent on training so far; time spent in validation and callbacks is not counted.
    objective : float
        ALS: the loss's stated objective at these factors. SGD: the mean loss per unit of positive weight over
        the epoch's batches, each taken before its step.
    user_factors, item_factors : ndarray
        The current factors as they are scored, read-only. Copy what must outlive the call. A device backend
        moves them to the host when they are first asked for.
    record : dict
        The entry of the history; a callback may add figures (metrics) to it.
    history : list of dict
        All entries so far, ``record`` being the last.
    """

    iteration: int
    seconds: float
    objective: float
    record: dict[str, Any]
    history: list[dict[str, Any]] = field(repr=False)
    _steps: Steps = field(repr=False)

    @cached_property
    def user_factors(self) -> np.ndarray:
        """The current factors of the users, read-only."""
        return read_only(self._steps.user_factors())

    @cached_property
    def item_factors(self) -> np.ndarray:
        """The current factors of the items, read-only."""
        return read_only(self._steps.item_factors())

    def outcome(self) -> dict[str, np.ndarray]:
        """Copies of the factors that a fit keeps of an iteration."""
        return {name: getattr(self, name).copy() for name in self._steps.outcome}


#: Called after every iteration; a true answer ends the fit.
Callback = Callable[[Iteration], object]
