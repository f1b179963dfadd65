"""BLAS has one thread wherever something is computed, and afterwards as many as before."""

from __future__ import annotations

import functools
import itertools
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from types import SimpleNamespace

import numba
import numpy as np
import pytest
from helpers import interactions
from instruments.harness import POSIX
from llvmlite.binding import ffi
from numba.core.compiler_lock import global_compiler_lock
from sklearn.gaussian_process import GaussianProcessRegressor
from threadpoolctl import ThreadpoolController, threadpool_limits

from rgals import RGALS
from rgals.baselines import ease
from rgals.kernels import queue
from rgals.model_selection.tuning import halving
from rgals.model_selection.tuning.space import Range, Space
from rgals.runtime import cgroups
from rgals.runtime import threads as _threads
from rgals.runtime.threads import n_threads, workers

ORDERS = list(itertools.permutations(range(3)))


@functools.cache
def libraries() -> ThreadpoolController:
    """Those that are loaded: looked for once."""
    return ThreadpoolController()


def blas_threads() -> set[int]:
    """Of numpy and scipy: another test may have loaded faiss, whose own BLAS computes nothing of ours."""
    pools = [pool for pool in libraries().info() if pool["user_api"] == "blas"]
    return {pool["num_threads"] for pool in pools if "faiss" not in pool["filepath"]}


@pytest.fixture
def threads():
    """Three threads that live on; ``threads[k](f, *args)`` is what ``f(*args)`` returns in one of them."""
    pools = [ThreadPoolExecutor(1) for _ in range(3)]
    yield [lambda f, *args, pool=pool: pool.submit(f, *args).result(60) for pool in pools]
    for pool in pools:
        pool.shutdown()


# ------------------------------------------------------------------ the libraries that are there


@pytest.mark.parametrize("out", ORDERS)
def test_whichever_thread_comes_first_and_whichever_ends_last(threads, out):
    with threadpool_limits(3, "blas"):
        for into in ORDERS:
            held = [workers() for _ in threads]
            for k in into:
                threads[k](held[k].__enter__)
                assert threads[k](blas_threads) == {1}
            for k in out:
                assert [run(blas_threads) for run in threads] == [{1}] * 3
                threads[k](held[k].__exit__, None, None, None)
            assert [run(blas_threads) for run in threads] == [{3}] * 3, (into, out)
            assert blas_threads() == {3}


def test_lapack_has_its_threads_but_one_while_others_compute(threads):
    """EASE put back what it had found, whoever had come or left meanwhile."""
    with threadpool_limits(3, "blas"):
        for into, out in itertools.product(ORDERS, ORDERS):
            held = [workers(), workers(2, of_blas=True), workers(1, of_blas=True)]
            wanted, there = {0: 1, 1: 2, 2: 1}, set()
            for k, enters in [*((k, True) for k in into), *((k, False) for k in out)]:
                threads[k](held[k].__enter__) if enters else threads[k](held[k].__exit__, None, None, None)
                there ^= {k}
                expected = {min((wanted[j] for j in there), default=3)}
                assert [blas_threads(), *(run(blas_threads) for run in threads)] == [expected] * 4, (
                    into,
                    out,
                )


@pytest.mark.parametrize("what", ["EASE", "search"])
def test_what_uses_lapack_leaves_the_limits_of_others_alone(what, threads, monkeypatch):
    """Another computation begins during it and ends after it."""
    held, seen = workers(), []
    real = ease._weights if what == "EASE" else GaussianProcessRegressor.fit

    def beside(*args):
        seen.append(blas_threads())
        threads[0](held.__enter__)
        seen.append(blas_threads())
        return real(*args)

    with threadpool_limits(3, "blas"):
        if what == "EASE":
            monkeypatch.setattr(ease, "_weights", beside)
            ease.EASE(n_jobs=2).fit(interactions())
        else:
            monkeypatch.setattr(GaussianProcessRegressor, "fit", beside)
            space = Space({"alpha": Range(0.1, 1.0, True)}, {}, {}, (8,))
            process = halving.GaussianProcess(space, 0)
            trials = [halving.Trial({"K": 8, "alpha": x}, 0, x) for x in (0.2, 0.7)]
            process.refine(trials, 8, 0)
        assert blas_threads() == {1}, "the other one goes on"
        threads[0](held.__exit__, None, None, None)
        assert blas_threads() == {3}
    assert seen == [{2 if what == "EASE" else 1}, {1}]


