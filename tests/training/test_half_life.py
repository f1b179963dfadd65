"""Weights that halve with age: in fits, fold-in, updates, files; what lacks times is refused."""

from __future__ import annotations

import warnings
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from rgals import IALS, RG2, RGALS, RGX, WRMF, InputError, ParameterError, UnknownIdError, ValuesWarning
from rgals.baselines import Popularity
from rgals.datasets import Interactions, make_implicit, read_interactions
from rgals.matrix.csr import TimedMatrix
from rgals.matrix.entries import hold_out
from rgals.matrix.validate import as_csr
from rgals.metrics import evaluate

DAY = 86_400 * 10**9


def log(rng, n=900, days=100, n_users=40, n_items=30, dislikes=False) -> pd.DataFrame:
    """Events of some days; every user and item has one."""
    users, items = rng.integers(n_users, size=n), rng.integers(n_items, size=n)
    users[:n_users], items[:n_items] = np.arange(n_users), np.arange(n_items)
    frame = pd.DataFrame({"user": users, "item": items, "rating": rng.integers(1, 4, n).astype(float)})
    if dislikes:
        frame["rating"] *= rng.choice([1, -1], n, p=[0.8, 0.2])
    frame["day"] = rng.integers(0, days, n)
    frame["timestamp"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(frame["day"], unit="D")
    return frame.sort_values("timestamp").reset_index(drop=True)


def read(frame) -> Interactions:
    return read_interactions(frame, user="user", item="item", value="rating", timestamp="timestamp")


def expected_weights(data: Interactions, half_life: float) -> sp.csr_array:
    """From the definition, in float64."""
    share = 0.5 ** ((data.timestamp.max() - data.timestamp) / half_life)
    weights = data.matrix.data * share
    weights *= data.matrix.data.sum() / weights.sum()
    return sp.csr_array((weights, data.matrix.indices, data.matrix.indptr), shape=data.shape)


def weights_of(model) -> sp.csr_array:
    state = model._state()
    return state.weighting.rows(state.seen).to_scipy(np.float64)


@pytest.mark.parametrize("kind", [RG2, RGX, IALS, WRMF])
def test_items_of_long_ago_do_not_spoil_the_fit(kind, tmp_path):
    made = make_implicit(300, 150, mean_interactions=20, random_state=0).matrix
    train, hidden = hold_out(as_csr(made, dtype=np.float32), 0.2, 0)
    old = sp.random_array((300, 20), density=0.02, rng=np.random.default_rng(0), format="csr")
    old.data[:] = 1
    both = sp.hstack([train.to_scipy(), old], format="csr")
    times = np.where(both.indices < 150, 1000.0, 0.0)  # 100 half-lives ago
    loss = kind(item_exponent=-0.6)  # negative, as "auto" takes it for sparse data
    params = {"K": 16, "loss": loss, "readout_exponent": -0.2, "values": "raw", "random_state": 0}
    plain = RGALS(**params).fit(train.to_scipy())
    aged = RGALS(half_life=10, **params).fit(TimedMatrix.of(both, times))
    found = [(m.user_factors_, m.item_factors_[:150]) for m in (plain, aged)]
    without, figure = (evaluate(factors, train, hidden, "ndcg@10")["ndcg@10"] for factors in found)
    # In WRMF an interaction of weight 0 still has a target.
    assert figure > (0.75 if kind is WRMF else 0.95) * without
    aged.save(tmp_path / "model.npz")
    folded_in = RGALS.load(tmp_path / "model.npz").transform(TimedMatrix.of(both, times))
    np.testing.assert_array_equal(folded_in, aged.user_factors_)


@pytest.mark.parametrize("loss", [RG2(), IALS()], ids=lambda loss: loss.name)
def test_a_fit_is_that_of_the_decayed_weights(loss, rng):
    data = read(log(rng))
    for half_life in ("20d", 20.0 * DAY, "480h"):
        model = RGALS(K=6, loss=loss, half_life=half_life, random_state=0, dtype="float64").fit(data)
        weights = expected_weights(data, 20 * DAY)
        np.testing.assert_allclose(weights_of(model).toarray(), weights.toarray(), rtol=1e-7)
        by_hand = RGALS(K=6, loss=loss, values="raw", random_state=0, dtype="float64").fit(weights)
        scores, expected = (m.user_factors_ @ m.item_factors_.T for m in (model, by_hand))
        np.testing.assert_allclose(scores, expected, atol=1e-5)
    assert weights_of(model).sum() == pytest.approx(data.matrix.sum())
    endless = RGALS(K=6, loss=loss, half_life="90000y", random_state=0).fit(data)
    plain = RGALS(K=6, loss=loss, random_state=0).fit(data)
    np.testing.assert_allclose(endless.item_factors_, plain.item_factors_, atol=1e-3)


def test_an_age_of_one_half_life_halves_a_weight_whatever_values_become():
    frame = pd.DataFrame({"user": [0, 0, 1, 1], "item": [0, 1, 0, 2], "rating": [1.0, 9, 1, 9]})
    frame["timestamp"] = [0, 0, 10, 20]
    for values in ("raw", "log1p", "binary", "bm25"):
        plain = weights_of(RGALS(K=1, values=values).fit(read(frame))).toarray()
        aged = weights_of(RGALS(K=1, values=values, half_life=10).fit(read(frame))).toarray()
        share = aged[plain > 0] / plain[plain > 0]
        np.testing.assert_allclose(share / share[-1], [0.25, 0.25, 0.5, 1], rtol=1e-6)
        assert aged.sum() == pytest.approx(plain.sum())


def test_dislikes_age_as_likes_do(rng):
    frame = log(rng, dislikes=True).drop_duplicates(["user", "item"], keep="last")
    data = read_interactions(
        frame, user="user", item="item", value="rating", timestamp="timestamp", dislike_below=0
    )
    model = RGALS(K=4, loss=IALS(dislikes=True), half_life="10d").fit(data)
    share = 0.5 ** ((data.timestamp.max() - data.timestamp) / (10 * DAY))
    likes = data.matrix.data > 0
    share *= data.matrix.data[likes].sum() / (data.matrix.data * share)[likes].sum()
    np.testing.assert_allclose(weights_of(model).data, data.matrix.data * share, rtol=1e-6)


@pytest.mark.parametrize("values", ["raw", "log1p", "binary"])
def test_days_of_updates_give_the_weights_of_a_refit_and_rows_their_half_step(values, rng):
    frame = log(rng)
    first, options = frame[frame["day"] < 95], {"K": 5, "values": values, "half_life": "7d"}
    model = RGALS(**options, random_state=0).fit(read(first))
    for day in range(95, 100):
        today = frame[frame["day"] == day].copy()
        model.partial_fit(read(today))
        until = read(frame[frame["day"] <= day])
        refit = RGALS(**options, n_iter=1, random_state=0).fit(until)
        at = until.users.index(model.user_ids_), until.items.index(model.item_ids_)
        found, expected = weights_of(model).toarray(), weights_of(refit).toarray()[at[0]][:, at[1]]
        if values == "log1p":  # its scale is a statistic of values, which stays until the next fit
            found, expected = found / found.sum(), expected / expected.sum()
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        touched = np.isin(model.user_ids_, today["user"])
        np.testing.assert_allclose(
            model.user_factors_[touched], model.transform(until.take(*map(np.sort, at)))[touched], atol=1e-5
        )


def test_merging_says_of_times_what_it_says_of_values():
    first = pd.DataFrame(
        {"user": [0, 0, 1], "item": [0, 1, 0], "rating": [1.0, 2, 4], "timestamp": [8, 4, 2]}
    )
    more = pd.DataFrame({"user": [0, 1], "item": [0, 2], "rating": [5.0, 1], "timestamp": [6, 9]})
    for merge, time, value in (("add", 8, 6), ("replace", 6, 5), ("drop", 8, 1)):
        model = RGALS(K=1, half_life=3.0).fit(read(first)).partial_fit(read(more), merge=merge)
        seen = model._state().seen
        assert seen.times.tolist() == [time, 4, 2, 9] and seen.to_scipy().data[0] == value
    model.partial_fit_users(read(more[:1]))
    assert model._state().seen.times.tolist() == [6, 2, 9]
    model.partial_fit_items(read(more[1:].assign(timestamp=7)))
    assert model._state().seen.times.tolist() == [6, 2, 7]
    model.forget_users([0])
    assert model._state().weighting.newest == 7 and model._state().seen.times.tolist() == [2, 7]


def test_training_histories_fold_in_to_their_factors_and_files_keep_ages(rng, tmp_path):
    data = read(log(rng))
    model = RGALS(K=6, half_life="20d", random_state=0).fit(data)
    np.testing.assert_array_equal(model.transform(data), model.user_factors_)
    some = data.take(np.arange(5), np.arange(30)[::2])
    turned = some.replace(item_ids=some.item_ids)
    np.testing.assert_array_equal(model.transform(turned).shape, (5, 6))
    assert model.explain(0, 1).score == pytest.approx(model.predict([0], [1])[0], abs=1e-5)
    assert model.objective(data) == pytest.approx(model.history_[-1]["objective"], rel=1e-4)
    model.save(tmp_path / "model.npz")
    again = RGALS.load(tmp_path / "model.npz")
    assert again.half_life == "20d" and again.fingerprint() == model.fingerprint()
    assert again.fingerprint() != RGALS(K=6, half_life="21d", random_state=0).fit(data).fingerprint()
    new = data.take(np.arange(3), np.arange(30))
    np.testing.assert_array_equal(again.recommend_new(new).scores, model.recommend_new(new).scores)
    tomorrow = read(log(rng, n=50))
    factors = [m.partial_fit(tomorrow).user_factors_ for m in (model, again)]
    np.testing.assert_array_equal(*factors)


@pytest.mark.parametrize("loss", [RG2(alpha=0.05, item_exponent=-0.5), IALS(alpha0=0.1, user_exponent=-0.5)])
def test_the_objective_of_a_faded_matrix_is_that_of_its_fit(loss, rng):
    """Powers of faded sums were taken below one interaction, which the fit does not do."""
    data = read(log(rng))
    model = RGALS(K=6, loss=loss, reg=0.01, half_life="2d", user_mean=False, random_state=0).fit(data)
    assert min(model._state().degrees.item_sum.min(), model._state().degrees.user_sum.min()) < 0.5
    assert model.objective(data) == pytest.approx(model.history_[-1]["objective"], rel=1e-4)


@pytest.mark.parametrize("exponent", [0.4, -0.4])
def test_the_read_out_of_faded_items_is_that_of_one_interaction(exponent, rng):
    data = read(log(rng))
    model = RGALS(
        K=3, half_life="1d", readout_exponent=exponent, n_iter=1, random_state=0, dtype="float64"
    ).fit(data)
    weights = expected_weights(data, DAY)
    sums, counts = weights.sum(axis=0), data.matrix.astype(bool).sum(axis=0)
    least = weights.sum() / weights.nnz
    assert sums.min() < 0.5 * least
    raised = np.maximum(sums, least) ** exponent
    expected = raised * counts.sum() / (counts @ raised)
    assert expected.std() > 0.05
    np.testing.assert_allclose(model.item_scale_, expected, rtol=1e-6)


def test_drift_is_that_of_the_objective_of_the_fit(rng):
    loss = IALS(alpha0=0.1, user_exponent=-0.5, item_exponent=-0.5)
    model = RGALS(K=6, loss=loss, reg=0.01, half_life="2d", user_mean=False, n_iter=200, dtype="float64")
    model.set_params(random_state=0).fit(read(log(rng)))
    assert model.history_[0]["objective"] > 1.01 * model.history_[-1]["objective"]
    assert 0 <= model.drift().fall < 1e-5


def test_a_half_life_in_another_unit_than_the_times_is_warned_of(rng):
    frame = log(rng)[["user", "item", "timestamp"]]
    with pytest.warns(ValuesWarning, match="half_life=30: 9.* of the interactions are .*'30d' says"):
        RGALS(K=4, half_life=30, random_state=0).fit(frame)  # nanoseconds
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RGALS(K=4, half_life="12h", random_state=0).fit(frame)
        RGALS(K=4, half_life=DAY, random_state=0).fit(frame)


def test_ages_of_a_few_half_lives_are_not_warned_of(rng):
    data = read(log(rng))
    age = (data.timestamp.max() - data.timestamp) / DAY
    assert np.mean(age > 5) > 0.9 and age.max() <= 100
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RGALS(K=2, half_life="5d", values="raw", n_iter=1, random_state=0).fit(data)


def test_histories_are_laid_out_with_their_times(rng):
    data = read(log(rng))
    model = RGALS(K=6, half_life="20d", random_state=0).fit(data)
    names = np.array([f"i{k:02}" for k in range(30)])[::-1]  # another order of columns than by number
    named = RGALS(K=6, half_life="20d", random_state=0).fit(data.replace(item_ids=names))
    order = np.argsort(names)
    turned = sp.csr_array(sp.csc_array(data.matrix)[:, order])
    turned.sort_indices()
    stamps = sp.csr_array((data.timestamp, data.matrix.indices, data.matrix.indptr), shape=data.shape)
    stamps = sp.csr_array(sp.csc_array(stamps)[:, order])
    stamps.sort_indices()
    given = Interactions(turned, data.user_ids, names[order], stamps.data)
    np.testing.assert_allclose(named.transform(given), model.user_factors_, atol=1e-5)


def test_what_has_no_times_is_refused_with_the_line_that_is_right(rng):
    data = read(log(rng))
    timeless = data.replace(timestamp=None)
    model = RGALS(K=2, half_life="9d").fit(data)
    for call in (
        lambda X: RGALS(K=2, half_life=3).fit(X),
        model.partial_fit,
        model.partial_fit_users,
        model.partial_fit_items,
        model.transform,
        model.recommend_new,
        model.score,
    ):
        with pytest.raises(ParameterError, match=r"read_interactions\(\(users, items, values, times\)\)"):
            call(timeless)
    with pytest.raises(ParameterError, match="half_life='90d' .*has no times|half_life='90d'"):
        RGALS(K=2, half_life="90d").fit(data.matrix)
    for wrong in (0, -1.0, "9 weeks", "d", "0d", "", True, np.timedelta64(9, "D"), np.timedelta64(9, "ns")):
        with pytest.raises(ParameterError, match="half_life="):
            RGALS(K=2, half_life=wrong).fit(data)
    for wrong in (pd.Timedelta("3D"), np.timedelta64(3, "D"), timedelta(days=3)):  # which say their unit
        with pytest.raises(ParameterError, match="half_life=.*or a text such as '90d', of s, min"):
            RGALS(K=2, half_life=wrong).fit(data)
    with pytest.raises(ParameterError, match="no times since 1970; give a number in their unit"):
        RGALS(K=2, half_life="3d").fit(data.replace(timestamp=np.arange(data.nnz)))
    seconds = data.replace(timestamp=data.timestamp // 10**9)
    found = (RGALS(K=2, half_life="3d", random_state=0).fit(X) for X in (data, seconds))
    np.testing.assert_array_equal(*(m.item_factors_ for m in found))
    bad = np.where(np.arange(data.nnz) == 3, np.nan, data.timestamp.astype(float))
    with pytest.raises(InputError, match=r"timestamp\[3\]: the timestamp is nan"):
        data.replace(timestamp=bad)
    with pytest.raises(InputError, match="the time of interaction 3 is nan"):
        RGALS(K=2, half_life=3).fit(TimedMatrix.of(data.matrix, bad))


@pytest.mark.parametrize("power", [0, 3, 6, 9])
@pytest.mark.parametrize("other", [0, 3, 6, 9])
def test_times_in_another_unit_than_those_of_the_fit_are_refused(power, other, rng):
    """Seconds after dates weighed nothing, in silence; dates after seconds ended in a NumericalError."""
    frame = log(rng)
    seconds = frame["timestamp"].to_numpy().astype("datetime64[ns]").astype(np.int64) // 10**9
    model = RGALS(K=3, half_life="30d", random_state=0, n_iter=1)
    model.fit(read(frame.assign(timestamp=seconds * 10**power)))
    before = model.fingerprint()
    today = read(frame.assign(timestamp=(seconds + 86_400) * 10**other)[:20])
    some = today.take(np.arange(today.n_users), np.arange(today.n_items))
    for call in (model.transform, model.recommend_new, model.partial_fit_users, model.partial_fit):
        if power == other:
            call(some)
            continue
        with pytest.raises(InputError, match="in another unit than those of the fit"):
            call(some)
    assert (model.fingerprint() == before) == (power != other)
    assert model.partial_fit(read(frame.assign(timestamp=0)[:2]))  # no time of this kind: as it is


@pytest.mark.parametrize("loss", ["rg2", "rgx", "wrmf", "ials"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_histories_of_hundreds_of_half_lives_ago_are_fitted_and_folded_in(loss, dtype, rng):
    """One user who had not come for 130 half-lives ended every fit in float32."""
    frame = log(rng)
    old = pd.DataFrame({"user": [99] * 3, "item": [1, 2, 3], "rating": [1.0, 2, 3]})
    old["timestamp"] = frame["timestamp"].min() - pd.Timedelta(3000, "D")
    data = read(pd.concat([frame, old]))
    model = RGALS(K=4, loss=loss, half_life="1d", values="raw", dtype=dtype, random_state=0).fit(data)
    age = (data.timestamp.max() - data.timestamp) / DAY
    share = 0.5 ** np.minimum(age, 40)
    expected = data.matrix.data * share * (data.matrix.data.sum() / (data.matrix.data * share).sum())
    np.testing.assert_allclose(weights_of(model).data, expected, rtol=1e-6)
    np.testing.assert_array_equal(model.transform(data), model.user_factors_)
    later = frame.assign(timestamp=frame["timestamp"] + pd.Timedelta(900, "D"))
    assert np.isfinite(model.transform(read(later))).all()
    model.partial_fit(read(later[:1]))
    assert np.isfinite(model.user_factors_).all() and model._state().weighting.newest > data.timestamp.max()


def test_times_stay_with_their_interactions_where_others_go(rng):
    """Those of interactions set to 0, or too small for float32, were left behind: others took them."""
    data = read(log(rng))
    model = RGALS(K=3, half_life="30d", random_state=0, n_iter=1).fit(data)
    seen, gone = model.seen_, slice(0, None, 3)
    expected = np.delete(seen.times, gone)
    for value in (0.0, 1e-60):
        part = seen.astype(np.float64)
        part.times, part.data[gone] = seen.times, value
        again = RGALS(K=3, half_life="30d", random_state=0, n_iter=1).fit(part)
        np.testing.assert_array_equal(again.seen_.times, expected)
    part = model.seen_
    part.data[gone] = 0
    part.eliminate_zeros()
    with pytest.raises(InputError, match="times for .* entries"):
        RGALS(K=3, half_life="30d").fit(part)
    some = data.take(np.arange(40)[::2], np.arange(30))
    other = RGALS(K=3, half_life="30d", random_state=0, n_iter=1).fit(some)
    other.partial_fit(Interactions(model.seen_, model.user_ids_, model.item_ids_), merge="drop")
    at = other._state().users.index(model.user_ids_)
    np.testing.assert_array_equal(other._state().seen.take_rows(at).times, model.seen_.times)


def test_a_fingerprint_knows_when_interactions_were(rng):
    state = RGALS(K=3, half_life="30d", random_state=0, n_iter=1).fit(read(log(rng)))._state()
    times = state.seen.times[::-1].copy()
    assert times.max() == state.weighting.newest and (times != state.seen.times).any()
    assert replace(state, seen=replace(state.seen, times=times)).fingerprint != state.fingerprint


def test_items_are_folded_in_from_tables_with_their_times(rng):
    """A matrix alone was taken, which has no times."""
    data = read(log(rng))
    model = RGALS(K=3, half_life="30d", random_state=0, n_iter=300, dtype="float64").fit(data)
    stamps = sp.csr_array((data.timestamp, data.matrix.indices, data.matrix.indptr), shape=data.shape)[::-1]
    turned = Interactions(data.matrix[::-1], data.user_ids[::-1], data.item_ids, stamps.data)
    for given in (turned, model.seen_):
        np.testing.assert_allclose(model.transform_items(given), model.item_factors_, atol=1e-5)
    some = data.take(np.array([1, 3]), np.array([0]))
    with pytest.raises(UnknownIdError, match="X_cols: user 77 is not known"):
        model.transform_items(some.replace(user_ids=[1, 77]))
    with pytest.raises(ParameterError, match="no times"):
        model.transform_items(data.matrix)


def test_popularity_takes_the_same_half_lives(rng):
    data = read(log(rng))
    first, second = (Popularity(half_life=h).fit(data).item_factors_ for h in ("9d", 9.0 * DAY))
    np.testing.assert_array_equal(first, second)
    model = RGALS(K=2, half_life="9d").fit(data)
    ids, scores = model.recommend_new(sp.csr_array((1, 30)), n=30, cold="popular")
    expected = expected_weights(data, 9 * DAY).sum(axis=0)
    np.testing.assert_allclose(scores[0], np.sort(expected)[::-1], rtol=1e-5)


def test_models_without_half_life_are_what_they_were(rng):
    data = read(log(rng))
    timed, timeless = (RGALS(K=4, random_state=0).fit(X) for X in (data, data.replace(timestamp=None)))
    assert timed.fingerprint() == timeless.fingerprint() and timed._state().seen.times is None
    assert as_csr(data.matrix).times is None


def test_users_with_dislikes_alone_may_be_left():
    """The mean weight of no likes was 0 / 0."""
    data = read_interactions(([0, 0, 1], [0, 1, 0], [1, 1, -1], [1, 2, 3]), dislike_below=0)
    model = RGALS(K=1, loss=IALS(dislikes=True), half_life=2.0, random_state=0).fit(data)
    assert np.isfinite(model.forget_users([0]).item_factors_).all()
    assert model._state().weighting.left == 1
