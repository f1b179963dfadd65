"""Truncated Newton against ALS and Adam on one objective: `python benchmarks/newton.py [SET] [--K 64]`.

`--table` and `--plot` show what is recorded in ``newton_results.jsonl``, where every run appends a line.

The RG losses' paper names the rates of optimisers (Table 2) and measures no second-order method. This is
one: SciPy's Newton-CG and its trust region by Krylov subspaces on the factors of both sides at once, with
exact products of the Hessian of RG2, which take two sparse products and two Gramians. All methods start at
random factors of one scale and minimise the same objective, in double precision. Printed is the gap to the
lowest value that any of them found, relative to the fall from the start, against CPU seconds. Derivatives
are checked by central differences before.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.optimize import minimize

from rgals import RG2, RGALS
from rgals.datasets import read_interactions
from rgals.datasets.given import given
from rgals.sgd import SGDRanker, losses

DATA = Path(os.environ.get("RGALS_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
OUT = Path(__file__).with_name("newton_results.jsonl")


class Problem:
    """RG2 as a function of the factors of both sides in one vector (design: sum over pairs of quadratics)."""

    def __init__(self, X: sp.csr_array, K: int, alpha: float, reg: float) -> None:
        self.X, self.K = X, K
        m, n = X.shape
        self.shape = m, n
        v = X.data
        users, items = np.asarray(X.sum(axis=1)), np.asarray(X.sum(axis=0))
        self.g = users / (2 * n)
        self.t = -self.g
        self.weight, self.linear = alpha * v, (0.5 + alpha) * v
        self.ridges = reg * (0.5 + alpha) * users, reg * (users.sum() / (2 * n) + alpha * items)
        self.constant = alpha * v.sum()
        self.rows = np.repeat(np.arange(m), np.diff(X.indptr))

    def split(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Factors of users and items."""
        m, n = self.shape
        return z[: m * self.K].reshape(m, self.K), z[m * self.K :].reshape(n, self.K)

    def _scores(self, P: np.ndarray, Q: np.ndarray) -> np.ndarray:
        """Of the positives."""
        return np.einsum("ek,ek->e", P[self.rows], Q[self.X.indices])

    def _sparse(self, values: np.ndarray) -> sp.csr_array:
        return sp.csr_array((values, self.X.indices, self.X.indptr), shape=self.shape)

    def value_and_grad(self, z: np.ndarray) -> tuple[float, np.ndarray]:
        """The objective of `rgals.RG2`, and its gradient."""
        P, Q = self.split(z)
        o, G, Gp = self._scores(P, Q), Q.T @ Q, P.T @ (self.g[:, None] * P)
        s, ts = Q.sum(axis=0), self.t @ P
        value = (G * Gp).sum() + (self.weight * o - 2 * self.linear) @ o - 2 * ts @ s + self.constant
        value += self.ridges[0] @ (P**2).sum(axis=1) + self.ridges[1] @ (Q**2).sum(axis=1)
        W = self._sparse(self.weight * o - self.linear)
        dP = self.g[:, None] * (P @ G) + W @ Q - np.outer(self.t, s) + self.ridges[0][:, None] * P
        dQ = Q @ Gp + W.T @ P - ts + self.ridges[1][:, None] * Q
        return float(value), 2 * np.concatenate([dP.ravel(), dQ.ravel()])

    def hessp(self, z: np.ndarray, direction: np.ndarray) -> np.ndarray:
        """The Hessian times a direction."""
        (P, Q), (U, V) = self.split(z), self.split(direction)
        gP, gU = self.g[:, None] * P, self.g[:, None] * U
        G, Gp = Q.T @ Q, P.T @ gP
        dG, dGp = V.T @ Q + Q.T @ V, U.T @ gP + P.T @ gU
        W = self._sparse(self.weight * self._scores(P, Q) - self.linear)
        dW = self._sparse(self.weight * (self._scores(U, Q) + self._scores(P, V)))
        HP = self.g[:, None] * (U @ G + P @ dG) + dW @ Q + W @ V
        HP += self.ridges[0][:, None] * U - np.outer(self.t, V.sum(axis=0))
        HQ = V @ Gp + Q @ dGp + dW.T @ P + W.T @ U - self.t @ U + self.ridges[1][:, None] * V
        return 2 * np.concatenate([HP.ravel(), HQ.ravel()])

    def check(self, z: np.ndarray) -> None:
        """Derivatives against central differences, the value against `rgals.RG2`."""
        d = np.random.default_rng(1).standard_normal(len(z))
        up, down = (self.value_and_grad(z + h * d) for h in (1e-5, -1e-5))
        value, grad = self.value_and_grad(z)
        np.testing.assert_allclose(grad @ d, (up[0] - down[0]) / 2e-5, rtol=1e-6)
        np.testing.assert_allclose(self.hessp(z, d), (up[1] - down[1]) / 2e-5, rtol=1e-5, atol=1e-5)


class Curve:
    """Objectives by CPU seconds, without the time that looking takes."""

    def __init__(self) -> None:
        self.points: list[tuple[float, float]] = []
        self.spent, self.last = 0.0, time.process_time()

    def look(self, value: float) -> None:
        """Note a value that was computed since `pause`."""
        self.points.append((self.spent, value))
        self.last = time.process_time()

    def pause(self) -> None:
        """Stop the clock."""
        self.spent += time.process_time() - self.last


