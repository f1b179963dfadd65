"""The plan of one side of a fit: how each row is solved, in which order, and in which pieces of work."""

# Made once per side, in numpy, from row lengths, weights, the scale and K. To follow a row: `classify` gives
# it a kind, `Plan` sorts and cuts rows into `Work`, and the loop of `rgals.kernels.rows` solves them;
# `rgals.kernels.row` has the formulas. Every threshold of the plan is a constant at the top of this file
# (what a way decides as it runs is in its own). A new loss needs no line here: it gives the coefficients of a
# `Side` (`rgals.losses.base`). A new way is a file of `rgals.kernels.ways` and a line in `classify`.
#
# Measured figures are from two cores with AVX-512 and 2 MB of second-level cache per core, in float32.

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from rgals.kernels import row as kernel
from rgals.kernels.row import DIAGONAL, DUAL, EMPTY, FACTORED, PRIMAL, Rows, Work
from rgals.kernels.rows import BATCH
from rgals.kernels.ways import WAYS
from rgals.kernels.ways.cg import CG, CG_ERROR
from rgals.kernels.ways.cholesky import CHUNK
from rgals.losses.base import Side
from rgals.matrix.csr import CSR
from rgals.runtime.aligned import CACHE, LINE, read_only

# ---------------------------------------------------------------- thresholds

# CG steps that a row needs for 6.3 digits: about 1.5 + 4.3 log10(condition). Measured on rows of
# douban-book-music with K=128: 6 to 7 at condition 11, 9 to 13 at 101, 12 at 390, 13 to 17 at 1001.
CG_STEPS, CG_STEPS_PER_DECADE, CG_DIGITS = 1.5, 4.3, 6.3
# Rows with fewer positives than this, and all rows of fits with fewer factors, are factorised: that costs no
# more than CG.
CG_MIN_LENGTH, CG_MIN_FACTORS = 32, 64
# The cost of a factorisation in CG steps: min(n, K) / 8 + 4.
FACTORISATION_DIVISOR, FACTORISATION_OFFSET = 8, 4
# Positives that do not fit the cache are gathered again at every CG step. From 256 factors on that is still
# cheaper than a factorisation; with fewer factors such rows are factorised.
CG_MIN_FACTORS_UNCACHED = 256

# The dual (n x n) takes rows that are at least one block of W shorter than K, up to 512 positives. Where K is
# small it takes rows of up to 24 positives.
DUAL_MAX_LENGTH, DUAL_SMALL_LENGTH = 512, 24

# Fits by a few CG steps (`solver="pcg"`): rows of up to 3/32 K positives are solved exactly, which is no
# slower than rotating the warm start and running CG. With up to 128 factors all rows are iterated.
DIRECT_SHARE, DIRECT_ABOVE_FACTORS = 3 / 32, 128

ROWS_PER_PIECE = 16  # rows that a thread takes from the queue at once
# Diagonal rows are cut into 256 pieces of equal cost. A row costs as much as 8 positives, besides its own.
DIAGONAL_PIECES, ROW_COST = 256, 8
# Pieces of RGx's sums over rows, up to 256 factors and beyond. Each holds a K x K triangle in float64.
COUPLING_PIECES, COUPLING_PIECES_WIDE, WIDE_FACTORS = 16, 4, 256
LAUNCH_COST = 1 << 36  # multiplications between two checks for Ctrl-C: one or two seconds on two cores
ALL = slice(None)


# ---------------------------------------------------------------- the kind of a row


@dataclass(frozen=True)
class Kinds:
    """The kinds of rows that a backend can solve."""

    padding: int  # K is padded to a multiple of this
    flags: bool  # whether rows can have flags: ways that are tried before a factorisation, as CG
    dual_to_k: bool  # whether the dual takes all rows of up to K positives


