"""What a model says of itself is what was fitted."""

from __future__ import annotations

import re

import pytest
from helpers import interactions

from rgals import IALS, RGALS
from rgals.sgd import SGDRanker


def rows(text: str) -> int:
    """All rows that a plan speaks of."""
    return sum(int(number.replace(",", "")) for number in re.findall(r"(?:^|, )([\d,]*\d)", text))


@pytest.mark.parametrize("loss", ["rg2", "rgx", IALS(0.1)], ids=str)
def test_it_names_the_data_the_fit_and_every_row(loss):
    X = interactions(80, 50)
    model = RGALS(6, loss, n_iter=3, random_state=0).fit(X)
    info = model.info()
    assert info["data"] == f"80 users x 50 items, {X.nnz:,} interactions"
    assert info["factors"].startswith("K=6, float32") and info["fit"].startswith("3 iterations in ")
    assert (rows(info["users"]), rows(info["items"])) == (80, 50)
    assert str(info).count("\n") == len(info) - 1 and info["fingerprint"] == model.info()["fingerprint"]


def test_sgd_has_no_plan():
    info = SGDRanker(K=4, n_epochs=1, random_state=0).fit(interactions(30, 20, valued=True)).info()
    assert "users" not in info and info["data"].endswith("interactions with values")
