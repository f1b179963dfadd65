"""First-order optimisers, the arrays that their steps update, and schedules of the learning rate.

>>> from rgals.sgd import SGDRanker, SGD, Adagrad, Adam, LazyAdam
>>> optimizers = SGD(momentum=0.9), Adagrad(eps=1e-8), Adam(beta2=0.99), LazyAdam(beta2=0.99)
>>> models = [SGDRanker(optimizer=optimizer) for optimizer in optimizers]
"""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from rgals.kernels import sgd as kernel
from rgals.kernels.queue import spread
from rgals.runtime.checks import Declared, check_choice, check_real, parameter
from rgals.runtime.errors import InputTypeError, ParameterError
from rgals.sgd.losses import State


class Optimizer(Declared):
    """Base of the optimisers."""

    _dataclass = {"frozen": True}
    kind: ClassVar[int]
    # A lazy (row-sparse) optimiser leaves rows without gradient alone: no decay of their moments or weights.
    # The others update every row at every step. Bias corrections count the updates of each row, so that the
    # first step of a row has the same length whenever it comes.
    lazy: ClassVar[bool] = False
    n_moments: ClassVar[int] = 0
    # Names of the decay rates of the moments, at most two; without any, moments stay as they are in a step
    # without gradient.
    rates: ClassVar[tuple[str, ...]] = ()


class SGD(Optimizer):
    """Gradient descent, ``b = momentum b + g``, ``p -= lr b``."""

    momentum: float = parameter(0.0, "float in [0, 1)")
    kind: ClassVar[int] = kernel.SGD
    rates: ClassVar[tuple[str, ...]] = ("momentum",)

    @property
    def n_moments(self) -> int:  # type: ignore[override]
        """1 with momentum, else 0."""
        return int(self.momentum > 0)


class Adagrad(Optimizer):
    """Adagrad (Duchi et al. 2011): ``s += g^2``, ``p -= lr g / (sqrt(s) + eps)``."""

    eps: float = parameter(1e-10, "float >= 0")
    kind: ClassVar[int] = kernel.ADAGRAD
    n_moments: ClassVar[int] = 1


class Adam(Optimizer):
    """Adam (Kingma & Ba 2014), bias-corrected; every row decays at every step."""

    beta1: float = parameter(0.9, "float in [0, 1)")
    beta2: float = parameter(0.999, "float in [0, 1)")
    eps: float = parameter(1e-8, "float >= 0")
    kind: ClassVar[int] = kernel.ADAM
    n_moments: ClassVar[int] = 2
    rates: ClassVar[tuple[str, ...]] = ("beta1", "beta2")


class LazyAdam(Adam):
    """Adam that updates only rows with a gradient: the others keep their moments and have no weight decay."""

    lazy: ClassVar[bool] = True


OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": SGD, "adagrad": Adagrad, "adam": Adam, "lazy_adam": LazyAdam}


def get_optimizer(optimizer: Any, momentum: float = 0.0) -> Optimizer:
    """The optimiser that a name or an object stands for; ``momentum`` is that of "sgd"."""
    if isinstance(optimizer, str):
        kind = OPTIMIZERS[check_choice("optimizer", optimizer, tuple(OPTIMIZERS))]
        optimizer = SGD(momentum) if kind is SGD else kind()
    if not isinstance(optimizer, Optimizer):
        raise InputTypeError(f"optimizer must be a name or an Optimizer, not {optimizer!r}")
    optimizer.validate()
    return optimizer


