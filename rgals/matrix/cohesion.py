"""What a rule asks of a matrix besides its margins, in milliseconds."""

from typing import Any

import numpy as np
import scipy.sparse as sp

_PATHS = 2_000_000  # user-item-user, looked at in all: the figure is known within a few per cent
_BLOCK = 500_000  # of them at once: bounds temporary memory
_ENTRIES = 2_000_000  # that the largest pull is measured on
_STEPS = 20  # of the power method


def cohesion(matrix: Any) -> float:
    """How many times as often as by chance users who share one item share another.

    Walks from a user to an item, another user, another item and back, each step weighted by the inverse of
    the number of choices, relative to those that popularity alone would give. That is the sum of the fourth
    powers of the singular values of ``D_u^-1/2 R D_i^-1/2``, without what a single user or a single item
    gives: 1 for the direction of popularity, and what communities add. A random matrix of n interactions has
    ``((1 - M / n) (1 - N / n))^2``, c separate parts of it c times as much; data sets have 1 to 25. Where the
    matrix is large, every k-th user by length stands for all. Values are not looked at. NaN where fewer than
    two users have interactions.
    """
    counts, popularity = matrix.row_counts, matrix.col_counts.astype(np.float64)
    every = max(1, int(np.ceil(np.sqrt(np.square(popularity).sum() / _PATHS))))
    users = _every(counts, every)
    if len(users) < 2:
        return float("nan")
    rows = matrix.take_rows(users)
    lengths, starts, items = counts[users], rows.indptr, rows.indices
    weights = 1.0 / np.sqrt(np.repeat(lengths, lengths) * popularity[items])
    sampled = sp.csr_array((weights, items, starts), shape=(len(users), matrix.n_cols))
    others = sampled.T.tocsr()
    seen = np.bincount(items, minlength=matrix.n_cols)
    paths = np.cumsum(np.add.reduceat(seen[items], starts[:-1]))
    edges = np.append(np.unique(np.searchsorted(paths, np.arange(0, paths[-1], _BLOCK))), len(users))
    walks = 0.0  # of four steps, from every user of the sample to itself
    for start, stop in zip(edges[:-1], edges[1:], strict=True):
        walks += float(np.square((sampled[start:stop] @ others).data).sum())
    squares = np.square(weights)
    walks -= float(np.square(np.add.reduceat(squares, starts[:-1])).sum())  # by way of no other user
    by_item = np.bincount(items, squares, minlength=matrix.n_cols)
    walks -= float(np.square(by_item).sum() - np.square(squares).sum())  # by way of no other item
    pairs = float(lengths.sum()) ** 2 - float(np.square(lengths.astype(np.float64)).sum())
    return max(walks, 0.0) * matrix.nnz**2 / pairs


def largest_pull(matrix: Any, alpha: float, enough: float) -> float:
    """Strength of the regularisation that leaves nothing of a fit of RG2, or any that is at least ``enough``.

    The largest singular value of what pulls the scores from 0, ``(1/2 + alpha) R - c_x / 2N``, in units of
    the square roots of the ridges of its row and column at ``reg=1``, by the power method, which gives at
    most that. With more, factors of zero are the minimum: all items tie. ``alpha`` is that of `rgals.RG2`.
    Values are not looked at; where the matrix is large, every k-th user by length stands for all. Infinite
    for a matrix without interactions.
    """
    popularity = matrix.col_counts.astype(np.float64)
    rows = matrix.take_rows(_every(matrix.row_counts, -(-matrix.nnz // _ENTRIES) or 1))
    if not rows.nnz:
        return float("inf")
    lengths, of_row = rows.row_counts.astype(np.float64), rows.rows
    share, twice_items = matrix.nnz / rows.nnz, 2.0 * np.count_nonzero(popularity)
    by_user = 1.0 / np.sqrt((0.5 + alpha) * lengths)
    by_item = np.where(popularity > 0, 1.0 / np.sqrt(alpha * popularity + matrix.nnz / twice_items), 0.0)
    # A grain of chance: where all items are alike, popularity is what does not pull.
    chance = np.random.default_rng(0).standard_normal(matrix.n_cols)
    vector: np.ndarray = by_item * popularity * (1.0 + 0.01 * chance)
    found = 0.0
    for _ in range(_STEPS):
        ahead = by_item * vector / np.linalg.norm(vector)
        own = (0.5 + alpha) * np.add.reduceat(ahead[rows.indices], rows.indptr[:-1])
        scores: np.ndarray = by_user * (own - lengths / twice_items * ahead.sum())
        found = float(np.sqrt(share * (scores @ scores)))
        if found >= enough or found == 0.0:
            break
        back = by_user * scores
        column = (0.5 + alpha) * np.bincount(rows.indices, back[of_row], minlength=matrix.n_cols)
        vector = by_item * (column - back @ lengths / twice_items)
    return found


def _every(counts: np.ndarray, step: int) -> np.ndarray:
    """Every so many users by length, of those that have interactions."""
    users = np.argsort(counts, kind="stable")[step // 2 :: step]
    return users[counts[users] > 0]
