"""What is compiled ahead is what is needed, once, and whoever cannot keep it is told."""

from __future__ import annotations

import json
import os
import sys

import pytest
from instruments.harness import python
from kernels.test_compile import package

from rgals import warm
from rgals.cli import about, main
from rgals.kernels import rows
from rgals.runtime.errors import RgalsError

__all__ = ["package"]

#: Matrices of every kind that users have, and all that a model answers; prints what was compiled for it.
FIRST = """
import json, sys
import numpy as np, scipy.sparse as sp
from rgals.runtime.progress import compilations
compiled = []
with compilations(lambda name, seconds: compiled.append(name)):
    from rgals import RGALS, Positions
    from rgals.datasets import make_implicit
    from rgals.metrics import evaluate
    data = make_implicit(300, 200, mean_interactions=12, random_state=0)
    X = data.matrix
    rated = X.copy()
    rated.data = rated.data * (1 + np.arange(X.nnz) % 5)
    wide = sp.csr_array(X)
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    unsorted = X[:, ::-1].tocsc().tocsr()[:, ::-1]
    parts = sp.csr_array(sp.block_diag([X, X]))  # whose users hold together
    kinds = [parts, X, rated, X.astype(bool), X.astype(np.int32), wide, X.astype(np.float64), X.toarray(),
             X.tocoo(), sp.csr_matrix(X), unsorted, data]
    for loss in ("rg2", "ials", "rgx"):
        for k, kind in enumerate(kinds):
            model = RGALS(loss=loss, K=(64, 8, 100)[k % 3], n_iter=2, random_state=0).fit(kind)
    model.save(sys.argv[1])
    loaded = RGALS.load(sys.argv[1])
    for model in (model, loaded):
        model.transform(X)
        model.recommend(Positions(range(30)))
        model.recommend(Positions([0]), exclude=None)
        model.recommend_new(rated[:3])
        one = Positions([0])
        model.similar_items(one), model.similar_users(one), model.explain(one, one), model.predict(one, one)
        evaluate(model, X, rated[::-1].tocsr())
print(json.dumps(sorted(set(compiled))))
"""


def first_of_a_process(folder, **changes) -> list[str]:
    """The functions that a new process compiles for its fits and their answers."""
    done = python("-W", "ignore", "-c", FIRST, str(folder / "model.npz"), **changes)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.few(0)
def test_after_it_a_new_process_compiles_nothing(tmp_path):
    # From a script without the guard that multiprocessing asks for; a second time in tests/stress.
    script = tmp_path / "script.py"
    script.write_text("import rgals\nfound = rgals.warmup(n_jobs=1)\nprint(bool(found.folder))\n")
    done = python(str(script))
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert first_of_a_process(tmp_path) == []


def toy(package, monkeypatch, text: str) -> None:
    """A module ``tried.jobs`` beside the toy kernels."""
    (package.parent / "jobs.py").write_text(text)
    monkeypatch.syspath_prepend(package.parent.parent)


CALL = """
import time
def call(value):
    from tried.kernels.entries import f
    assert f(float(value)) == 2 * (float(value) + 1)
def fail():
    raise ValueError("this one fails")
def talk():
    print("something else")
"""


@pytest.mark.few(0)
def test_no_two_processes_compile_the_same_and_the_bar_ends_full(package, monkeypatch, capsys):
    toy(package, monkeypatch, CALL)
    reports, process = [], warm._process

    def recorded(jobs, locks):
        for done in process(jobs, locks):
            reports.extend(done)
            yield done

    monkeypatch.setattr(warm, "_process", recorded)
    jobs = [("tried.jobs:call", "1"), ("tried.jobs:talk",), ("tried.jobs:call", "2")]
    found = warm.warmup(jobs=jobs, n_jobs=2, verbose=1)
    assert "6/6" in capsys.readouterr().err
    assert reports == ["tried.kernels.entries.f"] == list(found.compiled)
    assert 0 < found.compiled[reports[0]] < 100


@pytest.mark.few(0)
def test_a_process_that_fails_is_quoted(package, monkeypatch):
    toy(package, monkeypatch, CALL)
    with pytest.raises(RgalsError, match="ended with 1: ValueError: this one fails"):
        warm.warmup(jobs=[("tried.jobs:talk",), ("tried.jobs:fail",)], n_jobs=1)


@pytest.mark.parametrize(("n_jobs", "n_processes"), [(1, 1), (3, 3), (40, 4)])
def test_processes_begin_with_different_jobs_and_their_seconds_add_up(
    n_jobs, n_processes, monkeypatch, capsys
):
    started = []

    def process(jobs, locks):
        started.append(jobs)
        for _ in jobs:
            yield {"f": 0.5, "g": 0.25}
            yield {}

    monkeypatch.setattr(warm, "_process", process)
    monkeypatch.setattr(warm, "n_threads", lambda n_jobs: n_jobs)
    jobs = [("a",), ("b",), ("c",), ("d",)]
    found = warm.warmup(n_jobs=n_jobs, verbose=1, jobs=jobs)
    assert len({jobs[0] for jobs in started}) == len(started) == n_processes
    assert all(sorted(each) == jobs for each in started)
    assert found.compiled == {"f": 2.0 * n_processes, "g": 1.0 * n_processes}
    assert f"{4 * n_processes}/{4 * n_processes}" in capsys.readouterr().err


@pytest.mark.skipif(os.name == "nt", reason="the process is a script of a shell")
@pytest.mark.parametrize("code", [0, 3])
def test_lines_of_a_process_are_reports_or_what_it_said_last(code, tmp_path, monkeypatch):
    program = tmp_path / "python"
    report = f"{warm._REPORT}" + '{\\"f\\": 1.5}'
    lines = ["#!/bin/sh", "echo something", f'echo "{report}"', "echo threads: $NUMBA_NUM_THREADS", "echo"]
    program.write_text("\n".join([*lines, f"exit {code}"]))
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    reports = warm._process([("a",)], str(tmp_path))
    assert next(reports) == {"f": 1.5}
    if code:
        with pytest.raises(RgalsError, match="ended with 3: threads: 2$"):
            next(reports)
    assert list(reports) == []


def test_the_command_says_what_and_whereto(monkeypatch, capsys):
    def done(*, n_jobs=None, verbose=0):
        return warm.Warmup("/a/folder", {"one": 1.25})

    def refused(*, n_jobs=None, verbose=0):
        raise RgalsError(f"n_jobs={n_jobs}, verbose={verbose}")

    refused.__name__ = "warmup"  # by which the command finds its options
    monkeypatch.setattr(about, "warmup", refused)
    assert main(["warmup", "--jobs", "3"]) == 1
    assert "n_jobs=3, verbose=0" in capsys.readouterr().err
    monkeypatch.setattr(about, "warmup", done)
    assert main(["warmup"]) == 0
    out = capsys.readouterr().out
    assert out.endswith("functions compiled: 1; the cache is /a/folder\n")
    assert "one" in out and "1.2500" in out


def test_without_a_folder_to_write_to_it_says_what_to_set(monkeypatch):
    monkeypatch.setattr(rows._run._cache, "_cache_path", None)
    with pytest.raises(RgalsError, match="no folder can be written; set NUMBA_CACHE_DIR"):
        warm.warmup()


def test_a_folder_that_cannot_be_written_is_named_as_such(monkeypatch):
    monkeypatch.setattr(rows._run._cache, "_cache_path", "/of another user")
    with pytest.raises(RgalsError, match="/of another user cannot be written; set NUMBA_CACHE_DIR"):
        warm.warmup()
