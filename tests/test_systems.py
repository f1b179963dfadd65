"""Windows and macOS, as far as Linux can play them (`instruments.journey`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from instruments.harness import python

JOURNEY = str(Path(__file__).parent / "instruments" / "journey.py")


@pytest.mark.few(0)
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="plays other systems on Linux")
def test_the_whole_package_works_elsewhere_and_writes_the_same_bytes(tmp_path):
    done = python(JOURNEY, str(tmp_path), NUMBA_NUM_THREADS=2)
    assert done.returncode == 0, done.stderr
    found = dict(map(json.loads, done.stdout.splitlines()))
    assert found.keys() == {"linux", "win32", "darwin"}
    here = found["linux"]
    # A history has seconds. What numpy's own function wrote says which system it was.
    timed = {"als.npz", "sgd.npz", "cli.npz", "checkpoint/checkpoint.npz"}
    for platform in ("win32", "darwin"):
        there = found[platform]
        different = {name for name in {*here, *there} if here.get(name) != there.get(name)}
        assert different <= timed | {"data.npz", "held.npz"}, (platform, different)
        assert not [name for name in there if name.endswith((".tmp", ".lock"))]
