"""The rule for what is "auto": consistent between losses, the default everywhere, good on real data."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from rgals import IALS, RG2, RGALS, RGX, WRMF, InputError, ParameterError, ShapeError
from rgals.baselines import Popularity
from rgals.cli import main
from rgals.datasets import make_implicit, read_interactions
from rgals.losses import LOSSES, Degrees, Loss, rule, spectral_edge
from rgals.losses.fitted import doubt, typical
from rgals.matrix.cohesion import cohesion, largest_pull
from rgals.matrix.validate import as_csr
from rgals.metrics import evaluate
from rgals.model_selection import PROTOCOLS, default_space, split_interactions, tune
from rgals.runtime.errors import InputTypeError, PrecisionWarning

KINDS = [RG2, RGX, IALS, WRMF]


@pytest.fixture(scope="module")
def matrix():
    """150 x 100: three communities, so that the rule has something to see."""
    parts = [make_implicit(50, n, n_clusters=2, mean_interactions=8, random_state=n) for n in (34, 33, 33)]
    return sp.csr_array(sp.block_diag([part.matrix for part in parts]))


def dense_cohesion(X):
    """By singular values and by loops over what a single user or item gives."""
    R = np.asarray(sp.csr_array(X).todense() != 0, dtype=np.float64)
    R = R[R.sum(axis=1) > 0][:, R.sum(axis=0) > 0]
    A = R / np.sqrt(np.outer(R.sum(axis=1), R.sum(axis=0)))
    walks = (np.linalg.svd(A, compute_uv=False) ** 4).sum()
    walks -= ((A**2).sum(axis=1) ** 2).sum() + ((A**2).sum(axis=0) ** 2).sum() - (A**4).sum()
    share = R.sum(axis=1) / R.sum()
    return walks / (1 - (share**2).sum())


def of_random_margins(n_users, n_items, skew, rng, mean=12.0):
    """Interactions that know of popularity and activity only."""
    users, items = rng.uniform(0.4, 1.6, n_users), 1.0 / np.arange(5, n_items + 5) ** skew
    chance = np.minimum(mean * np.outer(users, items / items.sum()), 0.9)
    return sp.csr_array((rng.random(chance.shape) < chance).astype(float))


def by_chance(X):
    (users, items), n = X.shape, X.nnz
    return ((1 - users / n) * (1 - items / n)) ** 2


def test_a_loss_is_named_in_any_way(matrix):
    assert rule("IALS", matrix, 16) == rule(IALS, matrix, 16) == rule(IALS(), matrix, 16)
    assert default_space("rg2", as_csr(matrix)) == default_space(RG2(), as_csr(matrix))
    assert default_space("rg2", matrix) == default_space("rg2", as_csr(matrix))
    for wrong, message in (("als", "loss='als'"), (None, "not NoneType"), (RG2(alpha=-1), "RG2.alpha=-1")):
        with pytest.raises((ParameterError, InputTypeError), match=message):
            rule(wrong, matrix)
    with pytest.raises(ParameterError, match="K=0"):
        rule("rg2", matrix, 0)


def test_cohesion_is_what_it_states(matrix):
    assert Degrees.of(as_csr(matrix)).cohesion == pytest.approx(dense_cohesion(matrix), rel=1e-9)
    for form in (matrix, matrix.toarray()):
        assert Degrees.of(form).cohesion == Degrees.of(as_csr(matrix)).cohesion
    assert dense_cohesion(matrix) > 1.5, "the generated matrix must have communities"


def test_cohesion_is_one_by_chance_and_counts_communities(rng):
    for mean in (8.0, 24.0):
        X = of_random_margins(1500, 900, 0.5, rng, mean)
        assert cohesion(as_csr(X)) == pytest.approx(by_chance(X), abs=0.1)
    parts = [of_random_margins(500, 300, 0.5, rng) for _ in range(5)]
    assert cohesion(as_csr(sp.block_diag(parts))) == pytest.approx(5 * by_chance(parts[0]), rel=0.15)


@pytest.mark.few(0)
def test_cohesion_of_a_part_of_the_users_is_that_of_all(monkeypatch):
    large = as_csr(make_implicit(4000, 800, n_clusters=8, random_state=0).matrix)
    whole = cohesion(large)
    monkeypatch.setattr("rgals.matrix.cohesion._PATHS", 60_000)
    assert cohesion(large) != whole and cohesion(large) == pytest.approx(whole, rel=0.15)


def test_the_rule_is_what_it_states(matrix):
    (users, items), n, r = matrix.shape, matrix.nnz, dense_cohesion(matrix)
    few = min(1, items / 700)
    assert few < 1
    alpha = 0.024 * (128 / 64) ** 0.2 / few
    row, column = (
        np.exp(np.log(np.repeat(counts, counts.astype(int))).mean())
        for counts in (matrix.astype(bool).sum(axis=1), matrix.astype(bool).sum(axis=0))
    )
    reg = 2.4 / np.sqrt(min(row, column)) * r**-0.7 * (20 / column) ** 0.15 * (64 / 128) ** 0.06
    reg = few**0.12 * min(reg, 0.4 * dense_pull(matrix, alpha))
    found = rule(RG2(), matrix, K=128)
    wanted = {"alpha": alpha, "item_exponent": -0.22 * np.log(r), "reg": reg}
    assert found == pytest.approx(wanted, rel=1e-3)  # of the steps of the power method
    assert rule(RGX, matrix, 128) == found == rule(RG2, Degrees.of(as_csr(matrix)), 128)
    alpha0 = n / (2 * users * items * alpha)
    ials = rule(IALS, matrix, 128)
    assert ials["alpha0"] == pytest.approx(alpha0)
    assert ials["reg"] == pytest.approx(reg * 2 * alpha / (1 + 2 * alpha), rel=1e-3)
    assert rule(WRMF(), matrix, 128)["alpha"] == pytest.approx(1 / alpha0)


@pytest.mark.parametrize(
    ("shape", "more", "regime"),
    [
        ((200, 400), {"mean_interactions": 8, "n_clusters": 6, "popularity_exponent": 0.3}, "short rows"),
        ((80, 150), {"mean_interactions": 40, "n_clusters": 6}, "long rows"),
        ((120, 120), {"mean_interactions": 60, "n_clusters": 4}, "long rows and columns"),
        ((40, 600), {"mean_interactions": 120, "n_clusters": 4, "popularity_exponent": 0.5}, "few users"),
    ],
)
def test_reg_of_small_matrices_is_a_share_of_what_leaves_nothing(shape, more, regime):
    X = make_implicit(*shape, random_state=0, **{"noise": 0.0, **more}).matrix
    X = X[:, np.flatnonzero(X.sum(axis=0))]
    r = dense_cohesion(X)
    row, column = (
        np.exp(np.log(np.repeat(counts, counts)).mean())
        for counts in (np.diff(X.indptr), np.diff(X.tocsc().indptr))
    )
    noise = 0.9 * (row**-0.5 + column**-0.5)
    share = max(0.3, min(noise, 0.7, max(0.4, 0.4 / r)))
    fall = min(1, max(20, 2 * column) / row) ** (0.3 * np.clip((r - 0.8) / 0.2, 0, 1))
    kinds = {
        "short rows": 0.4 < share < 0.7,
        "long rows": 0.3 < noise < 0.38,
        "long rows and columns": noise < 0.28,
        "few users": fall < 0.9,
    }
    assert kinds == {kind: kind == regime for kind in kinds}, "the generated matrix must be of its kind"
    few = X.shape[1] / 700
    reg = few**0.12 * fall * share * dense_pull(X, 0.024 / few)
    assert rule(RG2(), X, 64)["reg"] == pytest.approx(reg, rel=0.01)  # of the steps of the power method


def test_what_cannot_be_told_from_chance_is_doubted_and_ranked_as_popularity_does():
    """Noise was fitted: two thirds of the NDCG of popularity, where there is nothing else to find."""
    rng, chance = np.random.default_rng(0), np.arange(1, 51.0) ** -0.5
    rows = [rng.choice(50, rng.integers(4, 12), replace=False, p=chance / chance.sum()) for _ in range(1000)]
    ends = np.cumsum([0, *map(len, rows)])
    X = sp.csr_array((np.ones(ends[-1]), np.concatenate(rows), ends))
    told = make_implicit(1000, 50, mean_interactions=8, n_clusters=5, noise=0.0, random_state=0).matrix
    assert rule(RG2, told)["alpha"] == pytest.approx(0.024 * 700 / 50) and rule(RG2, X)["alpha"] > 1.3
    train, test = split_interactions(X, (0.8, 0.2), random_state=0)
    popular = evaluate(Popularity().fit(train), train, test)["ndcg@10"]
    for loss in (RG2(), IALS()):
        assert evaluate(RGALS(loss=loss, random_state=0).fit(train), train, test)["ndcg@10"] > 0.9 * popular
    few = {"loss": RG2(alpha=0.024), "reg": rule(RG2, train)["reg"], "random_state": 0}
    assert evaluate(RGALS(**few).fit(train), train, test)["ndcg@10"] < 0.7 * popular


def dense_pull(matrix, alpha):
    """The largest singular value of what pulls scores of RG2 from 0, in units of the ridges."""
    R = matrix.astype(bool).toarray().astype(float)
    pull = (0.5 + alpha) * R - R.sum(axis=1, keepdims=True) / (2 * R.shape[1])
    rows, columns = (0.5 + alpha) * R.sum(axis=1), alpha * R.sum(axis=0) + R.sum() / (2 * R.shape[1])
    return np.linalg.svd(pull / np.sqrt(np.outer(rows, columns)), compute_uv=False)[0]


@pytest.mark.few(1)
@pytest.mark.parametrize(("alpha", "share"), [(0.024, 1.02), (0.2, 1.02), (0.024, 0.9)])
def test_more_than_the_largest_pull_leaves_nothing_and_less_does(alpha, share):
    X = make_implicit(60, 40, mean_interactions=9, random_state=0).matrix
    X = X[np.diff(X.indptr) > 0]
    X = X[:, np.flatnonzero(X.sum(axis=0))]
    limit = largest_pull(as_csr(X), alpha, np.inf)
    assert limit == pytest.approx(dense_pull(X, alpha), rel=2e-3)
    model = RGALS(4, RG2(alpha=alpha), reg=share * limit, n_iter=500, dtype="float64", random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrecisionWarning)  # of factors that come to 0
        largest = np.abs(model.fit(X).item_factors_).max()
    assert (largest < 1e-3) == (share > 1)


def test_users_who_choose_at_random_are_not_regularised_below_popularity():
    """Fits by the rule used to end with all factors near 0, and items in the order of their numbers."""
    X = make_implicit(300, 150, random_state=0).matrix
    train, test = split_interactions(X, (0.8, 0.2), random_state=0)
    counts = np.asarray((train > 0).sum(axis=0), float).reshape(-1, 1)
    popular = evaluate((np.ones((300, 1)), counts), train, test)["ndcg@10"]
    for loss in ("rg2", "rgx", "ials", "wrmf"):
        model = RGALS(16, loss, random_state=0).fit(train)
        assert evaluate(model, train, test)["ndcg@10"] > 1.5 * popular


def test_wrmf_by_the_rule_is_ials_by_the_rule(matrix):
    """Scores differ by the factor 1 + alpha0 only, so the rankings are the same."""
    found = {}
    for kind in (IALS, WRMF):
        setting = rule(kind, matrix, 6)
        reg = setting.pop("reg")
        model = RGALS(6, kind(**setting), reg=reg, n_iter=400, dtype="float64", random_state=0).fit(matrix)
        found[kind] = model.user_factors_ @ model.item_factors_.T
    alpha0 = rule(IALS, matrix, 6)["alpha0"]
    np.testing.assert_allclose(found[WRMF], (1 + alpha0) * found[IALS], atol=2e-3 * found[WRMF].max())


def test_more_factors_weigh_positives_more_and_need_less_reg():
    X = make_implicit(400, 300, mean_interactions=30, random_state=0).matrix
    found = [rule(RG2, X, K) for K in (8, 64, 256, 1024, 4096)]
    for name, sign in (("alpha", 1), ("reg", -1)):
        steps = sign * np.diff([setting[name] for setting in found])
        assert steps[0] == steps[-1] == 0 and (steps[1:-1] > 0).all(), "constant beyond 64 and 1024"


def test_order_and_empty_rows_change_nothing_and_values_only_their_scale(matrix, rng):
    users, items = (rng.permutation(n) for n in matrix.shape)
    grown = sp.csr_array((matrix.data, matrix.indices, np.append(matrix.indptr, [matrix.nnz] * 9)))
    for kind in KINDS:
        expected = rule(kind, matrix)
        # Of the largest pull only some digits are known.
        assert rule(kind, matrix[users][:, items]) == pytest.approx(expected, rel=1e-3)
        assert rule(kind, grown) == pytest.approx(expected, rel=1e-9)
        scaled = rule(kind, 7.0 * matrix)
        expected["alpha0" if kind is IALS else "alpha"] *= {IALS: 7.0, WRMF: 1 / 7.0}.get(kind, 1.0)
        assert scaled == pytest.approx(expected, rel=1e-6)


def test_empty_rows_and_columns_up_to_a_quarter_change_nothing_of_rg2(matrix, rng):
    doubtful = sp.csr_array((rng.random((60, 50)) < 0.2).astype(float))
    margins = Degrees.of(as_csr(doubtful))
    assert 0.1 < doubt(margins, *map(typical, (margins.user_count, margins.item_count))) < 1.9
    for X in (matrix, doubtful):
        grown = sp.csr_array(X)
        grown.resize(tuple(n + n // 5 for n in X.shape))
        assert rule(RG2, grown) == pytest.approx(rule(RG2, X), rel=1e-9)


def test_values_that_are_equal_rank_as_ones_do(matrix):
    for kind in KINDS:
        of_ones, of_fives = (
            RGALS(6, kind(), n_iter=4, dtype="float64", random_state=0).fit(v * matrix) for v in (1.0, 5.0)
        )
        scores = [m.user_factors_ @ m.item_factors_.T for m in (of_ones, of_fives)]
        if kind is WRMF:  # targets of 1 beside weights of 5: they differ by a factor
            scores = [s / np.linalg.norm(s) for s in scores]
        np.testing.assert_allclose(scores[0], scores[1], atol=1e-6 * abs(scores[0]).max())


def extremes():
    rng = np.random.default_rng(0)
    one = sp.csr_array(np.ones((1, 10)))
    yield "one user", one
    yield "one item", sp.csr_array(one.T)
    yield "nothing shared", sp.csr_array(np.eye(30))
    yield "nothing at all", sp.csr_array((5, 4))
    yield "dense", sp.csr_array((rng.random((80, 60)) < 0.9).astype(float))
    where = rng.integers(0, 200, 400), rng.integers(0, 1_000_000, 400)
    yield "a million items", sp.csr_array((np.ones(400), where), shape=(200, 1_000_000))
    counts = sp.csr_array((rng.random((80, 60)) < 0.1) * np.exp(rng.uniform(0, np.log(1e6), (80, 60))))
    yield "counts up to a million", counts


@pytest.mark.few(7)
@pytest.mark.parametrize(
    ("what", "X"), list(extremes()), ids=lambda value: value if isinstance(value, str) else ""
)
@pytest.mark.parametrize("K", [1, 100_000])
def test_the_rule_is_sane_far_from_any_data(what, X, K):
    for kind in KINDS:
        setting = rule(kind, X, K)
        exponent = setting.pop("item_exponent")
        assert -0.75 <= exponent <= 0 and np.isfinite(list(setting.values())).all(), (what, setting)
        assert min(setting.values()) > 0 and setting["reg"] < 20, (what, setting)
    assert 0.01 <= rule(RG2, X, K)["reg"] <= 0.7 and 0.01 <= rule(RG2, X, K)["alpha"] <= 40


def test_all_pairs_weigh_at_most_ten_mean_values(rng):
    dense = np.kron(np.eye(2), np.ones((30, 400)))
    dense[rng.random(dense.shape) < 0.2] = 1.0
    for value in (1.0, 3.0):
        X = sp.csr_array(value * dense)
        assert rule(RG2, X, 64)["alpha"] == pytest.approx(0.024)
        assert X.mean() / (2 * 0.024) > 12 * value, "by the sizes alone it would be larger"
        assert rule(IALS, X, 64)["alpha0"] == pytest.approx(10 * value)


@pytest.mark.parametrize(("users", "items"), [(600, 100), (200, 300), (600, 300)])
def test_empty_rows_and_columns_leave_the_ridges_of_ials_as_they_were(users, items):
    """Of the ridges of both sides only the product matters: here all rows have 8, all columns 16 of ones."""
    near = (np.arange(20) - np.arange(40)[:, None]) % 20 < 8
    X = sp.csr_array(np.kron(np.eye(5), near))
    assert (np.unique(X.sum(axis=1)), np.unique(X.sum(axis=0))) == (8, 16) and X.shape == (200, 100)
    found = []
    for shape in (X.shape, (users, items)):
        grown = sp.csr_array(X)
        grown.resize(shape)
        setting = rule(IALS, grown, 64)
        ridges = (setting["reg"] * (n + setting["alpha0"] * m) for n, m in zip((16, 8), shape, strict=True))
        found.append((setting["alpha0"], np.prod(list(ridges))))
    assert found[1] == pytest.approx(found[0], rel=1e-3)  # of the steps of the power method


@pytest.mark.parametrize("kind", KINDS)
def test_the_exponent_goes_with_a_weight_by_the_rule(matrix, kind):
    """They were fitted together; who sets the weight has the loss as its formula says."""
    weight = "alpha0" if kind is IALS else "alpha"
    assert rule(kind, matrix)["item_exponent"] < -0.05
    taken = RGALS(8, kind(**{weight: 0.3}), n_iter=1, random_state=0).fit(matrix).loss_.get_params()
    assert (taken[weight], taken["item_exponent"]) == (0.3, 0.0)
    model = RGALS(8, kind(item_exponent=-0.4), n_iter=1, random_state=0).fit(matrix)
    taken = model.loss_.get_params()
    assert (taken[weight], taken["item_exponent"]) == (rule(kind, matrix, 8)[weight], -0.4)
    degrees = Degrees.of(as_csr(matrix))
    for field in ("g", "item_terms"):
        plain, zero = (
            getattr(kind(0.3, **more).coefficients(degrees), field) for more in ({}, {"item_exponent": 0.0})
        )
        np.testing.assert_array_equal(plain, zero)
    with pytest.raises(ParameterError, match="item_exponent='car'.*finite number >= -4 and <= 4, or 'auto'"):
        RGALS(4, kind(item_exponent="car")).fit(matrix)


@pytest.mark.parametrize("loss", ["rg2", "rgx", "ials", "wrmf"])
@pytest.mark.parametrize("clusters", [1, 6])
def test_defaults_beat_popularity_where_it_is_skewed(loss, clusters, rng):
    parts = [of_random_margins(500, 240, 1.0, rng) for _ in range(clusters)]
    X = sp.csr_array(sp.block_diag(parts) if clusters > 1 else parts[0])
    train, hidden = split_interactions(X, (0.8, 0.2), random_state=0)
    counts = np.asarray(train.sum(axis=0)).ravel()
    assert np.sort(counts)[-len(counts) // 10 :].sum() > 0.3 * counts.sum(), "popularity must be skewed"
    model = RGALS(64, loss, n_iter=6, random_state=0).fit(train)
    popular = np.ones((len(model.user_factors_), 1)), counts[:, None].astype(float)
    found, floor = (evaluate(f, train, hidden)["ndcg@10"] for f in (model, popular))
    # Without communities popularity is all there is to know, and it is found; with them it is beaten.
    assert found > (0.95 if clusters == 1 else 1.5) * floor


@pytest.mark.parametrize("name", ["rg2", "rgx", "ials", "wrmf"])
def test_the_rule_is_the_default_of_every_loss(matrix, name):
    model = RGALS(8, name, n_iter=3, random_state=0).fit(matrix)
    expected = rule(LOSSES[name], matrix, 8)
    assert expected.items() <= {**model.loss_.get_params(), "reg": model.reg_}.items()
    assert model.params_["loss"].get_params() == model.loss_.get_params()
    assert model.loss == name and model.reg == "auto", "parameters stay as they were given"
    unset = LOSSES[name]()
    assert "auto" in unset.get_params().values()
    by_object = RGALS(8, unset, n_iter=3, random_state=0).fit(matrix)
    set_by_hand = RGALS(8, n_iter=3, random_state=0).set_params(**model.params_).fit(matrix)
    for same in (by_object, set_by_hand):
        np.testing.assert_array_equal(same.item_factors_, model.item_factors_)
    np.testing.assert_array_equal(model.transform(matrix), model.user_factors_)
    assert unset.get_params() == LOSSES[name]().get_params(), "the loss given stays as it was"


def test_what_was_taken_is_shown(matrix, tmp_path):
    model = RGALS(8, IALS(), n_iter=2, random_state=0)
    assert "alpha0" not in repr(model)
    model.fit(matrix)
    taken = {"alpha0": model.loss_.alpha0, "reg": model.reg_}
    assert all(taken.items() <= record.items() for record in model.history_)
    for name, value in {**taken, "item_exponent": model.loss_.item_exponent}.items():
        assert f"{name}={value:.4g}" in repr(model)
    assert model.get_params()["reg"] == "auto" and model.get_params()["loss__alpha0"] == "auto"
    model.save(tmp_path / "model.npz")
    loaded = RGALS.load(tmp_path / "model.npz")
    assert repr(loaded) == repr(model) and loaded.history_ == model.history_
    assert (loaded.reg, loaded.reg_, loaded.loss.alpha0) == ("auto", model.reg_, "auto")
    np.testing.assert_array_equal(loaded.transform(matrix), model.user_factors_)


def test_what_is_set_is_kept(matrix):
    model = RGALS(8, IALS(0.3), n_iter=2, random_state=0).fit(matrix)
    assert model.loss_.alpha0 == 0.3 and model.reg_ == rule(IALS, matrix, 8)["reg"]
    model = RGALS(8, IALS(), reg=0.25, n_iter=2, random_state=0).fit(matrix)
    assert model.loss_.alpha0 == rule(IALS, matrix, 8)["alpha0"] and model.reg_ == 0.25
    assert "reg" not in model.history_[0]


@pytest.mark.parametrize("exponent", [0.0, 0.5, -0.5])
@pytest.mark.parametrize("kind", [RG2, WRMF])
def test_reg_follows_its_exponent(matrix, kind, exponent):
    """The ridges of users and items, averaged over the interactions, are those of reg_exponent=1."""
    users = as_csr(matrix)
    items = users.transpose()
    means = {}
    for nu in (1.0, exponent):
        model = RGALS(8, kind(), reg_exponent=nu, n_iter=1, random_state=0).fit(matrix)
        coefficients = model.loss_.coefficients(Degrees.of(users))
        sides = coefficients.user_side(users, model.reg_, nu), coefficients.item_side(items, model.reg_, nu)
        logs = [np.log(side.ridge) @ m.row_counts / m.nnz for m, side in zip((users, items), sides)]
        means[nu] = np.mean(logs)
    assert means[exponent] == pytest.approx(means[1.0], abs=1e-9)


@pytest.mark.parametrize("options", [{"reg": "car"}, {"reg": "0.1"}, {"loss": IALS("car")}])
def test_other_words_are_refused(matrix, options):
    with pytest.raises(ParameterError, match="or 'auto'"):
        RGALS(4, **options).fit(matrix)


class Outside(Loss):
    """A loss of somebody else, whose weight has no rule."""

    def __init__(self, weight="auto"):
        self.weight = weight

    def coefficients(self, degrees):
        return IALS(self.weight).coefficients(degrees)


def test_a_loss_without_a_rule_says_what_to_give(matrix):
    with pytest.raises(ParameterError, match=r"Outside.weight='auto'.*no rule"):
        RGALS(4, Outside()).fit(matrix)
    model = RGALS(4, Outside(0.2), n_iter=2, random_state=0).fit(matrix)
    assert model.reg_ == spectral_edge(*matrix.shape, matrix.nnz)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"g": np.ones(7)}, ShapeError, r"Broken: its coefficients g have the shape \(7,\); \(150,\)"),
        ({"item_terms": np.ones((100, 3))}, ShapeError, r"item_terms .*\(100, 4\) is needed"),
        ({"h": np.where(np.arange(100) == 41, np.nan, 1.0)}, InputError, "h are not finite at item 41"),
        ({"t": np.where(np.arange(150) == 9, np.inf, 0.0)}, InputError, "t are not finite at user 9"),
    ],
)
def test_wrong_coefficients_are_refused(matrix, change, error, message):
    class Broken(Loss):
        def coefficients(self, degrees):
            return replace(IALS(0.1).coefficients(degrees), **change)

    with pytest.raises(error, match=message):
        RGALS(4, Broken(), n_iter=1).fit(matrix)


def test_the_command_follows_the_rule(tmp_path, capsys):
    data = tmp_path / "pairs.csv"
    data.write_text("user,item\n" + "".join(f"u{k % 7},i{k * 5 % 11}\n" for k in range(40)), encoding="utf-8")
    model = tmp_path / "model.npz"
    options = ["--loss", "ials", "--K", "3", "--n-iter", "2", "--duplicates", "max", "-q"]
    for more in ([], ["--reg", "auto"]):
        assert main(["fit", str(data), "-o", str(model), *options, *more]) == 0
        loaded = RGALS.load(model)
        expected = rule(IALS, read_interactions(data, duplicates="max").matrix, 3)
        taken = {"reg": loaded.reg_, **loaded.loss_.get_params()}
        assert loaded.reg == "auto" and {k: taken[k] for k in expected} == pytest.approx(expected, rel=1e-6)
    assert main(["fit", str(data), "-o", str(model), "--reg", "automatic"]) == 1
    assert "give a finite number >= 0, or 'auto'" in capsys.readouterr().err


def test_an_empty_corner_does_no_harm():
    X = sp.csr_array((np.ones(2), ([0, 1], [0, 1])), shape=(2, 2))
    assert np.isfinite(RGALS(1, "ials", reg="auto", n_iter=1, random_state=0).fit(X).user_factors_).all()


@pytest.mark.realdata
@pytest.mark.parametrize("loss", ["rg2", "ials"])
@pytest.mark.few(1)
def test_auto_is_far_better_than_constants_on_sparse_data(loss, data_file):
    data = read_interactions(data_file("amazon-electronics-10core"))
    parts = PROTOCOLS["given split"].apply(data)
    figure = {
        reg: evaluate(
            RGALS(64, loss, reg=reg, n_iter=8, random_state=0).fit(parts.train), parts.train, parts.validation
        )["ndcg@10"]
        for reg in ("auto", 0.05)
    }
    assert figure["auto"] > 1.1 * figure[0.05]


@pytest.mark.parametrize("loss", ["rg2", "rgx", "ials", "wrmf"])
@pytest.mark.parametrize(("rows", "columns"), [(0, 12), (12, 0), (12, 12)])
def test_empty_rows_and_columns_do_not_change_what_plain_defaults_learn(loss, rows, columns, tmp_path):
    """Ids taken for positions leave most of a matrix empty: lists were up to 40 % worse."""
    data = make_implicit(500, 250, random_state=1)
    train, test = split_interactions(data.matrix, (0.8, 0.2), random_state=0)
    (n, m), shape = train.shape, (train.shape[0] * (1 + rows), train.shape[1] * (1 + columns))
    places = (np.arange(n) * (1 + rows), np.arange(m) * (1 + columns))

    def spread(matrix):
        entries = sp.coo_array(matrix)
        at = places[0][entries.row], places[1][entries.col]
        return sp.csr_array((entries.data, at), shape=shape)

    plain = RGALS(16, loss, random_state=0).fit(train)
    model = RGALS(16, loss, random_state=0).fit(spread(train))
    before, after = (
        evaluate(fitted, X, truth, "ndcg@10")["ndcg@10"]
        for fitted, X, truth in ((plain, train, test), (model, spread(train), spread(test)))
    )
    assert after > 0.98 * before
    ids, _ = model.recommend(places[0][:50], n=20)
    assert np.isin(ids, places[1]).all(), "items of nobody are not recommended"
    np.testing.assert_array_equal(model.transform(spread(train)), model.user_factors_)
    np.testing.assert_array_equal(
        RGALS(16, random_state=0).set_params(**model.params_).fit(spread(train)).item_factors_,
        model.item_factors_,
    )
    model.save(tmp_path / "model.npz")
    assert repr(RGALS.load(tmp_path / "model.npz").loss_) == repr(model.loss_)


def test_a_loss_whose_weight_is_set_counts_all_items():
    """The formula is that of the docstring where the caller states one."""
    X = sp.csr_array((np.ones(3), ([0, 0, 1], [0, 9, 0])), shape=(2, 40))
    degrees = Degrees.of(X)
    stated = RG2(alpha=0.1).resolve(degrees, 4)
    assert stated.proposal_exponent == 0
    np.testing.assert_allclose(stated.coefficients(degrees).g, degrees.user_sum / 80)
    np.testing.assert_array_equal(stated.coefficients(degrees).h, np.ones(40))
    h = RG2().resolve(degrees, 4).coefficients(degrees).h
    np.testing.assert_allclose(h, np.where(degrees.item_sum > 0, 20.0, 1e-9), rtol=1e-6)
    assert RG2(proposal_exponent=0.5).resolve(degrees, 4).proposal_exponent == 0.5
    full = Degrees.of(sp.csr_array(np.ones((2, 3))))
    assert RG2().resolve(full, 4).proposal_exponent == 0


def test_searches_leave_items_of_nobody_out_as_the_rule_does():
    X = make_implicit(200, 100, random_state=0).matrix
    wide = sp.csr_array((X.data, X.indices * 9, X.indptr), shape=(X.shape[0], X.shape[1] * 9))
    assert default_space("rg2", wide)["proposal_exponent"] == 1e-9
    assert "proposal_exponent" not in default_space("rg2", X) | default_space("ials", wide)
    found = tune("rg2", wide, {"K": 8}, budget=2, refit=False, random_state=0)
    assert found.params["proposal_exponent"] == 1e-9
