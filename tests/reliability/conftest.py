"""Every area runs quick (in `make test`) and full (`make reliability`); the full run ends with one table."""

from __future__ import annotations

import pytest
from reliability.harness import Tally, Zygote

TABLE: list[Tally] = []


@pytest.fixture(params=["quick", pytest.param("full", marks=pytest.mark.slow)])
def amount(request):
    """``amount(few, all)``: how much to do in this run."""
    return lambda few, everything: few if request.param == "quick" else everything


@pytest.fixture
def tally(request, amount):
    """``tally(area, few, all)``: a count that must reach its figure without a failure."""
    made = []

    def make(area: str, few: int, everything: int) -> Tally:
        made.append(Tally(area, amount(few, everything)))
        return made[-1]

    yield make
    if amount(0, 1):
        TABLE.extend(made)


@pytest.fixture(scope="session")
def zygote():
    process = Zygote()
    yield process
    process.close()


def pytest_terminal_summary(terminalreporter):
    if not TABLE:
        return
    terminalreporter.section("reliability")
    width = max(len(entry.area) for entry in TABLE)
    line = "{:<" + str(width) + "}  {:>11}  {:>8}  {:>10}"
    terminalreporter.write_line(line.format("area", "cases tried", "failures", "worst time"))
    for entry in TABLE:
        row = line.format(entry.area, f"{entry.cases:,}", f"{len(entry.failures):,}", f"{entry.worst:.3f} s")
        terminalreporter.write_line(row)
