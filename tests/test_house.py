"""How the package is built: no long argument lists, few modules on the top level, sizes that do not grow.

And that `make stress`, which runs seldom, finds what it takes from other tests.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from functools import cache
from pathlib import Path

from conftest import ROOT, STRESS, TESTS

PACKAGE = ROOT / "rgals"
# Lines without those that hold nothing but a comment.
KERNEL_LINES = 3_640
LINES = 31_000
# Lines of kernel code for one with a comment.
LINES_A_COMMENT = 15


@cache
def sources() -> dict[Path, str]:
    """The text of every module."""
    return {path: path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


def kernels() -> list[Path]:
    """What lies in rgals/kernels, and whatever else is compiled."""
    compiled = re.compile(r"^\s*@(?:numba\.)?n?jit\b|\bnjit\(", re.MULTILINE)
    return [
        path
        for path, text in sources().items()
        if PACKAGE / "kernels" in path.parents or compiled.search(text)
    ]


def lines(text: str) -> int:
    """Lines of a text, but not those that hold nothing but a comment: they are free."""
    return sum(not line.lstrip().startswith("#") for line in text.splitlines())


def long_lists(text: str) -> list[str]:
    """Functions of more than 15 parameters; ``__init__`` may have what it needs."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != "__init__":
            number = len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs)
            if number > 15:
                found.append(f"{node.name}:{node.lineno} has {number}")
    return found


def code_and_comments(text: str) -> tuple[int, int]:
    """Lines of code without docstrings, and lines with a comment that is for a reader."""
    docstrings = set()
    for node in ast.walk(ast.parse(text)):
        documented = isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)
        if documented and ast.get_docstring(node) is not None:
            docstrings |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    silent = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    code, comments = set(), set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            if not re.match(r"#\s*(noqa|fmt|type:|pragma)", token.string):
                comments.add(token.start[0])
        elif token.type not in silent:
            code |= set(range(token.start[0], token.end[0] + 1))
    return len(code - docstrings), len(comments)


def test_no_function_takes_more_than_15_parameters():
    found = {path.relative_to(ROOT): long_lists(text) for path, text in sources().items()}
    assert not {path: names for path, names in found.items() if names}
    assert long_lists(f"def f({', '.join(f'a{k}' for k in range(16))}): pass") == ["f:1 has 16"]


def test_the_formatter_is_told_off_in_few_places():
    found = [path for path, text in sources().items() for _ in re.findall(r"fmt: (?:skip|off)", text)]
    assert len(found) <= 5, found


def test_sizes():
    assert sum(lines(sources()[path]) for path in kernels()) <= KERNEL_LINES
    assert sum(map(lines, sources().values())) <= LINES


def test_kernels_are_commented():
    counts = [code_and_comments(sources()[path]) for path in kernels()]
    code, comments = (sum(column) for column in zip(*counts, strict=True))
    assert code <= LINES_A_COMMENT * comments, f"one comment for {code / comments:.1f} lines of code"
    assert code_and_comments('"""Doc."""\nx = 1  # why\n# more\ny = 2  # noqa\n') == (2, 2)


def test_what_stress_takes_from_other_tests_is_there():
    """Where a test moved, or had another name, all of `make stress` ended at that import."""
    taken = [
        (path.name, TESTS.joinpath(*node.module.split(".")).with_suffix(".py"), alias.name)
        for path in STRESS.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (".test_" in node.module or node.module.startswith("test_"))
        for alias in node.names
    ]
    assert len(taken) > 20
    there = {path: f"\n{path.read_text()}" for _, path, _ in taken if path.is_file()}
    missing = [
        f"{name} takes {what} from {path.relative_to(TESTS)}"
        for name, path, what in taken
        if not re.search(rf"\n(def |class )?{what}\b", there.get(path, ""))
    ]
    assert not missing
