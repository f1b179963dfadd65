"""Quality of the SGD reference on the fixed splits: `python benchmarks/sgd_quality.py`.

K=64. Every method has its setting below, found on validation. The number of epochs comes from a fit that
leaves out a tenth of every user's interactions; the model is then fitted to the whole training part and
measured on test: mean and standard deviation over seeds. Published (matrix factorisation, NDCG@20): softmax
0.1264 and BPR 0.1209 on amazon-health-10core, 0.0529 and 0.0527 on amazon-electronics-10core.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np

from rgals.datasets import read_interactions
from rgals.metrics import evaluate
from rgals.sgd import SGDRanker

DATA = Path(os.environ.get("RGALS_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
METRICS = ("ndcg@20", "recall@20")
SETTINGS = {
    "amazon-health-10core": {
        "softmax": {"loss": "softmax", "temperature": 0.25, "lr": 0.02, "batch_size": 64},
        "BPR": {"loss": "bpr", "temperature": 0.3, "lr": 0.02, "n_negatives": 10},
        "sampled softmax": {"loss": "sampled_softmax", "temperature": 0.25, "lr": 0.02, "n_negatives": 100},
    },
    "amazon-electronics-10core": {
        "softmax": {"loss": "softmax", "temperature": 0.25, "lr": 0.05, "batch_size": 128},
        "BPR": {
            "loss": "bpr",
            "score": "dot",
            "temperature": 1.0,
            "lr": 0.02,
            "n_negatives": 10,
            "weight_decay": 2e-4,
        },
        "sampled softmax": {"loss": "sampled_softmax", "temperature": 0.2, "lr": 0.03, "n_negatives": 100},
    },
}


def fit(train, setting: dict, seed: int, jobs: int | None) -> tuple[SGDRanker, int, float]:
    """The model of the whole training part, its number of epochs and the validation NDCG@20 they had."""
    common = {"K": 64, "score": "cosine", "random_state": seed, "n_jobs": jobs, **setting}
    held = SGDRanker(n_epochs=100, early_stopping=True, patience=6, metric="ndcg@20", **common).fit(train)
    found = [record["ndcg@20"] for record in held.history_]
    epochs = int(np.argmax(found)) + 1
    return SGDRanker(n_epochs=epochs, **common).fit(train), epochs, max(found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", default=list(SETTINGS), help=", ".join(SETTINGS))
    parser.add_argument("--methods", nargs="*", help="of softmax, BPR, sampled softmax; default: all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=None)
    args = parser.parse_args()
    for name in args.data:
        data = read_interactions(DATA / f"{name}.npz")
        print(f"\n{name}, K=64, {args.seeds} seeds\n")
        print("| method | validation ndcg@20 | test ndcg@20 | test recall@20 | epochs | setting |")
        print("|---|---|---|---|---|---|")
        for method, setting in SETTINGS[name].items():
            if args.methods and method not in args.methods:
                continue
            started, figures, validation, lengths = time.perf_counter(), [], [], []
            for seed in range(args.seeds):
                model, epochs, best = fit(data.train, setting, seed, args.jobs)
                test = evaluate(model, data.train, data.test, metrics=METRICS, n_jobs=args.jobs)
                figures.append([float(test[metric]) for metric in METRICS])
                validation.append(best)
                lengths.append(epochs)
            mean, spread = np.mean(figures, axis=0), np.std(figures, axis=0, ddof=min(1, args.seeds - 1))
            shown = " ".join(f"{k}={v}" for k, v in setting.items() if k != "loss")
            cells = [f"{m:.4f} ± {s:.4f}" for m, s in zip(mean, spread, strict=True)]
            print(
                f"| {method} | {np.mean(validation):.4f} | {cells[0]} | {cells[1]} "
                f"| {min(lengths)} to {max(lengths)} | {shown} |",
                flush=True,
            )
            seconds = time.perf_counter() - started
            result = {"data": name, "method": method, "seconds": seconds, "epochs": lengths}
            print(json.dumps({**result, "test": figures}))


if __name__ == "__main__":
    main()