class SideState:
    """The factors of one side, their effective rows (unit length for cosine) and the optimiser's moments."""

    def __init__(self, param: np.ndarray, cosine: bool, optimizer: Optimizer, n_threads: int = 1) -> None:
        self.param, self.cosine, self.optimizer, self.n_threads = param, cosine, optimizer, n_threads
        self.moments = tuple(np.zeros_like(param if optimizer.n_moments > i else param[:0]) for i in (0, 1))
        self.steps = np.zeros(len(param), np.int64)  # updates of every row
        self.inverse_norm = np.empty(len(param), param.dtype)
        self.effective = np.empty_like(param) if cosine else param
        self.refresh()

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything that the next step reads."""
        first, second = self.moments
        return {"factors": self.param, "first": first, "second": second, "steps": self.steps}

    def refresh(self) -> None:
        """Compute the effective rows anew after the factors were changed from outside."""
        if self.cosine:
            factors = self.param, self.effective, self.inverse_norm
            spread(kernel.normalise, len(self.param), self.n_threads, *factors)

    def step(
        self,
        grad: np.ndarray,
        lr: float,
        ids: np.ndarray | None = None,  # the distinct rows that have a gradient; None: all
        *,
        coupled: float = 0.0,  # weight decay added to the gradient,
        decoupled: float = 0.0,  # or applied to the factors directly
        grad_scale: float = 1.0,
        ridge: np.ndarray | None = None,  # adds ridge_scale * ridge[row] * param[row] to the gradient
        ridge_scale: float = 0.0,
    ) -> None:
        """Optimiser step for the gradient with respect to the effective rows."""
        how, n, dtype = self.optimizer, len(self.param), self.param.dtype
        ids = np.arange(n, dtype=np.int32) if ids is None else ids.astype(np.int32, copy=False)
        # rows[r] has the gradient grad[slots[r]]; -1 is none.
        rows, slots = ids, np.arange(len(ids), dtype=np.int32)
        decays = coupled > 0 or decoupled > 0 or ridge is not None or (how.n_moments and how.rates)
        if decays and not how.lazy:  # step the rows without a gradient, too
            rows, slots = np.arange(n, dtype=np.int32), np.full(n, -1, np.int32)
            slots[ids] = np.arange(len(ids), dtype=np.int32)
        rates = [getattr(how, name) for name in how.rates] + [0.0] * (2 - len(how.rates))
        scales = coupled, decoupled, grad_scale, ridge_scale
        numbers = np.array([lr, *rates, getattr(how, "eps", 0.0), *scales], dtype)
        # Rates below 1 must not round to 1 in single precision, where the bias correction divides by 0. With
        # eps=0, rows without gradient would be divided by 0.
        below_one = slice(kernel.FIRST, kernel.SECOND + 1)
        numbers[below_one] = np.minimum(numbers[below_one], np.nextafter(dtype.type(1), dtype.type(0)))
        numbers[kernel.EPS] = max(numbers[kernel.EPS], np.sqrt(np.finfo(dtype).tiny))
        factors = self.param, self.effective, self.inverse_norm
        ridge = np.empty(0, dtype) if ridge is None else ridge
        given = rows, slots, grad, ridge, factors, self.moments, self.steps
        spread(kernel.apply, len(rows), self.n_threads, *given, how.kind, numbers, self.cosine)


class Kept:
    """The arrays of a loss's states: for each `State` a column of a number per user, or of one number."""

    def __init__(self, states: tuple[State, ...], n_users: int, dtype: Any, optimizer: Optimizer) -> None:
        self.states = states
        starts = (np.full((n_users if s.scope == "user" else 1, 1), s.start, dtype) for s in states)
        self.sides = [SideState(start, False, optimizer) for start in starts]

    def of(self, users: np.ndarray) -> np.ndarray:
        """The states of the users, (B, s)."""
        columns = (side.param[users % len(side.param), 0] for side in self.sides)  # % 1 of one number: row 0
        return np.column_stack([np.empty((len(users), 0)), *columns])

    def set(self, users: np.ndarray, values: np.ndarray) -> None:
        """Store estimates (B, s) of the users' numbers."""
        for state, side, column in zip(self.states, self.sides, values.T, strict=True):
            if state.scope == "user":
                side.param[users, 0] = column
                np.clip(side.param, state.low, state.high, out=side.param)

    def step(self, grad: np.ndarray, users: np.ndarray, lr: float, weight: float) -> None:
        """Step every state by the gradients (B, s) of the rows of a batch of total weight ``weight``."""
        for state, side, column in zip(self.states, self.sides, grad.T, strict=True):
            rate = (lr if state.lr is None else state.lr) * state.rate
            held = weight if state.weighted else len(users)
            if rate == 0:
                continue
            if state.scope == "model":
                total, ids = np.array([column.sum() + held * state.drift]), None
            else:
                ids, place = np.unique(users, return_inverse=True)
                total = np.bincount(place, column)
                if state.drift:
                    of_all = np.full(len(side.param), held * state.drift / len(side.param))
                    of_all[ids] += total
                    total, ids = of_all, None
            sign = -1.0 if state.ascend else 1.0
            side.step(total[:, None].astype(side.param.dtype), rate, ids, grad_scale=sign / held)
            np.clip(side.param, state.low, state.high, out=side.param)


Schedule = Callable[[float], float]
#: Factor of the learning rate as a function of training progress.
SCHEDULES: dict[str, Schedule] = {
    "constant": lambda progress: 1.0,
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + float(np.cos(np.pi * progress))),
    "sqrt": lambda progress: float(1.0 - np.sqrt(progress)),
}


def get_schedule(schedule: Any, warmup: float = 0.0) -> Schedule:
    """The factor of the learning rate as a function of the progress in [0, 1), for a name or a callable.

    >>> factor = get_schedule("linear", warmup=0.1)  # the factor rises from 0 during the first tenth
    >>> [round(factor(p), 2) for p in (0.0, 0.05, 0.1, 0.55)]
    [0.0, 0.5, 1.0, 0.5]
    """
    curve = SCHEDULES.get(schedule) if isinstance(schedule, str) else schedule
    if not callable(curve):
        advice = f"choose one of {', '.join(map(repr, SCHEDULES))} or give a function"
        raise ParameterError("schedule", schedule, advice)

    def factor(progress: float) -> float:
        if progress < warmup:
            return progress / warmup
        done = (progress - warmup) / (1 - warmup)
        return check_real(f"schedule({done:.3g})", curve(done), 0.0)

    return factor
