"""The protocol of the paper on RG losses, our figures beside its printed ones.

    python benchmarks/paper.py table3 --data ml-10m                    # quality of losses; data are fetched
    python benchmarks/paper.py table2 --data ml-1m --data-dir ~/data   # rates, on ~/data/ml-1m.npz (or .csv)
    python benchmarks/paper.py fig1 --data ml-1m -o figure             # quality over seconds, a picture

Every method is tuned on validation, then runs with several seeds; K is 64 as in the paper. The folder of -o
gets everything measured, and the same command goes on there where an interrupted one stopped.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rgals.cli._shared import table
from rgals.compare import Comparison, Effort, compare
from rgals.datasets import prepare_paper, read_interactions
from rgals.datasets.paper import RECIPES

# Table 2 states the convergence of algorithms, Table 3 (Table 4 for links) the quality of losses, Figure 1
# draws quality over seconds.
TABLES = ("table2", "table3", "fig1")
#: The paper's data set that one of `rgals.datasets.prepare_paper` is, or stands in for.
SETS = {**dict.fromkeys(RECIPES, "MovieLens"), "amazon-electronics": "Electronics", "steam": "Steam"}
SETS["simplewiki-links"] = "Wiki"
#: The paper's name of a method and ours, None where `compare` has none (UIB, SML); the last two are the best.
METHODS: dict[str, str | None] = {"BPR": "bpr_dot", "BCE": "bce_dot", "SSM": "sampled_softmax"}
METHODS |= {"Sparsemax": "sparsemax_dot", "UIB": None, "SML": None, "WRMF": "wrmf_plain", "SM": "softmax"}
METHODS |= {"RG2": "rg2", "RGx": "rgx"}
#: Tables 3 and 4: figures by data set in the order of `METHODS`; None where none is printed.
_PRINTED: dict[str, tuple[tuple[float | None, float | None], ...]] = {
    "MovieLens": (
        (0.3476, 0.2116), (0.3602, 0.2228), (0.3785, 0.2378), (0.3177, 0.1738), (0.3836, 0.2426),
        (0.3386, 0.2045), (0.4475, 0.2797), (0.4487, 0.2849), (0.4720, 0.2957), (0.4737, 0.2975),
    ),
    "Electronics": (
        (0.0124, 0.0154), (0.0098, 0.0126), (0.0119, 0.0152), (0.0078, 0.0100), (0.0100, 0.0133),
        (0.0076, 0.0103), (0.0146, 0.0178), (0.0172, 0.0212), (0.0186, 0.0229), (0.0189, 0.0233),
    ),
    "Steam": (
        (0.0434, 0.0521), (0.0435, 0.0532), (0.0466, 0.0549), (0.0317, 0.0359), (0.0410, 0.0506),
        (0.0406, 0.0482), (0.0464, 0.0544), (0.0493, 0.0579), (0.0509, 0.0586), (0.0513, 0.0590),
    ),
    "Wiki": (
        (0.5291, 0.3691), (0.5813, 0.4527), (0.6717, 0.5235), (None, None), (None, None),
        (None, None), (None, None), (0.7202, 0.5750), (0.6988, 0.5525), (0.6996, 0.5537),
    ),
}  # fmt: skip
#: Table 2: what it states of non-convex problems, O(.) of the gap after T iterations.
_STATED = {"ALS": "linear, rho^T", "SGD": "sublinear, 1/sqrt(T)"}
_WATCHED = ("rg2", "rgx", "wrmf_plain")  # by ALS; RG2 is followed by gradient descent too


def main(argv: Sequence[str] | None = None) -> None:
    """Run the protocol and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=TABLES, help="what of the paper")
    parser.add_argument("--data", choices=tuple(RECIPES), default="ml-1m")
    parser.add_argument("--data-dir", type=Path, help="where the data lie, for example as ml-1m.npz")
    parser.add_argument("-o", "--output", type=Path, help="folder of the results; fig1 needs it")
    parser.add_argument("--seeds", type=int, default=3, help="runs of a tuned method")
    parser.add_argument("--n-jobs", type=int, help="threads; all if not given")
    for field in ("max_trials", "time_limit", "validation_users"):
        parser.add_argument(f"--{field.replace('_', '-')}", type=int, default=getattr(Effort(), field))
    args = parser.parse_args(argv)
    if args.table == "fig1" and args.output is None:
        parser.error("a picture needs a folder: -o FOLDER")
    raw = None  # then they are fetched
    if args.data_dir is not None:
        found = sorted(args.data_dir.glob(f"{args.data}.*"))
        if not found:
            what = f"{args.data_dir} has no file of {args.data}: put {args.data}.npz, {args.data}.csv"
            parser.error(f"{what} or the like there, or leave --data-dir out to fetch it")
        raw = read_interactions(found[0])
    data, known = prepare_paper(args.data, raw), SETS[args.data]
    effort = Effort(
        max_trials=args.max_trials, time_limit=args.time_limit, validation_users=args.validation_users
    )
    methods = list(_WATCHED) if args.table == "table2" else [ours for ours in METHODS.values() if ours]
    if args.table != "table2":
        effort = replace(effort, objective_iterations=0)
    metrics = ("mrr@10", "map@10" if known == "Wiki" else "ndcg@10")
    how: dict[str, Any] = {"metric": metrics[::-1], "effort": effort, "seeds": args.seeds}
    how |= {"n_jobs": args.n_jobs, "name": args.data, "out": args.output, "verbose": 1}
    result = compare(data, methods, **how)
    if known != "MovieLens" or args.data == "ml-10m":
        print(f"{args.data}: the paper's {known}; it does not publish its split")
    else:
        print(f"{args.data}: NOT in the paper, prepared like its {known}, of which the printed figures are")
    print(f"{data.n_users:,} users, {data.n_items:,} items, {data.nnz:,} interactions\n")
    header, rows = _rates(result) if args.table == "table2" else _quality(result, known, metrics)
    print(table(rows, header))
    if args.table == "fig1":
        print(f"\nFigure 1: {args.output / 'convergence.png'}")


def _quality(result: Comparison, known: str, metrics: tuple[str, str]) -> tuple[list[str], list[list[Any]]]:
    """Header and rows of Table 3 (or 4): our figures on test beside the printed ones."""
    header = ["method"]
    for metric in metrics:
        header += [f"{metric.upper()} here", f"in the paper ({known})"]
    tests = {row.method: row.test for row in result.rows}
    rows: list[list[Any]] = [[paper] for paper in METHODS]
    for row, ours, printed in zip(rows, METHODS.values(), _PRINTED[known], strict=True):
        for metric, figure in zip(metrics, printed, strict=True):
            row += [tests.get(ours or "", {}).get(metric, [None])[0], figure]
    return header, rows


def _rates(result: Comparison) -> tuple[list[str], list[list[Any]]]:
    """Header and rows of Table 2: how the gap of the objective falls, beside what the paper states."""
    # A straight line is fitted to the logarithm of the gap over iterations (linear convergence) and over
    # their logarithm (a power law): R² near 1 says which of them it is.
    header = ["objective", "algorithm", "in the paper"]
    header += ["factor an iteration", "R² of linear", "R² of a power"]
    rows: list[list[Any]] = []
    for label, found in result.objectives.items():
        algorithm = "SGD" if "same_as" in found else "ALS"
        rate = found["rate"] or {}
        rows.append([label, algorithm, _STATED[algorithm], *map(rate.get, ("factor", "r2", "power_r2"))])
    return header, rows


if __name__ == "__main__":
    main()
