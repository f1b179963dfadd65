"""Shared by several commands: options for reading and fitting, losses as text, tables, messages."""

import argparse
import inspect
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from rgals.baselines import EASE, Popularity
from rgals.cli._options import Argument, Heading, arg, param, parameters
from rgals.datasets import IdMap, Interactions, read_interactions
from rgals.datasets.columns import IDS, role_of
from rgals.datasets.given import Given, given
from rgals.datasets.ids import as_labels, text_to_labels
from rgals.datasets.interactions import DUPLICATES, TRAIN, VALIDATION, refuse
from rgals.datasets.layout import numbered
from rgals.estimator import RGALS
from rgals.files.archive import OtherFormatError
from rgals.losses import Loss, get_loss
from rgals.matrix.store import Store, open_matrix
from rgals.runtime.errors import InputError, ParameterError
from rgals.runtime.lazy import optional
from rgals.sgd import SGDRanker


def value_of(text: str) -> Any:
    """Read an argument as None, a boolean, a number or, if it is none of these, text."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return {"none": None, "true": True, "false": False}.get(text.lower(), text)


def _column(text: str) -> str | int | None:
    """Column of a file as given on the command line: a name, a position from 0, or none."""
    return None if text == "none" else int(text) if text.isascii() and text.isdigit() else text


_tab = partial(re.sub, r"\\t", "\t")  # shells pass '\t' as two characters
DELIMITER = "delimiter D", r"field separator, for example '::' or '\t' (default: detected)", _tab
JOBS = "n_jobs N", "threads (default: all)", int
VALUES = "values KIND", "how values weigh interactions: auto, raw, log1p, binary or bm25"
_fit, _read = partial(param, RGALS), partial(param, read_interactions)
#: Options of `RGALS` except the loss.
FIT = (
    _fit("K N", "number of factors"),
    _fit("reg R", "strength of the regularisation; auto follows the data", value_of),
    _fit("reg_exponent NU", "1 scales it with the weight of a row, 0 is plain"),
    _fit(*VALUES),
    _fit("n_iter N", "iterations; auto ends when the objective settles", value_of),
    _fit("init NAME", "initial factors: auto, random or spectral"),
    _fit("readout_exponent E", "after the fit, scale item factors by their popularity to this power"),
    _fit("hard_negatives GAMMA", "weight of high-scored unobserved pairs: 0.5 to 4 for small K", float),
    _fit("solver NAME", "auto, exact, pcg, svd or dense"),
    _fit("dtype TYPE", "float32 or float64"),
    _fit("half_life T", "time in which an interaction loses half of its weight, such as 90d", value_of),
    _fit("feature_reg R", "strength of the regularisation of the features' weights", value_of),
    _fit("user_mean M", "true regularises users towards their mean instead of zero; auto, false", value_of),
    _fit("tol T", "stop when the objective falls by less than this share"),
    _fit(*JOBS),
    _fit("random_state N", "random state, for reproducible results", int),
)
#: Columns by role; `rgals convert` takes no others.
COLUMNS = (
    _read("user COLUMN", "column of users: a name, or a position from 0", _column),
    _read("item COLUMN", "column of items", _column),
    _read("value COLUMN", "column of ratings, counts or weights; none: all weigh 1", _column),
)
#: Options for reading a data file; see `read_data`.
READING: tuple[Argument | Heading, ...] = (
    Heading("reading", "DATA: npz, csv, tsv, jsonl, '::', .inter, parquet; usual column names are detected."),
    *COLUMNS,
    _read("timestamp COLUMN", "column of times, or none", _column),
    _read("min_value V", "keep values >= V as positives of weight 1", float),
    _read(*DELIMITER),
    _read("encoding NAME", "of a text file"),
    _read("dislike_below V", "values < V are dislikes, for losses with dislikes=true", float),
    _read("duplicates", "how repeated pairs are merged", DUPLICATES),
    _read("header", "the first line holds names (default: detected)"),
    arg("--text-ids", "ids that stay texts where all are integers", choices=("user", "item", "both")),
)


def say(text: str) -> None:
    """Print a message to standard error."""
    print(text, file=sys.stderr, flush=True)


def tell(args: argparse.Namespace, text: str) -> None:
    """Print a message unless ``--quiet`` is given."""
    if not args.quiet:
        say(text)


def progress(args: argparse.Namespace) -> int:
    """Verbosity of long work: 1, a progress bar, at a terminal without ``--quiet``; otherwise 0."""
    return int(sys.stderr.isatty() and not args.quiet)


def load(path: str) -> Any:
    """Load a fitted model of any kind; a file of no model gives the error of `RGALS.load`."""
    try:
        return RGALS.load(path)
    except OtherFormatError:
        for kind in (SGDRanker, Popularity, EASE):
            with suppress(OtherFormatError):  # a damaged file of this kind is reported as such
                return kind.load(path)
        raise


def read_data(args: argparse.Namespace, name: str = "data", *, stores: bool = False) -> Any:
    """Read the data file of a command with the options of `READING`, or open a store if ``stores``."""
    # None if the file is not given; reading options, which would have no effect then, are refused.
    path, options = getattr(args, name), parameters(args, read_interactions)
    if path is None and options:
        taken = [each for each in args.parser._actions if each.dest.partition(".")[2] in options]
        idle, needed = ", ".join(each.option_strings[0] for each in taken), name.replace("_", "-")
        raise InputError(f"{idle}: options of reading have no effect without --{needed}")
    if path is None:
        return None
    if os.path.isdir(path) and (options or not stores):
        how = "only `rgals fit` takes a store, and options of reading are given to `rgals convert`"
        raise InputError(f"{path} is a folder: {how}")
    data: Any = open_matrix(path) if os.path.isdir(path) else read_interactions(path, **options)
    texts = {f"{side}_ids": getattr(data, f"{side}_ids").astype(str) for side in IDS if are_texts(args, side)}
    if isinstance(data, Interactions):
        return data.replace(**texts)
    ids = {"user_ids": data.user_ids, "item_ids": data.item_ids}
    return Store(data.path, data.matrix, **ids | texts)


def are_texts(args: argparse.Namespace, side: str) -> bool:
    """Whether ids of users or items stay texts."""
    return args.text_ids in (side, "both")


def marked_parts(data: Interactions) -> tuple[Interactions, Interactions | None]:
    """The marked training part, and the validation part or None, with ids and times."""
    told, split = given(data), np.asarray(data.split)
    train, validation = (told.where(data.matrix, split == part) for part in (TRAIN, VALIDATION))
    return train, validation if validation.nnz else None


def read_table(path: str, label: str, args: argparse.Namespace) -> Any:
    """A table of features of users or items, csv or parquet, as a frame of pandas."""
    pandas = optional("pandas", "features need pandas: pip install pandas")
    try:
        table = (pandas.read_parquet if path.endswith(".parquet") else pandas.read_csv)(path)
        own = [column for column in table if role_of(column) == label]
        if not own:
            listed = ", ".join(map(repr, table))
            raise InputError(f"{path}: no column is called {label}; the columns (after commas) are {listed}")
        own = [name for name in own if name == label] or own
        if path.endswith(".parquet"):
            ids = [name for name in own if table[name].is_unique and are_texts(args, label)]
            return table.assign(**{name: as_labels(table[name]).astype(str) for name in ids})
        # Read ids as in files of interactions: pandas would read 007 as 7, and NA as missing.
        texts = pandas.read_csv(path, dtype=str, keep_default_na=False)
        for column in own:
            if texts[column].is_unique:
                refuse(texts[column].str.strip() == "", f"{path}: row {{}}".format, f"the {label} is missing")
                codes, labels = text_to_labels(np.arange(len(table)), texts[column].tolist())
                table[column] = (labels.astype(str) if are_texts(args, label) else labels)[codes]
        return table
    except ValueError as error:  # the base of errors of pandas, pyarrow and decoding
        raise InputError(f"{path} cannot be read as a table of features: {error}") from error


def parse_loss(text: str) -> Loss:
    """Make a loss from ``NAME`` or ``NAME:PARAMETER=VALUE,...``."""
    name, _, settings = text.partition(":")
    kind = type(get_loss(name))
    known = list(inspect.signature(kind).parameters)
    values: dict[str, Any] = {}
    for setting in filter(None, settings.split(",")):
        key, equals, value = (part.strip() for part in setting.partition("="))
        if not equals or key not in known:
            raise ParameterError("loss", text, f"write NAME:PARAMETER=VALUE; {name} has " + ", ".join(known))
        values[key] = value_of(value)
    return get_loss(kind(**values))


def align(data: Interactions, matrix: sp.csr_array, users: IdMap | None, items: IdMap) -> sp.csr_array:
    """The matrix in the columns (and rows) of a model; a message counts interactions that are left out."""
    times = data.timestamp if matrix is data.matrix else None
    known = Given(matrix, data.user_ids, data.item_ids, times).laid_out(users, items, "the data")[0]
    if known.nnz < matrix.nnz:
        unknown = f"{matrix.nnz - known.nnz:,} of {matrix.nnz:,} interactions"
        say(f"{unknown} are of users or items the model does not know")
    return known


def check_outputs(outputs: Sequence[str | None], *inputs: str | None) -> None:
    """Refuse outputs that could not be written after long work, or would replace another file."""
    taken = set(map(os.path.realpath, filter(None, inputs)))
    for path in (path for path in outputs if path is not None):
        place = os.path.realpath(path)
        if place in taken:
            raise InputError(f"{path} would replace another file of this command; give another name")
        shown = path or place  # not `place` of /dev/stdout, which may not exist
        if os.path.exists(shown) and not os.path.isfile(shown):
            what = "a folder" if os.path.isdir(shown) else "no regular file"
            raise InputError(f"{shown} is {what}; give the name of a file")
        taken.add(place)
        folder = os.path.dirname(place)
        if not os.path.isdir(folder):
            raise FileNotFoundError(2, "No such folder; make it first (mkdir -p)", folder)
        if not os.access(folder, os.W_OK):
            raise PermissionError(13, "Permission denied", folder)


def read_lines(path: str) -> list[str]:
    """The lines of a text file that are not empty, stripped: ids, one a line."""
    return [line for _, line in numbered(Path(path))]


def table(rows: Sequence[Sequence[Any]], header: Sequence[str]) -> str:
    """Align columns: text to the left, numbers to the right; floats get four digits, None a dash."""
    number, columns = re.compile(r"-|-?\d+(\.\d*)?"), []
    for name, *values in zip(header, *rows, strict=True):
        cells = ["-" if v is None else f"{v:.4f}" if isinstance(v, float) else str(v) for v in values]
        align = str.rjust if all(map(number.fullmatch, cells)) else str.ljust
        columns.append([align(cell, max(map(len, (name, *cells)))) for cell in (name, *cells)])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))
