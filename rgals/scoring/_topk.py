"""The best items of each query: checks input and calls the compiled kernels, or scores blocks on a GPU."""

from typing import Any

import numpy as np

from rgals.datasets.columns import is_column
from rgals.kernels import topk as kernel
from rgals.matrix.csr import CSR
from rgals.matrix.entries import kept_columns
from rgals.matrix.validate import MAX_INDEX, as_csr, check_ids
from rgals.runtime import memory as _memory
from rgals.runtime.aligned import read_only
from rgals.runtime.checks import check_int
from rgals.runtime.errors import InputTypeError, ParameterError, ShapeError
from rgals.runtime.threads import n_threads, workers
from rgals.solvers.cuda import Device, open_device

# With few queries the items are cut into segments, whatever the number of threads: as many as make about
# `_MAX_PIECES` pieces of work, but of at least `_MIN_TILES` tiles each, as every piece fills its own heaps.
_MAX_PIECES = 16
_MIN_TILES = 16

_CHECKED_BYTES = 1 << 26  # size of the lists from which available memory is checked before allocation

_GPU_MAX_N = 1024  # longest list on a GPU, which fills lists place by place
_GPU_BLOCK = 256  # threads of a CUDA block, which makes the list of one query

# Multiplications below which one thread is used: on a busy machine, to start the others takes about as long.
_ONE_THREAD_WORK = 1 << 22


def useful_jobs(n_jobs: int | None, work: int) -> int:
    """Threads for ``n_jobs``, or 1 if there is so little work that starting more would take longer.

    Parameters
    ----------
    n_jobs : int or None
        None or -1 for all.
    work : int
        Multiplications.

    Returns
    -------
    int

    Examples
    --------
    >>> from rgals.scoring import useful_jobs
    >>> useful_jobs(None, 1000)
    1
    """
    threads = n_threads(n_jobs)  # checks it, too
    return 1 if work < _ONE_THREAD_WORK else threads


def require_lists(n_queries: int, n: int, bytes_each: int) -> None:
    """Raise `InsufficientMemoryError` if lists of ``n`` entries of ``bytes_each`` bytes do not fit."""
    needed = n_queries * n * bytes_each
    if needed > _CHECKED_BYTES:
        what = f"a table of {n_queries:,} lists with n={n:,}"
        _memory.require(needed, what, "lower n or ask for fewer lists at once")


def check_model(model: Any, more: str = "") -> None:
    """Raise for what is no model of rgals."""
    if isinstance(model, type) or not hasattr(model, "_state"):
        what = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
        raise InputTypeError(f"model is {what}: give a fitted model of rgals{more}")


def as_factors(
    queries: Any, items: Any, names: tuple[str, str] = ("queries", "items")
) -> tuple[np.ndarray, np.ndarray]:
    """Two C-ordered, read-only factor matrices with the same floating dtype and number of columns.

    Parameters
    ----------
    queries, items : array-like, shapes (B, K) and (N, K)
    names : (str, str), default ("queries", "items")
        Their names in errors.

    Returns
    -------
    queries, items : ndarray
        float32 if both are, else float64.

    Raises
    ------
    InputTypeError, ShapeError
        They hold no numbers, or do not fit each other.

    Examples
    --------
    >>> from rgals.scoring import as_factors
    >>> [factors.dtype.name for factors in as_factors([[1, 2]], [[3, 4], [5, 6]])]
    ['float64', 'float64']
    """
    pair = [np.asarray(queries), np.asarray(items)]
    for name, array in zip(names, pair, strict=True):
        if array.dtype.kind not in "fiu":
            raise InputTypeError(f"{name} must hold real numbers, not {array.dtype}")
        if array.ndim != 2:
            raise ShapeError(f"{name} must have two dimensions (rows x factors), not {array.ndim}")
    widths = [array.shape[1] for array in pair]
    if widths[0] != widths[1]:
        what = f"{names[0]} have {widths[0]} columns and {names[1]} have {widths[1]}"
        raise ShapeError(f"{what}; both need one for each factor")
    if widths[0] < 1:
        raise ShapeError(f"{names[0]} and {names[1]} have no factors; at least one column is needed")
    if len(pair[1]) > MAX_INDEX:
        raise ShapeError(f"{names[1]} have {len(pair[1])} rows; at most {MAX_INDEX} are supported")
    dtype = np.float32 if all(array.dtype == np.float32 for array in pair) else np.float64
    return read_only(pair[0].astype(dtype, copy=False)), read_only(pair[1].astype(dtype, copy=False))


def is_matrix(filter_: Any) -> bool:
    """Whether a filter has a row for each query, rather than one list for all."""
    return len(getattr(filter_, "shape", ())) == 2 and not is_column(filter_)


