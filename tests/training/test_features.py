"""Features as a prior: exact half-steps, the regression of their weights, cold users and items."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
from instruments.floor import Floor
from sklearn.base import clone
from sklearn.linear_model import Ridge

from rgals import IALS, RG2, RGALS, RGX, WRMF, Checkpoint
from rgals.baselines import Popularity
from rgals.datasets import Interactions, read_interactions
from rgals.datasets.features import read_features
from rgals.files.archive import load_npz, save_npz
from rgals.matrix.validate import as_csr
from rgals.metrics import evaluate
from rgals.model_selection import split_interactions
from rgals.runtime.errors import (
    CheckpointError,
    InputError,
    InputTypeError,
    ModelFileError,
    NumericalError,
    ParameterError,
    ShapeError,
)
from rgals.sgd import SGDRanker
from rgals.solvers import prior as prior_module
from rgals.solvers.prior import Prior
from rgals.training.fit import CHECKPOINT

COLD_USER, COLD_ITEM = 5, 3
LOSSES = [RG2(), RGX(), WRMF(), IALS(), WRMF(dislikes=True)]


@pytest.fixture
def X(rng) -> sp.csr_array:
    dense = (rng.random((50, 35)) < 0.25) * rng.choice([1.0, 2.0], size=(50, 35))
    dense[COLD_USER], dense[:, COLD_ITEM] = 0, 0
    return sp.csr_array(dense)


@pytest.fixture
def features(rng) -> dict[str, sp.csr_array]:
    users, items = (sp.csr_array(rng.standard_normal(n) * (rng.random(n) < 0.4)) for n in ((50, 7), (35, 9)))
    for table, row in ((users, COLD_USER), (items, COLD_ITEM)):
        table[row, 0] = 1.0
    return {"user_features": users, "item_features": items}


@pytest.mark.parametrize("reg_exponent", [1.0, 0.5])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss.name}{loss.dislikes or ''}")
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-13)])
def test_half_steps_are_those_of_the_dense_oracle_and_the_objective_never_rises(
    loss, dtype, tolerance, reg_exponent, X, features, rng
):
    if loss.dislikes:
        signed = X.toarray() * np.where(rng.random(X.shape) < 0.2, -1, 1)
        # Who is only disliked, or only dislikes, is not cold.
        signed[10:25, COLD_ITEM] = signed[COLD_USER, 10:25] = -1
        X = sp.csr_array(signed)
    options = {"K": 8, "loss": loss, "dtype": dtype, "n_iter": 5, "random_state": 0, "feature_reg": 1.0}
    options["reg_exponent"] = reg_exponent
    model = RGALS(**options).fit(X, **features)
    dense = RGALS(**options, solver="dense").fit(X, **features)
    scores, expected = (m.user_factors_ @ m.item_factors_.T for m in (model, dense))
    np.testing.assert_allclose(scores, expected, atol=tolerance)
    objectives = np.array([row["objective"] for row in model.history_])
    assert (np.diff(objectives) < 1e-6 * objectives[0]).all()
    state = model._state()
    given = X, model.user_factors_, state.solved_items, state.reg, state.reg_exponent, state.priors
    slopes = model.loss_.gradient(*given)
    assert abs(slopes[0]).max() < 100 * tolerance
    # The weights of users were found after the last iteration, which only lowers the objective.
    assert model.objective(X) <= objectives[-1] * (1 + 1e-6)
    items_only = RGALS(**options).fit(X, item_features=features["item_features"])
    assert items_only.objective(X) == pytest.approx(items_only.history_[-1]["objective"], rel=1e-5)


@pytest.mark.parametrize("direct", [True, False])
def test_weights_are_those_of_scikit_learn(direct, features, rng, monkeypatch):
    if not direct:
        monkeypatch.setattr(prior_module, "DIRECT", 0)
    F, ridge = features["item_features"], rng.random(35) + 0.1
    ridge[COLD_ITEM] = 0
    Q = rng.standard_normal((35, 4))
    prior = Prior(F, 0.7, ridge)
    prior.regress(Q)
    expected = Ridge(alpha=0.7, fit_intercept=False, solver="cholesky").fit(F.toarray(), Q, ridge).coef_.T
    np.testing.assert_allclose(prior.weights, expected, rtol=1e-7, atol=1e-9)


def test_the_scale_of_feature_reg_is_the_mean_ridge(X, features):
    model = RGALS(K=4, random_state=0, n_iter=3, feature_reg=0.5, dtype="float64").fit(X, **features)
    state = model._state()
    coefficients = state.own_coefficients
    ridge = coefficients.item_side(_items(X), state.reg, state.reg_exponent).ridge
    weights = ridge / ridge[ridge > 0].mean()
    given = features["item_features"].toarray(), model.item_factors_, weights
    expected = Ridge(alpha=0.5, fit_intercept=False, solver="cholesky").fit(*given).coef_.T
    np.testing.assert_allclose(state.priors[1].weights, expected, rtol=1e-8, atol=1e-10)


def grouped(items, rng, users=None):
    """Interactions of users who each like one of the groups of items best."""
    users = rng.integers(items.max() + 1, size=300) if users is None else users
    liked = np.where(users[:, None] == items, 0.25, 0.02)
    return sp.csr_array((rng.random(liked.shape) < liked).astype(float))


def one_hot(groups):
    return sp.csr_array((np.ones(len(groups)), (np.arange(len(groups)), groups)))


def test_feature_reg_is_what_predicts_rows_left_out_best(rng):
    """Against scikit-learn's regressions, with the same thirds of the rows left out."""
    F, ridge = rng.standard_normal((90, 6)), rng.random(90) + 0.1
    ridge[:5] = 0
    Q = F @ rng.standard_normal((6, 4)) + 3.0 * rng.standard_normal((90, 4)) + 2.0
    known, unit = ridge > 0, ridge[ridge > 0].mean()
    target = Q[known] - np.average(Q[known], axis=0, weights=ridge[known])
    part = np.random.default_rng([0, 1]).integers(3, size=known.sum())
    tried, total = 10.0 ** np.arange(5, -1, -0.5), 0.0
    for left in range(3):
        errors = []
        for reg in tried:
            fit = Ridge(alpha=unit * reg, fit_intercept=False, solver="cholesky")
            fit.fit(F[known][part != left], target[part != left], ridge[known][part != left])
            wrong = target[part == left] - F[known][part == left] @ fit.coef_.T
            errors.append(ridge[known][part == left] @ (wrong**2).sum(axis=1))
        total += np.array(errors)
    best = tried[np.argmin(total)]
    assert 1 < best < 1e4, "neither end"
    for small in (1024, 0):  # factorised, or by conjugate gradients
        made, given = (Prior(sp.csr_array(F), 1.0, ridge, auto=True) for _ in range(2))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(prior_module, "_SMALL", small)
            made.settle(Q, given)
        assert given.reg == pytest.approx(best / 10**0.5) and not given.auto
        assert made.reg == pytest.approx(unit * given.reg) and not made.auto


