"""Rearranging the entries of scipy matrices in linear time, without a sort."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp


def group(codes: np.ndarray, n: int) -> np.ndarray:
    """Stable order of ``codes`` (in ``[0, n)``): `numpy.argsort` in linear time, by scipy's counting sort."""
    m = len(codes)
    if m == 0:
        return np.empty(0, np.int64)
    one_per_column = sp.csc_array((np.zeros(m, np.int8), codes, np.arange(m + 1)), shape=(n, m))
    return one_per_column.tocsr().indices


def entries(matrix: sp.csr_array, mask: np.ndarray) -> sp.csr_array:
    """The entries of a CSR matrix where ``mask`` is true; the shape stays."""
    ends = np.concatenate([[0], np.cumsum(mask, dtype=np.int64)])
    indptr = ends[matrix.indptr]
    return sp.csr_array((matrix.data[mask], matrix.indices[mask], indptr), shape=matrix.shape)


def entry_rows(matrix: sp.csr_array) -> np.ndarray:
    """Row number of every stored entry of a CSR matrix."""
    return np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
