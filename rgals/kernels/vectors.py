"""Vector code for compiled functions: LLVM instructions, emitted by formulas in Python."""

# A kernel (`rgals.kernels.library`) is a Python function that emits code for one element type. The values
# that it works with have operators: ``x + a * p`` emits one multiply-add with one rounding, ``y[at] = x[at] *
# s`` loads, multiplies and stores W numbers, W being one cache line (16 float32, 8 float64). LLVM maps
# vectors to the registers of the processor. A loop in Python unrolls code; a loop at run time is ``with
# e.loop(n) as i``.

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils

from rgals.runtime import aligned as _aligned

LINE = _aligned.LINE  # bytes of a vector: W = LINE // itemsize


def _has_avx512() -> bool:
    """Whether numba compiles for AVX-512: by ``NUMBA_CPU_FEATURES`` if it is set, or by this processor."""
    told = numba.config.CPU_FEATURES
    return "+avx512f" in told if told is not None else bool(llvm.get_host_cpu_features().get("avx512f"))


HAS_AVX512 = _has_avx512()
INT, _I32, _BYTE = ir.IntType(64), ir.IntType(32), ir.IntType(8).as_pointer()


class Index:
    """A 64-bit integer with ``+``, ``-``, ``*``, ``//`` and ``%``."""

    def __init__(self, builder: ir.IRBuilder, value) -> None:
        self.builder = builder  # a Python integer becomes a constant
        self.ir = ir.Constant(INT, value) if isinstance(value, int) else value

    def _of(self, other) -> "Index":
        return other if isinstance(other, Index) else Index(self.builder, other)

    def __add__(self, other):
        return Index(self.builder, self.builder.add(self.ir, self._of(other).ir))

    def __sub__(self, other):
        return Index(self.builder, self.builder.sub(self.ir, self._of(other).ir))

    def __mul__(self, other):
        return Index(self.builder, self.builder.mul(self.ir, self._of(other).ir))

    def __floordiv__(self, other):
        return Index(self.builder, self.builder.udiv(self.ir, self._of(other).ir))

    def __mod__(self, other):
        return Index(self.builder, self.builder.urem(self.ir, self._of(other).ir))

    __radd__, __rmul__ = __add__, __mul__

    def is_(self, relation: str, other) -> Any:
        """A comparison: ``i.is_("<", j)``."""
        return self.builder.icmp_signed(relation, self.ir, self._of(other).ir)

    def lowest_bit(self) -> "Index":
        """The number of its lowest set bit."""
        return Index(self.builder, self.builder.cttz(self.ir, ir.Constant(ir.IntType(1), 1)))

    def count_bits(self) -> "Index":
        """How many of its bits are set."""
        return Index(self.builder, self.builder.ctpop(self.ir))

    def at_most(self, other) -> "Index":
        """The smaller of two."""
        return Index(self.builder, self.builder.select(self.is_("<", other), self.ir, self._of(other).ir))

    def at_least(self, other) -> "Index":
        """The larger of two."""
        return Index(self.builder, self.builder.select(self.is_(">", other), self.ir, self._of(other).ir))


class Vector:
    """W numbers in a register; operators work number by number."""

    def __init__(self, e: "Emitter", value=None) -> None:
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

    def __mul__(self, other) -> "Product":
        return Product(self.e, self, other)

    def __truediv__(self, other):
        return Vector(self.e, self.e.builder.fdiv(self.ir, other.ir))

    def __neg__(self):
        return Vector(self.e, self.e.builder.fneg(self.ir))


class Product(Vector):
    """``left * right``: fused where it is added or subtracted, rounded where it is used as a number."""

    def __init__(self, e: "Emitter", left: Vector, right: Vector) -> None:
        super().__init__(e)
        self.left, self.right = left, right

    @property
    def ir(self):
        """The rounded product, emitted at every use: values of another basic block may not exist here."""
        return self.e.builder.fmul(self.left.ir, self.right.ir)

    def __add__(self, other):
        return (other.rounded() if isinstance(other, Product) else other) + self

    def rounded(self) -> Vector:
        """The product, rounded: an addition is then not fused with it."""
        return Vector(self.e, self.ir)


