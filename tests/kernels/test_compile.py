"""Compiled code comes from the sources that are there now, wherever its cache lies and whoever shares it."""

from __future__ import annotations

import ast
import importlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numba
import pytest
from numba import njit
from numba.core.registry import CPUDispatcher

import rgals.kernels.compile as kernel_compile

PACKAGE = Path(kernel_compile.__file__).parent.parent
ENTRY = """
from .compile import entry
from .leaf import add

@entry(nogil=True)
def f(x):
    return add(x) * 2
"""
LEAF = """
from .compile import inner

@inner
def add(x):
    return x + 1
"""
RUNTIME = ["runtime/aligned", "runtime/caches", "runtime/errors", "runtime/version"]
PLACES = ["beside the package", "NUMBA_CACHE_DIR", "numba's user folder"]


def edit(path: Path, old: str, new: str) -> None:
    """Replace text in a file that keeps its time stamps."""
    before = path.stat()
    text = path.read_text()
    assert text.count(old) == 1, f"{path.name} no longer has {old!r}: name another line to edit"
    path.write_text(text.replace(old, new))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of one compiled function and one that is inlined into it, with our decorators."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python's own cache goes by time and size
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    tried = tmp_path / "installed" / "tried"
    for name in ("kernels/compile", "kernels/library", "kernels/vectors", *RUNTIME):
        copy = tried / f"{name}.py"
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text((PACKAGE / f"{name}.py").read_text().replace("from rgals.", "from tried."))
    kernels = tried / "kernels"
    for name, text in [("__init__", ""), ("entries", ENTRY), ("leaf", LEAF)]:
        (kernels / f"{name}.py").write_text(text)
    (kernels.parent / "__init__.py").write_text("")
    return kernels


def start(package: Path):
    """The compiled function as a new process gets it: everything imported again."""
    root = str(package.parent.parent)
    sys.path.insert(0, root)
    importlib.invalidate_caches()
    try:
        return importlib.import_module("tried.kernels.entries").f
    finally:
        sys.path.remove(root)
        for name in [name for name in sys.modules if name.partition(".")[0] == "tried"]:
            del sys.modules[name]


def was_cached(function) -> bool:
    return bool(function.stats.cache_hits) and not function.stats.cache_misses


@pytest.fixture
def place(request, package, tmp_path, monkeypatch):
    """Sends numba's cache to one of the places it may be at; the folder of it."""
    if request.param == "beside the package":
        return package
    (package / "__pycache__").write_text("not a folder")
    if request.param == "NUMBA_CACHE_DIR":
        monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "told"))
        return tmp_path / "told"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_an_edited_inner_function_is_compiled_into_its_callers(package, place):
    assert start(package)(1) == 4
    assert list(place.rglob("*.nbc"))
    again = start(package)
    assert again(1) == 4
    assert was_cached(again)
    edit(package / "leaf.py", "x + 1", "x + 2")
    assert start(package)(1) == 6


def test_versions_that_share_a_folder_keep_their_own_entries(package):
    start(package)(1)
    edit(package / "leaf.py", "x + 1", "x + 2")
    start(package)(1)
    edit(package / "leaf.py", "x + 2", "x + 1")
    again = start(package)
    assert again(1) == 4
    assert was_cached(again)


@pytest.mark.parametrize(
    "where", ["kernels/leaf.py", "kernels/library.py", "runtime/aligned.py", "runtime/version.py"]
)
def test_every_file_that_kernels_are_made_of_counts(package, where):
    start(package)(1)
    path = package.parent / where
    path.write_text(path.read_text() + "\n# a change\n")
    again = start(package)
    again(1)
    assert not was_cached(again)


def test_time_stamps_do_not_count(package):
    """As in a layer of an image, or after `git checkout`."""
    start(package)(1)
    for path in package.glob("*.py"):
        os.utime(path, (1, 1))
    again = start(package)
    again(1)
    assert was_cached(again)


