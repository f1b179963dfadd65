"""The one loop: alternating half-steps, objective, history, stopping."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from rgals._aligned import empty
from rgals._csr import CSR
from rgals._errors import NumericalError
from rgals.losses.base import Coefficients, Loss
from rgals.solvers.backends.base import Backend


@dataclass
class Iteration:
    """What a callback sees after every iteration.

    Attributes
    ----------
    iteration : int
        From 1.
    seconds : float
        Spent on training so far; time spent in callbacks is not counted.
    objective : float
        The loss's stated objective at these factors.
    user_factors, item_factors : ndarray
        The current factors, read-only. Copy what must outlive the call. A device backend moves them to the
        host when they are first asked for.
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
    _users: Callable[[], np.ndarray] = field(repr=False)
    _items: Callable[[], np.ndarray] = field(repr=False)

    @cached_property
    def user_factors(self) -> np.ndarray:
        """The current factors of the users, read-only."""
        return _read_only(self._users())

    @cached_property
    def item_factors(self) -> np.ndarray:
        """The current factors of the items, read-only."""
        return _read_only(self._items())


#: Called after every iteration; a true answer ends the fit.
Callback = Callable[[Iteration], object]


class State(NamedTuple):
    """Factors as a fit has them, and what basis they are in: all that it needs to go on, to the bit.

    Attributes
    ----------
    user_factors, item_factors : ndarray
    user_basis, item_basis : ndarray or None
        See `rgals.solvers.backends.basis.Factors`.
    """

    user_factors: np.ndarray
    item_factors: np.ndarray | None = None
    user_basis: np.ndarray | None = None
    item_basis: np.ndarray | None = None


@dataclass(frozen=True)
class Problem:
    """Everything that defines the minimisation: data, coefficients, regularisation.

    Attributes
    ----------
    users : CSR, users x items
    items : CSR, items x users (the transpose)
    loss : Loss
    coefficients : Coefficients
    constant : float
    reg, reg_exponent : float
    """

    users: CSR
    items: CSR
    loss: Loss
    coefficients: Coefficients
    constant: float
    reg: float
    reg_exponent: float

    @classmethod
    def of(
        cls, users: CSR, loss: Loss, coefficients: Coefficients, reg: float, reg_exponent: float
    ) -> Problem:
        """The problem of a loss on a matrix."""
        constant = loss.constant(users, coefficients)
        return cls(users, users.transpose(), loss, coefficients, constant, reg, reg_exponent)


def als(
    problem: Problem,
    start: State,
    backend: Backend,
    *,
    n_iter: int,
    tol: float = 0.0,
    callbacks: Sequence[Callback] = (),
    history: Sequence[dict[str, Any]] = (),
    after: Callable[[Iteration, bool, Callable[[], State]], object] | None = None,
) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Alternate exact half-steps, items first, until ``n_iter`` or until the objective settles.

    Every half-step is the exact minimiser over one side, so the objective never rises.

    Parameters
    ----------
    problem : Problem
    start : State
        Where to start; overwritten. User factors alone; or with ``history`` all of the state after its last
        iteration: the result is then that of a run which was never interrupted, to the bit.
    backend : Backend
    n_iter : int
    tol : float
        Stop when the objective falls by less than ``tol`` times its magnitude in an iteration; 0: when
        rounding makes it rise.
    callbacks : sequence of callables
        See `Callback`.
    history : sequence of dict, optional
        Iterations that lie before ``start``.
    after : callable, optional
        Called last in every iteration, with it, with whether a stopping rule ends the run, and with a
        function that returns the state.

    Returns
    -------
    item_factors : ndarray, shape (n_items, K)
        The last iterate; the user factors that belong to it are one half-step away.
    history : list of dict
        ``iteration``, ``seconds``, ``objective`` and what callbacks added.

    Raises
    ------
    NumericalError
        Naming the iteration, the side and the row.
    """
    user_side = problem.coefficients.user_side(problem.users, problem.reg, problem.reg_exponent)
    item_side = problem.coefficients.item_side(problem.items, problem.reg, problem.reg_exponent)
    history = list(history)
    user_factors, item_factors = start.user_factors, start.item_factors
    if item_factors is None:
        item_factors = empty((problem.items.n_rows, user_factors.shape[1]), user_factors.dtype)
    users, items = (
        backend.upload(user_factors, start.user_basis),
        backend.upload(item_factors, start.item_basis),
    )
    seconds, previous = (history[-1]["seconds"], history[-1]["objective"]) if history else (0.0, np.inf)
    for iteration in range(len(history) + 1, n_iter + 1):
        started = time.perf_counter()
        what = "item"
        try:
            step = backend.half_step(
                problem.items, users, item_side, rotate=True, out=items, warm=iteration > 1
            )
            items = step.factors
            penalty = backend.ridge(items, item_side.ridge)
            what = "user"
            step = backend.half_step(problem.users, items, user_side, rotate=True, out=users, warm=True)
        except NumericalError as error:
            raise NumericalError(f"iteration {iteration}, {what} half-step: {error}") from error
        users = step.factors
        objective = problem.constant + penalty - step.decrease
        seconds += time.perf_counter() - started
        record = {"iteration": iteration, "seconds": seconds, "objective": objective}
        history.append(record)
        stop = previous - objective < tol * abs(objective)
        if callbacks or after is not None:
            shown = Iteration(
                iteration,
                seconds,
                objective,
                record,
                history,
                partial(backend.download, users),
                partial(backend.download, items),
            )
            answers = [callback(shown) for callback in callbacks]  # every one is called
            stop = any(answers) or stop
            if after is not None:
                after(shown, stop, partial(_state, backend, users, items))
        if stop:
            break
        previous = objective
    return backend.download(items), history


def _state(backend: Backend, users: Any, items: Any) -> State:
    (user_factors, user_basis), (item_factors, item_basis) = backend.state(users), backend.state(items)
    return State(user_factors, item_factors, user_basis, item_basis)


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view