def topk(
    queries: Any,
    items: Any,
    n: int = 10,
    *,
    exclude: Any = None,
    candidates: Any = None,
    exclude_items: Any = None,
    item_scale: Any = None,
    n_jobs: int | None = None,
    device: str = "cpu",
) -> tuple[np.ndarray, np.ndarray]:
    """Find the ``n`` items with the largest inner product with each query, exactly.

    The score of item i for query u is ``queries[u] @ items[i]`` (times ``item_scale[i]``): an unbounded
    number without unit, no probability. Equal scores are ordered by item id, the smaller first. An item whose
    score is NaN or -inf, from non-finite factors, is never returned; +inf is larger than any other score.

    Parameters
    ----------
    queries : array of shape (B, K)
        Factors of the users (or items) to find items for. float32 with float32 items, else float64 is used.
    items : array of shape (N, K)
        Factors of the catalogue.
    n : int, default 10
        Length of each list, at least 1. It may exceed N.
    exclude : sparse matrix of shape (B, N), optional
        Pairs that must not be returned, typically the interactions known from training: any stored non-zero.
    candidates : 1-D array of item ids, or sparse matrix of shape (B, N), optional
        The only items that may be returned: one list for all queries, or a matrix with the items of each.
        Of a matrix only its pairs are scored.
    exclude_items : 1-D array of item ids, optional
        Items that nobody gets.
    item_scale : array of shape (N,), optional
        Factor on the scores of each item, for instance inverse norms for the cosine.
    n_jobs : int or None
        Threads; None is all. It changes no bit of the result.
    device : {"cpu", "cuda", "cuda:N"}, default "cpu"
        Where scores are computed, except those of a matrix of candidates. A GPU makes lists of at most 1024.

    Returns
    -------
    ids : ndarray of int32, shape (B, n)
        Best first; -1 where fewer than ``n`` items are left.
    scores : ndarray of float32 or float64, shape (B, n)
        Their scores; -inf where the id is -1.

    Raises
    ------
    ShapeError
        Queries, items and filters do not fit each other.
    UnknownIdError
        A candidate or excluded id is outside 0..N-1.
    ParameterError
        ``n`` is not an integer >= 1, or more than a GPU's limit.
    InsufficientMemoryError
        The lists would not fit into memory; raised before they are allocated.
    MissingDependencyError, DeviceError
        The GPU that was asked for cannot be used.

    Notes
    -----
    Memory beyond the output arrays: a tile of 512 x 512 scores for each thread; 32 lists for each query if
    there are only a few queries; a copy of the factors of the ``candidates`` if one list is for all. Rounding
    depends on the shape of a tile: the last bits of a score may differ with other batches or filters.

    Examples
    --------
    >>> import numpy as np
    >>> from rgals.scoring import topk
    >>> users = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> items = np.array([[1.0, 2.0], [3.0, 2.0], [2.0, 0.0]])
    >>> ids, scores = topk(users, items, n=2)
    >>> ids
    array([[1, 2],
           [0, 1]], dtype=int32)
    >>> topk(users, items, n=3, exclude_items=[1])[0]
    array([[ 2,  0, -1],
           [ 0,  2, -1]], dtype=int32)
    """
    queries, items = as_factors(queries, items)
    n = check_int("n", n, 1)
    gpu = None if device == "cpu" else open_device(device)
    n_queries, n_items = len(queries), len(items)
    exclude = CSR.empty(n_queries, n_items) if exclude is None else exclude
    pairs = as_csr(exclude, name="exclude", n_rows=n_queries, n_cols=n_items, dislikes=True).load()
    scale = np.asarray([] if item_scale is None else item_scale)
    if scale.dtype.kind not in "biuf":
        raise InputTypeError(f"item_scale must hold real numbers, not {scale.dtype}")
    scale = read_only(scale.astype(queries.dtype, copy=False))
    if item_scale is not None and scale.shape != (n_items,):
        raise ShapeError(f"item_scale has shape {scale.shape}, expected ({n_items},): one for each item")
    blocked = check_ids("exclude_items", [] if exclude_items is None else exclude_items, n_items, "item")
    blocked = np.unique(blocked).astype(np.int32)
    entry = 4 + queries.dtype.itemsize
    if is_matrix(candidates):
        require_lists(n_queries, n, entry)
        allowed = as_csr(candidates, name="candidates", n_rows=n_queries, n_cols=n_items).load()
        kept = allowed.where(~np.isin(allowed.indices, blocked)) if len(blocked) else allowed
        ids, scores = np.empty((n_queries, n), np.int32), np.empty((n_queries, n), queries.dtype)
        with workers(useful_jobs(n_jobs, allowed.nnz * queries.shape[1])) as threads:
            lists = kept.indptr, kept.indices, pairs.indptr, pairs.indices
            kernel.topk_lists(queries, items, scale, *lists, threads, ids, scores)
        return ids, scores

    if candidates is not None:  # a smaller catalogue
        names = np.setdiff1d(check_ids("candidates", candidates, n_items, "item").astype(np.int32), blocked)
        among = np.zeros(n_items, bool)
        among[names] = True
        how: dict[str, Any] = {"exclude": kept_columns(pairs, among), "n_jobs": n_jobs, "device": device}
        own = scale[names] if len(scale) else None
        ids, scores = topk(queries, items[names], n, item_scale=own, **how)
        return np.append(names, np.int32(-1))[ids], scores

    n_tiles, n_blocks = -(-n_items // kernel.ITEMS), -(-n_queries // kernel.USERS)
    n_segments = max(1, min(n_tiles // _MIN_TILES, _MAX_PIECES // max(n_blocks, 1)))
    # The lists of the segments; to merge them, all lists side by side, their negated scores, and the order;
    # and the result.
    merged = n_segments * (entry + queries.dtype.itemsize + 8) + entry
    require_lists(n_queries, n, entry * n_segments + (merged if n_segments > 1 else 0))
    if n_items == 0 or n_queries == 0:
        return np.full((n_queries, n), -1, np.int32), np.full((n_queries, n), -np.inf, queries.dtype)
    if gpu is not None:
        if len(blocked):
            scale = scale.copy() if len(scale) else np.ones(len(items), items.dtype)
            scale[blocked] = np.nan  # removes them
        with gpu.active():
            return _device_topk(gpu, queries, items, n, pairs, scale)
    ids = np.empty((n_segments, n_queries, n), np.int32)
    scores = np.empty((n_segments, n_queries, n), queries.dtype)
    filters = read_only(blocked), pairs.indptr, pairs.indices
    with workers(useful_jobs(n_jobs, n_queries * n_items * queries.shape[1])) as threads:
        kernel.topk(queries, items, scale, *filters, threads, ids, scores)
    return (ids[0], scores[0]) if n_segments == 1 else (ids[0].copy(), scores[0].copy())


def topk_dense(
    scores: np.ndarray, n: int = 10, *, exclude: Any = None, n_jobs: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """`topk` of given scores, with the same treatment of ties, NaN and missing items.

    Parameters
    ----------
    scores : ndarray of float32 or float64, shape (B, N)
    n, exclude, n_jobs
        As in `topk`.

    Returns
    -------
    ids, scores : ndarray, shape (B, n)
        As in `topk`.

    Raises
    ------
    InputTypeError, ShapeError
        ``scores`` is no such array, or the pairs to exclude have another shape.

    Examples
    --------
    >>> import numpy as np
    >>> from rgals.scoring import topk_dense
    >>> topk_dense(np.array([[0.5, 2.0, 2.0]]), n=2)[0]
    array([[1, 2]], dtype=int32)
    """
    if not isinstance(scores, np.ndarray) or scores.ndim != 2 or scores.dtype not in (np.float32, np.float64):
        raise InputTypeError("scores must be a matrix of float32 or float64")
    n = check_int("n", n, 1)
    exclude = CSR.empty(*scores.shape) if exclude is None else exclude
    pairs = as_csr(exclude, name="exclude", n_rows=len(scores), n_cols=scores.shape[1], dislikes=True).load()
    require_lists(len(scores), n, 4 + scores.dtype.itemsize)
    ids, best = np.empty((len(scores), n), np.int32), np.empty((len(scores), n), scores.dtype)
    with workers(useful_jobs(n_jobs, scores.size)) as threads:
        kernel.topk_dense(read_only(scores), pairs.indptr, pairs.indices, threads, ids, best)
    return ids, best


def _device_topk(
    device: Device, queries: np.ndarray, items: np.ndarray, n: int, exclude: CSR, scale: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """`topk` on a GPU: the scores of some queries by one product, and then the best of each."""
    # `scale`: factor on the scores of each item, (N,) or (0,); NaN removes the item.
    if n > _GPU_MAX_N:
        why = "the lists are filled place by place; use the CPU"
        raise ParameterError("n", n, f"device='cuda' takes at most {_GPU_MAX_N}: {why}")
    xp, up = device.xp, device.upload
    on_device, factor = up(items), up(scale) if len(scale) else 0  # 0: a null pointer
    kernel = device.kernel("best_of_rows", items.dtype, THREADS=_GPU_BLOCK)
    ids, best = np.empty((len(queries), n), np.int32), np.empty((len(queries), n), items.dtype)

    def block(start: int, stop: int) -> None:
        removed, scores = exclude.slice_rows(start, stop), up(queries[start:stop]) @ on_device.T
        found, top = xp.empty((stop - start, n), np.int32), xp.empty((stop - start, n), items.dtype)
        pairs = up(removed.indptr), up(removed.indices) if removed.nnz else 0
        count, none = np.int64(len(items)), items.dtype.type(-np.inf)
        kernel((stop - start,), (_GPU_BLOCK,), (scores, count, factor, *pairs, np.int32(n), none, found, top))
        ids[start:stop], best[start:stop] = device.download(found), device.download(top)

    each = items.dtype.itemsize * (len(items) + queries.shape[1] + 2 * n)
    device.chunks(len(queries), each + 4 * int(exclude.row_counts.max(initial=0)), block)
    return ids, best
