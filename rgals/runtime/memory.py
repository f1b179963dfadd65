"""Memory: how much is available; refusals before anything is allocated."""

import ctypes
import math
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from rgals.runtime import cgroups
from rgals.runtime.errors import DeviceMemoryError, InsufficientMemoryError

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

# Files of a control group: limit, usage, and statistics, which have the reclaimable page cache.
_V2 = ("memory.max", "memory.current", "memory.stat")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat")
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")

_Fit = TypeVar("_Fit", bound=Callable[..., Any])
#: Bytes of a limited address space that the first fit takes besides: for compiled code and BLAS, and for the
#: stack and the malloc arena of each thread. Without them LLVM ends the process, and OpenBLAS waits for ever.
_LIBRARIES, _PER_THREAD = 160 << 20, 80 << 20
_have_fitted = False
#: Bytes that `admit` predicted for the running fit, and its words, for the errors of `typed_errors`.
_admitted: ContextVar[tuple[int, str, str] | None] = ContextVar("admitted", default=None)


def available_bytes() -> float:
    """Bytes that the machine, the control groups and the limit of this process leave; infinite if unknown."""
    groups = [(folder, _V2) for folder in cgroups.folders("")]
    groups += [(folder, _V1) for folder in cgroups.folders("memory")]
    limits = [_control_group(*(folder / name for name in names)) for folder, names in groups]
    return max(0, min(_machine(), _own_limit(), *limits))


def require(needed: int, what: str, advice: str) -> None:
    """Raise `InsufficientMemoryError` if the ``needed`` bytes, for ``what``, exceed what is available."""
    free = available_bytes()
    if needed > free:
        most = f"but {readable(free)} are available"
        raise InsufficientMemoryError(f"{what} needs about {readable(needed)} of memory, {most}; {advice}")


def admit(needed: int, what: str, advice: str, threads: int = 1) -> None:
    """`require` for a whole fit, whose figure `typed_errors` repeats if memory runs out nevertheless."""
    require(needed, what, advice)
    beside, left = _LIBRARIES + threads * _PER_THREAD, _own_limit()
    if needed + beside > left and not _have_fitted:
        also = f"and, as the first fit, {readable(beside)} of addresses for libraries and {threads} threads"
        advice = f"but its limit leaves {readable(left)}; raise ulimit -v or lower n_jobs, or {advice}"
        raise InsufficientMemoryError(f"{what} needs about {readable(needed)} {also}, {advice}")
    _admitted.set((needed, what, advice))


def typed_errors(fit: _Fit) -> _Fit:
    """Decorate a fit: a `MemoryError` becomes an `InsufficientMemoryError` with the figures of `admit`."""

    @wraps(fit)
    def typed(*args: Any, **kwargs: Any) -> Any:
        global _have_fitted
        token = _admitted.set(None)
        try:
            fitted = fit(*args, **kwargs)
            _have_fitted = _have_fitted or _admitted.get() is not None
            return fitted
        except (InsufficientMemoryError, DeviceMemoryError):
            raise
        except MemoryError as error:
            raise InsufficientMemoryError(_ran_out(error)) from error
        finally:
            _admitted.reset(token)

    return cast(_Fit, typed)


def _ran_out(error: MemoryError) -> str:
    free, said = available_bytes(), f" ({error})" if str(error) else ""
    left = "" if free == math.inf else f"; {readable(free)} are available"
    when = "while the input of the fit was checked"
    advice = "give fewer interactions, or a canonical CSR matrix in the dtype of the fit, which is not copied"
    if (admitted := _admitted.get()) is not None:
        needed, what, advice = admitted
        when = f"during {what}, which needs about {readable(needed)}"
    return f"memory ran out {when}{said}{left}; {advice}"


def readable(n_bytes: float) -> str:
    """A number of bytes as text: ``1.5 KiB``."""
    amount, unit = float(n_bytes), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.1f} {_UNITS[unit]}" if unit else f"{n_bytes} bytes"


def give_back_freed() -> None:
    """Return freed memory to the system: after large arrays glibc keeps what is freed."""
    if sys.platform == "linux":
        with suppress(AttributeError):  # another libc
            ctypes.CDLL(None).malloc_trim(0)


def _machine() -> float:
    """Bytes that are free, with the caches that the system would give up."""
    with suppress(OSError, ValueError, LookupError, AttributeError):  # the system does not tell
        return {"win32": _windows, "darwin": _macos}.get(sys.platform, _linux)()
    return math.inf


def _linux() -> int:
    for line in (cgroups.PROC / "meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise LookupError("MemAvailable")


def _windows() -> int:
    # MEMORYSTATUSEX: its length and the load in per cent, then total and available bytes of memory, of the
    # commit limit (nothing is allocated beyond it), and of addresses.
    status = (ctypes.c_uint64 * 8)(64)
    if not ctypes.CDLL("kernel32").GlobalMemoryStatusEx(status):
        raise OSError("GlobalMemoryStatusEx")
    return min(status[2], status[4])


def _macos() -> int:
    def ask(name: bytes) -> int:
        value, size = ctypes.c_uint64(), ctypes.c_size_t(8)
        told = ctypes.byref(value), ctypes.byref(size)
        if ctypes.CDLL(None).sysctlbyname(name, *told, None, ctypes.c_size_t()):
            raise OSError(name)
        return value.value

    return ask(b"hw.memsize") * ask(b"kern.memorystatus_level") // 100


def _control_group(limit: Path, usage: Path, statistics: Path) -> float:
    with suppress(OSError, ValueError):  # no such group, or "max": no limit
        bound, used = int(limit.read_text()), int(usage.read_text())
        caches = re.findall(r"^(?:total_)?inactive_file (\d+)$", statistics.read_text(), re.MULTILINE)
        return bound - max(0, used - max(map(int, caches), default=0))
    return math.inf


def _own_limit() -> float:
    """Bytes left of the limit on the address space of this process; infinite without a limit."""
    if resource is None or (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) == resource.RLIM_INFINITY:
        return math.inf
    return limit - of_process(0)


def of_process(which: int) -> int:
    """Bytes of this process: of its address space (0), in memory (1); 0 if the system is not Linux."""
    with suppress(OSError, ValueError, IndexError, AttributeError):
        return int((cgroups.PROC / "self/statm").read_text().split()[which]) * os.sysconf("SC_PAGE_SIZE")
    return 0
