"""Our figures beside published ones, on their splits: `python benchmarks/published.py`.

Fitted to all of the training part of a fixed split, of which the published rows hide a tenth; recall over
|truth|.
Defaults and `RGALSCV`, which sees the training part alone, and the settings of ``quality_settings.json``
(chosen on validation; K=64, 16 iterations from random factors); mean of several seeds. Lines go to
``published_results.jsonl``; ``--table`` prints what is there. On MovieLens 1M, of which no published split is
here, the settings are fitted to the training part of the protocol alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from quality import DATA, spent

from rgals import IALS, RG2, RGALS, RGALSCV, RGX, WRMF
from rgals.datasets import read_interactions
from rgals.files.journal import Journal
from rgals.metrics import evaluate
from rgals.model_selection import PROTOCOLS

OUT = Path(__file__).with_name("published_results.jsonl")
SETTINGS = json.loads(Path(__file__).with_name("quality_settings.json").read_text())
LOSSES = {"RG2": RG2, "RGx": RGX, "iALS": IALS, "WRMF plain": WRMF, "WRMF scaled": WRMF}
PROTOCOL = {"ml-1m": "stars>=3 5-core user 80/10/10"}
METRICS = {"ml-1m": ("ndcg@10", "mrr@10", "recall@20")}
RANKED = ("recall@20", "ndcg@20")
SOURCE = "Towards Optimizing Top-K Ranking Metrics in Recommender Systems (SL@K), tables 1 and G.10"
#: Matrix factorisation and the best other backbone of the source: recall@20 and NDCG@20.
PUBLISHED: dict[str, dict[str, tuple[float, float]]] = {
    "ml-100k-10core": {
        "MF, LambdaRank": (0.3077, 0.3043),
        "MF, LambdaLoss@20": (0.3418, 0.3466),
        "MF, SL@20": (0.3580, 0.3677),
    },
    "amazon-health-10core": {
        "MF, BPR": (0.1575, 0.1209),
        "MF, softmax": (0.1737, 0.1264),
        "MF, SL@20": (0.1804, 0.1373),
        "LightGCN, SL@20": (0.1791, 0.1369),
    },
    "food-10core": {
        "MF, LambdaRank": (0.0520, 0.0377),
        "MF, LambdaLoss@20": (0.0530, 0.0382),
        "MF, SL@20": (0.0635, 0.0465),
    },
    "amazon-electronics-10core": {
        "MF, BPR": (0.0816, 0.0527),
        "MF, softmax": (0.0821, 0.0529),
        "MF, SL@20": (0.0892, 0.0587),
        "LightGCN, SL@20": (0.0894, 0.0587),
    },
}
BOTH = ["rg2", "ials"]


def models(name: str, jobs: int | None) -> Iterator[tuple[str, Callable[[int], Any]]]:
    """What is fitted to a set, by seed."""
    how = {"n_jobs": jobs}
    if name in PUBLISHED:
        yield "RG2, defaults", lambda seed: RGALS(64, random_state=seed, **how)
        yield "iALS, defaults", lambda seed: RGALS(64, "ials", random_state=seed, **how)
        yield (
            "RGALSCV, K=64",
            lambda seed: RGALSCV(64, BOTH, metric="ndcg@20", random_state=seed, **how),
        )
        yield (
            "RGALSCV, K=auto",
            lambda seed: RGALSCV("auto", BOTH, metric="ndcg@20", random_state=seed, **how),
        )
    for method, setting in SETTINGS.get(name, {}).items():
        of_model = {k: v for k, v in setting.items() if k.startswith("reg")}
        loss = LOSSES[method](**{k: v for k, v in setting.items() if k not in of_model})
        fixed = {"n_iter": 16, "init": "random", **how, **of_model}
        yield (
            f"{method}, K=64, settings",
            lambda seed, loss=loss, fixed=fixed: RGALS(64, loss, random_state=seed, **fixed),
        )


def measure(name: str, args: argparse.Namespace, record: Journal) -> None:
    """What of a set is not recorded yet."""
    parts = PROTOCOLS[PROTOCOL.get(name, "given split, full training")].apply(
        read_interactions(DATA / f"{name}.npz")
    )
    metrics = METRICS.get(name, RANKED)
    for method, make in models(name, args.jobs):
        for seed in range(1 if method.startswith("RGALSCV") else args.seeds):
            key = f"{name} {method} seed{seed}"
            if record.get(key) is not None:
                continue
            model = make(seed)
            folder = args.searches / key.replace(" ", "-")
            with spent(folder / "seconds") as seconds:
                model.fit(parts.train, **({"folder": folder} if isinstance(model, RGALSCV) else {}))
            got = evaluate(model, parts.train, parts.test, metrics, n_jobs=args.jobs)
            found = model.best_params_ if isinstance(model, RGALSCV) else model.params_
            row = {"set": name, "method": method, "seed": seed, "cpu_seconds": seconds[0]}
            row |= {"K": len(model.item_factors_[0]), "loss": repr(found["loss"]), "reg": model.reg_}
            record.add(key, {**row, **{metric: float(got[metric]) for metric in metrics}})
            print(key, {metric: round(got[metric], 4) for metric in metrics}, flush=True)


def table(name: str, record: Journal) -> str:
    """Our rows of a set and the published ones."""
    metrics = METRICS.get(name, RANKED)
    lines = [f"| {name} | K | " + " | ".join(metrics) + " |", "|" + "---|" * (len(metrics) + 2)]
    for method, figures in PUBLISHED.get(name, {}).items():
        lines.append(f"| {method} (published) | | " + " | ".join(f"{f:.4f}" for f in figures) + " |")
    mine = [row for row in record.values() if row.get("set") == name]
    for method in dict.fromkeys(row["method"] for row in mine):
        rows = [row for row in mine if row["method"] == method]
        cells = " | ".join(f"{np.mean([row[metric] for row in rows]):.4f}" for metric in metrics)
        lines.append(f"| {method} | {rows[0]['K']} | {cells} |")
    return "\n".join(lines)


def tables(record: Journal) -> str:
    """All sets that have rows of ours."""
    present = {row["set"] for row in record.values() if "set" in row}
    return "\n\n".join(table(name, record) for name in {**PUBLISHED, **SETTINGS} if name in present)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", default=",".join({**PUBLISHED, **SETTINGS}))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--searches", type=Path, default=Path("results/published"), help="go on from there")
    parser.add_argument("--table", action="store_true", help="print what is recorded")
    args = parser.parse_args()
    record = Journal(OUT, {"benchmark": "published"})
    for name in [] if args.table else args.sets.split(","):
        if (DATA / f"{name}.npz").is_file():
            measure(name, args, record)
        else:
            print(f"{name}: not here (looked in RGALS_DATA or ../shared/data); skipped")
    print(f"\nPublished: {SOURCE}.\n\n{tables(record)}")


if __name__ == "__main__":
    main()
