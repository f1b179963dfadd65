"""Emits LLVM vector code for one float type, and turns such emitters into functions for compiled code."""

from __future__ import annotations

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
INT = ir.IntType(64)


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

    def narrower(self, width: int) -> Emitter:
        """The same for vectors of another width."""
        return Emitter(self.builder, self._type, width)

    def native(self) -> Emitter:
        """The same for vectors that one register holds: W with AVX-512 (32 registers), half of it else (16).

        A tile of W x W is too large for 16 registers of half the size; W / 2 x W / 2 of it fit.
        """
        return self if HAS_AVX512 else self.narrower(self.width // 2)

    def at(self, pointer, index):
        """The address ``index`` elements further."""
        index = ir.Constant(INT, index) if isinstance(index, int) else index
        return self.builder.gep(pointer, [index])

    def load(self, pointer, index=0):
        """W elements from memory, no alignment needed."""
        address = self.builder.bitcast(self.at(pointer, index), self.vector.as_pointer())
        return self.builder.load(address, align=self.align)

    def store(self, value, pointer, index=0):
        """W elements to memory, no alignment needed."""
        address = self.builder.bitcast(self.at(pointer, index), self.vector.as_pointer())
        self.builder.store(value, address, align=self.align)

    def scalar(self, pointer, index=0):
        """One element from memory."""
        return self.builder.load(self.at(pointer, index), align=self.align)

    def index(self, pointer, i):
        """One entry of an index array, as a 64-bit integer."""
        entry = self.builder.load(self.at(pointer, i))
        return self.builder.sext(entry, INT) if entry.type.width < 64 else entry

    def spread(self, scalar):
        """A vector of equal elements."""
        undefined = ir.Constant(self.vector, ir.Undefined)
        zero = ir.Constant(ir.IntType(32), 0)
        one = self.builder.insert_element(undefined, scalar, zero)
        mask = ir.Constant(ir.VectorType(ir.IntType(32), self.width), [0] * self.width)
        return self.builder.shuffle_vector(one, undefined, mask)

    def lane(self, vector, i):
        """A vector of equal elements: element ``i`` of another."""
        mask = ir.Constant(ir.VectorType(ir.IntType(32), self.width), [i] * self.width)
        return self.builder.shuffle_vector(vector, vector, mask)

    def shuffle(self, a, b, lanes):
        """The given lanes of two vectors: 0 to W - 1 of the first, then of the second."""
        mask = ir.Constant(ir.VectorType(ir.IntType(32), self.width), lanes)
        return self.builder.shuffle_vector(a, b, mask)

    def element(self, vector, i):
        """One lane as a scalar."""
        return self.builder.extract_element(vector, ir.Constant(ir.IntType(32), i))

    def zero(self):
        """The vector of zeros."""
        return ir.Constant(self.vector, [0.0] * self.width)

    def from_lane(self, vector, i):
        """The vector with zeros before lane ``i``."""
        lanes = [self.width + k if k < i else k for k in range(self.width)]
        return self.shuffle(vector, self.zero(), lanes)

    def fma(self, a, b, c):
        """``a b + c`` with one rounding."""
        name = f"llvm.fma.v{self.width}f{self.align * 8}"
        fn_type = ir.FunctionType(self.vector, [self.vector] * 3)
        return self.builder.call(
            cgutils.get_or_insert_function(self.builder.module, fn_type, name), [a, b, c]
        )

    def prefetch(self, pointer, keep=3, write=0):
        """Ask for the cache line at an address: for the first-level cache, with ``keep`` 2 for the second."""
        byte, i32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        fn_type = ir.FunctionType(ir.VoidType(), [byte, i32, i32, i32])
        fn = cgutils.get_or_insert_function(self.builder.module, fn_type, "llvm.prefetch.p0")
        numbers = [ir.Constant(i32, value) for value in (write, keep, 1)]
        self.builder.call(fn, [self.builder.bitcast(pointer, byte), *numbers])

    def root(self, vector):
        """Square roots."""
        name = f"llvm.sqrt.v{self.width}f{self.align * 8}"
        fn_type = ir.FunctionType(self.vector, [self.vector])
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, fn_type, name), [vector])

    def ones(self):
        """The vector of ones."""
        return ir.Constant(self.vector, [1.0] * self.width)

    def neg(self, vector):
        """The vector times -1."""
        return self.builder.fneg(vector)

    def variables(self, n):
        """``n`` vector variables, zero; they live in registers."""
        slots = [cgutils.alloca_once(self.builder, self.vector) for _ in range(n)]
        for slot in slots:
            self.builder.store(self.zero(), slot)
        return slots

    def transpose(self, vectors):
        """Rows to columns, by exchanging ever larger blocks."""
        w = self.width
        step = 1
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

    def halves(self, vector):
        """The two halves of a vector, for ``narrower(width // 2)``."""
        i32, h = ir.IntType(32), self.width // 2
        return tuple(
            self.builder.shuffle_vector(
                vector, vector, ir.Constant(ir.VectorType(i32, h), list(range(at, at + h)))
            )
            for at in (0, h)
        )

    def total(self, vector):
        """The sum of a vector's elements, as a scalar."""
        emitter = self
        while emitter.width > 1:
            vector = self.builder.fadd(*emitter.halves(vector))
            emitter = emitter.narrower(emitter.width // 2)
        return self.element(vector, 0)

    def join(self, vectors):
        """The vector of W that consists of one, or of two of half its width."""
        if len(vectors) == 1:
            return vectors[0]
        mask = ir.Constant(ir.VectorType(ir.IntType(32), self.width), list(range(self.width)))
        return self.builder.shuffle_vector(*vectors, mask)

    def sums(self, vectors):
        """The vector whose lane i is the sum of the elements of vector i."""
        w = self.width
        half = w // 2
        while half:
            low = [(k // (2 * half)) * 2 * half + k % half + (w if k & half else 0) for k in range(w)]
            high = [k + half for k in low]
            pairs = zip(vectors[:half], vectors[half : 2 * half], strict=True)
            vectors = [self.builder.fadd(self.shuffle(a, b, low), self.shuffle(a, b, high)) for a, b in pairs]
            half //= 2
        return vectors[0]


def over_blocks(e, n_blocks, step):
    """Emit ``step(address)`` for every block; ``address`` turns a pointer into that of its block."""
    with cgutils.for_range(e.builder, n_blocks) as loop:
        at = e.builder.mul(loop.index, ir.Constant(INT, e.width))
        step(lambda pointer: e.at(pointer, at))


def kernel(kinds: str):
    """Turn ``emit(emitter, *arguments)`` into an intrinsic.

    ``kinds``: ``p`` array and offset (becomes a pointer), ``i`` integer, ``r`` real scalar, ``x`` index array
    and offset. The intrinsic returns what ``emit`` returns, an integer, or 0.
    """

    def decorate(emit):
        @intrinsic
        def call(typingctx, *args):
            arrays = [t for t in args if isinstance(t, types.Array)]
            real = arrays[0].dtype
            if real not in (types.float32, types.float64):
                return None

            def codegen(context, builder, signature, values):
                (packed,) = values
                taken, pos = [], 0

                def take():
                    nonlocal pos
                    typ, value = args[pos], builder.extract_value(packed, pos)
                    pos += 1
                    return typ, value

                for kind in kinds:
                    typ, value = take()
                    if kind in "px":
                        data = context.make_array(typ)(context, builder, value).data
                        offset_type, offset = take()
                        offset = context.cast(builder, offset, offset_type, types.int64)
                        taken.append(builder.gep(data, [offset]))
                    else:
                        to = types.int64 if kind == "i" else real
                        taken.append(context.cast(builder, value, typ, to))
                out = emit(Emitter(builder, real), *taken)
                return out if out is not None else ir.Constant(INT, 0)

            return types.int64(types.StarArgTuple(args)), codegen

        return call

    return decorate
