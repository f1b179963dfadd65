"""What a fresh process waits for: importing rgals, and the first fit with a cold and a warm kernel cache.

    python benchmarks/startup.py

numba compiles a kernel when it is first used and keeps it on disk, beside the package or in
``NUMBA_CACHE_DIR``; a second process loads it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile

CODE = """
import time
started = time.perf_counter()
import rgals
imported = time.perf_counter()
from rgals.datasets import make_implicit
X = make_implicit(2000, 1000, random_state=0).matrix
ready = time.perf_counter()
model = rgals.RGALS(K=64, random_state=0, n_iter=2).fit(X)
fitted = time.perf_counter()
model.recommend(range(100))
print(imported - started, fitted - ready, time.perf_counter() - fitted)
"""


def run(cache: str) -> list[float]:
    """Seconds of the import, of the first fit and of the first recommendations in a new process."""
    out = subprocess.run(
        [sys.executable, "-c", CODE],
        env=os.environ | {"NUMBA_CACHE_DIR": cache},
        capture_output=True,
        text=True,
        check=True,
    )
    return [float(x) for x in out.stdout.split()]


def main() -> None:
    """Print the table."""
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        rows.append(("empty cache", run(cache)))
        warm = [run(cache) for _ in range(5)]
    rows.append(
        ("warm cache, median of 5", [statistics.median(column) for column in zip(*warm, strict=True)])
    )
    others = (
        "import time; t = time.perf_counter(); import numba, numpy, scipy.sparse, sklearn.base;"
        "print(time.perf_counter() - t)"
    )
    command = [sys.executable, "-c", others]
    times = [
        float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(5)
    ]
    print("| fresh process | import rgals | first fit | first recommend |")
    print("|---|---|---|---|")
    for name, seconds in rows:
        print(f"| {name} | " + " | ".join(f"{value:.2f}" for value in seconds) + " |")
    print(f"\nimporting numba, scipy.sparse and scikit-learn alone: {statistics.median(times):.2f} s")


if __name__ == "__main__":
    main()
