"""Figures of a matrix that the rules for hyperparameters need besides its margins, found in milliseconds."""

from typing import Any

import numpy as np
import scipy.sparse as sp

_PATHS = 2_000_000  # user-item-user paths that are sampled: the cohesion is known within a few per cent
_PATHS_AT_ONCE = 500_000  # bounds temporary memory
_PULL_ENTRIES = 2_000_000  # interactions that are sampled for the largest pull
_POWER_STEPS = 20  # of the power method, at most


def cohesion(matrix: Any) -> float:
    """How many times as often as by chance users who share one item share another."""
    # Walks from a user to an item, another user, another item and back, each step weighted by the inverse of
    # the number of choices, relative to those that popularity alone would give. That is the sum of the fourth
    # powers of the singular values of ``D_u^-1/2 R D_i^-1/2``, less the walks that use one user or one item
    # twice: 1 for the direction of popularity, plus what communities add. A random matrix of n interactions
    # between M users and N items has ``((1 - M / n) (1 - N / n))^2``, a block-diagonal one of c such blocks c
    # times as much; data sets have 1 to 25. Of a large matrix, every k-th user by length is sampled. Values
    # are ignored. NaN if fewer than two users have interactions.
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
    edges = np.append(np.unique(np.searchsorted(paths, np.arange(0, paths[-1], _PATHS_AT_ONCE))), len(users))
    walks = 0.0  # weight of the walks of four steps from a sampled user back to itself
    for start, stop in zip(edges[:-1], edges[1:], strict=True):
        walks += float(np.square((sampled[start:stop] @ others).data).sum())
    squares = np.square(weights)
    walks -= float(np.square(np.add.reduceat(squares, starts[:-1])).sum())  # through no other user
    by_item = np.bincount(items, squares, minlength=matrix.n_cols)
    walks -= float(np.square(by_item).sum() - np.square(squares).sum())  # through no other item
    pairs = float(lengths.sum()) ** 2 - float(np.square(lengths.astype(np.float64)).sum())
    return max(walks, 0.0) * matrix.nnz**2 / pairs


def largest_pull(matrix: Any, alpha: float, enough: float) -> float:
    """The ``reg`` of RG2 from which on all factors are zero; any lower bound of ``enough`` or more does."""
    # This is the largest singular value of ``(1/2 + alpha) R - c_x / 2N``, which pulls the scores away from
    # 0, with its entries divided by the square roots of the ridges of their row and column at ``reg=1``. The
    # power method finds it from below. With a larger ``reg``, factors of zero are the minimum: all items tie.
    # ``alpha`` is that of `rgals.RG2`. Values are ignored; of a large matrix, every k-th user by length is
    # sampled. Infinite for a matrix without interactions.
    popularity = matrix.col_counts.astype(np.float64)
    rows = matrix.take_rows(_every(matrix.row_counts, -(-matrix.nnz // _PULL_ENTRIES) or 1))
    if not rows.nnz:
        return float("inf")
    lengths, of_row = rows.row_counts.astype(np.float64), rows.rows
    share, twice_items = matrix.nnz / rows.nnz, 2.0 * np.count_nonzero(popularity)
    by_user = 1.0 / np.sqrt((0.5 + alpha) * lengths)
    by_item = np.where(popularity > 0, 1.0 / np.sqrt(alpha * popularity + matrix.nnz / twice_items), 0.0)
    # With noise: if all items are equally popular, popularity itself is a singular vector, of a value that is
    # small or 0, and the iteration would not leave it.
    noise = np.random.default_rng(0).standard_normal(matrix.n_cols)
    vector: np.ndarray = by_item * popularity * (1.0 + 0.01 * noise)
    found = 0.0
    for _ in range(_POWER_STEPS):
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
    """Every ``step``-th user in the order of their lengths, without those that have no interactions."""
    users = np.argsort(counts, kind="stable")[step // 2 :: step]
    return users[counts[users] > 0]
