"""One ALS iteration of rgals and of other packages, for `speed.py` and `limits.py`.

Everybody gets the same matrix, K, threads and float32, with BLAS on one thread inside row-parallel code. A
method is a function of (X, K, threads, iterations) that fits from scratch and returns the seconds of each
iteration; the first of them may hold compilation and first allocations, and caches fill until the third.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numba
import numpy as np
import scipy.sparse as sp
from threadpoolctl import threadpool_info, threadpool_limits

import rgals
from rgals import IALS, RG2, RGALS, RGX
from rgals.datasets import read_interactions

DATA = Path(os.environ.get("RGALS_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
#: Recorded lines, from which `page.py` writes README.md and docs/speed.md.
RECORD = Path(__file__).with_name("speed_results.jsonl")
Method = Callable[[sp.csr_matrix, int, int, int], list[float]]


def with_rgals(loss, **params) -> Method:
    """Seconds of each iteration of an rgals fit."""

    def run(X, K, threads, iterations):
        how = {"n_iter": iterations, "init": "random", "n_jobs": threads, "random_state": 0}
        model = RGALS(K, loss, **how, **params).fit(X)
        return np.diff([0.0] + [record["seconds"] for record in model.history_]).tolist()

    return run


def with_implicit(use_cg: bool) -> Method:
    """Seconds of each iteration of implicit's ALS, as it reports them itself."""

    def run(X, K, threads, iterations):
        from implicit.cpu.als import AlternatingLeastSquares

        model = AlternatingLeastSquares(
            factors=K, iterations=iterations, use_cg=use_cg, num_threads=threads, random_state=0
        )
        seconds: list[float] = []
        with threadpool_limits(1, "blas"):
            model.fit(X, show_progress=False, callback=lambda i, elapsed, loss: seconds.append(elapsed))
        return seconds

    return run


def with_sampled_implicit(use_cg: bool, rows: int) -> Method:
    """The same on a random sample of the rows of either side, scaled up: its rows are independent.

    The Gramian, computed once a half-step, is counted once. For peers that need minutes an iteration.
    """

    def run(X, K, threads, iterations):
        from implicit.cpu._als import least_squares, least_squares_cg

        rng = np.random.default_rng(0)
        solve = least_squares_cg if use_cg else least_squares
        total = 0.0
        with threadpool_limits(1, "blas"):
            for matrix in (X, X.T.tocsr()):
                fixed = rng.standard_normal((matrix.shape[1], K), np.float32) * 0.01
                sample = rng.choice(matrix.shape[0], min(rows, matrix.shape[0]), replace=False)
                part = matrix[np.sort(sample)]
                out = rng.standard_normal((part.shape[0], K), np.float32) * 0.01
                started = time.perf_counter()
                fixed.T @ fixed
                gramian = time.perf_counter() - started
                started = time.perf_counter()
                solve(part, out, fixed, 0.01, threads)
                rows_alone = time.perf_counter() - started - gramian
                total += gramian + rows_alone * matrix.shape[0] / part.shape[0]
        return [total]

    return run


def with_irspack(solver: str) -> Method:
    """Seconds of each epoch of irspack's iALS."""

    def run(X, K, threads, iterations):
        from irspack import IALSRecommender

        model = IALSRecommender(
            X, n_components=K, alpha0=0.1, reg=0.01, solver_type=solver, max_cg_steps=3, n_threads=threads,
            random_seed=0,
        )  # fmt: skip
        trainer = model._create_trainer()
        seconds = []
        with threadpool_limits(1, "blas"):
            for _ in range(iterations):
                started = time.perf_counter()
                trainer.run_epoch()
                seconds.append(time.perf_counter() - started)
        return seconds

    return run


def with_cmfrec(use_cg: bool) -> Method:
    """Seconds of an iteration of cmfrec's implicit model: what each after the first adds to a fit."""

    def run(X, K, threads, iterations):
        from cmfrec import CMF_implicit

        seconds = []
        coo = X.tocoo()
        with threadpool_limits(1, "blas"):
            for n_iter in (1, iterations):
                model = CMF_implicit(
                    k=K, niter=n_iter, use_cg=use_cg, max_cg_steps=3, finalize_chol=False, nthreads=threads,
                    precompute_for_predictions=False, use_float=True, verbose=False,
                )  # fmt: skip
                started = time.perf_counter()
                model.fit(coo)
                seconds.append(time.perf_counter() - started)
        return [seconds[0], (seconds[1] - seconds[0]) / max(iterations - 1, 1)]

    return run


