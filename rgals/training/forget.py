"""Users and items that leave a fitted model: nothing of them stays in it or its files."""

from dataclasses import replace
from typing import Any, Self, cast

import numpy as np

from rgals.datasets.ids import IdMap
from rgals.matrix.csr import CSR
from rgals.matrix.entries import kept_columns
from rgals.model.state import FittedState
from rgals.runtime.errors import InputError
from rgals.training.update import PUBLISHING, Updated, seen_of, with_history


class Forgetting(Updated):
    """Removals from a model fitted by half-steps, published as updates are; a mixin of `rgals.RGALS`."""

    def forget_users(self, users: Any) -> Self:
        """Remove users: afterwards their rows, ids and values are nowhere in the model or its files.

        What the factors of items took from them stays, as a share in sums over everybody, until the next
        `fit`. Copies of the model, files and checkpoints that were written before are not touched.

        Parameters
        ----------
        users : sequence of ids, or Positions
            As in ``user_ids_``. Row numbers where the model has no ids; the rows behind then move up, as in
            `numpy.delete`.

        Returns
        -------
        self

        Raises
        ------
        UnknownIdError
            A user that the model does not have; nobody is removed.
        InputError
            No interactions would be left.

        Examples
        --------
        >>> from rgals import RGALS
        >>> from rgals.datasets import read_interactions
        >>> data = read_interactions((["ann", "ann", "bob", "bob"], ["tea", "milk", "tea", "rum"]))
        >>> RGALS(K=2, random_state=0).fit(data).forget_users(["ann"]).user_ids_.tolist()
        ['bob']
        """
        with PUBLISHING:
            old = cast(FittedState, self._state())
            gone = _gone(old.users, users)
            seen = seen_of(old).take_rows(np.flatnonzero(~gone))
            seen = replace(seen, values=seen.values[:0]) if (seen.values == 1).all() else seen
            removed = _removed(old, seen, "users")
            labels = None if old.user_ids is None else old.user_ids[~gone]
            priors = None if old.priors[0] is None else old.priors[0].take_rows(~gone), old.priors[1]
            left = replace(old, user_factors=old.user_factors[~gone], priors=priors)
            self._snapshot = with_history(left, seen, (labels, old.item_ids), old.weighting, removed)
        return self

    def forget_items(self, items: Any) -> Self:
        """Remove items: afterwards their columns, ids and values are nowhere in the model or its files.

        The users who had them are solved again from the rest of their histories. What the factors of other
        items took from these users before stays until the next `fit`.

        Parameters
        ----------
        items : sequence of ids, or Positions
            As ``users`` in `forget_users`.

        Returns
        -------
        self

        Raises
        ------
        UnknownIdError, InputError
            As in `forget_users`.

        Examples
        --------
        >>> from rgals import RGALS
        >>> from rgals.datasets import read_interactions
        >>> data = read_interactions((["ann", "ann", "bob", "bob"], ["tea", "milk", "tea", "rum"]))
        >>> RGALS(K=2, random_state=0).fit(data).forget_items(["tea"]).item_ids_.tolist()
        ['milk', 'rum']
        """
        with PUBLISHING:
            old = cast(FittedState, self._state())
            known, gone = seen_of(old), _gone(old.items, items)
            seen = kept_columns(known, ~gone)
            removed = _removed(old, seen, "items")
            idf, scale, labels = old.weighting.idf, old.item_scale, old.item_ids
            names = old.record.feature_names
            left = replace(
                old,
                item_factors=old.item_factors[~gone],
                priors=(old.priors[0], None if old.priors[1] is None else old.priors[1].take_rows(~gone)),
                item_scale=None if scale is None else scale[~gone],
                record=replace(old.record, feature_names=None if names is None else names[~gone]),
            )
            weighting = replace(old.weighting, idf=None if idf is None else idf[~gone])
            labels = None if labels is None else labels[~gone]
            state = with_history(left, seen, (old.user_ids, labels), weighting, removed)
            touched = np.flatnonzero(known.row_counts != seen.row_counts)
            self._snapshot = self._solve(left, state, touched, np.empty(0, np.int64))
        return self


def _gone(known: IdMap, ids: Any) -> np.ndarray:
    """Which of the users or items are meant."""
    gone = np.zeros(len(known), bool)
    gone[known.index(ids)] = True
    return gone


def _removed(state: FittedState, seen: CSR, what: str) -> int:
    """How many interactions go; some must be left."""
    if not seen.nnz:
        raise InputError(f"without these {what} the model would have no interactions; delete it instead")
    return seen_of(state).nnz - seen.nnz
