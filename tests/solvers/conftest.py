"""Devices to test on: CuPy's, or a stand-in with emulated or numpy kernels."""

from __future__ import annotations

import functools
import os

import numpy as np
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


@pytest.fixture(scope="session", autouse=True)
def builds(tmp_path_factory):
    """What one process of `pytest -n` has compiled for the emulator, the others load."""
    folder = tmp_path_factory.getbasetemp()
    EmulatedModule.builds = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "emulator"
    EmulatedModule.builds.mkdir(exist_ok=True)


@functools.cache
def open_kind(kind):
    if kind == "cuda":
        return _real_device()
    if kind == "emulator":
        if COMPILER is None:
            pytest.skip("no C++ compiler (g++ or clang++) for the emulator")
        return FakeDevice(EmulatedModule)
    return FakeDevice(NumpyModule)


@pytest.fixture(scope="session")
def devices():
    """Device by kind: "numpy" (array code and kernels on numpy), "emulator", "cuda"."""
    return open_kind


@pytest.fixture(scope="session")
def numpy_device():
    """The array code on numpy, kernels written in numpy."""
    return open_kind("numpy")


@pytest.fixture(params=["numpy", "emulator", pytest.param("cuda", marks=pytest.mark.gpu)], scope="session")
def device(request):
    """Every kind of device there is."""
    return open_kind(request.param)


@pytest.fixture(scope="session")
def cuda():
    """The real device."""
    return open_kind("cuda")


# The emulator is slow: of the losses it runs those that take different paths, but every half-step; of the
# iterated half-steps each side in one precision, as the kernel that iterates does not know the side.
EMULATED = {"rg2", "rg2-row-only", "rgx-half", "rg2-signed", "ials", "rgx"}


def pytest_collection_modifyitems(config, items):
    """Leave out what the emulator would only repeat."""
    dropped = []
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        emulated = "emulator" in (params.get("device"), params.get("backend"))
        contract = item.name.startswith("test_half_step_equals_the_oracle")
        iterated = item.name.startswith("test_conjugate_gradients_approach")
        again = iterated and (params["side"] == "user") == (params["dtype"] is np.float64)
        if emulated and (again or params.get("name", "rg2") not in EMULATED and not contract):
            dropped.append(item)
    if dropped:
        items[:] = [item for item in items if item not in set(dropped)]
        config.hook.pytest_deselected(items=dropped)
