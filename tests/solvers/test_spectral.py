"""The spectral start against dense linear algebra in float64 from the same random matrix."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
from helpers import interactions

from rgals import NumericalError
from rgals.matrix.csr import CSR
from rgals.matrix.validate import as_csr
from rgals.solvers import spectral

TOLERANCE = {"float32": 1e-3, "float64": 1e-8}


def start(X, K, dtype="float32", n_threads=1, seed=0) -> np.ndarray:
    """The start of the package."""
    users = as_csr(X, dtype=dtype)
    rng = np.random.default_rng(seed)
    return spectral.user_factors(users, users.transpose(), K, rng, np.dtype(dtype), n_threads)


def scaled(X) -> np.ndarray:
    """The matrix ``D_u^-1/2 R D_i^-1/4``, dense; empty rows and columns are 0."""
    R = np.asarray(X.todense(), np.float64)
    of_users, of_items = R.sum(axis=1), R.sum(axis=0)
    A = np.zeros_like(R)
    at = R > 0
    A[at] = (R / (np.sqrt(np.maximum(of_users, 1))[:, None] * np.maximum(of_items, 1) ** 0.25))[at]
    return A


def reference(X, K, dtype, seed=0) -> tuple[np.ndarray, np.ndarray]:
    """User factors and singular values: QR and SVD of dense matrices."""
    A = scaled(X)
    tall = A.shape[0] > A.shape[1]
    long = A if tall else A.T
    width = spectral.n_columns(K, np.dtype(dtype).itemsize)
    rng = np.random.default_rng(seed)
    basis = rng.standard_normal((long.shape[1], width), dtype=dtype).astype(np.float64)
    for _ in range(2):
        basis, _ = np.linalg.qr(long.T @ (long @ basis))
    left, s, right = np.linalg.svd(long @ basis, full_matrices=False)
    U, V = left[:, :K], (basis @ right.T)[:, :K]
    if not tall:
        U, V = V, U
    scores = (U * s[:K]) @ V.T
    mean = (scores * A).sum() / A.sum()  # over the interactions, by their entries of A
    return U * np.sqrt(s[:K] / mean), s


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("valued", [False, True], ids=["binary", "valued"])
@pytest.mark.parametrize("shape", [(300, 90), (90, 300), (120, 120)], ids=["tall", "wide", "square"])
def test_the_start_is_that_of_dense_linear_algebra(shape, valued, dtype):
    X = interactions(*shape, valued=valued)
    assert X.nnz > 1000 and (np.diff(X.indptr) == 0).any() and (X.sum(axis=0) == 0).any()
    found = start(X, 12, dtype)
    right, s = reference(X, 12, dtype)
    assert found.dtype == dtype and found.shape == right.shape and found.flags.c_contiguous
    assert s[11] > 1.001 * s[12], "the subspace is well-defined"
    assert scipy.linalg.subspace_angles(found.astype(np.float64), right).max() < TOLERANCE[dtype]
    # Signs of columns are free: lengths and scores among users are not.
    ours, theirs = found.astype(np.float64) @ found.T, right @ right.T
    assert np.abs(ours - theirs).max() < TOLERANCE[dtype] * np.abs(theirs).max()
    assert not found[np.diff(X.indptr) == 0].any()


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_bytes_do_not_depend_on_the_threads(dtype):
    X = interactions(900, 700, valued=True)
    one = start(X, 40, dtype)
    for n_threads in (2, 4):
        assert start(X, 40, dtype, n_threads).tobytes() == one.tobytes()
    assert start(X, 40, dtype, seed=1).tobytes() != one.tobytes()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(60, 45), (45, 60)], ids=["tall", "wide"])
@pytest.mark.parametrize("more", [-3, -1, 0, 2, 30])
def test_columns_beyond_the_rank_are_random_and_small(more, shape, dtype):
    X = interactions(*shape)
    rank = np.linalg.matrix_rank(scaled(X))
    assert rank < 45
    K = int(rank) + more
    found = start(X, K, dtype).astype(np.float64)
    assert np.isfinite(found).all()
    within = min(K, int(rank)) - 5  # the last singular values are nearly 0
    right, _ = reference(X, min(K, 45), dtype)
    ours, theirs = found[:, :within], right[:, :within]
    assert scipy.linalg.subspace_angles(ours, theirs).max() < 20 * TOLERANCE[dtype]
    beyond = found[:, rank:]
    if more > 0:
        usual = K**-0.5
        assert 0.005 * usual < beyond.std() < 0.02 * usual
        assert np.linalg.matrix_rank(beyond) == more


def test_a_matrix_of_rank_one():
    X = as_csr(np.ones((50, 40), np.float32))
    found = spectral.user_factors(X, X.transpose(), 4, np.random.default_rng(0), np.dtype("float32"), 1)
    np.testing.assert_allclose(np.abs(found[:, 0]), np.abs(found[0, 0]), rtol=1e-4)
    assert np.abs(found[:, 1:]).max() < 0.05 * np.abs(found[0, 0]) and found[:, 1:].all()


@pytest.mark.parametrize("unit", [1e-25, 1e25])
def test_the_unit_of_the_values_does_not_matter(unit):
    X = interactions(80, 60, valued=True)
    np.testing.assert_allclose(
        np.abs(start(X * unit, 6)), np.abs(start(X, 6)), rtol=1e-3, atol=1e-4 * np.abs(start(X, 6)).max()
    )


def test_an_overflow_is_said():
    values = np.full(64, 1e-37, np.float32)
    values[0] = 1e-45
    X = CSR(np.arange(65), np.arange(64, dtype=np.int32), values, 64)
    with pytest.raises(NumericalError, match="init='random'"):
        spectral.user_factors(X, X.transpose(), 2, np.random.default_rng(0), np.dtype("float32"), 1)
