"""What the device backend promises beyond the contract: any length of rows, any memory, errors by name."""

from __future__ import annotations

import dataclasses
from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import LOSSES, SIDES, als, factors, half_step_of, interactions
from solvers.cuda.fake_cupy import FakeArray, FakeDevice, FakeModule
from solvers.test_contract import MixedWeights

from rgals import RG2, RGX, NumericalError
from rgals.losses import Degrees
from rgals.matrix.validate import as_csr
from rgals.runtime.errors import DeviceMemoryError, ParameterError
from rgals.solvers.als import Problem
from rgals.solvers.cpu import CPUBackend
from rgals.solvers.cuda.backend import CuPyBackend, column_sums, gram
from rgals.solvers.dense import DenseBackend

REG, NU = 0.03, 0.9
# What a device promises. Here rounding is that of the CPU, far below.
DTYPES = {"float32": (np.float32, 1e-3), "float64": (np.float64, 1e-8)}


def setting(loss, side, K, *, valued=False, dtype=np.float64, reg=REG, nu=NU, X=None):
    X = interactions(valued=valued) if X is None else X
    return half_step_of(X, loss, side, K, dtype, reg=reg, nu=nu)


def compare(backend, rows, fixed, side, tolerance):
    oracle = DenseBackend().half_step(rows, fixed.astype(np.float64), side)
    step = backend.half_step(rows, fixed, side)
    assert type(step.factors) is np.ndarray
    assert step.factors.dtype == fixed.dtype
    scale = np.abs(oracle.factors).max()
    np.testing.assert_allclose(step.factors, oracle.factors, atol=tolerance * scale, rtol=0)
    assert step.decrease == pytest.approx(oracle.decrease, rel=tolerance)
    return step


def lengths_around(K):
    """A matrix with rows of 0, 1, K-1, K, K+1 and far more than K entries."""
    rng = np.random.default_rng(1)
    n_cols = 8 * K + 40
    X = np.zeros((14, n_cols))
    for row, n in enumerate((0, 1, 2, K - 1, K, K + 1, 2 * K, n_cols, n_cols - 3, 0, 5, K, 1, 3)):
        X[row, rng.choice(n_cols, n, replace=False)] = rng.integers(1, 4, n)
    return sp.csr_array(X)


@pytest.mark.few(4)
@pytest.mark.parametrize("K", [1, 7, 64, 130])
@pytest.mark.parametrize("name", ["rg2", "rgx-half", "ials", "rg2-signed"])
def test_row_lengths_around_the_number_of_factors(name, K, numpy_device):
    X = lengths_around(K)
    for side, matrix in (("user", X), ("item", sp.csr_array(X.T))):
        for dtype, tolerance in DTYPES.values():
            rows, fixed, coefficients = setting(LOSSES[name], side, K, dtype=dtype, X=matrix)
            compare(CuPyBackend(numpy_device), rows, fixed, coefficients, tolerance)