@pytest.mark.parametrize("loss", ["rg2", "ials"])
def test_features_that_say_nothing_cost_nothing_and_those_that_do_are_used(loss, rng):
    """Random numbers for every item took up to a fifth of the NDCG, in silence."""
    groups = rng.integers(8, size=200)
    train, test = split_interactions(grouped(groups, rng), (0.7, 0.3), random_state=0)
    model = RGALS(16, loss, random_state=0)

    def ndcg(told=None):
        return evaluate(clone(model).fit(train, item_features=told), train, test, "ndcg@10")["ndcg@10"]

    plain = ndcg()
    for noise in (rng.standard_normal((200, 20)), one_hot(rng.integers(20, size=200))):
        assert ndcg(noise) > 0.98 * plain
        model.set_params(feature_reg=1.0)
        assert ndcg(noise) < 0.96 * plain, "with the strength that it was"
        model.set_params(feature_reg="auto")
    own = one_hot(groups)
    assert ndcg(own) > 1.02 * plain
    strength = [clone(model).fit(train, item_features=told)._state().priors[1].reg for told in (own, noise)]
    assert 100 * strength[0] < strength[1]
    cold = sp.csr_array(train.toarray() * (np.arange(200) >= 20))
    fitted = clone(model).fit(cold, item_features=own)
    scores = fitted.user_factors_ @ fitted.item_factors_[:20].T
    share = (train.toarray()[:, :20] * scores).sum() / train.toarray()[:, :20].sum()
    assert share > scores.mean() + 0.1, "items without interactions are liked by who likes their group"


@pytest.mark.parametrize("seed", range(3))
def test_features_that_say_something_are_used_whatever_made_them_and_beside_a_constant(seed):
    """Groups drawn with the seed of the parts that are left out were these parts: they predicted nothing."""
    groups = np.random.default_rng(seed).integers(8, size=200)
    X = grouped(groups, np.random.default_rng(seed + 10))
    told = sp.csr_array(sp.hstack([one_hot(groups), np.ones((200, 1))]))
    for init in ("random", "spectral"):
        model = RGALS(16, random_state=0, init=init).fit(X, item_features=told)
        assert model.history_[0]["item_feature_reg"] < 20


def test_weights_that_are_not_found_with_a_small_strength_leave_the_larger_ones(rng):
    """Columns that are the same but for rounding: Cholesky fails below a strength."""
    groups = rng.integers(8, size=200)
    one = one_hot(groups).toarray()
    told = np.hstack([one, one * (1 + 1e-9)]) * 1e7
    model = RGALS(16, random_state=0).fit(grouped(groups, rng), item_features=told)
    assert model.history_[0]["item_feature_reg"] >= 1 and np.isfinite(model.item_factors_).all()


def test_whole_powers_first_find_what_all_strengths_would(rng, monkeypatch):
    """By iterations all are tried, from the strongest on."""
    found = []
    for noise in (0.03, 0.3, 1.0, 3.0, 10.0):
        told = sp.csr_array(rng.standard_normal((300, 5)))
        factors = told @ rng.standard_normal((5, 4)) + noise * rng.standard_normal((300, 4))
        both = []
        for small in (1024, 0):
            monkeypatch.setattr(prior_module, "_SMALL", small)
            given = Prior(told, 1.0, np.ones(300), auto=True)
            given.settle(factors, given)
            both.append(given.reg)
        assert both[0] == both[1]
        found.append(both[0])
    assert len(set(found)) > 2


def test_of_too_few_rows_nothing_is_told_and_the_strength_is_the_mean_ridge(rng):
    """Toy data, on which chance decides, keep what their features say."""
    F, Q = rng.standard_normal((40, 3)), rng.standard_normal((40, 4))
    for known, found in ((29, 1.0), (40, prior_module.NOTHING)):
        ridge = np.where(np.arange(40) < known, 0.5, 0.0)
        made, given = (Prior(sp.csr_array(F), 1.0, ridge, auto=True) for _ in range(2))
        made.settle(Q, given)
        assert (given.reg, made.reg) == (found, 0.5 * found)


@pytest.mark.parametrize("side", ["user", "item"])
def test_the_strength_is_chosen_once_and_kept(side, X, features, tmp_path):
    model = RGALS(K=6, n_iter=5, random_state=0, dtype="float64")
    model.fit(X, **{f"{side}_features": features[f"{side}_features"]})
    state = model._state()
    rows, made = (as_csr(X), "user_side") if side == "user" else (_items(X), "item_side")
    ridge = getattr(state.own_coefficients, made)(rows, state.reg, state.reg_exponent).ridge
    reg = state.priors[side == "item"].reg
    tried = 10.0 ** np.arange(4.5, -2.5, -0.5) * ridge[ridge > 0].mean()
    assert np.isclose(tried, reg, rtol=1e-9).sum() == 1
    assert model.history_[0][f"{side}_feature_reg"] * ridge[ridge > 0].mean() == pytest.approx(reg)
    objectives = [row["objective"] for row in model.history_]
    assert (np.diff(objectives) < 1e-9 * objectives[0]).all()
    model.save(tmp_path / "model.npz")
    assert RGALS.load(tmp_path / "model.npz")._state().priors[side == "item"].reg == reg


def _items(X):
    return as_csr(X).transpose()


