"""Compare methods, ALS and SGD, by quality against training time.

For example:
  rgals compare ratings.csv --min-value 4 -o comparison
  rgals compare ml-1m.npz --min-value 3 --core 5 --methods rg2,ials,sampled_softmax -o comparison

Every method is tuned on validation, then run with several seeds. The folder gets results.jsonl,
convergence.png and report.html; the same command goes on where an interrupted one stopped. Needs matplotlib:
pip install 'rgals[plot]'.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rgals.cli import _shared as shared
from rgals.compare import DEFAULT, METHODS, compare


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("data", metavar="DATA", help="file of interactions")
    parser.add_argument("-o", "--output", required=True, metavar="FOLDER", help="where the results go")
    parser.add_argument(
        "--methods",
        default=",".join(DEFAULT),
        metavar="LIST",
        help=f"of {', '.join(METHODS)} (default: {','.join(DEFAULT)})",
    )
    parser.add_argument(
        "--core", type=int, metavar="N", help="keep users and items with N or more of each other"
    )
    parser.add_argument("--K", type=int, default=64, metavar="N", help="number of factors (default: 64)")
    parser.add_argument(
        "--seeds", type=int, default=3, metavar="N", help="runs of a tuned method (default: 3)"
    )
    parser.add_argument(
        "--max-trials", type=int, default=16, metavar="N", help="fits to tune a method (default: 16)"
    )
    parser.add_argument(
        "--time-limit",
        type=float,
        default=120.0,
        metavar="S",
        help="training seconds of a fit (default: 120)",
    )
    parser.add_argument(
        "--validation-users", type=int, metavar="N", help="watch so many users instead of all, on large data"
    )
    parser.add_argument(
        "--tune-only",
        action="store_true",
        help="find parameters and stop; the same command without this does the timed runs, for which the "
        "machine should be at rest",
    )
    parser.add_argument("--metric", default="ndcg@10", help="what is tuned and drawn (default: ndcg@10)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the split (default: 0)")
    parser.add_argument("--jobs", type=int, metavar="N", help="threads; all if not given")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    shared.add_read_options(parser)


def run(args: argparse.Namespace) -> int:
    """Read, compare, print the tables."""
    result = compare(
        shared.read_data(args),
        args.methods,
        out=args.output,
        name=Path(args.data).stem,
        core=args.core,
        K=args.K,
        seeds=args.seeds,
        max_trials=args.max_trials,
        time_limit=args.time_limit,
        metric=args.metric,
        validation_users=args.validation_users,
        tune_only=args.tune_only,
        random_state=args.seed,
        n_jobs=args.jobs,
        verbose=shared.progress(args),
    )
    print(result.text())
    if not args.quiet and not args.tune_only:
        shared.say(f"written to {args.output}: results.jsonl, convergence.png, report.html")
    return 0
