"""Write interactions of any size to a store, from which they are fitted without being held in memory.

For example:
  rgals convert events.parquet -o data.rgals
  rgals convert logs/ -o data.rgals --memory 4GB --user-column who --item-column what
  rgals fit data.rgals -o model.npz

SOURCE: parquet or text files, or folders of them. Needs pyarrow. What ends before leaves nothing.
"""

import argparse

from rgals.cli import _shared as shared
from rgals.datasets.convert import MERGES, convert

_OPTIONS: tuple[shared.Option, ...] = (
    ("memory", str, "SIZE", "memory that the process may take, such as 800MB or 8GB"),
    ("min_value", float, "V", "keep values >= V as positives of weight 1"),
    ("delimiter", str, "D", "field separator of text files; found if not given"),
    ("encoding", str, "NAME", "of text files"),
)
_ROLES = ("user", "item", "value")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help="files and folders of interactions")
    parser.add_argument("-o", "--output", required=True, metavar="FOLDER", help="the store to be made")
    shared.add_options(parser, convert, _OPTIONS)
    for role in _ROLES:
        text = f"column of {role}s: a name, or a position from 0"
        parser.add_argument(f"--{role}-column", type=shared.column, metavar="COLUMN", help=text)
    parser.add_argument("--duplicates", choices=MERGES, default="sum", help="what a repeated pair becomes")
    ones = "every kept value is 1, however often a pair occurs"
    parser.add_argument("--binarize", action=argparse.BooleanOptionalAction, default=None, help=ones)
    header = "the first line holds names (default: found)"
    parser.add_argument("--header", action=argparse.BooleanOptionalAction, default=None, help=header)


def run(args: argparse.Namespace) -> int:
    """Convert, and say what there is now."""
    columns = {role: getattr(args, f"{role}_column") for role in _ROLES}
    store = convert(
        args.sources,
        args.output,
        columns={role: column for role, column in columns.items() if column is not None},
        binarize=args.binarize,
        duplicates=args.duplicates,
        header=args.header,
        progress=bool(shared.progress(args)),
        **shared.given(args, _OPTIONS),
    )
    if not args.quiet:
        users, items = store.shape
        shared.say(f"{users:,} users, {items:,} items, {store.nnz:,} interactions in {args.output}")
    return 0
