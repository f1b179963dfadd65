"""Where nothing can be written, and no user is known: import, fit, recommend, save to a given folder."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from instruments.hardened import installed, run
from numba.core import caching

from rgals import RGALS
from rgals.datasets import make_implicit


def use():
    """What `USE` does: whatever it needs is in the cache afterwards."""
    X = make_implicit(60, 40, mean_interactions=6, random_state=0).matrix
    RGALS(K=8, n_iter=2, random_state=0).fit(X).recommend([0, 1], n=3)


USE = """
import json, sys, warnings
from rgals.runtime.progress import compilations
compiled = []
with compilations(lambda name, seconds: compiled.append(name)):
    import numpy as np
    from rgals import RGALS
    from rgals.datasets import make_implicit
    X = make_implicit(60, 40, mean_interactions=6, random_state=0).matrix
    model = RGALS(K=8, n_iter=2, random_state=0).fit(X)
    ids, _ = model.recommend([0, 1], n=3)
    model.save(sys.argv[1])
print(json.dumps({"compiled": compiled, "ids": ids.tolist()}))
"""
#: One entry, which compiles in a moment.
ENTRY = """
import numpy as np
import rgals.estimator
from rgals.kernels.ranking import find_hits
hits = np.zeros((1, 2), bool)
find_hits(np.array([[3, 4]], np.int32), np.array([0, 2]), np.array([1, 3], np.int32), 1, hits)
print(hits.tolist())
"""


def used(folder, shell: str = "", **changes) -> tuple[list[str], str]:
    """What was compiled, and what was warned of; the model is there and right."""
    done = run(folder, USE, str(folder / "out" / "model.npz"), shell=shell, **changes)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    model = RGALS.load(folder / "out" / "model.npz")
    np.testing.assert_array_equal(model.recommend([0, 1], n=3)[0], found["ids"])
    return found["compiled"], done.stderr


@pytest.fixture(scope="module")
def warm():
    use()
    with installed(cached=True) as folder:
        yield folder


def test_a_cache_beside_the_package_is_read_by_users_who_could_write_elsewhere(warm):
    """As in an image whose users have a home: numba's own choice is an empty folder there."""
    assert used(warm, HOME=warm / "home") == ([], "")
    assert not [path for path in (warm / "home").rglob("*") if path.is_file()]


def test_code_is_compiled_no_folder_made_where_the_process_stands_and_one_warning_says_what_to_set():
    with installed(cached=False) as folder:
        done = run(folder, ENTRY, cwd=str(folder / "cwd"))
        assert list((folder / "cwd").iterdir()) == []
    assert (done.returncode, done.stdout) == (0, "[[True, False]]\n"), done.stderr
    assert done.stderr.count("RuntimeWarning: ") == 1 and "NUMBA_CACHE_DIR" in done.stderr, done.stderr


@pytest.mark.few(0)
def test_a_cache_that_lacks_something_is_told_of_once(warm):
    done = run(warm, ENTRY.replace("[[3, 4]], np.int32", "[[3, 4]], np.int16"))
    assert (done.returncode, done.stdout) == (0, "[[True, False]]\n"), done.stderr
    assert done.stderr.count("RuntimeWarning: ") == 1 and "NUMBA_CACHE_DIR" in done.stderr, done.stderr


@pytest.mark.few(0)
def test_a_cache_that_was_named_is_read_where_it_cannot_be_written(warm):
    """As in the image of examples/Dockerfile."""
    kernels = warm / "site" / "rgals" / "kernels"
    named = caching.FunctionCache._impl_class._locator_classes[0].get_suitable_cache_subpath(
        str(kernels / "rows.py")
    )
    shutil.copytree(kernels / "__pycache__", warm / "named" / named)
    moved = (kernels / "__pycache__").rename(warm / "moved")
    try:
        assert used(warm, NUMBA_CACHE_DIR=warm / "named", HOME=warm / "home") == ([], "")
    finally:
        moved.rename(kernels / "__pycache__")
