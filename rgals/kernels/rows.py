"""The one loop over rows: takes them from the queue, looks ahead to the next, solves each by its kind.

It is compiled for three uses: exact solutions; a few steps of conjugate gradients (``steps`` is a number);
the sums over rows that couple RGx's item side (``sums`` is a record). What a use does not need is None, and
numba leaves its branches out. A row that cannot be solved (its diagonal not positive, or a pivot that is not)
leaves its code in ``info``; Python raises.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from rgals.kernels.compile import entry, inner
from rgals.kernels.loops import ends
from rgals.kernels.queue import fetch_add, launch
from rgals.kernels.row import (
    FACTORED,
    FixedSide,
    Result,
    Rows,
    Work,
    is_solvable,
    look_ahead,
    make_scratch,
    scale_row,
)
from rgals.kernels.tiles import add_times, dot, times, widen_add, zero
from rgals.kernels.triangles import triangle
from rgals.kernels.vectors import LINE
from rgals.kernels.ways import cg, cholesky, factorise_row, solve_row

BATCH = 32  # rows whose inverses are added in the factors' precision, before float64


class Sums(NamedTuple):
    """Over the rows of each piece of work: ``inverses`` (n, triangle) scale^2 A^-1, ``solutions`` (n, kp)."""

    inverses: np.ndarray
    solutions: np.ndarray


@inner(forceinline=True)
def _store(row, result, scratch):
    """``p = D^-1/2 x`` and ``b . p``."""
    k = result.out.shape[1]
    result.value[row.number] = dot(scratch.rhs, 0, scratch.solution, 0, len(scratch.rhs))
    times(result.out, row.number * k, scratch.solution, 0, scratch.inv_root, 0, k)


@inner(forceinline=True)
def _add_sums(row, kind, piece, rows, fixed, scratch, sums):
    """The row's part of the sums that couple rows."""
    cholesky.add_inverse(row, kind, rows, fixed, scratch)
    kp, x, inv_root = len(fixed.d), scratch.solution, scratch.inv_root
    add_times(sums.solutions, piece * kp, x, 0, inv_root, 0, rows.scale, row.number, kp)


@inner(forceinline=True)
def _flush(piece, scratch, sums):
    """Add the inverses of the last rows up in float64."""
    n = len(scratch.batch)
    widen_add(sums.inverses, piece * n, scratch.batch, 0, n)
    zero(scratch.batch, 0, n)


@entry(nogil=True)
def _run(counter, work, rows, fixed, result, steps, sums):
    scratch = make_scratch(len(fixed.d), work.room, sums is not None, fixed.d)
    smallest, largest = ends(fixed.d)
    # Arrays of records are named before the loop: an array that is taken out of one counts its references.
    order, bounds, most = work.order, work.bounds, work.most
    kinds, info = work.kind, result.info
    if sums is not None:
        zero(scratch.batch, 0, len(scratch.batch))
    # Pieces are counted up by all threads at once: whoever is done takes the next.
    piece = fetch_add(counter, 0, 1)
    while piece < len(bounds) - 1:
        first, stop = bounds[piece], bounds[piece + 1]
        for at in range(first, stop):
            row = look_ahead(at, stop, order, rows, result)
            if not is_solvable(row.number, smallest, largest, rows, result):
                continue
            scale_row(row.number, rows, fixed, scratch, rows.prior)
            kind = kinds[row.number]
            if steps is not None:
                info[row.number] = cg.improve(row, steps, most, rows, fixed, result, scratch)
            elif sums is not None:
                info[row.number] = factorise_row(kind & FACTORED, row, work, rows, fixed, scratch)
            else:
                info[row.number] = solve_row(kind, row, work, rows, fixed, scratch)
            if sums is None:
                _store(row, result, scratch)
            else:
                _add_sums(row, kind, piece, rows, fixed, scratch, sums)
                # Rounding grows with the rows that are added in float32; a piece ends with nothing left.
                if (at - first) % BATCH == BATCH - 1 or at == stop - 1:
                    _flush(piece, scratch, sums)
        piece = fetch_add(counter, 0, 1)


def solve(
    work: Work, rows: Rows, fixed: FixedSide, result: Result, n_threads: int, steps: int | None = None
) -> None:
    """Solve rows, or improve them by ``steps`` of conjugate gradients; results in the basis of the factors.

    Steps start from what ``result.out`` holds. ``result.value`` is then ``(b + r) . p`` with the residual r,
    minus the row's part of the objective at p; a direction of non-positive curvature leaves 1 in ``info``.
    """
    launch(_run, n_threads, work, rows, fixed, result, steps, None)


def coupling_sums(
    parts: Iterable[tuple[Work, Rows, Result]], fixed: FixedSide, n_threads: int
) -> tuple[np.ndarray, np.ndarray]:
    """``sum_r scale_r^2 A_r^-1`` and ``sum_r scale_r A_r^-1 b_r`` over all rows of some work.

    ``parts``: blocks of rows with the same number of pieces, which go on from block to block. Each piece of
    work is summed in its order by one thread: inverses in the factors' precision over a few rows, in float64
    over all. Codes go to ``result.info``. Returns the matrix (kp, kp) and the vector (kp,).
    """
    kp = len(fixed.d)
    width = LINE // fixed.d.itemsize
    sums = None
    for work, rows, result in parts:
        n = len(work.bounds) - 1
        sums = sums or Sums(np.zeros((n, triangle(width, kp // width))), np.zeros((n, kp)))
        launch(_run, n_threads, work, rows, fixed, result, None, sums)
    assert sums is not None
    return unpack(sums.inverses.sum(axis=0), kp, width), sums.solutions.sum(axis=0)


def unpack(triangle_: np.ndarray, kp: int, width: int) -> np.ndarray:
    """The symmetric matrix of a packed triangle, for the shared K x K systems in numpy."""
    full = np.zeros((kp, kp))
    at = 0
    # Block column j holds (j + 1) W rows of W numbers.
    for j in range(kp // width):
        rows = (j + 1) * width
        full[:rows, j * width : rows] = triangle_[at : at + rows * width].reshape(rows, width)
        at += rows * width
    upper = np.triu(full)
    return upper + np.triu(upper, 1).T
