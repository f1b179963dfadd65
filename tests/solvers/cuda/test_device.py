"""On a GPU itself: what no stand-in can show. Skipped, by name, where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import LOSSES, factors

from rgals import RGALS
from rgals.datasets import make_implicit
from rgals.scoring import topk
from rgals.solvers.cuda.backend import CuPyBackend

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("K", [16, 64, 200, 1024])
@pytest.mark.parametrize("name", ["rg2", "rg2-row-only", "rgx-half", "ials", "wrmf-exponents", "rg2-signed"])
def test_two_fits_are_identical_and_agree_with_the_cpu(cuda, name, K, dtype):
    X = make_implicit(1500, 700, random_state=0).matrix
    params = {"K": K, "loss": LOSSES[name], "n_iter": 3, "dtype": dtype, "random_state": 0}
    first, second = (RGALS(device="cuda", **params).fit(X) for _ in range(2))
    assert first.item_factors_.tobytes() == second.item_factors_.tobytes()
    assert first.user_factors_.tobytes() == second.user_factors_.tobytes()
    np.testing.assert_array_equal(first.transform(X), first.user_factors_)
    cpu = RGALS(**params).fit(X)
    values = [[record["objective"] for record in model.history_] for model in (first, cpu)]
    # Where nothing is left to gain, rounding decides when a fit has settled.
    pairs = np.array(list(zip(*values)))
    np.testing.assert_allclose(*pairs.T, rtol=1e-4 if dtype == "float32" else 1e-8)
    assert (np.diff(values[0]) <= 1e-6 * np.abs(values[0][1:])).all()


def test_long_rows_and_many_systems(cuda):
    X = make_implicit(40_000, 300, random_state=1).matrix  # items with thousands of users
    assert np.diff(X.tocsc().indptr).max() > 2048
    for name in ("rg2", "rgx-half"):
        values = [
            RGALS(K=32, loss=LOSSES[name], n_iter=2, random_state=0, device=device)
            .fit(X)
            .history_[-1]["objective"]
            for device in ("cuda", "cpu")
        ]
        assert values[0] == pytest.approx(values[1], rel=1e-4)


@pytest.mark.parametrize("n", [1, 10, 1000])
def test_top_k_at_full_size_is_exact(cuda, n):
    rng = np.random.default_rng(0)
    queries = rng.integers(-3, 4, (9000, 32)).astype(np.float32)  # whole numbers: no rounding, many ties
    items = rng.integers(-3, 4, (40_000, 32)).astype(np.float32)
    ours, theirs = topk(queries, items, n, device="cuda"), topk(queries, items, n)
    np.testing.assert_array_equal(ours[0], theirs[0])
    np.testing.assert_array_equal(ours[1], theirs[1])


def test_a_budget_of_one_mebibyte_is_enough(cuda):
    X = make_implicit(3000, 900, random_state=0).matrix
    whole_room = cuda.room
    from rgals.losses import Degrees
    from rgals.matrix.validate import as_csr

    rows = as_csr(X)
    side = LOSSES["rg2"].coefficients(Degrees.of(rows)).user_side(rows, 0.05, 1.0)
    fixed = factors(rows.n_cols, 64, np.float32)
    whole = CuPyBackend(cuda).half_step(rows, fixed, side).factors
    cuda.room = 1 << 20
    ours = CuPyBackend(cuda).half_step(rows, fixed, side).factors
    cuda.room = whole_room
    np.testing.assert_allclose(ours, whole, atol=1e-4 * np.abs(whole).max())
