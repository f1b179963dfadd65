"""Optional packages: absent, or there and unable to be imported."""

from __future__ import annotations

import pytest

from rgals.runtime.errors import MissingDependencyError
from rgals.runtime.lazy import optional


def test_a_package_that_is_there_says_itself_why_it_cannot_be_imported(tmp_path, monkeypatch):
    """As pyarrow 26 with numpy 1.26: to install it, as was advised alone, changes nothing."""
    (tmp_path / "broken_by_its_numpy.py").write_text("raise ImportError('requires NumPy 2.0 or newer')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingDependencyError, match=r"^pip install it \(requires NumPy 2.0 or newer\)$"):
        optional("broken_by_its_numpy", "pip install it")
    with pytest.raises(MissingDependencyError, match="^pip install it$"):
        optional("not_there_at_all", "pip install it")
