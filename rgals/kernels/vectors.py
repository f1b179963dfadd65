"""Vector code for compiled functions: an emitter of LLVM instructions whose values read like formulas.

A `kernel` is a Python function that emits code for one element type. Its values have operators:
``x + a * p`` is one multiply-add with one rounding, ``y[at] = x[at] * s`` loads, multiplies and stores W
numbers, W being one cache line (16 float32, 8 float64). LLVM maps a vector to whatever registers there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from rgals.runtime import aligned as _aligned

LINE = _aligned.LINE  # bytes of a vector: W = LINE // itemsize


def _has_avx512() -> bool:
    """Whether numba compiles for AVX-512: as this processor has it, or as ``NUMBA_CPU_FEATURES`` says."""
    told = numba.config.CPU_FEATURES
    return "+avx512f" in told if told is not None else bool(llvm.get_host_cpu_features().get("avx512f"))


HAS_AVX512 = _has_avx512()
INT, _I32, _BYTE = ir.IntType(64), ir.IntType(32), ir.IntType(8).as_pointer()


class Index:
    """A 64-bit integer with ``+``, ``-``, ``*`` and ``//``."""

    def __init__(self, builder: ir.IRBuilder, value) -> None:
        self.builder = builder  # a Python integer becomes a constant
        self.ir = ir.Constant(INT, value) if isinstance(value, int) else value

    def _of(self, other) -> Index:
        return other if isinstance(other, Index) else Index(self.builder, other)

    def __add__(self, other):
        return Index(self.builder, self.builder.add(self.ir, self._of(other).ir))

    def __sub__(self, other):
        return Index(self.builder, self.builder.sub(self.ir, self._of(other).ir))

    def __mul__(self, other):
        return Index(self.builder, self.builder.mul(self.ir, self._of(other).ir))

    def __floordiv__(self, other):
        return Index(self.builder, self.builder.udiv(self.ir, self._of(other).ir))

    __radd__, __rmul__ = __add__, __mul__

    def at_most(self, other) -> Index:
        """The smaller of two."""
        less = self.builder.icmp_signed("<", self.ir, self._of(other).ir)
        return Index(self.builder, self.builder.select(less, self.ir, self._of(other).ir))


class Vector:
    """W numbers in a register; operators work number by number."""

    def __init__(self, e: Emitter, value=None) -> None:
        self.e, self._ir = e, value

    @property
    def ir(self):
        """The LLVM value."""
        return self._ir

    def __add__(self, other):
        if isinstance(other, Product):  # one instruction, one rounding
            return self.e.fma(other.left, other.right, self)
        return Vector(self.e, self.e.builder.fadd(self.ir, other.ir))

    def __sub__(self, other):
        if isinstance(other, Product):
            return self.e.fma(-other.left, other.right, self)
        return Vector(self.e, self.e.builder.fsub(self.ir, other.ir))

    def __mul__(self, other) -> Product:
        return Product(self.e, self, other)

    def __truediv__(self, other):
        return Vector(self.e, self.e.builder.fdiv(self.ir, other.ir))

    def __neg__(self):
        return Vector(self.e, self.e.builder.fneg(self.ir))


class Product(Vector):
    """``left * right``: fused where it is added or subtracted, rounded where it is used as a number."""

    def __init__(self, e: Emitter, left: Vector, right: Vector) -> None:
        super().__init__(e)
        self.left, self.right = left, right

    @property
    def ir(self):
        """The product. Emitted at every use: a value from another block need not be there."""
        return self.e.builder.fmul(self.left.ir, self.right.ir)

    def __add__(self, other):
        return (other.rounded() if isinstance(other, Product) else other) + self

    def rounded(self) -> Vector:
        """The product as a number: what is added to it is not fused with it."""
        return Vector(self.e, self.ir)


class Variable(Vector):
    """A vector that changes, ``v += a * b``, and stays in a register."""

    def __init__(self, e: Emitter) -> None:
        super().__init__(e)
        # Memory in the function's entry; LLVM turns it into a register.
        self.slot = cgutils.alloca_once(e.builder, e.vector)
        self.set(e.zero())

    @property
    def ir(self):
        """Its present value."""
        return self.e.builder.load(self.slot)

    def set(self, value: Vector) -> None:
        """Change it."""
        self.e.builder.store(value.ir, self.slot)

    def __iadd__(self, other):
        self.set(self + other)
        return self


