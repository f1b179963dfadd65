"""What every backend promises, against the dense float64 oracle: backend x loss x side x precision.

A new backend is a value of the fixture `backend`. What it promises beyond this has a file of its own.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from helpers import LOSSES, SIDES, half_step_of, interactions

from rgals import NumericalError
from rgals.losses import IALS, Coefficients, Loss
from rgals.solvers.cpu import CPUBackend
from rgals.solvers.cuda.backend import CuPyBackend
from rgals.solvers.dense import DenseBackend

# Errors against the oracle, by precision. A device promises less; its stand-ins round as the CPU does.
CPU = {np.float32: 1e-4, np.float64: 1e-9}
DEVICE = {np.float32: 1e-3, np.float64: 1e-8}


@pytest.fixture(params=["cpu", "numpy", pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request, devices):
    """``backend()`` makes one; ``error`` is what it may be wrong by."""

    device = None if request.param == "cpu" else devices(request.param)

    def make():
        return CPUBackend() if device is None else CuPyBackend(device)

    make.error = CPU if device is None else DEVICE
    return make


def assert_equal(step, oracle, dtype, error):
    assert type(step.factors) is np.ndarray
    assert step.factors.dtype == dtype
    scale = np.abs(oracle.factors).max()
    np.testing.assert_allclose(step.factors, oracle.factors, atol=error * scale, rtol=0)
    assert step.decrease == pytest.approx(oracle.decrease, rel=error)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", LOSSES)
def test_half_step_equals_the_oracle(name, side, dtype, backend):
    for valued in (False, True):
        X = interactions(valued=valued)
        rows, fixed, coefficients = half_step_of(X, LOSSES[name], side, 12, dtype)
        assert (rows.row_counts == 0).any() and (rows.row_counts > 12).any()
        oracle = DenseBackend().half_step(rows, fixed.astype(np.float64), coefficients)
        step = backend().half_step(rows, fixed, coefficients)
        assert_equal(step, oracle, dtype, backend.error[dtype])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", LOSSES)
def test_conjugate_gradients_approach_the_half_step(name, side, dtype):
    rows, fixed, coefficients = half_step_of(interactions(valued=True), LOSSES[name], side, 12, dtype)
    if coefficients.coupled:  # the shared term is majorised there: compare without it
        coefficients = dataclasses.replace(coefficients, interaction=0.0)
    oracle = DenseBackend().half_step(rows, fixed.astype(np.float64), coefficients)
    gaps = []
    for steps in (1, 4, 60):
        step = CPUBackend(steps=steps).half_step(rows, fixed, coefficients)
        gaps.append(np.abs(step.factors - oracle.factors).max() / np.abs(oracle.factors).max())
    assert_equal(step, oracle, dtype, CPU[dtype])
    if coefficients.row_terms[:, :2].any() and coefficients.col_terms[:, :2].any():
        assert gaps[0] > gaps[1] > gaps[2]


class MixedWeights(Loss):
    """Half of the items carry no extra weight, one of the others a negative one."""

    name = "MixedWeights"

    def coefficients(self, degrees):
        user = np.repeat(np.ones(len(degrees.user_sum))[:, None], 4, axis=1) * [0.7, 0.0, 0.9, 0.1]
        item = np.ones((len(degrees.item_sum), 4))
        item[::2, :2] = 0.0
        item[7, :2] = -1e-3
        n = len(user)
        return Coefficients(
            g=np.full(n, 0.3), h=np.ones(len(item)), t=np.full(n, -0.2), user_terms=user, item_terms=item
        )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("side", SIDES)
def test_unweighted_and_negative_positives(side, dtype, backend):
    rows, fixed, coefficients = half_step_of(interactions(valued=True), MixedWeights(), side, 20, dtype)
    oracle = DenseBackend().half_step(rows, fixed.astype(np.float64), coefficients)
    error = 1e-9 if dtype == np.float64 else backend.error[dtype]
    assert_equal(backend().half_step(rows, fixed, coefficients), oracle, dtype, error)


class Drawn(Loss):
    """Items share a term, and nothing else pulls those that nobody has."""

    def coefficients(self, degrees):
        n_users, n_items = degrees.shape
        own = np.tile([1.0, 0.0, 1.0, 0.0], (n_users, 1)), np.ones((n_items, 4))
        return Coefficients(np.full(n_users, 0.1), np.ones(n_items), np.zeros(n_users), *own, 0.9 / n_items)


@pytest.mark.parametrize("solve", [DenseBackend, CPUBackend])
def test_items_that_only_the_shared_term_pulls_are_moved(solve):
    """They stayed at 0, and by the oracle counted with systems of their own all the same: objectives rose."""
    X, loss = interactions(), Drawn()
    rows, fixed, side = half_step_of(X, loss, "item", 6)
    found = solve().half_step(rows, fixed, side).factors
    empty = rows.row_counts == 0
    assert empty.any() and found[empty].any()
    slope, usual = (loss.gradient(X, fixed, Q, 0.03, 0.9)[1] for Q in (found, found + 1))
    assert np.abs(slope).max() < 1e-9 * np.abs(usual).max()


@pytest.mark.parametrize("side", SIDES)
def test_a_singular_system_names_its_row(side, backend):
    rows, fixed, coefficients = half_step_of(interactions(), IALS(alpha0=0.0), side, 6, reg=0.0)
    for solve in (backend(), CPUBackend(steps=3)):
        with pytest.raises(NumericalError, match=r"row \d+ .*raise reg"):
            solve.half_step(rows, fixed, coefficients)


@pytest.mark.parametrize("side", SIDES)
def test_rows_without_any_weight_are_zero(side, backend):
    """Without a weight of all pairs nothing is known of an item that nobody has: it ended every fit."""
    rows, fixed, coefficients = half_step_of(interactions(), IALS(alpha0=0.0), side, 6)
    empty = rows.row_counts == 0
    for solve in (backend(), CPUBackend(steps=3)):
        found = solve.half_step(rows, fixed, coefficients).factors
        assert empty.any() and not found[empty].any() and found[~empty].any(axis=1).all()


def test_factors_that_are_not_finite_are_named(backend):
    rows, fixed, coefficients = half_step_of(interactions(), LOSSES["rg2"], "user", 6)
    fixed[7, 2] = np.inf
    with pytest.raises(NumericalError, match="row 7"):
        backend().half_step(rows, fixed, coefficients)
