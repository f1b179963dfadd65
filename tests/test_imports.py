"""Imports point one way, and `import rgals` stays cheap: nothing compiled, nothing optional loaded."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest
from instruments.harness import Bare

PACKAGE = Path(__file__).resolve().parent.parent / "rgals"

# The rooms of the package, the lowest first: a room imports from itself and from those above it in this list.
LAYERS = (
    "runtime",
    "files",
    "kernels",
    "matrix",
    "losses",
    "datasets",
    "solvers",
    "scoring",
    "metrics",
    "model",
    "training",
    "sgd",
    "baselines",
    "estimator",
    "warm",
    "cluster",
    "plots",
    "model_selection",
    "compare",
    "cli",
    "__main__",
)
# What may be imported from outside, where it is less than everything.
OUTSIDE: dict[str, set[str]] = {
    "kernels": {"numpy", "numba", "llvmlite"},
    "losses": {"numpy", "sklearn"},
    "files": {"numpy"},
    "cli": {"numpy", "scipy", "tqdm"},
}
OPTIONAL = set(Bare.OPTIONAL)
NEVER = {"torch", "jax", "tensorflow", "pickle", "joblib", "dill", "cloudpickle"}
# The entries of numba's cache are pickles: SECURITY.md says whom that trusts.
READS_THE_CACHE = "runtime.caches"


def modules() -> dict[str, Path]:
    """Every module by its name below `rgals` ("" is the package itself)."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(source: str, package: str, *, typing: bool = False) -> list[tuple[int, str, bool]]:
    """(line, absolute module, whether at module level) of every import, wherever it stands.

    ``typing``: those for types alone too.
    """
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
        if id(node) in typing_only and not typing:
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


def faults(module: str, source: str, package: str) -> list[str]:
    """Every import of ``module`` that points the wrong way."""
    room = module.partition(".")[0]
    if not module:
        return []
    if room not in LAYERS:
        return [f"rgals.{module}: a new room of the package; give it a place in LAYERS"]
    outside = OUTSIDE.get(room)
    found = []
    for line, name, top in imports(source, package):
        root = name.split(".")[0]
        where = f"rgals.{module}:{line} imports {name}"
        if root == "rgals":
            target = name.removeprefix("rgals").lstrip(".").partition(".")[0]
            if target not in LAYERS:
                found.append(f"{where}: name the module where it lies")
            elif LAYERS.index(target) > LAYERS.index(room):
                found.append(f"{where}, which lies above it")
        elif root in NEVER or (name.startswith("numba.cloudpickle") and module != READS_THE_CACHE):
            found.append(f"{where}: not in this package")
        elif root in OPTIONAL and top:
            found.append(f"{where} at module level, but it is optional")
        elif outside and root not in outside and root not in sys.stdlib_module_names and root not in OPTIONAL:
            found.append(f"{where}; {room} may use {sorted(outside)}")
    return found


def test_every_import_points_the_right_way():
    known = modules()
    assert len(known) > 10
    wrong = []
    for module, path in known.items():
        package = "rgals." + module if path.name == "__init__.py" else "rgals." + module.rpartition(".")[0]
        wrong += faults(module, path.read_text(), package.rstrip("."))
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
        ("kernels.rows", "from rgals.solvers.plan import Plan"),
        ("solvers.als", "from rgals.model.state import Snapshot"),
        ("model.state", "from rgals.sgd import SGDRanker"),
        ("metrics", "from rgals.estimator import RGALS"),
        ("scoring", "from rgals import RGALS"),
        ("estimator", "from rgals.cli import main"),
        ("files.archive", "import pickle"),
        ("files.archive", "from numba.cloudpickle import loads"),
        ("compare.report", "import matplotlib.pyplot as plt"),
        ("datasets.readers", "import pandas as pd"),
        ("surprise", "import numpy"),
    ],
)
def test_the_wrong_directions_are_noticed(module, source):
    assert len(faults(module, source, "rgals." + module.rpartition(".")[0])) == 1


