"""One fit: parameters and a matrix become a minimisation, its outcome a fitted state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import _check_feature_names, _check_n_features, _get_feature_names

from rgals import _memory
from rgals._aligned import empty
from rgals._callbacks import BestIterate, Validation
from rgals._csr import CSR
from rgals._errors import InputError, InputTypeError, ParameterError
from rgals._precision import warn_of_float32
from rgals._progress import ProgressBar
from rgals._snapshot import Snapshot
from rgals._threads import n_threads
from rgals._validation import as_csr, check_choice, check_int, check_real
from rgals.checkpoint import Progress, Store, digest, fingerprint
from rgals.cuda import check_factors, is_cuda
from rgals.losses import AUTO, Degrees, Loss, get_loss
from rgals.solvers import closed_form
from rgals.solvers.als import Callback, Iteration, Problem, State, als
from rgals.solvers.backends.base import Backend
from rgals.solvers.backends.cpu import CPUBackend
from rgals.solvers.backends.cupy import CuPyBackend
from rgals.solvers.backends.dense import DenseBackend

SOLVERS = ("auto", "exact", "pcg", "svd", "dense")
# Parameters that a checkpoint must share with the fit that goes on from it.
_DECISIVE = ("K", "reg", "reg_exponent", "init_scale", "tol", "early_stopping")
HOLD_OUT = 0.1  # share of every user's interactions that early stopping watches when none are given


@dataclass(frozen=True)
class FittedState(Snapshot):
    """Everything that a fit found, published as one object: a reader never sees half of a refit.

    Attributes
    ----------
    loss : Loss
        A copy of the loss that was fitted.
    reg, reg_exponent : float
    degrees : Degrees
        Margins of the training matrix, which a fold-in needs.
    """

    loss: Loss = None  # type: ignore[assignment]
    reg: float = 0.0
    reg_exponent: float = 1.0
    degrees: Degrees = None  # type: ignore[assignment]

    @cached_property
    def user_system(self) -> tuple[np.ndarray, np.ndarray]:
        """What the systems of all users share: ``Q^T diag(h) Q - i u u^T`` and ``u = Q^T h``, in float64."""
        coefficients = self.loss.coefficients_for(self.degrees)
        gram, u = np.zeros((self.item_factors.shape[1],) * 2), np.zeros(self.item_factors.shape[1])
        for start in range(0, len(self.item_factors), 1 << 14):
            part = self.item_factors[start : start + (1 << 14)].astype(np.float64)
            weighted = part * coefficients.h[start : start + (1 << 14), None]
            gram += part.T @ weighted
            u += weighted.sum(axis=0)
        return gram - coefficients.interaction * np.outer(u, u), u


def check_parameters(model: Any) -> tuple[Loss, Any]:
    """Check every parameter of an `RGALS`; returns a copy of its loss, and its dtype."""
    check_int("K", model.K, 1, 1 << 15)
    check_real("reg_exponent", model.reg_exponent, -4.0, 4.0)
    if not isinstance(model.reg, str):
        check_real("reg", model.reg, 0.0)
    elif model.reg != AUTO:
        raise ParameterError("reg", model.reg, "give a number >= 0, or 'auto'")
    check_int("n_iter", model.n_iter, 1)
    check_choice("solver", model.solver, SOLVERS)
    check_choice("dtype", dtype_name(model.dtype), ("float32", "float64"))
    check_device(model)
    check_real("tol", model.tol, 0.0)
    check_int("patience", model.patience, 1)
    check_int("pcg_steps", model.pcg_steps, 1)
    if model.validation_users is not None:
        check_int("validation_users", model.validation_users, 1)
    if model.init_scale is not None:
        check_real("init_scale", model.init_scale, 0.0, open_min=True)
    loss = get_loss(model.loss)
    if model.solver == "svd":
        closed_form.check_closed_form(loss, model.reg_exponent)
    # A copy, so that later changes of the parameter do not change a fitted model.
    return type(loss)(**loss.get_params()), np.dtype(dtype_name(model.dtype)).type


def check_device(model: Any) -> None:
    """Check ``device``, and that it takes the other parameters."""
    if not is_cuda(model.device):
        check_choice("device", model.device, ("cpu", "cuda", "cuda:N"))
        if model.device != "cpu":
            raise ParameterError("device", model.device, "N stands for a device's number, as in 'cuda:0'")
        return
    check_factors(model.K)
    if model.solver == "dense":
        raise ParameterError("solver", model.solver, "the float64 reference runs on device='cpu' only")


def exact_backend(model: Any) -> Backend:
    """Solves rows exactly, on the model's device."""
    return _backend(model, None)


