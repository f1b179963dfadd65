"""`evaluate`: rank every item for every test user, in blocks, and average the metrics."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from rgals.kernels import ranking as kernel
from rgals.matrix.csr import CSR
from rgals.matrix.validate import as_csr, check_ids
from rgals.metrics import catalogue
from rgals.metrics._judged import Outranked, judge_trusted
from rgals.metrics._table import EXPOSURE, LISTS, NOVELTY, WHOLE, Metric, parse_all
from rgals.runtime.checks import check_int
from rgals.runtime.errors import InputError, InputTypeError, ParameterError, ShapeError
from rgals.runtime.threads import workers
from rgals.scoring import as_factors, topk, topk_dense, useful_jobs

_BATCH = 1 << 13  # users; a multiple of the blocks of every kernel
_DENSE_BYTES = 1 << 26  # of scores that a callable is asked for at once
_ROWS_BYTES = 1 << 25  # of complete score rows that a thread holds
_ROWS = 128

Scores = Callable[[np.ndarray], np.ndarray] | tuple[np.ndarray, np.ndarray]


def evaluate(
    model: Any,
    train: Any,
    test: Any,
    metrics: str | Iterable[str] = ("ndcg@10",),
    *,
    users: Any = None,
    batch_size: int | None = None,
    per_user: bool = False,
    n_jobs: int | None = None,
) -> Any:
    """Average ranking metrics over the test users.

    For each user with test items, all items are ranked by score except the training interactions, equal
    scores by the smaller id (as `rgals.scoring.topk`), and the ranking is compared with the test items. Users
    without test items are left out. Nothing is sampled, and no users x items array is ever made.

    Parameters
    ----------
    model : fitted model, pair (P, Q), or callable
        Something with ``user_factors_`` and ``item_factors_``, or with ``scores``; two factor matrices of
        shapes (M, K) and (N, K); or a function from an array of user indices to their scores of all items,
        shape (len, N), for models that are not factorisations.
    train : sparse matrix of shape (M, N), or None
        Interactions that leave the ranking. Test interactions that are also here cannot be recommended: they
        are dropped, with a warning.
    test : sparse matrix of shape (M, N)
        Relevant items: any stored non-zero. Relevance is binary.
    metrics : str or iterable of str, default ("ndcg@10",)
        ``ndcg, mrr, map, capped_map, recall, capped_recall, precision, hit_rate, rbp, nrbp, coverage, gini,
        novelty`` with a cutoff (``"recall@20"``); ``auc`` and ``pauc`` of the whole ranking. ``recall``
        divides by the number of test items, ``capped_recall`` by at most k; likewise ``map``. Parameters
        go into parentheses: ``"rbp(0.95)@50"``, ``"pauc(0.05)"``.
    users : 1-D array of int, optional
        Evaluate only these.
    batch_size : int, optional
        Users scored at once; the default bounds memory.
    per_user : bool, default False
        Return the figure of each user instead of the mean.
    n_jobs : int or None
        Threads; None is all. It changes no bit of the result.

    Returns
    -------
    dict of str to float
        The mean over users by metric, under the names given. Users for whom a metric is undefined (AUC
        without negatives) do not enter its mean.
    (dict of str to ndarray, ndarray)
        With ``per_user``: an array by metric, and the users it belongs to.

    Raises
    ------
    ParameterError
        An unknown metric, or one of all users together (coverage, gini) with ``per_user``.
    ShapeError
        Factors, train and test do not fit each other.
    InputError
        No user has a test item; the scores of a callable have NaN.

    Notes
    -----
    All metrics with a cutoff share one pass over the scores; the metrics of the whole ranking share
    a second one.

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
    source, shape = source_of(model)
    n_users, n_items = shape
    truth = as_csr(test, name="test", n_rows=n_users, n_cols=n_items)
    train = CSR.empty(*truth.shape) if train is None else train
    seen = as_csr(train, name="train", n_rows=truth.n_rows, n_cols=truth.n_cols)
    rows = test_users(truth, users)
    batch = _batch_size(batch_size, source, truth.n_cols)
    blocks: list[dict[str, np.ndarray]] = []
    kept: list[np.ndarray] = []
    totals: dict[str, np.ndarray] = {}
    popularity = seen.col_counts, max(truth.n_rows, 1)
    dropped = 0
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        hidden, known = truth.take_rows(part), seen.take_rows(part)
        hidden, overlap = _without_known(hidden, known)
        if overlap:
            dropped += overlap
            alive = np.flatnonzero(hidden.row_counts)
            part, hidden, known = part[alive], hidden.take_rows(alive), known.take_rows(alive)
        blocks.append(_block(wanted, source, part, hidden, known, popularity, totals, n_jobs))
        kept.append(part)
    if dropped:
        warnings.warn(
            f"{dropped} test interactions are also in train: they cannot be recommended and were dropped",
            UserWarning,
            stacklevel=2,
        )
    everybody = np.concatenate(kept) if kept else np.empty(0, np.int64)
    if len(everybody) == 0:
        raise InputError(
            f"test (shape {truth.shape}) holds no interaction outside train of the users asked for"
        )
    arrays = {m.name: np.concatenate([b[m.name] for b in blocks]) for m in wanted if m.needs != EXPOSURE}
    if per_user:
        return arrays, everybody
    means = {}
    for metric in wanted:
        if metric.needs == EXPOSURE:
            means[metric.name] = metric.function(totals[metric.name])
        else:
            defined = arrays[metric.name][~np.isnan(arrays[metric.name])]
            means[metric.name] = float(defined.mean()) if len(defined) else float("nan")
    return means