@pytest.mark.few(4)
@pytest.mark.parametrize("name", ["rg2", "rg2-row-only", "rgx-half", "rg2-signed"])
@pytest.mark.parametrize("size", [1, 3_000, 40_000])
def test_the_result_does_not_depend_on_the_memory_budget(name, size, numpy_device):
    for side in SIDES:
        rows, fixed, coefficients = setting(LOSSES[name], side, 36, valued=True)
        whole = CuPyBackend(numpy_device).half_step(rows, fixed, coefficients)
        numpy_device.room = size
        cut = CuPyBackend(numpy_device).half_step(rows, fixed, coefficients)
        np.testing.assert_allclose(cut.factors, whole.factors, rtol=1e-10, atol=1e-12)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["rg2", "rgx-half", "rg2-signed"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_threads_in_any_order_give_the_same_bits(name, dtype, monkeypatch):
    for side, K in product(SIDES, (12, 68)):  # one tile, and several
        rows, fixed, coefficients = setting(LOSSES[name], side, K, dtype=dtype, valued=True)
        found = []
        for backwards in (False, True):
            monkeypatch.setattr(FakeModule, "backwards", backwards)
            step = CuPyBackend(FakeDevice()).half_step(rows, fixed, coefficients)
            found.append((step.factors.tobytes(), step.decrease))
        assert found[0] == found[1]


def test_what_a_device_does_not_solve_is_refused(numpy_device):
    """A model fitted on the CPU with a mean, features or dislikes folded in without them there."""
    rows, fixed, side = setting(RG2(0.05), "user", 12)
    pairs = np.zeros((rows.n_rows, 2)), np.zeros((rows.n_cols, 2))
    for other in (dataclasses.replace(side, prior=object()), side.with_pairs(*pairs)):
        with pytest.raises(ParameterError, match="device='cuda:0'.*features, user_mean, dislikes"):
            CuPyBackend(numpy_device).half_step(rows, fixed, other)


def test_a_device_that_is_too_small_says_so(small):
    rows, fixed, coefficients = setting(RG2(0.05), "user", 12)
    device = small(10)
    with pytest.raises(DeviceMemoryError, match="smallest that the work can be cut into.*device='cpu'"):
        device.chunks(5, 100, lambda start, stop: device.xp.zeros(100))
    with pytest.raises(DeviceMemoryError, match=r"GiB free \(out of memory.*use fewer factors"):
        CuPyBackend(small(1000)).half_step(rows, fixed, coefficients)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.few(3)
def test_the_objective_never_rises_and_factors_stay_on_the_device(name, device):
    loss = LOSSES[name]
    X = interactions(valued=True)
    for dtype, tolerance in ((np.float32, 1e-6), (np.float64, 1e-12)):
        users = as_csr(X, dtype=dtype)
        problem = Problem.of(users, loss, loss.coefficients(Degrees.of(users)), REG, NU)
        seen, backend = [], CuPyBackend(device)
        moved = []
        original = backend.download

        def download(array, moved=moved, original=original):
            moved.append(type(array))
            return original(array)

        backend.download = download
        start = factors(X.shape[0], 6, dtype, seed=3)
        again, second = als(problem, start, backend, n_iter=3, callbacks=[lambda now: None])
        assert len(moved) == 1, "factors leave the device at the end only, where no callback reads them"

        def watch(now, seen=seen):
            stated = loss.objective(X, now.user_factors, now.item_factors, REG, NU)
            rel = 1e-5 if now.user_factors.dtype == np.float32 else 1e-10
            assert now.objective == pytest.approx(stated, rel=rel)
            assert not now.item_factors.flags.writeable
            seen.append(now.objective)

        start = factors(X.shape[0], 6, dtype, seed=3)
        Q, history = als(problem, start.copy(), CuPyBackend(device), n_iter=3, callbacks=[watch])
        steps = np.diff(seen)
        assert len(seen) == 3 and steps.min() < 0
        assert (steps <= tolerance * np.abs(seen[1:])).all()
        assert again.tobytes() == Q.tobytes(), "two runs are identical"
        assert second[-1]["objective"] == history[-1]["objective"]
        # The same iterates as on the CPU, up to a rotation.
        cpu, _ = als(problem, start.copy(), CPUBackend(), n_iter=3)
        tolerance = 2e-2 if dtype == np.float32 else 1e-7
        np.testing.assert_allclose(Q @ Q.T, cpu @ cpu.T, atol=tolerance * np.abs(cpu @ cpu.T).max())


def test_factors_stay_where_they_are(numpy_device):
    backend = CuPyBackend(numpy_device)
    rows, fixed, coefficients = setting(LOSSES["ials"], "user", 12)
    plain = backend.half_step(rows, fixed, coefficients).factors
    there = backend.upload(fixed)
    solved = backend.half_step(rows, there, coefficients, rotate=True).factors
    assert isinstance(solved, FakeArray)
    np.testing.assert_array_equal(backend.download(solved), plain)
    np.testing.assert_array_equal(backend.download(there), fixed)


def test_a_pivot_that_is_not_positive_names_its_row(device):
    rows, fixed, coefficients = setting(MixedWeights(), "user", 6)
    terms = coefficients.row_terms.copy()
    bad = int(np.flatnonzero(rows.row_counts > 8)[2])
    terms[bad, :2] = -100.0
    coefficients = dataclasses.replace(coefficients, row_terms=terms)
    with pytest.raises(NumericalError, match=rf"row {bad} .*pivot \d is not positive"):
        CuPyBackend(device).half_step(rows, fixed, coefficients)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["rg2", "rg2-row-only"])
def test_1024_factors(name, numpy_device):
    X = interactions()[:2]  # the oracle takes a second a row
    rows, fixed, coefficients = setting(LOSSES[name], "user", 1024, dtype=np.float32, X=X)
    compare(CuPyBackend(numpy_device), rows, fixed, coefficients, 1e-3)


def test_the_matrix_is_sent_once(numpy_device, monkeypatch):
    sent = []
    upload = type(numpy_device).upload
    monkeypatch.setattr(
        type(numpy_device), "upload", lambda self, array: sent.append(array.nbytes) or upload(self, array)
    )
    loss, X = LOSSES["rg2"], interactions(160, 120)
    users = as_csr(X, dtype=np.float32)
    problem = Problem.of(users, loss, loss.coefficients(Degrees.of(users)), REG, NU)
    large = []
    for n_iter in (1, 3):
        del sent[:]
        als(problem, factors(160, 6, np.float32), CuPyBackend(numpy_device), n_iter=n_iter)
        large.append([size for size in sent if size >= users.nnz * 4])
    assert large[0] == large[1] and len(large[0]) == 2, "the indices of both sides, in the first iteration"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 1023, 1024, 5000])
def test_gramian(n, dtype, numpy_device):
    f, w = factors(n, 9, dtype), np.random.default_rng(0).uniform(0, 2, n)
    up = numpy_device.upload
    ours = numpy_device.download(gram(numpy_device, up(f), up(w)))
    expected = f.astype(np.float64).T @ (w[:, None] * f)
    np.testing.assert_allclose(ours, expected, atol=(1e-5 if dtype == np.float32 else 1e-11) * n)
    np.testing.assert_array_equal(ours, ours.T)
    weights = np.stack([w, w**2])
    for numpy_device.room in (1, 1 << 30):
        sums = column_sums(numpy_device, up(f), up(weights))
        f64 = f.astype(np.float64)
        np.testing.assert_allclose(sums, [*weights @ f64, w**2 @ f64**2], atol=1e-9 * n)


def test_rgx_interaction_is_exact_on_both_paths(numpy_device):
    """alpha = 0 with the interaction: all rows share one matrix, and are coupled on the item side."""
    for side in SIDES:
        rows, fixed, coefficients = setting(RGX(alpha=0.0, beta=1.0), side, 12, valued=True, nu=1.0)
        compare(CuPyBackend(numpy_device), rows, fixed, coefficients, 1e-9)
