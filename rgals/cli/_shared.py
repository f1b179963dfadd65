"""What several commands share: options for reading and fitting, losses as text, tables, messages."""

import argparse
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import scipy.sparse as sp

from rgals.baselines import EASE, Popularity
from rgals.datasets import IdMap, Interactions, read_interactions
from rgals.datasets.given import Given
from rgals.datasets.given import given as dataset_given
from rgals.datasets.interactions import DUPLICATES, TRAIN, VALIDATION
from rgals.estimator import RGALS
from rgals.losses import LOSSES, Loss, get_loss
from rgals.matrix.store import open_matrix
from rgals.runtime.errors import InputError, ModelFileError, ParameterError
from rgals.runtime.lazy import optional
from rgals.sgd import SGDRanker

#: A parameter that a command takes as an option: its name, type, place holder and help.
Option = tuple[str, Callable[[str], Any], str, str]
JOBS: Option = ("n_jobs", int, "N", "threads; all if not given")
VALUES: Option = ("values", str, "KIND", "what a value weighs: auto, raw, log1p, binary or bm25")
#: Options of `rgals.compare.Effort`.
EFFORT: tuple[Option, ...] = (
    ("max_trials", int, "N", "fits to tune a method"),
    ("time_limit", float, "S", "training seconds of a fit"),
    ("validation_users", int, "N", "watch so many users instead of all, on large data"),
)

_COLUMNS = {"user": "users: a name, or a position from 0", "item": "items"}
_COLUMNS |= {"value": "ratings, counts or weights", "timestamp": "times"}
_READ: tuple[Option, ...] = (
    ("min_value", float, "V", "keep values >= V as positives of weight 1"),
    ("delimiter", str, "D", "field separator, for example '::'; found if not given"),
    ("encoding", str, "NAME", "of a text file"),
    ("dislike_below", float, "V", "values < V are dislikes, for losses with dislikes=true"),
)


def say(text: str) -> None:
    """Print a message for the person at the terminal."""
    print(text, file=sys.stderr, flush=True)


def progress(args: argparse.Namespace) -> int:
    """Verbosity of long work: a bar where somebody watches."""
    return int(sys.stderr.isatty() and not args.quiet)


def column(text: str) -> str | int:
    """Column of a file as given on the command line: a name, or a position from 0."""
    return int(text) if text.isascii() and text.isdigit() else text


def add_options(parser: Any, function: Callable[..., Any], options: Iterable[Option]) -> None:
    """Options for parameters of a function, which has the defaults; `given` collects them."""
    parameters = inspect.signature(function).parameters
    for name, kind, metavar, text in options:
        default = parameters[name].default
        if default is not None:
            text += f" (default: {default:g})" if isinstance(default, float) else f" (default: {default})"
        flag = {"n_jobs": "jobs", "random_state": "seed"}.get(name, name.replace("_", "-"))
        parser.add_argument(f"--{flag}", dest=name, type=kind, metavar=metavar, help=text)


def given(args: argparse.Namespace, options: Iterable[Option]) -> dict[str, Any]:
    """Those of the options of `add_options` that were given, by the names of the parameters."""
    return {name: getattr(args, name) for name, *_ in options if getattr(args, name) is not None}


def add_read_options(parser: argparse.ArgumentParser) -> None:
    """Options that say how a data file is to be read; see `read_data`."""
    forms = "DATA: npz, csv, tsv, jsonl, '::', .inter, parquet; columns with usual names are found."
    group = parser.add_argument_group("reading", forms)
    for name, text in _COLUMNS.items():
        group.add_argument(f"--{name}-column", type=column, metavar="COLUMN", help=f"column of {text}")
    add_options(group, read_interactions, _READ)
    group.add_argument("--duplicates", choices=DUPLICATES, help="what a repeated pair becomes (default: sum)")
    header = "the first line holds names (default: found)"
    group.add_argument("--header", action=argparse.BooleanOptionalAction, help=header)


def load(path: str) -> Any:
    """The model of a file of any kind; where it is none, the error is that of `RGALS.load`."""
    try:
        return RGALS.load(path)
    except ModelFileError:
        for kind in (SGDRanker, Popularity, EASE):
            with suppress(ModelFileError):
                return kind.load(path)
        raise


def read_data(args: argparse.Namespace, path: str | None = None, *, stores: bool = False) -> Any:
    """Read the data file of a command with the options of `add_read_options`; ``stores`` opens them, too."""
    path = args.data if path is None else path
    options = {name: getattr(args, f"{name}_column") for name in _COLUMNS}
    options |= {"duplicates": args.duplicates, "header": args.header}
    options = {name: value for name, value in options.items() if value is not None} | given(args, _READ)
    if os.path.isdir(path) and (options or not stores):
        how = "`rgals fit` alone takes a store, without options of reading, which `rgals convert` takes"
        raise InputError(f"{path} is a folder: {how}")
    return open_matrix(path) if os.path.isdir(path) else read_interactions(path, **options)


