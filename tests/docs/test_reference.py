"""Every public name is documented: what it takes, gives and raises, and an example that runs."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from functools import cache

import pytest
from conftest import ROOT

SPEC = importlib.util.spec_from_file_location("public", ROOT / "docs" / "public.py")
public = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(public)


def sections(found: object) -> dict[str, str]:
    """The sections of a docstring in numpydoc's form."""
    text = inspect.getdoc(found) or ""
    parts = re.split(r"^(\w[\w ]+)\n-+$", text, flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def documented(text: str) -> set[str]:
    """Names that a section of parameters describes."""
    names = re.findall(r"^(\*{0,2}\w[\w, *]*?)(?: :.*)?$", text, flags=re.MULTILINE)
    return {name.strip(" *") for line in names for name in line.split(",")}


def parameters(found: object) -> list[str]:
    """What a caller gives."""
    try:
        signature = inspect.signature(found)
    except ValueError:  # of a class that has the one of dict
        return []
    left_out = ("self", "cls", "moved")  # the last are keywords of an older release, which warn
    return [name for name in signature.parameters if name not in left_out and not name.startswith("_")]


def members(cls: type) -> list[tuple[str, object]]:
    """Public methods and properties that rgals defines."""
    return [
        (name, found)
        for name, found in inspect.getmembers(cls)
        if not name.startswith("_")
        and (inspect.isroutine(found) or isinstance(found, property))
        and str(getattr(getattr(found, "fget", found), "__module__", "")).startswith("rgals")
        and not getattr(getattr(found, "fget", None), "__name__", "").startswith("_")  # hides what a base has
    ]


NAMES = {
    f"{module}.{name}": getattr(importlib.import_module(module), name)
    for module in public.MODULES
    for name in public.names_of(importlib.import_module(module))
}
FUNCTIONS = {name: found for name, found in NAMES.items() if public.kind_of(found) == "function"}
CLASSES = {name: found for name, found in NAMES.items() if public.kind_of(found) == "class"}
#: Methods of what users fit; those of other classes are named in a line each.
METHODS = {
    f"{name}.{method}": found
    for name, cls in CLASSES.items()
    if hasattr(cls, "fit")
    for method, found in members(cls)
    if inspect.isfunction(found) or inspect.ismethod(found)
}


@cache
def examples() -> str:
    """All code that runs: doctests of the package, pages, gallery."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "rgals").rglob("*.py")]
    code = [line for text in texts for line in text.splitlines() if line.lstrip().startswith((">>>", "... "))]
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    fences = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    code += [block for page in pages for block in fences.findall(page.read_text(encoding="utf-8"))]
    code += [path.read_text(encoding="utf-8") for path in (ROOT / "examples").rglob("*.py")]
    return "\n".join(code)


def faults_of(name: str, found: object) -> list[str]:
    """What is missing in the docstring of a function or method."""
    has, wrong = sections(found), []
    if not has[""].strip():
        return ["no docstring"]
    missing = set(parameters(found)) - documented(has.get("Parameters", ""))
    if missing:
        wrong.append(f"Parameters: {', '.join(sorted(missing))}")
    returns = inspect.signature(found).return_annotation
    if returns not in (None, "None", inspect.Signature.empty) and not {"Returns", "Yields"} & has.keys():
        wrong.append("Returns")
    if "Raises" not in has and re.search(r"^\s+raise \w+(Error|Warning)\(", source(found), re.MULTILINE):
        wrong.append("Raises")
    return wrong


def source(found: object) -> str:
    """The code without its docstring."""
    try:
        return inspect.getsource(inspect.unwrap(found)).replace(found.__doc__ or "\0", "")
    except (OSError, TypeError):
        return ""


def test_functions_say_what_they_take_give_and_raise():
    wrong = {name: faults_of(name, found) for name, found in FUNCTIONS.items()}
    assert {name: found for name, found in wrong.items() if found} == {}


def test_methods_say_what_they_take_give_and_raise():
    wrong = {name: faults_of(name, found) for name, found in METHODS.items()}
    assert {name: found for name, found in wrong.items() if found} == {}


def test_other_methods_have_a_line():
    wrong = [
        f"{name}.{m}"
        for name, cls in CLASSES.items()
        for m, found in members(cls)
        if not inspect.getdoc(found)
    ]
    assert wrong == []


def test_classes_say_what_they_take_or_hold():
    wrong = {}
    for name, found in CLASSES.items():
        has = sections(found)
        described = documented(has.get("Parameters", "")) | documented(has.get("Attributes", ""))
        if not has[""].strip() or set(parameters(found)) - described:
            wrong[name] = sorted(set(parameters(found)) - described) or "no docstring"
    assert wrong == {}


def test_what_users_call_has_an_example_that_runs():
    """Results, which have attributes only, are in the examples of what gives them."""
    code = examples()
    taken = {name: found for name, found in CLASSES.items() if "Parameters" in sections(found)}
    named = {name: rf"\b{name.rpartition('.')[2]}\b" for name in {**FUNCTIONS, **taken}}
    named |= {name: rf"\.{name.rpartition('.')[2]}\(" for name in METHODS}
    assert [name for name, pattern in named.items() if not re.search(pattern, code)] == []


def test_modules_that_pages_and_the_gallery_import_from_are_in_the_reference():
    texts = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("gallery/*.py")]
    lines = "\n".join(path.read_text(encoding="utf-8") for path in texts)
    assert {*re.findall(r"^from (rgals[\w.]*) import", lines, re.MULTILINE)} <= {*public.MODULES}


def test_errors_say_when_they_are_raised():
    errors = [found for found in NAMES.values() if public.kind_of(found) == "error"]
    assert len(errors) > 10
    assert [found.__name__ for found in errors if len(sections(found)[""].split()) < 5] == []


def test_losses_and_metrics_name_their_source():
    """A formula comes from a paper, or is a definition that its docstring writes down."""
    metrics = importlib.import_module("rgals.metrics")
    formulas = [f"rgals.{name}" for name in ("RG2", "RGX", "WRMF", "IALS", "HardNegatives")]
    formulas += [
        f"rgals.sgd.losses.{name}" for name in ("Softmax", "Sparsemax", "BPR", "BCE", "SampledCCE", "RG2")
    ]
    formulas += (
        [f"rgals.metrics.{name}" for name in public.names_of(metrics, "function") if name in metrics.METRICS]
        if hasattr(metrics, "METRICS")
        else []
    )
    paper = re.compile(r"et al\.|\(\d{4}\)|, \d{4}|Eqs?\. ?\d|References\n-")
    assert [name for name in formulas if not paper.search(inspect.getdoc(NAMES[name]))] == []


@pytest.mark.parametrize("text", ["x : int\n    What.\ny, z : float, default 1\n", "x : int\ny, z : float\n"])
def test_the_walk_reads_parameters(text):
    assert documented(text) >= {"x", "y", "z"}
