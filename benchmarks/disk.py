"""From parquet to a fitted model on one machine, larger than its memory: conversion, disk, memory of a tenth.

    python benchmarks/disk.py 1e7                    # 100,000 users, 10,000 items
    python benchmarks/disk.py 1e9 --K 64 --folder /data/shop --record
    python benchmarks/disk.py 1e9 --parts 30         # of 100: as many users and items, 3e8 events

A set with the shape of a large shop is made in parts: n / 100 users of very different activity, n / 1000
items with a power law, events in no order, ids of text. It is converted with a bound on memory and fitted
from its disk; the files are dropped from the page cache before every iteration. Beside it: the fit in memory
of every tenth user, with all items. Each step runs in a process of its own, whose peak of resident memory is
shown.

    python benchmarks/disk.py 1e8 --steps whole spark implicit --iterations 2 --python PATH

``whole`` fits everything in memory; ``spark`` and ``implicit`` fit the same interactions with the interpreter
of ``--python``, which needs pyspark or implicit, and not rgals. The cost of an iteration of Spark is that
of a fit of so many and one, less that of a fit of one: it reads and divides the ratings in each.
``--record`` keeps the figures in benchmarks/disk_results.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parent / "disk_results.jsonl"
PART, CLUSTERS = 10_000_000, 100


def make(folder: Path, n: int, parts: int) -> dict:
    """Parts of events in parquet files; what is there already stays."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    events, n_users, n_items = folder / "events", n // 100, n // 1000
    events.mkdir(parents=True, exist_ok=True)
    began, made = time.perf_counter(), 0
    active = np.cumsum(np.random.default_rng(0).lognormal(0.0, 1.2, n_users))
    active /= active[-1]
    for part, start in enumerate(range(0, min(n, parts * PART), PART)):
        path = events / f"part-{part:04d}.parquet"
        if path.exists():
            continue
        rng, m = np.random.default_rng(part + 1), min(PART, n - start)
        # Searching sorted numbers is several times as fast; users are shuffled by a step that meets all.
        user = np.searchsorted(active, np.sort(rng.random(m, np.float32)), side="right").clip(max=n_users - 1)
        rank = (n_items * rng.random(m, np.float32).astype(np.float64) ** 3).astype(np.int64)
        own = rng.random(m, np.float32) < 0.6  # by the taste of the user's cluster
        item = np.where(own, (rank * 7919 + user % CLUSTERS * (n_items // CLUSTERS)) % n_items, rank)
        order = rng.permutation(m)
        columns = {}
        for name, codes in (("user_id", user[order]), ("item_id", item[order])):
            texts = pc.cast(pa.array(codes + 10 ** len(str(n_users))), pa.string())
            columns[name] = pc.binary_join_element_wise(name[0], texts, "")
        pq.write_table(pa.table(columns), path.with_suffix(".tmp"), compression="snappy")
        path.with_suffix(".tmp").rename(path)
        made += m
    size = sum(path.stat().st_size for path in events.iterdir())
    return {"seconds": time.perf_counter() - began, "made": made, "bytes": size}


def convert(folder: Path, memory: str) -> dict:
    """The store, anew."""
    import shutil

    import pyarrow.parquet as pq

    from rgals.matrix import convert as to_store

    shutil.rmtree(folder / "data.rgals", ignore_errors=True)
    began = time.perf_counter()
    store = to_store(folder / "events", folder / "data.rgals", memory=memory, binarize=True, progress=True)
    seconds = time.perf_counter() - began
    events = sum(pq.ParquetFile(path).metadata.num_rows for path in (folder / "events").iterdir())
    return {"seconds": seconds, "events": events, "shape": store.shape, "nnz": store.nnz, "memory": memory}


def fit(folder: Path, K: int, iterations: int, loss: str, every: int = 0) -> dict:
    """Seconds of every iteration: from the disk, or, with ``every``, of each so manieth user in memory."""
    from rgals import RGALS
    from rgals.matrix import open_matrix
    from rgals.runtime.memory import give_back_freed

    X = open_matrix(folder / "data.rgals").matrix
    if every:
        X = X.take_rows(np.arange(0, X.n_rows, every))
        give_back_freed()
    ends = [time.perf_counter()]

    def after(now: object) -> None:
        ends.append(time.perf_counter())
        if not every:
            for path in (folder / "data.rgals").iterdir():
                with open(path, "rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    model = RGALS(K, loss, n_iter=iterations, init="random", values="raw", random_state=0)
    model.fit(X, callbacks=after)
    whole = time.perf_counter() - ends[0]
    steps = np.diff([0.0, *(record["seconds"] for record in model.history_)]).tolist()
    return {"nnz": X.nnz, "K": K, "loss": loss, "iterations": steps, "fit_seconds": whole}


def pairs(folder: Path) -> Path:
    """Every interaction as two numbers in parquet, made of the store once."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path, store = folder / "pairs.parquet", folder / "data.rgals"
    if not path.exists():
        starts, items = (np.load(store / f"rows_{part}.npy", mmap_mode="r") for part in ("indptr", "indices"))
        schema = pa.schema([("user", pa.int32()), ("item", pa.int32()), ("rating", pa.float32())])
        with pq.ParquetWriter(path, schema) as file:
            for first in range(0, len(starts) - 1, 100_000):
                ends = np.asarray(starts[first : first + 100_001])
                users = np.repeat(np.arange(first, first + len(ends) - 1, dtype=np.int32), np.diff(ends))
                columns = users, np.asarray(items[ends[0] : ends[-1]], np.int32), np.ones(len(users), "f4")
                file.write_table(pa.table(list(columns), schema=schema))
    return path


def spark(folder: Path, K: int, iterations: int) -> dict:
    """Seconds of an iteration of Spark on two threads of one machine; the peak is that of its Java."""
    import pyspark
    from pyspark.ml.recommendation import ALS
    from pyspark.sql import SparkSession

    path, scratch = pairs(folder), folder / "spark"
    build = SparkSession.builder.master("local[2]").appName("disk")
    options = {"driver.memory": "18g", "local.dir": str(scratch), "ui.enabled": "false"}
    options |= {"ui.showConsoleProgress": "false", "sql.shuffle.partitions": "20"}
    for name, value in options.items():
        build = build.config(f"spark.{name}", value)
    session = build.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    session.sparkContext.setCheckpointDir(str(scratch))
    frame = session.read.parquet(str(path))
    seconds = []
    for n in (1, 1 + iterations):
        began = time.perf_counter()
        made = ALS(rank=K, maxIter=n, regParam=0.01, alpha=1.0, implicitPrefs=True, seed=0)
        made.setNumBlocks(20).setIntermediateStorageLevel("MEMORY_AND_DISK_SER").fit(frame)
        seconds.append(time.perf_counter() - began)
    java = int(session.sparkContext._gateway.proc.pid)
    peak = 0
    for status in Path("/proc").glob("[0-9]*/status"):  # the script that starts it has become Java, or not
        try:
            text = status.read_text()
        except OSError:
            continue
        fields = dict(line.split(":", 1) for line in text.splitlines())
        if fields["Name"].strip() == "java" and java in (int(fields["Pid"]), int(fields["PPid"])):
            peak = max(peak, int(fields["VmHWM"].split()[0]) * 1024)
    session.stop()
    step = (seconds[1] - seconds[0]) / iterations
    return {"versions": f"pyspark {pyspark.__version__}", "K": K, "iterations": [seconds[0], step]} | {
        "fit_seconds": seconds[1],
        "java_peak_bytes": peak,
        "nnz": int(np.load(folder / "data.rgals" / "rows_indptr.npy", mmap_mode="r")[-1]),
    }


def implicit(folder: Path, K: int, iterations: int, cg: bool) -> dict:
    """Seconds of the iterations of implicit, which takes the matrix in memory."""
    import implicit.als
    import scipy.sparse as sp

    starts, items = (np.load(folder / "data.rgals" / f"rows_{part}.npy") for part in ("indptr", "indices"))
    shape = len(starts) - 1, int(items.max()) + 1
    X = sp.csr_matrix((np.ones(len(items), np.float32), items, starts), shape=shape)
    seconds: list[float] = []
    made = implicit.als.AlternatingLeastSquares(K, iterations=iterations, use_cg=cg, random_state=0)
    began = time.perf_counter()
    made.fit(X, show_progress=False, callback=lambda _n, elapsed, _loss: seconds.append(elapsed))
    whole = time.perf_counter() - began
    said = f"implicit {implicit.__version__}, {'CG' if cg else 'Cholesky'}"
    return {"versions": said, "nnz": X.nnz, "K": K, "iterations": seconds, "fit_seconds": whole}


def table() -> str:
    """What is recorded, a row a set and a number of factors; of repeated lines the last counts."""
    rows = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    converted = {row["nnz"]: row for row in rows if row["step"] == "convert"}
    fits = {(row["nnz"], row["K"]): row for row in rows if row["step"] == "disk"}
    tenths = [row for row in rows if row["step"] == "memory"]
    head = ["interactions", "users x items", "conversion", "K", "an iteration", "memory"]
    lines = [[*head, "throughput, of that in memory"], ["---"] * 7]
    for (nnz, K), row in sorted(fits.items()):
        of = min(converted.values(), key=lambda other, nnz=nnz: abs(other["nnz"] - nnz))
        beside = [other for other in tenths if other["K"] == K and abs(10 * other["nnz"] / nnz - 1) < 0.2][-1]
        step, part = (float(np.median(found["iterations"][1:])) for found in (row, beside))
        cells = [f"{nnz:,}", "{:,} x {:,}".format(*of["shape"])]
        cells += [f"{of['events'] / of['seconds'] / 1e6:.1f} M/s in {of['peak_bytes'] / 1e9:.1f} GB", str(K)]
        cells += [f"{step:.1f} s", f"{row['peak_bytes'] / 1e9:.1f} GB"]
        lines.append([*cells, f"{part / beside['nnz'] / (step / nnz):.0%}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def beside() -> str:
    """Others on the interactions that Spark fitted, a row each; of repeated lines the last counts."""
    rows = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    (nnz, K) = [(row["nnz"], row["K"]) for row in rows if row["step"] == "spark"][-1]
    names = {"whole": "rgals in memory", "disk": "rgals from disk"}
    names |= {"implicit": "implicit, 3 steps of CG", "implicit-exact": "implicit, Cholesky", "spark": "Spark"}
    lines = ["| | seconds an iteration | memory |", "|---|---|---|"]
    for step, name in names.items():
        row = [row for row in rows if row["step"] == step and (row["nnz"], row["K"]) == (nnz, K)][-1]
        seconds = float(np.median(row["iterations"][1:]))
        version = f" ({row['versions'].partition(',')[0]})" if step == "spark" else ""
        peak = row.get("java_peak_bytes", row["peak_bytes"])
        lines.append(f"| {name}{version} | {seconds:.1f} | {peak / 1e9:.1f} GB |")
    return "\n".join(lines)


def main() -> None:
    """Run the steps, each in its process, and print a line of each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("n", type=float, help="events")
    parser.add_argument("--K", type=int, default=64)
    parser.add_argument("--parts", type=int, default=1000, help="parts of 1e7 events to make at most")
    parser.add_argument("--loss", default="rg2")
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--memory", default="1GB", help="of the conversion")
    parser.add_argument("--folder", type=Path, default=Path("disk-benchmark"))
    parser.add_argument("--steps", nargs="+", default=["make", "convert", "disk", "memory"])
    parser.add_argument("--python", default=sys.executable, help="interpreter with pyspark or implicit")
    parser.add_argument("--only", help=argparse.SUPPRESS)  # the step of this process
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    n = int(args.n)
    folder = args.folder / f"{args.n:.0e}".replace("+", "")
    if args.only:
        steps = {
            "make": lambda: make(folder, n, args.parts),
            "convert": lambda: convert(folder, args.memory),
            "disk": lambda: fit(folder, args.K, args.iterations, args.loss),
            "memory": lambda: fit(folder, args.K, args.iterations, args.loss, 10),
            "whole": lambda: fit(folder, args.K, args.iterations, args.loss, 1),
            "spark": lambda: spark(folder, args.K, args.iterations),
            "implicit": lambda: implicit(folder, args.K, args.iterations, True),
            "implicit-exact": lambda: implicit(folder, args.K, args.iterations, False),
        }
        found = steps[args.only]()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"step": args.only, "set": args.n, **found, "peak_bytes": peak}))
        return
    per: dict[str, float] = {}
    for step in args.steps:
        program = args.python if step in ("spark", "implicit", "implicit-exact") else sys.executable
        command = [program, __file__, *sys.argv[1:], "--only", step]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        line = done.stdout.splitlines()[-1]
        found = json.loads(line)
        if step == "convert":
            print(f"{found['events'] / found['seconds'] / 1e6:.2f} M events a second", end=", ")
        elif step != "make":
            last = float(np.median(found["iterations"][1:]))
            per[step] = last / found["nnz"]
            print(f"{step}: {last:.2f} s an iteration, {per[step] * 1e9:.1f} ns an interaction", end=", ")
        print(f"peak {found['peak_bytes'] / 1e9:.2f} GB: {line}", flush=True)
        if args.record and step != "make":
            with open(RESULTS, "a", encoding="utf-8") as file:
                file.write(line + "\n")
    if {"memory", "disk"} <= per.keys():
        print(f"throughput an interaction: {per['memory'] / per['disk']:.0%} of that in memory")


if __name__ == "__main__":
    main()
