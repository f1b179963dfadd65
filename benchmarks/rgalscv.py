"""What `RGALSCV` finds, beside the rule and the best of a grid: `python benchmarks/rgalscv.py --measure`.

Every set is split at random: four fifths of a user's interactions train, two tenths are hidden. The best of
the grid of ``rule.py`` is chosen on one hidden tenth and read on the other; `RGALSCV` sees neither, and both
it and the rule are read on the second. Regret is what is lost against the best of the grid, in per cent;
where it is negative, more was found than the grid has. Lines go to ``rgalscv_results.jsonl``; the same
command goes on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from quality import SETS, load, spent

from rgals import RGALS, RGALSCV
from rgals.files.journal import Journal
from rgals.matrix.validate import as_csr
from rgals.metrics import evaluate
from rgals.metrics._served import sample_users
from rgals.model_selection import split_interactions
from rgals.runtime.threads import n_threads

OUT = Path(__file__).with_name("rgalscv_results.jsonl")
GRID = Path(__file__).with_name("rule_results.jsonl")
SHARES, JUDGED = (0.8, 0.1, 0.1), 3000  # as the grid has them
ITERATIONS = 8


def measure(
    name: str, loss: str, K: int, seed: int, budget: float, jobs: int | None, folder: Path
) -> dict[str, Any]:
    """Figures of the rule and of the search on both hidden tenths, and what they took."""
    _, prepared = load(name, 0)
    train, *hidden = split_interactions(prepared.final, SHARES, random_state=seed)
    out: dict[str, Any] = {"set": name, "loss": loss, "K": K, "seed": seed, "budget": budget}
    models: dict[str, Any] = {
        "rule": RGALS(K, loss, random_state=seed, n_jobs=jobs),
        "cv": RGALSCV(K, loss, budget=budget, random_state=seed, n_jobs=jobs),
    }
    for key, model in models.items():
        with spent(folder / f"{key}.seconds") as seconds:
            model.fit(train, **({"folder": folder} if key == "cv" else {}))
        out[f"{key}_cpu_seconds"] = seconds[0]
        out[key] = [
            evaluate(model, train, part, users=sample_users(as_csr(part), JUDGED, seed), n_jobs=jobs)[
                "ndcg@10"
            ]
            for part in hidden
        ]
    found = models["cv"]
    best = {k: getattr(v, "weight", v) for k, v in found.best_params_.items() if k != "loss"}
    out |= {"best": {**best, **found.best_params_["loss"].get_params()}, "gain": found.gain_}
    out |= {"fits": np.bincount(found.cv_results_["level"]).tolist(), "threads": n_threads(jobs)}
    return out | {"cost": float(found.cv_results_["cost"].sum())}


def grid(path: Path) -> dict[tuple[str, str, int, int], tuple[float, float]]:
    """The best of the grid by set, loss, K and seed: on the part that chose it, and on the other."""
    best: dict[tuple[str, str, int, int], tuple[float, float]] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        row = json.loads(line)
        if "first" not in row or "rule" in row or row.get("iterations", ITERATIONS) != ITERATIONS:
            continue  # other measurements
        first, second = np.array(row["first"]) * 1e-5, np.array(row["second"]) * 1e-5
        k = int(np.argmax(first))
        key = row["set"], row["loss"], row["K"], row["seed"]
        best[key] = max(best.get(key, (0.0, 0.0)), (float(first.flat[k]), float(second.flat[k])))
    return best


def table(rows: list[dict[str, Any]], best: dict[tuple[str, str, int, int], tuple[float, float]]) -> str:
    """Regrets of the rule and of the search, set by set: means over the seeds, their median and the worst."""
    header = ["set", "loss", "seeds", "best of grid", "rule", "RGALSCV", "regret of rule", "of RGALSCV"]
    header += ["over the rule", "cost", "CPU s", "CPU s of rule"]
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    cases: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        cases.setdefault((row["set"], row["loss"]), []).append(row)
    regrets, single, gains = [], [], []
    for (name, loss), runs in cases.items():
        figures = np.array([[run["rule"][1], run["cv"][1]] for run in runs])
        keys = [(name, loss, run["K"], run["seed"]) for run in runs]
        gains.append(100 * np.mean([np.mean(run["cv"]) / np.mean(run["rule"]) - 1 for run in runs]))
        cells = ["", *(f"{value:.4f}" for value in figures.mean(axis=0)), "", ""]
        if all(key in best for key in keys):
            top = np.array([best[key][1] for key in keys])
            lost = 100 * (1 - figures / top[:, None])
            regrets.append(lost.mean(axis=0))
            single.extend(lost)
            cells = [f"{top.mean():.4f}", *cells[1:3], *(f"{value:.1f} %" for value in regrets[-1])]
        cells += [f"{gains[-1]:+.1f} %", f"{np.mean([run['cost'] for run in runs]) + 1:.1f}"]
        cells += [f"{np.mean([run['cv_cpu_seconds'] for run in runs]):.0f}"]
        cells += [f"{np.mean([run['rule_cpu_seconds'] for run in runs]):.1f}"]
        lines.append(f"| {name} | {loss} | {len(runs)} | " + " | ".join(cells) + " |")
    for k, what in enumerate(("rule", "RGALSCV") if regrets else ()):
        mean = np.array(regrets)[:, k]
        text = f"median {np.median(mean):.1f} %, mean {mean.mean():.1f} %, worst {mean.max():.1f} %"
        lines.append(f"\nregret of {what}: {text}; worst of a single seed {np.max(single, axis=0)[k]:.1f} %")
    if gains:
        lines.append(
            f"\nover the rule, both parts: median {np.median(gains):+.1f} %, least {min(gains):+.1f} %"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measure", action="store_true", help="measure what is not recorded yet")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--losses", default="rg2,ials")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--K", type=int, default=64)
    parser.add_argument("--budget", type=float, default=10)
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--grid", type=Path, default=GRID)
    parser.add_argument("--searches", type=Path, default=Path("results/rgalscv"), help="go on from there")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    record = Journal(args.out, {"benchmark": "rgalscv"})
    for name in args.sets.split(",") if args.measure else []:
        for loss in args.losses.split(","):
            for seed in map(int, args.seeds.split(",")):
                key = f"{name} {loss} K{args.K} seed{seed} budget{args.budget:g}"
                if record.get(key) is None:
                    folder = args.searches / key.replace(" ", "-")
                    row = measure(name, loss, args.K, seed, args.budget, args.jobs, folder)
                    record.add(key, row)
                    print(key, {k: row[k] for k in ("rule", "cv", "cv_cpu_seconds", "best")}, flush=True)
    wanted = {"K": args.K, "budget": args.budget}
    rows = [row for row in record.values() if all(row.get(k) == v for k, v in wanted.items())]
    print(table(rows, grid(args.grid)))


if __name__ == "__main__":
    main()
