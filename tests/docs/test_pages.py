"""The code of the site runs, page by page, from an empty folder; its commands are commands."""

from __future__ import annotations

import contextlib
import csv
import doctest
import importlib.util
import io
import json
import re
import shlex
import tomllib
import warnings
from collections import Counter

import pytest
from conftest import ROOT

from rgals import RGALS
from rgals.cli import build_parser

DOCS = ROOT / "docs"
BUILT = {"_build", "gallery", "api"}
PAGES = sorted(path for path in DOCS.rglob("*.md") if path.relative_to(DOCS).parts[0] not in BUILT)
README = ROOT / "README.md"
FENCE = re.compile(r"^```(python|text|bash|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Packages of others that a page of "Coming from" runs beside rgals; pages run where theirs is installed.
PEERS = {
    "implicit": "implicit",
    "irspack": "irspack",
    "lenskit": "lenskit",
    "spark": "pyspark",
    "surprise": "surprise",
}
#: What is longer than a test of `make test` may be: these run in `make docs`.
LONG = {"guides/tuning", "guides/evaluate", "coming-from/irspack", "coming-from/lenskit", "coming-from/spark"}


def name_of(path) -> str:
    return path.relative_to(DOCS).with_suffix("").as_posix() if path != README else "README"


def blocks(path) -> list[tuple[str, str]]:
    """(language, text) of every fence that is code, a command or what was printed."""
    return FENCE.findall(path.read_text(encoding="utf-8"))


def runnable(full: bool) -> list:
    found = []
    for path in [README, *PAGES]:
        name = name_of(path)
        section, _, stem = name.rpartition("/")
        peer = PEERS.get(stem) if section == "coming-from" else None
        if peer and importlib.util.find_spec(peer) is None:
            continue
        if any(kind == "python" for kind, _ in blocks(path)) and (full or name not in LONG):
            found.append(path)
    return found


def pytest_generate_tests(metafunc) -> None:
    if "page" in metafunc.fixturenames:
        metafunc.parametrize("page", runnable(metafunc.config.option.full), ids=name_of)


def run(path, folder, monkeypatch) -> tuple[dict, str]:
    """The code blocks of a page, one after the other; blocks of text are what the block before prints."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MPLBACKEND", "agg")
    names: dict = {"__name__": "page"}
    printed, everything = "", ""
    for kind, text in blocks(path):
        if kind == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(text, str(path), "exec"), names)
            printed = out.getvalue()
            everything += printed
        elif kind == "text":
            options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            assert doctest.OutputChecker().check_output(text, printed, options), (text, printed)
    return names, everything


def lists_of_a_csv(folder, names, printed) -> None:
    """Ten items of the catalogue for each user of the file, none that the user has."""
    bought, recommended = table(folder / "purchases.csv"), table(folder / "recommendations.csv")
    had = {(row["customer_id"], row["article_id"]) for row in bought}
    counts = Counter(row["user"] for row in recommended)
    assert set(counts) == {user for user, _ in had} and set(counts.values()) == {10}
    assert not had & {(row["user"], row["item"]) for row in recommended}
    assert {row["item"] for row in recommended} <= {item for _, item in had}


def better_than_popularity(folder, names, printed) -> None:
    """The figures printed, RG2's above popularity's, and a picture of both."""
    popular, ours = (float(figure) for figure in re.findall(r"'ndcg@10': ([\d.]+)", printed))
    assert ours > 1.5 * popular > 0
    assert len(names["ax"].get_lines()) >= 2
    assert (folder / "popularity-bias.png").stat().st_size > 10_000
    parts = names["why"]
    assert sum(parts.contributions) + parts.rest + parts.all_pairs == pytest.approx(parts.score, abs=1e-6)


def nightly(folder, names, printed) -> None:
    """Lists for everybody, the new customer among them, who is forgotten afterwards."""
    users = {row["user"] for row in table(folder / "lists.csv")}
    assert len(users) == 301 and "new-customer" in users
    saved = RGALS.load(folder / "model.npz")
    assert "new-customer" in saved.user_ids_ and "new-customer" not in names["model"].user_ids_


def compared(folder, names, printed) -> None:
    """Every method in the table, and three losses significantly above popularity."""
    methods = {"rg2", "ials", "wrmf", "ease", "popularity"}
    assert {row.method for row in names["result"].rows} == methods
    assert len(re.findall(r"(?:rg2|ials|wrmf): .*: better than popularity", printed)) == 3


def served(folder, names, printed) -> None:
    """Three items of the service's function, those that the model recommends."""
    items = json.loads(printed.splitlines()[0].replace("'", '"'))
    assert items == names["model"].recommend(["user-0007"], n=3)[0][0].tolist()


def readme(folder, names, printed) -> None:
    """Ids in and ids out, nothing twice, and a better list than the most popular one."""
    had = set(zip(names["who"], names["what"], strict=True))
    lists = dict(zip(["bob", "joe"], names["items"].tolist(), strict=True))
    assert not had & {(user, item) for user, items in lists.items() for item in items}
    assert all(len(set(items)) == 2 for items in lists.values())
    ours, popular = (float(figure) for figure in re.findall(r"'ndcg@10': ([\d.]+)", printed))
    assert ours > 1.5 * popular > 0
    assert {"joe", "sam"} <= {row["user"] for row in table(folder / "lists.csv")}


#: Five tasks, each a script of nothing but the code blocks of a page, and what must have come of it.
TASKS = {
    "start/csv": lists_of_a_csv,
    "start/first-model": better_than_popularity,
    "guides/updates": nightly,
    "guides/evaluate": compared,
    "guides/serve": served,
}


def table(path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=DeprecationWarning, module="page")
        names, printed = run(page, tmp_path, monkeypatch)
    check = {**TASKS, "README": readme}.get(name_of(page))
    if check is not None:
        check(tmp_path, names, printed)


def test_five_tasks_have_a_page():
    assert {*TASKS} <= {name_of(path) for path in PAGES}


def commands() -> list[str]:
    texts = [text for path in [README, *PAGES] for kind, text in blocks(path) if kind in ("bash", "console")]
    lines = [line.removeprefix("$ ") for text in texts for line in text.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line.strip()]


def test_the_commands_are_commands():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = extras["optional-dependencies"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    seen = set()
    for line in commands():
        words = shlex.split(line, comments=True)
        if words[:1] == ["rgals"]:
            build_parser().parse_args(words[1:])
        elif words[:1] == ["make"]:
            assert f"\n{words[1]}:" in makefile, line
        elif words[:2] == ["pip", "install"]:
            for extra in re.findall(r"\[([\w,]+)\]", line):
                assert set(extra.split(",")) <= extras.keys(), line
        elif words[:1] == ["python"] and not words[1].startswith("-"):
            assert (ROOT / words[1]).is_file(), line
        seen.add(words[0] if words else "")
    assert {"rgals", "make", "pip", "python"} <= seen


def test_what_pages_name_is_there():
    for path in [README, *PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]:
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"`((?:rgals|tests|benchmarks|examples|docs)/[\w/.-]*\w)`", text):
            assert (ROOT / name).exists(), f"{path.name}: {name}"


def test_the_site_has_at_most_two_thousand_lines_by_hand():
    """Tables between ``<!-- ... -->`` and ``<!-- end -->`` are written by scripts."""
    made = re.compile(r"<!-- (?:table|made|quality|cost).*?<!-- end -->", re.DOTALL)
    generated = {DOCS / "what-goes-with-what.md"}
    texts = [path.read_text(encoding="utf-8") for path in [README, *PAGES] if path not in generated]
    assert sum(len(made.sub("", text).splitlines()) for text in texts) <= 2000
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 160
