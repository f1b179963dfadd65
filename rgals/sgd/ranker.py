"""SGDRanker: its parameters and their checks, the memory of a fit, its files and checkpoints."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from rgals.losses import Degrees
from rgals.matrix.csr import CSR
from rgals.matrix.weighting import AUTO, VALUES
from rgals.model.file import ModelFormat, model_spec, pack_object, unpack_object
from rgals.model.state import Snapshot
from rgals.runtime.checks import RANGES, check_choice, check_int, or_auto
from rgals.runtime.errors import InputTypeError, ParameterError, warn
from rgals.runtime.sklearn import BaseEstimator
from rgals.runtime.threads import n_threads, workers
from rgals.sgd.defaults import AUTOMATIC, setting
from rgals.sgd.epochs import BATCH, CHECKPOINT, CHUNK, TILE, Epochs
from rgals.sgd.graph import ENCODERS
from rgals.sgd.losses import LOSSES, List, Softmax, get_loss
from rgals.sgd.optimizers import OPTIMIZERS, get_optimizer, get_schedule
from rgals.sgd.samplers import SAMPLERS
from rgals.training.base import Task, Trained
from rgals.training.checkpoint import describe, plain
from rgals.training.data import admit, dtype_name, start_factors
from rgals.training.run import run

_CHOICES = {"score": (AUTO, "cosine", "dot"), "encoder": tuple(ENCODERS), "sampler": SAMPLERS}
_CHOICES |= {"decay": ("coupled", "decoupled", "frequency"), "values": VALUES}
_PARAMETERS = {  # by the key of `RANGES` that checks them
    "float > 0": ("temperature", "lr", "init_scale"),
    "float >= 0": ("weight_decay", "contrast"),
    "float in [0, 1)": ("momentum", "warmup"),
    "float": ("offset", "gamma"),
    "int > 0": ("n_epochs", "n_negatives", "n_layers", "patience"),
    "int > 0, optional": ("batch_size",),
    "bool": ("early_stopping", "exclude_positives", "replacement", "shared_negatives", "warm_start"),
}
# Parameters that `_describe` does not list by value: the first two change no bit, and a checkpoint holds the
# others in a form of their own.
_NOT_LISTED = {"n_jobs", "verbose", "loss", "optimizer", "momentum", "n_epochs", "dtype", "random_state"}
_NOT_LISTED |= {"warm_start", "early_stopping", "patience", "metric", "encoder", "n_layers", "contrast"}
_NOT_LISTED |= {"offset"}


class _Format(ModelFormat):
    losses: ClassVar = LOSSES

    def pack(self, params: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(params["schedule"], str):
            raise InputTypeError("a schedule that is a function cannot be saved; set schedule to a name")
        loss, optimizer = self.pack_loss(params["loss"]), params["optimizer"]
        return params | {"loss": loss, "optimizer": pack_object("optimizer", optimizer, OPTIMIZERS)}

    def unpack(self, params: dict[str, Any]) -> dict[str, Any]:
        loss, optimizer = self.unpack_loss(params["loss"]), params["optimizer"]
        return params | {"loss": loss, "optimizer": unpack_object(optimizer, OPTIMIZERS)}


@dataclass(eq=False, repr=False)
class SGDRanker(Trained, BaseEstimator):
    """Matrix factorisation for top-K ranking by stochastic gradient descent on a ranking loss.

    The reference that `rgals.RGALS` is compared with: numpy, BLAS and numba, no deep-learning framework.
    Results do not depend on the number of threads.

    Parameters
    ----------
    K : int, default=64
        Number of factors.
    loss : str or loss object, default="softmax"
        Over the whole catalogue: ``"softmax"``, ``"softmax_at_k"``, ``"sparsemax"``, ``"rg2"``,
        ``"rgx"``, ``"talos"`` and others. With sampled negatives: ``"sampled_softmax"``, ``"sampled_cce"``,
        ``"bpr"``, ``"bce"``, ``"bsl"``, ``"sampled_talos"`` and others. Of lists: ``"lambda_rank"``,
        ``"list_ndcg"`` and others. The table `rgals.sgd.losses.LOSSES` has all names.
    score : {"auto", "cosine", "dot"}, default="auto"
        "auto" is the ``score`` of the loss: "dot" for those that compare scores with a number (``"rg2"``,
        ``"mse"``, ...), else "cosine". With one factor, whose cosines are its signs, it is "dot".
        It hides scikit-learn's method of that name: `rgals.compare.compare` tunes, its searches do not.
    temperature : float > 0 or "auto", default="auto"
        Scores are divided by it before they reach the loss. Usual: 0.05 to 0.4 for cosine (``"sparsemax"``:
        30 to 150), 1 for dot; losses that have temperatures or margins of their own (``raw_scores``) take 1
        alone. What "auto" stands for, here and below, follows from the matrix, K and the loss
        (`rgals.sgd.defaults.setting`); ``params_`` tells what was taken.
    offset : float or "auto", default="auto"
        Subtracted from the scores after the temperature, for losses that compare them with a number. "auto"
        is 0; for binary cross-entropy over cosines or the catalogue log n, of n negatives for a positive.
    encoder : {"mf", "lightgcn", "xsimgcl"}, default="mf"
        What is scored: the factors themselves, or the mean of them and of their propagations over the graph
        of users and items (He et al. 2020), in which all interactions weigh the same, or that of noisy
        propagations alone, with a contrastive term beside the loss (Yu et al. 2024, usual: 3 layers). With a
        graph every step updates all rows, ``user_factors_`` and ``item_factors_`` are propagated, and
        ``warm_start`` is refused. The adversary of ``"adv_info_nce"`` is not propagated.
    n_layers : int, default=2
        Propagations over the graph.
    contrast : float >= 0, default=0.1
        Weight of the contrastive term of ``encoder="xsimgcl"`` (published: 0.05 to 0.2), which costs the
        square of the distinct items of a batch: a small ``batch_size`` suits losses over the whole catalogue.
    n_negatives : int or "auto", default="auto"
        Per positive, in lists too, or per batch when shared. In-batch negatives and full losses have none.
    sampler : {"uniform", "popularity", "in_batch"}, default="uniform"
        Where negatives come from. ``"in_batch"`` takes the positives of the other rows of the batch, which
        are distributed as with gamma = 1.
    gamma : float, default=0.75
        ``sampler="popularity"`` draws items in proportion to ``n ** gamma``, of n unweighted interactions.
    shared_negatives : bool, default=False
        One set of negatives for a whole batch.
    exclude_positives : bool, default=False
        Never use a user's own items as negatives; losses of lists never do. Otherwise they are drawn as all
        others are, but for the row's own positive if negatives are shared, in-batch or without replacement.
    replacement : bool, default=True
        Whether one row may draw an item twice; negatives of a batch (``sampler="in_batch"``) may repeat.
    optimizer : {"lazy_adam", "adam", "adagrad", "sgd"} or Optimizer, default="lazy_adam"
    lr : float > 0 or "auto", default="auto"
    momentum : float in [0, 1), default=0
        Of ``optimizer="sgd"``.
    weight_decay : float >= 0, default=0
    decay : {"coupled", "decoupled", "frequency"}, default="coupled"
        ``"coupled"`` adds ``weight_decay * factor`` to the gradient of a batch's *mean* loss, for the rows
        that are updated; ``"decoupled"`` shrinks them directly. ``"frequency"`` (full losses) adds
        ``weight_decay * sum_x c_x |p_x|^2 + weight_decay * sum_y (c_y + D/N)/2 |q_y|^2`` to the total loss,
        c being sums of weights and D that of all: rows are regularised in proportion to their weight. Full
        losses that sum over pairs need N times the decay of a loss with one negative, for N items.
    schedule : {"constant", "linear", "cosine", "sqrt"} or callable, default="constant"
        Factor of the learning rate. A callable takes the share of the training that is done, in [0, 1).
    warmup : float in [0, 1), default=0
        Share of the training during which the learning rate rises from 0.
    batch_size : int, "auto" or None, default="auto"
        Users for full losses and lists, else positives. None is 256 users, 64 lists or 4096 positives.
    n_epochs : int or "auto", default="auto"
        With ``early_stopping``, whose patience ends a fit, "auto" allows ten times as many.
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
    values : {"auto", "raw", "log1p", "binary", "bm25"}, default="auto"
        What an interaction weighs, as in `rgals.RGALS`.
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
        Per epoch: iteration, seconds, objective, the metric where there is validation, and what took the
        place of "auto".
    params_ : dict
        ``score``, ``temperature``, ``offset``, ``lr``, ``n_epochs``, ``batch_size``, ``n_negatives`` and
        ``values`` as they were taken: ``SGDRanker(...).set_params(**model.params_)`` fits the same.

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
    score: str = AUTO
    temperature: float | str = AUTO
    offset: float | str = AUTO
    encoder: str = "mf"
    n_layers: int = 2
    contrast: float = 0.1
    n_negatives: int | str = AUTO
    sampler: str = "uniform"
    gamma: float = 0.75
    shared_negatives: bool = False
    exclude_positives: bool = False
    replacement: bool = True
    optimizer: Any = "lazy_adam"
    lr: float | str = AUTO
    momentum: float = 0.0
    weight_decay: float = 0.0
    decay: str = "coupled"
    schedule: Any = "constant"
    warmup: float = 0.0
    batch_size: int | str | None = AUTO
    n_epochs: int | str = AUTO
    init_scale: float = 0.1
    early_stopping: bool = False
    patience: int = 5
    metric: str = "ndcg@10"
    warm_start: bool = False
    dtype: Any = "float32"
    n_jobs: int | None = None
    values: str = AUTO
    random_state: Any = None
    verbose: int = 0

    _checkpoint = CHECKPOINT
    _file: ClassVar[Any] = _Format("SGDRanker", model_spec("rgals-sgd-model", 1))
    _get_loss = staticmethod(get_loss)

    def _choose(self, matrix: CSR, priors: Any) -> dict[str, Any]:
        empty = int((matrix.col_counts == 0).sum())
        if empty > matrix.n_cols / 2:
            said = f"{empty:,} of {matrix.n_cols:,} columns of X have no interactions, but count as negatives"
            warn(f"{said}: lists are worse for it. Leave them out, as in X[:, X.sum(axis=0) > 0]")
        left = [name for name in AUTOMATIC if getattr(self, name) == AUTO]
        found = setting(self, Degrees.of(matrix)) if left else {}
        return {name: found[name] for name in left}

    def _check_memory(self, matrix: CSR, dtype: np.dtype, *, weights: int, split: bool, judged: bool) -> None:
        kind, needed = get_loss(self.loss).kind, fit_bytes(self, matrix, dtype.itemsize)
        sizes = [f"batch_size={self.batch_size or BATCH[kind]}", f"n_negatives={self.n_negatives}"]
        admit(needed + weights, self, matrix, dtype, split, *sizes[: 1 + (kind != "full")])

    def _train(self, task: Task) -> tuple[Snapshot, list[dict[str, Any]], str]:
        if task.store is not None:
            task.store.description = self._describe(task.matrix, task.held_out)
        rng = np.random.default_rng(task.seed)
        order = int(rng.integers(1 << 62))
        start = start_factors(self, task.train.shape, 2, rng, task.dtype, self.init_scale)
        start[0][task.matrix.row_counts == 0] = 0  # no step changes users without interactions
        most, shown = int(self.n_epochs), bool(self.verbose)
        with workers(self.n_jobs):
            steps = Epochs(self, task.train, start, order)
            factors, history = run(steps, most, watch=task.watch, store=task.store, verbose=shown)
        return Snapshot(factors["user_factors"], factors["item_factors"]), history, "sgd"

    def _describe(self, matrix: CSR, held_out: CSR | None) -> dict[str, Any]:
        """Everything that decides the bits of a fit, as a checkpoint stores it."""
        optimizer = get_optimizer(self.optimizer, self.momentum)
        constant = self.schedule == "constant" and self.warmup == 0
        decisive = sorted(set(self.get_params(deep=False)) - _NOT_LISTED)
        encoder = [self.encoder, self.n_layers, self.contrast]
        return {
            **describe(self, get_loss(self.loss), decisive, 2, matrix, held_out),
            # Checkpoints of version 0.2 have neither: parameters that change nothing are left out.
            **({} if encoder == ["mf", 2, 0.1] else {"encoder": encoder}),
            **({} if self.offset == 0 else {"offset": self.offset}),
            "optimizer": [type(optimizer).__name__, plain(dict(vars(optimizer)))],
            "n_epochs": None if constant else self.n_epochs,  # which decides how fast a schedule falls
        }

    def _check(self, asked: Mapping[str, Any]) -> np.dtype:
        check_int("K", self.K, 1, 1 << 15)
        for kind, names in _PARAMETERS.items():
            for name in names:
                check = partial(or_auto, RANGES[kind]) if name in AUTOMATIC else RANGES[kind]
                check(name, getattr(self, name))
        for name, choices in _CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        if self.encoder != "mf" and self.warm_start:
            advice = f"the factors of a fit with encoder={self.encoder!r} are propagated: give False"
            raise ParameterError("warm_start", True, advice)
        get_optimizer(self.optimizer, self.momentum)
        get_schedule(self.schedule, self.warmup)
        loss = get_loss(self.loss)
        own = type(loss).__name__
        if getattr(loss, "raw_scores", False) and self.temperature not in (AUTO, 1):
            raise ParameterError("temperature", self.temperature, f"{own} has its own; give 1, or 'auto'")
        needs_own = loss.kind == "list" or getattr(loss, "adversary", None) is not None
        if needs_own and (self.shared_negatives or self.sampler == "in_batch"):
            name = "shared_negatives" if self.shared_negatives else "sampler"
            raise ParameterError(name, getattr(self, name), f"{own} draws its own negatives for every row")
        if loss.kind != "full" and self.decay == "frequency":
            raise ParameterError("decay", self.decay, "losses with negatives take 'coupled' or 'decoupled'")
        if asked["checkpoint"] is not None and not isinstance(self.schedule, str):
            advice = "a checkpoint cannot hold a function; give the name of a schedule"
            raise ParameterError("schedule", self.schedule, advice)
        return np.dtype(check_choice("dtype", dtype_name(self.dtype), ("float32", "float64")))

    @property
    def params_(self) -> dict[str, Any]:
        """What was taken in place of "auto", beside what was set, by name."""
        state = self._state()
        given = {name: state.record.params[name] for name in AUTOMATIC}
        return {**given, **self._taken(), "values": state.weighting.kind}

    def _taken(self) -> dict[str, Any]:
        return {name: value for name, value in self.history_[0].items() if name in AUTOMATIC}


