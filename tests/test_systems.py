"""Windows and macOS, as far as Linux can play them (`instruments.journey`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from instruments.harness import python

JOURNEY = str(Path(__file__).parent / "instruments" / "journey.py")


def journey(platform: str, folder: Path) -> dict:
    folder.mkdir()
    done = python(JOURNEY, platform, str(folder), NUMBA_NUM_THREADS=2)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """What a process does that finds the system as it is."""
    return journey("linux", tmp_path_factory.mktemp("journey") / "linux")


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="plays other systems on Linux")
@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_the_whole_package_works_elsewhere_and_writes_the_same_bytes(tmp_path, here, platform):
    there = journey(platform, tmp_path / platform)
    different = {name for name in {*here, *there} if here.get(name) != there.get(name)}
    # A history has seconds. What numpy's own function wrote says which system it was.
    timed = {"als.npz", "sgd.npz", "cli.npz", "checkpoint/checkpoint.npz"}
    assert different <= timed | {"data.npz", "held.npz"}, different
    assert not [name for name in there if name.endswith((".tmp", ".lock"))]
