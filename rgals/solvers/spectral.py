"""A spectral start: user factors from a randomised SVD of the matrix, scaled by the degrees of its rows."""

from functools import partial
from typing import Any

import numpy as np
import scipy.linalg

from rgals.kernels import diagonal, gram
from rgals.kernels.row import DIAGONAL, FixedSide, Result, Rows, Work
from rgals.losses.base import weight_sums
from rgals.losses.degrees import power
from rgals.matrix.csr import CSR
from rgals.runtime.aligned import LINE, empty, read_only
from rgals.runtime.errors import NumericalError
from rgals.solvers.plan import padded, pieces

# Entries are divided by these powers of the sums of their row and column. NDCG@10 after two iterations of RG2
# with K=64, in per cent of that after 16 from random, on anime, citeulike-a and electronics: 99, 100, 95;
# with 1/4 for both 97, 97, 93; with 1/2 for both 91, 97, 95. (food-10core alone is best with 1/4 for both:
# 100 against 93.)
USER_EXPONENT, ITEM_EXPONENT = 0.5, 0.25
OVERSAMPLES, POWERS = 8, 2  # of the randomised SVD: columns beyond the factors, power iterations
_FILL = 0.01  # length of random columns beyond the rank, in units of a random start
_ROWS_AT_ONCE = 1 << 12  # rows copied at once when a table is packed


