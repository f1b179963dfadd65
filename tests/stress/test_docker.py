"""The image of the service is built and serves, where a daemon runs."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.request

import numpy as np
import pytest
from conftest import ROOT

from rgals import RGALS


def docker(*words: str, timeout: float = 1800) -> str:
    done = subprocess.run(["docker", *words], cwd=ROOT, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


def test_the_image_is_built_and_serves_read_only(tmp_path):
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True).returncode:
        pytest.skip("no docker daemon here: tests/test_dockerfile.py has read the file")
    X = (np.random.default_rng(0).random((20, 12)) < 0.4).astype(np.float32)
    RGALS(K=4, n_iter=2, random_state=0).fit(X).save(tmp_path / "model.npz")
    tmp_path.chmod(0o755)
    (tmp_path / "model.npz").chmod(0o644)
    docker("build", "-q", "-f", "examples/Dockerfile", "-t", "rgals-service-test", ".")
    told = ["--detach", "--rm", "--read-only", "--cap-drop=ALL", "-p", "127.0.0.1::8000"]
    container = docker("run", *told, "-v", f"{tmp_path}:/models:ro", "rgals-service-test")
    try:
        address = docker("port", container, "8000").splitlines()[0]
        for _ in range(300):
            try:
                with urllib.request.urlopen(f"http://{address}/health", timeout=5) as answer:
                    assert json.load(answer)["users"] == 20
                break
            except OSError:
                time.sleep(0.2)
        else:
            pytest.fail(docker("logs", container))
        assert "not cached" not in docker("logs", container)
        assert docker("exec", container, "id", "-u") == "10001"
    finally:
        docker("kill", container)
