"""Devices to test on: CuPy's, or a stand-in with emulated or numpy kernels."""

from __future__ import annotations

import pytest
from solvers.cuda.emulator import COMPILER, EmulatedModule
from solvers.cuda.fake_cupy import FakeDevice
from solvers.cuda.numpy_kernels import NumpyModule

from rgals.runtime.errors import DeviceError, MissingDependencyError
from rgals.solvers.cuda import open_device


def _real_device():
    try:
        return open_device("cuda")
    except (MissingDependencyError, DeviceError) as error:
        pytest.skip(f"no GPU: {str(error).splitlines()[0]}")


@pytest.fixture(scope="session")
def numpy_device():
    """The array code on numpy, kernels written in numpy."""
    return FakeDevice(NumpyModule)


@pytest.fixture(
    scope="session",
    params=["numpy", "emulator", pytest.param("cuda", marks=pytest.mark.gpu)],
)
def device(request):
    """Every kind of device there is."""
    if request.param == "cuda":
        return _real_device()
    if request.param == "emulator":
        if COMPILER is None:
            pytest.skip("no C++ compiler (g++ or clang++) for the emulator")
        return FakeDevice(EmulatedModule)
    return FakeDevice(NumpyModule)


@pytest.fixture(scope="session")
def cuda():
    """The real device."""
    return _real_device()


# The emulator is slow: of the losses it runs those that take different paths.
EMULATED = {"rg2", "rg2-row-only", "rgx-half", "rg2-signed", "ials", "rgx"}


def pytest_collection_modifyitems(config, items):
    """Leave out what the emulator would only repeat."""
    dropped = []
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        if params.get("device") == "emulator" and (
            params.get("name", "rg2") not in EMULATED or params.get("valued") is False
        ):
            dropped.append(item)
    if dropped:
        items[:] = [item for item in items if item not in set(dropped)]
        config.hook.pytest_deselected(items=dropped)
