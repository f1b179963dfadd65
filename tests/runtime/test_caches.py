"""Which folders compiled code is read from."""

from __future__ import annotations

from pathlib import Path

import pytest
from numba.core import config

import rgals.kernels.csr as module
from rgals.runtime import caches

CHECK = module.check.py_func
BESIDE = str(Path(module.__file__).parent / "__pycache__")


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    Path(BESIDE).mkdir(exist_ok=True)
    return tmp_path / "home"


def asked(answers: dict[str, object] | None = None) -> list[str]:
    """The folders that are looked at, in their order."""
    seen = []

    def load(folder):
        seen.append(folder)
        answer = (answers or {}).get(folder)
        if isinstance(answer, OSError):
            raise answer
        return answer

    caches.find(CHECK, "own", load)
    return seen


def test_all_folders_that_are_there_are_asked_the_own_one_first(home):
    assert asked() == ["own", BESIDE]
    for folder in home.parent, home:
        folder.mkdir(exist_ok=True)
    made = caches._locators(caches.caching.FunctionCache._impl_class, lambda folder: True)[2]
    own = Path(made.from_function(CHECK, module.__file__).get_cache_path())
    own.mkdir(parents=True)
    assert asked() == ["own", BESIDE, str(own)]
    assert asked({"own": "code"}) == ["own"]
    assert asked({BESIDE: "code"}) == ["own", BESIDE]


def test_a_folder_that_nobody_may_read_is_passed_over(home):
    assert asked({"own": PermissionError(13, "no")}) == ["own", BESIDE]


def test_a_folder_that_was_named_is_the_only_one(home, tmp_path, monkeypatch):
    """An empty folder by NUMBA_CACHE_DIR is an empty cache."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "named"))
    assert asked() == ["own"]
