"""What the device backend promises beyond the contract: the same result in any cut and any memory."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import LOSSES, SIDES, als, factors, half_step_of, interactions
from solvers.cuda.fake_cupy import FakeArray, FakeDevice
from solvers.cuda.numpy_kernels import NumpyModule
from solvers.test_contract import MixedWeights

from rgals import RG2, RGX, NumericalError, ParameterError
from rgals.losses import Degrees
from rgals.matrix.validate import as_csr
from rgals.runtime.errors import DeviceMemoryError
from rgals.solvers.als import Problem
from rgals.solvers.cpu import CPUBackend
from rgals.solvers.cuda import Room, plan
from rgals.solvers.cuda.backend import CuPyBackend
from rgals.solvers.cuda.systems import gram
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


@pytest.mark.few(6)
@pytest.mark.parametrize("K", [1, 7, 64, 130])
@pytest.mark.parametrize("name", ["rg2", "rgx-half", "ials", "rg2-signed"])
def test_row_lengths_around_the_number_of_factors(name, K, numpy_device):
    X = lengths_around(K)
    for side, matrix in (("user", X), ("item", sp.csr_array(X.T))):
        for dtype, tolerance in DTYPES.values():
            rows, fixed, coefficients = setting(LOSSES[name], side, K, dtype=dtype, X=matrix)
            compare(CuPyBackend(numpy_device), rows, fixed, coefficients, tolerance)


@pytest.mark.few(4)
@pytest.mark.parametrize("segment", [7, 12])
@pytest.mark.parametrize("name", ["rg2", "rgx-half", "ials", "rg2-signed"])
def test_rows_longer_than_a_segment_are_cut(name, segment, device, monkeypatch):
    from rgals.solvers.cuda import systems

    for module in (plan, systems):
        monkeypatch.setattr(module, "SEGMENT", segment)
        monkeypatch.setattr(module, "PIECE", 5)
    for side in SIDES:
        rows, fixed, coefficients = setting(LOSSES[name], side, 6, valued=True)
        backend = CuPyBackend(device)
        compare(backend, rows, fixed, coefficients, 1e-9)
        assert any(b.length == 0 and len(b.rows) > 1 for b in backend._sides[0].buckets)


@pytest.mark.few(4)
@pytest.mark.parametrize("name", ["rg2", "rg2-row-only", "rgx-half", "rg2-signed"])
@pytest.mark.parametrize("size", [1, 3_000, 40_000])
def test_the_result_does_not_depend_on_the_memory_budget(name, size, numpy_device):
    for side in SIDES:
        rows, fixed, coefficients = setting(LOSSES[name], side, 12, valued=True)
        whole = CuPyBackend(numpy_device).half_step(rows, fixed, coefficients)
        backend = CuPyBackend(numpy_device)
        backend.room = Room(size, numpy_device.free)
        cut = backend.half_step(rows, fixed, coefficients)
        np.testing.assert_allclose(cut.factors, whole.factors, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["rg2", "rgx-half", "rg2-signed"])
def test_a_full_device_is_answered_by_smaller_chunks(name):
    for side in SIDES:
        rows, fixed, coefficients = setting(LOSSES[name], side, 12, valued=True)
        need = max(rows.n_rows, rows.n_cols) * 12 * 8
        device = FakeDevice(NumpyModule, capacity=need)
        backend = CuPyBackend(device)
        backend.room.size = 1 << 30  # believes that there is more
        compare(backend, rows, fixed, coefficients, 1e-9)
        assert device.xp.refused
        assert backend.room.size < 1 << 20


def test_a_device_that_is_too_small_says_so():
    rows, fixed, coefficients = setting(RG2(0.05), "user", 12)
    with pytest.raises(DeviceMemoryError, match="smallest that the work can be cut into.*device='cpu'"):
        CuPyBackend(FakeDevice(NumpyModule, capacity=rows.n_rows * 12 * 8 // 10)).room.chunks(
            5, 100, lambda a, b: FakeDevice(NumpyModule, capacity=10).xp.empty(100)
        )
    with pytest.raises(DeviceMemoryError, match="GiB free; a fit of .* interactions with 12 factors"):
        CuPyBackend(FakeDevice(NumpyModule, capacity=1000)).half_step(rows, fixed, coefficients)


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


@pytest.mark.few(3)
@pytest.mark.parametrize("name", ["rg2", "rgx", "ials"])
def test_conjugate_gradients_agree_with_the_cpu_in_a_fit(name, device):
    loss = LOSSES[name]
    users = as_csr(interactions(valued=True), dtype=np.float64)
    problem = Problem.of(users, loss, loss.coefficients(Degrees.of(users)), REG, NU)
    start = factors(users.n_rows, 6, seed=3)
    ours = als(problem, start.copy(), CuPyBackend(device, 2), n_iter=4)[1]
    theirs = als(problem, start.copy(), CPUBackend(steps=2), n_iter=4)[1]
    for a, b in zip(ours, theirs):
        assert a["objective"] == pytest.approx(b["objective"], rel=1e-8)


def test_row_only_losses_invert_one_matrix(numpy_device, monkeypatch):
    backend = CuPyBackend(numpy_device)
    for side in SIDES:
        rows, fixed, coefficients = setting(RG2(alpha=0.0), side, 12, nu=1.0)
        with monkeypatch.context() as patched:
            patched.setattr(type(numpy_device), "eigenvectors", None)  # not even looked at
            compare(backend, rows, fixed, coefficients, 1e-9)
    # With another exponent the ridge is no multiple of the scale: rotated after all.
    rows, fixed, coefficients = setting(RG2(alpha=0.0), "user", 12, nu=0.5)
    compare(backend, rows, fixed, coefficients, 1e-9)
    # Not positive definite by itself (a factor is always 0): the ridge or the other path must answer.
    rows, fixed, coefficients = setting(RG2(alpha=0.0), "user", 12, nu=1.0, reg=1e-9)
    fixed[:, 3] = 0.0
    compare(backend, rows, fixed, coefficients, 1e-6)


def test_rotating_on_the_device_keeps_the_scores(numpy_device):
    backend = CuPyBackend(numpy_device)
    rows, fixed, coefficients = setting(LOSSES["ials"], "user", 12)
    plain = backend.half_step(rows, fixed, coefficients).factors @ fixed.T
    turned = backend.upload(fixed)
    solved = backend.half_step(rows, turned, coefficients, rotate=True).factors
    assert isinstance(solved, FakeArray)
    assert not np.allclose(backend.download(turned), fixed)
    np.testing.assert_allclose(
        backend.download(solved) @ backend.download(turned).T, plain, atol=1e-10 * np.abs(plain).max()
    )


def test_a_pivot_that_is_not_positive_names_its_row(device):
    rows, fixed, coefficients = setting(MixedWeights(), "user", 6)
    terms = coefficients.row_terms.copy()
    bad = int(np.flatnonzero(rows.row_counts > 8)[2])
    terms[bad, :2] = -100.0
    coefficients = dataclasses.replace(coefficients, row_terms=terms)
    with pytest.raises(NumericalError, match=rf"row {bad} .*pivot \d is not positive"):
        CuPyBackend(device).half_step(rows, fixed, coefficients)


def test_more_factors_than_a_warp_can_hold_are_refused(numpy_device):
    rows, fixed, coefficients = setting(RG2(0.05), "user", 1025)
    with pytest.raises(ParameterError, match=r"K=1025 .*at most 1024.*registers"):
        CuPyBackend(numpy_device).half_step(rows, fixed, coefficients)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["rg2", "rg2-row-only"])
def test_1024_factors(name, numpy_device):
    X = interactions()[:2]  # the oracle takes a second a row
    rows, fixed, coefficients = setting(LOSSES[name], "user", 1024, dtype=np.float32, X=X)
    compare(CuPyBackend(numpy_device), rows, fixed, coefficients, 1e-3)


def test_tf32_is_off_unless_asked_for():
    rows, fixed, coefficients = setting(RG2(0.05), "user", 6, dtype=np.float32)
    for tf32, modes in ((False, {0}), (True, {0, 3})):
        device = FakeDevice(NumpyModule, tf32=tf32)
        CuPyBackend(device).half_step(rows, fixed, coefficients)
        assert set(device.xp.modes) == modes
        assert device.xp.modes[-1] == 0, "the handle is left as it was"


def test_the_matrix_is_sent_once(numpy_device, monkeypatch):
    sent = []
    upload = type(numpy_device).upload
    monkeypatch.setattr(
        type(numpy_device), "upload", lambda self, array: sent.append(array.nbytes) or upload(self, array)
    )
    loss, X = LOSSES["rg2"], interactions(400, 300)
    users = as_csr(X, dtype=np.float32)
    problem = Problem.of(users, loss, loss.coefficients(Degrees.of(users)), REG, NU)
    backend = CuPyBackend(numpy_device)
    als(problem, factors(400, 6, np.float32), backend, n_iter=1)
    first = len(sent)
    del sent[:]
    als(problem, factors(400, 6, np.float32), backend, n_iter=2)
    assert max(sent) < users.nnz * 4
    assert first > 0


# ---------------------------------------------------------------------- plans


def test_padded_lengths_waste_at_most_a_quarter():
    n = np.arange(1, 5000)
    length = plan.padded_length(n)
    assert (length >= n).all() and (length % 4 == 0).all()
    assert (length[16:] <= 1.25 * n[16:] + 1).all()
    assert (np.diff(length) >= 0).all()
    assert len(np.unique(length)) < 50


def test_pieces_cover_every_positive_once():
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 40, 50)
    counts[[3, 7]] = 0
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    rows = np.array([0, 3, 5, 7, 20, 21, 49])
    pieces = plan.cut(rows, indptr, 8)
    covered = np.concatenate([np.arange(b, b + n) for b, n in zip(pieces.begin, pieces.count)])
    np.testing.assert_array_equal(
        covered, np.concatenate([np.arange(indptr[r], indptr[r + 1]) for r in rows])
    )
    assert pieces.count.max() <= 8
    assert (pieces.slot[pieces.slot >= 0] == np.arange(pieces.cut_count.sum())).all()
    assert set(pieces.cut_row) == {r for r in rows if counts[r] > 8}


def test_offsets_beyond_two_to_the_31():
    """Arrays of that size are not needed to see that nothing wraps: only offsets are computed here."""
    indptr = np.array([0, 3_000_000_000, 6_000_000_000, 6_000_000_100], np.int64)
    pieces = plan.cut(np.arange(3), indptr, 1 << 30)
    assert pieces.begin.dtype == np.int64
    assert pieces.begin[-1] == 6_000_000_000 and pieces.begin[2] == 2 << 30
    assert pieces.count.sum() == 6_000_000_100


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 1023, 1024, 5000])
def test_gramian(n, dtype, numpy_device):
    f, w = factors(n, 9, dtype), np.random.default_rng(0).uniform(0, 2, n)
    up = numpy_device.upload
    for size in (1, 1 << 30):
        room = Room(size, numpy_device.free)
        ours = numpy_device.download(gram(numpy_device, room, up(f), up(w)))
        expected = f.astype(np.float64).T @ (w[:, None] * f)
        np.testing.assert_allclose(ours, expected, atol=(1e-5 if dtype == np.float32 else 1e-11) * n)
        np.testing.assert_array_equal(ours, ours.T)


def test_rgx_interaction_is_exact_on_both_paths(numpy_device):
    """alpha = 0 with the interaction: all rows share one matrix, and are coupled on the item side."""
    for side in SIDES:
        rows, fixed, coefficients = setting(RGX(alpha=0.0, beta=1.0), side, 12, valued=True, nu=1.0)
        compare(CuPyBackend(numpy_device), rows, fixed, coefficients, 1e-9)