def test_a_thread_that_ends_leaves_no_limit():
    before = blas_threads()
    RGALS(K=4, n_iter=1).fit(interactions())
    seen = []

    def fit() -> None:
        model = RGALS(K=4, n_iter=2, random_state=0)
        model.fit(interactions(), callbacks=lambda now: seen.append(blas_threads()))

    with threadpool_limits(3, "blas"):
        for _ in range(3):
            thread = threading.Thread(target=fit)
            thread.start()
            thread.join()
            assert blas_threads() == {3}
    assert seen == [{1}] * 6
    assert blas_threads() == before


def test_nested_computations_hold_until_the_outer_one_ends():
    with threadpool_limits(3, "blas"):
        with workers():
            with workers(1):
                assert blas_threads() == {1}
            assert blas_threads() == {1}
        assert blas_threads() == {3}


def test_what_others_set_in_the_meantime_stays():
    """Their limit ends during ours: what we found is no longer true."""
    before = blas_threads()
    with threadpool_limits(2, "blas"):
        other = threadpool_limits(3, "blas")
        with workers():
            other.restore_original_limits()
        assert blas_threads() == {2}
    assert blas_threads() == before


def test_the_objective_is_computed_on_one_thread(monkeypatch):
    model = RGALS(K=4, n_iter=1, random_state=0).fit(interactions())
    seen = []
    monkeypatch.setattr(type(model.loss_), "objective", lambda *_: seen.append(blas_threads()) or 0.0)
    with threadpool_limits(3, "blas"):
        model.objective(interactions())
    assert seen == [{1}]


