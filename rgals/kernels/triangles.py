"""Symmetric matrices as packed triangles: sums of outer products, Cholesky factors, solutions.

The upper triangle by block columns: block column j is the panel (`rgals.kernels.tiles`) of its block rows
``0 .. j``, so that it starts at ``j (j + 1) / 2 W^2``. A Cholesky factor in this layout is again a set of
panels.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils

from rgals.kernels import tiles
from rgals.kernels.compile import inner
from rgals.kernels.emitter import INT, LINE, kernel


@inner
def triangle(width, n_blocks):
    """Numbers that a packed triangle of ``n_blocks`` block columns takes."""
    return n_blocks * (n_blocks + 1) // 2 * width * width


@kernel("ppii")
def _subtract_later(e, y, c, j, n_blocks):
    builder, one = e.builder, ir.Constant(INT, 1)

    def over_later(add):
        with cgutils.for_range_slice(builder, builder.add(j, one), n_blocks, one, INT) as (i, _):
            number = builder.add(builder.lshr(builder.mul(i, builder.add(i, one)), one), j)
            tile = e.at(c, builder.mul(number, ir.Constant(INT, e.width * e.width)))
            add(tile, e.at(y, builder.mul(i, ir.Constant(INT, e.width))))

    at = builder.mul(j, ir.Constant(INT, e.width))
    e.store(builder.fsub(e.load(y, at), tiles.row_sums(e, over_later)), y, at)


@inner
def subtract_later(y, c, j, n_blocks):
    """``y_j -= sum_i U_ji y_i`` over the blocks i > j of a factor ``U^T U``, a packed triangle."""
    _subtract_later(y, 0, c, 0, j, n_blocks)


@inner
def _above_diagonal(c, panels, stride, depth, j, last, factor):
    """The tiles of block columns j and, where it is not beyond ``last``, j + 1 above their own squares."""
    w = LINE // c.itemsize
    at, right = triangle(w, j), triangle(w, j + 1)
    for i in range(j):
        to, left = i * w * w, i * stride
        if j < last:
            tiles.tile_add_two(
                c, at + to, right + to, panels, left, j * stride, (j + 1) * stride, depth, factor
            )
        else:
            tiles.tile_add(c, at + to, panels, left, panels, j * stride, depth, factor)
    if j < last:
        tiles.tile_add(c, right + j * w * w, panels, j * stride, panels, (j + 1) * stride, depth, factor)


@inner
def gram_add(c, panels, stride, depth, n_blocks, factor):
    """``C += factor X^T X`` as a packed triangle; block column j of X is the panel at ``j * stride``."""
    w = LINE // c.itemsize
    for j in range(n_blocks):
        if j % 2 == 0:
            _above_diagonal(c, panels, stride, depth, j, n_blocks - 1, factor)
        tiles.tile_add_self(c, triangle(w, j) + j * w * w, panels, j * stride, depth, factor)


@inner
def gram_add_and_ask(c, panels, stride, depth, n_blocks, factor, source, indices, begin, n):
    """`gram_add`, asking on the way for rows ``source[indices[begin + i]]`` of ``n_blocks`` blocks each.

    For block j with block column j, a row with each step: memory then works while the arithmetic does.

    Returns
    -------
    int
        How many of the ``n`` rows were asked for: there may be fewer steps than rows.
    """
    w = LINE // c.itemsize
    for j in range(n_blocks):
        if j % 2 == 0:
            _above_diagonal(c, panels, stride, depth, j, n_blocks - 1, factor)
        at = triangle(w, j) + j * w * w
        if n == 0:
            tiles.tile_add_self(c, at, panels, j * stride, depth, factor)
        else:
            tiles.tile_add_self_and_ask(
                c, at, panels, j * stride, source, j * w, indices, begin, n_blocks * w, n, depth, factor
            )
    return min(n, depth)


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


def _solver(forward, backward):
    @inner
    def solve(c, inverse, y, n_blocks):
        w = LINE // c.itemsize
        square = w * w
        for j in range(n_blocks):
            column = triangle(w, j)
            if j > 0:
                tiles.panel_product(y, j * w, c, column, y, 0, j * w, -1.0)
            forward(y, j * w, c, column + j * square, inverse, j * w)
        for j in range(n_blocks - 1, -1, -1):
            subtract_later(y, c, j, n_blocks)
            backward(y, j * w, c, triangle(w, j) + j * square, inverse, j * w)

    return solve


_solve, _solve_by_inverses = (
    _solver(tiles.forward_tile, tiles.backward_tile),
    _solver(tiles.forward_by_inverse, tiles.backward_by_inverse),
)


@inner
def cholesky_solve(c, inverse, y, n_blocks):
    """``y = (U^T U)^-1 y`` in place; ``y`` has whole blocks."""
    _solve(c, inverse, y, n_blocks)


@inner
def invert_diagonal(c, inverse, n_blocks):
    """The diagonal tiles of a factor become their inverses: for `solve_by_inverses`, more than once."""
    w = LINE // c.itemsize
    for j in range(n_blocks):
        tiles.tile_invert(c, triangle(w, j) + j * w * w, inverse, j * w)


@inner
def solve_by_inverses(c, inverse, y, n_blocks):
    """`cholesky_solve` after `invert_diagonal`: no chain of dependent steps within a tile."""
    _solve_by_inverses(c, inverse, y, n_blocks)


@inner
def panel_solve(c, inverse, panel, op, first, n_blocks):
    """``panel = U^-T panel`` in place; ``n_blocks`` block rows, zero before block ``first``."""
    w = LINE // c.itemsize
    square = w * w
    for i in range(first, n_blocks):
        row = triangle(w, i)
        tile = op + i * square
        if i > first:
            tiles.tile_add(
                panel, tile, c, row + first * square, panel, op + first * square, (i - first) * w, -1.0
            )
        tiles.tile_solve(panel, tile, c, row + i * square, inverse, i * w)