def test_allowed_imports_pass():
    source = "import numpy\nfrom numba import njit\nfrom rgals.kernels.blas import gemm\nimport math\n"
    assert faults("kernels.rows", source, "rgals.kernels") == []


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Modules that import each other, however many steps apart."""
    reached = {}
    for start in graph:
        seen, stack = set(), list(graph[start])
        while stack:
            module = stack.pop()
            if module not in seen:
                seen.add(module)
                stack.extend(graph[module])
        reached[start] = seen
    return [[a, *sorted(b for b in reached[a] if a in reached[b])] for a in graph if a in reached[a]]


def test_no_module_imports_itself_through_others():
    """Imports within functions, and those for types alone, count too."""
    known = modules()
    graph: dict[str, set[str]] = {module: set() for module in known}
    for module, path in known.items():
        package = "rgals." + module if path.name == "__init__.py" else "rgals." + module.rpartition(".")[0]
        for _, name, _ in imports(path.read_text(), package.rstrip("."), typing=True):
            target = name.removeprefix("rgals").lstrip(".") if name.split(".")[0] == "rgals" else ""
            while target and target not in known:
                target = target.rpartition(".")[0]  # a function or class: its module
            # A package's __init__ gathers what its modules define.
            if target and not module.startswith(target + ".") and target != module:
                graph[module].add(target)
    assert sum(map(len, graph.values())) > 300
    assert circles(graph) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) != []


def test_the_package_has_few_modules_of_its_own():
    assert len(list(PACKAGE.glob("*.py"))) <= 8
    assert not list(PACKAGE.glob("_[a-z]*.py"))


IMPORT = """
import json, os, sys
from numba.core.dispatcher import Dispatcher
assert "rgals" not in sys.modules
tried = sys.meta_path[0].tried  # what others have looked for is their own affair
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


def observe(bare, statement: str) -> dict:
    """What one statement does in a fresh process with an empty kernel cache."""
    out, err = bare.python(IMPORT.replace("STATEMENT", statement))
    assert err == ""
    return json.loads(out)


def test_import_compiles_nothing_and_loads_nothing_optional(bare):
    seen = observe(bare, "import rgals")
    assert "rgals" in seen["modules"]
    assert seen["compiled"] == []
    assert seen["environment_kept"]
    assert seen["tried"] == []
    assert not list(bare.folder.rglob("*.nbc"))


def test_what_is_done_at_import_would_be_noticed(bare):
    eager = "import numba, os; numba.njit('f8(f8)')(lambda x: x); os.environ['RGALS_X'] = '1'"
    eager += "\ntry: import polars\nexcept ModuleNotFoundError: pass"
    seen = observe(bare, eager)
    assert seen["compiled"] == ["<lambda>"]
    assert not seen["environment_kept"]
    assert seen["tried"] == ["polars"]


LOADED = """
import sys
import numpy, scipy.sparse, numba, sklearn.base
before = set(sys.modules)
from rgals import RGALS
print(*sorted(set(sys.modules) - before))
"""
#: What comes in when it is used.
LATER = (
    "rgals.cli",
    "rgals.compare",
    "rgals.datasets.fetching",
    "rgals.datasets.interactions",
    "rgals.datasets.read",
    "rgals.datasets.text",
    "rgals.model.export",
    "rgals.model_selection",
    "rgals.scoring._streaming",
    "rgals.sgd",
    "rgals.solvers.cuda.backend",
    "rgals.warm",
)


def test_the_estimator_loads_little_beyond_what_it_is_made_of(bare):
    """Counted beside numpy, scipy.sparse, numba and sklearn.base: of others hardly a module more."""
    out, err = bare.python(LOADED)
    assert err == ""
    loaded = out.split()
    assert "rgals.estimator" in loaded
    others = {name for name in loaded if not name.startswith("rgals")}
    assert others <= {"resource", "concurrent.futures.thread"}
    assert [name for name in LATER if name in loaded] == []
    # A loss or a kernel more is a module more; their number is not what is held down here.
    others = [name for name in loaded if not name.startswith(("rgals.losses.", "rgals.kernels."))]
    assert len(others) <= 83


@pytest.mark.parametrize("package", ["rgals", "rgals.datasets", "rgals.scoring"])
def test_names_that_are_imported_later_are_listed_and_found(bare, package):
    script = (
        f"import {package} as p; names = dir(p); assert set(p.__all__) <= set(names), names\n"
        f"assert all(getattr(p, name) is getattr(p, name) for name in p.__all__)\n"
        f"try: p.nothing\nexcept AttributeError as error: print(error)"
    )
    assert bare.python(script) == (f"module '{package}' has no attribute 'nothing'\n", "")


def test_no_property_waits_for_a_lock():
    """In Python 3.11 functools' do: a child that is forked meanwhile would wait for ever."""
    source = "from functools import cached_property"
    assert [path.name for path in sorted(PACKAGE.rglob("*.py")) if source in path.read_text()] == []
