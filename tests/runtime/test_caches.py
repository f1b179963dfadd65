"""Which folders compiled code is read from."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from types import SimpleNamespace

import numba
import pytest

from rgals.kernels import gram
from rgals.runtime import caches
from rgals.runtime.errors import RgalsError

SOURCES = (Path(gram.__file__),)
BESIDE = str(Path(gram.__file__).parent / "__pycache__")


def test_numba_that_may_not_compile_is_one_error_that_says_what_to_unset(monkeypatch):
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    code = compile(Path(caches.__file__).read_text(), caches.__file__, "exec")
    with pytest.raises(RgalsError, match="unset NUMBA_DISABLE_JIT"):
        exec(code, {"__name__": "again"})


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """``asked(answers)``: the folders that are looked at for an entry, in order; the own one is in a home."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(caches, "_writable", lambda folder: str(tmp_path) in folder)
    caches._kind.cache_clear()
    Path(BESIDE).mkdir(exist_ok=True)

    def ask(answers):
        seen = []

        def read(folder):
            name = "beside" if folder == BESIDE else folder.removeprefix(str(tmp_path)).split("/")[1]
            seen.append(name)
            if isinstance(answers.get(name), OSError):
                raise answers[name]
            code = pickle.dumps(answers[name]) if name in answers else b"damaged"
            return hashlib.sha256(code).digest() + code if name in answers else code

        cache = caches.cache_of(gram.gram, SOURCES)._cache_file
        Path(cache._folder).mkdir(parents=True, exist_ok=True)
        cache._path = lambda folder, key: SimpleNamespace(read_bytes=lambda: read(folder))
        return cache.load(("key",)), seen

    yield ask
    caches._kind.cache_clear()


def test_all_folders_are_asked_until_one_has_it_the_own_one_first(asked):
    assert asked({"home": "code", "beside": "other"}) == ("code", ["home"])
    assert asked({"beside": "code"}) == ("code", ["home", "beside"])
    code, seen = asked({})
    assert code is None and seen[:2] == ["home", "beside"]


def test_a_folder_that_nobody_may_read_is_passed_over(asked):
    assert asked({"home": PermissionError(13, "no"), "beside": "code"}) == ("code", ["home", "beside"])


def test_a_folder_that_was_named_is_the_only_one(asked, tmp_path, monkeypatch):
    """An empty folder by NUMBA_CACHE_DIR is an empty cache."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "named"))
    code, seen = asked({"beside": "code", "home": "code"})
    assert code is None and set(seen) == {"named"}
