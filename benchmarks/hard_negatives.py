"""What hard negatives gain and cost: `python benchmarks/hard_negatives.py citeulike-a ml-1m --K 64`.

Quality: a random fifth of every user's interactions is hidden, a fifth of the rest is validation. The weight
of the hard negatives is the one with the best NDCG@20 on validation among 0, 0.5, 1, 2 and 4; all else is as
the rule has it without them. Then the NDCG@20 of the fit without and of the fit with that weight, on what was
hidden; mean over the splits.

Cost (``--cost``): CPU seconds of an iteration with them and without, of the last users, and of `recommend_new`
for 1,000 users, by one thread (wall time of a shared machine says nothing).

Lines go to ``hard_negatives_results.jsonl`` beside this file and are not measured again.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from quality import DATA

from rgals import RGALS, HardNegatives
from rgals.datasets import read_interactions
from rgals.files.journal import Journal
from rgals.matrix.csr import CSR
from rgals.matrix.entries import hold_out
from rgals.matrix.validate import as_csr
from rgals.metrics import evaluate

RESULTS = Path(__file__).with_name("hard_negatives_results.jsonl")
METRIC, HIDDEN, WEIGHTS = "ndcg@20", 0.2, (0.0, 0.5, 1.0, 2.0, 4.0)
SETS = (
    "citeulike-a",
    "amazon-toys-5core",
    "amazon-beauty-5core",
    "anime-5k-users",
    "steam-200k-purchases",
    "ml-1m",
    "lastfm-hetrec2011",
    "ml-100k",
)


def read(name: str) -> CSR:
    """The matrix of a set, without values."""
    X = read_interactions(DATA / f"{name}.npz").matrix
    X.data[:] = 1
    return as_csr(X, dtype=np.float32)


def judged(train: CSR, hidden: CSR, K: int, loss: str, weight: float, n_jobs: int | None) -> dict[str, Any]:
    """A fit: NDCG@20 and seconds."""
    model = RGALS(K, loss, hard_negatives=weight, random_state=0, n_jobs=n_jobs).fit(train)
    figures = evaluate(model, train.to_scipy(), hidden.to_scipy(), METRIC, n_jobs=n_jobs)
    return {METRIC: float(figures[METRIC]), "seconds": model.history_[-1]["seconds"]}


def cost(name: str, K: int, loss: str) -> dict[str, Any]:
    """CPU seconds of one thread: medians of iterations without and with; recommend_new."""
    matrix, found = read(name), {}
    X, new = matrix.to_scipy(), matrix.slice_rows(0, min(1000, matrix.n_rows)).to_scipy()
    for which, hard in (("plain", None), ("hard", HardNegatives(1.0, warmup=1))):
        marks: list[float] = []

        def watch(now: Any, marks: list[float] = marks) -> None:
            marks.append(time.process_time())

        model = RGALS(K, loss, hard_negatives=hard, n_iter=7, random_state=0, n_jobs=1)
        model.fit(X, callbacks=watch)
        ended = time.process_time()
        model.recommend_new(new[:9], n=10)
        began = time.process_time()
        model.recommend_new(new, n=10)
        found[which] = {
            "iteration": float(np.median(np.diff(marks)[1:])),
            "end": ended - marks[-1],
            "recommend_new": time.process_time() - began,
        }
    return found


def quality_table(
    record: Journal, sets: list[str], ladder: list[int], losses: list[str], splits: int
) -> None:
    """Print what is recorded."""
    print(f"| K | loss | set | {METRIC} without | with | gain | weights | splits |")
    print("|---|---|---|---|---|---|---|---|")
    for K in ladder:
        for loss in losses:
            for name in sets:
                taken = [chosen(record, name, K, loss, split) for split in range(splits)]
                rows = [row for row in taken if row is not None]
                if rows:
                    plain, hard = np.mean([row[:2] for row in rows], axis=0)
                    weights = ", ".join(f"{row[2]:g}" for row in rows)
                    gain = 100 * (hard / plain - 1)
                    print(
                        f"| {K} | {loss} | {name} | {plain:.4f} | {hard:.4f} | {gain:+.1f} % | {weights} | {len(rows)} |"
                    )


def cost_table(record: Journal, sets: list[str], ladder: list[int], losses: list[str]) -> None:
    """Print what is recorded."""
    rows = [
        (K, loss, name, record.get(f"cost {name} K{K} {loss}"))
        for K in ladder
        for loss in losses
        for name in sets
    ]
    if any(row[-1] for row in rows):
        print("\n| K | loss | set | CPU s an iteration | with | times | end | recommend_new | times |")
        print("|---|---|---|---|---|---|---|---|---|")
    for K, loss, name, row in rows:
        if row:
            plain, hard = row["plain"], row["hard"]
            times = {what: hard[what] / plain[what] for what in plain}
            print(
                f"| {K} | {loss} | {name} | {plain['iteration']:.3f} | {hard['iteration']:.3f} "
                f"| {times['iteration']:.1f} | {hard['end']:.2f} s | {hard['recommend_new']:.3f} s "
                f"| {times['recommend_new']:.1f} |"
            )


def chosen(record: Journal, name: str, K: int, loss: str, split: int) -> tuple[float, float, float] | None:
    """Figures without and with the weight that validation chose, and that weight."""
    tried = {weight: record.get(key(name, K, loss, split, "validation", weight)) for weight in WEIGHTS}
    if not all(tried.values()):
        return None
    best = max(WEIGHTS, key=lambda weight: tried[weight][METRIC])  # type: ignore[index]
    plain, hard = (record.get(key(name, K, loss, split, "test", weight)) for weight in (0.0, best))
    return (plain[METRIC], hard[METRIC], best) if plain and hard else None


def key(name: str, K: int, loss: str, split: int, part: str, weight: float) -> str:
    """Of a line."""
    return f"{name} K{K} {loss} split={split} {part} weight={weight:g}"


def measure(record: Journal, name: str, K: int, loss: str, split: int, n_jobs: int | None) -> None:
    """What is missing of one split."""
    train, hidden = hold_out(read(name), HIDDEN, split)
    parts = {"validation": hold_out(train, HIDDEN, 100 + split), "test": (train, hidden)}
    for part, (fitted, judge) in parts.items():
        weights = WEIGHTS
        if part == "test":
            found = {w: record.get(key(name, K, loss, split, "validation", w)) for w in WEIGHTS}
            weights = tuple({0.0, max(WEIGHTS, key=lambda w: found[w][METRIC])})  # type: ignore[index]
        for weight in weights:
            at = key(name, K, loss, split, part, weight)
            if not record.get(at):
                record.add(at, judged(fitted, judge, K, loss, weight, n_jobs))
                print(at, record.get(at), flush=True)


def main() -> None:
    """Measure what is missing, print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sets", nargs="*", default=list(SETS))
    parser.add_argument("--K", default="64", help="separated by commas")
    parser.add_argument("--losses", default="rg2", help="separated by commas")
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--cost", action="store_true", help="measure cost in place of quality")
    parser.add_argument("--table", action="store_true", help="print what is recorded")
    args = parser.parse_args()
    ladder, losses = [int(K) for K in args.K.split(",")], args.losses.split(",")
    record = Journal(RESULTS, {"metric": METRIC, "hidden": HIDDEN})
    for K in ladder if not args.table else ():
        for loss in losses:
            for name in args.sets:
                if args.cost:
                    at = f"cost {name} K{K} {loss}"
                    if not record.get(at):
                        record.add(at, cost(name, K, loss))
                for split in range(0 if args.cost else args.splits):
                    measure(record, name, K, loss, split, args.threads)
    quality_table(record, args.sets, ladder, losses, args.splits)
    cost_table(record, args.sets, ladder, losses)


if __name__ == "__main__":
    main()
