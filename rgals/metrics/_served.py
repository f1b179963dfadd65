"""The answers that a model would serve to the users of a test set, which metrics judge."""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from rgals.datasets.given import beside, given, known_part, no_ids
from rgals.datasets.ids import IdMap, as_labels, joined
from rgals.kernels import ranking as kernel
from rgals.matrix.csr import CSR
from rgals.matrix.entries import grown
from rgals.matrix.validate import as_csr, check_ids, on_host
from rgals.metrics._judged import Outranked
from rgals.metrics._table import DISLIKES, Metric
from rgals.runtime.aligned import read_only
from rgals.runtime.checks import check_choice
from rgals.runtime.errors import InputError, InputTypeError, ParameterError, ShapeError
from rgals.runtime.lazy import cached_property
from rgals.runtime.threads import workers
from rgals.scoring import as_factors, topk, topk_dense, useful_jobs

COLD = ("empty", "popular")
_ROWS_BYTES = 1 << 25  # most bytes of scores that a thread holds
_ROWS = 128  # most users whose scores it holds

Scores = Callable[[np.ndarray], np.ndarray] | tuple[np.ndarray, np.ndarray]
Answers = list[tuple[np.ndarray, Any]]  # rows of a batch, and their factors beside the items', or scores


@dataclass(frozen=True)
class Served:
    """A model and the interactions that judge it, laid out in the rows and columns of the model."""

    # Users and items of the test set that the model does not know come after those that it knows.

    source: Scores
    truth: CSR
    seen: CSR  # training interactions, which are left out of the rankings
    cold: np.ndarray  # of each user, whether nothing is known about them
    popular: np.ndarray | None  # item scores for cold users, shape (N, 1); None: they get no list
    history: CSR  # interactions that the model was fitted to, or `seen` if it keeps none
    n_known: int  # users whom the model knows
    user_ids: np.ndarray | None  # if the test set came with ids
    disliked: CSR  # test interactions of negative value
    needs_history: bool = True  # False if the model has scores for cold users too

    @cached_property
    def silent(self) -> np.ndarray:
        """Of each user, whether the model's factors cannot rank items for them."""
        return self.cold & (self.needs_history | (np.arange(len(self.cold)) >= self.n_known))

    def named(self, users: np.ndarray) -> np.ndarray:
        """Users by their ids, where the test set came with ids."""
        return users if self.user_ids is None else self.user_ids[users]

    def answers(self, users: np.ndarray) -> Answers:
        """Positions in ``users`` with the factors or scores that rank for them; others get no list."""
        if isinstance(self.source, tuple):
            rows = np.flatnonzero(~self.silent[users])
            scores: Any = self.source[0][users[rows]], self.source[1]
        else:
            rows = np.flatnonzero(users < self.n_known)
            scores = _scores(self.source, users[rows], self.seen.n_cols, self.named)
            # For a cold user, equal scores of all items are no answer.
            kept = ~self.cold[users[rows]] | (scores != scores[:, :1]).any(axis=1)
            rows, scores = (rows, scores) if kept.all() else (rows[kept], scores[kept])
        out = [(rows, scores)]
        others = np.setdiff1d(np.arange(len(users)), rows)
        if self.popular is not None:
            out.append((others, as_factors(np.ones((len(others), 1)), self.popular)))
        return [answer for answer in out if len(answer[0])]

    def lists(self, answers: Answers, seen: CSR, n: int, n_jobs: int | None) -> np.ndarray:
        """Best items of a batch of users, -1 where there is none."""
        ids = np.full((seen.n_rows, n), -1, np.int32)
        for rows, scores in answers:
            best = partial(topk, *scores) if isinstance(scores, tuple) else partial(topk_dense, scores)
            ids[rows] = best(n, exclude=seen.take_rows(rows), n_jobs=n_jobs)[0]
        return ids

    def outranked(self, answers: Answers, truth: CSR, seen: CSR, n_jobs: int | None) -> Outranked:
        """How many items outrank each relevant one; all items are tied for users without a list."""
        n_items, entry_rows = seen.n_cols, truth.rows
        ranked = truth.indices < n_items
        relevant = np.bincount(entry_rows[ranked], minlength=truth.n_rows)
        negatives = n_items - relevant - seen.row_counts
        above, tied = np.zeros(truth.nnz, np.int64), negatives[entry_rows]
        for rows, scores in (piece for answer in answers for piece in self._tied(*answer, n_jobs)):
            at = np.isin(entry_rows, rows) & ranked
            found, known = truth.where(at).take_rows(rows), seen.take_rows(rows)
            pairs = found.indptr, found.indices, known.indptr, known.indices
            counts = np.empty((2, found.nnz), np.int32)
            width = scores[0].shape[1] if isinstance(scores, tuple) else 1
            with workers(useful_jobs(n_jobs, len(rows) * n_items * width)) as threads:
                if isinstance(scores, tuple):
                    of = n_items, *pairs, _block(scores[1])
                    kernel.count_above(scores[0], scores[1], *of, threads, *counts)
                else:
                    kernel.count_above_dense(scores, *pairs, threads, *counts)
            above[at], tied[at] = counts
        above[~ranked], tied[~ranked] = negatives[entry_rows[~ranked]], 0  # unknown items: below all others
        return Outranked(truth.indptr, above, tied, negatives)

    def _tied(self, rows: np.ndarray, scores: Any, n_jobs: int | None) -> Iterator[tuple[np.ndarray, Any]]:
        """The answers of some users; where items have equal factors, in parts, with scores that are equal."""
        # BLAS may round columns of a product in other ways than their neighbours: a tie was won or lost.
        own = isinstance(scores, tuple) and isinstance(self.source, tuple) and scores[1] is self.source[1]
        if not own or self._alike is None:
            yield rows, scores
            return
        others, first = self._alike
        for start in range(0, len(rows), step := _block(scores[1])):
            part = slice(start, start + step)
            with workers(n_jobs):
                every = scores[0][part] @ scores[1].T
                every[:, others] = every[:, first]
            yield rows[part], every

    @cached_property
    def _alike(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Items whose factors another item before has, and the first that has them; None: all differ."""
        factors = np.ascontiguousarray(self.source[1])  # type: ignore[index]
        rows = factors.view(np.dtype((np.void, factors.itemsize * factors.shape[1]))).ravel()
        _, first, place = np.unique(rows, return_index=True, return_inverse=True)
        first = first[place]
        others = np.flatnonzero(first != np.arange(len(rows)))
        return (others, first[others]) if len(others) else None


def _block(items: np.ndarray) -> int:
    """Users whose scores of all items are held at once."""
    return max(1, min(_ROWS, _ROWS_BYTES // max(1, len(items) * items.itemsize)))


def served(model: Any, train: Any, test: Any, cold: str, columns: Any = None, name: str = "test") -> Served:
    """A model with training and test interactions in its layout; ``name``: of the latter in messages."""
    check_choice("cold", cold, COLD)
    if isinstance(model, type):
        raise InputTypeError(f"model is the class {model.__name__}; give {model.__name__}().fit(train)")
    state: Any = None
    if hasattr(model, "_state"):
        model = copy(model)  # keeps one fit, even if another thread refits the model
        state = model._state()
    source = source_of(model)
    known = None if train is None else given(train, columns, "train")
    # Ids of rows and columns are the model's, or those of the training interactions if it has none.
    users: IdMap | None = None
    items: IdMap | None = None
    if state is not None and (state.user_ids is not None or state.item_ids is not None):
        users, items = state.users, state.items
    elif known is not None and known.labelled:
        users, items = IdMap(known.user_ids, "user"), IdMap(known.item_ids, "item")
    found = given(test, columns, name)
    for side, one in (("train", known), (name, found)):
        if state is not None and one is not None and one.frame is not None:
            model._check_names(one, side)
    laid_out, *unknown = beside(found, users, items, name, grow=True)
    if items is not None and 0 < len(unknown[1]) == found.matrix.shape[1]:
        strange, own = unknown[1][:1].tolist()[0], items.labels[:1].tolist()[0]
        what = f"{name}: none of its items, for example {strange!r}, is known to the model"
        raise InputError(f"{what}, which knows {own!r}; give interactions with ids as in training")
    # The size comes from a fitted model or a pair of factors; for a function, only from ids.
    told = source if state is None else (state.user_factors, state.item_factors)
    told = told if isinstance(told, tuple) else (users, items)
    sizes = [None if side is None else len(side) for side in told]
    # A fit has laid out its validation part already, with unknown users and items after the others.
    if isinstance(laid_out, CSR) and all(n >= (m or 0) for n, m in zip(laid_out.shape, sizes)):
        truth = laid_out
    else:
        shape = [None if n is None else n + len(new) for n, new in zip(sizes, unknown, strict=True)]
        truth = as_csr(laid_out, name=name, n_rows=shape[0], n_cols=shape[1], dislikes=True)
    disliked = truth.where(truth.values < 0) if truth.has_dislikes else CSR.empty(*truth.shape)
    truth = truth.likes
    n_users, n_items = (m or n for m, n in zip(sizes, truth.shape))
    seen = CSR.empty(n_users, n_items)
    if known is not None:
        matrix = known_part(known, users, items, "train", "the model does not know")
        seen = as_csr(matrix, name="train", n_rows=n_users, n_cols=n_items, dislikes=True)
    own = getattr(state, "seen", None)
    if own is not None and state.item_ids is None and known is not None and known.labelled:
        # Ids in their order are the rows and columns of the fit if the interactions are those of the fit.
        same = np.array_equal(seen.indptr, own.indptr) and np.array_equal(seen.indices, own.indices)
        if not same:
            raise no_ids("train")
    history, popular = seen if own is None else own, None
    needs = getattr(model, "_needs_history", True)
    if cold == "popular":
        if history.nnz == 0:
            advice = "popularity is counted in training interactions; give train"
            raise ParameterError("cold", cold, advice)
        # A model with a half-life weighs popularity by age.
        popular = seen.likes.col_counts[:, None] if own is None else state.popularity
        popular = popular if needs else state.item_factors
    nothing = np.ones(truth.n_rows, bool)
    nothing[:n_users] = history.row_counts == 0
    if getattr(state, "priors", (None, None))[0] is not None:  # as `recommend` tells it, by users' features
        nothing[:n_users] &= ~state.user_factors.any(axis=1)
    if history.nnz == 0:  # without any interactions, users are known by factors that are not 0
        nothing[:n_users] = ~source[0].any(axis=1) if isinstance(source, tuple) else False
    labels = joined(users.labels, as_labels(unknown[0])) if found.labelled and users is not None else None
    known_of = popular, history, n_users, labels, disliked, needs
    return Served(source, truth, grown(seen, truth.n_rows, n_items), nothing, *known_of)


def users_with_truth(served: Served, users: Any, wanted: Sequence[Metric] = ()) -> np.ndarray:
    """Rows with test items, all or those of ``users``, which are ids if the test set came with ids."""
    # For a metric of dislikes, rows with dislikes alone count too.
    counts = served.truth.row_counts
    if any(metric.needs == DISLIKES for metric in wanted):
        counts = counts + served.disliked.row_counts
    if users is None:
        return np.flatnonzero(counts)
    ids = served.user_ids
    rows = check_ids("users", users, len(counts), "user") if ids is None else IdMap(ids, "user").index(users)
    rows = np.fromiter(dict.fromkeys(rows.tolist()), np.int64)  # whoever is named twice counts once
    return rows[counts[rows] > 0]


def sample_users(truth: CSR, n: int | None, seed: int = 0) -> np.ndarray:
    """Rows with test items: all, or ``n`` of them at random, always the same for a seed."""
    rows = np.flatnonzero(truth.row_counts)
    if n is None or n >= len(rows):
        return rows
    return np.sort(np.random.default_rng(seed).choice(rows, n, replace=False))


def source_of(model: Any) -> Scores:
    """Where scores come from."""
    if hasattr(model, "factors_"):
        model = model.factors_  # users and items of one fit, even if another thread refits the model
    elif hasattr(model, "user_factors_") and hasattr(model, "item_factors_"):
        model = (model.user_factors_, model.item_factors_)
    elif hasattr(model, "scores"):
        model = model.scores
    if isinstance(model, tuple | list):
        if len(model) != 2:
            raise InputTypeError(f"model: a pair is (user_factors, item_factors), not {len(model)} things")
        pair = as_factors(model[0], model[1], names := ("user factors", "item factors"))
        # Single items with NaN rank last, as with a function. `min` finds out first, without a large array.
        for name, factors, enough in zip(names, pair, (np.any, np.all), strict=True):
            if np.isnan(factors.min(initial=0.0)) and enough(lost := np.isnan(factors).any(axis=1)):
                raise InputError(f"{name} hold NaN, first in row {lost.argmax()}, which cannot rank items")
        return pair
    if callable(model):
        return model
    what = "model must be fitted and have user_factors_ and item_factors_, or be a pair of factor matrices"
    raise InputTypeError(f"{what} or a function that scores users, not {type(model).__name__}")


def _scores(source: Callable, users: np.ndarray, n_items: int, named: Callable) -> np.ndarray:
    """The scores that a callable gives, checked."""
    given = on_host(source(users))
    given = given.toarray() if sp.issparse(given) else np.asarray(given)
    if given.shape != (len(users), n_items):
        expected = f"expected ({len(users)}, {n_items}): users x items"
        raise ShapeError(f"the model's scores have shape {given.shape}, {expected}")
    if given.dtype.kind not in "fiu":
        raise InputTypeError(f"the model's scores must be real numbers, not {given.dtype}")
    if given.dtype.kind == "f" and n_items:
        doubtful = np.flatnonzero(np.isnan(given[:, 0]))
        for row in doubtful[np.isnan(given[doubtful]).all(axis=1)]:
            what = f"the model's scores of user {named(users[[row]]).tolist()[0]!r} are all NaN"
            raise InputError(f"{what}, which rank nothing; give -inf to items that nobody gets")
    return read_only(given.astype(np.float32 if given.dtype == np.float32 else np.float64, copy=False))
