"""Symmetric matrices as packed triangles: sums of outer products, Cholesky factors, solutions.

The upper triangle by block columns: block column j is the panel (`rgals.kernels.tiles`) of its block rows
``0 .. j``, so that it starts at ``j (j + 1) / 2 W^2``. A Cholesky factor in this layout is again a set of
panels.
"""

from __future__ import annotations

from rgals.kernels import tiles
from rgals.kernels.compile import inner
from rgals.kernels.loops import zero
from rgals.kernels.vectors import LINE, Index, kernel


@inner
def triangle(width, n_blocks):
    """Numbers that a packed triangle of ``n_blocks`` block columns takes."""
    return n_blocks * (n_blocks + 1) // 2 * width * width


@inner
def identity(c, n_blocks):
    """The identity as a packed triangle."""
    w = LINE // c.itemsize
    zero(c, triangle(w, n_blocks))
    # Diagonal tile j lies below the j tiles of its block column.
    for j in range(n_blocks):
        at = triangle(w, j) + j * w * w
        for i in range(w):
            c[at + i * (w + 1)] = 1.0


@kernel("vvii")
def subtract_later(e, y, c, j, n_blocks):
    """``y_j -= sum_i U_ji y_i`` over the blocks i > j of a factor ``U^T U``, a packed triangle."""

    # Tile (j, i) is number i (i + 1) / 2 + j of the triangle, as every block column i has i + 1 of them.
    def over_later(add):
        with e.loop(n_blocks, j + 1) as i:
            tile = Index(e.builder, e.builder.lshr((i * (i + 1)).ir, Index(e.builder, 1).ir)) + j
            add(c + tile * (e.width * e.width), y + i * e.width)

    at = j * e.width
    y[at] = y[at] - tiles.row_sums(e, over_later)


@inner
def _above_diagonal(c, panels, stride, depth, j, last, factor):
    """The tiles of block columns j and, where it is not beyond ``last``, j + 1 above their own squares."""
    w = LINE // c.itemsize
    at, right = triangle(w, j), triangle(w, j + 1)
    here, beside = j * stride, (j + 1) * stride
    for i in range(j):
        to, left = i * w * w, i * stride
        if j < last:  # two tiles at once: each number of the left panel is read once
            tiles.tile_add_two(
                c, at + to, c, right + to, panels, left, panels, here, panels, beside, depth, factor
            )
        else:
            tiles.tile_add(c, at + to, panels, left, panels, here, depth, factor)
    if j < last:
        tiles.tile_add(c, right + j * w * w, panels, here, panels, beside, depth, factor)


@inner
def gram_add(c, panels, stride, depth, n_blocks, factor):
    """``C += factor X^T X`` as a packed triangle; block column j of X is the panel at ``j * stride``."""
    w = LINE // c.itemsize
    for j in range(n_blocks):
        # Two block columns at a time above the diagonal; of a square on it only the upper half is computed.
        if j % 2 == 0:
            _above_diagonal(c, panels, stride, depth, j, n_blocks - 1, factor)
        tiles.tile_add_self(c, triangle(w, j) + j * w * w, panels, j * stride, depth, factor)


@inner
def cholesky(c, inverse, n_blocks):
    """Cholesky factor ``U^T U`` of a packed triangle in place, left-looking, and ``1 / diag(U)``.

    Returns 0, or the number of the first pivot that is not positive, from 1.
    """
    w = LINE // c.itemsize
    square = w * w
    for j in range(n_blocks):
        column = triangle(w, j)
        for i in range(j + 1):
            tile = column + i * square
            row = triangle(w, i)
            # C_ij - sum_{t<i} U_ti^T U_tj: what the block rows above have left of this tile.
            if 0 < i < j:
                tiles.tile_add(c, tile, c, row, c, column, i * w, -1.0)
            elif i > 0:
                tiles.tile_add_self(c, tile, c, column, i * w, -1.0)
            if i < j:
                tiles.tile_solve(c, tile, c, row + i * square, inverse, i * w)
            else:
                failed = tiles.tile_factor(c, tile, inverse, j * w)
                if failed:
                    return j * w + failed
    return 0


@inner
def cholesky_solve(c, inverse, y, n_blocks):
    """``y = (U^T U)^-1 y`` in place; ``y`` has whole blocks."""
    w = LINE // c.itemsize
    square = w * w
    for j in range(n_blocks):  # U^T z = y: what the blocks before have solved is subtracted first
        column = triangle(w, j)
        if j > 0:
            tiles.panel_product(y, j * w, c, column, y, 0, j * w, -1.0)
        tiles.forward_tile(y, j * w, c, column + j * square, inverse, j * w)
    for j in range(n_blocks - 1, -1, -1):  # U y = z, from the end
        subtract_later(y, c, j, n_blocks)
        tiles.backward_tile(y, j * w, c, triangle(w, j) + j * square, inverse, j * w)


@inner
def panel_solve(c, inverse, panel, op, first, n_blocks):
    """``panel = U^-T panel`` in place; ``n_blocks`` block rows, zero before block ``first``."""
    w = LINE // c.itemsize
    square = w * w
    # Z_i = U_ii^-T (B_i - sum_{first <= t < i} U_ti^T Z_t): block forward substitution, from the first block
    # row that is not zero.
    for i in range(first, n_blocks):
        row = triangle(w, i)
        tile = op + i * square
        if i > first:
            earlier = op + first * square
            tiles.tile_add(panel, tile, c, row + first * square, panel, earlier, (i - first) * w, -1.0)
        tiles.tile_solve(panel, tile, c, row + i * square, inverse, i * w)
