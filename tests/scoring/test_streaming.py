"""Everybody's lists in a file: the same as `recommend`, in any format, with any ids, killed or not."""

import csv
import errno
import os
import signal
import zipfile
from unittest.mock import Mock

import numpy as np
import pytest
import scipy.sparse as sp
from instruments.harness import POSIX

from rgals import RGALS, MissingDependencyError, Positions, UnknownIdError
from rgals.cli import main
from rgals.datasets import IdMap, Interactions, make_implicit
from rgals.runtime.errors import InputError, InputTypeError, ParameterError, ShapeError
from rgals.scoring import _streaming, recommend_all

pq = pytest.importorskip("pyarrow.parquet")

M, N = 150, 60
KINDS = ("csv", "tsv", "parquet", "npz")
LABELS = {
    "int": (np.arange(M) * 7 - 300, np.arange(N)[::-1] + 2**40),
    "str": ([f"user {k}" for k in range(M)], [f'Film {k}, "The"\n{k}' for k in range(N)]),
    "unicode": ([f"κ{k}\u00a0東京🎬" for k in range(M)], ["naïve" + "é" * k for k in range(N)]),
    "mixed": ([k if k % 3 else f"g{k}" for k in range(M)], [k if k % 2 else f"東{k}" for k in range(N)]),
}


@pytest.fixture(scope="module")
def matrix():
    X = make_implicit(M, N, n_clusters=4, mean_interactions=8, random_state=3).matrix.tolil()
    X[[5, 77]] = 0
    return sp.csr_array(X)


@pytest.fixture(scope="module")
def model(matrix):
    return RGALS(K=8, n_iter=3, random_state=0).fit(matrix)


def read(path):
    """User, item, rank and score of every row, ids in the type that the file gives them."""
    kind = path.suffix[1:]
    if kind == "parquet":
        table = pq.read_table(path)
        return [table[name].to_pylist() for name in ("user", "item", "rank", "score")]
    if kind == "npz":
        with np.load(path, allow_pickle=False) as z:
            users, items = (IdMap.from_arrays(z, f"{side}_").labels for side in ("user", "item"))
            item, score = z["item"], z["score"]
        row, place = np.nonzero(item >= 0)
        columns = users[row], items[item[row, place]], place + 1, score[row, place]
        return [column.tolist() for column in columns]
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file, delimiter="\t" if kind == "tsv" else ","))
    assert rows.pop(0) == ["user", "item", "rank", "score"]
    user, item, rank, score = zip(*rows)
    return [list(user), list(item), list(map(int, rank)), list(map(float, score))]


def of_rows(value, some):
    """What a filter says of some of the users; lists of items hold for all."""
    if isinstance(value, tuple):
        return tuple(of_rows(part, some) for part in value)
    return value[some] if sp.issparse(value) else value


def expected(model, users, n, batch_size, labels=None, **filters):
    # In the same batches: some BLAS kernels (AVX2) round by the place of a row in its block.
    batches = [slice(start, start + batch_size) for start in range(0, len(users), batch_size)]
    with pytest.warns(UserWarning, match="no training interactions"):
        found = [
            model.recommend(
                Positions(users[some]), n, **{key: of_rows(value, some) for key, value in filters.items()}
            )
            for some in batches
        ]
    ids, scores = (np.concatenate(parts) for parts in zip(*found))
    row, place = np.nonzero(ids >= 0)
    names = [np.arange(M), np.arange(N)] if labels is None else [IdMap(x).labels for x in labels]
    columns = names[0][users][row], names[1][ids[row, place]], place + 1, scores[row, place]
    return [column.tolist() for column in columns]


