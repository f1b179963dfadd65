"""One run of ALS or of SGD: what is fitted, clock, history, early stopping, callbacks, checkpoints."""

from rgals.training.run import Callback, Iteration

__all__ = ["Callback", "Iteration"]
