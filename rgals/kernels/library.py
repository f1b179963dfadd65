"""The library: kernels in vector code, compiled once for each element type, and called by name."""

# A `kernel` is a Python function that emits instructions (`rgals.kernels.vectors`). All kernels together are
# one library of machine code for float32 and one for float64, compiled on first use and kept in the cache.
# Compiled functions call kernels by symbol name. numba would instead copy a called function into each of its
# callers, and optimise the same instructions again in each of them.

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.compiler_lock import global_compiler_lock
from numba.core.event import trigger_event
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from rgals.kernels.vectors import INT, Emitter, Index, Indices, Number, Pointer
from rgals.runtime.caches import cache_of

_HERE = Path(__file__).parent
_RUNTIME = _HERE.parent / "runtime"
#: The files that compiled code comes from: these modules, what they import from outside, and our version.
SOURCES = (*sorted(_HERE.rglob("*.py")), _RUNTIME / "aligned.py", _RUNTIME / "version.py")
_REALS = {"f32": types.float32, "f64": types.float64}


class Kernel(NamedTuple):
    """A kernel: the function that emits its code, and the kinds of its arguments and its result."""

    symbol: str
    emit: Callable[..., Any]
    kinds: str
    result: str

    def function(self, module: ir.Module, real: types.Type) -> ir.Function:
        """Declare it in a module, for an element type."""
        number = ir.FloatType() if real == types.float32 else ir.DoubleType()
        of_kind = {"d": ir.DoubleType().as_pointer(), "x": ir.IntType(32).as_pointer(), "i": INT, "r": number}
        of_kind |= {"": ir.VoidType(), **dict.fromkeys("pv", number.as_pointer())}
        typ = ir.FunctionType(of_kind[self.result], [of_kind[kind] for kind in self.kinds])
        name = f"{self.symbol}.f{real.bitwidth}"
        function = cgutils.get_or_insert_function(module, typ, name)
        function.attributes.add("nounwind")
        return function

    def called(self, e: Emitter, *args: Any) -> Any:
        """Emit a call of it, by another kernel."""
        function = self.function(e.builder.module, e.type)
        values = (
            ir.Constant(typ, value) if isinstance(value, int | float) else getattr(value, "scalar", value)
            for typ, value in zip(function.function_type.args, args, strict=True)
        )
        value = e.builder.call(function, [getattr(value, "ir", value) for value in values])
        wrap = {"": lambda _: None, "i": lambda i: Index(e.builder, i), "r": lambda r: Number(e, r)}
        return wrap[self.result](value)

    def define(self, module: ir.Module, real: types.Type) -> None:
        """Emit its body into a module."""
        function = self.function(module, real)
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        e = Emitter(builder, real)
        wrap: dict[str, Callable[[Any], Any]] = {
            **dict.fromkeys("pv", lambda value: Pointer(e, value)),
            "d": lambda value: Pointer(e.wide(), value),
            "x": lambda value: Indices(e, value),
            "i": lambda value: Index(builder, value),
            "r": lambda value: Number(e, value),
        }
        result = self.emit(e, *(wrap[k](v) for k, v in zip(self.kinds, function.args, strict=True)))
        if not self.result:
            builder.ret_void()
        else:
            e.give_back(result)


_KERNELS: dict[str, Kernel] = {}


def kernel(kinds: str, result: str = "") -> Callable[..., Any]:
    """Turn ``emit(e, *arguments)`` into a function for compiled code and other kernels (`Emitter.call`)."""
    # ``kinds`` has a letter for each argument: ``p`` array and offset (a `Pointer` in ``emit``), ``v`` array
    # without offset, ``d`` float64 array and offset, ``x`` int32 array and offset (`Indices`), ``i`` integer
    # (`Index`), ``r`` real number (`Number`). Calls from other kernels pass pointers, without offsets.
    # ``result`` is what ``emit`` returns: ``i``, ``r`` or nothing.

    def decorate(emit: Callable[..., Any]) -> Any:
        made = Kernel(f"{emit.__module__}.{emit.__name__}", emit, kinds, result)
        if made.symbol in _KERNELS:
            raise NameError(f"two kernels are called {made.symbol}")
        _KERNELS[made.symbol] = made

        @intrinsic
        def call(typingctx, *args):
            # Compiled code passes an argument for each letter, and an offset behind arrays, but not kind v.
            letters = "".join(kind + "o" * (kind in "pdx") for kind in kinds)
            real = next(typ.dtype for kind, typ in zip(letters, args, strict=True) if kind in "pv")
            if real not in _REALS.values():
                return None

            def codegen(context, builder, signature, values):
                load(real)
                taken: list[Any] = []
                # An array becomes the address of its entry at the offset; numbers are cast.
                for position, (letter, typ) in enumerate(zip(letters, args, strict=True)):
                    value = builder.extract_value(values[0], position)
                    if letter in "pvdx":
                        taken.append(context.make_array(typ)(context, builder, value).data)
                        continue
                    value = context.cast(builder, value, typ, real if letter == "r" else types.int64)
                    if letter == "o":
                        taken[-1] = builder.gep(taken[-1], [value])
                    else:
                        taken.append(value)
                value = builder.call(made.function(builder.module, real), taken)
                return value if result else context.get_dummy_value()

            returned = {"": types.void, "i": types.int64, "r": real}[result]
            return returned(types.StarArgTuple(args)), codegen

        call.__doc__ = emit.__doc__
        call.called = made.called
        return call

    return decorate


# ---------------------------------------------------------------- compilation and cache

_loaded: set[types.Type] = set()


def module(real: types.Type) -> ir.Module:
    """All kernels for an element type, as an LLVM module."""
    for found in pkgutil.walk_packages([str(_HERE)], f"{__package__}."):
        importlib.import_module(found.name)
    made = ir.Module(f"rgals.{real}")
    for one in _KERNELS.values():
        one.define(made, real)
    return made


@global_compiler_lock
def load(real: types.Type) -> None:
    """Load the kernels for an element type, from the cache or by compiling them."""
    if real in _loaded:
        return
    codegen = cpu_target.target_context.codegen()
    key = (str(real), codegen.magic_tuple())
    cache = cache_of(module, SOURCES)
    saved = cache and cache._cache_file.load(key)
    if saved:
        codegen.unserialize_library(saved)
    else:
        about = {"dispatcher": SimpleNamespace(py_func=module), "args": (real,), "apart": True}
        with trigger_event("numba:compile", about):  # listeners see it as they see numba's own functions
            library = codegen.create_library(f"rgals.{real}")
            library.enable_object_caching()
            library.add_ir_module(module(real))
            library.finalize()
        if cache:
            cache._cache_file.save(key, library.serialize_using_object_code())
    _loaded.add(real)


def load_for(saved: Any) -> None:
    """Load the kernels that a cached function calls, recognised by the suffix of their symbol names."""
    ((_, _, (code, _)), *_) = saved
    for suffix, real in _REALS.items():
        if f".{suffix}\0".encode() in code:
            load(real)
