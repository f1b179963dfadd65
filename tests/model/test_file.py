"""Damaged and hostile model files: refused with a reason; no crash, no wrong model, no memory for nothing."""

from __future__ import annotations

import numpy as np
import pytest
from instruments import model_files

from rgals import RGALS
from rgals.datasets import read_interactions
from rgals.files.archive import load_npz, save_npz
from rgals.model.file import SPEC
from rgals.runtime.errors import ModelFileError

BATCH = 500
ME = "instruments.model_files"


def test_damaged_model_files(zygote, tally):
    count = tally("mutations of model files", 500, 50_000)
    content = model_files.good()
    for start in range(0, count.figure, BATCH):
        outcome = zygote.run(f"{ME}:batch", content, start, start + BATCH)
        if not outcome.returned:
            count.add(outcome.seconds, f"seeds {start}..{start + BATCH - 1}: {outcome}", BATCH)
            continue
        count.add(outcome.seconds, None, BATCH - len(outcome.value))
        for fault in outcome.value:
            count.add(0.0, fault)
    count.check()


def test_the_damage_fools_whoever_trusts_the_file(zygote):
    outcome = zygote.run(f"{ME}:batch", model_files.good(), 0, 500, True)
    assert outcome.returned, outcome
    assert sum("silently wrong" in fault for fault in outcome.value) >= 5
    assert sum("untyped" in fault for fault in outcome.value) > 100


def test_crafted_model_files(zygote, tally, amount):
    """In one process; those of the stress tests in a process each, so that a crash names its file."""
    count = tally("crafted model files", 40, 40)
    content = model_files.good()
    assert zygote.run(f"{ME}:load_crafted", [model_files.rebuilt(content)]).value == ["loaded"]
    files = model_files.crafted(content)
    for part in amount([files], [[file] for file in files]):
        outcome = zygote.run(f"{ME}:load_crafted", [file for _, file in part])
        answers = outcome.value if outcome.returned else [str(outcome)] * len(part)
        for (name, _), answer in zip(part, answers, strict=True):
            refused = answer in ("ModelFileError", "OtherFormatError")  # the latter is a kind of the former
            count.add(outcome.seconds, None if refused else f"{name}: {answer}")
    count.check()


def lowered(name):
    """The last number of an array, less 1."""

    def change(arrays, meta):
        arrays[name] = arrays[name].copy()
        arrays[name][-1] -= 1

    return change


def emptied(name):
    """The first number of an array, 0."""

    def change(arrays, meta):
        arrays[name] = arrays[name].copy()
        assert arrays[name][0] != 0
        arrays[name][0] = 0

    return change


def says(part, name, value):
    """Another value in the description."""
    return lambda arrays, meta: (meta[part] if part else meta).update({name: value})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (emptied("seen_values"), "has no value"),
        (emptied("weighting_idf"), "weight of an item is not positive"),
        (lowered("user_feature_indptr"), "features of users are damaged"),
        (lambda arrays, meta: arrays.pop("seen_times"), "half-life of its weights is damaged"),
        (says("weighting", "newest", float("nan")), "half-life of its weights is damaged"),
        (says("weighting", "half_life", -1.0), "weighting of its values is damaged"),
        (says("fitted", "n_iter_", -1), "history is damaged"),
        (says("", "merged", -1), "merged=-1"),
    ],
)
def test_a_description_that_cannot_be_is_refused(change, words, tmp_path):
    """All checksums are right: whoever changed the file has written new ones."""
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, 12, 60), rng.integers(0, 9, 60)
    data = read_interactions((users, items, rng.integers(1, 4, 60), rng.integers(0, 900, 60)))
    assert len(np.unique(data.matrix.data)) > 1 and len(np.unique(data.timestamp)) > 1
    features = rng.standard_normal((data.n_users, 2))
    path = tmp_path / "model.npz"
    model = RGALS(K=2, n_iter=1, values="bm25", half_life=300.0, feature_reg=1.0, random_state=0)
    model.fit(data, user_features=features).save(path)
    assert RGALS.load(path).fingerprint() == model.fingerprint()
    arrays, meta = load_npz(path, expected=SPEC)
    change(arrays, meta)
    save_npz(path, arrays, meta, spec=SPEC)
    with pytest.raises(ModelFileError, match=words):
        RGALS.load(path)