def marked_parts(data: Interactions) -> tuple[Interactions, Interactions | None]:
    """The training part of a split, and the validation part if there is one, with their ids and times."""
    told, split = dataset_given(data), np.asarray(data.split)
    train, validation = (told.where(data.matrix, split == part) for part in (TRAIN, VALIDATION))
    return train, validation if validation.nnz else None


def read_table(path: str) -> Any:
    """A table of features, csv or parquet, as a frame of pandas."""
    pandas = optional("pandas", "features need pandas: pip install pandas")
    try:
        return (pandas.read_parquet if path.endswith(".parquet") else pandas.read_csv)(path)
    except ValueError as error:  # as those of pandas, of pyarrow and of decoding are
        raise InputError(f"{path} cannot be read as a table of features: {error}") from error


def value_of(text: str) -> Any:
    """None, a truth value, a number or the text itself."""
    words = {"none": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


#: Options of `RGALS` except the loss.
FIT: tuple[Option, ...] = (
    ("K", int, "N", "number of factors"),
    ("reg", value_of, "R", "strength of the regularisation; auto follows the data"),
    ("reg_exponent", float, "NU", "1 scales it with the weight of a row, 0 is plain"),
    VALUES,
    ("n_iter", value_of, "N", "iterations; auto ends when the objective settles"),
    ("init", str, "NAME", "start: auto, random or spectral"),
    ("readout_exponent", float, "E", "items' factors times their popularity to this power, after the fit"),
    ("hard_negatives", float, "GAMMA", "weight of pairs that scores put first: 0.5 to 4 where K is small"),
    ("solver", str, "NAME", "auto, exact, pcg, svd or dense"),
    ("dtype", str, "TYPE", "float32 or float64"),
    ("half_life", value_of, "T", "time in which an interaction loses half of its weight, such as 90d"),
    ("feature_reg", value_of, "R", "strength of the regularisation of the features' weights"),
    ("tol", float, "T", "stop when the objective falls by less than this share"),
    JOBS,
    ("random_state", int, "N", "random state, for a result that can be repeated"),
)


def parse_loss(text: str) -> Loss:
    """Make a loss from ``NAME`` or ``NAME:PARAMETER=VALUE,...``."""
    name, _, settings = text.partition(":")
    get_loss(name)
    kind = LOSSES[name.lower()]
    known = list(inspect.signature(kind).parameters)
    values: dict[str, Any] = {}
    for setting in filter(None, settings.split(",")):
        key, equals, value = (part.strip() for part in setting.partition("="))
        if not equals or key not in known:
            raise ParameterError("loss", text, f"write NAME:PARAMETER=VALUE; {name} has " + ", ".join(known))
        values[key] = value_of(value)
    return get_loss(kind(**values))


def align(data: Interactions, matrix: sp.csr_array, users: IdMap | None, items: IdMap) -> sp.csr_array:
    """The matrix with the columns (and rows) of a model; says how much does not occur there."""
    times = data.timestamp if matrix is data.matrix else None
    known = Given(matrix, data.user_ids, data.item_ids, times).laid_out(users, items)[0]
    if known.nnz < matrix.nnz:
        unknown = f"{matrix.nnz - known.nnz:,} of {matrix.nnz:,} interactions"
        say(f"{unknown} are of users or items the model does not know")
    return known


def check_output(path: str, *others: str | None) -> None:
    """Refuse, before long work, an output that cannot be written after it, or is one of the other files."""
    if os.path.realpath(path) in map(os.path.realpath, filter(None, others)):
        raise InputError(f"{path} would replace another file of this command; give another name")
    folder = os.path.dirname(os.path.realpath(path))
    if os.path.isdir(path):
        raise InputError(f"{path} is a folder; give the name of a file")
    if not os.path.isdir(folder):
        raise FileNotFoundError(2, "No such folder", folder)
    if not os.access(folder, os.W_OK):
        raise PermissionError(13, "Permission denied", folder)


def read_lines(path: str) -> list[str]:
    """The lines of a text file that are not empty, stripped: ids, one a line."""
    with open(path, encoding="utf-8") as file:
        try:
            return [line.strip() for line in file if line.strip()]
        except UnicodeDecodeError as error:
            raise InputError(f"{path} is not UTF-8 text: {error}") from error


def table(rows: Sequence[Sequence[Any]], header: Sequence[str]) -> str:
    """Align columns: text to the left, numbers to the right; floats get four digits, None a dash."""
    cells = [list(header)]
    for row in rows:
        cells.append(["-" if v is None else f"{v:.4f}" if isinstance(v, float) else str(v) for v in row])
    widths = [max(len(row[k]) for row in cells) for k in range(len(header))]
    number = re.compile(r"-|-?\d+(\.\d*)?")
    right = [all(number.fullmatch(row[k]) for row in cells[1:]) for k in range(len(header))]
    form = "  ".join(f"{{:{'>' if to_right else '<'}{w}}}" for w, to_right in zip(widths, right, strict=True))
    return "\n".join(form.format(*row).rstrip() for row in cells)