def fit_bytes(model: Any, matrix: CSR, itemsize: int) -> int:
    """Bytes that a fit of an `SGDRanker` allocates at its peak, beyond the matrix in canonical form."""
    loss, (n_users, n_items), row = get_loss(model.loss), matrix.shape, int(model.K) * itemsize
    graph, size = model.encoder != "mf", int(model.batch_size or BATCH[loss.kind])
    # Tables of all rows: factors, those of the best epoch, those of unit length, the optimiser's moments.
    tables = 1 + bool(model.early_stopping) + (graph or model.score == "cosine")
    tables += get_optimizer(model.optimizer, model.momentum).n_moments
    total = (n_users + n_items) * (tables * row + 8 + 2 * itemsize + 24)
    if graph:  # edges in both directions; gradients, layers and sums of all rows
        total += 8 * matrix.nnz + (n_users + n_items) * (16 + (5 if model.encoder == "lightgcn" else 7) * row)
    if loss.kind == "full":
        size = min(size, n_users)
        total += 8 * 3 * n_users + size * n_items * itemsize  # the order of the users; scores
        total += (3 * size + n_items) * row
        if type(loss) is not Softmax or itemsize == 8:
            # Temporary arrays of the loss: of one list per thread, or of a chunk of users.
            at_once = min(n_threads(model.n_jobs), -(-size // CHUNK))
            return total + (120 * at_once if isinstance(loss, List) else 4 * CHUNK * 8) * n_items
        n_tiles = -(-n_items // int(np.clip(TILE // size, 64, 512)))
        return total + n_tiles * size * (4 * int(model.K) + 28)
    # Negatives of a row, or of all rows that share them; for lists, items of the longest list.
    negatives = size if model.sampler == "in_batch" else int(model.n_negatives)
    if loss.kind == "list":
        negatives = (1 + negatives) * int(matrix.row_counts.max(initial=0))
        negatives = negatives if model.replacement else min(negatives, n_items)
    size = min(size, n_users if loss.kind == "list" else matrix.nnz)
    pairs = size * (1 + negatives)
    # User of every interaction and their order; tables of the sampler.
    total += matrix.nnz * (4 + 8) + 128 * n_items
    total += (4 * size + min(n_items, pairs) + min(n_users, size)) * row
    if getattr(loss, "adversary", None) is not None:
        total += 4 * (n_users + n_items) * (row + 8)  # factors, at unit length, at most two moments
        pairs *= 2
    if getattr(loss, "state", ()):
        total += 4 * n_users * (itemsize + 8) * len(loss.state)
        total += 4 * CHUNK * n_items * itemsize  # scores that thresholds are estimated from
    return total + pairs * (2 * itemsize + 8 + (12 if loss.kind == "list" else 4))
