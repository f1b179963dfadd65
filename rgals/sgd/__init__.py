"""Matrix factorisation by SGD on any ranking loss: the reference that `rgals.RGALS` is compared with."""

from rgals.sgd.losses import LOSSES
from rgals.sgd.optimizers import OPTIMIZERS, SGD, Adagrad, Adam, LazyAdam
from rgals.sgd.ranker import SGDRanker

__all__ = ["LOSSES", "OPTIMIZERS", "SGD", "Adagrad", "Adam", "LazyAdam", "SGDRanker"]
