"""What is published: metadata, the files of the package, the systems and versions that the workflow tries."""

from __future__ import annotations

import ast
import re
import tomllib
from fnmatch import fnmatch

import pytest
from conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
METADATA = PROJECT["project"]
WORKFLOW = ROOT / ".github" / "workflows" / "tests.yml"
PYTHONS = [
    name.rpartition(" ")[2]
    for name in METADATA["classifiers"]
    if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", name)
]
#: What numpy has from 2.0, 2.1 and 2.2 on; ``typing`` had to be imported before.
LATE = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "astype",
    "atan",
    "atan2",
    "atanh",
    "bitwise_count",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_right_shift",
    "bool",
    "concat",
    "isdtype",
    "long",
    "matrix_transpose",
    "permute_dims",
    "pow",
    "strings",
    "trapezoid",
    "ulong",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
    "vecdot",
    "cumulative_prod",
    "cumulative_sum",
    "unstack",
    "matvec",
    "vecmat",
    "typing",
]


@pytest.fixture(scope="module")
def workflow() -> dict:
    return pytest.importorskip("yaml").safe_load(WORKFLOW.read_text(encoding="utf-8"))


def commands(workflow: dict, job: str) -> list[list[str]]:
    """The lines of every step that runs something."""
    steps = workflow["jobs"][job]["steps"]
    return [step["run"].splitlines() for step in steps if "run" in step]


def target(name: str) -> list[str]:
    """The commands of a target of the Makefile."""
    rule = re.search(rf"^{name}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return [line.strip().replace("$(PY)", "python") for line in rule[1].splitlines()]


def test_the_metadata_are_complete():
    given = {"name", "description", "readme", "requires-python", "license", "license-files", "keywords"}
    assert given <= METADATA.keys()
    assert METADATA["requires-python"] == f">={PYTHONS[0]}"
    topics = {name.partition(" :: ")[0] for name in METADATA["classifiers"]}
    assert {"Development Status", "Intended Audience", "Operating System", "Topic", "Typing"} <= topics
    assert not [name for name in METADATA["classifiers"] if name.startswith("License")]  # it is an expression
    for name in ("setup.py", METADATA["readme"], *METADATA["license-files"]):
        assert (ROOT / name).is_file()
    assert "setup()" in (ROOT / "setup.py").read_text()


def test_every_extra_says_what_it_brings():
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    first = lines.index("[project.optional-dependencies]") + 1
    group = ""  # the comment of the lines until the next one
    for line in lines[first : lines.index("[project.scripts]")]:
        if line.startswith("#"):
            group = line
        elif re.match(r"\w+ = ", line):
            assert group, line
            group = group if line.startswith("cuda") else ""


def test_every_file_of_the_package_is_shipped():
    setuptools = pytest.importorskip("setuptools")
    told = PROJECT["tool"]["setuptools"]
    packages = setuptools.find_packages(str(ROOT), **told["packages"]["find"])
    patterns = [pattern for name, found in told["package-data"].items() for pattern in found]
    for path in (ROOT / "rgals").rglob("*"):
        if path.is_dir() or "__pycache__" in path.parts:
            continue
        name = path.relative_to(ROOT / "rgals").as_posix()
        package = ".".join(path.parent.relative_to(ROOT).parts)
        assert package in packages, f"{name}: no __init__.py beside it"
        assert path.suffix == ".py" or any(fnmatch(name, pattern) for pattern in patterns), name
    assert {name.partition(".")[0] for name in packages} == {"rgals"}
    assert "py.typed" in patterns


def test_the_workflow_tries_every_python_on_every_system(workflow):
    matrix = workflow["jobs"]["tests"]["strategy"]["matrix"]
    assert matrix["python"] == PYTHONS
    assert [name.partition("-")[0] for name in matrix["system"]] == ["ubuntu", "macos", "windows"]


def test_the_workflow_runs_what_the_makefile_runs(workflow):
    posix, oldest, windows = commands(workflow, "tests")
    assert posix == ["make test PYTHON=python"]
    beside, tests = target("test")
    assert re.findall(r"\$\(MAKE\) --no-print-directory (\w+)", beside) == ["lint", "compiled"]
    assert windows == ['python -m pip install -e ".[test]"', *target("lint"), *target("compiled"), tests]
    assert [line.replace(".venv/bin/", "") for line in oldest[1:]] == [*target("compiled"), tests]


def test_the_oldest_packages_are_those_that_are_admitted(workflow):
    (oldest,) = workflow["jobs"]["tests"]["strategy"]["matrix"]["include"]
    assert oldest["python"] == PYTHONS[0]
    lines = (ROOT / oldest["packages"]).read_text().splitlines()
    lines = [line for line in lines if not line.startswith(("#", "pandas", "pyarrow"))]  # these are optional
    pinned = {line.removesuffix(".*").replace("==", ">=") for line in lines}
    assert pinned == {line for line in METADATA["dependencies"] if ";" not in line}


def test_the_package_asks_numpy_for_nothing_that_the_oldest_lacks():
    assert "numpy>=1.26" in METADATA["dependencies"]  # which has none of `LATE`
    used = [
        f"{path.relative_to(ROOT)}:{node.lineno}: np.{node.attr}"
        for path in (ROOT / "rgals").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "np"
    ]
    assert len(used) > 1000
    assert not [line for line in used if line.rpartition(".")[2] in LATE]


def test_the_workflow_may_read_and_nothing_else_and_its_actions_have_versions(workflow):
    assert workflow["permissions"] == {"contents": "read"}
    assert not [name for name, job in workflow["jobs"].items() if "permissions" in job]
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] > 0
        assert not job["runs-on"].endswith("latest")
        for step in job["steps"]:
            action, _, version = step.get("uses", "run@v0.0.0").partition("@")
            assert re.fullmatch(r"v\d+\.\d+\.\d+", version), f"{name}: {action}"
            if action == "actions/checkout":
                assert step["with"]["persist-credentials"] is False


def test_the_workflow_builds_and_tries_the_wheel(workflow):
    lines = [line for step in commands(workflow, "wheel") for line in step]
    assert "python -m build" in lines
    (tested,) = [line for line in lines if "pytest" in line]
    assert (ROOT / tested.rpartition(" ")[2]).is_file()
