"""Whatever reads a fitted model reads one fit, even while another thread publishes the next."""

from __future__ import annotations

import copy
import functools
import itertools
import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from helpers import interactions

from rgals import RG2, RGALS, HardNegatives, InputError, Positions
from rgals.datasets import make_implicit
from rgals.files.archive import load_npz, save_npz
from rgals.metrics import evaluate
from rgals.model.export import export_factors
from rgals.model.file import SPEC
from rgals.runtime.errors import ModelFileError
from rgals.scoring import recommend_all
from rgals.sgd import SGDRanker


class Changing:
    """A mixin: after every look at a fit, a refit publishes the other one of ``_fits``."""

    _fits = None

    def _state(self):
        state = super()._state()
        self._refit()
        return state

    def __getstate__(self):
        state = dict(super().__getstate__())
        self._refit()
        state.pop("_fits", None)
        return state

    def _refit(self):
        if self._fits is not None:
            vars(self).update(next(self._fits))


class ChangingALS(Changing, RGALS):
    pass


class ChangingSGD(Changing, SGDRanker):
    pass


@functools.cache
def fits(kind):
    """Two fits of 30 users and 20 items: other parameters, interactions, ids, iterations, column names."""
    out = []
    for k in (0, 1):
        iterations = {"n_iter" if kind is ChangingALS else "n_epochs": 2 + k}
        model = kind(K=2 + k, random_state=k, **iterations)
        ids = {"user_ids": np.arange(30) + 100 * k, "item_ids": np.arange(20) + 1000 * k}
        out.append(model.fit(interactions(30, 20, valued=k == 1, seed=k), **ids))
    return out


def changing(kind, first):
    """A model that holds the fit ``first``, until it is looked at."""
    pair = fits(kind)
    model = copy.copy(pair[first])
    states = [dict(vars(fit)) for fit in pair]
    model._fits = itertools.cycle([states[1 - first], states[first]])
    return model


def saved(model, folder):
    model.save(folder / "model.npz")
    return (folder / "model.npz").read_bytes()


def streamed(model, folder):
    recommend_all(model, folder / "all.csv", n=4, batch_size=7)
    return (folder / "all.csv").read_bytes()


def exported(model, folder):
    return [open(path, "rb").read() for path in export_factors(model, folder / "factors")]


def everything(model):
    factors = [factors.tobytes() for factors in model.factors_]
    return model.n_iter_, model.history_, factors, model.user_ids_.tolist(), repr(model)


READERS = {
    "save": saved,
    "recommend_all": streamed,
    "export_factors": exported,
    "evaluate": lambda model, _: evaluate(model, np.zeros((30, 20)), np.tri(30, 20), metrics=("ndcg@5",)),
    "pickle": lambda model, _: everything(pickle.loads(pickle.dumps(model))),
    "copy": lambda model, _: everything(copy.copy(model)),
    "deepcopy": lambda model, _: everything(copy.deepcopy(model)),
    "recommend": lambda model, _: [array.tolist() for array in model.recommend(Positions([1, 2, 4]))],
    "recommend_ids": lambda model, _: model.recommend_ids([101, 102], unknown="popular")[0].tolist(),
}
READERS_OF_ALS = {
    "transform": lambda model, _: model.transform(np.eye(20)).tobytes(),
    "predict": lambda model, _: model.predict(np.eye(20)).tolist(),
    "score": lambda model, _: model.score(np.tri(20)),
    "explain": lambda model, _: model.explain(Positions(1), Positions(2)).score,
}


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(
    ("kind", "reader"),
    [(ChangingALS, reader) for reader in READERS | READERS_OF_ALS]
    + [(ChangingSGD, reader) for reader in READERS],
)
@pytest.mark.filterwarnings("ignore:.*have no")
def test_an_answer_comes_from_one_fit(kind, reader, first, tmp_path):
    read = (READERS | READERS_OF_ALS)[reader]
    folders = [tmp_path / name for name in ("first", "second", "changing")]
    for folder in folders:
        folder.mkdir()
    answers = [read(copy.copy(fit), folder) for fit, folder in zip(fits(kind), folders, strict=False)]
    assert answers[0] != answers[1]
    assert read(changing(kind, first), folders[2]) in answers


class Served:
    """What another thread does while a pickle or a copy of the model is made: it asks the model something."""

    def __init__(self, model):
        self.model = model

    def __reduce__(self):
        self.model.similar_items([0], n=1)
        return Served, (None,)


@pytest.mark.parametrize("copied", [lambda model: pickle.loads(pickle.dumps(model)), copy.deepcopy])
def test_a_model_is_pickled_and_copied_while_it_answers(copied):
    """What answers keep grew the dict that the pickle went through, which ended in a RuntimeError."""
    model = RGALS(K=2, n_iter=2, random_state=0).fit(interactions(30, 20))
    wanted = model.recommend([1, 2], n=3)[0]
    model.history_[0]["served"] = Served(model)
    np.testing.assert_array_equal(copied(model).recommend([1, 2], n=3)[0], wanted)


def test_a_file_holds_the_parameters_of_the_fit(tmp_path):
    model = RGALS(K=2, n_iter=2, loss="ials", random_state=0).fit(interactions(30, 20))
    wanted = repr(model)
    model.set_params(K=7, loss="rg2", random_state=3).save(tmp_path / "model.npz")
    assert repr(RGALS.load(tmp_path / "model.npz")) == wanted


