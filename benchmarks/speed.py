"""Seconds per full ALS iteration: rgals against other packages, alternating in one process.

    python benchmarks/speed.py ml-1m --K 64 128
    python benchmarks/speed.py synthetic:69815x9888x8240192 --K 64

Everybody gets the same matrix, K, threads and float32; BLAS runs on one thread inside row-parallel code. A
figure is the median over the repeats of the second iteration of a fit, so that compilation and allocation do
not count. ``--fit`` measures whole fits of 16 iterations.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numba
import numpy as np
import scipy.sparse as sp
from threadpoolctl import threadpool_info, threadpool_limits

import rgals
from rgals import IALS, RG2, RGALS, RGX
from rgals.datasets import read_interactions

DATA = Path(os.environ.get("RGALS_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
Fit = Callable[[sp.csr_matrix, int, int, int], list[float]]


def with_rgals(loss, **params) -> Fit:
    """Seconds of each iteration of an rgals fit."""

    def fit(X, K, n_iter, threads):
        model = RGALS(K, loss, n_iter=n_iter, n_jobs=threads, random_state=0, **params).fit(X)
        return np.diff([0.0] + [record["seconds"] for record in model.history_]).tolist()

    return fit


def with_implicit(use_cg: bool) -> Fit:
    """Seconds of each iteration of implicit's ALS, as it reports them itself."""

    def fit(X, K, n_iter, threads):
        from implicit.cpu.als import AlternatingLeastSquares

        model = AlternatingLeastSquares(
            factors=K, iterations=n_iter, use_cg=use_cg, num_threads=threads, random_state=0
        )
        seconds: list[float] = []
        with threadpool_limits(1, "blas"):
            model.fit(X, show_progress=False, callback=lambda i, elapsed, loss: seconds.append(elapsed))
        return seconds

    return fit


METHODS: dict[str, Fit] = {
    "rgals iALS exact": with_rgals(IALS(0.1), reg=0.01),
    "rgals iALS pcg": with_rgals(IALS(0.1), reg=0.01, solver="pcg"),
    "rgals RG2 exact": with_rgals(RG2(0.05)),
    "rgals RGx exact": with_rgals(RGX(0.05)),
    "rgals RG2 shared": with_rgals(RG2(0.0)),
    "implicit CG(3)": with_implicit(True),
    "implicit Cholesky": with_implicit(False),
}


def load(name: str) -> sp.csr_matrix:
    """A data set's training part, all values 1; or ``synthetic:USERSxITEMSxINTERACTIONS``."""
    if name.startswith("synthetic:"):
        n_users, n_items, nnz = map(int, name.split(":")[1].split("x"))
        rng = np.random.default_rng(0)
        # Log-normal activity and popularity: the skew of rating data.
        users = rng.choice(n_users, nnz, p=_skewed(n_users, 1.1, rng))
        items = rng.choice(n_items, nnz, p=_skewed(n_items, 1.5, rng))
        X = sp.csr_matrix((np.ones(nnz, np.float32), (users, items)), shape=(n_users, n_items))
        X.data[:] = 1
        return X
    X = sp.csr_matrix(read_interactions(DATA / f"{name}.npz").train)
    X.data[:] = 1
    return X


def _skewed(n: int, sigma: float, rng: np.random.Generator) -> np.ndarray:
    p = rng.lognormal(0, sigma, n)
    return p / p.sum()


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", default=["ml-1m"])
    parser.add_argument("--K", type=int, nargs="*", default=[64])
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=numba.config.NUMBA_NUM_THREADS)
    parser.add_argument("--fit", action="store_true", help="whole fits of 16 iterations instead")
    parser.add_argument("--jsonl", help="append the rows to this file")
    args = parser.parse_args()
    libraries = [lib for lib in threadpool_info() if lib["user_api"] == "blas"]
    blas = sorted({f"{lib['internal_api']} {lib['version']} {lib['architecture']}" for lib in libraries})
    print(f"rgals {rgals.__version__}, numba {numba.__version__}, numpy {np.__version__}")
    print(f"{platform.machine()}, {args.threads} threads, BLAS {', '.join(blas)}")
    print(f"median of {args.repeats} alternating repeats")
    for name in args.data:
        X = load(name)
        for K in args.K:
            n_iter = 16 if args.fit else 2
            seconds: dict[str, list[float]] = {method: [] for method in args.methods}
            for repeat in range(args.repeats + 1):
                for method in args.methods:
                    started = time.perf_counter()
                    steps = METHODS[method](X, K, n_iter, args.threads)
                    elapsed = time.perf_counter() - started
                    if repeat:  # the first round compiles and warms up
                        seconds[method].append(elapsed if args.fit else steps[-1])
            what = "16 iterations, whole fit" if args.fit else "one iteration"
            print(f"\n{name}: {X.shape[0]} x {X.shape[1]}, {X.nnz} interactions, K={K}, {what}\n")
            print("| method | seconds | fastest | slowest | relative to implicit Cholesky |")
            print("|---|---|---|---|---|")
            base = statistics.median(seconds.get("implicit Cholesky", [float("nan")]))
            for method, values in seconds.items():
                median = statistics.median(values)
                cells = [f"{value:.4f}" for value in (median, min(values), max(values))]
                print("| " + " | ".join([method, *cells, f"{median / base:.2f}"]) + " |")
                if args.jsonl:
                    row = {"data": name, "K": K, "method": method, "seconds": values, "fit": args.fit}
                    with open(args.jsonl, "a") as file:
                        file.write(json.dumps(row | {"threads": args.threads}) + "\n")


if __name__ == "__main__":
    main()
