"""A loss written outside the package does all that those of the package do, without an edit here."""

from __future__ import annotations

import importlib
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import interactions
from instruments.floor import Floor
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from rgals import RGALS, InputError, InputTypeError, ModelFileError, ParameterError
from rgals.compare import Effort, compare
from rgals.datasets import make_implicit
from rgals.losses import Coefficients, Degrees, Loss, rule
from rgals.matrix.validate import as_csr
from rgals.model_selection import default_space, tune
from rgals.sgd import SGDRanker
from rgals.solvers.cpu import CPUBackend


def dense_half_step(loss, matrix, fixed, ridge):
    """Each row's weighted least squares over all pairs, as the formula has it."""
    seen = matrix.toarray() > 0
    weight, target = np.where(seen, 1.0, loss.weight), np.where(seen, 1.0, loss.floor)
    out = np.empty((len(seen), fixed.shape[1]))
    for row in range(len(seen)):
        weighted = fixed * weight[row][:, None]
        out[row] = np.linalg.solve(
            weighted.T @ fixed + ridge[row] * np.eye(len(out[row])), weighted.T @ target[row]
        )
    return out


class Targets(Loss):
    """``sum_all g_x h_y (o_xy - a_x)^2 + sum_{y in I_x} v_xy (o_xy - b)^2``; a weight for every item."""

    def __init__(self, b=3.0, item_weights=None, kind=np.float64):
        self.b, self.item_weights, self.kind = b, item_weights, kind

    def defaults(self, degrees, K):
        return {"reg": 0.1, "b": -2.0, "item_weights": 0}

    def parts(self, n_users, n_items):
        weights = np.ones(n_items) if self.item_weights is None else self.item_weights
        return np.arange(n_users) % 3, np.arange(n_users) % 4 - 1, weights

    def coefficients(self, degrees):
        g, a, h = self.parts(*degrees.shape)
        return Coefficients(
            g=g.tolist(),
            h=np.asarray(h, self.kind),
            t=g * a,
            user_terms=np.tile(np.array([1, 0, self.b, 0], self.kind), (len(g), 1)),
            item_terms=np.ones((len(h), 4), self.kind),
        )


def test_objectives_are_the_formulas_whatever_the_targets(rng):
    V = rng.integers(1, 4, (9, 7)) * (rng.random((9, 7)) < 0.4)
    P, Q = rng.standard_normal((9, 3)), rng.standard_normal((7, 3))
    scores = P @ Q.T
    floor = np.where(V > 0, (scores - 1) ** 2, 0.3 * (scores + 0.5) ** 2).sum()
    assert Floor(0.3, -0.5).objective(V, P, Q) == pytest.approx(floor, rel=1e-12)
    assert Floor(floor=-0.5).objective(V, P, Q) > 0  # a weight by its rule
    own = Targets(item_weights=np.linspace(0.0, 2.0, 7))
    g, a, h = own.parts(9, 7)
    expected = (g[:, None] * h * (scores - a[:, None]) ** 2).sum() + (V * (scores - 3.0) ** 2).sum()
    assert own.objective(V, P, Q) == pytest.approx(expected, rel=1e-12)


def test_the_constant_of_positives_that_weigh_less_than_other_pairs_is_taken_away(rng):
    """``sum_all (o_xy - 2)^2 - 0.5 sum_{y in I_x} (o_xy - 3)^2``."""

    def coefficients(self, degrees):
        users, items = (np.ones(n) for n in degrees.shape)
        own = np.tile([0.0, -0.5, 0.0, -1.5], (len(users), 1))
        return Coefficients(users, items, 2.0 * users, own, np.ones((len(items), 4)))

    V = (rng.random((9, 7)) < 0.4).astype(float)
    P, Q = rng.standard_normal((9, 3)), rng.standard_normal((7, 3))
    scores, lighter = P @ Q.T, type("Lighter", (Loss,), {"coefficients": coefficients})
    expected = ((scores - 2) ** 2).sum() - 0.5 * ((scores - 3) ** 2)[V > 0].sum()
    assert 0 < V.sum() < V.size and lighter().objective(V, P, Q) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", [np.float32, np.int64])
def test_coefficients_of_any_numbers_and_parameters_that_are_arrays(data, kind):
    """Integers and float32 ended in an error of llvmlite, an array in one of numpy."""
    weights = np.arange(100) % 3
    fits = [RGALS(6, Targets(2.0, weights, own), n_iter=3, random_state=0) for own in (kind, np.float64)]
    found, expected = (model.fit(data.matrix) for model in fits)
    np.testing.assert_array_equal(found.user_factors_, expected.user_factors_)
    assert found.objective(data.matrix) == pytest.approx(found.history_[-1]["objective"], rel=1e-5)
    again = RGALS(6, random_state=0, n_iter=3).set_params(**found.params_).fit(data.matrix)
    np.testing.assert_array_equal(again.user_factors_, expected.user_factors_)
    space = {"K": 4, "b": (1.0, 2.0)}
    tuned = tune(Targets(2.0, weights, kind), data, space, budget=1, refit=False)
    assert tuned.params["item_weights"] is weights


