"""Everything that only a GPU can show, in one command: `python benchmarks/gpu.py [--out FILE.jsonl]`.

`--table` prints what was recorded in gpu_results.jsonl, and needs no GPU.

Runs the tests that need a device, then measures on the same machine, in the same run:

- the device's limits: bytes a second of a large copy (read and written), float32 operations a second of a
  large product (TF32 off);
- the error of half-steps against the float64 oracle, loss by loss, both sides, both precisions;
- seconds per iteration (an item and a user half-step) on generated data of the shape of MovieLens 20M, beside
  implicit's GPU ALS (where it is installed) and rgals on the CPU. `of limit` is the time that the least
  operations and the gathered bytes take at the device's limits, over the time measured;
- top-K: users a second, training items removed, and the share of the product's limit;
- eigendecompositions on the host and on the device, which decide where a half-step computes its own.

It fits ten minutes: what comes after `--seconds` is left out and said to be.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "gpu_results.jsonl"
sys.path[:0] = [str(ROOT)]  # a machine without a network runs from the checkout

import numpy as np  # noqa: E402
import scipy.sparse as sp  # noqa: E402

from rgals import IALS, RG2, RGALS, RGX, WRMF  # noqa: E402
from rgals.losses import Degrees, Loss  # noqa: E402
from rgals.matrix.validate import as_csr  # noqa: E402
from rgals.runtime.errors import DeviceError, MissingDependencyError  # noqa: E402
from rgals.scoring import topk  # noqa: E402
from rgals.solvers.cuda import Device, open_device  # noqa: E402
from rgals.solvers.cuda.backend import CuPyBackend  # noqa: E402
from rgals.solvers.dense import DenseBackend  # noqa: E402

LOSSES: dict[str, Loss] = {
    "RG2": RG2(0.05),
    "RG2 row-only": RG2(0.0),
    "RG2 item exponent": RG2(0.05, item_exponent=-0.3),
    "RG2 sampled, negative weights": RG2(0.01, n_negatives=900),
    "RGx": RGX(0.05),
    "RGx row-only": RGX(0.0),
    "WRMF": WRMF(4.0),
    "iALS": IALS(0.1),
}
METHODS: dict[str, dict[str, Any]] = {
    "RG2 shared": {"loss": RG2(0.0)},
    "RG2 exact": {"loss": RG2(0.05)},
    "iALS exact": {"loss": IALS(0.1), "reg": 0.01},
    "RGx exact": {"loss": RGX(0.05)},
}


class Report:
    """Prints rows and appends them to a file; knows when time is up."""

    def __init__(self, out: Path | None, seconds: float) -> None:
        self.out, self.end = out, time.monotonic() + seconds
        self.setting: dict[str, Any] = {}

    def title(self, text: str, columns: list[str]) -> None:
        print(f"\n{text}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)

    def row(self, what: str, cells: list[str], **figures: Any) -> None:
        print(f"| {' | '.join(cells)} |", flush=True)
        if self.out:
            with self.out.open("a") as file:
                file.write(json.dumps({"what": what, **self.setting, **figures}) + "\n")

    def late(self, what: str) -> bool:
        if time.monotonic() < self.end:
            return False
        print(f"| {what}: left out, time is up |", flush=True)
        return True


def seconds_of(device: Device, work: Callable[[], Any], repeats: int) -> float:
    """Median over some runs after one to warm up."""
    times = []
    for _ in range(repeats + 1):
        device.xp.cuda.runtime.deviceSynchronize()
        started = time.perf_counter()
        work()
        device.xp.cuda.runtime.deviceSynchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def limits(device: Device, size: int) -> tuple[float, float]:
    """Bytes a second of a copy, operations a second of a float32 product."""
    xp = device.xp
    a = device.upload(np.random.default_rng(0).standard_normal((size, size), np.float32))
    flops = 2 * size**3 / seconds_of(device, lambda: a @ a, 5)
    big, other = (xp.zeros((8 * size, size), np.float32) for _ in range(2))  # several times the cache

    def copy() -> None:
        other[...] = big

    return 2 * big.nbytes / seconds_of(device, copy, 5), flops


def tests(report: Report) -> bool:
    """Run the tests that need a device; whether they passed."""
    command = [
        sys.executable, "-m", "pytest", "tests/solvers/cuda", "-q", "-m", "gpu", "-p", "no:cacheprovider",
        "-o", "addopts=--import-mode=importlib -ra",
    ]  # fmt: skip
    started = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=270)
    last = done.stdout.strip().splitlines()[-1:] or ["no output"]
    if done.returncode:
        print(done.stdout[-6000:], done.stderr[-2000:], sep="\n")
    report.title("Tests that need a device", ["outcome", "seconds"])
    elapsed = time.perf_counter() - started
    report.row("tests", [last[0], f"{elapsed:.0f}"], outcome=last[0], passed=done.returncode == 0)
    return done.returncode == 0


def skewed(n_users: int, n_items: int, nnz: int) -> sp.csr_matrix:
    """Log-normal activity and popularity: the skew of rating data. Duplicates fall together."""
    rng = np.random.default_rng(0)

    def draw(n: int, sigma: float) -> np.ndarray:
        p = rng.lognormal(0, sigma, n)
        return np.searchsorted(np.cumsum(p / p.sum()), rng.random(nnz)).clip(0, n - 1)

    X = sp.csr_matrix(
        (np.ones(nnz, np.float32), (draw(n_users, 1.1), draw(n_items, 1.5))), (n_users, n_items)
    )
    X.data[:] = 1
    return X


def errors(report: Report, device: Device, n_users: int, K: int) -> None:
    """Half-steps against the float64 oracle."""
    X = skewed(n_users, n_users * 3 // 4, n_users * 30)
    columns = ["loss", "float32 users", "float32 items", "float64 users", "float64 items"]
    report.title(f"Largest error over largest factor, against the float64 oracle, K={K}", columns)
    for name, loss in LOSSES.items():
        cells, figures = [name], {}
        for dtype in (np.float32, np.float64):
            users = as_csr(X, dtype=dtype)
            for side in ("users", "items"):
                rows = users if side == "users" else users.transpose()
                coefficients = loss.coefficients(Degrees.of(users))
                make = coefficients.user_side if side == "users" else coefficients.item_side
                terms = make(rows, 0.05, 1.0)
                fixed = np.random.default_rng(1).standard_normal((rows.n_cols, K)).astype(dtype)
                oracle = DenseBackend().half_step(rows, fixed.astype(np.float64), terms).factors
                ours = CuPyBackend(device).half_step(rows, fixed, terms).factors
                error = float(np.abs(ours - oracle).max() / np.abs(oracle).max())
                cells.append(f"{error:.1e}")
                figures[f"{np.dtype(dtype).name} {side}"] = error
        report.row("error", cells, loss=name, K=K, **figures)


def least_work(X: sp.csr_matrix, K: int, method: str) -> tuple[float, float]:
    """Operations and gathered bytes of an iteration, at least."""
    flops, gathered = 0.0, 0.0
    for n in (np.diff(X.indptr).astype(float), np.bincount(X.indices, minlength=X.shape[1]).astype(float)):
        gathered += n.sum() * (4 * K + 4)
        flops += len(n) * K * (K + 1)  # the Gramian that the other side needs
        if method == "RG2 shared":
            flops += 2 * n.sum() * K + 2 * len(n) * K**2
        else:
            primal = n * K * (K + 1) + K**3 / 3 + 2 * K**2 + 2 * n * K
            dual = n**2 * K + n**3 / 3 + 2 * n**2 + 4 * n * K
            flops += np.minimum(primal, dual).sum()
    return flops, gathered


def half_steps(report: Report, device: Device, X: sp.csr_matrix, factors: list[int]) -> None:
    """Milliseconds of RG2's two half-steps: where an iteration's time goes."""
    report.title("Half-steps of RG2, milliseconds, best of four", ["K", "users", "items"])
    rows = as_csr(X, dtype=np.float32)
    coefficients = RG2(0.05).coefficients(Degrees.of(rows))
    for K in factors:
        best = []
        for matrix, make in ((rows, coefficients.user_side), (rows.transpose(), coefficients.item_side)):
            backend, side = CuPyBackend(device), make(matrix, 0.05, 1.0)
            fixed = np.random.default_rng(1).standard_normal((matrix.n_cols, K), np.float32)
            there = backend.upload(fixed)
            work = partial(backend.half_step, matrix, there, side)
            best.append(1e3 * min(seconds_of(device, work, 1) for _ in range(4)))
        report.row(
            "half-steps", [str(K), *(f"{ms:.1f}" for ms in best)], K=K, users_ms=best[0], items_ms=best[1]
        )


def fit_seconds(X: sp.csr_matrix, K: int, device: str, n_iter: int, params: dict[str, Any]) -> float:
    """Seconds of an iteration, the first left out: it uploads, compiles and plans."""
    how = {"n_iter": n_iter, "init": "random", "device": device, "random_state": 0}
    model = RGALS(K=K, **how, **params).fit(X)
    return statistics.median(np.diff([record["seconds"] for record in model.history_]))


def implicit_seconds(X: sp.csr_matrix, K: int, device: Device) -> float | None:
    """implicit's GPU ALS: conjugate gradients, as it is shipped."""
    try:
        from implicit.gpu.als import AlternatingLeastSquares
    except ImportError:
        return None
    stamps: list[float] = []

    def note(*_: Any) -> None:
        device.xp.cuda.runtime.deviceSynchronize()  # its kernels may still run
        stamps.append(time.perf_counter())

    try:
        model = AlternatingLeastSquares(factors=K, iterations=5, regularization=0.01, random_state=0)
        model.fit(X, show_progress=False, callback=note)
    except (RuntimeError, ValueError) as error:  # built without CUDA, or for another version of it
        print(f"implicit cannot use the GPU here: {error}")
        return None
    return statistics.median(np.diff(stamps))


