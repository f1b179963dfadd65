"""Cost of `evaluate` against the bare matrix product and against implicit: `python benchmarks/evaluation.py`.

Random float32 factors, ten training and five test items a user. In turns: ten metrics at cutoffs up to 20
(`rgals.metrics.evaluate`), AUC on top of them, `implicit.evaluation.ranking_metrics_at_k` (four metrics), and
the product that all of them need, in blocks of 512 users on all threads, its results thrown away. Medians of
the rounds; compilation is left out. ``--users 100000 --items 100000 --no-auc`` needs about 40 seconds a round
on two cores.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict

import numpy as np
import scipy.sparse as sp
from implicit.cpu.als import AlternatingLeastSquares
from implicit.evaluation import ranking_metrics_at_k
from threadpoolctl import threadpool_limits

from rgals.metrics import evaluate
from rgals.runtime.threads import n_threads

TEN = (
    "ndcg@10",
    "ndcg@20",
    "mrr@10",
    "map@10",
    "recall@20",
    "capped_recall@20",
    "precision@10",
    "hit_rate@10",
)
TEN += ("rbp@20", "nrbp@20")
BLOCK = 512


def interactions(rng: np.random.Generator, n_users: int, n_items: int) -> tuple[sp.csr_matrix, sp.csr_matrix]:
    """Fifteen different items a user, the first ten for training."""
    step = rng.integers(1, n_items // 15, n_users)[:, None]
    items = (rng.integers(0, n_items, n_users)[:, None] + step * np.arange(15)) % n_items
    rows = np.arange(n_users)[:, None]
    out = []
    for part in (slice(0, 10), slice(10, 15)):
        cols = items[:, part]
        pairs = np.broadcast_to(rows, cols.shape).ravel(), cols.ravel()
        out.append(sp.csr_matrix((np.ones(cols.size, np.float32), pairs), shape=(n_users, n_items)))
    return out[0], out[1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--users", type=int, default=4096)
    parser.add_argument("--items", type=int, nargs="+", default=[4000, 25_000, 100_000])
    parser.add_argument("--K", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--auc", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--jobs", type=int, default=None)
    args = parser.parse_args()
    threads = n_threads(args.jobs)
    print(f"{args.users} users, K={args.K}, {threads} threads; milliseconds\n")
    print(
        "| items | product | ten metrics | of the product | with AUC | implicit, four metrics | x implicit |"
    )
    print("|---|---|---|---|---|---|---|")
    for n_items in args.items:
        rng = np.random.default_rng(0)
        P = rng.standard_normal((args.users, args.K), np.float32)
        Q = rng.standard_normal((n_items, args.K), np.float32)
        train, test = interactions(rng, args.users, n_items)
        model = AlternatingLeastSquares(factors=args.K, num_threads=threads)
        model.user_factors, model.item_factors = P, Q
        out = np.empty((BLOCK, n_items), np.float32)

        def product(P=P, Q=Q, out=out) -> None:
            for start in range(0, len(P), BLOCK):
                part = P[start : start + BLOCK]
                np.matmul(part, Q.T, out=out[: len(part)])

        def peer(model=model, train=train, test=test) -> None:
            with threadpool_limits(1, "blas"):
                ranking_metrics_at_k(model, train, test, K=20, show_progress=False, num_threads=threads)

        data = (P, Q), train, test
        methods = {
            "product": product,
            "ten": lambda data=data: evaluate(*data, TEN, n_jobs=args.jobs),
            "auc": lambda data=data: evaluate(*data, (*TEN, "auc"), n_jobs=args.jobs),
            "implicit": peer,
        }
        if not args.auc:
            del methods["auc"]
        few = P[:BLOCK], Q
        evaluate(few, train[:BLOCK], test[:BLOCK], (*TEN, "auc"), n_jobs=args.jobs)  # compiles
        product(few[0])
        times = defaultdict(list)
        for _ in range(args.repeats):
            for name, run in methods.items():
                started = time.perf_counter()
                run()
                times[name].append(time.perf_counter() - started)
        t = {name: statistics.median(values) * 1e3 for name, values in times.items()}
        share, ahead = t["ten"] / t["product"], t["implicit"] / t["ten"]
        auc = f"{t['auc']:.0f}" if args.auc else ""
        print(
            f"| {n_items} | {t['product']:.0f} | {t['ten']:.0f} | {share:.2f} | {auc} "
            f"| {t['implicit']:.0f} | {ahead:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
