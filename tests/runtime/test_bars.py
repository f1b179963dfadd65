"""Progress bars: no other process and no thread of another process can stop a fit."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from numba.core import event
from tqdm import std, tqdm

from rgals import RGALS
from rgals.datasets import make_implicit
from rgals.runtime import progress
from rgals.runtime.bars import Bar

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
ME = __name__


def in_a_child(run) -> int:
    """How a forked child ended in which ``run`` was called."""
    child = os.fork()
    if child == 0:
        try:
            run()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fits() -> list[int]:
    X = make_implicit(200, 100, random_state=0).matrix
    return [RGALS(K=4, n_iter=2, verbose=verbose).fit(X).n_iter_ for verbose in (0, 1)]


def die_within_a_bar():
    with Bar.get_lock(), tqdm.get_lock():
        os.kill(os.getpid(), signal.SIGKILL)


def fits_after_a_child_died_within_a_bar() -> list[int]:
    # A lock that this process does not share with those before it.
    std.TqdmDefaultWriteLock.mp_lock = multiprocessing.RLock()
    tqdm.set_lock(std.TqdmDefaultWriteLock())
    assert in_a_child(die_within_a_bar) == -signal.SIGKILL
    return fits()


def fits_in_a_child_made_while_a_thread_draws_a_bar() -> int:
    held, done = threading.Event(), threading.Event()

    def draw():
        with Bar.get_lock():
            held.set()
            done.wait()

    thread = threading.Thread(target=draw)
    thread.start()
    held.wait()
    try:
        return in_a_child(fits)
    finally:
        done.set()
        thread.join()


def test_a_child_that_is_killed_within_a_bar_stops_no_later_fit(zygote):
    outcome = zygote.run(f"{ME}:fits_after_a_child_died_within_a_bar", timeout=60)
    assert outcome.returned and outcome.value == [2, 2], outcome


def test_a_child_fits_though_a_thread_of_its_parent_was_drawing_a_bar(zygote):
    outcome = zygote.run(f"{ME}:fits_in_a_child_made_while_a_thread_draws_a_bar", timeout=60)
    assert outcome.returned and outcome.value == 0, outcome


def test_a_silent_fit_makes_no_bar(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a bar was made")

    monkeypatch.setattr(tqdm, "__new__", refuse)
    X = make_implicit(200, 100, random_state=0).matrix
    assert RGALS(K=4, n_iter=2).fit(X).n_iter_ == 2


def test_a_bar_starts_no_thread():
    before = threading.active_count()
    with Bar(total=3, file=io.StringIO()) as bar:
        bar.update()
    assert threading.active_count() == before


def test_the_bar_of_a_resumed_fit_begins_where_the_first_one_ended(tmp_path, capsys):
    X, model = make_implicit(200, 100, random_state=0).matrix, RGALS(K=4, n_iter=5, random_state=0)

    def interrupt(now):
        if now.iteration == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.fit(X, checkpoint=tmp_path, callbacks=interrupt)
    assert capsys.readouterr().err == ""
    assert model.set_params(verbose=1).fit(X, checkpoint=tmp_path).n_iter_ == 5
    assert "5/5" in capsys.readouterr().err


def test_seconds_of_what_is_compiled_on_the_way_are_not_those_of_the_function_too(monkeypatch):
    clock, said = iter([0.0, 1.0, 4.0, 5.0, 6.0, 9.0, 20.0, 30.0]), []
    monkeypatch.setattr(progress, "time", SimpleNamespace(perf_counter=lambda: next(clock)))

    @contextmanager
    def compiled(name, apart=False):
        function = SimpleNamespace(__module__="here", __qualname__=name)
        about = {"dispatcher": SimpleNamespace(py_func=function), "apart": apart}
        event.start_event("numba:compile", about)
        yield
        event.end_event("numba:compile", about)

    with progress.compilations(lambda *found: said.append(found)):
        with compiled("entry"):
            with compiled("module", apart=True):
                pass
            with compiled("part"):
                pass
        with compiled("another"):
            pass
    assert said == [("here.module", 3.0), ("here.entry", 6.0), ("here.another", 10.0)]


def test_without_a_standard_error_there_is_no_bar(monkeypatch):
    """As under pythonw: every fit with ``verbose=1`` ended in an `AttributeError`."""
    monkeypatch.setattr(sys, "stderr", None)
    with Bar(total=3) as bar:
        bar.update()
    with Bar(total=3, file=(text := io.StringIO())) as bar:
        bar.update()
    assert "1/3" in text.getvalue()


@pytest.mark.skipif(not hasattr(std, "envwrap"), reason="tqdm before 4.66 reads no variables")
def test_the_variable_of_tqdm_disables_every_bar():
    """Not those of `tune` and `compare`, which said that theirs is not disabled."""
    code = "from rgals.runtime.bars import Bar; print([Bar(disable=d).disable for d in (False, True)])"
    for value, expected in (("1", "[True, True]"), ("", "[False, True]")):
        env = os.environ | {"TQDM_DISABLE": value}
        out = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        )
        assert out.stdout.strip() == expected
