"""What a start and a number of iterations give: `python benchmarks/start.py --K 64`.

A random fifth of every user's interactions is hidden. After every iteration 1 to 16, from random factors and
from the spectral start, with the rule's parameters: NDCG@10 of up to 5,000 users, the objective, and the CPU
seconds of training so far, the start included (one thread; wall time of a shared machine says nothing). Lines
go to ``start_results.jsonl`` beside this file and are not measured again.

The table says for each start after how many iterations, and what share of the CPU seconds of 16 iterations
from random, NDCG@10 has reached 99 % of what these reach; and how many iterations ``n_iter="auto"`` takes
from the spectral start, with the NDCG@10 and the CPU seconds in per cent of those 16.

``--implicit`` measures plain fits of implicit's ALS (its defaults, K factors) and of rgals in turns, three
times; CPU seconds are the least of these.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from quality import DATA
from threadpoolctl import threadpool_limits

from rgals import RGALS
from rgals.datasets import read_interactions
from rgals.files.journal import Journal
from rgals.losses import Degrees, get_loss
from rgals.matrix.entries import hold_out
from rgals.matrix.validate import as_csr
from rgals.metrics import evaluate
from rgals.metrics._served import sample_users
from rgals.training.fit import SHARE
from rgals.training.run import has_settled

SETS = (
    "food-10core",
    "citeulike-a",
    "amazon-electronics-10core",
    "anime-5k-users",
    "ml-1m",
    "amazon-book-kgat",
    "douban-book-music",
)
RESULTS = Path(__file__).with_name("start_results.jsonl")
METRIC, HIDDEN, USERS, MOST = "ndcg@10", 0.2, 5000, 16


def measure(name: str, K: int, loss: str, init: str, seed: int) -> dict[str, Any]:
    """Figures after every iteration."""
    X = read_interactions(DATA / f"{name}.npz").matrix
    X.data[:] = 1
    train, hidden = hold_out(as_csr(X, dtype=np.float32), HIDDEN, 0)
    users = sample_users(hidden, USERS)
    found: dict[str, Any] = {"cpu": [], METRIC: []}
    spent, since = 0.0, time.process_time()

    def watch(now: Any) -> None:
        nonlocal spent, since
        spent += time.process_time() - since
        factors = now.user_factors, now.item_factors
        figures = evaluate(factors, train, hidden, METRIC, users=users, n_jobs=1)
        found["cpu"].append(round(spent, 4))
        found[METRIC].append(float(figures[METRIC]))
        since = time.process_time()

    matrix = train.to_scipy()
    since = time.process_time()
    model = RGALS(K, loss, n_iter=MOST, init=init, random_state=seed, n_jobs=1).fit(matrix, callbacks=watch)
    rule = get_loss(loss).resolve(Degrees.of(train), K)
    origin = rule.constant(train, rule.coefficients_for(Degrees.of(train)))
    return {**found, "objective": [row["objective"] for row in model.history_], "origin": origin}


def beside(name: str, K: int, losses: list[str]) -> dict[str, Any]:
    """NDCG@10 and CPU seconds of plain fits, implicit's and ours, in turns."""
    from implicit.cpu.als import AlternatingLeastSquares

    X = read_interactions(DATA / f"{name}.npz").matrix
    X.data[:] = 1
    train, hidden = hold_out(as_csr(X, dtype=np.float32), HIDDEN, 0)
    users, matrix = sample_users(hidden, USERS), sp.csr_matrix(train.to_scipy())
    makers: dict[str, Callable[[], Any]] = {
        "implicit": lambda: AlternatingLeastSquares(K, num_threads=1, random_state=0),
        **{loss: lambda loss=loss: RGALS(K, loss, n_jobs=1, random_state=0) for loss in losses},
    }
    seconds: dict[str, list[float]] = {who: [] for who in makers}
    found: dict[str, Any] = {}
    for who, make in [*makers.items()] * 3:
        model, since = make(), time.process_time()
        with threadpool_limits(1):
            model.fit(matrix, **({"show_progress": False} if who == "implicit" else {}))
        seconds[who].append(time.process_time() - since)
        end = "" if who == "implicit" else "_"
        found[who] = tuple(np.asarray(getattr(model, f"{side}_factors{end}")) for side in ("user", "item"))
    return {
        who: {
            "cpu": min(seconds[who]),
            METRIC: float(evaluate(found[who], train, hidden, METRIC, users=users, n_jobs=1)[METRIC]),
        }
        for who in makers
    }


def beside_table(record: Journal, sets: list[str], ladder: list[int], losses: list[str]) -> None:
    """Print plain fits beside implicit's."""
    rows = [(K, name, record.get(f"{name} K{K} plain")) for K in ladder for name in sets]
    rows = [row for row in rows if row[2]]
    if not rows:
        return
    print(f"\n| K | set | implicit | {' | '.join(losses)} |\n|---|---|---|{'---|' * len(losses)}")
    gains = []
    for K, name, row in rows:
        cells = [f"{row['implicit'][METRIC]:.4f}, {row['implicit']['cpu']:.2f} s"]
        for loss in losses:
            times = row["implicit"]["cpu"] / row[loss]["cpu"]
            gains.append((times, row[loss][METRIC] / row["implicit"][METRIC]))
            cells.append(f"{row[loss][METRIC]:.4f}, {row[loss]['cpu']:.2f} s, {times:.1f} x")
        print(f"| {K} | {name} | {' | '.join(cells)} |")
    times, quality = np.array(gains).T
    print(
        f"\nimplicit takes {np.median(times):.1f} times as many seconds in the median ({times.min():.1f} to "
        f"{times.max():.1f}); our NDCG@10 is {np.median(quality):.2f} times its ({quality.min():.2f} to "
        f"{quality.max():.2f})"
    )