class Pointer:
    """An address of numbers; ``p[i]`` are the W numbers from the i-th on, in any alignment."""

    def __init__(self, e: Emitter, address) -> None:
        self.e, self.ir = e, address

    def __add__(self, offset) -> Pointer:
        return Pointer(self.e, self.e.builder.gep(self.ir, [Index(self.e.builder, 0)._of(offset).ir]))

    def _vector(self, i):
        return self.e.builder.bitcast((self + i).ir, self.e.vector.as_pointer())

    def __getitem__(self, i) -> Vector:
        return Vector(self.e, self.e.builder.load(self._vector(i), align=self.e.align))

    def __setitem__(self, i, value: Vector) -> None:
        self.e.builder.store(value.ir, self._vector(i), align=self.e.align)

    def spread(self, i=0) -> Vector:
        """A vector of equal numbers: the i-th."""
        return self.e.spread(self.e.builder.load((self + i).ir, align=self.e.align))

    def put(self, i, number) -> None:
        """Store one number."""
        self.e.builder.store(number, (self + i).ir, align=self.e.align)

    def prefetch(self, i=0, keep=3, write=0) -> None:
        """Ask for the cache line of a number: for the first-level cache, with ``keep`` 2 for the second."""
        fn_type = ir.FunctionType(ir.VoidType(), [_BYTE, _I32, _I32, _I32])
        fn = cgutils.get_or_insert_function(self.e.builder.module, fn_type, "llvm.prefetch.p0")
        numbers = [ir.Constant(_I32, value) for value in (write, keep, 1)]
        self.e.builder.call(fn, [self.e.builder.bitcast((self + i).ir, _BYTE), *numbers])


class Indices(Pointer):
    """An address of indices; ``p[i]`` is the i-th."""

    def __getitem__(self, i) -> Index:  # type: ignore[override]
        entry = self.e.builder.load((self + i).ir)
        return Index(self.e.builder, self.e.builder.sext(entry, INT) if entry.type.width < 64 else entry)


