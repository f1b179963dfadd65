"""Made these files, with rgals 0.1: models and checkpoints that later versions must go on reading.

Run with that version installed: ``PYTHONPATH=tests python tests/data/v0_1/make.py``.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from helpers import interactions

from rgals import IALS, RG2, RGALS, RGX, WRMF
from rgals.sgd import SGDRanker

HERE = Path(__file__).parent
USERS = [f"user {i} \N{SNOWMAN}" for i in range(30)]
ITEMS = list(range(1000, 1020))

MODELS = {
    "rg2": RGALS(K=3, n_iter=3, random_state=0),
    "rg2-auto": RGALS(K=2, reg="auto", n_iter=2, random_state=np.int64(1)),
    "rg2-svd": RGALS(K=2, loss=RG2(alpha=0.0), solver="svd", random_state=0),
    "rgx": RGALS(K=4, loss=RGX(alpha=0.1, beta=0.5), n_iter=2, random_state=0),
    "wrmf": RGALS(K=3, loss=WRMF(alpha=4.0), n_iter=2, solver="pcg", random_state=0),
    "ials": RGALS(K=3, loss=IALS(alpha0=0.2), reg_exponent=0.5, n_iter=2, dtype="float64", random_state=0),
    "rg2-early": RGALS(K=2, n_iter=6, early_stopping=True, patience=2, metric="ndcg@3", random_state=0),
    "sgd": SGDRanker(K=3, n_epochs=2, random_state=0),
    "sgd-sampled": SGDRanker(K=2, loss="bpr", score="dot", n_negatives=3, n_epochs=2, random_state=0),
}
CHECKPOINTS = {
    "rg2": {"loss": "rg2"},
    "rgx": {"loss": "rgx", "dtype": "float64"},
    "ials-pcg": {"loss": "ials", "solver": "pcg"},
    "wrmf-early": {"loss": "wrmf", "early_stopping": True, "patience": 3, "metric": "ndcg@3"},
    "generator": {"loss": "rg2", "random_state": None},
}


def lists(model) -> dict:
    """What a model must go on answering."""
    users = np.arange(0, 30, 4)
    out = {"n_iter": model.n_iter_, "objective": [record["objective"] for record in model.history_]}
    out["recommend"] = [array.tolist() for array in model.recommend(users, 3)]
    out["similar"] = [array.tolist() for array in model.similar_items([0, 7], 3)]
    return out


def main() -> None:
    X = interactions(30, 20, valued=True, seed=5)
    sp.save_npz(HERE / "matrix.npz", X)
    expected = {"models": {}, "checkpoints": {}}
    for name, model in MODELS.items():
        model.fit(X, user_ids=USERS, item_ids=ITEMS)
        model.save(HERE / f"{name}.npz")
        expected["models"][name] = lists(model)
    for name, settings in CHECKPOINTS.items():
        settings = {"K": 3, "random_state": 0, **settings}
        RGALS(n_iter=2, **settings).fit(X, checkpoint=HERE / "checkpoints" / name)
        model = RGALS(n_iter=5, **settings)
        if settings["random_state"] is None:  # goes on from the stored seed
            copy = HERE / "checkpoints" / "copy"
            copy.mkdir()
            shutil.copy(HERE / "checkpoints" / name / "checkpoint.npz", copy)
            model.fit(X, checkpoint=copy)
            (copy / "checkpoint.npz").unlink()
            copy.rmdir()
        else:
            model.fit(X)
        expected["checkpoints"][name] = lists(model)
    (HERE / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
