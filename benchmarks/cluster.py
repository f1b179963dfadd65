"""DaskRGALS on a LocalCluster of two processes of one thread against RGALS with two threads, beside the plan.

    python benchmarks/cluster.py                        # ml-10m-shaped, K=128
    python benchmarks/cluster.py ml-20m-shaped --K 64 --workers 2

Fits alternate; a figure is the median over the iterations but the first. Bytes are those that workers took
from each other, as dask counts them.
"""

from __future__ import annotations

import argparse
import statistics

import dask
import numpy as np
from peers import load
from plan import Cluster, plan

from rgals import RGALS
from rgals.cluster import DaskRGALS


def steps(model: RGALS) -> list[float]:
    """Seconds of the iterations but the first, which compiles and warms up."""
    return np.diff([row["seconds"] for row in model.history_]).tolist()


def received(dask_worker) -> int:
    """Bytes that a worker has taken from others."""
    return sum(entry["total"] for entry in dask_worker.transfer_incoming_log)


def main() -> None:
    from distributed import Client, LocalCluster

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", nargs="?", default="ml-10m-shaped")
    parser.add_argument("--K", type=int, default=128)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--n-blocks", type=int)
    args = parser.parse_args()
    X = load(args.data)
    setting = {"K": args.K, "n_iter": args.iterations, "init": "random", "random_state": 0}
    seconds: dict[str, list[float]] = {"one process": [], "cluster": []}
    moved = []
    dask.config.set({"distributed.admin.low-level-log-length": 100_000})
    with (
        LocalCluster(args.workers, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        for _ in range(args.repeats):
            local = RGALS(**setting, n_jobs=args.workers).fit(X)
            seconds["one process"] += steps(local)

            def count(now) -> None:
                moved.append((now.iteration, sum(client.run(received).values())))

            model = DaskRGALS(**setting, client=client, n_blocks=args.n_blocks).fit(X, callbacks=count)
            seconds["cluster"] += steps(model)
    found = {name: statistics.median(values) for name, values in seconds.items()}
    differences = [b - a for (i, a), (_, b) in zip(moved[:-1], moved[1:], strict=True) if i < args.iterations]
    n_blocks = len(model._snapshot.users)
    planned = plan(X.shape, X.nnz, args.K, Cluster(args.workers, 1), n_blocks)
    off = abs(model.history_[-1]["objective"] / local.history_[-1]["objective"] - 1)
    print(
        f"{args.data}, K={args.K}, {n_blocks} blocks, {X.nnz:,} interactions; objectives differ by {off:.1e}"
    )
    for name, values in seconds.items():
        each = ", ".join(f"{value:.3f}" for value in values)
        print(f"{name:12} {found[name]:7.3f} s an iteration ({each})")
    print(f"cluster / one process {found['cluster'] / found['one process']:.2f}")
    mib, by = statistics.median(differences) / 2**20, planned.network / 2**20
    print(f"network {mib:.1f} MiB an iteration, planned {by:.1f}: {mib / by:.2f} of it")
    parts = (
        f"{planned.computing:.3f} computing, {planned.transfer:.3f} transfer, {planned.tasks:.3f} scheduling"
    )
    ratio = found["cluster"] / planned.seconds
    print(f"planned {planned.seconds:.3f} s ({parts}): measured is {ratio:.2f} of it")


if __name__ == "__main__":
    main()
