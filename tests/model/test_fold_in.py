"""Fold-in, partial fits and explanations: the minimiser of the stated objective, for every loss."""

import threading

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import interactions

from rgals import IALS, RG2, RGALS, RGX, WRMF, UnknownIdError
from rgals.datasets import make_implicit, read_interactions
from rgals.runtime.errors import InputError, ParameterError, ShapeError

M, N, K = 70, 45, 6
LOSSES = {
    "rg2": RG2(alpha=0.1),
    "rg2, everything": RG2(
        alpha=0.2, n_negatives=9, proposal_exponent=0.5, user_exponent=-0.2, item_exponent=-0.3
    ),
    "rgx": RGX(alpha=0.1, beta=0.9),
    "rgx, everything": RGX(alpha=0.1, beta=0.7, proposal_exponent=0.4, user_exponent=0.3, item_exponent=-0.2),
    "rgx, gramian": RGX(alpha=0.1, beta=0.5, form="gramian"),
    "wrmf": WRMF(alpha=3.0),
    "ials": IALS(alpha0=0.2, item_exponent=-0.4),
}


def data(valued=False):
    X = make_implicit(M, N, n_clusters=3, mean_interactions=9, valued=valued, random_state=1).matrix
    assert X.nnz > 300 and (len(np.unique(X.data)) > 1) == valued
    return X


def fitted(name, X, dtype="float64", **options):
    return RGALS(
        K=K, loss=LOSSES[name], reg=0.1, reg_exponent=0.7, n_iter=4, dtype=dtype, values="raw", random_state=0
    ).fit(X, **options)


def with_columns(X, cols, new):
    """The matrix with some columns replaced or appended."""
    out = sp.lil_array((X.shape[0], max(X.shape[1], max(cols) + 1)))
    out[:, : X.shape[1]] = X
    for k, col in enumerate(cols):
        out[:, [col]] = new[:, [k]]
    return sp.csr_array(out)


def histories(n, width, seed, valued):
    rng = np.random.default_rng(seed)
    X = (rng.random((n, width)) < 0.25) * (rng.integers(1, 4, (n, width)) if valued else 1.0)
    X[0, 0] = 1
    return sp.csr_array(X)