def interrupted(monkeypatch, *args, **options):
    """A run that ends when all lists are in the scratch file, before the table is written."""
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(_streaming._tables, "write", Mock(side_effect=KeyboardInterrupt))
        recommend_all(*args, **options)


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("kind", KINDS)
def test_files_hold_the_lists_under_the_ids_of_the_data(matrix, model, tmp_path, kind, labels):
    ids = LABELS[labels]
    named = RGALS(K=8, n_iter=3, random_state=0).fit(matrix, user_ids=ids[0], item_ids=ids[1])
    named.save(tmp_path / "model.npz")
    out = tmp_path / f"recs.{kind}"
    with pytest.warns(UserWarning, match="2 of 150 users have no recommendations"):
        written = recommend_all(RGALS.load(tmp_path / "model.npz"), out, n=7, batch_size=64)
    assert sorted(os.listdir(tmp_path)) == ["model.npz", out.name]
    want, got = expected(named, np.arange(M), 7, 64, ids), read(out)
    exact = kind == "npz" or (kind == "parquet" and labels != "mixed")
    text = kind in ("csv", "tsv") or not exact
    for column in (0, 1):
        assert got[column] == ([str(x) for x in want[column]] if text else want[column])
    assert got[2] == want[2]
    np.testing.assert_allclose(got[3], want[3], rtol=1e-5 if text and kind != "parquet" else 0)
    assert written[:5] == (str(out), M, M - 2, 7 * (M - 2), 0)


def test_filters_and_choices_are_those_of_recommend(model, tmp_path):
    rng = np.random.default_rng(0)
    users = rng.permutation(M)[:90]
    lists = sp.csr_array((rng.random((90, N)) < 0.4).astype(np.float32))
    shown = sp.csr_array((rng.random((90, N)) < 0.3).astype(np.float32))
    for filters in (
        {"candidates": lists},
        {"candidates": [4, 9, 30, 2], "exclude": None},
        {"exclude": ("train", shown), "exclude_items": [0, 1, 2]},
        {"exclude": shown, "candidates": lists},
    ):
        out = tmp_path / "recs.npz"
        with pytest.warns(UserWarning, match="users have no recommendations"):
            recommend_all(model, out, n=12, users=users, batch_size=32, **filters)
        want = expected(model, users, 12, 32, **filters)
        assert read(out)[:3] == want[:3]
        np.testing.assert_allclose(read(out)[3], want[3], rtol=1e-5)


def test_lists_have_no_more_places_than_there_are_items(model, tmp_path):
    """A place that nothing can fill takes no memory and no room on disk."""
    for n, name in ((10_000, "all.npz"), (N, "same.npz")):
        with pytest.warns(UserWarning, match="2 of 150 users"):
            recommend_all(model, tmp_path / name, n)
    with np.load(tmp_path / "all.npz") as z:
        assert z["item"].shape == z["score"].shape == (M, N)
        assert (z["item"].dtype, z["score"].dtype) == (np.int32, np.float32)
    assert (tmp_path / "all.npz").read_bytes() == (tmp_path / "same.npz").read_bytes()


def test_cold_users_get_popular_items_on_request(model, matrix, tmp_path):
    written = recommend_all(model, tmp_path / "recs.npz", n=5, cold="popular")
    assert written.served == M
    popular = np.argsort(-np.bincount(matrix.indices, minlength=N), kind="stable")[:5]
    with np.load(tmp_path / "recs.npz") as z:
        np.testing.assert_array_equal(z["item"][[5, 77]], [popular, popular])


def test_new_users_are_folded_in(model, matrix, tmp_path):
    rows = matrix[40:70]
    recommend_all(model, tmp_path / "recs.parquet", n=6, X_new=rows, new_ids=[f"n{k}" for k in range(30)])
    ids, _ = model.recommend_new(rows, 6)
    user, item, _, _ = read(tmp_path / "recs.parquet")
    assert item == ids.ravel().tolist()
    assert user == [f"n{k}" for k in range(30) for _ in range(6)]


def test_columns_of_a_table_without_rows_have_the_type_of_the_ids(matrix, tmp_path):
    named = RGALS(K=4, n_iter=1, random_state=0).fit(
        matrix, user_ids=LABELS["str"][0], item_ids=LABELS["int"][1]
    )
    recommend_all(named, tmp_path / "none.parquet", users=[])
    kinds = pq.read_table(tmp_path / "none.parquet").schema.types
    assert [str(kind) for kind in kinds] == ["string", "int64", "int32", "float"]


