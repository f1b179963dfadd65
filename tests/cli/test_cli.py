"""The command line does what it prints, writes whole files, and says every error on one line."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from rgals import IALS, RGALS, Positions
from rgals.baselines import EASE, Popularity
from rgals.cli import COMMANDS, _shared, main
from rgals.datasets import Interactions, make_implicit, read_interactions
from rgals.matrix import convert, open_matrix
from rgals.metrics import evaluate, judge, ndcg
from rgals.model_selection import split_interactions
from rgals.sgd import SGDRanker

FAST = ("--K", "8", "--n-iter", "4", "--seed", "0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with ratings.csv, a model fitted to four fifths of it, and the held-out fifth."""
    folder = tmp_path_factory.mktemp("cli")
    data = make_implicit(120, 80, n_clusters=4, mean_interactions=15, random_state=1)
    pairs = data.matrix.tocoo()
    with (folder / "ratings.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["userId", "movieId", "rating"])
        for user, item in zip(*pairs.coords, strict=True):
            table.writerow([data.user_ids[user], f"{data.item_ids[item]}, the film", 1 + (user + item) % 5])
    assert (
        main(
            [
                "fit",
                str(folder / "ratings.csv"),
                "-o",
                str(folder / "model.npz"),
                *FAST,
                "--hold-out",
                "0.2",
                "--held-out",
                str(folder / "test.npz"),
                "-q",
            ]
        )
        == 0
    )
    return folder


def error_of(capsys, *arguments) -> str:
    """The one line that a failing command prints."""
    assert main([str(argument) for argument in arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    last = err.splitlines()[-1]
    assert last.startswith("rgals: error: ")
    assert "Traceback" not in err
    return last.removeprefix("rgals: error: ")


def rows_of(path, delimiter=",") -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


# ------------------------------------------------------------------------------------------------- fit


def test_fit_equals_the_library(folder, tmp_path):
    arguments = ["--loss", "ials:alpha0=0.2", "--reg", "0.02", "--min-value", "3", *FAST]
    assert main(["fit", str(folder / "ratings.csv"), "-o", str(tmp_path / "m"), "-q", *arguments]) == 0
    assert os.listdir(tmp_path) == ["m"]
    data = read_interactions(folder / "ratings.csv", min_value=3)
    expected = RGALS(K=8, n_iter=4, loss=IALS(alpha0=0.2), reg=0.02, random_state=0).fit(data)
    model = RGALS.load(tmp_path / "m")
    np.testing.assert_array_equal(model.item_factors_, expected.item_factors_)
    np.testing.assert_array_equal(model.item_ids_, data.item_ids)
    assert model.get_params()["loss__alpha0"] == 0.2


def test_convert_makes_a_store_that_fit_takes(folder, tmp_path, capsys):
    pytest.importorskip("pyarrow")
    ratings, store = str(folder / "ratings.csv"), str(tmp_path / "data.rgals")
    assert main(["convert", ratings, "-o", store, "--min-value", "3", "--memory", "900MB"]) == 0
    assert "120 users" in capsys.readouterr().err
    for data, name, more in ((ratings, "a", ["--min-value", "3"]), (store, "b", [])):
        assert main(["fit", data, "-o", str(tmp_path / name), "-q", *more, *FAST]) == 0
    a, b = (RGALS.load(tmp_path / name) for name in "ab")
    np.testing.assert_array_equal(a.user_factors_, b.user_factors_)
    np.testing.assert_array_equal(a.user_ids_, b.user_ids_)
    assert main(["convert", ratings, "-o", store]) == 1
    assert "exists" in capsys.readouterr().err


def test_a_store_is_as_it_was_converted(folder, tmp_path, capsys):
    pytest.importorskip("pyarrow")
    store, model = tmp_path / "data.rgals", folder / "model.npz"
    assert main(["convert", str(folder / "ratings.csv"), "-o", str(store), "-q"]) == 0
    for option in (("--min-value", "4"), ("--duplicates", "max"), ("--no-header",)):
        said = error_of(capsys, "fit", store, "-o", tmp_path / "m.npz", *option)
        assert "options of reading are given to `rgals convert`" in said
    for command in (("evaluate", model, store), ("tune", store, "-o", tmp_path / "m.npz")):
        assert "only `rgals fit` takes a store" in error_of(capsys, *command)
    assert not (tmp_path / "m.npz").exists()


def test_no_command_writes_over_what_it_reads_or_writes_else(folder, tmp_path, capsys):
    ratings, model = tmp_path / "ratings.npz", tmp_path / "model.npz"
    read_interactions(folder / "ratings.csv").save(ratings)
    model.write_bytes((folder / "model.npz").read_bytes())
    (tmp_path / "link.npz").symlink_to(ratings)
    (users := tmp_path / "users.csv").write_text(RGALS.load(model).user_ids_[0], encoding="utf-8")
    before = ratings.read_bytes(), model.read_bytes(), users.read_bytes()
    for command in (
        ("fit", ratings, "-o", tmp_path / "link.npz"),
        ("fit", ratings, "-o", tmp_path / "x.npz", "--hold-out", "0.2", "--held-out", ratings),
        ("fit", ratings, "-o", tmp_path / "x.npz", "--hold-out", "0.2", "--held-out", tmp_path / "x.npz"),
        ("recommend", model, "-o", model),
        ("recommend", model, "--users-from", users, "-o", users),
        ("tune", ratings, "-o", tmp_path / "x.npz", "--journal", ratings),
    ):
        assert "would replace another file" in error_of(capsys, *command)
    assert before == (ratings.read_bytes(), model.read_bytes(), users.read_bytes())
    assert not (tmp_path / "x.npz").exists()


def test_hold_out_divides_the_data(folder):
    data = read_interactions(folder / "ratings.csv")
    seen, held_out = RGALS.load(folder / "model.npz").seen_, read_interactions(folder / "test.npz")
    assert seen.nnz + held_out.nnz == data.nnz
    assert 0.1 < held_out.nnz / data.nnz < 0.3
    held = sp.coo_array(held_out.matrix)
    rows = data.users.index(held_out.user_ids)[held.coords[0]]
    cols = data.items.index(held_out.item_ids)[held.coords[1]]
    assert not seen[rows, cols].sum()
    assert (data.matrix[rows, cols] == held.data).all()


def test_fit_takes_the_training_part_of_split_data(folder, tmp_path, capsys):
    data = read_interactions(folder / "ratings.csv")
    split = (np.arange(data.nnz) % 4 == 0).astype(np.int8)
    data.replace(split=split).save(tmp_path / "split.npz")
    for extra, n in (([], data.nnz - split.sum()), (["--all"], data.nnz)):
        assert main(["fit", str(tmp_path / "split.npz"), "-o", str(tmp_path / "m"), *FAST, *extra]) == 0
        assert RGALS.load(tmp_path / "m").seen_.nnz == n
    assert "comes with a split" in capsys.readouterr().err


def test_fit_reports_the_fit(folder, tmp_path, capsys):
    assert main(["fit", str(folder / "ratings.csv"), "-o", str(tmp_path / "m"), *FAST]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "120 users" in err
    assert "4 iterations" in err


# -------------------------------------------------------------------------------------------- evaluate


def test_evaluate_equals_the_library(folder, capsys):
    model = RGALS.load(folder / "model.npz")
    test = read_interactions(folder / "test.npz")
    pairs = sp.coo_array(test.matrix)
    users = {label: k for k, label in enumerate(model.user_ids_)}
    items = {label: k for k, label in enumerate(model.item_ids_)}
    rows = [users[test.user_ids[k]] for k in pairs.coords[0]]
    cols = [items[test.item_ids[k]] for k in pairs.coords[1]]
    truth = sp.csr_array((pairs.data, (rows, cols)), shape=model.seen_.shape)
    expected = evaluate(model, model.seen_, truth, metrics=("ndcg@5", "recall@10"))

    command = [
        "evaluate",
        str(folder / "model.npz"),
        str(folder / "test.npz"),
        "--metrics",
        "ndcg@5, recall@10",
    ]
    assert main([*command, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["ndcg@5"] == pytest.approx(float(expected["ndcg@5"]), abs=1e-12)
    assert figures["recall@10"] == pytest.approx(float(expected["recall@10"]), abs=1e-12)
    assert figures["ndcg@5"] > 0
    assert figures["interactions"] == test.nnz
    assert main(command) == 0
    assert f"{figures['ndcg@5']:.4f}" in capsys.readouterr().out


def test_a_figure_without_users_is_null_in_json(tmp_path, capsys):
    """NaN is no JSON: jq and most parsers refuse the line."""
    pairs = [*product("abc", range(3)), ("c", 5)]
    (tmp_path / "x.csv").write_text("user,item\n" + "".join(f"{user},{item}\n" for user, item in pairs))
    (tmp_path / "y.csv").write_text("user,item,rating\na,0,5\na,5,1\nb,5,1\n")
    fit = ["fit", "x.csv", "-o", "m.npz", *FAST, "-q"]
    assert main([str(tmp_path / word) if "." in word else word for word in fit]) == 0
    words = ["--dislike-below", "3", "--metrics", "ndcg@2,dislike_rate@2", "--json"]
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "m.npz"), str(tmp_path / "y.csv"), *words]) == 0

    def refuse(literal):
        raise AssertionError(literal)

    figures = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert figures["ndcg@2"] is None and 0 <= figures["dislike_rate@2"] <= 1


def test_evaluate_leaves_out_what_was_fitted_and_counts_what_is_unknown_as_missed(folder, tmp_path, capsys):
    model, test = RGALS.load(folder / "model.npz"), rows_of_npz(folder / "test.npz")
    fitted = sp.coo_array(model.seen_)
    known = [[model.user_ids_[u], model.item_ids_[i]] for u, i in zip(*fitted.coords, strict=True)][:7]
    strange = [["nobody", test[0][1]], [test[0][0], "nothing"]]
    with (tmp_path / "all.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["user", "item"], *test, *known, *strange])
    command = ["evaluate", str(folder / "model.npz")]
    assert main([*command, str(tmp_path / "all.csv"), "--json"]) == 0
    with_them = capsys.readouterr()
    assert main([*command, str(folder / "test.npz"), "--json"]) == 0
    ours, without = json.loads(with_them.out), json.loads(capsys.readouterr().out)
    assert ours["users"] == without["users"] + 1 and ours["cold"] == without["cold"] + 1
    assert ours["interactions"] == without["interactions"] + 2
    assert 0 < ours["recall@20"] < without["recall@20"]
    assert "1 users and 1 items that the model does not know" in with_them.err
    assert "7 test interactions are also in train" in with_them.err
    assert main([*command, str(tmp_path / "all.csv"), "--json", "--cold", "popular"]) == 0
    popular = json.loads(capsys.readouterr().out)
    assert popular["cold"] == ours["cold"] and popular["recall@20"] >= ours["recall@20"]
    with (tmp_path / "strange.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["user", "item"], ["nobody", "nothing"]])
    assert main([*command, str(tmp_path / "strange.csv")]) == 1
    assert "none of its items, for example 'nothing', is known" in capsys.readouterr().err


def rows_of_npz(path) -> list[list[str]]:
    data = read_interactions(path)
    pairs = sp.coo_array(data.matrix)
    return [[data.user_ids[u], data.item_ids[i]] for u, i in zip(*pairs.coords, strict=True)]


def test_evaluate_folds_strangers_in(folder, tmp_path, capsys):
    rows = rows_of(folder / "ratings.csv")
    with (tmp_path / "new.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["user", "item"], *([f"new {r['userId']}", r["movieId"]] for r in rows)])
    assert (
        main(["evaluate", str(folder / "model.npz"), str(tmp_path / "new.csv"), "--fold-in", "0.3", "--json"])
        == 0
    )
    figures = json.loads(capsys.readouterr().out)
    assert figures["users"] > 100
    assert figures["ndcg@10"] > 0.05


def test_evaluate_folds_times_in(tmp_path, capsys):
    """A model with a half-life weighs what is shown of its users by age; it was refused as without times."""
    data = make_implicit(60, 40, n_clusters=4, mean_interactions=12, random_state=1)
    times = np.random.default_rng(0).integers(0, 1000, data.nnz)
    data = Interactions(data.matrix, data.user_ids, data.item_ids, times)
    data.save(tmp_path / "data.npz")
    model = RGALS(K=8, n_iter=4, half_life=100, random_state=0).fit(data)
    model.save(tmp_path / "model.npz")
    command = ["evaluate", tmp_path / "model.npz", tmp_path / "data.npz", "--fold-in", "0.3", "--json"]
    assert main([*map(str, command)]) == 0
    shown, hidden = split_interactions(data, (0.7, 0.3), random_state=0)
    expected = evaluate((model.transform(shown), model.item_factors_), shown, hidden)
    assert json.loads(capsys.readouterr().out)["ndcg@10"] == pytest.approx(expected["ndcg@10"], abs=1e-6)


@pytest.mark.parametrize("kind", [Popularity, EASE, SGDRanker], ids=lambda kind: kind.__name__)
def test_evaluate_takes_a_model_of_any_kind(kind, folder, tmp_path, capsys):
    fitted = RGALS.load(folder / "model.npz")
    train = Interactions(fitted.seen_, fitted.user_ids_, fitted.item_ids_)
    more = {"K": 4, "n_epochs": 2, "random_state": 0} if kind is SGDRanker else {}
    model = kind(**more).fit(train)
    model.save(tmp_path / "model.npz")
    command = ["evaluate", tmp_path / "model.npz", folder / "test.npz", "--json", "-q"]
    assert main([*map(str, command)]) == 0
    figures = json.loads(capsys.readouterr().out)
    test = read_interactions(folder / "test.npz")
    assert figures["ndcg@10"] == pytest.approx(evaluate(model, train, test)["ndcg@10"], abs=1e-12)
    if kind is SGDRanker:
        assert "no factors of new users" in error_of(capsys, *command, "--fold-in", "0.3")
        return
    assert main([*map(str, command), "--fold-in", "0.3"]) == 0
    figures = json.loads(capsys.readouterr().out)
    where = fitted._snapshot.items.index(test.item_ids)
    rows = sp.csr_array((test.n_users, len(fitted.item_ids_)))
    pairs = sp.coo_array(test.matrix)
    rows = sp.csr_array((pairs.data, (pairs.coords[0], where[pairs.coords[1]])), shape=rows.shape)
    shown, hidden = split_interactions(rows, (0.7, 0.3), random_state=0)
    lists = model.recommend_new(Interactions(shown, np.arange(test.n_users), fitted.item_ids_), 10)[0]
    columns = np.where(lists == None, -1, 0)  # noqa: E711
    columns[columns == 0] = fitted._snapshot.items.index(lists[columns == 0].astype(str))
    judged = judge(columns, hidden)
    told = ndcg(judged, k=10)[np.diff(hidden.indptr) > 0]
    assert figures["ndcg@10"] == pytest.approx(told.mean(), abs=1e-12) and told.any()


def test_a_damaged_baseline_is_called_damaged(tmp_path, capsys):
    """The error was "not a rgals-model file but 'rgals-popularity'"."""
    path = tmp_path / "model.npz"
    Popularity().fit(make_implicit(30, 20, random_state=0)).save(path)
    content = bytearray(path.read_bytes())
    content[content.index(b"item_factors.npy") + 200] ^= 1
    path.write_bytes(content)
    assert "damaged or not a rgals-popularity file" in error_of(capsys, "info", path)


# ------------------------------------------------------------------------------------------- recommend


@pytest.mark.parametrize("kind", [Popularity, EASE, SGDRanker], ids=lambda kind: kind.__name__)
def test_recommend_takes_a_model_of_any_kind(kind, folder, tmp_path, capsys):
    fitted = RGALS.load(folder / "model.npz")
    more = {"K": 4, "n_epochs": 2, "random_state": 0} if kind is SGDRanker else {}
    model = kind(**more).fit(Interactions(fitted.seen_, fitted.user_ids_, fitted.item_ids_))
    model.save(tmp_path / "model.npz")
    user, item = (str(labels[0]) for labels in (model.user_ids_, model.item_ids_))
    command = ["recommend", str(tmp_path / "model.npz"), "-n", "3"]
    assert main([*command, "--user", user]) == 0
    rows = [row["item"] for row in csv.DictReader(capsys.readouterr().out.splitlines())]
    assert rows == [str(name) for name in model.recommend([model.user_ids_[0]], n=3)[0][0]]
    (tmp_path / "new.csv").write_text(f'user,item\nnew,"{item}"\n')
    command += ["--new-users", str(tmp_path / "new.csv")]
    if kind is SGDRanker:
        assert "no transform" in error_of(capsys, *command)
        return
    assert main(command) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [row["user"] for row in rows] == ["new"] * 3 and item not in [row["item"] for row in rows]


def test_recommend_equals_the_library(folder, tmp_path, capsys):
    model = RGALS.load(folder / "model.npz")
    ids, scores = model.recommend(Positions(np.arange(120)), n=7)
    for name, delimiter in (("out.csv", ","), ("out.tsv", "\t")):
        path = tmp_path / name
        assert main(["recommend", str(folder / "model.npz"), "-n", "7", "-o", str(path)]) == 0
        rows = rows_of(path, delimiter)
        assert [row["item"] for row in rows] == model.item_ids_[ids[ids >= 0]].tolist()
        assert [int(row["rank"]) for row in rows] == [k + 1 for _, k in np.argwhere(ids >= 0).tolist()]
        assert [row["user"] for row in rows] == model.user_ids_[np.argwhere(ids >= 0)[:, 0]].tolist()
        np.testing.assert_allclose([float(row["score"]) for row in rows], scores[ids >= 0], rtol=1e-5)
    assert sorted(os.listdir(tmp_path)) == ["out.csv", "out.tsv"]
    assert "840 recommendations for 120 users" in capsys.readouterr().err


@pytest.mark.parametrize("size", ["0", "-5"])
def test_recommend_needs_a_block_of_users(folder, tmp_path, capsys, size):
    for output in ("-", str(tmp_path / "out.csv")):
        arguments = ["recommend", str(folder / "model.npz"), "--batch-size", size, "-o", output]
        assert "batch_size=" in error_of(capsys, *arguments)


def test_recommend_filters(folder, tmp_path, capsys):
    model = RGALS.load(folder / "model.npz")
    user, allowed = str(model.user_ids_[3]), model.item_ids_[:30].tolist()
    (tmp_path / "allowed.txt").write_text("\n".join(allowed), encoding="utf-8")
    (tmp_path / "excluded.txt").write_text("\n".join(allowed[:10]) + "\n\n", encoding="utf-8")
    (tmp_path / "users.txt").write_text("\ufeff" + user, encoding="utf-8")  # as some editors write it
    command = [
        "recommend",
        str(folder / "model.npz"),
        "-n",
        "80",
        "--candidates",
        str(tmp_path / "allowed.txt"),
    ]

    def items(*more):
        assert main([*command, *more]) == 0
        rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
        assert {row["user"] for row in rows} == {user}
        return {row["item"] for row in rows}

    had = set(model.item_ids_[model.seen_[[3]].indices].tolist())
    assert had & set(allowed)
    assert items("--user", user) == set(allowed) - had
    assert items("--users-from", str(tmp_path / "users.txt"), "--keep-seen") == set(allowed)
    excluded = items("--user", user, "--keep-seen", "--exclude", str(tmp_path / "excluded.txt"))
    assert excluded == set(allowed[10:])


def test_recommend_to_newcomers(folder, tmp_path, capsys):
    model = RGALS.load(folder / "model.npz")
    had = model.item_ids_[model.seen_[[5]].indices].tolist()
    with (tmp_path / "new.csv").open("w", newline="", encoding="utf-8") as file:
        values = model.seen_[[5]].data.tolist()
        rows = [["guest", item, value] for item, value in zip(had, values, strict=True)]
        csv.writer(file).writerows([["user", "item", "rating"], *rows])
    assert (
        main(["recommend", str(folder / "model.npz"), "--new-users", str(tmp_path / "new.csv"), "-n", "5"])
        == 0
    )
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert {row["user"] for row in rows} == {"guest"}
    # The same history as user 5 of the model, so the same list.
    assert [row["item"] for row in rows] == model.item_ids_[
        model.recommend(Positions([5]), n=5)[0][0]
    ].tolist()


def test_options_of_reading_are_not_taken_in_vain(folder, tmp_path, capsys):
    model, given = folder / "model.npz", ("--user-column", "who", "--no-header", "--delimiter", ",")
    for command, needed in (
        (("recommend", model, "-o", tmp_path / "x.csv"), "--new-users"),
        (("demo",), "--data"),
    ):
        said = error_of(capsys, *command, *given)
        assert said.startswith("--user-column, --delimiter, --header: options of reading have no effect")
        assert said.endswith(f"without {needed}")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("typed", [r"\t", "\t"])
def test_a_tab_can_be_typed(tmp_path, typed):
    """Found from the lines, the delimiter would be a comma."""
    (tmp_path / "x.txt").write_text("a,1\tb,1\na,2\tb,2\nc,2\tb,2\n")
    how = ["--delimiter", typed, "-q"]
    fit = ["fit", str(tmp_path / "x.txt"), "-o", str(tmp_path / "m"), "--K", "1", "--n-iter", "1", *how]
    assert main(fit) == 0
    assert RGALS.load(tmp_path / "m").user_ids_.tolist() == ["a,1", "a,2", "c,2"]
    if importlib.util.find_spec("pyarrow"):
        assert main(["convert", str(tmp_path / "x.txt"), "-o", str(tmp_path / "s"), *how]) == 0
        assert open_matrix(tmp_path / "s").item_ids.tolist() == ["b,1", "b,2"]


# ------------------------------------------------------------------------------------------------ demo


def test_demo_prints_every_loss_and_one_user(capsys):
    assert main(["demo", *FAST]) == 0
    out, err = capsys.readouterr()
    table = {line.split()[0]: line.split()[-4:] for line in out.splitlines() if "0." in line}
    assert {"popularity", "RG2", "RGX", "IALS", "WRMF"} <= set(table)
    best = max(float(table[name][0]) for name in ("RG2", "RGX", "IALS", "WRMF"))
    assert best > float(table["popularity"][0])
    assert "recommends" in out
    assert "Fitting" in err
    assert "Fitting" not in out


@pytest.mark.parametrize(("option", "said"), [(["-n", "0"], "n=0"), (["--user", "nobody"], "'nobody'")])
def test_demo_refuses_what_it_cannot_show_before_it_fits(option, said, capsys):
    """Lengths and unknown users were refused behind the table of all fits."""
    assert main(["demo", *option, *FAST]) == 1
    told = capsys.readouterr()
    assert told.out == "" and said in told.err and "Fitting" not in told.err


def test_demo_on_a_file_without_anything_to_hold_out_says_so_alone(tmp_path, capsys):
    """Warnings of numpy about the mean of nothing came first."""
    path = tmp_path / "single.csv"
    path.write_text("user,item\n" + "".join(f"u{k},i{k % 9}\n" for k in range(30)))
    assert main(["demo", "--data", str(path), "-q", *FAST]) == 1
    told = capsys.readouterr().err
    assert "holds no interaction" in told and "warning" not in told


def test_demo_on_a_file(folder, capsys):
    user = rows_of(folder / "ratings.csv")[0]["userId"]
    arguments = [
        "--data",
        str(folder / "ratings.csv"),
        "--loss",
        "rg2:alpha=0.1",
        "--user",
        user,
        "-n",
        "3",
        "-q",
    ]
    assert main(["demo", *arguments, *FAST]) == 0
    out, err = capsys.readouterr()
    assert re.search(r"^RG2 +alpha=0.1, reg=0\.\d+", out, re.M)
    assert f"User {user} had" in out
    assert err.startswith("rgals: warning: values look like ratings") and err.count("\n") == 1


def test_demo_takes_options_that_its_first_small_fit_lacks_something_for(tmp_path, capsys):
    data = make_implicit(60, 40, n_clusters=4, mean_interactions=12, random_state=1)
    pairs, path = data.matrix.tocoo(), tmp_path / "rated.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = zip(*pairs.coords, strict=True)
        table = [["user", "item", "rating", "time"], *([u, i, 1 + (u + i) % 5, 10 * u + i] for u, i in rows)]
        csv.writer(file).writerows(table)
    command = ["demo", "--data", str(path), "-q", "--K", "8", "--seed", "0", "--loss"]
    for options in (
        ["ials", "--half-life", "100"],
        ["ials", "--hard-negatives", "1", "--n-iter", "6"],
        ["ials:dislikes=true", "--dislike-below", "2"],
    ):
        assert main([*command, *options]) == 0, capsys.readouterr().err
        assert re.search(r"^IALS .*0\.\d+$", capsys.readouterr().out, re.M)


# --------------------------------------------------------------------------------------------- compare


@pytest.mark.few(0)
def test_compare_writes_its_report(folder, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    out = tmp_path / "comparison"
    small = ["--methods", "rg2,ials", "-K", "4", "--seeds", "1", "--max-trials", "1", "--time-limit", "5"]
    assert main(["compare", str(folder / "ratings.csv"), "-o", str(out), *small]) == 0
    table = capsys.readouterr().out
    assert "RG2" in table
    assert "iALS" in table
    assert {"results.jsonl", "convergence.png", "report.html"} <= set(os.listdir(out))
    assert "'no-such'" in error_of(
        capsys, "compare", folder / "ratings.csv", "-o", out, "--methods", "no-such"
    )


# ---------------------------------------------------------------------------------------------- errors


def test_errors_are_one_line(folder, tmp_path, capsys):
    (tmp_path / "bad.csv").write_text("user,item,rating\na,b,1\na,c,x\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "binary.csv").write_bytes(bytes(range(256)) * 10)
    (tmp_path / "broken.npz").write_bytes((folder / "model.npz").read_bytes()[:-100])
    model, ratings, out = folder / "model.npz", folder / "ratings.csv", tmp_path / "out"
    fit = ("fit", ratings, "-o", out)
    assert "absent.csv: No such file" in error_of(capsys, "fit", "absent.csv", "-o", out)
    assert "bad.csv, line 3" in error_of(capsys, "fit", tmp_path / "bad.csv", "-o", out)
    assert "empty.csv" in error_of(capsys, "fit", tmp_path / "empty.csv", "-o", out)
    assert "binary.csv" in error_of(capsys, "fit", tmp_path / "binary.csv", "-o", out)
    assert "K=0" in error_of(capsys, *fit, "--K", "0")
    assert "'rg3'" in error_of(capsys, *fit, "--loss", "rg3")
    large = ("fit", tmp_path / "not-read.csv", "-o", out)  # options are checked before the data are read
    assert "n_iter=0" in error_of(capsys, *large, "--n-iter", "0")
    assert "reg='abc'" in error_of(capsys, *large, "--reg", "abc")
    assert "alpha" in error_of(capsys, *fit, "--loss", "rg2:alfa=1")
    assert "alpha=-1" in error_of(capsys, *fit, "--loss", "rg2:alpha=-1")
    assert "'gpu3'" in error_of(capsys, *fit, "--solver", "gpu3")
    assert "stars" in error_of(capsys, *fit, "--value-column", "stars")
    assert "hold_out=1.5" in error_of(capsys, *fit, "--hold-out", "1.5", "--held-out", tmp_path / "t.npz")
    assert "--held-out" in error_of(capsys, *fit, "--hold-out", "0.5")
    assert ".npz" in error_of(capsys, *fit, "--hold-out", "0.5", "--held-out", tmp_path / "t.csv")
    assert "No such folder" in error_of(capsys, "fit", ratings, "-o", tmp_path / "no" / "m")
    assert "is a folder" in error_of(capsys, "fit", ratings, "-o", tmp_path)
    assert f"{os.devnull} is no regular file" in error_of(capsys, "fit", ratings, "-o", os.devnull)
    assert "--checkpoint FOLDER" in error_of(capsys, *fit, "--checkpoint-every", "2")
    no = tmp_path / "no" / "folder"
    assert f"{no}: No such folder; make it" in error_of(capsys, "convert", ratings, "-o", no / "data.rgals")
    assert "broken.npz" in error_of(capsys, "recommend", tmp_path / "broken.npz", "-o", tmp_path / "o.csv")
    assert "not an npz file" in error_of(capsys, "evaluate", ratings, ratings)
    assert "'nobody'" in error_of(capsys, "recommend", model, "--user", "nobody", "-o", tmp_path / "o.csv")
    assert "n=0" in error_of(capsys, "recommend", model, "-n", "0", "-o", tmp_path / "o.csv")
    assert "ndgc" in error_of(capsys, "evaluate", model, folder / "test.npz", "--metrics", "ndgc@10")
    assert not out.exists()
    assert sorted(os.listdir(tmp_path)) == ["bad.csv", "binary.csv", "broken.npz", "empty.csv"]


def test_a_column_is_left_out_by_none(tmp_path, capsys):
    log, out = tmp_path / "clock.csv", tmp_path / "c.npz"
    log.write_text("user,item,score,time\na,x,high,12:16\nb,y,low,13:00\nb,x,low,13:00\n")
    assert "line 2" in error_of(capsys, "fit", log, "-o", out)
    left_out = ["--value-column", "none", "--timestamp-column", "none"]
    assert main(["fit", str(log), "-o", str(out), *FAST, *left_out, "-q"]) == 0
    assert not capsys.readouterr().err and out.exists()


def test_a_failure_leaves_the_old_output(folder, tmp_path, capsys):
    out = tmp_path / "out.csv"
    out.write_text("old")
    (tmp_path / "users.txt").write_text("nobody")
    error_of(capsys, "recommend", folder / "model.npz", "--users-from", tmp_path / "users.txt", "-o", out)
    error_of(capsys, "fit", folder / "ratings.csv", "--K", "-1", "-o", out)
    assert out.read_text() == "old"


def test_debug_shows_the_traceback(capsys):
    assert main(["fit", "absent.csv", "-o", "model.npz", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [[], ["dance"], ["fit"], ["fit", "x.csv"], ["fit", "x", "-o", "y", "--K", "many"]]
)
def test_wrong_usage_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "usage: rgals" in capsys.readouterr().err


def test_what_a_command_does_not_know_is_answered_with_its_own_usage(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["recommend", "model.npz", "--user", "ann", "bob"])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert "usage: rgals recommend" in said and "[--user ID" in said
    assert said.endswith("rgals recommend: error: unrecognized arguments: bob\n")


@pytest.mark.parametrize("typed", [["--users", "ann"], ["--users=ann"], ["--usr", "ann"]])
def test_the_beginning_of_an_option_is_not_taken_for_another(typed, capsys):
    """--users is not --users-from, whose file would be missing: those that may be meant are named."""
    with pytest.raises(SystemExit) as stop:
        main(["recommend", "model.npz", *typed])
    assert stop.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"rgals recommend: error: unrecognized arguments: {' '.join(typed)}; did you mean")
    assert "--user" in re.split(r" |\?", said.partition("did you mean ")[2])


def test_help_names_every_solver(capsys):
    with pytest.raises(SystemExit):
        main(["fit", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    solvers = re.search(r"solver : \{(.*?)\}", RGALS.__doc__)[1]
    assert all(name in said for name in solvers.replace('"', "").split(", "))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples(name, capsys):
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    assert f"  rgals {name}" in capsys.readouterr().out


def test_without_a_command_all_are_shown(capsys):
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 2
    shown = capsys.readouterr().err
    assert all(f"  {name}" in shown for name in COMMANDS)


def test_a_bug_is_not_hidden(monkeypatch):
    """Only errors that say what is wrong with the input are shortened to a line."""

    def broken(*args, **kwargs):
        raise ZeroDivisionError

    monkeypatch.setattr(_shared, "read_data", broken)
    with pytest.raises(ZeroDivisionError):
        main(["fit", "x.csv", "-o", "y"])


def test_interrupted_exits_with_130(monkeypatch, capsys):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(_shared, "read_data", interrupted)
    assert main(["fit", "x.csv", "-o", "y"]) == 130
    assert capsys.readouterr().err.strip() == "rgals: interrupted"


WHILE_IMPORTED = """
import sys

class Interrupted:
    def find_spec(name, *_):
        if name == "rgals.cli.about":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted)
from {} import {} as run
sys.exit(run())
"""


def test_interrupted_while_it_is_imported_is_no_traceback():
    """Ctrl-C in the first second or two showed the lines of numba's and scipy's modules."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    script = tomllib.loads(text)["project"]["scripts"]["rgals"]
    command = [sys.executable, "-c", WHILE_IMPORTED.format(*script.split(":"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "rgals: interrupted\n")


@pytest.mark.few(0)
def test_a_closed_pipe_is_no_traceback(folder):
    command = [sys.executable, "-m", "rgals", "recommend", str(folder / "model.npz"), "-n", "80"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "user,item,rank,score\n"
        process.stdout.close()
        err = process.stderr.read()
        process.wait(timeout=60)
    assert process.returncode != -signal.SIGABRT
    assert "Traceback" not in err
    assert "Exception ignored" not in err


EACH = """
import os, sys
import rgals.datasets.read, rgals.estimator, rgals.model.file  # once for both
from rgals.cli import main
folder, out = sys.argv[1:]
for words in (f"recommend {folder}/model.npz -n 1", f"fit {folder}/ratings.csv -o {out} --K 2"):
    if (child := os.fork()) == 0:  # which starts with the streams as they are
        sys.exit(main(words.split()))
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.few(0)
@pytest.mark.skipif(os.name == "nt", reason="a shell of POSIX closes the streams")
@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_a_closed_stream_is_no_traceback(closed, folder, tmp_path):
    """Daemons close them; what is for one stream must not go to the other."""
    command = shlex.join([sys.executable, "-c", EACH, os.fspath(folder), os.fspath(tmp_path / "m")])
    done = subprocess.run(f"{command} {closed}", shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Traceback" not in done.stderr
    rows = list(csv.reader(done.stdout.splitlines()))
    assert all(len(row) == 4 for row in rows) and len(rows) == (121 if closed == "2>&-" else 0)
    assert RGALS.load(tmp_path / "m").user_factors_.shape == (120, 2)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_a_name_that_is_no_text_is_printed(folder, tmp_path, capfdbinary):
    path = os.fsencode(tmp_path) + b"/r\xff.csv"
    with open(path, "wb") as file:
        file.write((folder / "ratings.csv").read_bytes())
    assert main(["demo", "--data", os.fsdecode(path), "--loss", "ials", *FAST, "-q"]) == 0
    assert b"r\\udcff.csv: 120 users" in capfdbinary.readouterr().out


def test_ids_that_csv_cannot_hold_are_refused(tmp_path, capsys):
    for odd, why in (("a\rb", "end of a line of csv"), ("\ud800", "UTF-8")):
        data = Interactions(sp.csr_array(np.ones((2, 3))), np.array(["ann", odd]), np.arange(3))
        RGALS(K=2, n_iter=1, random_state=0).fit(data).save(tmp_path / "m.npz")
        for out in ("-", tmp_path / "lists.csv"):
            assert why in error_of(capsys, "recommend", tmp_path / "m.npz", "-o", out, "--keep-seen")
        assert main(["recommend", str(tmp_path / "m.npz"), "-o", str(tmp_path / "x.npz"), "--keep-seen"]) == 0
        capsys.readouterr()


def test_features_that_are_no_table_are_one_line(folder, tmp_path, capsys):
    pytest.importorskip("pandas")
    bad = {"quote.csv": b'item,x\n"a,1\n', "none.csv": b"", "bytes.csv": b"\xff\xfe", "x.parquet": b"hello"}
    for name, content in bad.items():
        (tmp_path / name).write_bytes(content)
        command = (
            "fit",
            folder / "ratings.csv",
            "-o",
            tmp_path / "m",
            *FAST,
            "--item-features",
            tmp_path / name,
        )
        assert f"{name} cannot be read as a table of features" in error_of(capsys, *command)


def test_ids_of_features_are_read_as_those_of_interactions(tmp_path, capsys):
    """Of 007 pandas made 7, of NA nothing: such features were of items that nobody has, and the fit ended."""
    pytest.importorskip("pandas")
    items = ["007", "NA", "010", "x"]
    rows = [f"u{k},{items[(k + d) % 3]}" for k in range(9) for d in range(2)]
    (tmp_path / "log.csv").write_text("\n".join(["user,item", *rows]))
    (tmp_path / "kinds.csv").write_text("\n".join(["item,size", *(f"{i},{k}" for k, i in enumerate(items))]))
    path, out, kinds = (str(tmp_path / name) for name in ("log.csv", "model.npz", "kinds.csv"))
    assert main(["fit", path, "-o", out, *FAST, "--item-features", kinds, "-q"]) == 0
    assert RGALS.load(out).item_ids_.tolist() == ["007", "010", "NA", "x"]
    (tmp_path / "kinds.csv").write_text("item,size\n007,1\n,2\n")
    found = error_of(capsys, "fit", path, "-o", out, *FAST, "--item-features", kinds)
    assert "kinds.csv: row 1: the item is missing" in found
    (tmp_path / "log.csv").write_text("\n".join(["user,item", *(row.replace("NA", "11") for row in rows)]))
    (tmp_path / "kinds.csv").write_text("item,size\n11,1\n10,2\n")  # numbers here, and texts there
    wrong = error_of(capsys, "fit", path, "-o", out, *FAST, "--item-features", kinds)
    assert (
        "its item ids are integers (11), those of the model text ('007')" in wrong and "--text-ids" in wrong
    )
    told = ["--item-features", kinds, "--text-ids", "item"]
    assert main(["fit", path, "-o", out, *FAST, *told, "-q"]) == 0
    assert RGALS.load(out).item_ids_.tolist() == ["007", "010", "11", "10"]
    (tmp_path / "today.csv").write_text("user,item\n" + "".join(f"u{k},11\n" for k in range(9)))
    assert "--text-ids" in error_of(capsys, "evaluate", out, tmp_path / "today.csv")
    assert main(["evaluate", out, str(tmp_path / "today.csv"), "--text-ids", "both", "-q"]) == 0
    convert(tmp_path / "today.csv", tmp_path / "today.rgals")  # where they are integers
    store = ["fit", str(tmp_path / "today.rgals"), "-o", out, *FAST, "-q"]
    for told, kind in (([], "i"), (["--text-ids", "both"], "U")):
        assert main([*store, *told]) == 0
        assert RGALS.load(out).item_ids_.dtype.kind == kind
    capsys.readouterr()
    for text in ("item;size\n007;1\nNA;2\n010;3\n", "name,size\n007,1\nNA,2\n010,3\n"):
        (tmp_path / "kinds.csv").write_text(text)  # were taken in the order of ids that nobody sees
        found = error_of(capsys, "fit", path, "-o", out, *FAST, "--item-features", kinds)
        assert "kinds.csv: no column is called item; the columns (after commas) are '" + text[:4] in found


# --------------------------------------------------------------------------------------------- details


def test_losses_as_text():
    assert repr(_shared.parse_loss("RG2")) == "RG2()"
    loss = _shared.parse_loss("rgx:beta=0.5, form=gramian,n_negatives=none,item_exponent=-1e-1")
    assert (loss.beta, loss.form, loss.n_negatives, loss.item_exponent) == (0.5, "gramian", None, -0.1)


def test_tables_are_aligned():
    text = _shared.table([["a", 1.5, None], ["long", 0.25, 12]], ("name", "x", "n"))
    assert text.splitlines() == ["name       x   n", "a     1.5000   -", "long  0.2500  12"]


def test_fit_takes_features_half_lives_and_dislikes(tmp_path, capsys):
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"user": rng.integers(30, size=400), "item": rng.integers(20, size=400)})
    table["rating"], table["timestamp"] = rng.integers(1, 6, 400), 1_700_000_000 + 86_400 * np.arange(400)
    table = table.drop_duplicates(["user", "item"])
    table.to_csv(tmp_path / "ratings.csv", index=False)
    kinds = pd.DataFrame({"item": np.arange(22), "kind": list("ab") * 11, "year": 1990 + np.arange(22)})
    kinds.to_csv(tmp_path / "items.csv", index=False)
    path, out, items = (str(tmp_path / name) for name in ("ratings.csv", "model.npz", "items.csv"))
    more = (
        "--dislike-below",
        "3",
        "--loss",
        "ials:dislikes=true",
        "--half-life",
        "90d",
        "--feature-reg",
        "2",
    )
    assert main(["fit", path, "-o", out, *FAST, *more, "--item-features", items, "-q"]) == 0
    loss = IALS(dislikes=True)
    expected = RGALS(K=8, n_iter=4, loss=loss, half_life="90d", feature_reg=2, random_state=0)
    expected.fit(read_interactions(path, dislike_below=3), item_features=kinds)
    found = RGALS.load(out)
    assert found.fingerprint() == expected.fingerprint() and found.item_ids_.tolist() == list(range(22))
    table[:3].assign(user=99).to_csv(tmp_path / "new.csv", index=False)
    lists = str(tmp_path / "lists.csv")
    assert main(["recommend", out, "--new-users", str(tmp_path / "new.csv"), "-o", lists, "-q"]) == 0
    new = read_interactions(tmp_path / "new.csv")
    best = expected.recommend_new(new, n=10).ids[0]
    assert pd.read_csv(lists)["item"].tolist() == best[best != None].tolist()  # noqa: E711
    assert "no such option" not in capsys.readouterr().err


def test_the_training_part_of_split_data_keeps_its_times(tmp_path):
    data = make_implicit(60, 40, mean_interactions=12, timestamps=True, random_state=0)
    split = (np.arange(data.nnz) % 5 == 0).astype(np.int8)
    data.replace(split=split).save(tmp_path / "data.npz")
    path, out = str(tmp_path / "data.npz"), str(tmp_path / "model.npz")
    assert main(["fit", path, "-o", out, *FAST, "--half-life", "60d", "-q"]) == 0
    assert RGALS.load(out)._state().seen.nnz == (split == 0).sum()
    assert (
        main(["tune", path, "-o", out, "-K", "4", "--space", "half_life=30d,90d", "--budget", "2", "-q"]) == 0
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-K", "4", "--space", "K=8"], "space='K=8'"),
        (["--space", "reg=0.1", "--space", "reg = 0.2:1"], "space='reg = 0.2:1'"),
        (["--space", "reg= "], "space='reg= '"),
        (["--show", "-1"], "show=-1"),
        (["--show", "-1", "--sampler", "gp"], "warning: --sampler has no effect"),
    ],
)
def test_what_tune_would_not_heed_is_refused_at_once(options, said, tmp_path, capsys):
    """Of a parameter that was given twice the last was taken, without a word, and of K always that of -K."""
    path, out = tmp_path / "data.npz", tmp_path / "model.npz"
    make_implicit(60, 40, mean_interactions=12, random_state=0).save(path)
    assert main(["tune", str(path), "-o", str(out), *options, "--budget", "1", "-q"]) == 1
    assert said in capsys.readouterr().err and not out.exists()
