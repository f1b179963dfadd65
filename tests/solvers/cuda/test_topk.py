"""Top-K on a device gives the CPU's lists: filters, ties, missing items, and queries in parts."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import factors, interactions
from solvers.cuda.fake_cupy import FakeArray

from rgals import RGALS, ParameterError
from rgals.runtime.errors import DeviceMemoryError
from rgals.scoring import _topk, topk
from rgals.solvers.cuda.backend import CuPyBackend


@pytest.fixture
def on(monkeypatch, device):
    """`topk` with ``device="cuda"`` on the device under test, some queries at a time."""
    monkeypatch.setattr(_topk, "open_device", lambda name: device)
    monkeypatch.setattr(device, "room", 5 * 300 * 4)
    return lambda *args, **kwargs: topk(*args, device="cuda", **kwargs)


def same(ours, theirs, dtype):
    """Equal lists; where scores are not whole numbers, up to rounding."""
    tolerance = 1e-4 if dtype == np.float32 else 1e-10
    np.testing.assert_allclose(ours[1], theirs[1], rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(ours[0] < 0, theirs[0] < 0)
    assert (ours[0] == theirs[0]).mean() > 0.99
    assert ours[0].dtype == theirs[0].dtype and ours[1].dtype == theirs[1].dtype


@pytest.mark.few(6)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("filters", ["none", "exclude", "items", "candidates", "scale", "all"])
def test_the_lists_are_those_of_the_cpu(on, dtype, filters):
    rng = np.random.default_rng(0)
    queries, items = factors(13, 7, dtype, 1), factors(300, 7, dtype, 2)
    kwargs = {}
    if filters in ("exclude", "all"):
        kwargs["exclude"] = sp.random_array((13, 300), density=0.3, rng=rng, format="csr")
    if filters in ("items", "all"):
        kwargs["exclude_items"] = rng.choice(300, 40, replace=False)
    if filters in ("candidates", "all"):
        kwargs["candidates"] = rng.choice(300, 130, replace=False)
    if filters in ("scale", "all"):
        scale = rng.uniform(0.5, 2, 300)
        scale[::7] = np.nan
        kwargs["item_scale"] = scale
    for n in (1, 10, 100):
        ours, theirs = on(queries, items, n, **kwargs), topk(queries, items, n, **kwargs)
        same(ours, theirs, dtype)
        if filters == "all" and n == 100:
            assert (ours[0] == -1).any()


def test_ties_go_to_the_smaller_id_and_nan_is_absent(on):
    rng = np.random.default_rng(0)
    queries, items = (
        rng.integers(-2, 3, (13, 4)).astype(np.float32),
        rng.integers(-2, 3, (300, 4)).astype(np.float32),
    )
    queries[2], items[5] = np.nan, np.inf
    ours, theirs = on(queries, items, 50), topk(queries, items, 50)
    np.testing.assert_array_equal(ours[0], theirs[0])
    np.testing.assert_array_equal(ours[1], theirs[1])
    assert (ours[0][2] == -1).all()
    assert (np.diff(ours[1][0]) == 0).any()


def test_nothing_to_choose_from(on):
    queries, items = factors(3, 2), factors(5, 2)
    for kwargs in ({"candidates": []}, {"candidates": [2], "exclude_items": [2]}):
        ids, scores = on(queries, items, 4, **kwargs)
        assert (ids == -1).all() and np.isneginf(scores).all()
    ids, scores = on(queries[:0], items, 4)
    assert ids.shape == scores.shape == (0, 4)


def test_candidates_of_each_query(on):
    queries, items = factors(30, 7), factors(45, 7)
    allowed = interactions(30, 45)
    ours, theirs = on(queries, items, 5, candidates=allowed), topk(queries, items, 5, candidates=allowed)
    np.testing.assert_array_equal(ours[0], theirs[0])


def test_lists_that_are_too_long_are_refused(on):
    with pytest.raises(ParameterError, match=r"n=1025 .*at most 1024"):
        on(factors(3, 2), factors(5, 2), 1025)
    assert on(factors(1, 2), factors(5, 2), 1024)[0].shape == (1, 1024)


def test_a_full_device_takes_fewer_queries(monkeypatch, small):
    device = small(20_000)
    monkeypatch.setattr(_topk, "open_device", lambda name: device)
    queries, items = factors(100, 7), factors(300, 7)
    same(topk(queries, items, 10, device="cuda"), topk(queries, items, 10), np.float64)
    assert FakeArray.refused > 1


def test_a_device_that_is_full_says_so_and_what_helps(monkeypatch, small):
    device = small(1000)
    monkeypatch.setattr(_topk, "open_device", lambda name: device)
    for call in (
        lambda: topk(factors(3, 7), factors(300, 7), 10, device="cuda"),
        lambda: CuPyBackend(device).upload(factors(300, 7)),
        lambda: CuPyBackend(device).ridge(factors(300, 7), np.ones(300)),
    ):
        with pytest.raises(DeviceMemoryError, match=r"GiB free \(out of memory.*\); .*device='cpu'"):
            call()


@pytest.mark.few(3)
@pytest.mark.parametrize("solver", ["auto", "svd"])
def test_the_estimator_runs_on_the_device(pretend, device, solver):
    """The whole surface: fit, fold-in, recommendations, neighbours."""
    pretend(device)
    X = interactions(valued=True)
    params = {"K": 6, "solver": solver, "n_iter": 4, "random_state": 0}
    if solver == "svd":
        from rgals import RG2

        params["loss"] = RG2(alpha=0.0)
    ours, theirs = RGALS(device="cuda", **params).fit(X), RGALS(**params).fit(X)
    assert ours.solver_ == theirs.solver_
    for a, b in zip(ours.history_, theirs.history_):
        assert a["objective"] == pytest.approx(b["objective"], rel=1e-4)
    scores = [model.user_factors_ @ model.item_factors_.T for model in (ours, theirs)]
    np.testing.assert_allclose(scores[0], scores[1], atol=2e-2 * np.abs(scores[1]).max())
    np.testing.assert_array_equal(ours.transform(X), ours.user_factors_)
    with pytest.warns(UserWarning, match="no training interactions"):
        ids, best = ours.recommend(np.arange(60), 5)
    with pytest.warns(UserWarning, match="no training interactions"):
        expected = theirs.recommend(np.arange(60), 5)
    assert (ids == expected[0]).mean() > 0.9
    np.testing.assert_allclose(best[ids >= 0], expected[1][ids >= 0], atol=1e-2)
    assert ours.similar_items([0, 1], 3)[0].shape == (2, 3)
    with pytest.warns(UserWarning):
        assert ours.recommend_new(X[:4], 3)[0].shape == (4, 3)