@POSIX
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks on this platform")
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_child_forked_during_a_computation(goes_on):
    """A thread that computes goes on in its child; what others held is given back there at once."""
    script = f"""
import os, sys, threading
from threadpoolctl import threadpool_info, threadpool_limits
from rgals.runtime.threads import workers
def blas():
    return {{pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}}
def report(*found):
    os._exit(0 if found == ({{1}} if {goes_on} else {{3}}, {{1}}, {{3}}) else 1)
threadpool_limits(3, "blas")
inside, end = threading.Event(), threading.Event()
def compute():
    with workers():
        inside.set()
        end.wait(60)
other = threading.Thread(target=compute)
other.start()
inside.wait(60)
held = workers()
if {goes_on}:
    held.__enter__()
child = os.fork()
if child == 0:
    found = [blas()]
    if not {goes_on}:
        held.__enter__()
    found.append(blas())
    held.__exit__(None, None, None)
    report(*found, blas())
end.set()
other.join()
if {goes_on}:
    held.__exit__(None, None, None)
assert os.waitpid(child, 0)[1] == 0, "the child"
assert blas() == {{3}}, blas()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@POSIX
@pytest.mark.parametrize("lock", [global_compiler_lock, ffi.lib._lock], ids=["numba", "llvmlite"])
def test_a_child_that_is_forked_while_another_thread_compiles_can_compile(lock):
    inside = threading.Event()

    def compile_or_load():
        with lock:
            inside.set()
            time.sleep(0.2)

    other = threading.Thread(target=compile_or_load)
    other.start()
    inside.wait(60)
    child = os.fork()
    if child == 0:
        os._exit(0 if lock._lock.acquire(timeout=5) else 1)
    other.join()
    assert os.waitpid(child, 0)[1] == 0, "it would wait for ever"
    with ThreadPoolExecutor(1) as another:
        free = another.submit(lambda: lock._lock.acquire(timeout=5) and not lock._lock.release()).result()
    assert free, "the parent gave nothing back"


@POSIX
def test_the_import_needs_no_forks():
    script = "import os; del os.fork, os.register_at_fork; import rgals"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------ libraries that are not here


class Number:
    """A number of threads, of the process or of each thread."""

    def __init__(self, value: int, of_thread: bool = False) -> None:
        self.start = value
        self.store = threading.local() if of_thread else SimpleNamespace()

    def get(self) -> int:
        return getattr(self.store, "value", self.start)

    def set(self, value: int) -> None:
        self.store.value = value

    def swap(self, value: int) -> int:
        before = self.get()
        self.set(value)
        return before


def controller(internal_api: str, get, set_, layer: str = "pthreads", **functions) -> SimpleNamespace:
    return SimpleNamespace(
        internal_api=internal_api,
        threading_layer=layer,
        get_num_threads=get,
        set_num_threads=set_,
        dynlib=SimpleNamespace(**functions),
    )


def nothing(number: int) -> None:
    """What 3.8 of threadpoolctl does in a thread that does not own the limit."""


def openblas(prefix: str = "", suffix: str = ""):
    number = Number(8)
    functions = {
        f"{prefix}openblas_get_num_threads{suffix}": number.get,
        f"{prefix}openblas_set_num_threads{suffix}": number.set,
    }
    return controller("openblas", number.get, nothing, **functions), number.get


def openblas_with_openmp():
    number, ignored = Number(8, of_thread=True), Number(8)
    functions = {
        "openblas_get_num_threads": ignored.get,
        "openblas_set_num_threads": ignored.set,
        "omp_get_max_threads": number.get,
        "omp_set_num_threads": number.set,
    }
    return controller("openblas", ignored.get, ignored.set, "openmp", **functions), number.get


def mkl():
    common, own = Number(8), Number(0, of_thread=True)

    def effective() -> int:
        return own.get() or common.get()

    functions = {
        "MKL_Get_Max_Threads": effective,
        "MKL_Set_Num_Threads": common.set,
        "MKL_Set_Num_Threads_Local": own.swap,
    }
    return controller("mkl", effective, own.set, **functions), effective


def other():
    number = Number(8)
    return controller("blis", number.get, number.set), number.get


LIBRARIES = {
    "OpenBLAS": openblas,
    "OpenBLAS of scipy's wheel": lambda: openblas("scipy_"),
    "OpenBLAS of numpy's wheel": lambda: openblas("scipy_", "64_"),
    "OpenBLAS with OpenMP": openblas_with_openmp,
    "MKL": mkl,
    "BLIS": other,
}


@pytest.fixture
def library(request, monkeypatch):
    """The only BLAS library of the process: ``threads()`` is how many a call from this thread would use."""
    found, effective = LIBRARIES[request.param]()
    process = SimpleNamespace(select=lambda user_api: SimpleNamespace(lib_controllers=[found]))
    monkeypatch.setattr(_threads, "ThreadpoolController", lambda: process)
    monkeypatch.setattr(_threads, "_limits", functools.cache(_threads._limits.__wrapped__))
    return SimpleNamespace(threads=effective, functions=found.dynlib)


def counted(of_each: list[int], effective):
    """Work for `launch`: what its threads would use, and no thread runs two of it."""
    barrier = threading.Barrier(2)

    def work(counter: np.ndarray) -> None:
        barrier.wait(60)
        of_each.append(effective())

    return work


@pytest.mark.parametrize("library", LIBRARIES, indirect=True)
@pytest.mark.parametrize("out", ORDERS)
def test_one_thread_for_every_library_and_in_every_order(library, threads, out):
    for into in ORDERS:
        held = [workers() for _ in threads]
        for k in into:
            threads[k](held[k].__enter__)
        for k in out:
            assert threads[k](library.threads) == 1
            threads[k](held[k].__exit__, None, None, None)
        assert [library.threads(), *(run(library.threads) for run in threads)] == [8] * 4, (into, out)


@pytest.mark.parametrize("library", LIBRARIES, indirect=True)
def test_the_threads_of_a_launch_have_one_thread_too(library, monkeypatch):
    monkeypatch.setattr(queue, "_jobs", SimpleQueue())
    monkeypatch.setattr(queue, "_unstarted", [None, None])
    of_each: list[int] = []
    with workers():
        queue.launch(counted(of_each, library.threads), 2)
    assert of_each == [1, 1]


@pytest.mark.parametrize("library", ["MKL"], indirect=True)
def test_threads_of_others_compute_with_one_thread_of_mkl(library, threads):
    """Threads of a pool, which enter no `workers` of their own."""
    with workers():
        assert threads[0](library.threads) == 1
    assert threads[0](library.threads) == 8


@pytest.mark.parametrize("library", ["MKL"], indirect=True)
def test_the_own_limit_of_a_thread_is_set_aside_and_comes_back(library, threads):
    swap = library.functions.MKL_Set_Num_Threads_Local
    threads[0](swap, 4)
    held = workers()
    threads[0](held.__enter__)
    assert threads[0](library.threads) == 1
    threads[0](held.__exit__, None, None, None)
    assert threads[0](library.threads) == 4
    assert library.threads() == 8
    assert swap(0) == 0, "the main thread had no limit of its own and has none"


@pytest.mark.parametrize("library", LIBRARIES, indirect=True)
@pytest.mark.parametrize("after", [False, True])
def test_an_interrupt_while_limits_are_set_leaves_none(library, monkeypatch, after):
    real, times = _threads._Held.add, []

    def interrupted(self, *args):
        times.append(1)
        if not after and len(times) == 2:
            raise KeyboardInterrupt
        real(self, *args)
        if after and len(times) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(_threads._Held, "add", interrupted)
    with pytest.raises(KeyboardInterrupt), workers():
        raise AssertionError("not reached")
    assert library.threads() == 8
    with workers():
        assert library.threads() == 1
    assert library.threads() == 8


def test_a_library_without_the_functions_is_left_alone(monkeypatch):
    silent = controller("openblas", lambda: None, lambda number: None)
    assert _threads._limits_of(silent) == []


# ------------------------------------------------------------------ processors of a container


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """The folder of control groups, of which there is none yet; this process is in one named /above/own."""
    monkeypatch.setattr(cgroups, "PROC", tmp_path / "proc")
    monkeypatch.setattr(cgroups, "ROOT", tmp_path / "cgroup")
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 64)
    monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/above/own\n4:cpu,cpuacct:/above/own\n")
    cgroups.processors.cache_clear()
    yield tmp_path / "cgroup"
    cgroups.processors.cache_clear()


QUOTAS = [
    ("max 100000", ("-1", "100000"), 64),
    ("200000 100000", ("200000", "100000"), 2),
    ("150000 100000", ("75000", "50000"), 2),
    ("5000 100000", ("5000", "100000"), 1),
    ("nonsense", ("nonsense", "100000"), 64),
]


@pytest.mark.parametrize("where", ["", "above", "above/own"])
@pytest.mark.parametrize("v1", [False, True], ids=["v2", "v1"])
@pytest.mark.parametrize(("v2_text", "v1_texts", "expected"), QUOTAS)
def test_threads_are_no_more_than_the_container_has_processors(
    groups, where, v1, v2_text, v1_texts, expected
):
    folder = groups / ("cpu" if v1 else "") / where
    folder.mkdir(parents=True)
    if v1:
        (folder / "cpu.cfs_quota_us").write_text(v1_texts[0] + "\n")
        (folder / "cpu.cfs_period_us").write_text(v1_texts[1] + "\n")
    else:
        (folder / "cpu.max").write_text(v2_text + "\n")
    assert n_threads(None) == n_threads(-1) == n_threads(100) == expected


@pytest.mark.parametrize(
    ("root", "files"), [("", ("cpu.max",)), ("cpu", ("cpu.cfs_quota_us", "cpu.cfs_period_us"))]
)
def test_a_group_of_another_controller_limits_nothing(groups, root, files):
    lines = "0::/own", "4:cpu,cpuacct:/own", "3:cpuset:/other", "2:name=systemd:/other"
    (groups.parent / "proc" / "self" / "cgroup").write_text("\n".join(lines) + "\n")
    for name, number in (("own", 3), ("other", 2)):
        folder = groups / root / name
        folder.mkdir(parents=True)
        texts = (f"{number}00000 100000",) if len(files) == 1 else (f"{number}00000", "100000")
        for file, text in zip(files, texts, strict=True):
            (folder / file).write_text(text + "\n")
    assert n_threads(None) == 3


def test_threads_that_were_asked_for_by_name_are_not_cut(groups, monkeypatch):
    groups.mkdir()
    (groups / "cpu.max").write_text("200000 100000\n")
    monkeypatch.setenv("NUMBA_NUM_THREADS", "64")
    assert n_threads(None) == 64


def test_without_control_groups_all_processors_count(groups):
    assert n_threads(None) == 64


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no process to processors")
def test_processors_that_this_process_may_not_use_do_not_count():
    script = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    script += "from rgals.runtime.threads import n_threads; print(n_threads(None))"
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "1\n", done.stderr
