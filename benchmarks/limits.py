"""How far rgals is from what the machine can do, and how it scales.

    python benchmarks/limits.py douban-book-music --K 64 128 256
    python benchmarks/limits.py --scaling --jsonl limits.jsonl --plot limits.png

Calibrated in the same run: float32 matrix products (peak), the very rows of 4 K bytes that the matrix asks
for, gathered from a table and summed (cache), copies of large arrays (memory). The limit of an iteration is::

    sum over both half-steps of   Gramian + half of the product by the basis (flops)
                                + Cholesky factor and its inverse (float64, one core); a basis takes more
                                + the largest of flops of the rows, bytes gathered, compulsory memory traffic

with ``min(dual, primal, iterated)`` flops a row for exact solving: dual ``n^2 K + n^3/3 + 2 n^2 + 4 n K``,
primal ``n K (K + 1) + K^3/3 + 2 K^2 + 2 n K``, iterated five conjugate gradient steps, as few as take a well
conditioned row to rounding; ``2 n K`` where rows share a matrix; ``(s + 1) 4 n K + 2 n K`` for s steps.
"Rows" is the sparse product where rows share a matrix, without the dense phases, against what it gathers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import numba
import numpy as np
import scipy.sparse as sp
from numba import njit
from peers import METHODS, describe, load, record
from threadpoolctl import threadpool_limits

from rgals.kernels import diagonal
from rgals.kernels.gather import gather_sum
from rgals.kernels.queue import spread
from rgals.runtime.aligned import empty
from rgals.runtime.threads import workers
from rgals.scoring import topk

SOLVERS = {"rgals RG2 exact": "exact", "rgals RG2 pcg": "pcg", "rgals RG2 shared": "shared"}
_PRODUCT = "rgals RG2 shared, rows"
_STEPS = 3  # of pcg
_ITERATIONS = 10  # the last is timed, when caches and the host have settled
_LEAST_STEPS = 5  # of an exact solution


def best(function, repeats: int = 5) -> float:
    """Least seconds of a few runs."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return min(times)


@njit(nogil=True)
def _gather(first, stop, indices, factors, K):
    out, one = np.zeros(K, factors.dtype), np.ones(1, factors.dtype)
    n, n_blocks = stop - first, K // (64 // factors.itemsize)
    gather_sum(out, 0, factors, 0, indices, first, one, 0, 0, K, n, n, n_blocks)


def calibrate(threads: int) -> dict[str, float]:
    """Peak flops (float32 and float64) and copied bytes per second."""
    rng = np.random.default_rng(0)
    n = 2048
    rates = {}
    for name, dtype, cores in (("flops", np.float32, threads), ("flops64", np.float64, 1)):
        a = rng.random((n, n)).astype(dtype)
        with threadpool_limits(cores, "blas"):
            a @ a
            rates[name] = 2 * n**3 / best(lambda a=a: a @ a)
    source = np.ones(1 << 26, np.float32)
    target = np.empty_like(source)
    rates["memory"] = 2 * source.nbytes / best(lambda: np.copyto(target, source))
    return rates


def calibrate_gather(rows: sp.csr_matrix, K: int, threads: int) -> float:
    """Bytes gathered per second: factors of the columns of ``rows``, in the matrix's order."""
    table = empty((rows.shape[1] * K,), np.float32)
    table[:] = 1.0
    indices = rows.indices.astype(np.int32)
    with workers(threads) as n_threads:

        def gather() -> None:
            spread(_gather, len(indices), n_threads, indices, table, K)

        gather()
        return 4 * K * len(indices) / best(gather, 10)


@contextmanager
def stopwatch(module: ModuleType, name: str) -> Iterator[list[float]]:
    """Seconds of every call of a function while this lasts."""
    function, seconds = getattr(module, name), []

    def timed(*args):
        started = time.perf_counter()
        function(*args)
        seconds.append(time.perf_counter() - started)

    setattr(module, name, timed)
    try:
        yield seconds
    finally:
        setattr(module, name, function)


