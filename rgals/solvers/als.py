"""Alternating least squares: the problem, and one iteration of two half-steps."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from rgals.losses.base import AUTO, Coefficients, Loss, Priors, Side
from rgals.losses.degrees import Degrees
from rgals.matrix.csr import CSR
from rgals.runtime.aligned import empty
from rgals.runtime.checks import check_real
from rgals.runtime.errors import NumericalError
from rgals.runtime.lazy import cached_property
from rgals.solvers.base import Backend
from rgals.solvers.hard_negatives import Sampler
from rgals.solvers.prior import NOTHING, Prior
from rgals.solvers.readout import with_scale

_SIDES = ("user", "item")
_LAST_TRY = 3  # iteration


@dataclass(frozen=True)
class Problem:
    """What defines the minimisation: data, coefficients, regularisation."""

    users: CSR  # users x items
    items: CSR  # items x users, the transpose
    loss: Loss
    coefficients: Coefficients
    constant: float
    reg: float
    reg_exponent: float
    priors: Priors = (None, None)

    @classmethod
    def of(
        cls, users: CSR, loss: Loss, coefficients: Coefficients, reg: float, reg_exponent: float
    ) -> "Problem":
        """The problem of a loss on a matrix."""
        constant = check_real(f"{loss.name}.constant", loss.constant(users, coefficients))
        return cls(users, users.transpose(), loss, coefficients, constant, reg, reg_exponent)

    @cached_property
    def plain_sides(self) -> tuple[Side, Side]:
        """The half-steps of users and of items, without priors. Made once: plans are found by identity."""
        found, given = self.coefficients, (self.reg, self.reg_exponent)
        return found.user_side(self.users, *given), found.item_side(self.items, *given)

    def logs(self) -> list[tuple[float, int]]:
        """The `weight_logs` of users and of items."""
        sides = replace(self, reg=1.0, reg_exponent=1.0).plain_sides
        return [weight_logs(rows, side) for rows, side in zip((self.users, self.items), sides, strict=True)]


def choose_reg(
    model: Any, loss: Loss, degrees: Degrees, logs: Callable[[], Iterable[tuple[float, int]]]
) -> float:
    """The strength of the regularisation of a fit; "auto" is the rule of the loss."""
    # The rule holds for ``reg_exponent=1``, where a row of weight W has the ridge ``rho = reg W``. For
    # another exponent nu ``rho = reg_nu W^nu``, with ``reg_nu = reg W^(1 - nu)`` so that the mean interaction
    # keeps its ridge. Here W is the geometric mean of the rows' weights over the interactions, the mean of
    # both sides. ``logs`` returns the `weight_logs` of both sides.
    if model.reg != AUTO:
        return float(model.reg)
    reg = float(loss.defaults_for(degrees, model.K)["reg"])
    if model.reg_exponent == 1:
        return reg
    mean = np.mean([total / max(n, 1) for total, n in logs()])
    return reg * float(np.exp((1.0 - float(model.reg_exponent)) * mean))


def weight_logs(matrix: CSR, side: Side) -> tuple[float, int]:
    """The logarithms of the rows' ridges, summed over interactions, and the number of these."""
    counts = np.where(side.ridge > 0, matrix.row_counts, 0)
    weight = np.log(side.ridge, out=np.zeros(len(counts)), where=counts > 0)
    return float(counts @ weight), int(counts.sum())


def sides_of(problem: Problem) -> tuple[Side, Side]:
    """The half-steps of users and of items, with priors that know the ridges of their rows."""
    sides = []
    for side, prior in zip(problem.plain_sides, problem.priors, strict=True):
        if prior is not None:
            known = replace(prior, ridge=side.ridge)
            known.reg *= known.mean_ridge  # until here it is in units of the mean ridge
            side = replace(side, prior=known)
        sides.append(side)
    return sides[0], sides[1]


def regress(problem: Problem, side: int, prior: Prior, factors: np.ndarray, iteration: int) -> None:
    """The weights of the features of users (side 0) or items; first, if still to be done, their ``reg``."""
    # Factors of the first iterations are coarse: what they do not tell the next may.
    if prior.auto and iteration <= _LAST_TRY:
        prior.settle(factors, problem.priors[side])
    prior.regress(factors)


