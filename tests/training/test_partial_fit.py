"""Daily updates: what they merge and solve, what they leave alone, what is left of the forgotten."""

from __future__ import annotations

import os
import signal
import threading
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp

from rgals import IALS, RG2, RGALS, RGX, WRMF, HardNegatives, Positions, UnknownIdError
from rgals.datasets import Interactions, make_implicit, read_interactions
from rgals.runtime import memory
from rgals.runtime.errors import (
    InputError,
    InputTypeError,
    InsufficientMemoryError,
    ParameterError,
    PrecisionWarning,
    ShapeError,
)
from rgals.solvers import cpu
from rgals.training import update


@pytest.fixture
def pd():
    """pandas, for the tests of frames."""
    return pytest.importorskip("pandas")


M, N, K = 70, 45, 6
LOSSES = {
    "rg2": RG2(alpha=0.1),
    "rgx": RGX(alpha=0.1, beta=0.7, proposal_exponent=0.4, user_exponent=0.3, item_exponent=-0.2),
    "wrmf": WRMF(alpha=3.0),
    "ials": IALS(alpha0=0.2, item_exponent=-0.4),
}


def data(valued=False):
    X = make_implicit(M, N, n_clusters=3, mean_interactions=9, valued=valued, random_state=1).matrix
    assert X.nnz > 300 and (len(np.unique(X.data)) > 1) == valued
    return X


def day(n_users=M, n_items=N, valued=True, seed=5, n=40):
    """Events of a day: known and new pairs."""
    rng = np.random.default_rng(seed)
    pairs = rng.integers(0, n_users, n), rng.integers(0, n_items, n)
    values = rng.integers(1, 4, n).astype(float) if valued else np.ones(n)
    X = sp.csr_array((values, pairs), shape=(n_users, n_items))
    X.sum_duplicates()
    return X


def fitted(loss="rg2", X=None, dtype="float64", **options):
    settings = {"reg": 0.1, "reg_exponent": 0.7, "n_iter": 4, "values": "raw", "random_state": 0}
    model = RGALS(K, LOSSES[loss], dtype=dtype, **{**settings, **options})
    return model.fit(data() if X is None else X)


def labelled(X, users=None, items=None):
    users = [f"u{k}" for k in range(X.shape[0])] if users is None else users
    items = np.arange(X.shape[1]) * 10 if items is None else items
    return Interactions(X, users, items)


# ---------------------------------------------------------------- what is merged


def by_hand(X, day, merge):
    """The merged matrix, pair by pair."""
    shape = tuple(max(pair) for pair in zip(X.shape, day.shape, strict=True))
    out = np.zeros(shape)
    out[: X.shape[0], : X.shape[1]] = X.toarray()
    for (row, col), value in zip(np.argwhere(day.toarray()), day.toarray()[day.toarray() > 0], strict=True):
        known = out[row, col] > 0
        out[row, col] = {"add": out[row, col] + value, "replace": value, "drop": out[row, col]}[merge]
        if not known:
            out[row, col] = value
    return out


@pytest.mark.parametrize("valued", [False, True])
@pytest.mark.parametrize("merge", update.MERGES)
def test_what_is_known_is_added_to_replaced_or_kept(merge, valued):
    X, events = data(valued), day(M + 2)
    assert (X[:M] * events[:M]).nnz >= 3  # pairs that are known
    model = fitted(X=X).partial_fit(events, merge=merge)
    np.testing.assert_array_equal(model.seen_.toarray(), by_hand(X, events, merge))
    assert model.seen_.has_canonical_format and model._snapshot.seen.n_rows == M + 2


def test_adding_is_what_a_fit_to_all_events_does(pd):
    log = pd.DataFrame({"user": [3, 3, 8, 9, 9, 8], "item": list("abacbb"), "value": [1, 2, 1, 5, 2, 1]})
    model = RGALS(2, random_state=0, values="raw").fit(log[:4])
    more = pd.DataFrame({"user": [8, 3, 12], "item": list("aab"), "value": [2, 4, 7]})
    model.partial_fit(log[4:]).partial_fit(more)
    want = read_interactions(pd.concat([log, more]))
    rows, cols = want.users.index(model.user_ids_), want.items.index(model.item_ids_)
    np.testing.assert_array_equal(model.seen_.toarray(), want.matrix.toarray()[rows][:, cols])
    assert model.user_ids_.tolist() == [3, 8, 9, 12] and model.item_ids_.tolist() == ["a", "b", "c"]


