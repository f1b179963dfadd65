"""Seconds per full ALS iteration: rgals against other packages, alternating in one process.

    python benchmarks/speed.py douban-book-music --K 64 128
    python benchmarks/speed.py ml-10m-shaped --K 64 --skip "cmfrec Cholesky"
    python benchmarks/speed.py amazon-book-kgat --K 1024 --methods "rgals RG2 exact" "implicit CG(3)"
    python benchmarks/speed.py ml-1m --fit          # whole fits of 16 iterations, rgals and implicit
    python benchmarks/speed.py ml-1m --memory       # peak memory, each method in a process of its own

A figure is the median over the repeats of the last iteration of a fit of four, so that compilation, first
allocations and cold caches do not count (``--iterations 2`` spares time where an iteration takes seconds).
Packages that are not installed are left out by name. ``--jsonl`` keeps every repeat; ``--plot`` draws what
the file holds. ``--record`` keeps figures for README.md and docs/speed.md, which `page.py` writes.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

import numba
import numpy as np
from peers import METHODS, SAMPLED, describe, load, record

from rgals import RGALS


def measure(
    data: str, K: int, methods: list[str], repeats: int, threads: int, iterations: int
) -> dict[str, list[float]]:
    """Seconds of an iteration for each repeat of each method; the methods alternate."""
    X = load(data)
    seconds: dict[str, list[float]] = {method: [] for method in methods}
    for repeat in range(repeats + 1):
        for method in [m for m in methods if m in seconds]:
            if repeat == 0 and method in SAMPLED:
                continue  # nothing to compile or to warm
            try:
                steps = METHODS[method](X, K, threads, iterations)
            except ImportError as error:
                print(f"{method}: left out ({error})")
                del seconds[method]
                continue
            if repeat:  # the first round compiles and warms up
                seconds[method].append(steps[-1])
    return seconds


def whole_fits(data: str, K: int, repeats: int, threads: int) -> dict[str, list[float]]:
    """Seconds of fits of 16 iterations, everything included."""
    from implicit.cpu.als import AlternatingLeastSquares
    from threadpoolctl import threadpool_limits

    X = load(data)
    seconds: dict[str, list[float]] = {}
    for repeat in range(repeats + 1):
        for name in ("rgals RG2 exact", "implicit CG(3)", "implicit Cholesky"):
            started = time.perf_counter()
            if name.startswith("rgals"):
                RGALS(K, n_iter=16, init="random", n_jobs=threads, random_state=0).fit(X)
            else:
                with threadpool_limits(1, "blas"):
                    AlternatingLeastSquares(
                        factors=K, iterations=16, use_cg="CG" in name, num_threads=threads, random_state=0
                    ).fit(X, show_progress=False)
            if repeat:
                seconds.setdefault(name, []).append(time.perf_counter() - started)
    return seconds


def peak_memory(data: str, K: int, method: str, threads: int) -> float | None:
    """Growth of the resident memory at a method's peak, in MB, in a fresh process that holds the matrix."""
    code = (
        "import ctypes, gc, sys, peers\n"
        "def kib(name): return int(open('/proc/self/status').read().split(name + ':')[1].split()[0])\n"
        "data, K, method, threads = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])\n"
        "X = peers.load(data)\n"
        "small = X[:200]\n"
        "peers.METHODS[method](small[:, small.getnnz(0) > 0].tocsr(), 16, threads, 2)\n"
        "gc.collect(), ctypes.CDLL(None).malloc_trim(0)  # what reading left free is no room for the fit\n"
        "open('/proc/self/clear_refs', 'w').write('5')  # the high-water mark starts anew\n"
        "before = kib('VmRSS')\n"
        "peers.METHODS[method](X, K, threads, 2)\n"
        "print((kib('VmHWM') - before) / 1024)\n"
    )
    command = [sys.executable, "-c", code, data, str(K), method, str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=sys.path[0], check=False)
    return float(done.stdout.split()[-1]) if done.returncode == 0 else None


def predicted_memory(data: str, K: int, threads: int) -> float:
    """``2 CSR + 2 (M + N) K b + threads K^2 b`` in MB, b = 4 bytes, binary."""
    X = load(data)
    csr = 4 * X.nnz + 8 * (sum(X.shape) + 2) / 2
    return (2 * csr + 2 * sum(X.shape) * K * 4 + threads * K * K * 4) / 2**20


def show(seconds: dict[str, list[float]]) -> None:
    """A table; the ratios are to the fastest peer of each kind in it."""
    medians = {method: statistics.median(values) for method, values in seconds.items() if values}
    peers = {m: s for m, s in medians.items() if not m.startswith("rgals")}
    best = {
        "CG peer": min((s for m, s in peers.items() if "CG" in m), default=float("nan")),
        "exact peer": min((s for m, s in peers.items() if "Cholesky" in m), default=float("nan")),
        "implicit CG": min((s for m, s in peers.items() if "implicit CG" in m), default=float("nan")),
    }
    print(
        "| method | seconds | fastest | slowest | " + " | ".join(f"best {kind} / it" for kind in best) + " |"
    )
    print("|---|---|---|---|---|---|---|")
    for method, median in medians.items():
        cells = [f"{value:.4f}" for value in (median, min(seconds[method]), max(seconds[method]))]
        cells += [f"{value / median:.2f}" for value in best.values()]
        print("| " + " | ".join([method, *cells]) + " |", flush=True)


