"""What the matrix unit computes, on it and without it: parts of numbers, rough Gramians, refined rows."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import LOSSES, factors, half_steps, rows_of_lengths
from numba import njit

from rgals import NumericalError
from rgals.kernels import amx, gram, parts, refine, rough, rows
from rgals.kernels.parts import GROUP, SIDE, SLOT, TILE
from rgals.kernels.triangles import triangle
from rgals.losses import IALS, Degrees
from rgals.matrix.validate import as_csr
from rgals.runtime.aligned import empty
from rgals.solvers.cpu import CPUBackend
from rgals.solvers.dense import DenseBackend

#: Whether tiles are multiplied on the unit: never where there is none.
ON_UNIT = [True, False] if amx.COMPILED else [False]
DENIED = amx.COMPILED and not amx.ready()  # compiled code would use instructions that it may not use
pytestmark = pytest.mark.skipif(DENIED, reason="this process may not use the processor's matrix unit")


@pytest.fixture
def unit(monkeypatch):
    """The paths of the matrix unit; on processors without it, in vector code."""
    monkeypatch.setattr(amx, "ready", lambda: True)


def memory(n, fill=0.0):
    array = empty((n,), np.float32)
    array[:] = fill
    return array


def compiled_products(on_unit, monkeypatch):
    """`parts` as functions, compiled for the unit or for vector units."""
    monkeypatch.setattr(amx, "COMPILED", on_unit)

    @njit
    def products(c, d, left, right, stride, n_groups, n_parts, whole):
        nothing = np.zeros(1, np.int64)
        if on_unit:
            amx.configure()
        if whole:
            parts.square(
                c, 0, d, 0, left, 0, right, 0, stride, n_groups, n_parts, left, 0, nothing, 0, 0, 0, 0, 0
            )
        else:
            parts.diagonal(
                c, 0, d, 0, left, 0, right, 0, stride, n_groups, n_parts, left, 0, nothing, 0, 0, 0, 0, 0
            )
        if on_unit:
            amx.release()

    return products


@njit
def pack_all(left, right, A, B, indices, roots, w, rhs, n_groups, stride, n_parts):
    """Left tiles of two blocks of rows of A, right tiles of two blocks of columns of B."""
    width, columns = A.shape[1], B.shape[1]
    ones = np.ones(SIDE, A.dtype)
    for block in range(2):
        for g in range(n_groups):
            at = block * stride + g * SLOT
            parts.pack_rows(
                left, at, A.reshape(-1), block * SIDE * width + g * GROUP, width, width - g * GROUP, n_parts
            )
            parts.pack(
                right, at, rhs, block * SIDE, B.reshape(-1), block * SIDE, ones, 0, roots, g * GROUP, w,
                g * GROUP, indices, g * GROUP, columns, n_parts,
            )  # fmt: skip


def tiles_of(A, B, n_parts):
    """Tiles of ``A B`` for A of 32 rows and B of 32 columns, and what `parts.pack` sums on its way."""
    n_groups = -(-A.shape[1] // GROUP)
    stride = n_groups * SLOT
    left, right, rhs = memory(2 * stride), memory(2 * stride), memory(2 * SIDE)
    by_turns = np.arange(n_groups * GROUP).reshape(-1, 2, SIDE).transpose(0, 2, 1).reshape(-1)
    padded = np.zeros((n_groups * GROUP, B.shape[1]), np.float32)
    padded[: len(B)] = B
    w = np.linspace(-1, 1, len(padded)).astype(np.float32)
    ones = np.ones(len(padded), np.float32)
    pack_all(left, right, A, padded, by_turns, ones, w, rhs, n_groups, stride, n_parts)
    assert np.allclose(rhs, w[np.argsort(by_turns)] @ padded, atol=1e-4 * np.abs(padded).sum(axis=0).max())
    return left, right, stride, n_groups


def unfold(c, d):
    """The 2 x 2 tiles as a matrix."""
    return np.block([[x[at : at + TILE].reshape(SIDE, SIDE) for x in (c, d)] for at in (0, TILE)])


@pytest.mark.parametrize("on_unit", ON_UNIT)
@pytest.mark.parametrize("n_parts", [1, 2, 3])
@pytest.mark.parametrize("depth", [16, 32, 48, 160])
def test_products_of_parts_are_as_exact_as_their_number_says(depth, n_parts, on_unit, monkeypatch, rng):
    products = compiled_products(on_unit, monkeypatch)
    A = np.ascontiguousarray(
        rng.standard_normal((32, depth)) * 10.0 ** rng.integers(-9, 9, (32, 1)), np.float32
    )
    B = np.ascontiguousarray(rng.standard_normal((depth, 32)) * 10.0 ** rng.integers(-9, 9, 32), np.float32)
    left, right, stride, n_groups = tiles_of(A, B, n_parts)
    c, d = memory(2 * TILE), memory(2 * TILE)
    products(c, d, left, right, stride, n_groups, n_parts, True)
    exact = A.astype(float) @ B
    size = np.abs(A).astype(float) @ np.abs(B)
    error = np.abs(unfold(c, d) - exact) / size
    bound = {1: 2.0**-6.9, 2: 2.0**-14, 3: 2.0**-20}[n_parts]
    assert error.max() < bound
    if n_parts < 3:
        assert error.max() > {1: 2.0**-13, 2: 2.0**-20}[n_parts], "fewer parts must be rougher"
    # It adds to what is there, and `diagonal` leaves the tile below the diagonal alone.
    before = unfold(c, d)
    products(c, d, left, right, stride, n_groups, n_parts, False)
    assert (np.abs(unfold(c, d) - 2 * exact) / size)[:, SIDE:].max() < 2 * bound
    np.testing.assert_array_equal(unfold(c, d)[SIDE:, :SIDE], before[SIDE:, :SIDE])


@pytest.mark.parametrize("on_unit", ON_UNIT)
def test_three_parts_times_the_identity_round_nothing(on_unit, monkeypatch, rng):
    products = compiled_products(on_unit, monkeypatch)
    A = rng.standard_normal((32, 32)).astype(np.float32)
    for left, right in ((A, np.eye(32, dtype=np.float32)), (np.eye(32, dtype=np.float32), A)):
        c, d = memory(2 * TILE), memory(2 * TILE)
        left_tiles, right_tiles, stride, n_groups = tiles_of(left, right, 3)
        products(c, d, left_tiles, right_tiles, stride, n_groups, 3, True)
        np.testing.assert_array_equal(unfold(c, d), A)


@njit
def run_gram(c, tiles, F, cols, roots, w, scale, rhs, n, n_parts, indices, unit):
    if unit:
        amx.configure()
    rough.gram_add(
        c, tiles, F.reshape(-1), cols, roots, w, scale, rhs, F.shape[1], n, n_parts, indices, 0, len(indices)
    )
    if unit:
        amx.release()


@njit
def run_rows_gram(c, tiles, X, n_parts, indices, unit):
    if unit:
        amx.configure()
    rough.rows_gram_add(
        c, tiles, X.reshape(-1), X.shape[1], len(X) // SIDE, n_parts, X.reshape(-1), indices, 0, len(indices)
    )
    if unit:
        amx.release()


def upper(c, n_blocks):
    """The upper triangle of a packed triangle, as a matrix."""
    full = np.zeros((n_blocks * SIDE, n_blocks * SIDE))
    for j in range(n_blocks):
        at, height = triangle(SIDE, j), (j + 1) * SIDE
        full[:height, j * SIDE : height] = c[at : at + height * SIDE].reshape(height, SIDE)
    return np.triu(full)


@pytest.mark.parametrize("n_parts", [1, 2])
@pytest.mark.parametrize("K", [32, 48, 64, 144])
def test_rough_gramians_of_gathered_and_of_plain_rows(K, n_parts, rng):
    F = rng.standard_normal((90, K)).astype(np.float32)
    scale = rng.uniform(0.5, 2, K).astype(np.float32)
    tolerance = {1: 2.0**-6.9, 2: 2.0**-14}[n_parts]
    n_blocks = K // SIDE
    for n in (1, 31, 32, 33, 64):
        cols = rng.choice(90, 64, replace=False).astype(np.int32)
        roots, w = (np.zeros(64, np.float32) for _ in range(2))
        roots[:n], w[:n] = rng.uniform(0.1, 2, n), rng.standard_normal(n)
        c, rhs = memory(triangle(SIDE, n_blocks + 1), 1.0), memory(K)
        run_gram(
            c, memory(rough.memory(n_blocks)), F, cols, roots, w, scale, rhs, n, n_parts, cols, amx.ready()
        )
        X = (F[cols] * scale * roots[:, None]).astype(np.float64)[:n]
        size = tolerance * np.outer(*[np.linalg.norm(X, axis=0)] * 2) + 1e-6  # c was 1
        assert (np.abs(upper(c, n_blocks) - np.triu(X.T @ X + 1.0)) < size).all()
        np.testing.assert_allclose(rhs, X.T @ w[:n], atol=1e-5 * np.abs(X).sum(axis=0).max())
    for n_panels in (1, 2, 3):
        X = rng.standard_normal((n_panels * SIDE, K)).astype(np.float32)
        c = memory(triangle(SIDE, n_panels + 1))
        run_rows_gram(c, memory(rough.memory(n_panels)), X, n_parts, np.arange(9), amx.ready())
        X = X.astype(np.float64)
        bound = np.outer(*[np.linalg.norm(X, axis=1)] * 2)
        assert np.abs((upper(c, n_panels) - np.triu(X @ X.T)) / bound).max() < tolerance


#: `rows.solve` from float32 Gramians, and from rough ones.
PATHS = ({"rough": False, "iterate": False}, {"rough": True, "iterate": False})


def refined_rows(K, valued):
    """Rows of lengths around what decides about chunks and groups."""
    at = (refine.FROM, K - 16, K, refine.CHUNK, refine.CHUNK + GROUP, 2 * refine.CHUNK)
    lengths = [0, 1, 30, 200, 4 * K + 150, *(max(n + d, 0) for n in at for d in (-1, 0, 1))]
    return rows_of_lengths(lengths, 4 * K + 150, valued)


@pytest.mark.parametrize("K, valued", [(32, False), (40, True), (64, False), (130, True)])
@pytest.mark.parametrize("name", LOSSES)
def test_refined_rows_are_exact(name, K, valued, monkeypatch):
    X = refined_rows(K, valued)
    for side, matrix in (("user", X), ("item", sp.csr_array(X.T))):
        plain, refined, oracle = half_steps(matrix, LOSSES[name], side, K, monkeypatch, PATHS)
        size = np.abs(oracle).max()
        assert np.abs(refined - oracle).max() < 1e-4 * size
        assert np.abs(refined - oracle).max() < 4 * np.abs(plain - oracle).max() + 1e-6 * size


def test_refined_rows_are_not_those_of_the_other_path(monkeypatch):
    """That the tests above test something: the two paths round differently."""
    plain, refined, _ = half_steps(refined_rows(64, False), IALS(0.2), "user", 64, monkeypatch, PATHS)
    assert (plain != refined).any(axis=1).sum() > 10


@pytest.mark.parametrize("alpha0", [1e-2, 1e-4, 1e-7])
def test_badly_conditioned_rows_are_refined_or_given_up(alpha0, monkeypatch):
    """Little weight on all pairs and a tiny ridge: the condition grows to that of the positives alone."""
    X = refined_rows(64, False)
    plain, refined, oracle = half_steps(X, IALS(alpha0), "user", 64, monkeypatch, PATHS, reg=1e-6, nu=0.0)
    scores = factors(X.shape[1], 64, np.float32, seed=4).astype(np.float64).T
    error, size = np.abs((plain - oracle) @ scores).max(), np.abs(oracle @ scores).max()
    assert np.abs((refined - oracle) @ scores).max() < 4 * error + 1e-5 * size


def test_a_factor_that_is_too_rough_leaves_the_row_to_the_other_path(monkeypatch):
    """Factors of rank 9, weights of 2e5 over those of all pairs: rough factors lose what remains."""
    matrix = as_csr(refined_rows(64, False), dtype=np.float32)
    rng = np.random.default_rng(0)
    fixed = (rng.standard_normal((matrix.n_cols, 9)) @ rng.standard_normal((9, 64))).astype(np.float32)
    side = IALS(5e-6).coefficients(Degrees.of(matrix)).user_side(matrix, 1e-3, 0.0)
    solve, found = rows.solve, []
    for path in PATHS:
        monkeypatch.setattr(rows, "solve", functools.partial(solve, **path))
        found.append(CPUBackend().half_step(matrix, fixed, side).factors)
    same = (found[0] == found[1]).all(axis=1)
    assert same[np.diff(matrix.indptr) >= refine.FROM].any(), "some long rows are given up"
    oracle = DenseBackend().half_step(matrix, fixed.astype(np.float64), side).factors @ fixed.T
    errors = [np.abs(x @ fixed.T - oracle).max() for x in found]
    assert errors[1] < 4 * errors[0] + 1e-5 * np.abs(oracle).max()


def test_a_singular_system_names_its_row_on_this_path_too(monkeypatch):
    matrix = as_csr(refined_rows(64, False), dtype=np.float32)
    fixed = factors(matrix.n_cols, 64, np.float32)
    fixed[:, 1] = fixed[:, 0]
    side = IALS(0.0).coefficients(Degrees.of(matrix)).user_side(matrix, 0.0, 0.0)
    monkeypatch.setattr(rows, "solve", functools.partial(rows.solve, **PATHS[1]))
    with pytest.raises(NumericalError, match="row"):
        CPUBackend().half_step(matrix, fixed, side)


def test_factors_that_are_not_finite_are_named_on_this_path_too(monkeypatch):
    matrix = as_csr(refined_rows(64, False), dtype=np.float32)
    fixed = factors(matrix.n_cols, 64, np.float32)
    fixed[7, 3] = np.inf
    side = IALS(0.2).coefficients(Degrees.of(matrix)).user_side(matrix, 0.1, 0.0)
    monkeypatch.setattr(rows, "solve", functools.partial(rows.solve, **PATHS[1]))
    with pytest.raises(NumericalError, match="7"):
        CPUBackend().half_step(matrix, fixed, side)


def test_threads_change_no_byte_of_refined_rows(monkeypatch):
    matrix = as_csr(refined_rows(64, True), dtype=np.float32)
    fixed = factors(matrix.n_cols, 64, np.float32)
    side = LOSSES["rg2"].coefficients(Degrees.of(matrix)).user_side(matrix, 0.1, 1.0)
    monkeypatch.setattr(rows, "solve", functools.partial(rows.solve, **PATHS[1]))
    found = [CPUBackend(n_jobs=n).half_step(matrix, fixed, side).factors for n in (1, 2, 3)]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.parametrize("shape", [(1, 128), (257, 130), (300, 160), (128, 272)])
def test_products_of_tables_on_the_unit(shape, unit, rng):
    n, k = shape
    F = rng.standard_normal(shape).astype(np.float32)
    full = rng.standard_normal((k, k))
    weight, linear = rng.uniform(0, 2, n), rng.standard_normal(n)
    for matrix in (full, np.triu(full), np.tril(full), np.triu(full, k // 2), 0 * full):
        exact = F.astype(float) @ matrix.astype(np.float32)
        out = np.empty_like(F)
        found = gram.multiply(F, matrix, out, 2, weight, linear)
        size = np.linalg.norm(F, axis=1)[:, None] * np.linalg.norm(matrix, axis=0) + 1e-30
        assert (np.abs(out - exact) / size).max() < 1e-6
        again = F.copy()
        same = gram.multiply(again, matrix, again, 1, weight, linear)
        np.testing.assert_array_equal(out, again, "in place or not, whatever the number of threads")
        for a, b, right in zip(found, same, (weight @ exact**2, weight @ exact, linear @ exact), strict=True):
            np.testing.assert_array_equal(a, b)
            np.testing.assert_allclose(a, right, atol=1e-4 * (1 + np.abs(right).max()))


def test_the_environment_turns_it_off():
    script = "from rgals.kernels import amx; print(amx.ready())"
    for value, answer in (("0", False), ("1", amx.ready())):
        found = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "RGALS_AMX": value},
            capture_output=True,
            text=True,
            check=True,
        )
        assert found.stdout.strip() == str(answer)
