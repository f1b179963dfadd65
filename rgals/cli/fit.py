"""Commands that turn files of interactions into a store, a model or a tuned model."""

import argparse
import time
from typing import Any

from rgals.cli import _shared as shared
from rgals.cli._options import Heading, arg, command, param, parameters
from rgals.datasets import read_interactions
from rgals.datasets.convert import MERGES, convert
from rgals.estimator import RGALS
from rgals.model_selection import PROTOCOLS, Search, split_interactions, tune
from rgals.runtime.checks import check_int, check_share
from rgals.runtime.errors import InputError, ParameterError, warn
from rgals.training.checkpoint import Checkpoint

_FEATURES = (
    Heading("features", "csv or parquet; they may have users and items that DATA does not."),
    arg("--user-features FILE", "features of users"),
    arg("--item-features FILE", "features of items"),
)


@command(
    "convert",
    arg("SOURCES", "files and folders of interactions", nargs="+", metavar="SOURCE"),
    arg("-o --output FOLDER", "folder of the new store", required=True),
    param(convert, "memory SIZE", "most memory that the process may use, such as 800MB or 8GB"),
    param(convert, "min_value V", "keep values >= V as positives of weight 1", float),
    param(convert, *shared.DELIMITER),
    param(convert, "encoding NAME", "of text files"),
    param(convert, "duplicates", "how repeated pairs are merged", MERGES),
    param(convert, "binarize", "set every kept value to 1, however often a pair occurs"),
    param(convert, "header", "the first line holds names (default: detected)"),
    *shared.COLUMNS,
)
def run_convert(args: argparse.Namespace) -> None:
    """Write interactions of any size to a store, from which models are fitted without loading them.

    For example:
      rgals convert events.parquet -o data.rgals
      rgals convert logs/ -o data.rgals --memory 4GB --user-column who --item-column what
      rgals fit data.rgals -o model.npz

    SOURCE: parquet or text files, or folders of them. Needs pyarrow. A killed conversion leaves nothing that
    opens; the next removes the rest. A store has no times and no splits: marked test parts are as all others.
    """
    how = {"columns": parameters(args, read_interactions), **parameters(args, convert)}
    store = convert(args.sources, args.output, progress=bool(shared.progress(args)), **how)
    users, items = store.shape
    shared.tell(args, f"{users:,} users, {items:,} items, {store.nnz:,} interactions in {args.output}")


@command(
    "fit",
    arg("DATA", "file of interactions, or a store of `rgals convert`"),
    arg("-o --output FILE", "file of the model (npz)", required=True),
    arg("--loss LOSS", "rg2, rgx, wrmf, ials, with parameters (default: rg2)", default="rg2"),
    arg("--all", "fit all interactions, also those that DATA marks as test"),
    arg("--hold-out SHARE", "hold out this share of every user's interactions", type=float),
    arg("--held-out FILE", "file of the held-out interactions (npz)"),
    Heading("fitting"),
    *shared.FIT,
    *_FEATURES,
    Heading("checkpoints", "The same command resumes an interrupted fit."),
    arg("--checkpoint FOLDER", "folder of the checkpoints of this fit"),
    arg("--checkpoint-every N", "iterations between two checkpoints (default: 1)", type=int),
    Heading("early stopping"),
    arg("--early-stopping", "stop when validation quality no longer rises"),
    param(RGALS, "metric METRIC", "of validation"),
    param(RGALS, "patience N", "iterations without improvement until it stops"),
    *shared.READING,
)
def run_fit(args: argparse.Namespace) -> None:
    """Fit a model to a file of interactions and save it.

    For example:
      rgals fit ratings.csv -o model.npz
      rgals fit ratings.dat --min-value 4 --K 128 --loss ials:alpha0=0.05 -o model.npz
      rgals fit ratings.csv --hold-out 0.2 --held-out test.npz --seed 0 -o model.npz
      rgals evaluate model.npz test.npz
      rgals fit ratings.csv --half-life 90d --item-features items.csv -o model.npz
      rgals fit ratings.csv --dislike-below 3 --loss ials:dislikes=true -o model.npz

    A loss is NAME or NAME:PARAMETER=VALUE,... with NAME rg2, rgx, wrmf or ials. Where DATA marks a test or
    validation part, only the training part is fitted (--all fits everything). Tables of features have a
    column user or item; numbers are standardised, every other column becomes a column for each of its values.
    """
    if (args.hold_out is None) != (args.held_out is None):
        raise InputError("--hold-out SHARE and --held-out FILE belong together")
    if args.hold_out is not None:
        check_share("hold_out", args.hold_out)
    if args.held_out is not None and not args.held_out.endswith(".npz"):
        raise ParameterError("held_out", args.held_out, "give a name that ends in .npz")
    if args.checkpoint is None and args.checkpoint_every is not None:
        raise InputError("--checkpoint-every N says how often, not where: give --checkpoint FOLDER, too")
    how = {"early_stopping": args.early_stopping, **parameters(args, RGALS)}
    if not args.early_stopping and how.keys() & {"metric", "patience"}:
        raise InputError("--metric and --patience say when --early-stopping stops: give that, too")
    every = 1 if args.checkpoint_every is None else args.checkpoint_every
    checkpoint = None if args.checkpoint is None else Checkpoint(args.checkpoint, every)
    shared.check_outputs((args.output, args.held_out), args.data, args.user_features, args.item_features)
    model = RGALS(loss=shared.parse_loss(args.loss), verbose=shared.progress(args), **how)
    # Before DATA is read, which may take minutes.
    model._check({"checkpoint": checkpoint, "user_features": args.user_features})
    features = _features(args)
    data = shared.read_data(args, stores=True)
    has_split = getattr(data, "split", None) is not None
    train, validation, held_out = data.replace(split=None) if has_split else data, None, None
    if has_split and not args.all:
        train, marked = shared.marked_parts(data)
        validation = marked if args.early_stopping else None
        part = f"its training part, {train.nnz:,} of {data.nnz:,} interactions"
        shared.say(f"{args.data} comes with a split: fitting {part}")
    if args.hold_out is not None:
        shares, seed = (1 - args.hold_out, args.hold_out), how.get("random_state", 0)
        train, held_out = split_interactions(train, shares, random_state=seed)
    users, items = data.shape
    shared.tell(args, f"{users:,} users, {items:,} items, {train.nnz:,} interactions to fit")
    started = time.perf_counter()
    model.fit(train, validation=validation, checkpoint=checkpoint, **features)
    seconds = time.perf_counter() - started
    if held_out is not None:
        held_out.save(args.held_out)
    model.save(args.output)
    done = f"{model.n_iter_} iterations ({model.solver_}), objective {model.history_[-1]['objective']:.6g}"
    shared.tell(args, f"{model!r}\n{done}, {seconds:.1f} s with compilation, saved to {args.output}")


