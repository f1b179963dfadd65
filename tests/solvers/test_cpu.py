"""What the CPU promises beyond the contract: minimisers on every path, any basis; loop and closed form."""

from __future__ import annotations

import dataclasses
import warnings
from inspect import signature

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import LOSSES, SIDES, als, factors, half_step_of, interactions
from scipy.sparse.linalg import eigsh

from rgals import RG2, RGALS, RGX, NumericalError, ParameterError
from rgals.datasets import make_implicit
from rgals.losses import IALS, Coefficients, Degrees, Loss
from rgals.matrix.validate import as_csr
from rgals.runtime.errors import PrecisionWarning
from rgals.solvers import plan
from rgals.solvers.als import Problem
from rgals.solvers.closed_form import item_factors
from rgals.solvers.cpu import CPUBackend
from rgals.solvers.dense import DenseBackend

REG, NU = 0.03, 0.9
DTYPES = {"float32": (np.float32, 1e-4), "float64": (np.float64, 1e-9)}


def setting(loss, side, K, *, valued=False, dtype=np.float64, reg=REG, nu=NU, X=None):
    """The matrix; rows, fixed factors and the side's coefficients of one half-step."""
    X = interactions(valued=valued) if X is None else X
    return X, *half_step_of(X, loss, side, K, dtype, reg=reg, nu=nu)


def gradient(loss, side, X, solved, fixed, reg=REG, nu=NU):
    pair = (solved, fixed) if side == "user" else (fixed, solved)
    return loss.gradient(X, *pair, reg, nu)[0 if side == "user" else 1]


def objective(loss, side, X, solved, fixed):
    pair = (solved, fixed) if side == "user" else (fixed, solved)
    return loss.objective(X, *pair, REG, NU)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", LOSSES)
def test_gradient_vanishes_after_a_half_step(name, side):
    loss = LOSSES[name]
    X, rows, fixed, coefficients = setting(loss, side, 12, valued=True)
    before = gradient(loss, side, X, factors(rows.n_rows, 12, seed=8), fixed)
    solved = CPUBackend().half_step(rows, fixed, coefficients).factors
    after = gradient(loss, side, X, solved, fixed)
    assert np.abs(after).max() < 1e-9 * np.abs(before).max()


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", LOSSES)
def test_no_perturbation_lowers_the_objective_after_a_half_step(name, side, amount):
    loss = LOSSES[name]
    X, rows, fixed, coefficients = setting(loss, side, 8)
    solved = CPUBackend().half_step(rows, fixed, coefficients).factors
    best = objective(loss, side, X, solved, fixed)
    rng = np.random.default_rng(0)
    for i in range(amount(20, 256)):
        size = 10.0 ** rng.uniform(-3, 0)
        step = rng.standard_normal(solved.shape) * size
        if i % 2:  # one row alone
            keep = rng.integers(len(solved))
            step[np.arange(len(solved)) != keep] = 0
        assert objective(loss, side, X, solved + step, fixed) >= best - 1e-10 * abs(best)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", LOSSES)
def test_changing_the_basis_keeps_scores_and_lengths(name, side):
    for nu in (0.0, 1.0):
        _, rows, fixed, coefficients = setting(LOSSES[name], side, 12, nu=nu)
        backend = CPUBackend()
        plain = backend.half_step(rows, fixed.copy(), coefficients)
        turned = backend.upload(fixed.copy())
        step = backend.half_step(
            rows, turned, coefficients, rotate=True, out=backend.upload(np.empty_like(plain.factors))
        )
        assert not np.allclose(turned, fixed)
        solved, changed = backend.download(step.factors), backend.download(turned)
        scores, lengths = plain.factors @ fixed.T, (plain.factors**2).sum(1)
        np.testing.assert_allclose(solved @ changed.T, scores, atol=1e-10 * np.abs(scores).max())
        np.testing.assert_allclose((solved**2).sum(1), lengths, rtol=1e-9, atol=1e-12 * lengths.max())
        np.testing.assert_allclose((changed**2).sum(1), (fixed**2).sum(1), rtol=1e-10)
        assert step.decrease == pytest.approx(plain.decrease, rel=1e-10)
        again = backend.half_step(rows, turned, coefficients, rotate=True).factors  # from the basis it is in
        scored = backend.download(again) @ backend.download(turned).T
        np.testing.assert_allclose(scored, scores, atol=1e-10 * np.abs(scores).max())
        weight = np.linspace(1, 2, len(fixed))
        assert backend.ridge(turned, weight) == pytest.approx(weight @ (fixed**2).sum(1), rel=1e-10)


