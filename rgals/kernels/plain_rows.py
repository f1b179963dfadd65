"""Products with gathered rows that lie one after the other, ``n_blocks`` blocks of W numbers each.

What `rgals.kernels.tiles` is for panels: the dual of short rows and conjugate gradients need no panels. The
number of rows is padded with zeros to a multiple of 4, so that four rows are multiplied at a time.
"""

from __future__ import annotations

from rgals.kernels.compile import inner
from rgals.kernels.triangles import triangle
from rgals.kernels.vectors import HAS_AVX512, LINE, kernel

# ---------------------------------------------------------------- X X^T, X v and X^T y


@kernel("pppii")
def _quad_gram(e, c, a, b, stride, n_blocks):
    """``C += A B^T`` for W / 4 rows of A and four of B."""
    # Scalar products of whole rows: W / 4 x 4 sums of vectors, each added up across its lanes at the end.
    four, v = e.narrower(4), e.native()
    tall = e.width // 4
    n_rows = tall if v is e else 2  # whose products stay in registers
    for top in range(0, tall, n_rows):
        acc = v.variables(4 * n_rows)
        with e.blocks(n_blocks) as at:
            for part in range(0, e.width, v.width):
                right = [v.view(b + (at + stride * j))[part] for j in range(4)]
                for i in range(n_rows):
                    left = v.view(a + (at + stride * (top + i)))[part]
                    for j in range(4):
                        acc[4 * i + j] += left * right[j]
        totals = [v.sums(acc[i : i + v.width]) for i in range(0, len(acc), v.width)]
        for i in range(n_rows):
            products = v.part(totals[4 * i // v.width], 4 * i % v.width, 4)
            to = four.view(c + (top + i) * e.width)
            to[0] = to[0] + products


@inner
def rows_gram_add(c, x, n, n_blocks):
    """``C += X X^T`` as a packed triangle from ``n`` rows."""
    w = LINE // c.itemsize
    tall = w // 4
    stride = n_blocks * w
    # Quads of columns b; of the quads of rows those that reach the diagonal.
    for b in range((n + 3) // 4):
        column = triangle(w, b * 4 // w)
        for a in range(min((b * 4 + 3) // tall + 1, (n + tall - 1) // tall)):
            at = column + a * tall * w + b * 4 % w
            _quad_gram(c, at, x, a * tall * stride, x, b * 4 * stride, stride, n_blocks)


@kernel("pppiir")
def _quad_product(e, y, x, v, stride, n_blocks, sign):
    """``y += sign X v`` for four rows."""
    # Each number of v is read once for four rows.
    acc = e.variables(4)
    with e.blocks(n_blocks) as at:
        factor = v[at]
        for i, slot in enumerate(acc):
            slot += x[at + stride * i] * factor
    four = e.narrower(4)
    y = four.view(y)
    y[0] = y[0] + e.part(sign, 0, 4) * _quad_sums(e, acc)


def _quad_sums(e, vectors):
    """A vector of four: the sums of the numbers of four vectors."""
    return e.narrower(4).sums([e.folded(vector, 4) for vector in vectors])


@inner
def rows_product(y, x, v, n, n_blocks, sign):
    """``y += sign X v`` for ``n`` rows."""
    stride = n_blocks * (LINE // x.itemsize)
    for i in range(0, n, 4):
        _quad_product(y, i, x, i * stride, v, 0, stride, n_blocks, sign)


def _make_transposed(n_vectors: int, both: bool):
    @kernel("pppvvii", f"transposed_{n_vectors}_{'two' if both else 'one'}")
    def combine(e, left, right, x, y, z, stride, n):
        """``left += X^T y`` and, where ``both``, ``right += X^T z``, for some blocks of columns."""
        outs = [(left, y, e.variables(n_vectors))]
        if both:
            outs.append((right, z, e.variables(n_vectors)))
        # Sums of column blocks stay in registers down all rows: each row is read once.
        with e.loop(n) as i:
            row = x + i * stride
            vectors = [row[v * e.width] for v in range(n_vectors)]
            for _, factors, acc in outs:
                factor = factors.spread(i)
                for slot, vector in zip(acc, vectors, strict=True):
                    slot += vector * factor
        for out, _, acc in outs:
            for v, slot in enumerate(acc):
                out[v * e.width] = out[v * e.width] + slot

    return combine


def _transposed(both: bool):
    most = 2 if both and not HAS_AVX512 else 4  # blocks whose sums stay in registers
    one, many = _make_transposed(1, both), _make_transposed(most, both)

    @inner
    def combine(left, right, x, y, z, n, n_blocks):
        w = LINE // x.itemsize
        whole = n_blocks // most * most
        for block in range(0, whole, most):
            many(left, block * w, right, block * w, x, block * w, y, z, n_blocks * w, n)
        for block in range(whole, n_blocks):
            one(left, block * w, right, block * w, x, block * w, y, z, n_blocks * w, n)

    return combine


_transposed_one, _transposed_two = _transposed(False), _transposed(True)


@inner
def rows_transposed(left, x, y, n, n_blocks):
    """``left += X^T y`` for ``n`` rows."""
    _transposed_one(left, left, x, y, y, n, n_blocks)


@inner
def rows_transposed_two(left, right, x, y, z, n, n_blocks):
    """``left += X^T y`` and ``right += X^T z`` for ``n`` rows."""
    _transposed_two(left, right, x, y, z, n, n_blocks)


# ---------------------------------------------------------------- X^T S X v in one pass


def _make_normal(with_right: bool, n_vectors: int | None = None):
    """``n_vectors`` blocks of W: with AVX-512 they stay in registers. None: any number of blocks."""

    @kernel("vvvvvvii", f"normal_{n_vectors or 'any'}{'_right' if with_right else ''}")
    def normal(e, y, right, x, v, sign, w, n, n_blocks):
        """``y += X^T diag(sign) X v`` and, ``with_right``, ``right += X^T w``, four rows at a time."""
        # Four rows are read once, for X v and then, still in registers or the first-level cache, for X^T.
        outs = [y, right] if with_right else [y]
        stride = n_blocks * e.width
        kept = range(n_vectors or 0)
        fixed = [v[b * e.width] for b in kept]
        totals = [e.variables(n_vectors or 0) for _ in outs]
        with e.loop((n + 3) // 4) as quad:
            first = quad * 4
            rows = [x + (first + i) * stride for i in range(4)]
            acc = e.variables(4)
            blocks = [[row[b * e.width] for row in rows] for b in kept]
            for vectors, factor in zip(blocks, fixed, strict=True):
                for slot, vector in zip(acc, vectors, strict=True):
                    slot += vector * factor
            if n_vectors is None:
                with e.blocks(n_blocks) as at:
                    vectors, factor = [row[at] for row in rows], v[at]
                    for slot, vector in zip(acc, vectors, strict=True):
                        slot += vector * factor
            # s_i (x_i . v) of the four rows, then X^T times it.
            products = _quad_sums(e, acc) * e.narrower(4).view(sign)[first]
            products = products.rounded()
            factors = [[e.spread(products.e.element(products, i)) for i in range(4)]]
            if with_right:
                factors.append([w.spread(first + i) for i in range(4)])

            def add(total, vectors, spread):
                for vector, factor in zip(vectors, spread, strict=True):
                    total = total + vector * factor
                return total

            for slots, spread in zip(totals, factors, strict=True):
                for vectors, slot in zip(blocks, slots, strict=True):
                    slot.set(add(slot, vectors, spread))
            if n_vectors is None:
                with e.blocks(n_blocks) as at:
                    vectors = [row[at] for row in rows]
                    for out, spread in zip(outs, factors, strict=True):
                        out[at] = add(out[at], vectors, spread)
        for out, slots in zip(outs, totals, strict=True):
            for b, slot in enumerate(slots):
                out[b * e.width] = out[b * e.width] + slot

    return normal


_normal, _normal_2, _normal_4 = (_make_normal(False, n) for n in (None, 2, 4))
_normal_and_right, _normal_and_right_2, _normal_and_right_4 = (_make_normal(True, n) for n in (None, 2, 4))


@inner
def rows_normal(y, x, v, sign, n, n_blocks):
    """``y += X^T diag(sign) X v`` for ``n`` rows, in one pass."""
    # With 32 registers, v and the sums of two or four blocks (K = 32, 64) stay there for the whole row.
    if HAS_AVX512 and n_blocks == 4:
        _normal_4(y, y, x, v, sign, sign, n, n_blocks)
    elif HAS_AVX512 and n_blocks == 2:
        _normal_2(y, y, x, v, sign, sign, n, n_blocks)
    else:
        _normal(y, y, x, v, sign, sign, n, n_blocks)


@inner
def rows_normal_and_right(y, right, x, v, sign, w, n, n_blocks):
    """`rows_normal`, and in the same pass ``right += X^T w``."""
    if HAS_AVX512 and n_blocks == 4:
        _normal_and_right_4(y, right, x, v, sign, w, n, n_blocks)
    elif HAS_AVX512 and n_blocks == 2:
        _normal_and_right_2(y, right, x, v, sign, w, n, n_blocks)
    else:
        _normal_and_right(y, right, x, v, sign, w, n, n_blocks)
