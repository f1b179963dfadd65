"""Figures of groups: of users by what they did, of items by how well they are known."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rgals.metrics._served import served, users_with_truth
from rgals.metrics._table import parse_all
from rgals.metrics.evaluation import Evaluation, figures, warn_of_dropped, without_known
from rgals.runtime.checks import check_choice, check_int
from rgals.runtime.errors import InputError, ParameterError


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
    if not judged.popularity.any():
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
        side, known, places = 1, judged.popularity, truth.indices
    counts = np.append(known, np.zeros(truth.shape[side] - len(known), np.int64))
    lows = _lows(bins, counts, counts) if side else _lows(bins, counts[rows], np.ones(len(rows)))
    group = np.searchsorted(lows, counts, side="right")[places]
    found = {}
    for k in np.unique(group):
        low, behind = 0 if k == 0 else lows[k - 1], lows[k] if k < len(lows) else None
        name = f"{low}+" if behind is None else f"{low}" if behind == low + 1 else f"{low}-{behind - 1}"
        part = replace(judged, truth=truth.where(group == k))
        found[name] = figures(part, wanted, users_with_truth(part, None), n_jobs=n_jobs)
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
