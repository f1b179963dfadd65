"""Every example runs as it stands and prints what it says."""

from __future__ import annotations

import csv
import re
import runpy
import sys
from pathlib import Path

import pytest

from rgals import RGALS

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def run(name: str, monkeypatch, capsys, *arguments: str) -> str:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    out, _ = capsys.readouterr()
    return out


def test_every_example_has_a_test():
    tested = {
        "quickstart.py",
        "movies.py",
        "postgres.py",
        "convergence.py",
        "grid_search.py",
        "hard_negatives.py",
        "cluster.py",
        "dislikes.py",
        "events.py",
        "service.py",
        "shop.py",
    }  # service.py is run in test_service.py, cluster.py in cluster/test_dask.py, postgres.py in stress
    assert {path.name for path in EXAMPLES.glob("*.py")} == tested


def test_quickstart(monkeypatch, capsys):
    out = run("quickstart.py", monkeypatch, capsys)
    before, after = map(float, re.search(r"objective (-?[\d.]+) after one.* (-?[\d.]+) after", out).groups())
    assert after < before
    assert float(re.search(r"ndcg@10 ([\d.]+)", out)[1]) > 0.05
    assert "same recommendations" in out


def test_a_second_model_of_taste_takes_out_dislikes_at_less_cost_than_one_model_of_both(monkeypatch, capsys):
    out = run("dislikes.py", monkeypatch, capsys)
    rows = re.findall(r"^(.*?) +ndcg@10 ([\d.]+) +dislike_rate@10 ([\d.]+)$", out, re.MULTILINE)
    found = {name: (float(ndcg), float(rate)) for name, ndcg, rate in rows}
    alone, both = found["likes alone"], found["and taste, share 0.2"]
    assert both[1] < 0.8 * alone[1] and both[0] > 0.98 * alone[0]
    for weight in (1, 3):
        one = found[f"one model, dislikes weigh {weight}"]
        assert both[1] < one[1] and both[0] > one[0] - 0.001


def test_movies_from_a_given_file(monkeypatch, capsys, tmp_path):
    ratings = tmp_path / "ratings.csv"
    with ratings.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["userId", "movieId", "rating"])
        table.writerows(
            [f"u{user}", f"Film {movie}, The", 5 if (user + movie) % 3 else 2]
            for user in range(30)
            for movie in range(12)
            if (user * movie) % 5 != 1
        )
    with ratings.open(newline="", encoding="utf-8") as file:
        liked = {(row["userId"], row["movieId"]) for row in csv.DictReader(file) if row["rating"] == "5"}
    parquet = pytest.importorskip("pyarrow.parquet")
    run("movies.py", monkeypatch, capsys, str(ratings), str(tmp_path / "out.parquet"))
    rows = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert {row["user"] for row in rows} == {f"u{user}" for user in range(30)}
    assert not liked & {(row["user"], row["item"]) for row in rows}
    assert {row["item"] for row in rows} <= {f"Film {movie}, The" for movie in range(12)}


def test_movies_without_a_file(monkeypatch, capsys):
    pytest.importorskip("pyarrow")
    out = run("movies.py", monkeypatch, capsys)
    assert len(out.splitlines()) > 10
    assert "500 users" in out and "score" in out
    with pytest.raises(SystemExit):
        run("movies.py", monkeypatch, capsys, "only one argument")


@pytest.mark.few(0)
def test_grid_search(monkeypatch, capsys):
    out = run("grid_search.py", monkeypatch, capsys)
    means = [float(value) for value in re.findall(r"([\d.]+) \+-", out)]
    assert len(means) == 12
    assert len(set(means)) > 1
    assert max(means) > 0.05
    assert "best: alpha=" in out


@pytest.mark.few(0)
def test_hard_negatives(monkeypatch, capsys):
    out = run("hard_negatives.py", monkeypatch, capsys)
    without, with_them = map(float, re.findall(r"ndcg@20 ([\d.]+) on test", out))
    assert with_them > 1.05 * without
    score, *parts = map(float, re.findall(r"(-?[\d.]+)(?= from|:)", out.splitlines()[-1]))
    assert score == pytest.approx(sum(parts), abs=0.02) and parts[-1] < 0


@pytest.mark.few(0)
def test_convergence(monkeypatch, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    ratings = tmp_path / "ratings.csv"
    lines = [f"{user},{item}" for user in range(60) for item in range(40) if (user + item) % 3 == 0]
    ratings.write_text("user,item\n" + "\n".join(lines) + "\n")
    out = run("convergence.py", monkeypatch, capsys, str(ratings), str(tmp_path / "comparison"))
    assert re.search(r"First to 95 % of the best validation NDCG@10: \w+", out)
    assert "RG2 (ALS)" in out and "Softmax, dot (SGD)" in out and "fitted to" in out
    assert {path.name for path in (tmp_path / "comparison").iterdir()} == {
        "results.jsonl",
        "convergence.png",
        "report.html",
    }


@pytest.mark.few(0)
def test_shop(monkeypatch, capsys, tmp_path, recwarn):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "shop.png"
    out = run("shop.py", monkeypatch, capsys, "--days", "65", "--out", str(tmp_path), "--plot", str(picture))
    assert not [warning for warning in recwarn if issubclass(warning.category, UserWarning)]
    rows = [line.split() for line in out.splitlines() if re.match(r" +\d", line)]
    assert [row[0] for row in rows] == ["30", "60"]
    updated, popular, frozen = map(float, rows[-1][4:7])
    assert updated > popular > 0 and updated > frozen
    assert [int(row[7]) for row in rows] == [0, 2]  # the interactions have doubled: the settings follow
    model = RGALS.load(tmp_path / "model.npz")
    assert f"{len(model.user_ids_):,} lists of 10" in out and f"lists.csv: {tmp_path}" in out
    assert (tmp_path / "lists.csv").is_file()
    assert picture.stat().st_size > 10_000
    out = run("shop.py", monkeypatch, capsys, "--days", "32", "--plot", "")
    assert "lists of 10" in out and "lists.csv" not in out  # its folder is gone


def test_events_of_all_kinds_rank_purchases_better_with_weights_that_were_found(monkeypatch, capsys):
    out = run("events.py", monkeypatch, capsys)
    alone, alike, found = map(float, re.findall(r"ndcg@10 ([\d.]+)", out))
    assert alone < alike < found
