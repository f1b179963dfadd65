"""Updates between two fits: new interactions, users and items; and how far they took the model, `drift`."""

import os
import threading
import time
from dataclasses import replace
from typing import Any, NamedTuple, Self, cast

import numpy as np
import scipy.sparse as sp

from rgals.datasets.given import given, is_column, is_frame, no_ids
from rgals.datasets.ids import IdMap, Positions, joined, refuse_kind
from rgals.losses import Degrees
from rgals.losses.base import Priors
from rgals.matrix.csr import CSR
from rgals.matrix.entries import grown, kept_columns, merged, replace_rows
from rgals.matrix.validate import as_csr
from rgals.model.fold_in import FoldIn
from rgals.model.state import FittedState
from rgals.runtime import memory
from rgals.runtime.checks import RANGES, check_choice, check_int
from rgals.runtime.errors import InputError, ParameterError, ShapeError
from rgals.runtime.progress import LOG
from rgals.solvers.als import ALS, Problem, sides_of
from rgals.solvers.base import squared_lengths
from rgals.solvers.choose import exact_backend
from rgals.solvers.hard_negatives import update_bytes
from rgals.solvers.prior import Prior
from rgals.solvers.readout import with_scale
from rgals.training.data import check_matrix

MERGES = ("add", "replace", "drop")
PUBLISHING = threading.RLock()  # held from reading a state to publishing the next: updates never interleave
if hasattr(os, "register_at_fork"):  # a forked child starts with it free, whoever held it in the parent
    os.register_at_fork(after_in_child=PUBLISHING._at_fork_reinit)  # type: ignore[attr-defined]
_Labels = tuple[np.ndarray | None, np.ndarray | None]


class Drift(NamedTuple):
    """How far updates have taken a model from its fit; see `RGALS.drift`.

    Attributes
    ----------
    merged : float
        Interactions that updates have added, changed or removed, over all interactions.
    fall : float
        By how much one more iteration over all rows would lower the objective, over its whole fall from
        factors of 0.
    """

    merged: float
    fall: float


