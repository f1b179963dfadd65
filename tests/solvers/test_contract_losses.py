"""What goes with what: every cell of the tables of docs/what_goes_with_what.py is tried."""

from __future__ import annotations

import runpy
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from conftest import ROOT
from helpers import interactions
from instruments.floor import Floor

from rgals import IALS, RG2, RGALS, RGX, WRMF, HardNegatives, ParameterError
from rgals.datasets import Interactions, read_interactions
from rgals.matrix import convert, mapped
from rgals.matrix.validate import as_csr
from rgals.matrix.weighting import Weighting
from rgals.solvers.cuda import device as cuda_device

tables = SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "what_goes_with_what.py")))
FEATURES, SOLVERS = tables.LOSSES_BY_FEATURE, tables.SOLVERS_BY_FEATURE

LOSSES = {
    "RG2": RG2(),
    "RGX": RGX(),
    'RGX(form="gramian")': RGX(beta=0.5, form="gramian"),
    "WRMF": WRMF(),
    "IALS": IALS(),
    "RG2(alpha=0)": RG2(alpha=0.0),
    "RGX(alpha=0)": RGX(alpha=0.0),
    "a loss of one's own": Floor(),
}
K = 5


@pytest.fixture(scope="module")
def X():
    return interactions(60, 40, valued=True, seed=4)


def make(loss, **params):
    return RGALS(
        **{"K": K, "n_iter": 4, "dtype": "float64", "values": "raw", "reg": 0.005, "random_state": 0}
        | params,
        loss=loss,
    )


def weights(model, X):
    """The matrix as the loss sees it."""
    return model._state().weighting.rows(as_csr(X, dtype=np.float64)).to_scipy(np.float64)


def slopes(model, X):
    """Gradients of the stated objective at the factors of a model, relative to their largest at others."""
    P, Q = model.user_factors_, model.item_factors_
    found = model.loss_.gradient(weights(model, X), P, Q, model.reg_, model.reg_exponent)
    usual = model.loss_.gradient(weights(model, X), P + 1, Q + 1, model.reg_, model.reg_exponent)
    return [np.abs(g) / np.abs(u).max() for g, u in zip(found, usual, strict=True)]


def stand_in(monkeypatch, numpy_device):
    monkeypatch.setattr(cuda_device, "_import_cupy", lambda: numpy_device.xp)


class KilledError(Exception):
    pass


def kill_at_2(now):
    if now.iteration == 2:
        raise KilledError


# ---------------------------------------------------------------- a loss and what it is asked for


def check_values(kind, loss, X):
    matrix = as_csr(X, dtype=np.float64)
    told = Weighting.of(kind, matrix).rows(matrix).to_scipy(np.float64)
    model, plain = make(loss, values=kind).fit(X), make(loss).fit(told)
    np.testing.assert_array_equal(model.item_factors_, plain.item_factors_)
    np.testing.assert_array_equal(model.transform(X), model.user_factors_)
    assert slopes(model, X)[0].max() < 1e-9
    users = np.array([7, 60])
    model.partial_fit_users(sp.csr_array(2 * X[[1, 8]]), users)
    np.testing.assert_array_equal(model.transform(sp.csr_array(2 * X[[1, 8]])), model.user_factors_[users])


def check_readout(loss, X, **params):
    model, plain = make(loss, readout_exponent=0.3, **params).fit(X), make(loss, **params).fit(X)
    assert np.ptp(model.item_scale_) > 0.1
    np.testing.assert_allclose(
        model.item_factors_, plain.item_factors_ * model.item_scale_[:, None], rtol=1e-12
    )
    np.testing.assert_allclose(model.user_factors_, plain.user_factors_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.transform(X), plain.transform(X), rtol=1e-9, atol=1e-12)
    assert model.objective(X) == pytest.approx(plain.objective(X), rel=1e-9)
    for one in (model, plain):
        one.partial_fit_users(sp.csr_array(2 * X[[1, 8]]), [7, 60])
    np.testing.assert_allclose(model.user_factors_, plain.user_factors_, rtol=1e-9, atol=1e-12)


