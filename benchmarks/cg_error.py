"""Errors of half-steps in float32, three conjugate gradient steps and exact ones: rgals and implicit.

    python benchmarks/cg_error.py ml-1m --K 32 64 128 256

All solve the users of the same WRMF problem, which implicit states too, against the same item factors; the
approximate ones start from the user factors of the iteration before. Printed: ``|P - P*|_F / |P*|_F``, P* by
the exact solver in float64 (`tests/test_cg.py` compares that with numpy). implicit's Cholesky is left out
beyond K=256, where it takes minutes.
"""

from __future__ import annotations

import argparse

import numpy as np
from implicit.cpu._als import least_squares, least_squares_cg
from peers import describe, load, record
from threadpoolctl import threadpool_limits

from rgals import WRMF
from rgals.losses import Degrees
from rgals.matrix.validate import as_csr
from rgals.runtime.threads import n_threads
from rgals.solvers.als import Problem
from rgals.solvers.cpu import CPUBackend

ALPHA, REG, STEPS = 10.0, 5.0, 3


def errors(X, K: int, iterations: int) -> dict[str, float]:
    """Relative errors after ``iterations`` exact iterations from a random start."""
    users = as_csr(X)
    loss = WRMF(ALPHA)
    problem = Problem.of(users, loss, loss.coefficients(Degrees.of(users)), REG, 0.0)
    side = problem.coefficients.user_side(problem.users, REG, 0.0)
    item_side = problem.coefficients.item_side(problem.items, REG, 0.0)
    P = np.random.default_rng(0).standard_normal((X.shape[0], K), np.float32) * K**-0.5
    for _ in range(iterations):
        Q = CPUBackend().half_step(problem.items, P, item_side).factors
        P = CPUBackend().half_step(problem.users, Q, side).factors
    Q = CPUBackend().half_step(problem.items, P, item_side).factors
    exact = CPUBackend().half_step(problem.users, Q.astype(np.float64), side).factors
    found = {}
    step = CPUBackend(steps=STEPS).half_step(problem.users, Q, side, out=P.copy(), warm=True)
    found["rgals pcg"] = step.factors
    confidence = X.copy()
    confidence.data[:] = 1 + ALPHA
    found["implicit CG"] = P.copy()
    found["rgals exact"] = CPUBackend().half_step(problem.users, Q, side).factors
    with threadpool_limits(1, "blas"):
        least_squares_cg(confidence, found["implicit CG"], Q, REG, 0, STEPS)
        if K <= 256:
            found["implicit Cholesky"] = P.copy()
            least_squares(confidence, found["implicit Cholesky"], Q, REG, 0)
    return {name: float(np.linalg.norm(F - exact) / np.linalg.norm(exact)) for name, F in found.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="?", default="ml-1m")
    parser.add_argument("--K", type=int, nargs="*", default=[32, 64, 128, 256])
    parser.add_argument("--record", action="store_true", help="keep them for docs/speed.md")
    args = parser.parse_args()
    threads = n_threads(None)
    print(describe(threads))
    X = load(args.data)
    print(f"\n{args.data}, WRMF alpha={ALPHA:g}, reg={REG:g}, {STEPS} steps\n")
    names: list[str] = []
    for K in sorted(args.K):
        for iterations in (1, 5):
            row = errors(X, K, iterations)
            if not names:
                names = list(row)
                print("| K | after iteration | " + " | ".join(names) + " |\n|---|---|" + "---|" * len(names))
            cells = [f"{row[name]:.2e}" if name in row else "" for name in names]
            print(f"| {K} | {iterations} | " + " | ".join(cells) + " |", flush=True)
            if args.record:
                key = {"what": "error", "data": args.data, "K": K, "iteration": iterations}
                record([{**key, "method": name, "error": error} for name, error in row.items()], threads)


if __name__ == "__main__":
    main()
