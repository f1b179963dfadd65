"""An edit of any kernel file that changes results is seen by the next process, wherever the cache lies."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from kernels.test_compile import PACKAGE, edit

COUNT = """
import numpy as np
from rgals.kernels import ranking
N = 2
above, tied = np.zeros(N, np.int32), np.zeros(N, np.int32)
truth_ptr, truth = np.array([0, N]), np.arange(1, N + 1, dtype=np.int32)
seen_ptr, seen = np.array([0, 0]), np.array([], np.int32)
counts = truth_ptr, truth, seen_ptr, seen
"""
FIT = """
import numpy as np, scipy.sparse as sp
from rgals.estimator import RGALS
from rgals.losses import {loss}
rng = np.random.default_rng(1)
X = sp.csr_array((rng.random((90, 70)) < rng.choice([.05, .9], 90)[:, None]).astype(float))
model = RGALS(K=8, loss={loss}({rule}), solver="{solver}", n_iter=1, reg=.1, random_state=0)
print([model.fit(X).history_[-1]["objective"], model.user_factors_.tolist()])
"""
#: What prints results that a file decides about, and compiles little else.
PROBES = {
    "hits": """
import numpy as np
from rgals.kernels.ranking import find_hits
hits = np.zeros((1, 2), bool)
find_hits(np.array([[3, 4]], np.int32), np.array([0, 2]), np.array([1, 3], np.int32), 1, hits)
print(hits.tolist())
""",
    "sums": """
import numpy as np
from rgals.kernels.gram import column_sums
F = np.arange(96, dtype=np.float32).reshape(32, 3)
print(column_sums(F, np.arange(32.0), 1).tolist())
""",
    "above": COUNT
    + """
queries, items = np.ones((1, 4), np.float32), np.arange(20, dtype=np.float32).reshape(5, 4)
ranking.count_above(queries, items, len(items), *counts, 1, 1, above, tied)
print([above.tolist(), tied.tolist()])
""",
    "given": COUNT
    + """
scores = np.array([[4, 3, np.nan, -1, 2]], np.float32)
ranking.count_above_dense(scores, *counts, 1, above, tied)
print([above.tolist(), tied.tolist()])
""",
    "gram": """
import numpy as np
from rgals.kernels.gram import gram
print(gram(np.arange(60, dtype=np.float32).reshape(20, 3), np.ones(20), 1).tolist())
""",
    "topk": """
import numpy as np
from rgals.scoring import topk
ids, scores = topk(np.ones((1, 2), np.float32), np.arange(20, dtype=np.float32).reshape(10, 2), 3)
print([ids.tolist(), scores.tolist()])
""",
    "merged": """
import numpy as np
from rgals.matrix.csr import CSR
from rgals.solvers.hard_negatives import merge
one, two = (CSR(np.array([0, 1]), np.array([i], np.int32), np.zeros(0, np.float32), 3) for i in (2, 0))
print(merge(one, two, np.float32, 1).values.tolist())
""",
    "pairs": """
import numpy as np
from rgals.kernels.sgd import pair_scores
rows, out = np.ones((2, 3), np.float32), np.zeros((2, 2), np.float32)
pair_scores(0, 2, rows, rows, np.array([[0, 1], [1, 0]], np.int32), out)
print(out.tolist())
""",
    "softmax": """
import numpy as np
from rgals.kernels.softmax import softmax_batch
from rgals.matrix.csr import CSR
users, items = np.ones((1, 2), np.float32), np.arange(6, dtype=np.float32).reshape(3, 2)
block = CSR(np.array([0, 1]), np.array([1], np.int32), np.zeros(0, np.float32), 3)
values, grads = np.zeros(1), (np.zeros_like(users), np.zeros_like(items))
softmax_batch(users, items, block, 2, np.empty(3, np.float32), 1, values, *grads)
print([values.tolist(), grads[0].tolist(), grads[1].tolist()])
""",
    "smooth": """
import numpy as np
from rgals.kernels.smooth import step
value, slope = np.empty((2, 3), np.float32)
step(np.arange(3, dtype=np.float32), value, slope, 3, True)
print(value.tolist())
""",
    "texts": """
