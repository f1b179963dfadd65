"""Optional packages: absent, or there and unable to be imported; the collector of garbage during imports."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from rgals.runtime.errors import MissingDependencyError
from rgals.runtime.lazy import optional, uncollected


def test_a_package_that_is_there_says_itself_why_it_cannot_be_imported(tmp_path, monkeypatch):
    """As pyarrow 26 with numpy 1.26: to install it, as was advised alone, changes nothing."""
    (tmp_path / "broken_by_its_numpy.py").write_text("raise ImportError('requires NumPy 2.0 or newer')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingDependencyError, match=r"^pip install it \(requires NumPy 2.0 or newer\)$"):
        optional("broken_by_its_numpy", "pip install it")
    with pytest.raises(MissingDependencyError, match="^pip install it$"):
        optional("not_there_at_all", "pip install it")


def test_the_collector_is_as_it_was_after_an_import():
    assert gc.isenabled()
    with pytest.raises(ImportError), uncollected():
        assert not gc.isenabled()
        raise ImportError("of something broken")
    assert gc.isenabled()
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_collector_goes_through_no_half_imported_modules():
    script = """
import gc
whole = []
gc.callbacks.append(lambda phase, info: whole.append(phase) if info["generation"] == 2 else None)
from rgals import RGALS
print(len(whole), gc.isenabled())
"""
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == ["0", "True"]
