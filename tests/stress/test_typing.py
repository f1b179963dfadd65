"""A user's script passes `mypy --strict`: types hold where they are used."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from conftest import ROOT

pytest.importorskip("mypy")

SCRIPT = """
import numpy as np

from rgals import IALS, RG2, RGALS, Positions
from rgals.baselines import EASE, Popularity
from rgals.datasets import Interactions, make_implicit, read_interactions
from rgals.metrics import evaluate
from rgals.model_selection import split_interactions
from rgals.scoring import recommend_all
from rgals.sgd import SGDRanker


def main(path: str) -> float:
    data: Interactions = make_implicit(200, 100, random_state=0)
    train, test = split_interactions(data, random_state=0)
    model = RGALS(K=16, loss=RG2(alpha=0.1), random_state=0).fit(train)
    best = model.recommend(data.user_ids[:3], n=5)
    ids: np.ndarray = best.ids
    found, scores = model.recommend_ids(["u1"], unknown="popular")
    near = model.similar_items(Positions([0, 1]), n=3).scores
    print(best.to_frame().head(), best.asked.shape)
    today = read_interactions((["new"], [ids[0, 0]]))
    model.partial_fit(today).forget_users(["new"]).save(path)
    fall: float = model.drift().fall
    why = model.explain(data.user_ids[0], data.item_ids[0])
    share: float = why.score + float(scores[0, 0]) + float(near[0, 0]) + fall
    figures = evaluate(model, train, test, ("ndcg@10",))
    written = recommend_all(model, path + ".csv", n=3)
    again = RGALS.load(path)
    print(again.info()["data"], found.shape, written.users, EASE().fit(data), Popularity().fit(data))
    other = SGDRanker(K=4, n_epochs=1).fit(data)
    RGALS(loss=IALS(), K=2).fit(data)
    return float(figures["ndcg@10"]) + share + float(other.predict(Positions(0), Positions(1))[0])
"""


def strict(script: str, folder) -> tuple[int, str]:
    (folder / "script.py").write_text(script, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder / "cache"), "script.py"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}  # as if it were installed: py.typed counts
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_users_script_is_typed(tmp_path):
    assert strict(SCRIPT, tmp_path) == (0, "Success: no issues found in 1 source file\n")


def test_wrong_types_are_found(tmp_path):
    code, said = strict(SCRIPT.replace("best.ids", "best.items"), tmp_path)
    assert code == 1 and '"Recommendations" has no attribute "items"' in said
