"""Ranking quality of every method on every set, tuned on validation and reported on test.

    python benchmarks/quality.py --sets ml-100k,ml-1m          # goes on where an interrupted run stopped
    python benchmarks/quality.py --slow --threads 2            # also the methods that train by SGD
    python benchmarks/quality.py --table                       # prints what is recorded, measures nothing

A method is tuned by NDCG@10 on validation, then fitted to training and validation together and measured on
test, where both are left out of the rankings. Results are appended to ``quality_results.jsonl`` beside this
file; what is recorded there is measured again only with a larger budget. Journals of the searches and the
figures of each user, from which the marks of significance come, are kept under ``results/quality``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from quality_methods import METHODS, Task

import rgals
from rgals.datasets import read_interactions
from rgals.files.journal import Journal
from rgals.metrics import bootstrap_interval, compare, evaluate
from rgals.model_selection import PROTOCOLS, EdgeWarning, Protocol
from rgals.model_selection.tuning.prepared import split_for_tuning

DATA = Path(os.environ.get("RGALS_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
RESULTS = Path(__file__).with_name("quality_results.jsonl")
METRICS = ("ndcg@10", "ndcg@20", "recall@20", "mrr@10")
TUNED = "ndcg@10"
_STARS, _CORE, _GIVEN = "stars>=3 5-core user 80/10/10", "5-core user 80/10/10", "given split"
#: Data set -> its protocol. One form of every source, so that no two rows are the same evidence.
SETS: dict[str, str] = {
    "ml-100k": _STARS,
    "amazon-beauty-10core": _GIVEN,
    "amazon-health-10core": _GIVEN,
    "lastfm-hetrec2011": _CORE,
    "steam-200k-purchases": _CORE,
    "amazon-electronics-10core": _GIVEN,
    "food-10core": _GIVEN,
    "amazon-toys-5core": _CORE,
    "citeulike-a": _CORE,
    "amazon-cds-10core": _GIVEN,
    "beibei-ehcf-buy": _GIVEN,
    "anime-5k-users": _CORE,
    "ml-1m": _STARS,
    "douban-book-10core": _GIVEN,
    "douban-music-10core": _GIVEN,
    "amazon-book-kgat": _GIVEN,
    "amazon-movies-tv-10core": _GIVEN,
}
#: Other forms of these sources, and other sets: measured where ``--sets`` names them.
FORMS: dict[str, str] = {
    "ml-latest-small": _STARS,
    "ml-100k-10core": _GIVEN,
    "ml-1m-10core": _GIVEN,
    "ml-1m-m2": _GIVEN,
    "steam-200k-hours": _CORE,
    "citeulike-t": _CORE,
    "amazon-beauty-5core": _CORE,
    "amazon-beauty-bert4rec": _CORE,
    "amazon-sports-5core": _CORE,
    "amazon-videogames-sasrec": _CORE,
    "amazon-cds-m1": _GIVEN,
    "amazon2014-5cat-10core": _GIVEN,
    "douban-book-music": _GIVEN,
    "taobao-ehcf-buy": _GIVEN,
}
SMALL = 60_000  # training interactions below which two validation splits are averaged


def protocol_of(name: str) -> Protocol:
    """The protocol of a set; sets that are not listed use their own split."""
    return PROTOCOLS[(SETS | FORMS).get(name, _GIVEN)]


def load(name: str, seed: int) -> tuple[Any, Any]:
    """Data of a set, and the parts of its protocol."""
    # Counts and hours become "had it or not"; stars are cut by the protocol.
    data = read_interactions(DATA / f"{name}.npz", binarize=protocol_of(name) is PROTOCOLS[_CORE])
    return data, split_for_tuning(data, protocol_of(name), None, 1, 10_000, seed)


@contextmanager
def spent(path: Path) -> Iterator[list[float]]:
    """CPU seconds of all threads, in the one place of a list; those of interrupted runs, kept in a file, too.

    CPU and not wall-clock: others may compute on the machine.
    """
    earlier = float(path.read_text()) if path.exists() else 0.0
    total, started = [0.0], time.process_time()
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(124))  # as `timeout` ends a run
    try:
        yield total
    except BaseException:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(earlier + time.process_time() - started))
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
        total[0] = earlier + time.process_time() - started


def measure(name: str, methods: list[str], args: argparse.Namespace, record: Journal, folder: Path) -> None:
    """Everything of one set that is not recorded yet."""
    recorded = {m: record.get(key_of(name, m, args.K)) for m in methods}
    missing = [m for m, row in recorded.items() if row is None or row["budget"] < args.budget]
    if not missing:
        return
    data, prepared = load(name, args.seed)
    repeats = 2 if prepared.splits[0].train.nnz < SMALL else 1
    if repeats > 1:
        prepared = split_for_tuning(data, protocol_of(name), None, repeats, 10_000, args.seed)
    n_users, n_items = prepared.final.shape
    for method in missing:
        row = METHODS[method]
        if row.max_items is not None and n_items > row.max_items:
            print(f"{name}: {method} is for at most {row.max_items} items", flush=True)
            continue
        if args.until and time.strftime("%H:%M") >= args.until:
            raise SystemExit(f"stopped at {args.until}; the same command goes on")
        started = time.perf_counter()
        task = Task(
            data,
            protocol_of(name),
            prepared,
            args.K,
            args.threads,
            args.seed,
            repeats,
            args.budget,
            TUNED,
            folder / "searches" / f"{name}-K{args.K}",
        )
        task.folder.mkdir(parents=True, exist_ok=True)
        with spent(task.folder / f"{method}.seconds") as seconds:
            answer = row.run(method, task)
        parts = prepared.parts
        figures, users = evaluate(
            answer.scores, prepared.final, parts.test, METRICS, per_user=True, n_jobs=args.threads
        )
        (folder / "users").mkdir(parents=True, exist_ok=True)
        np.savez_compressed(folder / "users" / f"{key_of(name, method, args.K)}.npz", users=users, **figures)
        result = {
            "set": name,
            "method": method,
            "K": args.K if row.has_factors else None,
            "protocol": (SETS | FORMS).get(name, _GIVEN),
            "users": n_users,
            "items": n_items,
            "interactions": int(prepared.final.nnz),
            "validation": answer.validation,
            "test": {metric: float(figures[metric].mean()) for metric in METRICS},
            "interval": list(bootstrap_interval(figures[TUNED])),
            "test_users": len(users),
            "setting": answer.setting,
            "edges": answer.edges,
            "cpu_seconds": answer.seconds,
            "search_cpu_seconds": seconds[0],  # with the final fit
            "threads": args.threads,
            "fits": answer.fits,
            "budget": task.budget,
            "seed": args.seed,
            "rgals": rgals.__version__,
            "python": platform.python_version(),
        }
        record.add(key_of(name, method, args.K), result)
        print(
            f"{name} {method} K={args.K}: validation {answer.validation:.4f} "
            f"test {result['test'][TUNED]:.4f} ({answer.fits} fits, {time.perf_counter() - started:.0f} s)",
            flush=True,
        )


def key_of(name: str, method: str, K: int) -> str:
    """Key of a result, and its file name."""
    return f"{name} {method} K{K if METHODS[method].has_factors else 0}"


def marks(name: str, K: int, record: Journal, folder: Path) -> None:
    """Compare every method of a set with the best on test, user by user (paired t, Holm)."""
    rows = rows_of(name, K, record)
    files = {r["key"]: folder / "users" / f"{r['key']}.npz" for r in rows}
    if len(rows) < 2 or not all(file.is_file() for file in files.values()):
        return
    figures = {key: np.load(file)[TUNED] for key, file in files.items()}
    best = max(rows, key=lambda r: r["test"][TUNED])["key"]
    found = {c.name: c.corrected for c in compare(figures, best)}
    key, made = marks_of(name, K), {"marks": name, "best": best, "p": found}
    old = record.get(key)
    if old is None or {k: v for k, v in old.items() if k != "key"} != json.loads(json.dumps(made)):
        record.add(key, made)


def marks_of(name: str, K: int) -> str:
    """Key of the comparison of all methods at one K."""
    return f"marks {name} K{K}"


def rows_of(name: str, K: int, record: Journal) -> list[dict[str, Any]]:
    """Results of a set at one K, those of methods without factors among them."""
    return [r for r in record.values() if r.get("set") == name and r["K"] in (K, None)]


def cell(row: dict[str, Any] | None, against: dict[str, Any] | None) -> str:
    """NDCG with its mark: bold for the best, a dagger where the difference to it is not significant."""
    if row is None:
        return ""
    text = f"{row['test'][TUNED]:.4f}"
    if against is None:
        return text
    if row["key"] == against["best"]:
        return f"**{text}**"
    return text + (" †" if against["p"].get(row["key"], 0.0) > 0.05 else "")


def summary(K: int, record: Journal, of: tuple[str, ...] = tuple(METHODS)) -> str:
    """One row a set and one column a method: NDCG@10 on test."""
    found = {name: {r["method"]: r for r in rows_of(name, K, record)} for name in names_of(record)}
    found = {name: rows for name, rows in found.items() if any(m in of and rows[m]["K"] for m in rows)}
    methods = [m for m in METHODS if m in of and any(m in rows for rows in found.values())]
    lines = ["| set | " + " | ".join(methods) + " |", "|" + "---|" * (len(methods) + 1)]
    for name, rows in found.items():
        against = record.get(marks_of(name, K))
        best = max((rows[m] for m in methods if m in rows), key=lambda row: row["test"][TUNED])
        if against is not None and against["best"] != best["key"]:
            against = None  # these marks were made before the best was measured
        lines.append(f"| {name} | " + " | ".join(cell(rows.get(m), against) for m in methods) + " |")
    return "\n".join(lines)


def ladder(record: Journal) -> str:
    """What more factors give: sets and methods that were measured at several K."""
    rows = [r for r in record.values() if r.get("K")]
    levels = sorted({r["K"] for r in rows})
    lines = ["| set | method | " + " | ".join(f"K={K}" for K in levels) + " |"]
    lines.append("|" + "---|" * (len(levels) + 2))
    for name in names_of(record):
        for method in METHODS:
            mine = {r["K"]: r for r in rows if r["set"] == name and r["method"] == method}
            if len(mine) > 1:
                lines.append(
                    f"| {name} | {method} | " + " | ".join(cell(mine.get(K), None) for K in levels) + " |"
                )
    return "\n".join(lines)


def names_of(record: Journal) -> list[str]:
    """Sets with results, in the order of `SETS`, then of `FORMS`."""
    present = {r["set"] for r in record.values() if "test" in r}
    return [name for name in [*SETS, *FORMS] if name in present]


def details(name: str, record: Journal) -> str:
    """Everything about one set."""
    rows = [r for r in record.values() if r.get("set") == name and "test" in r]
    first = rows[0]
    lines = [
        f"### {name}",
        "",
        f"{first['protocol']}; {first['users']} users, {first['items']} items, {first['interactions']} "
        f"interactions fitted, {first['test_users']} test users",
        "",
        "| method | K | validation | ndcg@10 | 95 % | recall@20 | mrr@10 | CPU s | fits | setting |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda r: -r["test"][TUNED]):
        low, high = row["interval"]
        test = row["test"]
        seconds = "" if row["cpu_seconds"] is None else f"{row['cpu_seconds']:.1f}"
        setting = " ".join(
            f"{k}={v:.3g}{'*' if k in row['edges'] else ''}" if isinstance(v, float) else f"{k}={v}"
            for k, v in row["setting"].items()
            if k not in ("K", "n_iter")
        )
        lines.append(
            f"| {row['method']} | {row['K'] or ''} | {row['validation']:.4f} | {test[TUNED]:.4f} "
            f"| {low:.4f}-{high:.4f} | {test['recall@20']:.4f} | {test['mrr@10']:.4f} "
            f"| {seconds} | {row['fits']} | {setting} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", default=",".join(SETS), help="separated by commas")
    parser.add_argument("--methods", help="separated by commas; default: all but the slow ones")
    parser.add_argument("--slow", action="store_true", help="also the methods that train by SGD")
    parser.add_argument("--K", type=int, default=64)
    parser.add_argument(
        "--budget",
        type=float,
        default=10,
        help="in full fits, for two parameters (default: 10)",
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--until", metavar="HH:MM", help="start no method after this time")
    parser.add_argument("--table", action="store_true", help="print what is recorded")
    parser.add_argument("--out", default="results/quality", help="folder of journals and figures of users")
    args = parser.parse_args()
    warnings.simplefilter("ignore", EdgeWarning)  # the table marks them
    record, folder = Journal(RESULTS, {"metric": TUNED}), Path(args.out)
    sets = args.sets.split(",")
    if not args.table:
        methods = (
            args.methods.split(",") if args.methods else [m for m, row in METHODS.items() if not row.slow]
        )
        if args.slow:
            methods = list(METHODS)
        for name in sets:
            if not (DATA / f"{name}.npz").is_file():
                print(f"{name}: not here (looked in RGALS_DATA or ../shared/data); skipped")
                continue
            try:
                measure(name, methods, args, record, folder)
            except Exception:
                # One method that fails must not lose the others' time; it is named and tried again next time.
                traceback.print_exc(file=sys.stdout)
            marks(name, args.K, record, folder)
    print(f"\nNDCG@10 on test, K={args.K}; **best**, † not significantly below it (paired t, Holm, 5 %)\n")
    print(summary(args.K, record) + "\n\n" + ladder(record))
    for name in names_of(record):
        print("\n" + details(name, record))


if __name__ == "__main__":
    main()
