"""Splits lose nothing, leak nothing, round as documented and come back from their seed."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from rgals import RGALS
from rgals.datasets import Interactions, make_implicit, read_interactions
from rgals.metrics import evaluate_sampled
from rgals.model_selection import (
    PROTOCOLS,
    InteractionSplit,
    Protocol,
    UserSplit,
    k_core,
    leave_last_out,
    split_interactions,
    temporal_split,
)
from rgals.runtime.errors import InputError, InputTypeError, ParameterError, ShapeError


def random_matrix(rng: np.random.Generator, n_users: int = 60, n_items: int = 40) -> sp.csr_array:
    degrees = rng.integers(0, n_items, n_users)
    dense = np.zeros((n_users, n_items), np.float32)
    for row, n in zip(dense, degrees, strict=True):
        row[rng.choice(n_items, n, replace=False)] = rng.integers(1, 6, n)
    return sp.csr_array(dense)


@pytest.fixture(name="X")
def some_matrix(rng):
    matrix = random_matrix(rng)
    assert len(np.unique(np.diff(matrix.indptr))) > 20 and len(np.unique(matrix.data)) == 5
    return matrix


def assert_partition(parts, X):
    assert all(part.shape == X.shape and part.has_canonical_format for part in parts)
    assert sum(part.nnz for part in parts) == X.nnz
    np.testing.assert_array_equal(sum(part.toarray() for part in parts), X.toarray())


def documented_sizes(n: int, ratios) -> list[int]:
    """The rule of `split_interactions` as its documentation words it."""
    from fractions import Fraction

    sizes = [int(Fraction(str(r)) * n) for r in ratios]
    sizes[0] = n - sum(sizes[1:])
    for part in reversed(range(1, len(ratios))):
        if sizes[part] == 0 and ratios[part] > 0 and sizes[0] > 1:
            sizes[part] += 1
            sizes[0] -= 1
    return sizes


# -------------------------------------------------------------------------- ratios


@pytest.mark.parametrize(
    "ratios", [(0.8, 0.1, 0.1), (0.8, 0.2), (0.5, 0.25, 0.15, 0.1), (0.71, 0.29), (1.0, 0.0)]
)
@pytest.mark.parametrize("by", ["user", "global"])
def test_parts_add_up(X, ratios, by):
    parts = split_interactions(X, ratios, by=by, random_state=0)
    assert len(parts) == len(ratios)
    assert_partition(parts, X)
    if by == "global":
        assert [part.nnz for part in parts] == documented_sizes(X.nnz, ratios)


@pytest.mark.parametrize("ratios", [(0.8, 0.1, 0.1), (0.7, 0.3), (0.71, 0.29), (0.9, 0.0, 0.1)])
def test_rounding_is_the_documented_one(ratios):
    n = np.arange(201)
    X = sp.csr_array(np.arange(200) < n[:, None], dtype=float)
    sizes = np.stack([np.diff(part.indptr) for part in split_interactions(X, ratios, random_state=0)], axis=1)
    assert sizes.tolist() == [documented_sizes(k, ratios) for k in range(201)]
    assert (sizes[1:, 0] >= 1).all()


def test_the_wording_of_the_small_cases():
    X = sp.csr_array(np.tri(19))  # users with 1 ... 19 interactions
    sizes = np.stack([np.diff(part.indptr) for part in split_interactions(X, random_state=0)], axis=1)
    assert sizes[0].tolist() == [1, 0, 0] and sizes[1].tolist() == [1, 0, 1]
    assert (sizes[2:, 1:] == 1).all()


def test_seeds_reproduce_and_differ(X):
    a, b, c = (split_interactions(X, random_state=seed)[2] for seed in (0, 0, 1))
    assert (a != b).nnz == 0 and (a != c).nnz > 0
    state = np.random.RandomState(0)
    assert (split_interactions(X, random_state=state)[2] != a).nnz == 0


def test_random_states_of_every_kind_and_none_of_another(X):
    """A Generator, which fits take, and seeds that are none ended in scikit-learn's or numpy's own errors."""
    one, two = (split_interactions(X, random_state=np.random.default_rng(3))[2] for _ in range(2))
    assert (one != two).nnz == 0 and (one != split_interactions(X, random_state=3)[2]).nnz > 0
    pair = np.ones((60, 1)), np.ones((40, 1))
    for bad in (-1, 1.5, "seed"):
        for call in (
            lambda state: split_interactions(X, random_state=state),
            lambda state: next(UserSplit(2, random_state=state).split(X)),
            lambda state: next(InteractionSplit(2, random_state=state).split(X)),
            lambda state: make_implicit(200, 100, random_state=state),
            lambda state: evaluate_sampled(pair, None, X, n_negatives=1, random_state=state),
        ):
            with pytest.raises(ParameterError, match="random_state=.*a RandomState or a Generator"):
                call(bad)


def test_every_interaction_is_equally_likely_to_be_held_out():
    X = np.ones((3000, 10))
    X[::2, 5:] = 0
    test = split_interactions(X, (0.8, 0.2), random_state=0)[1].toarray()
    for rows, n in ((slice(0, None, 2), 5), (slice(1, None, 2), 10)):
        share = test[rows, :n].mean(axis=0)
        # 1,500 draws with probability 0.2: a standard deviation is 0.0103.
        assert np.abs(share - 0.2).max() < 0.045


def test_input_is_canonicalised_and_untouched():
    duplicated = sp.csr_array(([1.0, 2, 3, 0], [3, 1, 1, 0], [0, 4]), shape=(1, 5))
    data, indices = duplicated.data.copy(), duplicated.indices.copy()
    parts = split_interactions(duplicated, (0.5, 0.5), random_state=0)
    assert sorted(np.concatenate([part.data for part in parts])) == [1, 5]
    assert np.array_equal(duplicated.data, data) and np.array_equal(duplicated.indices, indices)
    wide = split_interactions(sp.csr_array(np.full((2, 9), 1 + 1e-9)), random_state=0)[0]
    assert wide.dtype == np.float64 and (wide.data == 1 + 1e-9).all()


@pytest.mark.parametrize("ratios", [(1.0,), (0.5, 0.6), (0.0, 1.0), (1.2, -0.2), "x", (0.5, np.nan), None])
def test_ratios_are_checked(X, ratios):
    with pytest.raises(ParameterError, match="ratios"):
        split_interactions(X, ratios)
    with pytest.raises(ParameterError, match="by='item'"):
        split_interactions(X, by="item")


def test_empty_matrices():
    parts = split_interactions(sp.csr_array((4, 3)), random_state=0)
    assert [part.shape for part in parts] == [(4, 3)] * 3
    assert k_core(sp.csr_array((4, 3)), 1).matrix.shape == (0, 0)
    assert k_core(sp.csr_array((4, 3)), 0).matrix.shape == (4, 3)


# ---------------------------------------------------------------------------- time


def test_leave_last_out_takes_the_latest(X, rng):
    times = rng.permutation(X.nnz)
    train, validation, test = leave_last_out(X, times, n=(2, 1))
    assert_partition((train, validation, test), X)
    when = sp.csr_array((times + 1, X.indices, X.indptr), shape=X.shape).toarray()
    for row in range(X.shape[0]):
        order = np.flatnonzero(X.toarray()[row])
        order = order[np.argsort(when[row, order])]
        if len(order) <= 3:
            assert test[[row]].nnz == validation[[row]].nnz == 0
        else:
            assert test[[row]].indices.tolist() == [order[-1]]
            assert sorted(validation[[row]].indices) == sorted(order[-3:-1])
    for bad in ((), (1, 1, 1)):
        with pytest.raises(ParameterError, match="one number, or two"):
            leave_last_out(X, times, n=bad)
    same = leave_last_out(X, times, n=3)
    np.testing.assert_array_equal(same[1].toarray(), (validation + test).toarray())


def test_equal_times_are_settled_by_the_column():
    train, test = leave_last_out(sp.csr_array(np.ones((1, 4))), [7, 9, 9, 3])
    assert test.indices.tolist() == [2]


def test_temporal_split(X, rng):
    times = rng.integers(0, 50, X.nnz)
    train, validation, test = temporal_split(X, [20, 40], times)
    assert_partition((train, validation, test), X)
    when = sp.csr_array((times + 1, X.indices, X.indptr), shape=X.shape).toarray() - 1
    assert when[train.toarray() > 0].max() == 19
    assert when[test.toarray() > 0].min() == 40
    dates = (times + 1_700_000_000).astype("datetime64[s]")
    pandas = pytest.importorskip("pandas")
    for when in (dates, dates.astype(str), pandas.Series(dates).dt.tz_localize("UTC")):
        again = temporal_split(X, np.datetime64(1_700_000_020, "s"), when)[0]
        assert (again != train).nnz == 0
    # A share is no time, and seconds are no thousandths: nothing would be left to train on, or to judge by.
    for cut in (-0.2, [50, 60], 1e12):
        with pytest.raises(ParameterError, match=r"all timestamps, \d+ to 49, lie on one side; for a share"):
            temporal_split(X, cut, times)
    with pytest.raises(ParameterError, match="1700000000000000000 to 1700000049000000000, lie on one"):
        temporal_split(X, "2024-01-01", dates)


def test_times_must_belong_to_the_entries(X):
    with pytest.raises(ShapeError, match=r"shape \(3,\); the matrix stores"):
        leave_last_out(X, [1, 2, 3])
    with pytest.raises(InputError, match="no timestamps"):
        leave_last_out(X)
    with pytest.raises(InputError, match="canonical"):
        leave_last_out(sp.csr_array((np.ones(2), [1, 0], [0, 2]), shape=(1, 2)), [1, 2])
    with pytest.raises(InputError, match="canonical"):
        leave_last_out(sp.csr_array(([1.0, 0.0], [0, 1], [0, 2]), shape=(1, 2)), [1])
    with pytest.raises(InputError, match=r"timestamp\[1\] \(row 0\): the timestamp is nan"):
        leave_last_out(sp.csr_array(np.ones((1, 2))), [1, np.nan])
    with pytest.raises(InputTypeError):
        leave_last_out(X.toarray(), np.zeros(X.nnz))
    for cut in ([3, 2], [], "x", np.datetime64("2020"), np.nan):
        with pytest.raises(ParameterError, match="cut"):
            temporal_split(X, cut, np.zeros(X.nnz))
    for n in (0, (1, 0), (1, 1, 1)):
        with pytest.raises(ParameterError, match="n="):
            leave_last_out(X, np.zeros(X.nnz), n=n)


def test_numbers_that_leave_nothing_are_named(X, rng):
    """Parts without an interaction came in silence."""
    times, counts = rng.permutation(X.nnz), np.diff(X.indptr)
    most = counts.max()
    assert most > counts.min()
    for n in (int(most), 1000, (int(most) - 1, 1)):
        with pytest.raises(ParameterError, match=rf"n=.*stays in training; the most of any user is {most}$"):
            leave_last_out(X, times, n=n)
    assert leave_last_out(X, times, n=int(most) - 1)[1].nnz % (most - 1) == 0
    assert leave_last_out(sp.csr_array((3, 2)), [])[0].shape == (3, 2)
    for k in (1000, (0, 1000), (1000, 0)):
        with pytest.warns(UserWarning, match=r"k=.*1000.*core is empty") as caught:
            assert k_core(X, k).matrix.nnz == 0
        assert caught[0].filename == __file__
    for n_splits, few in ((1000, sp.csr_array(np.ones((3, 4)))), (2, sp.csr_array(np.eye(3)))):
        with pytest.raises(ParameterError, match=rf"n_splits={n_splits} .* folds would be empty"):
            next(InteractionSplit(n_splits, random_state=0).split(few))
    assert len(list(InteractionSplit(3, random_state=0).split(sp.csr_array((3, 2))))) == 3


def test_timestamps_of_interactions_are_used():
    data = read_interactions((["a", "a", "a", "b"], ["x", "y", "z", "x"], [1, 1, 1, 1], [5, 9, 7, 1]))
    train, test = leave_last_out(data)
    assert data.item_ids[test.matrix.indices].tolist() == ["y"] and train.nnz == 3


# --------------------------------------------------------------------------- folds


def test_times_of_the_matrix_of_a_fit_go_with_their_entries(X):
    """Splits dropped them, so that the fit refused the part that it was given."""
    when = np.random.default_rng(0).permutation(X.nnz) + 1.0
    users, items = X.nonzero()
    model = RGALS(K=2, n_iter=1, half_life=100.0, values="raw", random_state=0)
    seen = model.fit(read_interactions((users, items, X.data, when))).seen_
    time_of = {(u, i): t for u, i, t in zip(*seen.nonzero(), seen.times, strict=True)}
    parts = [*leave_last_out(seen), *split_interactions(seen, (0.6, 0.4), random_state=0)]
    parts += [part for part, _ in [next(iter(InteractionSplit(2, random_state=0).split(seen)))]]
    for part in parts:
        assert part.times.tolist() == [time_of[pair] for pair in zip(*part.nonzero(), strict=True)]
    fold = next(iter(UserSplit(2, random_state=0).split(seen)))
    assert 0 < fold.train.nnz < seen.nnz and len(np.unique(fold.train.times)) == fold.train.nnz
    assert set(fold.train.times) <= set(seen.times)
    when = sp.csr_array((seen.times, seen.indices, seen.indptr), shape=seen.shape)
    for key in ([5, 2, 5], slice(3, 9), np.s_[:, ::2], np.arange(seen.shape[0]) > 4, slice(0, 0)):
        assert seen[key].times.tolist() == when[key].data.tolist()
    assert np.isscalar(seen[0, 0]) and seen[0].ndim == 1
    # Columns in another order, and a zero that somebody stored.
    turned, zero = seen[:, ::-1], seen[:, :]
    assert not turned.has_sorted_indices
    zero.data = zero.data * (np.arange(zero.nnz) != 7)
    for one in (turned, zero):
        for part in split_interactions(one, (0.6, 0.4), random_state=0):
            pairs = zip(*part.nonzero(), strict=True)
            columns = range(seen.shape[1])[::-1] if one is turned else range(seen.shape[1])
            assert part.times.tolist() == [time_of[user, columns[item]] for user, item in pairs]
    zero.eliminate_zeros()
    assert zero[0:2].nnz and zero[0:2].times is None  # not those of others
    for part in (*parts, fold.train, seen[3:9]):
        model.fit(part)


def test_user_split_holds_every_user_out_once(X):
    seen = []
    for fold in UserSplit(n_splits=4, random_state=0).split(X):
        assert (np.diff(fold.train_users) > 0).all() and (np.diff(fold.test_users) > 0).all()
        assert np.array_equal(np.sort(np.append(fold.train_users, fold.test_users)), np.arange(60))
        np.testing.assert_array_equal(fold.train.toarray(), X.toarray()[fold.train_users])
        assert_partition((fold.fold_in, fold.held_out), X[fold.test_users])
        n = np.diff(X.indptr)[fold.test_users]
        assert np.diff(fold.fold_in.indptr).tolist() == [documented_sizes(k, (0.8, 0.2))[0] for k in n]
        seen.append(fold.test_users)
    assert np.array_equal(np.sort(np.concatenate(seen)), np.arange(60))
    assert not np.array_equal(seen[0], np.arange(15))
    assert UserSplit(n_splits=4).get_n_splits(X) == 4


def test_user_split_with_a_size_and_a_seed(X):
    folds = list(UserSplit(3, test_size=0.25, fold_in=0.5, random_state=1).split(X))
    again = list(UserSplit(3, test_size=15, fold_in=0.5, random_state=1).split(X))
    assert len(next(iter(UserSplit(3, test_size=np.float32(0.25)).split(X))).test_users) == 15
    assert 0.14 * 50 > 7
    assert len(next(iter(UserSplit(3, test_size=0.14).split(X[:50]))).test_users) == 7
    assert len(folds) == 3 and len(folds[0].test_users) == 15
    assert len({tuple(fold.test_users) for fold in folds}) == 3
    for a, b in zip(folds, again, strict=True):
        assert (a.held_out != b.held_out).nnz == 0


@pytest.mark.parametrize(
    "bad",
    [
        {"n_splits": 1},
        {"n_splits": 61},
        {"fold_in": 1.0},
        {"fold_in": 0},
        {"test_size": 60},
        {"test_size": 1.0},
    ],
)
def test_user_split_checks_its_parameters(X, bad):
    with pytest.raises(ParameterError, match=next(iter(bad))):
        list(UserSplit(**bad).split(X))


@pytest.mark.parametrize("split", [split_interactions, UserSplit, InteractionSplit])
def test_random_states_of_any_kind(X, split):
    """A Generator was refused, by scikit-learn's error."""

    def parts(random_state):
        if split is split_interactions:
            return split(X, random_state=random_state)[:2]
        return next(iter(split(2, random_state=random_state).split(X)))[:2]

    first, again = (parts(np.random.default_rng(5)) for _ in range(2))
    assert (first[1] != again[1]).nnz == 0 and first[1].nnz > 0
    for wrong in ("x", -1, 2**32):
        with pytest.raises(ParameterError, match="random_state=.*a RandomState or a Generator"):
            parts(wrong)


