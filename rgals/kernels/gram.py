"""Weighted Gramians and products with a small square matrix: parallel, with the same bits for any threads."""

# Work is cut by the shape of the problem alone. Each piece is summed by one thread in a fixed order. Blocks
# of 256 rows are multiplied in the factors' own precision, and their products are added up in float64.

import numpy as np

from rgals.kernels.compile import entry, inner
from rgals.kernels.gather import gather_scaled, gather_transposed, padded_rows
from rgals.kernels.library import kernel
from rgals.kernels.queue import fetch_add, launch, spread
from rgals.kernels.tiles import copy, tile_add, widen_add, zero
from rgals.kernels.vectors import LINE
from rgals.kernels.workspace import workspace
from rgals.runtime.aligned import empty, read_only

ROWS = 256  # rows of a block of `gram`: its panels stay in the L2 cache
STRIP = 128  # rows that `multiply` takes at once: they stay in the L2 cache up to K = 1024
CHUNKS = 256  # pieces of work of `multiply`, at most; each has sums of its own
TILE = 256  # columns of an output tile of `gram`: its float64 sums stay in the L2 cache

_NONE = np.empty(0)


@inner
def _tile_of(pair, n_tiles):
    """First row and first column of output tile number ``pair``; tiles below the diagonal have no number."""
    left = 0
    while pair >= n_tiles - left:
        pair -= n_tiles - left
        left += 1
    return left * TILE, (left + pair) * TILE