@pytest.mark.parametrize("valued", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_fold_in_equals_the_training_rows(name, valued):
    X = data(valued)
    model = fitted(name, X, "float32")
    np.testing.assert_array_equal(model.transform(X), model.user_factors_)
    few = np.array([3, 50, 3])
    np.testing.assert_allclose(model.transform(X[few]), model.user_factors_[few], atol=1e-5, rtol=1e-5)
    ids, scores = model.recommend_new(X[few], n=8)
    want_ids, want_scores = model.recommend(few, n=8)
    np.testing.assert_array_equal(ids, want_ids)
    np.testing.assert_allclose(scores, want_scores, atol=1e-5)
    assert np.abs(model.user_factors_).max() > 0.1


@pytest.mark.parametrize("valued", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_explanations_add_up_to_the_score(name, valued):
    X = data(valued)
    model = fitted(name, X, "float32")
    rng, shown = np.random.default_rng(0), set()
    for user, item in zip(rng.integers(0, M, 40), rng.integers(0, N, 40), strict=True):
        why = model.explain(user, item, n=None)
        past = X[[user]].indices
        score = model.predict(user, item)[0]
        assert why.contributions.sum() + why.all_pairs == pytest.approx(score, abs=1e-5)
        assert why.score == pytest.approx(why.contributions.sum() + why.all_pairs, abs=1e-12)
        assert sorted(why.items) == sorted(past) and why.rest == 0
        assert (np.diff(np.abs(why.contributions)) <= 0).all()
        three = model.explain(user, item, n=3)
        assert len(three.items) == min(3, len(past))
        assert three.contributions.sum() + three.rest + three.all_pairs == pytest.approx(score, abs=1e-5)
        shown.add((round(why.score, 6), round(why.all_pairs, 6)))
    assert len(shown) > 30
    assert (why.all_pairs != 0) == isinstance(model.loss, RG2)


def test_interactions_of_a_model_in_float64_are_not_rounded(rng):
    values = (rng.random((20, 10)) < 0.3) * (2.0**24 + 1)
    model = RGALS(K=4, dtype="float64", values="raw", random_state=0).fit(values)
    np.testing.assert_array_equal(model.seen_.toarray(), values)
    np.testing.assert_array_equal(model.transform(model.seen_), model.user_factors_)


def test_the_parts_of_an_explanation_are_those_of_the_formula():
    """iALS on binary data by hand: part i is q_y (G0 + Q_I^T Q_I + ridge I)^-1 q_i."""
    X, alpha0, reg = data(), 0.3, 0.05
    model = RGALS(K=K, loss=IALS(alpha0=alpha0), reg=reg, reg_exponent=0.0, n_iter=3, dtype="float64").fit(X)
    Q, past = model.item_factors_, X[[8]].indices
    A = alpha0 * Q.T @ Q + Q[past].T @ Q[past] + reg * np.eye(K)
    parts = Q[past] @ np.linalg.solve(A, Q[20])
    why = model.explain(8, 20, n=None)
    order = np.argsort(why.items)
    np.testing.assert_allclose(why.contributions[order], parts, rtol=1e-9)
    assert why.all_pairs == 0


def test_a_user_without_history_has_an_empty_explanation():
    X = sp.lil_array(data())
    X[4] = 0
    why = fitted("rg2", sp.csr_array(X)).explain(4, 7)
    assert (why.score, why.all_pairs, why.rest, len(why.items)) == (0, 0, 0, 0)


@pytest.mark.parametrize("valued", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_partial_users_minimise_the_objective_of_the_new_matrix(name, valued):
    X = data(valued)
    model = fitted(name, X)
    rows, users = histories(4, N, 5, valued), [7, M, 31, M + 1]
    before = model.user_factors_
    assert model.partial_fit_users(rows, users) is model
    new = with_columns(X.T, users, rows.T).T
    assert (model.seen_ != new).nnz == 0
    P, Q = model.user_factors_, model.item_factors_
    slope = model.loss.gradient(new, P, Q, 0.1, 0.7)[0]
    np.testing.assert_allclose(slope[users], 0, atol=1e-9 * np.abs(slope).max() + 1e-10)
    others = np.setdiff1d(np.arange(M), users)
    np.testing.assert_array_equal(P[others], before[others])
    assert np.abs(P[[7, 31]] - before[[7, 31]]).max() > 1e-3
    np.testing.assert_allclose(model.transform(rows), P[users], rtol=1e-10, atol=1e-12)
    ids, _ = model.recommend(users, n=N)
    assert all(not set(ids[k]) & set(rows[[k]].indices) for k in range(4))
    why = model.explain(M, 3, n=None)
    assert why.score == pytest.approx(model.predict(M, 3)[0], abs=1e-9)


@pytest.mark.parametrize("valued", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_partial_items_minimise_the_objective_of_the_new_matrix(name, valued):
    X = data(valued)
    model = fitted(name, X)
    columns, items = histories(M, 4, 6, valued), [N + 1, 12, N, 3]
    before = model.item_factors_
    model.partial_fit_items(columns, items)
    new = with_columns(X, items, columns)
    assert (model.seen_ != new).nnz == 0 and model.n_features_in_ == N + 2
    P, Q = model.user_factors_, model.item_factors_
    slope = model.loss.gradient(new, P, Q, 0.1, 0.7)[1]
    np.testing.assert_allclose(slope[items], 0, atol=1e-9 * np.abs(slope).max() + 1e-10)
    others = np.setdiff1d(np.arange(N), items)
    np.testing.assert_array_equal(Q[others], before[others])
    assert np.abs(Q[[12, 3]] - before[[12, 3]]).max() > 1e-3
    model.partial_fit_items(columns, items, refresh_users=True)
    slope = model.loss.gradient(new, model.user_factors_, model.item_factors_, 0.1, 0.7)[0]
    np.testing.assert_allclose(slope, 0, atol=1e-9)
    np.testing.assert_array_equal(model.transform(new), model.user_factors_)
    assert model.explain(5, N, n=None).score == pytest.approx(model.predict(5, N)[0], abs=1e-9)


@pytest.mark.parametrize("name", LOSSES)
def test_all_items_at_once_are_the_half_step_of_a_fit(name):
    X = data()
    model = fitted(name, X)
    P = model.user_factors_
    more = RGALS(
        K=K, loss=LOSSES[name], reg=0.1, reg_exponent=0.7, n_iter=1, dtype="float64", warm_start=True
    )
    more.fit(X)
    more._snapshot = model._snapshot
    more.fit(X)  # one more iteration from the same users: items first
    columns = model.transform_items(X, np.arange(N))
    # A fit may rotate all factors; inner products do not see it.
    np.testing.assert_allclose(columns @ columns.T, more.item_factors_ @ more.item_factors_.T, atol=1e-9)
    assert np.abs(columns - model.item_factors_).max() > 1e-3
    model.partial_fit_items(X, np.arange(N))
    np.testing.assert_array_equal(model.item_factors_, columns)
    np.testing.assert_array_equal(model.user_factors_, P)
    if "rgx" not in name:  # no item knows of another: one by one is the same
        one = model.transform_items(X[:, [5]])
        np.testing.assert_allclose(one[0], columns[5], rtol=1e-9, atol=1e-11)


def test_items_that_are_solved_together_stay_in_the_loss_of_the_model():
    """Those of RGX share a term, from which the solved ones are taken for this half-step only."""
    X = interactions(40, 25, seed=3)
    model, twin = (RGALS(K=4, loss=RGX(alpha=0.1), n_iter=2, random_state=0).fit(X) for _ in range(2))
    some = np.arange(9)
    assert np.ptp(model.transform_items(sp.csr_array(X[:, some]), items=some)) > 0
    assert model.explain(2, 3).score == twin.explain(2, 3).score
    others = np.arange(9, 14)
    found, expected = (m.transform_items(sp.csr_array(X[:, others]), items=others) for m in (model, twin))
    np.testing.assert_array_equal(found, expected)


def test_the_same_histories_change_nothing():
    X = data()
    model = fitted("rg2, everything", X, "float32")
    again = fitted("rg2, everything", X, "float32").partial_fit_users(X, np.arange(M))
    np.testing.assert_array_equal(again.user_factors_, model.user_factors_)
    assert again.fingerprint() == model.fingerprint()


def test_ids_of_any_kind_grow_with_the_model(tmp_path):
    X = data()
    model = fitted("ials", X, user_ids=[f"u{k}" for k in range(M)], item_ids=np.arange(N) * 10)
    log = [("new", 30), ("new", 70), ("u3", 0), ("u3", 10), ("ö東", 440)]
    events = read_interactions(tuple(zip(*log, strict=True)))
    model.partial_fit_users(events)
    assert model.user_ids_[-2:].tolist() == ["new", "ö東"] and len(model.user_ids_) == M + 2
    assert model.seen_[[3]].indices.tolist() == [0, 1] and model.seen_[[M]].indices.tolist() == [3, 7]
    model.partial_fit_items(sp.csr_array(np.eye(M + 2)[:, [5]]), [999])
    model.partial_fit_items(sp.csr_array(np.eye(M + 2)[:, [6]]), ["box"])
    assert model.item_ids_[-3:].tolist() == [440, 999, "box"]
    model.save(tmp_path / "m.npz")
    again = RGALS.load(tmp_path / "m.npz")
    assert again.item_ids_.tolist() == model.item_ids_.tolist()
    assert again.fingerprint() == model.fingerprint()
    np.testing.assert_array_equal(again.transform(again.seen_)[-2:], model.transform(model.seen_)[-2:])
    with pytest.raises(UnknownIdError, match="item 5 is not known"):
        model.partial_fit_users(read_interactions((["new"], [5])))


def test_others_see_the_old_state_or_the_new_one():
    X = data()
    model = fitted("ials", X)
    faults, stop = [], threading.Event()

    def look():
        while not stop.is_set():
            P, _ = model.factors_
            snapshot = model._snapshot
            if not len(snapshot.user_factors) == snapshot.seen.n_rows == len(snapshot.degrees.user_sum):
                faults.append("mixed")
            model.recommend(np.arange(len(P)), n=3)

    watcher = threading.Thread(target=look)
    writers = [
        threading.Thread(target=lambda: [model.partial_fit_users(X[:3], [1, 2, 3]) for _ in range(20)])
        for _ in range(3)
    ]
    watcher.start()
    for k in range(20):
        model.partial_fit_users(X[[k]], [M + k])
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    stop.set()
    watcher.join()
    assert not faults and len(model.user_factors_) == M + 20


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda m, X: m.partial_fit_users(X[:2]), ParameterError, "users=None"),
        (lambda m, X: m.partial_fit_users(X[:2], [1]), InputError, "1 users for 2 histories"),
        (lambda m, X: m.partial_fit_users(X[:2], [1, 1]), InputError, "1 occurs twice"),
        (lambda m, X: m.partial_fit_users(X[:2], [1, M + 1]), InputError, f"from {M} without a gap"),
        (lambda m, X: m.partial_fit_users(X[:1], ["ann"]), InputError, "no user ids"),
        (lambda m, X: m.partial_fit_users(X[:, :4], range(M)), ShapeError, "X_rows"),
        (lambda m, X: m.partial_fit_users(-X[:1], [0]), InputError, "Negative"),
        (lambda m, X: m.partial_fit_items(X[:, :2].T, [0, 1]), ShapeError, "transposed"),
        (lambda m, X: m.partial_fit_items(X[:, :2], [0]), InputError, "1 items for 2"),
        (lambda m, X: m.transform_items(X[:4]), ShapeError, "X_cols"),
        (lambda m, X: m.transform_items(X[:, :2], [4, 4]), InputError, "once"),
        (lambda m, X: m.transform_items(X[:, :1], [N]), UnknownIdError, "item of this model"),
        (lambda m, X: m.explain(M, 0), UnknownIdError, "user of this model"),
        (lambda m, X: m.explain(0, N), UnknownIdError, "item of this model"),
        (lambda m, X: m.explain([0, 1], 2), InputError, "one user and one item"),
        (lambda m, X: m.explain(0, 1, n=-1), ParameterError, "n=-1"),
        (
            lambda m, X: m.partial_fit_items(X[:, :1], [0], refresh_users="no"),
            ParameterError,
            "refresh_users",
        ),
    ],
)
def test_bad_calls_are_named_and_change_nothing(call, error, words):
    X = data()
    model = fitted("rg2", X)
    state = model._snapshot
    with pytest.raises(error, match=words):
        call(model, X)
    assert model._snapshot is state
