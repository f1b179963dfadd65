"""Splitters that yield several folds: over users with fold-in, and over interactions."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from rgals.datasets.given import Given, given
from rgals.datasets.splits import split_interactions
from rgals.matrix.entries import shuffled_within_rows
from rgals.runtime.checks import check_int, check_random_state, check_real, check_share
from rgals.runtime.errors import ParameterError


class UserFold(NamedTuple):
    """One fold of `UserSplit`.

    Attributes
    ----------
    train : csr_array or Interactions, shape (n_train_users, n_items)
        Rows of the training users; as the next two, Interactions where ``X`` has ids.
    fold_in : csr_array, shape (n_test_users, n_items)
        Interactions of the held-out users that the model is told.
    held_out : csr_array, shape (n_test_users, n_items)
        Their other interactions, which are to be found again.
    train_users, test_users : ndarray of int64
        Row numbers in ``X``, increasing.
    """

    train: Any
    fold_in: Any
    held_out: Any
    train_users: np.ndarray
    test_users: np.ndarray


@dataclass(eq=False)
class _Split:
    """What the splitters share."""

    n_splits: int = 5
    _: KW_ONLY
    random_state: int | np.random.RandomState | np.random.Generator | None = None
    columns: Any = None

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """Number of folds; the arguments are ignored, as scikit-learn's splitters do."""
        return self.n_splits

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[Any]:
        """Yield the folds.

        Parameters
        ----------
        X : sparse matrix, array, Interactions or frame, shape (n_users, n_items)
        y, groups : ignored

        Yields
        ------
        UserFold, or (train, test) of csr_array, shape (n_users, n_items)
            Of `UserSplit`, or of `InteractionSplit`; Interactions where ``X`` has ids.
            scikit-learn's searches take none of these: give them ``cv=5``, and a matrix or Interactions.

        Raises
        ------
        ParameterError
            A parameter is out of its range, or there are too few users or interactions for so many folds.
        """
        found = given(X, self.columns)
        yield from self._folds(found, found.csr(), check_random_state(self.random_state))

    @abstractmethod
    def _folds(self, found: Given, matrix: sp.csr_array, rng: np.random.RandomState) -> Iterator[Any]:
        """The folds of checked interactions."""


@dataclass(eq=False)
class UserSplit(_Split):
    """Hold out users: train on the others, fold in a part of each held-out user, find the rest again.

    Parameters
    ----------
    n_splits : int, default 5
        Number of folds. Every user is held out once, unless ``test_size`` is given.
    test_size : int or float, optional
        Number or share of users held out, drawn anew for each fold.
    fold_in : float in (0, 1), default 0.8
        Share of a held-out user's interactions that is folded in, rounded as in `split_interactions`: of n
        interactions floor((1 - fold_in) * n) are held out, at least one if n >= 2, none if n = 1.
    random_state : int, RandomState, Generator or None, default None
    columns : dict or "matrix", optional
        Where ``X`` is a frame: as in `rgals.RGALS.fit`.

    Examples
    --------
    >>> import numpy as np
    >>> from rgals.model_selection import UserSplit
    >>> for fold in UserSplit(n_splits=2, random_state=0).split(np.ones((4, 10))):
    ...     print(fold.train.shape, fold.fold_in.sum(axis=1), fold.held_out.sum(axis=1))
    (2, 10) [8. 8.] [2. 2.]
    (2, 10) [8. 8.] [2. 2.]
    """

    _: KW_ONLY
    test_size: int | float | None = None
    fold_in: float = 0.8

    def _folds(self, found: Given, matrix: sp.csr_array, rng: np.random.RandomState) -> Iterator[UserFold]:
        check_int("n_splits", self.n_splits, 1 if self.test_size is not None else 2)
        check_share("fold_in", self.fold_in)
        shares = self.fold_in, 1 - self.fold_in
        for drawn in self._drawn(matrix.shape[0], rng):
            train_users, test_users = np.setdiff1d(np.arange(matrix.shape[0]), drawn), np.sort(drawn)
            told, held_out = split_interactions(found.take(matrix, test_users), shares, random_state=rng)
            yield UserFold(found.take(matrix, train_users), told, held_out, train_users, test_users)

    def _drawn(self, n_users: int, rng: np.random.RandomState) -> Iterable[np.ndarray]:
        if self.test_size is None:
            if n_users < self.n_splits:
                raise ParameterError("n_splits", self.n_splits, f"give at most the {n_users} users of X")
            return np.array_split(rng.permutation(n_users), self.n_splits)
        if isinstance(self.test_size, float | np.floating):
            check_real("test_size", self.test_size, 0.0, 1.0, open_min=True)
            size = int(np.ceil(self.test_size * n_users - 1e-9))  # 0.07 * 100 is 7.000000000000001
        else:
            size = check_int("test_size", self.test_size, 1)
        if size >= n_users:
            raise ParameterError("test_size", self.test_size, f"leave some of the {n_users} users to train")
        return (rng.permutation(n_users)[:size] for _ in range(self.n_splits))


@dataclass(eq=False)
class InteractionSplit(_Split):
    """K folds over interactions: in each, one k-th of every user's interactions is held out.

    Parameters
    ----------
    n_splits : int, default 5
        A user with n interactions has floor(n / n_splits) or one more of them held out in a fold; every
        interaction is held out in exactly one fold, and a user's only interaction never is.
    random_state, columns
        As in `UserSplit`.

    Examples
    --------
    >>> import numpy as np
    >>> from rgals.model_selection import InteractionSplit
    >>> [(train.nnz, test.nnz) for train, test in InteractionSplit(2, random_state=0).split(np.ones((3, 4)))]
    [(6, 6), (6, 6)]
    """

    def _folds(self, found: Given, matrix: sp.csr_array, rng: np.random.RandomState) -> Iterator[Any]:
        n_splits = check_int("n_splits", self.n_splits, 2)
        counts = np.diff(matrix.indptr)
        rank = np.arange(matrix.nnz) - np.repeat(matrix.indptr[:-1], counts)
        # Each user starts at a random fold; otherwise the first folds would be larger than the last.
        first = rng.randint(0, n_splits, matrix.shape[0])
        fold = np.empty(matrix.nnz, np.int64)
        fold[shuffled_within_rows(matrix, rng)] = (rank + np.repeat(first, counts)) % n_splits
        fold[np.repeat(counts == 1, counts)] = -1
        sizes = np.bincount(fold + 1, minlength=n_splits + 1)[1:]
        if matrix.nnz and not sizes.all():
            told = f"there are {sizes.sum()} interactions of users who have several; give fewer folds"
            raise ParameterError("n_splits", n_splits, f"{np.sum(sizes == 0)} folds would be empty: {told}")
        for k in range(n_splits):
            yield found.where(matrix, fold != k), found.where(matrix, fold == k)
