"""Measure how well a saved model ranks held-out interactions.

For example:
  rgals evaluate model.npz test.npz
  rgals evaluate model.npz ratings.csv --metrics ndcg@10,recall@20,mrr@10 --json
  rgals evaluate model.npz newcomers.csv --fold-in 0.2

The interactions of DATA (of its test part, where it marks one) are the truth; what the model was fitted to
is left out of the rankings and of the truth. With --fold-in SHARE the users need not be known: that share of
every user's interactions in DATA is the truth, and the rest makes the user's factors.
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import scipy.sparse as sp

from rgals.cli import _shared as shared
from rgals.datasets import Interactions
from rgals.estimator import RGALS
from rgals.metrics import evaluate
from rgals.model_selection import split_interactions
from rgals.runtime.errors import InputError, ParameterError

METRICS = "ndcg@10,recall@20,mrr@10"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", metavar="MODEL", help="file that `rgals fit` wrote")
    parser.add_argument("data", metavar="DATA", help="file of held-out interactions")
    parser.add_argument("--metrics", default=METRICS, metavar="LIST", help=f"default: {METRICS}")
    parser.add_argument(
        "--fold-in", type=float, metavar="SHARE", help="hide this share of every user of DATA"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of what --fold-in hides (default: 0)"
    )
    shared.add_options(parser, evaluate, (shared.JOBS,))
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    shared.add_read_options(parser)


def run(args: argparse.Namespace) -> int:
    """Load, read, measure, print."""
    if args.fold_in is not None and not 0 < args.fold_in < 1:
        raise ParameterError("fold_in", args.fold_in, "give a share between 0 and 1")
    metrics = tuple(name.strip() for name in args.metrics.split(",") if name.strip())
    model = RGALS.load(args.model)
    data = shared.read_data(args)
    if args.fold_in is not None:
        rows = shared.align(data, data.matrix, None, shared.labels(model, "item"))
        shown, truth = split_interactions(rows, (1 - args.fold_in, args.fold_in), random_state=args.seed)
        figures = evaluate(
            (model.transform(shown), model.item_factors_), shown, truth, metrics=metrics, n_jobs=args.n_jobs
        )
    else:
        truth = _truth(args, model, data)
        figures = evaluate(model, model.seen_, truth, metrics=metrics, n_jobs=args.n_jobs)
    n_users = int(np.count_nonzero(np.diff(truth.indptr)))
    values = {name: float(figures[name]) for name in metrics}
    if args.json:
        print(json.dumps({"users": n_users, "interactions": int(truth.nnz), **values}))
        return 0
    if not args.quiet:
        shared.say(f"{truth.nnz:,} held-out interactions of {n_users:,} users")
    print(shared.table([[name, value] for name, value in values.items()], ["metric", "mean"]))
    return 0


def _truth(args: argparse.Namespace, model: RGALS, data: Interactions) -> sp.csr_array:
    """Held-out interactions in rows and columns of the model, without those that it was fitted to."""
    part = data.matrix if data.split is None else data.test
    truth = shared.align(data, part, shared.labels(model, "user"), shared.labels(model, "item"))
    seen = model.seen_
    fitted = truth.multiply(0 if seen is None else seen.astype(bool)).tocsr()
    truth = sp.csr_array(truth - fitted)
    truth.eliminate_zeros()
    if fitted.nnz:
        shared.say(f"{fitted.nnz:,} interactions were fitted by the model and do not count")
    if not truth.nnz:
        raise InputError(
            f"{args.data} holds no interaction to evaluate on: none is of a user and an item that the model "
            "knows and yet new to it; give held-out interactions (rgals fit --hold-out makes some)"
        )
    return truth
