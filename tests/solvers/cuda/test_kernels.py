"""The CUDA kernels compile, and the emulated source agrees with numpy on awkward shapes."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pytest
from solvers.cuda import numpy_kernels
from solvers.cuda.emulator import COMPILER, EmulatedModule, signatures
from solvers.cuda.fake_cupy import FakeArray
from solvers.cuda.numpy_kernels import NumpyModule

from rgals.solvers.cuda.device import SOURCES, kernel_options, kernel_source

needs_compiler = pytest.mark.skipif(
    COMPILER is None, reason="no C++ compiler (g++ or clang++) for the emulator"
)
DTYPES = (np.float32, np.float64)
KERNELS = {
    "spmm", "segment_add", "gather", "diagonal", "lower_solve", "column_sums", "pcg", "mask", "select_best"
}  # fmt: skip


def compile_with_nvrtc(source, options):
    """Messages of CuPy's NVRTC where it refuses, else None; skips the test where there is none."""
    nvrtc = pytest.importorskip("cupy.cuda.nvrtc", reason="neither nvcc nor CuPy's NVRTC")
    try:
        program = nvrtc.createProgram(source, "kernels.cu", (), ())
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"neither nvcc nor CuPy's NVRTC: {str(error).splitlines()[0]}")
    try:
        nvrtc.compileProgram(program, (*options, "-arch=sm_90"))
    except nvrtc.NVRTCError:
        return nvrtc.getProgramLog(program)
    return None


#: Groups of kernels, precisions and numbers of factors: those that every run compiles, and others.
COMPILED = [("topk", np.float32, 1), ("rows", np.float32, 7), ("rows", np.float64, 1024)]
COMPILED_TOO = [("topk", np.float64, 1), ("rows", np.float32, 128), ("rows", np.float64, 64)]


@pytest.mark.parametrize(("group", "dtype", "k"), COMPILED)
@pytest.mark.few(1)
def test_the_kernels_compile_for_a_gpu(group, dtype, k, tmp_path):
    compile_for_a_gpu(group, dtype, k, tmp_path)


def compile_for_a_gpu(group, dtype, k, tmp_path):
    options = kernel_options(np.dtype(dtype), k)
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        errors = compile_with_nvrtc(kernel_source(group), options)
        assert errors is None, errors
        return
    source = tmp_path / "kernels.cu"
    source.write_text(kernel_source(group))
    command = [nvcc, "-arch=sm_90", "-cubin", "-Werror", "all-warnings", *options]
    done = subprocess.run(
        [*command, "-o", tmp_path / "kernels.cubin", source], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_every_kernel_has_a_numpy_twin():
    found = [name for group in SOURCES for name in signatures(kernel_source(group), np.dtype(np.float32))]
    assert set(found) == KERNELS
    assert all(callable(getattr(numpy_kernels, name)) for name in found)


class Both:
    """The same launch on the emulator and in numpy, each on copies of the arguments."""

    def __init__(self, dtype, k, group="rows"):
        options = kernel_options(np.dtype(dtype), k)
        self.modules = [
            module(code=kernel_source(group), options=options) for module in (EmulatedModule, NumpyModule)
        ]

    def __call__(self, name, blocks, threads, *args):
        results = []
        for module in self.modules:
            own = tuple(a.copy().view(FakeArray) if isinstance(a, np.ndarray) else a for a in args)
            module.get_function(name)((blocks,), threads, own)
            results.append([np.asarray(a).view(np.ndarray) for a in own])
        return results


def close(ours, theirs, dtype, scale=None):
    scale = np.nanmax(np.abs(theirs[np.isfinite(theirs)]), initial=1.0) if scale is None else scale
    tolerance = (2e-5 if dtype == np.float32 else 1e-12) * scale
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance)


def problem(dtype, k, *, valued, columns, seed=0, n_rows=9, n_fixed=300):
    """Rows of 0, 1, 31, 32, 33 and more positives, with weights of both signs and zero."""
    rng = np.random.default_rng(seed)
    counts = np.array([0, 1, 5, 31, 32, 33, 70, 200, 0])[:n_rows]
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    indices = np.concatenate([np.sort(rng.choice(n_fixed, n, replace=False)) for n in counts]).astype(
        np.int32
    )
    values = rng.uniform(0.5, 3, len(indices)).astype(dtype) if valued else np.zeros(1, dtype)
    row_terms = rng.uniform(0.1, 1, (n_rows, 4)).astype(dtype)
    row_terms[4, :2] = 0
    col_terms = rng.uniform(0.1, 1, (n_fixed, 4)).astype(dtype) if columns else np.zeros((1, 4), dtype)
    if columns:
        col_terms[::3, :2] = 0
        col_terms[1::5, :2] *= -0.01
    factors = rng.standard_normal((n_fixed, k)).astype(dtype)
    flags = (1 if valued else 0) | (2 if columns else 0)
    return counts, indptr, indices, values, row_terms, col_terms, factors, flags


