"""Checks and rearrangements of raw CSR arrays. Nothing here trusts its input before `check` has passed."""

from __future__ import annotations

import numpy as np

from rgals.kernels.compile import entry

OK, INDPTR_START, INDPTR_DECREASES, INDPTR_END, INDEX_RANGE = range(5)


@entry
def check(indptr, indices, n_values, n_cols):
    """First structural fault of a CSR matrix.

    Returns
    -------
    (code, row, value) : code is one of the constants of this module; ``value`` is the offending entry.
    """
    if indptr[0] != 0:
        return INDPTR_START, 0, np.int64(indptr[0])
    end = min(len(indices), n_values)
    for row in range(len(indptr) - 1):
        if indptr[row + 1] < indptr[row]:
            return INDPTR_DECREASES, row, np.int64(indptr[row + 1])
        if indptr[row + 1] > end:
            return INDPTR_END, row, np.int64(indptr[row + 1])
        for k in range(indptr[row], indptr[row + 1]):
            if indices[k] < 0 or indices[k] >= n_cols:
                return INDEX_RANGE, row, np.int64(indices[k])
    return OK, 0, np.int64(0)


@entry
def is_canonical(indptr, indices):
    """Whether the column indices of every row increase strictly (sorted, no duplicates)."""
    for row in range(len(indptr) - 1):
        for k in range(indptr[row] + 1, indptr[row + 1]):
            if indices[k] <= indices[k - 1]:
                return False
    return True


@entry
def transpose(indptr, indices, values, n_cols):
    """Transposed CSR arrays by a counting sort; rows of the result are sorted by index.

    ``values`` may be empty for a matrix of ones; an empty array comes back.
    """
    nnz = indptr[-1]
    out_indptr = np.zeros(n_cols + 1, np.int64)
    for k in range(nnz):
        out_indptr[indices[k] + 1] += 1
    for col in range(n_cols):
        out_indptr[col + 1] += out_indptr[col]
    # Each column's next free place; rows are visited in order, so every column comes out sorted.
    position = out_indptr[:-1].copy()
    out_indices = np.empty(nnz, np.int32)
    out_values = np.empty(nnz if len(values) else 0, values.dtype)
    for row in range(len(indptr) - 1):
        for k in range(indptr[row], indptr[row + 1]):
            at = position[indices[k]]
            position[indices[k]] = at + 1
            out_indices[at] = row
            if len(values):
                out_values[at] = values[k]
    return out_indptr, out_indices, out_values


@entry
def sum_duplicates(indptr, indices, values):
    """Merge equal neighbours of sorted rows by adding their values in float64."""
    out_indptr = np.zeros(len(indptr), np.int64)
    out_indices = np.empty(indptr[-1], np.int32)
    out_values = np.empty(indptr[-1], np.float64)
    n = 0
    for row in range(len(indptr) - 1):
        start = n
        for k in range(indptr[row], indptr[row + 1]):
            if n > start and out_indices[n - 1] == indices[k]:
                out_values[n - 1] += values[k]
            else:
                out_indices[n] = indices[k]
                out_values[n] = values[k]
                n += 1
        out_indptr[row + 1] = n
    return out_indptr, out_indices[:n].copy(), out_values[:n].copy()


@entry
def keep(indptr, indices, values, mask):
    """The entries where ``mask`` is true."""
    out_indptr = np.zeros(len(indptr), np.int64)
    n = 0
    for k in range(indptr[-1]):
        n += mask[k]
    out_indices = np.empty(n, np.int32)
    out_values = np.empty(n if len(values) else 0, values.dtype)
    n = 0
    for row in range(len(indptr) - 1):
        for k in range(indptr[row], indptr[row + 1]):
            if mask[k]:
                out_indices[n] = indices[k]
                if len(values):
                    out_values[n] = values[k]
                n += 1
        out_indptr[row + 1] = n
    return out_indptr, out_indices, out_values
