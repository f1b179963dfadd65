"""Properties that hold for every matrix; each takes a random generator and draws what it needs."""

from __future__ import annotations

import os
import tempfile
import warnings

import numpy as np
import scipy.sparse as sp
from helpers import LOSSES

from rgals import RGALS, Checkpoint
from rgals.losses import Degrees
from rgals.matrix.validate import as_csr
from rgals.metrics import evaluate, ndcg
from rgals.model_selection import k_core, split_interactions
from rgals.scoring import topk
from rgals.solvers.cpu import CPUBackend
from rgals.solvers.dense import DenseBackend

PROPERTIES = []
# With so many sampled negatives weights turn negative on small matrices, and systems indefinite.
CONVEX = [
    name for name in LOSSES if "signed" not in name and "sampled" not in name and name != "rg2-proposal"
]
NAMES = ("rg2", "rgx", "ials", "wrmf", "rgx-half", "rg2-exponents", "ials-proposal")


def holds(function):
    PROPERTIES.append(function)
    return function


def matrix(rng) -> np.ndarray:
    shape = tuple(rng.integers(2, 13, 2))
    X = (rng.random(shape) < rng.uniform(0.15, 0.8)).astype(float)
    if rng.random() < 0.5:
        X *= rng.integers(1, 6, shape)
    if not X.any():
        X[0, 0] = 1.0
    return X


def model(rng, **params) -> RGALS:
    defaults = {
        "K": int(rng.integers(1, 9)),
        "loss": LOSSES[NAMES[rng.integers(len(NAMES))]],
        "reg": float(rng.choice([0.02, 0.1, 1.0])),
        "n_iter": int(rng.integers(1, 4)),
        "dtype": "float64",
        "random_state": int(rng.integers(1 << 20)),
    }
    return RGALS(**{**defaults, **params})


