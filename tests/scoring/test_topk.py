"""Top-K scoring against a dense stable argsort: filters, ties, padding, non-finite scores, threads."""

import numba
import numpy as np
import pytest
import scipy.sparse as sp

from rgals.kernels import topk as kernel
from rgals.runtime.errors import InputTypeError, ParameterError, ShapeError, UnknownIdError
from rgals.scoring import _topk, topk, topk_dense


def oracle(queries, items, n, exclude=None, candidates=None, exclude_items=None, scale=None):
    """Dense scores, filtered items at -inf, a stable sort: equal scores stay in the order of their ids."""
    scores = queries @ items.T
    if scale is not None:
        scores = scores * scale
    scores = np.where(np.isnan(scores), -np.inf, scores)
    if exclude is not None:
        scores[exclude.toarray() != 0] = -np.inf
    if candidates is not None:
        if getattr(candidates, "ndim", 1) == 2:
            scores[candidates.toarray() == 0] = -np.inf
        else:
            scores[:, np.setdiff1d(np.arange(len(items)), candidates)] = -np.inf
    if exclude_items is not None:
        scores[:, exclude_items] = -np.inf
    scores = np.pad(scores, ((0, 0), (0, max(0, n - len(items)))), constant_values=-np.inf)
    ids = np.argsort(-scores, axis=1, kind="stable")[:, :n]
    best = np.take_along_axis(scores, ids, 1)
    return np.where(best > -np.inf, ids, -1), best


def integers(rng, rows, k, dtype=np.float64, high=3):
    """Small integers: sums are exact in any order, and ties are everywhere."""
    return rng.integers(-high, high + 1, (rows, k)).astype(dtype)


def pairs(rng, rows, cols, density):
    return sp.csr_array((rng.random((rows, cols)) < density).astype(np.float32))


def random_case(seed):
    """A problem with any mix of filters, of a size that crosses blocks and tiles or of none at all."""
    rng = np.random.default_rng(seed)
    b = int(rng.choice([0, 1, 2, 5, 130, 600], p=[0.05, 0.3, 0.2, 0.3, 0.1, 0.05]))
    size = int(rng.choice([1, 3, 40, 64, 65, 511, 512, 513, 1300]))
    k = int(rng.choice([1, 2, 3, 8, 33]))
    dtype = rng.choice([np.float32, np.float64])
    n = int(rng.choice([1, 2, 10, 50, size, size + 3]))
    args = {}
    if rng.random() < 0.6:
        args["exclude"] = pairs(rng, b, size, rng.choice([0.01, 0.2, 0.9, 1.0]))
    draw = rng.random()
    if draw < 0.3:
        args["candidates"] = rng.integers(0, size, rng.integers(0, 2 * size + 1))
    elif draw < 0.6:
        args["candidates"] = pairs(rng, b, size, rng.choice([0.0, 0.05, 0.5, 1.0]))
    if rng.random() < 0.4:
        args["exclude_items"] = rng.integers(0, size, rng.integers(0, size + 1))
    return integers(rng, b, k, dtype), integers(rng, size, k, dtype), n, args


def test_random_cases_equal_a_stable_argsort(amount):
    shapes, ties, cases = set(), 0, amount(250, 1000)
    for seed in range(cases):
        queries, items, n, args = random_case(seed)
        ids, scores = topk(queries, items, n, **args)
        want_ids, want_scores = oracle(queries, items, n, **args)
        assert ids.dtype == np.int32 and scores.dtype == queries.dtype, seed
        np.testing.assert_array_equal(ids, want_ids, err_msg=str((seed, sorted(args))))
        np.testing.assert_array_equal(scores, want_scores, err_msg=str((seed, sorted(args))))
        shapes.add((queries.shape, items.shape, n, *sorted(args)))
        ties += bool((scores[:, 1:] == scores[:, :-1]).any())
    assert min(len(shapes), ties) > cases / 2


@pytest.mark.parametrize("k", [1, 17, 64, 512, 2048])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_real_valued_factors_of_any_width(k, dtype):
    rng = np.random.default_rng(k)
    queries, items = (rng.standard_normal((rows, k)).astype(dtype) for rows in (140, 1500))
    seen = pairs(rng, 140, 1500, 0.1)
    ids, scores = topk(queries, items, 20, exclude=seen)
    exact = queries.astype(np.float64) @ items.T.astype(np.float64)
    tolerance = k * np.finfo(dtype).eps * np.abs(queries).max() * np.abs(items).max()
    np.testing.assert_allclose(scores, np.take_along_axis(exact, ids.astype(int), 1), atol=tolerance, rtol=0)
    exact[seen.toarray() != 0] = -np.inf
    want = -np.sort(-exact, axis=1)[:, :20]
    np.testing.assert_allclose(scores, want, atol=tolerance, rtol=0)
    assert not (seen.toarray()[np.arange(140)[:, None], ids] != 0).any()


