"""Kernels for other processors, kernels whose sources change, kernels that many processes compile at once."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT
from kernels.test_compile import package
from kernels.test_kernels import works_as_another_processor

from rgals.kernels.vectors import HAS_AVX512

__all__ = ["package"]


def test_the_kernels_for_processors_without_avx512(tmp_path):
    """numba compiles for another processor; the tests of kernels and of the iterated rows judge that."""
    if not HAS_AVX512:
        pytest.skip("this processor has no AVX-512: the other tests have judged these kernels")
    told = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma"}
    tests = [str(ROOT / "tests" / name) for name in ("kernels/test_kernels.py", "kernels/ways")]
    code = "from rgals.kernels.vectors import HAS_AVX512 as has; import pytest, sys; assert not has; "
    done = subprocess.run(
        [sys.executable, "-c", code + "sys.exit(pytest.main(sys.argv[1:]))", "-q", *tests],
        env={**os.environ, **told, "NUMBA_CACHE_DIR": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout


def test_processes_that_compile_at_once_share_a_cache(package, tmp_path):
    """Eight at a time, for four types, in an empty folder: all results are right, then and from the cache."""
    script = (
        "import sys, numpy as np; from tried.kernels.entries import f\n"
        "x = np.dtype(sys.argv[1]).type(3)\n"
        "assert f(x) == 8 and len(f.signatures) == 1\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(package.parent.parent)}
    for _ in range(10):
        shutil.rmtree(package / "__pycache__", ignore_errors=True)
        for _ in ("compiled", "loaded"):
            kinds = ["int64", "float64", "float32", "complex128"] * 2
            started = [
                subprocess.Popen(
                    [sys.executable, "-c", script, kind], env=environment, stderr=subprocess.PIPE, text=True
                )
                for kind in kinds
            ]
            for process in started:
                assert process.wait() == 0, process.stderr.read()


_FIT = """
import numpy as np
from rgals import RGALS
from rgals.datasets import make_implicit
X = make_implicit(300, 200, random_state=0).matrix
model = RGALS(K=64, loss="ials", n_iter=2, random_state=0).fit(X)
exact = RGALS(K=64, loss="ials", n_iter=2, random_state=0, solver="dense").fit(X)
np.testing.assert_allclose(model.history_[-1]["objective"], exact.history_[-1]["objective"], rtol=1e-5)
"""


@pytest.mark.parametrize(("name", "features"), [("haswell", "+avx2,+fma"), ("generic", "")])
def test_a_fit_works_for_a_smaller_processor(name, features, tmp_path):
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("the names are those of x86 processors")
    works_as_another_processor(name, features, _FIT, tmp_path)


_LISTS = """
import hashlib, numpy as np
from rgals.scoring import topk
rng = np.random.default_rng(0)
ids, scores = topk(rng.standard_normal((50, 16), np.float32), rng.standard_normal((700, 16), np.float32))
print(hashlib.sha256(ids.tobytes() + scores.tobytes()).hexdigest())
"""


def test_four_processes_fill_one_empty_cache(tally, tmp_path):
    """The package's own kernels, library and entries: no process fails, and all get the same bytes."""
    count = tally("processes that fill one empty cache", 400, 400)
    seen = set()
    for i in range(count.figure // 4):
        cache = tmp_path / str(i)
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
        started = [
            subprocess.Popen(
                [sys.executable, "-c", _LISTS],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(4)
        ]
        for process in started:
            said, complaint = process.communicate()
            seen.add(said)
            with count.case(f"round {i}"):
                assert process.returncode == 0 and len(seen) == 1, complaint[-1000:]
        assert list(cache.rglob("*.nbc"))
        shutil.rmtree(cache)
    count.check()
