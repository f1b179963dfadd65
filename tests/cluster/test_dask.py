"""DaskRGALS on real clusters: all kinds of input, the same bits, faults, refusals.

What depends on processes (bits, paths, workers that die) has two of them; the rest two workers in this one,
which start at once and cost a quarter.
"""

import gc
import os
import pickle
import re
import signal
import sys
import time
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from rgals import IALS, RG2, RGALS, RGX, WRMF, Checkpoint, PrecisionWarning
from rgals.cluster import DaskRGALS, shards
from rgals.datasets import Interactions, make_implicit
from rgals.runtime.errors import (
    CheckpointError,
    InputError,
    InputTypeError,
    InsufficientMemoryError,
    NumericalError,
    ParameterError,
    RgalsError,
)

distributed = pytest.importorskip("distributed", reason="dask.distributed is not installed")
dask = pytest.importorskip("dask")

SETTING = {"K": 16, "n_iter": 2, "random_state": 0, "values": "raw"}


@pytest.fixture(scope="module")
def client():
    with distributed.Client(
        processes=False, n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as client:
        yield client


@pytest.fixture(scope="module")
def processes(client):
    """Made after the other, and named where it is used: the client that was made last is the default."""
    # Forked from one that has imported all and loaded its kernels: those that die are made good in a moment.
    forked = {"distributed.worker.multiprocessing-method": "forkserver"}
    with pytest.MonkeyPatch.context() as patch, dask.config.set(forked):
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # which Python 3.11 does not pass on
        distributed.utils.get_mp_context().set_forkserver_preload(["instruments.worker"])
        two = distributed.Client(n_workers=2, threads_per_worker=1, dashboard_address=None)
        with two as processes, client.as_current():
            yield processes


@pytest.fixture(scope="module")
def X():
    X = make_implicit(240, 180, mean_interactions=12, random_state=0).matrix
    X.data = np.random.default_rng(0).integers(1, 6, X.nnz).astype(np.float32)
    return X


@pytest.fixture(scope="module")
def whole(client, X):
    """Fitted once for all tests that compare with it and change nothing."""
    return fit(client, X)


SMALL = {"K": 2, "n_iter": 1, "n_blocks": 2}  # where the factors do not matter


def fit(client, X, given=None, **params):
    """A model of three blocks: fewer are added up in one order only, and every task takes 2 ms."""
    return DaskRGALS(client=client, **{**SETTING, "n_blocks": 3, **params}).fit(X, **(given or {}))


def keys(client):
    """What is computed, or held, for fits on the workers."""
    return {key for key in client.run_on_scheduler(_keys) if "rgals" in key}


def _keys(dask_scheduler):
    return [str(key) for key in dask_scheduler.tasks]


def wait_for_the_end(client, before):
    """Until workers have no more than they had before."""
    deadline = time.monotonic() + 30
    while left := keys(client) - before:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def scores(model):
    return model.user_factors_ @ model.item_factors_.T


def assert_close(model, local, tol=1e-5):
    one, other = scores(model), scores(local)
    assert np.abs(one - other).max() <= tol * np.abs(other).max()
    both = [[row["objective"] for row in m.history_] for m in (model, local)]
    np.testing.assert_allclose(*both, rtol=tol)
    assert (model.solver_, model.n_iter_) == (local.solver_, local.n_iter_)
    assert model.reg_ == pytest.approx(local.reg_, rel=1e-9)


# ---------------------------------------------------------------- the same model


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"loss": RGX(), "K": np.int8(20)},
        {"loss": RGX(form="gramian"), "dtype": "float64"},
        {"loss": RG2(alpha=0.0), "reg_exponent": 0.5},
        {"loss": RG2(n_negatives=50, user_exponent=0.5, item_exponent=-0.3, proposal_exponent=0.5)},
        {"loss": WRMF(), "values": "bm25", "readout_exponent": 0.1},
        {"loss": IALS(), "values": "auto", "n_iter": "auto", "K": 64},
    ],
    ids=str,
)
def test_the_model_is_that_of_one_process(client, X, params):
    local = RGALS(**{**SETTING, **params})
    assert_close(fit(client, X, **params), local.fit(X), 1e-12 if local.dtype == "float64" else 1e-5)