def quiet(function, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return function(*args, **kwargs)


def half_step(rng, side):
    X = matrix(rng)
    loss = LOSSES[CONVEX[rng.integers(len(CONVEX))]]
    users = as_csr(X, dtype=np.float64)
    coefficients = loss.coefficients(Degrees.of(users))
    rows = users if side == "user" else users.transpose()
    sided = getattr(coefficients, f"{side}_side")(rows, 0.05, 1.0)
    K = int(rng.integers(1, 7))
    return X, loss, rows, rng.standard_normal((rows.n_cols, K)), sided, K


def never_raises(rng, side):
    X, loss, rows, fixed, sided, K = half_step(rng, side)
    before = rng.standard_normal((rows.n_rows, K))
    after = CPUBackend().half_step(rows, fixed, sided).factors

    def value(solved):
        pair = (solved, fixed) if side == "user" else (fixed, solved)
        return loss.objective(X, *pair, 0.05, 1.0)

    assert value(after) <= value(before) + 1e-9 * abs(value(before))


@holds
def user_half_steps_never_raise_the_objective(rng):
    never_raises(rng, "user")


@holds
def item_half_steps_never_raise_the_objective(rng):
    never_raises(rng, "item")


@holds
def the_backend_equals_the_oracle(rng):
    for side in ("user", "item"):
        _, _, rows, fixed, sided, _ = half_step(rng, side)
        ours = CPUBackend().half_step(rows, fixed, sided).factors
        oracle = DenseBackend().half_step(rows, fixed, sided).factors
        np.testing.assert_allclose(ours, oracle, atol=1e-7 * max(1.0, np.abs(oracle).max()))


@holds
def a_fits_objective_never_rises(rng):
    X = matrix(rng)
    values = [record["objective"] for record in model(rng, n_iter=6).fit(X).history_]
    assert all(b <= a + 1e-9 * abs(a) for a, b in zip(values, values[1:], strict=False))


def scores(fitted):
    return fitted.user_factors_ @ fitted.item_factors_.T


@holds
def users_may_be_permuted(rng):
    X = matrix(rng)
    order = rng.permutation(len(X))
    a = model(rng, warm_start=True).fit(X)
    b = RGALS(**a.get_params(deep=False)).fit(X[order])
    object.__setattr__(b._snapshot, "user_factors", a.user_factors_[order].copy())
    np.testing.assert_allclose(scores(b.fit(X[order])), scores(a.fit(X))[order], atol=1e-6)


@holds
def items_may_be_permuted(rng):
    X = matrix(rng)
    order = rng.permutation(X.shape[1])
    a = model(rng)
    b = RGALS(**a.get_params(deep=False))
    np.testing.assert_allclose(scores(b.fit(X[:, order])), scores(a.fit(X))[:, order], atol=1e-6)


@holds
def duplicates_are_their_sum(rng):
    X = matrix(rng)
    rows, cols = np.nonzero(X)
    values = X[rows, cols]
    split = rng.integers(0, 2, len(rows)) * 0.5
    again = split > 0
    pairs = (np.r_[values - split, split[again]], (np.r_[rows, rows[again]], np.r_[cols, cols[again]]))
    a = model(rng)
    b = RGALS(**a.get_params(deep=False)).fit(sp.coo_array(pairs, shape=X.shape))
    np.testing.assert_array_equal(a.fit(X).item_factors_, b.item_factors_)


@holds
def a_fold_in_is_the_training_row(rng):
    X = matrix(rng)
    fitted = model(rng).fit(X)
    np.testing.assert_array_equal(fitted.transform(X), fitted.user_factors_)


@holds
def any_format_gives_the_same_matrix(rng):
    X = matrix(rng)
    wanted = as_csr(X, dtype=np.float64)
    for kind in ("csr", "csc", "coo", "lil", "dok", "bsr"):
        got = as_csr(getattr(sp, f"{kind}_array")(X), dtype=np.float64)
        for name in ("indptr", "indices", "values"):
            np.testing.assert_array_equal(getattr(got, name), getattr(wanted, name))


@holds
def twice_transposed_is_the_same(rng):
    once = as_csr(matrix(rng), dtype=np.float64)
    twice = once.transpose().transpose()
    for name in ("indptr", "indices", "values"):
        np.testing.assert_array_equal(getattr(once, name), getattr(twice, name))


@holds
def explicit_zeros_change_nothing(rng):
    X = matrix(rng)
    rows, cols = np.indices(X.shape).reshape(2, -1)
    a = model(rng)
    b = RGALS(**a.get_params(deep=False)).fit(sp.coo_array((X.ravel(), (rows, cols)), shape=X.shape))
    np.testing.assert_array_equal(a.fit(X).user_factors_, b.user_factors_)


@holds
def a_saved_model_is_the_same_model(rng):
    X = matrix(rng)
    fitted = model(rng).fit(X)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "m")
        fitted.save(path)
        loaded = RGALS.load(path)
    np.testing.assert_array_equal(loaded.item_factors_, fitted.item_factors_)
    np.testing.assert_array_equal(loaded.transform(X), fitted.user_factors_)
    assert loaded.history_ == fitted.history_


@holds
def a_resumed_fit_is_the_uninterrupted_one(rng):
    X = matrix(rng)
    straight = model(rng, n_iter=5).fit(X)
    with tempfile.TemporaryDirectory() as folder:
        at = Checkpoint(folder, every=int(rng.integers(1, 4)))
        params = straight.get_params(deep=False)
        RGALS(**{**params, "n_iter": int(rng.integers(1, 5))}).fit(X, checkpoint=at)
        resumed = RGALS(**params).fit(X, checkpoint=at)
    np.testing.assert_array_equal(resumed.item_factors_, straight.item_factors_)
    np.testing.assert_array_equal(resumed.user_factors_, straight.user_factors_)


@holds
def threads_change_no_bit(rng):
    X = matrix(rng)
    a = model(rng, n_jobs=1).fit(X)
    b = RGALS(**{**a.get_params(deep=False), "n_jobs": 2}).fit(X)
    np.testing.assert_array_equal(a.item_factors_, b.item_factors_)


