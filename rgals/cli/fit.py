"""Fit a model to a file of interactions and save it.

For example:
  rgals fit ratings.csv -o model.npz
  rgals fit ratings.dat --min-value 4 --K 128 --loss ials:alpha0=0.05 -o model.npz
  rgals fit ratings.csv --hold-out 0.2 --held-out test.npz --seed 0 -o model.npz
  rgals evaluate model.npz test.npz
  rgals fit ratings.csv --half-life 90d --item-features items.csv -o model.npz
  rgals fit ratings.csv --dislike-below 3 --loss ials:dislikes=true -o model.npz

A loss is NAME or NAME:PARAMETER=VALUE,... with NAME rg2, rgx, wrmf or ials. Where DATA marks a test or
validation part, only the training part is fitted (--all fits everything). Tables of features have a column
user or item; numbers are standardised, every other column becomes a column for each of its values.
"""

import argparse
import time

from rgals.cli import _shared as shared
from rgals.estimator import RGALS
from rgals.model_selection import split_interactions
from rgals.runtime.errors import InputError, ParameterError
from rgals.training.checkpoint import Checkpoint

_STOPPING: tuple[shared.Option, ...] = (
    ("metric", str, "METRIC", "what is watched"),
    ("patience", int, "N", "iterations to wait"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("data", metavar="DATA", help="file of interactions, or a store of `rgals convert`")
    add("-o", "--output", required=True, metavar="FILE", help="where the model goes (npz)")
    add("--loss", default="rg2", metavar="LOSS", help="rg2, rgx, wrmf, ials, with parameters (default: rg2)")
    add("--all", action="store_true", help="fit every interaction, whatever DATA marks as test")
    add("--hold-out", type=float, metavar="SHARE", help="keep this share of every user apart")
    add("--held-out", metavar="FILE", help="where that share goes (npz)")
    shared.add_options(parser.add_argument_group("fitting"), RGALS, shared.FIT)
    beside = parser.add_argument_group("features", "csv or parquet; users and items need not be in DATA.")
    for side in ("user", "item"):
        beside.add_argument(f"--{side}-features", metavar="FILE", help=f"what is known of {side}s besides")
    keep = parser.add_argument_group("checkpoints", "The same command goes on from where a killed one was.")
    keep.add_argument("--checkpoint", metavar="FOLDER", help="write into this folder how far the fit is")
    between = "iterations between two checkpoints (default: 1)"
    keep.add_argument("--checkpoint-every", type=int, metavar="N", help=between)
    stop = parser.add_argument_group("early stopping")
    rises = "stop when held-out quality no longer rises"
    stop.add_argument("--early-stopping", action="store_true", help=rises)
    shared.add_options(stop, RGALS, _STOPPING)
    shared.add_read_options(parser)


def run(args: argparse.Namespace) -> int:
    """Read, fit, save."""
    if (args.hold_out is None) != (args.held_out is None):
        raise InputError("--hold-out SHARE and --held-out FILE belong together")
    if args.hold_out is not None and not 0 < args.hold_out < 1:
        raise ParameterError("hold_out", args.hold_out, "give a share between 0 and 1")
    if args.held_out is not None and not args.held_out.endswith(".npz"):
        raise ParameterError("held_out", args.held_out, "give a name that ends in .npz")
    checkpoint = None
    if args.checkpoint is not None or args.checkpoint_every is not None:
        every = 1 if args.checkpoint_every is None else args.checkpoint_every
        checkpoint = Checkpoint(args.checkpoint, every)
    read = args.data, args.user_features, args.item_features
    shared.check_output(args.output, args.held_out, *read)
    if args.held_out is not None:
        shared.check_output(args.held_out, *read)
    how = {"early_stopping": args.early_stopping, **shared.given(args, (*shared.FIT, *_STOPPING))}
    model = RGALS(loss=shared.parse_loss(args.loss), verbose=shared.progress(args), **how)
    data = shared.read_data(args, stores=True)
    train, validation, held_out = data, None, None
    if getattr(data, "split", None) is not None and not args.all:
        train, marked = shared.marked_parts(data)
        validation = marked if args.early_stopping else None
        part = f"its training part, {train.nnz:,} of {data.nnz:,} interactions"
        shared.say(f"{args.data} comes with a split: fitting {part}")
    if args.hold_out is not None:
        seed = 0 if args.random_state is None else args.random_state
        train, held_out = split_interactions(train, (1 - args.hold_out, args.hold_out), random_state=seed)
    if not args.quiet:
        users, items = data.shape
        shared.say(f"{users:,} users, {items:,} items, {train.nnz:,} interactions to fit")
    started = time.perf_counter()
    tables = {"user_features": args.user_features, "item_features": args.item_features}
    features = {name: shared.read_table(path) for name, path in tables.items() if path is not None}
    model.fit(train, validation=validation, checkpoint=checkpoint, **features)
    seconds = time.perf_counter() - started
    if held_out is not None:
        held_out.save(args.held_out)
    model.save(args.output)
    if not args.quiet:
        last = model.history_[-1]
        done = f"{model.n_iter_} iterations ({model.solver_}), objective {last['objective']:.6g}"
        shared.say(f"{model!r}\n{done}, {seconds:.1f} s with compilation, saved to {args.output}")
    return 0
