"""Quality of the SGD reference: tuned on the fixed splits, and by its defaults.

    python benchmarks/sgd_quality.py                      # tuned settings on the fixed splits
    python benchmarks/sgd_quality.py --defaults [SET ...] # plain defaults against popularity and RGALS()
    python benchmarks/sgd_quality.py --grid [SET ...]     # the defaults against a grid around them
    python benchmarks/sgd_quality.py --tables             # prints what --defaults and --grid recorded

Tuned: K=64. Every method has its setting below, found on validation. The number of epochs comes from a fit
that leaves out a tenth of every user's interactions; the model is then fitted to the whole training part and
measured on test: mean and standard deviation over seeds. Published (matrix factorisation, NDCG@20): softmax
0.1264 and BPR 0.1209 on amazon-health-10core, 0.0529 and 0.0527 on amazon-electronics-10core.

Defaults: a fifth of every user's interactions is hidden, NDCG@10, one seed. Beside it `RGALS()` with the same
K on the same part, and CPU seconds of both fits with one thread, a second fit each.

Grid: four fifths train, a tenth is hidden twice. A fit of every temperature and learning rate is judged on
both tenths after several epochs. The best is chosen on either and read on the other; the default is read
there too, and its regret is what it loses, means of both directions. Lines are appended to
``sgd_results.jsonl``; what is recorded is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from rgals import RGALS
from rgals.datasets import read_interactions
from rgals.datasets.given import given
from rgals.datasets.splits import split_interactions
from rgals.matrix.csr import CSR
from rgals.matrix.validate import as_csr
from rgals.metrics import evaluate
from rgals.metrics._served import sample_users
from rgals.sgd import SGDRanker
from rgals.sgd import losses as sgd_losses

DATA = Path(os.environ.get("RGALS_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
METRICS = ("ndcg@20", "recall@20")
OUT = Path(__file__).with_name("sgd_results.jsonl")
METRIC = "ndcg@10"
JUDGED = 3000  # users at most
#: The smallest sets by their interactions.
SMALLEST = (
    "amazon-beauty-10core",
    "amazon-health-10core",
    "ml-100k-10core",
    "ml-100k",
    "ml-latest-small",
    "lastfm-hetrec2011",
    "steam-200k-hours",
)
LOSSES = ("softmax", "sampled_softmax")
TEMPERATURES = (0.12, 0.17, 0.25, 0.35, 0.5)
RATES = (0.05, 0.1, 0.2)  # of learning
EPOCHS = (5, 10, 15, 20, 30, 40, 60)
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
    common = {"K": 64, "score": "cosine", "batch_size": None, "random_state": seed, "n_jobs": jobs, **setting}
    held = SGDRanker(n_epochs=100, early_stopping=True, patience=6, metric="ndcg@20", **common).fit(train)
    found = [record["ndcg@20"] for record in held.history_]
    epochs = int(np.argmax(found)) + 1
    return SGDRanker(n_epochs=epochs, **common).fit(train), epochs, max(found)


def lines(path: Path) -> list[dict[str, Any]]:
    """What is recorded."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def record(path: Path, row: dict[str, Any]) -> None:
    """Append a line."""
    with path.open("a") as file:
        file.write(json.dumps(row, separators=(",", ":")) + "\n")


def parts_of(name: str, shares: tuple[float, ...], seed: int = 0) -> list[CSR]:
    """A set divided per user."""
    matrix = given(read_interactions(DATA / f"{name}.npz")).csr()
    return [as_csr(part, dtype=np.float32) for part in split_interactions(matrix, shares, random_state=seed)]


def judged(factors: Any, train: CSR, hidden: CSR) -> float:
    """NDCG@10 of factors on a hidden part."""
    users = sample_users(hidden, JUDGED, 0)
    return float(evaluate(factors, train, hidden, (METRIC,), users=users, n_jobs=1)[METRIC])


def cpu_seconds(model: Any, train: CSR) -> float:
    """Of a fit."""
    started = time.process_time()
    model.fit(train)
    return time.process_time() - started


