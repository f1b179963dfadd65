"""Answers of every fitted factor model: recommendations, neighbours, scores of pairs."""

from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from rgals.datasets.given import Given, by_ids, given, no_ids, refuse_unknown
from rgals.datasets.ids import Positions, as_labels, refuse_kind
from rgals.losses.base import takes_dislikes
from rgals.matrix.csr import CSR
from rgals.matrix.entries import union
from rgals.matrix.validate import as_csr
from rgals.metrics._served import COLD
from rgals.model.fitted import Fitted
from rgals.model.state import Snapshot
from rgals.runtime.checks import check_choice, check_int
from rgals.runtime.errors import InputError, ParameterError, ShapeError, warn
from rgals.runtime.lazy import optional
from rgals.scoring import require_lists, topk
from rgals.scoring._topk import is_matrix

#: The word by which ``exclude`` asks for the users' own interactions ("train" or "given"), and these.
_Seen = tuple[str, CSR | None]


class Recommendations(NamedTuple("_Lists", [("ids", np.ndarray), ("scores", np.ndarray)])):
    """Lists of items or users, best first, with their scores: ``ids, scores = model.recommend(...)``.

    Attributes
    ----------
    ids : ndarray, shape (B, n)
        Ids and None, or numbers and -1: see `FactorRanker.recommend`.
    scores : ndarray, shape (B, n)
        -inf where there is none.
    asked : ndarray, shape (B,)
        The users or items that the lists are for, as they were asked for.
    columns : tuple of str
        What `to_frame` calls those who were asked for, and what they got.

    Examples
    --------
    >>> from rgals import RGALS
    >>> from rgals.datasets import read_interactions
    >>> data = read_interactions((["ann", "ann", "bob", "bob"], ["tea", "milk", "tea", "rum"]))
    >>> lists = RGALS(K=2, random_state=0).fit(data).recommend(["bob", "ann"], n=2)
    >>> lists.ids[:, 0], lists.to_frame()["user"].tolist()
    (array(['milk', 'rum'], dtype=object), ['bob', 'ann'])
    """

    asked: np.ndarray
    columns: tuple[str, str]

    @classmethod
    def of(cls, ids: np.ndarray, scores: np.ndarray, asked: np.ndarray, columns: tuple[str, str]) -> Self:
        """Lists with the users or items that they are for."""
        made = cls(ids, scores)
        made.asked, made.columns = asked, columns
        return made

    def to_frame(self) -> Any:
        """The lists as a pandas DataFrame: a row for each entry, with its rank from 1 and its score.

        Its columns are ``user`` and ``item`` (of neighbours ``item`` and ``similar_item``, ``user`` and
        ``similar_user``), ``rank``, ``score``. Without pandas it raises a `MissingDependencyError`.
        """
        pandas = optional("pandas", "a frame needs pandas: pip install pandas")
        row, place = np.nonzero(self.ids != None if self.ids.dtype == object else self.ids >= 0)  # noqa: E711
        columns = self.asked[row], self.ids[row, place], place + 1, self.scores[row, place]
        names = *self.columns, "rank", "score"
        return pandas.DataFrame(dict(zip(names, columns, strict=True))).infer_objects()


def _aligned(name: str, matrix: Any, n_rows: int, snapshot: Snapshot, asked: str, found: str) -> CSR:
    """A filter matrix, checked: a row for each user (or item) of the call."""
    n_all, n_cols = (len(getattr(snapshot, f"{side}_factors")) for side in (asked, found))
    shape = getattr(matrix, "shape", None)
    if shape == (n_all, n_cols) and n_rows != n_all:
        what = f"{name} has shape {shape}, a row for every {asked} of the model, but it takes one"
        raise ShapeError(f"{what} for each of the {n_rows} {asked}s asked for: give {name}[{asked}s]")
    return as_csr(matrix, name=name, n_rows=n_rows, n_cols=n_cols, dislikes=name == "exclude")


def _open(
    snapshot: Snapshot, candidates: Any, blocked: Any, n_rows: int, asked: str = "user", found: str = "item"
) -> dict[str, Any]:
    """The arguments of `topk` for the items (or users) that a call allows, and those it leaves out."""
    if is_matrix(candidates):
        candidates = _aligned("candidates", candidates, n_rows, snapshot, asked, found)
    elif candidates is not None:
        candidates = snapshot.rows_of(found, candidates, "candidates")
    if blocked is not None:
        blocked = snapshot.rows_of(found, blocked, f"exclude_{found}s")
    return {"candidates": candidates, "exclude_items": blocked}