CPU = {np.dtype(t): Kinds(LINE // np.dtype(t).itemsize, True, False) for t in (np.float32, np.float64)}
GPU = Kinds(1, False, True)


def padded(K: int, padding: int) -> int:
    """K rounded up to whole blocks of ``padding`` factors."""
    return -(-K // padding) * padding


def dual_max_length(kp: int, kinds: Kinds) -> int:
    """Row length up to which the dual (n x n) costs less than the primal (K x K)."""
    return kp if kinds.dual_to_k else min(kp, max(kp - kinds.padding, DUAL_SMALL_LENGTH), DUAL_MAX_LENGTH)


def packed_max_length(kp: int, itemsize: int) -> int:
    """Positives that CG packs at once: whole blocks of W that fit a thread's share of the caches."""
    width = LINE // itemsize
    return max(CACHE // itemsize // kp, width) // width * width


def room_of(kp: int, itemsize: int, longest: int) -> int:
    """Positives that the work space of a thread has room for, if no row has more than ``longest``."""
    # It holds a packed K x K matrix, a chunk of the primal, or a packed row of CG.
    return max(kp, CHUNK, min(packed_max_length(kp, itemsize), padded(longest, LINE // itemsize)))


def direct_max_length(kp: int) -> int:
    """Row length up to which fits by a few CG steps solve a row exactly."""
    return int(DIRECT_SHARE * kp) if kp > DIRECT_ABOVE_FACTORS else 0


def factorisation_steps(n: np.ndarray, kp: int) -> np.ndarray:
    """The cost of factorising rows of n positives, in CG steps."""
    return (np.minimum(n, kp) // FACTORISATION_DIVISOR + FACTORISATION_OFFSET).astype(np.int32)


def expected_steps(heaviest: np.ndarray, scale: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """CG steps that a row needs to reach rounding, from a bound of its condition."""
    # Scaled by D^-1/2 no eigenvalue is below 1, and the largest is at most 1 + weight / scale.
    heaviest, unbounded = np.maximum(heaviest, 0.0), np.full(len(scale), np.inf)
    condition = 1.0 + np.divide(heaviest, scale, out=unbounded, where=scale > 0)
    digits = -np.log10(CG_ERROR * np.finfo(dtype).eps)
    return (CG_STEPS + CG_STEPS_PER_DECADE * np.log10(condition)) * digits / CG_DIGITS


def classify(counts: tuple[np.ndarray, ...], side: Side, K: int, dtype: np.dtype, kinds: Kinds) -> np.ndarray:
    """The kind of every row, int8: `EMPTY`, `DIAGONAL`, `DUAL` or `PRIMAL`, these two also with `CG`."""
    # ``counts``, (n_rows,) each: ``n`` positives of a row, ``n_zero`` of them of weight 0, ``n_negative`` of
    # negative weight; ``heaviest`` is the largest weight or an estimate of it.
    (n, n_zero, n_negative, heaviest), scale, kp = counts, side.scale, padded(K, kinds.padding)
    # The dual takes square roots of the weights, so that rows with a negative one go to the primal.
    kind = np.where((n_negative > 0) | (n > dual_max_length(kp, kinds)), PRIMAL, DUAL)
    if kp >= CG_MIN_FACTORS:
        # A negative weight may leave the system indefinite; without the Gramian nothing bounds its condition.
        tried = (n >= CG_MIN_LENGTH) & (n_negative == 0) & (scale > 0)
        if kp < CG_MIN_FACTORS_UNCACHED:
            tried &= n <= packed_max_length(kp, dtype.itemsize)
        # Rows with pairs took 6 to 8 steps whatever their positives weigh (amazon-book-kgat, citeulike-a,
        # K=64: conditions of 2 to 5). There the estimate is too high, and CG is always tried.
        if not side.paired:  # pairs besides positives: `Side.with_pairs`
            steps = expected_steps(heaviest[tried], scale[tried], dtype)
            tried[tried] = steps <= factorisation_steps(n[tried], kp)
        kind = np.where(tried, kind | CG, kind)
    kind = kind if kinds.flags else kind & FACTORED
    kind = np.where(n_zero == n, DIAGONAL, kind)  # no positive has a weight: the system is D alone
    return np.where((n == 0) & (side.linear == 0), EMPTY, kind).astype(np.int8)  # b = 0: the solution is zero


# ---------------------------------------------------------------- what the rows are


def fold_terms(side: Side, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients of rows, (n_rows, 4), and of columns, (n_fixed, 4), or (0, 4) if all columns are alike."""
    # Equal terms of columns are multiplied into those of the rows, so that kernels read none per positive.
    row_terms, col_terms = side.row_terms, side.col_terms
    if len(col_terms) and (col_terms == col_terms[0]).all():
        row_terms, col_terms = row_terms * col_terms[0], np.empty((0, 4))
    return row_terms.astype(dtype), col_terms.astype(dtype)


def rows_of(matrix: CSR, side: Side, terms: tuple[np.ndarray, np.ndarray], at: slice = ALL) -> Rows:
    """The record that kernels read, in the factors' precision; ``matrix`` has the rows ``at`` of the side."""
    # ``terms``: what `fold_terms` returned, in that precision.
    row_terms, col_terms = terms
    values = read_only(matrix.values.astype(row_terms.dtype, copy=False))
    own = side.scale[at], side.linear[at], side.ridge[at], row_terms[at]
    return Rows(matrix.indptr, matrix.indices, values, *own, col_terms, np.empty((0, 0), row_terms.dtype))


def weigh(rows: Rows, n_threads: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per row: the number of zero weights, of negative weights, and the largest of the first weights."""
    if len(rows.values) or len(rows.col_terms):
        return kernel.weigh(rows, n_threads)
    # All positives of a row have one weight: nothing is read per positive.
    n, weight = np.diff(rows.indptr), rows.row_terms[:, 0] + rows.row_terms[:, 1]
    return np.where(weight == 0, n, 0), np.where(weight < 0, n, 0), weight.astype(np.float64)


def pieces(n: np.ndarray, number: int = DIAGONAL_PIECES, row_cost: int = ROW_COST) -> np.ndarray:
    """Bounds of pieces of about equal cost, for rows of n positives: a row costs ``n + row_cost``."""
    cost = np.append(0, np.cumsum(n + row_cost))
    return np.unique(np.searchsorted(cost, np.linspace(0, cost[-1], number + 1)))


# ---------------------------------------------------------------- the plan of a side


class Block(NamedTuple):
    """The rows ``at`` of a side, as many as are in memory at once; `Work` counts rows from the first one."""

    at: slice
    n: np.ndarray  # positives of every row
    rows: Rows
    diagonal: Work
    iterated: Work  # by a few CG steps from the current factors
    exact: Work  # by CG to rounding, dual or primal


class Plan:
    """What the half-steps of a side share: its rows as records, their kinds, and the order of the work."""

    # With ``steps`` rows are improved by that many CG steps instead of being solved. Rows without weights and
    # rows of few positives are solved exactly all the same.

    def __init__(
        self, matrix: CSR, side: Side, dtype: np.dtype, K: int, steps: int | None = None, n_threads: int = 1
    ) -> None:
        self.matrix, self.side, self.dtype, self.K = matrix, side, np.dtype(dtype), K
        self._terms, self._cuts = fold_terms(side, self.dtype), matrix.cuts()
        #: The rows as kernels read them; None if they do not fit the memory and are read block by block.
        self.rows: Rows | None = None
        if len(self._cuts) == 2:
            self.rows = next(self._read())[1]
        n = matrix.row_counts
        weighed = zip(*(weigh(rows, n_threads) for _, rows in self._read()))
        n_zero, n_negative, heaviest = (np.concatenate(parts) for parts in weighed)
        kinds = CPU[self.dtype]
        self.kind = classify((n, n_zero, n_negative, heaviest), side, K, self.dtype, kinds)
        self.kp = padded(K, kinds.padding)
        self._cost = factorisation_steps(n, self.kp)  # of every row, in CG steps
        self._heaviest = heaviest.astype(np.float32)  # for `__str__`
        #: The rows with b = 0: their solution is zero, or what features predict.
        self.empty = np.flatnonzero(self.kind == EMPTY)
        # The longest rows of a block come first, so that no thread is left with a long one at the end.
        longest_first = np.lexsort((-n, self._block_of(np.arange(len(n)))))
        weighted = longest_first[self.kind[longest_first] & FACTORED >= DUAL]
        #: None also where all rows are diagonal or empty: their exact solution costs no more than a step.
        self.steps = steps if len(weighted) else None
        direct = n[weighted] <= (n.max(initial=0) if self.steps is None else direct_max_length(self.kp))
        #: Rows with weights: improved by ``steps`` of CG; solved exactly by CG, dual or primal.
        self.iterated, self.exact = weighted[~direct], weighted[direct]
        #: Rows without weights.
        self.diagonal = np.flatnonzero(self.kind == DIAGONAL)
        #: The rows of RGx's item side that `rgals.kernels.rows.coupling_sums` adds up, in their order.
        self.coupled = np.flatnonzero((self.kind & FACTORED >= DUAL) & (side.scale != 0))
        # Each order is cut where the next block of rows begins.
        orders, later = (self.diagonal, self.iterated, self.exact), np.arange(1, len(self._cuts) - 1)
        self._orders = [np.split(o, np.searchsorted(self._block_of(o), later)) for o in orders]
        self._whole = None if self.rows is None else self._block(0, n, self.rows)

    def forget_columns(self) -> None:
        """Drop the coefficients of the fixed side: on a cluster `Solve.col_terms` brings them along."""
        none, few = np.empty(0), np.empty((0, self.side.col_terms.shape[1]))
        self.side = replace(self.side, gram_weight=none, linear_weight=none, col_terms=few)
        self._terms = self._terms[0], few.astype(self.dtype)
        assert self.rows is not None and self._whole is not None
        self.rows = self.rows._replace(col_terms=self._terms[1])
        self._whole = self._whole._replace(rows=self.rows)

    def _block_of(self, rows: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._cuts, rows, side="right") - 1

    def _read(self, cuts: np.ndarray | None = None) -> Iterator[tuple[slice, Rows]]:
        if self.rows is not None:
            yield slice(0, self.matrix.n_rows), self.rows
            return
        for start, stop, matrix in self.matrix.blocks(self._cuts if cuts is None else cuts):
            at = slice(start, stop)
            yield at, rows_of(matrix, self.side, self._terms, at)

    def blocks(self) -> Iterator[Block]:
        """The rows in blocks, with their work; a single block if all rows are in memory."""
        if self._whole is not None:
            yield self._whole
            return
        for number, (_, rows) in enumerate(self._read()):
            yield self._block(number, np.diff(rows.indptr), rows)

    def _block(self, number: int, n: np.ndarray, rows: Rows) -> Block:
        at = slice(int(self._cuts[number]), int(self._cuts[number + 1]))
        diagonal, iterated, exact = (parts[number] - at.start for parts in self._orders)
        solved = (self._work(order, n, at) for order in (iterated, exact))
        return Block(at, n, rows, self._work(diagonal, n, at, pieces(n[diagonal])), *solved)

    def _work(self, order: np.ndarray, n: np.ndarray, at: slice, bounds: np.ndarray | None = None) -> Work:
        if bounds is None:
            bounds = np.append(np.arange(0, len(order), ROWS_PER_PIECE), len(order))
        itemsize = self.dtype.itemsize
        room = room_of(self.kp, itemsize, int(n[order].max(initial=0)))
        most = packed_max_length(self.kp, itemsize)
        return Work(order, bounds.astype(np.int64), self.kind[at], self._cost[at], most, room)

    def coupled_blocks(self) -> Iterator[tuple[slice, Rows, Work]]:
        """The rows of `coupled` in blocks, dealt out in turn to a fixed number of pieces of work."""
        # Blocks begin where every piece has just added up a whole batch, so that sums do not depend on them.
        n_parts = COUPLING_PIECES if self.K <= WIDE_FACTORS else COUPLING_PIECES_WIDE
        for at, rows in self._read(self.matrix.cuts(self.coupled[:: n_parts * BATCH][1:])):
            first, last = np.searchsorted(self.coupled, (at.start, at.stop))
            order = self.coupled[first:last] - at.start
            parts = [order[part::n_parts] for part in range(n_parts)]
            bounds = np.append(0, np.cumsum([len(part) for part in parts]))
            yield at, rows, self._work(np.concatenate(parts), np.diff(rows.indptr), at, bounds)

    def launches(self, block: Block, work: Work) -> list[Work]:
        """The work of a block in launches of at most seconds, between which Ctrl-C is answered."""
        order, kp = work.order, self.kp
        if not len(order):
            return []
        # A bound of the multiplications, however rows are solved: all but huge problems take one launch.
        if len(order) * kp**3 + len(block.rows.indices) * kp**2 <= LAUNCH_COST:
            return [work]
        n = block.n[order].astype(np.float64)
        cost = np.cumsum(np.minimum(n, kp) ** 3 + n * np.minimum(n, kp) * kp)
        cuts = np.searchsorted(cost, np.arange(LAUNCH_COST, cost[-1], LAUNCH_COST))
        return [self._work(part, block.n, block.at) for part in np.split(order, cuts) if len(part)]

    def __str__(self) -> str:
        """How many rows are solved in which way: ``9,120 rows by CG (11 steps), 611 dual, 14 primal``."""
        kind = self.kind.copy()
        kind[self.iterated] = -1  # counted: no other name is to match them
        found = {f"by {self.steps} CG steps": kind == -1}
        # In the order in which the ways of a row are tried: the highest flag first, factorisations last.
        for way in sorted(WAYS, key=lambda way: way.kind if way.kind <= FACTORED else -way.kind):
            of_way = kind == way.kind if way.kind <= FACTORED else kind >= way.kind
            name = way.name
            if way.kind == CG and of_way.any():
                steps = expected_steps(self._heaviest[of_way], self.side.scale[of_way], self.dtype)
                name += f" ({np.median(np.ceil(steps)):.0f} steps)"
            found[name] = of_way
            kind[of_way] = -1
        found |= {"diagonal": kind == DIAGONAL, "empty": kind == EMPTY}
        parts = [f"{of_way.sum():,} {name}" for name, of_way in found.items() if of_way.any()]
        return ", ".join([parts[0].replace(" ", " rows ", 1), *parts[1:]]) if parts else "no rows"
