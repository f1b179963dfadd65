"""Compile ahead what fits and their answers need, so that no process compiles again.

For example:
  rgals warmup
  NUMBA_CACHE_DIR=/var/cache/rgals rgals warmup     in an image; set the same where it runs

Without it, the first fit compiles what it needs. Prints the seconds of every function and where they lie.
"""

import argparse

from rgals.cli import _shared as shared
from rgals.warm import warmup


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    jobs = "n_jobs", int, "N", "processes; as many as processors if not given"
    shared.add_options(parser, warmup, [jobs])


def run(args: argparse.Namespace) -> int:
    """Compile, and say what and whereto."""
    found = warmup(n_jobs=args.n_jobs, verbose=shared.progress(args))
    if found.compiled:
        print(shared.table([[name, seconds] for name, seconds in found.compiled.items()], ("function", "s")))
    print(f"{len(found.compiled)} functions compiled; the cache is {found.folder}")
    return 0
