"""A stand-in for CuPy in host memory: numpy's functions on arrays that do not mix with numpy's own.

Everything above CuPy runs unchanged on it.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import scipy.linalg

from rgals.solvers.cuda import Device


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
    __version__ = "0"

    def __init__(self, memory):
        super().__init__(np)
        self.linalg = _Module(np.linalg)
        self.cuda = SimpleNamespace(
            Device=lambda ordinal: nullcontext(),
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


class _Lapack:
    """``cupyx.lapack``: one right-hand side, the upper triangles as C counts, errors only where asked for."""

    def __init__(self):
        self.strict = False

    def posv(self, A, b):
        assert A.shape[:2] == b.shape
        assert A.dtype == b.dtype
        x = np.zeros_like(FakeArray.bare(b))
        for i, (a, right) in enumerate(zip(*FakeArray.bare((A, b)))):
            _, x[i], info = scipy.linalg.lapack.get_lapack_funcs("posv", (a,))(a, right, lower=0)
            if info and self.strict:
                raise np.linalg.LinAlgError("potrfBatched")
        return on_device(x)


class FakeCuPyX:
    """The part of ``cupyx``."""

    def __init__(self):
        self.lapack = _Lapack()

    def errstate(self, linalg):
        lapack = self.lapack

        class Strict:
            def __enter__(self):
                lapack.strict = linalg == "raise"

            def __exit__(self, *error):
                lapack.strict = False

        return Strict()


class FakeDevice(Device):
    """A `Device` on `FakeCuPy`."""

    def __init__(self, memory=1 << 29):
        super().__init__(FakeCuPy(memory), FakeCuPyX())
