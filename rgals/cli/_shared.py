"""What several commands share: options for reading and fitting, losses as text, tables, messages."""

from __future__ import annotations

import argparse
import inspect
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from rgals.datasets import IdMap, Interactions, read_interactions
from rgals.estimator import RGALS
from rgals.losses import LOSSES, Loss, get_loss
from rgals.runtime.errors import InputError, ParameterError

_COLUMNS = ("user", "item", "value", "timestamp")
_READ = ("min_value", "duplicates", "delimiter", "header", "encoding")
_FIT = ("K", "reg", "reg_exponent", "n_iter", "solver", "dtype", "tol", "n_jobs", "random_state")


def say(text: str) -> None:
    """Print a message for the person at the terminal."""
    print(text, file=sys.stderr, flush=True)


def progress(args: argparse.Namespace) -> int:
    """Verbosity of long work: a bar where somebody watches."""
    return int(sys.stderr.isatty() and not args.quiet)


def column(text: str) -> str | int:
    """Column of a file as given on the command line: a name, or a position from 0."""
    return int(text) if text.isascii() and text.isdigit() else text


def add_read_options(parser: argparse.ArgumentParser) -> None:
    """Options that say how a data file is to be read; see `read_data`."""
    group = parser.add_argument_group(
        "reading", "DATA: npz, csv, tsv, MovieLens '::', parquet; columns with usual names are found."
    )
    for name, text in (
        ("user", "users: a name, or a position from 0"),
        ("item", "items"),
        ("value", "ratings, counts or weights"),
        ("timestamp", "times"),
    ):
        flag, help_text = f"--{name}-column", f"column of {text}"
        group.add_argument(flag, type=column, metavar="COLUMN", help=help_text)
    group.add_argument(
        "--min-value", type=float, metavar="V", help="keep values >= V as positives of weight 1"
    )
    group.add_argument(
        "--duplicates", choices=("sum", "last", "max", "error"), help="what a repeated pair becomes"
    )
    group.add_argument("--delimiter", metavar="D", help="field separator, for example '::' (default: found)")
    group.add_argument(
        "--header", action=argparse.BooleanOptionalAction, help="the first line holds names (default: found)"
    )
    group.add_argument("--encoding", metavar="NAME", help="of a text file (default: utf-8)")


def read_data(args: argparse.Namespace, path: str | None = None) -> Interactions:
    """Read the data file of a command with the options of `add_read_options`."""
    options = {name: getattr(args, f"{name}_column") for name in _COLUMNS}
    options |= {name: getattr(args, name) for name in _READ}
    given = {name: value for name, value in options.items() if value is not None}
    return read_interactions(args.data if path is None else path, **given)


def add_fit_options(parser: argparse.ArgumentParser) -> None:
    """Options of `RGALS` except the loss; see `fit_parameters`. Defaults are those of the class."""
    default = {name: p.default for name, p in inspect.signature(RGALS).parameters.items()}
    group = parser.add_argument_group("fitting")

    def option(flag: str, kind: Any, text: str, **more: Any) -> None:
        name = flag.lstrip("-").replace("-", "_")
        dest = {"jobs": "n_jobs", "seed": "random_state"}.get(name, name)
        if default[dest] is not None:
            text += f" (default: {default[dest]})"
        group.add_argument(flag, type=kind, dest=dest, help=text, **more)

    option("--K", int, "number of factors", metavar="N")
    option("--reg", _reg, "strength of the regularisation; auto follows the data", metavar="R")
    option("--reg-exponent", float, "1 scales it with the weight of a row, 0 is plain", metavar="NU")
    option("--n-iter", int, "most iterations", metavar="N")
    option("--solver", str, "auto, exact, svd or dense", metavar="NAME")
    option("--dtype", str, "float32 or float64", metavar="TYPE")
    option("--tol", float, "stop when the objective falls by less than this share", metavar="T")
    option("--jobs", int, "threads; all if not given", metavar="N")
    option("--seed", int, "random state, for a result that can be repeated", metavar="N")


def _reg(text: str) -> float | str:
    return text if text == "auto" else float(text)


def fit_parameters(args: argparse.Namespace) -> dict[str, Any]:
    """The given ones of the options of `add_fit_options`, as parameters of `RGALS`."""
    return {name: getattr(args, name) for name in _FIT if getattr(args, name) is not None}


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


def value_of(text: str) -> Any:
    """None, a truth value, a number or the text itself."""
    if text.lower() in ("none", "true", "false"):
        return {"none": None, "true": True, "false": False}[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def labels(model: RGALS, side: str) -> IdMap:
    """External ids of a model's users or items; row or column numbers where it was fitted without ids."""
    ids, factors = (
        (model.user_ids_, model.user_factors_) if side == "user" else (model.item_ids_, model.item_factors_)
    )
    return IdMap(np.arange(len(factors)) if ids is None else ids, side)


def align(data: Interactions, matrix: sp.csr_array, users: IdMap | None, items: IdMap) -> sp.csr_array:
    """The matrix with the columns (and rows) of a model; says how much does not occur there."""
    pairs = sp.coo_array(matrix)
    row, col = pairs.coords
    col = items.index(data.item_ids, missing="mark")[col]
    n_rows = data.n_users
    if users is not None:
        row, n_rows = users.index(data.user_ids, missing="mark")[row], len(users)
    known = (row >= 0) & (col >= 0)
    if not known.all():
        unknown = int((~known).sum())
        say(f"{unknown:,} of {pairs.nnz:,} interactions are of users or items the model does not know")
    shape = n_rows, len(items)
    return sp.csr_array((pairs.data[known], (row[known], col[known])), shape=shape)


def check_output(path: str) -> None:
    """Refuse, before long work, an output file that could not be written after it."""
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


def percent(part: int, whole: int) -> str:
    """``part`` of ``whole`` in words, for messages."""
    return f"{100 * part / whole:.1f} %" if whole else "0 %"


def table(rows: Sequence[Sequence[Any]], header: Sequence[str]) -> str:
    """Align columns: text to the left, numbers to the right; floats get four digits, None a dash."""
    cells = [list(header), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[k]) for row in cells) for k in range(len(header))]
    right = [all(_is_number(row[k]) for row in cells[1:]) for k in range(len(header))]
    lines = []
    for row in cells:
        parts = [text.rjust(w) if r else text.ljust(w) for text, w, r in zip(row, widths, right, strict=True)]
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def _is_number(cell: str) -> bool:
    return cell == "-" or cell.replace(".", "", 1).removeprefix("-").isdigit()


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def print_json(figures: Mapping[str, Any] | Iterable[Any]) -> None:
    """Print figures for another program."""
    print(json.dumps(figures))


def metric_list(text: str) -> tuple[str, ...]:
    """Names of metrics, separated by commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())
