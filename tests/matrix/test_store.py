"""A store gives the bits of memory wherever a matrix is taken, whatever its blocks; damage is named."""

from __future__ import annotations

import dataclasses
import json
import pickle
import shutil

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import LOSSES, interactions

from rgals import RG2, RGALS, FileFormatError, InsufficientMemoryError, ParameterError
from rgals.baselines import Popularity
from rgals.datasets import read_interactions
from rgals.losses import Degrees
from rgals.matrix import convert, mapped, open_matrix
from rgals.matrix.digest import short_digest
from rgals.matrix.mapped import Ids, StoredCSR, read_ahead
from rgals.matrix.validate import as_csr
from rgals.matrix.weighting import Values, Weighting
from rgals.metrics import evaluate
from rgals.runtime import memory
from rgals.scoring import recommend_all, topk, topk_dense
from rgals.sgd import SGDRanker
from rgals.solvers.footprint import Footprint

pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def shops(tmp_path_factory) -> dict:
    """A matrix of ones and one of counts: each as interactions in memory, and its store."""
    folder, found = tmp_path_factory.mktemp("stores"), {}
    for valued in (False, True):
        X = interactions(150, 90, valued=valued).tocoo()
        order = np.random.default_rng(0).permutation(X.nnz)
        path = folder / f"{valued}.csv"
        lines = [f"u{X.row[k]},i{X.col[k]},{X.data[k]:g}" for k in order]
        path.write_text("\n".join(["user,item,value", *lines]) + "\n")
        convert(path, folder / f"{valued}.rgals")
        found[valued] = read_interactions(path), folder / f"{valued}.rgals"
    return found


def both(shops, valued: bool):
    data, path = shops[valued]
    return data, open_matrix(path)


def check_equal(model: RGALS, other: RGALS) -> None:
    for name in ("user_factors_", "item_factors_"):
        np.testing.assert_array_equal(getattr(model, name), getattr(other, name), strict=True)
    assert [r["objective"] for r in model.history_] == [r["objective"] for r in other.history_]


def fitted(X, **options) -> RGALS:
    return RGALS(**{"K": 24, "n_iter": 2, "random_state": 0, "values": "raw"} | options).fit(X)


