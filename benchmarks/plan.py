"""What a fit on a cluster takes: seconds, memory and network, from constants that were measured.

    python benchmarks/plan.py --users 1e7 --items 1e6 --interactions 1e9 --K 64 --workers 10 --threads 16
    python benchmarks/plan.py ... --bandwidth 10e9/8       # bytes a second that a worker takes in
    python benchmarks/plan.py --measure                    # the constants of this machine

The model of an iteration of two half-steps::

    seconds = (interactions a + rows b) / threads of all workers      rows: users and items
            + bytes of both sides / bandwidth                         each worker takes in what it has not
            + tasks * 1 ms                                            the scheduler's work
    network = (workers - 1) (M + N) K * bytes of a number, and K x K matrices, and what dask moves besides

``a`` and ``b`` are the seconds of an interaction and of a row in one half-step each, by K: least squares over
``SETS``, one thread, loss RG2, float32, random start. `benchmarks/cluster.py` runs fits beside the model.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass

import numpy as np

#: K: microseconds of an interaction and of a row in an iteration, one thread.
COSTS: dict[int, tuple[float, float]] = {
    64: (0.0733, 1.19),  # 0.726 s, 0.866 s of the two sets
    128: (0.1889, 0.74),  # 1.687 s, 1.395 s
}
MOVED = 0.15  # what dask moves besides, to keep workers busy: 0.12 to 0.25, and 0.5 beside other work
TASK = 1e-3  # seconds of the scheduler
BANDWIDTH = 1.25e9  # bytes a second: 10 Gbit/s
SETS = ("synthetic:69815x9888x10000000", "synthetic:300000x60000x6000000")


@dataclass(frozen=True)
class Cluster:
    """Machines: workers, threads of each, bytes a second that each takes in."""

    workers: int
    threads: int
    bandwidth: float = BANDWIDTH


@dataclass(frozen=True)
class Plan:
    """What an iteration takes, and what a worker holds."""

    computing: float  # seconds
    transfer: float
    tasks: float
    network: float  # bytes, of all workers together
    memory: float  # bytes of a worker

    @property
    def seconds(self) -> float:
        return self.computing + self.transfer + self.tasks


def cost(K: int) -> tuple[float, float]:
    """Seconds of an interaction and of a row: between measured K by their logarithms."""
    known = sorted(COSTS)
    return tuple(
        1e-6 * float(np.exp(np.interp(np.log(K), np.log(known), np.log([COSTS[k][i] for k in known]))))
        for i in (0, 1)
    )


def plan(
    shape: tuple[int, int], nnz: int, K: int, cluster: Cluster, n_blocks: int, itemsize: int = 4
) -> Plan:
    rows, (a, b) = sum(shape), cost(K)
    tables = rows * K * itemsize
    square = 8 * K * K
    squares = 2 * n_blocks * square / cluster.workers + 6 * square  # Gramians; two changes of basis
    network = (cluster.workers - 1) * (tables + squares) * (1 + MOVED)
    tasks = 2 * (3 * n_blocks + 2)
    # Interactions twice, with values or without; both sides' factors; the fixed one as blocks and whole.
    matrix = (2 * 4 * nnz + 200 * rows) / cluster.workers
    memory = matrix + tables / cluster.workers + 2 * max(shape) * K * itemsize
    computing = (nnz * a + rows * b) / (cluster.workers * cluster.threads)
    return Plan(computing, network / cluster.workers / cluster.bandwidth, tasks * TASK, network, memory)


def measure(ks: list[int], repeats: int) -> None:
    """Print the constants of this machine."""
    from peers import load

    from rgals import RGALS

    sets = [load(name) for name in SETS]
    for K in ks:
        seconds = []
        for X in sets:
            model = RGALS(K, n_iter=repeats + 1, init="random", n_jobs=1, random_state=0).fit(X)
            steps = np.diff([0.0, *(row["seconds"] for row in model.history_)])
            seconds.append(statistics.median(steps[1:]))
        terms = np.array([[X.nnz, sum(X.shape)] for X in sets], float)
        a, b = 1e6 * np.linalg.solve(terms, seconds)
        found = ", ".join(f"{s:.3f} s" for s in seconds)
        print(f"    {K}: ({a:.4f}, {b:.2f}),  # {found}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name in ("users", "items", "interactions", "K", "workers", "threads"):
        parser.add_argument(f"--{name}", type=lambda text: int(float(text)), default=0)
    parser.add_argument("--bandwidth", default=str(BANDWIDTH))
    parser.add_argument("--n-blocks", type=int)
    parser.add_argument("--measure", nargs="*", type=int, metavar="K")
    args = parser.parse_args()
    if args.measure is not None:
        measure(args.measure or [32, 64, 128, 256], 2)
        return
    if not all(getattr(args, name) for name in ("users", "items", "interactions", "K", "workers", "threads")):
        parser.error("--users, --items, --interactions, --K, --workers and --threads are needed")
    over, _, under = args.bandwidth.partition("/")
    cluster = Cluster(args.workers, args.threads, float(over) / float(under or 1))
    n_blocks = args.n_blocks or min(max(args.interactions >> 20, 8), 128)
    found = plan((args.users, args.items), args.interactions, args.K, cluster, n_blocks)
    print(f"an iteration   {found.seconds:10.2f} s in {n_blocks} blocks")
    print(f"  computing    {found.computing:10.2f} s on {args.workers * args.threads} threads")
    print(f"  transfer     {found.transfer:10.2f} s, {found.network / 2**30:.2f} GiB")
    print(f"  scheduling   {found.tasks:10.2f} s")
    print(f"a worker       {found.memory / 2**30:10.2f} GiB")
    if n_blocks < args.workers * args.threads:
        print(f"fewer blocks than threads: set n_blocks={2 * args.workers * args.threads} or so")
    if max(args.users, args.items) * args.K * 4 > 10e6 * 128 * 4:
        print("past 10 million rows a side at K=128 both sides should be sharded, which this design does not")


if __name__ == "__main__":
    main()
