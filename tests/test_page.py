"""The page of results says what the recorded lines say."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def page(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = set(sys.modules)
    yield importlib.import_module("page")
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == BENCHMARKS:
            del sys.modules[name]  # names as common as these are for this test alone


def test_tables_of_the_pages_are_those_of_the_recorded_lines(page):
    for path, tables in zip(page.PAGES, (2, 19, 9, 2, 5, 2, 1), strict=True):
        text = path.read_text(encoding="utf-8")
        assert page.written(text) == text, "run python benchmarks/page.py"
        assert text.count("<!-- table ") == text.count("<!-- end -->") == tables
        assert page.written(text.replace("0.1146", "0.9146")) == text


def test_what_is_recorded_of_speed_is_written_and_the_rest_stays(page, monkeypatch, tmp_path):
    """A table of which nothing is recorded keeps its words; of repeated lines the last counts."""
    tables = importlib.import_module("speed_tables")
    monkeypatch.setattr(tables, "RECORD", tmp_path / "lines.jsonl")
    assert tables.tables() == {}
    machine = {"machine": "rgals 9.9.9, numba 1\nprocessor, 2 threads"}
    methods = {"rgals iALS exact": 0.25, "irspack CG(3)": 0.5, "implicit CG(3)": 0.75}
    rows = [
        {"what": "iteration", "data": tables.MAIN, "K": 128, "method": name, "seconds": [9, *[seconds] * 3]}
        for name, seconds in [*methods.items(), ("rgals iALS exact", 0.125)]
    ]
    served = {
        "rgals recommend": 3000.0,
        "implicit recommend": 1000.0,
        "implicit recommend, BLAS at 1": 2000.0,
    }
    rows += [
        {"what": "lists", "data": "set", "K": 64, "method": name, "users_per_second": rate}
        | {"slowest": rate - 1, "fastest": rate + 1}
        for name, rate in served.items()
    ]
    rows += [{"what": "memory", "data": "set", "K": 64, "method": "rgals", "mb": 30.0, "bound": 40.0}]
    tables.RECORD.write_text("".join(json.dumps({**row, **machine}) + "\n" for row in rows))
    found = tables.tables()
    assert set(found) == {"iteration", "lists", "memory", "figures"}
    assert "| rgals iALS exact | 0.1250 |\n| irspack CG(3) | 0.5000 |" in found["iteration"]
    assert "0.125 s" in found["figures"] and "rgals 9.9.9" in found["figures"] and "3,000" in found["figures"]
    assert "30 MB, 0.75" in found["memory"] and found["lists"].endswith("processor, 2 threads.")
    with tables.RECORD.open("a") as file:
        file.write(json.dumps({**rows[-1], "K": 256, "machine": "another"}) + "\n")
    with pytest.raises(AssertionError, match="different machines"):
        tables.tables()


def test_the_wait_of_a_first_fit_is_what_was_recorded():
    docs = BENCHMARKS.parent / "docs"
    text = (docs / "startup.md").read_text(encoding="utf-8")
    recorded = re.search(r"^\| empty \| fit \| ([\d.]+)", text, re.MULTILINE)
    install = (docs / "start" / "install.md").read_text(encoding="utf-8")
    said = re.search(r"about (\d+) seconds", install)
    assert abs(int(said[1]) - float(recorded[1])) < 1


def test_what_the_readme_says_of_large_data_was_recorded(page):
    """The largest set that was converted and fitted from disk."""
    disk = importlib.import_module("disk")
    rows = [json.loads(line) for line in disk.RESULTS.read_text(encoding="utf-8").splitlines()]
    sizes = {row["nnz"]: row["events"] for row in rows if row["step"] == "convert"}
    fitted = max(sizes[row["nnz"]] for row in rows if row["step"] == "disk" and row["nnz"] in sizes)
    said = re.search(
        r"([\de]+) interactions on two cores", (page.ROOT / "README.md").read_text(encoding="utf-8")
    )
    assert float(said[1]) == fitted