class Updated(FoldIn):
    """Updates of a model fitted by half-steps; a mixin of `rgals.RGALS`."""

    # Every update makes the next state from the present one and publishes it by one assignment. What other
    # threads see is the old state or the new one, and whatever ends an update before leaves the old one.

    @memory.typed_errors
    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        *,
        merge: str = "add",
        sweeps: int = 2,
        columns: Any = None,
        user_features: Any = None,
        item_features: Any = None,
    ) -> Self:
        """Merge new interactions into those that the model knows, and solve what they touch again.

        Users and items with new interactions are solved again from their full histories, ``sweeps`` times,
        items first; all others keep their factors. Afterwards recommendations, the filter of seen items,
        explanations and saved files are those of all interactions. A model that is not fitted is fitted.

        Parameters
        ----------
        X : Interactions or frame; or sparse matrix or array of shape (n, N); or None
            New interactions, as `fit` takes them; None where there are features alone. A table may bring new
            users and items: those of its ids with interactions. Rows of a matrix are the users 0 to n - 1;
            those past the last user are new users, where the model has no ids.
        y : ignored
        merge : {"add", "replace", "drop"}, default "add"
            What becomes of interactions that are known already: values are added, as `fit` adds duplicates;
            the new value takes the place of the old one; or the new one is left out. Duplicates within ``X``
            are added; ``read_interactions(X, duplicates="last")`` keeps the last. A value of 0 is none, and
            changes nothing: `partial_fit_users` takes interactions away.
        sweeps : int, default 2
            Times that items and then users are solved.
        columns : dict or "matrix", optional
            As in `fit`.
        user_features, item_features : sparse matrix, array, frame or (ids, matrix), optional
            As in `fit`, where that had some, and a frame where that had one: of new users and items, or of
            known ones, whose old features they replace. A matrix without ids has a row for everybody.

        Returns
        -------
        self

        Raises
        ------
        ParameterError, InputError, InputTypeError, ShapeError
            The interactions cannot be used; the model stays as it was.
        InsufficientMemoryError
            The update needs more memory than there is; raised before it is allocated.

        Notes
        -----
        A loss, ``reg`` and statistics of ``values`` that were found for the fitted matrix stay until the next
        `fit`; `drift` tells when that pays. Until then, new users and items that meet only each other have
        nothing to start from. Interactions that change nothing, as a frame without rows, change no bit.

        The call copies factors and interactions: one call a day costs little more than the rows it solves,
        one call an event much more. Two calls at once wait for each other; do not `fit` beside them.

        Examples
        --------
        >>> from rgals import RGALS
        >>> from rgals.datasets import read_interactions
        >>> data = read_interactions((["ann", "ann", "bob", "bob"], ["tea", "milk", "tea", "rum"]))
        >>> model = RGALS(K=2, random_state=0).fit(data)
        >>> today = read_interactions((["eve", "ann"], ["tea", "cake"]))
        >>> model.partial_fit(today).user_ids_.tolist(), model.item_ids_.tolist()
        (['ann', 'bob', 'eve'], ['milk', 'rum', 'tea', 'cake'])
        """
        check_choice("merge", merge, MERGES)
        check_int("sweeps", sweeps, 1)
        if not self.__sklearn_is_fitted__():
            given = {"columns": columns, "user_features": user_features, "item_features": item_features}
            given = {name: value for name, value in given.items() if value is not None}
            return cast(Any, self).fit(X, **given)  # of `Trained`, which estimators are; not all take all
        began = time.perf_counter()
        with PUBLISHING:
            old: FittedState = self._state()
            seen = old.interactions().load()
            events, labels = self._events(X, old, columns)
            old.weighting.check_times(events)
            priors, labels, told = _with_features(old, events.shape, labels, (user_features, item_features))
            events = grown(events, *(len(t) for t in told))
            _admit(old, events)
            touched = np.flatnonzero(events.row_counts)
            known = grown(seen, *events.shape)
            rows, at, items = merged(known.take_rows(touched), events.take_rows(touched), merge)
            if not np.isfinite(rows.values).all():
                raise InputError(f"X: the sum of an interaction's values overflows {rows.values.dtype}")
            if not len(at) and events.shape == seen.shape and not any(t.any() for t in told):
                return self
            users = np.union1d(touched[np.bincount(at, minlength=len(touched)) > 0], np.flatnonzero(told[0]))
            items = np.flatnonzero(told[1] | (np.bincount(items, minlength=events.n_cols) > 0))
            new_items = np.arange(seen.n_cols, events.n_cols)
            counts = events.likes.col_counts[seen.n_cols :]
            weighting = old.weighting.with_counts(new_items, counts)
            old = replace(old, priors=priors)
            state = with_history(old, replace_rows(known, touched, rows), labels, weighting, len(at))
            self._snapshot = state = self._solve(old, state, users, items, sweeps)
        who = len(users), np.sum(users >= seen.n_rows), len(items), len(new_items)
        seconds, share = time.perf_counter() - began, 100 * state.record.merged / state.interactions().nnz
        said = "update: %d interactions merged, %d users (%d new) and %d items (%d new) solved in %.3g s; "
        LOG.info(f"{said}since the fit %.3g %% of the interactions", len(at), *who, seconds, share)
        return self

    def _events(self, X: Any, state: FittedState, columns: Any) -> tuple[CSR, _Labels]:
        """New interactions over all users and items, new ones last; the labels of all."""
        dtype, n_users, n_items = state.item_factors.dtype, len(state.user_factors), len(state.item_factors)
        if X is None or (is_frame(X) and not len(X)):  # a day on which nothing happened
            return CSR.empty(n_users, n_items), (state.user_ids, state.item_ids)
        found = given(X, columns).warned(update=True)
        if not found.labelled:
            self._check_names(found, "X")
            rows = check_matrix(self, found.matrix, dtype.type, state)
            if rows.n_rows > n_users and state.user_ids is not None:
                raise ShapeError(
                    f"X has {rows.n_rows} rows for {n_users} users; new ones need ids, as Interactions and "
                    "frames of users and items have them"
                )
            return grown(rows, max(n_users, rows.n_rows), n_items), (state.user_ids, state.item_ids)
        if state.user_ids is None or state.item_ids is None:
            raise no_ids("X")
        matrix, *new = found.laid_out(state.users, state.items, "X", grow=True)
        rows = as_csr(matrix, dtype=dtype, dislikes=state.loss.dislikes)
        # Parts of a split have the ids of all users and items: only those with interactions are new.
        users = np.r_[np.ones(n_users, bool), rows.row_counts[n_users:] > 0]
        items = np.r_[np.ones(n_items, bool), rows.col_counts[n_items:] > 0]
        rows = kept_columns(rows.take_rows(np.flatnonzero(users)), items)
        labels = joined(state.user_ids, new[0][users[n_users:]])
        return rows, (labels, joined(state.item_ids, new[1][items[n_items:]]))

    def _solve(
        self, old: FittedState, state: FittedState, users: np.ndarray, items: np.ndarray, sweeps: int = 1
    ) -> FittedState:
        """The state with some users and items solved again from their histories, items first."""
        # ``old``: the published state, whose arrays must not change and whose read-out scale continues. New
        # users have factors of 0 in the first of several sweeps, when items are solved; a single sweep solves
        # new users beforehand.
        changed = ["user_factors"] * bool(len(users)) + ["item_factors", "item_scale"] * bool(len(items))
        # Copy the arrays that are still those of ``old``; `with_history` has made others where rows are new.
        shared = {f: getattr(state, f) for f in changed if getattr(state, f) is getattr(old, f)}
        state = replace(state, **{f: array.copy() for f, array in shared.items() if array is not None})
        known, new = state.interactions().load(), users[users >= len(old.user_factors)]
        if len(users):
            of_users = self._half(state, *state.histories(users))
        if len(items):
            columns = state.weighting.rows(known).transpose(give_back=False).take_rows(items)
            prior, own = state.priors[1], old.scale_of(columns)
            of_items = self._half(state, columns, prior and prior.take_rows(items), 1)
            if len(new) and sweeps == 1:
                half = self._half(state, *state.histories(new))
                state.user_factors[new] = self._user_step(state, half)
        for _ in range(sweeps):
            if len(items):
                state.item_factors[items] = with_scale(self._item_step(state, of_items, items), own)
                if state.item_scale is not None:
                    state.item_scale[items] = own
                state = replace(state)  # drops cached properties of the old item factors
            if len(users):
                state.user_factors[users] = self._user_step(state, of_users)
        return state

    def partial_fit_users(self, X_rows: Any, users: Any = None, *, columns: Any = None) -> Self:
        """Solve some users again, or new ones, from their full histories; everything else stays.

        Afterwards the model is as if its matrix had these rows: they are excluded by default, saved with the
        model and explained, and the factors are those of the user half-step of a fit to that matrix.

        Parameters
        ----------
        X_rows : sparse matrix or array of shape (n, n_items), Interactions or frame
            The *full* history of each user, over the items of the model. The columns of an `Interactions`
            or a frame are found by their ids.
        users : sequence of n ids, or Positions
            External ids where the model has them (``user_ids_``), else row numbers. Unknown ids are new
            users, appended in this order; new row numbers must go on where the model ends. Not needed for
            an `Interactions` or a frame, which has ids.
        columns : dict or "matrix", optional
            As in `fit`.

        Returns
        -------
        self

        Raises
        ------
        UnknownIdError
            An item that the model does not have: see `partial_fit` and `partial_fit_items`.
        InputError, InputTypeError, ShapeError
            Histories or ids cannot be used.

        Notes
        -----
        As for `partial_fit`: many users in one call cost little more than one.

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
        with PUBLISHING:
            old, state, at = self._with_histories(X_rows, users, columns, 0)
            self._snapshot = self._solve(old, state, at, np.empty(0, np.int64))
        return self

    def partial_fit_items(
        self, X_cols: Any, items: Any = None, *, refresh_users: bool = False, columns: Any = None
    ) -> Self:
        """Solve some items again, or new ones, from their full histories; the counterpart for items.

        Parameters
        ----------
        X_cols : sparse matrix or array of shape (n_users, n), Interactions or frame
            The *full* history of each item, over the users of the model, one column an item. The rows of an
            `Interactions` or a frame are found by their ids.
        items : sequence of n ids, or Positions
            As ``users`` in `partial_fit_users`.
        refresh_users : bool, default False
            Solve all users again as well, from their histories with these items, as at the end of a fit;
            otherwise they keep their factors, and `transform` of their histories differs from these.
        columns : dict or "matrix", optional
            As in `fit`.

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
        RANGES["bool"]("refresh_users", refresh_users)
        with PUBLISHING:
            old, state, at = self._with_histories(X_cols, items, columns, 1)
            everybody = np.arange(len(old.user_factors) if refresh_users else 0)
            self._snapshot = self._solve(old, state, everybody, at)
        return self

    def _with_histories(
        self, X: Any, ids: Any, columns: Any, side: int
    ) -> tuple[FittedState, FittedState, np.ndarray]:
        """The published state, the state with these histories of users (side 0) or items, and their rows."""
        old: FittedState = self._state()
        what, name = ("user", "item")[side], ("X_rows", "X_cols")[side]
        if len(getattr(ids, "shape", ())) == 2 and not is_column(ids):  # arguments in the order of implicit
            raise InputError(f"the histories come first: give partial_fit_{what}s({name}, {what}s)")
        found, known = given(X, columns, name).warned(name, update=True), (old.users, old.items)
        labels = [old.user_ids, old.item_ids]
        found.refuse_beside(**{f"{what}s": ids})
        own = (found.user_ids, found.item_ids)[side]
        ids = own if ids is None else ids
        if ids is None:
            raise ParameterError(f"{what}s", None, "say whose histories these are, one id each")
        rows = self._laid_out(old, found, name, ("items", "users")[side])
        if own is not None and ids is own and labels[side] is not None:
            refuse_kind(known[side], own, name)
        seen = old.interactions().load()
        rows, seen = (rows.transpose(), seen.transpose()) if side else (rows, seen)
        at, labels[side] = _places(f"{what}s", ids, known[side], labels[side], rows.n_rows)
        before, seen = seen, replace_rows(seen, at, rows)
        changed = grown(before, *seen.shape).take_rows(at).to_scipy() != seen.take_rows(at).to_scipy()
        weighting = old.weighting.with_counts(at, rows.likes.row_counts) if side else old.weighting
        seen = seen.transpose() if side else seen
        return old, with_history(old, seen, (labels[0], labels[1]), weighting, changed.nnz), at

    def drift(self) -> Drift:
        """How far updates have taken the model from a fit, to decide when a refit pays.

        ``fall`` is exact: an iteration over all users and items measures it, on a copy, and it costs an
        iteration and a half. ``n_iter="auto"`` ends a fit when this figure is below .003; it grows with what
        updates leave unsolved. A month of daily updates of 1 % (``benchmarks/daily.py``) took it to .01 to
        .024, within 3 % of refits. A change of what "auto" would choose is not in it: see ``merged``, too.

        Returns
        -------
        Drift
            A named tuple: ``merged``, the share of interactions that updates have changed, and ``fall``.

        Raises
        ------
        ParameterError
            The model has ``hard_negatives``, so that its fit minimises another objective, or features.

        Examples
        --------
        >>> from rgals import RGALS
        >>> from rgals.datasets import make_implicit
        >>> X = make_implicit(200, 100, random_state=0).matrix
        >>> model = RGALS(K=8, random_state=0).fit(X)
        >>> drift = model.drift()
        >>> drift.merged, drift.fall < 0.003
        (0.0, True)
        """
        state: FittedState = self._state()
        if state.hard_negatives is not None:
            why = "drift measures the objective without them, which such a fit does not minimise"
            raise ParameterError("hard_negatives", state.hard_negatives, why)
        of_users, of_items = state.priors
        for name, prior in (("user_features", of_users), ("item_features", of_items)):
            if prior is not None and not prior.mean:
                raise ParameterError(name, "given", "drift measures no fits with features")
        seen = state.interactions().load()
        weighted = state.weighting.rows(seen)
        coefficients = state.loss.coefficients_for(Degrees.of(weighted, state.degrees.aged))
        problem = Problem.of(weighted, state.loss, coefficients, state.reg, state.reg_exponent)
        if of_users is not None:
            ridge = sides_of(problem)[0].ridge
            mean = replace(of_users, reg=of_users.reg / ridge[ridge > 0].mean())  # in units of the mean ridge
            problem = replace(problem, priors=(mean, None))
        users_side, items_side = sides_of(problem)
        backend, items = exact_backend(self), state.solved_items
        step = backend.half_step(problem.users, items, users_side)
        now = problem.constant + squared_lengths(items, items_side.ridge) - step.decrease
        then = ALS(problem, backend, step.factors).step(1)
        whole = problem.constant - then  # rounding alone if reg leaves factors of 0
        fall = (now - then) / whole if whole > 1e-12 * problem.constant else 0.0
        return Drift(state.record.merged / seen.nnz, float(fall))


