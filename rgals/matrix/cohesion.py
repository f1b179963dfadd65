"""How much of a matrix its margins do not explain: one number, in milliseconds."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from rgals.matrix.csr import CSR

_PATHS = 2_000_000  # user-item-user, looked at in all: the figure is known within a few per cent
_BLOCK = 500_000  # of them at once: bounds temporary memory


def cohesion(matrix: CSR) -> float:
    """How many times as often as by chance users who share one item share another.

    Walks from a user to an item, another user, another item and back, each step weighted by the inverse of
    the number of choices, relative to those that popularity alone would give. That is the sum of the fourth
    powers of the singular values of ``D_u^-1/2 R D_i^-1/2``, without what a single user or a single item
    gives: 1 for the direction of popularity, and what communities add. A random matrix of n interactions has
    ``((1 - M / n) (1 - N / n))^2``, c separate parts of it c times as much; data sets have 1 to 25. Where the
    matrix is large, every k-th user by length stands for all.

    Parameters
    ----------
    matrix : CSR
        Values are not looked at.

    Returns
    -------
    float
        NaN where fewer than two users have interactions.
    """
    counts, popularity = matrix.row_counts, matrix.col_counts.astype(np.float64)
    every = max(1, int(np.ceil(np.sqrt(np.square(popularity).sum() / _PATHS))))
    users = np.argsort(counts, kind="stable")[every // 2 :: every]
    users = users[counts[users] > 0]
    if len(users) < 2:
        return float("nan")
    lengths = counts[users]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    entries = np.arange(starts[-1]) + np.repeat(matrix.indptr[users] - starts[:-1], lengths)
    items = matrix.indices[entries]
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
