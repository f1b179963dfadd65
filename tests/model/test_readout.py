"""Items' scores times a power of their popularity: what is solved is solved without, what ranks has it."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import LOSSES, interactions

from rgals import RG2, RGALS, RGX, Checkpoint, CheckpointError, ModelFileError, ParameterError
from rgals.cli import main
from rgals.files.archive import load_npz, save_npz
from rgals.losses import Degrees
from rgals.matrix.validate import as_csr
from rgals.metrics import evaluate
from rgals.model.export import export_factors
from rgals.model.file import SPEC
from rgals.model_selection import split_interactions
from rgals.solvers.dense import DenseBackend

E = 0.3


@pytest.fixture(scope="module")
def X():
    return interactions(80, 50, valued=True)


def scale_of(X: sp.csr_array, e: float = E) -> np.ndarray:
    """c_y^e with mean 1 over the interactions; an item without any is scaled as the least popular one."""
    sums = np.asarray(X.sum(axis=0), np.float64).ravel()
    counts = np.asarray((X != 0).sum(axis=0)).ravel()
    raised = np.maximum(sums, sums[sums > 0].min()) ** e
    return raised * counts.sum() / (counts @ raised)


def oracle(X: sp.csr_array, items: np.ndarray, model: RGALS) -> np.ndarray:
    """The user half-step in float64, straight from its systems."""
    rows = as_csr(X, dtype=np.float64)
    side = model.loss_.coefficients(Degrees.of(rows)).user_side(rows, model.reg_, model.reg_exponent)
    return DenseBackend().half_step(rows, items.astype(np.float64), side).factors


@pytest.mark.parametrize("name", LOSSES)
def test_what_is_solved_is_the_fit_without_and_what_scores_is_scaled(name, X):
    kwargs = {"K": 6, "loss": LOSSES[name], "n_iter": 3, "dtype": "float64", "random_state": 0}
    plain, model = RGALS(**kwargs).fit(X), RGALS(readout_exponent=E, **kwargs).fit(X)
    np.testing.assert_allclose(model.item_scale_, scale_of(X), rtol=1e-12)
    np.testing.assert_allclose(model.item_factors_, plain.item_factors_ * scale_of(X)[:, None], rtol=1e-12)
    solved = model.item_factors_ / model.item_scale_[:, None]
    expected = oracle(X, solved, model)
    np.testing.assert_allclose(model.user_factors_, expected, rtol=1e-8, atol=1e-10)
    assert model.objective(X) == pytest.approx(plain.objective(X), rel=1e-10)
    assert [row["objective"] for row in model.history_] == [row["objective"] for row in plain.history_]


@pytest.mark.parametrize("solver", ["exact", "pcg", "svd"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fold_in_equals_the_training_rows_to_the_bit(dtype, solver, X, tmp_path):
    loss = RG2(alpha=0.0) if solver == "svd" else RG2()
    model = RGALS(
        K=8, loss=loss, solver=solver, n_iter=3, dtype=dtype, readout_exponent=-E, random_state=0
    ).fit(X)
    assert model.item_scale_.dtype == dtype and len(np.unique(model.item_scale_)) > 10
    np.testing.assert_array_equal(model.transform(X), model.user_factors_)
    model.save(tmp_path / "model.npz")
    again = RGALS.load(tmp_path / "model.npz")
    assert again.readout_exponent == -E and again.fingerprint() == model.fingerprint()
    np.testing.assert_array_equal(again.item_scale_, model.item_scale_)
    np.testing.assert_array_equal(again.transform(X), model.user_factors_)


def test_without_an_exponent_no_byte_changes(X, tmp_path):
    model = RGALS(K=5, n_iter=2, random_state=0).fit(X)
    same = RGALS(K=5, n_iter=2, readout_exponent=0.0, random_state=0).fit(X)
    assert model._state().item_scale is None and same.fingerprint() == model.fingerprint()
    assert model._state().solved_items is model.item_factors_
    np.testing.assert_array_equal(model.item_scale_, np.ones(50))
    model.save(tmp_path / "model.npz")
    arrays, _ = load_npz(tmp_path / "model.npz", expected=SPEC)
    assert "item_scale" not in arrays


def test_scores_are_explained(X):
    model = RGALS(K=6, n_iter=4, dtype="float64", readout_exponent=E, random_state=0).fit(X)
    users, items = np.nonzero(X.toarray())
    for user, item in zip(users[::97], items[::89], strict=False):
        why = model.explain(int(user), int(item), n=None)
        assert why.score == pytest.approx(model.predict(user, item)[0], rel=1e-9)
        assert why.contributions.sum() + why.all_pairs == pytest.approx(why.score, rel=1e-12)


def test_early_stopping_judges_what_scores(X):
    train, held_out = split_interactions(X, (0.7, 0.3), random_state=0)
    kwargs = {"K": 8, "loss": RG2(alpha=0.024), "reg": 0.02, "n_iter": 4, "random_state": 0}
    with_it = RGALS(readout_exponent=-0.8, **kwargs).fit(train, validation=held_out)
    plain = RGALS(**kwargs).fit(train, validation=held_out)
    figures = [row["ndcg@10"] for row in with_it.history_]
    assert figures != [row["ndcg@10"] for row in plain.history_]
    expected = evaluate(with_it, train, held_out)["ndcg@10"]
    assert figures[-1] == pytest.approx(expected, rel=2e-3)
    stopped = RGALS(readout_exponent=-0.8, early_stopping=True, patience=2, **kwargs)
    stopped.fit(train, validation=held_out)
    assert evaluate(stopped, train, held_out)["ndcg@10"] == pytest.approx(max(figures), rel=2e-3)


def test_callbacks_see_what_scores(X):
    seen = []
    model = RGALS(K=4, n_iter=3, dtype="float64", readout_exponent=E, random_state=0)
    model.fit(X, callbacks=lambda now: seen.append(now.item_factors @ now.user_factors[7]))
    assert len(seen) == 3
    np.testing.assert_allclose(seen[-1], model.item_factors_ @ model.user_factors_[7], rtol=1e-9)


def test_a_warm_start_goes_on_from_what_was_solved(X):
    kwargs = {"K": 5, "dtype": "float64", "random_state": 0, "readout_exponent": E}
    whole = RGALS(n_iter=6, **kwargs).fit(X)
    model = RGALS(n_iter=3, **kwargs).fit(X)
    model.set_params(warm_start=True).fit(X)
    np.testing.assert_allclose(model.item_factors_, whole.item_factors_, rtol=1e-6, atol=1e-9)


def test_a_checkpoint_ends_with_the_bytes_of_an_uninterrupted_fit(X, tmp_path):
    train, held_out = split_interactions(X, (0.7, 0.3), random_state=0)
    kwargs = {"K": 5, "random_state": 0, "readout_exponent": E, "early_stopping": True}
    whole = RGALS(n_iter=6, **kwargs).fit(train, validation=held_out)
    RGALS(n_iter=3, **kwargs).fit(train, validation=held_out, checkpoint=Checkpoint(tmp_path))
    model = RGALS(n_iter=6, **kwargs).fit(train, validation=held_out, checkpoint=Checkpoint(tmp_path))
    assert model.fingerprint() == whole.fingerprint()
    with pytest.raises(CheckpointError, match="readout_exponent"):
        RGALS(n_iter=6, **{**kwargs, "readout_exponent": 0.1}).fit(
            train, validation=held_out, checkpoint=Checkpoint(tmp_path)
        )


def test_changed_users_are_solved_against_what_was_solved(X):
    model = RGALS(K=6, n_iter=3, dtype="float64", readout_exponent=E, random_state=0).fit(X)
    items = model.item_factors_
    row = sp.csr_array(X[[9]])
    model.partial_fit_users(row, [80])
    grown = sp.csr_array(sp.vstack([X, row]))
    expected = oracle(grown, items / model.item_scale_[:, None], model)[80]
    np.testing.assert_allclose(model.user_factors_[80], expected, rtol=1e-8)
    assert model.item_factors_ is items


@pytest.mark.parametrize("loss", [RG2(), RGX()], ids=["rg2", "rgx"])
def test_new_items_are_scaled_by_their_counts(loss, X):
    kwargs = {"K": 6, "loss": loss, "n_iter": 3, "dtype": "float64", "random_state": 0}
    plain, model = RGALS(**kwargs).fit(X), RGALS(readout_exponent=E, **kwargs).fit(X)
    columns = sp.csr_array(X[:, [4, 30]])
    before = model.item_factors_.copy()
    for one in (plain, model):
        one.partial_fit_items(columns, [50, 51], refresh_users=True)
    np.testing.assert_array_equal(model.item_factors_[:50], before)
    # As popular as two that are there, hence scaled as these.
    np.testing.assert_allclose(model.item_scale_[50:], model.item_scale_[[4, 30]], rtol=1e-12)
    np.testing.assert_allclose(
        model.item_factors_ / model.item_scale_[:, None], plain.item_factors_, rtol=1e-7, atol=1e-9
    )
    np.testing.assert_allclose(model.user_factors_, plain.user_factors_, rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(model.transform(model.seen_), model.user_factors_)
    np.testing.assert_allclose(
        model.transform_items(columns), plain.transform_items(columns) * model.item_scale_[50:, None],
        rtol=1e-7, atol=1e-9,
    )  # fmt: skip


def test_an_item_that_loses_its_interactions_keeps_a_scale(X):
    model = RGALS(K=4, n_iter=2, readout_exponent=-1.0, random_state=0).fit(X)
    model.partial_fit_items(sp.csr_array((80, 1)), [50])
    assert np.isfinite(model.item_factors_).all() and (model.item_scale_ > 0).all()
    assert model.item_scale_[50] == model.item_scale_.max()


def test_exports_hold_what_scores(X, tmp_path):
    model = RGALS(K=4, n_iter=2, readout_exponent=E, random_state=0).fit(X)
    export_factors(model, tmp_path)
    np.testing.assert_array_equal(np.load(tmp_path / "item_factors.npy"), model.item_factors_)
    ids, scores = model.recommend([1], n=5)
    np.testing.assert_allclose(scores[0], model.item_factors_[ids[0]] @ model.user_factors_[1], rtol=1e-5)


@pytest.mark.parametrize("value", ["auto", None, 1.5, -2, np.nan, True])
def test_wrong_exponents_are_refused(value, X):
    with pytest.raises(ParameterError, match="readout_exponent"):
        RGALS(K=4, readout_exponent=value).fit(X)


def test_a_scale_that_no_float_holds_is_refused():
    huge = sp.csr_array(np.array([[1e-30, 1e30], [1e-30, 1e30]]))
    with pytest.raises(ParameterError, match="readout_exponent"):
        RGALS(K=1, n_iter=1, readout_exponent=-1.0, dtype="float32").fit(huge)


@pytest.mark.parametrize("damage", [0.0, -1.0])
def test_a_damaged_scale_is_refused(damage, X, tmp_path):
    path = tmp_path / "model.npz"
    RGALS(K=4, n_iter=2, readout_exponent=E, random_state=0).fit(X).save(path)
    arrays, meta = load_npz(path, expected=SPEC)
    arrays = {**arrays, "item_scale": arrays["item_scale"].copy()}
    arrays["item_scale"][3] = damage
    save_npz(path, arrays, meta, spec=SPEC)
    with pytest.raises(ModelFileError):
        RGALS.load(path)


def test_the_command_fits_with_an_exponent(X, tmp_path):
    data, path = tmp_path / "data.csv", tmp_path / "model.npz"
    users, items = X.nonzero()
    data.write_text("user,item\n" + "\n".join(f"u{u},i{i}" for u, i in zip(users, items, strict=True)))
    options = ["--K", "4", "--seed", "0", "--readout-exponent", "0.2", "-q"]
    assert main(["fit", str(data), "-o", str(path), *options]) == 0
    model = RGALS.load(path)
    assert model.readout_exponent == 0.2 and model.item_scale_.std() > 0.01


def test_the_read_out_takes_what_values_became(X):
    kwargs = {"K": 5, "n_iter": 2, "dtype": "float64", "readout_exponent": E, "random_state": 0}
    model = RGALS(values="log1p", **kwargs).fit(X)
    weighted = X.copy()
    weighted.data = np.log1p(weighted.data)
    np.testing.assert_allclose(model.item_scale_, scale_of(weighted), rtol=1e-10)
    np.testing.assert_array_equal(model.transform(X), model.user_factors_)
    model.partial_fit_items(sp.csr_array(X[:, [4]]), [50], refresh_users=True)
    assert model.item_scale_[50] == pytest.approx(model.item_scale_[4], rel=1e-12)
    np.testing.assert_array_equal(model.transform(model.seen_), model.user_factors_)