def _with_features(
    old: FittedState, shape: tuple[int, int], labels: _Labels, given: tuple[Any, Any]
) -> tuple[Priors, _Labels, tuple[np.ndarray, np.ndarray]]:
    """Priors with the new features, labels grown by rows with features alone, and masks of changed rows."""
    priors, ids, told = list(old.priors), list(labels), [np.zeros(n, bool) for n in shape]
    for side, features in enumerate(given):
        if features is None:
            continue
        new, ids[side], rows = old.prior_of(features, shape[side], ids[side], side)
        before = cast(Prior, old.priors[side]).grown(np.zeros(len(rows))).features
        both = sp.csr_array(sp.diags_array((~rows).astype(float)) @ before + new.features)
        both.eliminate_zeros()
        priors[side], told[side] = replace(new, features=both), (both != before).sum(axis=1) > 0
        told[side][shape[side] :] = True
    return (priors[0], priors[1]), (ids[0], ids[1]), (told[0], told[1])


def _admit(state: FittedState, events: CSR) -> None:
    """Raise `InsufficientMemoryError` where an update needs more memory than there is."""
    (n_users, n_items), K = events.shape, state.item_factors.shape[1]
    nnz = state.interactions().nnz + events.nnz
    # Two copies of the factors; positions, values and order of merged rows.
    needed = (n_users + n_items) * (2 * K * state.item_factors.itemsize + 200) + 72 * nnz
    if (hard := state.hard_negatives) is not None:
        changed = int(np.count_nonzero(events.col_counts))
        needed += update_bytes(hard, events.shape, changed, state.item_factors.itemsize)
    what = f"an update of {n_users:,} users, {n_items:,} items and {nnz:,} interactions with K={K}"
    memory.admit(needed, what, "update a model of fewer users and items, or lower K")


