"""Rankings compared with the truth: the one form that every metric is computed from."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from rgals.kernels import ranking as kernel
from rgals.losses.base import as_array
from rgals.matrix.csr import CSR
from rgals.matrix.validate import as_csr
from rgals.runtime.checks import check_int
from rgals.runtime.errors import InputError, InputTypeError, ShapeError
from rgals.runtime.threads import workers
from rgals.scoring import useful_jobs

_Metric = TypeVar("_Metric", bound=Callable[..., Any])


@dataclass(frozen=True)
class Judged:
    """Ranked lists, and which of their items are relevant.

    Attributes
    ----------
    ids : ndarray of int32, shape (B, n)
        Best first; -1 where a list is shorter.
    hits : ndarray of bool, shape (B, n)
        Whether the item at this rank is relevant.
    n_truth : ndarray of int64, shape (B,)
        Relevant items of each user, recommended or not.
    """

    ids: np.ndarray
    hits: np.ndarray
    n_truth: np.ndarray


@dataclass(frozen=True)
class Outranked:
    """How many irrelevant items outrank each relevant one, over the whole catalogue.

    Attributes
    ----------
    indptr : ndarray of int64, shape (B + 1,)
        Entries of user u: ``indptr[u]:indptr[u + 1]``.
    above, tied : ndarray of int64, shape (nnz,)
        Irrelevant items with a greater and with an equal score.
    n_negatives : ndarray of int64, shape (B,)
        Irrelevant items that take part in the ranking.
    """

    indptr: np.ndarray
    above: np.ndarray
    tied: np.ndarray
    n_negatives: np.ndarray

    @property
    def n_truth(self) -> np.ndarray:
        """Relevant items of each user."""
        return np.diff(self.indptr)


def judge_trusted(ids: np.ndarray, truth: CSR, n_jobs: int | None = None) -> Judged:
    """`judge` without checks."""
    hits = np.empty(ids.shape, np.bool_)
    with workers(useful_jobs(n_jobs, 16 * ids.size)) as threads:
        kernel.find_hits(ids, truth.indptr, truth.indices, threads, hits)
    return Judged(ids, hits, truth.row_counts)


def as_lists(ranked: Any, k: int | None = None) -> np.ndarray:
    """The first ``k`` items of lists, as an array of two dimensions."""
    try:
        ids = np.asarray(getattr(ranked, "ids", ranked))  # also of `recommend`
    except ValueError:
        raise ShapeError("ranked holds lists of several lengths; fill the shorter ones up with -1") from None
    if ids.ndim != 2:
        raise ShapeError(f"ranked must have two dimensions, users x ranks, not {ids.ndim}")
    if ids.dtype.kind not in "iu" and ids.size:
        raise InputTypeError(f"ranked must hold integer item ids, not {ids.dtype}")
    return ids[:, : None if k is None else check_int("k", k, 1)]


def of_catalogue(ids: np.ndarray, n_items: int) -> np.ndarray:
    """The lists as int32, if the catalogue has their items; -1 is padding."""
    bad = np.argwhere((ids < -1) | (ids >= n_items))
    if len(bad):
        row, rank = bad[0]
        what = f"ranked: row {row} holds item {ids[row, rank]} at rank {rank + 1}"
        raise InputError(f"{what}, outside -1..{n_items - 1}: there are {n_items} items")
    return np.ascontiguousarray(ids, np.int32)


def judge(ranked: Any, truth: Any, *, n_jobs: int | None = None) -> Judged:
    """Compare ranked lists with the truth, once for any number of metrics.

    Parameters
    ----------
    ranked : array of int, shape (B, n)
        Items of each user, best first; -1 is padding and never relevant.
    truth : sparse matrix of shape (B, N)
        Relevant items of each user: any stored value above 0. Relevance is binary, sizes do not matter.
    n_jobs : int or None

    Returns
    -------
    Judged
        Goes in place of ``ranked`` into every metric function.

    Raises
    ------
    InputTypeError, ShapeError
        ``ranked`` is no matrix of integers, or has another number of users than ``truth``.
    InputError
        An id is outside -1..N-1, or occurs twice in a list; a value of ``truth`` is negative.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> from rgals.metrics import judge, ndcg, recall
    >>> lists = judge([[2, 0, 1], [1, 2, -1]], csr_array([[1, 0, 1], [1, 0, 0]]))
    >>> ndcg(lists, k=2), recall(lists, k=2)
    (array([1., 0.]), array([1., 0.]))
    """
    ids = as_lists(ranked)
    relevant = as_csr(truth, name="truth", n_rows=len(ids))
    ids = of_catalogue(ids, relevant.n_cols)
    ordered = np.sort(ids, axis=1)
    twice = np.argwhere((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0))
    if len(twice):
        row, at = twice[0]
        raise InputError(f"ranked: row {row} holds item {ordered[row, at]} twice")
    return judge_trusted(ids, relevant, n_jobs)


def top(ranked: Any, truth: Any, k: int | None) -> tuple[np.ndarray, np.ndarray, int]:
    """Hits up to rank k (at least one column), relevant items per user, and k itself."""
    judged = ranked if isinstance(ranked, Judged) else judge(ranked, truth)
    k = judged.hits.shape[1] if k is None else check_int("k", k, 1, np.iinfo(np.int32).max)
    return judged.hits[:, :k], judged.n_truth, k


def numbers(name: str, values: Any, of: str, advice: str = "") -> np.ndarray:
    """A vector of numbers as float64, in which sums of small types neither round nor overflow."""
    array = as_array(values)
    if array.dtype.kind not in "fiub":
        raise InputTypeError(f"{name} must hold numbers, one for each {of}, not {array.dtype}{advice}")
    if array.ndim != 1:
        raise ShapeError(f"{name} must have one dimension, {of}s, not {array.ndim}")
    return array.astype(np.float64)


def ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Quotient, NaN where the denominator is 0."""
    return np.divide(numerator, denominator, out=np.full(len(numerator), np.nan), where=denominator > 0)


