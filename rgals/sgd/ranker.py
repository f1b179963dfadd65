"""SGDRanker: parameters -> validate -> train -> publish one fitted state."""

from __future__ import annotations

import os
from collections.abc import Sequence
from copy import copy
from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from rgals.matrix.csr import CSR
from rgals.model.ranking import FactorRanker
from rgals.model.state import Snapshot
from rgals.runtime.checks import check_choice, check_int, check_real
from rgals.runtime.errors import ParameterError
from rgals.runtime.memory import typed_errors
from rgals.runtime.threads import workers
from rgals.sgd import file as _model_file
from rgals.sgd._memory import check_memory
from rgals.sgd.epochs import CHECKPOINT, Epochs
from rgals.sgd.losses import get_loss
from rgals.sgd.optimizers import get_optimizer
from rgals.sgd.samplers import SAMPLERS
from rgals.sgd.schedules import get_schedule
from rgals.training.checkpoint import Checkpoint, describe, open_store, plain
from rgals.training.data import divide, dtype_name, read, start_factors
from rgals.training.run import run
from rgals.training.steps import Callback
from rgals.training.watch import make_watchers

SCORES = ("dot", "cosine")
DECAYS = ("coupled", "decoupled", "frequency")
# Parameters that a checkpoint holds in a form of their own, and those that change no bit.
_DESCRIBED = {"loss", "optimizer", "momentum", "n_epochs", "dtype", "random_state", "warm_start"}
_DESCRIBED |= {"early_stopping", "patience", "metric"}
_FREE = {"n_jobs", "verbose"}


