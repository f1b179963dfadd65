"""The loop over rows: it takes them from the queue, prefetches the next ones, and solves each by its kind."""

# Formulas and records are in `rgals.kernels.row`, ways to solve a row in `rgals.kernels.ways`; diagonal rows
# have a loop of their own. This one is compiled for three uses: exact solutions; a few CG steps (``steps`` is
# a number); sums over rows that couple the item side of RGx (``sums`` is a record). What a use does not need
# is None, and numba leaves out its branches. A row that cannot be solved leaves a code in ``info``; Python
# raises.

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

BATCH = 32  # rows whose inverses are summed in the factors' precision before the sum is added in float64


class Sums(NamedTuple):
    """Sums over the rows of each of n pieces of work."""

    inverses: np.ndarray  # (n, packed triangle): sum_r scale_r^2 A_r^-1
    solutions: np.ndarray  # (n, kp): sum_r scale_r p_r


@inner(forceinline=True)
def _store(row, result, scratch):
    """Write ``p = D^-1/2 x`` and ``b . p``, which is the product of the scaled vectors."""
    k = result.out.shape[1]
    result.value[row.number] = dot(scratch.rhs, 0, scratch.solution, 0, len(scratch.rhs))
    times(result.out, row.number * k, scratch.solution, 0, scratch.inv_root, 0, k)


@inner(forceinline=True)
def _add_sums(row, kind, piece, rows, fixed, scratch, sums):
    """Add ``scale^2 A^-1`` and ``scale p`` of a row to the sums."""
    cholesky.add_inverse(row, kind, rows, fixed, scratch)
    kp, x, inv_root = len(fixed.d), scratch.solution, scratch.inv_root
    add_times(sums.solutions, piece * kp, x, 0, inv_root, 0, rows.scale, row.number, kp)


@inner(forceinline=True)
def _flush(piece, scratch, sums):
    """Add the inverses of a batch of rows to the sum in float64, and clear the batch."""
    n = len(scratch.batch)
    widen_add(sums.inverses, piece * n, scratch.batch, 0, n)
    zero(scratch.batch, 0, n)


@entry(nogil=True)
def _run(counter, work, rows, fixed, result, steps, sums):
    scratch = make_scratch(len(fixed.d), work.room, sums is not None, fixed.d)
    smallest, largest = ends(fixed.d)
    # Taking an array out of a record counts a reference, so it is done once, before the loop.
    order, bounds, max_packed = work.order, work.bounds, work.max_packed
    kinds, info = work.kind, result.info
    if sums is not None:
        zero(scratch.batch, 0, len(scratch.batch))
    # All threads share the counter: each takes the next piece of work when it is done with one.
    piece = fetch_add(counter, 0, 1)
    while piece < len(bounds) - 1:
        first, stop = bounds[piece], bounds[piece + 1]
        for at in range(first, stop):
            row = look_ahead(at, stop, order, rows, result)
            if not is_solvable(row.number, smallest, largest, rows, result):
                continue
            # D^-1/2 and c, which every way begins with; then x, by the way that the plan chose.
            scale_row(row.number, rows, fixed, scratch, rows.prior)
            kind = kinds[row.number]
            if steps is not None:
                info[row.number] = cg.improve(row, steps, max_packed, rows, fixed, result, scratch)
            elif sums is not None:  # the inverse needs a factor, which CG does not leave
                info[row.number] = factorise_row(kind & FACTORED, row, work, rows, fixed, scratch)
            else:
                info[row.number] = solve_row(kind, row, work, rows, fixed, scratch)
            if sums is None:
                _store(row, result, scratch)
            else:
                _add_sums(row, kind, piece, rows, fixed, scratch, sums)
                # Short batches, because rounding grows with the rows that are summed in float32. The last
                # row of a piece ends its last batch.
                if (at - first) % BATCH == BATCH - 1 or at == stop - 1:
                    _flush(piece, scratch, sums)
        piece = fetch_add(counter, 0, 1)


def solve(
    work: Work, rows: Rows, fixed: FixedSide, result: Result, n_threads: int, steps: int | None = None
) -> None:
    """Solve rows, or improve them by ``steps`` CG steps; results are in the basis of the fixed factors."""
    # Steps start from what ``result.out`` holds. ``result.value`` is then ``(b + r) . p`` with the residual
    # r, minus the row's part of the objective at p; a direction without positive curvature leaves 1 in
    # ``info``.
    launch(_run, n_threads, work, rows, fixed, result, steps, None)


def coupling_sums(
    parts: Iterable[tuple[Work, Rows, Result]], fixed: FixedSide, n_threads: int
) -> tuple[np.ndarray, np.ndarray]:
    """``sum_r scale_r^2 A_r^-1`` (kp, kp) and ``sum_r scale_r A_r^-1 b_r`` (kp,) over rows of ``parts``."""
    # ``parts`` are blocks of rows, all with the same number of pieces of work; piece i of a block continues
    # piece i of the one before. A piece is summed by one thread, in the order of its rows: inverses over
    # `BATCH` rows in the factors' precision, over all rows in float64. Codes go to ``result.info``.
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
    """The symmetric matrix (kp, kp) of a packed triangle (`rgals.kernels.triangles`)."""
    full = np.zeros((kp, kp))
    at = 0
    # Block column j holds (j + 1) W rows of W numbers.
    for j in range(kp // width):
        rows = (j + 1) * width
        full[:rows, j * width : rows] = triangle_[at : at + rows * width].reshape(rows, width)
        at += rows * width
    upper = np.triu(full)
    return upper + np.triu(upper, 1).T
