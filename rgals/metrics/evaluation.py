"""From a model, training and test interactions to figures: of users, of groups, of sampled negatives."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.utils import gen_batches

from rgals.matrix.csr import CSR
from rgals.matrix.entries import union
from rgals.metrics._judged import Judged, judge_trusted, mean_of_known
from rgals.metrics._served import Served, served, users_with_truth
from rgals.metrics._table import DISLIKES, EXPOSURE, LISTS, NOVELTY, POPULARITY, WHOLE, Metric, parse_all
from rgals.metrics.lists import exposure
from rgals.runtime.checks import check_choice, check_int, check_random_state
from rgals.runtime.errors import InputError, InputTypeError, ParameterError

_BATCH = 1 << 13  # users; a multiple of the blocks of every kernel
_DENSE_BYTES = 1 << 26  # of scores that a callable is asked for at once
_GATHERED_BYTES = 1 << 26  # of factors of sampled negatives


class Evaluation(dict):
    """Figures by metric: a dict that knows whom they are about.

    Attributes
    ----------
    figures : mapping of str to float
        What the dict holds.
    n_users : int
        Users with test items, whom the figures are about.
    n_cold : int
        Those among them of whom nothing is known.
    n_interactions : int
        Test interactions of these users.
    """

    def __init__(self, figures: Any = (), n_users: int = 0, n_cold: int = 0, n_interactions: int = 0) -> None:
        super().__init__(figures)
        self.n_users, self.n_cold, self.n_interactions = n_users, n_cold, n_interactions


def evaluate(
    model: Any,
    train: Any,
    test: Any,
    metrics: str | Iterable[str] = ("ndcg@10",),
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
        ``train``). Users and items that the model does not know are cold and missed; a warning counts them.
    metrics : str or iterable of str, default ("ndcg@10",)
        ``ndcg, mrr, map, capped_map, recall, capped_recall, precision, f1, hit_rate, rbp, nrbp, coverage,
        gini, novelty, arp, dislike_rate`` with a cutoff (``"recall@20"``); ``auc, pauc`` of whole rankings.
        ``recall`` divides by the number of test items, ``capped_recall`` by at most k; likewise ``map``.
        Other usual names (``hr@10``, ``p@5``) are understood; ``rgals metrics`` prints all of them with
        definitions. Parameters go into parentheses: ``"rbp(0.95)@50"``, ``"pauc(0.05)"``.
    users : 1-D array of rows, or of ids where ``test`` has ids, optional
        Evaluate only these.
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
        No user has a test item; a callable gives a user nothing but NaN (a few rank last).

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
    pooled = [metric.name for metric in wanted if metric.needs == EXPOSURE]
    if per_user and pooled:
        advice = "it is a figure of all users together; leave it out with per_user=True"
        raise ParameterError("metrics", pooled[0], advice)
    judged = served(model, train, test, cold, columns)
    means, each, rows = figures(judged, wanted, users_with_truth(judged, users), batch_size, n_jobs)
    return (each, judged.named(rows)) if per_user else means


def figures(
    judged: Served,
    wanted: Sequence[Metric],
    rows: np.ndarray,
    batch_size: int | None = None,
    n_jobs: int | None = None,
) -> tuple[Evaluation, Evaluation, np.ndarray]:
    """Means over some rows, the figures of each that has test items outside train, and these rows."""
    truth, seen = judged.truth, judged.seen
    dense = _DENSE_BYTES // (8 * max(seen.n_cols, 1)) if callable(judged.source) else _BATCH
    batch = max(1, min(_BATCH, dense)) if batch_size is None else check_int("batch_size", batch_size, 1)
    needs = {metric.needs for metric in wanted}
    counted = seen if seen.nnz else judged.history
    known_by = counted.likes.col_counts if needs & {NOVELTY, POPULARITY} else None
    n = min(max((m.k for m in wanted if m.k is not None), default=0), seen.n_cols)
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
            alive = np.flatnonzero(hidden.row_counts)
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
                totals[m.name] += exposure(lists, seen.n_cols, m.k)
            else:
                blocks[m.name].append(m.function(*given[m.needs], **m.options))
        del answers  # scores are gone before the next are made
    warn_of_dropped(dropped, stacklevel=4)
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


def warn_of_dropped(n: int, stacklevel: int) -> None:
    """Say how many test interactions were dropped, if any."""
    if n:
        what = f"{n} test interactions are also in train"
        warnings.warn(f"{what}: they cannot be recommended and were dropped", UserWarning, stacklevel)


def without_known(hidden: CSR, known: CSR) -> tuple[CSR, int]:
    """Test interactions that are not in train, and the number of those that are."""
    here, there = hidden.positions, replace(known, n_cols=hidden.n_cols).positions
    there = np.append(there, -1)  # a mark behind the last, never found
    clash = there[np.searchsorted(there[:-1], here)] == here
    return hidden.where(~clash), int(clash.sum())


def evaluate_segments(
    model: Any,
    train: Any,
    test: Any,
    metrics: str | Iterable[str] = ("ndcg@10",),
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
    hidden, dropped = without_known(judged.truth, judged.seen)
    warn_of_dropped(dropped, stacklevel=3)
    judged = replace(judged, truth=hidden)
    rows, truth = users_with_truth(judged, None), judged.truth
    if not len(rows):
        raise InputError(f"test (shape {truth.shape}) holds no interaction outside train")
    if by == "activity":
        side, known, places = 0, judged.history.row_counts, truth.rows
    else:
        side, known, places = 1, popularity, truth.indices
    counts = np.append(known, np.zeros(truth.shape[side] - len(known), np.int64))
    lows = _lows(bins, counts, counts) if side else _lows(bins, counts[rows], np.ones(len(rows)))
    group = np.searchsorted(lows, counts, side="right")[places]
    found = {}
    for k in np.unique(group):
        low, behind = 0 if k == 0 else lows[k - 1], lows[k] if k < len(lows) else None
        name = f"{low}+" if behind is None else f"{low}" if behind == low + 1 else f"{low}-{behind - 1}"
        part = replace(judged, truth=truth.where(group == k))
        found[name] = figures(part, wanted, users_with_truth(part, None), n_jobs=n_jobs)[0]
    return found


def _lows(bins: Any, counts: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The least count of every group; of a number of them, groups of about the same weight from 1 on."""
    if not isinstance(bins, int | np.integer):
        lows = np.asarray(bins)
        good = lows.ndim == 1 and lows.dtype.kind in "iu" and len(lows) > 0
        if not good or (np.diff(lows, prepend=0) <= 0).any():
            raise ParameterError("bins", bins, "give a number of groups, or increasing integers from 1 on")
        return lows
    n = check_int("bins", bins, 1)
    order = np.argsort(counts, kind="stable")
    order = order[counts[order] > 0]
    before = np.cumsum(weights[order]) - weights[order]
    if not len(order):
        return np.ones(1, np.int64)
    # Without the last, which may weigh more than a group should.
    starts = np.searchsorted(before[:-1], weights[order].sum() * np.arange(n) / n)
    return np.unique(np.append(1, counts[order][starts[1:]]))


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
        if metric.kind not in ("hit_rate", "ndcg", "mrr"):
            raise ParameterError("metrics", metric.name, "choose from hit_rate@k, ndcg@k and mrr@k")
    check_int("n_negatives", n_negatives, 1)
    judged = served(model, train, test, "empty", columns)
    if not isinstance(judged.source, tuple):
        raise InputTypeError("model must be fitted and have user_factors_ and item_factors_, or be (P, Q)")
    P, Q = judged.source
    truth = judged.truth
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
    rank, missed = np.empty(hidden.nnz, np.int64), n_negatives + 2  # behind the last of those that are ranked
    block = max(1, _GATHERED_BYTES // (4 * Q.shape[1] * (n_negatives + 1)))
    for part in gen_batches(hidden.nnz, block):
        items = hidden.indices[part].astype(np.int64)
        drawn = _draw(owner[part], known, n_negatives, rng)
        mine = np.einsum("ik,ik->i", P[owner[part]], Q[items])[:, None]
        theirs = np.einsum("ik,ijk->ij", P[owner[part]], Q[drawn])
        ahead = (theirs > mine) | ((theirs == mine) & (drawn < items[:, None]))
        rank[part] = np.where(mine[:, 0] > -np.inf, 1 + ahead.sum(axis=1), missed)
    rank[judged.silent[owner]] = missed  # nothing is known about these users
    figures = {}
    for metric in wanted:  # what a list is worth whose one relevant item is at each rank
        hits = np.eye(missed, min(metric.options["k"], n_negatives + 1), dtype=bool)
        worth = metric.function(Judged(np.empty(0), hits, np.ones(missed, int)), **metric.options)
        of_users = np.bincount(hidden.rows, worth[rank - 1], minlength=len(rows))
        figures[metric.name] = of_users / hidden.row_counts
    if per_user:
        return figures, judged.named(rows)
    return {name: float(values.mean()) for name, values in figures.items()}


def _draw(users: np.ndarray, known: CSR, n: int, rng: np.random.RandomState) -> np.ndarray:
    """Different items for each entry of ``users``, none of them known: redrawn until that holds."""
    taken = np.append(known.positions, -1)  # a mark behind the last, never found
    drawn = rng.randint(0, known.n_cols, (len(users), n))
    # Where nearly all that is left is wanted, redrawing would take long.
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
