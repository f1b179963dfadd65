"""The check that no test is skipped everywhere notices one that is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import conftest
import pytest
from instruments import outcomes

ROOT = Path(__file__).resolve().parent.parent


def check(folder, *jobs):
    paths = []
    for number, job in enumerate(jobs):
        path = folder / f"{number}.json"
        entries = {
            test: {"outcome": "skipped" if reason else "ran", "reason": reason, "markers": markers}
            for test, (reason, markers) in job.items()
        }
        path.write_text(json.dumps(entries))
        paths.append(str(path))
    run = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "skipped.py"), *paths], capture_output=True, text=True
    )
    return run.returncode, run.stdout + run.stderr


def test_a_test_that_runs_nowhere_is_named(tmp_path):
    first = {"a": ("", []), "b": ("pandas is missing", []), "c": ("no GPU", ["gpu"])}
    code, text = check(tmp_path, first)
    assert code == 1
    assert "b: pandas is missing" in text
    assert "\n  c:" not in text
    code, text = check(tmp_path, first, {"b": ("", [])})
    assert code == 0, text
    assert "1 tests, each needs a GPU" in text
    assert check(tmp_path, {"b": ("pandas is missing", [])})[0] == 1, "a job in which nothing ran"


@pytest.mark.few(1)
@pytest.mark.parametrize("processes", [0, 2])
def test_the_record_is_written(tmp_path, processes):
    for name in ("one", "two"):
        (tmp_path / f"test_{name}.py").write_text(
            f"import pytest\ndef test_{name}(): pass\n"
            f"@pytest.mark.gpu\n@pytest.mark.skip(reason='why')\ndef test_skipped_{name}(): pass\n"
        )
    (tmp_path / "test_absent.py").write_text("import pytest\npytest.importorskip('not_a_module')\n")
    hooks = [name for name in vars(outcomes) if name.startswith("pytest_")]
    assert all(getattr(conftest, name) is getattr(outcomes, name) for name in hooks)
    (tmp_path / "conftest.py").write_text(f"from instruments.outcomes import {', '.join(hooks)}\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
    out = tmp_path / "out.json"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(processes), str(tmp_path)],
        env={**os.environ, "RGALS_OUTCOMES": str(out), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    found = {test.rpartition("::")[2]: entry for test, entry in json.loads(out.read_text()).items()}
    for name in ("one", "two"):
        assert found[f"test_{name}"]["outcome"] == "ran"
        skipped = found[f"test_skipped_{name}"]
        assert (skipped["outcome"], skipped["markers"]) == ("skipped", ["gpu"])
        assert "why" in skipped["reason"]
    absent = [entry for test, entry in found.items() if "test_absent" in test]
    assert [entry["outcome"] for entry in absent] == ["skipped"]
    assert "not_a_module" in absent[0]["reason"]
