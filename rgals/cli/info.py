"""Print what a saved model is: data, parameters, time, plan, memory, versions, fingerprint.

For example:
  rgals info model.npz
"""

import argparse

from rgals.cli import _shared as shared


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", metavar="MODEL", help="file of a fitted model")


def run(args: argparse.Namespace) -> int:
    """Print."""
    print(shared.load(args.model).info())
    return 0