def test_a_rule_below_zero_is_searched_around(data):
    space = default_space(Targets(), as_csr(data.matrix))
    assert space["b"] == (-20.0, -0.2) and "item_weights" not in space
    with pytest.raises(ParameterError, match=r"NoReg\.defaults: reg=None is not valid"):
        RGALS(4, type("NoReg", (Floor,), {"defaults": lambda *args: {}})(0.1)).fit(data.matrix)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda found: None, "gives no Coefficients but None"),
        (lambda found: replace(found, g=found.g.astype(str)), "g are of <U32; real numbers"),
        (lambda found: replace(found, t=found.t * 1j), "t are of complex128; real numbers"),
    ],
)
def test_what_are_no_coefficients_is_refused(data, given, message):
    with pytest.raises(InputTypeError, match=f"the loss Odd: .*{message}"):
        RGALS(4, odd(coefficients=of(given))).fit(data.matrix)


def odd(*params, **methods):
    """A loss with some methods of another kind."""
    return type("Odd", (Floor,), methods)(*params or (0.1,))


def of(change):
    return lambda self, degrees: change(Floor.coefficients(self, degrees))


def new(**fields):
    """A loss whose coefficients have these in place of its own."""
    return odd(coefficients=of(lambda found: replace(found, **fields)))


def but_at(n, value, size):
    """Ones, and another number at n."""
    return np.where(np.arange(size) == n, value, 1.0)


OWN = "the loss Odd: its coefficients"


@pytest.mark.parametrize(
    ("made", "error", "message"),
    [
        (odd(coefficients=None), InputTypeError, r"needs a method coefficients\(degrees\)"),
        (odd(coefficients=lambda self: None), InputTypeError, r"needs a method coefficients\(degrees\)"),
        (odd(defaults=lambda self, degrees: {}), InputTypeError, r"needs a method defaults\(degrees, K\)"),
        (odd(constant=lambda self, matrix: 0.0), InputTypeError, r"needs a method constant\(matrix, coeff"),
        (new(h=[[1], 2]), InputTypeError, f"{OWN} h are of object"),
        (new(g=but_at(3, -0.1, 150)), InputError, f"{OWN} g .*user 3: -0.1"),
        (new(h=but_at(7, -1.0, 100)), InputError, f"{OWN} h .*item 7: -1.0"),
        (new(interaction=-0.01), ParameterError, f"{OWN} interaction=-0.01"),
        (new(interaction=0.02), ParameterError, "<= 0.01$"),
        (new(removed=2.0), ParameterError, f"{OWN} removed=2.0 .*<= 1$"),
        (odd(constant=lambda self, matrix, found: np.nan), ParameterError, "^Odd.constant=nan is not valid"),
        (odd(constant=lambda self, matrix, found: None), ParameterError, "^Odd.constant=None is not valid"),
        (odd(defaults=lambda *_: None), InputTypeError, "Odd.defaults gives None; a dict with 'reg'"),
        (odd("auto", defaults=lambda *_: 0.1), InputTypeError, "Odd.defaults gives 0.1; a dict"),
        (odd("auto", defaults=lambda *_: {"weight": "auto", "reg": 1}), ParameterError, "no rule for it"),
        (odd("auto", _auto=("weight",), defaults=lambda *_: {"weight": -5, "reg": 1}), ParameterError, "=-5"),
    ],
)  # fmt: skip
def test_what_a_method_gives_is_checked_and_named(data, made, error, message):
    """Crashes of numpy and Python's, systems that are not positive definite, or nothing at all."""
    with pytest.raises(error, match=message):
        RGALS(4, made, n_iter=1).fit(data.matrix)


def test_margins_cannot_be_changed_by_a_loss(data):
    """Those that it scaled in place were saved with the model and used for new users."""

    def coefficients(self, degrees):
        degrees.user_sum[:] /= degrees.user_sum.mean()

    with pytest.raises(ValueError, match="read-only"):
        RGALS(4, odd(coefficients=coefficients)).fit(data.matrix)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("side", ["user", "item"])
def test_half_steps_solve_its_formula(side, dtype, rng):
    X = interactions()
    users = as_csr(X, dtype=dtype)
    loss = Floor(0.2)
    coefficients = loss.coefficients_for(Degrees.of(users))
    rows = users if side == "user" else users.transpose()
    of = coefficients.user_side if side == "user" else coefficients.item_side
    system = of(rows, 0.05, 1.0)
    fixed = rng.standard_normal((rows.n_cols, 7)).astype(dtype)
    found = CPUBackend().half_step(rows, fixed, system).factors
    expected = dense_half_step(loss, X if side == "user" else X.T.tocsr(), fixed.astype(float), system.ridge)
    np.testing.assert_allclose(found, expected, atol=1e-4 if dtype == np.float32 else 1e-11)


