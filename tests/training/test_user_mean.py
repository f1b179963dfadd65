"""Users that are pulled to their mean: exact half-steps, when "auto" takes it, what keeps it up to date."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from rgals import IALS, RG2, RGALS, RGALSCV, RGX, WRMF
from rgals.datasets import make_implicit
from rgals.losses import Degrees
from rgals.losses.fitted import strength, typical, wants_mean
from rgals.matrix.entries import hold_out
from rgals.matrix.validate import as_csr
from rgals.metrics import evaluate
from rgals.runtime.errors import ParameterError

COLD = 5
LOSSES = [RG2(), RGX(), WRMF(), IALS(), WRMF(dislikes=True)]


@pytest.fixture
def X(rng) -> sp.csr_array:
    dense = (rng.random((50, 35)) < 0.25) * rng.choice([1.0, 2.0], size=(50, 35))
    dense[COLD] = 0
    return sp.csr_array(dense)


def thin(n_users: int = 3000, n_items: int = 400, each: int = 2, seed: int = 0) -> sp.csr_array:
    """Users who have next to nothing in common but popular items."""
    rng = np.random.default_rng(seed)
    shares = (np.arange(n_items) + 3.0) ** -1.0
    rows = [rng.choice(n_items, each, replace=False, p=shares / shares.sum()) for _ in range(n_users)]
    places = np.repeat(np.arange(n_users), each), np.concatenate(rows)
    return sp.csr_array((np.ones(len(places[0]), np.float32), places), shape=(n_users, n_items))


def made(**params) -> RGALS:
    return RGALS(**{"K": 8, "n_iter": 4, "random_state": 0, "user_mean": True, **params})


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss.name}{loss.dislikes or ''}")
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-13)])
def test_half_steps_are_those_of_the_dense_oracle_by_the_mean_of_the_users(loss, dtype, tolerance, X, rng):
    if loss.dislikes:
        X = X.copy()
        X.data[rng.random(X.nnz) < 0.2] *= -1
    model, dense = (made(loss=loss, dtype=dtype, solver=s).fit(X) for s in ("exact", "dense"))
    scores, expected = (m.user_factors_ @ m.item_factors_.T for m in (model, dense))
    np.testing.assert_allclose(scores, expected, atol=tolerance)
    objectives = np.array([row["objective"] for row in model.history_])
    assert (np.diff(objectives) < 1e-6 * objectives[0]).all()
    assert model.objective(X) <= objectives[-1] * (1 + 1e-6)
    state = model._state()
    given = X, model.user_factors_, state.solved_items, state.reg, state.reg_exponent, state.priors
    assert abs(model.loss_.gradient(*given)[0]).max() < 100 * tolerance
    # Anew from the users, it is their mean by the strength of the pull, a little nearer to zero.
    ridge = state.half(state.seen)[1].ridge
    prior = state.priors[0].grown(state.degrees.user_count)
    prior.ridge = ridge
    prior.regress(model.user_factors_)
    own = np.where(state.degrees.user_count > 0, ridge, 0)
    mean = own @ model.user_factors_ / (own.sum() + ridge[ridge > 0].mean())
    np.testing.assert_allclose(prior.weights[0], mean, rtol=1e-4 if dtype == "float32" else 1e-9)
    assert abs(mean).max() > 1e-3 and not model.user_factors_[COLD].any()
    np.testing.assert_array_equal(model.transform(X), model.user_factors_)


def test_it_is_taken_where_little_but_popularity_can_be_told():
    train, hidden = (part.to_scipy() for part in hold_out(as_csr(thin()), 0.4, 0))
    popularity = np.ones((train.shape[0], 1)), np.asarray(train.sum(axis=0)).ravel()[:, None]
    best = evaluate(popularity, train, hidden)["ndcg@10"]
    assert best > 0.05
    for loss in ("rg2", "ials"):
        figures = {}
        for mean in ("auto", False):
            model = RGALS(loss=loss, user_mean=mean, random_state=0).fit(train)
            assert model.params_["user_mean"] is (mean == "auto")
            figures[mean] = evaluate(model, train, hidden)["ndcg@10"]
        assert figures["auto"] > 0.97 * best > 0.8 * best > figures[False]
    again = RGALS(random_state=0).set_params(**model.params_).fit(train)
    np.testing.assert_array_equal(again.user_factors_, model.user_factors_)
    assert "user_mean=True" in repr(RGALS(n_iter=1).fit(train))


@pytest.mark.parametrize(("n_items", "losses"), [(30, ("rg2", "rgx")), (250, ("ials", "wrmf"))])
def test_users_with_one_interaction_get_what_is_popular_however_few_the_items(n_items, losses):
    """Of fewer than 300 items users were pulled to zero, and ranked at half of popularity and below."""
    train, hidden = (part.to_scipy() for part in hold_out(as_csr(thin(1000, n_items)), 0.5, 0))
    assert train.sum(axis=1).max() == 1
    popularity = np.ones((train.shape[0], 1)), np.asarray(train.sum(axis=0)).ravel()[:, None]
    best = evaluate(popularity, train, hidden)["ndcg@10"]
    for loss in losses:
        auto, zero = (RGALS(loss=loss, user_mean=m, random_state=0).fit(train) for m in ("auto", False))
        figures = [evaluate(model, train, hidden)["ndcg@10"] for model in (auto, zero)]
        assert figures[0] > 0.97 * best > 0.8 * best > figures[1]


@pytest.mark.parametrize("taken", [{"reg": 0.1}, {"solver": "svd", "loss": RG2(alpha=0.0)}])
def test_auto_leaves_an_objective_as_it_is_stated(taken):
    assert not RGALS(K=4, **{"n_iter": 2, **taken}).fit(thin()).params_["user_mean"]


def test_much_to_tell_or_few_items_take_none():
    rich = make_implicit(600, 400, random_state=0).matrix
    assert not RGALS(K=4, n_iter=1).fit(rich).params_["user_mean"]
    few = Degrees.of(as_csr(thin(3000, 200, each=6)))
    assert 0.7 < strength(few, *map(typical, (few.user_count, few.item_count))) < 1.4
    assert not wants_mean(few)
    alone = Degrees.of(as_csr(thin(3000, each=1)))  # nobody has two
    assert wants_mean(alone) and alone.nnz == alone.filled[0] and alone.filled[1] > 300


def test_who_comes_and_goes_is_solved_by_the_mean(X, tmp_path):
    model = made(dtype="float64").fit(X)
    weights = model._state().priors[0].weights.copy()
    few = X[[3, COLD, 7]]
    np.testing.assert_array_equal(model.transform(few), model.user_factors_[[3, COLD, 7]])
    ids, _ = model.recommend_new(few, n=3)
    assert (ids[1] == -1).all() and (ids[[0, 2]] >= 0).all()
    model.save(tmp_path / "model.npz")
    loaded = RGALS.load(tmp_path / "model.npz")
    assert loaded.fingerprint() == model.fingerprint() and loaded.params_["user_mean"]
    np.testing.assert_array_equal(loaded.transform(few), model.transform(few))
    why = model.explain(3, 20, n=None)
    parts = why.contributions.sum() + why.all_pairs + why.features
    assert why.score == pytest.approx(model.predict(3, 20)[0], rel=1e-9) == parts and why.features != 0
    assert made(n_iter=30).fit(X).drift().fall < made(n_iter=2).fit(X).drift().fall < 0.1

    loaded.partial_fit_users(X[[9]], [50])  # new, who has the history of another
    np.testing.assert_allclose(loaded.user_factors_[50], model.user_factors_[9], rtol=1e-9)
    told = sp.csr_array(([1.0], ([COLD], [2])), shape=X.shape)
    loaded.partial_fit(told)
    assert loaded.user_factors_[COLD].any()
    np.testing.assert_allclose(loaded.transform(loaded.seen_)[COLD], loaded.user_factors_[COLD], rtol=1e-9)
    loaded.forget_users([0]).forget_items([34])
    state = loaded._state()
    np.testing.assert_array_equal(state.priors[0].weights, weights)
    assert (state.priors[0].described == (state.seen.row_counts > 0)).all()


@pytest.mark.parametrize("watched", [{}, {"early_stopping": True, "patience": 1}])
def test_a_fit_that_is_interrupted_ends_with_the_same_bytes(watched, X, tmp_path):
    how = {"n_iter": 6, **watched}
    whole = made(**how).fit(X)

    def interrupt(now):
        if now.iteration == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made(**how).fit(X, checkpoint=tmp_path, callbacks=interrupt)
    assert made(**how).fit(X, checkpoint=tmp_path).fingerprint() == whole.fingerprint()
    with pytest.raises(Exception, match="user_mean is None here and True there"):
        made(**how, user_mean=False).fit(X, checkpoint=tmp_path)


def test_a_warm_start_goes_on_from_the_mean(X):
    model = made(warm_start=True, dtype="float64").fit(X)
    last = model.history_[-1]["objective"]
    assert model.fit(X).history_[0]["objective"] <= last * (1 + 1e-9)


def test_parameters_may_be_booleans_of_numpy(X):
    """As a search over ``np.array([True, False])`` sets them; this one was refused as neither."""
    given = made(user_mean=np.True_, warm_start=np.False_).fit(X)
    assert given.params_["user_mean"] is True and given.fingerprint() == made().fit(X).fingerprint()


def test_a_search_takes_what_a_fit_would():
    train = thin(1500)
    found = RGALSCV(K=8, budget=2, n_splits=1, random_state=0).fit(train)
    assert found.params_["user_mean"] and found.best_params_["user_mean"]
    again = RGALS(**found.best_params_, random_state=0).fit(train)
    np.testing.assert_array_equal(again.user_factors_, found.user_factors_)


@pytest.mark.parametrize(
    ("params", "given"),
    [
        ({"user_mean": "yes"}, {}),
        ({"solver": "svd", "loss": RG2(alpha=0.0)}, {}),
        ({"device": "cuda"}, {}),
        ({}, {"user_features": np.ones((50, 1))}),
    ],
)
def test_what_does_not_go_together_is_refused(params, given, X):
    with pytest.raises(ParameterError, match="^user_mean="):
        made(**params).fit(X, **given)