def test_an_unfitted_model_is_fitted(pd):
    X = data()
    model = RGALS(K, n_iter=2, random_state=0).partial_fit(X)
    assert model.fingerprint() == RGALS(K, n_iter=2, random_state=0).fit(X).fingerprint()
    log = pd.DataFrame({"who": ["a", "b"], "what": ["x", "y"]})
    model = RGALS(2, random_state=0).partial_fit(log, columns={"user": "who", "item": "what"})
    assert model.partial_fit(log, columns={"user": "who", "item": "what"}).user_ids_.tolist() == ["a", "b"]


# ---------------------------------------------------------------- what is solved


@pytest.mark.parametrize("merge", ["add", "replace"])
@pytest.mark.parametrize("loss", LOSSES)
def test_touched_rows_are_solved_and_others_stay(loss, merge):
    X, events = data(True), day(M + 2)
    model = fitted(loss, X)
    before, model = model.factors_, model.partial_fit(events, merge=merge)
    P, Q = model.factors_
    changed = model.seen_ != sp.csr_array(np.pad(X.toarray(), ((0, 2), (0, 0))))
    users, items = (np.unique(where) for where in changed.nonzero())
    assert 10 < len(users) < M and 10 < len(items) < N
    slopes = model.loss.gradient(model.seen_, P, Q, 0.1, 0.7)
    np.testing.assert_allclose(slopes[0][users], 0, atol=1e-9 * np.abs(slopes[0]).max() + 1e-10)
    for now, then, touched in zip((P, Q), before, (users, items), strict=True):
        others = np.setdiff1d(np.arange(len(then)), touched)
        np.testing.assert_array_equal(now[others], then[others])
        assert np.abs(now[touched[0]] - then[touched[0]]).max() > 1e-4


def test_the_touched_rows_come_to_rest():
    """Many sweeps end where neither touched users nor touched items have a slope; two are most of the way."""
    X, events = data(True), day(M + 2)
    users, items = np.flatnonzero(np.diff(events.indptr)), np.unique(events.indices)
    slopes = []
    for sweeps in (1, 2, 200):
        model = fitted("rg2", X).partial_fit(events, sweeps=sweeps)
        _, slope = model.loss.gradient(model.seen_, *model.factors_, 0.1, 0.7)
        slopes.append(np.abs(slope[items]).max())
    assert slopes[2] < 1e-6 < slopes[1] < slopes[0]
    assert len(users)


@pytest.mark.parametrize("sweeps", [2, 5])
def test_the_sweeps_of_an_update_share_what_does_not_depend_on_factors(sweeps, monkeypatch):
    """A plan and the coefficients of each side were made anew in every sweep."""
    model, made = fitted("ials", data(True)), {"plans": 0, "coefficients": 0}
    plan, coefficients = cpu.Plan, IALS.coefficients

    def counted(name, real):
        def make(*args):
            made[name] += 1
            return real(*args)

        return make

    monkeypatch.setattr(cpu, "Plan", counted("plans", plan))
    monkeypatch.setattr(IALS, "coefficients", counted("coefficients", coefficients))
    model.partial_fit(day(M + 2), sweeps=sweeps)
    assert made == {"plans": 2, "coefficients": 2}


@pytest.mark.parametrize("loss", LOSSES)
def test_new_users_and_items_are_served(loss):
    model = fitted(loss, labelled(data()))
    log = [("new", 30), ("new", 70), ("u3", 1000), ("new", 1000), ("u5", 1000), ("ö東", 440)]
    model.partial_fit(read_interactions(tuple(zip(*log, strict=True))))
    assert model.user_ids_[-2:].tolist() == ["new", "ö東"] and model.item_ids_[-1:].tolist() == [1000]
    seen = {item for user, item in log if user == "new"}
    items, _ = model.recommend_ids(["new"], n=N)
    assert not seen & set(items[0]) and set(items[0]) - {None} == set(model.item_ids_) - seen
    assert np.abs(model.item_factors_[-1]).max() > 0
    similar = [u for u in range(M) if model.seen_[[u]].toarray()[0, -1] == 0]
    found, _ = model.recommend(Positions(similar), n=N)
    assert all(N in row for row in found)
    np.testing.assert_allclose(model.transform(model.seen_)[-2:], model.user_factors_[-2:], atol=1e-12)


