"""Recommendations for everybody: rate and memory: `python benchmarks/batch.py [--large] [--record]`.

Every method finds the 10 best unseen items of the same users from the same float32 factors, in turns on the
same number of threads; the table gives the median over the rounds. `recommend_all` also writes the lists,
with text ids, to a file. implicit runs with BLAS at one thread and at its default, numpy is a chunked product
with `argpartition` and a sort of what it leaves. Compilation is left out. Processor time (least of the
rounds) is what a busy machine cannot spoil.

With ``--large``, a million users and 100,000 items at K=64 are written to parquet, once, and nothing is
compared; ``--users`` takes a part of the users. Peak memory is that of the process, beside what it takes with
the model.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from implicit.cpu.als import AlternatingLeastSquares
from peers import record
from threadpoolctl import threadpool_limits
from topk import CHUNK, amazon_book, environment, factors, with_numpy

from rgals import Positions
from rgals.matrix.csr import CSR
from rgals.matrix.validate import as_csr
from rgals.model.ranking import FactorRanker, Snapshot
from rgals.runtime.threads import n_threads
from rgals.scoring import recommend_all

N_BEST = 10
NUMPY_USERS = 8 * CHUNK


class Model(FactorRanker):
    """Given factors."""

    def __init__(self, snapshot: Snapshot, n_jobs: int | None) -> None:
        self._snapshot, self.n_jobs = snapshot, n_jobs


def memory(name: str) -> float:
    """MiB: VmRSS is now, VmHWM the peak."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(name + r":\s*(\d+)", status)[1]) / 1024  # type: ignore[index]


def compare(k: int, n_users: int | None, repeats: int, jobs: int | None, folder: Path) -> list[dict]:
    rng = np.random.default_rng(0)
    name, seen = amazon_book(rng)
    seen = seen[:n_users]
    threads, n_users = n_threads(jobs), seen.shape[0]
    P, Q = factors(rng, n_users, k), factors(rng, seen.shape[1], k)
    user_ids = np.array([f"user {u}" for u in range(n_users)])
    item_ids = np.array([f"item {i}" for i in range(seen.shape[1])])
    model = Model(Snapshot(P, Q, as_csr(seen), user_ids, item_ids), jobs)
    theirs = AlternatingLeastSquares(factors=k, num_threads=threads)
    theirs.user_factors, theirs.item_factors = P, Q
    everybody, rows = np.arange(n_users), seen.tocsr()
    their_rows = sp.csr_matrix(seen)

    def implicit() -> object:
        return theirs.recommend(everybody, their_rows, N=N_BEST)

    def implicit_one() -> object:
        with threadpool_limits(1, "blas"):
            return implicit()

    def numpy() -> object:
        with threadpool_limits(threads, "blas"):
            return with_numpy(P[:NUMPY_USERS], Q, rows[:NUMPY_USERS])

    methods: dict[str, Callable[[], object]] = {
        "rgals recommend": lambda: model.recommend(Positions(everybody), N_BEST),
        "rgals recommend_all, npz": lambda: recommend_all(model, folder / "recs.npz", N_BEST),
        "rgals recommend_all, parquet": lambda: recommend_all(model, folder / "recs.parquet", N_BEST),
        "rgals recommend_all, csv": lambda: recommend_all(model, folder / "recs.csv", N_BEST),
        "implicit recommend": implicit,
        "implicit recommend, BLAS at 1": implicit_one,
        "numpy argpartition": numpy,
    }
    model.recommend(Positions(everybody[:64]), N_BEST)
    times, work = defaultdict(list), defaultdict(list)
    for _ in range(repeats):
        for method, run in methods.items():
            started, busy = time.perf_counter(), time.process_time()
            run()
            times[method].append(time.perf_counter() - started)
            work[method].append(time.process_time() - busy)
    done = {"numpy argpartition": min(NUMPY_USERS, n_users)}
    return [
        {
            "data": name,
            "users": n_users,
            "items": len(Q),
            "K": k,
            "method": method,
            "users_per_second": done.get(method, n_users) / statistics.median(seconds),
            "fastest": done.get(method, n_users) / min(seconds),
            "slowest": done.get(method, n_users) / max(seconds),
            "cpu_us_per_user": min(work[method]) / done.get(method, n_users) * 1e6,
        }
        for method, seconds in times.items()
    ]


def large(n_users: int, jobs: int | None, folder: Path) -> dict:
    n_items, k, each = 100_000, 64, 20
    rng = np.random.default_rng(0)
    indices = np.sort(rng.integers(0, n_items, (n_users, each), dtype=np.int32), axis=1)
    indices += np.arange(each, dtype=np.int32)  # strictly increasing, so no duplicates
    np.minimum(indices, n_items - each + np.arange(each, dtype=np.int32), out=indices)
    seen = CSR(np.arange(n_users + 1) * each, indices.ravel(), np.empty(0, np.float32), n_items)
    model = Model(Snapshot(factors(rng, n_users, k), factors(rng, n_items, k), seen), jobs)
    recommend_all(model, folder / "few.parquet", N_BEST, users=np.arange(64))  # compilation
    model.fingerprint()
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
    before = memory("VmRSS")
    busy = time.process_time()
    written = recommend_all(model, folder / "recs.parquet", N_BEST, verbose=1)
    return {
        "data": "generated",
        "users": n_users,
        "items": n_items,
        "K": k,
        "method": "rgals recommend_all, parquet",
        "seconds": written.seconds,
        "cpu_seconds": time.process_time() - busy,
        "users_per_second": n_users / written.seconds,
        "gflops": 2 * n_users * n_items * k / written.seconds / 1e9,
        "mib_model": before,
        "mib_more": memory("VmHWM") - before,
        "mib_file": (folder / "recs.parquet").stat().st_size / 2**20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--K", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--large", action="store_true", help="a million users, 100,000 items")
    parser.add_argument("--users", type=int, help="a part of them (default: all)")
    parser.add_argument(
        "--record", action="store_true", help="keep the rates for README.md and docs/speed.md"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.large:
            records = [large(args.users or 1_000_000, args.jobs, folder)]
        else:
            records = compare(args.K, args.users, args.repeats, args.jobs, folder)
    setting = environment(n_threads(args.jobs))
    for what, value in setting.items():
        print(f"{what}: {value}")
    if args.large:
        r = records[0]
        print(
            f"\n{r['users']} users x {r['items']} items, K={r['K']}: {r['seconds']:.1f} s, "
            f"{r['users_per_second']:.0f} users/s, {r['gflops']:.0f} GFLOP/s, "
            f"{r['cpu_seconds']:.1f} s of processor time; process with model "
            f"{r['mib_model']:.0f} MiB, peak {r['mib_more']:.0f} MiB more; file {r['mib_file']:.0f} MiB"
        )
    else:
        first = records[0]
        print(f"\n{first['data']}: {first['users']} users, {first['items']} items, K={first['K']}; users/s\n")
        print("| method | median | slowest | fastest | CPU time, us a user |")
        print("|---|---|---|---|---|")
        for r in records:
            rates = " | ".join(f"{r[key]:,.0f}" for key in ("users_per_second", "slowest", "fastest"))
            print(f"| {r['method']} | {rates} | {r['cpu_us_per_user']:.0f} |")
    if args.record:
        what = {"what": "lists of many users" if args.large else "lists", "load": os.getloadavg()[0]}
        record([{**what, **row} for row in records], n_threads(args.jobs))


if __name__ == "__main__":
    main()
