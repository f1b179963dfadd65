"""Run the protocol of the paper on RG losses and print our figures beside its printed ones.

For example:
  rgals paper table3 --data ml-10m                    quality of losses; data are fetched
  rgals paper table2 --data ml-1m --data-dir ~/data   rates of convergence, on ~/data/ml-1m.npz (or .csv ...)
  rgals paper fig1 --data ml-1m -o figure             quality over seconds: figure/convergence.png

Every method is tuned on validation, then runs with several seeds; K is 64 as in the paper. The folder of -o
gets everything measured, and the same command goes on there where an interrupted one stopped.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from rgals.cli import _shared as shared
from rgals.compare import Effort, compare, paper
from rgals.datasets import Interactions, prepare_paper, read_interactions
from rgals.datasets.paper import RECIPES
from rgals.runtime.errors import InputError

_OPTIONS: tuple[shared.Option, ...] = (("seeds", int, "N", "runs of a tuned method"), shared.JOBS)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("table", choices=paper.TABLES, help="what of the paper")
    parser.add_argument("--data", choices=tuple(RECIPES), default="ml-1m", help="data set (default: ml-1m)")
    parser.add_argument("--data-dir", metavar="FOLDER", help="where the data lie, for example as ml-1m.npz")
    parser.add_argument("-o", "--output", metavar="FOLDER", help="where the results go; fig1 needs it")
    shared.add_options(parser, compare, _OPTIONS)
    shared.add_options(parser, Effort, shared.EFFORT)


def _raw(folder: str | None, name: str) -> Interactions | None:
    """The raw data in a folder; None without one, as they are fetched then."""
    if folder is None:
        return None
    found = sorted(Path(folder).glob(f"{name}.*"))
    if not found:
        advice = f"put {name}.npz, {name}.csv or the like there, or leave --data-dir out to fetch it"
        raise InputError(f"{folder} has no file of {name}: {advice}")
    return read_interactions(found[0])


def run(args: argparse.Namespace) -> int:
    """Prepare, compare, print the table."""
    if args.table == "fig1" and args.output is None:
        raise InputError("a picture needs a folder: rgals paper fig1 -o FOLDER")
    data = prepare_paper(args.data, _raw(args.data_dir, args.data))
    effort = Effort(**shared.given(args, shared.EFFORT))
    if args.table != "table2":
        effort = replace(effort, objective_iterations=0)
    first, second = paper.metrics_of(args.data)
    how = {"metric": (second, first), "effort": effort, **shared.given(args, _OPTIONS)}
    methods, verbose = paper.methods_of(args.table), shared.progress(args)
    result = compare(data, methods, out=args.output, name=args.data, verbose=verbose, **how)
    print(paper.words_on(args.data))
    print(f"{data.n_users:,} users, {data.n_items:,} items, {data.nnz:,} interactions\n")
    header, rows = paper.rates(result) if args.table == "table2" else paper.quality(result, args.data)
    print(shared.table(rows, header))
    if args.table == "fig1":
        print(f"\nFigure 1: {Path(args.output) / 'convergence.png'}")
    return 0
