"""Time to quality on real data: `python benchmarks/convergence.py ml-1m douban-book-music`.

Prints the tables and writes results.jsonl, convergence.png and report.html into a folder for each data set.
Interrupt it as you like: the same command goes on where it stopped. `--tune-only` first, at any time, leaves
only the timed runs for when the machine is at rest. `--record` keeps the table of docs/speed.md and the
picture.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
from pathlib import Path

from rgals.compare import DEFAULT, METHODS, Comparison, Effort, compare, prepare

DATA = Path(os.environ.get("RGALS_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
RESULTS = Path(__file__).with_name("convergence_results.jsonl")
PICTURES = Path(__file__).resolve().parents[1] / "docs"
#: How the data sets that need it are prepared: ratings from 3 on, users and items with 5 or more.
PREPARATION = {name: {"min_value": 3, "core": 5} for name in ("ml-1m", "ml-100k", "ml-latest-small")}
#: Where tuning starts instead of the defaults: an epoch of these data takes seconds, so that a rate has to be
#: large to get anywhere within the time limit.
START = {
    "douban-book-music": {
        "softmax": {"temperature": 0.15, "lr": 0.1},
        "sampled_softmax": {"temperature": 0.15, "lr": 0.1},
        "softmax_dot": {"lr": 0.07},
        "bpr_dot": {"lr": 0.03},
    }
}


def record(result: Comparison, picture: Path) -> None:
    """Keep the figures of every method in place of those of earlier runs, and the picture."""
    kept = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    kept = [line for line in kept if json.loads(line)["data"] != result.name]
    shared = {"data": result.name, **result.setting["machine"]}
    for row in result.rows:
        line = {"method": row.label, "validation": row.validation[0], "test": row.test[result.metric]}
        line |= {"seconds_to": {f"{share:g}": row.seconds_to[share] for share in row.seconds_to}}
        kept.append(json.dumps({**shared, **line, "seconds": row.seconds}))
    RESULTS.write_text("\n".join(kept) + "\n")
    shutil.copy(picture, PICTURES / f"convergence-{result.name}.png")


def table() -> str:
    """The recorded figures, a row a method, the best on test first."""
    head = ("set", "method", "NDCG@10 on test", "seconds to 95 %", "to 99 %", "of the run")
    lines = [head, ("---",) * len(head)]
    for row in map(json.loads, RESULTS.read_text().splitlines()):
        reached = (row["seconds_to"][share] for share in ("0.95", "0.99"))
        cells = (f"{s:.2f}" if math.isfinite(s) else "-" for s in (*reached, row["seconds"]))
        lines.append((row["data"], row["method"], f"{row['test'][0]:.4f}", *cells))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "data", nargs="*", default=["ml-1m", "douban-book-music"], help="names below DATA, or files"
    )
    parser.add_argument("--methods", default=",".join(DEFAULT), help=f"of {', '.join(METHODS)}")
    parser.add_argument("--out", type=Path, default=Path("results/convergence"))
    parser.add_argument("--K", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--max-trials", type=int, default=16, help="fits that tuning a method may use")
    parser.add_argument("--time-limit", type=float, default=120.0, help="training seconds of a fit")
    parser.add_argument("--patience", type=int, default=8)
    parser.add_argument(
        "--validation-users", type=int, default=8000, help="watched users, of those there are"
    )
    parser.add_argument("--tune-only", action="store_true", help="stop before the timed runs")
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--record", action="store_true", help="keep figures and picture for the pages")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    args = parser.parse_args()
    for data in args.data:
        path = Path(data) if Path(data).exists() else DATA / f"{data}.npz"
        effort = Effort(
            max_trials=args.max_trials,
            time_limit=args.time_limit,
            patience=args.patience,
            validation_users=args.validation_users,
            start=START.get(path.stem, {}),
            tune_only=args.tune_only,
        )
        result = compare(
            prepare(path, **PREPARATION.get(path.stem, {})),
            args.methods,
            out=args.out / path.stem,
            name=path.stem,
            K=args.K,
            seeds=args.seeds,
            effort=effort,
            n_jobs=args.jobs,
        )
        print(result.markdown() if args.markdown else result.text())
        if not args.tune_only:
            print(f"{args.out / path.stem / 'report.html'}\n")
        if args.record:
            record(result, args.out / path.stem / "convergence.png")


if __name__ == "__main__":
    main()
