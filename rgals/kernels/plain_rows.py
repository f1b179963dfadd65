"""Products with a matrix X of packed rows, one after the other, of ``n_blocks`` blocks of W numbers each."""

# The dual and conjugate gradients use these; the primal uses panels (`rgals.kernels.tiles`). The number of
# rows is padded with rows of zeros to a multiple of 4, because four rows are multiplied at a time.

from rgals.kernels.library import kernel
from rgals.kernels.triangles import triangle
from rgals.kernels.vectors import HAS_AVX512

# ---------------------------------------------------------------- X X^T, X v and X^T y


@kernel("ppii")
def rows_gram_add(e, c, x, n, n_blocks):
    """``C += X X^T`` as a packed triangle from ``n`` rows."""
    # X X^T in pieces of W / 4 rows x 4 columns. Pieces that lie below the diagonal altogether are left out.
    w, tall = e.width, e.width // 4
    stride = n_blocks * w
    with e.loop((n + 3) // 4) as b:
        column = c + triangle(w, b * 4 // w) + b * 4 % w
        reach = ((b * 4 + 3) // tall + 1).at_most((n + tall - 1) // tall)
        with e.loop(reach) as a:
            _add_quad(e, column + a * tall * w, x + a * tall * stride, x + b * 4 * stride, stride, n_blocks)


def _add_quad(e, c, a, b, stride, n_blocks):
    """``C += A B^T`` for W / 4 rows of A and four of B."""
    # Scalar products of whole rows: W / 4 x 4 vectors of sums, whose lanes are added up at the end.
    four, v = e.narrower(4), e.native()
    tall = e.width // 4
    n_rows = tall if v is e else 2  # rows of A whose 4 n_rows sums stay in registers
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


def _quad_sums(e, vectors):
    """A vector of four numbers: the totals of four vectors."""
    return e.narrower(4).sums([e.folded(vector, 4) for vector in vectors])


@kernel("pppii")
def subtract_product(e, y, x, v, n, n_blocks):
    """``y -= X v`` for ``n`` rows."""
    four, stride = e.narrower(4), n_blocks * e.width
    with e.loop((n + 3) // 4) as quad:  # four rows at once: v is read once for them
        first = quad * 4
        acc = e.variables(4)
        with e.blocks(n_blocks) as at:
            factor = v[at]
            for i, slot in enumerate(acc):
                slot += x[at + stride * (first + i)] * factor
        to = four.view(y)
        to[first] = to[first] - _quad_sums(e, acc)


def _add_transposed(e, outs, x, n, n_blocks):
    """``out += X^T y`` for every ``(out, y)`` of ``outs``, for ``n`` rows."""
    most = 2 if len(outs) > 1 and not HAS_AVX512 else 4  # blocks whose sums stay in registers
    stride = n_blocks * e.width

    def add_blocks(block, n_vectors):
        places = [(block + v) * e.width for v in range(n_vectors)]
        sums = [e.variables(n_vectors) for _ in outs]
        # The sums of these blocks stay in registers down all rows, and X is read once for all ``outs``.
        with e.loop(n) as i:
            vectors = [x[i * stride + at] for at in places]
            for (_, y), acc in zip(outs, sums, strict=True):
                factor = y.spread(i)
                for slot, vector in zip(acc, vectors, strict=True):
                    slot += vector * factor
        for (out, _), acc in zip(outs, sums, strict=True):
            for at, slot in zip(places, acc, strict=True):
                out[at] = out[at] + slot

    with e.loop(n_blocks // most) as group:
        add_blocks(group * most, most)
    with e.loop(n_blocks, n_blocks // most * most) as block:
        add_blocks(block, 1)


@kernel("pppii")
def add_transposed(e, out, x, y, n, n_blocks):
    """``out += X^T y`` for ``n`` rows."""
    _add_transposed(e, [(out, y)], x, n, n_blocks)


@kernel("pppppii")
def add_transposed_two(e, left, right, x, y, z, n, n_blocks):
    """``left += X^T y`` and ``right += X^T z`` for ``n`` rows, in one pass."""
    _add_transposed(e, [(left, y), (right, z)], x, n, n_blocks)


# ---------------------------------------------------------------- X^T S X v in one pass


def _add_normal(e, outs, x, v, sign, w, n, n_blocks, n_vectors):
    """``outs[0] += X^T diag(sign) X v`` and ``outs[1] += X^T w``, four rows at a time."""
    # With ``n_vectors`` blocks in a row, v and the sums stay in registers; with 0 there may be any number.
    # Four rows serve twice while they are in registers or the first-level cache: for X v, then for X^T.
    stride = n_blocks * e.width
    kept = range(n_vectors)
    fixed = [v[b * e.width] for b in kept]
    totals = [e.variables(n_vectors) for _ in outs]
    with e.loop((n + 3) // 4) as quad:
        first = quad * 4
        rows = [x + (first + i) * stride for i in range(4)]
        acc = e.variables(4)
        blocks = [[row[b * e.width] for row in rows] for b in kept]
        for vectors, factor in zip(blocks, fixed, strict=True):
            for slot, vector in zip(acc, vectors, strict=True):
                slot += vector * factor
        if not n_vectors:
            with e.blocks(n_blocks) as at:
                vectors, factor = [row[at] for row in rows], v[at]
                for slot, vector in zip(acc, vectors, strict=True):
                    slot += vector * factor
        # s_i (x_i . v) of the four rows, by which they are then added to the output.
        products = (_quad_sums(e, acc) * e.narrower(4).view(sign)[first]).rounded()
        factors = [[e.spread(products.e.element(products, i)) for i in range(4)]]
        if len(outs) > 1:
            factors.append([w.spread(first + i) for i in range(4)])

        def add(total, vectors, spread):
            for vector, factor in zip(vectors, spread, strict=True):
                total = total + vector * factor
            return total

        for slots, spread in zip(totals, factors, strict=True):
            for vectors, slot in zip(blocks, slots, strict=True):
                slot.set(add(slot, vectors, spread))
        if not n_vectors:
            with e.blocks(n_blocks) as at:
                vectors = [row[at] for row in rows]
                for out, spread in zip(outs, factors, strict=True):
                    out[at] = add(out[at], vectors, spread)
    for out, slots in zip(outs, totals, strict=True):
        for b, slot in enumerate(slots):
            out[b * e.width] = out[b * e.width] + slot


def _add_normal_of_any_width(e, outs, x, v, sign, w, n, n_blocks):
    # The 32 registers of AVX-512 hold v and the sums of two or four blocks (K = 32, 64 in float32).
    for n_vectors in (2, 4) if HAS_AVX512 else ():
        with e.when(n_blocks.is_("==", n_vectors)):
            _add_normal(e, outs, x, v, sign, w, n, n_blocks, n_vectors)
            e.builder.ret_void()
    _add_normal(e, outs, x, v, sign, w, n, n_blocks, 0)


@kernel("ppppii")
def add_normal(e, y, x, v, sign, n, n_blocks):
    """``y += X^T diag(sign) X v`` for ``n`` rows, in one pass."""
    _add_normal_of_any_width(e, [y], x, v, sign, None, n, n_blocks)


@kernel("ppppppii")
def add_normal_and_right(e, y, right, x, v, sign, w, n, n_blocks):
    """`add_normal`, and in the same pass ``right += X^T w``."""
    _add_normal_of_any_width(e, [y, right], x, v, sign, w, n, n_blocks)
