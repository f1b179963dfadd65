"""DaskRGALS: `RGALS` on a Dask cluster."""

import os
import time
from copy import copy
from dataclasses import KW_ONLY, dataclass, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np
from sklearn.exceptions import NotFittedError

from rgals.cluster import tasks
from rgals.cluster.als import ClusterALS, ClusterProblem
from rgals.cluster.graph import Graphs, client_of
from rgals.cluster.shards import Shards, shards_of
from rgals.estimator import RGALS
from rgals.model.state import FitRecord, FittedState, parameters_of
from rgals.runtime.aligned import LINE
from rgals.runtime.checks import RANGES, check_choice, check_int, plain_copy
from rgals.runtime.errors import InputError, InsufficientMemoryError, ParameterError, PrecisionWarning, warn
from rgals.runtime.lazy import cached_property
from rgals.runtime.memory import readable
from rgals.scoring._streaming import Written
from rgals.scoring._tables import check_writable
from rgals.scoring._topk import is_matrix
from rgals.solvers.plan import padded
from rgals.solvers.readout import readout_scale, with_scale
from rgals.training.checkpoint import open_store, read_checkpoint
from rgals.training.fit import RANDOM, check_parameters, describe_fit, stages, taken, when_settled
from rgals.training.run import Watch, run

_OWN = ("client", "n_blocks")  # parameters that `RGALS` does not have
#: Values that a cluster supports of parameters for which `RGALS` has more.
_SUPPORTED: dict[str, tuple] = {
    "solver": ("auto", "exact"),
    "device": ("cpu",),
    "init": ("auto", "random"),
    "hard_negatives": (None,),
    "early_stopping": (False,),
    "warm_start": (False,),
    "half_life": (None,),
    "user_mean": ("auto", False),
}


@dataclass(frozen=True)
class _ClusterFit:
    """A fit whose factors are on the workers."""

    outline: FittedState  # without factors, interactions and ids
    shards: Shards  # of the matrix as it was given, before weighting
    users: list[Any]  # futures of `tasks.Table`, one for each block
    items: list[Any]

    @cached_property
    def local(self) -> FittedState:
        """The whole fit in the client's memory, fetched once."""
        graphs, outline = self.shards.graphs, self.outline
        blocks = [[part.array for part in graphs.results(side)] for side in (self.users, self.items)]
        users, items = map(np.concatenate, blocks)
        user_ids, item_ids = graphs.results(self.shards.labels)
        return replace(
            outline,
            user_factors=users,
            item_factors=with_scale(items, outline.item_scale),
            seen=self.shards.load(),
            user_ids=user_ids,
            item_ids=item_ids,
        )