@pytest.mark.parametrize("sweeps", [1, 2])
def test_a_new_item_of_new_users_alone_starts_from_what_else_they_have(sweeps):
    model = fitted("ials", labelled(data()))
    model.partial_fit(read_interactions((["a", "a", "b", "b"], [10, 999, 10, 999])), sweeps=sweeps)
    same, _ = model.similar_items(Positions([N]), n=1)
    assert np.abs(model.item_factors_[N]).max() > 1e-3 and same[0, 0] >= 0


def test_the_read_out_goes_on():
    X, events = data(True), day()
    model = fitted("rg2", X, readout_exponent=0.3)
    before = model.item_scale_.copy()
    sums = X.sum(axis=0)
    model.partial_fit(events)
    touched = np.unique(events.indices)
    rate = before[0] / sums[0] ** 0.3
    np.testing.assert_allclose(model.item_scale_[touched], rate * model.seen_.sum(axis=0)[touched] ** 0.3)
    others = np.setdiff1d(np.arange(N), touched)
    np.testing.assert_array_equal(model.item_scale_[others], before[others])
    np.testing.assert_allclose(model.transform(model.seen_)[3], model.user_factors_[3], atol=1e-12)


@pytest.mark.parametrize("values", ["binary", "log1p", "bm25"])
def test_values_weigh_as_in_the_fit(values):
    X = data(True)
    model = fitted("ials", labelled(X), values=values)
    model.partial_fit(read_interactions((["u3", "u3", "new", "new"], [0, 5000, 5000, 30], [3, 2, 1, 2])))
    rows = [3, M]
    np.testing.assert_allclose(
        model.transform(model.seen_[rows]), model.user_factors_[rows], rtol=1e-9, atol=1e-12
    )
    again = model._snapshot.weighting
    assert again.kind == values and (again.idf is None or len(again.idf) == N + 1)


# ---------------------------------------------------------------- what leaves no trace


NOTHING = {
    "no interactions": lambda X: (sp.csr_array(X.shape), {}),
    "a few rows of nothing": lambda X: (sp.csr_array((3, N)), {}),
    "known, dropped": lambda X: (X, {"merge": "drop"}),
    "known, replaced by themselves": lambda X: (X, {"merge": "replace"}),
    "names without interactions": lambda X: (labelled(sp.csr_array((2, 1)), ["x", "y"], [-5]), {}),
}


@pytest.mark.parametrize("what", NOTHING)
def test_nothing_changes_no_bit(what):
    X = data(True)
    model = fitted(X=labelled(X) if "names" in what else X, early_stopping=True, patience=1)
    state = model._snapshot
    events, options = NOTHING[what](X)
    assert model.partial_fit(events, **options) is model
    assert model._snapshot is state


@pytest.mark.parametrize("package", ["pandas", "polars", "pyarrow"])
@pytest.mark.parametrize("half_life", [None, 3.0])
def test_a_frame_without_rows_changes_nothing_and_fits_nothing(package, half_life):
    tables = pytest.importorskip(package)
    make = tables.table if package == "pyarrow" else tables.DataFrame
    quiet = make({"user": [], "item": [], "timestamp": []})
    busy = make({"user": [1, 2, 2, 3], "item": [7, 7, 8, 8], "timestamp": [1, 2, 3, 4]})
    model = RGALS(K=2, n_iter=2, half_life=half_life, random_state=0)
    with pytest.raises(InputError, match="no rows"):
        model.partial_fit(quiet)
    model.fit(busy)
    state, digest = model._snapshot, model.fingerprint()
    assert model.partial_fit(quiet) is model
    assert model._snapshot is state and model.fingerprint() == digest


