"""Every option of the command line arrives where its help says, and changes what it names."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import sys
from argparse import Namespace
from contextlib import suppress

import numpy as np
import pytest
import scipy.sparse as sp

from rgals import RGALS, Checkpoint, InputError, Positions, __version__
from rgals.baselines import Popularity
from rgals.cli import _shared, compare, demo, fit, main, saved
from rgals.compare import Effort
from rgals.datasets import Interactions, make_implicit, read_interactions
from rgals.metrics import evaluate
from rgals.model_selection import Protocol, split_interactions
from rgals.scoring import recommend_all

FAST = ("--K", "2", "--n-iter", "1", "--seed", "0")
MODEL = {"K": 2, "n_iter": 1, "random_state": 0}


class Seen(BaseException):
    """Ends a command at the call that a test looks at."""


@pytest.fixture(scope="module")
def data():
    return make_implicit(60, 40, n_clusters=4, mean_interactions=12, random_state=1)


@pytest.fixture(scope="module")
def marked(data):
    """The data, three of seven interactions marked: two as test, one as validation."""
    return data.replace(split=np.array([0, 1, 0, 2, 0, 1, 0], np.int8)[np.arange(data.nnz) % 7])


@pytest.fixture(scope="module")
def folder(tmp_path_factory, data, marked):
    folder = tmp_path_factory.mktemp("options")
    data.save(folder / "data.npz")
    marked.save(folder / "marked.npz")
    RGALS(**MODEL).fit(data).save(folder / "model.npz")
    return folder


@pytest.fixture
def call(folder, tmp_path, capsys):
    """Run a command, whose words may name files of ``folder`` (in/) and ``tmp_path`` (out/)."""

    def call(line, *more, code=0):
        words = [w.replace("in/", f"{folder}/").replace("out/", f"{tmp_path}/") for w in line.split()]
        assert main([*words, *more]) == code
        return capsys.readouterr()

    return call


def caught(monkeypatch, module, name):
    """The arguments with which a command calls a function, in whose place it ends."""
    found = {}

    def function(*args, **how):
        found.update(how, args=args)
        raise Seen

    function.__name__ = name  # by which the command finds its options
    monkeypatch.setattr(module, name, function)
    return found


def rows(text):
    return list(csv.DictReader(text.splitlines()))


# ----------------------------------------------------------------------------------------- all commands


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0 and capsys.readouterr().out == f"rgals {__version__}\n"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", 2),
        ("0.5", 0.5),
        ("1e-3", 0.001),
        ("None", None),
        ("TRUE", True),
        ("false", False),
        ("90d", "90d"),
    ],
)
def test_texts_are_read_as_the_values_that_they_look_like(text, value):
    assert repr(_shared.value_of(text)) == repr(value)


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("quiet", [True, False])
def test_progress_is_for_a_terminal_that_is_not_to_be_quiet(terminal, quiet, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    assert _shared.progress(Namespace(quiet=quiet)) == (terminal and not quiet)


def test_an_error_of_the_system_without_a_file_has_its_own_words_alone(monkeypatch, call):
    def full(*args, **how):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_shared, "read_data", full)
    assert call("fit x.csv -o y", code=1).err == "rgals: error: No space left on device\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the device that is always full is of Linux")
def test_a_full_disk_behind_the_output_is_found_before_the_end(monkeypatch, capsys):
    out = open("/dev/full", "w", encoding="utf-8")  # noqa: SIM115
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        assert main(["metrics", "hr"]) == 1
    with suppress(OSError):
        out.close()
    assert capsys.readouterr().err == "rgals: error: No space left on device\n"


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_stream_that_is_closed_swallows_what_is_meant_for_it(name, monkeypatch):
    monkeypatch.setattr(sys, name, None)
    assert main(["metrics", "hr"]) == 0 and main(["metrics", "nonsense"]) == 1
    getattr(sys, name).close()


def test_what_is_printed_is_utf_8_whatever_the_encoding_of_the_system(folder, data, tmp_path, monkeypatch):
    names = [f"κ{k} 東京" for k in range(60)]
    RGALS(**MODEL).fit(data.matrix, user_ids=names).save(tmp_path / "m.npz")
    out = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["recommend", str(tmp_path / "m.npz"), "--user", names[3], "-n", "1"]) == 0
    assert out.buffer.getvalue().decode().splitlines()[1].startswith("κ3 東京,")


def test_after_a_closed_pipe_nothing_is_written_to_it_any_more(tmp_path, monkeypatch):
    def closed(path):
        raise BrokenPipeError

    monkeypatch.setattr(_shared, "load", closed)
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert main(["info", "model.npz"]) == 1
        out.write("at exit")
    assert (tmp_path / "out").read_text() == ""


def test_a_folder_that_may_not_be_written_is_named_before_the_data_are_read(monkeypatch, tmp_path, call):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    said = call("fit absent.npz -o out/m.npz", code=1).err
    assert said == f"rgals: error: {tmp_path}: Permission denied\n"


def test_columns_are_given_by_their_positions_too(tmp_path, call):
    (tmp_path / "log").write_text("5;a;x\n7;b;x\n9;b;y\n", encoding="utf-8")
    columns = "--no-header --user-column 1 --item-column 2 --value-column 0"
    call(f"fit out/log -o out/m.npz -q {columns}", *FAST)
    model = RGALS.load(tmp_path / "m.npz")
    assert model.user_ids_.tolist() == ["a", "b"] and model.item_ids_.tolist() == ["x", "y"]
    assert model.seen_.toarray().tolist() == [[5, 0], [7, 9]]


@pytest.mark.parametrize(("which", "kinds"), [("user", "Ui"), ("item", "iU"), ("both", "UU")])
def test_ids_stay_texts_on_the_side_that_is_named(which, kinds, tmp_path, call):
    (tmp_path / "log.csv").write_text("user,item\n1,5\n2,5\n2,6\n", encoding="utf-8")
    call(f"fit out/log.csv -o out/m.npz -q --text-ids {which}", *FAST)
    model = RGALS.load(tmp_path / "m.npz")
    assert model.user_ids_.dtype.kind + model.item_ids_.dtype.kind == kinds


# ------------------------------------------------------------------------------------------- fit, tune


def test_the_marked_validation_part_stops_early_and_is_never_fitted(marked, tmp_path, call):
    train, validation = _shared.marked_parts(marked)
    assert [part.nnz for part in (train, validation)] == [np.sum(marked.split == k) for k in (0, 2)]
    call("fit in/marked.npz -o out/m.npz -q", *FAST)
    plain = RGALS.load(tmp_path / "m.npz")
    assert plain.seen_.nnz == train.nnz and "ndcg@10" not in plain.history_[0]
    call("fit in/marked.npz -o out/m.npz -q --early-stopping --metric recall@5 --patience 2", *FAST)
    model = RGALS.load(tmp_path / "m.npz")
    expected = RGALS(**MODEL, early_stopping=True, metric="recall@5", patience=2)
    expected.fit(train, validation=validation)
    assert model.history_[0]["recall@5"] == expected.history_[0]["recall@5"] > 0
    assert model.seen_.nnz == train.nnz and (model.metric, model.patience) == ("recall@5", 2)


def test_without_a_marked_validation_part_early_stopping_holds_some_out(marked, tmp_path, call):
    marked.replace(split=marked.split % 2).save(tmp_path / "two.npz")
    call("fit out/two.npz -o out/m.npz -q --early-stopping", *FAST)
    assert "ndcg@10" in RGALS.load(tmp_path / "m.npz").history_[0]


def test_all_is_fitted_without_a_word_about_marks(call):
    assert call("fit in/marked.npz -o out/m.npz -q --all", *FAST).err == ""


def test_the_seed_draws_what_is_held_out(data, tmp_path, call):
    for seed in ("0", "5"):
        call(f"fit in/data.npz -o out/m.npz -q --hold-out 0.3 --held-out out/t.npz --seed {seed}", *FAST[:4])
        expected = split_interactions(data, (0.7, 0.3), random_state=int(seed))[1]
        found = read_interactions(tmp_path / "t.npz")
        assert found.nnz == expected.nnz and (found.matrix != expected.matrix).nnz == 0
    call("fit in/data.npz -o out/m.npz -q --hold-out 0.3 --held-out out/t0.npz --K 2 --n-iter 1")
    first = split_interactions(data, (0.7, 0.3), random_state=0)[1]
    assert (read_interactions(tmp_path / "t0.npz").matrix != first.matrix).nnz == 0


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_tables_of_features_of_either_side_are_read(data, ending, tmp_path, call):
    pandas = pytest.importorskip("pandas")
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    rng, how = np.random.default_rng(0), {}
    for side, ids in (("user", data.user_ids), ("item", data.item_ids)):
        table = pandas.DataFrame(
            {side: ids, "size": rng.random(len(ids)), "kind": list("ab") * (len(ids) // 2)}
        )
        getattr(table, f"to_{ending}")(tmp_path / f"{side}.{ending}", index=False)
        how[f"{side}_features"] = table
    options = f"--user-features out/user.{ending} --item-features out/item.{ending}"
    call(f"fit in/data.npz -o out/m.npz -q {options}", *FAST)
    found = RGALS.load(tmp_path / "m.npz")
    for some in (how, {"user_features": how["user_features"]}, {}):
        expected = RGALS(**MODEL).fit(data, **some)
        assert (found.fingerprint() == expected.fingerprint()) == (some is how)


def test_text_ids_are_those_of_a_parquet_table_of_features_too(tmp_path, call):
    """The error of integers beside texts advised the option that was given."""
    pytest.importorskip("pyarrow")
    pandas = pytest.importorskip("pandas")
    pandas.DataFrame({"item": [11, 10], "size": [1.0, 2.0]}).to_parquet(
        tmp_path / "kinds.parquet", index=False
    )
    (tmp_path / "log.csv").write_text("user,item\na,007\na,11\nb,10\nb,11\n", encoding="utf-8")
    line = "fit out/log.csv -o out/m.npz -q --item-features out/kinds.parquet"
    assert "(--text-ids)" in call(line, *FAST, code=1).err
    call(f"{line} --text-ids item", *FAST)
    model = RGALS.load(tmp_path / "m.npz")
    assert model.item_ids_.tolist() == ["007", "10", "11"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "is a folder; give the name of a file"),
        (["-o", "m.npz", "--user-features", ""], "an empty name: No such file"),
        (["-o", "m.npz", "--item-features", ""], "an empty name: No such file"),
        (["-o", "m.npz", "--hold-out", "0.2", "--held-out", ""], "held_out=''"),
    ],
)
def test_a_name_that_is_empty_is_no_name_left_out(options, said, tmp_path, call, monkeypatch):
    """A variable of the shell that is not set: features were left out, and a fit ended at its last step."""
    monkeypatch.chdir(tmp_path)
    if said.startswith("an empty name"):
        pytest.importorskip("pandas")
    found = call("fit in/data.npz", *(options or ["-o", ""]), *FAST, code=1).err
    assert said in found and "interactions to fit" not in found
    assert not os.listdir(tmp_path)


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="needs /dev/fd")
def test_a_pipe_is_refused_as_an_output_before_the_fit(call):
    """`-o >(gzip)` of a shell: the fit ended at its last step."""
    read, write = os.pipe()
    try:
        found = call(f"fit in/data.npz -o /dev/fd/{write}", *FAST, code=1).err
        assert f"/dev/fd/{write} is no regular file" in found and "interactions to fit" not in found
        with pytest.raises(InputError, match=f"/dev/fd/{write} exists and is not a file"):
            recommend_all(RGALS(**MODEL).fit(make_implicit(20, 10)), f"/dev/fd/{write}", format="csv")
    finally:
        os.close(read)
        os.close(write)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_text_ids_leave_other_columns_of_features_as_they_are(ending, tmp_path, call):
    """`product_id` is an item by its name, and beside `item` a feature: of parquet it was made text."""
    pytest.importorskip("pyarrow")
    pandas = pytest.importorskip("pandas")
    ids = [f"i{k}" for k in range(30)]
    rows = [f"u{k % 9},{ids[k % 30]}" for k in range(90)]
    (tmp_path / "log.csv").write_text("\n".join(["user,item", *rows]), encoding="utf-8")
    for other in ([k // 2 for k in range(30)], [k / 7 for k in range(30)]):
        table = pandas.DataFrame({"item": ids, "product_id": other})
        name = str(tmp_path / f"kinds.{ending}")
        table.to_csv(name, index=False) if ending == "csv" else table.to_parquet(name)
        call("fit out/log.csv -o out/m.npz -q --text-ids item", *FAST, "--item-features", name)
        model = RGALS.load(tmp_path / "m.npz")
        assert "1 of items" in model.info()["features"]  # a number, not a category for each


def test_what_does_not_go_with_features_is_refused_before_the_data_are_read(call):
    said = call("fit absent.npz -o out/m.npz --user-features u.csv --user-mean true", code=1).err
    assert said.startswith("rgals: error: user_mean=True")


def test_checkpoints_go_where_and_as_often_as_is_said(tmp_path, call, monkeypatch):
    call("fit in/data.npz -o out/m.npz -q --checkpoint out/kept --K 2 --n-iter 2 --seed 0")
    left = os.listdir(tmp_path / "kept")
    assert len(left) == 1
    done = RGALS.load(tmp_path / "m.npz")
    call("fit in/data.npz -o out/m.npz -q --checkpoint out/kept --K 2 --n-iter 3 --seed 0")
    assert RGALS.load(tmp_path / "m.npz").history_[:2] == done.history_  # seconds, too: it was resumed
    found = {}

    def fitted(self, X, **how):
        found.update(how)
        raise KeyboardInterrupt

    monkeypatch.setattr(RGALS, "fit", fitted)
    call("fit in/data.npz -o out/m.npz -q --checkpoint out/new --checkpoint-every 3", code=130)
    assert isinstance(found["checkpoint"], Checkpoint) and found["checkpoint"].every == 3


@pytest.mark.parametrize(
    "line",
    [
        "fit in/data.npz -o out/file --user-features out/file",
        "fit in/data.npz -o out/file --item-features out/file",
        "recommend in/model.npz -o out/file.csv --candidates out/file.csv",
        "recommend in/model.npz -o out/file.csv --exclude out/file.csv",
        "recommend in/model.npz -o out/file.csv --new-users out/file.csv",
    ],
)
def test_no_file_that_an_option_names_is_written_over(line, tmp_path, call):
    for name in ("file", "file.csv"):
        (tmp_path / name).write_text("mine", encoding="utf-8")
    assert "would replace another file" in call(line, code=1).err
    assert {path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == {"mine"}


def test_options_of_convert_arrive_at_convert(monkeypatch, call):
    found = caught(monkeypatch, fit, "convert")
    line = "convert in/a in/b -o out/store --memory 2GB --min-value 3 --delimiter ; --encoding latin-1"
    with pytest.raises(Seen):
        call(f"{line} --duplicates max --binarize --no-header --user-column who --item-column 2")
    assert [os.path.basename(path) for path in (*found["args"][0], found["args"][1])] == ["a", "b", "store"]
    assert found["columns"] == {"user": "who", "item": 2} and found["progress"] is False
    names = ("memory", "min_value", "delimiter", "encoding", "duplicates", "binarize", "header")
    assert [found[name] for name in names] == ["2GB", 3.0, ";", "latin-1", "max", True, False]


def test_options_of_tune_arrive_at_tune(marked, data, monkeypatch, call):
    found = caught(monkeypatch, fit, "tune")

    def asked(line):
        with pytest.raises(Seen):
            call(f"tune {line} -o out/m.npz")
        return found.pop("args")

    space = "--space reg=0.1:1 --space item_exponent=-0.2,0 --space half_life=none"
    losses, X, given = asked(f"in/data.npz --loss rg2,ials -K 4,8 {space} --budget 2 --jobs 1 --seed 3")
    assert [loss.name for loss in losses] == ["RG2", "IALS"] and X.nnz == data.nnz
    assert given == {"K": [4, 8], "reg": (0.1, 1), "item_exponent": [-0.2, 0], "half_life": None}
    assert (found["budget"], found["n_jobs"], found["random_state"]) == (2.0, 1, 3)
    assert "validation" not in found
    more = "--repeats 2 --n-iter 5 --time-limit 60 --metric recall@5 --values binary --journal out/j.jsonl"
    losses, X, given = asked(f"in/marked.npz --loss ials:alpha0=0.5,item_exponent=-0.4 {more}")
    assert [loss.get_params()["alpha0"] for loss in losses] == [0.5] and given == {}
    assert (found["search"].repeats, found["search"].n_iter, found["search"].time_limit) == (2, 5, 60)
    assert (found["metric"], found["values"]) == ("recall@5", "binary") and "j.jsonl" in found["journal"]
    train, validation = _shared.marked_parts(marked)
    assert (X.nnz, found.pop("validation").nnz) == (train.nnz, validation.nnz)
    _, X, _ = asked("in/marked.npz --protocol leave_last")
    assert found["protocol"] == "leave_last" and X.nnz == data.nnz and "validation" not in found


def test_tune_prints_as_many_settings_as_are_wanted_and_saves_the_best(tmp_path, call):
    found = call("tune in/data.npz -o out/m.npz -K 2 --n-iter 1 --budget 2 --show 1")
    assert len([line for line in found.out.splitlines() if line.startswith("| rg2")]) == 1
    assert int(found.err.partition(" fits; validation ndcg@10 ")[0].splitlines()[-1]) > 1
    assert RGALS.load(tmp_path / "m.npz").K == 2


def test_options_of_compare_arrive_where_they_belong(data, monkeypatch, call):
    split = caught(monkeypatch, compare, "prepare")
    line = "compare in/data.npz -o out/results --methods rg2,ease -K 4 --seeds 2 --metric mrr@10 --jobs 1"
    line += " --values raw --core 3 --seed 9 --max-trials 5 --time-limit 7 --validation-users 50 --tune-only"
    with pytest.raises(Seen):
        call(line)
    assert split.pop("args")[0].nnz == data.nnz and split == {"core": 3, "random_state": 9}
    monkeypatch.setattr(compare, "prepare", lambda data, **_: data)
    found = caught(monkeypatch, compare, "compare")
    with pytest.raises(Seen):
        call(line.replace("--core 3 --seed 9", ""))
    assert found["args"][1] == "rg2,ease" and found["out"].endswith("results") and found["name"] == "data"
    assert [found[k] for k in ("K", "seeds", "metric", "n_jobs", "values")] == [4, 2, "mrr@10", 1, "raw"]
    assert found["effort"] == Effort(max_trials=5, time_limit=7.0, validation_users=50, tune_only=True)


# ------------------------------------------------------------------------------- evaluate and recommend


def test_evaluate_judges_by_the_marked_test_part(data, marked, tmp_path, call):
    train = Interactions(marked.train, data.user_ids, data.item_ids)
    model = RGALS(**MODEL).fit(train)
    model.save(tmp_path / "m.npz")
    line = "evaluate out/m.npz in/marked.npz --metrics recall@7"
    found = json.loads(call(f"{line} --json").out)
    expected = evaluate(model, marked.train, marked.test, metrics="recall@7")
    counts = {"users": expected.n_users, "cold": 0, "interactions": marked.test.nnz}
    assert found == {**counts, "recall@7": pytest.approx(expected["recall@7"], abs=1e-12)}
    said = f"{marked.test.nnz:,} held-out interactions of {expected.n_users:,} users, 0 of whom"
    assert call(line).err.startswith(said) and call(f"{line} -q").err == ""


def test_the_ids_of_a_model_without_ids_are_its_rows_and_columns(data, tmp_path, call):
    shown, hidden = split_interactions(data.matrix, (0.7, 0.3), random_state=0)
    model = RGALS(**MODEL).fit(shown)
    model.save(tmp_path / "m.npz")
    lines = [f"{user},{item}" for user, item in zip(*hidden.nonzero(), strict=True)]
    (tmp_path / "x.csv").write_text("\n".join(["user,item", *lines[::-1], "7,4000"]), encoding="utf-8")
    said = call("evaluate out/m.npz out/x.csv --json")
    expected = evaluate(model, shown, hidden)["ndcg@10"]
    assert json.loads(said.out)["ndcg@10"] == pytest.approx(expected, abs=1e-12)
    assert "1 of " in said.err and "the model does not know" in said.err
    marks = np.zeros(data.nnz, np.int8)  # with times, of which the marked part has its own
    marks[::3] = 1
    ids = np.arange(60), np.arange(40)
    timed = Interactions(data.matrix, *ids, timestamp=np.arange(data.nnz), split=marks)
    timed.save(tmp_path / "timed.npz")
    RGALS(**MODEL).fit(timed.train).save(tmp_path / "m.npz")
    expected = evaluate(RGALS.load(tmp_path / "m.npz"), timed.train, timed.test)["ndcg@10"]
    found = json.loads(call("evaluate out/m.npz out/timed.npz --json").out)
    assert (found["ndcg@10"], found["interactions"]) == (pytest.approx(expected, abs=1e-12), timed.test.nnz)


def test_the_seed_draws_what_is_hidden_of_the_folded_in(data, folder, call):
    model = RGALS.load(folder / "model.npz")
    for seed in (0, 6):
        shown, hidden = split_interactions(data.matrix, (0.6, 0.4), random_state=seed)
        expected = evaluate((model.transform(shown), model.item_factors_), shown, hidden)["ndcg@10"]
        found = json.loads(call(f"evaluate in/model.npz in/data.npz --fold-in 0.4 --json --seed {seed}").out)
        assert found["ndcg@10"] == pytest.approx(expected, abs=1e-6)
        assert found["interactions"] == hidden.nnz


def test_folding_in_without_the_features_of_the_fit_is_said(data, tmp_path, call):
    features = np.eye(3)[np.arange(60) % 3]
    RGALS(**MODEL).fit(data, user_features=features).save(tmp_path / "m.npz")
    assert "features" in call("evaluate out/m.npz in/data.npz --fold-in 0.3 --json").err


@pytest.mark.parametrize("share", ["0", "1", "1.5"])
def test_a_share_that_is_none_is_refused_before_the_model_is_read(share, call):
    assert f"fold_in={float(share)}" in call(f"evaluate absent in/data.npz --fold-in {share}", code=1).err


def test_threads_of_evaluate_are_those_that_are_given(call, monkeypatch):
    found = caught(monkeypatch, saved, "evaluate")
    with pytest.raises(Seen):
        call("evaluate in/model.npz in/data.npz --jobs 1 --cold popular --metrics mrr@3,,hr")
    assert (found["n_jobs"], found["cold"], found["metrics"]) == (1, "popular", ("mrr@3", "hr"))


def test_lists_in_a_file_heed_every_filter(data, folder, tmp_path, call):
    model, items = RGALS.load(folder / "model.npz"), data.item_ids
    for name, some in (("some", items[:20]), ("none", items[5:9])):
        (tmp_path / f"{name}.txt").write_text("\n".join(some), encoding="utf-8")
    for options, how in (
        ("--candidates out/some.txt", {"candidates": Positions(np.arange(20))}),
        ("--exclude out/none.txt", {"exclude_items": Positions(np.arange(5, 9))}),
        ("--keep-seen", {"exclude": None}),
        ("--keep-seen --batch-size 7", {"exclude": None}),
    ):
        ids = model.recommend(Positions(np.arange(60)), 6, **how).ids
        call(f"recommend in/model.npz -n 6 -o out/x.csv -q {options}")
        shown = call(f"recommend in/model.npz -n 6 {options}").out
        for text in ((tmp_path / "x.csv").read_text(encoding="utf-8"), shown):
            assert [row["item"] for row in rows(text)] == items[ids[ids >= 0]].tolist()


def test_items_that_csv_cannot_hold_are_refused_before_a_line_is_printed(data, tmp_path, call):
    RGALS(**MODEL).fit(data.matrix, item_ids=[f"{k}\r" for k in range(40)]).save(tmp_path / "m.npz")
    found = call("recommend out/m.npz", code=1)
    assert found.out == "" and "item '0\\r' holds the end of a line of csv" in found.err


def test_lists_of_new_users_in_a_file_have_their_names(folder, data, tmp_path, call):
    lines = [f"guest,{data.item_ids[3]}", f"another,{data.item_ids[8]}", "stranger,unheard of"]
    (tmp_path / "new.csv").write_text("\n".join(["user,item", *lines]), encoding="utf-8")
    said = call("recommend in/model.npz --new-users out/new.csv -n 2 -o out/x.csv --popular").err
    found = rows((tmp_path / "x.csv").read_text(encoding="utf-8"))
    assert sorted(row["user"] for row in found) == sorted(["guest", "another", "stranger"] * 2)
    assert "1 of 3 interactions are of users or items the model does not know" in said
    best = Popularity().fit(data).recommend_ids(["nobody"], 2, unknown="popular").ids[0]
    assert [row["item"] for row in found if row["user"] == "stranger"] == best.tolist()


def test_an_interrupted_run_is_resumed_unless_it_shall_begin_anew(tmp_path, call, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    for option, said in (("", "resumed after 60 of 60 users"), ("--anew", "")):
        with monkeypatch.context() as patch:
            patch.setattr("rgals.scoring._tables.write", interrupted)
            call("recommend in/model.npz -n 2 -o out/x.csv --batch-size 16", code=130)
        assert (tmp_path / "x.csv.partial").exists()
        found = call(f"recommend in/model.npz -n 2 -o out/x.csv --batch-size 16 {option}").err
        assert said in found and ("resumed" in found) == bool(said)


def test_options_of_recommend_arrive_at_recommend_all(tmp_path, call, monkeypatch):
    found = caught(monkeypatch, saved, "recommend_all")
    with pytest.raises(Seen):
        call("recommend in/model.npz -n 3 -o out/x.csv --batch-size 7 --anew --popular")
    assert found["args"][1:] == (f"{tmp_path}/x.csv", 3)
    assert (found["batch_size"], found["resume"], found["cold"], found["verbose"]) == (7, False, "popular", 0)


@pytest.mark.parametrize(
    "options", ["--user a --users-from f", "--user a --new-users f", "--users-from f --new-users g"]
)
def test_users_are_chosen_in_one_way_only(options, call, capsys):
    with pytest.raises(SystemExit) as stop:
        call(f"recommend in/model.npz {options}")
    assert stop.value.code == 2 and "not allowed with argument" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------ demo


def test_demo_judges_by_the_marked_parts_and_shows_one_user(data, marked, call):
    user, n = "user-0007", 12
    row = data.users.index([user])[0]
    line = f"demo --data in/marked.npz --loss rgx --loss ials -n {n} -q --K 2 --n-iter 1 --seed 0"
    found = call(f"{line} --user {user}").out
    assert "dislike_weight" not in found  # which has no effect without dislikes
    counts = f"Fitted to {marked.train.nnz:,}, measured on {marked.test.nnz:,} held out (as the data mark it)"
    assert counts in found
    table = {line.split()[0]: line.split() for line in found.partition("\nUser ")[0].splitlines() if line}
    models = {"popularity": Popularity().fit(marked.train > 0)}
    for name in ("RGX", "IALS"):
        models[name] = RGALS(2, name.lower(), n_iter=1, random_state=0).fit(_shared.marked_parts(marked)[0])
    figures = {}
    for name, model in models.items():
        figures[name] = evaluate(model, marked.train, marked.test)["ndcg@10"]
        assert f"{figures[name]:.4f}" in table[name]
    best = "IALS"
    assert figures[best] > figures["RGX"]
    past = data.item_ids[marked.train[[row]].indices[:12]]
    assert f"User {user} had: {', '.join(past)}\n{best} recommends" in found
    ids, hidden = models[best].recommend(Positions([row]), n)[0][0], set(marked.test[[row]].indices)
    shown = [line.split() for line in found.splitlines()[-n:]]
    assert [line[1] for line in shown] == data.item_ids[ids].tolist()
    assert [line[3:] == ["held", "out"] for line in shown] == [k in hidden for k in ids]
    assert f"({len(hidden & set(ids))} of {len(hidden)} held-out items found)" in found
    assert hidden & set(ids)


@pytest.mark.parametrize("marks", [None, 2])
def test_demo_holds_out_a_fifth_where_no_test_part_is_marked(marks, data, tmp_path, call):
    split = None if marks is None else np.full(data.nnz, 0, np.int8)
    if split is not None:
        split[::5] = marks
    data.replace(split=split).save(tmp_path / "x.npz")
    found = call("demo --data out/x.npz --loss ials -q --K 2 --n-iter 1 --seed 0").out
    held = re.search(r"measured on (\d+) held out \(a random fifth of every user's\)", found)
    assert 0.15 < int(held[1]) / data.nnz < 0.25


def test_demo_shows_a_user_of_median_length_who_has_something_held_out():
    matrix = sp.csr_array(np.triu(np.ones((9, 9))))  # user 0 has nine items, user 8 one
    split = np.zeros(matrix.nnz, np.int8)
    for user in (0, 5, 7):
        split[matrix.indptr[user]] = 1
    data = Interactions(matrix, np.arange(9), np.arange(9), split=split)
    assert demo._typical_user(data) == 5  # 8, 3 and 1 items are left to those three
    assert demo._typical_user(data.replace(split=np.zeros(matrix.nnz, np.int8))) == 0


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("evaluate in/model.npz in/data.npz --seed 3", "--fold-in SHARE"),
        ("evaluate in/model.npz in/data.npz --fold-in 0.2 --cold popular", "--cold popular"),
        ("fit in/data.npz -o out/m.npz --patience 2", "--early-stopping"),
        ("fit in/data.npz -o out/m.npz --metric recall@5", "--early-stopping"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(line, advice, call):
    out, err = call(line, code=1)
    assert advice in err and err.count("\n") == 1 and out == ""


def test_a_protocol_that_divides_marked_data_anew_says_so(marked, folder, call):
    """`rgals tune` fitted marked test interactions without a word."""
    said = f"{np.count_nonzero(marked.split)} interactions marked as test or validation are divided anew"
    how = "--budget 0.1 --n-iter 1 -K 2 -q --protocol"
    assert said in call(f"tune in/marked.npz -o out/m.npz {how}", "user 80/10/10").err
    assert said not in call(f"tune in/marked.npz -o out/m.npz {how}", "given split").err
    with pytest.warns(UserWarning, match=said):
        Protocol().apply(marked)