def test_new_users_and_filters_are_found_by_their_ids(matrix, tmp_path):
    users, items = np.array(LABELS["str"][0]), np.array([f"i{k}" for k in range(N)])
    named = RGALS(K=8, n_iter=3, random_state=0).fit(matrix, user_ids=users, item_ids=items)
    rng, out = np.random.default_rng(1), tmp_path / "recs.csv"
    shown = Interactions(sp.csr_array((rng.random((M, N)) < 0.3) * 1.0), users[::-1], items[::-1])
    filters = {"exclude": ["train", shown], "candidates": items[5:50], "exclude_items": items[[7, 9]]}
    asked = users[rng.permutation(M)[:70]]
    asked = asked[~np.isin(asked, users[[5, 77]])]
    recommend_all(named, out, 6, users=asked, batch_size=16, **filters)
    ids = named.recommend(asked, 6, **filters).ids
    row, place = np.nonzero(ids != None)  # noqa: E711
    assert read(out)[:2] == [asked[row].tolist(), ids[row, place].tolist()]
    new = Interactions(matrix[40:70][:, ::-1], [f"n{k}" for k in range(30)], items[::-1])
    seen = Interactions(sp.csr_array((rng.random((30, N)) < 0.3) * 1.0), new.user_ids[::-1], items)
    for filters in ({"exclude": seen}, {"exclude": ("train", seen)}, {"candidates": seen}):
        recommend_all(named, out, 6, X_new=new, batch_size=16, **filters)
        given = {"exclude": ("given", seen)} if "train" in filters.get("exclude", ()) else filters
        ids = named.recommend_new(new, 6, **given).ids
        row, place = np.nonzero(ids != None)  # noqa: E711
        assert read(out)[:2] == [np.array(new.user_ids)[row].tolist(), ids[row, place].tolist()]


@pytest.mark.filterwarnings("ignore:.* users have no recommendations")
def test_filters_in_a_list_are_those_in_a_tuple(model, tmp_path):
    shown = sp.csr_array((np.random.default_rng(0).random((M, N)) < 0.3) * 1.0)
    for kind in (tuple, list):
        recommend_all(model, tmp_path / f"{kind.__name__}.csv", exclude=kind(["train", shown]), batch_size=16)
    assert (tmp_path / "list.csv").read_bytes() == (tmp_path / "tuple.csv").read_bytes()


def test_users_who_get_nothing_are_counted_in_one_warning(model, tmp_path):
    """Not by the batch, as `recommend` would: a run over millions ends with one line."""
    with pytest.warns(UserWarning) as said:
        recommend_all(model, tmp_path / "recs.csv", batch_size=3)
    assert [str(w.message).partition(":")[0] for w in said] == ["2 of 150 users have no recommendations"]
    assert said[0].filename == __file__


def test_dislikes_are_pairs_to_exclude_and_no_candidates(model, tmp_path):
    pairs = np.zeros((M, N))
    pairs[:, :50] = -1
    with pytest.warns(UserWarning, match="no recommendations"):
        recommend_all(model, tmp_path / "recs.csv", exclude=("train", sp.csr_array(pairs)))
    assert set(read(tmp_path / "recs.csv")[1]) == set(map(str, range(50, N)))
    with pytest.raises(InputError, match="candidates holds -1"):
        recommend_all(model, tmp_path / "none.csv", candidates=sp.csr_array(pairs))


def test_a_format_that_is_given_counts_and_a_link_stays_one(model, tmp_path):
    (tmp_path / "real").mkdir()
    out, real = tmp_path / "recs.csv", tmp_path / "real" / "lists"
    out.symlink_to(real)
    recommend_all(model, tmp_path / "recs.TSV", 3, cold="popular")
    recommend_all(model, out, 3, cold="popular", format="tsv")
    assert out.is_symlink() and real.read_bytes() == (tmp_path / "recs.TSV").read_bytes()
    assert real.read_text().startswith("user\titem\trank\tscore\n")
    assert os.listdir(tmp_path / "real") == ["lists"]