def ends(row: dict[str, Any]) -> int:
    """Iterations of ``n_iter="auto"``."""
    history = [{"objective": value} for value in row["objective"]]
    counts = range(2, len(history) + 1)
    return next((n for n in counts if has_settled(row["origin"], SHARE, history[:n])), len(history))


def first(figures: list[float], bound: float) -> int | None:
    """The first iteration that reaches it."""
    return next((n for n, figure in enumerate(figures, 1) if figure >= bound), None)


def table(record: Journal, sets: list[str], ladder: list[int], losses: list[str], seeds: int) -> None:
    """Print what is recorded; figures of several seeds are averaged first."""
    print("| K | set | loss | 16 it | random 99 % | spectral 99 % | auto | NDCG@10 | CPU |")
    print("|---|---|---|---|---|---|---|---|---|")
    shares: dict[str, list[float]] = {"random": [], "spectral": [], "auto": [], "kept": []}
    for K in ladder:
        for name in sets:
            for loss in losses:
                runs = {
                    init: [record.get(key(name, K, loss, init, seed)) for seed in range(seeds)]
                    for init in ("random", "spectral")
                }
                found = {init: [row for row in rows if row] for init, rows in runs.items()}
                if not all(found.values()):
                    continue
                mean = {
                    init: {what: np.mean([row[what] for row in rows], axis=0) for what in ("cpu", METRIC)}
                    for init, rows in found.items()
                }
                top, whole = mean["random"][METRIC][-1], mean["random"]["cpu"][-1]
                cells = []
                for init in ("random", "spectral"):
                    n = first(list(mean[init][METRIC]), 0.99 * top)
                    share = np.inf if n is None else mean[init]["cpu"][n - 1] / whole
                    shares[init].append(share)
                    cells.append("never" if n is None else f"{n} it, {share:.2f}")
                stops = [ends(row) for row in found["spectral"]]
                pairs = list(zip(found["spectral"], stops, strict=True))
                kept = np.mean([row[METRIC][n - 1] for row, n in pairs]) / top
                cost = np.mean([row["cpu"][n - 1] for row, n in pairs]) / whole
                shares["auto"].append(cost)
                shares["kept"].append(kept)
                print(
                    f"| {K} | {name} | {loss} | {top:.4f}, {whole:.1f} s | {' | '.join(cells)} "
                    f"| {np.mean(stops):.1f} it | {100 * kept:.1f} % | {100 * cost:.0f} % |"
                )
    if shares["auto"]:
        print(
            f"\nCPU seconds in units of 16 iterations from random, median of {len(shares['auto'])}: to 99 % "
            f"{np.median(shares['random']):.2f} from random, {np.median(shares['spectral']):.2f} from the "
            f"spectral start; n_iter='auto' {np.median(shares['auto']):.2f}, with "
            f"{100 * np.median(shares['kept']):.1f} % of the NDCG@10 (least {100 * min(shares['kept']):.1f})"
        )


def key(name: str, K: int, loss: str, init: str, seed: int) -> str:
    """Of a line."""
    return f"{name} K{K} {loss} {init} seed={seed}"


def main() -> None:
    """Measure what is missing, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sets", nargs="*", default=list(SETS))
    parser.add_argument("--K", default="64,256,512", help="separated by commas")
    parser.add_argument("--losses", default="rg2,ials", help="separated by commas")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--implicit", action="store_true", help="measure plain fits beside implicit's")
    parser.add_argument("--table", action="store_true", help="print what is recorded")
    args = parser.parse_args()
    ladder, losses = [int(K) for K in args.K.split(",")], args.losses.split(",")
    record = Journal(RESULTS, {"metric": METRIC})
    if args.implicit:
        RGALS(16, n_iter=1).fit(np.eye(100))  # compiles
        for K, name in ((K, name) for K in ladder for name in args.sets):
            if not record.get(f"{name} K{K} plain"):
                record.add(f"{name} K{K} plain", beside(name, K, losses))
                print(name, K, flush=True)
    elif not args.table:
        RGALS(16, init="spectral", n_iter=1).fit(np.eye(100))  # compiles
        for K in ladder:
            for name in args.sets:
                for loss in losses:
                    for seed in range(args.seeds):
                        for init in ("random", "spectral"):
                            at = key(name, K, loss, init, seed)
                            if not record.get(at):
                                record.add(at, measure(name, K, loss, init, seed))
                                print(at, flush=True)
    table(record, args.sets, ladder, losses, args.seeds)
    beside_table(record, args.sets, ladder, losses)


if __name__ == "__main__":
    main()