def test_features_of_zero_change_no_byte_and_their_order_only_rounding(X, features):
    plain = RGALS(K=8, random_state=0).fit(X)
    zero = RGALS(K=8, random_state=0).fit(X, **{name: table * 0 for name, table in features.items()})
    np.testing.assert_array_equal(zero.user_factors_, plain.user_factors_)
    np.testing.assert_array_equal(zero.item_factors_, plain.item_factors_)
    turned = {name: sp.csr_array(table[:, ::-1]) for name, table in features.items()}
    first, second = (
        RGALS(K=8, random_state=0, n_iter=4, dtype="float64").fit(X, **given) for given in (features, turned)
    )
    scores = (m.user_factors_ @ m.item_factors_.T for m in (first, second))
    np.testing.assert_allclose(*scores, atol=1e-9)


def test_cold_users_and_items_are_what_their_features_predict_and_are_served(X, features, tmp_path):
    model = RGALS(K=8, random_state=0).fit(X, **features)
    users, items = model._state().priors
    for factors, prior, row in (
        (model.user_factors_, users, COLD_USER),
        (model.item_factors_, items, COLD_ITEM),
    ):
        np.testing.assert_allclose(factors[row], prior.predict(8, [row])[0], atol=1e-6)
    ids, _ = model.recommend([COLD_USER], n=35)
    assert COLD_ITEM in ids[0] and (ids >= 0).all()
    assert COLD_ITEM in model.similar_items([0], n=34)[0]
    truth = sp.csr_array(([1.0], ([COLD_USER], [ids[0, 0]])), shape=X.shape)
    assert evaluate(model, X, truth, "recall@1") == {"recall@1": 1.0}
    np.testing.assert_array_equal(model.transform(X, features["user_features"]), model.user_factors_)
    for user in (0, COLD_USER):
        assert model.explain(user, 1).score == pytest.approx(model.predict([user], [1])[0], abs=1e-5)
    model.save(tmp_path / "model.npz")
    again = RGALS.load(tmp_path / "model.npz")
    assert again.fingerprint() == model.fingerprint()
    np.testing.assert_array_equal(again.recommend([COLD_USER])[0], model.recommend([COLD_USER])[0])
    again.forget_items([0]).forget_users([0])
    assert again._state().priors[1].features.shape == (34, 9)


def test_who_has_features_alone_is_what_they_predict_whatever_all_pairs_are_drawn_to(X, features):
    model = RGALS(K=4, loss=Floor(0.1, -0.3), n_iter=3, feature_reg=0.1, dtype="float64", random_state=0)
    model.fit(X, **features)
    assert model._state().loss.coefficients(model._state().degrees).t[COLD_USER] != 0
    for factors, prior, row in zip(
        model.factors_, model._state().priors, (COLD_USER, COLD_ITEM), strict=True
    ):
        np.testing.assert_allclose(factors[row], prior.predict(4, [row])[0], rtol=1e-9)
        assert np.ptp(factors[row]) > 1e-3


@pytest.mark.parametrize("numbers", [False, True])
def test_ids_go_by_the_names_that_logs_give_them(rng, numbers):
    names = np.arange(7) * 10 if numbers else np.array([f"i{k}" for k in range(7)])
    data = read_interactions(([f"u{k % 12}" for k in range(120)], [names[k % 7] for k in range(120)]))
    table = pd.DataFrame({"item": names, "artist": [*"aabbccd"], "price": rng.random(7)})
    options = {"K": 4, "random_state": 0}
    wanted = RGALS(**options).fit(data, item_features=table).fingerprint()
    for called in ("movieId", "ItemID"):
        shuffled = table.rename(columns={"item": called}).sample(frac=1.0, random_state=0)
        model = RGALS(**options).fit(data, item_features=shuffled)
        assert model.fingerprint() == wanted
        new = pd.DataFrame({called: [70 if numbers else "i7"], "artist": ["a"], "price": [0.5]})
        assert model.partial_fit(None, item_features=new).item_ids_[-1] == new[called][0]
        with pytest.raises(InputError, match=rf"'{called}' in its index.*item_features.reset_index"):
            RGALS(**options).fit(data, item_features=shuffled.set_index(called))
    # Names of features are left alone: artists come again, or are not those of the interactions.
    titles = table.drop(columns="item").assign(movie=[*"tuvwxyz"])
    assert RGALS(**options).fit(data, item_features=titles).item_ids_.tolist() == names.tolist()


def test_rows_that_have_ids_are_not_taken_in_the_order_of_others(rng):
    """Ids in an index or in a column without a usual name, and rows in any order: noise, in silence."""
    names = np.array([f"i{k}" for k in range(12)])
    data = read_interactions(([f"u{k % 7}" for k in range(120)], [names[k % 12] for k in range(120)]))
    table = pd.DataFrame({"price": rng.random(12)}, index=names)
    model, shuffled = RGALS(K=4, random_state=0), table.sample(frac=1.0, random_state=0)
    with pytest.raises(InputError, match="item_features: the index looks like ids of items; call it"):
        model.fit(data, item_features=shuffled)
    column = shuffled.rename_axis("article").reset_index()
    for frame in (column, pl.from_pandas(column), pa.Table.from_pandas(column)):
        with pytest.raises(InputError, match="item_features: column 'article' looks like ids of items"):
            model.fit(data, item_features=frame)
    wanted = model.fit(data, item_features=shuffled.rename_axis("item").reset_index()).item_factors_
    ordered = table.loc[data.item_ids]  # in the order of the ids, as a table of numbers is
    for told in ((shuffled.index, shuffled), ordered, ordered.reset_index(drop=True)):
        found = model.fit(data, item_features=told).item_factors_
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    digits = read_interactions((data.user_ids[:7].repeat(12), [str(k) for k in range(12)] * 7))
    with pytest.raises(InputError, match="item_features: its item ids are integers"):
        model.fit(digits, item_features=table.assign(movieId=range(12)))


def test_texts_that_hardly_two_rows_share_are_warned_of(X, recwarn):
    """Titles, and days of release, became a column for every row, in silence."""
    n, model = X.shape[1], RGALS(2, n_iter=1, random_state=0)
    assert n > 20
    for column in ([f"film {k}" for k in range(n)], np.datetime64("2024-01-01") + np.arange(n)):
        with pytest.warns(
            UserWarning, match=f"'kind' has {n} different entries in {n} rows.* numbers or groups"
        ):
            model.fit(X, item_features=pd.DataFrame({"kind": column, "year": np.arange(n)}))
    model.fit(X, item_features=pd.DataFrame({"kind": [f"film {k // 3}" for k in range(n)]}))
    assert not recwarn.list


