"""First-order optimisers: an optimiser is data (kind and numbers) with an `init` and an `update`.

>>> from rgals.sgd import SGDRanker, SGD, Adagrad, Adam, LazyAdam
>>> optimizers = SGD(momentum=0.9), Adagrad(eps=1e-8), Adam(beta2=0.99), LazyAdam(beta2=0.99)
>>> models = [SGDRanker(optimizer=optimizer) for optimizer in optimizers]
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from rgals.kernels import sgd as kernel
from rgals.kernels.queue import spread
from rgals.runtime.checks import check_choice, check_real
from rgals.runtime.errors import InputTypeError, ParameterError


def check_below_one(name: str, value: Any) -> float:
    """Return ``value``, a number in [0, 1), or raise `ParameterError`."""
    if not 0 <= check_real(name, value) < 1:
        raise ParameterError(name, value, "give a number in [0, 1)")
    return float(value)


@dataclass
class Moments:
    """Moments (n, K), empty where the optimiser keeps none, and the number of updates of every row (n,)."""

    first: np.ndarray
    second: np.ndarray
    steps: np.ndarray


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
        return first, second, getattr(self, "eps", 0.0)

    def init(self, param: np.ndarray) -> Moments:
        """Zero moments for factors of shape (n, K)."""
        empty = np.empty((0, param.shape[1]), param.dtype)
        first = np.zeros_like(param) if self.n_moments >= 1 else empty
        second = np.zeros_like(param) if self.n_moments >= 2 else empty
        return Moments(first, second, np.zeros(len(param), np.int64))

    def update(
        self,
        param: np.ndarray,
        grad: np.ndarray,
        state: Moments,
        lr: float,
        *,
        ids: np.ndarray | None = None,  # distinct
        effective: np.ndarray | None = None,  # unit rows, renewed: the gradient is projected
        inverse_norm: np.ndarray | None = None,  # and so is this
        coupled: float = 0.0,  # weight decay added to the gradient,
        decoupled: float = 0.0,  # or applied to the factors directly
        grad_scale: float = 1.0,
        ridge: np.ndarray | None = None,  # adds ridge_scale * ridge[row] * param[row] to the gradient
        ridge_scale: float = 0.0,
        n_threads: int = 1,
    ) -> None:
        """One step, in place; ``grad``: of rows ``ids`` (None: all), with respect to the effective rows."""
        n = len(param)
        fading = self.fades and self.n_moments > 0
        if ids is None:
            rows = slots = np.arange(n, dtype=np.int32)
        elif self.lazy or not (fading or coupled > 0 or decoupled > 0 or ridge is not None):
            rows, slots = ids.astype(np.int32, copy=False), np.arange(len(ids), dtype=np.int32)
        else:
            rows, slots = np.arange(n, dtype=np.int32), np.full(n, -1, np.int32)
            slots[ids] = np.arange(len(ids), dtype=np.int32)
        a, c, eps = self.numbers()
        numbers = np.array([lr, a, c, eps, coupled, decoupled, grad_scale, ridge_scale], param.dtype)
        nothing = np.empty(0, param.dtype)
        ridge = nothing if ridge is None else ridge
        unit = (param, nothing) if effective is None else (effective, inverse_norm)
        factors = param, *unit
        moments = (state.first, state.second), state.steps
        how = self.kind, numbers, effective is not None
        spread(kernel.apply, len(rows), n_threads, rows, slots, grad, ridge, factors, *moments, *how)


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
