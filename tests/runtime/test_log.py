"""The logger "rgals" says what ``verbose`` shows, and nothing is shown that nobody asked for."""

from __future__ import annotations

import logging

import numpy as np
from helpers import interactions

from rgals import RGALS
from rgals.datasets import Interactions, read_interactions
from rgals.scoring import recommend_all
from rgals.sgd import SGDRanker


def test_iterations_epochs_updates_and_files_are_logged(caplog, tmp_path, capsys):
    X = interactions(60, 40)
    caplog.set_level(logging.INFO, logger="rgals")
    data = Interactions(X, np.arange(60) + 100, np.arange(40))
    model = RGALS(4, n_iter=3, random_state=0).fit(data, validation=interactions(60, 40, seed=5))
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("ALS")]
    assert [line.partition(",")[0] for line in lines] == ["ALS 1/3", "ALS 2/3", "ALS 3/3"]
    for line, row in zip(lines, model.history_, strict=True):
        assert f"objective={row['objective']:.5g}" in line and f"ndcg@10={row['ndcg@10']:.5g}" in line
    caplog.clear()
    SGDRanker(K=2, n_epochs=2, random_state=0).fit(X)
    assert [r.getMessage()[:7] for r in caplog.records if "SGD" in r.getMessage()] == ["SGD 1/2", "SGD 2/2"]
    caplog.clear()
    model.partial_fit(read_interactions(([7, 101], [3, 999])))
    said = caplog.records[-1].getMessage()
    assert "2 interactions merged, 2 users (1 new) and 2 items (1 new) solved" in said
    assert f"{100 * model.drift().merged:.3g} % of the interactions" in said
    recommend_all(model, tmp_path / "all.csv", 2, cold="popular")
    assert "lists of 61 of 61 users written to" in caplog.records[-1].getMessage()
    assert {record.name for record in caplog.records} == {"rgals"}
    assert capsys.readouterr() == ("", "")


def test_nothing_is_said_unasked(caplog, capsys):
    caplog.set_level(logging.WARNING, logger="rgals")
    RGALS(4, n_iter=2, random_state=0).fit(interactions(60, 40))
    assert not caplog.records and capsys.readouterr() == ("", "")