@pytest.mark.parametrize("K, loss", [(128, RG2(0.0)), (128, RG2(0.05)), (128, RGX(0.05)), (64, RG2(0.0))])
def test_the_objective_never_rises_in_float32_where_reg_is_next_to_nothing(K, loss):
    """A triangular basis let it rise by percents of its fall."""
    for shape in ((200, 100), (400, 60)):
        X = make_implicit(*shape, random_state=0).matrix
        model = RGALS(K, loss, reg=1e-7, n_iter=8, init="random", random_state=0).fit(X)
        objectives = np.array([row["objective"] for row in model.history_])
        assert np.diff(objectives).max() <= 1e-6 * abs(objectives[-1])
        assert model.objective(X) == pytest.approx(objectives[-1], rel=1e-5)


def test_factors_whose_squares_are_lost_in_float32_are_no_zeros():
    rows, fixed, side = setting(RG2(0.05), "user", 64, dtype=np.float32, X=sp.csr_array(np.ones((6, 200))))[
        1:
    ]
    tiny = fixed * np.float32(1e-24)
    expected = DenseBackend().half_step(rows, tiny.astype(np.float64), side).factors
    found = CPUBackend().half_step(rows, tiny, side).factors
    np.testing.assert_allclose(found, expected, atol=1e-3 * abs(expected).max())


def test_memory_for_the_result_is_not_read():
    """Rows of scale 0 with weights of their own were added up times 0 as they were found."""
    rows, fixed, side = setting(RGX(0.05, beta=0.9), "item", 6)[1:]
    scale, terms = side.scale.copy(), side.row_terms.copy()
    weighed = np.flatnonzero(rows.row_counts > 2)
    scale[weighed[0]], terms[weighed[1], :2] = 0.0, 0.0
    side = dataclasses.replace(side, scale=scale, row_terms=terms)
    found = [
        CPUBackend().half_step(rows, fixed, side, out=np.full((rows.n_rows, 6), fill))
        for fill in (0.0, np.nan)
    ]
    np.testing.assert_array_equal(found[0].factors, found[1].factors)


@pytest.mark.few(16)
@pytest.mark.parametrize("steps", [None, 2], ids=["exact", "pcg"])
@pytest.mark.parametrize("nu", [0.0, 1.0], ids=["plain", "frequency"])
@pytest.mark.parametrize("name", LOSSES)
def test_bases_that_change_from_half_step_to_half_step_change_no_iterate(name, nu, steps, amount):
    """Against half-steps that turn everything back at once, with factors below, at and above a cache line."""
    loss = LOSSES[name]
    for number, (dtype, tolerance) in enumerate(DTYPES.values()):
        for K in amount([(16,), (5, 33)][number], (5, 16, 33)):
            users = as_csr(interactions(valued=True), dtype=dtype)
            problem = Problem.of(users, loss, loss.coefficients(Degrees.of(users)), REG, nu)
            backend, oracle = CPUBackend(steps=steps), CPUBackend(1, steps=steps)
            user_side = problem.coefficients.user_side(problem.users, REG, nu)
            item_side = problem.coefficients.item_side(problem.items, REG, nu)
            P, Q = factors(users.n_rows, K, dtype), np.empty((users.n_cols, K), dtype)
            seen = []

            def watch(now, seen=seen):
                seen.append((now.user_factors @ now.item_factors.T, now.objective))

            als(problem, P.copy(), backend, n_iter=4, callbacks=[watch])
            for i in range(4):
                Q = oracle.half_step(problem.items, P, item_side, out=Q, warm=i > 0).factors
                penalty = item_side.ridge @ (Q.astype(float) ** 2).sum(1)
                step = oracle.half_step(problem.users, Q, user_side, out=P, warm=True)
                scores = step.factors @ Q.T
                scale = np.abs(scores).max()
                np.testing.assert_allclose(seen[i][0], scores, atol=4 * tolerance * scale)
                stated = problem.constant + penalty - step.decrease
                assert seen[i][1] == pytest.approx(stated, rel=tolerance)


