"""How kernels are compiled: entries, which Python calls, and inner functions, which compiled code calls."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numba
from numba import njit
from numba.core import caching
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.registry import CPUDispatcher

from rgals.kernels import library
from rgals.runtime.caches import Entries, cache_of, ctrl_c_waits, warn_uncached


class _Entries(Entries):
    def load(self, key: tuple) -> Any:
        """A cached function or None, after loading the kernels that it calls."""
        data = super().load(key)
        if data is not None:
            library.load_for(data)
        return data


class _Entry(CPUDispatcher):
    def compile(self, sig: Any) -> Any:
        with ctrl_c_waits():
            return super().compile(sig)


def entry(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile a function that Python calls, and cache it; warn if it cannot be cached."""
    # Used as ``@entry`` or ``@entry(nogil=True)``, with the options of `numba.njit`.
    if function is None:
        return lambda function: entry(function, **options)
    dispatcher: Any = njit(**options)(function)
    if not isinstance(getattr(dispatcher, "_cache", None), caching.NullCache):
        warn_uncached(f"numba {numba.__version__} keeps its cache in another way")
        return dispatcher
    dispatcher.__class__ = _Entry
    dispatcher._cache = cache_of(function, library.SOURCES, _Entries) or dispatcher._cache
    return dispatcher


class _Part(JITCodeLibrary):
    """The code of an inner function, not optimised: its callers optimise it together with their own."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    #: numba puts a function's environment here. Only calls from Python need it.
    codegen: Any = SimpleNamespace(set_env=lambda name, environment: None)


class _ToPart(Compiler):
    def compile_extra(self, function: Any) -> Any:
        self.state.library = _Part(self.state.targetctx.codegen(), function.__qualname__)
        return super().compile_extra(function)


class _Inner(CPUDispatcher):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = self.py_func.__name__
        raise TypeError(f"Python cannot call {name}, as kernels do: njit(lambda *args: {name}(*args)) can")


def inner(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile a function that only compiled code calls. It does not count references to its arrays."""
    # Counting takes two atomic instructions for every array of every call: some percent of the time of short
    # rows. So it may neither allocate nor return an array, unless ``_nrt=True``. Calls from Python are a
    # `TypeError`. It has no machine code of its own and is optimised and cached with its callers only:
    # numba's own functions are optimised again in every caller up to Python, which doubles the time to
    # compile. Used as ``@inner`` or ``@inner(fastmath=...)``, with the options of `numba.njit`.
    if function is None:
        return lambda function: inner(function, **options)
    wrappers = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    dispatcher: Any = njit(**{"_nrt": False, "pipeline_class": _ToPart, **wrappers, **options})(function)
    dispatcher.__class__ = _Inner  # without wrappers, a call from Python would crash the process
    return dispatcher
