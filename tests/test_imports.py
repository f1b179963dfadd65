"""Imports point one way, and `import rgals` stays cheap: nothing compiled, nothing optional loaded."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "rgals"

# What every part may use: typed errors, the CSR type, validation, threads, the version.
SHARED = {
    "_aligned",
    "_errors",
    "_csr",
    "_sparse",
    "_validation",
    "_threads",
    "_files",
    "_journal",
    "_memory",
    "_progress",
    "_version",
}

# part -> other parts of rgals that it may import. A part is the first name below `rgals`; a longer prefix
# stands for itself. The most specific prefix rules.
ALLOWED: dict[str, set[str]] = {
    "_aligned": set(),
    "_errors": set(),
    "_version": set(),
    "_files": {"_errors"},
    "_progress": set(),
    "_journal": {"_errors"},
    "_memory": {"_errors", "_aligned"},
    "_csr": {"kernels"},
    "_sparse": {"_errors", "_csr", "_validation", "kernels"},
    "_threads": {"_errors"},
    "_validation": {"_errors", "_csr", "_memory", "kernels"},
    "kernels": {"_aligned", "_threads"},
    "losses": SHARED,
    "solvers": SHARED | {"kernels", "losses", "persistence"},
    "solvers.backends": SHARED | {"kernels", "losses", "cuda", "solvers.plan"},
    "solvers.plan": SHARED | {"kernels", "losses"},
    "cuda": SHARED,
    "persistence": SHARED,
    "scoring": SHARED | {"kernels", "datasets", "cuda"},
    "metrics": SHARED | {"kernels", "scoring"},
    "datasets": SHARED | {"kernels"},
    "model_selection": SHARED | {"kernels", "datasets", "metrics", "scoring"},
    "model_selection.tuning": SHARED | {"datasets", "estimator", "losses", "metrics", "model_selection"},
    "_snapshot": SHARED | {"datasets"},
    "_filters": SHARED,
    "_ranker": SHARED | {"_filters", "_snapshot", "scoring"},
    "sgd": SHARED
    | {
        "_ranker",
        "_snapshot",
        "_snapshot_file",
        "kernels",
        "metrics",
        "scoring",
        "losses",
        "persistence",
        "datasets",
    },
    # The estimator and its own rooms.
    "_callbacks": SHARED | {"metrics", "solvers"},
    "_snapshot_file": SHARED | {"_snapshot", "datasets", "kernels", "persistence"},
    "_model_file": SHARED | {"_fit", "_snapshot_file", "losses", "persistence"},
    "checkpoint": SHARED | {"persistence", "solvers"},
    "_precision": SHARED | {"kernels", "losses"},
    "_fit": SHARED
    | {"_precision"}
    | {"cuda"}
    | {"checkpoint", "_callbacks", "_snapshot", "datasets", "losses", "solvers"},
    "_explain": SHARED | {"_fit", "losses"},
    "_interop": SHARED | {"_fit", "_ranker", "_snapshot", "losses"},
    "export": SHARED,
    "_partial": SHARED | {"_explain", "_fit", "_ranker", "datasets", "losses", "solvers"},
    "estimator": SHARED
    | {"_callbacks", "_fit", "_interop", "_model_file", "_partial", "_ranker", "_snapshot", "checkpoint"}
    | {"solvers", "losses", "datasets", "metrics"},
    "plots": SHARED,
    "compare": SHARED
    | {"estimator", "sgd", "losses", "metrics", "model_selection", "datasets", "plots", "persistence"},
    "cli": SHARED
    | {
        "checkpoint",
        "estimator",
        "losses",
        "metrics",
        "model_selection",
        "scoring",
        "datasets",
        "persistence",
    }
    | {"sgd", "compare", "plots"},
    "": SHARED | {"checkpoint", "estimator", "losses"},  # rgals/__init__.py
}

# What may be imported from outside, where it is less than everything.
OUTSIDE: dict[str, set[str]] = {
    "kernels": {"numpy", "numba", "llvmlite"},
    "losses": {"numpy", "sklearn"},
    "persistence": {"numpy"},
    "cli": {"numpy", "scipy", "tqdm"},
}
OPTIONAL = {
    "cupy",
    "dask",
    "distributed",
    "fastapi",
    "faiss",
    "implicit",
    "matplotlib",
    "optuna",
    "pandas",
    "polars",
    "pyarrow",
    "torch",
    "jax",
}
NEVER = {"torch", "jax", "tensorflow", "pickle", "joblib", "dill", "cloudpickle"}


def modules() -> dict[str, Path]:
    """Every module by its name below `rgals` ("" is the package itself)."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(source: str, package: str) -> list[tuple[int, str, bool]]:
    """(line, absolute module, whether at module level) of every import, wherever it stands."""
    tree = ast.parse(source)
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    top_level = set()
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        top_level.add(id(node))
        stack.extend(ast.iter_child_nodes(node))
    out = []
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            # `from rgals import scoring` names a module, `from rgals.scoring import topk` a function in one.
            deeper = base == "rgals" or base.startswith("rgals.")
            names = [f"{base}.{alias.name}" for alias in node.names] if deeper else [base]
        else:
            continue
        out += [(node.lineno, name, id(node) in top_level) for name in names]
    return out