def test_interaction_split_holds_everything_out_once(X):
    total = np.zeros(X.shape)
    n = np.diff(X.indptr)
    for train, test in InteractionSplit(5, random_state=0).split(X):
        assert_partition((train, test), X)
        held = np.diff(test.indptr)
        assert ((held == n // 5) | (held == -(-n // 5)) | (n == 1)).all()
        total += test.toarray() > 0
    np.testing.assert_array_equal(total, (X.toarray() > 0) & (n != 1)[:, None])


def test_folds_over_interactions_are_even_and_random():
    X = np.ones((1000, 6))
    tests = [test for _, test in InteractionSplit(5, random_state=0).split(X)]
    assert max(abs(test.nnz - 1200) for test in tests) < 120, "the sixth of a user is in any fold"
    pairs = [tuple(row) for _, test in InteractionSplit(3, random_state=0).split(X) for row in test.toarray()]
    assert len(set(pairs)) == 15, "any two of six"


def test_folds_of_frames_and_of_ids_keep_the_ids(X):
    pandas = pytest.importorskip("pandas")
    pairs = sp.coo_array(X)
    frame = pandas.DataFrame({"who": pairs.coords[0] + 100, "what": pairs.coords[1] + 500, "n": pairs.data})
    columns = {"user": "who", "item": "what", "value": "n"}
    whole = {tuple(row) for row in frame.to_numpy().tolist()}

    def rows(*parts):
        table = [part.to_frame().to_numpy().tolist() for part in parts]
        assert sum(map(len, table)) == len(whole)
        return {tuple(row) for part in table for row in part}

    for fold in UserSplit(2, random_state=0, columns=columns).split(frame):
        assert rows(fold.train, fold.fold_in, fold.held_out) == whole
    for train, test in InteractionSplit(2, random_state=0, columns=columns).split(frame):
        assert rows(train, test) == whole
    core = k_core(frame, 0, columns=columns)
    assert rows(core.matrix) == whole
    few = k_core(read_interactions((["a", "a", "b", "b", "c"], ["x", "y", "x", "y", "y"])), 2).matrix
    assert few.user_ids.tolist() == ["a", "b"] and few.item_ids.tolist() == ["x", "y"] and few.nnz == 4


# -------------------------------------------------------------------------- k-core


def naive_core(dense: np.ndarray, k_user: int, k_item: int) -> tuple[np.ndarray, np.ndarray]:
    users, items = np.arange(dense.shape[0]), np.arange(dense.shape[1])
    while True:
        block = dense[np.ix_(users, items)] > 0
        keep_users, keep_items = block.sum(1) >= k_user, block.sum(0) >= k_item
        if keep_users.all() and keep_items.all():
            return users, items
        users, items = users[keep_users], items[keep_items]


@pytest.mark.filterwarnings("ignore:k=.*core is empty")
@given(st.integers(0, 10**6), st.integers(0, 6), st.integers(0, 6), st.floats(0.02, 0.5))
def test_k_core_is_the_fixed_point(seed, k_user, k_item, density):
    dense = np.random.default_rng(seed).random((30, 25)) < density
    core = k_core(dense.astype(float), (k_user, k_item))
    users, items = naive_core(dense, k_user, k_item)
    assert core.users.tolist() == users.tolist() and core.items.tolist() == items.tolist()
    np.testing.assert_array_equal(core.matrix.toarray(), dense[np.ix_(users, items)])


@pytest.mark.filterwarnings("ignore:k=2.*core is empty")
def test_k_core_peels_a_long_chain():
    # Item k is shared by users k and k + 1, so one short user unravels the whole path, one at a time.
    n = 300
    dense = np.zeros((n, n))
    dense[np.arange(n), np.arange(n)] = 1
    dense[np.arange(1, n), np.arange(n - 1)] = 1
    assert k_core(dense, 2).matrix.shape == (0, 0)
    dense[0, n - 1] = 1  # closed to a ring it is its own core
    assert k_core(dense, 2).matrix.nnz == 2 * n


@pytest.mark.parametrize("k", [-1, 2.5, (1, 2, 3), (1, "a"), None])
def test_k_is_checked(X, k):
    with pytest.raises(ParameterError, match="k="):
        k_core(X, k)


# ----------------------------------------------------------------------- protocols


@pytest.fixture(scope="module")
def made():
    data = make_implicit(300, 200, mean_interactions=25, valued=True, timestamps=True, random_state=0)
    split = np.random.default_rng(0).choice([0, 0, 0, 1], data.nnz).astype(np.int8)
    return Interactions(data.matrix, data.user_ids, data.item_ids, data.timestamp, split)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_protocols_reproduce_from_their_description(made, name):
    protocol = PROTOCOLS[name]
    if "20-core" in name:
        protocol = Protocol(core=12)
    parts = protocol.apply(made)
    again = Protocol.from_dict(json.loads(json.dumps(protocol.to_dict())))
    assert again == protocol and str(again) == str(protocol)
    assert again.apply(made).fingerprint() == parts.fingerprint()
    random = protocol.split in ("user", "global", "held_out_users") or (
        protocol.split == "given" and protocol.validation
    )
    assert (protocol.with_seed(1).apply(made).fingerprint() != parts.fingerprint()) == bool(random)
    if protocol.split != "held_out_users":
        overlap = parts.train.multiply(parts.test) + parts.train.multiply(parts.validation)
        assert overlap.nnz == 0 and parts.validation.multiply(parts.test).nnz == 0
        total = (parts.train + parts.validation + parts.test).toarray()
        original = made.matrix.toarray()[np.ix_(parts.users, parts.items)]
        if protocol.min_value is None:
            np.testing.assert_array_equal(total, original)
        else:
            np.testing.assert_array_equal(total, original >= protocol.min_value)
        assert (parts.train_and_validation != parts.train + parts.validation).nnz == 0


def test_the_stars_protocol_thresholds_and_then_peels(made):
    parts = Protocol(min_value=2, core=5).apply(made)
    kept = made.matrix.toarray() >= 2
    users, items = naive_core(kept, 5, 5)
    assert parts.users.tolist() == users.tolist() and parts.items.tolist() == items.tolist()
    assert len(users) < 300 and set(parts.train.data) == {1.0}
    n = kept[np.ix_(users, items)].sum(axis=1)
    assert np.diff(parts.test.indptr).tolist() == [documented_sizes(k, (0.8, 0.1, 0.1))[2] for k in n]


def test_a_core_of_two_numbers_has_one_for_users_and_one_for_items(made):
    kept = made.matrix.toarray() > 0
    sizes = set()
    for core in ((24, 10), (10, 24)):
        parts = Protocol(core=core).apply(made)
        users, items = naive_core(kept, *core)
        assert parts.users.tolist() == users.tolist() and parts.items.tolist() == items.tolist()
        sizes.add((len(users), len(items)))
    assert len(sizes) == 2 and min(map(min, sizes)) > 0


def test_times_stay_with_their_entries_through_threshold_and_core(made):
    parts = Protocol(split="leave_last", min_value=2, core=3).apply(made)
    when = sp.csr_array((made.timestamp, made.matrix.indices, made.matrix.indptr), shape=made.matrix.shape)
    when = when.toarray()[np.ix_(parts.users, parts.items)]
    test, rest = parts.test.toarray() > 0, parts.train_and_validation.toarray() > 0
    assert test.sum() == len(parts.users)
    assert (when[test] >= np.where(rest, when, 0).max(axis=1)).all()


def test_a_split_by_time_leaves_parts_without_a_share_empty(made):
    """Without a validation part it was refused as if times were equal; without a test part it had one."""
    when, n = np.sort(made.timestamp), made.nnz
    for ratios in ((0.8, 0.0, 0.2), (0.9, 0.1, 0.0), (1.0, 0.0, 0.0), (0.7, 0.2, 0.1)):
        parts = Protocol(split="temporal", ratios=ratios).apply(made)
        sizes = parts.train.nnz, parts.validation.nnz, parts.test.nnz
        assert sum(sizes) == n and [size > 0 for size in sizes] == [share > 0 for share in ratios]
        if ratios[0] < 1:
            cut = when[math.ceil(ratios[0] * (n - 1))]
            assert sizes[0] == (when < cut).sum()


def test_given_parts_are_kept(made):
    parts = Protocol(split="given", validation=0.2).apply(made)
    assert (parts.test != made.test).nnz == 0
    assert ((parts.train + parts.validation) != made.train).nnz == 0
    assert 0.15 * made.train.nnz < parts.validation.nnz < 0.3 * made.train.nnz
    marked = made.replace(split=np.arange(made.nnz).astype(np.int8) % 3)
    assert (Protocol(split="given").apply(marked).validation != marked.validation).nnz == 0


def test_a_global_protocol_is_a_global_split(made):
    parts = Protocol("global", seed=3).apply(made)
    rng = np.random.RandomState(3)
    same = split_interactions(made.matrix, by="global", random_state=rng)
    assert [part.nnz for part in same] == documented_sizes(made.nnz, (0.8, 0.1, 0.1))
    for one, other in zip((parts.train, parts.validation, parts.test), same, strict=True):
        assert (one != other).nnz == 0


def test_held_out_users(made):
    parts = Protocol(split="held_out_users", fold_in=0.75).apply(made)
    everybody = np.concatenate([parts.train_users, parts.validation_users, parts.test_users])
    assert np.array_equal(np.sort(everybody), np.arange(300))
    assert parts.train_users.max() > 280 and parts.test_users.min() < 20, "drawn at random"
    assert_partition((parts.test_fold_in, parts.test), made.matrix[parts.test_users])
    for told, users in (
        (parts.test_fold_in, parts.test_users),
        (parts.validation_fold_in, parts.validation_users),
    ):
        sizes = [documented_sizes(n, (0.75, 0.25))[0] for n in np.diff(made.matrix.indptr)[users]]
        assert np.diff(told.indptr).tolist() == sizes
    with pytest.raises(InputError, match="other users"):
        _ = parts.train_and_validation


@pytest.mark.parametrize("ratios", [(0.8, 0.1, 0.1), (0.8, 0.0, 0.2), (0.5, 0.5, 0.0)])
def test_a_temporal_protocol_leaves_something_to_train(made, ratios):
    """Where most interactions are the first at once, training was empty in silence."""
    times = np.maximum(np.arange(made.nnz), int(0.85 * made.nnz))
    with pytest.raises(InputError, match="too many interactions share one timestamp"):
        Protocol(split="temporal", ratios=ratios).apply(made.replace(timestamp=times))


def test_a_temporal_protocol_leaves_something_to_validate(made):
    n = made.nnz
    times = np.arange(n)
    times[int(0.7 * n) : int(0.95 * n)] = int(0.7 * n)  # both cuts are the same time
    with pytest.raises(InputError, match="too many interactions share one timestamp"):
        Protocol(split="temporal").apply(made.replace(timestamp=times))


def test_protocols_say_what_is_missing(made):
    bare = Interactions(made.matrix, made.user_ids, made.item_ids)
    for split, what in (("leave_last", "timestamp"), ("temporal", "timestamp"), ("given", "split")):
        with pytest.raises(InputError, match=what):
            Protocol(split=split).apply(bare)
    with pytest.raises(InputError, match="nothing is left"):
        Protocol(core=10**6).apply(made)
    refused = (
        {"split": "x"},
        {"ratios": (0.8, 0.2)},
        {"ratios": (0.8, 0.1, 0.2)},
        {"core": -1},
        {"seed": -1},
        {"min_value": np.nan},
    )
    for bad in (*refused, {"fold_in": 1.0}):
        with pytest.raises(ParameterError, match=next(iter(bad)) + "="):
            Protocol(**bad)
    with pytest.raises(ParameterError, match="colour"):
        Protocol.from_dict({"colour": 1})


def test_the_fingerprint_does_not_depend_on_index_width_or_float_type(made):
    parts = Protocol(seed=3).apply(made.matrix)
    wide = made.matrix.astype(np.float64)
    wide.indptr, wide.indices = wide.indptr.astype(np.int64), wide.indices.astype(np.int64)
    assert Protocol(seed=3).apply(wide).fingerprint() == parts.fingerprint()


def test_the_fingerprint_tells_values_shapes_and_roles_apart(made):
    parts = Protocol(seed=3).apply(made.matrix)
    train, (n_rows, n_cols) = parts.train, parts.train.shape
    wider = sp.csr_array((train.data, train.indices, train.indptr), (n_rows, n_cols + 1))
    others = [replace(parts, train=train * 2), replace(parts, train=wider)]
    others += [replace(parts, **{f"{name}_users": np.arange(3)}) for name in ("train", "validation", "test")]
    assert len({one.fingerprint() for one in (parts, *others)}) == 6


def test_movielens_under_the_paper_protocol(data_file):
    parts = PROTOCOLS["stars>=3 5-core user 80/10/10"].apply(read_interactions(data_file("ml-1m")))
    assert parts.train.shape == (6038, 3307)
    total = parts.train_and_validation + parts.test
    assert total.nnz == 835_789
    assert min(np.diff(total.indptr).min(), np.bincount(total.indices).min()) >= 5


def test_a_protocol_of_numbers_from_numpy_is_described_in_plain_ones():
    for core in (np.int64(3), (np.int64(3), np.int32(2))):
        described = json.loads(json.dumps(Protocol(core=core, seed=np.int64(2)).to_dict()))
        assert Protocol.from_dict(described) == Protocol(core=core, seed=2)
    shares = {"min_value": np.float32(3.5), "fold_in": np.float32(0.75), "validation": np.float16(0.25)}
    described = json.loads(json.dumps(Protocol(**shares).to_dict()))  # ended in a TypeError of json
    assert Protocol.from_dict(described) == Protocol(min_value=3.5, fold_in=0.75, validation=0.25)


def test_parts_print_their_sizes_and_no_list_of_users():
    shown = repr(Protocol(split="held_out_users").apply(make_implicit(60, 40, random_state=0)))
    assert "shape (48, 40)" in shown and "users=" not in shown and len(shown.splitlines()) < 12


@pytest.mark.parametrize("ratios", [(0.8, 0.1, 0.105), (0.8, 0.19995), (0.7, 0.2, 0.1001)])
def test_shares_that_nearly_sum_to_1_are_refused(X, ratios):
    assert split_interactions(X, (0.7, 0.2, 0.1 + 1e-9), random_state=0)[0].nnz > 0
    with pytest.raises(ParameterError, match="sum to 1"):
        split_interactions(X, ratios)


@pytest.mark.parametrize("cut", [[3, 3], [3, math.nan], [math.nan, 3], [5, 3]])
def test_cuts_rise_and_are_numbers(cut):
    X = sp.csr_array(np.ones((2, 4)))
    times = np.arange(8)
    assert [part.nnz for part in temporal_split(X, [3, 5], times)] == [3, 2, 3]
    with pytest.raises(ParameterError, match="give one time, or several that increase"):
        temporal_split(X, cut, times)
