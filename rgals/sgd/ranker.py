"""SGDRanker: parameters -> validate -> train -> publish one fitted state."""

from __future__ import annotations

import os
from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state

from rgals._errors import InputError, ParameterError
from rgals._ranker import FactorRanker
from rgals._snapshot import FitRecord, Snapshot, check_labels, parameters_of
from rgals._sparse import hold_out
from rgals._validation import as_csr, check_choice, check_int, check_real
from rgals.sgd import _model_file
from rgals.sgd._run import Callback, Run
from rgals.sgd.losses import get_loss
from rgals.sgd.optimizers import get_optimizer
from rgals.sgd.samplers import SAMPLERS
from rgals.sgd.schedules import get_schedule

SCORES = ("dot", "cosine")
DECAYS = ("coupled", "decoupled", "frequency")
_HOLD_OUT = 0.1  # share of every user's interactions that early stopping watches when none are given


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

    def __init__(
        self,
        K: int = 64,
        loss: Any = "softmax",
        *,
        score: str = "cosine",
        temperature: float = 0.2,
        n_negatives: int = 100,
        sampler: str = "uniform",
        gamma: float = 0.75,
        shared_negatives: bool = False,
        exclude_positives: bool = False,
        replacement: bool = True,
        optimizer: Any = "lazy_adam",
        lr: float = 0.02,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        decay: str = "coupled",
        schedule: Any = "constant",
        warmup: float = 0.0,
        batch_size: int | None = None,
        n_epochs: int = 30,
        init_scale: float = 0.1,
        early_stopping: bool = False,
        patience: int = 5,
        metric: str = "ndcg@10",
        warm_start: bool = False,
        dtype: Any = "float32",
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.K = K
        self.loss = loss
        self.score = score
        self.temperature = temperature
        self.n_negatives = n_negatives
        self.sampler = sampler
        self.gamma = gamma
        self.shared_negatives = shared_negatives
        self.exclude_positives = exclude_positives
        self.replacement = replacement
        self.optimizer = optimizer
        self.lr = lr
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.decay = decay
        self.schedule = schedule
        self.warmup = warmup
        self.batch_size = batch_size
        self.n_epochs = n_epochs
        self.init_scale = init_scale
        self.early_stopping = early_stopping
        self.patience = patience
        self.metric = metric
        self.warm_start = warm_start
        self.dtype = dtype
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        validation: Any = None,
        callbacks: Callback | Sequence[Callback] | None = None,
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
            Called with an `Epoch` after every epoch; a true answer ends the fit.
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
        NumericalError
            Training diverged.

        Notes
        -----
        The outcome is published at the end, all at once: whatever ends a fit before, an error or Ctrl-C,
        leaves the model as it was, and other threads may use it in the meantime.
        """
        given = copy(self)  # parameters and last fit as they are now, whatever is set meanwhile
        dtype = given._check_parameters()
        if hasattr(X, "matrix") and hasattr(X, "user_ids"):
            user_ids = X.user_ids if user_ids is None else user_ids
            item_ids = X.item_ids if item_ids is None else item_ids
            X = X.matrix
        matrix = as_csr(X, dtype=dtype)
        if matrix.nnz == 0:
            raise InputError(f"X has no interactions (shape {matrix.shape}); there is nothing to fit")
        labels = check_labels(user_ids, item_ids, matrix.shape)
        watchers = [] if callbacks is None else [callbacks] if callable(callbacks) else list(callbacks)
        for watcher in watchers:
            if not callable(watcher):
                raise ParameterError("callbacks", watcher, "give callables that take one argument")
        seed = _seed(given.random_state)
        rng = np.random.default_rng(seed)
        train, held_out = matrix, None
        if validation is not None:
            held_out = as_csr(
                validation, name="validation", dtype=dtype, n_rows=matrix.n_rows, n_cols=matrix.n_cols
            )
        elif given.early_stopping:
            train, held_out = hold_out(matrix, _HOLD_OUT, seed)
        run = Run(given, train, matrix, held_out, watchers, rng, dtype)
        factors = run.train()
        record = FitRecord(parameters_of(given), run.history, len(run.history), "sgd")
        # One assignment, so that neither a signal nor another thread sees half of it.
        self._snapshot = Snapshot(*factors, matrix, *labels, record)
        return self

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
        try:
            name: Any = np.dtype(self.dtype).name
        except TypeError:
            name = self.dtype
        check_choice("dtype", name, ("float32", "float64"))
        return np.dtype(name)

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


def _seed(random_state: Any) -> int:
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(1 << 31))
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))