def test_lists_of_tags_are_no_category_each(rng):
    X = sp.csr_array((rng.random((40, 3)) < 0.4).astype(float))
    tags = [["a"], ["a", "b"], []]
    for frame in (pd.DataFrame({"tags": tags}), pl.DataFrame({"tags": tags}), pa.table({"tags": tags})):
        with pytest.raises(InputTypeError, match="column 'tags' holds lists; .*MultiLabelBinarizer"):
            RGALS(K=2).fit(X, item_features=frame)


def test_columns_are_read_as_what_they_are(rng):
    X = sp.csr_array((rng.random((40, 6)) < 0.4).astype(float))
    far = pd.DataFrame({"year": np.array([0.0, 6e4, 0, 6e4, 0, 6e4], np.float16)})
    F = RGALS(K=2, random_state=0).fit(X, item_features=far)._state().priors[1].features.toarray()
    np.testing.assert_allclose(np.abs(F), 1.0)
    for codes in (
        pd.DataFrame({"genre": pd.Categorical([3, 1000001, 3, 3, 1000001, 3])}),
        pa.table({"genre": pa.array([3, 1000001, 3, 3, 1000001, 3]).dictionary_encode()}),
    ):
        state = RGALS(K=2, random_state=0).fit(X, item_features=codes)._state()
        np.testing.assert_array_equal(state.priors[1].features.toarray()[:, 1], [1, 0, 1, 1, 0, 1])
    named = pa.chunked_array([pa.array(["a", None, "b"]).dictionary_encode()]).slice(0, 2)
    with pytest.raises(InputTypeError, match="row 1 holds None"):
        read_features(pa.table({"item": named, "year": [1, 2]}), None, None, "item_features")
    twice = pd.DataFrame(rng.random((6, 2)), columns=["price", "price"])
    with pytest.raises(InputError, match="two columns have one name"):
        RGALS(K=2).fit(X, item_features=twice)


def test_frames_with_ids_bring_items_that_nobody_has_had_and_new_ones_later(rng):
    data = read_interactions(([f"u{k % 12}" for k in range(120)], [f"i{k % 7}" for k in range(120)]))
    table = pd.DataFrame({"item": [f"i{k}" for k in range(9)], "kind": list("ababababa")})
    table["price"] = rng.random(9)
    model = RGALS(K=4, random_state=0).fit(data, item_features=table)
    assert model.item_ids_.tolist()[7:] == ["i7", "i8"]
    prices = (table["price"] - table["price"].mean()) / table["price"].std(ddof=0)
    F = model._state().priors[1].features.toarray()
    np.testing.assert_allclose(F, np.c_[table["kind"] == "a", table["kind"] == "b", prices])
    tomorrow = pd.DataFrame({"item": ["i9"], "kind": ["b"], "price": [0.5]})
    today = read_interactions((["u0"], ["i7"]))
    model.partial_fit(today, item_features=tomorrow)
    state = model._state()
    assert state.item_ids[-1] == "i9"
    np.testing.assert_allclose(model.item_factors_[9], state.priors[1].predict(4, [9])[0], atol=1e-6)
    np.testing.assert_allclose(state.priors[1].features[[9]].toarray()[0, :2], [0, 1])


def test_what_does_not_go_with_features_is_refused(X, features, tmp_path):
    items = features["item_features"]
    with pytest.raises(ParameterError, match="solver='svd'"):
        RGALS(K=2, solver="svd", loss=RG2(alpha=0)).fit(X, item_features=items)
    with pytest.raises(ParameterError, match="reg > 0"):
        RGALS(K=2, reg=0.0).fit(X, item_features=items)
    with pytest.raises(ParameterError, match="feature_reg"):
        RGALS(K=2, feature_reg=0.0).fit(X, item_features=items)
    with pytest.raises(ShapeError, match="one for each of 35 items"):
        RGALS(K=2).fit(X, item_features=items[:3])
    with pytest.raises(InputError, match="row 0, column 0"):
        RGALS(K=2).fit(X, item_features=np.full((35, 1), np.nan))
    with pytest.raises(ParameterError, match="takes no features"):
        SGDRanker(K=2).fit(X, item_features=items)
    with pytest.raises(ParameterError, match="the fit had none"):
        RGALS(K=2).fit(X).partial_fit(X, item_features=items)


@pytest.mark.parametrize(
    "sides", [("item_features",), ("user_features",), ("item_features", "user_features")]
)
@pytest.mark.parametrize(
    "how", [{}, {"early_stopping": True, "patience": 3}, {"loss": "rgx", "dtype": "float64"}]
)
@pytest.mark.parametrize("when", [2, 3])
def test_an_interrupted_fit_ends_with_the_bytes_of_a_whole_one(sides, how, when, rng, tmp_path):
    users, items = rng.integers(4, size=120), rng.integers(4, size=80)
    X, features = (
        grouped(items, rng, users),
        {"user_features": one_hot(users), "item_features": one_hot(items)},
    )
    told = {name: features[name] for name in sides}
    model = RGALS(K=6, reg=0.1, n_iter=6, random_state=0).set_params(**how)
    whole = clone(model).fit(X, **told)
    found = [value for name, value in whole.history_[0].items() if name.endswith("feature_reg")]
    assert len(found) == len(sides) and max(found) < 1000, "the features say something"

    def interrupt(now):
        if now.iteration == when:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        clone(model).fit(X, **told, checkpoint=tmp_path, callbacks=interrupt)
    for other, what in ((sides[0], features[sides[0]] * 2.0), (sides[0], None)):
        with pytest.raises(CheckpointError, match=f"{other} is |X is "):
            clone(model).fit(X, **{**told, other: what}, checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match="feature_reg is 9"):
        clone(model).set_params(feature_reg=9).fit(X, **told, checkpoint=tmp_path)
    assert clone(model).fit(X, **told, checkpoint=tmp_path).fingerprint() == whole.fingerprint()
    other = clone(model).fit(X, **{**told, sides[0]: features[sides[0]] * 2.0})
    assert other.fingerprint() != whole.fingerprint(), "the features count"