@pytest.mark.few(24)
@pytest.mark.parametrize("block", [1, 3000, 1 << 26])
@pytest.mark.parametrize("n_jobs", [1, 2, 4])
@pytest.mark.parametrize("valued", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("loss", ["rg2", "rgx", "wrmf", "ials", *sorted(LOSSES)])
def test_a_fit_from_disk_has_the_bits_of_memory(loss, dtype, valued, n_jobs, block, shops, monkeypatch):
    monkeypatch.setattr(mapped, "BLOCK", block)
    data, store = both(shops, valued)
    options = {"loss": LOSSES.get(loss, loss), "dtype": dtype}
    assert block > 1 << 20 or len(store.matrix.cuts()) > 5
    check_equal(fitted(store, n_jobs=n_jobs, **options), fitted(data, **options))


def test_sums_that_couple_items_go_on_over_blocks(tmp_path, monkeypatch):
    """Of more items than the pieces of work add up at once: no block begins within a batch."""
    X = interactions(40, 1700).tocoo()
    convert_pairs(X.row, X.col, tmp_path)
    store, data = open_matrix(tmp_path / "x.rgals"), read_interactions((X.row, X.col))
    expected = fitted(data, loss="rgx", K=16)
    monkeypatch.setattr(mapped, "BLOCK", 2000)
    check_equal(fitted(store, loss="rgx", K=16), expected)


def convert_pairs(users, items, folder, **options):
    path = folder / "events.csv"
    path.write_text("user,item\n" + "".join(f"{u},{i}\n" for u, i in zip(users, items, strict=True)))
    return convert(path, folder / "x.rgals", **options)


@pytest.mark.parametrize(
    "options",
    [
        {"solver": "pcg"},
        {"solver": "pcg", "loss": "rgx"},
        {"solver": "dense"},
        {"loss": RG2(alpha=0.0)},  # all rows share one matrix
        {"init": "spectral"},
        {"values": "log1p"},
        {"values": "bm25"},
        {"values": "binary"},
        {"values": "auto"},
        {"reg_exponent": 0.5, "readout_exponent": 0.1},
        {"early_stopping": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("valued", [True, False])
def test_every_option_from_disk_has_the_bits_of_memory(options, valued, shops, monkeypatch):
    monkeypatch.setattr(mapped, "BLOCK", 1500)
    data, store = both(shops, valued)
    check_equal(fitted(store, **options), fitted(data, **options))


def test_checkpoints_of_disk_and_memory_are_the_same(shops, tmp_path, monkeypatch):
    monkeypatch.setattr(mapped, "BLOCK", 1500)
    data, store = both(shops, True)
    options = {"K": 8, "random_state": 0, "values": "raw"}
    RGALS(n_iter=2, **options).fit(data, checkpoint=tmp_path)
    RGALS(n_iter=3, **options).fit(store, checkpoint=tmp_path)
    goes_on = RGALS(n_iter=4, **options).fit(data, checkpoint=tmp_path)
    check_equal(goes_on, RGALS(n_iter=4, **options).fit(store))


def test_whatever_takes_a_matrix_takes_a_store(shops, tmp_path, monkeypatch):
    monkeypatch.setattr(mapped, "BLOCK", 1500)
    data, store = both(shops, True)
    disk, ram = fitted(store, validation_users=20), fitted(data, validation_users=20)
    assert isinstance(disk._snapshot.seen, StoredCSR), "the model holds no interactions in memory"
    assert isinstance(disk.user_ids_, Ids) and disk.user_ids_.ordered
    np.testing.assert_array_equal(disk.transform(store), ram.transform(data))
    np.testing.assert_array_equal(disk.fit_transform(store), ram.fit_transform(data))
    for asked in (data.user_ids[[7, 100, 8]], data.user_ids[0], data.user_ids[[99, 1, 2, 130]].tolist()):
        for mine, other in zip(disk.recommend(asked), ram.recommend(asked), strict=True):
            np.testing.assert_array_equal(mine, other)
    assert disk._snapshot.fingerprint == ram._snapshot.fingerprint
    pairs = np.random.default_rng(1).integers(0, 90, (400, 2))
    test = read_interactions(([f"u{u}" for u in pairs[:, 0]], [f"i{i}" for i in pairs[:, 1]]))
    known = (np.isin(getattr(test, side), getattr(data, side)) for side in ("user_ids", "item_ids"))
    test = test.take(*map(np.flatnonzero, known))
    assert evaluate(disk, store, test) == evaluate(ram, data, test)
    for name, model in (("disk", disk), ("ram", ram)):
        recommend_all(model, tmp_path / f"{name}.csv", n=5)
        model.save(tmp_path / f"{name}.npz")
    assert (tmp_path / "disk.csv").read_bytes() == (tmp_path / "ram.csv").read_bytes()
    again = RGALS.load(tmp_path / "disk.npz")
    np.testing.assert_array_equal(
        again.recommend(data.user_ids[5:7])[0], ram.recommend(data.user_ids[5:7])[0]
    )
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(disk)).user_factors_, ram.user_factors_)
    assert repr(disk.explain(data.user_ids[4], "i2")) == repr(ram.explain(data.user_ids[4], "i2"))
    known = read_interactions((data.user_ids[:2], ["i3", "i4"]))
    watched = RGALS(K=24, n_iter=2, random_state=0, values="raw").fit(store, validation=known)
    np.testing.assert_array_equal(watched.user_factors_, ram.user_factors_)
    today = read_interactions(([data.user_ids[1], "new"], ["i3", "i4"]))
    check_equal(disk.partial_fit(today), ram.partial_fit(today))


def test_filters_with_ids_are_found_by_them(shops, tmp_path):
    data, store = both(shops, True)
    model = fitted(data)
    some = data.take(np.arange(0, data.n_users, 2), np.arange(3, data.n_items))
    rows, cols = (getattr(data, side).index(getattr(some, f"{side[:-1]}_ids")) for side in ("users", "items"))
    known = np.zeros(data.matrix.shape, np.float32)
    known[np.ix_(rows, cols)] = some.matrix.toarray()
    users = data.user_ids[[7, 100, 8, 8]]
    at = data.users.index(users)
    for given, matrix in ((store, data.matrix), (some, sp.csr_array(known)), (("train", some), data.matrix)):
        for options in ({"exclude": given}, {"candidates": given, "exclude": None}):
            if "candidates" in options and isinstance(given, tuple):
                continue
            plain = {name: matrix[at] if value is given else value for name, value in options.items()}
            for mine, other in zip(
                model.recommend(users, 5, **options), model.recommend(users, 5, **plain), strict=True
            ):
                np.testing.assert_array_equal(mine, other)
            whole = {name: matrix if value is given else value for name, value in options.items()}
            for n, (asked, filters) in enumerate(
                ((None, options), (None, whole), (users, options), (users, plain))
            ):
                recommend_all(model, tmp_path / f"{n}.csv", 5, users=asked, batch_size=64, **filters)
            texts = [(tmp_path / f"{n}.csv").read_bytes() for n in range(4)]
            assert texts[0] == texts[1] and texts[2] == texts[3] and texts[0] != texts[2]
    for mine, other in zip(model.recommend_new(store, 5), model.recommend_new(data, 5), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_the_matrix_of_a_store_filters_where_arrays_are_needed(shops):
    data, store = both(shops, True)
    model = fitted(data)
    users, items = model.factors_
    calls = (
        lambda X: topk(users, items, 5, exclude=X),
        lambda X: topk(users, items, 5, candidates=X),
        lambda X: topk_dense(users @ items.T, 5, exclude=X),
        lambda X: model.recommend(data.user_ids, 5, exclude=X),
        lambda X: model.recommend_new(data, 5, exclude=None, candidates=X),
    )
    for call in calls:
        for mine, other in zip(call(store.matrix), call(data.matrix), strict=True):
            np.testing.assert_array_equal(mine, other)


def test_what_holds_all_interactions_loads_a_store(shops):
    data, store = both(shops, False)
    for model in (Popularity(), SGDRanker(K=4, n_epochs=1, random_state=0)):
        mine, other = type(model)(**model.get_params()).fit(store), model.fit(data)
        np.testing.assert_array_equal(
            mine.recommend(data.user_ids[9:11])[0], other.recommend(data.user_ids[9:11])[0]
        )


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"solver": "svd", "loss": RG2(alpha=0.0)}, "solver"),
        ({"hard_negatives": 1.0}, "hard_negatives"),
        ({"init": "spectral", "loss": RG2(alpha=0.0)}, "init"),
        ({"half_life": 3.0}, "half_life"),
    ],
)
def test_what_does_not_go_from_disk_is_refused_by_name(options, name, shops):
    data, store = both(shops, False)
    options = {"n_iter": 6, **options}  # hard negatives have a warmup
    with pytest.raises(ParameterError) as caught:
        fitted(store, **options)
    assert caught.value.name == name
    if name != "half_life":  # the line that is right keeps the ids
        assert "X is a store" in str(caught.value) and "fit X.sample(X.shape[0])" in str(caught.value)
        made, other = fitted(store.sample(store.shape[0]), **options), fitted(data, **options)
        check_equal(made, other)
        assert made.fingerprint() == other.fingerprint()


