"""First-order optimisers, as data from which `rgals.sgd.sides.SideState` makes steps, and learning rates.

>>> from rgals.sgd import SGDRanker, SGD, Adagrad, Adam, LazyAdam
>>> optimizers = SGD(momentum=0.9), Adagrad(eps=1e-8), Adam(beta2=0.99), LazyAdam(beta2=0.99)
>>> models = [SGDRanker(optimizer=optimizer) for optimizer in optimizers]
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from rgals.kernels import sgd as kernel
from rgals.runtime.checks import check_choice, check_real
from rgals.runtime.errors import InputTypeError, ParameterError


def check_below_one(name: str, value: Any) -> float:
    """Return ``value``, a number in [0, 1), or raise `ParameterError`."""
    if not 0 <= check_real(name, value) < 1:
        raise ParameterError(name, value, "give a number in [0, 1)")
    return float(value)


@dataclass(frozen=True)
class Optimizer:
    """Base of the optimisers."""

    kind: ClassVar[int]
    # A lazy (row-sparse) optimiser leaves rows without gradient alone: their moments do not decay and they
    # feel no weight decay. The other ones update every row at every step. Bias corrections count the updates
    # of each row, so that a row's first lazy step is as long as anyone's.
    lazy: ClassVar[bool] = False
    n_moments: ClassVar[int] = 0
    fades: ClassVar[bool] = True  # whether moments change without a gradient
    rates: ClassVar[tuple[str, ...]] = ()  # at most two parameters in [0, 1)

    def numbers(self) -> tuple[float, float, float]:
        """The two rates, checked, and epsilon, in the order of the kernel; 0 for what there is not."""
        rates = [check_below_one(name, getattr(self, name)) for name in self.rates]
        first, second, *_ = *rates, 0.0, 0.0
        return first, second, check_real("eps", getattr(self, "eps", 0.0), 0)


@dataclass(frozen=True)
class SGD(Optimizer):
    """Gradient descent, ``b = momentum b + g``, ``p -= lr b``.

    Parameters
    ----------
    momentum : float in [0, 1), default 0
    """

    momentum: float = 0.0
    kind: ClassVar[int] = kernel.SGD
    rates: ClassVar[tuple[str, ...]] = ("momentum",)

    @property
    def n_moments(self) -> int:  # type: ignore[override]
        """1 with momentum, else 0."""
        return int(self.momentum > 0)


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad (Duchi et al. 2011): ``s += g^2``, ``p -= lr g / (sqrt(s) + eps)``.

    Parameters
    ----------
    eps : float, default 1e-10
    """

    eps: float = 1e-10
    kind: ClassVar[int] = kernel.ADAGRAD
    n_moments: ClassVar[int] = 1
    fades: ClassVar[bool] = False


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma & Ba 2014), bias-corrected; every row decays at every step.

    Parameters
    ----------
    beta1, beta2 : float, default 0.9, 0.999
    eps : float, default 1e-8
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    kind: ClassVar[int] = kernel.ADAM
    n_moments: ClassVar[int] = 2
    rates: ClassVar[tuple[str, ...]] = ("beta1", "beta2")


@dataclass(frozen=True)
class LazyAdam(Adam):
    """Adam that updates only rows with a gradient: others keep their moments and feel no weight decay.

    Parameters
    ----------
    beta1, beta2, eps : float, default 0.9, 0.999, 1e-8
    """

    lazy: ClassVar[bool] = True


OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": SGD, "adagrad": Adagrad, "adam": Adam, "lazy_adam": LazyAdam}


def get_optimizer(optimizer: Any, momentum: float = 0.0) -> Optimizer:
    """The optimiser that a name or an object stands for; ``momentum`` is that of "sgd"."""
    if isinstance(optimizer, str):
        made = OPTIMIZERS[check_choice("optimizer", optimizer, tuple(OPTIMIZERS))]()
        if isinstance(made, SGD):
            made = replace(made, momentum=momentum)
    elif isinstance(optimizer, Optimizer):
        made = optimizer
    else:
        raise InputTypeError(f"optimizer must be a name or an Optimizer, not {optimizer!r}")
    made.numbers()  # checks them
    return made


Schedule = Callable[[float], float]
#: Factor of the learning rate as a function of training progress.
SCHEDULES: dict[str, Schedule] = {
    "constant": lambda progress: 1.0,
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + float(np.cos(np.pi * progress))),
    "sqrt": lambda progress: float(1.0 - np.sqrt(progress)),
}


def get_schedule(schedule: Any, warmup: float = 0.0) -> Schedule:
    """The factor as a function of the progress in [0, 1), as a callable ``schedule`` is one.

    >>> factor = get_schedule("linear", warmup=0.1)  # in which it rises from 0
    >>> [round(factor(p), 2) for p in (0.0, 0.05, 0.1, 0.55)]
    [0.0, 0.5, 1.0, 0.5]
    """
    if not callable(schedule) and schedule not in SCHEDULES:
        advice = f"choose one of {', '.join(map(repr, SCHEDULES))} or give a function"
        raise ParameterError("schedule", schedule, advice)
    curve = schedule if callable(schedule) else SCHEDULES[schedule]

    def factor(progress: float) -> float:
        if progress < warmup:
            return progress / warmup
        return float(curve((progress - warmup) / (1 - warmup)))

    return factor