def whole_and_resumed(X, features, iteration, folder):
    """A fit, and one that is interrupted at an iteration and resumed."""
    model = RGALS(K=6, n_iter=6, random_state=0)

    def interrupt(now):
        if now.iteration == iteration:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        clone(model).fit(X, user_features=features, checkpoint=folder, callbacks=interrupt)
    whole = clone(model).fit(X, user_features=features)
    return whole, clone(model).fit(X, user_features=features, checkpoint=folder)


def test_a_checkpoint_of_before_the_strength_was_found_leaves_it_to_be_found(X, rng, tmp_path):
    """That of users is found in iteration 2; a fit that was ended before took the mean ridge for good."""
    whole, resumed = whole_and_resumed(X, rng.standard_normal((X.shape[0], 5)), 2, tmp_path)
    assert whole.history_[0]["user_feature_reg"] != 1
    assert resumed.fingerprint() == whole.fingerprint()


def test_a_checkpoint_keeps_that_features_say_nothing(X, rng, tmp_path):
    """Nothing is found after the third iteration: the resumed fit would take the mean ridge."""
    whole, resumed = whole_and_resumed(X, rng.standard_normal((X.shape[0], 5)), 4, tmp_path)
    assert whole.history_[0]["user_feature_reg"] == prior_module.NOTHING
    assert resumed.history_[0]["user_feature_reg"] == prior_module.NOTHING
    assert resumed.fingerprint() == whole.fingerprint()


def test_a_checkpoint_without_the_weights_of_its_features_is_damaged(X, features, tmp_path):
    fit = RGALS(K=2, n_iter=2, random_state=0).fit
    fit(X, item_features=features["item_features"], checkpoint=tmp_path)
    path = tmp_path / Checkpoint.name
    arrays, meta = load_npz(path, expected=CHECKPOINT)
    save_npz(path, {k: v for k, v in arrays.items() if k != "item_weights"}, meta, spec=CHECKPOINT)
    with pytest.raises(ModelFileError, match="no weights of the features"):
        fit(X, item_features=features["item_features"], checkpoint=tmp_path)


@pytest.mark.parametrize("loss", LOSSES[:4], ids=lambda loss: loss.name)
def test_new_users_and_items_are_served_by_their_features(loss, X, features, tmp_path):
    model = RGALS(K=8, loss=loss, random_state=0, dtype="float64").fit(X, **features)
    users, items = model._state().priors
    told = features["user_features"][:4]
    np.testing.assert_allclose(model.transform(None, told), told @ users.weights, atol=1e-12)
    ids, scores = model.recommend_new(None, n=35, user_features=told)
    expected = told @ users.weights @ model.item_factors_.T
    np.testing.assert_allclose(scores, -np.sort(-expected), atol=1e-10)
    own = model.recommend_new(X, n=5, user_features=features["user_features"])
    np.testing.assert_array_equal(own.ids, model.recommend(np.arange(50), n=5).ids)
    plain = model.recommend_new(X, n=5)
    assert (plain.scores != own.scores).any()
    new = model.transform_items(None, item_features=features["item_features"][:2])
    np.testing.assert_allclose(new, features["item_features"][:2] @ items.weights, atol=1e-12)
    ids, _ = model.similar_items([COLD_ITEM], n=34)
    assert sorted(ids[0]) == [item for item in range(35) if item != COLD_ITEM]


def test_items_are_solved_again_with_their_features(X, features):
    model = RGALS(K=8, loss=IALS(), random_state=0, dtype="float64").fit(X, **features)
    state = model._state()
    found = model.transform_items(X, item_features=features["item_features"])
    slope = model.loss_.gradient(X, model.user_factors_, found, state.reg, 1.0, state.priors)[1]
    warm = np.flatnonzero(X.sum(axis=0))
    assert abs(slope[warm]).max() < 1e-11
    assert abs(found - model.transform_items(X))[warm].max() > 1e-6


def test_labelled_features_find_their_rows(rng):
    data = read_interactions(([f"u{k % 12}" for k in range(120)], [f"i{k % 7}" for k in range(120)]))
    table = pd.DataFrame({"user": [f"u{k}" for k in range(14)], "age": rng.integers(9, 70, 14)})
    model = RGALS(K=4, random_state=0).fit(data, user_features=table)
    assert model.user_ids_.tolist()[12:] == ["u12", "u13"]
    shown = read_interactions((["u5", "u2", "u5"], ["i0", "i1", "i3"]))
    turned = table.iloc[::-1][["age", "user"]]
    lists = model.recommend_new(shown, n=7, user_features=turned)
    # Those with interactions come first, then who has features alone.
    assert lists.asked.tolist()[:2] == ["u2", "u5"] and len(lists.asked) == 14
    assert set(lists.ids[0]) <= {*model.item_ids_, None}
    one = model.transform(shown, table[table["user"].isin(["u2", "u5"])])
    np.testing.assert_allclose(one, model.transform(shown, turned)[:2], atol=1e-6)
    alone = model.recommend_new(user_features=pd.DataFrame({"user": ["eve"], "age": [30]}), n=3)
    assert alone.asked.tolist() == ["eve"] and set(alone.ids[0]) <= set(model.item_ids_)
    model.partial_fit(None, user_features=pd.DataFrame({"user": ["eve"], "age": [30]}))
    assert model.user_ids_[-1] == "eve"
    np.testing.assert_array_equal(model.recommend(["eve"], n=3).ids, alone.ids)