def check_hard(loss, X, folder, **params):
    given = {"hard_negatives": HardNegatives(1.0, 0.2, 5, 1), **params}
    one, two = (make(loss, n_jobs=n, **given).fit(X) for n in (1, 2))
    for table in ("user_factors_", "item_factors_"):
        assert getattr(one, table).tobytes() == getattr(two, table).tobytes()
        assert np.abs(getattr(one, table) - getattr(make(loss, **params).fit(X), table)).max() > 1e-6
    check_fold_in(loss, X, **{"solver": "exact", **given})
    check_checkpoint(loss, X, folder, **given)


def check_spectral(loss, X, **params):
    one, two = (make(loss, init="spectral", n_jobs=n, **params).fit(X) for n in (1, 2))
    assert one.item_factors_.tobytes() == two.item_factors_.tobytes()
    assert objectives(one)[0] < objectives(make(loss, init="random", **params).fit(X))[0]


def check_disk(loss, X, folder, monkeypatch, **params):
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(mapped, "BLOCK", 400)
    pairs = sp.coo_array(X)
    lines = (f"{u},{i},{v:g}\n" for u, i, v in zip(*pairs.coords, pairs.data, strict=True))
    (folder / "events.csv").write_text("user,item,value\n" + "".join(lines))
    disk = make(loss, **params).fit(convert(folder / "events.csv", folder / "data.rgals"))
    ram = make(loss, **params).fit(read_interactions(folder / "events.csv"))
    for name in ("user_factors_", "item_factors_"):
        assert getattr(disk, name).tobytes() == getattr(ram, name).tobytes()


def check_transform(loss, X):
    model = make(loss).fit(X)
    np.testing.assert_array_equal(model.transform(X), model.user_factors_)
    assert slopes(model, X)[0].max() < 1e-9
    new = model.transform(sp.csr_array(np.eye(2, 40, 9)))
    assert new.shape == (2, K) and (np.abs(new).max(axis=1) > 0).all()


def check_partial_fit_users(loss, X):
    model = make(loss).fit(X)
    kept, history = np.delete(model.user_factors_, 7, axis=0), sp.csr_array(2 * X[[1, 8]])
    model.partial_fit_users(history, [7, 60])
    np.testing.assert_array_equal(np.delete(model.user_factors_, [7, 60], axis=0), kept)
    assert (model.seen_[[7, 60]] != history).nnz == 0
    assert slopes(model, model.seen_)[0][[7, 60]].max() < 1e-9


def check_partial_fit_items(loss, X):
    model = make(loss).fit(X)
    kept, history = np.delete(model.item_factors_, 7, axis=0), sp.csr_array(2 * X[:, [1, 8]])
    model.partial_fit_items(history, [7, 40])
    np.testing.assert_array_equal(np.delete(model.item_factors_, [7, 40], axis=0), kept)
    assert (model.seen_[:, [7, 40]] != history).nnz == 0
    assert slopes(model, model.seen_)[1][[7, 40]].max() < 1e-9


def check_partial_fit(loss, X):
    model = make(loss).fit(X)
    day = sp.csr_array(([2.0, 1.0, 1.0], ([7, 7, 60], [3, 9, 3])), shape=(61, 40))
    kept = np.delete(model.user_factors_, 7, axis=0)
    model.partial_fit(day)
    np.testing.assert_array_equal(np.delete(model.user_factors_, [7, 60], axis=0), kept)
    assert model.seen_[[7]].sum() == X[[7]].sum() + 3
    assert slopes(model, model.seen_)[0][[7, 60]].max() < 1e-9


def check_checkpoint(loss, X, folder, **params):
    whole = make(loss, **params).fit(X)
    with pytest.raises(KilledError):
        make(loss, **params).fit(X, checkpoint=folder, callbacks=kill_at_2)
    seen = []
    again = make(loss, **params)
    again.fit(X, checkpoint=folder, callbacks=lambda now: seen.append(now.iteration) and None)
    assert seen == [2, 3, 4]
    assert again.user_factors_.tobytes() == whole.user_factors_.tobytes()
    assert again.item_factors_.tobytes() == whole.item_factors_.tobytes()


def objectives(model):
    return np.array([record["objective"] for record in model.history_])


def check_cuda(loss, X, **params):
    ours, theirs = make(loss, device="cuda", **params).fit(X), make(loss, **params).fit(X)
    np.testing.assert_allclose(objectives(ours), objectives(theirs), rtol=1e-8)
    np.testing.assert_array_equal(ours.transform(X), ours.user_factors_)