def test_the_start_by_default_goes_from_disk(shops, monkeypatch):
    """The closed form, which large data begin with, was refused: fits failed from where they need stores."""
    monkeypatch.setattr("rgals.training.fit.SMALL", 0)
    data, store = both(shops, False)
    for loss, start in ((RG2(alpha=0.0), "random"), ("rg2", "spectral")):
        assert fitted(data, loss=loss, n_iter=4).params_["init"] != "random"
        made = fitted(store, loss=loss, n_iter=4)
        assert made.params_["init"] == start
        check_equal(made, fitted(data, loss=loss, n_iter=4, init=start))


def test_a_parser_that_lost_count_is_asked_again(shops, monkeypatch):
    """Python 3.11's does where two threads parse at once: one of two workers of a cluster saw it."""
    once, opened = [SystemError("AST constructor recursion depth mismatch")], np.lib.format.open_memmap

    def losing_count(*args, **options):
        if once:
            raise once.pop()
        return opened(*args, **options)

    monkeypatch.setattr(np.lib.format, "open_memmap", losing_count)
    data, store = both(shops, True)
    assert not once and store.matrix.nnz == data.nnz


def test_memory_is_predicted_without_the_interactions_and_refused_with_both_numbers(shops, monkeypatch):
    data, store = both(shops, False)
    of_disk, of_ram = (
        Footprint((10**7, 10**6), 10**9, 64, 4, valued=False, blocks=blocks).peak()
        for blocks in (3 * mapped.BLOCK, None)
    )
    assert of_disk < of_ram - 3.5e9
    assert (10**7 + 10**6) * 64 * 4 < of_disk < 9e9
    monkeypatch.setattr(memory, "available_bytes", lambda: 1000)
    with pytest.raises(InsufficientMemoryError, match=r"needs about .* of memory, but 1000 bytes are"):
        fitted(store)


