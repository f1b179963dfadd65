"""`benchmarks/gpu.py`: clear without a device, and every table is made on a stand-in."""

from __future__ import annotations

import importlib.util
import json
import types
from pathlib import Path

import numpy as np
import pytest

from rgals.runtime.errors import DeviceError


@pytest.fixture
def benchmark():
    path = Path(__file__).resolve().parents[3] / "benchmarks" / "gpu.py"
    spec = importlib.util.spec_from_file_location("benchmark_gpu", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_a_device_it_says_so(benchmark, monkeypatch, capsys):
    def missing(name):
        raise DeviceError("device='cuda': this machine has no CUDA device; set device='cpu'")

    monkeypatch.setattr(benchmark, "open_device", missing)
    assert benchmark.main(["--no-tests"]) == 2
    said = capsys.readouterr()
    assert "nothing measured: device='cuda': this machine has no CUDA device" in said.err
    assert said.out == ""


@pytest.mark.few(0)
def test_every_table_is_made(benchmark, monkeypatch, capsys, tmp_path, numpy_device, pretend):
    pretend(numpy_device)
    monkeypatch.setattr(benchmark, "implicit_seconds", lambda X, K, device: 0.5)
    passed = types.SimpleNamespace(returncode=0, stdout="70 passed in 1s\n", stderr="")
    monkeypatch.setattr(
        benchmark, "subprocess", types.SimpleNamespace(run=lambda *args, **kwargs: passed)
    )  # not of the module: the stand-in compiles by it
    out = tmp_path / "rows.jsonl"
    arguments = ["--K", "8", "--shape", "60", "40", "900", "--oracle-users", "40", "--product", "64"]
    assert benchmark.main([*arguments, "--out", str(out)]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    kinds = [row["what"] for row in rows]
    assert set(kinds) == {"tests", "limits", "error", "eigh", "half-steps", "iteration", "topk"}
    for row in rows:
        assert row["device"] == "stand-in"
        if row["what"] == "error":
            assert max(v for k, v in row.items() if k.startswith("float32")) < 1e-3
            assert max(v for k, v in row.items() if k.startswith("float64")) < 1e-8
    assert {row["method"] for row in rows if row["what"] == "iteration"} == set(benchmark.METHODS)
    assert "| RGx exact |" in capsys.readouterr().out


def test_it_stops_in_time(benchmark, capsys, numpy_device, pretend):
    pretend(numpy_device)
    arguments = ["--K", "8", "--shape", "60", "40", "900", "--oracle-users", "12", "--product", "64"]
    assert benchmark.main([*arguments, "--no-tests", "--seconds", "0"]) == 0
    assert "K=8 RG2 exact: left out, time is up" in capsys.readouterr().out


def test_the_least_work_is_that_of_the_formulas(benchmark):
    X = benchmark.skewed(50, 30, 800)
    assert X.max() == 1 and len(np.unique(np.diff(X.indptr))) > 5
    flops, gathered = benchmark.least_work(X, 16, "RG2 shared")
    assert gathered == 2 * X.nnz * 68
    assert flops == 4 * X.nnz * 16 + 80 * (2 * 256 + 16 * 17)
