"""Tables of README.md and the site from recorded lines: `python benchmarks/page.py` measures nothing.

A table stands between ``<!-- table NAME -->`` and ``<!-- end -->``; the rest of a page stays.
The plots of the losses and of Newton's method are drawn from the same lines.
"""

from __future__ import annotations

import io
import re
import runpy
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import convergence
import disk
import empty
import hard_negatives
import losses
import newton
import rgalscv
import rule
import side_information
import speed_tables
from quality import RESULTS, SETS, TUNED, cell, ladder, names_of, rows_of, summary

from rgals.files.journal import Journal
from rgals.sgd.losses import LOSSES

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md"]
_WITH_TABLES = ("quality", "speed", "hard-negatives", "losses", "guides/large", "guides/gpu")
PAGES += [ROOT / "docs" / f"{name}.md" for name in _WITH_TABLES]
#: Columns of the first table: as they come, and tuned.
FIRST = ("popularity", "default RG2", "default RGx", "default iALS", "default WRMF", "implicit default")
FIRST += ("irspack default", "RGALSCV RG2", "RGALSCV iALS", "RGALSCV K=auto", "EASE", "implicit ALS")
SHORT = ("popularity", "default RG2", "default iALS", "RGALSCV RG2", "RGALSCV iALS", "RGALSCV K=auto", "EASE")
SHORT += ("implicit default", "implicit ALS")
#: The tuned methods, as they were compared: what is significant was found among these.
TUNED_METHODS = ("popularity", "RG2", "RGx", "RGx gramian", "iALS", "WRMF plain", "WRMF scaled")
TUNED_METHODS += ("implicit ALS", "EASE", "implicit BPR", "SGD softmax")


def seconds(row: dict[str, Any] | None) -> str:
    """CPU seconds: of a search as a whole where they are known, else of the fit alone, in brackets."""
    if row is None:
        return ""
    if "search_cpu_seconds" in row and not row["method"].startswith("default"):
        return f"{row['search_cpu_seconds']:.0f}"
    return f"({row['cpu_seconds']:.1f})"


def methods(
    record: Journal, shown: Callable[[dict[str, Any] | None], str], columns: tuple[str, ...] = FIRST
) -> str:
    """A row a set and a column a method, at K=64 or the method's own."""
    named = [
        f"{name}, tuned" if name in ("RG2", "iALS", "implicit ALS", "EASE") else name for name in columns
    ]
    lines = ["| set | " + " | ".join(named) + " |", "|" + "---|" * (len(columns) + 1)]
    for name in names_of(record):
        found = {row["method"]: row for row in rows_of(name, 64, record)}
        if any(method in found for method in columns[1:]):
            cells = [shown(found.get(method)) for method in columns]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def against_ease(record: Journal) -> str:
    """K free: `RGALSCV` beside EASE."""
    header = ["set", "RGALSCV K=auto", "loss, K", "CPU s", "EASE", "reg", "CPU s", "RGALSCV / EASE"]
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for name in names_of(record):
        found = {row["method"]: row for row in rows_of(name, 64, record)}
        ours, ease = found.get("RGALSCV K=auto"), found.get("EASE")
        if ours is not None and ease is not None:
            share = ours["test"][TUNED] / ease["test"][TUNED]
            cells = [name, cell(ours, None), f"{ours['setting']['loss']}, {ours['setting']['K']}"]
            cells += [seconds(ours), cell(ease, None), f"{ease['setting']['l2']:.0f}", seconds(ease)]
            lines.append("| " + " | ".join([*cells, f"{100 * share:.1f} %"]) + " |")
    return "\n".join(lines)


def regret() -> str:
    """What `RGALSCV` loses to the best of the grid."""
    record = Journal(rgalscv.OUT, {"benchmark": "rgalscv"})
    rows = [row for row in record.values() if row.get("K") == 64]
    order = {name: k for k, name in enumerate(SETS)}
    rows.sort(key=lambda row: (order.get(row["set"], len(order)), row["loss"], row["seed"]))
    return rgalscv.table(rows, rgalscv.grid(rgalscv.GRID))


