"""Where a fit starts and when it ends: what "auto" takes, what is kept, what goes with what."""

from __future__ import annotations

import copy
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import interactions
from sklearn.base import clone

from rgals import IALS, RG2, RGALS, RGX, CheckpointError, HardNegatives, InputError, ParameterError
from rgals.datasets import Interactions, make_implicit, read_interactions
from rgals.losses import Degrees
from rgals.matrix.entries import hold_out
from rgals.matrix.validate import as_csr
from rgals.metrics import evaluate
from rgals.sgd import SGDRanker
from rgals.sgd.losses import SoftmaxAtK
from rgals.solvers import spectral
from rgals.solvers.footprint import Footprint
from rgals.training import fit
from rgals.training.run import has_settled

SMALL = 1 << 17


@pytest.fixture(scope="module")
def X():
    return interactions(90, 60, valued=True)


@pytest.fixture(scope="module")
def large():
    """As many interactions as "auto" needs for a spectral start."""
    X = make_implicit(800, 500, mean_interactions=30, random_state=0).matrix
    assert 6 * X.nnz >= SMALL
    return X


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """What is small, for fits of six factors that take no time."""
    assert fit.SMALL > SMALL
    monkeypatch.setattr(fit, "SMALL", SMALL)


def make(**params) -> RGALS:
    return RGALS(**{"K": 6, "random_state": 0, **params})


def content(model) -> tuple:
    """What a fit computed, without how long it took."""
    objectives = [row["objective"] for row in model.history_]
    return model.user_factors_.tobytes(), model.item_factors_.tobytes(), objectives


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16, np.longdouble])
def test_numbers_of_numpy_are_taken_as_those_of_python(kind, X, tmp_path):
    params = {"loss": RG2(alpha=1), "reg": 1, "n_iter": 2, "random_state": 0}
    odd = {"loss": RG2(alpha=kind(1)), "reg": kind(1)}
    odd |= {} if kind is np.longdouble else {"K": kind(6), "n_iter": kind(2)}
    model = RGALS(**{"K": 6, **params, **odd}).fit(X, checkpoint=tmp_path / "folder")
    assert content(model) == content(RGALS(K=6, **params).fit(X))
    model.save(tmp_path / "model.npz")
    assert type(RGALS.load(tmp_path / "model.npz").reg) in (int, float)
    sizes = {} if kind is np.longdouble else {"batch_size": kind(100), "K": kind(6)}
    model = SGDRanker(**{"K": 6, "batch_size": 100, "n_epochs": 2, "lr": kind(1), "random_state": 0, **sizes})
    again = SGDRanker(K=6, batch_size=100, n_epochs=2, lr=1, random_state=0).fit(X)
    assert content(model.fit(X)) == content(again)


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_sizes_in_objects_are_of_any_type_too(kind, X):
    """Twice or once more than these was negative, or an OverflowError."""
    largest = np.iinfo(kind).max
    P, Q = np.ones((X.shape[0], 1)), np.ones((X.shape[1], 1))

    def found(n) -> list:
        loss, hard = RG2(alpha=0.1, n_negatives=n(largest)), HardNegatives(1.0, n_samples=n(100), warmup=n(2))
        sgd = SGDRanker(K=6, loss=SoftmaxAtK(k=n(3)), n_epochs=1, values="raw", random_state=0)
        models = make(loss=loss, n_iter=2, reg=1.0), make(hard_negatives=hard, n_iter=3), sgd
        return [loss.objective(X, P, Q), *(content(model.fit(X)) for model in models)]

    assert found(kind) == found(int)


# ------------------------------------------------------------------ init


def test_auto_is_spectral_where_there_is_much_to_fit(X, large):
    assert make(n_iter=1).fit(X).params_["init"] == "random"
    assert make(n_iter=1).fit(large).params_["init"] == "spectral"
    assert make(n_iter=1, init_scale=0.1).fit(large).params_["init"] == "random"
    for data, named in ((X, "random"), (large, "spectral")):
        assert content(make(n_iter=2).fit(data)) == content(make(n_iter=2, init=named).fit(data))