def test_scores_of_float64_stay_so_and_users_may_be_asked_for_twice(matrix, tmp_path):
    double = RGALS(K=8, n_iter=3, dtype="float64", random_state=0).fit(matrix)
    scores = double.recommend(Positions([3, 1, 3]), 4).scores
    recommend_all(double, tmp_path / "recs.pq", 4, users=[3, 1, 3])
    assert pq.read_table(tmp_path / "recs.pq")["score"].to_pylist() == scores.ravel().tolist()
    recommend_all(double, tmp_path / "recs.npz", 4, users=[3, 1])
    with np.load(tmp_path / "recs.npz") as z:
        assert z["score"].dtype == np.float64 and z["score"].tolist() == scores[:2].tolist()


def test_progress_counts_the_users_and_those_of_an_interrupted_run(model, tmp_path, monkeypatch, capsys):
    options = {"batch_size": 16, "cold": "popular"}
    interrupted(monkeypatch, model, tmp_path / "recs.csv", **options)
    assert capsys.readouterr().err == ""
    for _ in range(2):
        recommend_all(model, tmp_path / "recs.csv", verbose=1, **options)
        assert f"{M}/{M}" in capsys.readouterr().err


def test_a_table_has_every_row_where_row_groups_are_small(model, tmp_path, monkeypatch):
    recommend_all(model, tmp_path / "one.parquet", cold="popular", batch_size=16)
    monkeypatch.setattr(_streaming._tables, "_ROW_GROUP", 400)  # batches have 160 rows
    recommend_all(model, tmp_path / "many.parquet", cold="popular", batch_size=16)
    assert pq.read_table(tmp_path / "many.parquet").equals(pq.read_table(tmp_path / "one.parquet"))
    assert pq.ParquetFile(tmp_path / "one.parquet").num_row_groups == 1
    assert pq.ParquetFile(tmp_path / "many.parquet").num_row_groups > 3


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_run_goes_on_and_gives_the_same_bytes(model, tmp_path, monkeypatch, kind):
    whole, out = tmp_path / f"whole.{kind}", tmp_path / f"recs.{kind}"
    options = {"n": 9, "batch_size": 16, "cold": "popular"}
    recommend_all(model, whole, **options)
    original, calls = _streaming.Task.score, []

    def failing(self, start, stop):
        calls.append(start)
        if len(calls) > 5:
            raise KeyboardInterrupt
        return original(self, start, stop)

    monkeypatch.setattr(_streaming.Task, "score", failing)
    with pytest.raises(KeyboardInterrupt):
        recommend_all(model, out, **options)
    monkeypatch.setattr(_streaming.Task, "score", original)
    assert sorted(os.listdir(tmp_path)) == [f"recs.{kind}.partial", f"whole.{kind}"]
    partial = tmp_path / f"recs.{kind}.partial"
    torn = partial.read_bytes()[:-7]  # as a kill in the middle of a write leaves it
    partial.write_bytes(torn + b"\0" * 3)
    assert recommend_all(model, out, **options).resumed == 3 * 16  # one call checked the filters
    assert out.read_bytes() == whole.read_bytes()
    assert not partial.exists()


@pytest.mark.filterwarnings("ignore:2 of 150 users have no recommendations")
def test_what_another_call_left_behind_is_not_used(model, matrix, tmp_path, monkeypatch):
    out = tmp_path / "recs.csv"
    options = {"n": 9, "batch_size": 16, "cold": "popular"}
    other = RGALS(K=8, n_iter=2, random_state=0).fit(matrix)
    changes = [
        (other, options),
        (model, options | {"n": 8}),
        (model, options | {"exclude": None}),
        (model, options | {"exclude_items": [3]}),
        (model, options | {"cold": "empty"}),
        (model, options | {"users": np.arange(M)[::-1]}),
        (model, options | {"batch_size": 17}),
        (model, options | {"resume": False}),
    ]
    interrupted(monkeypatch, model, out, **options)
    left = (tmp_path / "recs.csv.partial").read_bytes()
    for who, how in changes:
        (tmp_path / "recs.csv.partial").write_bytes(left)
        assert recommend_all(who, out, **how).resumed == 0
        first = out.read_bytes()
        recommend_all(who, out, **how)
        assert out.read_bytes() == first
    (tmp_path / "recs.csv.partial").write_bytes(left)
    with monkeypatch.context() as patch:
        patch.setattr(_streaming, "__version__", "0.0")  # of another version
        assert recommend_all(model, out, **options).resumed == 0
    (tmp_path / "recs.csv.partial").write_bytes(left)
    assert recommend_all(model, out, **options).resumed == M


