"""Labels given to a fit: one for each row and column, all distinct, and the model's own from then on."""

from __future__ import annotations

import uuid

import numpy as np
import pytest
import scipy.sparse as sp

from rgals import RGALS
from rgals.datasets import read_interactions
from rgals.runtime.errors import InputError, InputTypeError
from rgals.sgd import SGDRanker

M, N = 12, 9


@pytest.fixture(scope="module")
def X():
    return sp.csr_array((np.random.default_rng(0).random((M, N)) < 0.5).astype(np.float32))


@pytest.fixture(params=["RGALS", "SGDRanker"])
def model(request):
    if request.param == "RGALS":
        return RGALS(K=2, n_iter=1, random_state=0)
    return SGDRanker(K=2, n_epochs=1, random_state=0)


def doubled(labels, first, second):
    """The labels with that of one position at another one too."""
    labels = list(labels)
    labels[second] = labels[first]
    return labels


@pytest.mark.parametrize("side", ["user", "item"])
@pytest.mark.parametrize(
    ("make", "shown"),
    [
        (lambda n: doubled([f"u{k}" for k in range(n)], 1, 7), "'u1'"),
        (lambda n: np.array(doubled(range(100, 100 - n, -1), 1, 7)), "99"),
        (lambda n: np.array(doubled(range(2**63, 2**63 + n), 1, 7), np.uint64), str(2**63 + 1)),
        (lambda n: doubled([f"u{k}" if k % 2 else k for k in range(n)], 1, 7), "'u1'"),
        (lambda n: [*"0b234567"[: min(n, 7)], b"b", *"89xy"[: n - 8]], "'b'"),
        (lambda n: [0, 1, 2, 3, 4, 5, 6, 1.0, *range(8, n)], "1"),
        (lambda n: [f"u{min(k, 1)}" if k in (0, 1, 7) else f"u{k}\0" for k in range(n)], "'u1'"),
        (lambda n: [uuid.UUID(int=1 if k == 7 else k) for k in range(n)], str(uuid.UUID(int=1))),
    ],
)
def test_a_label_given_twice_is_refused_with_both_positions(model, X, side, make, shown):
    labels = make(M if side == "user" else N)
    with pytest.raises(InputError) as caught:
        model.fit(X, **{f"{side}_ids": labels})
    message = str(caught.value)
    assert message.startswith(f"{side}_ids: {side} ") and shown in message, message
    assert "positions 1 and 7" in message
    assert not hasattr(model, "_snapshot")


@pytest.mark.parametrize(
    "odd",
    [None, float("nan"), 1.5, True, ("a", "b"), np.datetime64("NaT", "s"), np.timedelta64(1, "D"), 2**70],
)
def test_what_is_no_label_is_refused_with_its_place(model, X, odd):
    for side, n in (("user", M), ("item", N)):
        labels = np.empty(n, object)
        labels[:] = range(n)
        labels[5] = odd
        with pytest.raises(
            InputTypeError, match=rf"^{side}_ids: (ids must be .*row 5|integer ids must fit 64)"
        ):
            model.fit(X, **{f"{side}_ids": labels})
    with pytest.raises(InputTypeError, match=r"^user_ids: .*row 3 holds nan"):
        model.fit(X, user_ids=np.where(np.arange(M) == 3, np.nan, np.arange(M)))


def test_labels_that_differ_in_anything_are_distinct(model, X):
    labels = [7, "7", "07", "7\0", " 7", "７", "", "é", "e\u0301"]
    model.fit(X, item_ids=labels)
    assert model.item_ids_.tolist() == labels


@pytest.mark.parametrize("kind", [np.int64, np.uint64, "<U5", object])
def test_the_callers_array_and_the_model_do_not_share_labels(model, X, kind):
    labels = np.arange(N).astype(kind)
    before = labels.tolist()
    model.fit(X, item_ids=labels)
    labels[:] = labels[::-1].copy()
    assert model.item_ids_.tolist() == before
    with pytest.raises(ValueError, match="read-only"):
        model.item_ids_[0] = model.item_ids_[1]


def test_partial_fits_refuse_a_label_given_twice(X):
    model = RGALS(K=2, n_iter=1, random_state=0)
    model.fit(X, user_ids=[f"u{k}" for k in range(M)], item_ids=[f"i{k}" for k in range(N)])
    before = model.fingerprint()
    for ids in (["u1", "new", "u1"], ["u0", "new", "new"]):
        at = "0 and 2" if ids[0] == "u1" else "1 and 2"
        with pytest.raises(InputError, match=f"occurs twice in the labels, at positions {at}"):
            model.partial_fit_users(X[:3], ids)
        with pytest.raises(InputError, match=f"occurs twice in the labels, at positions {at}"):
            model.partial_fit_items(X[:, :3], [label.replace("u", "i") for label in ids])
    assert model.fingerprint() == before


def test_a_refused_refit_leaves_the_model(model, X):
    model.fit(X[::-1])
    before = model.fingerprint()
    with pytest.raises(InputError, match="occurs twice"):
        model.fit(X, user_ids=np.zeros(M, int))
    assert model.fingerprint() == before


def test_nobody_changes_the_ids_of_a_model_in_place():
    data = read_interactions((["ann", "ann", "bob"], ["tea", "milk", "tea"]))
    model = RGALS(K=2, n_iter=1, random_state=0).fit(data)
    update = read_interactions((["eve", "ann"], ["tea", "cake"]))
    changes = {
        "fit": lambda: None,
        "partial_fit": lambda: model.partial_fit(update),
        "forget_items": lambda: model.forget_items(["cake"]),
    }
    for made, change in changes.items():
        change()
        for ids in (model.user_ids_, model.item_ids_):
            with pytest.raises(ValueError, match="read-only"):
                ids[0] = "zoe"
        assert model.user_ids_[0] == "ann", made