def test_a_sample_of_users_is_in_memory(shops):
    data, store = both(shops, True)
    some = store.sample(20, random_state=3)
    at = [data.users.index([u])[0] for u in some.user_ids]
    assert some.matrix.shape == (20, data.n_items)
    np.testing.assert_array_equal(some.matrix.toarray(), data.matrix[at].toarray())
    assert store.sample(10**6).matrix.nnz == data.nnz
    for n_users in (-1, 2.5, "20", None, True):
        with pytest.raises(ParameterError, match="n_users="):
            store.sample(n_users)
        with pytest.raises(ParameterError, match="random_state="):
            store.sample(3, n_users)
    assert fitted(some).user_factors_.shape == (20, 24)


@pytest.mark.parametrize("valued", [False, True])
def test_a_stored_matrix_answers_as_one_in_memory(valued, shops, monkeypatch):
    monkeypatch.setattr(mapped, "BLOCK", 700)
    monkeypatch.setattr(mapped, "_GAP", 40)
    monkeypatch.setattr(mapped, "_PART", 300)
    data, store = both(shops, valued)
    ram, disk = as_csr(data.matrix), store.matrix
    assert disk.is_binary is not valued
    for mine, other in (
        (disk, ram),
        (disk.transpose(), ram.transpose()),
        (disk.transpose().transpose(), ram),
    ):
        for name in ("row_sums", "col_sums", "row_counts", "col_counts", "rows", "positions"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(other, name), strict=True)
        for rows in (
            np.array([5, 3, 9, 10, 11, 2, 70, 1]),
            np.arange(20),
            np.array([], int),
            np.arange(3, 4),
        ):
            a, b = mine.take_rows(rows), other.take_rows(rows)
            for name in ("indptr", "indices", "values"):
                np.testing.assert_array_equal(getattr(a, name), getattr(b, name), strict=True)
        assert short_digest(mine) == short_digest(other)
        np.testing.assert_array_equal(mine.indices[3:17:2], other.indices[3:17:2])
        assert mine.indices[7] == other.indices[7]
        np.testing.assert_array_equal(mine.where(mine.rows > 5).indices, other.where(other.rows > 5).indices)
    if valued:
        assert Values.of(disk).ends == (1.0, 5.0)
    for kind in ("log1p", "bm25"):
        weighting = Weighting.of(kind, disk)
        assert weighting.scale == Weighting.of(kind, ram).scale
        stored, held = weighting.rows(disk), weighting.rows(ram)
        for mine, other in ((stored, held), (stored.transpose(), held.transpose())):
            np.testing.assert_array_equal(mine.load().values, other.values, strict=True)
    assert Degrees.of(disk).cohesion == Degrees.of(ram).cohesion


# ---------------------------------------------------------------------------------------------- files


def test_opening_reads_no_interactions_and_no_ids(shops, monkeypatch):
    _, path = shops[True]
    monkeypatch.setattr(mapped.Column, "read", None)
    store = open_matrix(path)
    assert type(store.user_ids) is Ids
    assert not store.user_ids.flags.owndata
    assert repr(store).endswith("interactions)")