def measure_defaults(args: argparse.Namespace) -> None:
    """Plain defaults on a hidden fifth."""
    for name in args.data or SMALLEST:
        parts: list[CSR] = []
        for loss in args.losses:
            row = {"set": name, "loss": loss, "K": args.K, "kind": "default"}
            if any(row.items() <= done.items() for done in lines(args.out)):
                continue
            parts = parts or parts_of(name, (0.8, 0.2))
            train, hidden = parts
            popular = np.ones((train.n_rows, 1)), train.col_counts[:, None].astype(float)
            model = SGDRanker(args.K, loss, random_state=0, n_jobs=1)
            als = RGALS(args.K, random_state=0, n_jobs=1).fit(train)
            seconds = {"als_cpu": cpu_seconds(als, train), "cpu": cpu_seconds(model, train)}
            for key, factors in (
                ("popularity", popular),
                ("als", (als.user_factors_, als.item_factors_)),
                ("ndcg", (model.user_factors_, model.item_factors_)),
            ):
                row[key] = round(judged(factors, train, hidden), 5)
            row |= {key: round(value, 2) for key, value in seconds.items()}
            record(args.out, {**row, "taken": model.params_})
            print(row, flush=True)


def measure_grid(args: argparse.Namespace) -> None:
    """The defaults, and every temperature and learning rate, after several epochs."""
    own = [
        {"temperature": t, "lr": lr, "n_epochs": args.epochs} for t in args.temperatures for lr in args.rates
    ]
    for name in args.data or SMALLEST:
        parts: list[CSR] = []
        for loss, params in ((loss, params) for loss in args.losses for params in [{}, *own]):
            row = {"set": name, "loss": loss, "K": args.K, "kind": "grid", "params": params}
            if any(row.items() <= done.items() for done in lines(args.out)):
                continue
            parts = parts or parts_of(name, (0.8, 0.1, 0.1))
            train, *hidden = parts
            found: list[list[int]] = []

            def look(
                epoch: int, factors: Any, hidden: list = hidden, train: CSR = train, to: list = found
            ) -> None:
                to.append([epoch, *(round(1e5 * judged(factors, train, part)) for part in hidden)])

            def watch(now: Any, look: Any = look) -> None:
                if now.iteration in EPOCHS:
                    look(now.iteration, (now.user_factors, now.item_factors))

            model = SGDRanker(args.K, loss, random_state=0, n_jobs=1, **params)
            model.fit(train, callbacks=watch if params else None)
            if not found or found[-1][0] < model.n_iter_:
                look(model.n_iter_, (model.user_factors_, model.item_factors_))
            record(args.out, {**row, "taken": model.params_, "curve": found})
            print(name, loss, params or model.params_, found[-1], flush=True)


def regret(points: list[list[float]], default: list[int]) -> tuple[float, float, float]:
    """Figures of the best point and of the default on the part that did not choose, and what is lost."""
    pairs = [(max(points, key=lambda point: point[by])[of], default[of]) for by, of in ((-2, -1), (-1, -2))]
    best, reached = np.mean(pairs, axis=0) / 1e5
    return best, reached, 1 - reached / best


def print_losses(rows: dict[tuple[str, str], dict[str, Any]], costs: dict[str, float]) -> None:
    """Every loss by its defaults, on the sets that all were measured on, and what an epoch costs."""
    sets = [name for name in SMALLEST if all((name, loss) in rows for loss in sgd_losses.LOSSES)]
    if not sets:
        return
    print(f"| loss | score | {' | '.join(sets)} | CPU s | epoch |\n{'|' + '---|' * (4 + len(sets))}")

    own = {loss: [rows[name, loss] for name in sets] for loss in sgd_losses.LOSSES}

    def entry(label: str, score: str, rows: list[dict[str, Any]], key: str, cpu: str) -> tuple:
        return label, score, [row[key] for row in rows], sum(row.get(cpu, 0.0) for row in rows)

    table = [entry(f"`{loss}`", of[0]["taken"]["score"], of, "ndcg", "cpu") for loss, of in own.items()]
    first = own[LOSSES[0]]
    table.append(entry("*popularity*", "", first, "popularity", ""))
    table.append(entry("*`RGALS()`*", "", first, "als", "als_cpu"))
    for label, score, figures, seconds in sorted(table, key=lambda one: -float(np.mean(np.log(one[2])))):
        cells = " | ".join(f"{x:.4f}" for x in figures)
        over = f"{costs[name]:.1f}" if (name := label.strip("`")) in costs else ""
        print(f"| {label} | {score} | {cells} | {seconds:.1f} | {over} |")
    print()


