"""Compiling kernels ahead of time, in parallel processes: numba compiles one function at a time in each."""

# The processes are plain commands; `multiprocessing` would need semaphores and an importable main module.

import hashlib
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from pkgutil import resolve_name
from subprocess import PIPE, STDOUT, Popen
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numba.core.caching import NullCache
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher

from rgals.datasets.ids import Positions
from rgals.datasets.splits import split_interactions
from rgals.datasets.synthetic import make_implicit
from rgals.estimator import RGALS
from rgals.files.atomic import locked
from rgals.kernels import library, rows
from rgals.losses import get_loss
from rgals.metrics import evaluate
from rgals.runtime.bars import Bar
from rgals.runtime.errors import RgalsError
from rgals.runtime.progress import compilations
from rgals.runtime.threads import n_threads, workers
from rgals.scoring import topk

#: A function as ``module:name``, and its arguments.
Job = Sequence[str]
#: Two processes begin at either end, so that each compiles about a half.
JOBS: tuple[Job, ...] = (
    ("rgals.warm:_fit", "rg2"),
    ("rgals.warm:_fit", "ials"),
    ("rgals.warm:_fit", "rgx"),
    ("rgals.warm:_rank",),
)
_REPORT = "compiled: "  # prefix of the output lines of a process that `_process` parses


class Warmup(NamedTuple):
    """What `warmup` did: the cache's folder, and the seconds of every function that was not in it yet."""

    folder: str
    compiled: dict[str, float]


def warmup(*, n_jobs: int | None = None, verbose: int = 0, jobs: Sequence[Job] = JOBS) -> Warmup:
    """Compile ahead what default fits, fold-in, recommendations and metrics with a cutoff need.

    Afterwards the first fit of a new process compiles nothing. It may run while a container image is built:
    the cache may be read-only later. It is valid for processors of the kind that filled it.

    Parameters
    ----------
    n_jobs : int or None, default=None
        Processes, at most one for each of ``jobs``; None or -1 for as many as there are threads.
    verbose : int, default=0
        1 shows a progress bar.
    jobs : sequence of sequences of str, optional
        Functions by ``"module:name"``, each with its arguments, in place of what defaults need. Every process
        runs them all, and waits for what another one compiles.

    Returns
    -------
    Warmup
        ``folder``, where the cache lies, and ``compiled``, the seconds by function.

    Raises
    ------
    RgalsError
        No folder can be written; the message says what to set. Or a process failed; the message is its own.
    """
    folder = rows._run._cache.cache_path
    if folder is None or not os.access(folder, os.W_OK):
        advice = "set NUMBA_CACHE_DIR to a folder that can, before Python starts, here and where rgals runs"
        where = "no folder can" if folder is None else f"{folder} cannot"
        raise RgalsError(f"compiled kernels cannot be kept: {where} be written; {advice}")
    compiled: dict[str, float] = {}
    n_processes = min(n_threads(n_jobs), len(jobs))
    with (
        Bar(total=n_processes * len(jobs), desc="compiling", unit="job", disable=not verbose) as bar,
        tempfile.TemporaryDirectory() as locks,
        ThreadPoolExecutor(n_processes) as pool,
    ):

        def follow(number: int) -> None:
            turn, half = jobs[:: -1 if number % 2 else 1], number // 2
            for done in _process([*turn[half:], *turn[:half]], locks):
                for name, seconds in done.items():
                    compiled[name] = compiled.get(name, 0.0) + seconds
                bar.set_postfix(functions=len(compiled), refresh=False)
                bar.update(not done)

        list(pool.map(follow, range(n_processes)))
    return Warmup(folder, compiled)


def _process(jobs: Sequence[Job], locks: str) -> Iterator[dict[str, float]]:
    """Run jobs in a process; yields seconds by function as it compiles, and an empty dict after each job."""
    # Two threads even on one processor: some kernels run, and are compiled, only with several.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "NUMBA_NUM_THREADS": "2"}
    command = [sys.executable, "-c", "from rgals import warm; warm._work()", locks, json.dumps(jobs)]
    with Popen(command, env=environment, stdout=PIPE, stderr=STDOUT, text=True) as process:
        said = ""
        for line in process.stdout or ():
            if line.startswith(_REPORT):
                yield json.loads(line.removeprefix(_REPORT))
            else:
                said = line.strip() or said
    if process.returncode:
        raise RgalsError(f"a process that compiled ahead ended with {process.returncode}: {said}")


def _work() -> None:
    locks, jobs = sys.argv[1:]
    compile_once(Path(locks))
    warnings.simplefilter("ignore")

    def report(done: dict[str, float]) -> None:
        print(_REPORT + json.dumps(done), flush=True)

    with workers(), compilations(lambda name, seconds: report({name: seconds})):
        for name, *arguments in json.loads(jobs):
            resolve_name(name)(*arguments)
            report({})


def compile_once(folder: Path, patience: float | None = None) -> None:
    """From now on, compile a function only while no other process does, by a lock file in this folder."""
    # The other one waits, for at most ``patience`` seconds, and then finds the function in the cache.
    folder.mkdir(exist_ok=True)
    compile_here, load_here = Dispatcher.compile, library.load

    def alone(name: str, run: Callable[..., Any], *args: Any) -> Any:
        path = folder / hashlib.sha256(name.encode()).hexdigest()[:16]
        # Always numba's lock before ours, or two threads could wait for each other.
        with global_compiler_lock, locked(path, patience):
            return run(*args)

    def compile(self: Any, signature: Any) -> Any:
        if isinstance(self._cache, NullCache):
            return compile_here(self, signature)
        name = f"{self.py_func.__module__}.{self.py_func.__qualname__}{signature}"
        return alone(name, compile_here, self, signature)

    Dispatcher.compile = compile  # type: ignore[method-assign, assignment]
    library.load = lambda real: alone(str(real), load_here, real)


def small() -> tuple[sp.csr_array, sp.csr_array]:
    """Two halves of a matrix, large enough that every kernel is used."""
    data = make_implicit(80, 60, mean_interactions=8, random_state=0)
    return split_interactions(data.matrix, (0.5, 0.5), random_state=0)


def _fit(loss: str) -> None:
    """Compile for fits with and without values, and for the methods of fitted and loaded models."""
    train, test = small()
    rated = sp.csr_array(train.toarray() * np.arange(1, 61))  # values, and 32-bit indices instead of 64-bit
    # The spectral start is the default of larger matrices.
    RGALS(loss=loss, n_iter=1, init="spectral", random_state=0).fit(rated)
    # An item_exponent, which "auto" sets on some matrices.
    RGALS(loss=get_loss(loss).set_params(item_exponent=-0.1), n_iter=1, random_state=0).fit(train)
    model = RGALS(loss=loss, n_iter=1, init="spectral", random_state=0).fit(train)
    with tempfile.TemporaryDirectory() as folder:
        model.save(os.path.join(folder, "model.npz"))
        loaded = RGALS.load(os.path.join(folder, "model.npz"))
    for one in (model, loaded):
        one.transform(test)
        one.recommend(Positions([0, 1]), n=3)
        one.recommend_new(test[:2], n=3)
        one.similar_items(Positions([0]), n=3)
        one.explain(Positions(0), Positions(1))
        evaluate(one, train, test)


def _rank() -> None:
    """Compile for rankings and metrics, which need no fit: another process compiles fits meanwhile."""
    train, test = small()
    users, items = (np.ones((n, 8), np.float32) for n in train.shape)
    for candidates in (None, [1, 2], test):
        topk(users, items, 3, exclude=train, candidates=candidates)
    evaluate((users, items), train, test)