def test_the_score_of_a_user_without_history_is_explained(data):
    """Its targets of all pairs give such a user factors; the explanation was that of a score of 0."""
    X = sp.lil_array(data.matrix)
    X[4] = 0
    model = RGALS(8, Floor(), random_state=0, dtype="float64", n_iter=2).fit(sp.csr_array(X))
    why = model.explain(4, 7)
    assert why.score == pytest.approx(model.predict(4, 7)[0], rel=1e-9) and abs(why.score) > 1e-3
    assert (len(why.items), why.rest) == (0, 0) and why.all_pairs == why.score


@pytest.fixture(scope="module")
def data():
    return make_implicit(150, 100, n_clusters=5, mean_interactions=14, random_state=3)


def test_it_fits_by_its_own_rule(data):
    model = RGALS(8, Floor(), n_iter=5, random_state=0).fit(data.matrix)
    assert {"weight": model.loss_.weight, "reg": model.reg_} == rule(Floor, data.matrix, 8)
    np.testing.assert_array_equal(model.transform(data.matrix), model.user_factors_)
    values = [record["objective"] for record in model.history_]
    assert np.diff(values).max() < 0
    assert model.objective(data.matrix) == pytest.approx(values[-1], rel=1e-4)
    assert clone(model).loss.get_params() == {"weight": "auto", "floor": -0.1}


def test_its_files_are_read_by_who_gives_the_class(data, tmp_path):
    model = RGALS(8, Floor(0.3), n_iter=2, random_state=0).fit(data.matrix)
    model.save(tmp_path / "model.npz")
    loaded = RGALS.load(tmp_path / "model.npz", loss=Floor)
    assert isinstance(loaded.loss_, Floor) and loaded.loss.get_params() == model.loss.get_params()
    np.testing.assert_array_equal(loaded.transform(data.matrix), model.user_factors_)
    with pytest.raises(ModelFileError, match=r"floor\.Floor.*RGALS\.load\(path, loss=Floor\)"):
        RGALS.load(tmp_path / "model.npz")
    with pytest.raises(ModelFileError, match=r"none of rgals', not .*Other"):
        RGALS.load(tmp_path / "model.npz", loss=type("Other", (Floor,), {}))


@pytest.mark.parametrize("loss", [Floor(), "Floor", 3, RGALS])
def test_what_is_no_class_of_a_loss_is_told_from_a_damaged_file(data, tmp_path, loss):
    RGALS(2, n_iter=1, random_state=0).fit(data.matrix).save(tmp_path / "model.npz")
    with pytest.raises(ParameterError, match="^loss=.*give the class of a loss"):
        RGALS.load(tmp_path / "model.npz", loss=loss)


def test_a_file_of_another_estimator_is_told_whatever_loss_is_given(data, tmp_path):
    RGALS(2, n_iter=1, random_state=0).fit(data.matrix).save(tmp_path / "model.npz")
    with pytest.raises(ModelFileError, match="not a rgals-sgd-model file but 'rgals-model'"):
        SGDRanker.load(tmp_path / "model.npz", loss=Floor)


def test_it_is_searched_tuned_and_compared(data, tmp_path, monkeypatch):
    search = GridSearchCV(RGALS(4, Floor(), n_iter=3, random_state=0), {"loss__floor": [-0.5, 0.0]}, cv=2)
    assert search.fit(data.matrix).best_params_["loss__floor"] in (-0.5, 0.0)
    found = tune(Floor(), data, {"K": 4, "floor": (-0.5, 0.0)}, budget=2, refit=False)
    assert found.loss == "Floor" and {"reg", "weight", "floor"} <= set(found.params)
    monkeypatch.setattr(importlib.import_module("rgals.compare"), "write", lambda *result: None)  # dear
    effort = Effort(max_trials=2, objective_iterations=8)
    options = {"K": 4, "seeds": 1, "effort": effort, "verbose": 0}
    result = compare(data, [Floor(), "ials"], out=tmp_path, **options)
    assert {row.method for row in result.rows} == {"Floor", "ials"}
    with pytest.raises(ParameterError, match="each once"):
        compare(data, [Floor(), Floor(0.2)], out=tmp_path, **options)


def test_messages_name_it(data):
    with pytest.raises(ParameterError, match="Floor has no closed form"):
        RGALS(4, Floor(), solver="svd").fit(data.matrix)


def test_the_score_of_a_user_without_interactions_is_explained_by_the_targets_of_all_pairs():
    X = interactions()  # user 3 has none
    assert not X[[3]].nnz and X[[4]].nnz
    model = RGALS(K=4, loss=Floor(0.3, -0.5), reg=0.1, dtype="float64", n_iter=4, random_state=0).fit(X)
    for user in (3, 4):
        why = model.explain(user, 7)
        assert why.all_pairs != 0 and len(why.items) == min(X[[user]].nnz, 10)
        assert why.score == pytest.approx(model.predict(user, 7)[0], rel=1e-9)
