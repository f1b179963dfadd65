"""The input of a fit, checked: matrix and labels, features, weights, held-out part, seed, start factors."""

from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils import check_array
from sklearn.utils.validation import _check_n_features, _get_feature_names

from rgals.datasets.features import read_features
from rgals.datasets.given import Given, beside, given
from rgals.datasets.ids import IdMap
from rgals.losses.base import Priors, takes_dislikes
from rgals.matrix.csr import CSR
from rgals.matrix.entries import grown, hold_out
from rgals.matrix.validate import as_csr
from rgals.matrix.weighting import AUTO, OLDEST, Values, Weighting, unit_of
from rgals.metrics.evaluation import without_known
from rgals.model.fitted import as_own_errors
from rgals.model.state import Snapshot, check_labels
from rgals.runtime import memory
from rgals.runtime.aligned import empty
from rgals.runtime.checks import check_random_state
from rgals.runtime.errors import InputError, ParameterError, ShapeError, ValuesWarning, warn
from rgals.runtime.threads import n_threads
from rgals.solvers.prior import Prior

# Standard deviation of the values over their mean above which values="auto" is "binary". Exponentially
# distributed values have 1.
HEAVY = 1.0
# Share of interactions forgotten by a half-life above which a warning says that its unit is probably wrong.
_ALL_OLD = 0.9
_USERS = 1 << 13  # users of validation and X compared at a time
HOLD_OUT = 0.1  # share of every user's interactions that early stopping holds out without ``validation``


def read(
    model: Any, X: Any, dtype: Any, user_ids: Any, item_ids: Any, columns: Any = None
) -> tuple[CSR, tuple[np.ndarray | None, np.ndarray | None], np.ndarray | None]:
    """The matrix to fit, the labels of its users and items, and the names of its columns."""
    found, halving = given(X, columns).warned(), getattr(model, "half_life", None) is not None
    names = names_of(found.frame)
    matrix = check_matrix(model, found.timed if halving else found.matrix, dtype)
    matrix = matrix if halving or matrix.times is None else replace(matrix, times=None)
    if matrix.likes.nnz == 0:
        if check_matrix(model, found.matrix, np.float64).likes.nnz:
            raise InputError(f"X: its values are too small for {np.dtype(dtype)}; multiply them by a number")
        raise InputError(f"X has no interactions (shape {matrix.shape}); there is nothing to fit")
    return matrix, check_labels(*found.ids(user_ids, item_ids), matrix.shape), names


def names_of(frame: Any) -> np.ndarray | None:
    """The column names of a frame if they are strings; None if not, or if there is no frame."""
    with as_own_errors():
        return None if frame is None else _get_feature_names(frame)


def refuse_other_columns(names: np.ndarray | None, found: Given) -> None:
    """Raise where the columns of validation have other names than those of X, or another order."""
    others = names_of(None if found.labelled else found.frame)
    if names is not None and others is not None and not np.array_equal(names, others):
        why = "its columns have other names than those of X, or another order"
        raise InputError(f"validation: {why}; give validation[X.columns]")


def with_features(
    model: Any, matrix: CSR, labels: tuple[Any, Any], features: dict[str, Any]
) -> tuple[CSR, tuple[Any, Any], Priors, tuple[Any, Any]]:
    """The matrix and labels, grown by rows and columns that have features alone; priors; encodings."""
    reg, shape, ids = getattr(model, "feature_reg", None), list(matrix.shape), list(labels)
    priors: list[Any] = [None, None]
    encodings: list[Any] = [None, None]
    for side, (name, said) in enumerate(features.items()):
        if said is not None:
            if reg is None:
                advice = f"{type(model).__name__} takes no features; leave them out"
                raise ParameterError(name, "given", advice)
            found, ids[side], encodings[side], _ = read_features(said, shape[side], ids[side], name)
            auto, shape[side] = reg == AUTO, found.shape[0]
            priors[side] = Prior(found, 1.0 if auto else float(reg), auto=auto)
    return grown(matrix, *shape), (ids[0], ids[1]), (priors[0], priors[1]), (encodings[0], encodings[1])


