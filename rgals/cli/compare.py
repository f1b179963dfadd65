"""Compare methods, ALS, SGD and baselines, by quality against training time.

For example:
  rgals compare ratings.csv --min-value 4 -o comparison
  rgals compare ml-1m.npz --min-value 3 --core 5 --methods rg2,ials,sampled_softmax -o comparison

Every method is tuned on validation, then run with several seeds. The folder gets results.jsonl,
convergence.png and report.html; the same command goes on where an interrupted one stopped. Needs matplotlib:
pip install 'rgals[plot]'.
"""

import argparse
from pathlib import Path

from rgals.cli import _shared as shared
from rgals.compare import DEFAULT, METHODS, Effort, compare, prepare

_OPTIONS: tuple[shared.Option, ...] = (
    ("K", int, "N", "number of factors"),
    ("seeds", int, "N", "runs of a tuned method"),
    ("metric", str, "LIST", "what is tuned, drawn and sorted by; after a comma, what is measured too"),
    shared.VALUES,
    shared.JOBS,
)
_DATA: tuple[shared.Option, ...] = (
    ("core", int, "N", "keep users and items with N or more of each other"),
    ("random_state", int, "N", "of the split"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("data", metavar="DATA", help="file of interactions")
    add("-o", "--output", required=True, metavar="FOLDER", help="where the results go")
    known, default = ", ".join(METHODS), ",".join(DEFAULT)
    add("--methods", default=default, metavar="LIST", help=f"of {known} (default: {default})")
    shared.add_options(parser, compare, _OPTIONS)
    shared.add_options(parser, prepare, _DATA)
    shared.add_options(parser, Effort, shared.EFFORT)
    later = "the same command without this does the timed runs, for which the machine should be at rest"
    add("--tune-only", action="store_true", help=f"find parameters and stop; {later}")
    shared.add_read_options(parser)


def run(args: argparse.Namespace) -> int:
    """Read, compare, print the tables."""
    effort = Effort(tune_only=args.tune_only, **shared.given(args, shared.EFFORT))
    split = prepare(shared.read_data(args), **shared.given(args, _DATA))
    how = {"effort": effort, "verbose": shared.progress(args), **shared.given(args, _OPTIONS)}
    result = compare(split, args.methods, out=args.output, name=Path(args.data).stem, **how)
    print(result.text())
    if not args.quiet and not args.tune_only:
        shared.say(f"written to {args.output}: results.jsonl, convergence.png, report.html")
    return 0