def test_entries_are_counted_from_the_end_as_in_an_array(shops):
    """The last entry was the end of the head of its file, and entries in reverse were none."""
    disk = both(shops, True)[1].matrix
    for column in (disk.indices, Weighting.of("log1p", disk).rows(disk).values):
        whole = column[:]
        assert column.shape == whole.shape and column.dtype == whole.dtype
        for key in (-1, -disk.nnz, np.int64(7), slice(None, None, -1), slice(9, -3, 4), slice(9, 2, -3)):
            np.testing.assert_array_equal(column[key], whole[key], strict=True)
        assert len(column[5:2]) == len(column[2:5:-1]) == 0
        for key in (disk.nnz, -disk.nnz - 1):
            with pytest.raises(IndexError):
                column[key]
        with pytest.raises(TypeError):
            column[np.array([3])]


def test_ids_are_looked_up_in_their_file(shops):
    data, store = both(shops, False)
    model = fitted(store)
    users = model._snapshot.users
    assert users._order is None and users._table is None
    assert users.labels.ctypes.data == model.user_ids_.ctypes.data, "no copy"
    np.testing.assert_array_equal(users.index(data.user_ids[[77, 1]]), [77, 1])
    assert users.index(["nobody of that name", data.user_ids[1]], missing="mark").tolist() == [-1, 1]
    assert not store.user_ids[::-1].ordered and not store.user_ids[[3, 1]].ordered
    assert store.user_ids.view().ordered


