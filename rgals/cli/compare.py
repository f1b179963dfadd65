"""Commands that compare methods: on any data, and by the paper's protocol beside its printed figures."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from rgals.cli import _shared as shared
from rgals.cli._options import arg, command, param, parameters
from rgals.compare import DEFAULT, Comparison, Effort, compare, prepare
from rgals.compare import METHODS as KNOWN
from rgals.datasets import prepare_paper, read_interactions
from rgals.datasets.paper import RECIPES
from rgals.runtime.errors import InputError

_DEFAULT = ",".join(DEFAULT)
# Table 2 states the convergence of algorithms, Table 3 (Table 4 for links) the quality of losses, Figure 1
# draws quality over seconds.
TABLES = ("table2", "table3", "fig1")
#: The paper's data set that one of `rgals.datasets.prepare_paper` is, or stands in for.
SETS = {**dict.fromkeys(RECIPES, "MovieLens"), "amazon-electronics": "Electronics", "steam": "Steam"}
SETS["simplewiki-links"] = "Wiki"
#: The paper's name of a method and ours, None for what is not here (UIB and SML); the last two are the best.
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


@command(
    "compare",
    arg("DATA", "file of interactions"),
    arg("-o --output FOLDER", "where the results go", required=True),
    arg("--methods LIST", f"of {', '.join(KNOWN)} (default: {_DEFAULT})", default=_DEFAULT),
    param(compare, "K N", "number of factors"),
    param(compare, "seeds N", "runs of a tuned method"),
    param(compare, "metric LIST", "what is tuned, drawn and sorted by; after a comma, what is measured too"),
    param(compare, *shared.VALUES),
    param(compare, *shared.JOBS),
    param(prepare, "core N", "keep users and items with N or more of each other", int),
    param(prepare, "random_state N", "of the split"),
    *shared.EFFORT,
    arg("--tune-only", "find parameters and stop; without this, the same command goes on with timed runs"),
    *shared.READING,
)
def run_compare(args: argparse.Namespace) -> None:
    """Compare methods, ALS, SGD and baselines, by quality against training time.

    For example:
      rgals compare ratings.csv --min-value 4 -o comparison
      rgals compare ml-1m.npz --min-value 3 --core 5 --methods rg2,ials,sampled_softmax -o comparison

    Every method is tuned on validation, then run with several seeds. The folder gets results.jsonl,
    convergence.png and report.html; the same command goes on where an interrupted one stopped. Needs
    matplotlib: pip install 'rgals[plot]'.
    """
    effort = Effort(tune_only=args.tune_only, **parameters(args, Effort))
    split = prepare(shared.read_data(args), **parameters(args, prepare))
    how = {"effort": effort, "verbose": shared.progress(args), **parameters(args, compare)}
    result = compare(split, args.methods, out=args.output, name=Path(args.data).stem, **how)
    print(result)
    if not args.tune_only:
        shared.tell(args, f"written to {args.output}: results.jsonl, convergence.png, report.html")


@command(
    "paper",
    arg("TABLE", "what of the paper", choices=TABLES),
    arg("--data", "data set (default: ml-1m)", choices=tuple(RECIPES), default="ml-1m"),
    arg("--data-dir FOLDER", "where the data lie, for example as ml-1m.npz"),
    arg("-o --output FOLDER", "where the results go; fig1 needs it"),
    param(compare, "seeds N", "runs of a tuned method"),
    param(compare, *shared.JOBS),
    *shared.EFFORT,
)
def run_paper(args: argparse.Namespace) -> None:
    """Run the protocol of the paper on RG losses and print our figures beside its printed ones.

    For example:
      rgals paper table3 --data ml-10m                   quality of losses; data are fetched
      rgals paper table2 --data ml-1m --data-dir ~/data  rates of convergence, on ~/data/ml-1m.npz (or .csv)
      rgals paper fig1 --data ml-1m -o figure            quality over seconds: figure/convergence.png

    Every method is tuned on validation, then runs with several seeds; K is 64 as in the paper. The folder of
    -o gets everything measured, and the same command goes on there where an interrupted one stopped.
    """
    if args.table == "fig1" and args.output is None:
        raise InputError("a picture needs a folder: rgals paper fig1 -o FOLDER")
    raw = None  # then they are fetched
    if args.data_dir is not None:
        found = sorted(Path(args.data_dir).glob(f"{args.data}.*"))
        if not found:
            what = f"{args.data_dir} has no file of {args.data}: put {args.data}.npz, {args.data}.csv"
            raise InputError(f"{what} or the like there, or leave --data-dir out to fetch it")
        raw = read_interactions(found[0])
    data, known = prepare_paper(args.data, raw), SETS[args.data]
    effort = Effort(**parameters(args, Effort))
    methods = list(_WATCHED) if args.table == "table2" else [ours for ours in METHODS.values() if ours]
    if args.table != "table2":
        effort = replace(effort, objective_iterations=0)
    metrics = ("mrr@10", "map@10" if known == "Wiki" else "ndcg@10")
    how = {"metric": metrics[::-1], "effort": effort, **parameters(args, compare)}
    result = compare(data, methods, out=args.output, name=args.data, verbose=shared.progress(args), **how)
    if known != "MovieLens" or args.data == "ml-10m":
        print(f"{args.data}: the paper's {known}; it does not publish its split")
    else:
        print(f"{args.data}: NOT in the paper, prepared like its {known}, of which the printed figures are")
    print(f"{data.n_users:,} users, {data.n_items:,} items, {data.nnz:,} interactions\n")
    header, rows = _rates(result) if args.table == "table2" else _quality(result, known, metrics)
    print(shared.table(rows, header))
    if args.table == "fig1":
        print(f"\nFigure 1: {Path(args.output) / 'convergence.png'}")


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
