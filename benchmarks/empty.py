"""What empty rows and columns cost plain defaults: `python benchmarks/empty.py`.

A fifth of every user's interactions is hidden. The rest is fitted as it is, and with ten empty rows,
columns or both for each of its own, as where ids are taken for row and column numbers; NDCG@10 of each, K=64.
Lines go to ``empty_results.jsonl`` beside this file and are not measured again.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from quality import DATA

from rgals import RGALS
from rgals.datasets import read_interactions
from rgals.files.journal import Journal
from rgals.metrics import evaluate
from rgals.model_selection import split_interactions

RESULTS = Path(__file__).with_name("empty_results.jsonl")
SETTING = {"benchmark": "empty rows and columns", "K": 64}
SETS = ("ml-100k", "ml-latest-small", "amazon-beauty-10core", "amazon-health-10core", "steam-200k-purchases")
SETS += ("lastfm-hetrec2011", "citeulike-a", "food-10core", "amazon-toys-5core", "ml-1m")
LOSSES = ("rg2", "rgx", "ials", "wrmf")
SHAPES = {"as it is": (1, 1), "10 columns": (1, 11), "10 rows": (11, 1), "10 of both": (11, 11)}


def spread(X: sp.csr_array, rows: int, columns: int) -> sp.csr_array:
    """The matrix with every row and column at a multiple of its number, and nothing between them."""
    entries = sp.coo_array(X)
    at = entries.row * rows, entries.col * columns
    return sp.csr_array((entries.data, at), shape=(X.shape[0] * rows, X.shape[1] * columns))


def measure(record: Any) -> None:
    """Lines ``SET LOSS``: NDCG@10 by shape."""
    for name, loss in itertools.product(SETS, LOSSES):
        if record.get(f"{name} {loss}") is not None:
            continue
        data = read_interactions(DATA / f"{name}.npz", split=None, binarize=True)
        X = sp.csr_array(data.matrix, dtype=np.float64)
        parts = split_interactions(X, (0.8, 0.2), random_state=0)
        row = {}
        for shape, times in SHAPES.items():
            train, hidden = (spread(part, *times) for part in parts)
            model = RGALS(64, loss, random_state=0).fit(train)
            row[shape] = float(evaluate(model, train, hidden, "ndcg@10")["ndcg@10"])
        record.add(f"{name} {loss}", row)
        print(name, loss, row, flush=True)


def table(record: Any) -> str:
    """NDCG@10 as it is, and with empty rows and columns as a share of that."""
    others = [shape for shape in SHAPES if shape != "as it is"]
    lines = [f"| set | loss | as it is | {' | '.join(others)} |", "|" + "---|" * (3 + len(others))]
    for name, loss in itertools.product(SETS, LOSSES):
        if (row := record.get(f"{name} {loss}")) is not None:
            shares = " | ".join(f"{100 * row[shape] / row['as it is']:.1f} %" for shape in others)
            lines.append(f"| {name} | {loss} | {row['as it is']:.4f} | {shares} |")
    return "\n".join(lines)


if __name__ == "__main__":
    journal = Journal(RESULTS, SETTING)
    measure(journal)
    print(table(journal))
