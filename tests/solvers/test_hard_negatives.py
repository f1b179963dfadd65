"""Hard negatives: pairs with terms of their own in the rows, the draw, fits and users in the end."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import LOSSES, SIDES, factors, interactions
from sklearn.base import clone

from rgals import IALS, RG2, RGALS, RGX, HardNegatives, ParameterError
from rgals.kernels.row import DUAL, PRIMAL
from rgals.kernels.topk import USERS
from rgals.kernels.ways.cg import CG
from rgals.losses import Degrees
from rgals.matrix.csr import CSR
from rgals.matrix.validate import as_csr
from rgals.metrics import evaluate
from rgals.model_selection import split_interactions
from rgals.runtime.errors import PrecisionWarning
from rgals.solvers import hard_negatives, plan, precision
from rgals.solvers.als import ALS, Problem
from rgals.solvers.cpu import CPUBackend
from rgals.solvers.dense import DenseBackend
from rgals.solvers.hard_negatives import Blocks, Sampler, draw, merge, pair_terms, read_hard_negatives
from rgals.training.run import Watch, run

WEIGHT, REG, NU = 1.7, 0.03, 0.9


def some_pairs(X, loss, seed):
    """Pairs that a matrix does not have and that have a weight; a column without positives has some, too."""
    pairs = (X.toarray() == 0) & (np.random.default_rng(seed).random(X.shape) < 0.3)
    pairs[::7] = False
    coefficients = loss.coefficients(Degrees.of(as_csr(X, dtype=np.float64)))
    pairs &= np.outer(coefficients.g, coefficients.h) > 0
    assert pairs[:, 5].any() == (coefficients.h[5] > 0) and not pairs[0].any() and pairs[1].any()
    return pairs


def posed(X, loss, side, pairs, dtype):
    """Merged rows and their side."""
    users = as_csr(X, dtype=dtype)
    coefficients = loss.coefficients(Degrees.of(users))
    of_users, of_items = pair_terms(coefficients, WEIGHT)
    more = as_csr(sp.csr_array(pairs.astype(float)), dtype=dtype)
    if side == "user":
        return merge(users, more, dtype, 2), coefficients.user_side(users, REG, NU).with_pairs(
            of_users, of_items
        )
    items = users.transpose()
    made = coefficients.item_side(items, REG, NU).with_pairs(of_items, of_users)
    return merge(items, more.transpose(), dtype, 2), made


def hard_part(loss, X, pairs, P, Q):
    """``gamma sum g_x h_y (o - t_x / g_x)^2`` over pairs, and its gradients: the formula of the docstring."""
    coefficients = loss.coefficients(Degrees.of(as_csr(X, dtype=np.float64)))
    g, h, t = coefficients.g, coefficients.h, coefficients.t
    target = np.divide(t, g, out=np.zeros_like(g), where=g > 0)
    weight = WEIGHT * pairs * np.outer(g, h)
    gap = P @ Q.T - target[:, None]
    return float((weight * gap**2).sum()), 2 * (weight * gap) @ Q, 2 * (weight * gap).T @ P


def slope(loss, X, pairs, side, solved, fixed):
    P, Q = (solved, fixed) if side == "user" else (fixed, solved)
    at = side == "item"
    return loss.gradient(X, P, Q, REG, NU)[at] + hard_part(loss, X, pairs, P, Q)[1 + at]


@pytest.mark.parametrize("K", [6, 64])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", LOSSES)
def test_a_half_step_with_pairs_minimises_the_stated_objective(name, side, K):
    loss = LOSSES[name]
    for valued in (False, True):
        X = interactions(70, 60 if K == 6 else 110, valued=valued, seed=3)
        pairs = some_pairs(X, loss, 1)
        rows, problem = posed(X, loss, side, pairs, np.float64)
        fixed = factors(rows.n_cols, K, seed=4)
        step = CPUBackend().half_step(rows, fixed, problem)
        start = slope(loss, X, pairs, side, np.zeros_like(step.factors), fixed)
        found = slope(loss, X, pairs, side, step.factors, fixed)
        assert np.abs(found).max() < 1e-10 * np.abs(start).max()
        # The decrease of the half-step is that of the objective, from factors of 0.
        both = [(step.factors, fixed), (np.zeros_like(step.factors), fixed)]
        both = both if side == "user" else [pair[::-1] for pair in both]
        at, zero = (loss.objective(X, *pq, REG, NU) + hard_part(loss, X, pairs, *pq)[0] for pq in both)
        assert step.decrease == pytest.approx(zero - at, rel=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", ["rg2", "rg2-row-only", "rg2-signed", "rgx", "wrmf-exponents", "ials"])
def test_every_kind_of_row_with_pairs_equals_the_oracle(name, side, dtype):
    X = interactions(150, 140, valued=True, seed=6)
    rows, problem = posed(X, LOSSES[name], side, some_pairs(X, LOSSES[name], 2), dtype)
    fixed = factors(rows.n_cols, 64, dtype, seed=4)
    oracle = DenseBackend().half_step(rows, fixed.astype(np.float64), problem)
    step = CPUBackend().half_step(rows, fixed, problem)
    scale = np.abs(oracle.factors).max()
    error = 2e-4 if dtype == np.float32 else 1e-9
    np.testing.assert_allclose(step.factors, oracle.factors, atol=error * scale, rtol=0)
    kinds = set(plan.Plan(rows, problem, dtype, 64).kind.tolist())
    assert len(kinds) > 1 or name == "rg2-signed"


def test_a_plan_counts_pairs_among_the_positives():
    X = sp.csr_array((np.ones(25), (np.zeros(25, int), np.arange(25))), shape=(1, 200))
    pairs = np.zeros((1, 200), bool)
    pairs[0, 100:150] = True
    rows, problem = posed(X, RG2(alpha=0.05), "user", pairs, np.float32)
    assert rows.row_counts.tolist() == [75]
    alone = plan.Plan(
        as_csr(X),
        RG2(alpha=0.05).coefficients(Degrees.of(as_csr(X))).user_side(as_csr(X), 1, 1),
        np.float32,
        64,
    )
    assert alone.kind[0] == DUAL
    # By the positives' weights, steps would be many; by those of pairs, and what is seen, they are few.
    assert plan.Plan(rows, problem, np.float32, 64).kind[0] == PRIMAL | CG


# ---------------------------------------------------------------- the draw


def whole(n, K, seed, dtype):
    """Factors of small integers: scores are exact, and many of them equal."""
    return np.random.default_rng(seed).integers(-2, 3, (n, K)).astype(dtype)


def reference(users, items, rows, hard, rng):
    """The same in numpy, a group at a time."""
    n_items, size = len(items), hard.group_size(len(items))
    n, left = min(hard.n_samples, n_items // size), np.empty(0, int)
    active = np.flatnonzero(rows.row_counts)
    found = np.zeros((len(users), n_items), bool)
    for start in range(0, len(active), USERS):
        if len(left) < n * size:
            left = rng.permutation(n_items)
        groups, left = left[: n * size].reshape(n, size).T, left[n * size :]
        for user in active[start : start + USERS]:
            scores = (items.astype(float) @ users[user].astype(float))[groups]
            scores[np.isin(groups, rows.indices[rows.indptr[user] : rows.indptr[user + 1]])] = -np.inf
            some = np.isfinite(scores).any(axis=0)
            found[user, groups[scores.argmax(axis=0), np.arange(n)][some]] = True
    return found


@pytest.mark.parametrize("K", [5, 16])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "hard", [HardNegatives(share=0.1, n_samples=40), HardNegatives(share=1e-6, n_samples=9)]
)
def test_a_draw_equals_numpy_whatever_the_threads(hard, dtype, K, monkeypatch):
    n_users, n_items = 2 * USERS + 70, 700
    rng = np.random.default_rng(0)
    dense = rng.random((n_users, n_items)) < rng.uniform(0, 0.04, n_users)[:, None]
    dense[5], dense[6] = False, True
    dense[6, :4] = False
    rows = as_csr(sp.csr_array(dense.astype(float)), dtype=dtype)
    users, items = whole(n_users, K, 1, dtype), whole(n_items, K, 2, dtype)
    expected = reference(users, items, rows, hard, np.random.default_rng([3, 7]))
    counts = expected.sum(axis=1)
    assert counts[5] == 0 and 0 <= counts[6] <= 4 and counts.max() == hard.n_samples
    for n_threads in (1, 2, 4):
        pairs = draw(
            users,
            items,
            rows,
            Blocks(hard, rows.row_counts, n_items),
            np.random.default_rng([3, 7]),
            n_threads,
        )
        np.testing.assert_array_equal(pairs.to_scipy().toarray() > 0, expected)
        assert pairs.rises.all()
    monkeypatch.setattr(hard_negatives, "_AT_ONCE", 1)
    monkeypatch.setattr(hard_negatives, "_BLOCKS", 1)
    pairs = draw(users, items, rows, Blocks(hard, rows.row_counts, n_items), np.random.default_rng([3, 7]), 2)
    np.testing.assert_array_equal(pairs.to_scipy().toarray() > 0, expected)


def test_blocks_draw_from_shares_of_their_own_and_leave_no_item_out():
    hard = HardNegatives(share=0.1, n_samples=25)
    blocks = Blocks(hard, np.full(12 * USERS, 40), 1500)  # groups of 15 items, four shares in the catalogue
    assert blocks.n == 25 and blocks.group == 15
    ((first, shares),) = blocks.shares(np.random.default_rng(0))
    assert first == 0 and shares.shape == (12, 375)
    assert (np.bincount(shares.ravel(), minlength=1500) == 3).all()
    assert len({share.tobytes() for share in shares}) == 12


def test_merged_rows_are_sorted_and_tell_pairs_by_the_sign():
    X = interactions(valued=True)
    pairs = some_pairs(X, IALS(alpha0=0.2), 0)
    matrix, more = as_csr(X, dtype=np.float32), as_csr(sp.csr_array(pairs.astype(float)), dtype=np.float32)
    for rows, others in ((matrix, more), (matrix.transpose(), more.transpose())):
        merged = merge(rows, others, np.float32, 2)
        assert merged.rises.all()
        np.testing.assert_array_equal(
            merged.to_scipy().toarray(), rows.to_scipy().toarray() - others.to_scipy().toarray()
        )


# ---------------------------------------------------------------- fits


@pytest.fixture(scope="module")
def X():
    return interactions(90, 120, seed=4)


HARD = HardNegatives(weight=1.5, share=0.2, n_samples=8, warmup=2)


def make(loss="rg2", **params):
    given = {"K": 5, "n_iter": 5, "hard_negatives": HARD, "random_state": 0, "dtype": "float64", "reg": 0.02}
    return RGALS(loss=loss, **{**given, **params})


@pytest.mark.parametrize("solver", [CPUBackend, DenseBackend])
@pytest.mark.parametrize(
    "loss",
    [RG2(alpha=0.05), RGX(alpha=0.05), IALS(alpha0=0.2), RG2(alpha=0.05, proposal_exponent=0.5)],
    ids=str,
)
def test_the_history_has_the_objective_at_the_sets_of_the_iteration(loss, solver, X):
    matrix = as_csr(X, dtype=np.float64)
    coefficients = loss.coefficients_for(Degrees.of(matrix))
    problem = Problem.of(matrix, loss, coefficients, REG, NU)
    sampler = Sampler(HARD, matrix, coefficients, HARD.warmup, 11, 1)
    seen = []
    run(
        ALS(problem, solver(), factors(90, 5), None, sampler),
        5,
        watch=Watch(
            lambda now: (
                seen.append((now.objective, now.user_factors.copy(), now.item_factors.copy())) and None
            )
        ),
    )
    ratio = 120 / (HARD.n_samples * HARD.group_size(120))
    for iteration in range(3, 6):
        _, P, Q = seen[iteration - 2]
        rng = np.random.default_rng([11, iteration])
        pairs = reference(P, Q, matrix, HARD, rng)
        objective, P, Q = seen[iteration - 1]
        stated = loss.objective(X, P, Q, REG, NU)
        stated += hard_part(loss, X, pairs, P, Q)[0] * HARD.weight * ratio / WEIGHT
        assert objective == pytest.approx(stated, rel=1e-9)
    assert seen[0][0] == pytest.approx(loss.objective(X, *seen[0][1:], REG, NU), rel=1e-9)


@pytest.mark.parametrize("loss", ["rg2", "rgx", "wrmf", "ials"])
def test_users_are_those_of_a_half_step_with_their_best_items(loss, X):
    model = make(loss, readout_exponent=0.2).fit(X)
    np.testing.assert_array_equal(model.transform(X), model.user_factors_)
    state = model._state()
    rows, Q = as_csr(X, dtype=np.float64), state.solved_items
    coefficients, _ = state.half(rows)
    side = coefficients.user_side(rows, state.reg, state.reg_exponent)
    plain = DenseBackend().half_step(rows, Q, side).factors
    scores = np.where(X.toarray() > 0, -np.inf, plain @ Q.T)
    pairs = np.zeros(X.shape, bool)
    np.put_along_axis(pairs, np.argsort(-scores, axis=1)[:, : HARD.n_top(120)], True, axis=1)
    pairs &= (X.toarray() == 0) & (X.sum(axis=1) > 0)[:, None]
    g, h, t = coefficients.g, coefficients.h, coefficients.t
    m, linear = (HARD.weight * pairs * np.outer(part, h) for part in (g, t))
    merged = merge(rows, as_csr(sp.csr_array(pairs.astype(float)), dtype=np.float64), np.float64, 1)
    extended = side.with_pairs(*pair_terms(coefficients, HARD.weight))
    expected = DenseBackend().half_step(merged, Q, extended).factors
    np.testing.assert_allclose(model.user_factors_, expected, rtol=0, atol=1e-9 * np.abs(expected).max())
    assert np.abs(model.user_factors_ - plain).max() > 1e-3 * np.abs(plain).max()
    assert m.any() and linear.any() == t.any()
    assert (model.user_factors_[3] == 0).all()  # no history


def test_new_users_are_folded_in_as_those_of_the_fit(X, monkeypatch):
    model = make(dtype="float32").fit(X)
    users = np.flatnonzero(np.diff(X.indptr))[10:40]
    some = X[users]
    np.testing.assert_allclose(model.transform(some), model.user_factors_[users], rtol=1e-4, atol=1e-5)
    ids, scores = model.recommend_new(some, n=6)
    known = model.recommend(users, n=6)
    np.testing.assert_array_equal(ids, known[0])
    np.testing.assert_allclose(scores, known[1], rtol=1e-4, atol=1e-5)
    whole = model.transform(sp.vstack([X] * 15, format="csr"))
    monkeypatch.setattr(hard_negatives, "_AT_ONCE", 1)  # a block of users at a time
    parts = model.transform(sp.vstack([X] * 15, format="csr"))
    np.testing.assert_array_equal(parts, whole)
    before = model.score(X)
    assert 0 < before < 1


def test_updated_users_equal_a_fold_in(X):
    model = make().fit(X)
    history = sp.csr_array(X[[1, 8]])
    model.partial_fit_users(history, [7, 90])
    np.testing.assert_allclose(model.transform(history), model.user_factors_[[7, 90]], rtol=1e-9)
    plain = make(hard_negatives=None).fit(X)
    assert np.abs(model.user_factors_[7] - plain.transform(history)[0]).max() > 1e-6


@pytest.mark.parametrize("loss", [RG2(alpha=0.05), RGX(alpha=0.05), IALS(alpha0=0.2)], ids=lambda x: x.name)
def test_updated_items_have_the_users_whom_they_come_first_for(loss, X):
    model = make(loss, reg=REG, reg_exponent=NU).fit(X)
    columns, new = sp.csr_array(X[:, [1, 8, 40]]), np.array([7, 30, 120])
    P, Q = model.user_factors_, model.item_factors_
    plain = copy.copy(model)
    plain._snapshot = dataclasses.replace(model._state(), hard_negatives=None)
    first = None if loss.couples_items() else plain.partial_fit_items(columns, new).item_factors_[new]
    model.partial_fit_items(columns, new)
    if first is not None:
        ranked = np.r_[Q, np.zeros((1, Q.shape[1]))]
        ranked[new] = first
        scores = np.where(model.seen_.toarray() > 0, -np.inf, P @ ranked.T)
        beyond = -np.sort(-scores, axis=1)[:, HARD.n_top(121)]
        above = (scores[:, new] > beyond[:, None]) & (X.sum(axis=1) > 0)[:, None]
        assert 3 < above.sum() < above.size
        pairs = np.zeros((90, 121), bool)
        pairs[:, new] = above
        whole = model.seen_
        gradient = loss.gradient(whole, model.user_factors_, model.item_factors_, REG, NU)[1]
        more = hard_part(loss, whole, pairs, model.user_factors_, model.item_factors_)[2]
        total = gradient + more * HARD.weight / WEIGHT
        assert np.abs(total[new]).max() < 1e-9 * np.abs(gradient).max()
    unchanged = np.setdiff1d(np.arange(120), new)
    np.testing.assert_array_equal(model.item_factors_[unchanged], Q[unchanged])
    model.partial_fit_items(columns, new, refresh_users=True)
    np.testing.assert_array_equal(model.transform(model.seen_), model.user_factors_)


@pytest.mark.parametrize("loss", ["rg2", "rgx", "wrmf", "ials"])
def test_an_explanation_adds_up_and_names_the_negatives(loss, X):
    model = make(loss, readout_exponent=0.2).fit(X)
    for user, item in ((0, 1), (10, 7), (20, 30)):
        why = model.explain(user, item)
        total = why.contributions.sum() + why.rest + why.all_pairs + why.negatives
        assert why.score == pytest.approx(total, rel=1e-12)
        assert why.score == pytest.approx(model.predict(user, item)[0], rel=1e-8)
        assert (why.negatives != 0) == (loss in ("rg2", "rgx"))
    assert model.explain(3, 0).score == 0.0
    assert make(loss, hard_negatives=None).fit(X).explain(0, 1).negatives == 0.0


def test_equal_bytes_for_any_threads(X):
    models = [make("rgx", dtype="float32", n_jobs=n).fit(X) for n in (1, 2, 4)]
    for model in models[1:]:
        assert model.user_factors_.tobytes() == models[0].user_factors_.tobytes()
        assert model.item_factors_.tobytes() == models[0].item_factors_.tobytes()


def test_a_weight_of_0_is_a_fit_without(X):
    plain = make(hard_negatives=None).fit(X)
    for none in (0, 0.0, HardNegatives(0.0)):
        model = make(hard_negatives=none).fit(X)
        assert model.user_factors_.tobytes() == plain.user_factors_.tobytes()
        assert model._state().hard_negatives is None
    assert (
        make(hard_negatives=0.5).fit(X)._state().hard_negatives.get_params() == HardNegatives().get_params()
    )


def test_auto_draws_in_the_last_six_iterations_of_sixteen(X):
    drawn, draws = [], Sampler.draw

    def watched(self, iteration, *factors):
        drawn.append(iteration)
        return draws(self, iteration, *factors)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sampler, "draw", watched)
        make(n_iter="auto").fit(X)
        assert drawn == list(range(11, 17))
        drawn.clear()
        make(n_iter="auto", hard_negatives=HardNegatives(1.0, warmup=12)).fit(X)
        assert drawn == list(range(13, 19))
        drawn.clear()
        make(n_iter=5).fit(X)
        assert drawn == list(range(3, 6))
    rising = make(n_iter=9).fit(X)
    objectives = [row["objective"] for row in rising.history_]
    assert rising.n_iter_ == 9 and max(np.diff(objectives)) > 0  # which would end a fit without


def test_values_and_weights_of_the_matrix_count():
    X = interactions(90, 120, valued=True, seed=4)
    model = make(values="log1p").fit(X)
    np.testing.assert_array_equal(model.transform(X), model.user_factors_)


def test_early_stopping_goes_by_the_metric(X):
    """Users are judged as they are published; the iterations before a draw are no lack of patience."""
    told, held = split_interactions(X, (0.8, 0.2), random_state=0)
    for more in ({}, {"readout_exponent": 0.2}, {"user_mean": True}):
        model = make(early_stopping=True, patience=3, n_iter="auto", metric="ndcg@5", **more)
        model.fit(told, validation=held)
        figures = [row["ndcg@5"] for row in model.history_]
        best = int(np.argmax(figures))
        assert model.n_iter_ in (max(best + 1, HARD.warmup) + 3, 32) and model.n_iter_ > HARD.warmup
        assert evaluate(model, told, held, "ndcg@5")["ndcg@5"] == pytest.approx(figures[best], rel=1e-3)


def test_a_model_is_saved_copied_and_searched_with_them(X, tmp_path):
    model = make().fit(X)
    model.save(tmp_path / "model.npz")
    loaded = RGALS.load(tmp_path / "model.npz")
    again = pickle.loads(pickle.dumps(model))
    for one in (loaded, again, copy.deepcopy(model)):
        np.testing.assert_array_equal(one.transform(X), model.user_factors_)
        assert one.hard_negatives.get_params() == HARD.get_params()
        assert one._state().fingerprint == model._state().fingerprint
    assert (
        model._state().fingerprint
        != make(hard_negatives=HardNegatives(1.5, 0.2, 8, 3)).fit(X)._state().fingerprint
    )
    copied = clone(model).set_params(hard_negatives__weight=3.0)
    assert copied.hard_negatives.weight == 3.0 and model.hard_negatives.weight == 1.5
    plain = make(hard_negatives=2.0).fit(X)
    plain.save(tmp_path / "number.npz")
    assert RGALS.load(tmp_path / "number.npz").hard_negatives == 2.0


class KilledError(Exception):
    pass


def test_a_fitted_model_keeps_its_own_setting(X):
    """Of the caller's object every later change was the model's."""
    model = make(hard_negatives=clone(HARD)).fit(X)
    users, weight = model.transform(X), model._state().hard_negatives.weight
    model.set_params(hard_negatives__weight=20.0)
    np.testing.assert_array_equal(model.transform(X), users)
    assert model._state().hard_negatives.weight == weight != 20.0


def test_an_interrupted_fit_goes_on_to_the_same_bytes(X, tmp_path):
    def kill(now):
        if now.iteration == 4:
            raise KilledError

    straight = make(dtype="float32", n_iter=6).fit(X)
    with pytest.raises(KilledError):
        make(dtype="float32", n_iter=6).fit(X, checkpoint=tmp_path, callbacks=kill)
    resumed = make(dtype="float32", n_iter=6).fit(X, checkpoint=tmp_path)
    assert resumed.user_factors_.tobytes() == straight.user_factors_.tobytes()
    assert resumed.item_factors_.tobytes() == straight.item_factors_.tobytes()
    other = make(dtype="float32", n_iter=7, hard_negatives=HardNegatives(1.5, 0.2, 9, 2))
    with pytest.raises(Exception, match="hard_negatives"):
        other.fit(X, checkpoint=tmp_path)


def test_what_cannot_work_is_refused_by_name(X):
    for params, why in (
        ({"solver": "svd", "loss": RG2(alpha=0), "n_iter": "auto"}, "svd"),
        ({"device": "cuda"}, "cpu"),
        ({"tol": 1e-3}, "tol"),
        ({"n_iter": 2}, "warmup"),
        ({"hard_negatives": -1}, "hard_negatives"),
        ({"hard_negatives": "much"}, "hard_negatives"),
        ({"hard_negatives": HardNegatives(share=0)}, "hard_negatives.share"),
        ({"hard_negatives": HardNegatives(n_samples=0)}, "hard_negatives.n_samples"),
        ({"hard_negatives": HardNegatives(warmup=0)}, "hard_negatives.warmup"),
    ):
        with pytest.raises(ParameterError, match=why):
            make(**params).fit(X)


def test_rows_at_risk_are_judged_with_their_pairs(X, monkeypatch):
    monkeypatch.setitem(precision.RISKY, "float32", 0.0)
    monkeypatch.setattr(precision, "LIMIT", 0.0)
    with pytest.warns(PrecisionWarning, match="user") as caught:
        make(dtype="float32").fit(X)
    user, error = re.search(r"scores of user (\d+) are off by (\S+) of", str(caught[0].message)).groups()
    assert X[[int(user)]].nnz and float(error) < 1e-5  # without the pairs, on one side, it is 1e-2 and more


def test_items_that_weigh_nothing_are_not_drawn(X):
    loss = RG2(alpha=0.1, n_negatives=3, proposal_exponent=0.5)  # of items that nobody has
    model = make(loss, init="random").fit(X)
    assert (model.item_factors_[5] == 0).all() and np.isfinite(model.user_factors_).all()


def test_of_equal_scores_the_first_items_are_the_hard_ones():
    hard, own = HardNegatives(share=0.05, n_samples=20), np.array([0, 3, 700])
    scores = np.repeat(np.float32([1, 2, 1]), [400, 30, 570])
    found = hard.best_of(scores, own)
    first = [*range(400, 430), *(item for item in range(400) if item not in own)]
    np.testing.assert_array_equal(found, first[: hard.n_top(1000)])
    assert len(found) == 50


def test_an_update_of_every_item_takes_no_more_pairs_than_users_have(X, monkeypatch):
    """Items that were solved anew did not rank: where all were, every pair of the matrix was a negative."""
    model, merge, drawn = make().fit(X), hard_negatives.merge, []

    def counted(rows, pairs, *rest):
        drawn.append(pairs)
        return merge(rows, pairs, *rest)

    monkeypatch.setattr(hard_negatives, "merge", counted)
    model.partial_fit(sp.csr_array(np.diag(np.ones(X.shape[1]))[: X.shape[0]] + (X > 0)), sweeps=1)
    of_items = drawn[0]
    assert of_items.n_rows == X.shape[1]
    assert of_items.col_counts.max() == HARD.n_top(X.shape[1])


@pytest.mark.parametrize(
    "loss", ["rg2", "rgx", "wrmf", "ials", RG2(alpha=0.1, proposal_exponent=0.5)], ids=str
)
def test_an_item_that_nobody_has_is_what_its_features_predict(loss, X, rng):
    """Users who would rank it first were put into its row, whose system is none: a NumericalError."""
    told = rng.standard_normal((X.shape[1] + 1, 3))
    matrix = sp.csr_array(sp.hstack([X, sp.csr_array((X.shape[0], 1))]))
    model = RGALS(K=4, loss=loss, reg=0.01, hard_negatives=2.0, random_state=0, n_iter=6)
    model.fit(matrix, item_features=told)
    predicted = 3 * told @ model._state().priors[1].weights
    new = model.transform_items(None, item_features=3 * told)
    np.testing.assert_allclose(new, predicted, atol=1e-5)
    nobody = sp.csr_array((X.shape[0], 1))
    model.partial_fit_items(nobody, [X.shape[1]])
    np.testing.assert_allclose(model.item_factors_[-1], predicted[-1] / 3, atol=1e-5)
    model.partial_fit_items(nobody, [X.shape[1] + 1])  # without features, too


def test_nothing_is_ranked_for_users_without_interactions(X, monkeypatch):
    """Of 300,000 users, 3,000 of them with interactions, a fit took 36 times as long as with theirs alone."""
    nobody = sp.csr_array((3 * USERS, X.shape[1]))
    matrix, ranked, best = sp.csr_array(sp.vstack([nobody, X, nobody])), [], hard_negatives.best

    def counted(users, *rest):
        ranked.append(len(users))
        return best(users, *rest)

    monkeypatch.setattr(hard_negatives, "best", counted)
    known = np.count_nonzero(np.diff(X.indptr))
    model = RGALS(K=4, hard_negatives=1.0, n_iter=5, random_state=0).fit(matrix)
    assert known in ranked and sum(ranked) < 2 * known + 100  # and those at risk of rounding
    np.testing.assert_array_equal(model.transform(matrix), model.user_factors_)
    assert np.count_nonzero(model.user_factors_.any(axis=1)) == known
    ranked.clear()
    model.partial_fit_items(matrix[:, [2]], [2])
    assert ranked == [known]


def test_nothing_is_drawn_of_what_a_user_has():
    assert read_hard_negatives(None) is None
    rows = CSR(np.array([0, 3]), np.arange(3, dtype=np.int32), np.empty(0, np.float32), 3)
    hard = HardNegatives(n_samples=2)
    blocks = Blocks(hard, rows.row_counts, 3)
    pairs = draw(np.ones((1, 2)), np.ones((3, 2)), rows, blocks, np.random.default_rng(0), 1)
    assert pairs.nnz == 0 and pairs.shape == (1, 3)


def test_what_was_taken_fits_the_same():
    """With the number of iterations in place of "auto" the draws began earlier."""
    options = {"K": 6, "hard_negatives": 1.0, "random_state": 0}
    model = RGALS(**options).fit(interactions())
    assert model.params_["n_iter"] == "auto" and model.n_iter_ == 16
    again = RGALS(**options).set_params(**model.params_).fit(interactions())
    np.testing.assert_array_equal(again.user_factors_, model.user_factors_)
