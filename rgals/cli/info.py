"""Print what a saved model is: data, parameters, time, plan, memory, versions, fingerprint.

For example:
  rgals info model.npz
"""

from __future__ import annotations

import argparse
from typing import Any

from rgals.baselines import EASE, Popularity
from rgals.estimator import RGALS
from rgals.runtime.errors import ModelFileError
from rgals.sgd import SGDRanker


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", metavar="MODEL", help="file of a fitted model")


def run(args: argparse.Namespace) -> int:
    """Print."""
    print(load(args.model).info())
    return 0


def load(path: str) -> Any:
    """The model of a file of any kind; where it is none, the error is that of `RGALS.load`."""
    try:
        return RGALS.load(path)
    except ModelFileError:
        for kind in (SGDRanker, Popularity, EASE):
            try:
                return kind.load(path)
            except ModelFileError:
                continue
        raise
