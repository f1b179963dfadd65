"""Matrices with one or several things wrong, and what an independent reading says of them."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from rgals.matrix.validate import as_csr
from rgals.runtime.errors import RgalsError


def make(seed: int) -> tuple[sp.csr_array | sp.csc_array, bool]:
    """A mutant that scipy has not checked; and whether it is stored by columns."""
    rng = np.random.default_rng(seed)
    n_rows, n_cols = int(rng.integers(1, 9)), int(rng.integers(1, 9))
    dense = (rng.random((n_rows, n_cols)) < rng.uniform(0.1, 0.9)) * rng.integers(1, 4, (n_rows, n_cols))
    X = sp.csr_array(dense.astype(np.float64))
    # Few combinations of types: a kernel is compiled for each.
    wide = [(np.int32, np.int32), (np.int64, np.int64), (np.int64, np.int32), (np.int32, np.int64)]
    kinds = wide[rng.integers(4)]
    indptr, indices = X.indptr.astype(kinds[0]), X.indices.astype(kinds[1])
    data = X.data.astype(rng.choice(["f4", "f8", "i8", "u1", "?"]))
    for _ in range(rng.integers(0, 4)):
        indptr, indices, data = mutate(rng, indptr, indices, data, n_rows, n_cols)
    by_column = bool(rng.random() < 0.3)
    shape = (n_cols, n_rows) if by_column else (n_rows, n_cols)
    out = (sp.csc_array if by_column else sp.csr_array)(shape, dtype=data.dtype)
    out.indptr, out.indices, out.data = indptr, indices, data
    if rng.random() < 0.3:  # claims what may not be so
        out._has_canonical_format = out._has_sorted_indices = True
    return out, by_column


def mutate(rng, indptr, indices, data, n_rows, n_cols):
    nnz = len(indices)
    what = int(rng.integers(13))
    indptr, indices, data = indptr.copy(), indices.copy(), data.copy()
    nnz = min(nnz, len(data))
    k = int(rng.integers(nnz)) if nnz else 0
    if what == 0 and nnz and len(indices) == len(data):  # unsorted, within the rows where there are such
        order = rng.permutation(nnz)
        counts = np.clip(np.diff(indptr), 0, nnz)
        rows = np.repeat(np.arange(len(counts)), counts)[:nnz]
        if len(rows) == nnz:
            order = order[np.argsort(rows[order], kind="stable")]
        indices, data = indices[order], data[order]
    elif what == 1 and nnz:  # a duplicate
        indices = np.insert(indices, k, indices[k])
        data = np.insert(data, k, data[k])
        row = int(np.searchsorted(indptr, k, side="right")) - 1
        indptr[row + 1 :] += 1
    elif what == 2 and nnz:
        indices[k] = n_cols + rng.integers(0, 3)
    elif what == 3 and nnz:
        indices[k] = rng.choice([1 << 20, 2**31 - 1])
    elif what == 4 and nnz:
        indices[k] = -int(rng.integers(1, 5))
    elif what == 5 and len(indptr):
        at, step = rng.integers(len(indptr)), rng.integers(-2, 3)
        indptr[at] = min(int(indptr[at]) + int(step), 2**31 - 1)  # the largest may be there already
    elif what == 6 and len(indptr):
        indptr[rng.integers(len(indptr))] = rng.choice([2**31 - 1, -1, 1000])
    elif what == 7:  # surplus entries behind the last row
        n = int(rng.integers(1, 4))
        indices = np.append(indices, rng.integers(0, n_cols, n)).astype(indices.dtype)
        data = np.append(data, np.ones(n, data.dtype))
    elif what == 8:  # fewer values than indices, or more
        data = data[:-1] if rng.random() < 0.5 else np.append(data, data[:1])
    elif what == 9:
        indptr = indptr[:-1] if rng.random() < 0.5 else np.append(indptr, indptr[-1:])
    elif what == 10 and nnz and data.dtype.kind == "f":
        data[k] = rng.choice([np.nan, np.inf, -np.inf, -1.0, 1e300 if data.dtype == "f8" else np.inf])
    elif what == 11 and nnz:
        data[k] = 0  # an explicit zero
    elif what == 12 and nnz and data.dtype.kind == "i":
        data[k] = -3
    return indptr, indices, data


def expected(X, by_column: bool) -> np.ndarray | None:
    """The dense sum of all entries, read one by one; None where the matrix must be refused."""
    lines, width = X.shape[::-1] if by_column else X.shape
    indptr, indices, data = X.indptr.tolist(), X.indices.tolist(), X.data.tolist()
    if len(indptr) != lines + 1 or not indptr or indptr[0] != 0 or indptr[-1] > min(len(indices), len(data)):
        return None
    dense = np.zeros((lines, width))
    for line in range(lines):
        if indptr[line + 1] < indptr[line] or indptr[line + 1] > min(len(indices), len(data)):
            return None
        for k in range(indptr[line], indptr[line + 1]):
            value = float(data[k])
            if not 0 <= indices[k] < width or not 0 <= value < np.inf:
                return None
            dense[line, indices[k]] += value
    return dense.T if by_column else dense


def trusting(X):
    """The naive version: scipy's own check, then its own arrays."""
    X.check_format(full_check=True)
    return X.toarray().astype(float)


def batch(start: int, stop: int, naive: bool = False) -> tuple[list[str], int, int]:
    """Faults, and how many mutants were accepted and refused."""
    faults, accepted, refused = [], 0, 0
    for seed in range(start, stop):
        X, by_column = make(seed)
        before = [array.copy() for array in (X.indptr, X.indices, X.data)]
        wanted = expected(X, by_column)
        try:
            got = trusting(X) if naive else as_csr(X, dtype=np.float64)
        except (RgalsError, ValueError) as error:
            refused += 1
            if not naive and not isinstance(error, RgalsError):
                faults.append(f"seed {seed}: untyped {error!r}")
            if wanted is not None and not naive:
                faults.append(f"seed {seed}: a good matrix was refused: {error}")
            continue
        accepted += 1
        if wanted is None:
            faults.append(f"seed {seed}: accepted")
            continue
        dense = got if naive else got.to_scipy(np.float64).toarray()
        if not np.array_equal(dense, wanted):
            faults.append(f"seed {seed}: another matrix")
        if naive:
            continue
        canonical = all(
            (np.diff(got.indices[a:b]) > 0).all() for a, b in zip(got.indptr, got.indptr[1:], strict=False)
        )
        types = (got.indptr.dtype, got.indices.dtype) == (np.int64, np.int32)
        if not (canonical and types and (got.values > 0).all()):
            faults.append(f"seed {seed}: not canonical")
        after = (X.indptr, X.indices, X.data)
        if not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(before, after, strict=True)):
            faults.append(f"seed {seed}: the input was modified")
    return faults, accepted, refused