@pytest.mark.parametrize("name", LOSSES)
def test_the_objective_never_rises_and_is_the_stated_one(name):
    loss = LOSSES[name]
    X = interactions(valued=True)
    for dtype, tolerance in ((np.float32, 1e-6), (np.float64, 1e-12)):
        users = as_csr(X, dtype=dtype)
        problem = Problem.of(users, loss, loss.coefficients(Degrees.of(users)), REG, NU)
        seen = []

        def watch(now, seen=seen):
            stated = loss.objective(X, now.user_factors, now.item_factors, REG, NU)
            rel = 1e-5 if now.user_factors.dtype == np.float32 else 1e-10
            assert now.objective == pytest.approx(stated, rel=rel)
            seen.append(now.objective)

        als(problem, factors(X.shape[0], 6, dtype, seed=3), CPUBackend(), n_iter=12, callbacks=[watch])
        steps = np.diff(seen)
        assert len(seen) == 12
        assert steps.min() < 0
        assert (steps <= tolerance * np.abs(seen[1:])).all()


def test_one_step_solves_rows_of_few_positives_exactly():
    K = 136  # with 128 and fewer all rows are iterated
    _, rows, fixed, coefficients = setting(LOSSES["ials"], "user", K, valued=True)
    few = rows.row_counts <= plan.direct_max_length(K)
    assert 0 < few.sum() < len(few)
    step = CPUBackend(steps=1).half_step(rows, fixed, coefficients)
    exact = DenseBackend().half_step(rows, fixed, coefficients)
    np.testing.assert_allclose(step.factors[few], exact.factors[few], rtol=1e-9, atol=1e-12)
    assert np.abs(step.factors[~few] - exact.factors[~few]).max() > 1e-6


def test_conjugate_gradients_start_from_the_current_factors():
    _, rows, fixed, coefficients = setting(LOSSES["ials"], "user", 12)
    exact = CPUBackend().half_step(rows, fixed, coefficients).factors
    near = exact + 1e-3 * factors(*exact.shape, seed=1)
    cold = CPUBackend(steps=2).half_step(rows, fixed, coefficients, out=near.copy()).factors
    warm = CPUBackend(steps=2).half_step(rows, fixed, coefficients, out=near.copy(), warm=True).factors
    assert np.abs(warm - exact).max() < 0.05 * np.abs(cold - exact).max()


@pytest.mark.few(16)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("few", [0, 8])
def test_the_objective_never_rises_with_conjugate_gradients(name, few, monkeypatch):
    # All rows are iterated, or some are solved exactly.
    monkeypatch.setattr(plan, "direct_max_length", lambda kp: few)
    loss = LOSSES[name]
    X = interactions(valued=True)
    users = as_csr(X, dtype=np.float64)
    problem = Problem.of(users, loss, loss.coefficients(Degrees.of(users)), REG, NU)
    values = []

    def watch(now):
        stated = loss.objective(X, now.user_factors, now.item_factors, REG, NU)
        assert now.objective == pytest.approx(stated, rel=1e-10)
        values.append(now.objective)

    als(problem, factors(X.shape[0], 6, seed=3), CPUBackend(steps=1), n_iter=12, callbacks=[watch])
    assert values[-1] < values[0]
    assert (np.diff(values) <= 1e-12 * np.abs(values[1:])).all()


def lengths_around(K):
    """Rows of 0, 1, K-1, K, K+1 and far more than K entries, and where the solver changes its path."""
    rng = np.random.default_rng(1)
    n_cols = 8 * K + 40
    lengths = [0, 1, 2, K - 1, K, K + 1, 2 * K, n_cols, n_cols - 3, 0, 5, K, 1, 3, 4, 8, 16, 17]
    lengths += [33, *(max(K - w + d, 0) for w in (8, 16) for d in (-1, 0, 1))]
    lengths += [
        plan.dual_max_length(plan.padded(K, w), plan.Kinds(w, True, False)) + d
        for w in (8, 16)
        for d in (-1, 0, 1)
    ]
    X = np.zeros((len(lengths), n_cols))
    for row, n in enumerate(lengths):
        X[row, rng.choice(n_cols, n, replace=False)] = rng.integers(1, 4, n)
    return sp.csr_array(X)


@pytest.mark.parametrize("K", [1, 2, 7, 16, 33, 64, 130])
@pytest.mark.parametrize("name", ["rg2", "rgx-half", "ials", "rg2-signed", "wrmf"])
def test_row_lengths_around_the_number_of_factors(name, K):
    X = lengths_around(K)
    for side, matrix in (("user", X), ("item", sp.csr_array(X.T))):
        for dtype, tolerance in DTYPES.values():
            _, rows, fixed, coefficients = setting(LOSSES[name], side, K, dtype=dtype, X=matrix)
            oracle = DenseBackend().half_step(rows, fixed.astype(np.float64), coefficients)
            step = CPUBackend().half_step(rows, fixed, coefficients)
            scale = np.abs(oracle.factors).max()
            np.testing.assert_allclose(step.factors, oracle.factors, atol=tolerance * scale, rtol=0)


