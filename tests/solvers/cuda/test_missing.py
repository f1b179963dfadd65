"""What a user reads where CuPy, CUDA's libraries or a device are missing."""

from __future__ import annotations

import builtins
import types

import numpy as np
import pytest
from helpers import factors, interactions

from rgals import RG2, RGALS, ParameterError
from rgals.runtime.errors import DeviceError, MissingDependencyError, RgalsError
from rgals.scoring import topk
from rgals.solvers.cuda import device as cuda_device
from rgals.solvers.cuda import is_cuda, open_device


def without(monkeypatch, name):
    """Make ``import name`` (a dotted one too) fail."""
    original = builtins.__import__

    def refuse(module, globals=None, locals=None, fromlist=(), level=0):
        wanted = {module, *(f"{module}.{part}" for part in fromlist or ())}
        if name in wanted:
            raise ImportError(f'Failure finding "lib{name}"\n  listdir("...")')
        if module == "cupy" and name != "cupy":
            return types.SimpleNamespace()
        if module == "cupyx.lapack":
            return types.SimpleNamespace()
        return original(module, globals, locals, fromlist, level)

    monkeypatch.setattr(builtins, "__import__", refuse)


def with_devices(monkeypatch, count):
    def answer():
        if isinstance(count, Exception):
            raise count
        return count

    cp = types.SimpleNamespace(
        cuda=types.SimpleNamespace(runtime=types.SimpleNamespace(getDeviceCount=answer))
    )
    monkeypatch.setattr(cuda_device, "_import_cupy", lambda: cp)


CALLS = {
    "fit": lambda: RGALS(K=4, device="cuda").fit(interactions()),
    "svd": lambda: RGALS(K=4, loss=RG2(alpha=0.0), solver="svd", device="cuda").fit(interactions()),
    "topk": lambda: topk(factors(3, 2), factors(4, 2), device="cuda"),
}


@pytest.mark.parametrize("call", CALLS)
def test_without_cupy_the_message_holds_the_line_that_installs_it(monkeypatch, call):
    without(monkeypatch, "cupy")
    with pytest.raises(
        MissingDependencyError,
        match=r"needs CuPy .*pip install 'rgals\[cuda13\]'.*cuda12.*before Turing.*device='cpu'",
    ) as error:
        CALLS[call]()
    assert isinstance(error.value, ImportError) and isinstance(error.value, RgalsError)


def test_without_the_libraries_of_cuda_the_message_says_which(monkeypatch):
    without(monkeypatch, "cupyx.lapack")
    with pytest.raises(
        MissingDependencyError, match=r"libcupyx.lapack.*pip install 'rgals\[cuda13\]'"
    ) as error:
        open_device()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("count", [0, RuntimeError("cudaErrorInsufficientDriver: version is insufficient")])
def test_without_a_device_the_message_says_what_helps(monkeypatch, call, count):
    with_devices(monkeypatch, count)
    with pytest.raises(DeviceError, match=r"device='cuda'.* no CUDA device.*device='cpu'") as error:
        CALLS[call]()
    assert isinstance(error.value, RuntimeError) and isinstance(error.value, RgalsError)
    if count:
        assert "cudaErrorInsufficientDriver" in str(error.value)


def test_a_device_that_is_not_there_is_named(monkeypatch):
    with_devices(monkeypatch, 2)
    with pytest.raises(ParameterError, match=r"device='cuda:2'.*cuda:0 to cuda:1"):
        open_device("cuda:2")


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cuda:N", "CUDA", None, 0])
def test_other_names_are_refused(device):
    assert not is_cuda(device)
    with pytest.raises(ParameterError, match="device"):
        RGALS(K=4, device=device).fit(interactions())
    with pytest.raises(ParameterError, match="device"):
        topk(factors(3, 2), factors(4, 2), device=device)


def test_what_a_device_cannot_do_is_refused_before_it_is_looked_for():
    with pytest.raises(ParameterError, match=r"solver='dense' .*device='cpu'"):
        RGALS(K=4, solver="dense", device="cuda").fit(interactions())
    with pytest.raises(ParameterError, match=r"solver='pcg' .*exactly on a GPU"):
        RGALS(K=4, solver="pcg", device="cuda").fit(interactions())
    with pytest.raises(ParameterError, match=r"K=1025 .*at most 1024"):
        RGALS(K=1025, device="cuda").fit(interactions())


def test_this_machine_answers_with_one_of_these_errors_or_works():
    """Whatever is installed here, really: no other error gets through."""
    queries, items = factors(3, 2), factors(40, 2)
    try:
        ids, _ = topk(queries, items, 3, device="cuda")
    except (MissingDependencyError, DeviceError) as error:
        assert "pip install" in str(error) or "device='cpu'" in str(error)
    else:
        np.testing.assert_array_equal(ids, topk(queries, items, 3)[0])


def test_cupy_is_imported_only_when_asked_for(bare):
    code = (
        "import sys, rgals, rgals.scoring; from rgals.solvers.cuda.backend import CuPyBackend; "
        "rgals.RGALS(device='cuda'); print('cupy' in sys.meta_path[0].tried)"
    )
    assert bare.python(code) == ("False\n", "")
    assert bare.python("try: import cupy\nfinally:\n    " + code)[0] == "True\n"
