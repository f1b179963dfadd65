"""Wheel and source as a user gets them: what is in them, installed into an empty environment, upgraded."""

from __future__ import annotations

import ast
import email
import os
import re
import tarfile
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT
from instruments.wheels import Environment, call, sources, wheel
from kernels.test_compile import edit
from kernels.test_stale import EDITS, PROBES
from test_readme import blocks


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    return wheel(sources(folder / "tree"), folder / "dist")


def test_the_wheel_holds_the_package_and_nothing_else(built):
    assert built.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(built) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    package = {path.relative_to(ROOT).as_posix() for path in (ROOT / "rgals").rglob("*") if path.is_file()}
    package = {name for name in package if "__pycache__" not in name}
    assert {name for name in found if ".dist-info/" not in name} == package
    assert any(name.endswith("licenses/LICENSE") for name in found)
    assert "rgals/py.typed" in found
    for name, content in found.items():
        assert str(ROOT).encode() not in content and str(Path.home()).encode() + b"/" not in content, name
    metadata = next(content for name, content in found.items() if name.endswith("METADATA"))
    assert email.message_from_bytes(metadata)["License-Expression"] == "Apache-2.0"


def test_the_source_builds_the_same_wheel(built, tmp_path):
    """And both pass twine."""
    tools = Environment(tmp_path / "tools", borrow=False)
    tools.install("build", "twine")
    tree = sources(tmp_path / "tree")
    call(tools.python, "-m", "build", "--outdir", tmp_path / "dist", tree, cwd=tmp_path)
    (source,), (again,) = (list((tmp_path / "dist").glob(name)) for name in ("*.tar.gz", "*.whl"))
    call(tools.python, "-m", "twine", "check", "--strict", source, again, cwd=tmp_path)
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"setup.py", "pyproject.toml", "README.md", "LICENSE", "rgals/py.typed"} <= names
    assert not [name for name in names if re.search(r"\.nb[ic]$|\.py[co]$|__pycache__|^tests", name)]
    with zipfile.ZipFile(built) as one, zipfile.ZipFile(again) as other:
        modules = [name for name in one.namelist() if name.startswith("rgals/")]
        assert all(one.read(name) == other.read(name) for name in modules)
        assert set(one.namelist()) == set(other.namelist())


def test_the_quick_start_runs_in_an_empty_environment(built, tmp_path):
    empty = Environment(tmp_path / "empty", borrow=False)
    empty.install(built)
    (tmp_path / "work").mkdir()
    said = call(
        empty.python,
        "-c",
        "\n".join([*blocks("python")[:2], "import rgals; print(rgals.__file__)"]),
        cwd=tmp_path / "work",
    )
    assert "ndcg@10" in said
    assert Path(said.splitlines()[-1]).is_relative_to(empty.site)
    assert (tmp_path / "work" / "model.npz").is_file()
    assert "fit" in call(empty.rgals, "--help", cwd=tmp_path / "work")


@pytest.mark.parametrize("place", ["beside the package", "NUMBA_CACHE_DIR"])
def test_after_an_upgrade_the_next_process_runs_the_new_code(built, tmp_path, place):
    """Also where the new files have the stamps of the old ones, as a package manager may set them."""
    told = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")} if place == "NUMBA_CACHE_DIR" else {}
    site = Environment(tmp_path / "site", borrow=True)

    def install(one: Path) -> Path:
        site.install("--no-deps", "--no-index", "--force-reinstall", one)
        for path in site.site.glob("rgals/**/*.py"):
            os.utime(path, (1_600_000_000,) * 2)
        return site.site / "rgals" / "kernels"

    def fit() -> list:
        return ast.literal_eval(call(site.python, "-c", PROBES["fit"], cwd=tmp_path, **told))

    kernels = install(built)
    before = fit()
    cache = kernels / "__pycache__" if place == "beside the package" else tmp_path / "cache"
    assert list(cache.rglob("*.nbc"))
    tree = sources(tmp_path / "tree")
    old, new, _ = EDITS["row"]
    edit(tree / "rgals" / "kernels" / "row.py", old, new)
    install(wheel(tree, tmp_path / "dist"))
    assert list(cache.rglob("*.nbc"))  # pip left what it had not installed
    after = fit()
    assert all(repr(one) != repr(other) for one, other in zip(before, after, strict=True))
    told["NUMBA_CACHE_DIR"] = str(tmp_path / "empty")
    assert after == fit()