def n_columns(n_factors: int, itemsize: int) -> int:
    """Columns of the randomised SVD's tables: factors and oversamples, in whole cache lines."""
    return padded(n_factors + OVERSAMPLES, LINE // itemsize)


def user_factors(
    users: CSR, items: CSR, n_factors: int, rng: np.random.Generator, dtype: np.dtype, n_threads: int
) -> np.ndarray:
    """User factors ``U s^1/2``, times a number, of the leading triplets of ``A = D_u^-1/2 R D_i^-1/4``."""
    # The number makes the scores of ``U s^1/2`` and ``V s^1/2`` average 1 over the interactions, weighted by
    # the entries of A. ``D`` are the sums of the rows and columns of R.
    # The subspace of the shorter side is that of ``(A^T A)^2`` times a random matrix with a few columns more
    # than factors, the first that ``rng`` draws. The singular vectors are those of A within this subspace
    # (Halko, Martinsson, Tropp 2011). Columns beyond the rank are random and small. The result does not
    # depend on ``n_threads``. A `NumericalError` says that the values overflow in this precision.
    dtype = np.dtype(dtype)
    tall = users.n_rows > users.n_cols
    short, long = (items, users) if tall else (users, items)
    unit = users.row_sums.sum() / max(users.nnz, 1)  # the mean value; divided by it, powers do not overflow
    exponents = (ITEM_EXPONENT, USER_EXPONENT) if tall else (USER_EXPONENT, ITEM_EXPONENT)
    scales = [
        power(side.row_sums / unit, -exponent) * unit**-0.5
        for side, exponent in zip((short, long), exponents, strict=True)
    ]
    own, other = (_terms(scale, 2).astype(dtype) for scale in scales)
    there = partial(_multiply, long, other, own, n_threads)
    back = partial(_multiply, short, own, other, n_threads)
    total = float(weight_sums(short, _terms(scales[0], 0), _terms(scales[1], 0)).sum())
    width = n_columns(n_factors, dtype.itemsize)
    basis, image = (empty((side.n_rows, width), dtype) for side in (short, long))
    rng.standard_normal(dtype=dtype, out=basis)
    for _ in range(POWERS):
        there(basis, image)
        back(image, basis)
        gram.multiply(basis, _whitener(_gramian(basis, n_threads), dtype), basis, n_threads)
    there(basis, image)
    del own, other, there, back
    squares, vectors = scipy.linalg.eigh(_gramian(image, n_threads), driver="evd", check_finite=False)
    squares, vectors = squares[::-1][:n_factors], vectors[:, ::-1]
    rank = int((squares > squares[0] * width * np.finfo(dtype).eps).sum())
    lengths = np.zeros(width)
    lengths[:rank] = squares[:rank] ** (-0.25 if tall else 0.25)  # s^1/2; the image already has lengths s
    lengths[:rank] *= np.sqrt(total / squares[:rank].sum())
    table = image if tall else basis
    del basis, image
    gram.multiply(table, np.ascontiguousarray(vectors * lengths, dtype), table, n_threads)
    # The first columns are packed at the front of the table's own memory, and the rest of it is freed: a copy
    # would need room for two tables.
    memory: Any = table.base
    n_rows, begin, flat = len(table), table.ctypes.data - memory.ctypes.data, table.reshape(-1)
    for start in range(0, n_rows, _ROWS_AT_ONCE):
        block = table[start : start + _ROWS_AT_ONCE, :n_factors].copy()
        flat[start * n_factors : start * n_factors + block.size] = block.reshape(-1)
    del table, flat
    memory.resize(begin + n_rows * n_factors * dtype.itemsize, refcheck=False)
    factors = memory[begin:].view(dtype).reshape(n_rows, n_factors)
    if rank < n_factors:
        scale = _FILL * n_factors**-0.5
        factors[:, rank:] = scale * rng.standard_normal((len(factors), n_factors - rank), dtype=dtype)
    return factors


def _multiply(
    matrix: CSR, left: np.ndarray, right: np.ndarray, n_threads: int, table: np.ndarray, out: np.ndarray
) -> None:
    """``out = diag(left) R diag(right) table``, as diagonal rows with the identity as their system."""
    nothing = np.zeros(table.shape[1], table.dtype)
    fixed = FixedSide(table.reshape(-1), nothing, nothing)
    for start, stop, block in matrix.blocks():
        n, counts, solved = block.n_rows, block.row_counts, out[start:stop]
        order, steps, none = np.flatnonzero(counts), np.zeros(n, np.int32), np.zeros(n)
        solved[counts == 0] = 0.0
        work = Work(order, pieces(counts[order]), np.full(n, DIAGONAL, np.int8), steps, 1, 1)
        values = read_only(block.values.astype(table.dtype, copy=False))
        terms = left[start:stop], right, np.empty((0, 0), table.dtype)
        rows = Rows(block.indptr, block.indices, values, none, none, np.ones(n), *terms)
        diagonal.solve(work, rows, fixed, Result(solved, np.zeros(n), np.zeros(n, np.int32)), n_threads)


def _terms(scale: np.ndarray, column: int) -> np.ndarray:
    """Separable coefficients (see `rgals.losses.base`), zero but for one column."""
    terms = np.zeros((len(scale), 4))
    terms[:, column] = scale
    return terms


def _gramian(table: np.ndarray, n_threads: int) -> np.ndarray:
    G = gram.gram(table, np.ones(len(table)), n_threads)
    if not np.isfinite(G).all():
        raise NumericalError(
            f"the spectral start overflows in {table.dtype}: scale the values of the matrix to about 1, or "
            "set init='random'"
        )
    return G


def _whitener(G: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The matrix that makes a table of Gramian G orthonormal; directions lost in rounding stay short."""
    # By eigenvectors the columns get close to singular vectors, and their lengths differ much after the next
    # power. Scaling the diagonal of that Gramian to 1 makes it well-conditioned.
    lengths = np.sqrt(np.diagonal(G))
    inverse = np.divide(1.0, lengths, out=np.zeros(len(G)), where=lengths > 0)
    d, V = scipy.linalg.eigh(G * np.outer(inverse, inverse), driver="evd", check_finite=False)
    roots = np.maximum(d, d[-1] * len(d) * np.finfo(dtype).eps) ** -0.5
    return np.ascontiguousarray(inverse[:, None] * V * roots, dtype)