def test_same_bytes_for_any_number_of_threads():
    rng = np.random.default_rng(0)
    for b, size in ((3, 40_000), (1500, 3000)):
        queries, items = (rng.standard_normal((rows, 40), np.float32) for rows in (b, size))
        seen, lists = pairs(rng, b, size, 0.01), pairs(rng, b, size, 0.1)
        for args in ({}, {"candidates": np.arange(0, size, 3)}, {"candidates": lists}):
            many = [
                topk(queries, items, 15, exclude=seen, n_jobs=jobs, **args)
                for jobs in range(1, numba.config.NUMBA_NUM_THREADS + 1)
            ]
            for ids, scores in many[1:]:
                assert ids.tobytes() == many[0][0].tobytes()
                assert scores.tobytes() == many[0][1].tobytes()


def test_a_few_queries_are_cut_along_the_items_with_ties_kept():
    rng = np.random.default_rng(3)
    items = integers(rng, 50 * kernel.ITEMS + 7, 2, high=1)
    queries = integers(rng, 3, 2, high=1)
    ids, scores = topk(queries, items, 3000)
    want_ids, want_scores = oracle(queries, items, 3000)
    np.testing.assert_array_equal(ids, want_ids)
    np.testing.assert_array_equal(scores, want_scores)


def test_scale_gives_cosines_and_nan_removes_an_item():
    rng = np.random.default_rng(4)
    items = integers(rng, 2000, 6)
    items[7] = 0
    norms = np.linalg.norm(items, axis=1)
    scale = np.divide(1, norms, out=np.full_like(norms, np.nan), where=norms > 0)
    lists = pairs(rng, 9, 2000, 0.1)
    for args in ({}, {"candidates": np.append(np.arange(5, 10), 1500)}, {"candidates": lists}):
        ids, scores = topk(items[20:29], items, 2000, item_scale=scale, **args)
        with np.errstate(invalid="ignore"):
            _, want = oracle(items[20:29], items, 2000, scale=scale, **args)
        np.testing.assert_allclose(scores, want, rtol=1e-12)
        assert not (ids == 7).any() and (ids == 8).any()


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_items_without_a_score_are_never_returned(bad):
    items = np.array([[1.0], [bad], [3.0], [bad]])
    for candidates in (None, np.arange(4), sp.csr_array(np.ones((1, 4)))):
        ids, scores = topk(np.ones((1, 1)), items, 4, candidates=candidates)
        np.testing.assert_array_equal(ids, [[2, 0, -1, -1]])
        np.testing.assert_array_equal(scores, [[3, 1, -np.inf, -np.inf]])


def test_infinite_scores_come_first_in_the_order_of_their_ids():
    items = np.array([[1.0], [np.inf], [3.0], [np.inf]])
    np.testing.assert_array_equal(topk(np.ones((1, 1)), items, 3)[0], [[1, 3, 2]])
    big = np.full((3, 1), 3e38, np.float32)  # the products overflow
    np.testing.assert_array_equal(topk(big[:1], big, 3)[0], [[0, 1, 2]])


def test_nothing_is_allowed():
    queries, items = np.ones((2, 3)), np.ones((4, 3))
    for args in (
        {"candidates": np.empty(0, int)},
        {"candidates": [1, 2], "exclude_items": [2, 1, 1]},
        {"exclude_items": range(4)},
        {"exclude": sp.csr_array(np.ones((2, 4)))},
        {"candidates": sp.csr_array((2, 4))},
    ):
        ids, scores = topk(queries, items, 3, **args)
        assert (ids == -1).all() and (scores == -np.inf).all() and ids.shape == (2, 3)
    assert topk(queries, items[:0], 3)[0].shape == (2, 3)
    assert topk(queries[:0], items, 3)[0].shape == (0, 3)


def test_input_is_not_modified_and_may_be_read_only_or_strided():
    rng = np.random.default_rng(5)
    queries, items = rng.standard_normal((6, 8)), rng.standard_normal((100, 8))
    want = topk(queries, items, 5)
    wide = np.repeat(items, 2, axis=1)[:, ::2]
    queries.flags.writeable = items.flags.writeable = False
    for other in (items, wide, np.asfortranarray(items)):
        ids, scores = topk(queries, other, 5)
        np.testing.assert_array_equal(ids, want[0])
        np.testing.assert_allclose(scores, want[1], rtol=1e-13)
    mixed = topk(queries.astype(np.float32), items, 5)
    assert mixed[1].dtype == np.float64
    assert topk([[1, 2]], [[3, 4]], 1)[1][0, 0] == 11


