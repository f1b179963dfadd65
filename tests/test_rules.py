"""The rule for starting values: consistent between losses, used by reg="auto", good on real data."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from rgals import IALS, RG2, RGALS, RGX, WRMF
from rgals._errors import ParameterError
from rgals.cli import main
from rgals.datasets import make_implicit, read_interactions
from rgals.losses import rule
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
def test_auto_uses_the_rule_for_a_loss_by_name(matrix, name):
    model = RGALS(8, name, reg="auto", n_iter=3, random_state=0).fit(matrix)
    expected = rule(model.loss_, *matrix.shape, matrix.nnz)
    assert model.reg_ == expected.pop("reg")
    assert expected.items() <= model.loss_.get_params().items()
    assert model.loss == name and model.reg == "auto", "parameters stay as they were given"
    same = RGALS(8, model.loss_, reg=model.reg_, n_iter=3, random_state=0).fit(matrix)
    np.testing.assert_array_equal(same.item_factors_, model.item_factors_)
    np.testing.assert_array_equal(model.transform(matrix), model.user_factors_)


def test_auto_keeps_a_loss_object(matrix, tmp_path):
    model = RGALS(8, IALS(0.3), reg="auto", n_iter=3, random_state=0).fit(matrix)
    assert model.loss_.alpha0 == 0.3 and model.reg_ == rule(IALS, *matrix.shape, matrix.nnz)["reg"]
    model.save(tmp_path / "model.npz")
    loaded = RGALS.load(tmp_path / "model.npz")
    assert loaded.reg == "auto" and loaded.reg_ == model.reg_
    np.testing.assert_array_equal(loaded.transform(matrix), model.user_factors_)


@pytest.mark.parametrize("options", [{"reg": "car"}, {"reg": "auto", "reg_exponent": 0.5}, {"reg": "0.1"}])
def test_other_words_are_refused(matrix, options):
    with pytest.raises(ParameterError, match="'auto' with reg_exponent=1"):
        RGALS(4, **options).fit(matrix)


def test_the_command_takes_auto(tmp_path):
    data = tmp_path / "pairs.csv"
    data.write_text("user,item\n" + "".join(f"u{k % 7},i{k * 5 % 11}\n" for k in range(40)), encoding="utf-8")
    model = tmp_path / "model.npz"
    options = ["--loss", "ials", "--reg", "auto", "--K", "3", "--n-iter", "2", "--duplicates", "max", "-q"]
    assert main(["fit", str(data), "-o", str(model), *options]) == 0
    loaded = RGALS.load(model)
    assert loaded.reg == "auto" and loaded.reg_ == rule(IALS, 7, 11, 40)["reg"]
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