def iterations(
    report: Report,
    device: Device,
    X: sp.csr_matrix,
    factors: list[int],
    rates: tuple[float, float],
    cpu: bool,
) -> None:
    """Seconds per iteration beside the peers."""
    title = f"Seconds per iteration, {X.shape[0]} x {X.shape[1]}, {X.nnz} interactions, float32"
    report.title(
        title, ["K", "method", "GPU", "of limit", "bound by", "CPU", "x CPU", "implicit GPU CG", "x implicit"]
    )
    for K in factors:
        peer = None if report.late(f"K={K}") else implicit_seconds(X, K, device)
        for method, params in METHODS.items():
            if report.late(f"K={K} {method}"):
                continue
            ours = fit_seconds(X, K, "cuda", 5, params)
            flops, gathered = least_work(X, K, method)
            by_bytes, by_flops = gathered / rates[0], flops / rates[1]
            host = None
            if (
                cpu
                and method in ("RG2 shared", "RG2 exact")
                and not report.late(f"K={K} {method} on the CPU")
            ):
                host = fit_seconds(X, K, "cpu", 2, params)
            share = max(by_flops, by_bytes) / ours
            cells = [
                str(K),
                method,
                f"{ours:.4f}",
                f"{share:.0%}",
                "flops" if by_flops > by_bytes else "bytes",
            ]
            cells += ["-", "-"] if host is None else [f"{host:.2f}", f"{host / ours:.0f}"]
            cells += ["-", "-"] if peer is None else [f"{peer:.4f}", f"{peer / ours:.2f}"]
            report.row(
                "iteration", cells, K=K, method=method, seconds=ours, of_limit=share, flops=flops,
                gathered_bytes=gathered, cpu_seconds=host, implicit_seconds=peer, nnz=int(X.nnz),
            )  # fmt: skip


