"""Checkpoints of SGD: a fit that ended early resumes and ends with the bytes of an uninterrupted one."""

from __future__ import annotations

import os

import numpy as np
import pytest
from helpers import interactions

from rgals import RG2, RGALS, Checkpoint, CheckpointError, ModelFileError, ParameterError
from rgals.files.archive import load_npz, save_npz
from rgals.matrix.validate import as_csr
from rgals.sgd import SGDRanker
from rgals.sgd.epochs import CHECKPOINT
from rgals.sgd.losses import AdvInfoNCE, SampledSoftmaxAtK

N_EPOCHS = 5
SETTINGS = {
    "softmax, lazy adam": {},
    "softmax, adam, dot": {"optimizer": "adam", "score": "dot", "temperature": 1.0},
    "float64, momentum": {"dtype": "float64", "optimizer": "sgd", "momentum": 0.5, "lr": 1.0},
    "rg2, adagrad": {"loss": "rg2", "optimizer": "adagrad", "score": "dot", "temperature": 1.0},
    "bpr, decoupled": {"loss": "bpr", "n_negatives": 3, "weight_decay": 0.01, "decay": "decoupled"},
    "shared negatives": {"loss": "sampled_softmax", "n_negatives": 9, "shared_negatives": True},
    "in batch, popularity": {"loss": "bce", "sampler": "in_batch", "batch_size": 64},
    "schedule": {"schedule": "cosine", "warmup": 0.2, "batch_size": 16},
    "early stopping": {"early_stopping": True, "patience": N_EPOCHS, "metric": "ndcg@3"},
    "thresholds": {"loss": "sampled_talos", "n_negatives": 4},
    "estimated thresholds": {"loss": SampledSoftmaxAtK(k=3, every=2), "n_negatives": 4, "optimizer": "adam"},
    "scalars": {"loss": "llpauc", "n_negatives": 4, "optimizer": "sgd", "momentum": 0.5, "lr": 0.1},
    "margins": {"loss": "sml", "n_negatives": 4, "optimizer": "adagrad"},
    "adversary": {"loss": AdvInfoNCE(every=2), "n_negatives": 4},
    "lists": {"loss": "lambda_rank", "n_negatives": 2, "batch_size": 16},
    "no seed": {"random_state": None},
    "lightgcn": {"encoder": "lightgcn", "optimizer": "adam"},
    "xsimgcl": {"encoder": "xsimgcl", "batch_size": 16},
}


@pytest.fixture(scope="module")
def X():
    return interactions(60, 30, valued=True, seed=5)


def make(**params):
    return SGDRanker(**{"K": 3, "n_epochs": N_EPOCHS, "random_state": 0, **params})


def content(model):
    """What a fit computed, without how long it took."""
    history = [{k: v for k, v in r.items() if "seconds" not in k} for r in model.history_]
    return model.user_factors_.tobytes(), model.item_factors_.tobytes(), history, model.n_iter_


class KilledError(Exception):
    pass


@pytest.mark.few(8)
@pytest.mark.parametrize("name", SETTINGS)
def test_an_interrupted_fit_resumes_to_the_same_bytes(name, X, tmp_path):
    settings = SETTINGS[name]
    if settings.get("random_state", 0) is None:  # the seed of the first call is in the file
        whole = make(**settings).fit(X, checkpoint=Checkpoint(tmp_path / "whole", every=2))
        again = make(**settings, n_jobs=1).fit(X, checkpoint=tmp_path / "whole")
        assert content(again) == content(whole)
        return
    whole = content(make(**settings).fit(X))
    for at in range(1, N_EPOCHS + 1):
        folder = tmp_path / str(at)

        def stop(now, at=at):
            if now.iteration == at:
                raise KilledError

        with pytest.raises(KilledError):
            make(**settings).fit(X, checkpoint=folder, callbacks=stop)
        seen = []
        resumed = make(**settings, n_jobs=1)
        resumed.fit(X, checkpoint=folder, callbacks=lambda now, seen=seen: seen.append(now.iteration))
        assert content(resumed) == whole
        assert seen == list(range(at, N_EPOCHS + 1)), "epochs that were written down are not run again"
        assert os.listdir(folder) == [Checkpoint.name]


def test_a_warm_start_is_part_of_the_checkpoint(X, tmp_path):
    first = make(warm_start=True).fit(X)
    whole = content(make(warm_start=True).fit(X).fit(X))

    def stop(now):
        if now.iteration == 3:
            raise KilledError

    with pytest.raises(KilledError):
        first.fit(X, checkpoint=tmp_path, callbacks=stop)
    with pytest.raises(CheckpointError, match="start"):
        make().fit(X, checkpoint=tmp_path)
    assert content(first.fit(X, checkpoint=tmp_path)) == whole