class BrokenError(Exception):
    """What ends an update."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, BrokenError])
def test_an_update_that_ends_early_leaves_yesterdays_model(error, monkeypatch, tmp_path):
    model = fitted("rgx", data(True))
    state, digest = model._snapshot, model.fingerprint()
    user_bytes, item_bytes = (factors.tobytes() for factors in model.factors_)
    calls, at = 0, 1
    real = update.FoldIn._user_step, update.FoldIn._item_step

    def ends(method):
        def step(*args):
            nonlocal calls
            calls += 1
            if calls == at:
                raise error("now")
            return method(*args)

        return step

    monkeypatch.setattr(update.FoldIn, "_user_step", ends(real[0]))
    monkeypatch.setattr(update.FoldIn, "_item_step", ends(real[1]))
    for at in range(1, 5):
        calls = 0
        with pytest.raises(InsufficientMemoryError if error is MemoryError else error):
            model.partial_fit(day(M + 2))
        assert model._snapshot is state and calls == at
        assert (user_bytes, item_bytes) == tuple(factors.tobytes() for factors in model.factors_)
        assert type(state).fingerprint.func(state) == digest
    at, calls = 0, 0
    assert model.partial_fit(day(M + 2))._snapshot is not state and calls == 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_child_that_is_forked_during_an_update_updates_its_model():
    """It waited for ever for the lock of a thread that it does not have."""
    model = fitted()
    model.partial_fit_users(model.seen_[[1]], [1])  # compiled before
    held, done = threading.Event(), threading.Event()

    def hold():
        with update.PUBLISHING:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if not child:
        signal.alarm(20)  # ends the child, where it waits
        os._exit(len(model.forget_users([0]).user_factors_) != M - 1)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_update_without_memory_is_refused(monkeypatch):
    model = fitted()
    monkeypatch.setattr("rgals.runtime.memory.available_bytes", lambda: 1000)
    state = model._snapshot
    with pytest.raises(InsufficientMemoryError, match="an update of 70 users, 45 items"):
        model.partial_fit(day())
    assert model._snapshot is state


@pytest.mark.parametrize(
    ("valued", "options"),
    [
        (False, {}),
        (True, {"values": "bm25"}),
        (False, {"n_iter": 2, "hard_negatives": HardNegatives(1, warmup=1)}),
    ],
    ids=str,
)
@pytest.mark.few(1)
def test_an_update_takes_no_more_memory_than_it_says(valued, options, monkeypatch):
    X = make_implicit(4000, 2000, mean_interactions=60, valued=valued, random_state=0).matrix
    model = fitted("ials", X, "float32", **{"n_iter": 1, **options})
    said = []
    monkeypatch.setattr(memory, "admit", lambda needed, *_: said.append(needed))
    model.partial_fit(X[:2])
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        model.partial_fit(day(4000, 2000, n=20_000))
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert 0.3 * said[-1] < peak < 1.25 * said[-1]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda m: m.partial_fit(day(n_items=N + 1)), ShapeError, "expected \\(users, 45\\)"),
        (lambda m: m.partial_fit(day().toarray()[:, 1:]), ShapeError, "44 features, but RGALS is expecting"),
        (lambda m: m.partial_fit(day(M + 1)), ShapeError, "71 rows for 70 users"),
        (lambda m: m.partial_fit(-day()), InputError, "Negative"),
        (lambda m: m.partial_fit(day() * 1e308 * 10), InputError, "infinity|infinite"),
        (lambda m: m.partial_fit(day(), merge="sum"), ParameterError, "merge='sum'"),
        (lambda m: m.partial_fit(day(), sweeps=0), ParameterError, "sweeps=0"),
        (lambda m: m.partial_fit([("u1", 10)]), InputError, "list of records"),
        (
            lambda m: m.partial_fit(read_interactions(([1], [10]))),
            InputError,
            "user ids are integers .*model text",
        ),
        (lambda m: m.partial_fit(read_interactions((["u1"], ["tea"]))), InputError, "item ids are text"),
        (lambda m: m.partial_fit_users(read_interactions(([7], [10]))), InputError, "its user ids are int"),
        (lambda m: m.partial_fit_items(read_interactions((["u1"], ["10"]))), InputError, "its item ids are"),
        (  # the order of implicit, which was answered with scikit-learn's "Reshape your data"
            lambda m: m.partial_fit_users(["u1"], sp.csr_array((1, N))),
            InputError,
            r"the histories come first: give partial_fit_users\(X_rows, users\)",
        ),
        (
            lambda m: m.partial_fit_items([10], sp.csr_array((M, 1))),
            InputError,
            r"the histories come first: give partial_fit_items\(X_cols, items\)",
        ),
        (lambda m: m.forget_users(["u1", "nobody"]), UnknownIdError, "^users: .*'nobody'"),
        (lambda m: m.forget_users([1.5]), InputTypeError, "^users: .*1.5"),
        (lambda m: m.forget_items(Positions([N])), UnknownIdError, "^items.*45"),
        (lambda m: m.forget_users(m.user_ids_), InputError, "no interactions"),
        (lambda m: m.forget_items(m.item_ids_), InputError, "no interactions"),
        (lambda m: m.partial_fit_users(sp.csr_array((M, N)), m.user_ids_), InputError, "no interactions"),
        (lambda m: m.partial_fit_items(sp.csr_array((M, N)), m.item_ids_), InputError, "no interactions"),
    ],
)
def test_bad_calls_are_named_and_change_nothing(call, error, words):
    model = fitted(X=labelled(data()))
    state = model._snapshot
    with pytest.raises(error, match=words):
        call(model)
    assert model._snapshot is state


def test_sums_that_no_float_holds_are_refused():
    X = data(valued=True).astype(np.float32)
    X.data *= np.float32(2e38) / X.data.max()
    model = fitted(X=X, dtype="float32", values="log1p")
    state = model._snapshot
    with pytest.raises(InputError, match="overflows float32"):
        model.partial_fit(X)
    assert model._snapshot is state


def test_a_model_without_ids_refuses_tables():
    with pytest.raises(InputError, match="fit the model to data with ids"):
        fitted().partial_fit(read_interactions((["u1"], [10])))


# ---------------------------------------------------------------- files and histories


def test_the_nightly_refit_of_a_model_without_ids_says_what_to_give():
    model = fitted()
    with pytest.raises(InputError, match="give a matrix without ids as it is"):
        Interactions(model.seen_, model.user_ids_, model.item_ids_)
    model.fit(model.seen_)


def test_files_are_those_of_the_updated_model(tmp_path):
    model = fitted("rgx", labelled(data(True)))
    log = read_interactions((["u3", "new"], [0, 777], [2.0, 1.0]))
    model.partial_fit(log).save(tmp_path / "m.npz")
    again = RGALS.load(tmp_path / "m.npz")
    assert again.fingerprint() == model.fingerprint() and again.user_ids_[-1] == "new"
    assert again.drift() == model.drift() and again.drift().merged == 2 / model.seen_.nnz
    for one in (model, again):
        one.partial_fit(log)
    assert again.fingerprint() == model.fingerprint()


def test_histories_come_as_frames_and_positions(pd):
    log = pd.DataFrame({"user": ["new", "u3", "new"], "item": [0, 10, 440]})
    frame, positions = (fitted("ials", labelled(data())) for _ in range(2))
    frame.partial_fit_users(log)
    assert frame.user_ids_[-1] == "new" and frame.seen_[[3]].indices.tolist() == [1]
    positions.partial_fit_users(frame.seen_[[3]], Positions([3])).partial_fit_users(frame.seen_[[M]], ["new"])
    assert (
        positions.seen_ != frame.seen_
    ).nnz == 0 and positions.user_ids_.tolist() == frame.user_ids_.tolist()
    np.testing.assert_allclose(positions.user_factors_[M], frame.user_factors_[M], rtol=1e-9)
    frame.partial_fit_items(pd.DataFrame({"user": ["u1", "new"], "item": [5, 5]}))
    assert frame.item_ids_[-1] == 5 and frame.seen_[:, [N]].nonzero()[0].tolist() == [1, M]
    with pytest.raises(UnknownIdError, match="item 5 is not known"):
        positions.partial_fit_users(pd.DataFrame({"user": ["u1"], "item": [5]}))
    with pytest.raises(UnknownIdError, match="user 'eve' is not known"):
        positions.partial_fit_items(pd.DataFrame({"user": ["eve"], "item": [0]}))
    with pytest.raises(InputError, match="fit the model to data with ids"):
        fitted().partial_fit_users(log)


# ---------------------------------------------------------------- who is forgotten


def places(raw: bytes, value) -> list[str]:
    """How a value occurs in the bytes of a file: as text, as an integer, as a number."""
    kinds = {}
    if isinstance(value, str):
        kinds = {"utf-8": value.encode(), "utf-32": value.encode("utf-32-le")}
    elif isinstance(value, int):
        kinds = {"int64": np.int64(value).tobytes(), "text": str(value).encode()}
    else:
        kinds = {kind: np.array(value, kind).tobytes() for kind in ("float32", "float64")}
        kinds["sum of float32"] = np.array(np.float32(value), "float64").tobytes()
        kinds["text"] = str(value).encode()
    return [kind for kind, found in kinds.items() if found in raw]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("ids", ["text", "integers"])
@pytest.mark.parametrize("side", ["users", "items"])
def test_the_forgotten_are_nowhere_in_the_file(side, ids, dtype, tmp_path):
    X = sp.lil_array(data(True).astype(dtype))
    users = [7_341_092_115_003 + 37 * k for k in range(M)]
    items = [8_112_900_400_017 + 41 * k for k in range(N)]
    if ids == "text":
        users, items = (
            [f"{name}-{k:07}-ß東" for k in labels] for name, labels in (("who", users), ("what", items))
        )
    # Values that nobody else has; each is the whole history of a user, so that sums are these values too.
    gone, secret = [4, 31, M - 1], [1234.5678, 8765.4321, 4321.125]
    X = X if side == "users" else sp.lil_array(X.T)
    for row, value in zip(gone, secret, strict=True):
        row = min(row, X.shape[0] - 1)
        X[row] = 0
        X[row, row % 7] = value
    gone = [min(row, X.shape[0] - 1) for row in gone]
    X = sp.csr_array(X if side == "users" else X.T)
    model = RGALS(K, "ials", dtype=dtype, random_state=0, values="raw", n_iter=2).fit(
        Interactions(X, users, items)
    )
    labels = users if side == "users" else items
    wanted = [labels[row] for row in gone]
    rows = [getattr(model, f"{side[:-1]}_factors_")[row].tobytes() for row in gone]
    model.save(tmp_path / "before.npz")
    raw = (tmp_path / "before.npz").read_bytes()
    assert all(places(raw, value) for value in (*wanted, *secret)) and all(row in raw for row in rows)
    kept_scores = model.predict(Positions(0), Positions(0))
    getattr(model, f"forget_{side}")(wanted)
    model.save(tmp_path / "after.npz")
    raw = (tmp_path / "after.npz").read_bytes()
    found = {value: places(raw, value) for value in (*wanted, *secret)}
    assert not any(found.values()), found
    assert not any(row in raw for row in rows)
    again = RGALS.load(tmp_path / "after.npz")
    assert again.fingerprint() == model.fingerprint() and not set(wanted) & set(model.user_ids_.tolist())
    others = np.setdiff1d(np.arange(len(labels)), gone)
    want = X[others] if side == "users" else X[:, others]
    assert (again.seen_ != sp.csr_array(want.astype(dtype))).nnz == 0
    assert getattr(again, f"{side[:-1]}_ids_").tolist() == [labels[k] for k in others]
    with pytest.raises(UnknownIdError):
        again.recommend_ids(wanted[:1]) if side == "users" else again.recommend_ids(
            [users[0]], exclude_items=wanted[:1]
        )
    if side == "users":
        np.testing.assert_array_equal(model.predict(Positions(0), Positions(0)), kept_scores)


@pytest.mark.parametrize("loss", LOSSES)
def test_after_forgetting_the_model_goes_on(loss):
    X = data(True)
    model = fitted(loss, labelled(X), readout_exponent=0.2)
    items = model.item_factors_
    model.forget_users(["u3", "u9"])
    assert model.item_factors_ is items
    model.forget_items([20, 440])
    kept_users, kept_items = np.delete(np.arange(M), [3, 9]), np.delete(np.arange(N), [2, 44])
    want = X[kept_users][:, kept_items]
    assert (model.seen_ != want).nnz == 0
    np.testing.assert_array_equal(model.item_factors_, items[kept_items])
    had = np.flatnonzero(X[kept_users][:, [2, 44]].sum(axis=1))
    np.testing.assert_allclose(model.transform(model.seen_)[had], model.user_factors_[had], atol=1e-12)
    model.partial_fit(read_interactions((["u3", "u1"], [20, 10])))
    assert model.user_ids_[-1] == "u3" and model.item_ids_[-1] == 20
    model.recommend_ids(["u3"], n=3)


@pytest.mark.parametrize("gone", ["a-very-long-name", 7])
def test_a_file_has_the_fingerprint_of_a_model_whose_longest_or_last_kind_of_id_is_gone(gone, tmp_path):
    ids = [gone, *(["a", "bb"] if isinstance(gone, str) else ["a", "b"]), "c"]
    model = RGALS(2, random_state=0).fit(np.ones((4, 4)), user_ids=np.array(ids, object), item_ids=ids)
    model.forget_users([gone]).forget_items([gone]).save(tmp_path / "model.npz")
    assert RGALS.load(tmp_path / "model.npz").fingerprint() == model.fingerprint()
    part = Interactions(
        sp.csr_array(np.ones((2, 2))), np.array(["a", "b"], "<U9"), np.array(["c", "d"], "<U9")
    )
    same = Interactions(part.matrix, np.array(["a", "b"]), np.array(["c", "d"]))
    first, second = (RGALS(2, random_state=0).fit(data).fingerprint() for data in (part, same))
    assert first == second


def test_rows_without_ids_move_up():
    X = data()
    model = fitted(X=X)
    P = model.user_factors_
    model.forget_users([3, M - 1])
    np.testing.assert_array_equal(model.user_factors_, np.delete(P, [3, M - 1], axis=0))
    assert (model.seen_ != X[np.delete(np.arange(M), [3, M - 1])]).nnz == 0
    assert model.forget_items([0]).n_features_in_ == N - 1


def test_names_of_columns_go_with_the_items(pd):
    frame = pd.DataFrame(data().toarray(), columns=[f"column {k}" for k in range(N)])
    model = fitted(X=frame).forget_items([1])
    assert model.feature_names_in_.tolist() == ["column 0", *(f"column {k}" for k in range(2, N))]


# ---------------------------------------------------------------- drift


def test_drift_is_what_an_iteration_would_gain():
    X = data(True)
    model = fitted("rgx", X, n_iter=60)
    assert 0 <= model.drift().fall < 1e-4 and model.drift().merged == 0
    state = model._snapshot
    events = day(M + 2, n=200)
    model.partial_fit(events)
    P, Q = model.factors_
    drift = model.drift()
    assert model.factors_[0] is P and model.factors_[1] is Q and model._snapshot is not state
    assert drift.merged == events.nnz / model.seen_.nnz and drift.fall > 1e-3

    def objective(P, Q):
        return model.loss.objective(model.seen_, P, Q, 0.1, 0.7)

    P = model.transform(model.seen_)
    first = objective(P, Q)
    Q = model.partial_fit_items(model.seen_, np.arange(N), refresh_users=True).item_factors_
    second = objective(model.user_factors_, Q)
    origin = objective(0 * P, 0 * Q)
    # `partial_fit_items` starts from the users as they are, `drift` from all of them solved: not quite equal.
    assert drift.fall == pytest.approx((first - second) / (origin - second), rel=0.2)


def test_what_is_forgotten_counts_as_changed():
    model = fitted(X=labelled(data()))
    before = model.seen_.nnz
    for forget, ids in ((model.forget_users, ["u1", "u5"]), (model.forget_items, model.item_ids_[:2])):
        forget(ids)
        gone = before - model.seen_.nnz
        assert 0 < gone < before / 2 and model.drift().merged == gone / model.seen_.nnz


def test_a_model_that_reg_has_brought_to_nothing_does_not_drift():
    """It was a division by zero."""
    with pytest.warns(PrecisionWarning, match="reg leaves nothing"):
        model = RGALS(K=4, reg=50, random_state=0).fit(data())
    assert model.drift() == (0.0, 0.0)


def test_drift_of_another_objective_is_refused():
    X = data()
    model = RGALS(K=4, hard_negatives=0.5, random_state=0).fit(X)
    with pytest.raises(ParameterError, match="hard_negatives"):
        model.partial_fit(X[:3]).drift()


def test_full_histories_count_by_what_they_change():
    """They counted all interactions they had: the same again was a change, and their removal none."""
    X = sp.csr_array(make_implicit(60, 40, random_state=0).matrix)
    model = RGALS(K=4, random_state=0).fit(X)
    assert model.partial_fit_users(X[:9], range(9)).drift().merged == 0
    assert model.partial_fit_items(X[:, :9], range(9)).drift().merged == 0
    other = X[:3].copy()
    other.data[0] = 2.0
    model.partial_fit_users(other, range(3)).partial_fit_users(X[:1], [60])
    assert model.drift().merged == (1 + X[:1].nnz) / model.seen_.nnz
    before, removed = model.drift().merged * model.seen_.nnz, X[5:8].nnz
    model.partial_fit_users(X[5:8] * 0, range(5, 8))
    assert model.drift().merged == (before + removed) / model.seen_.nnz
