"""Write the best items of every user, or show those of a few.

For example:
  rgals recommend model.npz -o recommendations.parquet
  rgals recommend model.npz --user 17 --user 42 -n 5
  rgals recommend model.npz --new-users newcomers.csv -o recommendations.tsv
  rgals recommend model.npz --candidates in_stock.txt -o - | head

Columns: user, item, rank (from 1), score. Scores order the items of one user; they are no probabilities. What
the file becomes follows from its name: .parquet, .csv, .tsv, .jsonl or .npz. It appears when it is complete.
If the run is stopped, the same command goes on where it was, from FILE.partial.
"""

import argparse
import sys
from itertools import pairwise
from typing import Any

from rgals.cli import _shared as shared
from rgals.datasets.ids import Positions
from rgals.estimator import RGALS
from rgals.runtime.checks import check_int
from rgals.scoring import recommend_all
from rgals.scoring._streaming import Task
from rgals.scoring._tables import check_writable, choose_format, write_text

_AT_ONCE = 8192


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="file that `rgals fit` wrote")
    forms = "parquet, csv, tsv, jsonl or npz; - prints csv (default)"
    add("-o", "--output", default="-", metavar="FILE", help=forms)
    add("-n", type=int, default=10, metavar="N", help="items for each user (default: 10)")
    at_once = f"users at once (default: {_AT_ONCE})"
    add("--batch-size", type=int, default=_AT_ONCE, metavar="N", help=at_once)
    add("--anew", action="store_true", help="do not go on where a stopped run was")
    who = parser.add_argument_group("which users", "By default all.").add_mutually_exclusive_group()
    who.add_argument("--user", action="append", metavar="ID", help="this user; may be repeated")
    who.add_argument("--users-from", metavar="FILE", help="the users of a text file, one id a line")
    who.add_argument("--new-users", metavar="DATA", help="users with the interactions in DATA, folded in")
    what = parser.add_argument_group("which items")
    what.add_argument("--candidates", metavar="FILE", help="only the items of a text file, one id a line")
    what.add_argument("--exclude", metavar="FILE", help="none of the items of a text file, one id a line")
    what.add_argument("--keep-seen", action="store_true", help="items a user already has may come again")
    popular = "users without interactions get the most popular items"
    what.add_argument("--popular", action="store_true", help=popular)
    shared.add_read_options(parser)


def run(args: argparse.Namespace) -> int:
    """Load, score block by block, write."""
    check_int("batch_size", args.batch_size, 1)
    if args.output != "-":
        shared.check_output(args.output, args.model, args.new_users, args.candidates, args.exclude)
        choose_format(args.output)
    model = RGALS.load(args.model)
    items = model._state().items
    filters: dict[str, Any] = {"exclude": None if args.keep_seen else "train"}
    for option, name in (("candidates", "candidates"), ("exclude", "exclude_items")):
        path = getattr(args, option)
        filters[name] = None if path is None else Positions(items.parse(shared.read_lines(path)))
    cold = "popular" if args.popular else "empty"
    users = new = new_ids = None
    wanted = args.user if args.users_from is None else shared.read_lines(args.users_from)
    if wanted is not None:
        users = Positions(model._state().users.parse(wanted))
    if args.new_users is not None:
        data = shared.read_data(args, args.new_users)
        new, new_ids = shared.align(data, data.matrix, None, items), data.user_ids
    if args.output == "-":
        task = Task(model, args.n, users, new, new_ids, filters, cold)
        check_writable("csv", task.labels, "user")
        check_writable("csv", task.items, "item")
        spans = pairwise([*range(0, len(task), args.batch_size), len(task)])
        write_text(sys.stdout, "csv", ((task.names(*span), *task.score(*span)) for span in spans), task.items)
        return 0
    how: dict[str, Any] = {"batch_size": args.batch_size, "resume": not args.anew, **filters}
    who: dict[str, Any] = {"users": users, "X_new": new, "new_ids": new_ids, "cold": cold}
    written = recommend_all(model, args.output, args.n, **who, **how, verbose=shared.progress(args))
    if not args.quiet:
        if written.resumed:
            shared.say(f"went on after {written.resumed:,} of {written.users:,} users")
        what = f"{written.rows:,} recommendations for {written.served:,} users"
        rate = written.users / max(written.seconds, 1e-9)
        shared.say(f"{what} written to {args.output} ({rate:,.0f} users/s)")
    return 0
