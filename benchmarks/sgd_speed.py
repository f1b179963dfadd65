"""Speed of the SGD reference: `python benchmarks/sgd_speed.py [ml-1m]`.

A full-softmax epoch needs 6 M N K floating-point operations (three matrix products); it is compared with the
sgemm peak of the machine, measured in the same run. Sampled epochs are counted in (positive, negative) pairs.
Peak and epochs take turns; the median of their ratios is printed with its 10 % and 90 % quantiles. Sampled
figures are the best of several epochs. Compilation is left out.

`python benchmarks/sgd_speed.py amazon-health-10core --costs`: an epoch of every loss that samples, and of the
encoders, over one of sampled softmax with as many negatives, fitted in turns. `--out FILE` appends lines, of
which `sgd_quality.py --tables` shows the last.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_info

from rgals.datasets import read_interactions
from rgals.matrix.validate import as_csr
from rgals.runtime.threads import n_threads, workers
from rgals.sgd import SGDRanker
from rgals.sgd.losses import LOSSES

DATA = Path(os.environ.get("RGALS_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
SAMPLED = {
    "sampled softmax, 100 uniform negatives": {"n_negatives": 100},
    "sampled softmax, 100 by popularity": {"n_negatives": 100, "sampler": "popularity"},
    "sampled softmax, 100 without positives": {"n_negatives": 100, "exclude_positives": True},
    "BPR, 10 uniform negatives": {"loss": "bpr", "n_negatives": 10},
}


def sgemm_peak(n_jobs: int | None) -> float:
    """GFLOP/s of products of 1024 x 1024 float32 matrices, one on each thread at once."""
    with workers(n_jobs) as threads:
        size = 1024
        rng = np.random.default_rng(0)
        a = rng.standard_normal((size, size), np.float32)
        out = [np.empty_like(a) for _ in range(threads)]
        best = np.inf
        with ThreadPoolExecutor(threads) as pool:
            for _ in range(4):
                started = time.perf_counter()
                list(pool.map(lambda o: np.matmul(a, a, out=o), out))
                best = min(best, time.perf_counter() - started)
    return threads * 2 * size**3 / best / 1e9


def epoch_seconds(X, epochs: int, **params) -> float:
    """Seconds of the fastest epoch after the first."""
    model = SGDRanker(n_epochs=epochs + 1, random_state=0, **params).fit(X)
    times = np.diff([0.0, *(record["seconds"] for record in model.history_)])
    return float(times[1:].min())


def costs(X, n: int, common: dict, out: Path | None) -> None:
    """Seconds an epoch over those of sampled softmax, fitted before and after."""
    cases = {name: ({"loss": name, "temperature": "auto"}, kind.kind) for name, kind in LOSSES.items()}
    for encoder in ("lightgcn", "xsimgcl"):
        cases[encoder] = {"loss": "sampled_softmax", "encoder": encoder}, "encoder"
    sampled = {**common, "batch_size": 1024, "n_negatives": n}
    plain = {**sampled, "loss": "sampled_softmax"}
    for name, (params, kind) in cases.items():
        if kind == "full":
            continue
        own = {**sampled, "batch_size": None} if kind == "list" else sampled
        before, seconds, after = (epoch_seconds(X, 3, **how) for how in (plain, {**own, **params}, plain))
        over = 2 * seconds / (before + after)
        print(f"{name:<24} {kind:<8} {seconds:8.3f} s/epoch, {over:6.2f} x", flush=True)
        line = json.dumps({"kind": "cost", "loss": name, "n_negatives": n, "times": round(over, 2)})
        if out is not None:
            with out.open("a") as file:
                file.write(line + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="?", default="ml-1m")
    parser.add_argument("--K", type=int, default=64)
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--costs", action="store_true")
    parser.add_argument("--negatives", type=int, default=100, help="of --costs")
    parser.add_argument("--out", type=Path, help="of --costs")
    args = parser.parse_args()
    path = Path(args.data) if Path(args.data).exists() else DATA / f"{args.data}.npz"
    X = as_csr(read_interactions(path, min_value=None if args.costs else 3).matrix)
    threads = n_threads(args.jobs)
    blas = [info for info in threadpool_info() if info["user_api"] == "blas"]
    named = sorted(f"{i['internal_api']} {i['version']} {i.get('architecture')}" for i in blas)
    users = int(np.count_nonzero(X.row_counts))
    print(f"{path.stem}: {X.n_rows} x {X.n_cols}, {X.nnz} interactions, K={args.K}")
    print(f"{threads} threads, float32, {named[0]}; load of the machine {os.getloadavg()[0]:.1f}")
    common = {"K": args.K, "n_jobs": args.jobs, "temperature": 0.2, "lr": 0.02, "batch_size": None}
    if args.costs:
        return costs(X, args.negatives, common | {"score": "auto"}, args.out)
    for score in ("dot", "cosine"):
        peaks: list[float] = []
        model = SGDRanker(n_epochs=4 * args.epochs, random_state=0, loss="softmax", score=score, **common)
        # The peak is taken before and after every epoch: other work on the machine slows both.
        model.fit(X, callbacks=lambda now, peaks=peaks: peaks.append(sgemm_peak(args.jobs)))
        seconds = np.diff([record["seconds"] for record in model.history_])
        around = (np.array(peaks[:-1]) + np.array(peaks[1:])) / 2
        rates = 6 * users * X.n_cols * args.K / seconds / 1e9
        low, middle, high = np.quantile(rates / around, (0.1, 0.5, 0.9))
        print(
            f"{'softmax, ' + score:<45} {np.median(seconds):8.3f} s/epoch {np.median(rates):8.1f} GFLOP/s, "
            f"{middle:.1%} ({low:.0%} to {high:.0%}) of the sgemm peak ({np.median(around):.0f})"
        )
        print(json.dumps({"what": f"softmax {score}", "seconds": seconds.tolist(), "peak": around.tolist()}))
    for name, params in SAMPLED.items():
        seconds = epoch_seconds(X, args.epochs, **{"loss": "sampled_softmax", **params}, **common)
        rate = X.nnz * params["n_negatives"] / seconds / 1e6
        print(f"{name:<45} {seconds:8.3f} s/epoch {rate / threads:8.1f} M pairs/s and thread")
        print(json.dumps({"what": name, "seconds": seconds, "threads": threads, "m_pairs": rate}))


if __name__ == "__main__":
    main()