class Number(Vector):
    """A real argument: a vector of equal numbers in formulas, one number in a call."""

    def __init__(self, e: "Emitter", scalar) -> None:
        super().__init__(e, e.spread(scalar).ir)
        self.scalar = scalar

    def on(self, e: "Emitter") -> Vector:
        """The number as a vector of another emitter's width."""
        return e.spread(self.scalar)


class Variable(Vector):
    """A vector that changes, as by ``v += a * b``, and stays in a register."""

    def __init__(self, e: "Emitter") -> None:
        super().__init__(e)
        # Stack memory at the function's entry, which LLVM turns into a register.
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

    def __init__(self, e: "Emitter", address) -> None:
        self.e, self.ir = e, address

    def __add__(self, offset) -> "Pointer":
        return type(self)(self.e, self.e.builder.gep(self.ir, [self.e.index(offset).ir]))

    def _vector(self, i):
        return self.e.builder.bitcast((self + i).ir, self.e.vector.as_pointer())

    def __getitem__(self, i) -> Vector:
        return Vector(self.e, self.e.builder.load(self._vector(i), align=self.e.align))

    def __setitem__(self, i, value: Vector) -> None:
        self.e.builder.store(value.ir, self._vector(i), align=self.e.align)

    def spread(self, i=0) -> Vector:
        """A vector of equal numbers: the i-th."""
        return self.e.spread(self.e.builder.load((self + i).ir, align=self.e.align))

    def prefetch(self, i=0, keep=3, write=0) -> None:
        """Prefetch the cache line of a number into the first-level cache, or with ``keep`` 2 the second."""
        fn_type = ir.FunctionType(ir.VoidType(), [_BYTE, _I32, _I32, _I32])
        fn = cgutils.get_or_insert_function(self.e.builder.module, fn_type, "llvm.prefetch.p0")
        numbers = [ir.Constant(_I32, value) for value in (write, keep, 1)]
        self.e.builder.call(fn, [self.e.builder.bitcast((self + i).ir, _BYTE), *numbers])


class Indices(Pointer):
    """An address of 32-bit integers; ``p[i]`` is the i-th."""

    def __getitem__(self, i) -> Index:  # type: ignore[override]
        return Index(self.e.builder, self.e.builder.sext(self.e.builder.load((self + i).ir), INT))

    def __setitem__(self, i, value: Index) -> None:  # type: ignore[override]
        self.e.builder.store(self.e.builder.trunc(value.ir, _I32), (self + i).ir)


