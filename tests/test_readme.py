"""What the README and its neighbours link to exists; what they say of the package is so.

Their code runs in tests/docs/test_pages.py.
"""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from pathlib import Path

import pytest
from conftest import ROOT

from rgals import __version__

README = (ROOT / "README.md").read_text(encoding="utf-8")
TEXTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "docs").rglob("*.md")
    if path.relative_to(ROOT / "docs").parts[0] not in ("_build", "api", "gallery")
)
#: Made when the site is built.
BUILT = re.compile(r"docs/(gallery|api)/")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("name", [*TEXTS, *PAGES])
def test_links_lead_somewhere(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]
    for link in links:
        path = (ROOT / name).parent / link
        place = path.resolve().relative_to(ROOT).as_posix()
        if not BUILT.match(place):
            assert path.exists(), link
        elif place.startswith("docs/gallery/plot_"):
            assert (ROOT / "examples" / "gallery" / f"{path.stem}.py").is_file(), link


def test_the_readme_says_what_the_metadata_say():
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = re.findall(r":: (3\.\d+)", " ".join(metadata["classifiers"]))
    assert f"![Python {versions[0]} to {versions[-1]}]" in README
    assert f"![Licence {metadata['license']}]" in README
    assert all(line.partition(">=")[0] in README for line in metadata["dependencies"])


def test_one_version_everywhere():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {__version__}\n" in citation
    released = re.search(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$", changelog(), re.MULTILINE)
    assert released is not None and released[1] == __version__
    assert f"\ndate-released: {released[2]}\n" in citation


def changelog() -> str:
    return (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_changelog_keeps_its_form():
    """Keep a Changelog: a section a version, the unreleased first, each kind of change once, in one order."""
    kinds = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
    sections = re.split(r"^## ", changelog(), flags=re.MULTILINE)[1:]
    assert sections[0].startswith("[Unreleased]")
    for section in sections:
        assert re.match(r"\[Unreleased\]$|\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d$", section.splitlines()[0])
        found = re.findall(r"^### (.*)$", section, re.MULTILINE)
        assert found == [kind for kind in kinds if kind in found], section.splitlines()[0]


def imported(path: Path) -> list[tuple[str, str]]:
    """(module, name) of all that a script imports from rgals, wherever it does."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    return [(str(n.module), a.name) for n in nodes if str(n.module).split(".")[0] == "rgals" for a in n.names]


GALLERY = sorted((ROOT / "examples" / "gallery").glob("plot_*.py"))
SCRIPTS = sorted([*ROOT.glob("benchmarks/*.py"), *ROOT.glob("examples/**/*.py"), *ROOT.glob("docs/*.py")])


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_what_scripts_import_from_rgals_is_there(path):
    """They need packages that tests do not have, so that nobody runs them here."""
    for module, name in imported(path):
        assert hasattr(importlib.import_module(module), name) or importlib.import_module(f"{module}.{name}")


def test_the_gallery_has_ten_examples():
    assert len(GALLERY) >= 10


@pytest.mark.parametrize("path", GALLERY, ids=lambda path: path.stem)
def test_a_figure_of_the_gallery_is_drawn_in_the_block_that_makes_it(path):
    """The site takes the figures of a block when it ends: what is drawn later is on no page."""
    earlier: set[str] = set()
    for block in path.read_text(encoding="utf-8").split("\n# %%\n"):
        tree = ast.parse(block)
        makes = [n for n in ast.walk(tree) if isinstance(n, ast.Assign) and "plt.subplots" in ast.unparse(n)]
        made = {n.id for one in makes for n in ast.walk(one.targets[0]) if isinstance(n, ast.Name)}
        assert not (earlier - made) & {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
        earlier |= made
