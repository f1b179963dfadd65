"""Factors of users and items that the fit did not have (fold-in), and explanations of scores."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.linalg

from rgals.datasets.given import given
from rgals.losses.base import positive_coefficients
from rgals.matrix.csr import CSR
from rgals.model.ranking import FactorRanker
from rgals.model.state import FittedState
from rgals.runtime.checks import check_int
from rgals.runtime.errors import InputError
from rgals.solvers.choose import exact_backend
from rgals.solvers.dense import system as system_of
from rgals.solvers.hard_negatives import Half, fold_in, pair_terms, with_users
from rgals.solvers.prior import Prior
from rgals.solvers.readout import with_scale


@dataclass(frozen=True)
class Explanation:
    """Where a score comes from: ``contributions.sum() + rest + all_pairs + negatives + features``.

    Attributes
    ----------
    user, item : int or id
        As they were asked for.
    score : float
        ``p_x . q_y``, with ``p_x`` from the user's interactions in float64.
    items : ndarray, shape (n,)
        Ids, or columns, of past interactions of the user, those that moved the score most first.
    contributions : ndarray of float64, shape (n,)
        What each of them added; negative where it lowered the score.
    rest : float
        Sum over the interactions that are not listed.
    all_pairs : float
        What the loss's terms over all items, interactions or not, added: RG2 and RGX pull every score of a
        user; 0 for WRMF and iALS.
    negatives : float
        What ``hard_negatives`` added, usually less than 0: all of the best items that the user does not have.
        0 without them, and for WRMF and iALS, which pull unobserved pairs to 0.
    features : float
        What the user's features added, or with ``user_mean`` the mean of all users.
    """

    user: Any
    item: Any
    score: float
    items: np.ndarray
    contributions: np.ndarray
    rest: float
    all_pairs: float
    negatives: float = 0.0
    features: float = 0.0


class FoldIn(FactorRanker):
    """Fold-in and explanations of a model fitted by half-steps; a mixin of `rgals.RGALS`."""

    def _fold_in(self, snapshot: Any, rows: CSR, prior: Any = None) -> np.ndarray:
        return self._user_step(snapshot, self._half(snapshot, snapshot.weighting.rows(rows), prior))

    def _half(self, state: FittedState, rows: CSR, prior: Prior | None = None, side: int = 0) -> Half:
        """The `Half` of any users (side 0) or items: weighted histories, and the prior of their features."""
        return rows, *state.half(rows, prior, side), exact_backend(self)

    def _user_step(self, state: FittedState, users: Half) -> np.ndarray:
        if state.hard_negatives is not None:
            return fold_in(users, state.solved_items, state.hard_negatives, self.n_jobs)
        rows, _, side, backend = users
        return backend.half_step(rows, state.solved_items, side).factors

    def transform_items(self, X_cols: Any = None, items: Any = None, item_features: Any = None) -> np.ndarray:
        """Factors of items from their interactions: the exact item half-step.

        Parameters
        ----------
        X_cols : sparse matrix, array, Interactions or frame, shape (n_users, n), optional
            Full history of each item, over the users of the fit, a column each; None with features alone. The
            rows of an `Interactions` or a frame are found by their ids.
        items : sequence of ids, or Positions, length n, optional
            Items of the fit that the columns stand for; by default they are new. It matters for RGX only,
            whose items share a term: the others stay, the given ones are solved together.
        item_features : sparse matrix, array, frame or (ids, matrix), optional
            Their features, where the fit had some: n rows, or by the ids of ``X_cols``; items with features
            alone are appended.

        Returns
        -------
        ndarray, shape (n, K)
            What scores: with ``readout_exponent``, scaled by the popularity of each item.

        Raises
        ------
        ShapeError
            The number of users is not that of the fit.

        Examples
        --------
        >>> from rgals import RGALS
        >>> from rgals.datasets import make_implicit
        >>> X = make_implicit(200, 100, random_state=0).matrix
        >>> RGALS(K=16, random_state=0).fit(X).transform_items(X[:, :2]).shape
        (2, 16)
        """
        state: FittedState = self._state()
        found = None if X_cols is None else given(X_cols, name="X_cols")
        rows = None if found is None else self._laid_out(state, found, "X_cols", "users").transpose()
        columns, prior, _ = state.described(rows, item_features, found and found.item_ids, side=1)
        columns = state.weighting.columns(columns, state.seen or CSR.empty(columns.n_cols, 0))
        known = np.empty(0, np.int64)
        if items is not None:
            known = state.rows_of("item", items, "items")
            if len(known) != columns.n_rows or len(np.unique(known)) != len(known):
                raise InputError(f"items must name each of the {columns.n_rows} columns of X_cols, once")
        solved = self._item_step(state, self._half(state, columns, prior, 1), known)
        return with_scale(solved, state.scale_of(columns))

    def _item_step(self, state: FittedState, items: Half, solved: np.ndarray) -> np.ndarray:
        """The item half-step; ``solved`` are the columns of those items that the state has already."""
        columns, coefficients, side, backend = items
        if side.coupled and side.interaction:
            # All items share the term - i v^T G v with v = sum_y h_y q_y. With v_stay the sum over the items
            # that are not solved, it adds - 2 i h_y q_y . G v_stay to each solved one: a linear weight
            # i g_x (p_x . v_stay) of every user x.
            h = state.own_coefficients.h[: len(state.item_factors)].copy()
            h[solved] = 0.0
            pull = state.user_factors @ (h @ state.solved_items)
            weight = side.linear_weight + side.interaction * side.gram_weight * pull
            side = replace(side, linear_weight=weight)
        users, hard = state.user_factors, state.hard_negatives
        factors = backend.half_step(columns, users, side).factors
        if hard is None or state.seen is None:
            return factors
        known = users, state.solved_items, state.seen
        merged = with_users(columns, factors, known, solved, coefficients.h > 0, hard, self.n_jobs)
        of_users, of_items = pair_terms(coefficients, hard.weight)
        return backend.half_step(merged, users, side.with_pairs(of_items, of_users)).factors

    def explain(self, user: Any, item: Any, n: int | None = 10) -> Explanation:
        """Which past interactions made the score of a user and an item.

        The score is a sum, exactly: a part from each past interaction, one from the all-pairs terms of the
        loss, one from ``hard_negatives``, and one from features or the users' mean.

        Parameters
        ----------
        user, item : id, or Positions of one
            As in `recommend`. The answer names items as ``item`` does.
        n : int or None, default 10
            Interactions to list, those that moved the score most first; None for all.

        Returns
        -------
        Explanation

        Raises
        ------
        UnknownIdError
            No such user or item.

        Notes
        -----
        The score explained is that of `transform` of the user's training interactions, computed in float64.
        It is the score of `predict`, except where the user's factors come from something else: early
        stopping that held a part of the interactions out, or items as they were before an update that did
        not touch the user; `partial_fit_items` with ``refresh_users=True`` solves all users again.

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
        state: FittedState = self._state()
        rows = state.rows_of("user", user, "user")
        cols = state.rows_of("item", item, "item")
        if len(rows) != 1 or len(cols) != 1:
            raise InputError(f"explain takes one user and one item, not {len(rows)} and {len(cols)}")
        n = None if n is None else check_int("n", n, 0)
        # A user's factors solve `A_x p_x = b_x` with `b_x = sum_{i in I_x} l_xi q_i + t_x s`, so that the
        # score is a sum: `q_y . p_x = sum_i l_xi (w . q_i) + t_x (w . s)` with `w = A_x^-1 q_y` (Hu, Koren,
        # Volinsky 2008, section 5, for WRMF; here from the coefficients of any loss). Hard negatives add
        # their terms to both `A_x` and `b_x`.
        history, prior = state.histories(rows, "which an explanation is made of")
        coefficients, side = state.half(history, prior)
        curvature, pull = state.user_system
        past = state.solved_items[history.indices].astype(np.float64)
        wanted = state.item_factors[cols[0]].astype(np.float64)
        *_, linear = positive_coefficients(history, side.row_terms, side.col_terms)
        system, right = system_of(history, 0, state.solved_items, side, curvature, pull)
        parts, all_pairs, negatives = np.empty(0), 0.0, 0.0
        predicted = np.zeros(len(system)) if prior is None else prior.predict(len(system))[0]
        if not history.nnz and side.linear[0] == 0:
            features = float(predicted @ wanted)
        else:
            hard, hard_linear = np.empty((0, len(system))), np.empty(0)
            if state.hard_negatives is not None and history.nnz:
                first = scipy.linalg.solve(system, right, assume_a="pos")
                found = state.hard_negatives.best_of(state.solved_items @ first, history.indices)
                of_users, of_items = pair_terms(coefficients, state.hard_negatives.weight)
                hard = state.solved_items[found].astype(np.float64)
                weight, hard_linear = (of_users * of_items[found]).T
                system += (hard * weight[:, None]).T @ hard
            w = scipy.linalg.solve(system, wanted, assume_a="pos")
            parts, all_pairs = linear * (past @ w), float(side.linear[0] * (w @ pull))
            features = float(side.ridge[0] * (w @ predicted))
            negatives = float(hard_linear @ (hard @ w))
        order = np.argsort(-np.abs(parts), kind="stable")
        listed = order[:n]
        score = float(parts.sum() + all_pairs + negatives + features)
        rest = float(parts[order[len(listed) :]].sum())
        names = state.named("user", rows, user)[0], state.named("item", cols, item)[0]
        items = state.named("item", history.indices[listed].astype(np.int64), item)
        return Explanation(*names, score, items, parts[listed], rest, all_pairs, negatives, features)
