"""Base class of the baselines, which are fitted in one step and rank like every other model."""

from abc import abstractmethod
from copy import copy
from typing import Any, NoReturn, Self

import numpy as np

from rgals.matrix.csr import CSR
from rgals.matrix.validate import check_ids
from rgals.model.state import FitRecord, Snapshot, parameters_of
from rgals.runtime.errors import InputError
from rgals.runtime.memory import typed_errors
from rgals.runtime.sklearn import BaseEstimator
from rgals.runtime.threads import n_threads
from rgals.training.data import read
from rgals.training.rows import OfRows


class Baseline(OfRows, BaseEstimator):
    """Base of models that are fitted in one step; subclasses define the fit and the scores."""

    n_jobs: int | None

    @typed_errors
    def fit(self, X: Any, y: Any = None, *, user_ids: Any = None, item_ids: Any = None) -> Self:
        """Fit the interactions.

        Parameters
        ----------
        X : sparse matrix, array, Interactions or frame, shape (n_users, n_items)
        y : ignored
        user_ids, item_ids : array of distinct labels, optional
            As in `rgals.RGALS.fit`.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            A parameter is out of range; ``half_life`` of interactions that have no times.
        InputError, InputTypeError, ShapeError
            The matrix cannot be used.
        InsufficientMemoryError
            The fit needs more than ``max_memory``, or than there is; raised before it is allocated.
        NumericalError
            The system of `EASE` cannot be solved in this precision: raise ``reg``.
        """
        n_threads(self.n_jobs)
        self._snapshot = copy(self)._fitted(X, user_ids, item_ids)
        return self

    @abstractmethod
    def _fitted(self, X: Any, user_ids: Any, item_ids: Any) -> Snapshot:
        """Compute the fitted state; called on a copy, whose parameters no other thread changes."""

    @abstractmethod
    def _dense(self, items: np.ndarray, queries: Any) -> np.ndarray:
        """Scores of all items, shape (B, N), from item factors and B rows of user factors of a snapshot."""

    def _read(self, X: Any, dtype: Any, user_ids: Any, item_ids: Any) -> tuple[CSR, dict[str, Any]]:
        """The checked matrix, and the fields of a `Snapshot` that do not depend on the method."""
        matrix, labels, names = read(self, X, dtype, user_ids, item_ids, ...)
        record = FitRecord(parameters_of(self), feature_names=names)
        return matrix, {"seen": matrix, "user_ids": labels[0], "item_ids": labels[1], "record": record}

    def scores(self, users: Any) -> np.ndarray:
        """Scores of all items for known users.

        Parameters
        ----------
        users : int or 1-D array of int, length B
            Rows of the training matrix.

        Returns
        -------
        ndarray, shape (B, N)

        Examples
        --------
        >>> from rgals.baselines import Popularity
        >>> Popularity().fit([[1, 0, 1], [0, 0, 1]]).scores([0]).tolist()
        [[1.0, 0.0, 2.0]]
        """
        snapshot = self._state()
        rows = check_ids("users", users, len(snapshot.user_factors), "user")
        return self._dense(snapshot.item_factors, snapshot.user_factors[rows])

    def _ranking(self, state: Snapshot, users: Any) -> Any:
        return lambda at: self._dense(state.item_factors, users[at])

    def _neighbours(self, what: str, *_: Any) -> NoReturn:
        raise InputError(f"{type(self).__name__} has no factors by which {what}s could be compared")
