"""Shared by all tests: real data, reproducible properties, how much to try, a record of what was skipped."""

from __future__ import annotations

import functools
import gc
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from instruments.grids import left_out
from instruments.harness import Bare, Tally, Zygote
from instruments.outcomes import pytest_collectreport, pytest_runtest_logreport, pytest_sessionfinish
from threadpoolctl import ThreadpoolController

__all__ = ["pytest_collectreport", "pytest_runtest_logreport", "pytest_sessionfinish"]

# No deadline: the first example of a property may compile a kernel. The same examples in every run.
hypothesis.settings.register_profile("rgals", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.register_profile("full", hypothesis.settings.get_profile("rgals"), max_examples=250)
hypothesis.settings.load_profile("rgals")

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
STRESS = TESTS / "stress"
RUNTIME = TESTS / "runtime"
DATA = Path(os.environ.get("RGALS_DATA") or ROOT.parent / "shared" / "data")


def pytest_addoption(parser) -> None:
    text = "every combination of a test's parameters instead of all pairs of their values"
    parser.addoption("--full", action="store_true", help=text)


def pytest_configure(config) -> None:
    if config.option.full:
        hypothesis.settings.load_profile("full")
    if hasattr(config, "workerinput"):  # one of the processes of `pytest -n`
        from rgals.warm import compile_once  # with the package, which a run of one process may not need

        compile_once(Path(config.option.basetemp).parent / "compiling")
        collect_from_elsewhere(config)


def collect_from_elsewhere(config) -> None:
    """Where all is collected, each process begins with other files.

    It rewrites their assertions, finds those of the others rewritten, and then has the items in their order.
    """
    number, count = int(config.workerinput["workerid"][2:]), config.workerinput["workercount"]
    if [Path(path).name for path in config.args] == config.getini("testpaths"):
        files = [path for path in TESTS.rglob("test_*.py") if STRESS not in path.parents]
        parts = [
            str(ROOT / "rgals"),
            *sorted({str(TESTS / path.relative_to(TESTS).parts[0]) for path in files}),
        ]
        first = number * len(parts) // count
        config.args[:] = parts[first:] + parts[:first]


def pytest_collection() -> None:
    gc.disable()  # what is collected stays


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items) -> None:
    # One of the processes of `pytest -n` has the tests that need a zygote: it makes one, and the others none.
    items.sort(key=lambda item: ("zygote" not in item.fixturenames, item.path))
    if not config.option.full:
        gone = left_out(items)
        config.hook.pytest_deselected(items=gone)
        hidden = set(map(id, gone))
        items[:] = [item for item in items if id(item) not in hidden]


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers, the same in every run."""
    return np.random.default_rng(20250101)


@functools.cache
def _blas() -> ThreadpoolController:
    """Numpy's and scipy's BLAS, looked for once."""
    importlib.import_module("scipy.linalg")
    return ThreadpoolController()


@pytest.fixture(autouse=True)
def one_thread_of_blas(request):
    """Two threads of BLAS wait for each other longer than they compute: only tests of threads have them."""
    if RUNTIME in request.node.path.parents:
        yield
    else:
        with _blas().limit(limits=1, user_api="blas"):
            yield


@pytest.fixture(scope="session")
def data_file() -> Callable[[str], Path]:
    """Path of a real data set by name; skips the test, saying which set, where it is absent."""

    def find(name: str) -> Path:
        path = DATA / f"{name}.npz"
        if not path.is_file():
            pytest.skip(
                f"data set {name} is not here (looked for {name}.npz in RGALS_DATA or ../shared/data)"
            )
        return path

    return find


@pytest.fixture
def amount(request) -> Callable:
    """``amount(few, all)``: how much to do, all of it in tests/stress."""
    full = request.node.path.is_relative_to(STRESS)
    return lambda few, everything: everything if full else few


@pytest.fixture
def tally(request, amount):
    """``tally(area, few, all)``: a count that must reach its figure without a failure."""
    made = []

    def make(area: str, few: int, everything: int) -> Tally:
        made.append(Tally(area, amount(few, everything)))
        return made[-1]

    yield make
    for count in made:
        figures = (count.area, count.cases, len(count.failures), count.worst)
        request.node.user_properties.append(("tally", figures))


@pytest.fixture(scope="session")
def zygote():
    """A process that has compiled everything and forks a child for every job."""
    if sys.platform != "linux":
        pytest.skip("elsewhere a process that has computed is not forked")
    process = Zygote()
    yield process
    process.close()


@pytest.fixture(scope="session")
def bare(tmp_path_factory):
    """A process in which the package is not imported yet, which runs code in forked children."""
    if not hasattr(os, "fork"):
        pytest.skip("there are no forks")
    process = Bare(tmp_path_factory.mktemp("kernels"))
    yield process
    process.close()