def with_history(state: FittedState, seen: CSR, labels: _Labels, weighting: Any, changes: int) -> FittedState:
    """The state with other interactions: ages count from the newest, new rows have factors of 0."""
    if not seen.nnz:
        raise InputError("no interactions would be left in the model; delete it instead")
    for names in labels:
        if names is not None:
            names.flags.writeable = False
    # New columns have no name, so that the frame's names no longer fit.
    called = state.record.feature_names if seen.n_cols == len(state.item_factors) else None
    record = replace(state.record, merged=state.record.merged + changes, feature_names=called)
    if weighting.half_life is not None:
        weighting = weighting.halving(weighting.half_life, seen)
    scale = state.item_scale
    counts = seen.row_counts, seen.col_counts
    users, items = (p if p is None else p.grown(n) for p, n in zip(state.priors, counts, strict=True))
    return replace(
        state,
        priors=(users, items),
        user_factors=_longer(state.user_factors, seen.n_rows, 0),
        item_factors=_longer(state.item_factors, seen.n_cols, 0),
        item_scale=None if scale is None else _longer(scale, seen.n_cols, 1),
        seen=seen,
        user_ids=labels[0],
        item_ids=labels[1],
        weighting=weighting,
        degrees=Degrees.of(weighting.rows(seen), state.degrees.aged).alone(),
        record=record,
    )


