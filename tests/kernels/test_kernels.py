"""Tiles and packed triangles; the work queue; caches follow every source file of the kernels."""

from __future__ import annotations

import functools
import itertools
import os
import platform
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import pytest
from numba import njit

from rgals.kernels import gram, plain_rows, queue, triangles
from rgals.kernels.queue import fetch_add, launch
from rgals.kernels.row import FixedSide, Result
from rgals.kernels.rows import coupling_sums, unpack
from rgals.kernels.vectors import LINE
from rgals.kernels.workspace import workspace
from rgals.losses.base import Side
from rgals.matrix.csr import CSR
from rgals.runtime.aligned import aligned, empty
from rgals.solvers.plan import Plan


@functools.cache
def compiled(kernel):
    """A kernel as Python can call it."""
    return njit(lambda *args: kernel(*args))


def packed(A, w):
    """The upper triangle of a matrix by block columns."""
    parts = [A[: j + w, j : j + w].ravel() for j in range(0, len(A), w)]
    return np.concatenate(parts)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_cholesky_and_solve_on_packed_triangles(blocks, dtype, rng):
    w = 64 // np.dtype(dtype).itemsize
    n, depth = blocks * w, 40
    X = rng.standard_normal((depth, n)).astype(dtype)
    A = X.T.astype(np.float64) @ X + 3 * np.eye(n)
    c = packed(3 * np.eye(n, dtype=dtype), w)
    panels = X.reshape(depth, blocks, w).transpose(1, 0, 2).ravel().copy()
    compiled(triangles.gram_add)(c, 0, panels, 0, depth * w, depth, blocks, 1.0)
    tolerance = 1e-4 if dtype == np.float32 else 1e-11
    np.testing.assert_allclose(unpack(c.astype(np.float64), n, w), A, atol=tolerance * np.abs(A).max())
    inverse = np.empty(n, dtype)
    b = rng.standard_normal(n).astype(dtype)
    y = b.copy()
    assert compiled(triangles.cholesky)(c, 0, inverse, 0, blocks) == 0
    compiled(triangles.cholesky_solve)(c, 0, inverse, 0, y, 0, blocks)
    np.testing.assert_allclose(y, np.linalg.solve(A, b), atol=tolerance)


@pytest.mark.parametrize("wrong", [0, 5, 16, 37])
def test_a_bad_pivot_is_reported_by_its_number(wrong, rng):
    n = 48
    X = rng.standard_normal((n, n))
    A = X @ X.T + n * np.eye(n)
    lower = np.linalg.cholesky(A)
    A[wrong, wrong] -= lower[wrong, wrong] ** 2 + 1.0
    c = packed(A, 8)
    assert compiled(triangles.cholesky)(c, 0, np.empty(n), 0, n // 8) == wrong + 1
    c = packed(np.where(np.eye(n, dtype=bool) & (np.arange(n) == wrong), np.nan, A), 8)
    assert compiled(triangles.cholesky)(c, 0, np.empty(n), 0, n // 8) == wrong + 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 3), (257, 40), (700, 300)])
def test_gramian_and_products(shape, dtype, rng):
    F = rng.standard_normal(shape).astype(dtype)
    weight, linear = rng.uniform(0, 2, shape[0]), rng.standard_normal(shape[0])
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    G = F.T.astype(float) @ (F * weight[:, None])
    for threads in (1, 2):
        got = gram.gram(F, weight, threads)
        np.testing.assert_allclose(got, G, atol=tolerance * shape[0])
        np.testing.assert_array_equal(got, gram.gram(F, weight, 1))
    plain = gram.column_sums(F, weight, 2)
    np.testing.assert_allclose(plain, weight @ F.astype(float), atol=tolerance * shape[0])
    V = rng.standard_normal((shape[1], shape[1])).astype(dtype)
    expected = F.astype(float) @ V
    alone = np.empty_like(F)
    gram.multiply(F, V, alone, 2)
    of_product = gram.multiply(F, V, F, 2, weight, linear)
    np.testing.assert_array_equal(F, alone, "in place or not, with sums or without")
    np.testing.assert_allclose(F, expected, atol=10 * tolerance * shape[1])
    for got, right in zip(
        of_product, (weight @ expected**2, weight @ expected, linear @ expected), strict=True
    ):
        np.testing.assert_allclose(got, right, atol=20 * tolerance * shape[0] * shape[1])
    for got, again in zip(
        of_product, gram.multiply(alone, np.eye(shape[1], dtype=dtype), alone, 1, weight, linear)
    ):
        np.testing.assert_array_equal(got, again, "whatever the number of threads")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "width"), [(1, 64), (5, 64), (130, 64), (7, 16), (33, 208)])
