"""The sampled-negative protocol: each test item ranked among a few random others. For comparison only."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from sklearn.utils import gen_batches

from rgals.matrix.csr import CSR
from rgals.matrix.entries import union
from rgals.metrics._judged import Judged
from rgals.metrics._served import served, users_with_truth
from rgals.metrics._table import parse_all, parts
from rgals.runtime.checks import check_int, check_random_state
from rgals.runtime.errors import InputError, InputTypeError, ParameterError

_BLOCK_BYTES = 1 << 26  # most bytes of item factors that are gathered at once


def evaluate_sampled(
    model: Any,
    train: Any,
    test: Any,
    metrics: str | Iterable[str] = ("hit_rate@10", "ndcg@10"),
    *,
    n_negatives: int = 99,
    users: Any = None,
    columns: Any = None,
    per_user: bool = False,
    random_state: Any = 0,
) -> Any:
    """Rank every test item among ``n_negatives`` random items: "HR@10 against 99 negatives".

    .. warning::
        These figures mislead and are here only so that published ones can be compared with. A rank among 100
        items is a noisy and strongly bent picture of the rank in the catalogue: of 10,000 items, one that
        900 others outrank is expected on place 10 of 100. All metrics become nearly the same as AUC,
        cutoffs lose their meaning, and two models can change places (Krichene and Rendle). Use
        `rgals.metrics.evaluate`, which ranks the whole catalogue.

    Parameters
    ----------
    model : fitted model, or pair (P, Q)
        Something with ``user_factors_`` and ``item_factors_``, or factor matrices of shapes (M, K), (N, K).
    train : sparse matrix of shape (M, N), Interactions, frame, or None
        Interactions that cannot be drawn as negatives. Test items that are also here are ranked all the same.
    test : sparse matrix of shape (M, N), Interactions or frame
        Relevant items; each is ranked on its own.
    metrics : str or iterable of str, default ("hit_rate@10", "ndcg@10")
        ``hit_rate``, ``ndcg`` and ``mrr`` with a cutoff. With one relevant item at rank r they are
        ``[r <= k]``, ``[r <= k] / log2(r + 1)`` and ``[r <= k] / r``.
    n_negatives : int, default 99
        Different items, drawn uniformly for each test item from those of neither train nor test of the user.
    users, columns
        As in `evaluate`.
    per_user : bool, default False
        Return the mean over the test items of each user instead of the mean over users.
    random_state : int, RandomState, Generator or None, default 0

    Returns
    -------
    dict of str to float
        Means over the users with test items; items of cold users (see `evaluate`) count as missed. Equal
        scores are ranked by the smaller item id, as everywhere in rgals.
    (dict of str to ndarray, ndarray)
        With ``per_user``: an array by metric, and the users it belongs to.

    Raises
    ------
    ParameterError
        A metric of another kind.
    InputTypeError
        A model without factors, or a function.
    InputError
        A user has fewer than ``n_negatives`` items to draw from, or no user has a test item.

    References
    ----------
    He et al., "Neural collaborative filtering", WWW 2017, made the protocol popular. Krichene and Rendle, "On
    sampled metrics for item recommendation", KDD 2020, show what is wrong with it.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.sparse import csr_array
    >>> from rgals.metrics import evaluate, evaluate_sampled
    >>> P, Q = np.ones((1, 1)), -np.arange(1000.0)[:, None]  # the 51st of 1000 items is the one to find
    >>> test = csr_array((np.ones(1), ([0], [50])), shape=(1, 1000))
    >>> evaluate((P, Q), None, test, "hit_rate@10"), evaluate_sampled((P, Q), None, test, "hit_rate@10")
    ({'hit_rate@10': 0.0}, {'hit_rate@10': 1.0})
    """
    wanted = parse_all(metrics)
    for metric in wanted:
        if parts(metric.name)[0] not in ("hit_rate", "ndcg", "mrr"):
            raise ParameterError("metrics", metric.name, "choose from hit_rate@k, ndcg@k and mrr@k")
    n_negatives = check_int("n_negatives", n_negatives, 1)
    judged = served(model, train, test, "empty", columns)
    if not isinstance(judged.source, tuple):
        raise InputTypeError("model must have user_factors_ and item_factors_, or be (P, Q), to be ranked by")
    (P, Q), truth = judged.source, judged.truth
    if truth.shape != (len(P), len(Q)):
        raise InputError("test has users or items that the model does not know; leave them out here")
    known = union([judged.seen, truth, judged.disliked]) or truth
    rows = users_with_truth(judged, users)
    if len(rows) == 0:
        raise InputError(f"test (shape {truth.shape}) holds no interaction of the users asked for")
    few = np.flatnonzero(truth.n_cols - known.row_counts[rows] < n_negatives)
    if len(few):
        left = truth.n_cols - int(known.row_counts[rows[few[0]]])
        user = judged.named(rows[few[:1]]).tolist()[0]
        what = f"user {user!r} has {left} items that are in neither train nor test"
        raise InputError(f"{what}, fewer than n_negatives={n_negatives}")
    hidden = truth.take_rows(rows)
    owner = np.repeat(rows, hidden.row_counts)
    rng = check_random_state(random_state)
    rank, missed = np.empty(hidden.nnz, np.int64), n_negatives + 2  # `missed` is one after the last rank
    block = max(1, _BLOCK_BYTES // (4 * Q.shape[1] * (n_negatives + 1)))
    for part in gen_batches(hidden.nnz, block):
        items = hidden.indices[part].astype(np.int64)
        drawn = _draw(owner[part], known, n_negatives, rng)
        mine = np.einsum("ik,ik->i", P[owner[part]], Q[items])[:, None]
        theirs = np.einsum("ik,ijk->ij", P[owner[part]], Q[drawn])
        ahead = (theirs > mine) | ((theirs == mine) & (drawn < items[:, None]))
        rank[part] = np.where(mine[:, 0] > -np.inf, 1 + ahead.sum(axis=1), missed)
    rank[judged.silent[owner]] = missed  # nothing is known about these users
    figures = {}
    for metric in wanted:  # `worth[r - 1]`: value of a list whose one relevant item is at rank r
        hits = np.eye(missed, min(metric.options["k"], n_negatives + 1), dtype=bool)
        worth = metric.function(Judged(np.empty(0), hits, np.ones(missed, int)), **metric.options)
        of_users = np.bincount(hidden.rows, worth[rank - 1], minlength=len(rows))
        figures[metric.name] = of_users / hidden.row_counts
    means = {name: float(values.mean()) for name, values in figures.items()}
    return (figures, judged.named(rows)) if per_user else means


def _draw(users: np.ndarray, known: CSR, n: int, rng: np.random.RandomState) -> np.ndarray:
    """``n`` different unknown items for each entry of ``users``; repeated and known ones are redrawn."""
    taken = np.append(known.positions, -1)  # a sentinel, for positions after the last
    drawn = rng.randint(0, known.n_cols, (len(users), n))
    # If nearly all unknown items are drawn, redrawing would take long: choose among them instead.
    few = known.n_cols - known.row_counts[users] - n < known.n_cols // 8
    for entry in np.flatnonzero(few):
        row = slice(*known.indptr[users[entry] :][:2])
        drawn[entry] = rng.choice(np.delete(np.arange(known.n_cols), known.indices[row]), n, replace=False)
    todo = np.flatnonzero(~few)
    while len(todo):
        rows = np.sort(drawn[todo], axis=1)
        keys = users[todo, None] * known.n_cols + rows
        bad = taken[np.searchsorted(taken[:-1], keys)] == keys
        bad[:, 1:] |= rows[:, 1:] == rows[:, :-1]
        rows[bad] = rng.randint(0, known.n_cols, int(bad.sum()))
        drawn[todo] = rows
        todo = todo[bad.any(axis=1)]
    return drawn