def test_new_features_of_zero_replace_old_ones_and_equal_ones_change_no_bit(rng):
    """Zeros were taken for nothing said; a new item with them scored 0, above what nobody wants."""
    data = read_interactions(([f"u{k % 12}" for k in range(120)], [f"i{k % 7}" for k in range(120)]))
    told = [f"i{k}" for k in range(9)], rng.normal(size=(9, 3))
    model = RGALS(K=4, random_state=0, dtype="float64").fit(data, item_features=told)
    before = model.fingerprint()
    assert model.partial_fit(None, item_features=told).fingerprint() == before
    model.partial_fit(None, item_features=(["i0", "i8", "new"], np.zeros((3, 3))))
    assert not model._state().priors[1].features[[0, 8, 9]].nnz
    assert model.item_ids_[-1] == "new"
    nothing = sp.csr_array((12, 1))
    expected = np.r_[model.transform_items(data.matrix[:, [0]], ["i0"]), model.transform_items(nothing)]
    np.testing.assert_allclose(model.item_factors_[[0, 8, 9]], expected[[0, 1, 1]], atol=1e-6)
    whole = told[1].copy()
    whole[0] = 0
    model.partial_fit(None, item_features=np.r_[whole, np.ones((1, 3))])
    np.testing.assert_array_equal(model._state().priors[1].features.toarray(), np.r_[whole, np.ones((1, 3))])


def test_a_frame_where_the_fit_had_a_matrix_is_refused_and_the_other_way_round(rng, tmp_path):
    """Numbers of a frame were standardised by themselves, those of a matrix not at all: in silence."""
    data = read_interactions(([f"u{k % 12}" for k in range(120)], [f"i{k % 7}" for k in range(120)]))
    ids, numbers = [f"i{k}" for k in range(7)], rng.normal(2000.0, 5.0, (7, 2))
    frame = pd.DataFrame({"item": ids, "year": numbers[:, 0], "price": numbers[:, 1]})
    for told, other, kind in (((ids, numbers), frame, "a frame"), (frame, (ids, numbers), "a matrix")):
        RGALS(K=2, random_state=0).fit(data, item_features=told).save(tmp_path / "model.npz")
        model = RGALS.load(tmp_path / "model.npz")
        said = f"item_features is {kind}, and the fit had "
        with pytest.raises(InputTypeError, match=said):
            model.partial_fit(None, item_features=other)
        with pytest.raises(InputTypeError, match=said):
            model.transform_items(None, item_features=other)


def test_features_that_only_the_forgotten_had_are_nowhere_in_the_file(rng, tmp_path):
    """Their categories stayed, and weights that were a share of a single row."""
    data = read_interactions(([f"u{k % 12}" for k in range(120)], [f"i{k % 7}" for k in range(120)]))
    table = pd.DataFrame({"user": [f"u{k}" for k in range(12)], "mail": [f"mail{k:02}@x" for k in range(12)]})
    table["age"], table["kind"] = rng.integers(9, 70, 12), list("ab" * 6)
    model = RGALS(K=4, random_state=0).fit(data, user_features=table)
    weights = model._state().priors[0].weights
    assert weights.shape == (15, 4)
    users = [f"u{k}" for k in range(12) if k != 3]
    kept = model.transform(None, table.set_index("user").loc[users].reset_index())
    model.forget_users(["u3"]).save(tmp_path / "model.npz")
    raw = (tmp_path / "model.npz").read_bytes()
    assert b"mail02@x" in raw and b"mail03@x" not in raw
    assert weights[2].tobytes() in raw and weights[3].tobytes() not in raw
    again = RGALS.load(tmp_path / "model.npz")
    assert again.fingerprint() == model.fingerprint()
    np.testing.assert_allclose(again.transform(None, table.set_index("user").loc[users].reset_index()), kept)
    stranger = again.transform(None, table[3:4])  # by age and kind alone
    assert abs(stranger - kept).min() > 0
    plain = RGALS(K=4, random_state=0).fit(data, user_features=(table["user"], np.eye(12)))
    plain.forget_users(["u3"])
    assert plain._state().priors[0].weights.any(axis=1).tolist() == [k != 3 for k in range(12)]
    everybody = pd.DataFrame({"user": ["u7"], "mail": ["x"], "age": [3], "kind": ["b"]})
    again.forget_users(users[:-1]).partial_fit(None, user_features=everybody)
    assert again.user_ids_.tolist() == [users[-1], "u7"]


def test_a_constant_column_stays_a_column_of_the_model_when_users_are_forgotten(rng):
    data = read_interactions(([f"u{k % 12}" for k in range(120)], [f"i{k % 7}" for k in range(120)]))
    table = pd.DataFrame({"user": [f"u{k}" for k in range(12)], "one": 5.0, "age": rng.integers(9, 70, 12)})
    model = RGALS(K=3, feature_reg=1.0, random_state=0).fit(data, user_features=table)
    before = model.transform(None, table)
    model.forget_users(["u3"])
    np.testing.assert_allclose(model.transform(None, table), before)


def test_missing_categories_are_one_in_frames_of_every_package(rng):
    """They were "nan" of pandas and "None" of polars, so that one did not know the other's."""
    data = read_interactions(([f"u{k % 12}" for k in range(120)], [f"i{k % 7}" for k in range(120)]))
    table = {"item": [f"i{k}" for k in range(7)], "kind": ["a", None, "b", None, "a", "b", "c"]}
    makers = pd.DataFrame, lambda of: pd.DataFrame(of, dtype=object), pl.DataFrame, pa.table
    models = [RGALS(K=3, random_state=0).fit(data, item_features=make(table)) for make in makers]
    assert len({model.fingerprint() for model in models}) == 1
    for make in makers:
        alone = models[0].transform_items(None, item_features=make(table))
        np.testing.assert_array_equal(alone, models[-1].transform_items(None, item_features=pa.table(table)))
        assert abs(alone[1]).min() > 0


def test_dates_are_the_same_categories_in_every_unit_and_frame():
    """Days that came in seconds where the fit had nanoseconds were unknown to it, in silence."""
    pa = pytest.importorskip("pyarrow")
    days = np.array(["2024-01-31", "NaT", "2024-02-01"], "datetime64[s]")
    frames = [pd.DataFrame({"since": days.astype(f"datetime64[{unit}]")}) for unit in ("s", "us", "ns")]
    frames += [frames[0].astype("category"), pa.table({"since": days.astype("datetime64[ms]")})]
    found, _, encoding, _ = read_features(frames[0], 3, None, "item_features")
    assert encoding[0]["categories"] == ["2024-01-31 00:00:00", "2024-02-01 00:00:00", "nan"]
    for frame in frames:
        again = read_features(frame, 3, None, "item_features", encoding)[0]
        np.testing.assert_array_equal(again.toarray(), found.toarray())
    np.testing.assert_array_equal(found.toarray().sum(axis=1), 1)