def plot(jsonl: str, path: str) -> None:
    """Seconds over K from the lines of ``--jsonl``: a panel for each set that was measured at several K."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with open(jsonl) as file:
        rows = [row for row in map(json.loads, file) if row["what"] == "iteration"]
    ladders = {row["data"]: {r["K"] for r in rows if r["data"] == row["data"]} for row in rows}
    names = [name for name, ladder in ladders.items() if len(ladder) > 1]
    figure, axes = plt.subplots(
        1, len(names), figsize=(6 * len(names), 4.5), squeeze=False, layout="constrained"
    )
    methods = list(dict.fromkeys(row["method"] for row in rows))
    colours = dict(zip(methods, plt.cm.tab20(np.linspace(0, 1, max(len(methods), 2))), strict=False))
    for axis, name in zip(axes[0], names, strict=True):
        for method in methods:
            points = {
                r["K"]: statistics.median(r["seconds"])
                for r in rows
                if (r["data"], r["method"]) == (name, method)
            }
            if points:
                ks = sorted(points)
                style = "o-" if method.startswith("rgals") else "s--"
                axis.plot(ks, [points[k] for k in ks], style, color=colours[method], label=method)
        axis.set(title=name, xlabel="factors K", ylabel="seconds per iteration", xscale="log", yscale="log")
        ticks = sorted({row["K"] for row in rows if row["data"] == name})
        axis.set_xticks(ticks, [str(k) for k in ticks])
        axis.set_xticks([], minor=True)
        axis.grid(alpha=0.3, which="both")
    lines = {line.get_label(): line for axis in axes[0] for line in axis.get_lines()}
    order = [method for method in methods if method in lines]
    axes[0][-1].legend(
        [lines[m] for m in order], order, fontsize=8, loc="center left", bbox_to_anchor=(1.02, 0.5)
    )
    figure.savefig(path, dpi=110, bbox_inches="tight")


def main() -> None:
    """Run the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", default=["ml-1m"])
    parser.add_argument("--K", type=int, nargs="*", default=[64])
    parser.add_argument("--methods", nargs="*", choices=list(METHODS), help="default: all but the sampled")
    parser.add_argument("--skip", nargs="*", default=[], choices=list(METHODS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=4, help="of a fit, of which the last counts")
    parser.add_argument("--threads", type=int, default=numba.config.NUMBA_NUM_THREADS)
    parser.add_argument("--fit", action="store_true", help="whole fits of 16 iterations instead")
    parser.add_argument("--memory", action="store_true", help="peak memory instead (Linux)")
    parser.add_argument("--jsonl", help="append every figure to this file")
    parser.add_argument("--record", action="store_true", help="keep iterations or memory for the pages")
    parser.add_argument("--plot", metavar="PNG", help="draw the file given by --jsonl and stop")
    args = parser.parse_args()
    if args.plot:
        plot(args.jsonl, args.plot)
        return
    methods = [
        m for m in args.methods or METHODS if m not in args.skip and (args.methods or m not in SAMPLED)
    ]
    print(describe(args.threads))
    for name in args.data:
        X = load(name)
        for K in args.K:
            head = f"\n{name}: {X.shape[0]} x {X.shape[1]}, {X.nnz} interactions, K={K}"
            if args.memory:
                print(
                    f"{head}, peak memory beyond the matrix\n\n| method | MB | of the bound |\n|---|---|---|"
                )
                bound = predicted_memory(name, K, args.threads)
                for method in methods:
                    peak = peak_memory(name, K, method, args.threads)
                    if args.record and peak is not None:
                        row = {"what": "memory", "data": name, "K": K, "method": method, "mb": peak}
                        record([row | {"bound": bound}], args.threads)
                    text = "failed | " if peak is None else f"{peak:.0f} | {peak / bound:.2f}"
                    print(f"| {method} | {text} |", flush=True)
                print(f"\nbound: 2 CSR + 2 (M + N) K b + threads K^2 b = {bound:.0f} MB")
                continue
            what = "fit" if args.fit else "iteration"
            print(f"{head}, one {what}, median of {args.repeats} alternating repeats\n")
            if args.fit:
                seconds = whole_fits(name, K, args.repeats, args.threads)
            else:
                seconds = measure(name, K, methods, args.repeats, args.threads, args.iterations)
            show(seconds)
            rows = [
                {"data": name, "K": K, "method": method, "seconds": values, "what": what}
                for method, values in seconds.items()
                if values
            ]
            if args.record and not args.fit:
                record(rows, args.threads)
            if args.jsonl:
                with open(args.jsonl, "a") as file:
                    file.writelines(json.dumps(row | {"threads": args.threads}) + "\n" for row in rows)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\npeak memory of this process: {peak:.0f} MB")


if __name__ == "__main__":
    main()
