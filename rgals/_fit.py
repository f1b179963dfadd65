"""One fit: parameters and a matrix become a minimisation, its outcome a fitted state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_feature_names, _check_n_features, validate_data

from rgals._callbacks import BestIterate, ProgressBar, Validation
from rgals._csr import CSR
from rgals._errors import InputError, InputTypeError, ParameterError
from rgals._ranker import Snapshot
from rgals._validation import as_csr, check_choice, check_int, check_real
from rgals.losses import Degrees, Loss, get_loss
from rgals.model_selection import split_interactions
from rgals.solvers import closed_form
from rgals.solvers.als import Callback, Problem
from rgals.solvers.backends.base import Backend
from rgals.solvers.backends.cpu import CPUBackend
from rgals.solvers.backends.dense import DenseBackend

SOLVERS = ("auto", "exact", "pcg", "svd", "dense")
_HOLD_OUT = 0.1  # share of every user's interactions that early stopping watches when none are given


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


def check_parameters(model: Any) -> tuple[Loss, Any]:
    """Check every parameter of an `RGALS`; returns a copy of its loss, and its dtype."""
    check_int("K", model.K, 1, 1 << 15)
    check_real("reg", model.reg, 0.0)
    check_real("reg_exponent", model.reg_exponent, -4.0, 4.0)
    check_int("n_iter", model.n_iter, 1)
    check_choice("solver", model.solver, SOLVERS)
    check_choice("dtype", dtype_name(model.dtype), ("float32", "float64"))
    check_choice("device", model.device, ("cpu",))
    check_real("tol", model.tol, 0.0)
    check_int("patience", model.patience, 1)
    check_int("pcg_steps", model.pcg_steps, 1)
    if model.init_scale is not None:
        check_real("init_scale", model.init_scale, 0.0, open_min=True)
    loss = get_loss(model.loss)
    if model.solver == "svd":
        closed_form.check_closed_form(loss, model.reg_exponent)
    # A copy, so that later changes of the parameter do not change a fitted model.
    return type(loss)(**loss.get_params()), np.dtype(dtype_name(model.dtype)).type


def check_matrix(model: Any, X: Any, dtype: Any, *, n_items: int | None = None) -> CSR:
    """The matrix in canonical form; records, or compares with ``n_items``, the number and names of items."""
    reset = n_items is None
    if sp.issparse(X) or isinstance(X, CSR):
        # A wrong number of items is named by `as_csr`, a right one by nobody.
        matrix = as_csr(X, dtype=dtype, n_cols=n_items)
        if matrix.n_rows == 0:
            raise InputError(f"Found array with 0 sample(s) (shape={matrix.shape}): X has no users")
        if matrix.n_cols == 0:
            raise InputError(f"Found array with 0 feature(s) (shape={matrix.shape}): X has no items")
        _check_n_features(model, matrix.to_scipy(), reset=reset)
        _check_feature_names(model, X, reset=reset)
        return matrix
    if X is None or isinstance(X, str | bytes | dict) or np.isscalar(X):
        raise InputTypeError(
            f"X must be a sparse matrix or a numeric array, users x items, not {type(X).__name__}"
        )
    # `as_csr` looks for NaN and infinity itself: it says where.
    X = validate_data(model, X, reset=reset, dtype="numeric", ensure_all_finite=False)
    return as_csr(X, dtype=dtype)


def check_labels(
    user_ids: Any, item_ids: Any, shape: tuple[int, int]
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """External ids as arrays, one for each row and column."""
    out = []
    for name, labels, n in (("user_ids", user_ids, shape[0]), ("item_ids", item_ids, shape[1])):
        array = None if labels is None else np.asarray(labels)
        if array is not None and array.shape != (n,):
            raise InputError(f"{name} has shape {array.shape}; one label for each of {n} is needed")
        out.append(array)
    return out[0], out[1]


def hold_out(matrix: CSR, dtype: Any, random_state: Any) -> tuple[CSR, CSR]:
    """What is fitted and what early stopping watches, where no validation matrix is given."""
    train, held_out = split_interactions(
        matrix.to_scipy(dtype), (1.0 - _HOLD_OUT, _HOLD_OUT), random_state=seed(random_state)
    )
    return as_csr(train, dtype=dtype), as_csr(held_out, dtype=dtype)


def choose_solver(model: Any, coefficients: Any) -> tuple[Backend, str]:
    """The backend of a fit and the name of what runs there."""
    if model.solver == "dense":
        return DenseBackend(), "dense"
    if model.solver == "pcg":
        return CPUBackend(model.n_jobs, model.pcg_steps), "pcg"
    backend = CPUBackend(model.n_jobs)
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
        watchers.append(Validation(train, held_out, model.metric, model.n_jobs))
        if model.early_stopping:
            best = BestIterate(model.metric, model.patience)
            watchers.append(best)
    if callbacks is not None:
        watchers += [callbacks] if callable(callbacks) else list(callbacks)
    if model.verbose:
        watchers.append(ProgressBar(model.n_iter))
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
    start = rng.standard_normal((shape[0], model.K), dtype)
    start *= scale
    return start


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
        backend = CPUBackend(model.n_jobs)
    side = problem.coefficients.user_side(problem.users, problem.reg, problem.reg_exponent)
    step = backend.half_step(problem.users, item_factors, side)
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


def seed(random_state: Any) -> int:
    """A seed drawn from a scikit-learn random state; the same for the same int."""
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def generator(random_state: Any) -> np.random.Generator:
    """The generator of a fit's random start."""
    if isinstance(random_state, np.random.Generator):
        return random_state
    return np.random.default_rng(seed(random_state))