def test_what_follows_the_fit_is_that_of_one_process(client, X):
    """Users that are folded in, what stood for "auto", where a fit ends."""
    setting = {"values": "bm25", "reg_exponent": 0.5, "dtype": "float64", "n_iter": 30, "tol": 0.02}
    model, local = fit(client, X, **setting), RGALS(**{**SETTING, **setting}).fit(X)
    assert_close(model, local, 1e-12)
    assert 1 < model.n_iter_ < 30  # by tol
    np.testing.assert_allclose(model.transform(X[:20]), local.transform(X[:20]), atol=1e-10)
    names = "alpha", "item_exponent", "reg", "init"
    taken = [{name: row[name] for name in names} for row in model.history_]
    assert taken == [{name: pytest.approx(row[name]) for name in names} for row in local.history_]


def test_rounding_is_warned_of_as_in_one_process(client):
    rng = np.random.default_rng(0)
    X = sp.random_array((120, 200), density=0.1, rng=rng, dtype=np.float32, format="csr")
    X.data = np.round(10 ** rng.uniform(0, 6, X.nnz)).astype(np.float32)
    setting = {"loss": WRMF(alpha=40.0), "reg": 0.01, "reg_exponent": 0, "K": 32}
    with pytest.warns(PrecisionWarning) as expected:
        RGALS(**{**SETTING, **setting}).fit(X)
    with pytest.warns(PrecisionWarning) as said:
        fit(client, X, **setting)
    rows = [re.search(r"(user|item) \d+", str(one[0].message))[0] for one in (expected, said)]
    assert rows[0] == rows[1] and len(said) == 1


def test_dislikes(client, X):
    disliked = X.copy()
    disliked.data[::7] *= -1
    loss = IALS(dislikes=True)
    assert_close(fit(client, disliked, loss=loss), RGALS(**SETTING, loss=loss).fit(disliked))


@pytest.mark.few(1)
@pytest.mark.parametrize("workers", ["client", "processes"])
def test_the_bits_do_not_depend_on_the_workers(request, workers, X):
    """One worker of three threads against two of one thread, in this process or in two of their own."""
    found = fit(request.getfixturevalue(workers), X, loss=RGX())
    with distributed.Client(
        processes=False, n_workers=1, threads_per_worker=3, dashboard_address=None
    ) as one:
        other = fit(one, X, loss=RGX())
        assert (other.user_factors_ == found.user_factors_).all()
        assert (other.item_factors_ == found.item_factors_).all()
        assert other.history_[-1]["objective"] == found.history_[-1]["objective"]


# ---------------------------------------------------------------- inputs


@pytest.fixture(scope="module")
def frame(X):
    pairs = X.tocoo()
    columns = {"user": [f"u{row:03d}" for row in pairs.row], "item": 7 * pairs.col, "value": pairs.data}
    return pd.DataFrame(columns).sample(frac=1.0, random_state=0).reset_index(drop=True)


def test_tables_are_numbered_on_the_workers(client, frame, tmp_path):
    import dask.dataframe as dd

    twice = pd.concat([frame, frame[:50]])  # in different parts: their values are added
    twice[:0].to_parquet(tmp_path / "none.parquet")  # as Spark writes one
    for i in range(3):
        (tmp_path / f"day{i}").mkdir()
        twice[i::3].to_parquet(tmp_path / f"day{i}" / "part.parquet")
    local = RGALS(**SETTING).fit(twice)
    for given in (dd.from_pandas(twice.reset_index(drop=True), npartitions=3), tmp_path):
        model = fit(client, given)
        assert_close(model, local)
        assert (model.user_ids_ == local.user_ids_).all() and (model.item_ids_ == local.item_ids_).all()
        assert (model.seen_ != local.seen_).nnz == 0
        assert model.recommend(["u003"], n=3)[0].tolist() == local.recommend(["u003"], n=3)[0].tolist()
        for name in ("user_ids", "item_ids"):  # in the order of rows they would be of others
            with pytest.raises(InputError, match=f"^{name} is in the order of a matrix, .*columns="):
                fit(client, given, {name: twice[name[:4]].unique()}, **SMALL)


@pytest.mark.few(1)
@pytest.mark.parametrize("by", ["path", "object"])
def test_stores_are_read_by_the_workers(client, whole, frame, tmp_path, by):
    from rgals.matrix import convert

    frame.to_parquet(tmp_path / "events.parquet")
    store = convert(tmp_path / "events.parquet", tmp_path / "data.rgals")
    model = fit(client, store if by == "object" else tmp_path / "data.rgals")
    assert (model.user_factors_ == whole.user_factors_).all()
    assert model.user_ids_.tolist() == sorted(set(frame["user"]))