@holds
def the_top_is_that_of_a_full_sort(rng):
    queries, items = rng.integers(-3, 4, (4, 3)).astype(float), rng.integers(-3, 4, (11, 3)).astype(float)
    n = int(rng.integers(1, 14))
    ids, _ = topk(queries, items, n)
    full = np.argsort(-(queries @ items.T), axis=1, kind="stable")[:, :n]
    np.testing.assert_array_equal(ids[:, : full.shape[1]], full)
    assert (ids[:, full.shape[1] :] == -1).all()


@holds
def what_a_user_has_is_never_recommended(rng):
    X = matrix(rng)
    ids, _ = quiet(model(rng).fit(X).recommend, np.arange(len(X)), n=X.shape[1])
    for row, given in zip(X, ids, strict=True):
        assert not row[given[given >= 0]].any()


@holds
def only_candidates_are_recommended(rng):
    X = matrix(rng)
    allowed = np.flatnonzero(rng.random(X.shape[1]) < 0.5)
    ids, _ = quiet(model(rng).fit(X).recommend, np.arange(len(X)), n=5, candidates=allowed)
    assert set(ids[ids >= 0].tolist()) <= set(allowed.tolist())


@holds
def a_shorter_list_is_the_start_of_a_longer_one(rng):
    queries, items = rng.standard_normal((3, 4)), rng.standard_normal((30, 4))
    short, long = topk(queries, items, 4)[0], topk(queries, items, 9)[0]
    np.testing.assert_array_equal(short, long[:, :4])


@holds
def a_metric_of_an_ideal_ranking_is_one_and_none_is_larger(rng):
    truth = (rng.random((5, 9)) < 0.4).astype(float)
    truth[:, 0] = 1.0
    ideal = np.argsort(-truth, axis=1, kind="stable")
    np.testing.assert_allclose(ndcg(ideal, sp.csr_array(truth), 9), 1.0)
    other = np.array([rng.permutation(9) for _ in range(5)])
    found = ndcg(other, sp.csr_array(truth), 9)
    assert ((found >= 0) & (found <= 1 + 1e-12)).all()


@holds
def the_order_of_users_changes_no_metric(rng):
    scores_ = rng.integers(0, 5, (8, 12)).astype(float)
    test = (rng.random((8, 12)) < 0.3).astype(float)
    test[:, 0] = 1.0
    order = rng.permutation(8)
    a = evaluate(lambda users: scores_[users], None, sp.csr_array(test), ("ndcg@5",))
    b = evaluate(lambda users: scores_[order][users], None, sp.csr_array(test[order]), ("ndcg@5",))
    np.testing.assert_allclose(a["ndcg@5"], b["ndcg@5"], rtol=1e-12)


@holds
def the_parts_of_a_split_make_the_whole(rng):
    X = sp.csr_array(matrix(rng))
    parts = split_interactions(X, (0.6, 0.4), random_state=int(rng.integers(1 << 20)))
    np.testing.assert_array_equal(sum(part.toarray() for part in parts), X.toarray())
    assert not (parts[0].toarray() * parts[1].toarray()).any()


@holds
def pairs_are_scored_as_their_factors_say(rng):
    X = matrix(rng)
    fitted = model(rng).fit(X)
    users, items = (rng.integers(n, size=6) for n in X.shape)
    np.testing.assert_allclose(fitted.predict(users, items), scores(fitted)[users, items], atol=1e-12)


@holds
def a_core_is_a_core(rng):
    X = sp.csr_array(matrix(rng))
    k = int(rng.integers(1, 4))
    try:
        core = k_core(X, k)[0]
    except ValueError:  # nothing is left
        return
    dense = core.toarray() != 0
    assert (dense.sum(axis=1) >= k).all()
    assert (dense.sum(axis=0) >= k).all()
