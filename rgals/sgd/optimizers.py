"""First-order optimisers, as data from which `rgals.sgd.sides.SideState` makes steps, and learning rates.

>>> from rgals.sgd import SGDRanker, SGD, Adagrad, Adam, LazyAdam
>>> optimizers = SGD(momentum=0.9), Adagrad(eps=1e-8), Adam(beta2=0.99), LazyAdam(beta2=0.99)
>>> models = [SGDRanker(optimizer=optimizer) for optimizer in optimizers]
"""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from rgals.kernels import sgd as kernel
from rgals.runtime.checks import check_choice
from rgals.runtime.declared import Declared, parameter
from rgals.runtime.errors import InputTypeError, ParameterError


class Optimizer(Declared):
    """Base of the optimisers."""

    _dataclass = {"frozen": True}
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
        self.validate()
        first, second, *_ = *(getattr(self, name) for name in self.rates), 0.0, 0.0
        return first, second, getattr(self, "eps", 0.0)


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
    fades: ClassVar[bool] = False


class Adam(Optimizer):
    """Adam (Kingma & Ba 2014), bias-corrected; every row decays at every step."""

    beta1: float = parameter(0.9, "float in [0, 1)")
    beta2: float = parameter(0.999, "float in [0, 1)")
    eps: float = parameter(1e-8, "float >= 0")
    kind: ClassVar[int] = kernel.ADAM
    n_moments: ClassVar[int] = 2
    rates: ClassVar[tuple[str, ...]] = ("beta1", "beta2")


class LazyAdam(Adam):
    """Adam that updates only rows with a gradient: others keep their moments and feel no weight decay."""

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
    curve = SCHEDULES.get(schedule) if isinstance(schedule, str) else schedule
    if not callable(curve):
        advice = f"choose one of {', '.join(map(repr, SCHEDULES))} or give a function"
        raise ParameterError("schedule", schedule, advice)

    def factor(progress: float) -> float:
        if progress < warmup:
            return progress / warmup
        return float(curve((progress - warmup) / (1 - warmup)))

    return factor