class Emitter:
    """Emits vector code for one element type."""

    def __init__(self, builder: ir.IRBuilder, real: types.Type, width: int | None = None) -> None:
        self.builder = builder
        self.width = width or (16 if real == types.float32 else 8)
        self._type = real
        self.real = ir.FloatType() if real == types.float32 else ir.DoubleType()
        self.vector = ir.VectorType(self.real, self.width)
        self.align = 4 if real == types.float32 else 8
        # Rows of a tile that are kept in registers together.
        self.rows = self.width if HAS_AVX512 else 4

    # ---------------------------------------------------------------- other widths, loops

    def narrower(self, width: int) -> Emitter:
        """The same for vectors of another width."""
        return Emitter(self.builder, self._type, width)

    def native(self) -> Emitter:
        """The same for vectors that one register holds: W with AVX-512 (32 registers), half of it else (16).

        A tile of W x W is too large for 16 registers of half the size; W / 2 x W / 2 of it fit.
        """
        return self if HAS_AVX512 else self.narrower(self.width // 2)

    def view(self, pointer: Pointer) -> Pointer:
        """The same address, of vectors of this width."""
        return Pointer(self, pointer.ir)

    @contextmanager
    def loop(self, stop, start=0) -> Iterator[Index]:
        """A loop over ``range(start, stop)``."""
        start, stop = (Index(self.builder, 0)._of(i).ir for i in (start, stop))
        with cgutils.for_range(self.builder, stop, start, INT) as loop:
            yield Index(self.builder, loop.index)

    @contextmanager
    def blocks(self, n_blocks) -> Iterator[Index]:
        """A loop over blocks of W numbers; yields where each begins."""
        with self.loop(n_blocks) as block:
            yield block * self.width

    # ---------------------------------------------------------------- values

    def zero(self) -> Vector:
        """The vector of zeros."""
        return self.constant([0.0] * self.width)

    def ones(self) -> Vector:
        """The vector of ones."""
        return self.constant([1.0] * self.width)

    def constant(self, numbers: list[float]) -> Vector:
        """A vector of given numbers."""
        return Vector(self, ir.Constant(self.vector, numbers))

    def variables(self, n: int) -> list[Variable]:
        """``n`` variables, zero."""
        return [Variable(self) for _ in range(n)]

    def fma(self, a: Vector, b: Vector, c: Vector) -> Vector:
        """``a b + c`` with one rounding."""
        return self._call("fma", a, b, c)

    def root(self, vector: Vector) -> Vector:
        """Square roots."""
        return self._call("sqrt", vector)

    def _call(self, name: str, *vectors: Vector) -> Vector:
        fn_type = ir.FunctionType(self.vector, [self.vector] * len(vectors))
        name = f"llvm.{name}.v{self.width}f{self.align * 8}"
        fn = cgutils.get_or_insert_function(self.builder.module, fn_type, name)
        return Vector(self, self.builder.call(fn, [vector.ir for vector in vectors]))

    def widened(self, vector: Vector) -> Vector:
        """The same numbers in this emitter's precision."""
        value = vector.ir
        return Vector(self, value if value.type == self.vector else self.builder.fpext(value, self.vector))

    def positive(self, vector: Vector) -> Vector:
        """``max(x, 0)``, 0 for NaN."""
        zero = self.zero().ir
        value = vector.ir
        return Vector(self, self.builder.select(self.builder.fcmp_ordered(">", value, zero), value, zero))

    # ---------------------------------------------------------------- lanes

    def shuffle(self, a: Vector, b: Vector, lanes: list[int]) -> Vector:
        """The given lanes of two vectors: 0 to W - 1 of the first, then of the second; any number of them."""
        mask = ir.Constant(ir.VectorType(_I32, len(lanes)), lanes)
        e = self if len(lanes) == self.width else self.narrower(len(lanes))
        return Vector(e, self.builder.shuffle_vector(a.ir, b.ir, mask))

    def spread(self, scalar) -> Vector:
        """A vector of equal numbers."""
        undefined = Vector(self, ir.Constant(self.vector, ir.Undefined))
        one = Vector(self, self.builder.insert_element(undefined.ir, scalar, ir.Constant(_I32, 0)))
        return self.shuffle(one, undefined, [0] * self.width)

    def lane(self, vector: Vector, i: int) -> Vector:
        """A vector of equal numbers: lane ``i`` of another."""
        return self.shuffle(vector, vector, [i] * self.width)

    def with_lane(self, vector: Vector, i: int, other: Vector) -> Vector:
        """A vector with lane ``i`` of another."""
        return self.shuffle(vector, other, [self.width + k if k == i else k for k in range(self.width)])

    def from_lane(self, vector: Vector, i: int) -> Vector:
        """The vector with zeros before lane ``i``."""
        return self.shuffle(vector, self.zero(), [k + self.width * (k < i) for k in range(self.width)])

    def element(self, vector: Vector, i: int):
        """One lane as a scalar."""
        return self.builder.extract_element(vector.ir, ir.Constant(_I32, i))

    def part(self, vector: Vector, first: int, n: int) -> Vector:
        """``n`` neighbouring lanes."""
        return self.shuffle(vector, vector, list(range(first, first + n)))

    def join(self, vectors: list[Vector]) -> Vector:
        """The vector of W that consists of one, or of two of half its width."""
        if len(vectors) == 1:
            return vectors[0]
        return self.shuffle(vectors[0], vectors[1], list(range(self.width)))

    def transpose(self, vectors: list[Vector]) -> list[Vector]:
        """Rows to columns, by exchanging ever larger blocks."""
        # Step s exchanges the upper right and lower left block of every 2 s x 2 s square.
        w, step = self.width, 1
        while step < w:
            out = list(vectors)
            for i in range(w):
                if i & step:
                    continue
                a, b = vectors[i], vectors[i + step]
                low = [k if not k & step else w + k - step for k in range(w)]
                high = [k + step if not k & step else w + k for k in range(w)]
                out[i], out[i + step] = self.shuffle(a, b, low), self.shuffle(a, b, high)
            vectors = out
            step *= 2
        return vectors

    def folded(self, vector: Vector, width: int) -> Vector:
        """The two halves of a vector added, again and again, until ``width`` numbers are left."""
        # The order of the sums is fixed, so that results do not depend on what LLVM makes of it.
        e = self
        while e.width > width:
            half = e.width // 2
            vector = e.part(vector, 0, half) + e.part(vector, half, half)
            e = vector.e
        return vector

    def total(self, vector: Vector):
        """The sum of a vector's numbers, as a scalar."""
        return self.element(self.folded(vector, 1), 0)

    def sums(self, vectors: list[Vector]) -> Vector:
        """The vector whose lane i is the sum of the numbers of vector i."""
        # Each round adds two halves and halves the vectors: W - 1 additions for W sums, instead of W log W.
        w = self.width
        half = w // 2
        while half:
            low = [(k // (2 * half)) * 2 * half + k % half + (w if k & half else 0) for k in range(w)]
            high = [k + half for k in low]
            pairs = zip(vectors[:half], vectors[half : 2 * half], strict=True)
            vectors = [self.shuffle(a, b, low) + self.shuffle(a, b, high) for a, b in pairs]
            half //= 2
        return vectors[0]


_NAMES: set[str] = set()


def kernel(kinds: str, name: str | None = None):
    """Turn ``emit(e, *arguments)`` into a function for compiled code.

    The code is emitted once for each element type, as an LLVM function that callers share and LLVM inlines
    where that pays. Its symbol must never change its meaning, as compiled code is kept on disk: it is made of
    the module and the name of ``emit``, or of ``name`` where one Python function makes several.

    Parameters
    ----------
    kinds : str
        A letter for each argument: ``p`` array and offset (becomes a `Pointer`), ``v`` array, ``x`` index
        array and offset (`Indices`), ``i`` integer (`Index`), ``r`` real number (a `Vector` of it).
    name : str, optional

    Returns
    -------
    decorator
        The function returns what ``emit`` returns, an integer, or 0.
    """

    def decorate(emit):
        symbol = f"{emit.__module__}.{name or emit.__name__}"
        if symbol in _NAMES:
            raise NameError(f"two kernels are called {symbol}")
        _NAMES.add(symbol)

        @intrinsic
        def call(typingctx, *args):
            arrays = [t for t in args if isinstance(t, types.Array)]
            real = arrays[0].dtype
            if real not in (types.float32, types.float64):
                return None

            def codegen(context, builder, signature, values):
                (packed,) = values
                taken, position = [], 0

                def take(to=None):
                    nonlocal position
                    typ, value = args[position], builder.extract_value(packed, position)
                    position += 1
                    return (typ, value) if to is None else context.cast(builder, value, typ, to)

                # Numbers become int64 or the arrays' type, arrays the address of their entry at the offset.
                for kind in kinds:
                    if kind in "ir":
                        taken.append(take(types.int64 if kind == "i" else real))
                        continue
                    typ, value = take()
                    address = context.make_array(typ)(context, builder, value).data
                    taken.append(address if kind == "v" else builder.gep(address, [take(types.int64)]))
                # One function for each set of types; it is emitted where it is first called in a module.
                suffix = ".".join(str(value.type) for value in taken)
                function_type = ir.FunctionType(INT, [value.type for value in taken])
                function = cgutils.get_or_insert_function(builder.module, function_type, f"{symbol}:{suffix}")
                if function.is_declaration:
                    _define(function, emit, kinds, real)
                return builder.call(function, taken)

            return types.int64(types.StarArgTuple(args)), codegen

        call.__doc__ = emit.__doc__
        return call

    return decorate


def _define(function: ir.Function, emit, kinds: str, real: types.Type) -> None:
    """Emit the body of a kernel."""
    function.attributes.add("nounwind")
    function.linkage = "linkonce_odr"  # equal in all that is linked or loaded together: one of them is kept
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    e = Emitter(builder, real)
    wrap = {
        "i": lambda value: Index(builder, value),
        "r": e.spread,
        "x": lambda value: Indices(e, value),
    }
    result = emit(
        e,
        *(
            wrap.get(k, lambda value: Pointer(e, value))(value)
            for k, value in zip(kinds, function.args, strict=True)
        ),
    )
    builder.ret(result.ir if result is not None else ir.Constant(INT, 0))