def mean_of_known(values: np.ndarray) -> float:
    """Mean of the values that are not NaN; NaN if there are none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


#: Descriptions of the parameters that several functions share, for `documented`.
_PARAMETERS = {
    "ranked": """array of int, shape (B, n), or Judged
    Items of each user, best first, -1 as padding; or the result of `judge`.""",
    "truth": """sparse matrix, shape (B, N), optional
    Relevant items; not needed with `Judged`.""",
    "exposures": """ndarray of int, shape (N,)
    From `exposure`.""",
    "counts": """array of int, shape (N,)
    Users who know each item, from the training data.""",
    "n_users": """int
    Users in the training data.""",
    "n_items": """int
    Size of the catalogue.""",
    "k": """int, optional
    Cutoff; by default the length of the lists.""",
    "p": """float
    Persistence, 0 < p < 1. In a name: ``"rbp(0.95)@50"``.""",
    "max_fpr": """float
    0 < max_fpr <= 1; at 1 it is `auc`.""",
    "values": """array of shape (n,)
    A figure per user, from ``evaluate(..., per_user=True)``; for the difference of two models, the difference
    per user. NaN does not count.""",
    "a": """array of shape (n,)
    A figure per user of a model.""",
    "b": """array of shape (n,)
    Of another one: the same users in the same order. Users for whom either is NaN do not count.""",
    "figures": """mapping of str to array of shape (n,)
    A figure per user for each model, the same users in the same order.""",
    "reference": """str
    The model that the others are compared with.""",
    "method": """{"t", "wilcoxon", "randomisation"}
    Student's paired t-test; Wilcoxon's signed-rank test, which drops users without a difference; Fisher's
    randomisation test, which flips the sign of each user's difference at random.""",
    "level": "float",
    "n_resamples": """int
    Of the bootstrap, and of the randomisation test: its smallest p-value is ``1 / (n_resamples + 1)``.""",
    "random_state": """int
    Of the bootstrap, and of the randomisation test.""",
    "p_values": """array of shape (m,)
    NaN stays NaN and does not count as a test.""",
}


def documented(returns: str, *imports: str, **own: str) -> Callable[[_Metric], _Metric]:
    """Complete a docstring: Parameters and Returns, then its own sections, then its example, headed."""
    # ``own``: parameters that are not those of the table; ``imports``: of the example.

    def complete(metric: _Metric) -> _Metric:
        parameters = ""
        for name, given in inspect.signature(metric).parameters.items():
            kind, line, text = {**_PARAMETERS, **own}[name].partition("\n")
            if given.default is not given.empty and given.default is not None:
                kind += f", default {given.default!r}".replace("'", '"')
            parameters += f"{name} : {kind}{line}{text}\n"
        shared = f"Parameters\n----------\n{parameters}\nReturns\n-------\n{returns}\n\n"
        own_import = f"from rgals.metrics import {metric.__name__}"
        lines = "".join(f">>> {line}\n" for line in [*imports, own_import])
        text = (inspect.getdoc(metric) or "").replace("\n>>> ", f"\nExamples\n--------\n{lines}>>> ", 1)
        metric.__doc__ = re.sub(r"^(?=[A-Z][\w ]*\n-+$)", lambda _: shared, text, count=1, flags=re.MULTILINE)
        return metric

    return complete