def rule(table: dict[str, set[str]], module: str) -> tuple[str, set[str]] | None:
    """The entry of the longest prefix of ``module``."""
    parts = module.split(".") if module else []
    for length in range(len(parts), 0, -1):
        prefix = ".".join(parts[:length])
        if prefix in table:
            return prefix, table[prefix]
    return ("", table[""]) if not parts and "" in table else None


def faults(module: str, source: str, package: str, known: set[str]) -> list[str]:
    """Every import of ``module`` that points the wrong way."""
    own = rule(ALLOWED, module)
    if own is None:
        return [f"rgals.{module}: a new part of the package; give it a row in ALLOWED"]
    part, allowed = own
    outside = rule(OUTSIDE, module)
    found = []
    for line, name, top in imports(source, package):
        root = name.split(".")[0]
        where = f"rgals.{module}:{line} imports {name}"
        if root == "rgals":
            target = name.removeprefix("rgals").lstrip(".")
            while target and target not in known:
                target = target.rpartition(".")[0]  # a function or class: its module
            if not target:
                if name != "rgals.__version__" and part:
                    found.append(f"{where}: name the module, not the package")
                continue
            same = target == part or target.startswith(part + ".") if part else False
            if same:
                continue
            if not any(target == ok or target.startswith(ok + ".") for ok in allowed):
                found.append(f"{where}, which {part or 'rgals'} must not use")
        elif root in NEVER:
            found.append(f"{where}: not in this package")
        elif root in OPTIONAL and top:
            found.append(f"{where} at module level, but it is optional")
        elif (
            outside
            and root not in outside[1]
            and root not in sys.stdlib_module_names
            and root not in OPTIONAL
        ):
            found.append(f"{where}; {outside[0]} may use {sorted(outside[1])}")
    return found


def test_every_import_points_the_right_way():
    known = modules()
    assert len(known) > 10
    wrong = []
    for module, path in known.items():
        package = "rgals." + module if path.name == "__init__.py" else "rgals." + module.rpartition(".")[0]
        wrong += faults(module, path.read_text(), package.rstrip("."), set(known))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("kernels.rows", "from rgals.losses import rg2"),
        ("kernels.rows", "from rgals import losses"),
        ("kernels.rows", "from ..losses import rg2"),
        ("kernels.rows", "def f():\n    import scipy.sparse"),
        ("losses.rg2", "import numba"),
        ("losses.rg2", "import rgals.solvers.als"),
        ("solvers.als", "from rgals.estimator import RGALS"),
        ("solvers.backends.cpu", "from rgals.solvers.als import solve"),
        ("sgd.trainer", "from rgals.solvers import als"),
        ("metrics", "from rgals.estimator import RGALS"),
        ("scoring", "from rgals import RGALS"),
        ("estimator", "from rgals.cli import main"),
        ("persistence", "import pickle"),
        ("plots", "import matplotlib.pyplot as plt"),
        ("datasets.readers", "import pandas as pd"),
        ("surprise", "import numpy"),
    ],
)
def test_the_wrong_directions_are_noticed(module, source):
    known = {"", "losses", "losses.rg2", "solvers", "solvers.als", "solvers.backends", "estimator", "cli"}
    known |= {"scoring", "metrics", "kernels", "kernels.rows"}
    assert len(faults(module, source, "rgals." + module.rpartition(".")[0], known)) == 1


def test_allowed_imports_pass():
    source = "import numpy\nfrom numba import njit\nfrom rgals.kernels.blas import gemm\nimport math\n"
    assert faults("kernels.rows", source, "rgals.kernels", {"kernels", "kernels.blas"}) == []


IMPORT = """
import json, os, sys
class Absent:  # as if no optional package were installed: scikit-learn loads some of them where it finds them
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            tried.append(name)
            raise ModuleNotFoundError(name)
tried = []
sys.meta_path.insert(0, Absent())
import sklearn.base, sklearn.utils  # sets variables of OpenMP, which is its own affair
from numba.core.dispatcher import Dispatcher
compiled = []
tried.clear()
original = Dispatcher.compile
def compile(self, signature):
    compiled.append(self.py_func.__qualname__)
    return original(self, signature)
Dispatcher.compile = compile
before = dict(os.environ)
STATEMENT
print(json.dumps({
    "compiled": compiled,
    "modules": sorted({name.partition(".")[0] for name in sys.modules}),
    "tried": tried,
    "environment_kept": before == dict(os.environ),
}))
"""


def observe(statement: str, folder: Path) -> dict:
    """What one statement does in a fresh process with an empty kernel cache."""
    script = IMPORT.replace("STATEMENT", statement).replace("BLOCKED", repr(OPTIONAL))
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_import_compiles_nothing_and_loads_nothing_optional(tmp_path):
    seen = observe("import rgals", tmp_path)
    assert "rgals" in seen["modules"]
    assert seen["compiled"] == []
    assert seen["environment_kept"]
    assert seen["tried"] == []
    assert not list(tmp_path.rglob("*.nbi"))


def test_compiling_at_import_would_be_noticed(tmp_path):
    eager = "import numba, os; numba.njit('f8(f8)')(lambda x: x); os.environ['RGALS_X'] = '1'"
    seen = observe(eager, tmp_path)
    assert seen["compiled"] == ["<lambda>"]
    assert not seen["environment_kept"]