def test_what_a_run_of_other_times_left_behind_is_not_used(tmp_path, monkeypatch):
    """To a half-life they weigh otherwise; half of the users got the lists of the times before."""
    data = make_implicit(M, N, mean_interactions=8, random_state=3)
    earlier = data.replace(timestamp=np.arange(data.nnz))
    later = data.replace(timestamp=np.random.default_rng(0).permutation(data.nnz))
    timed = RGALS(K=8, n_iter=3, half_life=50.0, random_state=0).fit(earlier)
    whole, out = tmp_path / "whole.csv", tmp_path / "recs.csv"
    recommend_all(timed, whole, X_new=later, batch_size=16)
    interrupted(monkeypatch, timed, out, X_new=earlier, batch_size=16)
    assert recommend_all(timed, out, X_new=later, batch_size=16).resumed == 0
    assert out.read_bytes() == whole.read_bytes()


def test_what_a_run_of_other_new_users_left_behind_is_not_used(model, matrix, tmp_path, monkeypatch):
    out = tmp_path / "recs.csv"
    interrupted(monkeypatch, model, out, X_new=matrix[6:46], batch_size=16)
    assert recommend_all(model, out, X_new=matrix[80:120], batch_size=16).resumed == 0
    assert read(out)[1] == list(map(str, model.recommend_new(matrix[80:120]).ids.ravel()))


def test_every_batch_is_on_the_disk_before_the_next_one_is_computed(model, tmp_path, monkeypatch):
    """A kill costs the batch that is being computed, and no other."""
    original, sizes = _streaming.Task.score, []

    def measured(self, start, stop):
        if (tmp_path / "recs.csv.partial").exists():
            sizes.append(os.path.getsize(tmp_path / "recs.csv.partial"))
        return original(self, start, stop)

    monkeypatch.setattr(_streaming.Task, "score", measured)
    recommend_all(model, tmp_path / "recs.csv", batch_size=50, cold="popular")
    assert np.diff(sizes).tolist() == [50 * 10 * 8 + 8] * 2


@pytest.mark.few(0)
@POSIX
def test_killed_by_the_system_at_any_moment(zygote, tmp_path):
    """kill -9 at random moments, then a run that ends: the file is that of a run that was never killed."""
    rng = np.random.default_rng()
    data = make_implicit(3000, 400, random_state=0)
    RGALS(K=16, n_iter=1, random_state=0).fit(data).save(tmp_path / "model.npz")
    whole, out = tmp_path / "whole.parquet", tmp_path / "recs.parquet"
    recommend_all(RGALS.load(tmp_path / "model.npz"), whole, n=10, batch_size=50)
    for size in (rng.uniform(5e3, 1e5), rng.uniform(1.1e5, 2e5)):  # of 240 kB
        job = "instruments.streaming:slowly", str(tmp_path / "model.npz"), str(out), size
        assert zygote.run(*job, signal_after=(signal.SIGKILL, 0.0, "ready")).signal == signal.SIGKILL
    resumed = recommend_all(RGALS.load(tmp_path / "model.npz"), out, n=10, batch_size=50).resumed
    assert resumed > 1300  # more than 1.1e5 bytes
    assert out.read_bytes() == whole.read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["model.npz", "recs.parquet", "whole.parquet"]


def test_two_runs_cannot_write_one_file(model, tmp_path, monkeypatch):
    out, original = tmp_path / "recs.csv", _streaming.Task.score
    refused = []

    def meddle(self, start, stop):
        if start == 16 and not refused:
            refused.append(True)
            with pytest.raises(InputError, match="written by another process"):
                recommend_all(model, out, batch_size=16)
        return original(self, start, stop)

    monkeypatch.setattr(_streaming.Task, "score", meddle)
    with pytest.warns(UserWarning, match="no recommendations"):
        recommend_all(model, out, batch_size=16)
    assert refused and os.listdir(tmp_path) == ["recs.csv"]


