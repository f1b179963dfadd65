"""What hard negatives gain and cost: `python benchmarks/hard_negatives.py --K 64 --threads 1`.

Quality: a random fifth of every user's interactions is hidden, a fifth of the rest is validation. There the
loss's strength, reg and the item exponent are chosen by NDCG@20 around the rule, without hard negatives;
then, all else as it is, the weight of the hard negatives among 0, 0.5, 1, 2 and 4. The table has the NDCG@20
of the fit without and of the fit with that weight on what was hidden; mean over the splits. ``--beside`` adds
softmax over cosines by SGD, with the CPU seconds of the fit with hard negatives and with ten times as many,
at the temperature that is best on validation, and EASE with the reg that is best there.

Cost (``--cost``): CPU seconds of an iteration with them and without, of the last users, and of
`recommend_new` for 1,000 users, by one thread (wall time of a shared machine says nothing).

Lines go to ``hard_negatives_results.jsonl`` beside this file and are not measured again: a run that was ended
goes on where it was.
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
from rgals.baselines import EASE
from rgals.datasets import read_interactions
from rgals.files.journal import Journal
from rgals.losses import Degrees, get_loss
from rgals.matrix.csr import CSR
from rgals.matrix.entries import hold_out
from rgals.matrix.validate import as_csr
from rgals.metrics import evaluate
from rgals.sgd import SGDRanker

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
    "amazon-health-10core",
    "amazon-electronics-10core",
    "food-10core",
    "douban-music-10core",
    "beibei-ehcf-buy",
)
#: Of the rule's, for softmax; sums of squares of EASE's reg; items up to which EASE is measured.
TEMPERATURES, EASE_REGS, EASE_ITEMS = (0.5, 0.7, 1.0, 1.4, 2.0), (30.0, 100.0, 300.0, 1000.0), 17_000
BESIDE = ("softmax x1", "softmax x10", "EASE")  # times the seconds of the fit with hard negatives


def read(name: str) -> CSR:
    """The matrix of a set, without values."""
    X = read_interactions(DATA / f"{name}.npz").matrix
    X.data[:] = 1
    return as_csr(X, dtype=np.float32)


def judged(
    train: CSR, hidden: CSR, K: int, loss: str, around: Any, weight: float, n_jobs: int | None
) -> dict[str, Any]:
    """A fit: NDCG@20 and CPU seconds. ``around``: of the rule, as `AROUND` has it."""
    strength, times, exponent = around
    degrees = Degrees.of(train)
    made = get_loss(loss).resolve(degrees, K)
    name = "alpha0" if loss == "ials" else "alpha"
    taken = made.get_params()
    made.set_params(**{name: strength * taken[name], "item_exponent": taken["item_exponent"] + exponent})
    reg = times * get_loss(loss).defaults(degrees, K)["reg"]
    return fitted(
        RGALS(K, made, reg=reg, hard_negatives=weight, random_state=0, n_jobs=n_jobs), train, hidden
    )


def fitted(model: Any, train: CSR, hidden: CSR) -> dict[str, Any]:
    """Fit anything: NDCG@20 and CPU seconds."""
    began = time.process_time()
    model.fit(train)
    found = {"cpu": time.process_time() - began}
    figures = evaluate(model, train.to_scipy(), hidden.to_scipy(), METRIC, n_jobs=model.n_jobs)
    return {METRIC: float(figures[METRIC]), **found}


def softmax(train: CSR, hidden: CSR, K: int, times: float, cpu: float, n_jobs: int | None) -> dict[str, Any]:
    """Softmax over cosines at ``times`` the rule's temperature, as many epochs as some CPU seconds have."""
    options: dict[str, Any] = {"loss": "softmax", "score": "cosine", "random_state": 0, "n_jobs": n_jobs}
    SGDRanker(K, n_epochs=1, **options).fit(train)  # compiles
    began = time.process_time()
    one = SGDRanker(K, n_epochs=1, **options).fit(train)
    n_epochs = max(1, round(cpu / (time.process_time() - began)))
    model = SGDRanker(K, n_epochs=n_epochs, temperature=times * one.params_["temperature"], **options)
    return {**fitted(model, train, hidden), "epochs": n_epochs}


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
    print(
        f"| K | loss | set | {METRIC} without | with | gain | weights | CPU s | with "
        f"| softmax, x1 | x10 | EASE | splits |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    for K in ladder:
        for loss in losses:
            for name in sets:
                taken = [chosen(record, name, K, loss, split) for split in range(splits)]
                rows = [row for row in taken if row is not None]
                if rows:
                    plain, hard, before, after = np.mean(
                        [[row[at][what] for what in (METRIC, "cpu") for at in (0, 1)] for row in rows], axis=0
                    )
                    weights = ", ".join(f"{row[2]:g}" for row in rows)
                    figures = f"{plain:.4f} | {hard:.4f} | {100 * (hard / plain - 1):+.1f} % | {weights}"
                    figures += f" | {before:.1f} | {after:.1f}"
                    for method in BESIDE:
                        found = [
                            record.get(f"{name} K{K} {loss} split={split} {method}")
                            for split in range(splits)
                        ]
                        known = [row[METRIC] for row in found if row]
                        figures += f" | {np.mean(known):.4f}" if known else " | "
                    print(f"| {K} | {loss} | {name} | {figures} | {len(rows)} |")


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


def chosen(record: Journal, name: str, K: int, loss: str, split: int) -> tuple[dict, dict, float] | None:
    """Lines without and with the weight that validation chose, and that weight."""
    around = best(record, [key(name, K, loss, split, "validation", a, 0.0) for a in AROUND], AROUND)
    if around is None:
        return None
    tried = [key(name, K, loss, split, "validation", around, weight) for weight in WEIGHTS]
    weight = best(record, tried, WEIGHTS)
    if weight is None:
        return None
    plain, hard = (record.get(key(name, K, loss, split, "test", around, w)) for w in (0.0, weight))
    return (plain, hard, weight) if plain and hard else None


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


def parts_of(name: str, split: int) -> dict[str, tuple[CSR, CSR]]:
    """What is fitted and what is hidden, of validation and of test."""
    train, hidden = hold_out(read(name), HIDDEN, split)
    return {"validation": hold_out(train, HIDDEN, 100 + split), "test": (train, hidden)}


def measure(record: Journal, name: str, K: int, loss: str, split: int, n_jobs: int | None) -> None:
    """What is missing of one split."""
    parts = parts_of(name, split)

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


def measure_beside(record: Journal, name: str, K: int, loss: str, split: int, n_jobs: int | None) -> None:
    """What is missing of the other methods on one split, after `measure`."""
    taken, parts, at = chosen(record, name, K, loss, split), parts_of(name, split), f"{name} K{K}"
    assert taken is not None
    for method in BESIDE:
        if method == "EASE":
            choices: tuple[float, ...] = EASE_REGS if parts["test"][0].n_cols <= EASE_ITEMS else ()

            def fit(part: str, choice: float) -> dict[str, Any]:
                return fitted(EASE(reg=choice, values="raw", n_jobs=n_jobs), *parts[part])
        else:
            choices = TEMPERATURES

            def fit(part: str, choice: float, longer: float = float(method.split("x")[-1])) -> dict[str, Any]:
                return softmax(*parts[part], K, choice, longer * taken[1]["cpu"], n_jobs)

        for choice in choices:
            tried = f"{at} {loss} split={split} {method} validation {choice:g}"
            if not record.get(tried):
                record.add(tried, fit("validation", choice))
        final = f"{at} {loss} split={split} {method}"
        if choices and not record.get(final):
            keys = [f"{final} validation {choice:g}" for choice in choices]
            choice = best(record, keys, choices)
            record.add(final, {**fit("test", choice), "choice": choice})
            print(final, record.get(final), flush=True)


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
    parser.add_argument("--beside", action="store_true", help="measure softmax by SGD and EASE, too")
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
                    if args.beside:
                        measure_beside(record, name, K, loss, split, args.threads)
    quality_table(record, args.sets, ladder, losses, args.splits)
    cost_table(record, args.sets, ladder, losses)


if __name__ == "__main__":
    main()
