"""The reference by stochastic gradient descent: all ranking losses, the same data, the same evaluator."""

from rgals.sgd.losses import LOSSES
from rgals.sgd.optimizers import OPTIMIZERS, SGD, Adagrad, Adam, LazyAdam
from rgals.sgd.ranker import SGDRanker

__all__ = ["LOSSES", "OPTIMIZERS", "SGD", "Adagrad", "Adam", "LazyAdam", "SGDRanker"]
