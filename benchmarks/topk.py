"""Batch top-K against implicit and numpy: `python benchmarks/topk.py [--out FILE.jsonl]`.

Every method finds the 10 best unseen items of the same users from the same float32 factors, in turns, on the
same number of threads: a round times each method once, the table gives medians over the rounds. implicit
runs twice a round, with BLAS at its default number of threads and at one; the ratio is to the better of the
two. numpy is a chunked matrix product (all threads), seen items set to -inf, `argpartition` and a sort of
what it leaves. The sgemm peak is a product of 2048 x 2048 matrices on every thread, measured in the same
rounds. Compilation is left out.

Factors are normal with log-normal lengths, so that a few items are in many lists, as after a fit. The seen
items are those of amazon-book-kgat where that file is at hand, otherwise random ones of the same number and
shape.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numba
import numpy as np
import scipy
import scipy.sparse as sp
from implicit import __version__ as implicit_version
from implicit.cpu.als import AlternatingLeastSquares
from threadpoolctl import threadpool_info, threadpool_limits

from rgals.runtime.threads import n_threads, workers
from rgals.scoring import topk

DATA = Path(os.environ.get("RGALS_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
N_BEST = 10
CHUNK = 512  # users at once for numpy, which is timed on so many of them


def environment(threads: int) -> dict[str, str]:
    blas = {
        f"{i['internal_api']} {i['version']} {i.get('architecture', '')} ({Path(i['filepath']).parts[-2]})"
        for i in threadpool_info()
        if i["user_api"] == "blas"
    }
    return {
        "threads": str(threads),
        "BLAS": ", ".join(sorted(blas)),
        "versions": f"numpy {np.__version__}, scipy {scipy.__version__}, numba {numba.__version__}, "
        f"implicit {implicit_version}",
    }


def amazon_book(rng: np.random.Generator) -> tuple[str, sp.csr_array]:
    path = DATA / "amazon-book-kgat.npz"
    if path.is_file():
        with np.load(path) as z:
            train = z["split"] == 0
            shape = int(z["user"].max()) + 1, int(z["item"].max()) + 1
            pairs = z["user"][train], z["item"][train]
        return path.stem, sp.csr_array((np.ones(len(pairs[0]), np.float32), pairs), shape=shape)
    return "shape of amazon-book-kgat", random_pairs(rng, 70_679, 24_915, 9)


def random_pairs(rng: np.random.Generator, n_users: int, n_items: int, each: int) -> sp.csr_array:
    rows = np.repeat(np.arange(n_users), each)
    pairs = sp.csr_array(
        (np.ones(len(rows), np.float32), (rows, rng.integers(0, n_items, len(rows)))),
        shape=(n_users, n_items),
    )
    pairs.data[:] = 1  # duplicates were added
    return pairs


def factors(rng: np.random.Generator, rows: int, k: int) -> np.ndarray:
    return rng.standard_normal((rows, k), np.float32) * rng.lognormal(0, 0.5, (rows, 1)).astype(np.float32)


def with_numpy(queries: np.ndarray, items: np.ndarray, seen: sp.csr_array) -> np.ndarray:
    out = np.empty((len(queries), N_BEST), np.int64)
    for start in range(0, len(queries), CHUNK):
        part = slice(start, start + CHUNK)
        scores = queries[part] @ items.T
        rows = seen[part]
        scores[np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr)), rows.indices] = -np.inf
        best = np.argpartition(scores, -N_BEST, axis=1)[:, -N_BEST:]
        order = np.argsort(-np.take_along_axis(scores, best, 1), axis=1)
        out[part] = np.take_along_axis(best, order, 1)
    return out


class Peak:
    """GFLOP/s of 2048 x 2048 float32 products, one on each thread at once."""

    def __init__(self, threads: int) -> None:
        size = 2048
        self.a = np.random.default_rng(0).standard_normal((size, size), np.float32)
        self.out = [np.empty_like(self.a) for _ in range(threads)]
        self.flops = threads * 2 * size**3

    def __call__(self) -> None:
        with workers(), ThreadPoolExecutor(len(self.out)) as pool:
            list(pool.map(lambda out: np.matmul(self.a, self.a, out=out), self.out))


def different_sets(
    ours: np.ndarray, theirs: np.ndarray, queries: np.ndarray, items: np.ndarray
) -> tuple[int, int]:
    """Users whose sets differ, and those of them where rounding does not explain it."""
    rows = np.flatnonzero((np.sort(ours, axis=1) != np.sort(theirs, axis=1)).any(axis=1))
    beyond = 0
    for u in rows:
        odd = np.setxor1d(ours[u], theirs[u])
        products = queries[u].astype(np.float64) * items[odd]
        spread = np.ptp(products.sum(axis=1))
        beyond += spread > 4 * np.finfo(np.float32).eps * np.abs(products).sum(axis=1).max()
    return len(rows), int(beyond)


def measure(name: str, k: int, n_users: int, seen: sp.csr_array, repeats: int, jobs: int | None) -> dict:
    rng = np.random.default_rng(k)
    threads = n_threads(jobs)
    users = np.arange(min(n_users, seen.shape[0]))
    rows = sp.csr_array(seen[users])
    queries, items = factors(rng, len(users), k), factors(rng, seen.shape[1], k)
    model = AlternatingLeastSquares(factors=k, num_threads=threads)
    model.user_factors, model.item_factors = queries, items
    their_rows = sp.csr_matrix(rows)
    peak = Peak(threads)

    def implicit() -> np.ndarray:
        return model.recommend(users, their_rows, N=N_BEST)[0]

    def implicit_one_blas_thread() -> np.ndarray:
        with threadpool_limits(1, "blas"):
            return implicit()

    def numpy_all_threads() -> np.ndarray:
        with threadpool_limits(threads, "blas"):
            return with_numpy(queries[:CHUNK], items, rows[:CHUNK])

    methods: dict[str, Callable] = {
        "rgals": lambda: topk(queries, items, N_BEST, exclude=rows, n_jobs=jobs)[0],
        "implicit": implicit,
        "implicit, BLAS at 1": implicit_one_blas_thread,
        "numpy": numpy_all_threads,
        "peak": peak,
    }
    answers = {method: run() for method, run in methods.items()}  # warms up, compiles
    times = defaultdict(list)
    for _ in range(repeats):
        for method, run in methods.items():
            started = time.perf_counter()
            run()
            times[method].append(time.perf_counter() - started)
    done = {"numpy": min(CHUNK, len(users)), "peak": 1}
    medians = {m: statistics.median(values) / done.get(m, len(users)) for m, values in times.items()}
    peak_rate = peak.flops / min(times["peak"]) / 1e9
    rate = 2 * len(items) * k / medians["rgals"] / 1e9
    peer = min(medians["implicit"], medians["implicit, BLAS at 1"])
    differ, beyond = different_sets(answers["rgals"], answers["implicit"], queries, items)
    return {
        "data": name,
        "users": len(users),
        "items": len(items),
        "seen": int(rows.nnz),
        "K": k,
        **{f"us_per_user {m}": medians[m] * 1e6 for m in methods if m != "peak"},
        "times_implicit": peer / medians["rgals"],
        "times_numpy": medians["numpy"] / medians["rgals"],
        "gflops": rate,
        "sgemm_peak": peak_rate,
        "share_of_peak": rate / peak_rate,
        "users_with_other_sets": differ,
        "beyond_rounding": beyond,
        "repeats": repeats,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--K", type=int, nargs="+", default=[64, 128, 1024])
    parser.add_argument("--users", type=int, default=4096, help="users a call (default: 4096)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--only", choices=["book", "large"], help="one of the two catalogues")
    parser.add_argument("--out", type=Path, help="append JSON lines to this file")
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    cases = []
    if args.only != "large":
        cases.append((*amazon_book(rng), 1.0))
    if args.only != "book":
        cases.append(("300,000 items", random_pairs(rng, max(1, args.users), 300_000, 30), 1 / 2))
    topk(np.ones((1, 1), np.float32), np.ones((1, 1), np.float32), 1)
    setting = environment(n_threads(args.jobs))
    for what, value in setting.items():
        print(f"{what}: {value}")
    print("\nmicroseconds a user, 10 items, seen items removed; x: how many times faster rgals is\n")
    print(
        "| catalogue | K | users | rgals | implicit | implicit, BLAS at 1 | numpy "
        "| x implicit | x numpy | of sgemm peak | other sets |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for name, seen, share in cases:
        for k in args.K:
            users = max(1, int(args.users * share * min(1.0, 512 / k)))
            r = measure(name, k, users, seen, args.repeats, args.jobs)
            cells = [
                f"{r[f'us_per_user {m}']:.1f}" for m in ("rgals", "implicit", "implicit, BLAS at 1", "numpy")
            ]
            print(
                f"| {name} | {k} | {r['users']} | {' | '.join(cells)} "
                f"| {r['times_implicit']:.2f} | {r['times_numpy']:.2f} | "
                f"{r['share_of_peak']:.0%} of {r['sgemm_peak']:.0f} GFLOP/s | {r['users_with_other_sets']} "
                f"({r['beyond_rounding']} beyond rounding) |",
                flush=True,
            )
            if args.out:
                with args.out.open("a") as file:
                    file.write(json.dumps({**setting, **r, "load": os.getloadavg()[0]}) + "\n")


if __name__ == "__main__":
    main()
