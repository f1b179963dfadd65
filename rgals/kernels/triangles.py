"""Symmetric matrices as packed triangles: sums of outer products, Cholesky factors, solutions."""

# The upper triangle is stored by block columns of W columns. Block column j is the panel (see
# `rgals.kernels.tiles`) of its block rows ``0 .. j`` and starts at ``j (j + 1) / 2 W^2``. A Cholesky factor U
# in this layout is again a set of panels: the same tile products multiply, factorise and solve.

from numba.extending import register_jitable

from rgals.kernels import tiles
from rgals.kernels.library import kernel


@register_jitable
def triangle(width, n_blocks):
    """The size of a packed triangle of ``n_blocks`` block columns; of integers, or of `Index` in a kernel."""
    return n_blocks * (n_blocks + 1) // 2 * (width * width)


@kernel("pi")
def identity(e, c, n_blocks):
    """The identity as a packed triangle."""
    w = e.width
    e.call(tiles.zero, c, triangle(w, n_blocks))
    # Diagonal tile j lies below the j tiles of its block column.
    with e.loop(n_blocks) as j:
        for i in range(w):
            unit = [float(k == i) for k in range(w)]
            c[triangle(w, j) + j * w * w + i * w] = e.constant(unit)


def _add_above_diagonal(e, c, panels, stride, depth, j, sign):
    """Add to the tiles above the diagonal of block columns j and j + 1 at once: left panels are read once."""
    w = e.width
    here, right = c + triangle(w, j), c + triangle(w, j + 1)
    panel, beside = panels + j * stride, panels + (j + 1) * stride
    with e.loop(j) as i:
        at = i * w * w
        e.call(tiles.tile_add_two, here + at, right + at, panels + i * stride, panel, beside, depth, sign)
    e.call(tiles.tile_add, right + j * w * w, panel, beside, depth, sign)


@kernel("ppiiir")
def gram_add(e, c, panels, stride, depth, n_blocks, sign):
    """``C += sign X^T X`` as a packed triangle; block column j of X is the panel at ``j * stride``."""
    w = e.width
    with e.loop(n_blocks // 2) as pair:
        _add_above_diagonal(e, c, panels, stride, depth, pair * 2, sign)
    with e.when((n_blocks % 2).is_("==", 1)):
        last = n_blocks - 1
        with e.loop(last) as i:
            to = c + triangle(w, last) + i * w * w
            e.call(tiles.tile_add, to, panels + i * stride, panels + last * stride, depth, sign)
    # Of a tile on the diagonal only the upper triangle is computed.
    with e.loop(n_blocks) as j:
        to = c + triangle(w, j) + j * w * w
        e.call(tiles.tile_add_self, to, panels + j * stride, depth, sign)


@kernel("ppi", "i")
def cholesky(e, c, inverse, n_blocks):
    """Cholesky factor ``U^T U`` of a packed triangle in place, left-looking, and ``1 / diag(U)``."""
    # Returns 0, or the number of the first pivot that is not positive, from 1.
    w = e.width
    square = w * w
    with e.loop(n_blocks) as j:
        column = c + triangle(w, j)
        # U_ij = U_ii^-T (C_ij - sum_{t<i} U_ti^T U_tj), the sum over the block rows above.
        with e.loop(j) as i:
            row, tile = c + triangle(w, i), column + i * square
            e.call(tiles.tile_add, tile, row, column, i * w, -1.0)
            e.call(tiles.tile_solve, tile, row + i * square, inverse + i * w)
        # Likewise on the diagonal, where the difference is factorised.
        tile = column + j * square
        with e.when(j.is_(">", 0)):
            e.call(tiles.tile_add_self, tile, column, j * w, -1.0)
        failed = e.call(tiles.tile_factor, tile, inverse + j * w)
        with e.when(failed.is_("!=", 0)):
            e.give_back(j * w + failed)
    return e.index(0)


def _subtract_later(e, y, c, j, n_blocks):
    """``y_j -= sum_i U_ji y_i`` over the blocks i > j of a factor ``U^T U``, a packed triangle."""
    v, w = e.native(), e.width
    parts = []
    for first in range(0, w, v.width):  # as many rows as the registers hold
        acc = v.variables(v.width)
        with e.loop(n_blocks, j + 1) as i:
            tile, solved = v.view(c + triangle(w, i) + j * w * w), v.view(y + i * w)
            for left in range(0, w, v.width):
                factor = solved[left]
                for k, slot in enumerate(acc):
                    slot += tile[(first + k) * w + left] * factor
        parts.append(v.sums(acc))
    y[j * w] = y[j * w] - e.join(parts)


@kernel("pppi")
def cholesky_solve(e, c, inverse, y, n_blocks):
    """``y = (U^T U)^-1 y`` in place; ``y`` has whole blocks."""
    w = e.width
    square = w * w
    with e.loop(n_blocks) as j:  # U^T z = y, forward: subtract what earlier blocks contribute, then solve
        column = c + triangle(w, j)
        e.call(tiles.panel_product, y + j * w, column, y, j * w, -1.0)
        e.call(tiles.forward_tile, y + j * w, column + j * square, inverse + j * w)
    with e.down(n_blocks) as j:  # U y = z, backward
        _subtract_later(e, y, c, j, n_blocks)
        e.call(tiles.backward_tile, y + j * w, c + triangle(w, j) + j * square, inverse + j * w)


@kernel("pppii")
def panel_solve(e, c, inverse, panel, first, n_blocks):
    """``panel = U^-T panel`` in place; ``n_blocks`` block rows, zero before block ``first``."""
    w = e.width
    square = w * w
    # Z_i = U_ii^-T (B_i - sum_{first <= t < i} U_ti^T Z_t): block forward substitution, from the first block
    # row that is not zero.
    with e.loop(n_blocks, first) as i:
        row, tile = c + triangle(w, i), panel + i * square
        above, earlier = row + first * square, panel + first * square
        e.call(tiles.tile_add, tile, above, earlier, (i - first) * w, -1.0)
        e.call(tiles.tile_solve, tile, row + i * square, inverse + i * w)
