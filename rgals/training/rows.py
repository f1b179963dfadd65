"""scikit-learn's `predict` and `score` for models that fold histories in."""

from copy import copy
from typing import Any, Self

import numpy as np

from rgals.datasets.given import beside, given, refuse_unknown
from rgals.datasets.ids import Positions
from rgals.matrix.entries import hold_out
from rgals.metrics import evaluate
from rgals.metrics._table import rising
from rgals.model.ranking import FactorRanker
from rgals.model.state import Snapshot
from rgals.runtime.errors import InputError, ParameterError, warn
from rgals.training.data import check_matrix

_HIDDEN = 0.2  # share of every row that `score` hides


class OfRows(FactorRanker):
    """A factor model that computes factors of new users from their histories; a mixin of estimators."""

    metric: str = "ndcg@10"

    def _read_rows(self, X: Any) -> tuple[Self, Any, Any]:
        """A copy of the model, whose fit no other thread replaces; its state; the checked rows."""
        fixed = copy(self)
        state = fixed._state()
        if X is None:
            return fixed, state, None
        found = given(X)
        fixed._check_names(found, "X")
        matrix, *unknown = beside(found, None, state.labelled_items, "X")
        refuse_unknown(unknown, "X")
        return fixed, state, check_matrix(fixed, matrix, state.item_factors.dtype.type, state)

    def _warn_without_features(self, state: Snapshot, what: str, advice: str = "") -> None:
        """Warn if the fit had features of users and none are given to fold them in."""
        if state.priors[0] is not None and not state.priors[0].mean:
            warn(f"{what} judges users without the features that the fit had{advice}")

    def predict(self, users: Any, items: Any = None) -> np.ndarray:
        """Scores of pairs; or, as scikit-learn calls it, the best new item for each row of interactions.

        Parameters
        ----------
        users : ids or Positions, length n; or matrix, Interactions or frame, shape (n, n_items)
            Users; or, where ``items`` is not given, histories to fold in.
        items : ids or Positions, length n, optional

        Returns
        -------
        ndarray, shape (n,)
            What `recommend` orders by; or the item that `recommend_new` puts first: its column, -1 where
            nothing is left or known, or where the histories have ids, its id or None.

        Raises
        ------
        NotFittedError, UnknownIdError, ShapeError
            As in `recommend`.
        ParameterError
            ``users`` are ids, and ``items`` are not given.
        """
        if items is not None:
            return super().predict(users, items)
        first = users[0] if isinstance(users, list | tuple | np.ndarray) and len(users) else users
        if isinstance(first, str | Positions):
            raise ParameterError("items", None, "give items, too: predict(users, items) scores pairs of ids")
        found = given(users)
        fixed, state, rows = self._read_rows(found)
        first = fixed.recommend_new(rows, n=1)[0][:, 0]
        return state.named("item", first) if found.labelled else first

    def score(self, X: Any, y: Any = None, user_features: Any = None) -> float:
        """Ranking quality for users the model may never have seen, for searches and cross-validation.

        Hides a fifth of every row, folds the rest in and measures on what was hidden: ``metric``, which must
        be better when larger, or NDCG@10 of a model without. The hidden part is the same at every call.

        Parameters
        ----------
        X : sparse matrix or array, shape (n, n_items)
        y : ignored
        user_features : sparse matrix, array, frame or (ids, matrix), optional
            As in `rgals.RGALS.transform`, where the fit had some. scikit-learn's searches give them where it
            routes metadata: ``RGALS().set_fit_request(user_features=True).set_score_request(...)`` likewise.

        Returns
        -------
        float
            Mean over the users with hidden interactions.

        Raises
        ------
        InputError
            No row has two interactions, of which one could be hidden.

        Warns
        -----
        UserWarning
            The fit had features of users, and here are none.

        Examples
        --------
        >>> import numpy as np
        >>> from rgals.baselines import Popularity
        >>> X = np.ones((20, 10))
        >>> Popularity().fit(X).score(X)
        1.0
        """
        found = given(X)
        fixed, state, rows = self._read_rows(found)
        rows, prior, _ = state.described(rows, user_features, found.user_ids)
        if prior is None:
            fixed._warn_without_features(state, "score", "; give it user_features")
        shown, hidden = hold_out(rows, _HIDDEN, seed=0)
        if not hidden.nnz:
            raise InputError(f"X (shape {rows.shape}) has no row of two interactions, to hide one of them")
        ranked = fixed._ranking(state, fixed._fold_in(state, shown, prior))
        return float(evaluate(ranked, shown, hidden, rising(fixed.metric), n_jobs=fixed.n_jobs)[fixed.metric])

    def _ranking(self, state: Snapshot, users: Any) -> Any:
        """What `evaluate` takes to rank items for some users."""
        return users, state.item_factors