@POSIX
@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize("kind", ["text", "like ours", "link", "broken link", "folder", "pipe"])
def test_a_file_of_the_user_with_the_name_of_the_scratch_file_stays(model, tmp_path, kind, resume):
    out, partial, content = tmp_path / "out.csv", tmp_path / "out.csv.partial", b"my own notes"
    if kind == "folder":
        partial.mkdir()
    elif kind == "pipe":
        os.mkfifo(partial)
    elif kind in ("link", "broken link"):
        partial.symlink_to("notes")
    else:
        content = b"rgals" if kind == "like ours" else content
        partial.write_bytes(content)
    if kind == "link":
        (tmp_path / "notes").write_bytes(content)
    before = sorted(os.listdir(tmp_path)), os.lstat(partial).st_mode, os.lstat(partial).st_ino
    with pytest.raises(InputError, match=r"out\.csv\.partial .*Move it away or choose another output"):
        recommend_all(model, out, resume=resume)
    assert (sorted(os.listdir(tmp_path)), os.lstat(partial).st_mode, os.lstat(partial).st_ino) == before
    if partial.is_file():
        assert partial.read_bytes() == content


@pytest.mark.parametrize("room", [0, 10, 1000, 9000])
@pytest.mark.parametrize("resume", [True, False])
def test_a_full_disk_leaves_only_what_the_next_run_can_use(model, tmp_path, room, resume):
    resource, out = pytest.importorskip("resource"), tmp_path / "out.csv"
    out.write_bytes(b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
        with pytest.raises(OSError, match=r"File too large: '.*out\.csv"):
            recommend_all(model, out, batch_size=16, resume=resume, cold="popular")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert out.read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["out.csv", *["out.csv.partial"] * (resume and room >= 1000)]
    written = recommend_all(model, out, batch_size=16, cold="popular")
    assert (written.resumed > 0) == (resume and room > 2000)
    assert os.listdir(tmp_path) == ["out.csv"]


def test_ctrl_c_while_the_scratch_file_is_read_loses_nothing(model, tmp_path, monkeypatch):
    options = {"batch_size": 16, "cold": "popular"}
    interrupted(monkeypatch, model, tmp_path / "out.csv", **options)
    left = (tmp_path / "out.csv.partial").read_bytes()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(_streaming.Scratch, "batches", Mock(side_effect=KeyboardInterrupt))
        recommend_all(model, tmp_path / "out.csv", **options)
    assert (tmp_path / "out.csv.partial").read_bytes() == left


@pytest.mark.parametrize("killed", [False, True])
def test_without_locks_two_runs_cannot_mix_either(model, matrix, tmp_path, monkeypatch, killed):
    """The run that finds its scratch file changed says so; what is written is one run's."""
    fcntl = pytest.importorskip("fcntl")

    def flock(descriptor, operation):
        raise OSError(errno.ENOLCK, "no locks available")

    options = {"batch_size": 16, "cold": "popular"}
    other = RGALS(K=8, n_iter=2, random_state=1).fit(matrix)
    whole = {}
    for name, one in (("one", model), ("other", other)):
        recommend_all(one, tmp_path / f"{name}.csv", **options)
        whole[name] = (tmp_path / f"{name}.csv").read_bytes()
    monkeypatch.setattr(fcntl, "flock", flock)
    out, original, running = tmp_path / "out.csv", _streaming.Task.score, ["one"]

    def meddle(self, start, stop):
        if start == 64 and running == ["one"]:
            running.append("other")
            try:
                recommend_all(other, out, **options)
                assert out.read_bytes() == whole["other"]
            except KeyboardInterrupt:
                assert killed
            running.append("one again")
        elif start == 64 and running[-1] == "other" and killed:
            raise KeyboardInterrupt
        return original(self, start, stop)

    monkeypatch.setattr(_streaming.Task, "score", meddle)
    with pytest.raises(InputError, match="was changed while it was in use; run again"):
        recommend_all(model, out, **options)
    assert running == ["one", "other", "one again"]
    assert not out.exists() if killed else out.read_bytes() == whole["other"]
    recommend_all(model, out, **options)
    assert out.read_bytes() == whole["one"]
    assert sorted(os.listdir(tmp_path)) == ["one.csv", "other.csv", "out.csv"]


def test_a_refit_meanwhile_changes_nothing(matrix, tmp_path, monkeypatch):
    model = RGALS(K=8, n_iter=3, random_state=0).fit(matrix)
    recommend_all(model, tmp_path / "one.npz", cold="popular", batch_size=16)
    original = _streaming.Task.score

    def refit(self, start, stop):
        if start == 64:
            model.set_params(n_iter=1).fit(matrix)
        return original(self, start, stop)

    monkeypatch.setattr(_streaming.Task, "score", refit)
    recommend_all(model, tmp_path / "two.npz", cold="popular", batch_size=16)
    assert model.n_iter_ == 1
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"model": (np.ones((M, 2)), np.ones((N, 2)))}, InputTypeError, "a tuple: give a .* of rgals; topk"),
        ({"model": RGALS}, InputTypeError, "is the class RGALS: give a fitted"),
        ({"out": "recs.xml"}, ParameterError, "out='.*xml'.*parquet"),
        ({"format": "xml"}, ParameterError, "format='xml'"),
        ({"out": "missing/recs.csv"}, FileNotFoundError, "missing'$"),
        ({"n": 0}, ParameterError, "n=0"),
        ({"batch_size": 0}, ParameterError, "batch_size=0"),
        ({"resume": "no"}, ParameterError, "resume='no'"),
        ({"users": [M]}, UnknownIdError, r"users\[0\]=150"),
        ({"users": [1], "X_new": sp.csr_array((1, N))}, ParameterError, "not both"),
        ({"new_ids": ["a"]}, ParameterError, "X_new"),
        ({"X_new": sp.csr_array((2, N)), "new_ids": ["a"]}, InputError, "1 new_ids name 2 rows"),
        ({"X_new": sp.csr_array((2, N)), "new_ids": ["a", "a"]}, InputError, "new_ids 'a' occurs twice"),
        ({"out": "recs.npz", "users": [3, 1, 3]}, InputError, "users 3 occurs twice"),
        ({"exclude": "test"}, ParameterError, "exclude='test'"),
        ({"exclude": sp.csr_array((3, N))}, ShapeError, "exclude"),
        ({"candidates": sp.csr_array((3, N))}, ShapeError, "candidates"),
        ({"candidates": [N]}, UnknownIdError, "candidates"),
        ({"cold": "warm"}, ParameterError, "cold='warm'"),
    ],
)
def test_bad_calls_are_named_before_anything_is_written(model, tmp_path, change, error, words):
    out = tmp_path / change.pop("out", "recs.csv")
    with pytest.raises(error, match=words):
        recommend_all(change.pop("model", model), out, **change)
    assert os.listdir(tmp_path) == []