def test_given_scores_are_not_modified_and_may_be_read_only_or_strided(rng):
    scores = rng.standard_normal((6, 40))
    exclude = sp.csr_array((rng.random((6, 40)) < 0.3).astype(float))
    kept = scores.copy()
    want = topk_dense(scores, 5, exclude=exclude)
    np.testing.assert_array_equal(scores, kept)
    scores.flags.writeable = False
    for other in (scores, np.asfortranarray(scores), np.repeat(scores, 2, axis=1)[:, ::2]):
        for got, wanted in zip(topk_dense(other, 5, exclude=exclude), want, strict=True):
            np.testing.assert_array_equal(got, wanted)
    with pytest.raises(InputTypeError, match="matrix of float32 or float64"):
        topk_dense(np.ones((2, 3), int))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"n": 0}, ParameterError, "n=0"),
        ({"n": 2.5}, ParameterError, "n=2.5"),
        ({"items": np.ones((4, 2))}, ShapeError, "3 columns and items have 2"),
        ({"items": np.ones(3)}, ShapeError, "two dimensions"),
        ({"items": np.array([["a", "b", "c"]])}, InputTypeError, "real numbers"),
        ({"queries": np.ones((2, 3), bool)}, InputTypeError, "queries must hold real numbers, not bool"),
        ({"items": np.broadcast_to(1.0, (2**31, 3))}, ShapeError, "items have 2147483648 rows; at most"),
        ({"queries": np.ones((2, 0)), "items": np.ones((4, 0))}, ShapeError, "no factors"),
        ({"exclude": sp.csr_array((4, 2))}, ShapeError, "transposed"),
        ({"exclude": sp.csr_array((2, 5))}, ShapeError, r"expected \(2, 4\)"),
        ({"candidates": [0, 4]}, UnknownIdError, r"candidates\[1\]=4"),
        ({"candidates": [0.5]}, InputTypeError, "candidates"),
        ({"candidates": sp.csr_array((2, 3))}, ShapeError, "candidates"),
        ({"candidates": sp.csr_array((3, 4))}, ShapeError, "candidates"),
        ({"exclude_items": [-1]}, UnknownIdError, r"exclude_items\[0\]=-1"),
        ({"item_scale": np.ones(3)}, ShapeError, "item_scale"),
        ({"item_scale": ["a"] * 4}, InputTypeError, "item_scale must hold real numbers, not <U1"),
        ({"n_jobs": 0}, ParameterError, "n_jobs"),
        ({"n_jobs": 0, "candidates": [1]}, ParameterError, "n_jobs"),
    ],
)
def test_bad_input_is_named(change, error, words):
    args = {"queries": np.ones((2, 3)), "items": np.ones((4, 3)), "n": 2} | change
    queries, items = args.pop("queries"), args.pop("items")
    with pytest.raises(error, match=words):
        topk(queries, items, **args)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"scores": np.ones(3)}, InputTypeError, "matrix of float32 or float64"),
        ({"n": 0}, ParameterError, "n=0"),
        ({"n": 2.5}, ParameterError, "n=2.5"),
        ({"exclude": sp.csr_array((2, 5))}, ShapeError, r"expected \(2, 3\)"),
        ({"exclude": sp.csr_array((4, 3))}, ShapeError, r"expected \(2, 3\)"),
        ({"n_jobs": 0}, ParameterError, "n_jobs"),
    ],
)
def test_bad_input_beside_given_scores_is_named(change, error, words):
    args = {"scores": np.ones((2, 3))} | change
    with pytest.raises(error, match=words):
        topk_dense(args.pop("scores"), **args)


def test_pairs_to_exclude_are_all_stored_ones_dislikes_too():
    exclude = sp.csr_array(np.array([[-1.0, 0, 0, 1], [0, -2, 0, 0]]))
    scores = np.array([[9.0, 1, 2, 8], [1, 9, 2, 3]])
    for ids, _ in (topk_dense(scores, 2, exclude=exclude), topk(np.eye(2), scores.T, 2, exclude=exclude)):
        np.testing.assert_array_equal(ids, [[2, 1], [3, 2]])


def test_room_is_asked_for_the_lists_of_all_queries_and_for_what_merges_them(monkeypatch):
    asked = []
    monkeypatch.setattr(_topk, "_CHECKED_BYTES", 0)
    monkeypatch.setattr(_topk._memory, "require", lambda needed, *_: asked.append(needed))
    queries, items = np.ones((5, 2), np.float32), np.ones((40 * kernel.ITEMS, 2), np.float32)
    lists = sp.csr_array(np.ones((5, len(items))))
    topk(queries, items[:600], 7)
    topk(queries, items, 7, candidates=lists)
    topk_dense(np.ones((5, 9), np.float32), 7)
    assert asked == [5 * 7 * 8] * 3  # an id and a score each
    topk(queries, items, 7)  # in two segments, whose lists are merged
    assert asked[3] >= 5 * 7 * (2 * (8 + 8 + 4 + 8) + 8)
