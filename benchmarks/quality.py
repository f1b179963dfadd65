"""Ranking quality of the losses on real data, each tuned on validation and reported on test.

    python benchmarks/quality.py                       # the recorded settings
    python benchmarks/quality.py --tune 40             # search again: 40 random settings a method

Every method has its own space; a best value at an edge of it is marked ``*`` (widen the space). With
``--tune`` the settings are chosen by NDCG on the validation part; then the model is fitted to training (and,
where the data come with a fixed test part, validation) and measured on test. Fixed splits: recall over
|truth|, training items excluded.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from dataclasses import replace
from pathlib import Path

import numba
import numpy as np
import scipy
from tqdm import tqdm

import rgals
from rgals import IALS, RG2, RGALS, RGX, WRMF
from rgals.datasets import read_interactions
from rgals.metrics import evaluate
from rgals.model_selection import PROTOCOLS, Protocol

DATA = Path(os.environ.get("RGALS_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")

#: name -> loss class and its space: ranges (log-uniform) or lists of choices.
METHODS = {
    "RG2": (
        RG2,
        {"alpha": (0.003, 0.6), "reg": (0.03, 4.0), "reg_exponent": [0.5, 1.0], "user_exponent": [0.0, 0.25]},
    ),
    "RGx": (
        RGX,
        {"alpha": (0.003, 0.6), "reg": (0.03, 4.0), "reg_exponent": [0.5, 1.0], "user_exponent": [0.0, 0.25]},
    ),
    "iALS": (IALS, {"alpha0": (0.01, 1.0), "reg": (0.001, 0.3), "reg_exponent": [0.5, 1.0]}),
    "WRMF plain": (WRMF, {"alpha": (0.3, 100.0), "reg": (0.1, 300.0), "reg_exponent": [0.0]}),
    "WRMF scaled": (WRMF, {"alpha": (0.3, 100.0), "reg": (0.0001, 0.3), "reg_exponent": [0.5, 1.0]}),
}
#: Data set -> protocol and the metrics that its literature reports.
SETS = {
    "amazon-health-10core": (Protocol(split="given"), ("recall@20", "ndcg@20")),
    "amazon-electronics-10core": (Protocol(split="given"), ("recall@20", "ndcg@20")),
    "ml-1m": (PROTOCOLS["stars>=3 5-core user 80/10/10"], ("ndcg@10", "mrr@10", "recall@20")),
}
#: What ``--tune 60 --record`` found (K=64, 16 iterations, seed 0).
RECORDED = Path(__file__).with_name("quality_settings.json")


def draw(space: dict, rng: np.random.Generator) -> dict:
    """One random setting."""
    return {
        name: float(np.exp(rng.uniform(*np.log(values))))
        if isinstance(values, tuple)
        else values[rng.integers(len(values))]
        for name, values in space.items()
    }


def build(method: str, setting: dict, args: argparse.Namespace, seed: int = 0) -> RGALS:
    """The estimator of a setting."""
    of_model = {"reg", "reg_exponent"}
    loss = METHODS[method][0](**{k: v for k, v in setting.items() if k not in of_model})
    rest = {k: v for k, v in setting.items() if k in of_model}
    return RGALS(args.K, loss, n_iter=args.iterations, random_state=seed, **rest)


def validate(method: str, setting: dict, folds: list, metric: str, args: argparse.Namespace) -> float:
    """Mean of the metric over the validation parts: one alone is too small to choose by on a small set."""
    figures = []
    for seed, parts in enumerate(folds):
        model = build(method, setting, args, seed).fit(parts.train)
        figures.append(evaluate(model, parts.train, parts.validation, (metric,))[metric])
    return float(np.mean(figures))


def search(method: str, folds: list, metric: str, args: argparse.Namespace) -> dict:
    """The best of ``args.tune`` random settings on validation."""
    rng = np.random.default_rng(args.seed)
    best, figure = {}, -np.inf
    for _ in tqdm(range(args.tune), desc=method, leave=False, disable=not sys.stderr.isatty()):
        setting = draw(METHODS[method][1], rng)
        got = validate(method, setting, folds, metric, args)
        if got > figure:
            best, figure = setting, got
    return best


def edges(method: str, setting: dict) -> list[str]:
    """Parameters whose value lies within a twentieth of the end of its range."""
    out = []
    for name, values in METHODS[method][1].items():
        if isinstance(values, tuple):
            low, high = np.log(values)
            at = (np.log(setting[name]) - low) / (high - low)
            if not 0.05 < at < 0.95:
                out.append(name)
    return out


def show(setting: dict, marks: list[str]) -> str:
    """A setting in one cell of the table."""
    return " ".join(f"{k}={v:.3g}{'*' if k in marks else ''}" for k, v in setting.items())


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sets", nargs="*", help=f"data sets (default: {', '.join(SETS)})")
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--K", type=int, default=64)
    parser.add_argument("--iterations", type=int, default=16)
    parser.add_argument("--tune", type=int, default=0, metavar="N", help="search N random settings a method")
    parser.add_argument("--folds", type=int, default=4, help="validation parts of a fixed training part")
    parser.add_argument("--record", action="store_true", help="store what the search found as the settings")
    parser.add_argument("--seeds", type=int, default=3, help="random starts of the final fits")
    parser.add_argument("--seed", type=int, default=0, help="of the search")
    parser.add_argument("--jsonl", help="append the rows to this file")
    args = parser.parse_args()
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    versions = {"rgals": rgals, "numpy": np, "scipy": scipy, "numba": numba}
    print(", ".join(f"{name} {module.__version__}" for name, module in versions.items()))
    print(f"Python {platform.python_version()}; K={args.K}, {args.iterations} iterations, {args.seeds} seeds")
    for name in args.sets or SETS:
        if not (DATA / f"{name}.npz").is_file():
            print(f"\n{name}: not here (looked in RGALS_DATA or ../shared/data); skipped")
            continue
        protocol, metrics = SETS.get(name, (Protocol(split="given"), ("recall@20", "ndcg@20")))
        data = read_interactions(DATA / f"{name}.npz")
        parts = protocol.apply(data)
        # A fixed test part is compared with published figures, which train on all of the training part.
        fixed = protocol.split == "given"
        train = (parts.train + parts.validation).tocsr() if fixed else parts.train
        folds = [replace(protocol, seed=seed).apply(data) for seed in range(args.folds if fixed else 1)]
        test_metrics = [f"test {metric}" for metric in metrics]
        tuned = next(metric for metric in metrics if metric.startswith("ndcg"))
        print(f"\n### {name}: {protocol}")
        print(f"{train.shape[0]} users, {train.shape[1]} items, {train.nnz} interactions to train on\n")
        print(f"| method | validation {tuned} | " + " | ".join(test_metrics) + " | seconds | setting |")
        print("|" + "---|" * (len(metrics) + 4))
        for method in args.methods:
            setting = search(method, folds, tuned, args) if args.tune else recorded.get(name, {}).get(method)
            if setting is None:
                print(f"| {method} | no recorded setting: use --tune |")
                continue
            validation = validate(method, setting, folds, tuned, args)
            figures, seconds = [], []
            for seed in range(args.seeds):
                started = time.perf_counter()
                model = build(method, setting, args, seed).fit(train)
                seconds.append(time.perf_counter() - started)
                got = evaluate(model, train, parts.test, metrics)
                figures.append([got[metric] for metric in metrics])
            row = {
                "set": name,
                "method": method,
                "K": args.K,
                "validation": validation,
                "test": dict(zip(metrics, np.mean(figures, axis=0).tolist(), strict=True)),
                "seconds": float(np.median(seconds)),
                "setting": setting,
            }
            cells = [f"{row['validation']:.4f}"] + [f"{value:.4f}" for value in row["test"].values()]
            print(
                f"| {method} | {' | '.join(cells)} | {row['seconds']:.2f} | "
                f"{show(setting, edges(method, setting))} |",
                flush=True,
            )
            if args.record:
                recorded.setdefault(name, {})[method] = setting
                RECORDED.write_text(json.dumps(recorded, indent=1) + "\n")
            if args.jsonl:
                with open(args.jsonl, "a") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
