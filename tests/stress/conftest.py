"""What takes minutes (`make stress`): tests of the other folders in full, and a table of what was tried."""

from __future__ import annotations

import pytest

OUTCOMES: dict[str, pytest.TestReport] = {}
ROWS: list[tuple[str, str, int, int, float]] = []  # outcome, area, cases, failures, worst time
COLOURS = {"passed": "green", "skipped": "skipped", "failed": "red"}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """One row a tally, or one for a test without: when it is over, with the worst outcome of its parts."""
    if report.nodeid not in OUTCOMES or report.outcome != "passed" or report.when == "call":
        OUTCOMES[report.nodeid] = report
    if report.when != "teardown":
        return
    judged = OUTCOMES.pop(report.nodeid)
    colour = COLOURS[judged.outcome]
    counts = [value for name, value in report.user_properties if name == "tally"]
    for area, cases, failures, worst in counts:
        ROWS.append((colour, area, cases, failures, worst))
    if not counts:
        area = report.nodeid.rpartition("::")[2].removeprefix("test_").replace("_", " ")
        ROWS.append((colour, area, int(colour != "skipped"), int(colour == "red"), judged.duration))


def pytest_terminal_summary(terminalreporter) -> None:
    if not ROWS:
        return
    terminalreporter.section("what was tried")
    width = max(len(row[1]) for row in ROWS)
    terminalreporter.write_line(f"{'':8} {'':{width}}  {'cases':>8}  {'failures':>8}  {'worst time':>10}")
    for colour, area, cases, failures, worst in ROWS:
        line = f"{colour:8} {area:{width}}  {cases:>8,}  {failures:>8,}  {worst:>8.3f} s"
        terminalreporter.write_line(line, green=colour == "green", red=colour == "red")