def newton(problem: Problem, start: np.ndarray, method: str, seconds: float) -> list[tuple[float, float]]:
    """SciPy's ``method`` until the time is over."""
    curve = Curve()

    def watch(intermediate_result: Any) -> None:
        curve.pause()
        curve.look(float(intermediate_result.fun))
        if curve.spent > seconds:
            raise StopIteration

    minimize(
        problem.value_and_grad, start, jac=True, hessp=problem.hessp, method=method, callback=watch,
        options={"maxiter": 10_000},
    )  # fmt: skip
    return curve.points


def fitted(model: Any, problem: Problem, X: sp.csr_array, seconds: float) -> list[tuple[float, float]]:
    """A fit by ALS or Adam until the time is over."""
    curve = Curve()

    def watch(now: Any) -> bool:
        curve.pause()
        z = np.concatenate([now.user_factors.ravel(), now.item_factors.ravel()]).astype(np.float64)
        curve.look(problem.value_and_grad(z)[0])
        return curve.spent > seconds

    model.fit(X, callbacks=watch)
    return curve.points


def thinned(points: list[tuple[float, float]], most: int = 80) -> list[list[float]]:
    """So many points at most, evenly by the logarithm of their step."""
    steps = np.unique(np.geomspace(1, len(points), most).astype(int)) - 1
    return [[round(points[k][0], 3), points[k][1]] for k in steps]


def recorded(path: Path) -> dict[str, Any]:
    """The last run that is recorded."""
    return json.loads(path.read_text().splitlines()[-1])


def falls(row: dict[str, Any]) -> dict[str, np.ndarray]:
    """By method, CPU seconds and what is left of the fall from the start."""
    found = {name: np.array(points) for name, points in row["curves"].items()}
    for points in found.values():
        points[:, 1] = (points[:, 1] - row["lowest"]) / (row["start"] - row["lowest"])
    return found


def table(row: dict[str, Any]) -> str:
    """CPU seconds to a gap."""
    gaps = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
    title = f"{row['set']}, K={row['K']}, seconds to"
    lines = [f"| {title} | " + " | ".join(f"{gap:g}" for gap in gaps) + " | steps | last |"]
    lines.append("|" + "---|" * (len(gaps) + 3))
    for name, points in falls(row).items():
        there = [points[points[:, 1] <= gap, 0][:1] for gap in gaps]
        cells = [f"{seconds[0]:.2f}" if len(seconds) else "" for seconds in there]
        lines.append(f"| {name} | {' | '.join(cells)} | {row['steps'][name]} | {points[-1, 1]:.0e} |")
    return "\n".join(lines)


def plot(row: dict[str, Any], path: Path) -> None:
    """The gap over CPU seconds, a line a method."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    for name, points in falls(row).items():
        style = ":" if name.startswith("Adam") else "-"
        axes.plot(points[:, 0], np.maximum(points[:, 1], 1e-9), style, label=name)
    axes.set(xscale="log", yscale="log", xlabel="CPU seconds", ylabel="left of the fall from the start")
    axes.set_title(f"RG2, {row['set']}, K={row['K']}")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110, bbox_inches="tight")


def main() -> None:
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=how)
    parser.add_argument("data", nargs="?", default="ml-100k-10core")
    parser.add_argument("--K", type=int, default=64)
    parser.add_argument("--alpha", type=float, default=0.5)
    parser.add_argument("--reg", type=float, default=0.1)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--plot", action="store_true")
    args = parser.parse_args()
    if args.table:
        return print(table(recorded(args.out)))
    if args.plot:
        return plot(recorded(args.out), Path(__file__).resolve().parents[1] / "docs" / "newton.png")
    matrix = given(read_interactions(DATA / f"{args.data}.npz")).csr()
    X = sp.csr_array((np.ones(matrix.nnz), matrix.indices, matrix.indptr), shape=matrix.shape)
    problem = Problem(X, args.K, args.alpha, args.reg)
    start = 0.1 * np.random.default_rng(0).standard_normal(sum(X.shape) * args.K)
    problem.check(start)
    exact = RG2(args.alpha)
    value, _ = problem.value_and_grad(start)
    two = [problem.value_and_grad(scale * start)[0] for scale in (1.0, 2.0)]
    ours = [exact.objective(X, *problem.split(scale * start), args.reg, 1.0) for scale in (1.0, 2.0)]
    np.testing.assert_allclose(two[1] - two[0], ours[1] - ours[0], rtol=1e-8)
    shared = {"K": args.K, "n_jobs": 1, "dtype": "float64", "random_state": 0, "values": "binary"}
    sgd = {
        "loss": losses.RG2(args.alpha, args.reg),
        "score": "dot",
        "n_epochs": 100_000,
        "optimizer": "adam",
    }
    als = RGALS(loss=exact, reg=args.reg, n_iter=100_000, init_scale=0.1, **shared)
    curves = {
        "ALS": fitted(als, problem, X, args.seconds),
        "Newton-CG": newton(problem, start, "Newton-CG", args.seconds),
        "trust-krylov": newton(problem, start, "trust-krylov", args.seconds),
        **{
            f"Adam, lr {lr:g}": fitted(SGDRanker(lr=lr, **sgd, **shared), problem, X, args.seconds)
            for lr in (0.003, 0.01, 0.03)
        },
    }
    row = {"set": args.data, "K": args.K, "alpha": args.alpha, "reg": args.reg, "start": float(value)}
    row |= {"lowest": min(found for points in curves.values() for _, found in points)}
    row |= {"steps": {name: len(points) for name, points in curves.items()}}
    row |= {"curves": {name: thinned(points) for name, points in curves.items()}}
    with args.out.open("a") as file:
        file.write(json.dumps(row, separators=(",", ":")) + "\n")
    print(table(row))


if __name__ == "__main__":
    main()