def _backend(model: Any, steps: int | None) -> Backend:
    return CuPyBackend(model.device, steps) if is_cuda(model.device) else CPUBackend(model.n_jobs, steps)


def check_matrix(model: Any, X: Any, dtype: Any, *, n_items: int | None = None) -> CSR:
    """The matrix in canonical form; with ``n_items``, the number and names of its columns are the fit's."""
    if n_items is not None:
        _check_feature_names(model, X, reset=False)
    if sp.issparse(X) or isinstance(X, CSR):
        # A wrong number of items is named by `as_csr`, a right one by nobody.
        matrix = as_csr(X, dtype=dtype, n_cols=n_items)
        if matrix.n_rows == 0:
            raise InputError(f"Found array with 0 sample(s) (shape={matrix.shape}): X has no users")
        if matrix.n_cols == 0:
            raise InputError(f"Found array with 0 feature(s) (shape={matrix.shape}): X has no items")
        return matrix
    if X is None or isinstance(X, str | bytes | dict) or np.isscalar(X):
        raise InputTypeError(
            f"X must be a sparse matrix or a numeric array, users x items, not {type(X).__name__}"
        )
    try:
        # `as_csr` looks for NaN and infinity itself: it says where.
        X = check_array(X, dtype="numeric", ensure_all_finite=False, estimator=model, input_name="X")
        if n_items is not None:
            _check_n_features(model, X, reset=False)
    except ValueError as error:
        raise InputError(str(error)) from error
    except TypeError as error:
        raise InputTypeError(str(error)) from error
    return as_csr(X, dtype=dtype)


def column_names(X: Any) -> np.ndarray | None:
    """Names of the columns of a frame; None for what has none."""
    try:
        return _get_feature_names(X)
    except TypeError as error:
        raise InputTypeError(str(error)) from error


def check_memory(model: Any, matrix: CSR, dtype: Any) -> None:
    """Raise `InsufficientMemoryError` where a fit needs more memory than there is."""
    itemsize = np.dtype(dtype).itemsize
    n_users, n_items = matrix.shape
    needed = _memory.fit_bytes(
        matrix.shape,
        matrix.nnz,
        model.K,
        itemsize,
        valued=not matrix.is_binary,
        best=model.early_stopping,
        threads=n_threads(model.n_jobs),
        longest=int(max(matrix.row_counts.max(), matrix.col_counts.max())),
    )
    _memory.require(
        needed,
        f"a fit with K={model.K} of {n_users:,} users, {n_items:,} items and {matrix.nnz:,} interactions in "
        f"{np.dtype(dtype).name}",
        "lower K" + (" or use dtype='float32'" if itemsize == 8 else "") + ", or fit fewer users and items",
    )


