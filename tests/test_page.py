"""The page of results says what the recorded lines say."""

from __future__ import annotations

import importlib
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
    for path, tables in zip(page.PAGES, (1, 11, 1, 2, 4), strict=True):
        text = path.read_text(encoding="utf-8")
        assert page.written(text) == text, "run python benchmarks/page.py"
        assert text.count("<!-- table ") == text.count("<!-- end -->") == tables
        assert page.written(text.replace("0.1146", "0.9146")) == text