class Emitter:
    """Emits vector code for one element type."""

    def __init__(self, builder: ir.IRBuilder, real: types.Type, width: int | None = None) -> None:
        self.builder = builder
        self.width = width or (16 if real == types.float32 else 8)
        self.type = real
        self.real = ir.FloatType() if real == types.float32 else ir.DoubleType()
        self.vector = ir.VectorType(self.real, self.width)
        self.align = 4 if real == types.float32 else 8
        # Rows of a tile that registers hold together: all with AVX-512, four without.
        self.rows = self.width if HAS_AVX512 else 4

    # ---------------------------------------------------------------- other widths, loops, calls

    def narrower(self, width: int) -> "Emitter":
        """An emitter for vectors of another width."""
        return Emitter(self.builder, self.type, width)

    def wide(self) -> "Emitter":
        """An emitter for vectors of as many float64."""
        return Emitter(self.builder, types.float64, self.width)

    def native(self) -> "Emitter":
        """An emitter for vectors that fill one register: W numbers with AVX-512, half as many otherwise."""
        # AVX-512 has 32 registers, which hold a W x W tile. Otherwise 16 of half the size hold a quarter of
        # it.
        return self if HAS_AVX512 else self.narrower(self.width // 2)

    def view(self, pointer: Pointer) -> Pointer:
        """The address, read and written as vectors of this emitter."""
        return Pointer(self, pointer.ir)

    @contextmanager
    def loop(self, stop, start=0) -> Iterator[Index]:
        """A loop over ``range(start, stop)``."""
        start, stop = (self.index(i).ir for i in (start, stop))
        with cgutils.for_range(self.builder, stop, start, INT) as loop:
            yield Index(self.builder, loop.index)

    @contextmanager
    def blocks(self, n_blocks) -> Iterator[Index]:
        """A loop over blocks of W numbers; yields where each begins."""
        with self.loop(n_blocks) as block:
            yield block * self.width

    @contextmanager
    def down(self, n) -> Iterator[Index]:
        """A loop from ``n - 1`` down to 0."""
        with self.loop(n) as i:
            yield self.index(n) - 1 - i

    def pieces(self, n) -> "Iterator[tuple[Emitter, Index]]":
        """For ``n`` numbers: a loop over whole blocks of W, then one over the numbers that are left."""
        # The body is emitted twice: with this emitter, and with one for single numbers.
        one, whole = self.narrower(1), n // self.width
        with self.blocks(whole) as at:
            yield self, at
        with one.loop(n, whole * self.width) as at:
            yield one, at

    def when(self, condition) -> AbstractContextManager[Any]:
        """Code that runs if a condition (`Index.is_`) holds."""
        return self.builder.if_then(condition)

    def index(self, value: "int | Index") -> Index:
        """An integer as a constant index; an index as it is."""
        return value if isinstance(value, Index) else Index(self.builder, value)

    def call(self, kernel, *args) -> Any:
        """Call another kernel with pointers, indices and numbers; returns its result."""
        return kernel.called(self, *args)

    def give_back(self, result) -> None:
        """Return an index or a number from the kernel."""
        self.builder.ret(result.scalar if isinstance(result, Number) else result.ir)

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
        """A vector, converted to this emitter's precision."""
        value = vector.ir
        return Vector(self, value if value.type == self.vector else self.builder.fpext(value, self.vector))

    def positive(self, vector: Vector) -> Vector:
        """``max(x, 0)``, 0 for NaN."""
        zero = self.zero().ir
        value = vector.ir
        return Vector(self, self.builder.select(self.builder.fcmp_ordered(">", value, zero), value, zero))

    def bits(self, relation: str, a: Vector, b: Vector, unordered: bool = False) -> Index:
        """Comparisons as the bits of an integer. With ``unordered`` a comparison with NaN holds."""
        compare = self.builder.fcmp_unordered if unordered else self.builder.fcmp_ordered
        held = self.builder.bitcast(compare(relation, a.ir, b.ir), ir.IntType(self.width))
        return Index(self.builder, held if self.width == 64 else self.builder.zext(held, INT))

    # ---------------------------------------------------------------- lanes

    def shuffle(self, a: Vector, b: Vector, lanes: list[int]) -> Vector:
        """A vector of given lanes: 0 to W - 1 are those of ``a``, W to 2 W - 1 those of ``b``."""
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
        """A vector of W numbers from one vector of W, or from two of W / 2."""
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
        """Add the two halves of a vector, again and again, until ``width`` numbers are left."""
        # LLVM's own reduction leaves the order open; here it is fixed, and so are the bits.
        e = self
        while e.width > width:
            half = e.width // 2
            vector = e.part(vector, 0, half) + e.part(vector, half, half)
            e = vector.e
        return vector

    def total(self, vector: Vector) -> Number:
        """The sum of a vector's numbers."""
        return Number(self, self.element(self.folded(vector, 1), 0))

    def sums(self, vectors: list[Vector]) -> Vector:
        """The vector whose lane i is the sum of the numbers of vector i."""
        # Each round halves the number of vectors: W - 1 additions for W sums, instead of W log W.
        w = self.width
        half = w // 2
        while half:
            low = [(k // (2 * half)) * 2 * half + k % half + (w if k & half else 0) for k in range(w)]
            high = [k + half for k in low]
            pairs = zip(vectors[:half], vectors[half : 2 * half], strict=True)
            vectors = [self.shuffle(a, b, low) + self.shuffle(a, b, high) for a, b in pairs]
            half //= 2
        return vectors[0]