def ranking(report: Report, X: sp.csr_matrix, factors: list[int], flop_rate: float) -> None:
    """Users a second."""
    report.title(
        f"Top 10 of {X.shape[1]} items, {X.shape[0]} users, training items removed, float32",
        ["K", "GPU, users a second", "of the product's limit", "CPU, users a second", "x CPU"],
    )
    rng = np.random.default_rng(0)
    for K in factors:
        if report.late(f"K={K}"):
            continue
        queries = rng.standard_normal((X.shape[0], K), np.float32)
        items = rng.standard_normal((X.shape[1], K), np.float32)
        few = slice(0, min(4096, X.shape[0]))
        rates = []
        for device, part in (("cuda", slice(None)), ("cpu", few)):
            chosen, seen = queries[part], X[part]
            topk(chosen, items, 10, exclude=seen, device=device)
            times = []
            for _ in range(3):
                started = time.perf_counter()
                topk(chosen, items, 10, exclude=seen, device=device)
                times.append(time.perf_counter() - started)
            rates.append(len(chosen) / statistics.median(times))
        share = 2 * X.shape[1] * K * rates[0] / flop_rate
        cells = [str(K), f"{rates[0]:.0f}", f"{share:.0%}", f"{rates[1]:.0f}", f"{rates[0] / rates[1]:.0f}"]
        report.row(
            "topk", cells, K=K, users_per_second=rates[0], of_limit=share, cpu_users_per_second=rates[1]
        )


def eigendecompositions(report: Report, device: Device, factors: list[int]) -> None:
    """float64, host and device."""
    report.title("Eigendecomposition of a K x K matrix, float64, milliseconds", ["K", "host", "device"])
    for K in factors:
        a = np.random.default_rng(0).standard_normal((K, K))
        a = a @ a.T
        on_device = device.upload(a)
        host = seconds_of(device, lambda a=a: np.linalg.eigh(a), 3) * 1e3
        there = seconds_of(device, lambda a=on_device: device.xp.linalg.eigh(a), 3) * 1e3
        report.row("eigh", [str(K), f"{host:.2f}", f"{there:.2f}"], K=K, host_ms=host, device_ms=there)


