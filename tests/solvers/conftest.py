"""Devices to test on: CuPy's, or a stand-in on numpy."""

from __future__ import annotations

import functools

import pytest
from solvers.cuda.fake_cupy import FakeArray, FakeDevice

from rgals.runtime.errors import DeviceError, MissingDependencyError
from rgals.solvers.cuda import device as cuda_device
from rgals.solvers.cuda import open_device


@functools.cache
def open_kind(kind):
    """Device by kind: "numpy", a stand-in, or "cuda"."""
    if kind == "numpy":
        return FakeDevice()
    try:
        return open_device("cuda")
    except (MissingDependencyError, DeviceError) as error:
        pytest.skip(f"no GPU: {str(error).splitlines()[0]}")


@pytest.fixture(scope="session")
def devices():
    """Device by kind."""
    return open_kind


@pytest.fixture
def numpy_device():
    """CuPy's functions by numpy."""
    return FakeDevice()


@pytest.fixture(params=["numpy", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """Every kind of device there is."""
    return open_kind(request.param)


@pytest.fixture
def cuda():
    """The real device."""
    return open_kind("cuda")


@pytest.fixture
def pretend(monkeypatch):
    """``device="cuda"`` is the stand-in."""

    def here(device):
        monkeypatch.setattr(cuda_device, "_import_cupy", lambda: device.xp)

    return here


@pytest.fixture
def small(monkeypatch):
    """A device of so many bytes an array."""

    def of(capacity, room=1 << 30):
        monkeypatch.setattr(FakeArray, "capacity", capacity)
        monkeypatch.setattr(FakeArray, "refused", 0)
        device = FakeDevice()
        device.room = room  # believes that there is more
        return device

    return of