def test_features_of_a_frame_find_ids_that_are_texts_and_integers(rng):
    data = read_interactions((["a", 5, "b", 5], ["x", 3, "y", "x"]))
    table = pd.DataFrame({"item": [3, "x", "y", 4], "kind": ["k", None, "l", "k"], "year": [1.0, 2, 3, 4]})
    model = RGALS(K=2, random_state=0).fit(data, item_features=table)
    assert model.item_ids_.tolist() == [3, "x", "y", 4]
    model.partial_fit(None, item_features=table[:2])
    assert model.item_ids_.tolist() == [3, "x", "y", 4]


def test_ids_of_features_are_of_the_type_of_the_interactions(rng):
    """Texts beside integers joined the catalogue as so many new items."""
    whole = read_interactions((np.arange(120) % 12, np.arange(120) % 7))
    texts = read_interactions(([str(k % 12) for k in range(120)], [f"{k % 7}" for k in range(120)]))
    told = rng.normal(size=(7, 2))
    for data, ids, kind in ((whole, [str(k) for k in range(7)], "text"), (texts, np.arange(7), "integers")):
        data = data.replace(item_ids=data.item_ids.astype("<U1") if data is texts else data.item_ids)
        with pytest.raises(InputError, match=rf"item_features: its item ids are {kind} \("):
            RGALS(K=2).fit(data, item_features=(ids, told))


@pytest.mark.parametrize("loss", ["rg2", "rgx"])
def test_features_that_predict_what_no_float_holds_leave_the_model_as_it_was(loss, X, features):
    """An item had factors of NaN and infinity, on which every later update failed."""
    model = RGALS(K=4, loss=loss, random_state=0).fit(X, **features)
    before = model.fingerprint()
    told = np.vstack([features["item_features"].toarray(), np.full((1, 9), 1e300)])
    with pytest.raises(NumericalError, match="beyond float32; scale the features"):
        model.partial_fit(None, item_features=told[[*range(COLD_ITEM), 35, *range(COLD_ITEM + 1, 35)]])
    assert model.fingerprint() == before
    with pytest.raises(NumericalError, match="beyond float32; scale the features"):
        model.recommend_new(user_features=np.full((1, 7), 1e300))


def test_a_model_with_many_categories_is_saved(rng, tmp_path):
    """Metadata of more than 4 MB are refused, so that nobody could save it."""
    data = read_interactions(([f"u{k % 12}" for k in range(120)], [f"i{k % 7}" for k in range(120)]))
    table = pd.DataFrame(
        {"item": [f"i{k}" for k in range(7)], "author": [letter * 10**6 for letter in "abcdefg"]}
    )
    model = RGALS(K=2, random_state=0).fit(data, item_features=table)
    model.save(tmp_path / "model.npz")
    again = RGALS.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(*(m.transform_items(None, item_features=table) for m in (model, again)))


def test_numbers_of_any_frame_are_numbers(rng):
    """Columns that may miss some come as objects; they were a category for each value."""
    data = read_interactions(([0, 0, 1, 1], [0, 1, 1, 2]))
    table = pd.DataFrame({"item": [0, 1, 2], "year": pd.array([1990, 2000, 2010], dtype="Int64")})
    model = RGALS(K=2).fit(data, item_features=table.astype({"year": object}))
    state = model._state()
    np.testing.assert_allclose(state.priors[1].features.toarray()[:, 0], [-(1.5**0.5), 0, 1.5**0.5])
    with pytest.raises(InputTypeError, match="'year' held numbers in the fit"):
        model.partial_fit(None, item_features=pd.DataFrame({"item": [3], "year": ["new"]}))
    years = [Decimal(1990), Decimal(2000), Decimal(2010)]  # as databases give them
    for frame in (table.assign(year=years), pl.DataFrame({"item": [0, 1, 2], "year": years})):
        again = RGALS(K=2).fit(data, item_features=frame)._state().priors[1].features
        np.testing.assert_array_equal(again.toarray(), state.priors[1].features.toarray())


@pytest.mark.parametrize("kind", [pd.DataFrame, pa.Table.from_pandas])
def test_a_frame_without_rows_is_a_day_without_new_items_and_nothing_to_fit(kind, rng):
    """An empty column has no type, or that of numbers: the text of the fit was missed in it."""
    X = sp.csr_array((rng.random((40, 6)) < 0.4).astype(float))
    data = Interactions(X, np.arange(40), np.arange(6))
    told = pd.DataFrame({"item": np.arange(6), "year": np.arange(6), "genre": list("aabbcc")})
    model = RGALS(K=2, random_state=0).fit(data, item_features=told)
    before = model.item_factors_.copy()
    for empty in (told[:0], told[:0].astype(object)):
        model.partial_fit(None, item_features=kind(empty))
        assert model.transform_items(None, item_features=kind(empty)).shape == (0, 2)
    np.testing.assert_array_equal(model.item_factors_, before)
    with pytest.raises(InputError, match="item_features has no rows"):
        RGALS(K=2).fit(data, item_features=kind(told[:0]))


def test_a_constant_column_leaves_new_rows_as_they_are(rng):
    """They were divided by the rounding of its mean: factors of a new item were 1e14."""
    X = sp.csr_array((rng.random((40, 6)) < 0.4).astype(float))
    told = pd.DataFrame({"year": np.arange(6), "tax": 0.1})
    assert told["tax"].to_numpy().std() > 0
    model = RGALS(K=2, random_state=0).fit(X, item_features=told)
    np.testing.assert_allclose(model._state().priors[1].features.toarray()[:, 1], 0, atol=1e-15)
    new = model.transform_items(None, item_features=pd.DataFrame({"year": [3, 3], "tax": [0.1, 0.2]}))
    np.testing.assert_allclose(new[1], new[0])


def test_weights_that_are_not_found_are_an_error(features, rng, monkeypatch):
    """The last iterate was taken in silence."""
    monkeypatch.setattr(prior_module, "DIRECT", 0)
    monkeypatch.setattr(prior_module, "_STEPS", 2)
    with pytest.raises(NumericalError, match="9 features are not found in 2 steps"):
        Prior(features["item_features"], 1e-9, rng.random(35)).regress(rng.standard_normal((35, 4)))


