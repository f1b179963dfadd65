"""Rows that conjugate gradients solve are as exact as those that a factorisation solves."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import LOSSES, factors, half_steps, rows_of_lengths

from rgals import NumericalError
from rgals.kernels.compile import entry
from rgals.kernels.row import NEXT, FixedSide, Row, Rows, Work, make_scratch
from rgals.kernels.ways import cg
from rgals.losses import IALS, RG2, Degrees
from rgals.matrix.validate import as_csr
from rgals.runtime.aligned import empty
from rgals.solvers import plan
from rgals.solvers.cpu import CPUBackend

EASY = IALS(4.0)  # much weight on all pairs: few steps


def iterated_rows(K, valued=False):
    """Rows of lengths around what decides about paths and padding."""
    at = (plan.CG_MIN_LENGTH, K - 16, K, 2 * K)
    lengths = [0, 1, 30, 101, 4 * K, *(n + d for n in at for d in (-1, 0, 1, 2))]
    return rows_of_lengths(lengths, 4 * K, valued)


@pytest.mark.parametrize("K, valued", [(72, True), (130, False)])
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.few(12)
def test_iterated_rows_are_exact(name, K, valued, monkeypatch):
    X = iterated_rows(K, valued)
    for dtype, eps, tolerance in ((np.float32, 2.0**-23, 1e-4), (np.float64, 2.0**-52, 1e-9)):
        for side, matrix in (("user", X), ("item", sp.csr_array(X.T))):
            factorised, iterated, oracle = half_steps(matrix, LOSSES[name], side, K, monkeypatch, dtype=dtype)
            size = np.linalg.norm(oracle, axis=1, keepdims=True).max()
            by_factors = np.linalg.norm(factorised - oracle, axis=1).max() / size
            by_steps = np.linalg.norm(iterated - oracle, axis=1).max() / size
            assert by_factors < tolerance
            assert by_steps < min(8 * by_factors + 16 * eps, tolerance)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("K", [64, 130, 272])
def test_it_is_long_rows_that_are_iterated(K, dtype, monkeypatch):
    """That the tests above test something: the two paths round differently."""
    X = iterated_rows(K)
    factorised, iterated, _ = half_steps(X, EASY, "user", K, monkeypatch, dtype=dtype)
    differ = (factorised != iterated).any(axis=1)
    lengths = np.diff(X.indptr)
    assert not differ[lengths < plan.CG_MIN_LENGTH].any()
    assert differ[lengths >= 2 * plan.CG_MIN_LENGTH].mean() > 0.9
    if dtype == np.float32:  # twice the digits take twice the steps: too many for the shortest
        assert differ[lengths >= plan.CG_MIN_LENGTH].mean() > 0.9


@pytest.mark.parametrize("K, dtype", [(64, np.float64), (256, np.float64), (272, np.float32)])
def test_rows_beyond_the_packed_memory(K, dtype, monkeypatch):
    """Wide ones are gathered again at every step, narrow ones factorised."""
    most = plan.packed_max_length(-(-K // 16) * 16, np.dtype(dtype).itemsize)
    X = rows_of_lengths([most - 1, most, most + 1, 2 * most + 5], 2 * most + 40)
    factorised, iterated, oracle = half_steps(X, EASY, "user", K, monkeypatch, dtype=dtype)
    np.testing.assert_allclose(iterated, oracle, atol=64 * np.finfo(dtype).eps * np.abs(oracle).max(), rtol=0)
    differ = (factorised != iterated).any(axis=1)
    assert differ[:2].all()
    assert differ[2:].all() == (K >= 256) == differ[2:].any()


@pytest.mark.parametrize("alpha0", [1e-1, 1e-2, 1e-4, 1e-7])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_badly_conditioned_rows_are_as_exact_as_factorised_ones(alpha0, dtype, monkeypatch):
    """Little weight on all pairs and a tiny ridge: the condition grows to that of the positives alone."""
    X = iterated_rows(64)
    factorised, iterated, oracle = half_steps(
        X, IALS(alpha0), "user", 64, monkeypatch, dtype=dtype, reg=1e-8, nu=0.0
    )
    scores = factors(X.shape[1], 64, dtype, seed=4).astype(np.float64).T
    error, size = np.abs((factorised - oracle) @ scores).max(), np.abs(oracle @ scores).max()
    assert np.abs((iterated - oracle) @ scores).max() < 8 * error + 64 * np.finfo(dtype).eps * size


@entry
def solve_alone(rows, fixed, work):
    n = len(rows.indices)
    scratch = make_scratch(len(fixed.d), n + 16, False, fixed.d)
    scratch.inv_root[:] = 1.0
    scratch.rhs[:] = 1.0
    return cg.solve(Row(0, 0, n, 0, 0), work, rows, fixed, scratch), scratch


def run_alone(X, weights, most=None):
    """`cg.solve` of ``(I + X^T W X) x = b = 1 + X^T weights``: whether it did, x, the right-hand side."""
    n, K = X.shape
    table = empty(X.shape, X.dtype)
    table[:] = X
    numbers = np.ones(1)
    terms = np.array([[1, 0, 1, 0]], X.dtype), np.empty((0, 4), X.dtype), np.empty((0, 0), X.dtype)
    positives = np.array([0, n]), np.arange(n, dtype=np.int32), weights
    rows = Rows(*positives, numbers, numbers, numbers, *terms)
    fixed = FixedSide(table.reshape(-1), np.ones(K, X.dtype), np.ones(K, X.dtype))
    one, steps = np.zeros(1, np.int64), plan.factorisation_steps(np.array([n]), K)
    work = Work(one, np.array([0, 1]), np.full(1, cg.CG, np.int8), steps, most or n + 16, n + 16)
    code, scratch = solve_alone(rows, fixed, work)
    assert code in (0, NEXT)
    return code == 0, scratch.solution, scratch.rhs


@pytest.mark.parametrize("most", [None, 16])
def test_one_system(most, rng, amount):
    for dtype in amount([np.float32], [np.float32, np.float64]):
        one_system(dtype, most, rng)


def one_system(dtype, most, rng):
    X = (0.02 * rng.standard_normal((53, 64))).astype(dtype)
    weights = rng.uniform(0.5, 2.0, 53).astype(dtype)
    done, x, b = run_alone(X, weights, most)
    X = X.astype(np.float64)
    right = 1.0 + X.T @ weights
    eps = np.finfo(dtype).eps
    assert done
    np.testing.assert_allclose(b, right, atol=20 * eps)
    expected = np.linalg.solve(np.eye(64) + X.T @ (weights[:, None] * X), right)
    assert np.linalg.norm(x - expected) < 8 * eps * np.linalg.norm(expected)


@pytest.mark.parametrize("case", ["too many steps", "a negative weight", "not finite"])
def test_what_is_left_to_a_factorisation(case, rng):
    """The pace of the first steps shows that there would be too many; nothing is spoiled."""
    X = (0.05 * rng.standard_normal((48, 64))).astype(np.float32)
    weights = np.ones(48, np.float32)
    if case == "too many steps":
        X *= np.logspace(0, 4, 48, dtype=np.float32)[:, None]
    elif case == "a negative weight":
        weights[7] = -1e-3
    else:
        X[5, 9] = np.nan
    done, _, rhs = run_alone(X, weights)
    assert not done
    assert (rhs == 1.0).all()


def test_an_overflow_is_left_to_a_factorisation(rng):
    done, *_ = run_alone(np.full((48, 64), 1e19, np.float32), np.ones(48, np.float32))
    assert not done


def test_threads_change_no_byte():
    matrix = as_csr(iterated_rows(128, True), dtype=np.float32)
    fixed = factors(matrix.n_cols, 128, np.float32)
    for loss in (EASY, RG2(0.01)):
        side = loss.coefficients(Degrees.of(matrix)).user_side(matrix, 0.1, 1.0)
        found = [CPUBackend(n_jobs=n).half_step(matrix, fixed, side).factors for n in (1, 2, 4)]
        np.testing.assert_array_equal(found[0], found[1])
        np.testing.assert_array_equal(found[0], found[2])


def test_a_singular_system_names_its_row():
    matrix = as_csr(iterated_rows(64), dtype=np.float32)
    fixed = factors(matrix.n_cols, 64, np.float32)
    fixed[:, 1] = fixed[:, 0]
    side = IALS(0.0).coefficients(Degrees.of(matrix)).user_side(matrix, 0.0, 0.0)
    with pytest.raises(NumericalError, match="row"):
        CPUBackend().half_step(matrix, fixed, side)