class ALS:
    """Alternating half-steps, items first: the `rgals.training.run.Steps` of a problem."""

    # Every half-step is the exact minimiser over one side, so that the objective never rises. The start is
    # ``user_factors``, which are overwritten. `item_factors` returns factors times ``item_scale``, the
    # read-out. ``sampler`` draws hard negatives before an iteration, which may raise the objective.

    label: ClassVar[str] = "ALS"
    unit: ClassVar[str] = "it"
    outcome: tuple[str, ...] = ("item_factors",)  # the last half-step makes the user factors

    def __init__(
        self,
        problem: Problem,
        backend: Backend,
        user_factors: np.ndarray,
        item_scale: np.ndarray | None = None,
        sampler: Sampler | None = None,
    ) -> None:
        self.problem, self.backend, self.item_scale, self.sampler = problem, backend, item_scale, sampler
        self._user_side, self._item_side = sides_of(problem)
        if problem.priors[0] is not None:
            self.outcome = ("item_factors", "user_factors")  # which give the weights of users' features
        item_factors = empty((problem.items.n_rows, user_factors.shape[1]), user_factors.dtype)
        self._users, self._items = backend.upload(user_factors), backend.upload(item_factors)
        if sampler is not None:
            users, items = sampler.user_terms, sampler.item_terms
            by_user = self._user_side.with_pairs(users, items)
            self._with_pairs = by_user, self._item_side.with_pairs(items, users)

    def step(self, iteration: int) -> float:
        """One iteration. Returns the objective of the loss, with the hard negatives of this iteration."""
        problem, backend = self.problem, self.backend
        users, items, constant = problem.users, problem.items, problem.constant
        user_side, item_side = self._user_side, self._item_side
        if self.sampler is not None and iteration > self.sampler.plain:
            users, items, more = self.sampler.draw(iteration, self._users, self._items)
            constant, (user_side, item_side) = constant + more, self._with_pairs
        what = "item"
        try:
            step = backend.half_step(
                items, self._users, item_side, rotate=True, out=self._items, warm=iteration > 1
            )
            self._items = step.factors
            penalty = backend.ridge(self._items, item_side.ridge)
            if item_side.prior is not None:
                regress(problem, 1, item_side.prior, self._items, iteration)
                penalty -= item_side.prior.explained()
                item_side.prior.fill(self._items, problem.items.row_counts)
            what = "user"
            prior = user_side.prior
            if prior is not None and (iteration > 1 or prior.mean):  # the start says nothing about features
                regress(problem, 0, prior, self._users, iteration)
            step = backend.half_step(users, self._items, user_side, rotate=True, out=self._users, warm=True)
            if item_side.prior is not None:
                item_side.prior.turn(step.turned)
        except NumericalError as error:
            raise NumericalError(f"iteration {iteration}, {what} half-step: {error}") from error
        self._users = step.factors
        return constant + penalty - step.decrease

    def user_factors(self) -> np.ndarray:
        """The current factors of the users."""
        return self.backend.download(self._users)

    def item_factors(self) -> np.ndarray:
        """The current factors of the items, times the read-out."""
        return with_scale(self.backend.download(self._items), self.item_scale)

    def state(self) -> dict[str, np.ndarray]:
        """What a checkpoint holds: factors without the read-out, and the weights of items' features."""
        found = {"user_factors": self.user_factors(), "item_factors": self.backend.download(self._items)}
        if (prior := self._item_side.prior) is not None:  # those of users are computed from their factors
            found |= {f"item_{name}": array for name, array in prior.state().items()}
        for side, given in zip(_SIDES, self.problem.priors, strict=True):
            if given is not None and (not given.auto or given.reg == NOTHING):  # else none was found yet
                found[f"{side}_feature_reg"] = np.array([given.reg])
        return found

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Continue from a `state`."""
        self._users, self._items = (self.backend.upload(restored(state, side)) for side in ("user", "item"))
        if (prior := self._item_side.prior) is not None:
            prior.restore(state.get("item_weights"), state.get("item_moments"))
            prior.turn(None if (basis := state.get("item_basis")) is None else basis.T)
        sides = zip(_SIDES, (self._user_side, self._item_side), self.problem.priors, strict=True)
        for name, side, given in sides:
            if given and given.auto and (reg := state.get(f"{name}_feature_reg")) is not None:
                side.prior.take(float(reg[0]), given)


def restored(state: dict[str, np.ndarray], side: str) -> np.ndarray:
    """Factors of a state. Release 0.2 and before may have them in another basis, with the way out of it."""
    array, basis = state[f"{side}_factors"], state.get(f"{side}_basis")
    return array if basis is None else (array @ basis.T).astype(array.dtype)
