"""`fit`, the same for every estimator: check, read, divide, train, publish one fitted state."""

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from rgals.files.archive import FileSpec
from rgals.losses.base import Priors
from rgals.matrix.csr import CSR
from rgals.model.ranking import FactorRanker
from rgals.model.state import FitRecord, Snapshot, parameters_of
from rgals.runtime.checks import plain_copy
from rgals.runtime.memory import typed_errors
from rgals.solvers.prior import mean_prior, prior_bytes
from rgals.training.checkpoint import Checkpoint, Store, open_store, read_checkpoint
from rgals.training.data import divide, halving, in_order, read, weigh, with_features
from rgals.training.run import Callback, Watch


@dataclass(frozen=True)
class Task:
    """The checked input of a training method."""

    matrix: CSR  # all interactions, with weights for values
    train: CSR  # the interactions to fit: all of them, or those that early stopping does not hold out
    held_out: CSR | None  # the interactions to validate on
    dtype: np.dtype
    seed: int
    store: Store | None
    watch: Watch
    priors: Priors  # of users and items
    aged: bool  # whether the weights fade with age


class Trained(FactorRanker):
    """A factor model that is fitted iteration by iteration; a mixin of estimators, which define `_train`."""

    loss: Any
    early_stopping: bool
    values: str
    random_state: Any
    _checkpoint: ClassVar[FileSpec]
    _get_loss: ClassVar[Any]  # makes a loss of its name

    @abstractmethod
    def _check(self, asked: Mapping[str, Any]) -> np.dtype:
        """Check every parameter, and the arguments ``asked`` of `fit`; returns the dtype of the factors."""

    def _choose(self, matrix: CSR, priors: Priors) -> dict[str, Any]:
        """Values that replace "auto" before training, as they follow from the data alone, by parameter."""
        return {}

    @abstractmethod
    def _taken(self) -> dict[str, Any]:
        """Values that replaced "auto" in the last fit, by parameter."""

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """The parameters that were set and, once fitted, the values that replaced "auto"."""
        text = super().__repr__(N_CHAR_MAX)  # type: ignore[call-arg]
        found = self._taken() if getattr(self, "history_", None) else {}
        shown = [f"{k}={x!r}" if isinstance(x, str | bool) else f"{k}={x:.4g}" for k, x in found.items()]
        return f"{text}  # fitted with {', '.join(shown)}" if shown else text

    def set_params(self, **params: Any) -> Self:
        """Set parameters, as in scikit-learn: also those of the loss, ``loss__alpha``, if that is a name.

        Parameters
        ----------
        **params

        Returns
        -------
        self
        """
        loss = params.get("loss", self.loss)
        if isinstance(loss, str) and any(name.startswith("loss__") for name in params):
            params["loss"] = self._get_loss(loss)
        return super().set_params(**params)  # type: ignore[misc]

    @abstractmethod
    def _check_memory(self, matrix: CSR, dtype: np.dtype, *, weights: int, split: bool, judged: bool) -> None:
        """Raise `InsufficientMemoryError` where a fit needs more memory than there is."""
        # ``weights``: bytes of the weights that replace the matrix's values, and of the priors. ``split``:
        # early stopping holds interactions out. ``judged``: the model is validated after every iteration.

    @abstractmethod
    def _train(self, task: Task) -> tuple[Snapshot, list[dict[str, Any]], str]:
        """Train; returns the state with all that this method finds, the history and the solver's name."""

    @typed_errors
    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        validation: Any = None,
        callbacks: Callback | Sequence[Callback] | None = None,
        checkpoint: str | os.PathLike | Checkpoint | None = None,
        user_ids: Any = None,
        item_ids: Any = None,
        columns: Any = None,
        user_features: Any = None,
        item_features: Any = None,
    ) -> Self:
        """Fit the factors to an interaction matrix.

        Parameters
        ----------
        X : sparse matrix, array, Interactions or frame, shape (n_users, n_items)
            Values >= 0; a zero means "not observed". Duplicates are added. Not modified, but its arrays may
            be shared with the model: change a copy. ``values`` says how they become weights. A frame
            (pandas, polars, arrow) of users, items, values and times is read by the names of its columns, as
            `rgals.datasets.read_interactions` does, and gives the model its ids. A frame is a matrix if all
            its columns are numeric and none is called like a user, item, value or time, but not if it has
            two to four columns, all integers; anything else is refused. Arrays may be those of torch or cupy.
        y : ignored
        validation : sparse matrix, Interactions or frame, shape (n_users, n_items), optional
            Held-out interactions: ``metric`` is measured on them after every iteration, or epoch (not
            counted in the history's seconds). Interactions of ``X`` are excluded from the rankings.
        callbacks : callable or sequence of callables, optional
            Called with an `rgals.training.Iteration` after every iteration; returning true ends the fit.
            BLAS has one thread meanwhile.
        checkpoint : path or Checkpoint, optional
            Folder to write checkpoints to, after every iteration or as `rgals.Checkpoint` says. If it holds
            one of this fit already, the fit resumes there and ends with the bytes of an uninterrupted one.
        user_ids, item_ids : array of distinct labels, optional
            External ids of rows and columns, saved with the model; taken from ``X`` where it has some.
        columns : dict or "matrix", optional
            How to read a frame: ``{"user": "who", "item": "what"}`` names the columns (also ``value``,
            ``timestamp``; or give positions, from 0), "matrix" says that its columns are items.
        user_features, item_features : sparse matrix, array, frame or (ids, matrix), optional
            Features of users and items, for `RGALS`: a row each, in the order of ``X``, or in any order with
            ids, in a pair or in the column ``user`` or ``item`` of a frame (or a usual name, as ``movieId``).
            Numbers of a frame are standardised, any other column becomes a column for each of its values.
            Factors are pulled to a prediction from their features, which is all that users and items without
            interactions have; with ids these need not be in ``X``. See `rgals.solvers.prior`.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            A parameter is out of range.
        InputError, InputTypeError, ShapeError
            The matrix cannot be used; the message names the row and the column.
        NumericalError
            A system cannot be solved, or training diverged; the message names the iteration and the row.
        InsufficientMemoryError
            The fit needs more memory than there is; raised before it is allocated.
        CheckpointError
            The checkpoint belongs to another fit.

        Warns
        -----
        ValuesWarning
            ``values="auto"`` does not take the values as weights, or they look like ratings, of which low
            ones mean dislike.

        Notes
        -----
        The outcome is published at the end, all at once: whatever ends a fit before, an error or Ctrl-C,
        leaves the model as it was, and other threads may use it in the meantime.
        """
        given = plain_copy(self)  # another thread may set parameters, or refit, during this fit
        given.loss = plain_copy(self.loss)
        params = parameters_of(given)
        callbacks = Watch(callbacks).callbacks  # checked before the data are read
        asked = {"validation": validation, "callbacks": callbacks, "checkpoint": checkpoint}
        features = {"user_features": user_features, "item_features": item_features}
        dtype = given._check(asked | features)
        checkpoint = read_checkpoint(checkpoint)
        matrix, labels, names = read(given, X, dtype, user_ids, item_ids, columns)
        matrix, labels, priors, encodings = with_features(given, matrix, labels, features)
        if getattr(given, "warm_start", False) and getattr(given, "_snapshot", None) is not None:
            given._snapshot = in_order(given._snapshot, labels)
        split = given.early_stopping and validation is None
        chosen = given._choose(matrix, priors)
        vars(given).update(chosen)
        if getattr(given, "user_mean", False) and given.reg != 0:  # reg=0: nothing would pull users to it
            priors = mean_prior(matrix.row_counts, 1.0), priors[1]
        weighting = halving(weigh(given.values, matrix), getattr(given, "half_life", None), matrix)
        given.values = weighting.kind  # for the description in a checkpoint
        room = weighting.bytes(matrix)
        if any(priors):
            steps, coupled = given.solver == "pcg", given._get_loss(given.loss).couples_items()
            room += prior_bytes(priors, given.K, dtype.itemsize, (steps, steps or coupled))
        if given.early_stopping and priors[0] is not None:  # the best iterate keeps its user factors too
            room += matrix.n_rows * given.K * dtype.itemsize
        judged = given.early_stopping or validation is not None
        given._check_memory(matrix, dtype, weights=room, split=split, judged=judged)
        seed, store = open_store(checkpoint, given._checkpoint, given.random_state)
        weighted = weighting.rows(matrix)
        train, held_out = divide(given, weighted, labels, validation, seed, names, columns)
        known = Snapshot(np.empty((0, 0)), np.empty((0, 0)), train, priors=priors)
        watch = Watch(callbacks, given, known, held_out)
        aged = weighting.half_life is not None
        task = Task(weighted, train, held_out, dtype, seed, store, watch, priors, aged)
        state, history, solver = given._train(task)
        for row in history:
            row.update(chosen)
        record = FitRecord(params, history, len(history), solver, names)
        found: Any = {"seen": matrix, "user_ids": labels[0], "item_ids": labels[1], "record": record}
        # One assignment, so that neither a signal nor another thread sees half of it.
        self._snapshot = replace(state, weighting=weighting, encodings=encodings, **found)
        return self
