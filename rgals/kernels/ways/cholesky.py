"""The system of one row (`rgals.kernels.row`) by Cholesky, in its dual or its primal."""

# - Dual, n x n: ``(I + X X^T) z = w - X c``, ``x = c + X^T z`` (Woodbury), for weights that are not negative.
# - Primal, K x K: ``(I + X^T X) x = X^T w + c``; a negative weight subtracts its row from the matrix.
#
# From either factor `add_inverse` makes the row's part of the sums that couple the items of RGx.

from rgals.kernels.compile import inner
from rgals.kernels.gather import gather_scaled
from rgals.kernels.plain_rows import add_transposed_two, rows_gram_add, subtract_product
from rgals.kernels.row import DUAL, FACTORED, PRIMAL, Way, add_unweighted, ask_for_next, gather_weights
from rgals.kernels.tiles import copy, panel_product, times, zero
from rgals.kernels.triangles import cholesky, cholesky_solve, gram_add, identity, panel_solve, triangle
from rgals.kernels.vectors import LINE

CHUNK = 128  # positives that the primal packs at once: with K = 64 they stay in the first-level cache


@inner
def dual(row, work, rows, fixed, scratch):
    """Solve in the dual; see `Way`."""
    kp, w = len(fixed.d), LINE // fixed.d.itemsize
    n, n_blocks = row.end - row.begin, kp // w
    n_panels = (n + w - 1) // w
    x, c, z, scale = scratch.x, scratch.c, scratch.rest, scratch.inv_root
    # Positives without weight are no rows of X. Their linear terms belong to c.
    n_positive, _ = gather_weights(row.begin, row.end, row.number, rows, scratch)
    if n_positive < n:
        add_unweighted(n, fixed, scratch)
    copy(scratch.solution, 0, scratch.rhs, 0, kp)
    copy(z, 0, scratch.w, 0, n_panels * w)
    # X as plain rows, and I + X X^T from them; products take four rows at a time.
    padded = (n + 3) // 4 * 4
    cols, roots = scratch.cols, scratch.roots
    gather_scaled(x, 0, fixed.factors, 0, scale, 0, cols, 0, roots, 0, kp, w, kp, padded, n_blocks, 1.0)
    ask_for_next(row, rows, fixed)
    identity(c, 0, n_panels)
    rows_gram_add(c, 0, x, 0, n, n_blocks)
    if rows.linear[row.number] != 0.0 or n_positive < n or len(rows.prior):  # else c = 0 and X c need not be
        subtract_product(z, 0, x, 0, scratch.solution, 0, n, n_blocks)
    # z, then the solution c + X^T z and the right-hand side c + X^T w in one pass over X.
    code = cholesky(c, 0, scratch.inverse, 0, n_panels)
    cholesky_solve(c, 0, scratch.inverse, 0, z, 0, n_panels)
    add_transposed_two(scratch.solution, 0, scratch.rhs, 0, x, 0, z, 0, scratch.w, 0, n, n_blocks)
    return code


@inner
def primal(row, work, rows, fixed, scratch):
    """Solve in the primal; see `Way`."""
    kp, w = len(fixed.d), LINE // fixed.d.itemsize
    n_blocks, stride = kp // w, CHUNK * w
    x, c, scale = scratch.x, scratch.c, scratch.inv_root
    # I + X^T X is summed over chunks of positives. The panels of a chunk stay in the cache.
    identity(c, 0, n_blocks)
    for start in range(row.begin, row.end, CHUNK):
        n = min(CHUNK, row.end - start)
        depth = (n + 3) // 4 * 4
        n_positive, n_negative = gather_weights(start, start + n, row.number, rows, scratch)
        # X^T diag(m) X = X_+^T X_+ - X_-^T X_-: one pass for each sign that occurs.
        for sign in (1.0, -1.0):
            if (n_positive if sign > 0 else n_negative) == 0:
                continue
            # Rows of the other sign become zero.
            _columns(depth, scale, sign, stride, fixed, scratch)
            if start + n == row.end and sign > 0:
                ask_for_next(row, rows, fixed)
            gram_add(c, 0, x, 0, stride, depth, n_blocks, sign)
            for b in range(n_blocks):
                panel_product(scratch.rhs, b * w, x, b * stride, scratch.w, 0, depth, 1.0)
        if n_positive + n_negative < n:
            add_unweighted(n, fixed, scratch)
    code = cholesky(c, 0, scratch.inverse, 0, n_blocks)
    copy(scratch.solution, 0, scratch.rhs, 0, kp)
    if code == 0:
        cholesky_solve(c, 0, scratch.inverse, 0, scratch.solution, 0, n_blocks)
    return code


@inner
def _columns(n, scale, sign, stride, fixed, scratch):
    """Fill ``scratch.x`` with panels of columns of the rows ``scale f_k max(sign root_k, 0)``."""
    kp, w = len(fixed.d), LINE // fixed.d.itemsize
    x, cols, roots = scratch.x, scratch.cols, scratch.roots
    gather_scaled(x, 0, fixed.factors, 0, scale, 0, cols, 0, roots, 0, w, stride, kp, n, kp // w, sign)


WAYS = (Way(DUAL, "dual", dual), Way(PRIMAL, "primal", primal))


@inner(forceinline=True)
def add_inverse(row, kind, rows, fixed, scratch):
    """Add ``scale^2 A^-1`` of a row that has just been factorised to ``scratch.batch``."""
    kp, w = len(fixed.d), LINE // fixed.d.itemsize
    n_blocks = kp // w
    batch, c, x, scale = scratch.batch, scratch.c, scratch.x, scratch.inv_root
    square = rows.scale[row.number] * rows.scale[row.number]
    if kind & FACTORED == DUAL:
        # A^-1 = D^-1 - Z^T Z with Z = U^-T X D^-1/2 and U^T U = I + X X^T (Woodbury).
        n = row.end - row.begin
        n_panels = (n + w - 1) // w
        depth, inverse_d = n_panels * w, scratch.rest
        times(inverse_d, 0, scale, 0, scale, 0, kp)
        # D^-1 goes to the diagonal of the packed triangle.
        for j in range(kp):
            tile = triangle(w, j // w) + j // w * w * w
            batch[tile + j % w * (w + 1)] += square * scale[j] ** 2
        # Rows scaled by D^-1 instead of D^-1/2 are X D^-1/2.
        _columns(depth, inverse_d, 1.0, depth * w, fixed, scratch)
        for b in range(n_blocks):
            panel_solve(c, 0, scratch.inverse, 0, x, b * depth * w, 0, n_panels)
        gram_add(batch, 0, x, 0, depth * w, n, n_blocks, -square)
        return
    # A^-1 = Z^T Z with Z = U^-T D^-1/2, which is lower triangular: panel b is zero above block row b.
    zero(x, 0, kp * kp)
    for b in range(n_blocks):
        for i in range(w):
            x[b * kp * w + (b * w + i) * w + i] = scale[b * w + i]
        panel_solve(c, 0, scratch.inverse, 0, x, b * kp * w, b, n_blocks)
    # Block row b of Z has b + 1 block columns that are not zero.
    for b in range(n_blocks):
        gram_add(batch, 0, x, b * w * w, kp * w, w, b + 1, square)