@pytest.mark.parametrize("direct", [4096, 0])
def test_weights_lie_as_a_file_gives_them_back(direct, features, rng, monkeypatch):
    """In the other order a loaded model rounded otherwise."""
    monkeypatch.setattr(prior_module, "DIRECT", direct)
    prior = Prior(features["item_features"], 1.0, rng.random(35))
    prior.regress(rng.standard_normal((35, 4)))
    assert prior.weights.flags.c_contiguous


@pytest.mark.parametrize("size", [1e9, 1e200])
def test_collinear_features_of_any_size_end_in_an_error_of_ours(X, size):
    """It was scipy's, or none and weights of NaN."""
    told = np.outer(np.arange(1.0, 36.0), [size, 3 * size, size])
    with pytest.raises(NumericalError, match="3 features are not found by Cholesky.*; scale the features"):
        RGALS(K=2, random_state=0).fit(X, item_features=told)


def test_who_was_fitted_without_features_takes_none(X, features):
    told = features["user_features"]
    for model in (RGALS(K=2).fit(X), Popularity().fit(X)):
        with pytest.raises(ParameterError, match="the fit had none"):
            model.recommend_new(X, user_features=told)
    with pytest.raises(InputError, match="neither interactions nor user_features"):
        RGALS(K=2).fit(X).transform(None)
    with pytest.raises(ShapeError, match="3 columns; those of the fit had 7"):
        RGALS(K=2).fit(X, **features).recommend_new(X, user_features=told[:, :3])


def test_validation_judges_users_of_whom_there_are_features_alone(X, features):
    """They counted as missed, also for early stopping, though the model serves them."""
    train = sp.csr_array(X.multiply(np.arange(50)[:, None] < 30))
    train.eliminate_zeros()
    test = sp.csr_array(X.multiply(np.arange(50)[:, None] >= 30))
    test.eliminate_zeros()
    expected = []

    def judge(now):
        scores = now.user_factors @ now.item_factors.T
        expected.append(evaluate(lambda users: scores[users], train, test)["ndcg@10"])

    model = RGALS(K=3, reg=0.5, n_iter=3, dtype="float64", random_state=0)
    model.fit(train, validation=test, callbacks=judge, **features)
    assert [row["ndcg@10"] for row in model.history_] == pytest.approx(expected) and expected[-1] > 0


def test_numbers_are_no_truth_values_of_the_fit(rng):
    """They were of no category that is known, which was said by nothing; 1.0 is the category 1."""
    data = read_interactions((rng.integers(0, 9, 40), rng.integers(0, 6, 40)))
    ids = data.item_ids
    for old in (
        [True, False, True, False, True, False],
        pd.array([True, None] * 3, "boolean"),
        list("xyzxyz"),
    ):
        model = RGALS(K=2, random_state=0).fit(data, item_features=pd.DataFrame({"item": ids, "new": old}))
        with pytest.raises(InputTypeError, match="item_features: column 'new' held '.*' in the fit"):
            model.transform_items(None, item_features=pd.DataFrame({"new": [1]}))
    frame = pd.DataFrame({"item": ids, "new": pd.Categorical([1, 2] * 3)})
    model = RGALS(K=2, random_state=0).fit(data, item_features=frame)
    made = [model.transform_items(None, item_features=pd.DataFrame({"new": [one]})) for one in (1, 1.0, "1")]
    assert np.abs(made[0]).sum() > 0 and np.array_equal(made[0], made[1]) and np.array_equal(made[0], made[2])


def test_items_of_whom_there_are_features_alone_are_watched_as_they_are_published(X, features):
    """They were those of the weights of one iteration before, in the first one zero: all of them missed."""
    cold = X.toarray()
    cold[:, :8] = 0
    hidden = sp.csr_array(X.toarray() * (cold == 0))
    seen = []
    model = RGALS(K=5, n_iter=3, reg=0.05, dtype="float64", metric="ndcg@5", random_state=0)
    given = {"validation": hidden, "item_features": np.abs(features["item_features"].toarray()) + 0.1}
    model.fit(
        sp.csr_array(cold), callbacks=lambda now: seen.append(now.item_factors.copy()) and None, **given
    )
    for n, factors in enumerate(seen, start=1):
        ended = clone(model).set_params(n_iter=n).fit(sp.csr_array(cold), **given)
        found = evaluate(ended, sp.csr_array(cold), hidden, "ndcg@5")["ndcg@5"]
        assert model.history_[n - 1]["ndcg@5"] == pytest.approx(found)
        np.testing.assert_allclose(
            np.linalg.norm(factors[:8], axis=1), np.linalg.norm(ended.item_factors_[:8], axis=1)
        )


def test_a_fingerprint_knows_how_features_are_read(X, rng, tmp_path):
    """Of frames in other units it was the same, and new items got other factors."""
    frame = pd.DataFrame({"price": rng.standard_normal(35), "kind": rng.choice(["a", "b"], 35)})
    models = [
        RGALS(K=3, random_state=0, feature_reg=1.0).fit(X, item_features=frame.assign(price=frame.price * f))
        for f in (1, 4)
    ]
    new = [model.transform_items(item_features=frame[:2]) for model in models]
    assert np.abs(new[0] - new[1]).max() > 1e-3
    assert models[0].fingerprint() != models[1].fingerprint()
    models[0].save(tmp_path / "model")
    assert RGALS.load(tmp_path / "model").fingerprint() == models[0].fingerprint()


def test_a_fingerprint_knows_which_rows_have_which_features(X):
    kinds = np.arange(35) % 4
    model = RGALS(K=3, n_iter=2, random_state=0, feature_reg=1.0).fit(
        X, item_features=sp.csr_array(np.eye(4)[kinds])
    )
    state = model._state()
    moved = replace(state.priors[1], features=sp.csr_array(np.eye(4)[3 - kinds]))
    np.testing.assert_array_equal(moved.features.data, state.priors[1].features.data)
    assert replace(state, priors=(None, moved)).fingerprint != state.fingerprint