def choose_reg(reg: float | str, problem: Problem) -> float:
    """The strength of the regularisation of a fit: the loss's rule where it is "auto".

    Rules speak of ``reg_exponent=1``, ``rho = reg W``. With another exponent nu, ``rho = reg_nu W^nu``, and
    ``reg_nu = reg W^(1 - nu)`` keeps the ridge of the mean interaction: W is the geometric mean, over the
    interactions and both sides, of the rows' weights.
    """
    if reg != AUTO:
        return float(reg)
    users, items, nu = problem.users, problem.items, problem.reg_exponent
    reg = problem.loss.defaults(*users.shape, users.nnz)["reg"]
    if nu == 1.0:
        return reg
    logs = []
    for matrix, side in (
        (users, problem.coefficients.user_side(users, 1.0, 1.0)),
        (items, problem.coefficients.item_side(items, 1.0, 1.0)),
    ):
        counts = np.where(side.ridge > 0, matrix.row_counts, 0)
        weight = np.log(side.ridge, out=np.zeros(len(counts)), where=counts > 0)
        logs.append(float(counts @ weight) / max(int(counts.sum()), 1))
    return reg * float(np.exp((1.0 - nu) * np.mean(logs)))


def taken(model: Any, problem: Problem) -> dict[str, float]:
    """The numbers that took the place of "auto", by name."""
    given = get_loss(model.loss).get_params()
    chosen = {name: value for name, value in problem.loss.get_params().items() if given[name] == AUTO}
    return {**chosen, **({"reg": problem.reg} if model.reg == AUTO else {})}


def choose_solver(model: Any, coefficients: Any) -> tuple[Backend, str]:
    """The backend of a fit and the name of what runs there."""
    if model.solver == "dense":
        return DenseBackend(), "dense"
    if model.solver == "pcg":
        return _backend(model, model.pcg_steps), "pcg"
    backend = exact_backend(model)
    if model.solver == "svd":
        return backend, "svd"
    weighted = bool(coefficients.user_terms[:, :2].any() and coefficients.item_terms[:, :2].any())
    return backend, "exact" if weighted else "shared"


def make_watchers(
    model: Any, train: CSR, held_out: CSR | None, callbacks: Callback | Sequence[Callback] | None
) -> tuple[list[Callback], BestIterate | None]:
    """What is called after every iteration; and what keeps the best iterate, if anything does."""
    watchers: list[Callback] = []
    best = None
    if held_out is not None:
        watchers.append(Validation(train, held_out, model.metric, model.n_jobs, model.validation_users))
        if model.early_stopping:
            best = BestIterate(model.metric, model.patience)
            watchers.append(best)
    if callbacks is not None:
        watchers += list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]
    if model.verbose:
        watchers.append(ProgressBar(model.n_iter, "ALS", "it"))
    for callback in watchers:
        if not callable(callback):
            raise ParameterError("callbacks", callback, "give callables that take one argument")
    return watchers, best


def start_factors(model: Any, shape: tuple[int, int], rng: np.random.Generator, dtype: Any) -> np.ndarray:
    """User factors to start from: random, or with ``warm_start`` a copy of those of the last fit."""
    snapshot = getattr(model, "_snapshot", None)
    if model.warm_start and snapshot is not None:
        if snapshot.user_factors.shape != (shape[0], model.K) or len(snapshot.item_factors) != shape[1]:
            raise InputError(
                f"warm_start: the last fit has factors of shapes {snapshot.user_factors.shape} and "
                f"{snapshot.item_factors.shape}, which do not fit a matrix {shape} with K={model.K}; set "
                "warm_start=False"
            )
        return snapshot.user_factors.astype(dtype)
    scale = model.K**-0.5 if model.init_scale is None else model.init_scale
    start = empty((shape[0], model.K), dtype)
    rng.standard_normal(dtype=dtype, out=start)
    start *= scale
    return start


