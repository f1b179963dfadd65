"""Find good parameters on held-out interactions, refit and save the best model.

For example:
  rgals tune ratings.csv --min-value 4 -o model.npz
  rgals tune ratings.csv --loss rg2,ials --budget 60 --journal trials.jsonl -o model.npz
  rgals tune ratings.csv --loss ials:item_exponent=-0.4 --K 64,128,256 --space reg=0.001:0.1 -o model.npz

Every loss gets the budget, counted in full fits. The same command goes on where an interrupted one stopped if
it has a journal. Where DATA marks a test or validation part, that is not fitted: a marked validation part
judges the settings, otherwise a tenth of every user's interactions does.
"""

from __future__ import annotations

import argparse
from typing import Any

from rgals.cli import _shared as shared
from rgals.datasets import Interactions
from rgals.model_selection import PROTOCOLS, tune
from rgals.runtime.errors import ParameterError


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("data", metavar="DATA", help="file of interactions")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="where the model goes (npz)")
    parser.add_argument(
        "--loss",
        default="rg2",
        metavar="LIST",
        help="of rg2, rgx, wrmf, ials, separated by commas; one alone may have parameters (default: rg2)",
    )
    parser.add_argument(
        "--budget", type=float, default=30, metavar="B", help="in full fits for a loss (default: 30)"
    )
    parser.add_argument(
        "--K", metavar="LIST", help="number of factors, or ascending ones to try while they pay: 64,128,256"
    )
    parser.add_argument(
        "--space",
        action="append",
        default=[],
        metavar="NAME=V",
        help="range LOW:HIGH, choices A,B,C or one value of a parameter; may be repeated",
    )
    parser.add_argument(
        "--protocol",
        metavar="NAME",
        help="training, validation and test parts; one of " + "; ".join(PROTOCOLS),
    )
    parser.add_argument("--metric", default="ndcg@10", help="what is maximised (default: ndcg@10)")
    parser.add_argument("--repeats", type=int, default=1, metavar="N", help="validation splits (default: 1)")
    parser.add_argument("--n-iter", type=int, default=16, metavar="N", help="of a full fit (default: 16)")
    parser.add_argument("--time-limit", type=float, metavar="S", help="seconds; no fit starts after them")
    parser.add_argument("--journal", metavar="FILE", help="keeps every fit, to go on after an interruption")
    parser.add_argument("--sampler", default="gp", metavar="NAME", help="gp or optuna (default: gp)")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of splits, search, fits (default: 0)"
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="threads; all if not given")
    parser.add_argument("--show", type=int, default=10, metavar="N", help="settings to print (default: 10)")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress, no summary")
    shared.add_read_options(parser)


def run(args: argparse.Namespace) -> int:
    """Read, tune, save, print the table."""
    shared.check_output(args.output)
    if args.journal is not None:
        shared.check_output(args.journal)
    space = dict(map(_entry, args.space))
    if args.K is not None:
        space["K"] = _values(args.K, "K")
    losses = [args.loss] if ":" in args.loss else [name.strip() for name in args.loss.split(",")]
    data = shared.read_data(args)
    X, validation = data, None
    if args.protocol is None and data.split is not None:
        X = Interactions(data.train, data.user_ids, data.item_ids)
        validation = data.validation if data.validation.nnz else None
        if not args.quiet:
            shared.say(f"{args.data} comes with a split: its test part is left alone")
    found = tune(
        [shared.parse_loss(text) for text in losses],
        X,
        space,
        budget=args.budget,
        protocol=args.protocol,
        validation=validation,
        metric=args.metric,
        repeats=args.repeats,
        n_iter=args.n_iter,
        sampler=args.sampler,
        time_limit=args.time_limit,
        journal=args.journal,
        random_state=args.seed,
        n_jobs=args.jobs,
        verbose=shared.progress(args),
    )
    found.model.save(args.output)
    print(found.table(args.show))
    if not args.quiet:
        test = "" if found.test is None else f", test {args.metric} {found.test[args.metric]:.4f}"
        shared.say(
            f"{len(found.trials)} fits{'' if found.finished else ' (the time limit ended the search)'}; "
            f"validation {args.metric} {found.figure:.4f}{test}\n{found.model!r}\nsaved to {args.output}"
        )
    return 0


def _entry(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not value:
        raise ParameterError("space", text, "write NAME=LOW:HIGH, NAME=A,B,C or NAME=VALUE")
    if ":" in value:
        parts = [shared.value_of(part) for part in value.split(":")]
        return name.strip(), tuple(parts)
    return name.strip(), _values(value, name)


def _values(text: str, name: str) -> Any:
    values = [shared.value_of(part.strip()) for part in text.split(",")]
    return values if len(values) > 1 else values[0]