def kinds_of_losses() -> str:
    """The names of the losses by what they see."""
    words = {"full": "all items at once", "sampled": "a positive and sampled negatives"}
    words |= {"user": "the same, and a number per user", "model": "the same, and numbers of the model"}
    words |= {"adversary": "the same, and a second pair of factors"}
    words |= {"list": "a user's positives and negatives together"}
    found: dict[str, list[str]] = {kind: [] for kind in words}
    for name, loss in LOSSES.items():
        kept = getattr(loss(), "state", ())
        kind = "adversary" if getattr(loss(), "adversary", None) else kept[0].scope if kept else loss.kind
        found[kind].append(f"`{name}`")
    lines = [f"| {words[kind]} | {', '.join(names)} |" for kind, names in found.items()]
    return "\n".join(["| what a loss sees | losses |", "|---|---|", *lines])


def printed(script: str, *arguments: str) -> list[str]:
    """What another script prints of its recorded lines, paragraph by paragraph."""
    out = io.StringIO()
    with redirect_stdout(out), patch.object(sys, "argv", [script, *arguments]):
        runpy.run_path(str(ROOT / "benchmarks" / f"{script}.py"), run_name="__main__")
    return out.getvalue().strip().split("\n\n")


@cache
def tables() -> dict[str, str]:
    """All tables, by name."""
    record = Journal(RESULTS, {"metric": TUNED})
    days = ("amazon-beauty-10core", "amazon-book-kgat", "amazon-videogames-sasrec")
    hard, cost = printed(
        "hard_negatives",
        *hard_negatives.SETS,
        "amazon-book-kgat",
        "--K",
        "64,256",
        "--losses",
        "rg2,ials,rgx,wrmf",
        "--table",
    )
    found, _, plain, grid, *_ = printed("sgd_quality", "--tables")
    said = printed("losses", "--tables")
    start = printed("start", "--table", "--K", "64")
    of_losses = dict(zip(said[::2], said[1::2], strict=True))
    return {
        "methods": methods(record, lambda row: cell(row, None)),
        "short": complete(methods(record, lambda row: cell(row, None), SHORT)),
        "seconds": methods(record, seconds),
        "ease": against_ease(record),
        "ladder": ladder(record),
        "tuned": summary(64, record, TUNED_METHODS),
        "regret": regret(),
        "defaults": f"{rule.defaults_table()}\n\n{rule.parts_table()}",
        "disk": disk.table(),
        "disk beside": disk.beside(),
        "daily": printed("daily", *days, "--table")[0],
        "hard": hard,
        "hard cost": cost,
        "losses kinds": kinds_of_losses(),
        "losses sets": "\n\n".join(
            f"**{name}**\n\n{of_losses[name]}" for name in [*losses.SETS, "citeulike-a"] if name in of_losses
        ),
        "losses advice": of_losses["advice"],
        "losses claims": f"{of_losses['claims']}\n\n{newton.table(newton.recorded(newton.OUT))}",
        "gpu": "\n\n".join(printed("gpu", "--table")),
        "levers": printed("levers", "--table")[0],
        "sgd": found,
        "sgd grid": grid,
        "sgd losses": plain,
        "start": start[0],
        "plain": "\n\n".join(start[2:]),
        "convergence": convergence.table(),
        "values": printed("values", "--table")[0],
        "published": "\n\n".join(printed("published", "--table")[1:]),
        "empty": empty.table(Journal(empty.RESULTS, empty.SETTING)),
        **side_information.tables(Journal(side_information.RESULTS, side_information.SETTING)),
        **speed_tables.tables(),
    }


def complete(table: str) -> str:
    """Rows without an empty cell."""
    return "\n".join(line for line in table.splitlines() if "|  |" not in line)


def written(text: str) -> str:
    """A page with its tables as the recorded lines have them."""
    for name, table in tables().items():
        block = f"<!-- table {name} -->\n\n{table}\n\n<!-- end -->"
        text = re.sub(rf"<!-- table {name} -->.*?<!-- end -->", lambda _, b=block: b, text, flags=re.S)
    return text


def main() -> None:
    for page in PAGES:
        page.write_text(written(page.read_text()))
    losses.plot(losses.lines(losses.OUT), ROOT / "docs" / "losses.png")
    newton.plot(newton.recorded(newton.OUT), ROOT / "docs" / "newton.png")


if __name__ == "__main__":
    main()
