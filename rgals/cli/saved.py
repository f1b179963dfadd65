"""Commands that evaluate a saved model and write its recommendations."""

import argparse
import json
import sys
from itertools import pairwise
from typing import Any

from rgals.cli import _shared as shared
from rgals.cli._options import Heading, arg, command, param, parameters
from rgals.datasets import Interactions
from rgals.datasets.given import Given
from rgals.datasets.ids import Positions
from rgals.metrics import evaluate
from rgals.metrics._served import COLD
from rgals.model_selection import split_interactions
from rgals.runtime.checks import check_int, check_share
from rgals.runtime.errors import InputError, ParameterError
from rgals.scoring import recommend_all
from rgals.scoring._streaming import Task
from rgals.scoring._tables import check_writable, choose_format, write_text
from rgals.sgd import SGDRanker

_METRICS = "ndcg@10,recall@20,mrr@10"
_BATCH_SIZE = 8192


@command(
    "evaluate",
    arg("MODEL", "file of a fitted model of any kind"),
    arg("DATA", "file of held-out interactions"),
    arg("--metrics LIST", f"default: {_METRICS}", default=_METRICS),
    arg("--fold-in SHARE", "hide this share of every user of DATA", type=float),
    arg("--seed N", "seed of the hidden share (default: 0)", type=int),
    arg("--cold", "lists of users unknown to the model (default: empty)", choices=COLD, default="empty"),
    param(evaluate, *shared.JOBS),
    arg("--json", "print one line of JSON"),
    *shared.READING,
)
def run_evaluate(args: argparse.Namespace) -> None:
    """Measure how well a saved model ranks held-out interactions.

    For example:
      rgals evaluate model.npz test.npz
      rgals evaluate model.npz ratings.csv --metrics ndcg@10,recall@20,mrr@10 --json
      rgals evaluate model.npz newcomers.csv --fold-in 0.2

    The interactions of DATA (of its test part, if it marks one) are the truth; interactions that the model
    was fitted to are left out of rankings and truth. Users of whom the model knows nothing are judged by the
    lists of --cold, and items that it does not know count as missed. With --fold-in SHARE users need not be
    known: that share of every user's interactions in DATA is the truth, and the user's factors are computed
    from the rest.
    """
    if args.fold_in is None and args.seed is not None:
        raise InputError("--seed N draws the share of --fold-in SHARE: give both")
    if args.fold_in is not None:
        check_share("fold_in", args.fold_in)
        if args.cold != COLD[0]:
            raise InputError(f"--cold {args.cold} is for users unknown to the model: --fold-in knows all")
    metrics = tuple(name.strip() for name in args.metrics.split(",") if name.strip())
    model, how = shared.load(args.model), {"metrics": metrics, **parameters(args, evaluate)}
    if args.fold_in is not None and isinstance(model, SGDRanker):
        raise ParameterError("fold_in", args.fold_in, "an SGDRanker has no factors of new users")
    data = shared.read_data(args)
    if args.fold_in is not None:
        rows = shared.align(data, data.matrix, None, model._state().items)
        told = Given(rows, timestamp=getattr(rows, "times", None))
        shown, truth = split_interactions(told, (1 - args.fold_in, args.fold_in), random_state=args.seed or 0)
        fixed, state, known = model._read_rows(shown)
        fixed._warn_without_features(state, "--fold-in")
        figures = evaluate(fixed._ranking(state, fixed._fold_in(state, known)), shown, truth, **how)
    else:
        truth = data.matrix if data.split is None else data.test
        part: Any = Interactions(truth, data.user_ids, data.item_ids)
        if model.user_ids_ is None and model.item_ids_ is None:  # its rows and columns are the ids
            part = shared.align(data, truth, model._state().users, model._state().items)
        figures = evaluate(model, model.seen_, part, cold=args.cold, **how)
    counts = {"users": figures.n_users, "cold": figures.n_cold, "interactions": figures.n_interactions}
    if args.json:
        # JSON has no NaN.
        means = {name: value if value == value else None for name, value in figures.items()}
        print(json.dumps({**counts, **means}))
        return
    text = f"{figures.n_interactions:,} held-out interactions of {figures.n_users:,} users"
    shared.tell(args, f"{text}, {figures.n_cold:,} of whom the model knows nothing")
    print(shared.table(list(figures.items()), ["metric", "mean"]))


