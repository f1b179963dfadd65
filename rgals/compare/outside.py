"""Estimators and functions of other packages and of users: copies for each run, fits, rankings."""

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import clone

from rgals.matrix.csr import CSR
from rgals.metrics import judge
from rgals.runtime.errors import InputError, InputTypeError, ParameterError, ShapeError

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def settings_of(thing: Any) -> dict[str, Any]:
    """Parameters of an estimator by name (``get_params`` or public attributes), or keywords of a function."""
    if not hasattr(thing, "fit"):
        parameters = inspect.signature(thing).parameters
        return {name: p.default for name, p in list(parameters.items())[1:] if p.kind != p.VAR_KEYWORD}
    if hasattr(thing, "get_params"):
        return dict(thing.get_params())
    return {name: value for name, value in getattr(thing, "__dict__", {}).items() if not name.startswith("_")}


def seeds_of(thing: Any) -> list[str]:
    """Names of an estimator's ``random_state`` parameters, those of pipeline steps included."""
    named = settings_of(thing) if hasattr(thing, "fit") else {}
    return [name for name in named if name.rpartition("__")[2] == "random_state"]


def digest(thing: Any) -> str:
    """A digest, 12 hexadecimal digits, of an estimator's class and parameters or a function's source."""
    parts: Any
    if hasattr(thing, "fit"):
        own, seeds = settings_of(thing), seeds_of(thing)
        parts = {name: repr(own[name]) for name in sorted(own) if name not in seeds}
    else:
        try:
            parts = inspect.getsource(thing)
        except (OSError, TypeError):  # typed at a prompt, or a callable object
            parts = repr(thing)
    text = json.dumps([type(thing).__qualname__, parts])
    return hashlib.sha256(_ADDRESS.sub("", text).encode()).hexdigest()[:12]


def copied(thing: Any, params: Mapping[str, Any], seed: int, n_jobs: int | None) -> Any:
    """A copy with ``params``, ``seed`` as every random state, and ``n_jobs`` where its own is None."""
    if not hasattr(thing, "fit"):
        return partial(thing, **params)
    model = clone(thing, safe=False)
    own = settings_of(model)
    changes = {**params, **dict.fromkeys(seeds_of(model), seed)}
    if "n_jobs" in own and own["n_jobs"] is None:
        changes["n_jobs"] = n_jobs
    if hasattr(model, "set_params"):
        return model.set_params(**changes)
    for name, value in changes.items():
        setattr(model, name, value)
    return model


def fitted(model: Any, X: sp.csr_matrix) -> Any:
    """Fit to ``X``: the fitted estimator, or whatever a function returns."""
    if not hasattr(model, "fit"):
        return model(X)
    quiet = "show_progress" in inspect.signature(model.fit).parameters  # implicit
    model.fit(X, **({"show_progress": False} if quiet else {}))
    return model


def rankings(model: Any, X: sp.csr_matrix, known: CSR, n: int | str) -> Any:
    """A model that was fitted to ``X``, in a form that `rgals.metrics.evaluate` takes."""
    # known: interactions that are left out of its lists. n: length of the longest list that is judged, or the
    # name of a metric that needs scores of all items.
    if sp.issparse(model) or isinstance(model, np.ndarray):
        if model.shape != X.shape:
            raise ShapeError(f"it gave scores of shape {model.shape}, not {X.shape}: users x items")
        return (model.tocsr() if sp.issparse(model) else model).__getitem__
    if hasattr(model, "_state") or isinstance(model, tuple | list):  # a model of rgals, or factors
        return model
    if callable(getattr(model, "get_score", None)):  # irspack
        return model.get_score
    if callable(getattr(model, "recommend", None)):
        if isinstance(n, str):
            problem = f"{type(model).__name__} recommends lists, which do not rank all items"
            raise ParameterError("metric", n, f"{problem}; give metrics with a cutoff, such as 'ndcg@10'")
        return _of_lists(model.recommend, X, known, n)
    if callable(getattr(model, "predict", None)):
        return lambda users: model.predict(X[users])
    if hasattr(model, "scores") or hasattr(model, "user_factors_") or callable(model):
        return model
    raise InputTypeError(
        f"nothing ranks items in {type(model).__name__}: an estimator needs recommend(users, n), predict(X) "
        "that returns the scores of all items, or get_score(users); a function of the training matrix must "
        "return scores, users x items, or a function from users to their scores"
    )


def _of_lists(recommend: Callable, X: sp.csr_matrix, known: CSR, n: int) -> Callable:
    """Recommended lists as scores of the same ranking: the first item has the largest, unlisted ones -inf."""
    # ``recommend`` takes (users, n), or as in implicit (users, user_items, N). It returns ids, or ids and
    # scores; -1 stands for no item.
    n_items, with_histories = X.shape[1], "user_items" in inspect.signature(recommend).parameters

    def scores_of(users: np.ndarray) -> np.ndarray:
        counts = known.row_counts[users]
        # Lists may contain known items, which are removed later: ask for as many more.
        longest = min(n + int(counts.max(initial=0)), n_items)
        found = recommend(users, X[users], N=longest) if with_histories else recommend(users, longest)
        given = found[1] if isinstance(found, tuple) and len(found) == 2 else None
        ids = _as_table(found if given is None else found[0])
        if len(ids) != len(users):
            lists = f"recommend gave {len(ids)} lists for {len(users)} users"
            raise ShapeError(f"{lists}; give the best items of each user, as column numbers")
        judge(ids, CSR.empty(len(ids), n_items))  # refuses unknown and repeated items
        scores = np.full((len(ids), n_items), -np.inf, np.float32)
        rows, places = np.nonzero(ids >= 0)
        scores[rows, ids[rows, places]] = ids.shape[1] - places
        if given is not None and np.ndim(given) == 2 and np.shape(given)[1]:
            # A user without interactions whose items all score the same gets no list, as in `evaluate`.
            given = np.asarray(given)
            scores[(np.diff(X.indptr)[users] == 0) & (given == given[:, :1]).all(axis=1)] = 0
        return scores

    return scores_of


def _as_table(lists: Any) -> np.ndarray:
    """Lists of items, of any lengths, as one integer table padded with -1."""
    lists = [*map(np.ravel, lists)]
    for items in lists:
        if items.dtype.kind not in "iu" and items.size:
            raise InputError(
                f"recommend gave {items.dtype} items; give column numbers of the training matrix"
            )
    table = np.full((len(lists), max(map(len, lists), default=0)), -1, np.int64)
    for row, items in zip(table, lists, strict=True):
        row[: len(items)] = items
    return table