def test_users(truth: CSR, users: Any) -> np.ndarray:
    """Rows with test items: all, or those among ``users``."""
    if users is None:
        return np.flatnonzero(truth.row_counts)
    rows = check_ids("users", users, truth.n_rows, "user")
    return rows[truth.row_counts[rows] > 0]


def sample_users(truth: CSR, n: int | None, seed: int = 0) -> np.ndarray:
    """Rows with test items: all, or ``n`` of them at random, always the same for a seed."""
    rows = np.flatnonzero(truth.row_counts)
    if n is None or n >= len(rows):
        return rows
    return np.sort(np.random.default_rng(seed).choice(rows, n, replace=False))


def source_of(model: Any) -> tuple[Scores, tuple[int | None, int | None]]:
    """Where scores come from, and the number of users and items where that is known."""
    if hasattr(model, "factors_"):
        model = model.factors_  # both of one fit, even while another thread refits
    elif hasattr(model, "user_factors_") and hasattr(model, "item_factors_"):
        model = (model.user_factors_, model.item_factors_)
    elif hasattr(model, "scores"):
        model = model.scores
    if isinstance(model, tuple | list):
        if len(model) != 2:
            raise InputTypeError(
                f"model: a tuple must be (user_factors, item_factors), not {len(model)} things"
            )
        pair = as_factors(model[0], model[1], ("user factors", "item factors"))
        return pair, (len(pair[0]), len(pair[1]))
    if callable(model):
        return model, (None, None)
    raise InputTypeError(
        "model must be fitted and have user_factors_ and item_factors_, or be a pair of factor matrices or a "
        f"function that scores users, not {type(model).__name__}"
    )


def _batch_size(given: int | None, source: Scores, n_items: int) -> int:
    if given is not None:
        return check_int("batch_size", given, 1)
    return max(1, min(_BATCH, _DENSE_BYTES // (8 * max(n_items, 1)))) if callable(source) else _BATCH


def _without_known(hidden: CSR, known: CSR) -> tuple[CSR, int]:
    """Test interactions that are not in train, and the number of those that are."""
    here, there = hidden.positions, np.append(known.positions, -1)  # a mark behind the last, never found
    clash = there[np.searchsorted(there[:-1], here)] == here
    return hidden.where(~clash), int(clash.sum())


def _scores(source: Callable, users: np.ndarray, n_items: int) -> np.ndarray:
    """A private, C-ordered array of the scores that a callable gives."""
    given = np.asarray(source(users))
    if given.shape != (len(users), n_items):
        raise ShapeError(
            f"the model's scores have shape {given.shape}, expected ({len(users)}, {n_items}): users x items"
        )
    if given.dtype.kind not in "fiu":
        raise InputTypeError(f"the model's scores must be real numbers, not {given.dtype}")
    return np.array(given, np.float32 if given.dtype == np.float32 else np.float64, order="C")


def _count(
    scores: np.ndarray | tuple[np.ndarray, np.ndarray], truth: CSR, seen: CSR, n_jobs: int | None
) -> Outranked:
    """Count what outranks each relevant item, from dense scores (overwritten) or from factors."""
    above, tied = np.empty(truth.nnz, np.int32), np.empty(truth.nnz, np.int32)
    pairs = truth.indptr, truth.indices, seen.indptr, seen.indices
    width = scores[0].shape[1] if isinstance(scores, tuple) else 1
    with workers(useful_jobs(n_jobs, truth.n_rows * truth.n_cols * width)) as threads:
        if isinstance(scores, tuple):
            row_bytes = max(1, truth.n_cols * scores[1].itemsize)
            block = max(1, min(_ROWS, _ROWS_BYTES // row_bytes))
            kernel.count_above(*scores, *pairs, block, threads, above, tied)
        else:
            kernel.count_above_dense(scores, *pairs, threads, above, tied)
    counts = above.astype(np.int64), tied.astype(np.int64)
    return Outranked(truth.indptr, *counts, truth.n_cols - truth.row_counts - seen.row_counts)


def _block(
    wanted: list[Metric],
    source: Scores,
    users: np.ndarray,
    truth: CSR,
    seen: CSR,
    known: tuple[np.ndarray, int],
    totals: dict[str, np.ndarray],
    n_jobs: int | None,
) -> dict[str, np.ndarray]:
    """Metrics of one batch of users; exposures are added to ``totals``. ``known``: item counts, n_users."""
    n = min(max((m.k for m in wanted if m.k is not None), default=0), truth.n_cols)
    whole = any(m.needs == WHOLE for m in wanted)
    ids = judged = counts = None
    scores: Any
    if isinstance(source, tuple):
        scores = pair = source[0][users], source[1]
        if n:
            ids = topk(*pair, n, exclude=seen, n_jobs=n_jobs)[0]
    else:
        scores = _scores(source, users, truth.n_cols)
        if n:
            ids = topk_dense(scores.copy() if whole else scores, n, exclude=seen, n_jobs=n_jobs)[0]
    if ids is not None:
        judged = judge_trusted(ids, truth, n_jobs)
    if whole:
        counts = _count(scores, truth, seen, n_jobs)
    out = {}
    for metric in wanted:
        if metric.needs == LISTS:
            out[metric.name] = metric.function(judged, k=metric.k, **metric.options)
        elif metric.needs == WHOLE:
            out[metric.name] = metric.function(counts, **metric.options)
        elif metric.needs == NOVELTY:
            out[metric.name] = metric.function(judged, *known, metric.k)
        else:
            exposed = catalogue.exposure(judged, truth.n_cols, metric.k)
            totals[metric.name] = totals.get(metric.name, 0) + exposed
    return out
