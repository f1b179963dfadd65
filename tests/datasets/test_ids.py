"""Id maps: every label comes back as it went in, unknown ones are named."""

from __future__ import annotations

import io
import uuid

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rgals.datasets import IdMap
from rgals.datasets.ids import Positions, as_labels, joined
from rgals.runtime.errors import InputError, InputTypeError, ParameterError, UnknownIdError

KINDS = {
    "int": [7, -3, 0, 2**62, -(2**63)],
    "uint64": [2**63 + 1, 2**63 + 2, 5],
    "str": ["b", "a", "", "007", "7"],
    "unicode": ["東京", "café", "cafe\u0301", "🎬", "ß", "x" * 300],
    "mixed": [7, "7", "a", 0, "東京"],
    "trailing NUL": ["a", "a\0", "b"],
    "numpy scalars": [np.int64(4), np.int32(2)],
}


def through_npz(ids: IdMap) -> IdMap:
    file = io.BytesIO()
    np.savez(file, **ids.to_arrays("x_"))
    file.seek(0)
    with np.load(file, allow_pickle=False) as stored:
        return IdMap.from_arrays(stored, "x_", ids.what)


@pytest.mark.parametrize("kind", KINDS)
def test_labels_come_back_through_lookup_and_file(kind):
    labels = KINDS[kind]
    ids = IdMap(labels)
    again = through_npz(ids)
    assert again == ids
    assert again.labels.tolist() == labels
    assert [type(x) for x in again.labels.tolist()] == [
        int if isinstance(x, int | np.integer) else str for x in labels
    ]
    for m in (ids, again):
        assert m.index(labels).tolist() == list(range(len(labels)))
        assert m.index(labels[::-1]).tolist() == list(range(len(labels)))[::-1]
        assert all(label in m for label in labels)


@given(
    st.lists(st.one_of(st.integers(-(2**63), 2**63 - 1), st.text(max_size=8)), unique_by=repr, max_size=30)
)
def test_any_labels_round_trip(labels):
    ids = IdMap(labels)
    assert through_npz(ids).labels.tolist() == labels
    assert ids.index(labels).tolist() == list(range(len(labels)))


def test_lookup_is_vectorised_and_handles_unsorted_labels(rng):
    labels = rng.permutation(100_000) * 3 - 50_000
    ids = IdMap(labels)
    rows = rng.integers(0, len(labels), 20_000)
    assert np.array_equal(ids.index(labels[rows]), rows)
    text = np.array([f"u{x}" for x in labels])
    assert np.array_equal(IdMap(text).index(text[rows]), rows)


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_ids_are_named(kind):
    ids = IdMap(KINDS[kind], what="user")
    with pytest.raises(UnknownIdError, match="user 'nobody' is not known"):
        ids.index([KINDS[kind][0], "nobody"])
    assert ids.index([KINDS[kind][1], "nobody", 12345], missing="mark").tolist() == [1, -1, -1]
    assert "nobody" not in ids and None not in ids


def test_type_matters_in_lookup_but_not_in_typed_text():
    ids = IdMap([7, "7", "a"])
    assert ids.index([7, "7"]).tolist() == [0, 1]
    numbers = IdMap([10, 20])
    with pytest.raises(UnknownIdError, match="'10' is not known"):
        numbers.index("10")
    assert numbers.parse(["20", "10"]).tolist() == [1, 0]
    assert IdMap(["10", "20"]).parse("20").tolist() == [1]
    assert ids.parse("7").tolist() == [1]
    with pytest.raises(UnknownIdError, match="'30' is not known;"):
        numbers.parse(["30", "10", "20"])
    with pytest.raises(ParameterError, match="missing"):
        numbers.parse("10", missing="ignore")
    assert numbers.parse(20).tolist() == [1] and numbers.parse([10, "20"]).tolist() == [0, 1]
    with pytest.raises(InputTypeError, match="integers or strings; row 0 holds None"):
        numbers.parse(None)
    long = IdMap(np.array([2**64 - 1, 2**60], np.uint64))
    assert long.parse([str(2**60), str(2**64 - 1), str(2**64)], missing="mark").tolist() == [1, 0, -1]


def test_equal_maps_have_one_hash():
    assert len({IdMap([7, 9], "user"), IdMap([7, 9], "item")}) == 1


def test_neighbouring_64_bit_integers_are_not_confused():
    ids = IdMap(np.array([2**63 - 2, 2**63 - 1], dtype=np.int64))
    assert ids.index(np.array([2**63 - 1, 2**63], dtype=np.uint64), missing="mark").tolist() == [1, -1]


@pytest.mark.parametrize("labels", [["a", "b", "a"], [3, 1, 3], [1, "x", "x"]])
def test_a_label_that_occurs_twice_is_refused(labels):
    with pytest.raises(InputError, match="occurs twice"):
        IdMap(labels)


