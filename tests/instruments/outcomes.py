"""Hooks of pytest that record what ran and what was skipped, for .ci/skipped.py."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

_OUTCOMES: dict[str, dict] = {}


def _record(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr or "")
    # What fails as expected has run.
    skipped = report.outcome == "skipped" and not hasattr(report, "wasxfail")
    markers = sorted(set(getattr(report, "keywords", {})) & {"gpu", "realdata"})
    entry = {"outcome": "skipped" if skipped else "ran", "reason": reason, "markers": markers}
    if skipped or report.nodeid not in _OUTCOMES:
        _OUTCOMES[report.nodeid] = entry


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when != "teardown":
        _record(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.outcome == "skipped":  # a whole module
        _record(report)


def pytest_sessionfinish(session) -> None:
    path = os.environ.get("RGALS_OUTCOMES")
    if path and not hasattr(session.config, "workerinput"):  # reports of all processes come to the first one
        Path(path).write_text(json.dumps(_OUTCOMES), encoding="utf-8")
