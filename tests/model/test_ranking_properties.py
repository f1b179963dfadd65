"""1,000 random cases of `recommend`, `recommend_new` and `similar_*` against a dense stable argsort."""

import warnings

import numpy as np
import scipy.sparse as sp

from rgals.matrix.validate import as_csr
from rgals.model.ranking import FactorRanker, Snapshot


class Adding(FactorRanker):
    """Integer factors, so that sums are exact and ties everywhere; a fold-in adds up the items of a row."""

    def __init__(self, rng, n_users, n_items, k):
        seen = rng.random((n_users, n_items)) < rng.choice([0.05, 0.3, 0.9])
        seen[rng.random(n_users) < 0.2] = False
        self.seen = seen
        users, items = (
            rng.integers(-2, 3, (n, k)).astype(rng.choice(["f4", "f8"])) for n in (n_users, n_items)
        )
        items = items.astype(users.dtype)
        self._snapshot = Snapshot(users, items, as_csr(seen.astype(np.float32)))

    def _fold_in(self, snapshot, rows, prior=None):
        return np.asarray(rows.to_scipy(snapshot.item_factors.dtype) @ snapshot.item_factors)


def dense(scores, n, removed):
    """Best n of each row that are not removed: a stable argsort, padded with -1 and -inf."""
    scores = np.where(removed, -np.inf, scores.astype(float))
    scores = np.pad(scores, ((0, 0), (0, max(0, n - scores.shape[1]))), constant_values=-np.inf)
    ids = np.argsort(-scores, axis=1, kind="stable")[:, :n]
    best = np.take_along_axis(scores, ids, 1)
    return np.where(best > -np.inf, ids, -1), best


def random_case(seed):
    """A call, and the answer that it must give."""
    rng = np.random.default_rng(seed)
    n_users, n_items = int(rng.integers(1, 40)), int(rng.choice([1, 2, 7, 60, 130]))
    model = Adding(rng, n_users, n_items, int(rng.integers(1, 5)))
    n = int(rng.choice([1, 3, 10, n_items, n_items + 4]))
    size = int(rng.choice([0, 1, 2, 9]))
    new = bool(rng.random() < 0.4)
    users = rng.integers(0, n_users, size)
    rows = model.seen[users]
    if new:
        rows = rng.random((size, n_items)) < rng.choice([0.0, 0.1, 0.5])
    P, Q = model.factors_
    scores = ((rows.astype(float) @ Q) if new else P[users]) @ Q.T
    known = "given" if new else "train"

    def pairs(density):
        mask = rng.random((size, n_items)) < density
        return mask, sp.csr_array(mask.astype(np.float32))

    removed, options = np.zeros((size, n_items), bool), {}
    mask, matrix = pairs(0.3)
    choice = rng.integers(5)
    options["exclude"] = [known, None, matrix, (known, matrix), [None, known]][choice]
    if choice in (0, 3, 4):
        removed |= rows
    if choice in (2, 3):
        removed |= mask
    if rng.random() < 0.4:
        blocked = rng.integers(0, n_items, rng.integers(0, n_items + 1))
        options["exclude_items"] = blocked
        removed[:, blocked] = True
    draw = rng.random()
    if draw < 0.3:
        options["candidates"] = rng.integers(0, n_items, rng.integers(0, n_items + 1))
        removed[:, np.setdiff1d(np.arange(n_items), options["candidates"])] = True
    elif draw < 0.6:
        mask, options["candidates"] = pairs(rng.choice([0.0, 0.2, 0.8]))
        removed |= ~mask
    options["cold"] = str(rng.choice(["empty", "popular"]))
    cold = ~rows.any(axis=1)
    if options["cold"] == "popular":
        scores[cold] = model.seen.sum(axis=0)
    else:
        removed[cold] = True
    want = dense(scores, n, removed)
    if new:
        return (
            lambda: model.recommend_new(sp.csr_array(rows.astype(np.float32)), n, **options),
            want,
            options,
            cold,
        )
    return lambda: model.recommend(users, n, **options), want, options, cold


def test_random_calls_equal_a_dense_argsort(amount):
    kinds, ties, padded, colds, cases = set(), 0, 0, 0, amount(150, 1000)
    for seed in range(cases):
        call, (want_ids, want_scores), options, cold = random_case(seed)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            ids, scores = call()
        np.testing.assert_array_equal(ids, want_ids, err_msg=str((seed, options)))
        np.testing.assert_array_equal(scores, want_scores, err_msg=str((seed, options)))
        assert len(said) == (cold.any() and options["cold"] == "empty"), seed
        kinds.add(tuple(sorted((k, type(v).__name__) for k, v in options.items())))
        ties += bool((scores[:, 1:] == scores[:, :-1])[scores[:, 1:] > -np.inf].any())
        padded += bool((ids == -1).any())
        colds += bool(cold.any())
    assert len(kinds) >= 24  # every kind of exclusion with every kind of candidates, with and without items
    assert min(ties, padded, colds) > cases / 5


def test_neighbours_in_random_cases():
    for seed in range(80):
        rng = np.random.default_rng(seed)
        model = Adding(rng, int(rng.integers(1, 30)), int(rng.integers(1, 50)), 3)
        for factors, call, blocked_name in (
            (model.item_factors_, model.similar_items, "exclude_items"),
            (model.user_factors_, model.similar_users, "exclude_users"),
        ):
            size = len(factors)
            asked = rng.integers(0, size, 4)
            blocked, allowed = rng.integers(0, size, 2), np.unique(rng.integers(0, size, size))
            removed = np.zeros((4, size), bool)
            removed[:, blocked] = True
            removed[:, np.setdiff1d(np.arange(size), allowed)] = True
            removed[np.arange(4), asked] = True
            n = int(rng.integers(1, size + 3))
            want = dense(factors[asked] @ factors.T, n, removed)
            ids, scores = call(asked, n, metric="dot", candidates=allowed, **{blocked_name: blocked})
            np.testing.assert_array_equal(ids, want[0], err_msg=str(seed))
            np.testing.assert_array_equal(scores, want[1], err_msg=str(seed))
