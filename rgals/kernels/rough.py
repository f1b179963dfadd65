"""Rough Gramians of the positives of a row, from one or two bfloat16 parts of every number."""

from __future__ import annotations

from rgals.kernels import parts
from rgals.kernels.compile import inner
from rgals.kernels.parts import GROUP, SIDE, SLOT, TILE
from rgals.kernels.triangles import triangle

GROUPS = 3  # taken at once: their tiles stay in the first-level cache


@inner
def memory(n_blocks):
    """Numbers that the tiles of ``n_blocks`` blocks take."""
    return (n_blocks + n_blocks % 2 + 2) * GROUPS * SLOT


@inner
def _column(
    c, tiles, j, right, n_groups, n_parts, factors, indices, then, asked, n_then, n_each, kp
):  # fmt: skip
    """Block columns j and j + 1 of ``C += L R``; returns how many rows have been asked for until now."""
    stride = GROUPS * SLOT
    one, two = triangle(SIDE, j), triangle(SIDE, j + 1)
    for i in range(0, j, 2):
        parts.square(
            c, one + i * TILE, c, two + i * TILE, tiles, i * stride, tiles, right, stride, n_groups, n_parts,
            factors, 0, indices, then + asked, n_then - asked, n_each, kp // SIDE, kp,
        )  # fmt: skip
        asked += n_each * n_groups
    parts.diagonal(
        c, one + j * TILE, c, two + j * TILE, tiles, j * stride, tiles, right, stride, n_groups, n_parts,
        factors, 0, indices, then + asked, n_then - asked, n_each, kp // SIDE, kp,
    )  # fmt: skip
    return asked + n_each * n_groups


@inner
def _n_products(n_blocks):
    n_pairs = (n_blocks + 1) // 2
    return n_pairs * (n_pairs + 1) // 2


@inner
def gram_add(c, tiles, factors, cols, roots, w, inv_root, rhs, kp, n, n_parts, indices, then, n_then):
    """``C += X^T X`` as a packed triangle and ``rhs += X^T w``, X being ``n`` rows as in `systems`.

    Parameters
    ----------
    c : packed triangle of an even number of block columns; one that pads it receives anything
    tiles : memory, see `memory`
    cols, roots, w : of the rows, padded to whole groups by entries with root 0 and w 0
    n : int
        At most ``GROUPS * GROUP``.
    n_parts : int
        1: to about 2^-8 of the products; 2: to about 2^-16.
    indices, then, n_then
        Rows to ask for on the way: ``factors[indices[then + i]]``.
    """
    n_groups = (n + GROUP - 1) // GROUP
    n_blocks = kp // SIDE
    stride = GROUPS * SLOT
    right = (n_blocks + n_blocks % 2) * stride
    n_products = _n_products(n_blocks) * n_groups
    n_each = (n_then + n_products - 1) // n_products
    asked = 0
    for j in range(0, n_blocks, 2):
        for b in range(j, min(j + 2, n_blocks)):
            for g in range(n_groups):
                at = g * GROUP
                here = right + (b - j) * stride + g * SLOT
                parts.pack(
                    tiles, here, rhs, b * SIDE, factors, b * SIDE, inv_root, b * SIDE, roots, at, w, at, cols,
                    at, kp, n_parts,
                )  # fmt: skip
                parts.transpose(tiles, b * stride + g * SLOT, tiles, here, n_parts)
        asked = _column(
            c, tiles, j, right, n_groups, n_parts, factors, indices, then, asked, n_then, n_each, kp
        )


@inner
def rows_gram_add(c, tiles, x, kp, n_panels, n_parts, factors, indices, then, n_then):
    """``C += X X^T`` as a packed triangle from ``n_panels * W`` plain rows; arguments as for `gram_add`."""
    stride = GROUPS * SLOT
    right = (n_panels + n_panels % 2) * stride
    n_products = _n_products(n_panels) * ((kp + GROUP - 1) // GROUP)
    n_each = (n_then + n_products - 1) // n_products
    asked = 0
    for start in range(0, kp, GROUPS * GROUP):
        n_groups = (min(kp - start, GROUPS * GROUP) + GROUP - 1) // GROUP
        for j in range(0, n_panels, 2):
            for q in range(j, min(j + 2, n_panels)):
                for g in range(n_groups):
                    here = q * stride + g * SLOT
                    at = start + g * GROUP
                    parts.pack_rows(tiles, here, x, q * SIDE * kp + at, kp, kp - at, n_parts)
                    parts.transpose(tiles, right + (q - j) * stride + g * SLOT, tiles, here, n_parts)
            asked = _column(
                c, tiles, j, right, n_groups, n_parts, factors, indices, then, asked, n_then, n_each, kp,
            )  # fmt: skip