def _longer(factors: np.ndarray, n: int, fill: int) -> np.ndarray:
    """The factors with rows of ``fill`` at the end."""
    more = np.full((n - len(factors), *factors.shape[1:]), fill, factors.dtype)
    return np.concatenate([factors, more]) if len(more) else factors


def _places(name: str, ids: Any, known: IdMap, labels: np.ndarray | None, n: int) -> tuple[np.ndarray, Any]:
    """Rows of the histories, new ones last, and the labels of all rows; None if the model has no ids."""
    if isinstance(ids, Positions):
        ids = ids.numbers if labels is None else known.labels[known.index(ids)]
    own = IdMap(ids, known.what)
    if len(own) != n:
        raise InputError(f"{len(own)} {name} for {n} histories; give one id each")
    at = known.index(own.labels, missing="mark")
    new = np.flatnonzero(at < 0)
    numbers, following = own.labels[new], len(known) + np.arange(len(new))
    if labels is not None:
        at[new] = following
        return at, joined(labels, numbers)
    if len(new) and (numbers.dtype.kind not in "iu" or not np.array_equal(np.sort(numbers), following)):
        raise InputError(
            f"this model has no {known.what} ids, so new {name} are numbered on from {len(known)} without a "
            f"gap, not {numbers[:5].tolist()}"
        )
    at[new] = numbers
    return at, None
