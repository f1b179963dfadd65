"""Weighted Gramians and products with a small square matrix, parallel and bitwise independent of the threads.

Work is cut into pieces of fixed size; every piece is summed in a fixed order by one thread. Blocks of 256
rows are multiplied in the factors' own precision and added up in float64.
"""

from __future__ import annotations

import numpy as np

from rgals.kernels.compile import entry, inner
from rgals.kernels.gather import gather_scaled, gather_transposed, padded_rows, scatter_rows
from rgals.kernels.loops import zero
from rgals.kernels.queue import fetch_add, launch
from rgals.kernels.sums import add_sums
from rgals.kernels.tiles import tile_add, widen_add
from rgals.kernels.vectors import LINE
from rgals.kernels.workspace import workspace
from rgals.runtime.aligned import empty

ROWS = 256  # rows of a block: its products stay in the L2 cache
STRIP = 128  # rows of a product: they stay in the L2 cache up to K = 1024
CHUNKS = 256  # of a product, at most, each with sums of its own
TILE = 256  # columns of an output tile: its float64 sums stay in the L2 cache

_NONE = np.empty(0)


@inner
def _tile_of(pair, n_tiles):
    """First row and first column of an output tile, of those on and above the diagonal."""
    left = 0
    while pair >= n_tiles - left:
        pair -= n_tiles - left
        left += 1
    return left * TILE, (left + pair) * TILE


@inner
def _add_product(total, product, left, right, depth, n_left, n_right):
    """``total += L^T R`` for two sets of panels, by block columns; the upper triangle where they are one."""
    w = LINE // product.itemsize
    at = 0
    for j in range(n_right):
        # One block column in the factors' precision, over the rows of a block, then added in float64.
        n_tiles = j + 1 if n_left == 0 else n_left
        zero(product, n_tiles * w * w)
        for i in range(n_tiles):
            tile_add(product, i * w * w, left, i * ROWS * w, right, j * ROWS * w, depth, 1.0)
        widen_add(product, 0, total, at, n_tiles * w)
        at += n_tiles * w * w