def print_tables(args: argparse.Namespace) -> None:
    """What is recorded."""
    rows = lines(args.out)
    defaults = [row for row in rows if row["kind"] == "default"]
    print("| set | loss | K | popularity | default | times | RGALS() | CPU s | of RGALS() | ratio |")
    print("|" + "---|" * 10)
    for row in (row for row in defaults if row["loss"] in LOSSES):
        print(
            f"| {row['set']} | {row['loss']} | {row['K']} | {row['popularity']:.4f} | {row['ndcg']:.4f} "
            f"| {row['ndcg'] / row['popularity']:.2f} | {row['als']:.4f} | {row['cpu']} | {row['als_cpu']} "
            f"| {row['cpu'] / row['als_cpu']:.0f} |"
        )
    below = [(row["set"], row["loss"], row["K"]) for row in defaults if row["ndcg"] < row["popularity"]]
    print(f"\n{len(defaults)} fits, below popularity: {below or 'none'}\n")
    costs = {row["loss"]: row["times"] for row in rows if row["kind"] == "cost" and row["n_negatives"] == 100}
    print_losses({(row["set"], row["loss"]): row for row in defaults if row["K"] == 64}, costs)
    print("| set | loss | K | fits | best: temperature, lr, epochs | default | best | default | regret |")
    print("|" + "---|" * 9)
    lost = []
    grid = [row for row in rows if row["kind"] == "grid"]
    for key in dict.fromkeys((row["set"], row["loss"], row["K"]) for row in grid):
        mine = [row for row in grid if (row["set"], row["loss"], row["K"]) == key]
        points = [
            [row["params"]["temperature"], row["params"]["lr"], *point]
            for row in mine
            if row["params"]
            for point in row["curve"]
        ]
        default = [row for row in mine if not row["params"]]
        if not points or not default:
            continue
        best = max(points, key=lambda point: point[-2] + point[-1])
        ends = [{min(column), max(column)} for column in list(zip(*points, strict=True))[:3]]
        at = [f"{x:g}{' (edge)' if x in end else ''}" for x, end in zip(best, ends, strict=False)]
        taken = default[-1]["taken"]
        own = [f"{taken[name]:.3g}" for name in ("temperature", "lr", "n_epochs")]
        figures = regret(points, default[-1]["curve"][-1])
        lost.append(figures[-1])
        print(
            f"| {' | '.join(map(str, key))} | {len(mine) - len(default)} | {', '.join(at)} "
            f"| {', '.join(own)} | {figures[0]:.4f} | {figures[1]:.4f} | {100 * figures[2]:.1f} % |"
        )
    if lost:
        print(f"\nregret: median {100 * np.median(lost):.1f} %, worst {100 * max(lost):.1f} %")


def measure_tuned(args: argparse.Namespace) -> None:
    """The settings above on test."""
    for name in args.data or SETTINGS:
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


def names(text: str) -> list[str]:
    """Losses separated by commas."""
    return list(sgd_losses.LOSSES) if text == "all" else text.split(",")


def numbers(text: str) -> list[float]:
    """Numbers separated by commas."""
    return [float(part) for part in text.split(",")]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", help=f"{', '.join(SETTINGS)}, or of --defaults and --grid any set")
    parser.add_argument("--methods", nargs="*", help="of softmax, BPR, sampled softmax; default: all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=None)
    for kind in ("defaults", "grid", "tables"):
        parser.add_argument(f"--{kind}", action="store_true")
    parser.add_argument("--losses", type=names, default=LOSSES, help="names, or all")
    parser.add_argument("--K", type=int, default=64)
    parser.add_argument("--temperatures", type=numbers, default=TEMPERATURES)
    parser.add_argument("--rates", type=numbers, default=RATES)
    parser.add_argument("--epochs", type=int, default=max(EPOCHS), help="of a fit of the grid")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    if args.tables:
        print_tables(args)
    elif args.defaults:
        measure_defaults(args)
    elif args.grid:
        measure_grid(args)
    else:
        measure_tuned(args)


if __name__ == "__main__":
    main()
