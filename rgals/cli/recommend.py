"""Write the best items of every user, or show those of a few.

For example:
  rgals recommend model.npz -o recommendations.csv
  rgals recommend model.npz --user 17 --user 42 -n 5
  rgals recommend model.npz --new-users newcomers.csv -o recommendations.tsv
  rgals recommend model.npz --candidates in_stock.txt -o - | head

Columns: user, item, rank (from 1), score. Scores order the items of one user; they are no probabilities. The
table is comma-separated, tab-separated if the file's name ends in .tsv; it appears when it is complete.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Iterator
from typing import Any, TextIO

import numpy as np
from tqdm import tqdm

from rgals._files import atomic_file
from rgals.cli import _shared as shared
from rgals.datasets import IdMap
from rgals.estimator import RGALS

_Block = tuple[np.ndarray, np.ndarray, np.ndarray]  # labels of users, items, scores
_USERS_AT_ONCE = 4096
_HEADER = ("user", "item", "rank", "score")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", metavar="MODEL", help="file that `rgals fit` wrote")
    parser.add_argument("-o", "--output", default="-", metavar="FILE", help="csv or tsv; - prints (default)")
    parser.add_argument("-n", type=int, default=10, metavar="N", help="items for each user (default: 10)")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress, no summary")
    who = parser.add_argument_group("which users", "By default all.").add_mutually_exclusive_group()
    who.add_argument("--user", action="append", metavar="ID", help="this user; may be repeated")
    who.add_argument("--users-from", metavar="FILE", help="the users of a text file, one id a line")
    who.add_argument("--new-users", metavar="DATA", help="users with the interactions in DATA, folded in")
    what = parser.add_argument_group("which items")
    what.add_argument("--candidates", metavar="FILE", help="only the items of a text file, one id a line")
    what.add_argument("--exclude", metavar="FILE", help="none of the items of a text file, one id a line")
    what.add_argument("--keep-seen", action="store_true", help="items a user already has may come again")
    shared.add_read_options(parser)


def run(args: argparse.Namespace) -> int:
    """Load, score block by block, write."""
    if args.output != "-":
        shared.check_output(args.output)
    model = RGALS.load(args.model)
    items = shared.labels(model, "item")
    filters: dict[str, Any] = {}
    for option, name in (("candidates", "candidates"), ("exclude", "exclude_items")):
        path = getattr(args, option)
        if path is not None:
            filters[name] = items.parse(shared.read_lines(path))
    if args.keep_seen:
        filters["exclude"] = None
    if args.new_users is not None:
        blocks = _new_users(args, model, items, filters)
    else:
        blocks = _known_users(args, model, filters)
    if args.output == "-":
        _write(sys.stdout, ",", blocks, items.labels)
        return 0
    delimiter = "\t" if args.output.endswith(".tsv") else ","
    with atomic_file(args.output) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        n_rows, n_users = _write(text, delimiter, blocks, items.labels)
        text.flush()
        text.detach()
    if not args.quiet:
        shared.say(f"{n_rows:,} recommendations for {n_users:,} users written to {args.output}")
    return 0


def _known_users(args: argparse.Namespace, model: RGALS, filters: dict[str, Any]) -> Iterator[_Block]:
    users = shared.labels(model, "user")
    if args.user is not None:
        rows = users.parse(args.user)
    elif args.users_from is not None:
        rows = users.parse(shared.read_lines(args.users_from))
    else:
        rows = np.arange(len(users))
    with tqdm(total=len(rows), desc="users", unit="user", disable=not shared.progress(args)) as bar:
        for start in range(0, len(rows), _USERS_AT_ONCE):
            block = rows[start : start + _USERS_AT_ONCE]
            yield users.labels[block], *model.recommend(block, args.n, **filters)
            bar.update(len(block))


def _new_users(
    args: argparse.Namespace, model: RGALS, items: IdMap, filters: dict[str, Any]
) -> Iterator[_Block]:
    data = shared.read_data(args, args.new_users)
    rows = shared.align(data, data.matrix, None, items)
    with tqdm(total=data.n_users, desc="users", unit="user", disable=not shared.progress(args)) as bar:
        for start in range(0, data.n_users, _USERS_AT_ONCE):
            block = slice(start, start + _USERS_AT_ONCE)
            yield data.user_ids[block], *model.recommend_new(rows[block], args.n, **filters)
            bar.update(len(data.user_ids[block]))


def _write(file: TextIO, delimiter: str, blocks: Iterator[_Block], items: np.ndarray) -> tuple[int, int]:
    """Write the table; returns its number of rows and of users with any."""
    writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
    writer.writerow(_HEADER)
    n_rows = n_users = 0
    for users, ids, scores in blocks:
        found = ids >= 0
        rank = np.broadcast_to(np.arange(1, ids.shape[1] + 1), ids.shape)[found].tolist()
        user = np.repeat(users, found.sum(axis=1)).tolist()
        score = [f"{value:.6g}" for value in scores[found].tolist()]
        writer.writerows(zip(user, items[ids[found]].tolist(), rank, score, strict=True))
        n_rows += len(rank)
        n_users += int(found.any(axis=1).sum())
    return n_rows, n_users