def weigh(values: str, matrix: CSR) -> Weighting:
    """How the values of a fit become weights. "auto" warns where they look unfit as weights."""
    return Weighting.of(choose_values(Values.of(matrix.likes)) if values == AUTO else values, matrix)


def choose_values(found: Values) -> str:
    """The kind of weighting that "auto" stands for, with a warning where values look unfit as weights."""
    if None not in map(unit_of, found.ends):
        times = f"values run from {found.ends[0]:.10g} to {found.ends[1]:.10g}, like times since 1970"
        warn(f"{times}; read them with timestamp= that column (rgals: --timestamp-column)", ValuesWarning)
    if found.spread > HEAVY:
        warn(
            f"values run from {found.ends[0]:g} to {found.ends[1]:g}, with a standard deviation "
            f"of {found.spread:.1f} times their mean: as weights, a few would outrule all others. "
            "values='auto' took 'binary': each interaction weighs 1. Set values='binary', 'log1p', 'bm25' or "
            "'raw' instead",
            ValuesWarning,
        )
        return "binary"
    if found.are_ratings:
        top = found.ends[1]
        warn(
            f"values look like ratings up to {top:g}: all are positives, the low ones too, with their stars "
            f"as weights. To keep the high ones alone, read with min_value={0.8 * top:g} (rgals fit "
            f"--min-value {0.8 * top:g}); values='raw' takes them all, without this warning",
            ValuesWarning,
        )
    return "raw"


def halving(weighting: Weighting, half_life: Any, matrix: CSR) -> Weighting:
    """The weighting with a half-life as the caller gave it, a number or a text; unchanged without one."""
    if half_life is None:
        return weighting
    from rgals.datasets.times import half_life_in

    replace(weighting, half_life=half_life).check_times(matrix)
    span = half_life_in(half_life, matrix.times)
    made = weighting.halving(span, matrix)
    assert matrix.times is not None
    old = np.mean(matrix.times < made.newest - OLDEST * span)
    if old > _ALL_OLD:
        what = f"half_life={half_life!r}: {old:.1%} of the interactions are over {OLDEST:g} half-lives old"
        advice = "a number is in the unit of the timestamps (nanoseconds for dates); '30d' says its own"
        warn(f"{what} and weigh nothing; {advice}", ValuesWarning)
    return made


def check_matrix(model: Any, X: Any, dtype: Any, state: Snapshot | None = None) -> CSR:
    """The matrix in canonical form; with a fitted ``state``, checked against its number of items and loss."""
    n_items = None if state is None else len(state.item_factors)
    if not (sp.issparse(X) or isinstance(X, CSR)):
        with as_own_errors():
            # `as_csr` refuses NaN and infinity, and says where they are.
            X = check_array(X, dtype="numeric", ensure_all_finite=False, estimator=model, input_name="X")
        if n_items is not None:
            with as_own_errors(kind=ShapeError):
                _check_n_features(model, X, reset=False)
    matrix = as_csr(X, dtype=dtype, n_cols=n_items, dislikes=takes_dislikes(state or model))
    for what, n, unit in zip(("users", "items"), matrix.shape, ("sample", "feature"), strict=True):
        if n == 0:
            raise InputError(f"Found array with 0 {unit}(s) (shape={matrix.shape}): X has no {what}")
    return matrix if getattr(model, "_streams", False) else matrix.load()


def divide(
    model: Any, matrix: CSR, labels: tuple[Any, Any], validation: Any, seed: int, names: Any, columns: Any
) -> tuple[CSR, CSR | None]:
    """The interactions to fit, and those to validate on: ``validation``, or a part held out."""
    if validation is not None:
        users, items = (None if i is None else IdMap(i, of) for i, of in zip(labels, ("user", "item")))
        # Users and items unknown to the fit are appended: they count as cold users and missed items.
        found = given(validation, columns, "validation")
        refuse_other_columns(names, found)
        laid_out, *unknown = beside(found, users, items, "validation", grow=True)
        n_users, n_items = (n + len(new) for n, new in zip(matrix.shape, unknown, strict=True))
        dtype, shape = matrix.values.dtype, {"n_rows": n_users, "n_cols": n_items}
        held_out = as_csr(laid_out, name="validation", dtype=dtype, dislikes=True, **shape)
        hidden, known = held_out.likes, grown(matrix, *held_out.shape)
        ends = ((start, min(start + _USERS, n_users)) for start in range(0, n_users, _USERS))
        left = (without_known(hidden.slice_rows(*at), known.slice_rows(*at))[0] for at in ends)
        if not any(part.nnz for part in left):
            raise InputError("validation holds no interaction that is not in X too; leave some out of X")
        return matrix, held_out
    if not model.early_stopping:
        return matrix, None
    train, held_out = hold_out(matrix, HOLD_OUT, seed)
    if held_out.nnz == 0:
        raise InputError("early_stopping needs a user with two interactions, one to hide; give validation=")
    return train, held_out