@command(
    "tune",
    arg("DATA", "file of interactions"),
    arg("-o --output FILE", "file of the model (npz)", required=True),
    arg("--loss LIST", "of rg2,rgx,wrmf,ials; one alone may have parameters (default: rg2)", default="rg2"),
    arg(
        "-K --K LIST",
        "number of factors; a list, 64,128,256, is tried while quality rises; or auto (default: 64)",
    ),
    arg("--space NAME=V", "LOW:HIGH, A,B,C or one value; once per parameter", action="append", default=[]),
    param(tune, "budget B", "cost in units of a default fit, evaluation and refit included", float),
    param(tune, "protocol NAME", "training, validation and test parts; one of " + "; ".join(PROTOCOLS)),
    param(tune, "metric METRIC", "that is maximised"),
    param(tune, *shared.VALUES),
    param(tune, "journal FILE", "file that stores every fit, to resume after an interruption"),
    param(tune, "random_state N", "seed of splits, search and fits"),
    param(tune, *shared.JOBS),
    param(Search, "repeats N", "validation splits"),
    param(Search, "n_iter N", "most iterations of a fit"),
    param(Search, "time_limit S", "seconds after which no further fit starts", float),
    arg("--sampler NAME", argparse.SUPPRESS),  # until version 0.3
    arg("--show N", "settings to print (default: 10)", type=int, default=10),
    *_FEATURES,
    *shared.READING,
)
def run_tune(args: argparse.Namespace) -> None:
    """Find good parameters on held-out interactions, refit and save the best model.

    For example:
      rgals tune ratings.csv --min-value 4 -o model.npz
      rgals tune ratings.csv --loss rg2,ials --budget 60 --journal trials.jsonl -o model.npz
      rgals tune ratings.csv --loss ials:item_exponent=-0.4 --K 64,128,256 --space reg=0.001:0.1 -o model.npz
      rgals tune ratings.csv --space half_life=auto -o model.npz

    The losses share the budget, counted in default fits. With a journal, the same command resumes an
    interrupted one. Settings are judged by the validation part that DATA marks or, without one, by a tenth of
    every user's interactions. The saved model is fitted to both, to no test part, marked or of --protocol.
    """
    how: dict[str, Any] = {"verbose": shared.progress(args), **parameters(args, tune)}
    shared.check_outputs((args.output, how.get("journal")), args.data, args.user_features, args.item_features)
    if args.sampler is not None:
        warn("--sampler has no effect and goes in the next version; leave it out", FutureWarning)
    check_int("show", args.show, 0)
    space: dict[str, Any] = {} if args.K is None else {"K": _values(args.K)}
    for text in args.space:
        name, equals, value = map(str.strip, text.partition("="))
        if not equals or not value or name in space:
            raise ParameterError("space", text, "write NAME=LOW:HIGH, NAME=A,B,C or NAME=VALUE, each once")
        ends = tuple(map(shared.value_of, value.split(":")))  # of a range, where there are two
        space[name] = ends if ":" in value else _values(value)
    losses = [args.loss] if ":" in args.loss else [name.strip() for name in args.loss.split(",")]
    features = _features(args)
    X = data = shared.read_data(args)
    if "protocol" not in how and data.split is not None:
        X, how["validation"] = shared.marked_parts(data)
        shared.tell(args, f"{args.data} comes with a split: its test part is left alone")
    how["search"] = Search(**parameters(args, Search))
    found = tune([shared.parse_loss(text) for text in losses], X, space, **how, **features)
    found.model.save(args.output)
    print(found.table(args.show))
    test = "" if found.test is None else f", test {found.metric} {found.test[found.metric]:.4f}"
    ended = "" if found.finished else " (the time limit ended the search)"
    figure = f"{found.metric} {found.figure:.4f}, {100 * found.gain:+.1f} % over the rule{test}"
    shared.tell(args, f"{len(found.trials)} fits{ended}; validation {figure}")
    shared.tell(args, f"{found.model!r}\nsaved to {args.output}")


def _features(args: argparse.Namespace) -> dict[str, Any]:
    """Read the tables of features that were named."""
    tables = ("user", args.user_features), ("item", args.item_features)
    return {f"{of}_features": shared.read_table(p, of, args) for of, p in tables if p is not None}


def _values(text: str) -> Any:
    values = [shared.value_of(part.strip()) for part in text.split(",")]
    return values if len(values) > 1 else values[0]