@dataclass(eq=False, repr=False)
class SGDRanker(FactorRanker, BaseEstimator):
    """Matrix factorisation for top-K ranking by stochastic gradient descent on a ranking loss.

    The reference that `rgals.RGALS` is compared with: numpy, BLAS and numba, no deep-learning framework.
    Results do not depend on the number of threads.

    Parameters
    ----------
    K : int, default=64
        Number of factors.
    loss : str or loss object, default="softmax"
        Over the whole catalogue: ``"softmax"``, ``"softmax_at_k"``, ``"sparsemax"``, ``"rg2"``,
        ``"rgx"``. With sampled negatives: ``"sampled_softmax"``, ``"sampled_cce"``, ``"bpr"``, ``"bce"``. See
        `rgals.sgd.losses`.
    score : {"cosine", "dot"}, default="cosine"
    temperature : float > 0, default=0.2
        Scores are divided by it before they reach the loss. Usual: 0.05 to 0.3 for cosine, 1 for dot.
    n_negatives : int, default=100
        Per positive, or per batch when shared; not used for in-batch negatives and full losses.
    sampler : {"uniform", "popularity", "in_batch"}, default="uniform"
        Where negatives come from; see `rgals.sgd.samplers.Sampler`.
    gamma : float, default=0.75
        ``sampler="popularity"`` draws item y in proportion to ``c_y ** gamma``.
    shared_negatives : bool, default=False
        One set of negatives for a whole batch.
    exclude_positives : bool, default=False
        Never use a user's own items as negatives.
    replacement : bool, default=True
        Whether one row may draw an item twice.
    optimizer : {"lazy_adam", "adam", "adagrad", "sgd"} or Optimizer, default="lazy_adam"
    lr : float > 0, default=0.02
    momentum : float in [0, 1), default=0
        Of ``optimizer="sgd"``.
    weight_decay : float >= 0, default=0
    decay : {"coupled", "decoupled", "frequency"}, default="coupled"
        ``"coupled"`` adds ``weight_decay * factor`` to the gradient of a batch's *mean* loss, for the rows
        that are updated; ``"decoupled"`` shrinks them directly. ``"frequency"`` (full losses) adds
        ``weight_decay * sum_x c_x |p_x|^2 + weight_decay * sum_y (c_y + D/N)/2 |q_y|^2`` to the total loss,
        c being degrees and D their sum: a row is held in proportion to how often it takes part.
    schedule : {"constant", "linear", "cosine", "sqrt"} or callable, default="constant"
        Factor of the learning rate; see `rgals.sgd.schedules.get_schedule`.
    warmup : float in [0, 1), default=0
        Share of the training during which the learning rate rises from 0.
    batch_size : int, optional
        Users for full losses (default 256), positives for sampled ones (default 4096).
    n_epochs : int, default=30
    init_scale : float > 0, default=0.1
        Standard deviation of the initial factors.
    early_stopping : bool, default=False
        Stop when ``metric`` has not improved for ``patience`` epochs and return to the best epoch. Without a
        ``validation`` matrix, a tenth of every user's interactions is held out.
    patience : int, default=5
    metric : str, default="ndcg@10"
    warm_start : bool, default=False
        Start from the factors of the last fit. The optimiser starts afresh.
    dtype : {"float32", "float64"}, default="float32"
    n_jobs : int, optional
        Threads; None for all.
    random_state : int, RandomState, Generator or None
    verbose : int, default=0
        1 shows a progress bar.

    Attributes
    ----------
    user_factors_, item_factors_ : ndarray, shape (n_users, K), (n_items, K)
        As they are scored: unit length for cosine.
    n_iter_ : int
        Epochs that were run.
    history_ : list of dict
        Per epoch: iteration, seconds, objective, the metric where there is validation.

    Examples
    --------
    >>> import numpy as np, scipy.sparse as sp
    >>> from rgals.sgd import SGDRanker
    >>> X = sp.csr_array(np.kron(np.eye(2), np.ones((6, 5))))
    >>> model = SGDRanker(K=4, n_epochs=20, random_state=0).fit(X)
    >>> scores = model.user_factors_ @ model.item_factors_.T
    >>> bool(scores[0, :5].min() > scores[0, 5:].max())
    True
    """

    K: int = 64
    loss: Any = "softmax"
    _: KW_ONLY
    score: str = "cosine"
    temperature: float = 0.2
    n_negatives: int = 100
    sampler: str = "uniform"
    gamma: float = 0.75
    shared_negatives: bool = False
    exclude_positives: bool = False
    replacement: bool = True
    optimizer: Any = "lazy_adam"
    lr: float = 0.02
    momentum: float = 0.0
    weight_decay: float = 0.0
    decay: str = "coupled"
    schedule: Any = "constant"
    warmup: float = 0.0
    batch_size: int | None = None
    n_epochs: int = 30
    init_scale: float = 0.1
    early_stopping: bool = False
    patience: int = 5
    metric: str = "ndcg@10"
    warm_start: bool = False
    dtype: Any = "float32"
    n_jobs: int | None = None
    random_state: Any = None
    verbose: int = 0

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
    ) -> SGDRanker:
        """Train on an interaction matrix.

        Parameters
        ----------
        X : sparse matrix, array or Interactions, shape (n_users, n_items)
            Weights >= 0. Not modified.
        y : ignored
        validation : sparse matrix, shape (n_users, n_items), optional
            Held-out interactions; ``metric`` is measured on them after every epoch, outside the clock.
        callbacks : callable or sequence of callables, optional
            Called with an `rgals.training.Iteration` after every epoch; a true answer ends the fit. BLAS has
            one thread meanwhile.
        checkpoint : path or Checkpoint, optional
            Folder to write checkpoints to, after every epoch or as `rgals.Checkpoint` says. Where it holds
            one of this fit already, the fit goes on from there and ends with the bytes of an uninterrupted
            one.
        user_ids, item_ids : array of distinct labels, optional
            Travel with the saved model.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            A parameter is out of range.
        InputError, InputTypeError, ShapeError
            The matrix cannot be used.
        InsufficientMemoryError
            The fit needs more memory than there is; raised before it is allocated.
        NumericalError
            Training diverged; the message names the epoch. Lost are all of them, but for checkpoints.
        CheckpointError
            The checkpoint belongs to another fit.

        Notes
        -----
        The outcome is published at the end, all at once: whatever ends a fit before, an error or Ctrl-C,
        leaves the model as it was, and other threads may use it in the meantime.
        """
        given = copy(self)  # parameters and last fit as they are now, whatever is set meanwhile
        dtype = given._check_parameters()
        if checkpoint is not None and not isinstance(given.schedule, str):
            raise ParameterError(
                "schedule", given.schedule, "a checkpoint cannot hold a function; give the name of a schedule"
            )
        matrix, labels, names = read(given, X, dtype, user_ids, item_ids)
        check_memory(given, matrix, dtype, split=given.early_stopping and validation is None)
        seed, store = open_store(checkpoint, CHECKPOINT, given.random_state)
        train, held_out = divide(matrix, validation, given.early_stopping, seed)
        if store is not None:
            store.description = given._describe(matrix, held_out)
        watchers, best = make_watchers(given, train, held_out, callbacks)
        rng = np.random.default_rng(seed)
        order = int(rng.integers(1 << 62))
        start = start_factors(given, matrix.shape, 2, rng, dtype, given.init_scale)
        with workers(given.n_jobs):
            factors, history = run(
                Epochs(given, train, start, order),
                given.n_epochs,
                watchers=watchers,
                best=best,
                store=store,
                verbose=bool(given.verbose),
            )
        state = Snapshot(factors["user_factors"], factors["item_factors"], matrix, *labels)
        return self._publish(state, given, history, "sgd", names)

    def _describe(self, matrix: CSR, held_out: CSR | None) -> dict[str, Any]:
        """Everything that decides the bytes of a fit, as a checkpoint keeps it."""
        optimizer = get_optimizer(self.optimizer, self.momentum)
        constant = self.schedule == "constant" and self.warmup == 0
        decisive = sorted(set(self.get_params(deep=False)) - _DESCRIBED - _FREE)
        return {
            **describe(self, get_loss(self.loss), decisive, 2, matrix, held_out),
            "optimizer": [type(optimizer).__name__, plain(asdict(optimizer))],
            "n_epochs": None if constant else self.n_epochs,  # schedules go by the share of the epochs
        }

    def _check_parameters(self) -> Any:
        check_int("K", self.K, 1, 1 << 15)
        get_loss(self.loss)
        check_choice("score", self.score, SCORES)
        check_real("temperature", self.temperature, 0, open_min=True)
        check_int("n_negatives", self.n_negatives, 1)
        check_choice("sampler", self.sampler, SAMPLERS)
        check_real("gamma", self.gamma)
        get_optimizer(self.optimizer, self.momentum)
        check_real("lr", self.lr, 0, open_min=True)
        check_real("weight_decay", self.weight_decay, 0)
        check_choice("decay", self.decay, DECAYS)
        if self.decay == "frequency" and get_loss(self.loss).kind != "full":
            raise ParameterError(
                "decay", self.decay, "losses with sampled negatives take 'coupled' or 'decoupled'"
            )
        if not 0 <= check_real("warmup", self.warmup) < 1:
            raise ParameterError("warmup", self.warmup, "give a number in [0, 1)")
        get_schedule(self.schedule, self.warmup)
        if self.batch_size is not None:
            check_int("batch_size", self.batch_size, 1)
        check_int("n_epochs", self.n_epochs, 1)
        check_real("init_scale", self.init_scale, 0, open_min=True)
        check_int("patience", self.patience, 1)
        check_choice("dtype", dtype_name(self.dtype), ("float32", "float64"))
        return np.dtype(self.dtype)

    def save(self, path: str | os.PathLike) -> None:
        """Write the fitted model to one file (npz without pickle), atomically.

        The file holds one fit and the parameters that it was fitted with, even while another thread refits.

        Parameters
        ----------
        path : str or path
            Used exactly as given.

        Raises
        ------
        InputTypeError
            The loss, optimiser or schedule is an object of the caller's, which a file cannot hold.
        """
        _model_file.save(self._state(), path)

    @classmethod
    def load(cls, path: str | os.PathLike) -> SGDRanker:
        """Read a model that `save` wrote.

        Parameters
        ----------
        path : str or path

        Returns
        -------
        SGDRanker

        Raises
        ------
        ModelFileError
            The file is damaged, of a newer version or not a model of this kind.
        """
        return _model_file.load(cls, path)