def in_order(last: Snapshot, labels: tuple[Any, Any]) -> Snapshot:
    """The factors of the last fit in the order of new labels; unchanged on a side without labels."""
    found = []
    for what, ids in zip(("user", "item"), labels, strict=True):
        factors, known = getattr(last, f"{what}_factors"), getattr(last, f"{what}_ids")
        there = ids is None or known is None or np.array_equal(known, ids)
        name = "new ids are for partial_fit, not for warm_start"
        found.append(factors if there else factors[last.rows_of(what, ids, name)])
    return Snapshot(*found)


def warm_factors(model: Any, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray] | None:
    """Factors of the last fit if ``warm_start`` asks for them; None if not, or if there was no fit."""
    last = getattr(model, "_snapshot", None)
    if last is None or not model.warm_start:
        return None
    users, items = last.user_factors, last.item_factors
    if (users.shape, items.shape) != tuple((n, model.K) for n in shape):
        what = f"warm_start: the last fit has factors of shapes {users.shape} and {items.shape}"
        raise InputError(f"{what}, which do not fit a matrix {shape} with K={model.K}; set warm_start=False")
    return users, items


def start_factors(
    model: Any, shape: tuple[int, int], sides: int, rng: np.random.Generator, dtype: Any, scale: float
) -> list[np.ndarray]:
    """Start factors of users, with ``sides=2`` of items too: random, or those of the last fit."""
    last, starts = warm_factors(model, shape), []
    for side in range(sides):
        start = empty((shape[side], model.K), dtype)
        if last is None:
            rng.standard_normal(dtype=dtype, out=start)
            start *= scale
        else:
            start[...] = last[side]
        starts.append(start)
    return starts


def admit(needed: int, model: Any, matrix: CSR, dtype: Any, split: bool, *sizes: str) -> None:
    """Raise `InsufficientMemoryError` where there is less memory than a fit needs."""
    # ``split``: early stopping holds interactions out of the matrix. ``sizes``: other parameters than K that
    # memory depends on, as ``name=value``, for the message.
    (n_users, n_items), itemsize = matrix.shape, np.dtype(dtype).itemsize
    if split:  # both parts lie in memory beside the matrix
        parts = 16 * n_users + matrix.nnz * (4 + (0 if matrix.is_binary else itemsize))
        needed = max(needed + parts, 60 * matrix.nnz)  # 60 bytes an interaction while they are split
    memory.admit(
        needed,
        f"a fit with {' and '.join((f'K={model.K}', *sizes))} of {n_users:,} users, {n_items:,} items and "
        f"{matrix.nnz:,} interactions in {np.dtype(dtype).name}",
        f"lower {' or '.join(('K', *(size.partition('=')[0] for size in sizes)))}"
        + (" or use dtype='float32'" if itemsize == 8 else "")
        + ", or fit fewer users and items",
        n_threads(model.n_jobs),
    )


def dtype_name(dtype: Any) -> Any:
    """The name of a dtype; anything else is returned unchanged, for the error that refuses it."""
    try:
        return np.dtype(dtype).name
    except TypeError:
        return dtype


def draw_seed(random_state: Any) -> int:
    """The seed of all random choices of a fit; the same for the same integer."""
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(np.iinfo(np.int32).max))
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def is_seed(random_state: Any) -> bool:
    """Whether a random state is an integer, so that every fit draws the same numbers."""
    return isinstance(random_state, int | np.integer) and not isinstance(random_state, bool)
