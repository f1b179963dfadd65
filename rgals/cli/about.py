"""Commands that need no data: about a saved model, the metrics, and compiled code."""

import argparse
import textwrap

from rgals.cli import _shared as shared
from rgals.cli._options import arg, command, param, parameters
from rgals.metrics._table import definitions, parts
from rgals.warm import warmup


@command("info", arg("MODEL", "file of a fitted model"))
def run_info(args: argparse.Namespace) -> None:
    """Describe a saved model: data, parameters, time, plan, memory, versions, fingerprint.

    For example:
      rgals info model.npz
    """
    print(shared.load(args.model).info())


@command("metrics", arg("NAMES", "only these, by any of their names", nargs="*", metavar="NAME"))
def run_metrics(args: argparse.Namespace) -> None:
    """Print the metrics with all their names and their definitions.

    For example:
      rgals metrics
      rgals metrics hr ndcg
    """
    wanted = {parts(name)[0] for name in args.names}
    for form, (also, text) in definitions().items():
        if not wanted or form.partition("@")[0].partition("(")[0] in wanted:
            print(form + (f"  (also {', '.join(also)})" if also else ""))
            print(textwrap.indent(text.replace("``", ""), "    ") + "\n")
    print("h_i is 1 where the item at rank i is relevant, else 0; T the number of a user's relevant items.")
    print("Figures are means over the users with test items. Equal scores: the smaller item comes first.")


@command("warmup", param(warmup, "n_jobs N", "processes (default: one per processor)", int))
def run_warmup(args: argparse.Namespace) -> None:
    """Compile what default fits, recommendations and metrics with a cutoff need, for later processes to load.

    For example:
      rgals warmup
      NUMBA_CACHE_DIR=/var/cache/rgals rgals warmup     in an image; set the same where it runs

    Otherwise the first fit compiles what it needs. Prints the seconds of every function and the cache folder.
    """
    found = warmup(**parameters(args, warmup), verbose=shared.progress(args))
    if found.compiled:
        print(shared.table([[name, seconds] for name, seconds in found.compiled.items()], ("function", "s")))
    print(f"functions compiled: {len(found.compiled)}; the cache is {found.folder}")
