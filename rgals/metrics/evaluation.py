"""`evaluate`: rank every item for every test user, in blocks, and average the metrics, also by groups."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, overload

import numpy as np

from rgals.matrix.csr import CSR
from rgals.metrics import catalogue
from rgals.metrics._judged import judge_trusted, mean_of_known
from rgals.metrics._served import Served, served, users_with_truth
from rgals.metrics._table import DISLIKES, EXPOSURE, LISTS, NOVELTY, POPULARITY, WHOLE, Metric, parse_all
from rgals.runtime.checks import RANGES, check_choice, check_int
from rgals.runtime.errors import InputError, ParameterError, warn

_BATCH = 1 << 13  # most users ranked at once; a multiple of the block sizes of all kernels
_DENSE_BYTES = 1 << 26  # most bytes of float64 scores that a callable is asked for at once
_DROPPED = "test interactions are also in train: they cannot be recommended and were dropped"

Names = str | Iterable[str]


class Evaluation(dict[str, float]):
    """Figures by metric: a dict that knows whom they are about.

    Parameters
    ----------
    figures : mapping of str to float
        What the dict holds.
    n_users, n_cold, n_interactions : int, default 0
        The attributes.

    Attributes
    ----------
    n_users : int
        Users with test items, whom the figures are about.
    n_cold : int
        Those among them of whom nothing is known.
    n_interactions : int
        Test interactions of these users.

    Examples
    --------
    >>> from rgals.metrics import Evaluation
    >>> found = Evaluation({"ndcg@10": 0.31}, n_users=50)
    >>> found["ndcg@10"], found.n_users
    (0.31, 50)
    """

    def __init__(self, figures: Any = (), n_users: int = 0, n_cold: int = 0, n_interactions: int = 0) -> None:
        super().__init__(figures)
        self.n_users, self.n_cold, self.n_interactions = n_users, n_cold, n_interactions


@overload
def evaluate(
    model: Any, train: Any, test: Any, metrics: Names = ..., *, per_user: bool, **how: Any
) -> Any: ...
@overload
def evaluate(model: Any, train: Any, test: Any, metrics: Names = ..., **how: Any) -> Evaluation: ...
def evaluate(  # type: ignore[misc]  # the overloads name no options
    model: Any,
    train: Any,
    test: Any,
    metrics: Names = ("ndcg@10",),
    *,
    users: Any = None,
    cold: str = "empty",
    columns: Any = None,
    batch_size: int | None = None,
    per_user: bool = False,
    n_jobs: int | None = None,
) -> Any:
    """Average ranking metrics over the test users.

    For each user with test items, the list that the model would serve is compared with the test items: all
    items ranked by score except the training interactions, equal scores by the smaller id (as `recommend`
    does). Users without test items are left out. Nothing is sampled, no users x items array is ever made: all
    metrics with a cutoff share one pass over the scores, and those of the whole ranking a second one.

    Cold users, of whom nothing is known, get what `recommend` gives them. These are the users without
    training interactions: of the model's own, or where it keeps none of ``train``, or where that is empty too
    the users whose factors are all zero. A function answers for them itself, unless its scores are all equal,
    and so does `rgals.baselines.Popularity` for those of its fit.

    Parameters
    ----------
    model : fitted model, pair (P, Q), or callable
        Something with ``user_factors_`` and ``item_factors_``, or with ``scores``; two factor matrices of
        shapes (M, K) and (N, K); or a function from an array of user indices to their scores of all items,
        shape (len, N), dense or sparse, for models that are not factorisations.
    train : sparse matrix of shape (M, N), Interactions, frame, or None
        Interactions that leave the ranking. Test interactions that are here too are dropped, with a warning.
        ``novelty`` and ``arp`` count them, or where there are none those of the model's fit.
    test : sparse matrix of shape (M, N), Interactions or frame
        Relevant items: any value above 0. Relevance is binary. Values below 0 are dislikes, which
        ``dislike_rate`` counts. What has ids is laid out as the model is (or, where that has none,
        ``train``). Users and items unknown to the model are cold and missed, with a warning (all: an error).
    metrics : str or iterable of str, default ("ndcg@10",)
        ``ndcg, mrr, map, capped_map, recall, capped_recall, precision, f1, hit_rate, rbp, nrbp, coverage,
        gini, novelty, arp, dislike_rate`` with a cutoff (``"recall@20"``); ``auc, pauc`` of whole rankings.
        ``recall`` divides by the number of test items, ``capped_recall`` by at most k; likewise ``map``.
        Other usual names (``hr@10``, ``p@5``) are understood; ``rgals metrics`` prints all of them with
        definitions. Parameters go into parentheses: ``"rbp(0.95)@50"``, ``"pauc(0.05)"``.
    users : 1-D array of rows, or of ids where ``test`` has ids, optional
        Evaluate only these, each once.
    cold : {"empty", "popular"}, default "empty"
        What cold users get, as in `recommend`: nothing, which counts as missed (AUC: as all items tied), or
        the items with the most training interactions.
    columns : dict or "matrix", optional
        Where train and test are frames: as in `rgals.RGALS.fit`.
    batch_size : int, optional
        Users scored at once; the default bounds memory.
    per_user : bool, default False
        Return the figure of each user instead of the mean.
    n_jobs : int or None
        Threads; None is all. It changes no bit of the result.

    Returns
    -------
    Evaluation
        A dict of str to float, the mean over users by metric, under the names given, with attributes
        ``n_users``, ``n_cold`` and ``n_interactions``. Users for whom a metric is undefined (AUC without
        negatives) do not enter its mean.
    (Evaluation, ndarray)
        With ``per_user``: an array by metric, and the users it belongs to, as ids where ``test`` has ids.

    Raises
    ------
    ParameterError
        An unknown metric, or one of all users together (coverage, gini) with ``per_user``.
    ShapeError
        Factors, train and test do not fit each other.
    InputError
        No user has a test item; users get nothing but NaN from factors or a callable (a few items rank last).

    Warns
    -----
    UserWarning
        Test interactions are in ``train`` too, or most are among those that the model was fitted to; users
        or items are not known to it.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.sparse import csr_array
    >>> from rgals.metrics import evaluate
    >>> P, Q = np.array([[1.0], [2.0]]), np.array([[3.0], [2.0], [1.0]])
    >>> train = csr_array([[1, 0, 0], [0, 0, 1]])
    >>> test = csr_array([[0, 0, 1], [1, 0, 0]])
    >>> evaluate((P, Q), train, test, ("mrr@2", "recall@1", "auc"))
    {'mrr@2': 0.75, 'recall@1': 0.5, 'auc': 0.5}
    """
    wanted = parse_all(metrics)
    RANGES["bool"]("per_user", per_user)
    pooled = [metric.name for metric in wanted if metric.needs == EXPOSURE]
    if per_user and pooled:
        raise ParameterError("metrics", pooled[0], "it is of all users together; omit it with per_user=True")
    judged = served(model, train, test, cold, columns)
    asked = users_with_truth(judged, users, wanted)
    _warn_of_fitted(judged, asked)
    means, each, rows = figures(judged, wanted, asked, n_jobs, batch_size)
    return (each, judged.named(rows)) if per_user else means


def figures(
    judged: Served, wanted: Sequence[Metric], rows: np.ndarray, n_jobs: int | None, batch: int | None = None
) -> tuple[Evaluation, Any, np.ndarray]:
    """Means over ``rows``, the figures of each row with test items outside train, and these rows."""
    truth, seen = judged.truth, judged.seen
    dense = _DENSE_BYTES // (8 * max(seen.n_cols, 1)) if callable(judged.source) else _BATCH
    batch = max(1, min(_BATCH, dense)) if batch is None else check_int("batch_size", batch, 1)
    needs = {metric.needs for metric in wanted}
    counted = seen if seen.nnz else judged.history
    known_by = counted.likes.col_counts if needs & {NOVELTY, POPULARITY} else None
    n = min(max(m.options.get("k", 0) for m in wanted), seen.n_cols)
    totals: dict[str, Any] = {metric.name: 0 for metric in wanted if metric.needs == EXPOSURE}
    blocks: dict[str, list[np.ndarray]] = {m.name: [] for m in wanted if m.needs != EXPOSURE}
    kept = [rows[:0]]
    dropped = n_interactions = 0
    for start in range(0, len(rows), batch):
        users = rows[start : start + batch]
        known = seen.take_rows(users)
        hidden, overlap = without_known(truth.take_rows(users), known)
        if overlap:
            dropped += overlap
            disliked = judged.disliked.take_rows(users).row_counts if DISLIKES in needs else 0
            alive = np.flatnonzero(hidden.row_counts + disliked)
            users, hidden, known = users[alive], hidden.take_rows(alive), known.take_rows(alive)
        n_interactions += hidden.nnz
        kept.append(users)
        answers = judged.answers(users)
        ids = judged.lists(answers if n else [], known, n, n_jobs)
        lists = judge_trusted(ids, hidden, n_jobs)
        given: dict[str, tuple] = {LISTS: (lists,), POPULARITY: (lists, known_by)}
        given[NOVELTY] = lists, known_by, max(judged.n_known, 1)
        if WHOLE in needs:
            given[WHOLE] = (judged.outranked(answers, hidden, known, n_jobs),)
        if DISLIKES in needs:
            given[DISLIKES] = (judge_trusted(ids, judged.disliked.take_rows(users), n_jobs),)
        for m in wanted:
            if m.needs == EXPOSURE:
                totals[m.name] += catalogue.exposure(lists, seen.n_cols, **m.options)
            else:
                blocks[m.name].append(m.function(*given[m.needs], **m.options))
        del answers  # free the scores before the next batch
    if dropped:
        warn(f"{dropped} {_DROPPED}")
    everybody = np.concatenate(kept)
    if len(everybody) == 0:
        what = f"test (shape {truth.shape}) holds no interaction"
        raise InputError(f"{what} outside train of the users asked for")
    counts = len(everybody), int(judged.cold[everybody].sum()), n_interactions
    each = {name: np.concatenate(values) for name, values in blocks.items()}
    means = {name: mean_of_known(values) for name, values in each.items()}
    means |= {m.name: m.function(totals[m.name]) for m in wanted if m.needs == EXPOSURE}
    in_order = {metric.name: means[metric.name] for metric in wanted}
    return Evaluation(in_order, *counts), Evaluation(each, *counts), everybody


def _warn_of_fitted(judged: Served, rows: np.ndarray) -> None:
    """Warn if the model was fitted to most of the test interactions that are not in train."""
    rows = rows[rows < judged.n_known][:_BATCH]
    hidden = without_known(judged.truth.take_rows(rows), judged.seen.take_rows(rows))[0]
    n_fitted = without_known(hidden, judged.history.take_rows(rows))[1]
    if 2 * n_fitted > hidden.nnz:
        what = f"the model was fitted to {n_fitted} of {hidden.nnz} test interactions that are not in train"
        advice = "how it ranks them tells nothing about new ones; fit it to train alone"
        warn(f"{what}: {advice}")


def without_known(hidden: CSR, known: CSR) -> tuple[CSR, int]:
    """Test interactions that are not in train, and the number of those that are."""
    here, there = hidden.positions, replace(known, n_cols=hidden.n_cols).positions
    there = np.append(there, -1)  # a sentinel, for positions after the last
    clash = there[np.searchsorted(there[:-1], here)] == here
    return hidden.where(~clash), int(clash.sum())


def evaluate_segments(
    model: Any,
    train: Any,
    test: Any,
    metrics: Names = ("ndcg@10",),
    *,
    by: str = "activity",
    bins: int | Sequence[int] = 3,
    cold: str = "empty",
    columns: Any = None,
    n_jobs: int | None = None,
) -> dict[str, Evaluation]:
    """Evaluate groups of users by their activity, or of items by their popularity.

    The rankings are those of `evaluate`. By activity, users are grouped by their number of training
    interactions. By popularity, items are: only the test items of a group are relevant for its figures, and
    the users are those who have some. Lists stay as they are: figures are low where others are listed.

    Parameters
    ----------
    model, train, test, metrics, cold, columns, n_jobs
        As in `evaluate`.
    by : {"activity", "popularity"}, default "activity"
    bins : int or increasing sequence of int, default 3
        Number of groups: of about as many test users each, or of about as many training interactions each.
        Or the least number of training interactions of every group: ``(1, 5, 20)`` makes 1-4, 5-19, 20+.
        Whoever has fewer, 0 among them, makes a group before the first.

    Returns
    -------
    dict of str to Evaluation
        By training interactions, such as ``"5-19"``, increasing. Groups without test items are left out.

    Raises
    ------
    ParameterError, InputError, ShapeError
        As in `evaluate`; or there are no training interactions.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.sparse import csr_array
    >>> from rgals.metrics import evaluate_segments
    >>> P, Q = np.array([[1.0], [2.0], [0.0]]), np.array([[3.0], [2.0], [1.0]])
    >>> train = csr_array([[1, 0, 0], [0, 1, 1], [0, 0, 0]])
    >>> test = csr_array([[0, 1, 0], [1, 0, 0], [1, 0, 0]])
    >>> evaluate_segments((P, Q), train, test, "hit_rate@1", bins=(1, 2))
    {'0': {'hit_rate@1': 0.0}, '1': {'hit_rate@1': 1.0}, '2+': {'hit_rate@1': 1.0}}
    """
    wanted = parse_all(metrics)
    check_choice("by", by, ("activity", "popularity"))
    judged = served(model, train, test, cold, columns)
    popularity = judged.history.likes.col_counts
    if not popularity.any():
        raise InputError("there are no training interactions to count by; give train")
    truth, dropped = without_known(judged.truth, judged.seen)
    if dropped:
        warn(f"{dropped} {_DROPPED}")
    rows = np.flatnonzero(truth.row_counts)
    if not len(rows):
        raise InputError(f"test (shape {truth.shape}) holds no interaction outside train")
    _warn_of_fitted(judged, rows)
    side, known = (0, judged.history.row_counts) if by == "activity" else (1, popularity)
    counts = np.append(known, np.zeros(truth.shape[side] - len(known), np.int64))
    lows = _lows(bins, counts, counts) if side else _lows(bins, counts[rows], np.ones(len(rows)))
    group = np.searchsorted(lows, counts, side="right")  # of every user or item
    liked, disliked = (group[part.indices if side else part.rows] for part in (truth, judged.disliked))
    found = {}
    for k in np.unique(liked):
        low, behind = 0 if k == 0 else lows[k - 1], lows[k] if k < len(lows) else None
        name = f"{low}+" if behind is None else f"{low}" if behind == low + 1 else f"{low}-{behind - 1}"
        part = replace(judged, truth=truth.where(liked == k), disliked=judged.disliked.where(disliked == k))
        found[name] = figures(part, wanted, users_with_truth(part, None, wanted), n_jobs)[0]
    return found


def _lows(bins: Any, counts: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The least count of each group; a number of groups makes them of about the same weight, from 1 on."""
    if not isinstance(bins, int | np.integer):
        lows = np.asarray(bins, object)
        good = lows.ndim == 1 and len(lows) > 0 and all(isinstance(low, int | np.integer) for low in lows)
        if not good or (np.diff(lows, prepend=0) <= 0).any():
            raise ParameterError("bins", bins, "give a number of groups, or increasing integers from 1 on")
        return lows.astype(np.int64)
    n = check_int("bins", bins, 1)
    order = np.argsort(counts, kind="stable")
    order = order[counts[order] > 0]
    before = np.cumsum(weights[order]) - weights[order]
    if not len(order):
        return np.ones(1, np.int64)
    # A group never starts after the last entry, even if that one weighs more than a group.
    starts = np.searchsorted(before[:-1], weights[order].sum() * np.arange(n) / n)
    return np.unique(np.append(1, counts[order][starts[1:]]))
