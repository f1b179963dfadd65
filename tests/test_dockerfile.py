"""The Dockerfile of the service: pinned, not root, compiled before anybody but root runs anything."""

from __future__ import annotations

import json
import re

import pytest
from conftest import ROOT

FILE = ROOT / "examples" / "Dockerfile"


def instructions(text: str) -> list[tuple[str, str]]:
    """(name, arguments) of every instruction."""
    joined = re.sub(r"\\\n", " ", "\n".join(x for x in text.splitlines() if not x.lstrip().startswith("#")))
    return [
        (name.upper(), rest.strip())
        for name, _, rest in (x.partition(" ") for x in joined.splitlines())
        if name
    ]


def faults(text: str) -> list[str]:
    """What must not be in an image, or is missing there."""
    every = instructions(text)
    found = []
    stages = {words[2] for name, rest in every if name == "FROM" and len(words := rest.split()) == 3}
    for name, rest in every:
        image = rest.split()[0]
        if name == "FROM" and image not in stages and not re.search(r":(?!latest$)[\w.-]+$|@sha256:", image):
            found.append(f"{image} has no version")
        if name == "ADD":
            found.append("ADD fetches and unpacks; use COPY")
        if name == "COPY" and not rest.startswith("--from="):
            found += [f"{path} is not there" for path in rest.split()[:-1] if not (ROOT / path).exists()]
    last = every[max(k for k, (name, _) in enumerate(every) if name == "FROM") :]
    names = [name for name, _ in last]
    users = [rest for name, rest in last if name == "USER"]
    if not users or not re.fullmatch(r"[1-9]\d*(:[1-9]\d*)?", users[-1]):
        found.append("the last USER is root, or no number")  # a number can be seen not to be root's
    warm = [k for k, (name, rest) in enumerate(last) if name == "RUN" and "rgals warmup" in rest]
    places = [
        k for k, (name, rest) in enumerate(last) if name == "ENV" and re.search(r"\bNUMBA_CACHE_DIR=/", rest)
    ]
    if not warm or "USER" not in names or warm[0] > names.index("USER"):
        found.append("nothing is compiled before the user changes")
    elif not places or places[0] > warm[0]:
        found.append("NUMBA_CACHE_DIR is not set before the code is compiled")
    commands = [rest for name, rest in last if name == "CMD"]
    if len(commands) != 1 or not commands[0].startswith("["):
        found.append("one CMD, as a list, so that signals reach it")
    elif not any(word.endswith("/service.py") for word in json.loads(commands[0])):
        found.append("the command is not the service")
    return found


def test_the_dockerfile_has_no_fault():
    assert faults(FILE.read_text()) == []


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (r"python:\S+", "python", "no version"),
        (r"python:\S+", "python:latest", "no version"),
        (r"(?m)^USER .*$", "", "nothing is compiled before"),
        (r"USER \S+", "USER root", "is root"),
        (r"USER \S+", "USER 0:0", "is root"),
        (r"RUN rgals warmup\n(USER .*)", r"\1\nRUN rgals warmup", "nothing is compiled before"),
        (r"NUMBA_CACHE_DIR=\S+", "OTHER=1", "NUMBA_CACHE_DIR"),
        (r"COPY rgals rgals", "COPY elsewhere rgals", "elsewhere is not there"),
        (r"CMD \[.*\]", "CMD python service.py", "as a list"),
        (r"service\.py\", \"", 'another.py", "', "not the service"),
        (r"COPY examples", "ADD examples", "use COPY"),
    ],
)
def test_faults_are_noticed(old, new, words):
    text = FILE.read_text()
    changed = re.sub(old, new, text)
    assert changed != text
    assert any(words in fault for fault in faults(changed)), faults(changed)


def test_what_is_copied_is_not_ignored():
    listed = (FILE.parent / "Dockerfile.dockerignore").read_text().split()
    assert listed[0] == "*"
    copied = [
        path
        for name, rest in instructions(FILE.read_text())
        if name == "COPY" and not rest.startswith("--from=")
        for path in rest.split()[:-1]
    ]
    assert {f"!{path}" for path in copied} <= set(listed)
