"""From an empty cache: what is compiled ahead is all that first fits need, by any number of processes."""

from __future__ import annotations

import pytest
from instruments.harness import python
from test_warm import first_of_a_process


@pytest.mark.parametrize("n_jobs", [1, 2, 4])
def test_after_it_a_new_process_compiles_nothing_from_an_empty_cache(tmp_path, n_jobs):
    cache = tmp_path / "cache"
    script = f"from rgals import warmup; found = warmup(n_jobs={n_jobs}); print(*found.compiled)"
    done = python("-c", script, timeout=900, NUMBA_CACHE_DIR=cache, NUMBA_NUM_THREADS=4)
    assert done.returncode == 0, done.stderr
    compiled = done.stdout.split()
    assert len(compiled) > 8 and "rgals.kernels.library.module" in compiled
    assert first_of_a_process(tmp_path, NUMBA_CACHE_DIR=cache) == []
    again = python("-c", script, timeout=900, NUMBA_CACHE_DIR=cache, NUMBA_NUM_THREADS=4)
    assert (again.returncode, again.stdout) == (0, "\n"), again.stderr