def _taken(filters: dict[str, Any], rows: np.ndarray) -> dict[str, Any]:
    """The filters for some rows of a call."""
    return {name: at.take_rows(rows) if isinstance(at, CSR) else at for name, at in filters.items()}


class FactorRanker(Fitted):
    """Recommendations from factors; a mixin for estimators that set ``self._snapshot`` to a `Snapshot`."""

    # Every method reads the snapshot once, so that an answer never mixes two fits, even while another thread
    # refits. If the model has ids (integers, too), methods take and return users and items by their ids;
    # `rgals.Positions` are rows and columns of the training matrix, and are answered with such. A model
    # without ids takes and returns rows and columns. Scores are inner products: numbers without bounds or
    # unit, comparable for one user, no probabilities.

    n_jobs: int | None
    _needs_history: ClassVar[bool] = True  # False: users without interactions get lists, too
    _pairs_at_once: ClassVar[int] = 1 << 16  # pairs whose factors `predict` gathers at a time

    def _fold_in(self, snapshot: Snapshot, rows: CSR, prior: Any = None) -> np.ndarray:
        """Factors of new users from their histories, and from the prior of their features."""
        raise InputError(f"{type(self).__name__} cannot compute factors of new users: it has no transform")

    def _laid_out(self, state: Any, found: Given, name: str, over: str = "items", dtype: Any = None) -> CSR:
        """Interactions, checked, with the columns of a fit (over "items"), its rows ("users"), or "both"."""
        users, items = over != "items", over != "users"
        if items and found.frame is not None:
            self._check_names(found, name)
        matrix = found.timed
        if found.labelled:
            if (state.item_ids if items else state.user_ids) is None:
                raise no_ids(name)
            sides = state.users if users else None, state.items if items else None
            matrix, *unknown = found.laid_out(*sides, name)
            refuse_unknown(unknown, name)
        shape = {"n_rows": len(state.user_factors)} if users else {}
        shape |= {"n_cols": len(state.item_factors)} if items else {}
        dtype, dislikes = dtype or state.item_factors.dtype, takes_dislikes(state)
        made = as_csr(matrix, name=name, dtype=dtype, dislikes=dislikes, **shape)
        state.weighting.check_times(made)
        return made

    def _topk(self, queries: np.ndarray, items: np.ndarray, n: int, **filters: Any) -> tuple:
        n_jobs, device = getattr(self, "n_jobs", None), getattr(self, "device", "cpu")
        return topk(queries, items, n, n_jobs=n_jobs, device=device, **filters)

    def _excluded(self, snapshot: Snapshot, exclude: Any, seen: _Seen, n_rows: int) -> CSR | None:
        """The pairs that ``exclude`` stands for: a word, a matrix, None, or a sequence of these."""
        found = []
        for part in exclude if isinstance(exclude, tuple | list) else [exclude]:
            short = np.isscalar(part) or getattr(part, "ndim", 2) == 1  # such as an array of items
            if short and not (isinstance(part, str) and part == seen[0]):
                why = f"give {seen[0]!r}, None or a matrix of pairs; items that nobody gets are exclude_items"
                raise ParameterError("exclude", part, why)
            if isinstance(part, str):
                if seen[1] is None:
                    why = "this model carries no training interactions; give a matrix or None"
                    raise ParameterError("exclude", part, why)
                found.append(seen[1])
            elif part is not None:
                found.append(_aligned("exclude", part, n_rows, snapshot, "user", "item"))
        return union(found)

    def _rank(
        self, snapshot: Snapshot, queries: Any, seen: _Seen, n: int, cold: str, exclude: Any, filters: dict
    ) -> tuple[np.ndarray, np.ndarray]:
        """Lists of users; those without interactions get popular items, or nothing and a warning."""
        filters["exclude"] = self._excluded(snapshot, exclude, seen, len(queries))
        check_choice("cold", cold, COLD)
        ids, scores = self._topk(queries, snapshot.item_factors, n, **filters)
        if seen[1] is None or not self._needs_history:
            return ids, scores
        alone = seen[1].row_counts == 0
        if snapshot.priors[0] is not None:  # users with features have factors without any interaction
            alone = alone & ~queries.any(axis=1)
        rows = np.flatnonzero(alone)
        if len(rows) and cold == "popular" and snapshot.seen is not None:
            ids[rows], scores[rows] = self._popular(snapshot, n, rows, filters)
        elif len(rows):
            ids[rows], scores[rows] = -1, -np.inf
            why = "training interactions" if seen[0] == "train" else "interactions"
            warn(f"{len(rows)} of {len(ids)} users have no {why}: they get no lists (no ids, scores -inf)")
        return ids, scores

    def _popular(self, snapshot: Snapshot, n: int, rows: np.ndarray, filters: dict[str, Any]) -> tuple:
        """The most popular items that the filters of some users allow; one list if all have the same."""
        n_lists = len(rows) if any(isinstance(at, CSR) for at in filters.values()) else 1
        # The item factors of `Popularity` are its popularity, which a half-life may weigh by age.
        found = snapshot.popularity if self._needs_history else snapshot.item_factors
        return self._topk(np.ones((n_lists, 1), found.dtype), found, n, **_taken(filters, rows))

    def recommend(
        self,
        users: Any,
        n: int = 10,
        *,
        exclude: Any = "train",
        candidates: Any = None,
        exclude_items: Any = None,
        cold: str = "empty",
    ) -> Recommendations:
        """Best items of known users, exactly.

        Parameters
        ----------
        users : id, sequence of ids, or Positions, length B
            As in ``user_ids_``; row numbers where the model has no ids.
        n : int, default 10
            Length of each list; it may exceed the number of items.
        exclude : "train", None, sparse matrix of shape (B, N), or a tuple of these; default "train"
            Pairs that must not be returned: the training interactions, none, or those stored in a matrix with
            a row for each *requested* user. ``("train", shown)`` excludes both. A store, `Interactions` and
            frames of users and items have ids, by which these users are found in them; scores do not count.
        candidates : sequence of item ids, Positions, or sparse matrix of shape (B, N), optional
            The only items that may be returned, for all or, as pairs like those of ``exclude``, for each
            requested user.
        exclude_items : sequence of item ids, or Positions, optional
            Items that nobody gets.
        cold : {"empty", "popular"}, default "empty"
            What users without training interactions get: empty lists, or the items with the most training
            interactions that the filters allow, with that number as their score.

        Returns
        -------
        ids : ndarray, shape (B, n)
            Best first, equal scores by the earlier column. Item ids, None where fewer than ``n`` items are
            left; columns (int32) and -1 where the model has no ids or ``users`` are `Positions`.
        scores : ndarray, shape (B, n)
            Inner products of the factors; -inf where there is no item.

        Raises
        ------
        NotFittedError
            Before `fit`.
        UnknownIdError
            A user or an item that the model does not have.
        ShapeError
            A filter of another shape, for instance transposed.

        Warns
        -----
        UserWarning
            Users without training interactions who get nothing: how many.
        """
        snapshot: Snapshot = self._state()
        rows = snapshot.rows_of("user", users, "users")
        exclude = by_ids("exclude", exclude, snapshot, rows)
        candidates = by_ids("candidates", candidates, snapshot, rows)
        filters = _open(snapshot, candidates, exclude_items, len(rows))
        ids, scores = self._rank(snapshot, *snapshot.of_users(rows), n, cold, exclude, filters)
        asked = snapshot.named("user", rows, users)
        return Recommendations.of(snapshot.named("item", ids, users), scores, asked, ("user", "item"))

    def recommend_ids(
        self,
        user_ids: Any,
        n: int = 10,
        *,
        unknown: str = "error",
        cold: str = "empty",
        exclude: Any = "train",
        candidates: Any = None,
        exclude_items: Any = None,
    ) -> Recommendations:
        """`recommend` in external ids, with an answer to ids that the model does not know.

        Parameters
        ----------
        user_ids : id or sequence of ids, length B
            As in ``user_ids_``; row numbers where the model was fitted without.
        n, exclude, candidates, exclude_items, cold
            As in `recommend`; filters with ids hold for unknown users, too.
        unknown : {"error", "popular", "empty"}, default "error"
            What users unknown to the model get: an error that names the first, or lists as with ``cold``.

        Returns
        -------
        items : ndarray of object, shape (B, n)
            Item ids, best first; None where there are fewer than ``n``.
        scores : ndarray, shape (B, n)
            -inf where the item is None.

        Raises
        ------
        UnknownIdError
            An item, or with ``unknown="error"`` a user, that the model does not have.

        Examples
        --------
        >>> from rgals import RGALS
        >>> from rgals.datasets import read_interactions
        >>> data = read_interactions((["ann", "ann", "bob", "bob"], ["tea", "milk", "tea", "rum"]))
        >>> model = RGALS(K=2, random_state=0).fit(data)
        >>> model.recommend_ids(["bob", "eve"], n=2, unknown="popular")[0]
        array([['milk', None],
               ['tea', 'milk']], dtype=object)
        """
        check_choice("unknown", unknown, ("error", *COLD))
        snapshot: Snapshot = self._state()
        asked: Any = user_ids if isinstance(user_ids, Positions) else as_labels(user_ids)
        rows = snapshot.users.index(asked, missing="error" if unknown == "error" else "mark")
        whose = snapshot, rows, None if isinstance(asked, Positions) else asked
        filters = _open(snapshot, by_ids("candidates", candidates, *whose), exclude_items, len(rows))
        parts = by_ids("exclude", exclude if isinstance(exclude, tuple | list) else (exclude,), *whose)
        named = [part for part in parts if isinstance(part, str)]  # "train", whose rows are of known users
        pairs = [part for part in parts if not isinstance(part, str)]
        filters["exclude"] = self._excluded(snapshot, pairs, ("train", None), len(rows))
        known, new = np.flatnonzero(rows >= 0), np.flatnonzero(rows < 0)
        words = [] if isinstance(asked, Positions) else [str(label) for label in asked[new[:1000]].tolist()]
        if (other := snapshot.users.parse(words, missing="mark") >= 0).any():  # "7" where a user is 7
            refuse_kind(snapshot.users, as_labels(asked[new[:1000]][other].tolist()), "user_ids")
        # Two tables of row numbers and scores, and one of labels.
        require_lists(len(rows), check_int("n", n, 1), 2 * (4 + snapshot.item_factors.itemsize) + 8)
        mine = snapshot.of_users(rows[known])
        told = _taken(filters, known)
        found, best = self._rank(snapshot, *mine, n, cold, [*named, told["exclude"]], told)
        ids, scores = np.full((len(rows), n), -1, np.int32), np.full((len(rows), n), -np.inf, best.dtype)
        ids[known], scores[known] = found, best
        if unknown == "popular" and len(new):
            ids[new], scores[new] = self._popular(snapshot, n, new, filters)
        items = np.full(ids.shape, None, object)
        items[ids >= 0] = snapshot.items.labels[ids[ids >= 0]].astype(object)
        names: Any = getattr(asked, "numbers", asked) if len(new) else snapshot.named("user", rows)
        return Recommendations.of(items, scores, names, ("user", "item"))

    def recommend_new(
        self,
        X_rows: Any = None,
        n: int = 10,
        *,
        exclude: Any = "given",
        candidates: Any = None,
        exclude_items: Any = None,
        cold: str = "empty",
        user_features: Any = None,
    ) -> Recommendations:
        """Best items of new users: their factors are folded in, nothing is refitted or stored.

        Parameters
        ----------
        X_rows : sparse matrix, array, Interactions or frame of shape (B, N), optional
            The interactions of each new user: a matrix has the columns of the training matrix. A frame has a
            row for each different user, in the order of `numpy.unique`. None where there are features alone.
        n : int, default 10
        exclude : "given", None, sparse matrix of shape (B, N), or a tuple of these; default "given"
            Pairs that must not be returned: the interactions in ``X_rows``, none, or those of a matrix.
        candidates, exclude_items, cold
            As in `recommend`; cold are rows without interactions and features.
        user_features : sparse matrix, array, frame or (ids, matrix), optional
            What is known of the users besides, where the fit had features: as in `rgals.RGALS.transform`.

        Returns
        -------
        ids, scores : ndarray, shape (B, n)
            As in `recommend`: item ids where ``X_rows`` has ids, columns where it is a matrix.

        Raises
        ------
        NotFittedError, UnknownIdError, ShapeError
            As in `recommend`.
        InputError
            ``X_rows`` holds values that cannot be used, or the model cannot fold in.

        Warns
        -----
        UserWarning
            Rows without interactions that get nothing: how many.
        """
        snapshot: Snapshot = self._state()
        found = None if X_rows is None else given(X_rows, name="X_rows")
        rows = None if found is None else self._laid_out(snapshot, found, "X_rows").load()
        rows, prior, users = snapshot.described(rows, user_features, found and found.user_ids)
        queries = self._fold_in(snapshot, rows, prior)
        if users is not None:
            exclude = by_ids("exclude", exclude, snapshot, None, users)
            candidates = by_ids("candidates", candidates, snapshot, None, users)
        filters = _open(snapshot, candidates, exclude_items, len(queries))
        ids, scores = self._rank(snapshot, queries, ("given", rows), n, cold, exclude, filters)
        asked = np.arange(len(ids)) if users is None else users
        ids = snapshot.named("item", ids) if found is None or found.labelled else ids
        return Recommendations.of(ids, scores, asked, ("user", "item"))

    def similar_items(
        self,
        items: Any,
        n: int = 10,
        *,
        metric: str = "cosine",
        candidates: Any = None,
        exclude_items: Any = None,
    ) -> Recommendations:
        """Items whose factors are closest to those of the given items; no item is its own neighbour.

        Parameters
        ----------
        items : id, sequence of ids, or Positions, length B
            As in ``item_ids_``; numbers in the training matrix where the model has no ids.
        n : int, default 10
        metric : {"cosine", "dot"}, default "cosine"
            ``f_i . f_j / (|f_i| |f_j|)`` of factors f, or ``f_i . f_j``, which favours long ones.
        candidates : sequence of item ids, Positions, or sparse matrix of shape (B, all items), optional
            The only items that may be returned.
        exclude_items : sequence of item ids, or Positions, optional
            Never returned.

        Returns
        -------
        ids : ndarray, shape (B, n)
            Nearest first; ids and None, or numbers and -1, as in `recommend`. Factors that are all zero have
            no direction: with the cosine their item is nobody's neighbour and has none.
        scores : ndarray, shape (B, n)
            Similarities; -inf where there is none.

        Raises
        ------
        NotFittedError, UnknownIdError, ShapeError, ParameterError
        """
        return self._neighbours("item", items, n, metric, candidates, exclude_items)

    def similar_users(  # noqa: D102 - the docstring is made below
        self,
        users: Any,
        n: int = 10,
        *,
        metric: str = "cosine",
        candidates: Any = None,
        exclude_users: Any = None,
    ) -> Recommendations:
        return self._neighbours("user", users, n, metric, candidates, exclude_users)

    similar_users.__doc__ = str(similar_items.__doc__).replace("item", "user").replace("Item", "User")

    def _neighbours(
        self, what: str, asked: Any, n: int, metric: str, candidates: Any, blocked: Any
    ) -> Recommendations:
        snapshot: Snapshot = self._state()
        check_choice("metric", metric, ("cosine", "dot"))
        factors = getattr(snapshot, f"{what}_factors")
        scale = getattr(snapshot, f"{what}_inverse_norms") if metric == "cosine" else None
        rows, size = snapshot.rows_of(what, asked, f"{what}s"), len(factors)
        queries = factors[rows] if scale is None else factors[rows] * scale[rows, None]
        itself = CSR(np.arange(len(rows) + 1), rows.astype(np.int32), np.empty(0, factors.dtype), size)
        filters = _open(snapshot, candidates, blocked, len(rows), what, what)
        ids, scores = self._topk(queries, factors, n, item_scale=scale, exclude=itself, **filters)
        names = snapshot.named(what, rows, asked)
        return Recommendations.of(snapshot.named(what, ids, asked), scores, names, (what, f"similar_{what}"))

    def predict(self, users: Any, items: Any) -> np.ndarray:
        """Scores of pairs.

        Parameters
        ----------
        users, items : ids or Positions of one length L, or one of them a single id
            As in ``user_ids_`` and ``item_ids_``; rows and columns where the model has no ids.

        Returns
        -------
        ndarray, shape (L,)
            ``p_u . q_i`` for each pair: what `recommend` orders by, up to the last bits.

        Raises
        ------
        NotFittedError, UnknownIdError
        ShapeError
            Two lengths that do not fit.
        """
        snapshot: Snapshot = self._state()
        rows = snapshot.rows_of("user", users, "users")
        cols = snapshot.rows_of("item", items, "items")
        if len(rows) != len(cols) and 1 not in (len(rows), len(cols)):
            raise ShapeError(f"{len(rows)} users and {len(cols)} items make no pairs; give as many of each")
        rows, cols = np.broadcast_arrays(rows, cols)
        out = np.empty(len(rows), np.result_type(snapshot.user_factors.dtype, snapshot.item_factors.dtype))
        for start in range(0, len(rows), self._pairs_at_once):
            part = slice(start, start + self._pairs_at_once)
            out[part] = self._scores_of(snapshot, rows[part], cols[part])
        return out

    def _scores_of(self, snapshot: Snapshot, rows: np.ndarray, cols: np.ndarray) -> np.ndarray:
        return np.einsum("ij,ij->i", snapshot.user_factors[rows], snapshot.item_factors[cols])