import numpy as np
from rgals.kernels.texts import AHEAD, Names, number
names = Names(np.zeros(64, np.uint64), np.zeros(21, np.int64), np.zeros(99, np.uint8), np.zeros(20, np.int64))
text, codes = np.frombuffer(b"abacab", np.uint8), np.empty(6, np.int32)
number(0, 0, np.arange(7), text, names, np.zeros(6 + AHEAD, np.uint64), codes)
print(codes.tolist())
""",
    "fit": FIT.format(loss="IALS", rule="alpha0=.3", solver="auto"),
    "plain fit": FIT.format(loss="RG2", rule="alpha=0", solver="auto"),
    "steps": FIT.format(loss="IALS", rule="alpha0=.3", solver="pcg"),
}


class Edit(NamedTuple):
    """Text of a kernel file, what it becomes, and the probe whose results change with it."""

    old: str
    new: str
    probe: str


EDITS = {
    "blas": Edit("_gemm((_T, _N, n, m, k, 1.0,", "_gemm((_T, _N, n, m, k, -1.0,", "above"),
    "compile": Edit('**{"_nrt": False,', '**{"fastmath": True, "_nrt": False,', "given"),
    "diagonal": Edit(
        "right / (ridge + scale * d[at])", "right / (ridge + ridge + scale * d[at])", "plain fit"
    ),
    "gather": Edit("slot += row[at] * factor", "slot += -row[at] * factor", "plain fit"),
    "gram": Edit("roots[i] = np.sqrt(weight", "roots[i] = np.sqrt(4 * weight", "gram"),
    "hard": Edit("= -1.0 if second", "= -2.0 if second", "merged"),
    "library": Edit("builder.gep(taken[-1], [value])", "builder.gep(taken[-1], [value.type(0)])", "sums"),
    "loops": Edit("    return start\n", "    return stop + 1000\n", "hits"),
    "plain_rows": Edit("e, [(left, y), (right, z)]", "e, [(left, z), (right, z)]", "fit"),
    "queue": Edit(  # nobody gets the first piece
        'builder.atomic_rmw("add", pointer, amount, "monotonic")',
        'builder.add(amount, builder.atomic_rmw("add", pointer, amount, "monotonic"))',
        "above",
    ),
    "ranking": Edit("= contains(indices, indptr", "= not contains(indices, indptr", "hits"),
    "row": Edit("rows.ridge[number], rows.linear", "rows.ridge[number] * 4.0, rows.linear", "fit"),
    "rows": Edit("row.number * k, scratch.solution", "row.number * k, scratch.rhs", "fit"),
    "sgd": Edit("item * width, width) if", "item * width, width) + 1 if", "pairs"),
    "smooth": Edit("y = y * x + c", "y = y * x - c", "smooth"),
    "softmax": Edit("total[t, b] = _exp", "total[t, b] = 2 * _exp", "softmax"),
    "texts": Edit("code = known\n", "code = known + 7\n", "texts"),
    "tiles": Edit("slot += step.spread(i) * row", "slot += -step.spread(i) * row", "gram"),
    "topk": Edit("scores[heap + last] = score", "scores[heap + last] = score + 1", "topk"),
    "triangles": Edit("[float(k == i)", "[2.0 * (k == i)", "fit"),
    "vectors": Edit("builder.fadd(self.ir, other.ir)", "builder.fadd(self.ir, self.ir)", "sums"),
    "workspace": Edit("data, [length]", "data, [builder.lshr(length, length.type(2))]", "fit"),
    "ways/__init__": Edit("kind & mask == own", "kind & mask != own", "fit"),
    "ways/cg": Edit("x[at] = x[at] + alpha * p[at]", "x[at] = x[at] - alpha * p[at]", "steps"),
    "ways/cholesky": Edit(
        "rows_gram_add(c, 0, x", "rows_gram_add(c, 0, x, 0, n, n_blocks)\n    rows_gram_add(c, 0, x", "fit"
    ),
}
PLACES = ["beside the package", "NUMBA_CACHE_DIR", "user folder", "image layer", "shared home"]
OTHER = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma"}


class Installation:
    """A copy of the package whose cache lies in one of the places."""

    def __init__(self, folder: Path, place: str) -> None:
        self.site, self.place = folder / "site", place
        shutil.copytree(PACKAGE, self.site / "rgals", ignore=shutil.ignore_patterns("__pycache__"))
        kernels = self.site / "rgals" / "kernels"
        (self.site / "rgals" / "__init__.py").write_text("")  # a probe imports what it needs
        self.cache, told = kernels / "__pycache__", None
        if place == "NUMBA_CACHE_DIR":
            self.cache = told = folder / "told"
        elif place in ("user folder", "shared home"):
            self.cache = folder / "home"
            (kernels / "__pycache__").write_text("not a folder")
        self.environment = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
        self.environment |= {"PYTHONPATH": str(self.site), "PYTHONDONTWRITEBYTECODE": "1"}
        self.environment |= {"XDG_CACHE_HOME": str(folder / "home"), "NUMBA_NUM_THREADS": "1"}
        self.environment |= {"NUMBA_CACHE_DIR": str(told)} if told else {}

    def run(self, probe: str) -> list:
        """The results of a new process; in a shared home those of two, the second for another processor."""
        found = []
        for told in ({}, OTHER) if self.place == "shared home" else ({},):
            done = subprocess.run(
                [sys.executable, "-c", PROBES[probe]],
                env=self.environment | told,
                capture_output=True,
                text=True,
                cwd=self.site,
            )
            assert done.returncode == 0, done.stderr
            found.append(ast.literal_eval(done.stdout))
        return found

    def stamp(self) -> None:
        """Give every file of an image layer one old time stamp, sources and cache alike."""
        for path in self.site.rglob("*") if self.place == "image layer" else ():
            os.utime(path, (1, 1))


def check(installed: Installation, name: str, stamps_alone: bool = True) -> None:
    """Edit a file under its old time stamps, and take the edit back under new ones; then all is as it was.

    With ``stamps_alone``, that they change nothing by themselves, too.
    """
    old, new, probe = EDITS[name]
    path = installed.site / "rgals" / "kernels" / f"{name}.py"
    before = installed.run(probe)
    assert list(installed.cache.rglob("*.nbc")), "nothing was cached"
    installed.stamp()
    stamps = path.stat()
    edit(path, old, new)
    edited = installed.run(probe)
    for one, other in zip(before, edited, strict=True):
        assert repr(one) != repr(other), f"stale code: {name}, time stamps as before"
    os.utime(path)
    assert not stamps_alone or repr(installed.run(probe)) == repr(edited)
    edit(path, new, old)
    assert repr(installed.run(probe)) == repr(before), f"stale code: {name}, edit taken back, new time stamps"
    os.utime(path, ns=(stamps.st_atime_ns, stamps.st_mtime_ns))
    assert not stamps_alone or repr(installed.run(probe)) == repr(before)


def test_every_kernel_file_has_an_edit():
    kernels = PACKAGE / "kernels"
    files = {path.relative_to(kernels).with_suffix("").as_posix() for path in kernels.rglob("*.py")}
    assert files - {"__init__"} == EDITS.keys()
    for name, (old, new, probe) in EDITS.items():
        text = (PACKAGE / "kernels" / f"{name}.py").read_text()
        assert text.count(old) == text.replace(old, new).count(new) == 1, name
        assert new != old and probe in PROBES


@pytest.mark.few(0)
@pytest.mark.parametrize(("name", "place"), [("loops", "user folder")])
def test_an_edited_kernel_file_is_seen_by_the_next_process(tmp_path, name, place):
    check(Installation(tmp_path, place), name, stamps_alone=False)


@pytest.mark.few(0)
def test_a_cache_that_does_not_read_the_sources_is_caught(tmp_path):
    installed = Installation(tmp_path, "NUMBA_CACHE_DIR")
    caches = installed.site / "rgals" / "runtime" / "caches.py"
    edit(caches, "for path in sources]", "for path in ()]")
    with pytest.raises(AssertionError, match="stale code: loops"):
        check(installed, "loops")  # inlined: numba itself looks at no more than the entry
