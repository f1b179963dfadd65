"""The plan of one side of a fit: which way every row is solved, in what order, in which pieces.

Made once for a side, in numpy, from row lengths, signs of the weights, the heaviest weight, the scale and
the number of factors; CPU and GPU read the same plan. This is the only place where thresholds live.
`rgals.kernels.row` says what the kinds of rows are; a new one is a file of `rgals.kernels.ways` and a line
in `classify`.

Figures named below were measured on two cores with AVX-512 and 2 MB of second-level cache a core, float32.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from rgals.kernels import row as kernel
from rgals.kernels.row import DIAGONAL, DUAL, EMPTY, FACTORED, PRIMAL, Rows, Work
from rgals.kernels.rows import BATCH
from rgals.kernels.ways import WAYS
from rgals.kernels.ways.cg import CG, CLOSE
from rgals.kernels.ways.cholesky import CHUNK
from rgals.losses.base import Side
from rgals.matrix.csr import CSR
from rgals.runtime.aligned import CACHE, LINE, read_only

# ---------------------------------------------------------------- thresholds

# Conjugate gradients. CG steps for 6.3 digits: about 1.5 + 4.3 log10(condition). Seen on rows of
# douban-book-music, K=128: 6 to 7 at condition 11, 9 to 13 at 101, 12 at 390, 13 to 17 at 1001.
STEPS, STEPS_TENFOLD, DIGITS = 1.5, 4.3, 6.3
CG_LENGTH, CG_FACTORS = 32, 64  # with fewer positives or factors a factorisation costs no more
# A factorisation costs as much as min(n, K) / 8 + 4 steps.
WORTH_SHARE, WORTH_LEAST = 8, 4
# Rows whose packed positives do not stay in the cache are gathered again at every step; with 256 factors and
# more even that costs less than to factorise them.
CG_STREAMED = 256

# The dual takes rows at least a block of W shorter than K, up to 512 positives; up to 24 where K is small.
DUAL_MOST, DUAL_LEAST = 512, 24

# `steps` of CG instead of a solution: row length up to which solving exactly is no slower than rotating the
# warm start and iterating. Up to 128 factors all rows are iterated.
DIRECT_SHARE, DIRECT_FACTORS = 3 / 32, 128

PIECE = 16  # rows taken from the queue at once
PIECES = 256  # of diagonal rows, of equal cost: a row beside its positives costs as much as 8 of them
ROW_COST = 8
PARTS_FACTORS, PARTS_FEW, PARTS_MANY = 256, 16, 4  # of RGx's sums: each holds a K x K triangle in float64
LAUNCH = 1 << 36  # multiplications between two looks for Ctrl-C: a second or two on two cores
ALL = slice(None)


# ---------------------------------------------------------------- the kind of a row


@dataclass(frozen=True)
class Kinds:
    """The kinds of rows that a backend has."""

    padding: int  # factors are padded to a multiple of this
    flags: bool  # there is what is tried before a factorisation
    dual_to_k: bool  # the dual takes rows of up to K positives, instead of somewhat fewer


CPU = {np.dtype(t): Kinds(LINE // np.dtype(t).itemsize, True, False) for t in (np.float32, np.float64)}
GPU = Kinds(1, False, True)


def padded(K: int, padding: int) -> int:
    """Factors in whole blocks."""
    return -(-K // padding) * padding


def dual_most(kp: int, kinds: Kinds) -> int:
    """Row length up to which the dual of a row costs less than its primal."""
    return kp if kinds.dual_to_k else min(kp, max(kp - kinds.padding, DUAL_LEAST), DUAL_MOST)


def packed_most(kp: int, itemsize: int) -> int:
    """Positives that are packed at once: whole blocks of W that stay in a thread's share of the caches."""
    width = LINE // itemsize
    return max(CACHE // itemsize // kp, width) // width * width


def direct_most(kp: int) -> int:
    """Row length up to which a fit by few steps of CG solves exactly."""
    return int(DIRECT_SHARE * kp) if kp > DIRECT_FACTORS else 0


def steps_worth(n: np.ndarray, kp: int) -> np.ndarray:
    """CG steps that cost as much as a factorisation."""
    return (np.minimum(n, kp) // WORTH_SHARE + WORTH_LEAST).astype(np.int32)


def expected_steps(heaviest: np.ndarray, scale: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """CG steps to rounding: they grow with the logarithm of the condition, at most 1 + weight / scale."""
    heaviest, most = np.maximum(heaviest, 0.0), np.full(len(scale), np.inf)
    condition = 1.0 + np.divide(heaviest, scale, out=most, where=scale > 0)
    digits = -np.log10(CLOSE * np.finfo(dtype).eps)
    return (STEPS + STEPS_TENFOLD * np.log10(condition)) * digits / DIGITS


def classify(
    n: np.ndarray,
    n_zero: np.ndarray,
    n_negative: np.ndarray,
    heaviest: np.ndarray,
    linear: np.ndarray,
    scale: np.ndarray,
    K: int,
    dtype: np.dtype,
    kinds: Kinds,
    paired: bool = False,
) -> np.ndarray:
    """The kind of every row, int8: `EMPTY`, `DIAGONAL`, `DUAL`, `PRIMAL`, these two with `CG` if tried."""
    # Of every row: ``n``, ``n_zero``, ``n_negative``: positives; those without weight; those of negative
    # weight. ``heaviest``: the largest weight, or an estimate. ``linear``, ``scale``: coefficients of the
    # all-pairs terms. ``kinds``: what the backend has. ``paired``: rows have pairs that are no positives
    # (`Side.with_pairs`). Pairs alone would need few steps, and 6 to 8 are seen whatever the positives
    # weigh (amazon-book-kgat, citeulike-a, K=64: conditions of 2 to 5), so that all long enough are tried.
    kp = padded(K, kinds.padding)
    kind = np.where((n_negative > 0) | (n > dual_most(kp, kinds)), PRIMAL, DUAL)
    if kp >= CG_FACTORS:
        tried = (n >= CG_LENGTH) & (n_negative == 0) & (scale > 0)
        if kp < CG_STREAMED:
            tried &= n <= packed_most(kp, dtype.itemsize)
        if not paired:
            tried[tried] = expected_steps(heaviest[tried], scale[tried], dtype) <= steps_worth(n[tried], kp)
        kind = np.where(tried, kind | CG, kind)
    kind = kind if kinds.flags else kind & FACTORED
    kind = np.where(n_zero == n, DIAGONAL, kind)  # no weight of its own
    return np.where((n == 0) & (linear == 0), EMPTY, kind).astype(np.int8)  # b = 0


# ---------------------------------------------------------------- what the rows are


def fold_terms(side: Side, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients of rows, (n_rows, 4), and of columns, (n_fixed, 4); (0, 4) where these count alike."""
    # Their terms move to the rows then, and kernels read nothing per positive.
    row_terms, col_terms = side.row_terms, side.col_terms
    if len(col_terms) and (col_terms == col_terms[0]).all():
        row_terms, col_terms = row_terms * col_terms[0], np.empty((0, 4))
    return row_terms.astype(dtype), col_terms.astype(dtype)


def rows_of(
    matrix: CSR,
    side: Side,
    dtype: np.dtype,
    at: slice = ALL,
    terms: tuple[np.ndarray, np.ndarray] | None = None,
) -> Rows:
    """The record that kernels read, in the factors' precision; ``matrix`` has the rows ``at`` of the side."""
    # ``terms``: of `fold_terms`, where that was asked before.
    row_terms, col_terms = fold_terms(side, dtype) if terms is None else terms
    values = read_only(matrix.values.astype(dtype, copy=False))
    own = side.scale[at], side.linear[at], side.ridge[at], row_terms[at]
    return Rows(matrix.indptr, matrix.indices, values, *own, col_terms, np.empty((0, 0), dtype))


def weigh(rows: Rows, n_threads: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of every row the weights that are 0 and those that are negative, and the heaviest of the first."""
    if len(rows.values) or len(rows.col_terms):
        return kernel.weigh(rows, n_threads)
    n, weight = np.diff(rows.indptr), rows.row_terms[:, 0] + rows.row_terms[:, 1]  # all of a row alike
    return np.where(weight == 0, n, 0), np.where(weight < 0, n, 0), weight.astype(np.float64)


def pieces(n: np.ndarray, number: int = PIECES, row_cost: int = ROW_COST) -> np.ndarray:
    """Bounds of pieces of equal cost, of rows with so many positives, each with a cost of its own besides."""
    cost = np.append(0, np.cumsum(n + row_cost))
    return np.unique(np.searchsorted(cost, np.linspace(0, cost[-1], number + 1)))


# ---------------------------------------------------------------- the plan of a side


class Block(NamedTuple):
    """Rows ``at`` of a side that are in memory at once; their work counts rows from the first of them."""

    at: slice
    n: np.ndarray  # positives of every row
    rows: Rows
    diagonal: Work
    iterated: Work
    exact: Work


class Plan:
    """What the half-steps of a side share: its rows as records, their kinds, and the work in its order."""

    # ``steps``: improve rows by so many steps of CG instead of solving them; those without weights and those
    # of few positives are solved all the same.

    def __init__(
        self, matrix: CSR, side: Side, dtype: np.dtype, K: int, steps: int | None = None, n_threads: int = 1
    ) -> None:
        self.matrix, self.side, self.dtype, self.K = matrix, side, np.dtype(dtype), K
        self._terms, self._cuts = fold_terms(side, self.dtype), matrix.cuts()
        #: The rows as kernels read them; None where they are read block after block.
        self.rows: Rows | None = None
        if len(self._cuts) == 2:
            self.rows = next(self._read())[1]
        n = matrix.row_counts
        weighed = zip(*(weigh(rows, n_threads) for _, rows in self._read()))
        n_zero, n_negative, heaviest = (np.concatenate(parts) for parts in weighed)
        kinds = CPU[self.dtype]
        # See `classify`.
        counts = n, n_zero, n_negative, heaviest
        self.kind = classify(*counts, side.linear, side.scale, K, self.dtype, kinds, side.paired)
        self.kp = padded(K, kinds.padding)
        self._worth = steps_worth(n, self.kp)
        self._heaviest = heaviest.astype(np.float32)  # for `__str__`
        #: The rows whose solution is zero.
        self.empty = np.flatnonzero(self.kind == EMPTY)
        longest_first = np.lexsort((-n, self._block_of(np.arange(len(n)))))  # within their blocks
        weighted = longest_first[self.kind[longest_first] & FACTORED >= DUAL]
        #: None where no row is improved by steps: solutions of diagonal rows are exact at the price of one.
        self.steps = steps if len(weighted) else None
        direct = n[weighted] <= (n.max(initial=0) if self.steps is None else direct_most(self.kp))
        #: The rows by how they are solved: improved by ``steps``; by CG, dual or primal; without weights.
        self.iterated, self.exact = weighted[~direct], weighted[direct]
        self.diagonal = np.flatnonzero(self.kind == DIAGONAL)
        #: The rows of RGx's item side that `rgals.kernels.rows.coupling_sums` adds up, in their order.
        self.coupled = np.flatnonzero((self.kind & FACTORED >= DUAL) & (side.scale != 0))
        orders, later = (self.diagonal, self.iterated, self.exact), np.arange(1, len(self._cuts) - 1)
        self._orders = [np.split(o, np.searchsorted(self._block_of(o), later)) for o in orders]
        self._whole = None if self.rows is None else self._block(0, n, self.rows)

    def forget_columns(self) -> None:
        """Leave out what belongs to the fixed side, of rows in memory: `Solve.col_terms` brings it along."""
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
            yield at, rows_of(matrix, self.side, self.dtype, at, self._terms)

    def blocks(self) -> Iterator[Block]:
        """The rows in blocks, with their work: all at once where they are in memory."""
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
            bounds = np.append(np.arange(0, len(order), PIECE), len(order))
        width = LINE // self.dtype.itemsize
        most = packed_most(self.kp, self.dtype.itemsize)
        packed = min(most, padded(int(n[order].max(initial=0)), width))
        room = max(self.kp, CHUNK, packed)  # a packed K x K matrix, a chunk of the primal, a row of CG
        return Work(order, bounds.astype(np.int64), self.kind[at], self._worth[at], most, room)

    def coupled_blocks(self) -> Iterator[tuple[slice, Rows, Work]]:
        """The rows of `coupled` in blocks, dealt out in turn to a fixed number of pieces of work."""
        # A block begins where every piece has added a whole batch up: no cut shows in the sums.
        n_parts = PARTS_FEW if self.K <= PARTS_FACTORS else PARTS_MANY
        for at, rows in self._read(self.matrix.cuts(self.coupled[:: n_parts * BATCH][1:])):
            first, last = np.searchsorted(self.coupled, (at.start, at.stop))
            order = self.coupled[first:last] - at.start
            parts = [order[part::n_parts] for part in range(n_parts)]
            bounds = np.append(0, np.cumsum([len(part) for part in parts]))
            yield at, rows, self._work(np.concatenate(parts), np.diff(rows.indptr), at, bounds)

    def launches(self, block: Block, work: Work) -> list[Work]:
        """Work of a block in launches that take no more than seconds; one in all but huge problems."""
        order, kp = work.order, self.kp
        most = len(order) * kp**3 + len(block.rows.indices) * kp**2  # multiplications, whatever the path
        if most <= LAUNCH or not len(order):
            return [work][: len(order)]
        n = block.n[order].astype(np.float64)
        cost = np.cumsum(np.minimum(n, kp) ** 3 + n * np.minimum(n, kp) * kp)
        cuts = np.searchsorted(cost, np.arange(LAUNCH, cost[-1], LAUNCH))
        return [self._work(part, block.n, block.at) for part in np.split(order, cuts) if len(part)]

    def __str__(self) -> str:
        """How many rows are solved in which way: ``9,120 rows by CG (11 steps), 611 dual, 14 primal``."""
        kind = self.kind.copy()
        kind[self.iterated] = -1
        found = {f"by {self.steps} CG steps": kind == -1}
        # Of several flags the highest is tried first; then the factorisations.
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
