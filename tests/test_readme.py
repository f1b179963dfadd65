"""What the README shows runs, and what it links to exists."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import warnings
from pathlib import Path

import pytest

from rgals.cli import build_parser
from rgals.datasets import make_implicit
from rgals.model_selection import EdgeWarning

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
TEXTS = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/convergence.md",
    "docs/hard-negatives.md",
    "docs/how-it-works.md",
    "docs/quality.md",
    "docs/speed.md",
    "docs/startup.md",
    "docs/what-goes-with-what.md",
)


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_quick_start_runs_and_recommends(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = blocks("python")[0]
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    assert "ndcg@10" in capsys.readouterr().out
    assert names["ids"].shape == (3, 10)
    seen = names["train"][[0, 1, 2]].toarray()
    assert not any(seen[row, item] for row, items in enumerate(names["ids"]) for item in items)
    assert (tmp_path / "model.npz").is_file()


def test_the_serving_lines_write_everybodys_lists(tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.chdir(tmp_path)
    pairs = [(f"u{k % 30}", f"m{k * 7 % 20}") for k in range(300)] + [("ann", "m1"), ("ann", "m8")]
    (tmp_path / "ratings.csv").write_text("user,item,rating\n" + "".join(f"{u},{m},5\n" for u, m in pairs))
    names: dict = {}
    exec(compile(blocks("python")[1], "README.md", "exec"), names)
    assert names["items"].shape == (2, 10) and "m1" not in names["items"][0]
    table = parquet.read_table(tmp_path / "recommendations.parquet").to_pydict()
    assert set(table["user"]) == {u for u, _ in pairs}
    assert not set(zip(table["user"], table["item"], strict=True)) & set(pairs)


def test_the_tuning_lines_find_a_model(tmp_path, monkeypatch, capsys, amount):
    monkeypatch.chdir(tmp_path)
    code = blocks("python")[2]
    small, n = re.subn(r"budget=\d+", "budget=1", code)
    assert n == 2
    names: dict = {"data": make_implicit(150, 100, mean_interactions=14, random_state=0)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EdgeWarning)
        exec(compile(amount(small, code), "README.md", "exec"), names)
    assert "| alpha |" in capsys.readouterr().out
    assert names["found"].model.seen_.nnz > names["found"].model.K > 0
    assert (tmp_path / "trials.jsonl").is_file()


def test_the_commands_are_commands():
    lines = [line for block in blocks("bash") for line in block.splitlines() if line.startswith("rgals ")]
    assert len(lines) >= 4
    for line in lines:
        build_parser().parse_args(shlex.split(line, comments=True)[1:])
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"make (\w+)", "".join(blocks("bash"))):
        assert f"\n{target}:" in makefile


@pytest.mark.parametrize("name", TEXTS)
def test_links_lead_somewhere(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]
    links = [(Path(name).parent / link).as_posix() for link in links]
    paths = re.findall(r"`((?:rgals|tests|benchmarks|examples)/[\w/.]*)`", text)
    assert links or paths or name == "CHANGELOG.md"
    for path in {*links, *paths}:
        assert (ROOT / path).exists(), path


def imported(path: Path) -> list[tuple[str, str]]:
    """(module, name) of all that a script imports from rgals, wherever it does."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    return [(str(n.module), a.name) for n in nodes if str(n.module).split(".")[0] == "rgals" for a in n.names]


SCRIPTS = sorted([*ROOT.glob("benchmarks/*.py"), *ROOT.glob("examples/*.py"), *ROOT.glob("docs/*.py")])


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_what_scripts_import_from_rgals_is_there(path):
    """They need packages that tests do not have, so that nobody runs them here."""
    for module, name in imported(path):
        assert hasattr(importlib.import_module(module), name) or importlib.import_module(f"{module}.{name}")
