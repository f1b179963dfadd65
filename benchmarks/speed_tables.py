r"""Tables of speed, memory and exactness for README.md and docs/speed.md, from ``speed_results.jsonl``.

What writes the lines, on two threads and a machine at rest; `page.py` then writes the pages:

    python benchmarks/speed.py douban-book-music --K 32 64 128 256 512 --record --methods "rgals iALS exact" \
        "rgals RG2 exact" "rgals RG2 pcg" "rgals RG2 shared" "implicit CG(3)" "irspack CG(3)"
    python benchmarks/speed.py douban-book-music --K 64 128 256 --record --methods "rgals RGx exact"
    python benchmarks/speed.py douban-book-music --K 64 --record --methods \
        "implicit Cholesky" "irspack Cholesky"
    python benchmarks/speed.py amazon-book-kgat --K 1024 --iterations 2 --record --methods \
        "rgals RG2 exact" "implicit CG(3)"
    python benchmarks/speed.py ml-10m-shaped --K 64 --iterations 2 --record --methods \
        "rgals RG2 exact" "implicit CG(3)" "irspack CG(3)"
    python benchmarks/speed.py --jsonl benchmarks/speed_results.jsonl --plot docs/speed.png
    python benchmarks/speed.py douban-book-music --K 64 256 --memory --record --methods \
        "rgals RG2 exact" "implicit CG(3)" "irspack CG(3)"
    python benchmarks/limits.py douban-book-music --K 64 128 256 --record
    python benchmarks/batch.py --record
    python benchmarks/batch.py --large --record
    python benchmarks/cg_error.py ml-1m --K 32 64 128 256 512 1024 --record

A measurement that is repeated replaces the earlier one. A table of which nothing is recorded stays as it is.
"""

from __future__ import annotations

import json
import statistics
import textwrap
from typing import Any

from peers import RECORD

MAIN = "douban-book-music"
Row = dict[str, Any]


def rows(what: str) -> list[Row]:
    """The latest line of each measurement of a kind, in the order in which they were first made."""
    lines = [json.loads(line) for line in RECORD.read_text().splitlines()] if RECORD.exists() else []
    keyed = ("data", "K", "method", "iteration")
    return list({tuple(row.get(k) for k in keyed): row for row in lines if row["what"] == what}.values())


def grid(cells: dict[tuple[str, str], str], corner: str) -> str:
    """A table of cells by (row, column)."""
    down, across = (list(dict.fromkeys(key[axis] for key in cells)) for axis in (0, 1))
    lines = [f"| {corner} | " + " | ".join(across) + " |", "|" + "---|" * (len(across) + 1)]
    lines += [f"| {a} | " + " | ".join(cells.get((a, b), "") for b in across) + " |" for a in down]
    return "\n".join(lines)


def with_machine(table: str, found: list[Row]) -> str:
    """A table, and where it was measured; all its lines must be of one machine and versions."""
    machines = {row["machine"] for row in found}
    assert len(machines) == 1, f"lines of different machines or versions; measure again: {machines}"
    return f"{table}\n\n{textwrap.fill('; '.join(machines.pop().splitlines()), 126)}."


def iterations() -> str:
    """Seconds of an iteration by K, medians."""
    found = [row for row in rows("iteration") if row["data"] == MAIN]
    cells = {(row["method"], f"K={row['K']}"): f"{seconds(row):.4f}" for row in found}
    return with_machine(grid(cells, "method"), found) if found else ""


def other_iterations() -> str:
    """The same on other sets."""
    found = [row for row in rows("iteration") if row["data"] != MAIN]
    cells = {(row["method"], f"{row['data']}, K={row['K']}"): f"{seconds(row):.3f}" for row in found}
    return with_machine(grid(cells, "method"), found) if found else ""


def memory() -> str:
    """Peak memory beyond the matrix, and as a share of the bound."""
    found = rows("memory")
    cells = {(r["method"], f"K={r['K']}"): f"{r['mb']:.0f} MB, {r['mb'] / r['bound']:.2f}" for r in found}
    return with_machine(grid(cells, "method"), found) if found else ""


def limits() -> str:
    """Share of what the machine could do."""
    found = rows("limit")
    cells = {(r["method"], f"K={r['K']}"): f"{r['limit'] / r['seconds']:.2f}" for r in found}
    return with_machine(grid(cells, "method"), found) if found else ""


def lists() -> str:
    """Users served a second."""
    found = rows("lists")
    keys = {"median": "users_per_second", "slowest": "slowest", "fastest": "fastest"}
    cells = {(r["method"], name): f"{r[key]:,.0f}" for r in found for name, key in keys.items()}
    table = grid(cells, "users a second")
    for row in rows("lists of many users"):
        table += f"\n\n{row['users']:,} users × {row['items']:,} items (`--large`): {row['seconds']:.0f} s, "
        table += f"and {row['mib_more']:.0f} MiB beyond the model."
    return with_machine(table, found) if found else ""


def errors() -> str:
    """Errors of half-steps against float64."""
    found = rows("error")
    cells = {
        (f"{r['K']}, after {r['iteration']}", r["method"]): f"{r['error']:.1e}"
        for r in sorted(found, key=lambda r: (r["K"], r["iteration"]))
    }
    return with_machine(grid(cells, "K, iteration"), found) if found else ""


def figures() -> str:
    """Two of the three figures of the README."""
    found = {r["method"]: r for r in rows("iteration") if (r["data"], r["K"]) == (MAIN, 128)}
    served = {r["method"]: r for r in rows("lists")}
    if not found or not served:
        return ""
    ours, irspack, implicit = (
        seconds(found[name]) for name in ("rgals iALS exact", "irspack CG(3)", "implicit CG(3)")
    )
    names = ("rgals recommend", "implicit recommend, BLAS at 1", "implicit recommend")
    lists, one, usual = (f"{served[name]['users_per_second']:,.0f}" for name in names)
    versions = {row["machine"].partition(",")[0] for row in (*found.values(), *served.values())}
    measured, page = ", ".join(sorted(versions)), "[docs/speed.md](docs/speed.md)"
    told = (
        f"1. **Speed.** An exact iteration of iALS at K=128 takes {ours:.3f} s, three approximate conjugate "
        f"gradient steps per row {irspack:.3f} s in irspack and {implicit:.3f} s in implicit (`python "
        f"benchmarks/speed.py {MAIN} --K 128`, {measured}): {page}.",
        f"2. **Serving.** Top-10 lists for {lists} users per second, seen items excluded; implicit serves "
        f"{one} with one BLAS thread, {usual} with its defaults (`python benchmarks/batch.py`, {measured}): "
        f"{page}.",
    )
    wrap = textwrap.TextWrapper(126, subsequent_indent="   ", break_on_hyphens=False)
    return "\n".join(map(wrap.fill, told))


def seconds(row: Row) -> float:
    """Of an iteration."""
    return statistics.median(row["seconds"])


def tables() -> dict[str, str]:
    """What is recorded, by the names of the pages."""
    found = {
        "iteration": iterations(),
        "iteration more": other_iterations(),
        "limits": limits(),
        "lists": lists(),
        "memory": memory(),
        "errors": errors(),
        "figures": figures(),
    }
    return {name: table for name, table in found.items() if table}
