"""The command that compares methods."""

import argparse
from pathlib import Path

from rgals.cli import _shared as shared
from rgals.cli._options import arg, command, param, parameters
from rgals.compare import DEFAULT, METHODS, Effort, compare, prepare

_DEFAULT = ",".join(DEFAULT)


@command(
    "compare",
    arg("DATA", "file of interactions"),
    arg("-o --output FOLDER", "folder of the results", required=True),
    arg("--methods LIST", f"of {', '.join(METHODS)} (default: {', '.join(DEFAULT)})", default=_DEFAULT),
    param(compare, "K N", "number of factors"),
    param(compare, "seeds N", "runs of every method with random choices"),
    param(compare, "metric LIST", "tuned, drawn and sorted by; others, measured too, follow after commas"),
    param(compare, *shared.VALUES),
    param(compare, *shared.JOBS),
    param(prepare, "core N", "keep users and items with N or more interactions", int),
    param(prepare, "random_state N", "seed of the split"),
    param(Effort, "max_trials N", "fits to tune a method"),
    param(Effort, "time_limit S", "training seconds of a fit"),
    param(Effort, "validation_users N", "validate on this many random users instead of all", int),
    arg("--tune-only", "tune and stop; the same command without it continues with timed runs"),
    *shared.READING,
)
def run_compare(args: argparse.Namespace) -> None:
    """Compare methods, ALS, SGD and baselines, by quality against training time.

    For example:
      rgals compare ratings.csv --min-value 4 -o comparison
      rgals compare ml-1m.npz --min-value 3 --core 5 --methods rg2,ials,sampled_softmax -o comparison

    Every method is tuned on validation, then run with several seeds. The folder gets results.jsonl,
    convergence.png and report.html; the same command resumes an interrupted one. Needs matplotlib:
    pip install 'rgals[plot]'.
    """
    effort = Effort(tune_only=args.tune_only, **parameters(args, Effort))
    split = prepare(shared.read_data(args), **parameters(args, prepare))
    how = {"effort": effort, "verbose": shared.progress(args), **parameters(args, compare)}
    result = compare(split, args.methods, out=args.output, name=Path(args.data).stem, **how)
    print(result)
    if not args.tune_only:
        shared.tell(args, f"written to {args.output}: results.jsonl, convergence.png, report.html")
