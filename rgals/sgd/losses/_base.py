"""What an SGD loss is: a function of scores. It never sees a user, an item or an embedding."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator

from rgals.matrix.csr import CSR
from rgals.runtime.errors import ShapeError


class Full(BaseEstimator):
    """Base of the losses over the whole catalogue.

    ``value_and_grad(scores, positives)`` takes the scores of B users for all N items and their positives
    (CSR, B x N) and returns the values, float64 of shape (B,), and their gradient with respect to the
    scores, (B, N). It may overwrite ``scores``. A value is a *sum* over the user's positives; the trainer
    divides by their number.
    """

    kind: ClassVar[str] = "full"

    def penalties(self, X: CSR) -> tuple[np.ndarray, np.ndarray] | None:
        """Weights of the squared norms of user and item factors that belong to the loss, or None."""
        return None


class Sampled(BaseEstimator):
    """Base of the losses of one positive against sampled negatives.

    ``value_and_grad(pos, neg)`` takes scores of shape (B,) and (B, n) and returns the values, float64 of
    shape (B,), and the gradients, (B,) and (B, n). A negative of score -inf is absent: it adds nothing and
    its gradient is zero.
    """

    kind: ClassVar[str] = "sampled"
    corrects_proposal: ClassVar[bool] = False  # whether log(N q) is subtracted from negatives (Eq. 9)


def checked(loss: Any, answer: tuple, *scores: np.ndarray) -> tuple:
    """What a loss made of scores, where it has their shapes: numpy would spread another over the rows."""
    shapes = [scores[0].shape[:1], *(part.shape for part in scores)]
    found = [np.shape(part) for part in answer]
    if found != shapes:
        raise ShapeError(
            f"{type(loss).__name__}.value_and_grad returned arrays of the shapes {found}; {shapes} are needed"
        )
    return answer


def softplus(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``log(1 + exp(x))`` and its derivative, for any x including -inf."""
    small = np.exp(-np.abs(x))
    slope = np.where(x >= 0, 1, small)
    slope /= 1 + small
    value = np.maximum(x, 0)
    value += np.log1p(small)
    return value, slope


def weights_of(positives: CSR) -> np.ndarray | float:
    """Weights of the positives; 1.0 for a binary matrix."""
    return 1.0 if positives.is_binary else positives.values


def row_totals(values: np.ndarray, positives: CSR) -> np.ndarray:
    """Sum over the positives of each row, float64 (B,); 0 for a row without any."""
    return np.bincount(positives.rows, values, minlength=positives.n_rows)
