"""Find good parameters on held-out interactions, refit and save the best model.

For example:
  rgals tune ratings.csv --min-value 4 -o model.npz
  rgals tune ratings.csv --loss rg2,ials --budget 60 --journal trials.jsonl -o model.npz
  rgals tune ratings.csv --loss ials:item_exponent=-0.4 --K 64,128,256 --space reg=0.001:0.1 -o model.npz
  rgals tune ratings.csv --space half_life=auto -o model.npz

The losses share the budget, counted in default fits. The same command goes on where an interrupted one
stopped if it has a journal. Where DATA marks a test or validation part, that is not fitted: a marked
validation part judges the settings, otherwise a tenth of every user's interactions does.
"""

import argparse
from typing import Any

from rgals.cli import _shared as shared
from rgals.model_selection import PROTOCOLS, Search, tune
from rgals.runtime.errors import ParameterError

_OPTIONS: tuple[shared.Option, ...] = (
    ("budget", float, "B", "in default fits, evaluation and refit included"),
    ("protocol", str, "NAME", "training, validation and test parts; one of " + "; ".join(PROTOCOLS)),
    ("metric", str, "METRIC", "what is maximised"),
    shared.VALUES,
    ("journal", str, "FILE", "keeps every fit, to go on after an interruption"),
    ("random_state", int, "N", "of splits, search, fits"),
    shared.JOBS,
)
_SEARCH: tuple[shared.Option, ...] = (
    ("repeats", int, "N", "validation splits"),
    ("n_iter", int, "N", "of a full fit, at most"),
    ("time_limit", float, "S", "seconds; no fit starts after them"),
    ("sampler", str, "NAME", "gp, as everywhere"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("data", metavar="DATA", help="file of interactions")
    add("-o", "--output", required=True, metavar="FILE", help="where the model goes (npz)")
    losses = "of rg2, rgx, wrmf, ials, separated by commas; one alone may have parameters (default: rg2)"
    add("--loss", default="rg2", metavar="LIST", help=losses)
    several = "number of factors, ascending ones to try while they pay (64,128,256), or auto"
    add("--K", metavar="LIST", help=several)
    ranges = "range LOW:HIGH, choices A,B,C or one value of a parameter; may be repeated"
    add("--space", action="append", default=[], metavar="NAME=V", help=ranges)
    shared.add_options(parser, tune, _OPTIONS)
    shared.add_options(parser, Search, _SEARCH)
    add("--show", type=int, default=10, metavar="N", help="settings to print (default: 10)")
    shared.add_read_options(parser)


def run(args: argparse.Namespace) -> int:
    """Read, tune, save, print the table."""
    shared.check_output(args.output, args.data, args.journal)
    if args.journal is not None:
        shared.check_output(args.journal, args.data)
    space: dict[str, Any] = {}
    for text in args.space:
        name, equals, value = text.partition("=")
        if not equals or not value:
            raise ParameterError("space", text, "write NAME=LOW:HIGH, NAME=A,B,C or NAME=VALUE")
        ends = tuple(map(shared.value_of, value.split(":")))  # of a range, where there are two
        space[name.strip()] = ends if ":" in value else _values(value, name)
    if args.K is not None:
        space["K"] = _values(args.K, "K")
    losses = [args.loss] if ":" in args.loss else [name.strip() for name in args.loss.split(",")]
    data = shared.read_data(args)
    X, validation = data, None
    if args.protocol is None and data.split is not None:
        X, validation = shared.marked_parts(data)
        if not args.quiet:
            shared.say(f"{args.data} comes with a split: its test part is left alone")
    how = {"validation": validation, "verbose": shared.progress(args), **shared.given(args, _OPTIONS)}
    how["search"] = Search(**shared.given(args, _SEARCH))
    found = tune([shared.parse_loss(text) for text in losses], X, space, **how)
    found.model.save(args.output)
    print(found.table(args.show))
    if not args.quiet:
        test = "" if found.test is None else f", test {found.metric} {found.test[found.metric]:.4f}"
        ended = "" if found.finished else " (the time limit ended the search)"
        figure = f"{found.metric} {found.figure:.4f}, {100 * found.gain:+.1f} % over the rule{test}"
        shared.say(f"{len(found.trials)} fits{ended}; validation {figure}")
        shared.say(f"{found.model!r}\nsaved to {args.output}")
    return 0


def _values(text: str, name: str) -> Any:
    values = [shared.value_of(part.strip()) for part in text.split(",")]
    return values if len(values) > 1 else values[0]