@pytest.mark.parametrize("solver", ["exact", "pcg", "dense"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("loss", ["rg2", "rgx", "wrmf", "ials"])
def test_a_spectral_start_begins_lower_and_ends_as_well(loss, dtype, solver, X):
    params = {"loss": loss, "dtype": dtype, "solver": solver, "n_iter": 12}
    begun, random = (make(init=init, **params).fit(X).history_ for init in ("spectral", "random"))
    assert begun[0]["objective"] < random[0]["objective"]
    falls = -np.diff([row["objective"] for row in begun])
    assert (falls > -1e-5 * abs(begun[-1]["objective"])).all()
    whole = begun[0]["objective"] - begun[-1]["objective"] + abs(begun[-1]["objective"])
    assert abs(begun[-1]["objective"] - random[-1]["objective"]) < 0.03 * whole


def test_a_spectral_start_follows_the_seed_and_no_threads(large):
    fits = [
        content(make(init="spectral", n_iter=2, n_jobs=n, random_state=seed).fit(large))
        for n, seed in ((1, 0), (2, 0), (4, 0), (1, 1))
    ]
    assert fits[0] == fits[1] == fits[2] != fits[3]


@pytest.mark.parametrize("loss", [RG2(alpha=0.0), RGX(alpha=0.0)])
@pytest.mark.parametrize("init", ["spectral", "auto"])
def test_a_loss_with_a_closed_form_starts_there(loss, init, X, large):
    data = large if init == "auto" else X
    params = {"loss": loss, "dtype": "float64", "reg": 0.02}
    optimum = make(solver="svd", **params).fit(data).history_[0]["objective"]
    model = make(init=init, **params).fit(data)
    assert model.history_[0]["objective"] == pytest.approx(optimum, rel=1e-9)
    assert model.n_iter_ == 2 and model.params_["init"] == "spectral"
    elsewhere = make(init=init, reg_exponent=0.5, n_iter=1, **params).fit(data)
    assert elsewhere.history_[0]["objective"] != pytest.approx(optimum, rel=1e-3)


@pytest.mark.parametrize("estimator", [RGALS, SGDRanker])
def test_a_warm_start_finds_users_and_items_by_their_ids(estimator, X):
    """Numbered anew, as after an update, they started from the factors of others."""
    iterations = {RGALS: "n_iter", SGDRanker: "n_epochs"}[estimator]
    users, items = (np.array([f"{n:03}" for n in range(size)]) for size in X.shape)
    model = estimator(K=4, random_state=0, warm_start=True, **{iterations: 3}).fit(
        Interactions(X, users, items)
    )
    other = copy.deepcopy(model)
    turned = Interactions(sp.csr_array(X[::-1, ::-1]), users[::-1], items[::-1])
    turned.matrix.sort_indices()
    starts = []
    for one, data in ((model, Interactions(X, users, items)), (other, turned)):
        one.fit(data, callbacks=lambda now: starts.append(now.objective) or True)
    assert starts[0] == pytest.approx(starts[1], rel=1e-3 if estimator is RGALS else 0.05)
    with pytest.raises(InputError, match="warm_start: item 'new' is not known"):
        model.fit(Interactions(X, users, np.r_[items[:-1], ["new"]]))


def test_a_fitted_model_takes_what_its_fit_took_whatever_is_set_for_the_next(X):
    """Dislikes were taken by a loss that has none: wrong factors, and files that could not be read."""
    liked, turned = make(loss=IALS()).fit(X), X.copy()
    turned.data[0] = -1
    disliked = make(loss=IALS(dislikes=True)).fit(turned)
    users = disliked.transform(turned)
    liked.set_params(loss__dislikes=True), disliked.set_params(loss__dislikes=False)
    np.testing.assert_array_equal(disliked.transform(turned), users)
    disliked.recommend_new(turned[:3]), disliked.partial_fit(turned[:3])
    for call in (liked.transform, liked.recommend_new, liked.partial_fit, liked.predict, liked.objective):
        with pytest.raises(InputError, match="Negative values"):
            call(turned)


def test_a_warm_start_takes_the_last_factors_whatever_init_is(X):
    model = make(init="spectral", warm_start=True, n_iter=3).fit(X)
    first = model.history_[-1]["objective"]
    again = model.fit(X)
    assert again.history_[0]["objective"] <= first + 1e-5 * abs(first)
    assert content(clone(model).fit(X)) != content(again)


def test_a_warm_start_is_said_to_be_none_of_those_that_auto_takes(X):
    model = make(warm_start=True, n_iter=2, values="raw").fit(X)
    assert model.params_["init"] == model.history_[0]["init"] == "random"
    model.fit(X)
    assert model.params_["init"] == "auto" and "init" not in model.history_[0]
    assert "init=" not in repr(model)


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"init": "svd"}, "init"),
        ({"init": None}, "init"),
        ({"init": "spectral", "init_scale": 0.1}, "init_scale"),
        ({"init": "spectral", "solver": "svd", "loss": RG2(alpha=0.0)}, "init"),
        ({"init": "random", "solver": "svd", "loss": RG2(alpha=0.0)}, "init"),
        ({"n_iter": "many"}, "n_iter"),
    ],
)
def test_what_does_not_go_together_is_refused(params, name, X):
    with pytest.raises(ParameterError, match=f"^{name}"):
        make(**params).fit(X)


