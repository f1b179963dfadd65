"""New and changed users and items without a refit, and why a user gets an item."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, Self, cast

import numpy as np
import scipy.sparse as sp

from rgals.datasets.ids import IdMap, as_labels
from rgals.losses import Degrees
from rgals.matrix.csr import CSR
from rgals.matrix.entries import replace_rows
from rgals.matrix.validate import as_csr, check_ids
from rgals.model.explain import Explanation, explain
from rgals.model.ranking import FactorRanker
from rgals.model.state import FittedState, Snapshot, with_scale
from rgals.runtime.checks import check_int
from rgals.runtime.errors import InputError, ParameterError
from rgals.solvers.choose import exact_backend
from rgals.solvers.hard_negatives import pair_terms, with_users

_publishing = threading.RLock()  # partial fits read a state, and publish the next one, one after the other


class PartialFit(FactorRanker):
    """What a model fitted by half-steps can do beyond any factor model; a mixin of `rgals.RGALS`."""

    def _fold_in(self, snapshot: Snapshot, rows: CSR) -> np.ndarray:
        assert isinstance(snapshot, FittedState)
        rows = snapshot.weighting.rows(rows)
        return snapshot.fold_in(rows, exact_backend(self), self.n_jobs)

    def transform_items(self, X_cols: Any, items: Any = None) -> np.ndarray:
        """Factors of items from their interactions: the exact item half-step.

        Parameters
        ----------
        X_cols : sparse matrix or array, shape (n_users, n)
            Full history of each item, over the users of the fit, one column an item.
        items : 1-D array of int, length n, optional
            Items of the fit that the columns stand for; by default they are new. It matters for RGX only,
            whose items share a term: the others stay, the given ones are solved together.

        Returns
        -------
        ndarray, shape (n, K)
            What scores: with ``readout_exponent``, scaled by the popularity of each item.

        Raises
        ------
        ShapeError
            The number of users is not that of the fit.
        """
        state = cast(FittedState, self._state())
        columns = _columns(X_cols, state)
        columns = state.weighting.columns(columns, state.seen or CSR.empty(columns.n_cols, 0))
        known = np.empty(0, np.int64)
        if items is not None:
            known = check_ids("items", items, len(state.item_factors), "item")
            if len(known) != columns.n_rows or len(np.unique(known)) != len(known):
                raise InputError(f"items must name each of the {columns.n_rows} columns of X_cols, once")
        return with_scale(self._item_step(state, columns, known), state.scale_of(columns))

    def _item_step(self, state: FittedState, columns: CSR, solved: np.ndarray) -> np.ndarray:
        """The item half-step for some items; ``solved`` are those of them that the state has factors of."""
        coefficients = state.loss.coefficients_for(state.degrees.with_items(columns))
        side = coefficients.item_side(columns, state.reg, state.reg_exponent)
        if side.coupled and side.interaction:
            # Rows share - i v^T G v with v = sum_y h_y q_y. The share of the items that stay is linear in the
            # others: h_y G v_stay, which is a linear weight i g_x (p_x . v_stay) of the users.
            h = state.loss.coefficients_for(state.degrees).h[: len(state.item_factors)].copy()
            h[solved] = 0.0
            pull = state.user_factors @ (h @ state.solved_items)
            weight = side.linear_weight + side.interaction * side.gram_weight * pull
            side = replace(side, linear_weight=weight)
        backend, users, hard = exact_backend(self), state.user_factors, state.hard_negatives
        factors = backend.half_step(columns, users, side).factors
        if hard is None or state.seen is None:
            return factors
        known = users, state.solved_items, state.seen
        merged = with_users(columns, factors, known, solved, hard, self.n_jobs)
        of_users, of_items = pair_terms(coefficients, hard.weight)
        return backend.half_step(merged, users, side.with_pairs(of_items, of_users)).factors

    def partial_fit_users(self, X_rows: Any, users: Any = None) -> Self:
        """Solve some users again, or new ones, from their full histories; everything else stays.

        Afterwards the model is as if its matrix had these rows: they are excluded by default, saved with the
        model and explained, and the factors are those of the user half-step of a fit to that matrix. What
        other threads see is the old state or the new one, nothing between.

        Parameters
        ----------
        X_rows : sparse matrix or array of shape (n, n_items), or Interactions
            The *full* history of each user, over the items of the model. The columns of an `Interactions`
            are found by their labels.
        users : sequence of n ids
            External ids where the model has them (``user_ids_``), else row numbers. Unknown ids are new
            users, appended in this order; new row numbers must go on where the model ends. An `Interactions`
            brings its own.

        Returns
        -------
        self

        Raises
        ------
        UnknownIdError
            An item of an `Interactions` that the model does not have: see `partial_fit_items`.
        InputError, InputTypeError, ShapeError
            Histories or ids cannot be used.

        Notes
        -----
        Each call copies the user factors and the interactions: many users in one call cost little more than
        one. Two calls at once wait for each other; do not `fit` the same object at the same time.

        Examples
        --------
        >>> import numpy as np, scipy.sparse as sp
        >>> from rgals import RGALS
        >>> X = sp.csr_array(np.kron(np.eye(2), np.ones((6, 5))))
        >>> model = RGALS(K=4, random_state=0).fit(X)
        >>> history = sp.csr_array(([1.0, 1.0], ([0, 0], [6, 7])), shape=(1, 10))
        >>> model.partial_fit_users(history, [12]).recommend(12, n=3)[0]
        array([[5, 8, 9]], dtype=int32)
        """
        with _publishing:
            state = cast(FittedState, self._state())
            matrix, users = _labelled(X_rows, users, state.items, "users")
            dtype = state.item_factors.dtype
            rows = as_csr(matrix, name="X_rows", dtype=dtype, n_cols=len(state.item_factors))
            at, labels = _places("users", users, state.users, state.user_ids, rows.n_rows)
            seen = replace_rows(_seen(state), at, rows)
            factors = _grown(state.user_factors, seen.n_rows)
            degrees = Degrees.of(state.weighting.rows(seen)).alone()
            state = replace(state, seen=seen, user_ids=labels, degrees=degrees)
            factors[at] = self._fold_in(state, rows)
            self._snapshot = replace(state, user_factors=factors)
        return self

    def partial_fit_items(self, X_cols: Any, items: Any = None, *, refresh_users: bool = False) -> Self:
        """Solve some items again, or new ones, from their full histories; the counterpart for items.

        Parameters
        ----------
        X_cols : sparse matrix or array of shape (n_users, n), or Interactions
            The *full* history of each item, over the users of the model, one column an item. The rows of an
            `Interactions` are found by their labels.
        items : sequence of n ids
            As ``users`` in `partial_fit_users`.
        refresh_users : bool, default False
            Solve all users again as well, from their histories with these items, as at the end of a fit;
            otherwise they keep their factors, and `transform` of their histories differs from these.

        Returns
        -------
        self

        Raises
        ------
        UnknownIdError, InputError, InputTypeError, ShapeError
            As in `partial_fit_users`.

        Examples
        --------
        >>> import numpy as np, scipy.sparse as sp
        >>> from rgals import RGALS
        >>> X = sp.csr_array(np.kron(np.eye(2), np.ones((6, 5))))
        >>> model = RGALS(K=4, random_state=0).fit(X)
        >>> fans = sp.csr_array(np.r_[np.zeros(6), 1.0, 1.0, 1.0, 1.0, 0.0, 0.0][:, None])
        >>> model.partial_fit_items(fans, [10]).recommend([0, 11], n=1)[0]
        array([[10],
               [10]], dtype=int32)
        """
        with _publishing:
            state = cast(FittedState, self._state())
            matrix, items = _labelled(X_cols, items, state.users, "items")
            columns = _columns(matrix, state)
            at, labels = _places("items", items, state.items, state.item_ids, columns.n_rows)
            seen = replace_rows(_seen(state).transpose(), at, columns).transpose()
            factors, known = _grown(state.item_factors, seen.n_cols), at[at < len(state.item_factors)]
            record = state.record
            if len(factors) > len(state.item_factors):
                record = replace(record, feature_names=None)  # it has no names for the new ones
            weighting = state.weighting.with_items(at, columns)
            columns = weighting.columns(columns, seen)
            scale, own = state.item_scale, state.scale_of(columns)
            degrees = Degrees.of(weighting.rows(seen)).alone()
            state = replace(
                state, seen=seen, item_ids=labels, degrees=degrees, record=record, weighting=weighting
            )
            factors[at] = with_scale(self._item_step(state, columns, known), own)
            if scale is not None:
                scale = _grown(scale, len(factors))
                scale[at] = own
            state = replace(state, item_factors=factors, item_scale=scale)
            if refresh_users:
                state = replace(state, user_factors=self._fold_in(state, seen))
            self._snapshot = state
        return self

    def explain(self, user: int, item: int, n: int | None = 10) -> Explanation:
        """Which past interactions made the score of a user and an item.

        The score is a sum, exactly: a part from each past interaction, one from the all-pairs terms of the
        loss, and one from ``hard_negatives``.

        Parameters
        ----------
        user, item : int
            Row and column of the training matrix.
        n : int or None, default 10
            Interactions to list, those that moved the score most first; None for all.

        Returns
        -------
        Explanation
            ``score``, ``items``, ``contributions``, ``rest`` (of those not listed), ``all_pairs`` and
            ``negatives``.

        Raises
        ------
        UnknownIdError
            No such user or item.

        Notes
        -----
        The score explained is that of `transform` of the user's training interactions, computed in float64.
        It is the score of `predict`, except where the user's factors come from something else: early
        stopping that held a part of the interactions out, or `partial_fit_items` without
        ``refresh_users=True``.

        Examples
        --------
        >>> import numpy as np, scipy.sparse as sp
        >>> from rgals import IALS, RGALS
        >>> X = sp.csr_array(np.array([[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 1, 1]]))
        >>> model = RGALS(K=2, loss=IALS(), random_state=0).fit(X)
        >>> why = model.explain(user=0, item=2)
        >>> bool(np.isclose(why.contributions.sum() + why.all_pairs, model.predict(0, 2)[0], atol=1e-5))
        True
        """
        state = cast(FittedState, self._state())
        rows = check_ids("user", user, len(state.user_factors), "user")
        cols = check_ids("item", item, len(state.item_factors), "item")
        if len(rows) != 1 or len(cols) != 1:
            raise InputError(f"explain takes one user and one item, not {len(rows)} and {len(cols)}")
        return explain(state, int(rows[0]), int(cols[0]), None if n is None else check_int("n", n, 0))


def _seen(state: FittedState) -> CSR:
    if state.seen is None:
        raise InputError("this model carries no training interactions, which a partial fit updates")
    return state.seen


def _columns(X_cols: Any, state: FittedState) -> CSR:
    """Histories of items as rows: items x users."""
    n_users = len(state.user_factors)
    matrix = as_csr(X_cols, name="X_cols", dtype=state.item_factors.dtype, n_rows=n_users)
    return matrix.transpose()


def _grown(factors: np.ndarray, n: int) -> np.ndarray:
    """A copy with room for new rows at the end."""
    out = np.empty((n, *factors.shape[1:]), factors.dtype)
    out[: len(factors)] = factors
    return out


def _labelled(X: Any, ids: Any, across: IdMap, name: str) -> tuple[Any, Any]:
    """Matrix and ids of histories; those of an `Interactions` are laid out as the model is."""
    if hasattr(X, "matrix") and hasattr(X, "user_ids"):
        own, other = (X.user_ids, X.item_ids) if name == "users" else (X.item_ids, X.user_ids)
        pairs = sp.coo_array(X.matrix)
        row, col = pairs.coords
        if name == "users":
            col, shape = across.index(other)[col], (X.n_users, len(across))
        else:
            row, shape = across.index(other)[row], (len(across), X.n_items)
        X = sp.csr_array((pairs.data, (row, col)), shape=shape)
        ids = own if ids is None else ids
    if ids is None:
        raise ParameterError(name, None, "say whose histories these are, one id each")
    return X, ids


def _places(
    name: str, ids: Any, known: IdMap, labels: np.ndarray | None, n: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """Where histories go, and the labels of everybody afterwards (None where the model has none)."""
    given = IdMap(np.atleast_1d(ids) if np.isscalar(ids) else ids, known.what)
    if len(given) != n:
        raise InputError(f"{len(given)} {name} for {n} histories; give one id each")
    at = known.index(given.labels, missing="mark")
    new = np.flatnonzero(at < 0)
    if not len(new):
        return at, labels
    if labels is not None:
        at[new] = len(known) + np.arange(len(new))
        return at, as_labels([*labels.tolist(), *given.labels[new].tolist()])
    numbers = given.labels[new]
    if numbers.dtype.kind not in "iu" or not np.array_equal(
        np.sort(numbers), len(known) + np.arange(len(new))
    ):
        raise InputError(
            f"this model has no {known.what} ids, so new {name} are numbered on from {len(known)} without a "
            f"gap, not {numbers[:5].tolist()}"
        )
    at[new] = numbers
    return at, None