def test_a_folder_of_that_name_is_refused_before_any_work(model, tmp_path):
    """It was found after the last list, and the scratch file stayed."""
    (tmp_path / "recs.csv").mkdir()
    with pytest.raises(InputError, match=r"recs\.csv exists and is not a file; give the name of a file"):
        recommend_all(model, tmp_path / "recs.csv")
    assert os.listdir(tmp_path) == ["recs.csv"]


def test_ids_that_a_format_cannot_hold_apart_are_refused(matrix, tmp_path):
    ids = [7, "7", *range(100, 98 + M)]
    model = RGALS(K=2, n_iter=1, random_state=0).fit(matrix, user_ids=np.array(ids, object))
    for kind in ("csv", "parquet"):
        with pytest.raises(InputError, match="'7' are two users, which"):
            recommend_all(model, tmp_path / f"recs.{kind}")
    odd = RGALS(K=2, n_iter=1, random_state=0).fit(matrix, item_ids=[f"\udcff{k}" for k in range(N)])
    with pytest.raises(InputError, match="UTF-8"):
        recommend_all(odd, tmp_path / "recs.parquet")
    assert os.listdir(tmp_path) == []
    for named in (model, odd):
        recommend_all(named, tmp_path / "recs.npz", cold="popular")
    with zipfile.ZipFile(tmp_path / "recs.npz") as archive:
        assert archive.testzip() is None