def test_normal_equations_of_plain_rows(n, width, dtype, rng):
    """Both the form that keeps rows in registers and the general one, with a ragged end and every sign."""
    w = LINE // np.dtype(dtype).itemsize
    X = np.zeros(((n + 3) // 4 * 4, width), dtype)
    X[:n] = rng.standard_normal((n, width))
    sign = np.resize(np.array([1.0, -1.0, 0.0], dtype), len(X))
    v, y, b = rng.standard_normal((3, width)).astype(dtype)
    weights = rng.standard_normal(len(X)).astype(dtype)
    wide = X.astype(float)
    product, right = y + wide.T @ (sign * (wide @ v)), b + wide.T @ weights
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    alone = y.copy()
    shape = n, width // w
    compiled(plain_rows.add_normal)(alone, 0, X, 0, v, 0, sign, 0, *shape)
    compiled(plain_rows.add_normal_and_right)(y, 0, b, 0, X, 0, v, 0, sign, 0, weights, 0, *shape)
    for got, expected in ((alone, product), (y, product), (b, right)):
        np.testing.assert_allclose(got, expected, atol=tolerance * n * width)


def test_memory_begins_on_cache_lines():
    for shape, dtype in (((3, 5), "float32"), ((0, 4), "float64"), ((1000, 64), "float32")):
        array = empty(shape, dtype)
        assert array.shape == shape and array.dtype == dtype and array.flags.c_contiguous
        assert array.ctypes.data % LINE == 0 or not array.size  # numpy moves no pointer for nothing
        array[...] = 7.0
        assert aligned(array) is array
        shifted = np.concatenate([array.reshape(-1)[:1], array.reshape(-1)])[1:]
        if shifted.size and shifted.ctypes.data % LINE:
            moved = aligned(shifted)
            assert moved.ctypes.data % LINE == 0 and not np.shares_memory(moved, shifted)
            np.testing.assert_array_equal(moved, shifted)
        space = njit(lambda n, like: workspace(n, like))
        assert all(space(n, array).ctypes.data % LINE == 0 for n in (1, 17, 4096))


@njit(cache=False, nogil=True)
def _count_pieces(counter, taken):
    while True:
        piece = fetch_add(counter, 0, 1)
        if piece >= len(taken):
            break
        taken[piece] += 1


@pytest.mark.parametrize("n_threads", [1, 2, 4])
def test_every_piece_of_work_is_done_once_by_many_callers(n_threads):
    def ask(_):
        taken = np.zeros(5000, np.int64)
        launch(_count_pieces, n_threads, taken)
        return taken

    with ThreadPoolExecutor(6) as callers:
        for taken in callers.map(ask, range(40)):
            np.testing.assert_array_equal(taken, 1)


def test_an_error_on_another_thread_arrives_after_all_have_ended():
    here, ended, begun = threading.get_ident(), [], threading.Event()

    def work(counter):
        if threading.get_ident() == here:
            begun.wait(10)
            ended.append("here")
            return
        begun.set()
        raise KeyError("there")

    with pytest.raises(KeyError, match="there"):
        launch(work, 2)
    assert ended == ["here"]


def test_work_that_has_not_started_is_not_waited_for():
    release = threading.Event()
    queue._start_threads(numba.config.NUMBA_NUM_THREADS)
    for _ in range(numba.config.NUMBA_NUM_THREADS):
        queue._jobs.put([lambda: release.wait(10)])
    ran = []
    launch(lambda counter: ran.append(1), 2)
    assert ran == [1]
    release.set()


def test_where_no_more_threads_can_be_had_one_does_all_the_work(monkeypatch):
    """As under a container's limit of processes."""

    def none_left(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(queue, "_unstarted", [None] * numba.config.NUMBA_NUM_THREADS)
    monkeypatch.setattr(queue._thread, "start_new_thread", none_left)
    taken = np.zeros(5000, np.int64)
    launch(_count_pieces, 4, taken)
    np.testing.assert_array_equal(taken, 1)


def test_a_launch_that_ctrl_c_ends_in_any_line_leaves_the_next_one_working(monkeypatch):
    """As a signal does, wherever Python looks for one: a lock left behind would stop every later fit."""
    for moment in itertools.count():
        monkeypatch.setattr(queue, "_jobs", queue.SimpleQueue())
        monkeypatch.setattr(queue, "_unstarted", [None] * numba.config.NUMBA_NUM_THREADS)
        left = moment

        def interrupt(frame, event, argument):
            nonlocal left
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
            return interrupt

        try:
            sys.settrace(interrupt)
            launch(lambda counter: None, 2)
        except KeyboardInterrupt:
            pass
        else:
            break
        finally:
            sys.settrace(None)
        later = threading.Thread(target=launch, args=(lambda counter: None, 2), daemon=True)
        later.start()
        later.join(20)
        assert not later.is_alive(), f"interrupted at event {moment}, the next launch hangs"
    assert moment > 20


# ---------------------------------------------------------------------- what couples rows


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_coupling_sums_over_rows_of_every_kind(threads, dtype, rng):
    """Duals, primals, signed weights, rows whose positives carry none, rows without positives or scale."""
    K, n_fixed, counts = 64, 500, np.array([0, 1, 7, 40, 44, 45, 60, 64, 65, 130, 300, 30, 64, 90, 3, 0, 12])
    n_rows = len(counts)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    indices = np.concatenate([np.sort(rng.permutation(n_fixed)[:n]) for n in counts]).astype(np.int32)
    matrix = CSR(indptr, indices, rng.uniform(0.5, 2.0, len(indices)).astype(dtype), n_fixed)
    row_terms = np.tile([0.5, 0.1, 1.0, 0.2], (n_rows, 1)) * rng.uniform(0.5, 1, (n_rows, 4))
    row_terms[11, :2] = 0.0  # no positive carries weight
    row_terms[12:15, :2] = [-2e-4, -1e-4]  # little enough to stay positive definite
    factors = rng.standard_normal((n_fixed, K)).astype(dtype)
    d, s = rng.uniform(0.5, 2, K).astype(dtype), rng.standard_normal(K).astype(dtype)
    scale, linear, ridge = rng.uniform(0.5, 1, n_rows), rng.standard_normal(n_rows), np.full(n_rows, 0.3)
    scale[1], linear[-1] = 0.0, 0.0
    ones = np.ones(n_fixed)
    side = Side(scale, linear, ridge, ones, ones, row_terms, np.ones((n_fixed, 4)), 0.1, coupled=True)
    plan = Plan(matrix, side, np.dtype(dtype), K)
    weighted = np.isin(np.arange(n_rows), plan.coupled)
    np.testing.assert_array_equal(weighted, (counts > 0) & (scale > 0) & (np.arange(n_rows) != 11))
    result = Result(np.empty((n_rows, K), dtype), np.zeros(n_rows), np.zeros(n_rows, np.int32))
    fixed = FixedSide(factors.reshape(-1), d, s)
    parts = [(work, rows, result) for _, rows, work in plan.coupled_blocks()]
    B, solutions = coupling_sums(parts, fixed, threads)
    info, kp, values = result.info, K, matrix.values
    assert not info.any()
    expected, expected_solutions = np.zeros((kp, kp)), np.zeros(kp)
    for r in np.flatnonzero(weighted):
        F = factors[indices[indptr[r] : indptr[r + 1]]].astype(np.float64)
        v = values[indptr[r] : indptr[r + 1]].astype(np.float64)
        terms = row_terms[r].astype(dtype).astype(np.float64)
        A = np.diag(scale[r] * d + ridge[r]) + F.T @ ((v * terms[0] + terms[1])[:, None] * F)
        b = F.T @ (v * terms[2] + terms[3]) + linear[r] * s
        expected += scale[r] ** 2 * np.linalg.inv(A)
        expected_solutions += scale[r] * np.linalg.solve(A, b)
    tolerance = 200 * np.finfo(dtype).eps
    np.testing.assert_allclose(B, expected, rtol=0, atol=tolerance * np.abs(expected).max())
    np.testing.assert_allclose(
        solutions, expected_solutions, rtol=0, atol=tolerance * np.abs(expected_solutions).max()
    )


# ------------------------------------------------------------------- other processors


_OTHER_PROCESSOR = """
import llvmlite.binding as llvm
real = llvm.get_host_cpu_features
def with_matrix_unit():
    features = real()
    features.update({"amx-bf16": True, "amx-tile": True})
    return features
llvm.get_host_cpu_features = with_matrix_unit
"""
_SMALL_KERNEL = """
import numpy as np
from numba import njit
from rgals.kernels import triangles
c, inverse = 4 * np.eye(8).ravel(), np.empty(8)
assert njit(lambda c, inverse: triangles.cholesky(c, 0, inverse, 0, 1))(c, inverse) == 0
np.testing.assert_array_equal(inverse, 0.5)
"""


def works_as_another_processor(name, features, code, cache):
    """Whether code runs where numba is told to compile for a smaller processor than this one."""
    told = {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features, "NUMBA_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", _OTHER_PROCESSOR + code],
        env={**os.environ, **told},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.few(0)
def test_a_kernel_compiles_for_a_smaller_processor(tmp_path):
    """What numba is told counts, not what this processor has: LLVM ends the process otherwise."""
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("the names are those of x86 processors")
    works_as_another_processor("generic", "", _SMALL_KERNEL, tmp_path)