def test_ids_that_no_fixed_width_holds_are_stored_as_utf_8(tmp_path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    users, items = ["a", "a\0", "b", "é", "b"], ["x", "x", "y", "y", "\0"]
    parquet.write_table(pa.table({"user": users, "item": items}), tmp_path / "events.parquet")
    store, data = (
        convert(tmp_path / "events.parquet", tmp_path / "x.rgals"),
        read_interactions((users, items)),
    )
    assert store.user_ids.tolist() == data.user_ids.tolist() == ["a", "a\0", "b", "é"]
    assert store.item_ids.tolist() == data.item_ids.tolist() == ["\0", "x", "y"]
    np.testing.assert_array_equal(store.matrix.to_scipy().toarray(), data.matrix.toarray())
    with open(tmp_path / "x.rgals" / "user_text.npy", "r+b") as file:
        file.seek(-1, 2)  # the second byte of "é"
        file.write(b"e")
    with pytest.raises(FileFormatError, match=r"user_text\.npy is damaged"):
        open_matrix(tmp_path / "x.rgals")


def test_a_flipped_bit_and_a_truncated_file_are_one_clear_error(shops, tmp_path):
    _, path = shops[True]
    names = sorted(p.name for p in path.iterdir())
    assert len(names) == 9
    for name in names:
        content = (path / name).read_bytes()
        for damage in ("head", "flip", "cut", "gone"):
            copy = tmp_path / f"{name}-{damage}"
            copy.mkdir()
            for other in names:
                (copy / other).symlink_to(path / other)
            (copy / name).unlink()
            at = {"head": 70, "flip": len(content) * 2 // 3}.get(damage)
            if at is not None:
                (copy / name).write_bytes(content[:at] + bytes([content[at] ^ 16]) + content[at + 1 :])
            elif damage == "cut":
                (copy / name).write_bytes(content[:-3])
            with pytest.raises(FileFormatError, match=name if damage != "gone" else "missing|no store"):
                open_matrix(copy, verify=damage in ("head", "flip"))
    open_matrix(path, verify=True)


def test_a_newer_version_and_what_is_no_store_say_so(shops, tmp_path):
    _, path = shops[True]
    about = json.loads((path / "store.json").read_text())
    (tmp_path / "store.json").write_text(json.dumps(about | {"version": 2}))
    with pytest.raises(FileFormatError, match="newer version"):
        open_matrix(tmp_path)
    for wrong in (tmp_path / "nothing", path / "store.json", path.parent):
        with pytest.raises(FileFormatError, match="no store"):
            open_matrix(wrong)


def test_indices_that_lead_nowhere_end_a_fit_and_not_the_process(shops, tmp_path):
    """Without ``verify`` too: kernels would read other memory."""
    _, path = shops[False]
    for side in ("rows", "columns"):
        for name, at in ((f"{side}_indices.npy", 128 + 403), (f"{side}_indptr.npy", 128 + 8 * 9 + 6)):
            copy = tmp_path / name
            copy.mkdir()
            for other in path.iterdir():
                content = bytearray(other.read_bytes())
                if other.name == name:
                    content[at] ^= 64
                (copy / other.name).write_bytes(content)
            with pytest.raises(FileFormatError, match="damaged"):
                fitted(open_matrix(copy))


def test_rows_that_are_taken_here_and_there_are_read_together_and_checked(shops, tmp_path, monkeypatch):
    """A thousand users of a store with values would be thousands of reads."""
    _, path = shops[True]
    shutil.copytree(path, tmp_path / "x.rgals")
    matrix, reads, read = open_matrix(tmp_path / "x.rgals").matrix, [], mapped.Column.read
    monkeypatch.setattr(mapped.Column, "read", lambda self, *span: reads.append(span) or read(self, *span))
    users = np.random.default_rng(0).permutation(matrix.n_rows)[:100]
    for mine in (matrix, Weighting.of("log1p", matrix).rows(matrix)):
        reads.clear()
        assert mine.take_rows(users).n_rows == len(users)
        assert len(reads) < 10
    assert matrix.take_rows(np.repeat(users, 2)).n_rows == 200
    with open(tmp_path / "x.rgals" / "rows_indices.npy", "r+b") as file:
        file.seek(128 + 4 * int(matrix.indptr[users[50]]))
        file.write(np.int32(2_000_000_000).tobytes())
    with pytest.raises(FileFormatError, match="an index is outside"):
        open_matrix(tmp_path / "x.rgals").matrix.take_rows(users)
    ones = dataclasses.replace(open_matrix(tmp_path / "x.rgals").matrix, values=np.empty(0, np.float32))
    with pytest.raises(FileFormatError, match="an index is outside"):
        ones.take_rows(users)


def test_a_store_is_found_from_any_folder(shops, tmp_path, monkeypatch):
    data, path = shops[True]
    monkeypatch.chdir(path.parent)
    store = open_matrix(path.name)
    monkeypatch.chdir(tmp_path)
    check_equal(fitted(store), fitted(data))


def test_a_store_that_changes_under_a_fit_is_an_error(shops, tmp_path):
    _, path = shops[False]
    for other in path.iterdir():
        (tmp_path / other.name).write_bytes(other.read_bytes())
    store = open_matrix(tmp_path)
    (tmp_path / "rows_indices.npy").write_bytes((path / "rows_indices.npy").read_bytes()[:-400])
    with pytest.raises(FileFormatError, match=r"rows_indices\.npy has changed .* and fit again a model"):
        fitted(store)


def test_a_model_whose_store_is_gone_says_so_and_a_saved_one_does_without(shops, tmp_path):
    data, path = shops[True]
    shutil.copytree(path, tmp_path / "x.rgals")
    model = fitted(open_matrix(tmp_path / "x.rgals"), dtype="float64")  # in which no file is
    model.save(tmp_path / "model.npz")
    shutil.rmtree(tmp_path / "x.rgals")
    for call in (
        lambda: model.recommend(data.user_ids[3]),
        lambda: model._snapshot.seen.values.mapped(),
        lambda: model._snapshot.seen.as_dtype("float32").load(),
    ):
        with pytest.raises(
            FileFormatError, match="the store is gone, and a model reads its store until it is"
        ):
            call()
    assert len(RGALS.load(tmp_path / "model.npz").recommend(data.user_ids[3])[0])


def test_reading_ahead_keeps_the_order_and_raises_in_its_place():
    seen = []

    def read(k):
        seen.append(k)
        if k == 3:
            raise ValueError("three")
        return k

    assert list(read_ahead(map(read, [0, 1, 2]))) == [0, 1, 2]
    assert list(read_ahead(map(read, []))) == []
    ahead = read_ahead(map(read, [0, 1, 2, 3, 4]))
    assert [next(ahead) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(ahead)
    assert 4 not in seen