@needs_compiler
@pytest.mark.parametrize(("columns", "valued"), [(False, False), (True, True)], ids=["binary", "valued"])
@pytest.mark.parametrize("k", [7, 64, 128, 160])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.few(1)
def test_sums_and_packed_rows(dtype, k, columns, valued):
    both = Both(dtype, k)
    counts, indptr, indices, values, row_terms, col_terms, factors, flags = problem(
        dtype, k, valued=valued, columns=columns
    )
    row = np.array([1, 2, 3, 4, 5, 6, 7, 7, 0], np.int32)
    begin = indptr[row] + np.array([0, 0, 0, 0, 0, 0, 0, 128, 0])
    count = np.array([1, 5, 31, 32, 33, 70, 128, 72, 0], np.int32)
    slot = np.array([-1, -1, -1, -1, -1, -1, 0, 1, -1], np.int32)
    out, partial = np.full((9, k), 3, dtype), np.full((2, k), 4, dtype)
    for only in (0, 4):
        ours, theirs = both(
            "spmm", 2, (256,), np.int64(9), row, begin, count, slot, indices, values, factors, row_terms,
            col_terms, np.int32(flags | only), out, partial,
        )  # fmt: skip
        close(ours[-2], theirs[-2], dtype)
        close(ours[-1], theirs[-1], dtype)
        assert (ours[-2][8] == 3).all()  # a row that nobody asked for
    rng = np.random.default_rng(1)
    inv_root = rng.uniform(0.5, 2, (9, k)).astype(dtype)
    local = np.arange(9, dtype=np.int32)
    x = np.full((9, 130, k), np.nan, dtype)
    for signed in (0, 8):
        ours, theirs = both(
            "gather", -(-9 * 130 // 8), (256,), np.int64(9 * 130), np.int32(130), row, local, begin, count,
            indices, values, factors, row_terms, col_terms, np.int32(flags | signed), inv_root, x,
            np.full((9, 130), np.nan, dtype), x,
        )  # fmt: skip
        for a, b in zip(ours[-3 : (None if signed else -1)], theirs[-3:]):
            assert np.isfinite(a).all()
            close(a, b, dtype)


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (5, 7), (32, 64), (33, 33), (100, 64), (64, 128)])
@pytest.mark.few(1)
def test_triangular_solves(n, k, dtype):
    rng = np.random.default_rng(0)
    a = rng.standard_normal((3, n, n)) / np.sqrt(n)
    lower = np.linalg.cholesky(a @ a.swapaxes(1, 2) + np.eye(n)).astype(dtype)
    lower += np.triu(np.full((n, n), 1e6, dtype), 1)  # whatever is above the diagonal must not matter
    x = rng.standard_normal((3, n, k)).astype(dtype)
    ours, theirs = Both(dtype, k)("lower_solve", 3 * -(-k // 32), (32, 8), np.int32(n), lower, x)
    close(ours[-1], theirs[-1], dtype)


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
def test_segments_diagonals_and_column_sums(dtype):
    rng = np.random.default_rng(0)
    k = 33
    both = Both(dtype, k)
    parts, sums = rng.standard_normal((7, k, 3)).astype(dtype), rng.standard_normal((4, k, 3)).astype(dtype)
    target, first, count = (np.array(a, np.int32) for a in ([2, 0, 3], [0, 3, 4], [3, 1, 3]))
    ours, theirs = both(
        "segment_add", 2, (256,), np.int64(3 * k * 3), np.int64(k * 3), target, first, count, parts, sums
    )
    close(ours[-1], theirs[-1], dtype)

    rows = np.array([4, 0, 2, 1], np.int32)
    indptr = np.array([0, 0, 2, 2, 3, 3], np.int64)
    scale, linear = rng.uniform(0.5, 1, 5), np.array([0.0, 0.3, -0.2, 1.0, 0.0])
    ridge = np.array([0.0, 0.1, -100.0, 0.1, 0.1])
    d, s = rng.uniform(0, 2, k).astype(dtype), rng.standard_normal(k).astype(dtype)
    ours, theirs = both(
        "diagonal", 1, (256,), np.int64(4), rows, indptr, scale, linear, ridge, d, s,
        rng.standard_normal((5, k)).astype(dtype), np.zeros(5), np.zeros(5, np.int32),
    )  # fmt: skip
    for a, b in zip(ours[-3:], theirs[-3:]):
        close(a, b, dtype)
    assert ours[-1].tolist() == [0, 0, -1, 0, 0]
    assert (ours[-3][[0, 4]] == 0).all()

    f = rng.standard_normal((1000, k)).astype(dtype)
    ours, theirs = both(
        "column_sums", 15 * 2, (32, 8), np.int64(1000), np.int64(67), f, rng.uniform(0, 1, 1000),
        rng.standard_normal(1000), np.full((15, 3, k), np.nan),
    )  # fmt: skip
    close(ours[-1], theirs[-1], np.float64)


@needs_compiler
@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("k", [1, 33, 64, 128, 600])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.few(2)
def test_conjugate_gradients(dtype, k, columns):
    rng = np.random.default_rng(0)
    both = Both(dtype, k)
    counts, indptr, indices, values, row_terms, col_terms, factors, flags = problem(
        dtype, k, valued=True, columns=columns
    )
    d, s = rng.uniform(20, 40, k).astype(dtype), rng.standard_normal(k).astype(dtype)
    linear = np.where(counts > 0, 0.5, 0.0)
    linear[8] = 0.7  # no positives, and yet something pulls
    ridge = rng.uniform(0.5, 1, 9)
    ridge[2] = -1e6
    threads = 128 if k * np.dtype(dtype).itemsize > 4096 else 256
    ours, theirs = both(
        "pcg", 9, (threads,), np.argsort(-counts, kind="stable").astype(np.int32), indptr, indices, values,
        factors, row_terms, col_terms, np.int32(flags), d, s, rng.uniform(0.5, 1, 9), linear, ridge,
        np.int32(3), rng.standard_normal((9, k)).astype(dtype), np.zeros(9), np.zeros(9, np.int32),
    )  # fmt: skip
    for a, b in zip(ours[-3:], theirs[-3:]):
        close(a, b, dtype)
    assert ours[-1].tolist() == [0, 0, -1, 0, 0, 0, 0, 0, 0]


@needs_compiler
@pytest.mark.parametrize("n", [1, 10, 100, 1024])
@pytest.mark.parametrize("dtype", DTYPES)
def test_selection_with_ties_nan_and_infinities(dtype, n):
    rng = np.random.default_rng(n)
    both = Both(dtype, 1, "topk")
    best, ids = np.full((6, n), -np.inf, dtype), np.full((6, n), -1, np.int32)
    names = np.sort(rng.choice(9000, 4100, replace=False)).astype(np.int32)
    scale = rng.choice([1.0, 0.5, np.nan], 4100, p=[0.5, 0.4, 0.1]).astype(dtype)
    for first, width in ((0, 1500), (1500, 2600)):
        scores = rng.integers(-40, 40, (6, width)).astype(dtype)  # many ties
        scores[1] = -np.inf
        scores[2, ::2] = np.nan
        scores[3, 5], scores[3, 9] = np.inf, -0.0
        scores[4] = np.sort(scores[4])  # every score enters: the list overflows often
        lists = [
            np.sort(rng.choice(4100, m, replace=False)).astype(np.int32) for m in (0, 1, 40, 300, 0, 4100)
        ]
        indptr = np.concatenate([[0], np.cumsum([len(a) for a in lists])]).astype(np.int64)
        ours, theirs = both(
            "mask",
            1,
            (256,),
            np.int64(6),
            np.int32(first),
            np.int32(width),
            indptr,
            np.concatenate(lists),
            scores,
        )
        np.testing.assert_array_equal(ours[-1], theirs[-1])
        scores = ours[-1]
        for has_scale, has_names in ((0, 0), (1, 1)):
            ours, theirs = both(
                "select_best", 6, (256,), np.int32(width), np.int32(n), np.int32(first), scores, scale,
                np.int32(has_scale), names, np.int32(has_names), best, ids,
            )  # fmt: skip
            np.testing.assert_array_equal(ours[-2], theirs[-2])
            np.testing.assert_array_equal(ours[-1], theirs[-1])
        best, ids = ours[-2], ours[-1]  # the next tile goes on from here
    assert (ids[[0, 3, 4]] >= 0).any() and (ids[5] == -1).all()


@needs_compiler
def test_the_emulator_sees_barriers_that_not_all_threads_reach():
    code = """
extern "C" __global__ void half_waits(int n, int *out) {
    if (threadIdx.x < 40) { __syncthreads(); __shfl_sync(0xffffffffu, n, 0); }
    else { __shfl_sync(0xffffffffu, n, 0); __syncthreads(); }
}
extern "C" __global__ void lane_left(int n, int *out) {
    if (threadIdx.x == 3) return;
    out[threadIdx.x] = __shfl_sync(0xffffffffu, n, 0);
}
extern "C" __global__ void reversed(int n, int *out) {
    __shared__ int row[64];
    row[threadIdx.x] = threadIdx.x + n;
    __syncthreads();
    out[threadIdx.x] = row[63 - threadIdx.x];
}
"""
    module = EmulatedModule(code=code, options=("-DREAL=float",))
    out = np.zeros(64, np.int32)
    with pytest.raises(AssertionError, match="different barriers"):
        module.get_function("half_waits")((1,), (64,), (np.int32(1), out))
    with pytest.raises(AssertionError, match="lanes have returned"):
        module.get_function("lane_left")((1,), (64,), (np.int32(1), out))
    with pytest.raises(AssertionError, match="int64, the kernel takes int32"):
        module.get_function("reversed")((1,), (64,), (np.int64(5), out))
    module.get_function("reversed")((2,), (64,), (np.int32(5), out))
    np.testing.assert_array_equal(out, np.arange(64)[::-1] + 5)
