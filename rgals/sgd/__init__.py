"""The reference by stochastic gradient descent: all ranking losses, the same data, the same evaluator."""

import warnings
from typing import Any

from rgals.sgd.losses import LOSSES
from rgals.sgd.optimizers import OPTIMIZERS, SGD, Adagrad, Adam, LazyAdam
from rgals.sgd.ranker import SGDRanker
from rgals.training import Iteration

__all__ = ["LOSSES", "OPTIMIZERS", "SGD", "Adagrad", "Adam", "LazyAdam", "SGDRanker"]


def __getattr__(name: str) -> Any:
    """The name that `rgals.training.Iteration` had in 0.1."""
    if name == "Epoch":
        warnings.warn("rgals.sgd.Epoch is now rgals.training.Iteration", FutureWarning, stacklevel=2)
        return Iteration
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