class MixedWeights(Loss):
    """A loss of its own: half of the items carry no extra weight at all."""

    name = "MixedWeights"

    def coefficients(self, degrees):
        user = np.repeat(np.ones(len(degrees.user_sum))[:, None], 4, axis=1) * [0.7, 0.0, 0.9, 0.1]
        item = np.ones((len(degrees.item_sum), 4))
        item[::2, :2] = 0.0
        return Coefficients(
            g=np.full(len(user), 0.3),
            h=np.ones(len(item)),
            t=np.full(len(user), -0.2),
            user_terms=user,
            item_terms=item,
        )


@pytest.mark.parametrize("side", SIDES)
def test_a_loss_with_some_unweighted_positives_needs_no_new_kernel(side):
    loss = MixedWeights()
    X, rows, fixed, coefficients = setting(loss, side, 40)
    solved = CPUBackend().half_step(rows, fixed, coefficients).factors
    size = np.abs(gradient(loss, side, X, np.zeros_like(solved), fixed)).max()
    assert np.abs(gradient(loss, side, X, solved, fixed)).max() < 1e-10 * size


@pytest.mark.parametrize("name", ["rg2", "rgx", "ials"])
def test_nearly_singular_gramians_and_tiny_ridges(name):
    rng = np.random.default_rng(0)
    K = 10
    for reg in (1e-2, 1e-5, 1e-8):
        X, rows, fixed, coefficients = setting(LOSSES[name], "user", K, reg=reg)
        fixed = fixed @ rng.standard_normal((K, K))
        fixed[:, -1] = fixed[:, 0] + 1e-4 * fixed[:, -1]
        oracle = DenseBackend().half_step(rows, fixed, coefficients).factors @ fixed.T
        step = CPUBackend().half_step(rows, fixed, coefficients).factors @ fixed.T
        np.testing.assert_allclose(step, oracle, atol=1e-6 * np.abs(oracle).max())
        # In float32 a direction this weak is noise; the objective must not suffer from it.
        fixed = fixed.astype(np.float32)
        best = DenseBackend().half_step(rows, fixed.astype(np.float64), coefficients).factors
        single = CPUBackend().half_step(rows, fixed, coefficients).factors
        loss = LOSSES[name]
        lowest = loss.objective(X, best, fixed, reg, NU)
        drop = loss.objective(X, 0 * best, fixed, reg, NU) - lowest
        assert loss.objective(X, single, fixed, reg, NU) - lowest < 2e-4 * drop


@pytest.mark.parametrize("side", SIDES)
def test_a_singular_system_names_its_row(side):
    _, rows, fixed, coefficients = setting(IALS(alpha0=0.0), side, 6, reg=0.0)
    short = int(np.flatnonzero((rows.row_counts > 0) & (rows.row_counts < 6))[0])
    first = int(np.flatnonzero(rows.row_counts)[0])
    with pytest.raises(NumericalError, match=rf"row {min(short, first)} .*raise reg"):
        CPUBackend().half_step(rows, fixed, coefficients)


def closed_form_value(X, K, reg):
    """Minimum of RG2 with alpha=0 by a dense SVD: an outside check of the loop and of `item_factors`."""
    V = X.toarray()
    M, N = V.shape
    c, D = V.sum(axis=1), V.sum()
    A = np.sqrt(c)[:, None] * (np.divide(V * N, c[:, None], out=np.zeros_like(V), where=c[:, None] > 0) - 1)
    s = np.linalg.svd(A, compute_uv=False)
    ridge = reg * np.sqrt(N * D)
    kept = np.maximum(s[:K] - ridge, 0)
    squares = (s**2).sum() - (s[:K] ** 2).sum() + ((s[:K] - kept) ** 2).sum() + 2 * ridge * kept.sum()
    constant = D / 2 - (A**2).sum() / (2 * N)  # |A|^2 belongs to the square, D/2 to the loss
    return squares / (2 * N) + constant