def alternate(
    model: Any,
    problem: Problem,
    backend: Backend,
    done: Progress,
    watchers: list[Callback],
    best: BestIterate | None,
    store: Store | None,
) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Run the iterations that are left, writing checkpoints; item factors and history of the outcome."""
    if best is not None and done.best is not None:
        best.best, best.iteration, best.item_factors = done.best

    def after(now: Iteration, stopped: bool, state: Callable[[], State]) -> None:
        assert store is not None
        if stopped or now.iteration == model.n_iter or store.due(now.iteration):
            kept = None if best is None else (best.best, best.iteration, best.item_factors)
            store.write(Progress(state(), now.history, stopped, kept))

    bars = [watcher for watcher in watchers if isinstance(watcher, ProgressBar)]
    try:
        for bar in bars:
            bar.begin(len(done.history))
        item_factors, history = als(
            problem,
            done.state,
            backend,
            n_iter=len(done.history) if done.stopped else model.n_iter,
            tol=model.tol,
            callbacks=watchers,
            history=done.history,
            after=None if store is None else after,
        )
    finally:
        for bar in bars:
            bar.close()
    return item_factors if best is None else best.item_factors, history


def finish(
    model: Any,
    loss: Loss,
    problem: Problem,
    degrees: Degrees,
    backend: Backend,
    item_factors: np.ndarray,
    history: list[dict[str, Any]],
    seen: CSR,
    labels: tuple[np.ndarray | None, np.ndarray | None],
) -> FittedState:
    """The last user half-step, done exactly as a fold-in does it, so that both agree to the bit."""
    if model.solver == "pcg":
        backend = exact_backend(model)
    side = problem.coefficients.user_side(problem.users, problem.reg, problem.reg_exponent)
    step = backend.half_step(problem.users, item_factors, side)
    if not is_cuda(model.device):
        warn_of_float32(item_factors, side, model.n_jobs)
    if not history:  # closed form: one entry, so that the objective can be read as after any fit
        items = problem.coefficients.item_side(problem.items, problem.reg, problem.reg_exponent)
        ridge = items.ridge @ np.einsum("ij,ij->i", item_factors, item_factors, dtype=np.float64)
        objective = problem.constant + float(ridge) - step.decrease
        history.append({"iteration": 1, "seconds": 0.0, "objective": objective})
    return FittedState(
        user_factors=step.factors,
        item_factors=item_factors,
        seen=seen,
        user_ids=labels[0],
        item_ids=labels[1],
        loss=loss,
        reg=problem.reg,
        reg_exponent=problem.reg_exponent,
        degrees=degrees,
    )


def dtype_name(dtype: Any) -> Any:
    """``"float32"`` for any way to say so; what is no dtype comes back as it is, to be refused by name."""
    try:
        return np.dtype(dtype).name
    except TypeError:
        return dtype


def draw_seed(random_state: Any) -> int:
    """The one number that decides a fit's random choices; the same for the same int."""
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(np.iinfo(np.int32).max))
    try:
        return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))
    except ValueError:
        raise ParameterError(
            "random_state", random_state, "give None, a seed (0 to 2^32 - 1), a RandomState or a Generator"
        ) from None


def describe(model: Any, loss: Loss, solver: str, matrix: CSR, held_out: CSR | None) -> dict[str, Any]:
    """Everything that decides the bytes of a fit, as a checkpoint keeps it, in terms of JSON."""
    kind = type(loss)
    snapshot = getattr(model, "_snapshot", None)
    start = "random"
    if model.warm_start and snapshot is not None:
        start = digest(snapshot.user_factors)
    return {
        "loss": [f"{kind.__module__}.{kind.__qualname__}", _plain(loss.get_params())],
        "solver": solver,
        "dtype": dtype_name(model.dtype),
        **{name: _plain(getattr(model, name)) for name in _DECISIVE},
        "pcg_steps": _plain(model.pcg_steps) if solver == "pcg" else None,
        "patience": _plain(model.patience) if model.early_stopping else None,
        "validation_users": _plain(model.validation_users) if held_out is not None else None,
        "metric": str(model.metric) if held_out is not None else None,
        "random_state": _plain(model.random_state) if is_seed(model.random_state) else None,
        "start": start,
        "shape": list(matrix.shape),
        "X": fingerprint(matrix),
        "validation": None if held_out is None else fingerprint(held_out),
    }


def is_seed(random_state: Any) -> bool:
    """Whether a random state is an integer, which names one sequence of random numbers."""
    return isinstance(random_state, int | np.integer) and not isinstance(random_state, bool)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.generic):
        return value.item()
    return value if value is None or isinstance(value, str | int | float) else repr(value)
