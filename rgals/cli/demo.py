"""The demonstration: every loss on one data set."""

import argparse
import time
from typing import Any

import numpy as np

from rgals.baselines import Popularity
from rgals.cli import _shared as shared
from rgals.cli._options import Heading, arg, command, parameters
from rgals.datasets import Interactions, make_implicit
from rgals.datasets.ids import Positions
from rgals.estimator import RGALS
from rgals.matrix.entries import random_parts
from rgals.metrics import evaluate
from rgals.runtime.checks import check_int
from rgals.warm import small

METRICS = ("ndcg@10", "recall@20", "mrr@10")


@command(
    "demo",
    arg("--data FILE", "interactions (default: generated)"),
    arg("--loss LOSS", "a loss to fit; may be repeated (default: all four)", action="append"),
    arg("--user ID", "user whose recommendations are shown (default: any)"),
    arg("-n N", "how many are shown (default: 10)", type=int, default=10),
    Heading("fitting"),
    *shared.FIT,
    *shared.READING,
)
def run_demo(args: argparse.Namespace) -> None:
    """Fit every loss on one data set and compare their rankings.

    For example:
      rgals demo
      rgals demo --data ratings.csv --min-value 4
      rgals demo --data ml-1m.npz --min-value 3 --K 128 --n-iter 20

    Without --data it generates interactions with clusters of taste and skewed popularity. A fifth of every
    user's interactions (or the test part that the file marks) is held out, and rankings are judged by it.
    Parameters that are not given follow from the data. Seconds do not include compilation.
    """
    check_int("n", args.n, 1)
    losses = [shared.parse_loss(text) for text in args.loss or ("rg2", "rgx", "ials", "wrmf")]
    how = {"random_state": 0, **parameters(args, RGALS)}
    name = args.data or "Generated data"
    data = shared.read_data(args) or make_implicit(random_state=0)
    held_out = "as the data mark it"
    if data.split is None or not data.test.nnz:
        data = data.replace(split=random_parts(data.matrix, np.array([0.8, 0.2]), np.random.RandomState(0)))
        held_out = "a random fifth of every user's"
    # An unknown user is refused before the fits.
    user = _typical_user(data) if args.user is None else int(data.users.parse(args.user)[0])
    print(f"{name}: {data.n_users:,} users, {data.n_items:,} items, {data.nnz:,} interactions")
    print(f"Fitted to {data.train.nnz:,}, measured on {data.test.nnz:,} held out ({held_out})", flush=True)
    shared.tell(args, "Preparing the compiled code (takes longer the first time) ...")
    (train, test), part = small(), shared.marked_parts(data)[0]
    # Six iterations, as hard negatives start after the first ones. The small data have no times.
    first = {**how, "n_iter": 6, "half_life": None}
    for loss in losses:  # compile, or load from the cache, everything that is timed later
        model = RGALS(loss=type(loss)(**loss.get_params()), **first).fit(train)
        evaluate(model, train, test, metrics=METRICS)
        if "item_exponent" in loss.get_params():  # "auto" is not 0 on larger data
            model.set_params(loss__item_exponent=-0.1).fit(train)

    rows: list[list[Any]] = [["popularity", None, *_measure(Popularity().fit(data.train > 0), data), None]]
    fitted: list[tuple[float, RGALS]] = []
    for loss in losses:
        shared.tell(args, f"Fitting {loss!r} ...")
        model = RGALS(loss=loss, verbose=shared.progress(args), **how)
        started = time.perf_counter()
        model.fit(part)
        seconds = time.perf_counter() - started
        figures = _measure(model, data)
        # Parameters of the loss and reg, given or from the rule.
        numbers = {**model.loss_.get_params(), "reg": model.reg_}
        if not model.loss_.dislikes:
            numbers.pop("dislike_weight", None)  # has no effect
        told = ((name, value) for name, value in numbers.items() if isinstance(value, float) and value)
        settings = ", ".join(f"{name}={value:.3g}" for name, value in told)
        rows.append([model.loss_.name, settings, *figures, f"{seconds:.2f}"])
        fitted.append((figures[0], model))
    print("\n" + shared.table(rows, ("method", "settings", *METRICS, "fit s")))
    print("\n" + _one_user(user, args.n, data, max(fitted, key=lambda pair: pair[0])[1]))


def _measure(model: Any, data: Interactions) -> list[float]:
    return list(evaluate(model, data.train, data.test, metrics=METRICS).values())


def _typical_user(data: Interactions) -> int:
    """A user with a history of about median length and a held-out item, or 0 if nobody has both."""
    lengths = np.diff(data.train.indptr) * (np.diff(data.test.indptr) > 0)
    return int(np.argmin(np.abs(lengths - np.median(lengths[lengths > 0])))) if lengths.any() else 0


def _one_user(user: int, n: int, data: Interactions, model: RGALS) -> str:
    """History and recommendations of one user, with held-out items marked."""
    past = data.train[[user]].indices
    truth = set(data.test[[user]].indices.tolist())
    ids, scores = model.recommend(Positions([user]), n=n)
    shown = ", ".join(map(str, data.item_ids[past[:12]].tolist()))
    more = f" and {len(past) - 12} more" if len(past) > 12 else ""
    ranked = enumerate(zip(ids[0].tolist(), scores[0].tolist(), strict=True), start=1)
    marks = dict.fromkeys(truth, "held out")
    rows = [[rank, str(data.item_ids[i]), score, marks.get(i, "")] for rank, (i, score) in ranked if i >= 0]
    found = f"{sum(bool(row[3]) for row in rows)} of {len(truth)} held-out items found"
    head = f"User {data.user_ids[user]} had: {shown}{more}\n{model.loss_.name} recommends ({found}):\n"
    return head + shared.table(rows, ("rank", "item", "score", ""))