def limit(rows: sp.csr_matrix, K: int, kind: str, rates: dict[str, float], gather: float) -> float:
    """Seconds that a half-step cannot beat."""
    n, n_fixed = np.diff(rows.indptr).astype(np.float64), rows.shape[1]
    dual = n**2 * K + n**3 / 3 + 2 * n**2 + 4 * n * K
    primal = n * K * (K + 1) + K**3 / 3 + 2 * K**2 + 2 * n * K
    steps = {s: (s + 1) * 4 * n * K + 2 * n * K for s in (_STEPS, _LEAST_STEPS)}
    flops = {
        "exact": np.minimum(np.where(n <= K, dual, primal), steps[_LEAST_STEPS]).sum(),
        "pcg": steps[_STEPS].sum(),
        "shared": 2 * n.sum() * K + len(n) * K,
    }[kind]
    common = 2 * n_fixed * K * (K + 1) / rates["flops"] + 2 / 3 * K**3 / rates["flops64"]
    compulsory = (4 * n.sum() + 4 * n_fixed * K + 4 * len(n) * K) / rates["memory"]
    return common + max(flops / rates["flops"], 4 * n.sum() * K / gather, compulsory)


def time_solver(
    method: str, X: sp.csr_matrix, K: int, threads: int, repeats: int
) -> tuple[list[float], list[float]]:
    """Seconds of an iteration, and of its sparse products where rows share a matrix, in each of some fits."""
    METHODS[method](X, K, threads, 2)
    iterations, products = [], []
    for _ in range(repeats):
        with stopwatch(diagonal, "solve") as seconds:
            iterations.append(METHODS[method](X, K, threads, _ITERATIONS)[-1])
        if SOLVERS[method] == "shared":  # elsewhere rows without interactions are of this kind
            # A fit ends with the users that belong to the last items: not of any iteration.
            assert len(seconds) == 2 * _ITERATIONS + 1
            products.append(sum(seconds[-3:-1]))
    return iterations, products


