"""Recorded settings on sets with published figures: `python benchmarks/published.py`.

The settings of ``quality_settings.json`` (chosen on validation) at K=64 and 16 iterations, mean of several
random starts, as the published rows are measured: on fixed splits fitted to all of the training part, recall
over |truth|; on MovieLens 1M fitted to the training part alone.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
from quality import DATA

from rgals import IALS, RG2, RGALS, RGX, WRMF
from rgals.datasets import read_interactions
from rgals.metrics import evaluate
from rgals.model_selection import PROTOCOLS

SETTINGS = Path(__file__).with_name("quality_settings.json")
LOSSES = {"RG2": RG2, "RGx": RGX, "iALS": IALS, "WRMF plain": WRMF, "WRMF scaled": WRMF}
PROTOCOL = {"ml-1m": "stars>=3 5-core user 80/10/10"}
METRICS = {"ml-1m": ("ndcg@10", "mrr@10", "recall@20")}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=None)
    args = parser.parse_args()
    for name, methods in json.loads(SETTINGS.read_text()).items():
        if not (DATA / f"{name}.npz").is_file():
            print(f"{name}: not here (looked in RGALS_DATA or ../shared/data); skipped")
            continue
        data = read_interactions(DATA / f"{name}.npz")
        parts = PROTOCOLS[PROTOCOL.get(name, "given split, full training")].apply(data)
        metrics = METRICS.get(name, ("recall@20", "ndcg@20"))
        print(f"\n### {name}\n\n| method | " + " | ".join(metrics) + " | seconds | setting |")
        print("|" + "---|" * (len(metrics) + 3))
        for method, setting in methods.items():
            of_model = {k: v for k, v in setting.items() if k.startswith("reg")}
            of_loss = {k: v for k, v in setting.items() if k not in of_model}
            figures, seconds = [], []
            for seed in range(args.seeds):
                how = {"n_iter": 16, "init": "random", "random_state": seed, "n_jobs": args.jobs}
                model = RGALS(64, LOSSES[method](**of_loss), **how, **of_model)
                started = time.perf_counter()
                model.fit(parts.train)
                seconds.append(time.perf_counter() - started)
                got = evaluate(model, parts.train, parts.test, metrics)
                figures.append([got[metric] for metric in metrics])
            cells = " | ".join(f"{value:.4f}" for value in np.mean(figures, axis=0))
            shown = " ".join(f"{k}={v:.3g}" for k, v in setting.items())
            print(f"| {method} | {cells} | {np.median(seconds):.2f} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