def test_parameters_set_during_a_fit_are_those_of_the_next():
    X = interactions(30, 20)
    model = RGALS(K=3, n_iter=3, random_state=0)
    model.fit(X, callbacks=lambda now: model.set_params(K=5, n_iter=1, solver="pcg") and None)
    wanted = RGALS(K=3, n_iter=3, random_state=0).fit(X)
    np.testing.assert_array_equal(model.user_factors_, wanted.user_factors_)
    assert (model.n_iter_, model.solver_) == (3, "exact")


def test_names_of_columns_go_with_the_fit():
    names = [f"item {i}" for i in range(20)]
    frame = pd.DataFrame(interactions(30, 20).toarray(), columns=names)
    model = RGALS(K=2, n_iter=1, random_state=0).fit(frame)
    assert model.feature_names_in_.tolist() == names and model.n_features_in_ == 20
    kept = copy.copy(model)
    model.fit(frame.to_numpy())
    assert not hasattr(model, "feature_names_in_")
    assert kept.feature_names_in_.tolist() == names


def test_a_frame_with_columns_in_another_order_is_refused_by_every_method_and_by_a_loaded_model(tmp_path):
    """Some took its columns by their places, and a file had lost their names."""
    frame = pd.DataFrame(interactions(30, 20).toarray(), columns=[f"item {i}" for i in range(20)])
    turned, some = frame[frame.columns[::-1]], frame[frame.columns[1:]]
    model = RGALS(K=2, n_iter=1, random_state=0).fit(frame, validation=1 - frame)
    model.save(tmp_path / "model.npz")
    again = RGALS.load(tmp_path / "model.npz")
    assert again.feature_names_in_.tolist() == frame.columns.tolist()
    np.testing.assert_array_equal(again.transform(frame), model.user_factors_)
    assert again.partial_fit_users(frame[:2], [0, 1]).objective(frame) == pytest.approx(
        model.objective(frame)
    )
    for one in (model, again):
        for call in (
            one.transform,
            one.recommend_new,
            one.predict,
            one.score,
            one.objective,
            one.partial_fit,
            lambda X, one=one: one.partial_fit_users(X[:1], [0]),
            lambda X, one=one: one.fit(frame, validation=X),
        ):
            with pytest.raises(InputError):
                call(some)
            with pytest.raises(InputError, match="order"):
                call(turned)


def test_columns_of_a_frame_with_ids_are_found_in_any_order():
    """Methods that fold in refused what all others took."""
    users, items = (pd.Index(range(n), name=name) for n, name in ((30, "user"), (20, "item")))
    frame = pd.DataFrame(interactions(30, 20).toarray(), users, items.astype(str))
    model = RGALS(K=2, random_state=0).fit(frame)
    turned = frame[frame.columns[::-1]]
    np.testing.assert_array_equal(model.transform(turned), model.user_factors_)
    np.testing.assert_array_equal(model.recommend_new(turned).ids, model.recommend_new(frame).ids)
    some = frame[frame.columns[:9]]
    np.testing.assert_array_equal(model.transform(some), model.transform(frame * (np.arange(20) < 9)))


def test_names_of_columns_that_are_not_distinct_are_refused():
    pytest.importorskip("narwhals", reason="by which newer releases of scikit-learn see frames")
    frame = pd.DataFrame(interactions(30, 20).toarray(), columns=["a"] * 20)
    with pytest.raises(InputError, match="unique column names"):
        RGALS(K=2, n_iter=1, random_state=0).fit(frame)


def test_damaged_names_of_columns_are_refused(tmp_path):
    frame = pd.DataFrame(interactions(30, 20).toarray(), columns=[f"item {i}" for i in range(20)])
    RGALS(K=2, n_iter=1, random_state=0).fit(frame).save(tmp_path / "model.npz")
    arrays, meta = load_npz(tmp_path / "model.npz", expected=SPEC)
    arrays["column_ids_offsets"] = arrays["column_ids_offsets"][:-1]
    save_npz(tmp_path / "bad.npz", arrays, meta, spec=SPEC)
    with pytest.raises(ModelFileError, match="damaged"):
        RGALS.load(tmp_path / "bad.npz")


def test_the_fingerprint_counts_the_class_of_the_loss():
    """A loss of one's own may fold in otherwise, whatever its parameters and the factors of the fit are."""

    class Own(RG2):
        pass

    X = interactions(30, 20, seed=0)
    first, second = (RGALS(K=4, n_iter=1, loss=loss(), random_state=0).fit(X) for loss in (RG2, Own))
    np.testing.assert_array_equal(first.item_factors_, second.item_factors_)
    assert first.fingerprint() != second.fingerprint()


def test_the_fingerprint_counts_how_values_become_weights_and_the_hard_negatives():
    X = interactions(30, 20, seed=0)
    raw, binary = (RGALS(K=4, n_iter=1, values=v, random_state=0).fit(X) for v in ("raw", "binary"))
    np.testing.assert_array_equal(raw.item_factors_, binary.item_factors_)
    assert (raw.transform(3.0 * X[:5]) != binary.transform(3.0 * X[:5])).any()
    assert raw.fingerprint() != binary.fingerprint()
    state, hard = raw._state(), HardNegatives(weight=1.0, n_samples=4)
    drawn = [
        replace(state, hard_negatives=h).fingerprint for h in (None, hard, HardNegatives(2.0, n_samples=4))
    ]
    assert len({*drawn}) == 3 and drawn[0] == state.fingerprint


def test_a_file_of_interactions_is_said_to_be_no_model(tmp_path):
    """It was refused for being compressed, "which rgals never does"."""
    make_implicit(9, 12, random_state=0).save(tmp_path / "data.npz")
    with pytest.raises(ModelFileError, match="not a rgals-model file: it holds no metadata"):
        RGALS.load(tmp_path / "data.npz")
