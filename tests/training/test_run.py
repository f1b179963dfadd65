"""What ends a fit before its end leaves the model as it was before, bit for bit, or unfitted: ALS and SGD."""

from __future__ import annotations

import signal
import time

import numpy as np
import pytest
from helpers import interactions
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from rgals import RGALS, NumericalError
from rgals.sgd import SGDRanker

N_ITER = 4
MODELS = {
    "als": RGALS(K=3, n_iter=N_ITER, random_state=0),
    "als-early": RGALS(K=3, n_iter=N_ITER, early_stopping=True, patience=N_ITER, random_state=0),
    "als-warm": RGALS(K=3, n_iter=N_ITER, warm_start=True, random_state=0),
    "sgd": SGDRanker(K=3, n_epochs=N_ITER, random_state=0),
    "sgd-sampled": SGDRanker(K=3, loss="bpr", score="dot", n_negatives=3, n_epochs=N_ITER, random_state=0),
    "sgd-early": SGDRanker(K=3, n_epochs=N_ITER, early_stopping=True, patience=N_ITER, random_state=0),
    "sgd-warm": SGDRanker(K=3, n_epochs=N_ITER, warm_start=True, random_state=0),
}


def interrupt(now):
    raise KeyboardInterrupt


def send_signal(now):
    signal.raise_signal(signal.SIGINT)
    time.sleep(5)  # the interruption is what ends this


def fail(now):
    raise RuntimeError("of the callback")


def state_of(model, folder) -> tuple:
    """Everything that can be known of a model: its file, byte by byte, and its attributes."""
    model.save(folder / "model.npz")
    return (folder / "model.npz").read_bytes(), sorted(vars(model)), repr(model.get_params())


@pytest.fixture(autouse=True)
def ctrl_c():
    """Interrupts, also where the shell that started the tests ignores it: that is inherited."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.fixture(scope="module")
def X():
    return interactions(40, 25, valued=True)


@pytest.mark.parametrize("ending", [interrupt, send_signal, fail])
@pytest.mark.parametrize("name", MODELS)
def test_an_interrupted_fit_changes_nothing(name, ending, X, tmp_path):
    for at in range(1, N_ITER + 1):
        model = clone(MODELS[name])

        def end_there(now, at=at):
            if now.iteration == at:
                ending(now)

        with pytest.raises((KeyboardInterrupt, RuntimeError)):
            model.fit(X, callbacks=end_there)
        assert sorted(vars(model)) == sorted(model.get_params(deep=False)), "unfitted"
        with pytest.raises(NotFittedError):
            model.recommend([0])
        assert not hasattr(model, "history_") and not hasattr(model, "n_features_in_")

        model.fit(X, user_ids=np.arange(100, 140))
        before = state_of(model, tmp_path)
        kept = model.user_factors_.copy(), model.item_factors_.copy()
        model.set_params(random_state=1)
        with pytest.raises((KeyboardInterrupt, RuntimeError)):
            model.fit(X, callbacks=end_there)
        model.set_params(random_state=0)
        assert state_of(model, tmp_path) == before
        for now, then in zip(model.factors_, kept, strict=True):
            np.testing.assert_array_equal(now, then)


@pytest.mark.parametrize("early", [False, True])
def test_a_fit_that_diverges_changes_nothing(early, X, tmp_path):
    wild = {"score": "dot", "temperature": 1.0, "optimizer": "sgd", "lr": 1e30}
    model = SGDRanker(K=3, n_epochs=6, early_stopping=early, random_state=0)
    unfitted = clone(model).set_params(**wild)
    with pytest.raises(NumericalError, match=r"epoch \d: .*diverged"):
        unfitted.fit(X)
    assert not hasattr(unfitted, "item_factors_")
    model.fit(X)
    before = state_of(model, tmp_path)
    calm = {name: model.get_params()[name] for name in wild}
    with pytest.raises(NumericalError):
        model.set_params(**wild).fit(X)
    assert state_of(model.set_params(**calm), tmp_path) == before


@pytest.mark.parametrize("name", ["als", "sgd"])
def test_signals_at_any_moment_leave_the_old_fit_or_the_new_one(name, X, tmp_path):
    """Ctrl-C between any two steps of the interpreter, not in callbacks only."""
    model = clone(MODELS[name]).set_params(random_state=0).fit(X)
    before = state_of(model, tmp_path)[0]
    started = time.perf_counter()
    new = state_without_seconds(clone(model).set_params(random_state=1).fit(X))
    seconds = time.perf_counter() - started
    old = state_without_seconds(model)
    handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
    interrupted = 0
    try:
        for moment in np.linspace(0.02, 1.2, 25) * seconds:
            model.set_params(random_state=1)
            try:
                signal.setitimer(signal.ITIMER_REAL, moment)
                model.fit(X)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except (KeyboardInterrupt, SystemError) as error:
                # A signal at the very end of a compiled function is the first cause of a SystemError.
                assert isinstance(first_cause(error), KeyboardInterrupt)
                interrupted += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            model.set_params(random_state=0)
            if state_without_seconds(model) == old:
                model.save(tmp_path / "model.npz")
                assert (tmp_path / "model.npz").read_bytes() == before
            else:
                assert state_without_seconds(model) == new
                model = clone(model).fit(X)
                before = state_of(model, tmp_path)[0]
    finally:
        signal.signal(signal.SIGALRM, handler)
    assert interrupted > 3


def first_cause(error: BaseException) -> BaseException:
    return error if error.__cause__ is None else first_cause(error.__cause__)


def state_without_seconds(model) -> tuple:
    """What a fit computed, without how long it took."""
    objective = [record["objective"] for record in model.history_]
    return model.user_factors_.tobytes(), model.item_factors_.tobytes(), objective, model.n_iter_


def test_equal_figures_are_no_improvement_and_callbacks_see_every_iteration():
    X, seen = interactions(40, 25, seed=1), []
    model = RGALS(K=3, n_iter=12, early_stopping=True, patience=2, metric="hit_rate@25", random_state=0)
    model.fit(X, callbacks=[lambda now: seen.append(now.item_factors.copy())])
    assert [row["hit_rate@25"] for row in model.history_] == [1.0] * 3  # of the whole catalogue: always
    assert len(seen) == model.n_iter_ == 3 and (seen[0] != seen[1]).any()
    np.testing.assert_array_equal(model.item_factors_, seen[0])


def test_a_figure_that_no_user_has_keeps_the_first_iteration():
    X, seen = np.ones((6, 5)), []  # whatever is held out, no item is irrelevant
    model = RGALS(K=2, n_iter=9, early_stopping=True, patience=2, metric="auc", random_state=0)
    model.fit(X, callbacks=lambda now: seen.append(now.item_factors.copy()))
    assert np.isnan([row["auc"] for row in model.history_]).all() and model.n_iter_ == 3
    np.testing.assert_array_equal(model.item_factors_, seen[0])