@dataclass(eq=False, repr=False)
class DaskRGALS(RGALS):
    """`RGALS` on a Dask cluster: the same model, fitted by blocks of rows on the workers.

    Each worker holds its blocks of the matrix, and during a half-step all factors of one side. Neither
    interactions nor factors pass through the client, which holds the margins: some ten numbers a row. The
    bits of a fit depend on ``n_blocks``, not on the workers, their threads or the order in which they finish.
    Scores are, up to rounding, those of a fit in one process with the same start and ``user_mean=False``.

    Parameters
    ----------
    K, loss, reg, reg_exponent, n_iter, dtype, init_scale, readout_exponent, tol, values
        As in `RGALS`.
    random_state, verbose
        As in `RGALS`.
    init : {"auto", "random"}, default="auto"
        The random start of `RGALS`; "auto" is "random" here.
    n_jobs : int or None, default=None
        Threads of the methods of a fitted model. On the cluster, each thread of a worker computes a block.
    user_mean : {"auto", False}, default="auto"
        Users are pulled to zero: "auto" is False here.
    solver, device, hard_negatives, early_stopping, warm_start, half_life
        Only the defaults, or ``solver="exact"``, are accepted.
    pcg_steps, feature_reg, patience, metric, validation_users
        Ignored by a fit on a cluster; `score` and the model of `to_local` use them.
    client : dask.distributed.Client or None, default=None
        None for the client that was created last. Pickles and files do not contain it.
    n_blocks : int or None, default=None
        Blocks of the rows of either side; None for one per million interactions, 8 to 128. There should be
        several for each thread of the cluster.

    Attributes
    ----------
    client_ : dask.distributed.Client
        What the fit ran on.
    history_, loss_, reg_, params_, n_iter_, solver_
        As in `RGALS`. Other attributes and methods bring the model to the client, once, as `to_local` does.
        After an update (`partial_fit`, `forget_users`) the model is on the client only.

    See Also
    --------
    RGALS

    Examples
    --------
    >>> from dask.distributed import Client  # doctest: +SKIP
    >>> from rgals.cluster import DaskRGALS
    >>> client = Client("tcp://scheduler:8786")  # doctest: +SKIP
    >>> model = DaskRGALS(K=64, client=client).fit("/shared/events/")  # doctest: +SKIP
    >>> model.recommend_all("/shared/lists/")  # doctest: +SKIP
    >>> local = model.to_local()  # doctest: +SKIP
    >>> DaskRGALS(K=64, n_blocks=16)
    DaskRGALS(n_blocks=16)
    """

    _: KW_ONLY
    client: Any = None
    n_blocks: int | None = None

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        validation: Any = None,
        callbacks: Any = None,
        checkpoint: Any = None,
        user_ids: Any = None,
        item_ids: Any = None,
        columns: Any = None,
        user_features: Any = None,
        item_features: Any = None,
    ) -> Self:
        """Fit the factors on the cluster.

        Parameters
        ----------
        X : dask array, dask dataframe, path or paths, or what `RGALS.fit` takes
            The chunks of a dask array are rows, as scipy CSR matrices. A dask dataframe is a table of users,
            items and values, whose ids are numbered on the workers. Paths name files that
            `rgals.datasets.read_interactions` reads, or folders of them; the workers read these, and stores
            (`rgals.matrix.open_matrix`, or their paths). Ids are texts if one of the files has a text.
            Anything else passes through the client and suits small data.
        y : ignored
        validation, user_features, item_features : None
            Anything else is refused by name.
        callbacks : callable or sequence of callables, optional
            As in `RGALS.fit`; factors come to the client when a callback asks for them.
        checkpoint : path or Checkpoint, optional
            As in `RGALS.fit`: a folder of the client, where factors are written after every iteration.
        user_ids, item_ids, columns
            As in `RGALS.fit`.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            A parameter is out of range, or cannot work on a cluster; or there is no client.
        MissingDependencyError
            dask.distributed is not installed.
        RgalsError
            A block was lost with every worker that had it, or no worker or no scheduler is left; the message
            names what was lost.
        """
        none = {"validation": validation, "user_features": user_features, "item_features": item_features}
        for name, value in none.items():
            if value is not None:
                raise ParameterError(name, "given", "DaskRGALS takes none; fit RGALS, or leave it out")
        given = plain_copy(self)
        given.loss = plain_copy(self.loss)
        dtype = check_parameters(given, {"checkpoint": checkpoint})
        checkpoint = read_checkpoint(checkpoint)
        for name, possible in _SUPPORTED.items():
            value = getattr(given, name)
            if not any(value is one or (isinstance(one, str) and value == one) for one in possible):
                line = " or ".join(map(repr, possible))
                raise ParameterError(name, value, f"on a cluster it must be {line}; fit RGALS for others")
        RANGES["int > 0, optional"]("n_blocks", given.n_blocks)
        with Graphs(client_of(given.client)) as graphs:
            found: Any = given._fit_on(graphs, X, dtype, callbacks, checkpoint, (user_ids, item_ids), columns)
        self._snapshot, self.client_ = found, graphs.client
        return self

    def _fit_on(
        self, graphs: Graphs, X: Any, dtype: Any, callbacks: Any, checkpoint: Any, ids: Any, columns: Any
    ) -> _ClusterFit:
        params = {k: v for k, v in parameters_of(self).items() if k not in _OWN}
        shards: Any = shards_of(graphs, self, X, dtype, ids, columns)
        self._check_workers(graphs, shards, dtype)
        weighting = shards.weigh(self.values)
        self.values = weighting.kind
        seed, store = open_store(checkpoint, self._checkpoint, self.random_state)
        problem: Any = ClusterProblem(graphs, self, shards, weighting, dtype)
        scale = readout_scale(problem.degrees, float(self.readout_exponent), dtype)
        if store is not None:
            description = describe_fit(self, problem.loss, problem.solver, RANDOM, shards, None, (None, None))
            store.description = {"n_blocks": len(shards.users), **description}
        spread = self.K**-0.5 if self.init_scale is None else self.init_scale
        steps = ClusterALS(problem, problem.start(np.random.default_rng(seed), spread), scale)
        most, settled = stages(self, None)[1], when_settled(self, problem)
        watch, shown = Watch(callbacks), bool(self.verbose)
        _, history = run(steps, most, tol=self.tol, settled=settled, watch=watch, store=store, verbose=shown)
        users, items, said = steps.finish()
        for line in said[:1]:
            warn(line, PrecisionWarning)
        for row in history:
            row.update(taken(self, problem, RANDOM))
        none = np.empty((0, self.K), dtype)
        outline = FittedState(
            user_factors=none,
            item_factors=none,
            item_scale=scale,
            readout_exponent=float(self.readout_exponent),
            loss=problem.loss,
            reg=problem.reg,
            reg_exponent=problem.reg_exponent,
            degrees=problem.degrees.alone(),
            weighting=weighting,
            record=FitRecord(params, history, len(history), problem.solver, shards.names),
        )
        return _ClusterFit(outline, shards, users, items)

    def _check_workers(self, graphs: Graphs, shards: Shards, dtype: Any) -> None:
        """Raise `InsufficientMemoryError` if a worker cannot hold the larger side in a half-step."""
        # The fixed side twice: its blocks, and all of them in one piece.
        itemsize = np.dtype(dtype).itemsize
        needed = max(shards.shape) * (self.K + padded(self.K, LINE // itemsize)) * itemsize
        for address, worker in graphs.client.scheduler_info(n_workers=-1)["workers"].items():
            if 0 < (worker["memory_limit"] or 0) < needed:
                raise InsufficientMemoryError(
                    f"a fit with K={self.K} of {shards.shape[0]:,} users and {shards.shape[1]:,} items needs "
                    f"about {readable(needed)} on every worker, for the factors of one side; {address} has "
                    f"{readable(worker['memory_limit'])}. Give workers more, or lower K"
                )

    # A fit publishes a `_ClusterFit`, an update a `FittedState`: its model is on the client only.
    def _outline(self) -> FittedState:
        found: Any = super()._state()
        return found.outline if isinstance(found, _ClusterFit) else found

    def _state(self) -> FittedState:
        found: Any = super()._state()
        return found.local if isinstance(found, _ClusterFit) else found

    def to_local(self) -> RGALS:
        """The fitted model in the client's memory: an ordinary `RGALS`.

        Returns
        -------
        RGALS

        Raises
        ------
        NotFittedError
            There is no fit.
        """
        model = RGALS(**{k: v for k, v in parameters_of(self).items() if k not in _OWN})
        model._snapshot = self._state()
        return model

    def recommend_all(
        self,
        out: str | os.PathLike,
        n: int = 10,
        *,
        exclude: str | None = "train",
        candidates: Any = None,
        exclude_items: Any = None,
    ) -> Written:
        """Write the best items of every user, on the cluster: a parquet file for each block of users.

        Parameters
        ----------
        out : str or path
            An empty folder, or none yet, that client and workers reach by the same path.
        n : int, default 10
            Items for each user.
        exclude : {"train", None}, default "train"
        candidates, exclude_items : sequence of item ids, or Positions, optional
            As in `rgals.scoring.recommend_all`, which has the columns of the files, too.

        Returns
        -------
        Written
            Named tuple: path, users, served, rows, resumed, seconds.

        Raises
        ------
        NotFittedError
            There is no fit on a cluster; a loaded, unpickled or updated model has
            `rgals.scoring.recommend_all`.
        ParameterError
            A parameter is out of range; ``candidates`` is a matrix.
        InputError
            The folder is not empty.
        """
        remote: Any = getattr(self, "_snapshot", None)
        if not isinstance(remote, _ClusterFit):
            raise NotFittedError("no fit on a cluster: call fit, or rgals.scoring.recommend_all(model, out)")
        check_int("n", n, 1)
        check_choice("exclude", exclude, ("train", None))
        if is_matrix(candidates):  # a matrix has rows of all users, and tasks have blocks of them
            raise ParameterError("candidates", "a matrix", "give one list of item ids for all users")
        folder, began = os.path.abspath(out), time.perf_counter()
        graphs, n_blocks = Graphs(remote.shards.graphs.client), len(remote.users)
        # Labels of all blocks at once: two that read alike may be in different blocks.
        sides = ("parquet", "parquet"), remote.shards.labels, ("user", "item")
        graphs.results(graphs.each("lists-ids", check_writable, *sides))
        os.makedirs(folder, exist_ok=True)
        if os.listdir(folder):
            raise InputError(f"{folder} is not empty; give a new folder, or remove what is there")
        filters = {"n": n, "exclude": exclude, "candidates": candidates, "exclude_items": exclude_items}
        items = graphs.one("lists-items", tasks.item_table, remote.items, remote.outline.item_scale)
        paths = [os.path.join(folder, f"part-{i:05d}-of-{n_blocks:05d}.parquet") for i in range(n_blocks)]
        of = paths, remote.users, remote.shards.users, pairwise(remote.shards.cuts.tolist())
        always = (items, *remote.shards.labels, filters)
        written = graphs.results(graphs.each("lists", tasks.write_lists, *of, always=always))
        n_users, served, rows = map(sum, zip(*written, strict=True))
        return Written(os.fspath(out), n_users, served, rows, 0, time.perf_counter() - began)

    def __copy__(self) -> Self:
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def __sklearn_clone__(self) -> Self:
        alone = copy(self)
        alone.client = None
        made = super(DaskRGALS, alone).__sklearn_clone__()
        made.client = self.client
        return made

    def __getstate__(self) -> dict[str, Any]:
        kept = super().__getstate__() | {"client": None}
        kept |= {"_snapshot": self._state()} if "_snapshot" in kept else {}
        return {name: value for name, value in kept.items() if name != "client_"}