@pytest.mark.parametrize("change", ["OPT", "LOOP_VECTORIZE", "numba", "llvmlite", "numpy"])
def test_settings_and_versions_of_the_compiler_count(package, monkeypatch, change):
    start(package)(1)
    if change == "OPT":
        monkeypatch.setattr(numba.config, "OPT", type(numba.config.OPT)(1))
    elif change == "LOOP_VECTORIZE":
        monkeypatch.setattr(numba.config, change, 0)
    else:
        monkeypatch.setattr(sys.modules[change], "__version__", "another")
    again = start(package)
    again(1)
    assert not was_cached(again)


def test_entries_of_two_processes_at_once_cannot_be_mixed_up(package):
    """Each compiles for another type; their files land in the folder in any order."""
    written = []
    for value in (1, 1.5):
        start(package)(value)
        written.append({p.name: p.read_bytes() for p in (package / "__pycache__").glob("*.nbc")})
        shutil.rmtree(package / "__pycache__")
    entries = [[file for file in files.items() if "entries" in file[0]] for files in written]
    assert all(len(files) == 1 for files in entries)
    for order in itertools.permutations([*entries[0], *entries[1]]):
        (package / "__pycache__").mkdir()
        for name, content in order:
            (package / "__pycache__" / name).write_bytes(content)
        function = start(package)
        assert (function(1), function(1.5)) == (4, 5.0), [name for name, _ in order]
        shutil.rmtree(package / "__pycache__")


@pytest.mark.parametrize("damage", ["empty", "cut", "zeros at its end", "one bit"])
def test_a_damaged_entry_is_compiled_again_and_replaced(package, damage):
    """As a machine leaves it that loses its power, or a disk that fails."""
    start(package)(1)
    for path in (package / "__pycache__").glob("*.nbc"):
        whole = path.read_bytes()
        half = len(whole) // 2
        path.write_bytes(
            {
                "empty": b"",
                "cut": whole[:half],
                "zeros at its end": whole[:half] + bytes(len(whole) - half),
                "one bit": whole[:half] + bytes([whole[half] ^ 1]) + whole[half + 1 :],
            }[damage]
        )
    again = start(package)
    assert again(1) == 4
    assert not was_cached(again)
    again = start(package)
    assert again(1) == 4
    assert was_cached(again)


def test_what_was_edited_after_its_import_is_not_cached(package):
    function = start(package)
    edit(package / "leaf.py", "x + 1", "x + 2")
    assert function(1) == 4  # compiled from what was imported
    assert not list(package.rglob("*.nbc"))
    assert start(package)(1) == 6


def test_entries_of_other_sources_go_when_they_are_a_day_old(package):
    def files():
        return set((package / "__pycache__").glob("*.nbc"))

    start(package)(1)
    old = files()
    edit(package / "leaf.py", "x + 1", "x + 2")
    start(package)(1)
    young = files() - old
    assert len(young) == len(old) > 0
    foreign = package / "__pycache__" / "somebody.else-3.py311.1.nbc"
    older = [path.with_suffix(suffix) for path in old for suffix in (".nbi", ".1.nbc")]  # of release 0.2
    for path in [foreign, *older]:
        path.write_text("")
    for path in [*old, *older, foreign]:
        os.utime(path, (1, 1))
    edit(package / "leaf.py", "x + 2", "x + 3")
    start(package)(1)
    assert not files() & old and not any(path.exists() for path in older)
    assert young < files() and foreign in files()


def test_recompile_forgets_the_entries(package):
    start(package)(1)
    start(package).recompile()
    again = start(package)
    again(1)
    assert not was_cached(again)


