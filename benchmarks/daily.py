"""What a daily update costs and keeps: `python benchmarks/daily.py amazon-beauty-10core --K 64`.

The interactions come in a random order, or with ``--by-time`` in that of their time. A model is fitted to the
first 60 %; then come 30 days of 1, 0.1 or 0.01 % of all interactions, each with one `partial_fit`. On the
first and every fifth day a model is fitted anew to the same interactions, and both are judged by the next
10 % that neither has seen (NDCG@10).

Costs are CPU seconds of one thread, as wall time of a shared machine says nothing: of an update, merging and
sweeps together, in iterations over everybody (the least of three, in turns), and in whole fits.
``half-step`` is the largest difference between a user that was just solved and the exact half-step of its
history, over the largest factor. ``fall`` is that of `RGALS.drift`. Lines go to ``daily_results.jsonl``
beside this file and are not measured again.
"""

from __future__ import annotations

import argparse
import time
import warnings
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
from quality import DATA

from rgals import RGALS
from rgals.datasets import Interactions, read_interactions
from rgals.files.journal import Journal
from rgals.metrics import evaluate

RESULTS = Path(__file__).with_name("daily_results.jsonl")
METRIC, BASE, NEXT, DAYS, EVERY = "ndcg@10", 0.6, 0.1, 30, 5


class Events:
    """The interactions of a set, one after the other."""

    def __init__(self, name: str, by_time: bool) -> None:
        data = read_interactions(DATA / f"{name}.npz")
        users, items = data.matrix.nonzero()
        order = np.random.default_rng(0).permutation(len(users))
        if by_time:
            order = order[np.argsort(data.timestamp[order], kind="stable")]
        self.pairs = users[order], items[order]

    def __len__(self) -> int:
        return len(self.pairs[0])

    def part(self, start: int, stop: int) -> Interactions:
        """Some of them, with the ids of those whom they are about."""
        return read_interactions(tuple(side[start:stop] for side in self.pairs))


def cpu(work: Any) -> tuple[Any, float]:
    """What it gives, and its CPU seconds."""
    began = time.process_time()
    return work(), time.process_time() - began


def costs(yesterday: RGALS, today: Interactions, make: Any, known: Interactions) -> tuple[float, float]:
    """CPU seconds of an update, and of an iteration over everybody: the least of three, in turns."""
    updates, iterations = [], []
    for _ in range(3):
        model, marks = copy(yesterday), list[float]()
        updates.append(cpu(lambda: model.partial_fit(today))[1])  # noqa: B023
        make().set_params(n_iter=4, init="random").fit(
            known,
            callbacks=lambda _: marks.append(time.process_time()),  # noqa: B023
        )
        iterations += np.diff(marks).tolist()
    return min(updates), min(iterations)


def measure(record: Journal, key: str, events: Events, share: float, make: Any) -> None:
    """A month of updates; figures of the days on which a model is fitted anew."""
    start, size, ahead = int(BASE * len(events)), round(share * len(events)), int(NEXT * len(events))
    model = make().fit(events.part(0, start))
    for day in range(1, DAYS + 1):
        stop = start + size
        today, yesterday = events.part(start, stop), copy(model)
        model.partial_fit(today)
        start, at = stop, f"{key} day={day}"
        if (day > 1 and day % EVERY) or record.get(at):
            continue
        known, later = events.part(0, stop), events.part(stop, min(stop + ahead, len(events)))
        other, whole = cpu(lambda: make().fit(known))  # noqa: B023
        update, iteration = costs(yesterday, today, make, known)
        rows = np.flatnonzero(np.isin(model.user_ids_, today.user_ids))
        exact = model.transform(model.seen_[rows])
        wrong = np.abs(exact - model.user_factors_[rows]).max() / np.abs(model.user_factors_).max()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*the model does not know")
            figures = [evaluate(each, None, later, METRIC, n_jobs=1)[METRIC] for each in (model, other)]
        drift = model.drift()
        record.add(
            at,
            {
                "update": update,
                "iteration": iteration,
                "refit": whole,
                METRIC: [float(figure) for figure in figures],
                "half_step": float(wrong),
                "merged": drift.merged,
                "fall": drift.fall,
            },
        )
        print(at, record.get(at), flush=True)


def table(record: Journal, keys: list[str]) -> None:
    """Print what is recorded."""
    print(
        "| set | a day | update, iterations | of a refit | NDCG@10 / refit's: day 1 | least | day 30 ", end=""
    )
    print("| half-step | fall: day 1 | day 30 |\n|---|---|---|---|---|---|---|---|---|---|")
    for key in keys:
        days = [day for day in range(1, DAYS + 1) if record.get(f"{key} day={day}")]
        if not days:
            continue
        rows = [record.get(f"{key} day={day}") for day in days]
        ratios = [row[METRIC][0] / row[METRIC][1] for row in rows]
        cost, part = (np.median([row["update"] / row[of] for row in rows]) for of in ("iteration", "refit"))
        name, _, share = key.partition(" share=")
        first, last = rows[0]["fall"], rows[-1]["fall"]
        print(
            f"| {name} | {100 * float(share):g} % | {cost:.2f} | {part:.3f} | {100 * ratios[0]:.1f} % "
            f"| {100 * min(ratios):.1f} % | {100 * ratios[-1]:.1f} % (day {days[-1]}) "
            f"| {max(row['half_step'] for row in rows):.0e} | {first:.4f} | {last:.4f} |"
        )


def main() -> None:
    """Measure what is missing, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sets", nargs="*", default=["amazon-beauty-10core", "ml-1m"])
    parser.add_argument("--K", type=int, default=64)
    parser.add_argument("--loss", default="rg2")
    parser.add_argument("--shares", default="0.01,0.001,0.0001", help="of the interactions, a day")
    parser.add_argument("--by-time", action="store_true")
    parser.add_argument("--table", action="store_true", help="print what is recorded")
    args = parser.parse_args()
    record = Journal(RESULTS, {"metric": METRIC, "base": BASE, "next": NEXT, "days": DAYS})

    def make() -> RGALS:
        return RGALS(args.K, args.loss, random_state=0, n_jobs=1)

    keys, how = [], " by time" if args.by_time else ""
    for name in args.sets:
        for share in args.shares.split(","):
            keys.append(f"{name}{how} K{args.K} {args.loss} share={share}")
            if args.table or record.get(f"{keys[-1]} day={DAYS}"):
                continue
            events = Events(name, args.by_time)
            if float(share) * len(events) >= 1:
                measure(record, keys[-1], events, float(share), make)
    table(record, keys)


if __name__ == "__main__":
    main()
