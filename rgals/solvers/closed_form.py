"""The global optimum of RG2 and RGx without extra weight on the positives, by one truncated SVD."""

from inspect import signature
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

from rgals.matrix.csr import CSR

_ROWS_AT_ONCE = 1 << 12  # rows of temporary tables with n_factors columns


def item_factors(
    users: CSR, n_factors: int, reg: float, rng: np.random.Generator, dtype: np.dtype
) -> np.ndarray:
    """Item factors at the global optimum."""
    # With ``A = diag(c)^1/2 S``, ``S = v N / c - 1`` and ``P' = diag(c)^1/2 P`` the objective of Eq. 16,
    # times 2N, is ``|A - P' Q^T|^2 + reg N |P'|^2 + reg D |Q|^2``, up to a constant, whose minimum is the
    # truncated SVD of A with singular values shrunk by ``reg sqrt(N D)`` and the factors balanced: ``P' = U
    # s^1/2 (D/N)^1/4``, ``Q = V s^1/2 (N/D)^1/4``. A is sparse plus rank one. The rows of A sum to zero, so
    # that the interaction of RGx vanishes at this optimum: it is the optimum of both.
    # ``rng`` draws the start vector of the Lanczos iteration. The result has the shape (n_items, n_factors).
    c, (n_users, n_items) = users.row_sums, users.shape
    root = np.sqrt(c)
    inverse = np.divide(n_items, root, out=np.zeros_like(root), where=root > 0)
    # The matrix for scipy shares the indices, and values in float64. With an int64 `indptr` scipy would copy
    # the indices to int64.
    values = np.ones(users.nnz) if users.is_binary else users.values.astype(np.float64, copy=False)
    indptr = users.indptr.astype(np.int32) if users.nnz <= np.iinfo(np.int32).max else users.indptr
    V = sp.csr_array((values, users.indices, indptr), shape=users.shape)

    def matvec(x: np.ndarray) -> np.ndarray:
        return inverse * (V @ x) - root * x.sum()

    def rmatvec(y: np.ndarray) -> np.ndarray:
        return V.T @ (inverse * y) - root @ y

    # The Lanczos iteration finds the singular vectors of the shorter side. Those of the other side, and the
    # singular values to rounding, follow below.
    tall, short = n_users >= n_items, min(users.shape)
    rank = min(n_factors, short)
    there, back = (matvec, rmatvec) if tall else (rmatvec, matvec)
    gramian = LinearOperator((short, short), matvec=lambda x: back(there(x.ravel())), dtype=np.float64)
    first = rng.standard_normal(short)
    if rank < short and gramian.matvec(first).any():
        # If the vectors run out, as with few different rows, Lanczos continues from random ones: since scipy
        # 1.17 from those of ``rng``, before from others at every call.
        given: Any = {"k": rank, "v0": first} | ({"rng": rng} if "rng" in signature(eigsh).parameters else {})
        try:
            _, basis = eigsh(gramian, tol=1e-24, **given)
        except ArpackError:  # many equal eigenvalues, as of an identity matrix
            _, basis = eigsh(gramian, tol=0, **given)
    else:  # the whole space, or A is zero
        basis = np.eye(short, rank)
    # The images of the basis belong to the longer side. Their QR decomposition, by blocks of rows, gives the
    # singular values s and the rotation `turn` to singular vectors. A wide matrix goes on with the images,
    # which are those of the items.
    if not tall:
        basis = np.stack([rmatvec(column) for column in basis.T], axis=1)
    triangle: Any = np.empty((0, rank))
    for start in range(0, max(users.shape), _ROWS_AT_ONCE):
        some = slice(start, start + _ROWS_AT_ONCE)
        block = basis[some]
        if tall:
            block = inverse[some, None] * (V[some] @ basis) - root[some, None] * basis.sum(axis=0)
        triangle = np.linalg.qr(np.concatenate([triangle, block]), mode="r")
    _, s, turn = np.linalg.svd(triangle)
    total = c.sum()
    shrunk = np.maximum(s - reg * np.sqrt(n_items * total), 0.0)
    lengths = np.sqrt(shrunk) * ((n_items / total) ** 0.25 if total > 0 else 0.0)
    if not tall:  # the images have the lengths s: they are divided by it
        lengths = np.divide(lengths, s, out=np.zeros_like(s), where=s > 0)
    out = np.zeros((n_items, n_factors), dtype)
    for start in range(0, n_items, _ROWS_AT_ONCE):
        some = slice(start, start + _ROWS_AT_ONCE)
        out[some, :rank] = basis[some] @ (turn.T * lengths)
    return out


def scratch_bytes(shape: tuple[int, int], nnz: int, n_factors: int, itemsize: int, valued: bool) -> int:
    """Bytes that `item_factors` allocates at its peak, including its result."""
    # ``itemsize``: bytes of a number of the result. ``valued``: interactions have values other than 1.
    short, (n_users, n_items) = min(shape), shape
    rank = min(n_factors, short)
    values = 0 if valued and itemsize == 8 else 8 * nnz
    margins, product = 8 * 3 * n_users, 8 * 3 * max(shape)
    lanczos = product + (8 * short * (max(2 * rank + 1, 20) + 2 * rank) if rank < short else 0)
    # A wide matrix has its basis and the images in memory at the same time.
    images = 0 if n_users >= n_items else 8 * rank * (short + n_items)
    blocks = 8 * rank * (4 * min(_ROWS_AT_ONCE, max(shape)) + 4 * rank)
    after = 8 * n_items * rank + blocks + n_items * n_factors * itemsize
    return values + 4 * n_users + margins + max(lanczos, images, after)
