"""The command that compares methods."""

import argparse
from pathlib import Path

from rgals.cli import _shared as shared
from rgals.cli._options import arg, command, param, parameters
from rgals.compare import DEFAULT, Effort, compare, prepare
from rgals.compare import METHODS as KNOWN

_DEFAULT = ",".join(DEFAULT)


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
