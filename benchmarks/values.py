"""What values become before a fit, and what that is worth: `python benchmarks/values.py`.

Sets with values, a random fifth of every user hidden, NDCG@10 at K=64 by the defaults of a loss, for every
kind of `values`; "log(1+v)" is taken outside of the package and fitted as it is. The table is the mean over
the seeds; results are kept in ``values_results.jsonl``, and only what is missing there is measured.
``--table`` measures nothing.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from quality import DATA

from rgals import RGALS, ValuesWarning
from rgals.datasets import read_interactions
from rgals.matrix.weighting import VALUES
from rgals.metrics import evaluate
from rgals.model_selection import split_interactions

COUNTS = ("steam-200k-hours", "lastfm-hetrec2011")
STARS = ("ml-100k", "ml-latest-small", "ml-1m")
LOSSES = ("rg2", "ials")
OUTSIDE = "log(1+v)"
KINDS = ("raw", OUTSIDE, "log1p", "binary", "bm25", "auto")
SEEDS = (0, 1, 2)
RESULTS = Path(__file__).with_name("values_results.jsonl")
assert set(KINDS) - {OUTSIDE} == set(VALUES)


def measure(name: str, loss: str, kind: str, seed: int, jobs: int | None) -> dict:
    """One line of the results."""
    X = read_interactions(DATA / f"{name}.npz").matrix
    train, test = split_interactions(X, (0.8, 0.2), random_state=seed)
    fitted = sp.csr_array((np.log1p(train.data), train.indices, train.indptr), shape=train.shape)
    model = RGALS(64, loss, values="raw" if kind == OUTSIDE else kind, random_state=seed, n_jobs=jobs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ValuesWarning)
        model.fit(fitted if kind == OUTSIDE else train)
    figure = evaluate(model, train, test, "ndcg@10", n_jobs=jobs)["ndcg@10"]
    taken = model.params_["values"]
    return {"set": name, "loss": loss, "values": kind, "seed": seed, "ndcg@10": figure, "taken": taken}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", default=",".join(COUNTS + STARS), help="separated by commas")
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--table", action="store_true", help="print what was recorded, measure nothing")
    args = parser.parse_args()
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    known = {(r["set"], r["loss"], r["values"], r["seed"]): r for r in rows}
    print("| set | loss | " + " | ".join(KINDS) + " | taken | auto against the best of the first four |")
    print("|---" * (len(KINDS) + 4) + "|")
    for name in args.sets.split(","):
        for loss in LOSSES:
            means, taken = {}, set()
            for kind in KINDS:
                for seed in SEEDS:
                    key = name, loss, kind, seed
                    if key not in known and not args.table:
                        known[key] = measure(*key, args.jobs)
                        with RESULTS.open("a") as file:
                            file.write(json.dumps(known[key]) + "\n")
                found = [known[name, loss, kind, seed] for seed in SEEDS if (name, loss, kind, seed) in known]
                means[kind] = float(np.mean([r["ndcg@10"] for r in found])) if found else float("nan")
                taken |= {r["taken"] for r in found if kind == "auto"}
            gain = means["auto"] / max(means[kind] for kind in KINDS[:4]) - 1
            figures = " | ".join(f"{means[kind]:.4f}" for kind in KINDS)
            print(f"| {name} | {loss} | {figures} | {', '.join(taken)} | {100 * gain:+.1f} % |", flush=True)


if __name__ == "__main__":
    main()