def recorded(rows: list[dict[str, Any]]) -> str:
    """Tables of recorded lines."""
    text = []
    for what, title, columns in (
        ("iteration", "Seconds an iteration", "method, seconds, cpu_seconds, implicit_seconds"),
        ("half-steps", "Milliseconds of a half-step of RG2 exact", "users_ms, items_ms"),
        ("topk", "Top 10 of the items, users a second", "users_per_second, cpu_users_per_second"),
    ):
        names = columns.split(", ")
        shown = {
            "seconds": "GPU",
            "cpu_seconds": "16 CPU cores",
            "implicit_seconds": "implicit's CG on the GPU",
            "users_ms": "users",
            "items_ms": "items",
            "users_per_second": "GPU",
            "cpu_users_per_second": "16 CPU cores",
        }
        lines = [
            f"| K | {' | '.join(shown.get(name, name) for name in names)} |",
            "|---" * (len(names) + 1) + "|",
        ]
        for row in rows:
            if row["what"] == what:
                cells = ("" if row[n] is None else f"{row[n]:,.3g}" if row[n] < 1e3 else f"{row[n]:,.0f}"
                         for n in names[what == "iteration":])  # fmt: skip
                first = [str(row["K"]), row["method"]] if what == "iteration" else [str(row["K"])]
                lines.append(f"| {' | '.join([*first, *cells])} |")
        text.append(f"{title}:\n\n" + "\n".join(lines))
    wrong = [row for row in rows if row["what"] == "error"]
    worst = {
        name: max(v for row in wrong for k, v in row.items() if name in k) for name in ("float32", "float64")
    }
    figures = ", ".join(f"{value:.1e} in {name}" for name, value in worst.items())
    text.append(f"Largest error over largest factor, {len(wrong)} losses, both sides, K=64: {figures}.")
    return "\n\n".join(text)


def main(arguments: list[str] | None = None) -> int:
    """Run everything; 0 where all tests passed, 1 where one failed, 2 where there is no device."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--K", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument(
        "--shape", type=int, nargs=3, default=[138_493, 26_744, 20_000_000],
        metavar=("USERS", "ITEMS", "INTERACTIONS"),
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=520.0, help="start nothing after so long (520)")
    parser.add_argument("--no-tests", action="store_true")
    parser.add_argument("--table", action="store_true", help="print what was recorded, and stop")
    parser.add_argument("--no-cpu", action="store_true", help="do not measure the CPU path")
    parser.add_argument("--oracle-users", type=int, default=600, help="users of the oracle's data (600)")
    parser.add_argument("--product", type=int, default=8192, help="size of the limiting product (8192)")
    parser.add_argument("--out", type=Path, help="append JSON lines to this file")
    args = parser.parse_args(arguments)
    if args.table:
        print(recorded([json.loads(line) for line in RESULTS.read_text().splitlines()]))
        return 0
    try:
        device = open_device("cuda")
    except (MissingDependencyError, DeviceError) as error:
        print(f"nothing measured: {error}", file=sys.stderr)
        return 2
    report = Report(args.out, args.seconds)
    name = device.xp.cuda.runtime.getDeviceProperties(device.ordinal)["name"].decode()
    report.setting = {
        "device": name,
        "memory": device.memory()[1],
        "cupy": device.xp.__version__,
        "numpy": np.__version__,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
    }
    for key, value in report.setting.items():
        print(f"{key}: {value}")
    passed = True if args.no_tests else tests(report)
    with device.active():
        copy_rate, flop_rate = limits(device, args.product)
        report.title("Limits", ["copy, GB/s", "float32 product, TFLOP/s"])
        cells = [f"{copy_rate / 1e9:.0f}", f"{flop_rate / 1e12:.1f}"]
        report.row("limits", cells, copy=copy_rate, flops=flop_rate)
        errors(report, device, args.oracle_users, 64)
        eigendecompositions(report, device, [*args.K, *([512, 1024] if max(args.K) >= 64 else [])])
    X = skewed(*args.shape)
    half_steps(report, device, X, args.K)
    iterations(report, device, X, args.K, (copy_rate, flop_rate), not args.no_cpu)
    ranking(report, X, args.K, flop_rate)
    return 0 if passed else 1


if __name__ == "__main__" and (code := main()):
    sys.exit(code)
