"""What a step of the optimiser changes: the factors of a side, and what a loss keeps."""

import numpy as np

from rgals.kernels import sgd as kernel
from rgals.kernels.queue import spread
from rgals.sgd.losses import State
from rgals.sgd.optimizers import Optimizer


class SideState:
    """The factors of one side, their effective rows (unit length for cosine) and the optimiser's moments."""

    def __init__(self, param: np.ndarray, cosine: bool, optimizer: Optimizer, n_threads: int = 1) -> None:
        self.param, self.cosine, self.optimizer, self.n_threads = param, cosine, optimizer, n_threads
        kept, nothing = optimizer.n_moments, np.empty((0, param.shape[1]), param.dtype)
        self.moments = tuple(np.zeros_like(param) if kept > order else nothing for order in (0, 1))
        self.steps = np.zeros(len(param), np.int64)  # updates of every row
        self.inverse_norm = np.empty(len(param) if cosine else 0, param.dtype)
        self.effective = np.empty_like(param) if cosine else param
        self.refresh()

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything from which the next step follows."""
        first, second = self.moments
        return {"factors": self.param, "first": first, "second": second, "steps": self.steps}

    def refresh(self) -> None:
        """Bring the effective rows up to date after the factors were changed from outside."""
        if self.cosine:
            factors = self.param, self.effective, self.inverse_norm
            spread(kernel.normalise, len(self.param), self.n_threads, *factors)

    def step(
        self,
        grad: np.ndarray,
        lr: float,
        ids: np.ndarray | None = None,  # of the rows of the gradient, distinct; None: all
        *,
        coupled: float = 0.0,  # weight decay added to the gradient,
        decoupled: float = 0.0,  # or applied to the factors directly
        grad_scale: float = 1.0,
        ridge: np.ndarray | None = None,  # adds ridge_scale * ridge[row] * param[row] to the gradient
        ridge_scale: float = 0.0,
    ) -> None:
        """Optimiser step for the gradient with respect to the effective rows."""
        how, n = self.optimizer, len(self.param)
        acting = coupled > 0 or decoupled > 0 or ridge is not None or (how.fades and how.n_moments > 0)
        if ids is None:
            rows = slots = np.arange(n, dtype=np.int32)
        elif acting and not how.lazy:
            rows, slots = np.arange(n, dtype=np.int32), np.full(n, -1, np.int32)
            slots[ids] = np.arange(len(ids), dtype=np.int32)
        else:
            rows, slots = ids.astype(np.int32, copy=False), np.arange(len(ids), dtype=np.int32)
        nothing = np.empty(0, self.param.dtype)
        scales = coupled, decoupled, grad_scale, ridge_scale
        numbers = np.array([lr, *how.numbers(), *scales], self.param.dtype)
        # Rates are below 1 in single precision, too; without a gradient nothing is divided by 0.
        rates, one = slice(kernel.FIRST, kernel.SECOND + 1), numbers.dtype.type(1)
        numbers[rates] = np.minimum(numbers[rates], np.nextafter(one, 0))
        numbers[kernel.EPS] = max(numbers[kernel.EPS], np.sqrt(np.finfo(numbers.dtype).tiny))
        factors = self.param, self.effective if self.cosine else self.param, self.inverse_norm
        given = rows, slots, grad, nothing if ridge is None else ridge, factors, self.moments, self.steps
        spread(kernel.apply, len(rows), self.n_threads, *given, how.kind, numbers, self.cosine)


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