def check_pcg(loss, X):
    # The term that the items of RGX share is majorised: more iterations, to a minimum of its own.
    coupled = loss.couples_items()
    few, many = (
        make(loss, solver="pcg", pcg_steps=s, n_iter=n).fit(X)
        for s, n in ((2, 6), (40, 600 if coupled else 6))
    )
    falls = objectives(few)
    assert (np.diff(falls) <= 1e-12 * np.abs(falls[1:])).all() and falls[-1] < falls[0]
    assert slopes(few, X)[0].max() < 1e-9
    if coupled:
        far, near = (slopes(model, X)[1].max() for model in (few, many))
        assert far > 2e-3 and near < 0.01 * far
    else:
        exact = make(loss, n_iter=6).fit(X)
        assert objectives(many)[-1] == pytest.approx(objectives(exact)[-1], rel=1e-6)


def check_svd(loss, X):
    best = make(loss, solver="svd").fit(X)
    assert best.solver_ == "svd"
    for seed in range(2):
        model = make(loss, n_iter=30, random_state=seed, reg=best.reg_).fit(X)
        assert model.objective(X) >= best.objective(X) - 1e-9 * abs(best.objective(X))


def check_half_life(loss, X, **params):
    rng = np.random.default_rng(0)
    X = sp.csr_array(X)
    data = Interactions(X, np.arange(60), np.arange(40), rng.integers(0, 900, X.nnz))
    model = make(loss, half_life=90.0, **params).fit(data)
    share = 0.5 ** ((data.timestamp.max() - data.timestamp) / 90)
    aged = sp.csr_array((X.data * share * X.data.sum() / (X.data * share).sum(), X.indices, X.indptr))
    by_hand = make(loss, **params).fit(sp.csr_array(aged, shape=X.shape))
    assert objectives(model) == pytest.approx(objectives(by_hand), rel=1e-9)
    tolerance = 1e-9 if params.get("solver") == "dense" else 0
    np.testing.assert_allclose(model.transform(data), model.user_factors_, atol=tolerance, rtol=0)


def check_features(loss, X, **params):
    rng = np.random.default_rng(0)
    both = {"user_features": rng.standard_normal((60, 3)), "item_features": rng.standard_normal((40, 4))}
    check_prior(make(loss, **params).fit(X, **both), X)


def check_prior(model, X):
    assert (np.diff(objectives(model)) < 1e-9 * abs(objectives(model)[0])).all()
    state = model._state()
    given = X, model.user_factors_, model.item_factors_, state.reg, 1.0, state.priors
    usual = X, model.user_factors_ + 1, *given[2:]
    found, other = (model.loss_.gradient(*at)[0] for at in (given, usual))
    assert abs(found).max() < 1e-8 * abs(other).max()


@pytest.mark.parametrize("form", FEATURES.columns)
@pytest.mark.parametrize("feature", FEATURES.rows)
@pytest.mark.few(40)
def test_a_loss_does_what_it_is_asked_for_or_refuses(feature, form, X, tmp_path, numpy_device, monkeypatch):
    loss = LOSSES[form]
    stand_in(monkeypatch, numpy_device)
    kind = feature.partition("=")[2].strip('"')
    checks = {
        f'values="{kind}"': lambda: check_values(kind, loss, X),
        "half_life=90.0": lambda: check_half_life(loss, X),
        "fit(item_features=...)": lambda: check_features(loss, X),
        "user_mean=True": lambda: check_prior(make(loss, user_mean=True).fit(X), X),
        "readout_exponent=0.3": lambda: check_readout(loss, X),
        "hard_negatives=1.0": lambda: check_hard(loss, X, tmp_path),
        'init="spectral"': lambda: check_spectral(loss, X),
        "transform": lambda: check_transform(loss, X),
        "partial_fit_users": lambda: check_partial_fit_users(loss, X),
        "partial_fit_items": lambda: check_partial_fit_items(loss, X),
        "partial_fit": lambda: check_partial_fit(loss, X),
        "fit(checkpoint=...)": lambda: check_checkpoint(loss, X, tmp_path),
        'fit(open_matrix("data.rgals"))': lambda: check_disk(loss, X, tmp_path, monkeypatch),
        'device="cuda"': lambda: check_cuda(loss, X),
        'solver="pcg"': lambda: check_pcg(loss, X),
        'solver="svd"': lambda: check_svd(loss, X),
    }
    why = FEATURES.refused.get((feature, form))
    if why is None:
        checks[feature]()
    else:
        with pytest.raises(ParameterError, match=why):
            checks[feature]()