@command(
    "recommend",
    arg("MODEL", "file of a fitted model of any kind"),
    arg("-o --output FILE", "parquet, csv, tsv, jsonl or npz; - prints csv (default)", default="-"),
    arg("-n N", "items for each user (default: 10)", type=int, default=10),
    arg("--batch-size N", f"users at once (default: {_BATCH_SIZE})", type=int, default=_BATCH_SIZE),
    arg("--anew", "start again instead of resuming an interrupted run"),
    Heading("which users", "By default all.", exclusive=True),
    arg("--user ID", "this user; may be repeated", action="append"),
    arg("--users-from FILE", "the users of a text file, one id a line"),
    arg("--new-users DATA", "users with the interactions in DATA, folded in"),
    Heading("which items"),
    arg("--candidates FILE", "only the items of a text file, one id a line"),
    arg("--exclude FILE", "none of the items of a text file, one id a line"),
    arg("--keep-seen", "recommend items that a user already has, too"),
    arg("--popular", "give users without interactions the most popular items"),
    *shared.READING,
)
def run_recommend(args: argparse.Namespace) -> None:
    """Write the best items of every user, or show those of a few.

    For example:
      rgals recommend model.npz -o recommendations.parquet
      rgals recommend model.npz --user 17 --user 42 -n 5
      rgals recommend model.npz --new-users newcomers.csv -o recommendations.tsv
      rgals recommend model.npz --candidates in_stock.txt -o - | head

    Columns: user, item, rank (from 1), score. Scores order the items of one user; they are no probabilities.
    The format follows from the name of the file: .parquet, .csv, .tsv, .jsonl or .npz. It appears when it is
    complete. The same command resumes an interrupted run from FILE.partial.
    """
    check_int("batch_size", args.batch_size, 1)
    if args.output != "-":
        inputs = args.model, args.new_users, args.users_from, args.candidates, args.exclude
        shared.check_outputs([args.output], *inputs)
        choose_format(args.output)
    model = shared.load(args.model)
    items = model._state().items
    filters: dict[str, Any] = {"exclude": None if args.keep_seen else "train"}
    for name, path in (("candidates", args.candidates), ("exclude_items", args.exclude)):
        filters[name] = None if path is None else Positions(items.parse(shared.read_lines(path)))
    cold = "popular" if args.popular else "empty"
    users = new = new_ids = None
    wanted = args.user if args.users_from is None else shared.read_lines(args.users_from)
    if wanted is not None:
        users = Positions(model._state().users.parse(wanted))
    data = shared.read_data(args, "new_users")
    if data is not None:
        new, new_ids = shared.align(data, data.matrix, None, items), data.user_ids
    if args.output == "-":
        task = Task(model, args.n, users, new, new_ids, filters, cold)
        check_writable("csv", task.labels, "user")
        check_writable("csv", task.items, "item")
        spans = pairwise([*range(0, len(task), args.batch_size), len(task)])
        write_text(sys.stdout, "csv", ((task.names(*span), *task.score(*span)) for span in spans), task.items)
        return
    how: dict[str, Any] = {"batch_size": args.batch_size, "resume": not args.anew, **filters}
    who: dict[str, Any] = {"users": users, "X_new": new, "new_ids": new_ids, "cold": cold}
    written = recommend_all(model, args.output, args.n, **who, **how, verbose=shared.progress(args))
    if written.resumed:
        shared.tell(args, f"resumed after {written.resumed:,} of {written.users:,} users")
    what = f"{written.rows:,} recommendations for {written.served:,} users"
    rate = written.users / max(written.seconds, 1e-9)
    shared.tell(args, f"{what} written to {args.output} ({rate:,.0f} users/s)")
