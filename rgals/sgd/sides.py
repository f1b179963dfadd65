"""What a step of the optimiser changes: the factors of a side, and what a loss keeps."""

from typing import Any

import numpy as np

from rgals.kernels import sgd as kernel
from rgals.kernels.queue import spread
from rgals.sgd.losses import State
from rgals.sgd.optimizers import Optimizer


class SideState:
    """The factors of one side, their effective rows (unit length for cosine) and the optimiser's state."""

    def __init__(self, param: np.ndarray, cosine: bool, optimizer: Optimizer, n_threads: int = 1) -> None:
        self.param, self.n_threads = param, n_threads
        self.optimizer = optimizer
        self.state = optimizer.init(param)
        self.cosine = cosine
        self.inverse_norm = np.empty(len(param) if cosine else 0, param.dtype)
        self.effective = np.empty_like(param) if cosine else param
        self.refresh()

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything from which the next step follows."""
        return {"factors": self.param, **vars(self.state)}

    def refresh(self) -> None:
        """Bring the effective rows up to date after the factors were changed from outside."""
        if self.cosine:
            factors = self.param, self.effective, self.inverse_norm
            spread(kernel.normalise, len(self.param), self.n_threads, *factors)

    def step(self, grad: np.ndarray, lr: float, ids: np.ndarray | None = None, **numbers: Any) -> None:
        """Optimiser step for the gradient with respect to the effective rows."""
        if self.cosine:
            numbers.update(effective=self.effective, inverse_norm=self.inverse_norm)
        self.optimizer.update(self.param, grad, self.state, lr, ids=ids, n_threads=self.n_threads, **numbers)


class Kept:
    """The arrays of a loss's `State`: a column of numbers for each, of all users or one of the model."""

    def __init__(
        self, states: tuple[State, ...], n_users: int, dtype: np.dtype, optimizer: Optimizer
    ) -> None:
        self.states = states
        self.n_users = n_users
        self.sides = [
            SideState(np.full((n_users if s.scope == "user" else 1, 1), s.start, dtype), False, optimizer)
            for s in states
        ]

    def of(self, users: np.ndarray) -> np.ndarray:
        """What the loss keeps for each of the users, (B, s)."""
        columns = (
            side.param[users if state.scope == "user" else np.zeros(len(users), np.intp), 0]
            for state, side in zip(self.states, self.sides, strict=True)
        )
        return np.column_stack([np.empty((len(users), 0)), *columns])

    def set(self, users: np.ndarray, values: np.ndarray) -> None:
        """Store estimates (B, s) of the users' numbers."""
        for state, side, column in zip(self.states, self.sides, values.T, strict=True):
            if state.scope == "user":
                side.param[users, 0] = column
                np.clip(side.param, state.low, state.high, out=side.param)

    def step(self, grad: np.ndarray, users: np.ndarray, lr: float, weight: float) -> None:
        """A step of every state for the gradients (B, s) of the rows of a batch, which weighs ``weight``."""
        for state, side, column in zip(self.states, self.sides, grad.T, strict=True):
            rate = (lr if state.lr is None else state.lr) * state.rate
            if rate == 0:
                continue
            if state.scope == "model":
                total, ids = np.array([column.sum()]), None
            else:
                ids, place = np.unique(users, return_inverse=True)
                total = np.bincount(place, column)
                if state.drift:
                    everybody = np.full(self.n_users, weight * state.drift / self.n_users)
                    everybody[ids] += total
                    total, ids = everybody, None
            sign = -1.0 if state.ascend else 1.0
            side.step(total[:, None].astype(side.param.dtype), rate, ids, grad_scale=sign / weight)
            np.clip(side.param, state.low, state.high, out=side.param)