def test_chunks_of_a_dask_array(client, whole, X):
    import dask.array as da

    meta = sp.csr_array((0, 0), dtype=np.float32)
    cuts = [0, 70, 71, 240]
    parts = [
        da.from_delayed(dask.delayed(X[a:b]), (b - a, X.shape[1]), np.float32, meta=meta)
        for a, b in zip(cuts[:-1], cuts[1:], strict=True)
    ]
    names = [f"u{row}" for row in range(X.shape[0])]
    model = fit(client, da.concatenate(parts), {"user_ids": names})
    assert (model.user_factors_ == whole.user_factors_).all()  # the blocks are those of the matrix
    assert model.user_ids_.tolist() == names and model.item_ids_ is None


def test_a_file_may_have_its_ids_in_any_order(client, X, tmp_path):
    order = np.random.default_rng(0).permutation(X.shape[0])
    Interactions(X[order], [f"u{row:03d}" for row in order], 7 * np.arange(X.shape[1])).save(
        tmp_path / "a.npz"
    )
    model = fit(client, tmp_path / "a.npz", **SMALL)
    assert model.user_ids_.tolist() == [f"u{row:03d}" for row in range(X.shape[0])]
    assert (model.seen_ != X).nnz == 0


@pytest.mark.few(0)
def test_files_of_which_some_have_integers_alone_have_ids_of_one_kind(processes, tmp_path, monkeypatch):
    """The user 7 of a file of numbers and the "7" beside texts are one, as if there were one file."""
    (tmp_path / "a.csv").write_text("user,item\n7,1\n8,2\n9,1\n")
    (tmp_path / "b.csv").write_text("user,item\n7,3\nx1,2\n8,1\n")
    (tmp_path / "c.csv").write_text("user,item,value\n9,1,0\n")
    monkeypatch.chdir(tmp_path)  # where no worker is
    model = fit(processes, ["a.csv", "b.csv", "c.csv"], K=2)
    assert model.user_ids_.tolist() == ["7", "8", "9", "x1"] and model.item_ids_.tolist() == [1, 2, 3]
    assert model.seen_.toarray().tolist() == [[1, 0, 1], [1, 1, 0], [1, 0, 0], [0, 1, 0]]


def test_parts_without_rows_hold_nothing(client, tmp_path):
    header = "user,item\n"
    for name, lines in {"a": header, "b": "user,item\n7,1\n8,2\n9,1\n", "c": "", "d": header}.items():
        (tmp_path / f"{name}.csv").write_text(lines)
    assert fit(client, tmp_path, **SMALL).seen_.toarray().tolist() == [[1, 0], [0, 1], [1, 0]]
    (tmp_path / "b.csv").write_text("")
    with pytest.raises(InputError, match="no interactions"):
        fit(client, tmp_path, **SMALL)


@pytest.mark.parametrize("kind", ["files", "frame"])
def test_marks_of_a_test_are_counted_of_all_parts(client, frame, tmp_path, kind):
    import dask.dataframe as dd

    marked = frame.assign(split=(np.arange(len(frame)) % 50 == 0).astype(int))
    given = dd.from_pandas(marked, npartitions=3)
    if kind == "files":
        given = tmp_path
        for i in range(3):
            marked[i::3].to_parquet(tmp_path / f"{i}.parquet")
    with pytest.warns(
        UserWarning, match=f"^{marked['split'].sum()} interactions of X are marked as test"
    ) as said:
        fit(client, given, **SMALL)
    assert len(said) == 1
    with warnings.catch_warnings(action="error"):
        fit(client, given, {"columns": {"split": None}}, **SMALL)


def test_what_is_warned_of_files_reaches_the_client_and_what_packages_deprecate_does_not(
    client, frame, tmp_path, monkeypatch
):
    times = np.where(np.arange(len(frame)) % 2, 1_700_000_000, 1_700_000_000_000)  # seconds, milliseconds
    frame.assign(timestamp=times).to_parquet(tmp_path / "a.parquet")
    read = shards.given
    monkeypatch.setattr(shards, "given", lambda *of: warnings.warn("old", FutureWarning, 2) or read(*of))
    with warnings.catch_warnings(record=True, action="always") as said:
        fit(client, tmp_path / "a.parquet", **SMALL)
    (line,) = [str(one.message) for one in said if one.category is UserWarning]
    assert "are in different units" in line