# ------------------------------------------------------------------ n_iter


def test_a_number_of_iterations_is_kept(X, large):
    for data in (X, large):
        auto = make().fit(data)
        assert 2 <= auto.n_iter_ < fit.MAX_ITER
        for n_iter in (auto.n_iter_ - 1, auto.n_iter_, auto.n_iter_ + 3):
            assert make(n_iter=n_iter).fit(data).n_iter_ == n_iter
        assert content(make(n_iter=auto.n_iter_).fit(data)) == content(auto)


@pytest.mark.parametrize("loss", [RG2(alpha=0.1), IALS(alpha0=0.1)])
def test_auto_ends_where_the_objective_has_settled(loss, X):
    model = make(loss=loss).fit(X)
    matrix = as_csr(X, dtype=np.float32)
    nothing = [np.zeros((n, 6)) for n in X.shape]
    origin = loss.objective(X, *nothing)  # of factors that are 0
    assert origin == pytest.approx(loss.constant(matrix, loss.coefficients(Degrees.of(matrix))))
    objectives = np.array([row["objective"] for row in model.history_])
    shares = -np.diff(objectives) / (origin - objectives[1:])
    assert shares[-1] < fit.SHARE and (shares[:-1] >= fit.SHARE).all()


def test_with_early_stopping_patience_ends_a_fit(large):
    model = make(early_stopping=True, patience=40).fit(large)
    assert model.n_iter_ == fit.MAX_ITER_WATCHED
    assert make(early_stopping=True, patience=1).fit(large).n_iter_ < fit.MAX_ITER


def test_the_fitted_model_says_what_was_taken(large, tmp_path):
    model = make().fit(large)
    n_iter = model.n_iter_
    assert (model.get_params()["init"], model.get_params()["n_iter"]) == ("auto", "auto")
    taken = model.params_
    assert (taken["init"], taken["n_iter"]) == ("spectral", n_iter)
    assert all(row["init"] == "spectral" for row in model.history_)
    assert f"init='spectral', n_iter={n_iter}" in repr(model)
    again = make().set_params(**taken).fit(large)
    assert content(again) == content(model) and again.params_["n_iter"] == n_iter
    model.save(tmp_path / "model.npz")
    loaded = RGALS.load(tmp_path / "model.npz")
    assert (loaded.init, loaded.n_iter) == ("auto", "auto")
    assert {k: v for k, v in loaded.params_.items() if k != "loss"} == {
        k: v for k, v in taken.items() if k != "loss"
    }
    assert repr(loaded) == repr(model)


# ------------------------------------------------------------------ checkpoints


def stop_after(n):
    return lambda now: now.iteration == n


class KilledError(Exception):
    pass


