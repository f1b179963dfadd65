"""The paper's tables by name: its protocol, our figures, and the printed ones beside them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from rgals.compare import METHODS, Effort, compare
from rgals.datasets import Interactions, make_implicit, prepare_paper
from rgals.datasets.paper import RECIPES

FAST = ["--seeds", "1", "--max-trials", "0", "--time-limit", "60"]
SCRIPT = Path(__file__).resolve().parent.parent / "benchmarks" / "paper.py"
spec = importlib.util.spec_from_file_location("benchmark_paper", SCRIPT)
paper = importlib.util.module_from_spec(spec)
spec.loader.exec_module(paper)


def ratings():
    """Half of them below 3, which the protocol drops."""
    made = make_implicit(150, 90, mean_interactions=40, random_state=0)
    matrix = made.matrix.copy()
    matrix.data = np.random.default_rng(0).integers(1, 6, matrix.nnz).astype(np.float32)
    return Interactions(matrix, made.user_ids, made.item_ids)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("data")
    ratings().save(place / "ml-1m.npz")
    return place


def rows_of(text):
    lines = [line.split() for line in text.splitlines()]
    return {line[0]: line[1:] for line in lines if line and line[0] in paper.METHODS}


def test_table_3_has_our_figures_beside_the_printed_ones(folder, capsys, monkeypatch):
    monkeypatch.setattr(paper, "METHODS", {"BPR": None, "WRMF": "wrmf_plain", "RG2": "rg2"})
    monkeypatch.setitem(paper._PRINTED, "MovieLens", ((0.3476, 0.2116), (0.4475, 0.2797), (0.4720, 0.2957)))
    paper.main(["table3", "--data-dir", str(folder), *FAST])
    out = capsys.readouterr().out
    assert "ml-1m: NOT in the paper, prepared like its MovieLens" in out
    found = rows_of(out)
    assert found["BPR"] == ["-", "0.3476", "-", "0.2116"]
    assert (found["RG2"][1], found["RG2"][3]) == ("0.4720", "0.2957")
    # Ours are those of a comparison of the same parts.
    data = prepare_paper("ml-1m", ratings())
    assert f"{data.n_users:,} users, {data.n_items:,} items, {data.nnz:,} interactions" in out
    effort = Effort(max_trials=0, time_limit=60, objective_iterations=0)
    rows = compare(data, "wrmf_plain,rg2", seeds=1, effort=effort, verbose=0).rows
    for row, name in ((row, {"rg2": "RG2", "wrmf_plain": "WRMF"}[row.method]) for row in rows):
        shown = [float(found[name][at]) for at in (0, 2)]
        assert shown == [round(row.test[metric][0], 4) for metric in ("mrr@10", "ndcg@10")]
        assert shown[0] > 0.01
    assert found["RG2"][::2] != found["WRMF"][::2]


@pytest.mark.few(0)
def test_table_2_says_which_line_the_gap_follows(folder, capsys):
    paper.main(["table2", "--data-dir", str(folder), *FAST])
    out = capsys.readouterr().out
    assert "linear, rho^T" in out and "sublinear, 1/sqrt(T)" in out and "RG2 by gradient" in out
    assert "R² of linear" in out


def test_a_picture_needs_a_folder_and_data_their_file(folder, tmp_path, capsys):
    for asked, said in (
        (["fig1", "--data-dir", str(folder)], "-o FOLDER"),
        (["table3", "--data", "steam", "--data-dir", str(tmp_path)], "steam.npz"),
    ):
        with pytest.raises(SystemExit):
            paper.main(asked)
        assert said in capsys.readouterr().err


def test_every_printed_figure_has_its_method():
    assert set(filter(None, paper.METHODS.values())) <= set(METHODS)
    for known in {paper.SETS[name] for name in RECIPES}:
        assert len(paper._PRINTED[known]) == len(paper.METHODS)
    # The paper: RGx is best on all but links, where softmax is.
    for known, figures in paper._PRINTED.items():
        best = max((f for f in figures if f[1]), key=lambda pair: pair[1])
        assert best == figures[-3 if known == "Wiki" else -1]
