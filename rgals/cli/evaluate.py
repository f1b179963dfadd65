"""Measure how well a saved model ranks held-out interactions.

For example:
  rgals evaluate model.npz test.npz
  rgals evaluate model.npz ratings.csv --metrics ndcg@10,recall@20,mrr@10 --json
  rgals evaluate model.npz newcomers.csv --fold-in 0.2

The interactions of DATA (of its test part, where it marks one) are the truth; what the model was fitted to
is left out of the rankings and of the truth. Users of whom the model knows nothing are judged by what they
would be served, --cold; items that it does not know count as missed. With --fold-in SHARE the users need not
be known: that share of every user's interactions in DATA is the truth, and the rest makes the user's factors.
"""

import argparse
import json
from typing import Any

from rgals.cli import _shared as shared
from rgals.datasets import Interactions
from rgals.metrics import evaluate
from rgals.metrics._served import COLD
from rgals.model_selection import split_interactions
from rgals.runtime.errors import ParameterError
from rgals.sgd import SGDRanker

METRICS = "ndcg@10,recall@20,mrr@10"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="file of a fitted model of any kind")
    add("data", metavar="DATA", help="file of held-out interactions")
    add("--metrics", default=METRICS, metavar="LIST", help=f"default: {METRICS}")
    add("--fold-in", type=float, metavar="SHARE", help="hide this share of every user of DATA")
    add("--seed", type=int, default=0, metavar="N", help="of what --fold-in hides (default: 0)")
    add("--cold", choices=COLD, default="empty", help="what users without history get (default: empty)")
    shared.add_options(parser, evaluate, (shared.JOBS,))
    add("--json", action="store_true", help="print one line of JSON")
    shared.add_read_options(parser)


def run(args: argparse.Namespace) -> int:
    """Load, read, measure, print."""
    if args.fold_in is not None and not 0 < args.fold_in < 1:
        raise ParameterError("fold_in", args.fold_in, "give a share between 0 and 1")
    metrics = tuple(name.strip() for name in args.metrics.split(",") if name.strip())
    model = shared.load(args.model)
    if args.fold_in is not None and isinstance(model, SGDRanker):
        raise ParameterError("fold_in", args.fold_in, "an SGDRanker has no factors of new users")
    data = shared.read_data(args)
    if args.fold_in is not None:
        rows = shared.align(data, data.matrix, None, model._state().items)
        shown, truth = split_interactions(rows, (1 - args.fold_in, args.fold_in), random_state=args.seed)
        fixed, state, known = model._read_rows(shown)
        ranked = fixed._ranking(state, fixed._fold_in(state, known))
        figures = evaluate(ranked, shown, truth, metrics=metrics, n_jobs=args.n_jobs)
    else:
        truth = data.matrix if data.split is None else data.test
        part: Any = Interactions(truth, data.user_ids, data.item_ids)
        if model.user_ids_ is None and model.item_ids_ is None:  # its rows and columns are the ids
            part = shared.align(data, truth, model._state().users, model._state().items)
        figures = evaluate(model, model.seen_, part, metrics=metrics, cold=args.cold, n_jobs=args.n_jobs)
    values = {name: float(figures[name]) for name in metrics}
    counts = {"users": figures.n_users, "cold": figures.n_cold, "interactions": figures.n_interactions}
    if args.json:
        print(json.dumps({**counts, **values}))
        return 0
    if not args.quiet:
        text = f"{figures.n_interactions:,} held-out interactions of {figures.n_users:,} users"
        shared.say(f"{text}, {figures.n_cold:,} of whom the model knows nothing")
    print(shared.table([[name, value] for name, value in values.items()], ["metric", "mean"]))
    return 0