@pytest.mark.parametrize("init", ["random", "spectral"])
def test_a_killed_fit_of_auto_ends_with_the_bytes_of_a_whole_one(init, X, tmp_path):
    whole = make(init=init).fit(X)
    for at in {1, 2, whole.n_iter_ - 1, whole.n_iter_}:

        def kill(now, at=at):
            if now.iteration == at:
                raise KilledError

        with pytest.raises(KilledError):
            make(init=init).fit(X, checkpoint=tmp_path / str(at), callbacks=kill)
        assert content(make(init=init).fit(X, checkpoint=tmp_path / str(at))) == content(whole)
        # And once more, from the file of its end.
        assert content(make(init=init).fit(X, checkpoint=tmp_path / str(at))) == content(whole)


def test_a_fit_that_settled_goes_on_where_more_iterations_are_asked_for(X, tmp_path):
    settled = make().fit(X, checkpoint=tmp_path)
    more = settled.n_iter_ + 3
    assert content(make(n_iter=more).fit(X, checkpoint=tmp_path)) == content(make(n_iter=more).fit(X))
    assert make().fit(X, checkpoint=tmp_path).n_iter_ == more  # it is there


@pytest.mark.parametrize(("first", "then", "begins"), [("auto", 20, (4, 10)), (8, "auto", (10, 4))])
def test_a_checkpoint_whose_hard_negatives_begin_elsewhere_is_refused(first, then, begins, X, tmp_path):
    """With n_iter="auto" they begin later: a fit that went on was neither the one nor the other."""
    make(n_iter=first, hard_negatives=1.0).fit(X, checkpoint=tmp_path, callbacks=stop_after(6))
    with pytest.raises(CheckpointError, match="'warmup': {}, .* here and .*'warmup': {}".format(*begins)):
        make(n_iter=then, hard_negatives=1.0).fit(X, checkpoint=tmp_path)


@pytest.mark.parametrize(("one", "other"), [("random", "spectral"), ("spectral", "random")])
def test_a_checkpoint_of_another_start_is_refused_and_auto_goes_on_from_any(one, other, X, tmp_path):
    make(init=one, n_iter=2).fit(X, checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match=f"start is '{other}' here and '{one}' there"):
        make(init=other, n_iter=4).fit(X, checkpoint=tmp_path)
    went_on = make(n_iter=4).fit(X, checkpoint=tmp_path)
    assert content(went_on) == content(make(init=one, n_iter=4).fit(X)) and went_on.params_["init"] == one


def test_settled_is_judged_by_the_last_two_objectives():
    history = [{"objective": value} for value in (5.0, 2.0, 1.5, 1.4)]
    assert [has_settled(10.0, 0.1, history[:n]) for n in range(5)] == [False, False, False, True, True]


# ------------------------------------------------------------------ memory and quality


def test_the_start_is_part_of_the_predicted_memory():
    users = as_csr(make_implicit(30_000, 300, mean_interactions=5, random_state=0).matrix, dtype=np.float32)
    items = users.transpose()
    tracemalloc.start()
    try:
        spectral.user_factors(users, items, 64, np.random.default_rng(0), np.dtype("float32"), 1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    size = users.shape, users.nnz, 8, 4  # so few factors that the start is what takes most
    tables = 80 * sum(users.shape) * 4
    without, predicted = (Footprint(*size, start=n).peak() for n in (0, 80))
    assert tables < peak < 1.6 * tables
    assert predicted > without and predicted > peak


@pytest.mark.few(0)
def test_the_default_is_as_good_as_sixteen_iterations_from_random(data_file, amount):
    for name in amount(["citeulike-a"], ["citeulike-a", "anime-5k-users", "ml-1m", "amazon-book-kgat"]):
        X = read_interactions(data_file(name)).matrix
        X.data[:] = 1
        train, hidden = hold_out(as_csr(X, dtype=np.float32), 0.2, 0)
        figures = {}
        for loss in ("rg2", "ials"):
            for how, params in (("auto", {}), ("before", {"n_iter": 16, "init": "random"})):
                model = RGALS(64, loss, random_state=0, **params).fit(train.to_scipy())
                factors = model.user_factors_, model.item_factors_
                figures[how] = evaluate(factors, train, hidden, "ndcg@10")["ndcg@10"]
                assert how == "before" or model.n_iter_ <= 8
            assert figures["auto"] > 0.99 * figures["before"], (name, loss, figures)