@entry(nogil=True)
def _partial(counter, factors, weight, uniform, gram):
    n, k = factors.shape
    w = LINE // factors.itemsize
    width = (k + w - 1) // w * w
    n_tiles = (width + TILE - 1) // TILE
    n_pairs = n_tiles * (n_tiles + 1) // 2
    n_chunks = len(gram) // n_pairs
    side = min(TILE, width)
    n_blocks = (n + ROWS - 1) // ROWS
    left_panels = workspace(ROWS * side, factors)
    right_panels = workspace(ROWS * side, factors)
    product = workspace(side * w, factors)
    padded = np.zeros(ROWS * width if width != k else 0, factors.dtype)
    numbers = np.arange(ROWS)
    ones = np.ones(side, factors.dtype)
    roots = workspace(ROWS, factors)
    # A task is one output tile (a, b) over one chunk of the rows: L^T diag(weight) R of two sets of columns.
    while True:
        task = fetch_add(counter, 0, 1)
        if task >= n_chunks * n_pairs:
            break
        chunk = task // n_pairs
        a, b = _tile_of(task % n_pairs, n_tiles)
        n_left, n_right = (min(side, width - a)) // w, (min(side, width - b)) // w
        for block in range(chunk * n_blocks // n_chunks, (chunk + 1) * n_blocks // n_chunks):
            start = block * ROWS
            stop = min(start + ROWS, n)
            depth = stop - start
            # sqrt(weight) scales either side, so that the product of a panel with itself is symmetric.
            for i in range(depth):
                roots[i] = np.sqrt(weight[0 if uniform else start + i])
            rows = padded_rows(factors, start, stop, padded)
            gather_scaled(left_panels, w, ROWS * w, rows[a:], ones, numbers, roots, width, depth, n_left, 1.0)
            if a == b:
                _add_product(gram[task], product, left_panels, left_panels, depth, 0, n_right)
                continue
            gather_scaled(
                right_panels, w, ROWS * w, rows[b:], ones, numbers, roots, width, depth, n_right, 1.0
            )
            _add_product(gram[task], product, left_panels, right_panels, depth, n_left, n_right)


@entry(nogil=True)
def _assemble(counter, partial, width, w, out):
    """Add up the chunks' sums, in a fixed order, and unfold their tiles to both triangles of ``out``."""
    n_chunks, n_pairs, _ = partial.shape
    k = len(out)
    side = min(TILE, width)
    n_tiles = (width + TILE - 1) // TILE
    while True:
        task = fetch_add(counter, 0, 1)
        if task >= n_pairs:
            break
        a, b = _tile_of(task, n_tiles)
        at = 0
        # Tiles lie one block column after the other, each of W numbers a row.
        for column in range(b, min(b + side, width), w):
            stop = column + w if a == b else min(a + side, width)
            for i in range(a, stop):
                for t in range(w):
                    j = column + t
                    total = 0.0
                    for chunk in range(n_chunks):
                        total += partial[chunk, task, at]
                    at += 1
                    if i <= j and j < k:
                        out[i, j] = total
                        out[j, i] = total


def gram(factors: np.ndarray, weight: np.ndarray, n_threads: int) -> np.ndarray:
    """``F^T diag(weight) F`` in float64, of C-ordered factors (n, K) and weights (n,) that are at least 0."""
    n, k = factors.shape
    if n == 0:
        return np.zeros((k, k))
    w = LINE // factors.itemsize
    width = -(-k // w) * w
    n_tiles = -(-width // TILE)
    n_pairs = n_tiles * (n_tiles + 1) // 2
    n_chunks = max(1, min(16, 20 // n_pairs))  # tasks for all threads; those on the diagonal are half as long
    uniform = bool((weight == weight[0]).all())
    partial = np.zeros((n_chunks * n_pairs, min(TILE, width) ** 2))
    launch(_partial, n_threads, factors, weight, uniform, partial)
    out = np.empty((k, k))
    # No more threads than pieces: waking one costs more than a piece takes.
    launch(_assemble, min(n_threads, n_pairs), partial.reshape(n_chunks, n_pairs, -1), width, w, out)
    return out


@entry(nogil=True)
def _multiply(counter, factors, panels, begins, ends, out, weight, linear_weight, sums):
    n, k = factors.shape
    w = LINE // factors.itemsize
    width = (k + w - 1) // w * w
    left = workspace(STRIP * width, factors)
    product = workspace(STRIP * w, factors)
    padded = np.zeros(STRIP * width if width != k else 0, factors.dtype)
    numbers = np.empty(STRIP, np.int64)
    flat = out.reshape(-1)
    n_strips = (n + STRIP - 1) // STRIP
    while True:
        chunk = fetch_add(counter, 0, 1)
        if chunk >= len(sums):
            break
        for strip in range(chunk * n_strips // len(sums), (chunk + 1) * n_strips // len(sums)):
            start = strip * STRIP
            rows = min(STRIP, n - start)
            # Rows are transposed to panels, W at a time: products then take them as they take any panel. The
            # last group repeats its last row.
            n_groups = (rows + w - 1) // w
            for i in range(n_groups * w):
                numbers[i] = min(i, rows - 1)
            source = padded_rows(factors, start, start + rows, padded)
            for group in range(n_groups):
                for b in range(width // w):
                    at = (group * width + b * w) * w
                    gather_transposed(left, at, source, b * w, numbers, group * w, width)
            # Block column j of the product: of the matrix only the rows that are not zero there.
            for j in range(width // w):
                zero(product, n_groups * w * w)
                first, depth = begins[j], ends[j] - begins[j]
                for group in range(n_groups):
                    at, of = (group * width + first) * w, (j * width + first) * w
                    tile_add(product, group * w * w, left, at, panels, of, depth, 1.0)
                if (j + 1) * w <= k:
                    scatter_rows(flat, start * k + j * w, product, 0, k, rows)
                    continue
                # The last block column, where K is no multiple of W.
                for i in range(rows):
                    for t in range(k - j * w):
                        out[start + i, j * w + t] = product[i * w + t]
            if len(weight):
                add_sums(out, start, start + rows, weight, linear_weight, sums[chunk].reshape(-1))


def multiply(
    factors: np.ndarray,
    matrix: np.ndarray,
    out: np.ndarray,
    n_threads: int,
    weight: np.ndarray = _NONE,
    linear_weight: np.ndarray = _NONE,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``out = factors @ matrix``, and on the way `column_sums` of it; ``out`` may be ``factors`` itself.

    Arrays are C-ordered, factors (n, K), the matrix (K, K), weights (n,); without weights the sums are zeros.
    Zeros at either end of a block of columns cost nothing: triangular matrices take half the time.
    """
    n, k = factors.shape
    w = LINE // factors.itemsize
    width = -(-k // w) * w
    if k != width:
        matrix = np.pad(matrix, (0, width - k))
    # Squares of W numbers that are not all zero, by block of columns and block of rows.
    filled = (matrix.reshape(width // w, w, width // w, w) != 0).any(axis=(1, 3)).T
    begins = w * filled.argmax(axis=1)
    ends = np.maximum(width - w * filled[:, ::-1].argmax(axis=1), begins)
    ends[~filled.any(axis=1)] = 0
    sums = np.zeros((min(-(-n // STRIP), CHUNKS), 3, k))
    panels = empty((width // w, width, w), factors.dtype)
    panels[:] = matrix.reshape(width, width // w, w).transpose(1, 0, 2)
    panels = panels.reshape(-1)
    launch(_multiply, n_threads, factors, panels, begins, ends, out, weight, linear_weight, sums)
    squares, plain, linear = sums.sum(axis=0)
    return squares, plain, linear