def test_more_epochs_prolong_a_fit_unless_its_schedule_counts_them(X, tmp_path):
    make(n_epochs=3).fit(X, checkpoint=tmp_path / "constant")
    assert content(make().fit(X, checkpoint=tmp_path / "constant")) == content(make().fit(X))
    make(n_epochs=3, schedule="linear").fit(X, checkpoint=tmp_path / "linear")
    with pytest.raises(CheckpointError, match="n_epochs is 5 here and 3 there"):
        make(schedule="linear").fit(X, checkpoint=tmp_path / "linear")
    with pytest.raises(CheckpointError, match="beyond"):
        make(n_epochs=2).fit(X, checkpoint=tmp_path / "constant")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"K": 4}, "K is 4"),
        ({"loss": "bpr"}, "loss"),
        ({"score": "dot"}, "score"),
        ({"temperature": 0.3}, "temperature"),
        ({"lr": 0.1}, "lr is 0.1"),
        ({"values": "log1p"}, "values is 'log1p' here and 'raw' there"),
        ({"optimizer": "adam"}, "optimizer"),
        ({"weight_decay": 0.1}, "weight_decay"),
        ({"batch_size": 9}, "batch_size"),
        ({"dtype": "float64"}, "dtype"),
        ({"random_state": 1}, "random_state"),
        ({"early_stopping": True}, "early_stopping"),
    ],
)
def test_a_checkpoint_of_another_fit_is_refused(X, tmp_path, change, word):
    given = {"temperature": 0.2, "lr": 0.02, "batch_size": 256}  # what the rule says of another fit differs
    make(**given).fit(X, checkpoint=tmp_path)
    before = (tmp_path / Checkpoint.name).read_bytes()
    with pytest.raises(CheckpointError, match=word):
        make(**{**given, **change}).fit(X, checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match="X is"):
        make(**given).fit(X * 2, checkpoint=tmp_path)
    assert (tmp_path / Checkpoint.name).read_bytes() == before


@pytest.mark.parametrize("name", sorted(set(SGDRanker().get_params(deep=False)) - {"n_jobs", "verbose"}))
def test_every_parameter_that_changes_a_bit_is_written_down(name, X):
    """Those of sampled negatives too, where the loss takes none: nobody has to know which loss reads what."""
    other = {"loss": "bpr", "score": "dot", "sampler": "in_batch", "optimizer": "adam", "decay": "decoupled"}
    other |= {"schedule": "cosine", "batch_size": 9, "metric": "ndcg@3", "dtype": "float64", "n_epochs": 9}
    other |= {"values": "log1p", "temperature": 0.3, "lr": 0.1, "n_negatives": 9, "encoder": "lightgcn"}
    other |= {"offset": 1.0}
    model = make(early_stopping=True, warmup=0.1, optimizer="sgd" if name == "momentum" else "lazy_adam")
    model.fit(X)
    matrix = as_csr(X)
    before = model._describe(matrix, matrix)
    if name in other:
        changed = other[name]
    else:
        value = model.get_params()[name]
        changed = not value if isinstance(value, bool) else value + (1 if name != "momentum" else 0.5)
    assert model.set_params(**{name: changed})._describe(matrix, matrix) != before


@pytest.mark.parametrize("folder", ["", __file__])
@pytest.mark.parametrize("estimator", [RGALS, SGDRanker])
def test_what_cannot_be_a_folder_is_refused_by_name(folder, estimator):
    """They were a FileNotFoundError and a FileExistsError, after the matrix was read; here it is none."""
    with pytest.raises(ParameterError, match="folder=.*need a folder; give its path"):
        estimator(K=2).fit("no matrix", checkpoint=folder)


def test_long_values_of_another_fit_end_with_dots(X, tmp_path):
    """A number that was cut in two read as another one."""
    RGALS(K=2, n_iter=1, loss=RG2(alpha=0.1)).fit(X, checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match=r"loss is \[.{56}\.\.\. here and \[.{56}\.\.\. there"):
        RGALS(K=2, n_iter=1, loss=RG2(alpha=0.2)).fit(X, checkpoint=tmp_path)


def test_checkpoints_of_als_and_sgd_are_not_mistaken(X, tmp_path):
    make().fit(X, checkpoint=tmp_path / "sgd")
    RGALS(K=3, n_iter=2, random_state=0).fit(X, checkpoint=tmp_path / "als")
    with pytest.raises(ModelFileError, match="checkpoint"):
        make().fit(X, checkpoint=tmp_path / "als")
    with pytest.raises(ModelFileError, match="checkpoint"):
        RGALS(K=3, n_iter=2, random_state=0).fit(X, checkpoint=tmp_path / "sgd")


@pytest.mark.parametrize("wrong", [np.zeros((1, 3), np.float32), np.zeros((60, 3))])
def test_moments_of_another_shape_or_type_are_refused(X, tmp_path, wrong):
    """The file's own checks do not know how many moments an optimiser keeps."""
    make(optimizer="adam").fit(X, checkpoint=tmp_path)
    path = tmp_path / Checkpoint.name
    arrays, meta = load_npz(path, expected=CHECKPOINT)
    arrays["user_first"] = wrong
    save_npz(path, arrays, meta, spec=CHECKPOINT)
    with pytest.raises(ModelFileError, match="user_first"):
        make(optimizer="adam", n_epochs=7).fit(X, checkpoint=tmp_path)


def test_a_schedule_that_is_a_function_is_refused(X, tmp_path):
    with pytest.raises(ParameterError, match="schedule"):
        make(schedule=lambda progress: 1.0).fit(X, checkpoint=tmp_path / "never")
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"iteration": 9},
        {"iteration": 0, "history": []},
        {"history": [{"iteration": 1, "seconds": 0.0, "objective": None}] * 3},
        {"stopped": 0},
        {"best": None},
        {"best": [0.5]},
        {"seed": None},
    ],
)
def test_parts_of_a_checkpoint_that_do_not_belong_together_are_refused(X, tmp_path, change):
    """All checksums are right."""
    how = {"early_stopping": True, "patience": 9, "metric": "ndcg@3"}
    make(n_epochs=3, **how).fit(X, checkpoint=tmp_path)
    path = tmp_path / Checkpoint.name
    arrays, meta = load_npz(path, expected=CHECKPOINT)
    assert meta["iteration"] == len(meta["history"]) == 3 and meta["best"] is not None
    save_npz(path, arrays, meta | change, spec=CHECKPOINT)
    with pytest.raises(ModelFileError, match="damaged"):
        make(n_epochs=4, **how).fit(X, checkpoint=tmp_path)