@pytest.mark.parametrize("loss", [RG2(alpha=0.0), RGX(alpha=0.0)], ids=["rg2", "rgx"])
def test_row_only_losses_reach_the_closed_form_from_every_start(loss, amount):
    X = interactions(70, 40, seed=5)
    K, reg = 6, 0.002
    optimum = closed_form_value(X, K, reg)
    users = as_csr(X, dtype=np.float64)
    problem = Problem.of(users, loss, loss.coefficients(Degrees.of(users)), reg, 1.0)
    values = []
    for seed in range(amount(1, 10)):
        start = factors(X.shape[0], K, seed=seed)
        _, history = als(problem, start, CPUBackend(1), n_iter=4000, tol=1e-14)  # threads cost more than rows
        values.append(history[-1]["objective"])
    np.testing.assert_allclose(values, optimum, rtol=1e-6)
    assert min(values) >= optimum - 1e-9 * abs(optimum)


@pytest.mark.parametrize("valued", [False, True], ids=["binary", "valued"])
@pytest.mark.parametrize("K", [6, 60])
def test_svd_gives_the_global_optimum(valued, K):
    X = interactions(70, 40, valued=valued, seed=5)
    users = as_csr(X, dtype=np.float64)
    reg = 0.002
    loss = RG2(alpha=0.0)
    Q = item_factors(users, K, reg, np.random.default_rng(0), np.dtype(np.float64))
    side = loss.coefficients(Degrees.of(users)).user_side(users, reg, 1.0)
    P = CPUBackend().half_step(users, Q, side).factors
    assert loss.objective(X, P, Q, reg) == pytest.approx(closed_form_value(X, K, reg), rel=1e-10)


@pytest.mark.parametrize("K", [1, 6])
@pytest.mark.parametrize(("n_negatives", "reg"), [(None, 0.0), (200, 0.001)])
def test_rgx_whose_items_have_no_single_minimiser_says_so(K, n_negatives, reg):
    """It was numpy's error of a singular matrix, or with more negatives than items a saddle point."""
    loss = RGX(alpha=0.0, beta=1.0, n_negatives=n_negatives)
    with pytest.raises(NumericalError, match="no single minimiser.*raise reg, or lower beta or n_negatives"):
        RGALS(K, loss, reg=reg, dtype="float64", random_state=0).fit(interactions(70, 40, seed=5))


@pytest.mark.parametrize("what", ["identity", "ones", "blocks", "one user"])
@pytest.mark.parametrize("K", [1, 2, 5, 30])
def test_svd_takes_spectra_of_equal_values(what, K):
    """The Lanczos iteration gave up on these with an error of its own."""
    alone = np.vstack([np.ones((1, 40)), np.zeros((30, 40))])
    blocks = np.kron(np.eye(40), np.ones((6, 5)))
    V = {"identity": np.eye(60), "ones": np.ones((10, 38)), "blocks": blocks, "one user": alone}[what]
    model = RGALS(K, RG2(alpha=0.0), reg=0.001, dtype="float64", solver="svd", random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrecisionWarning)  # of ones nothing is left
        found = model.fit(V).history_[-1]["objective"]
    assert found == pytest.approx(closed_form_value(sp.csr_array(V), K, 0.001), rel=1e-9)


@pytest.mark.skipif("rng" not in signature(eigsh).parameters, reason="this scipy draws from its own state")
@pytest.mark.parametrize("params", [{"solver": "svd"}, {"init": "spectral", "n_iter": 1}])
def test_a_random_state_gives_one_svd(params):
    """Of few different rows the Lanczos iteration went on from other vectors at every call."""
    V = np.kron(np.eye(5), np.ones((40, 20)))
    fits = [RGALS(8, RG2(alpha=0.0), reg=0.001, random_state=0, **params).fit(V) for _ in range(4)]
    assert len({model.item_factors_.tobytes() for model in fits}) == 1


@pytest.mark.parametrize(
    ("loss", "nu"),
    [
        (RG2(alpha=0.1), 1.0),
        (RG2(alpha=0.0, n_negatives=3), 1.0),
        (RG2(alpha=0.0, item_exponent=0.1), 1.0),
        (RG2(alpha=0.0), 0.5),
        (RGX(alpha=0.0, form="gramian"), 1.0),
        (IALS(0.1), 1.0),
    ],
)
def test_the_closed_form_refuses_what_has_none(loss, nu):
    with pytest.raises(ParameterError, match="svd"):
        RGALS(2, loss, reg_exponent=nu, solver="svd").fit(np.eye(3))
