"""What hard negatives gain and cost: `python benchmarks/hard_negatives.py citeulike-a ml-1m --K 64`.

Quality: a random fifth of every user's interactions is hidden, a fifth of the rest is validation. There the
loss's strength, reg and the item exponent are chosen by NDCG@20 around the rule, without hard negatives;
then, all else as it is, the weight of the hard negatives among 0, 0.5, 1, 2 and 4. The table has the NDCG@20
of the fit without and of the fit with that weight on what was hidden; mean over the splits.

Cost (``--cost``): CPU seconds of an iteration with them and without, of the last users, and of
`recommend_new` for 1,000 users, by one thread (wall time of a shared machine says nothing).

Lines go to ``hard_negatives_results.jsonl`` beside this file and are not measured again.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
from quality import DATA

from rgals import RGALS, HardNegatives
from rgals.datasets import read_interactions
from rgals.files.journal import Journal
from rgals.losses import Degrees, get_loss
from rgals.matrix.csr import CSR
from rgals.matrix.entries import hold_out
from rgals.matrix.validate import as_csr
from rgals.metrics import evaluate

RESULTS = Path(__file__).with_name("hard_negatives_results.jsonl")
METRIC, HIDDEN, WEIGHTS = "ndcg@20", 0.2, (0.0, 0.5, 1.0, 2.0, 4.0)
#: Factors of the rule's strength and reg, and shifts of its item exponent, tried without hard negatives.
AROUND = tuple(itertools.product((1.0, 2.45), (0.6, 1.0, 1.7, 2.9), (0.0, 0.25)))
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


def judged(
    train: CSR, hidden: CSR, K: int, loss: str, around: Any, weight: float, n_jobs: int | None
) -> dict[str, Any]:
    """A fit: NDCG@20 and seconds. ``around``: of the rule, as `AROUND` has it."""
    strength, times, exponent = around
    degrees = Degrees.of(train)
    made = get_loss(loss).resolve(degrees, K)
    name = "alpha0" if loss == "ials" else "alpha"
    taken = made.get_params()
    made.set_params(**{name: strength * taken[name], "item_exponent": taken["item_exponent"] + exponent})
    reg = times * get_loss(loss).defaults(degrees, K)["reg"]
    model = RGALS(K, made, reg=reg, hard_negatives=weight, random_state=0, n_jobs=n_jobs).fit(train)
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
                    figures = f"{plain:.4f} | {hard:.4f} | {gain:+.1f} %"
                    print(f"| {K} | {loss} | {name} | {figures} | {weights} | {len(rows)} |")


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
    around = best(record, [key(name, K, loss, split, "validation", a, 0.0) for a in AROUND], AROUND)
    if around is None:
        return None
    tried = [key(name, K, loss, split, "validation", around, weight) for weight in WEIGHTS]
    weight = best(record, tried, WEIGHTS)
    if weight is None:
        return None
    plain, hard = (record.get(key(name, K, loss, split, "test", around, w)) for w in (0.0, weight))
    return (plain[METRIC], hard[METRIC], weight) if plain and hard else None


def best(record: Journal, keys: list[str], choices: Any) -> Any:
    """The choice with the best figure; None while one is missing."""
    found = [record.get(at) for at in keys]
    if not all(found):
        return None
    return choices[int(np.argmax([row[METRIC] for row in found]))]  # type: ignore[index]


def key(name: str, K: int, loss: str, split: int, part: str, around: Any, weight: float) -> str:
    """Of a line."""
    strength, reg, exponent = around
    settings = f"strength x{strength:g} reg x{reg:g} item exponent {exponent:+g}"
    return f"{name} K{K} {loss} split={split} {part} {settings} weight={weight:g}"


def measure(record: Journal, name: str, K: int, loss: str, split: int, n_jobs: int | None) -> None:
    """What is missing of one split."""
    train, hidden = hold_out(read(name), HIDDEN, split)
    parts = {"validation": hold_out(train, HIDDEN, 100 + split), "test": (train, hidden)}

    def fit(part: str, around: Any, weight: float) -> str:
        at = key(name, K, loss, split, part, around, weight)
        if not record.get(at):
            record.add(at, judged(*parts[part], K, loss, around, weight, n_jobs))
            print(at, record.get(at), flush=True)
        return at

    around = best(record, [fit("validation", around, 0.0) for around in AROUND], AROUND)
    weight = best(record, [fit("validation", around, weight) for weight in WEIGHTS], WEIGHTS)
    for one in {0.0, weight}:
        fit("test", around, one)


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