def test_ends_of_lines_in_ids_are_for_formats_that_keep_them(matrix, tmp_path):
    odd = RGALS(K=2, n_iter=1, random_state=0).fit(matrix, item_ids=[f"{k}\r" for k in range(N)])
    for kind in ("csv", "tsv"):
        with pytest.raises(InputError, match=f"item '0.r' holds the end of a line of {kind}"):
            recommend_all(odd, tmp_path / f"recs.{kind}", users=[0])
    recommend_all(odd, tmp_path / "recs.jsonl", users=[0])
    recommend_all(odd, tmp_path / "recs.parquet", users=[0])
    assert all(item.endswith("\r") for item in read(tmp_path / "recs.parquet")[1])


def test_integers_beyond_63_bits_are_integers_in_parquet(matrix, tmp_path):
    big = RGALS(K=2, n_iter=1, random_state=0).fit(matrix, item_ids=np.arange(N, dtype=np.uint64) + 2**63)
    recommend_all(big, tmp_path / "recs.parquet", users=[0])
    assert min(read(tmp_path / "recs.parquet")[1]) >= 2**63


def test_parquet_without_pyarrow_is_refused_before_any_work(model, tmp_path, monkeypatch):
    def missing(name, needed):
        raise MissingDependencyError(needed)

    monkeypatch.setattr(_streaming._tables, "optional", missing)
    monkeypatch.setattr(_streaming, "Scratch", lambda *_: pytest.fail("begun"))
    with pytest.raises(MissingDependencyError, match=r"pip install .rgals\[parquet\]"):
        recommend_all(model, tmp_path / "recs.parquet")
    assert not os.listdir(tmp_path)


def test_the_command_line_writes_the_same_files(model, tmp_path, capsys):
    model.save(tmp_path / "model.npz")
    for kind in ("parquet", "npz", "csv"):
        out, want = tmp_path / f"cli.{kind}", tmp_path / f"want.{kind}"
        command = ["recommend", str(tmp_path / "model.npz"), "-n", "4", "--popular", "-o", str(out)]
        assert main([*command, "--batch-size", "50"]) == 0
        recommend_all(model, want, n=4, cold="popular", batch_size=50)
        assert out.read_bytes() == want.read_bytes()
    assert "600 recommendations for 150 users" in capsys.readouterr().err


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="peak memory is measured on Linux")
@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
@pytest.mark.few(1)
def test_memory_does_not_grow_with_the_users(zygote, tmp_path, kind, amount):
    """Beyond the model, whose 300,000 users have lists of 23 MiB and labels of as much, or half."""

    def growth(n_users):
        outcome = zygote.run("instruments.streaming:growth", str(tmp_path / f"recs.{kind}"), n_users)
        assert outcome.returned, outcome
        return outcome.value

    some, users = 30_000, amount(150_000, 300_000)  # some: more than a row group of parquet, which is held
    few, many = growth(some), growth(users)
    print(f"{kind}: peak memory +{few:.1f} MiB for {some:,} users, +{many:.1f} MiB for {users:,}")
    assert many < few + 8


def test_labels_are_indexed_where_somebody_is_looked_up_alone(matrix, tmp_path):
    """Lists of everybody sorted all labels, which took as much memory again."""
    names = [f"u{k}" for k in range(M)]
    RGALS(K=4, n_iter=1).fit(matrix, user_ids=names).save(tmp_path / "model.npz")
    model = RGALS.load(tmp_path / "model.npz")
    recommend_all(model, tmp_path / "recs.csv", n=3)
    model.recommend(Positions([0]))
    assert "users" not in vars(model._state())
    model.recommend(["u3"])
    assert "users" in vars(model._state())


def test_frames_of_new_users_have_the_columns_of_the_fit(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(np.eye(6), columns=list("abcdef"))
    model = RGALS(K=2, n_iter=2, random_state=0).fit(frame)
    assert recommend_all(model, tmp_path / "recs.csv", 2, X_new=frame).rows == 12
    with pytest.raises(InputError, match="X_new: The feature names should match"):
        recommend_all(model, tmp_path / "other.csv", 2, X_new=frame.rename(columns={"a": "z"}))
    assert os.listdir(tmp_path) == ["recs.csv"]
