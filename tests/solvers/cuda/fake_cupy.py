"""A stand-in for CuPy in host memory: numpy's functions on arrays that do not mix with numpy's own.

Everything above CuPy runs unchanged on it, and so do the kernels, by `emulator.cpp` and a compiler of C++.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rgals.solvers.cuda import Device

COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")


@functools.cache
def compiled(code, options, name):
    """A kernel's emulation: a function of blocks, threads, their order and the addresses of arguments."""
    if COMPILER is None:
        pytest.skip("no compiler of C++, which the GPU's kernels are emulated with")
    emulator, kept = Path(__file__).with_name("emulator.cpp"), Path(__file__).with_name("__pycache__")
    command = [COMPILER, "-O1", "-U_FORTIFY_SOURCE", "-shared", "-fPIC", *options, f"-DKERNEL={name}"]
    made_of = repr((command, code, emulator.read_text())).encode()
    library = kept / f"{hashlib.sha256(made_of).hexdigest()}.so"  # of all processes, and of the next run
    if not library.is_file():
        kept.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept) as folder:
            source, out = Path(folder) / "kernel.cu", Path(folder) / "kernel.so"
            source.write_text(code)
            subprocess.run([*command, f'-DSOURCE="{source}"', emulator, "-o", out], check=True)
            out.replace(library)
    launch = ctypes.CDLL(str(library)).launch
    launch.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
    return launch


class FakeModule:
    """``cupy.RawModule``."""

    backwards = False  # the order in which threads take turns

    def __init__(self, code, options):
        self.code, self.options = code, options

    def get_function(self, name):
        launch, backwards = compiled(self.code, self.options, name), self.backwards

        def kernel(grid, block, args):
            held = [np.array(a.ctypes.data if isinstance(a, FakeArray) else a) for a in args]
            assert all(a.flags.c_contiguous for a in args if isinstance(a, FakeArray))
            places = (ctypes.c_void_p * len(held))(*(a.ctypes.data for a in held))
            assert launch(*grid, *block, backwards, places) == 0, "a barrier that only some threads reach"

        return kernel


class FakePlace:
    """``cupy.cuda.Device``."""

    attributes = {"MultiProcessorCount": 2}

    def __init__(self, ordinal):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


class FakeArray(np.ndarray):
    """Memory of the pretended device: of as many bytes at most as its `capacity`, where that is set."""

    capacity = 1 << 26
    refused = 0

    @staticmethod
    def bare(value):
        """As numpy's array; arrays of the host are refused."""
        if isinstance(value, tuple | list):
            return type(value)(map(FakeArray.bare, value))
        if isinstance(value, np.ndarray) and not isinstance(value, FakeArray) and value.ndim:
            raise TypeError("an array of the host among arrays of the device")
        return np.asarray(value).view(np.ndarray) if isinstance(value, FakeArray) else value

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **kwargs):
        if out is not None:
            kwargs["out"] = self.bare(out)
        with np.errstate(invalid="ignore"):
            result = getattr(ufunc, method)(*self.bare(inputs), **kwargs)
        return out[0] if out is not None else on_device(result)

    def __getitem__(self, key):
        self.bare(key)
        return on_device(super().__getitem__(key))

    def __setitem__(self, key, value):
        self.bare((key, value))
        super().__setitem__(key, value)


def on_device(result):
    """A result of numpy as one of the device, which has arrays without dimensions in place of scalars."""
    if isinstance(result, tuple):
        return tuple(map(on_device, result))
    if isinstance(result, FakeArray) and result.base is not None:
        return result  # a view
    if not isinstance(result, np.ndarray | np.generic):
        return result
    if np.asarray(result).nbytes > FakeArray.capacity:
        FakeArray.refused += 1
        raise MemoryError("out of memory of the pretended device")
    return np.asarray(result).view(FakeArray)


class _Module:
    """A module of numpy on arrays of the device."""

    def __init__(self, module):
        self._module = module

    def __getattr__(self, name):
        function = getattr(self._module, name)
        if not callable(function) or isinstance(function, type):
            return function

        def call(*args, **kwargs):
            return on_device(function(*FakeArray.bare(args), **kwargs))

        return call


class FakeCuPy(_Module):
    """The part of the ``cupy`` module that rgals uses."""

    ndarray = FakeArray
    RawModule = FakeModule
    __version__ = "0"

    def __init__(self, memory):
        super().__init__(np)
        self.linalg = _Module(np.linalg)
        self.cuda = SimpleNamespace(
            Device=FakePlace,
            runtime=SimpleNamespace(
                memGetInfo=lambda: (memory, memory),
                getDeviceCount=lambda: 1,
                getDeviceProperties=lambda ordinal: {"name": b"stand-in"},
                deviceSynchronize=lambda: None,
            ),
        )

    def get_default_memory_pool(self):
        return SimpleNamespace(free_all_blocks=lambda: None)

    def asarray(self, array):
        assert not isinstance(array, FakeArray)
        return on_device(np.array(array))

    def asnumpy(self, array):
        assert isinstance(array, FakeArray)
        return np.array(array).view(np.ndarray)


class FakeDevice(Device):
    """A `Device` on `FakeCuPy`."""

    def __init__(self, memory=1 << 29):
        super().__init__(FakeCuPy(memory))