def test_what_is_wrong_with_the_data_is_said(client, X, tmp_path):
    import dask.array as da
    import dask.bag as db
    import dask.dataframe as dd

    pairs = pd.DataFrame({"user": ["a", None], "item": [1, 2]})
    with pytest.raises(InputError, match="part 1 of X: .* row 0: the user is missing"):
        fit(client, dd.from_pandas(pairs, npartitions=2))
    for other in (db.from_sequence([("a", 1)]), dask.delayed(pairs)):
        with pytest.raises(InputTypeError, match="to_dataframe"):
            fit(client, other)

    meta = sp.csr_array((0, 0), dtype=np.float32)
    chunks = [dask.delayed(sign * X) for sign in (1, -1)]
    array = da.concatenate([da.from_delayed(one, X.shape, np.float32, meta=meta) for one in chunks])
    with pytest.raises(InputError, match="Negative values .* chunk 1 of X"):
        fit(client, array)
    width = da.from_delayed(dask.delayed(X), (X.shape[0], np.nan), np.float32, meta=meta)
    for odd in (da.ones((6, 4), chunks=(6, 2)), da.ones(6, chunks=3), da.ones((2, 2, 2), chunks=2), width):
        with pytest.raises(InputError, match=r"two dimensions, the second .*: X.rechunk\(\{1: -1\}\)"):
            fit(client, odd)
    table = pd.DataFrame({"a": X.tocoo().row, "b": X.tocoo().col})
    rows = da.from_array(table.to_numpy(), chunks=(len(table) // 2, 2))  # of ids, not of items' weights
    with pytest.raises(InputError, match="^chunk .* of X: the first columns of X .* look like ids"):
        fit(client, rows)
    assert fit(client, rows, {"columns": "matrix"}, **SMALL).seen_.shape == table.shape
    for wrong in (rows, dd.from_pandas(table, npartitions=2)):
        with pytest.raises(ParameterError, match="^columns="):
            fit(client, wrong, {"columns": {"usr": "a"}})
    with pytest.raises(InputError, match="no interactions"):
        fit(client, sp.csr_array((5, 4)))
    with pytest.raises(InputError, match="column of users"):
        fit(client, dd.from_pandas(pd.DataFrame({f"c{i}": [1.0, 2.0] for i in range(6)}), npartitions=1))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="a folder without files"):
        fit(client, tmp_path / "empty")
    with pytest.raises(FileNotFoundError):
        fit(client, ["nowhere.parquet"])


# ---------------------------------------------------------------- an estimator


class Own(DaskRGALS):
    """Somebody's own: its clone never ended."""


def test_the_client_travels_in_no_copy(client, whole, X, tmp_path):
    model = whole
    assert model.client_ is client
    copied = clone(model)
    assert copied.client is client and copied.get_params()["n_blocks"] == 3
    assert not hasattr(copied, "client_") and "n_blocks=3" in repr(copied)
    assert type(clone(Own(client=client, n_blocks=3))) is Own
    again = pickle.loads(pickle.dumps(model))
    assert again.client is None and not hasattr(again, "client_")
    local = model.to_local()
    assert type(local) is RGALS
    np.testing.assert_allclose(local.transform(X), local.user_factors_, atol=1e-5)
    model.save(tmp_path / "model.npz")
    for other in (again, local, RGALS.load(tmp_path / "model.npz")):
        assert (other.user_factors_ == model.user_factors_).all()
        assert other.history_ == model.history_
    assert_close(fit(None, X, n_blocks=None), local, 1e-4)  # the client that was made last


UPDATES = {
    "forget_users": lambda model, today: model.forget_users(["u003"]),
    "forget_items": lambda model, today: model.forget_items([7]),
    "partial_fit": lambda model, today: model.partial_fit(today),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("update", UPDATES)
def test_updates_are_of_the_model_of_the_cluster_and_end_it_there(client, frame, tmp_path, update):
    before, today = keys(client), frame[:3].assign(user=["new", "u001", "u002"])
    model = UPDATES[update](fit(client, frame), today)
    expected = UPDATES[update](RGALS(**SETTING).fit(frame), today)
    assert model.user_ids_.tolist() == expected.user_ids_.tolist()
    assert model.item_ids_.tolist() == expected.item_ids_.tolist()
    assert_close(model, expected)
    with pytest.raises(NotFittedError, match="rgals.scoring.recommend_all"):  # what it has is of before
        model.recommend_all(tmp_path)
    model.fit(frame)
    assert "u003" in model.user_ids_ and 7 in model.item_ids_
    assert model.recommend_all(tmp_path / "lists").users == 240
    del model
    gc.collect()
    wait_for_the_end(client, before)


REFUSED = {"solver": "pcg", "device": "cuda", "hard_negatives": 0.1, "early_stopping": True}
REFUSED |= {"warm_start": True, "half_life": "90d", "n_blocks": 0, "K": 0, "values": "log"}


@pytest.mark.parametrize(("name", "value"), REFUSED.items())
def test_what_cannot_work_is_refused_by_name(client, X, name, value):
    with pytest.raises(ParameterError, match=f"^{name}="):
        fit(client, X, **{name: value})


@pytest.mark.parametrize("name", ["validation", "user_features", "item_features"])
def test_data_that_a_cluster_takes_none_of_are_refused_by_name(client, X, name):
    with pytest.raises(ParameterError, match=f"^{name}='given'.*fit RGALS"):
        fit(client, X, {name: X}, **SMALL)


def test_more_than_the_workers_have_is_refused(client):
    n = 500_000
    X = sp.csr_array((np.ones(3, np.float32), ([0, 1, n - 1], [0, 1, 2])), shape=(n, 3))
    with pytest.raises(InsufficientMemoryError, match=r"on every worker.* GiB"):
        fit(client, X, K=32768, n_blocks=2)


def test_errors_count_rows_of_the_whole_matrix(client):
    """A weight is beyond float32, in the third block of two rows: no rounding decides whether that fails."""
    X = np.eye(8, dtype=np.float32)
    X[5, 5] = 1e3
    with pytest.raises(NumericalError, match="the system of row 5 "):
        fit(client, sp.csr_array(X), loss=WRMF(alpha=1e37), dtype="float32", n_blocks=4)


def test_lists_are_written_on_the_cluster(client, frame, tmp_path):
    model = fit(client, frame)
    written = model.recommend_all(tmp_path / "lists", n=4, exclude_items=[0])
    assert (written.users, written.served, written.rows) == (240, 240, 960)
    table = pd.concat(pd.read_parquet(path) for path in sorted((tmp_path / "lists").iterdir()))
    local = model.to_local()
    ids, found = local.recommend(local.user_ids_, n=4, exclude_items=[0])
    assert table["user"].tolist() == np.repeat(local.user_ids_, 4).tolist()
    assert table["item"].tolist() == ids.ravel().tolist()
    np.testing.assert_allclose(table["score"], found.ravel(), rtol=1e-5)
    with pytest.raises(InputError, match="not empty"):
        model.recommend_all(tmp_path / "lists")
    with pytest.raises(ParameterError, match="^candidates='a matrix'.* one list"):  # blocks have other shapes
        model.recommend_all(tmp_path / "others", candidates=sp.csr_array((240, 180)))
    assert not (tmp_path / "others").exists()


def test_lists_without_ids_have_row_numbers_and_the_read_out_of_the_fit(client, whole, X, tmp_path):
    model = fit(client, X, readout_exponent=0.5)
    model.recommend_all(tmp_path / "lists", n=4)
    table = pd.concat(pd.read_parquet(path) for path in sorted((tmp_path / "lists").iterdir()))
    assert table["user"].tolist() == np.repeat(np.arange(240), 4).tolist()
    ids, found = model.to_local().recommend(range(240), n=4)
    assert table["item"].tolist() == ids.ravel().tolist()
    np.testing.assert_allclose(table["score"], found.ravel(), rtol=1e-5)
    assert (whole.recommend(range(240), n=4)[0] != ids).any()  # the same factors without it


@pytest.mark.parametrize("side", ["user", "item"])
def test_labels_that_lists_cannot_tell_apart_are_refused(client, X, tmp_path, side):
    """Also where they are in different blocks, or known to the workers alone."""
    pairs = X.tocoo()
    events = pd.DataFrame({"user": pairs.row, "item": pairs.col}).astype(object)
    events.loc[events[side] == 170, side] = "0"
    import dask.dataframe as dd

    with dask.config.set({"dataframe.convert-string": False}):
        model = fit(client, dd.from_pandas(events, npartitions=2), **SMALL)
    with pytest.raises(InputError, match=f"the integer and the text '0' are two {side}s"):
        model.recommend_all(tmp_path / "lists")
    assert not (tmp_path / "lists").exists()
    ids = {f"{side}_ids": [*range(X.shape[side == "item"] - 1), "0"]}
    model = fit(client, X, ids, **SMALL)
    with pytest.raises(InputError, match=f"the integer and the text '0' are two {side}s"):
        model.recommend_all(tmp_path / "lists")


# ---------------------------------------------------------------- faults


def test_a_fit_goes_on_from_its_checkpoint(client, whole, X, tmp_path):
    assert fit(client, X, {"checkpoint": Checkpoint(tmp_path)}, n_iter=1).n_iter_ == 1
    rest = fit(client, X, {"checkpoint": tmp_path})
    assert (rest.user_factors_ == whole.user_factors_).all()
    with pytest.raises(CheckpointError, match="n_blocks"):
        fit(client, X, {"checkpoint": tmp_path}, n_blocks=2)
    with pytest.raises(ParameterError, match="folder=.*need a folder"):  # before anything is read
        fit(client, "no file", {"checkpoint": __file__})


def test_a_worker_that_dies_is_made_good(processes, whole, X):
    """Between the first and the second iteration; the workers of the other model are in this process."""
    killed = []

    def kill(now):
        if now.iteration == 1:
            killed.append(sorted(processes.run(os.getpid).values())[0])
            os.kill(killed[0], signal.SIGKILL)

    model = fit(processes, X, {"callbacks": kill})
    assert killed
    assert (model.user_factors_ == whole.user_factors_).all()


def test_what_readers_warn_of_reaches_the_client(processes, frame):
    import dask.dataframe as dd

    given = dd.from_pandas(frame.rename(columns={"value": "foo"}), npartitions=2)
    with pytest.warns(UserWarning, match='called like a value.*value="foo"') as said:
        fit(processes, given, **SMALL)
    assert len(said) == 1


def test_ctrl_c_leaves_nothing_behind(client, X):
    def stop(now):
        raise KeyboardInterrupt

    before, model = keys(client), DaskRGALS(client=client, **SETTING, n_blocks=3)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, callbacks=stop)
    assert not model.__sklearn_is_fitted__()
    wait_for_the_end(client, before)
    assert not any(client.processing().values())


@pytest.mark.few(1)
@pytest.mark.parametrize("look", [0.002, 60.0])
def test_a_model_that_is_gone_leaves_nothing_on_the_workers(client, X, monkeypatch, look):
    """Whatever Python's collector does, and whether every wait of the fit takes long, or none."""
    monkeypatch.setattr("rgals.cluster.graph._POLL", look)
    before = keys(client)
    gc.disable()
    try:
        assert fit(client, X).n_iter_ == 2
        wait_for_the_end(client, before)
    finally:
        gc.enable()


@pytest.mark.few(0)
def test_a_block_that_kills_every_worker_is_named(processes, X):
    from rgals.cluster.graph import Graphs

    graphs = Graphs(processes)
    graphs.iteration = 3
    bad = graphs.one("users-17", os._exit, 1)
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        pytest.raises(RgalsError, match=r"users, block 17, iteration 3 was lost .* the last one tcp://"),
    ):
        graphs.results([bad])