def test_without_a_folder_to_write_to_code_is_compiled_and_the_user_told_once(package, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", "/dev/null/no")
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/no")
    (package / "__pycache__").write_text("not a folder")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert start(package)(1) == 4
    assert len(seen) == 1
    assert "NUMBA_CACHE_DIR" in str(seen[0].message)


def test_a_named_folder_that_cannot_be_used_is_replaced_by_no_other(package, monkeypatch):
    """Code was read from beside the package, and written there, whoever may write to it."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", "/dev/null/no")
    with pytest.warns(RuntimeWarning, match="NUMBA_CACHE_DIR"):
        assert start(package)(1) == 4
    assert not list(package.rglob("*.nb?"))


@pytest.mark.parametrize("gone", ["IndexDataCacheFile", "FunctionCache", "NullCache"])
def test_a_numba_that_caches_in_another_way_is_told_of(package, monkeypatch, gone):
    start(package)(1)
    edit(package / "leaf.py", "x + 1", "x + 2")
    monkeypatch.setattr(numba.core.caching, gone, type("Another", (), {"__init__": lambda *_: None}))
    with pytest.warns(RuntimeWarning, match="another way") as seen:
        assert start(package)(1) == 6
    assert len(seen) == 1


def test_kernels_are_made_of_the_files_that_are_stamped():
    """Whatever a kernel imports of this package counts; and nothing is cached without the stamp."""
    stamped = {path.relative_to(PACKAGE) for path in kernel_compile.library.SOURCES}
    plain = {
        Path("runtime/caches.py"),
        Path("runtime/threads.py"),
    }  # around compiled code
    for path in sorted(PACKAGE.rglob("*.py")):
        name, text = path.relative_to(PACKAGE), path.read_text()
        if name.parts[0] != "kernels" and "cache=" not in text:
            continue
        tree = ast.parse(text)
        if name.name != "compile.py":
            cached = [k for k in ast.walk(tree) if isinstance(k, ast.keyword) and k.arg == "cache"]
            assert not cached, f"{name}:{cached[0].value.lineno}: use the decorators of kernels/compile.py"
        if name.parts[0] != "kernels":
            continue
        assert name in stamped
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("rgals"):
                below = Path(*node.module.split(".")[1:])
                if below.parts[:1] == ("kernels",):
                    continue
                # `from rgals.runtime.aligned import empty` and `from rgals.runtime import aligned`
                named = [below / alias.name for alias in node.names]
                found = [below] if below.with_suffix(".py") in stamped | plain else named
                assert all(path.with_suffix(".py") in stamped | plain for path in found), f"{name}: {found}"


def test_python_is_told_that_it_cannot_call_an_inner_function():
    """numba's own function without a wrapper ends the process."""
    add = kernel_compile.inner(lambda x: x + 1)
    assert njit(lambda x: add(x))(1) == 2
    with pytest.raises(TypeError, match="Python cannot call"):
        add(1)


CTRL_C = """
import os, signal
import numpy as np
from numba.core.typing.templates import RegistryLoader
from rgals.kernels.ranking import find_hits

signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts us in the background may ignore it
read, times = RegistryLoader.new_registrations, iter([True])

def disturbed(loader, name):
    for found in read(loader, name):
        if getattr(found, "__name__", "") == "ArrayAttribute" and next(times, False):
            os.kill(os.getpid(), signal.SIGINT)  # what is read, and kept by nobody yet
        yield found

RegistryLoader.new_registrations = disturbed
hits = np.zeros((1, 2), bool)
arrays = np.array([[3, 4]], np.int32), np.array([0, 2]), np.array([1, 3], np.int32)
for k in range(2):
    try:
        find_hits(*arrays, 1, hits)
    except KeyboardInterrupt:
        print("stopped", k)
print(next(times, "disturbed"), hits.tolist())
"""


def test_ctrl_c_while_numba_gets_ready_breaks_no_later_fit(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    told = [sys.executable, "-c", CTRL_C]
    done = subprocess.run(told, env=environment, capture_output=True, text=True)
    assert done.stdout.split("\n")[:2] == ["stopped 0", "disturbed [[True, False]]"], done


def test_ctrl_c_waits_for_code_to_be_loaded(monkeypatch):
    """Interrupted there, LLVM's lock stayed locked, so that the fit hung, or memory was freed twice."""
    loaded = []

    def load(dispatcher, sig):
        signal.raise_signal(signal.SIGINT)
        loaded.append(sig)

    @kernel_compile.entry
    def add(x):
        return x + 1

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(CPUDispatcher, "compile", load)
    try:
        with pytest.raises(KeyboardInterrupt):
            add(1)
        assert len(loaded) == 1 and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