# ---------------------------------------------------------------- a solver and what it is asked for


def check_callbacks(loss, X, **params):
    seen = []
    model = make(loss, **params).fit(X, callbacks=lambda now: seen.append(now.objective) and None)
    assert seen == objectives(model).tolist() and len(seen) == 4


def check_validation(loss, X, **params):
    held_out = sp.csr_array(1.0 - (X.toarray() > 0))
    model = make(loss, metric="recall@5", **params).fit(X, validation=held_out)
    assert all(0 < record["recall@5"] <= 1 for record in model.history_)


def check_early_stopping(loss, X, **params):
    model = make(loss, early_stopping=True, patience=2, n_iter=9, metric="ndcg@3", **params).fit(X)
    best = int(np.argmax([record["ndcg@3"] for record in model.history_])) + 1
    assert model.n_iter_ in (best + 2, 9)
    shorter = make(loss, early_stopping=True, patience=9, n_iter=best, metric="ndcg@3", **params).fit(X)
    np.testing.assert_array_equal(model.item_factors_, shorter.item_factors_)


def check_fold_in(loss, X, **params):
    model = make(loss, **params).fit(X)
    tolerance = 1e-9 if params["solver"] == "dense" else 0
    np.testing.assert_allclose(model.transform(X), model.user_factors_, atol=tolerance, rtol=0)


def check_objective(loss, X, **params):
    model = make(loss, **params).fit(X)
    # pcg's last half-step is exact, so that the model ends at or below its history.
    last = objectives(model)[-1]
    assert model.objective(X) <= last + 1e-9 * abs(last)
    if params["solver"] != "pcg":
        assert model.objective(X) == pytest.approx(last, rel=1e-9)


@pytest.mark.parametrize("solver", SOLVERS.columns)
@pytest.mark.parametrize("feature", SOLVERS.rows)
def test_a_solver_does_what_it_is_asked_for_or_refuses(
    feature, solver, X, tmp_path, numpy_device, monkeypatch
):
    stand_in(monkeypatch, numpy_device)
    params = {"solver": solver.partition("=")[2].strip('"')}
    loss = RG2(alpha=0.0) if params["solver"] == "svd" else RG2()
    checks = {
        "fit(checkpoint=...)": lambda: check_checkpoint(loss, X, tmp_path, **params),
        'fit(open_matrix("data.rgals"))': lambda: check_disk(loss, X, tmp_path, monkeypatch, **params),
        "fit(callbacks=...)": lambda: check_callbacks(loss, X, **params),
        "fit(validation=...)": lambda: check_validation(loss, X, **params),
        "early_stopping=True": lambda: check_early_stopping(loss, X, **params),
        'device="cuda"': lambda: check_cuda(loss, X, **params),
        "half_life=90.0": lambda: check_half_life(loss, X, **params),
        "fit(item_features=...)": lambda: check_features(loss, X, **params),
        "user_mean=True": lambda: check_prior(make(loss, user_mean=True, **params).fit(X), X),
        "readout_exponent=0.3": lambda: check_readout(loss, X, **params),
        "hard_negatives=1.0": lambda: check_hard(loss, X, tmp_path, **params),
        'init="spectral"': lambda: check_spectral(loss, X, **params),
        "reg_exponent=0.5": lambda: check_fold_in(loss, X, reg_exponent=0.5, **params),
        'dtype="float64"': lambda: check_objective(loss, X, **params),
    }
    why = SOLVERS.refused.get((feature, solver))
    if why is None:
        checks[feature]()
    else:
        with pytest.raises(ParameterError, match=why):
            checks[feature]()


def test_the_page_is_that_of_the_tables():
    assert tables.PAGE.read_text(encoding="utf-8") == tables.page()
    assert set(tables.FORMS) == set(LOSSES)
    for table in (FEATURES, SOLVERS):
        assert {(row, column) for row in table.rows for column in table.columns} >= set(table.refused)