def fractions(name: str, X: sp.csr_matrix, Ks: list[int], threads: int, repeats: int) -> list[dict]:
    """Seconds of an iteration of each solver against its limit."""
    rows = []
    sides = X, X.T.tocsr()
    rates = calibrate(threads)
    print("\n| data | K | solver | seconds | limit | fraction | peak GF/s | gather GB/s | copy GB/s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for K in Ks:
        gather = [calibrate_gather(side, K, threads) for side in sides]
        rates["gather"] = 2 / (1 / gather[0] + 1 / gather[1])
        for method, kind in SOLVERS.items():
            iterations, products = time_solver(method, X, K, threads, repeats)
            bound = sum(limit(side, K, kind, rates, rate) for side, rate in zip(sides, gather, strict=True))
            found = [(method, iterations, bound)]
            if products:
                found.append((_PRODUCT, products, 4 * X.nnz * K * sum(1 / rate for rate in gather)))
            for label, times, least in found:
                seconds = statistics.median(times)
                speeds = " | ".join(f"{rates[key] / 1e9:.0f}" for key in ("flops", "gather", "memory"))
                figures = f"{seconds:.4f} | {least:.4f} | {least / seconds:.2f}"
                print(f"| {name} | {K} | {label} | {figures} | {speeds} |", flush=True)
                rows.append(
                    {"what": "limit", "data": name, "K": K, "method": label, "seconds": seconds}
                    | {"limit": least, "rates": dict(rates), "threads": threads}
                )
    return rows


def scoring(X: sp.csr_matrix, K: int, threads: int) -> None:
    """Top-10 of a block of users against the peak of the matrix product."""
    rng = np.random.default_rng(0)
    users = rng.standard_normal((4096, K), np.float32)
    items = rng.standard_normal((X.shape[1], K), np.float32)
    topk(users, items, 10, exclude=X[:4096], n_jobs=threads)
    seconds = best(lambda: topk(users, items, 10, exclude=X[:4096], n_jobs=threads))
    rate = 2 * len(users) * len(items) * K / seconds
    peak = calibrate(threads)["flops"]
    head = f"top-10 of 4096 users x {len(items)} items, K={K}"
    print(f"\n{head}: {rate / 1e9:.0f} GF/s, {rate / peak:.2f} of the peak")


def scaling(threads: int, repeats: int) -> list[dict]:
    """Seconds of an exact iteration over interactions, factors and threads, on synthetic matrices."""
    base = (20000, 10000, 1_000_000, 64)
    cases = [("interactions", (*base[:2], n, 64), threads) for n in (250_000, 500_000, 1_000_000, 2_000_000)]
    cases += [("factors", (*base[:3], K), threads) for K in (16, 32, 64, 128, 256)]
    cases += [("threads", base, t) for t in range(1, threads + 1)]
    rows = []
    print("\n| over | interactions | K | threads | seconds |\n|---|---|---|---|---|")
    for over, (n_users, n_items, draws, K), t in cases:
        X = load(f"synthetic:{n_users}x{n_items}x{draws}")
        METHODS["rgals RG2 exact"](X, K, t, 2)
        seconds = statistics.median(METHODS["rgals RG2 exact"](X, K, t, 3)[-1] for _ in range(repeats))
        print(f"| {over} | {X.nnz} | {K} | {t} | {seconds:.4f} |", flush=True)
        rows.append({"what": "scaling", "over": over, "nnz": X.nnz, "K": K, "threads": t, "seconds": seconds})
    return rows


def plot(rows: list[dict], path: str) -> None:
    """One panel for the fractions of the limit, one for each way to scale."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    keys = {"interactions": "nnz", "factors": "K", "threads": "threads"}
    panels = [over for over in keys if any(row.get("over") == over for row in rows)]
    limits = [row for row in rows if row["what"] == "limit"]
    figure, axes = plt.subplots(
        1, len(panels) + bool(limits), figsize=(5 * (len(panels) + 1), 4), squeeze=False
    )
    for axis, over in zip(axes[0], panels, strict=False):
        points = sorted((row[keys[over]], row["seconds"]) for row in rows if row.get("over") == over)
        axis.plot(*zip(*points, strict=True), "o-")
        axis.set(
            xlabel=over, ylabel="seconds per iteration", xscale="log", yscale="log", title=f"over {over}"
        )
        axis.set_xticks([x for x, _ in points], [f"{x:,}" for x, _ in points])
        axis.set_xticks([], minor=True)
        axis.grid(alpha=0.3, which="both")
    if limits:
        names = [f"{row['data']}\nK={row['K']}\n{row['method'].removeprefix('rgals ')}" for row in limits]
        axes[0][-1].bar(range(len(limits)), [row["limit"] / row["seconds"] for row in limits])
        axes[0][-1].set_xticks(range(len(limits)), names, fontsize=6, rotation=90)
        axes[0][-1].set(ylabel="fraction of the limit", title="against the machine")
    figure.savefig(path, dpi=110, bbox_inches="tight")


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", default=[])
    parser.add_argument("--K", type=int, nargs="*", default=[64, 128, 256])
    parser.add_argument("--topk", action="store_true", help="top-K at the largest K as well")
    parser.add_argument("--scaling", action="store_true", help="over interactions, factors and threads")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=numba.config.NUMBA_NUM_THREADS)
    parser.add_argument("--jsonl", help="append every figure to this file")
    parser.add_argument("--record", action="store_true", help="keep the fractions for docs/speed.md")
    parser.add_argument("--plot", metavar="PNG")
    args = parser.parse_args()
    print(describe(args.threads))
    rows: list[dict] = []
    for name in args.data:
        X = load(name)
        rows += fractions(name, X, args.K, args.threads, args.repeats)
        if args.topk:
            scoring(X, max(args.K), args.threads)
    if args.scaling:
        rows += scaling(args.threads, args.repeats)
    if args.record:
        record([row for row in rows if row["what"] == "limit"], args.threads)
    if args.jsonl:
        with open(args.jsonl, "a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    if args.plot:
        plot(rows, args.plot)


if __name__ == "__main__":
    main()
