"""Removal of users and items from a fitted model, so that nothing of them is left in it or its files."""

from dataclasses import replace
from itertools import compress
from typing import Any, Self

import numpy as np

from rgals.datasets.features import Encoding
from rgals.datasets.ids import narrowest
from rgals.matrix.entries import kept_columns
from rgals.model.state import FittedState
from rgals.solvers.prior import Prior
from rgals.training.update import PUBLISHING, Updated, with_history


class Forgetting(Updated):
    """Removal of users and items; a mixin of `rgals.RGALS`."""

    def forget_users(self, users: Any) -> Self:
        """Remove users: afterwards their rows, ids and values are nowhere in the model or its files.

        Their share in the factors of items, which are sums over all users, stays until the next `fit`. Copies
        of the model, files and checkpoints that were written before are not touched.

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
        return self._forget(0, users)

    def forget_items(self, items: Any) -> Self:
        """Remove items: afterwards their columns, ids and values are nowhere in the model or its files.

        The users who had them are solved again from the rest of their histories. Other items keep their
        factors, with a share of these users' former factors, until the next `fit`.

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
        return self._forget(1, items)

    def _forget(self, side: int, ids: Any) -> Self:
        """Publish the state without some users (side 0) or items."""
        with PUBLISHING:
            old: FittedState = self._state()
            known = old.interactions().load()
            kept = np.ones(known.shape[side], bool)
            what = ("user", "item")[side]
            kept[old.rows_of(what, ids, f"{what}s")] = False
            seen = (kept_columns(known, kept) if side else known.take_rows(np.flatnonzero(kept))).tidy()
            left = _left(old, side, kept)
            labels = left.user_ids, left.item_ids
            state = with_history(left, seen, labels, left.weighting, known.nnz - seen.nnz)
            if side:
                touched = np.flatnonzero(known.row_counts != seen.row_counts)
                state = self._solve(left, state, touched, np.empty(0, np.int64))
            self._snapshot = state
        return self


def _left(old: FittedState, side: int, kept: np.ndarray) -> FittedState:
    """The state with the kept users (side 0) or items in every field but the interactions."""
    priors, encodings, record, weighting = list(old.priors), list(old.encodings), old.record, old.weighting
    if priors[side]:
        priors[side], encodings[side] = _used(priors[side].take_rows(kept), encodings[side])
    if side:
        names, idf = record.feature_names, weighting.idf
        record = replace(record, feature_names=None if names is None else names[kept])
        weighting = replace(weighting, idf=None if idf is None else idf[kept])
    fields = ("item_factors", "item_ids", "item_scale") if side else ("user_factors", "user_ids")
    found = {name: getattr(old, name) for name in fields}
    rows: dict[str, Any] = {name: array[kept] for name, array in found.items() if array is not None}
    rows |= {name: narrowest(array) for name, array in rows.items() if name.endswith("_ids")}
    rows |= {"priors": tuple(priors), "encodings": tuple(encodings)}
    return replace(old, record=record, weighting=weighting, **rows)


def _used(prior: Prior, encoding: Encoding | None) -> tuple[Prior, Encoding | None]:
    """Features of kept rows: unused categories of frames are dropped, unused columns of matrices weigh 0."""
    features, left, start = prior.features, [], 0
    used = np.bincount(features.indices, minlength=features.shape[1]) > 0
    stay = np.full(len(used), encoding is None)
    for column in encoding or []:
        names = column.get("categories", [None])
        part = slice(start, start := start + len(names))
        stay[part] = used[part] | ("mean" in column)
        left.append(column | ({} if "mean" in column else {"categories": list(compress(names, stay[part]))}))
    weights = None if prior.weights is None else np.where(used[:, None], prior.weights, 0.0)[stay]
    return replace(prior, features=features[:, np.flatnonzero(stay)], weights=weights), encoding and left
