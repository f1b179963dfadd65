"""The rule for what is "auto": consistent between losses, the default everywhere, good on real data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from rgals import IALS, RG2, RGALS, RGX, WRMF, InputError, ParameterError, ShapeError
from rgals.cli import main
from rgals.datasets import make_implicit, read_interactions
from rgals.losses import LOSSES, Degrees, Loss, rule, spectral_edge
from rgals.matrix.validate import as_csr
from rgals.metrics import evaluate
from rgals.model_selection import PROTOCOLS

SHAPE = (300, 200, 4000)


@pytest.fixture(scope="module")
def matrix():
    return make_implicit(150, 100, n_clusters=5, mean_interactions=14, random_state=3).matrix


def test_the_rule_is_what_it_states():
    users, items, nnz = SHAPE
    noise = np.sqrt(users / nnz)
    alpha = 0.05 * (3000 / items) ** 0.75
    assert rule(RG2(), *SHAPE) == rule(RGX, *SHAPE) == {"alpha": alpha, "reg": noise}
    alpha0 = nnz / (2 * users * items * alpha)
    assert rule(IALS(), *SHAPE)["alpha0"] == pytest.approx(alpha0)
    assert rule(WRMF(), *SHAPE)["alpha"] == pytest.approx(1 / alpha0)


def test_wrmf_by_the_rule_is_ials_by_the_rule(matrix):
    """Scores differ by the factor 1 + alpha0 only, so the rankings are the same."""
    users, items = matrix.shape
    found = {}
    for kind in (IALS, WRMF):
        setting = rule(kind, users, items, matrix.nnz)
        reg = setting.pop("reg")
        model = RGALS(6, kind(**setting), reg=reg, n_iter=400, dtype="float64", random_state=0).fit(matrix)
        found[kind] = model.user_factors_ @ model.item_factors_.T
    alpha0 = rule(IALS, users, items, matrix.nnz)["alpha0"]
    np.testing.assert_allclose(found[WRMF], (1 + alpha0) * found[IALS], atol=2e-3 * found[WRMF].max())


def test_reg_shrinks_with_density_and_alpha_with_the_catalogue():
    assert rule(RG2, 1000, 1000, 50_000)["reg"] < rule(RG2, 1000, 1000, 10_000)["reg"]
    assert rule(RG2, 1000, 40_000, 50_000)["alpha"] < rule(RG2, 1000, 1000, 50_000)["alpha"]


@pytest.mark.parametrize("name", ["rg2", "rgx", "ials", "wrmf"])
def test_the_rule_is_the_default_of_every_loss(matrix, name):
    model = RGALS(8, name, n_iter=3, random_state=0).fit(matrix)
    expected = rule(model.loss_, *matrix.shape, matrix.nnz)
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
    assert f"alpha0={taken['alpha0']:.4g}, reg={taken['reg']:.4g}" in repr(model)
    assert model.get_params()["reg"] == "auto" and model.get_params()["loss__alpha0"] == "auto"
    model.save(tmp_path / "model.npz")
    loaded = RGALS.load(tmp_path / "model.npz")
    assert repr(loaded) == repr(model) and loaded.history_ == model.history_
    assert (loaded.reg, loaded.reg_, loaded.loss.alpha0) == ("auto", model.reg_, "auto")
    np.testing.assert_array_equal(loaded.transform(matrix), model.user_factors_)


def test_what_is_set_is_kept(matrix):
    model = RGALS(8, IALS(0.3), n_iter=2, random_state=0).fit(matrix)
    assert model.loss_.alpha0 == 0.3 and model.reg_ == rule(IALS, *matrix.shape, matrix.nnz)["reg"]
    model = RGALS(8, IALS(), reg=0.25, n_iter=2, random_state=0).fit(matrix)
    assert model.loss_.alpha0 == rule(IALS, *matrix.shape, matrix.nnz)["alpha0"] and model.reg_ == 0.25
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


def test_the_command_follows_the_rule(tmp_path):
    data = tmp_path / "pairs.csv"
    data.write_text("user,item\n" + "".join(f"u{k % 7},i{k * 5 % 11}\n" for k in range(40)), encoding="utf-8")
    model = tmp_path / "model.npz"
    options = ["--loss", "ials", "--K", "3", "--n-iter", "2", "--duplicates", "max", "-q"]
    for more in ([], ["--reg", "auto"]):
        assert main(["fit", str(data), "-o", str(model), *options, *more]) == 0
        loaded = RGALS.load(model)
        assert loaded.reg == "auto" and {"reg": loaded.reg_, **loaded.loss_.get_params()}.items() >= (
            rule(IALS, 7, 11, 40).items()
        )
    with pytest.raises(SystemExit):
        main(["fit", str(data), "-o", str(model), "--reg", "automatic"])


def test_an_empty_corner_does_no_harm():
    X = sp.csr_array((np.ones(2), ([0, 1], [0, 1])), shape=(2, 2))
    assert np.isfinite(RGALS(1, "ials", reg="auto", n_iter=1, random_state=0).fit(X).user_factors_).all()


@pytest.mark.realdata
@pytest.mark.parametrize("loss", ["rg2", "ials"])
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