METHODS: dict[str, Method] = {
    "rgals iALS exact": with_rgals(IALS(0.1), reg=0.01),
    "rgals iALS pcg": with_rgals(IALS(0.1), reg=0.01, solver="pcg"),
    "rgals iALS exact, plain ridge": with_rgals(IALS(0.1), reg=0.01, reg_exponent=0),
    "rgals RG2 exact": with_rgals(RG2(0.05)),
    "rgals RG2 pcg": with_rgals(RG2(0.05), solver="pcg"),
    "rgals RGx exact": with_rgals(RGX(0.05)),
    "rgals RG2 shared": with_rgals(RG2(0.0)),
    "implicit CG(3)": with_implicit(True),
    "implicit Cholesky": with_implicit(False),
    "implicit CG(3), sampled rows": with_sampled_implicit(True, 8000),
    "implicit Cholesky, sampled rows": with_sampled_implicit(False, 1000),
    "irspack CG(3)": with_irspack("CG"),
    "irspack Cholesky": with_irspack("CHOLESKY"),
    "irspack iALS++": with_irspack("IALSPP"),
    "cmfrec CG(3)": with_cmfrec(True),
    "cmfrec Cholesky": with_cmfrec(False),
}
SAMPLED = [name for name in METHODS if "sampled" in name]
APPROXIMATE = [name for name in METHODS if "CG" in name]
EXACT = [
    name
    for name in METHODS
    if not name.startswith("rgals") and name not in APPROXIMATE and name != "irspack iALS++"
]

#: Synthetic stand-ins of the MovieLens sets: users x items x pairs drawn (a pair drawn twice counts once).
SHAPES = {"ml-10m-shaped": "69815x9888x10000000", "ml-20m-shaped": "138493x26744x24000000"}


def load(name: str) -> sp.csr_matrix:
    """A data set's training part, all values 1; a name of `SHAPES`; or ``synthetic:USERSxITEMSxDRAWS``."""
    if name in SHAPES:
        name = f"synthetic:{SHAPES[name]}"
    if name.startswith("synthetic:"):
        n_users, n_items, draws = map(int, name.split(":")[1].split("x"))
        rng = np.random.default_rng(0)
        # Log-normal activity and popularity: the skew of rating data.
        users = rng.choice(n_users, draws, p=_skewed(n_users, 1.1, rng))
        items = rng.choice(n_items, draws, p=_skewed(n_items, 1.5, rng))
        X = sp.csr_matrix((np.ones(draws, np.float32), (users, items)), shape=(n_users, n_items))
    else:
        X = sp.csr_matrix(read_interactions(DATA / f"{name}.npz").train, dtype=np.float32)
    X.data[:] = 1
    return X


def _skewed(n: int, sigma: float, rng: np.random.Generator) -> np.ndarray:
    p = rng.lognormal(0, sigma, n)
    return p / p.sum()


def processor() -> str:
    """Name of the processor, where the system tells it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def describe(threads: int) -> str:
    """Versions, processor, threads and BLAS, for the head of a table."""
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for package in ("implicit", "irspack", "cmfrec"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"{package} not installed")
    libraries = [lib for lib in threadpool_info() if lib["user_api"] == "blas"]
    blas = sorted({f"{lib['internal_api']} {lib['version']} {lib['architecture']}" for lib in libraries})
    return (
        f"rgals {rgals.__version__}, numba {numba.__version__}, numpy {np.__version__}, {', '.join(found)}\n"
        f"{processor()}, {threads} threads, BLAS {', '.join(blas)}, float32"
    )


def record(rows: list[dict], threads: int) -> None:
    """Append measurements, with versions and machine; which BLAS are loaded depends on what ran before."""
    machine = describe(threads).partition(", BLAS")[0]
    with RECORD.open("a") as file:
        file.writelines(json.dumps({**row, "machine": machine}) + "\n" for row in rows)