@kernel("dpppiiii")
def _add_product(e, total, product, left, right, depth, n_left, n_right, triangular):
    """``total += L^T R`` for two sets of panels, by block columns; if ``triangular``, its upper triangle."""
    square = e.width * e.width
    with e.loop(n_right) as j:
        # A block column in the factors' precision, over the rows of a block; then it is added in float64.
        # With ``triangular`` block column j has j + 1 tiles instead of n_left.
        before = (j * n_left + triangular * (j * (j + 1) // 2 - j * n_left)) * square
        n_tiles = n_left + triangular * (j + 1 - n_left)
        e.call(zero, product, n_tiles * square)
        with e.loop(n_tiles) as i:
            panel, beside = left + i * (ROWS * e.width), right + j * (ROWS * e.width)
            e.call(tile_add, product + i * square, panel, beside, depth, 1.0)
        e.call(widen_add, total + before, product, n_tiles * square)


@entry(nogil=True)
def _partial(counter, factors, weight, numbers, ones, gram):
    n, k = factors.shape
    w = LINE // factors.itemsize
    width = (k + w - 1) // w * w
    n_tiles = (width + TILE - 1) // TILE
    n_pairs = n_tiles * (n_tiles + 1) // 2
    n_chunks = len(gram) // n_pairs
    side = len(ones)
    n_blocks = (n + ROWS - 1) // ROWS
    left_panels = workspace(ROWS * side, factors)
    right_panels = workspace(ROWS * side, factors)
    product = workspace(side * w, factors)
    padded = workspace(ROWS * width, factors)
    roots = workspace(ROWS, factors)
    # A task is one output tile, of columns from a and from b on, summed over one chunk of the rows.
    task = fetch_add(counter, 0, 1)
    while task < n_chunks * n_pairs:
        chunk = task // n_pairs
        a, b = _tile_of(task % n_pairs, n_tiles)
        n_left, n_right = min(side, width - a) // w, min(side, width - b) // w
        for block in range(chunk * n_blocks // n_chunks, (chunk + 1) * n_blocks // n_chunks):
            start = block * ROWS
            depth = min(ROWS, n - start)
            # Both sides are scaled by sqrt(weight): then the product of a panel with itself is symmetric.
            for i in range(depth):
                roots[i] = np.sqrt(weight[start + i])
            padded_rows(padded, 0, factors, start * k, depth, k, width)
            for at, n_panels, panels in ((a, n_left, left_panels), (b, n_right, right_panels)):
                where = ones, 0, numbers, 0, roots, 0, w, ROWS * w, width, depth, n_panels, 1.0
                gather_scaled(panels, 0, padded, at, *where)
                if a == b:
                    break
            right = left_panels if a == b else right_panels
            to = task * side * side
            _add_product(gram, to, product, 0, left_panels, 0, right, 0, depth, n_left, n_right, a == b)
        task = fetch_add(counter, 0, 1)


def gram(factors: np.ndarray, weight: np.ndarray, n_threads: int) -> np.ndarray:
    """``F^T diag(weight) F`` in float64, of C-ordered factors (n, K) and weights (n,) that are at least 0."""
    n, k = factors.shape
    if n == 0:
        return np.zeros((k, k))
    w = LINE // factors.itemsize
    width = -(-k // w) * w
    n_tiles = -(-width // TILE)
    n_pairs = n_tiles * (n_tiles + 1) // 2
    n_chunks = max(1, min(16, 20 // n_pairs))  # enough tasks for the threads; diagonal ones are half as long
    side = min(TILE, width)
    partial = np.zeros((n_chunks * n_pairs, side**2))
    numbers, ones = np.arange(ROWS, dtype=np.int32), np.ones(side, factors.dtype)
    launch(_partial, n_threads, read_only(factors), weight, numbers, ones, partial)
    # Chunks are added in a fixed order. A tile is stored by block columns, with rows of W numbers.
    sums = partial.reshape(n_chunks, n_pairs, -1).sum(axis=0)
    out = np.zeros((width, width))
    pairs = [(a, b) for a in range(0, width, TILE) for b in range(a, width, TILE)]
    for (a, b), tile in zip(pairs, sums, strict=True):
        at = 0
        for column in range(b, min(b + side, width), w):
            stop = column + w if a == b else min(a + side, width)
            out[a:stop, column : column + w] = tile[at : at + (stop - a) * w].reshape(-1, w)
            at += (stop - a) * w
    upper = np.triu(out[:k, :k])
    return upper + np.triu(upper, 1).T


@kernel("pdddii")
def add_sums(e, table, weight, linear_weight, sums, k, n):
    """Add ``sum_i w_i f_i^2``, ``sum_i w_i f_i`` and ``sum_i v_i f_i`` over ``n`` rows to ``sums`` (3, k)."""
    # In float64, a block of columns at a time, down all rows.
    for v, at in e.pieces(k):
        wide = v.wide()
        squares, plain, linear = slots = wide.variables(3)
        with e.loop(n) as row:
            numbers = wide.widened(v.view(table)[at + row * k])
            weighted = (wide.view(weight).spread(row) * numbers).rounded()
            squares += weighted * numbers
            plain += weighted
            linear += wide.view(linear_weight).spread(row) * numbers
        for number, slot in enumerate(slots):
            to = at + k * number
            wide.view(sums)[to] = wide.view(sums)[to] + slot


@entry(nogil=True)
def _column_sums(first, stop, factors, weight, out):
    n, k = factors.shape
    for chunk in range(first, stop):
        at, last = chunk * n // len(out), (chunk + 1) * n // len(out)
        add_sums(factors, at * k, weight, at, weight, at, out, chunk * 3 * k, k, last - at)


def column_sums(factors: np.ndarray, weight: np.ndarray, n_threads: int) -> np.ndarray:
    """``F^T weight``, summed in float64."""
    # Always sixteen parts, so that the order of the sums does not depend on the number of threads.
    partial = np.zeros((16, 3, factors.shape[1]))
    spread(_column_sums, len(partial), n_threads, read_only(factors), weight, partial)
    return partial.sum(axis=0)[1]


@kernel("ppxii")
def transpose_strip(e, panels, rows, numbers, n_groups, width):
    """Transpose rows, W at a time, into panels."""
    with e.loop(n_groups) as group, e.blocks(width // e.width) as at:
        to = panels + (group * width + at) * e.width
        gather_transposed(e, to, rows + at, numbers + group * e.width, width)


@entry(nogil=True)
def _multiply(counter, factors, panels, out, weight, linear_weight, sums):
    n, k = factors.shape
    w = LINE // factors.itemsize
    width = (k + w - 1) // w * w
    left = workspace(STRIP * width, factors)
    product = workspace(STRIP * w, factors)
    padded = workspace(STRIP * width, factors)
    numbers = np.empty(STRIP, np.int32)
    n_strips = (n + STRIP - 1) // STRIP
    chunk = fetch_add(counter, 0, 1)
    while chunk < len(sums):
        for strip in range(chunk * n_strips // len(sums), (chunk + 1) * n_strips // len(sums)):
            start = strip * STRIP
            rows = min(STRIP, n - start)
            # Rows are transposed into panels, which tile products take. If the last group has fewer than W
            # rows, it repeats its last row.
            n_groups = (rows + w - 1) // w
            for i in range(n_groups * w):
                numbers[i] = min(i, rows - 1)
            padded_rows(padded, 0, factors, start * k, rows, k, width)
            transpose_strip(left, 0, padded, 0, numbers, 0, n_groups, width)
            for j in range(width // w):  # block column j of the product
                zero(product, 0, n_groups * w * w)
                for group in range(n_groups):
                    at, of = group * width * w, j * width * w
                    tile_add(product, group * w * w, left, at, panels, of, width, 1.0)
                for i in range(rows):
                    copy(out, (start + i) * k + j * w, product, i * w, min(w, k - j * w))
            if len(weight):
                add_sums(out, start * k, weight, start, linear_weight, start, sums, chunk * 3 * k, k, rows)
        chunk = fetch_add(counter, 0, 1)


def multiply(
    factors: np.ndarray,
    matrix: np.ndarray,
    out: np.ndarray,
    n_threads: int,
    weight: np.ndarray = _NONE,
    linear_weight: np.ndarray = _NONE,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``out = factors @ matrix``, and sums of its rows in the same pass; ``out`` may be ``factors``."""
    # Returns in float64 the diagonal of ``out^T diag(weight) out``, ``out^T weight``, ``out^T
    # linear_weight``. Arrays are C-ordered: factors (n, K), matrix (K, K), weights (n,). Without weights the
    # sums are zeros.
    n, k = factors.shape
    w = LINE // factors.itemsize
    width = -(-k // w) * w
    if k != width:
        matrix = np.pad(matrix, (0, width - k))
    sums = np.zeros((min(-(-n // STRIP), CHUNKS), 3, k))
    panels = empty((width // w, width, w), factors.dtype)
    panels[:] = matrix.reshape(width, width // w, w).transpose(1, 0, 2)
    panels = panels.reshape(-1)
    launch(_multiply, n_threads, read_only(factors), panels, out, weight, linear_weight, sums)
    squares, plain, linear = sums.sum(axis=0)
    return squares, plain, linear
