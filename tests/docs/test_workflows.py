"""A tag publishes what was tested, by trusted publishing: no secret, no right that is not needed."""

from __future__ import annotations

import re

import pytest
from conftest import ROOT

WORKFLOWS = ROOT / ".github" / "workflows"


def workflow(name: str) -> dict:
    return pytest.importorskip("yaml").safe_load((WORKFLOWS / f"{name}.yml").read_text(encoding="utf-8"))


def lines(job: dict) -> str:
    return "\n".join(step.get("run", "") for step in job["steps"])


@pytest.mark.parametrize("name", ["docs", "publish"])
def test_actions_have_versions_and_jobs_an_end(name):
    found = workflow(name)
    assert found["permissions"] == {"contents": "read"}
    for job in found["jobs"].values():
        assert job["timeout-minutes"] > 0 and not job["runs-on"].endswith("latest")
        for step in job["steps"]:
            version = step.get("uses", "run@v0.0.0").partition("@")[2]
            assert re.fullmatch(r"v\d+\.\d+\.\d+", version), step
            if step.get("uses", "").startswith("actions/checkout"):
                assert step["with"]["persist-credentials"] is False


def test_only_a_tag_publishes_and_only_what_was_tested():
    found = workflow("publish")
    assert found[True] == {"push": {"tags": ["v*"]}}  # YAML reads "on" as True
    build, publish = found["jobs"]["build"], found["jobs"]["publish"]
    assert "make test" in lines(build) and "twine check --strict" in lines(build)
    assert '= "v$version"' in lines(build) and "CHANGELOG.md" in lines(build)
    assert publish["needs"] == "build" and publish["permissions"] == {"id-token": "write"}
    assert "password" not in str(publish) and "secrets" not in str(found)
    assert not lines(publish).strip()  # nothing is run where the right to publish is


def test_the_site_is_built_by_the_makefile():
    (job,) = workflow("docs")["jobs"].values()
    assert "make docs" in lines(job)