def test_no_workers_end_a_fit(X, monkeypatch):
    monkeypatch.setattr("rgals.cluster.graph._POLL", 0.1)
    with (
        distributed.LocalCluster(n_workers=0, processes=False, dashboard_address=None) as none,
        distributed.Client(none) as client,
        dask.config.set({"rgals.no-workers-timeout": "1s"}),
        pytest.raises(RgalsError, match="had no worker for 1 s"),
    ):
        fit(client, X)


def test_a_model_whose_client_is_closed_says_what_keeps_one(X, tmp_path):
    with distributed.Client(processes=False, n_workers=1, dashboard_address=None) as closed:
        model, kept = fit(closed, X, **SMALL), fit(closed, X, **SMALL)
        kept.to_local()
    for call in (
        lambda: model.recommend([0]),
        model.to_local,
        lambda: model.recommend_all(tmp_path / "lists"),
    ):
        with pytest.raises(RgalsError, match=r"client or scheduler is gone: .*to_local\(\) and save\(\)"):
            call()
    assert not (tmp_path / "lists").exists()
    assert kept.recommend([0]).ids.shape == (1, 10)


def test_there_must_be_a_client(X):
    with pytest.raises(ParameterError, match="^client='here'"):
        DaskRGALS(client="here", **SETTING).fit(X)
