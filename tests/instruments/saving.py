"""Jobs that are killed while they write, and how what they leave is read."""

from __future__ import annotations

import os
import time
from contextlib import suppress

import numpy as np
from helpers import interactions
from instruments.harness import ready

from rgals import RGALS, Checkpoint
from rgals.runtime.errors import ModelFileError
from rgals.sgd import SGDRanker


def models() -> tuple[RGALS, RGALS]:
    """An old and a new model, large enough that writing takes a while."""
    out = []
    for seed in (1, 2):
        model = RGALS(K=64, n_iter=1, random_state=seed).fit(interactions(4000, 300, seed=seed))
        out.append(model)
    return out[0], out[1]


def save_once(path: str, naive: bool) -> None:
    """As long as the first part of `save_for_ever` takes."""
    save_for_ever(path + ".elsewhere", naive, [path + ".old", path + ".new"], rounds=1)
    os.remove(path + ".elsewhere")


def save_for_ever(path: str, naive: bool, sources: list[str] | None = None, rounds: int = 1 << 30) -> None:
    old, new = (RGALS.load(source) for source in sources or [path + ".old", path + ".new"])
    for _ in range(rounds):
        for model in (new, old):
            if naive:
                with open(path, "wb") as file:
                    np.savez(file, users=model.user_factors_, items=model.item_factors_)
                    file.flush()
            else:
                model.save(path)


def update(path: str) -> None:
    """Merge a day into the model of a file."""
    model = RGALS.load(path)
    model.partial_fit(interactions(4000, 300, seed=7)[:2000])
    model.save(path)


def update_for_ever(path: str) -> None:
    """The nightly job, again and again from yesterday's model."""
    while True:
        RGALS.load(path + ".old").save(path)
        began = time.monotonic()
        update(path)
        time.sleep(time.monotonic() - began)  # today's model is found as often as yesterday's


def which(path: str, naive: bool) -> str:
    """``"old"`` or ``"new"``; anything else says how the file is broken."""
    try:
        if naive:
            with np.load(path) as file:
                found = file["users"]
        else:
            found = RGALS.load(path).user_factors_
    except (ModelFileError, OSError, ValueError, EOFError, KeyError) as error:
        return f"broken: {error}"
    except Exception as error:  # zipfile's own
        return f"broken: {error!r}"
    for kind in ("old", "new"):
        if np.array_equal(found, RGALS.load(f"{path}.{kind}").user_factors_):
            return kind
    return "neither"


ITERATIONS, PAUSE = 12, 0.01  # of the fits that are killed; seconds of rest after each iteration

SETTINGS = [
    {"loss": "rg2"},
    {"sgd": True},
    {"loss": "rgx", "K": 7},
    {"sgd": True, "loss": "bpr", "score": "dot", "optimizer": "adam", "early_stopping": True, "patience": 9},
    {"loss": "ials", "dtype": "float64"},
    {"loss": "rg2", "solver": "pcg"},
    {"loss": "rg2", "early_stopping": True, "patience": 3},
    {"loss": "wrmf", "tol": 1e-4},
    {"loss": "rg2", "random_state": None, "every": 3},
]


def fit(kind: int, folder: str | None) -> tuple[bytes, bytes, list[float]]:
    """A fit, with checkpoints where a folder is given: its factors and objectives."""
    seen = []

    def rest(now) -> None:  # so that kills fall into every iteration, however fast these are
        if not seen:
            with suppress(BrokenPipeError):  # no signal will come
                ready()
        seen.append(now.iteration)
        time.sleep(PAUSE)

    settings = {"random_state": 0, **SETTINGS[kind]}
    every = settings.pop("every", 1)
    if settings.pop("sgd", False):
        model = SGDRanker(**{"K": 8, "n_epochs": ITERATIONS, **settings})
    else:
        model = RGALS(**{"K": 8, "n_iter": ITERATIONS, **settings})
    X = interactions(200, 60, seed=3)
    if folder is None:
        model.fit(X)
    else:
        model.fit(X, checkpoint=Checkpoint(folder, every=every), callbacks=rest)
    return (
        model.user_factors_.tobytes(),
        model.item_factors_.tobytes(),
        [record["objective"] for record in model.history_],
    )


def stray(folder: str) -> list[str]:
    return [name for name in os.listdir(folder) if name.endswith(".tmp")]
