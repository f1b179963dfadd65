"""Kernels without a device: the real source compiled by g++ for a CPU, called as CuPy calls it."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

_HEADER = Path(__file__).with_name("emulator.h")
_SIGNATURE = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\(\w+\) )?(\w+)\(\s*([^)]*)\)', re.S)
_LIBRARIES: dict[str, ctypes.CDLL] = {}

COMPILER = shutil.which("g++") or shutil.which("clang++")


def signatures(source: str, real: np.dtype) -> dict[str, list[tuple[str, np.dtype, bool]]]:
    """Name, dtype and whether it is a pointer, for every argument of every kernel of a source."""
    dtypes = {"int": np.int32, "long long": np.int64, "double": np.float64, "REAL": real}
    found = {}
    for name, arguments in _SIGNATURE.findall(source):
        parsed = []
        for argument in arguments.split(","):
            kind, pointer, label = re.fullmatch(
                r"(?:const )?(int|long long|double|REAL) (\*?)(\w+)", argument.strip()
            ).groups()
            parsed.append((label, np.dtype(dtypes[kind]), bool(pointer)))
        found[name] = parsed
    return found


def check_arguments(name: str, expected: list[tuple[str, np.dtype, bool]], args: tuple) -> None:
    """A wrong type would be read as other bytes on a device, without any message."""
    assert len(args) == len(expected), f"{name}: {len(args)} arguments, {len(expected)} expected"
    for (label, dtype, pointer), value in zip(expected, args):
        what = f"{name}: {label}"
        if pointer:
            assert isinstance(value, np.ndarray), f"{what} must be an array, not {type(value)}"
            assert value.flags.c_contiguous, f"{what} is not contiguous"
        else:
            assert isinstance(value, np.generic), f"{what} must be a numpy scalar, not {type(value)}"
        assert value.dtype == dtype, f"{what} is {value.dtype}, the kernel takes {dtype}"


class _Guarded:
    """A copy of an array that ends at a page which cannot be touched: reading beyond it ends the process."""

    _libc = ctypes.CDLL(None, use_errno=True)

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        size = -(-max(array.nbytes, 1) // 16) * 16  # kernels may rely on 16-byte alignment
        pages = -(-size // mmap.PAGESIZE)
        self.memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        end = base + pages * mmap.PAGESIZE
        assert self._libc.mprotect(ctypes.c_void_p(end), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
        self.address = end - size
        ctypes.memmove(self.address, array.ctypes.data, array.nbytes)

    def copy_back(self) -> None:
        ctypes.memmove(self.array.ctypes.data, self.address, self.array.nbytes)


class EmulatedModule:
    """`cupy.RawModule` for the emulator.

    Parameters
    ----------
    code : str
    options : sequence of str
    """

    builds: Path  # a folder that the processes of one run of the tests share

    def __init__(self, *, code: str, options: tuple[str, ...]) -> None:
        real = np.float64 if "-DREAL=double" in options else np.float32
        self.signatures = signatures(code, np.dtype(real))
        text = f'#include "{_HEADER}"\n{code}\n' + "".join(f"EMULATE({name})\n" for name in self.signatures)
        key = hashlib.sha256((text + repr(options)).encode()).hexdigest()[:16]
        if key not in _LIBRARIES:
            library = self.builds / f"{key}.so"
            if not library.exists():
                self.build(text, options, library)
            _LIBRARIES[key] = ctypes.CDLL(str(library))
        self.library = _LIBRARIES[key]

    @staticmethod
    def build(text: str, options: tuple[str, ...], library: Path) -> None:
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            source, built = Path(folder, "kernels.cpp"), Path(folder, "kernels.so")
            source.write_text(text)
            command = [
                COMPILER, *options, "-O1", "-fPIC", "-shared", "-fno-strict-aliasing", "-w",
                "-U_FORTIFY_SOURCE", "-ffp-contract=off", "-o", built, source,
            ]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            built.replace(library)  # whole, where another process builds the same

    def get_function(self, name: str):
        """The kernel, to be called with grid, block and arguments."""
        function = getattr(self.library, f"launch_{name}")
        function.restype = ctypes.c_char_p
        expected = self.signatures[name]

        def launch(grid: tuple[int, ...], block: tuple[int, ...], args: tuple) -> None:
            check_arguments(name, expected, args)
            assert len(grid) == 1 and 0 < grid[0] < 2**31 and len(block) <= 2
            guarded: dict[int, _Guarded] = {}
            values = []
            for value in args:
                if isinstance(value, np.ndarray):
                    copy = guarded.setdefault(value.ctypes.data, _Guarded(value))
                    assert copy.array.nbytes == value.nbytes, f"{name}: overlapping arguments"
                    values.append(ctypes.c_void_p(copy.address))
                else:
                    values.append({4: ctypes.c_int, 8: ctypes.c_longlong}[value.dtype.itemsize](int(value)))
            pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
            wrong = function(grid[0], block[0], block[1] if len(block) > 1 else 1, pointers)
            assert wrong is None, f"{name}: {wrong.decode()}"
            for copy in guarded.values():
                copy.copy_back()

        return launch