@pytest.mark.parametrize(
    "labels", [[1.5, 2.0], [None, "a"], [True, 2], [("a", "b")], np.zeros((2, 2), int), [float("nan")]]
)
def test_what_is_no_label_is_refused(labels):
    with pytest.raises(InputTypeError):
        IdMap(labels)


def test_bytes_uuids_and_whole_floats_become_plain_labels():
    key = uuid.UUID(int=5)
    assert IdMap([b"ab", key]).labels.tolist() == ["ab", str(key)]
    assert IdMap([3.0, 4.0]).labels.tolist() == [3, 4]


def test_labels_are_read_only_and_the_callers_array_is_untouched():
    labels = np.array([3, 1, 2])
    ids = IdMap(labels)
    with pytest.raises(ValueError):
        ids.labels[0] = 9
    labels.sort()  # the caller may go on with the array
    assert labels.flags.writeable


def test_one_long_label_among_many_does_not_blow_up_memory():
    labels = [f"u{k}" for k in range(20_000)] + ["x" * 20_000]  # as <U20000 that would be 1.6 GB
    ids = IdMap(labels)
    assert ids.labels.nbytes < 1 << 20
    assert ids.index(labels[-1])[0] == 20_000


@pytest.mark.parametrize(
    "damage",
    [
        lambda a: a.pop("offsets"),
        lambda a: a.update(offsets=a["offsets"][:-1]),
        lambda a: a.update(offsets=a["offsets"][::-1].copy()),
        lambda a: a.update(text=np.full_like(a["text"], 0xFF)),
        lambda a: a.update(integer=np.zeros(1, bool)),
        lambda a: a.update(integer=np.ones(3, bool)),
        lambda a: a.update(labels=np.zeros(3)),
    ],
)
def test_damaged_arrays_are_refused(damage):
    arrays = IdMap(["ab", "c", "def"]).to_arrays()
    damage(arrays)
    with pytest.raises(InputError):
        IdMap.from_arrays(arrays)


@pytest.mark.parametrize("kind", ["int", "uint64", "str", "unicode", "mixed", "trailing NUL"])
def test_what_no_array_of_the_labels_could_hold_is_unknown(kind):
    """Text that ends in NUL or is very long, and integers of the other sign: found nowhere, and never cut."""
    labels = KINDS[kind]
    ids = IdMap(labels)
    text = [label for label in labels if isinstance(label, str)]
    odd = [f"{label}\0" for label in (*text, "u1") if f"{label}\0" not in labels] + ["x" * 100_000, "\0"]
    whole = [-1, 2**64 - 1, 2**63 - 1]
    for query in (odd, [*odd, labels[0]], [*whole, *odd], [odd[0]], whole[:1]):
        want = [labels.index(x) if x in labels else -1 for x in query]
        assert ids.index(query, missing="mark").tolist() == want
    with pytest.raises(UnknownIdError, match=r"'u1\\x00' is not known"):
        ids.index(["u1\0"])


def test_bytes_that_are_not_utf8_are_the_same_label_in_any_array():
    assert IdMap(np.array([b"\xff", b"a"])) == IdMap([b"\xff", b"a"])


def test_joined_labels_are_those_of_one_list():
    """Whatever their types: integers of both kinds, texts of other widths, mixtures."""
    parts = [[3, 1], [2**63 + 5], ["a", "bb"], ["c"], ["longer than the others"], [7, "7"], ["nul\0"], []]
    for first in parts:
        for second in parts:
            if set(first) & set(second):
                continue
            got, want = joined(as_labels(first), as_labels(second)), as_labels([*first, *second])
            assert got.tolist() == want.tolist() and got.dtype.kind == want.dtype.kind, (first, second)


def test_positions_are_found_in_any_map():
    for labels in ([5, 6, 7], ["a", "b", "c"], [1, "1", 2]):
        ids = IdMap(labels, "user")
        np.testing.assert_array_equal(ids.index(Positions([2, 0])), [2, 0])
        np.testing.assert_array_equal(ids.index(Positions([2, 3, -1]), missing="mark"), [2, -1, -1])
        with pytest.raises(UnknownIdError, match="no user at position 3: they run from 0 to 2"):
            ids.index(Positions(3))


def test_offsets_that_fall_are_damage():
    arrays = IdMap(["ab", "c", "de"]).to_arrays()
    assert arrays["offsets"].tolist() == [0, 2, 3, 5]
    arrays["offsets"] = np.array([0, 3, 2, 5])
    with pytest.raises(InputError, match="offsets do not fit the text"):
        IdMap.from_arrays(arrays)


@pytest.mark.parametrize("labels", [[7, 7, 9], [7, 9, 9], ["a", "b", "b"]])
def test_labels_in_order_occur_once_too(labels):
    with pytest.raises(InputError, match="occurs twice in the labels"):
        IdMap(labels)
