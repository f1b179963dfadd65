"""The system of a row: its records, and what every way to solve it begins with."""

# In the rotated basis (see `rgals.solvers.cpu`) the system of a row with positives ``f_1 .. f_n`` is
#
#     (diag(D) + sum_k m_k f_k f_k^T) p = b,      b = sum_k l_k f_k + linear s,      D = scale d + ridge
#
# Scaled by D^-1/2, with X the n x K matrix of rows sqrt(m_k) D^-1/2 f_k, w_k = l_k / sqrt(m_k) and
# c = D^-1/2 (linear s), it reads (I + X^T X) x = X^T w + c and p = D^-1/2 x. If no weight is negative, all
# eigenvalues are at least 1. K is padded to ``kp``, whole blocks of W (`rgals.kernels.tiles`).
# The kind of a row, which `rgals.solvers.plan` chooses, says how it is solved:
#
# - `EMPTY`: no positives and ``linear = 0``: p is 0, or the row of ``prior``; no kernel runs.
# - `DIAGONAL`: all m are 0, and ``p = b / D`` (`rgals.kernels.diagonal`).
# - `DUAL`, n x n, for n below about K, or `PRIMAL`, K x K: by Cholesky (`rgals.kernels.ways.cholesky`).
# - With flag `CG` beside these two: by conjugate gradients to rounding (`rgals.kernels.ways.cg`), and by
#   Cholesky only if these turn out to be slower.

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rgals.kernels import gather
from rgals.kernels.compile import entry, inner
from rgals.kernels.library import kernel
from rgals.kernels.queue import spread
from rgals.kernels.triangles import triangle
from rgals.kernels.vectors import LINE
from rgals.kernels.workspace import workspace

#: The kind of a row, in its two lowest bits. Files of `rgals.kernels.ways` add flags in higher bits.
EMPTY, DIAGONAL, DUAL, PRIMAL = 0, 1, 2, 3
FACTORED = 3  # mask of the kind without flags

NOT_POSITIVE = -1  # a code of `Result.info`: D is not positive and finite
NEXT = -3  # returned by a way that gave up: the next way takes the row
_WEIGHED = 128  # positives of a row from which its largest weight is estimated
_PREFETCHED = 128  # positives of the next row whose factors are prefetched while this row is solved


class Rows(NamedTuple):
    """The systems of a side: the positives in CSR format, and the coefficients of the rows."""

    # ``values`` is empty if all are 1. ``scale``, ``linear``, ``ridge`` are float64 (n_rows,). ``row_terms``
    # U (n_rows, 4) and ``col_terms`` V (n_fixed, 4), or (0, 4) if all are 1, give the weight ``m = v U_0 V_0
    # + U_1 V_1`` and the linear coefficient ``l = v U_2 V_2 + U_3 V_3`` of a positive of value v. If both
    # have six columns, a negative value marks a pair that is no positive: ``m = -v U_4 V_4`` and ``l = -v U_5
    # V_5``. ``prior`` (n_rows, K), if not (0, 0), adds ``ridge prior`` to b.

    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray
    scale: np.ndarray
    linear: np.ndarray
    ridge: np.ndarray
    row_terms: np.ndarray
    col_terms: np.ndarray
    prior: np.ndarray


class FixedSide(NamedTuple):
    """The fixed side in the basis where its Gramian is diagonal."""

    # ``factors`` are rotated, padded and flat (n_fixed * kp,). ``d`` (kp,) is the diagonal of the Gramian,
    # padded with a positive number. ``s`` (kp,) is the all-pairs linear term, padded with 0.

    factors: np.ndarray
    d: np.ndarray
    s: np.ndarray


class Work(NamedTuple):
    """Rows to solve: ``order[bounds[i]:bounds[i + 1]]`` is one piece of work."""

    # ``kind`` (n_rows,) says how a row is solved. ``factorisation_steps`` (n_rows,) is the cost of its
    # factorisation in CG steps. CG packs at most ``max_packed`` positives at once. The work space of a thread
    # has room for ``room`` packed positives.

    order: np.ndarray
    bounds: np.ndarray
    kind: np.ndarray
    factorisation_steps: np.ndarray
    max_packed: int
    room: int


class Result(NamedTuple):
    """``out`` (n_rows, K) receives solutions, ``value`` (n_rows,) ``b . p``, ``info`` (n_rows,) codes."""

    # A code is 0, `NOT_POSITIVE` or the number of a failing pivot.

    out: np.ndarray
    value: np.ndarray
    info: np.ndarray


class Row(NamedTuple):
    """One row: its positives are ``indices[begin:end]``."""

    number: int
    begin: int
    end: int
    next_begin: int  # where the positives of the next row begin,
    n_next: int  # and how many of them are prefetched


class Way(NamedTuple):
    """A way to solve a row: ``solve(row, work, rows, fixed, scratch)``, compiled by `inner`."""

    # It reads ``D^-1/2`` from ``scratch.inv_root`` and c from ``scratch.rhs``; it leaves x in
    # ``scratch.solution`` and ``X^T w + c`` in ``scratch.rhs``. It returns 0, the number of a pivot that is
    # not positive, or, if it gives up, `NEXT` with ``scratch.rhs`` as it was.

    kind: int  # `DUAL`, `PRIMAL` or a flag
    name: str  # as a plan prints it: "9 rows dual"
    solve: Callable[..., Any]


class Scratch(NamedTuple):
    """A thread's work space; each array is named after its main use."""

    x: np.ndarray  # the packed rows X (n, kp), or panels of their columns
    c: np.ndarray  # a packed triangle: I + X X^T or I + X^T X, then its Cholesky factor U
    inverse: np.ndarray  # 1 / diag(U)
    # The next five have an entry per positive.
    cols: np.ndarray  # the column: a row of the fixed factors
    roots: np.ndarray  # sqrt(|m|), with the sign of m
    w: np.ndarray  # l / sqrt(|m|)
    linear: np.ndarray  # l
    sign: np.ndarray  # the sign of m
    # The rest are of length kp, but for the last.
    inv_root: np.ndarray  # D^-1/2
    rhs: np.ndarray  # the right-hand side: c, later X^T w + c
    solution: np.ndarray  # x
    rest: np.ndarray  # CG: the residual. Dual: the right-hand side, then its solution z
    direction: np.ndarray  # CG: the search direction
    image: np.ndarray  # CG: the matrix times the direction
    right: np.ndarray  # CG: the right-hand side
    batch: np.ndarray  # a packed triangle: the sum of the inverses of some rows


@inner(_nrt=True)
def make_scratch(kp, room, with_sums, like):
    """The work space of a thread, with room for ``room`` packed positives."""
    square = triangle(LINE // like.itemsize, kp // (LINE // like.itemsize))
    return Scratch(
        workspace(room * kp, like),
        workspace(square, like),
        workspace(kp, like),
        np.empty(room, np.int32),
        workspace(room, like),
        workspace(room, like),
        workspace(room, like),
        workspace(room, like),
        workspace(kp, like),
        workspace(kp, like),
        workspace(kp, like),
        workspace(kp, like),
        workspace(kp, like),
        workspace(kp, like),
        workspace(kp, like),
        workspace(square if with_sums else 0, like),
    )


@inner(forceinline=True)
def look_ahead(at, stop, order, rows, result):
    """The row ``order[at]``; prefetches what the next rows will read."""
    # Rows lie anywhere in memory, and each prefetch needs what an earlier one has brought. Three rows ahead
    # those entries are prefetched that are found by the row's number: its pointer and coefficients.
    if at + 3 < stop:
        number = order[at + 3]
        gather.prefetch(rows.indptr, number)
        gather.prefetch(rows.scale, number)
        gather.prefetch(rows.linear, number)
        gather.prefetch(rows.ridge, number)
        gather.prefetch(rows.row_terms, number)
    # Two rows ahead: the indices that the pointer leads to, and where the result is written.
    if at + 2 < stop:
        number = order[at + 2]
        k = result.out.shape[1]
        gather.prefetch(rows.indices, rows.indptr[number])
        gather.prefetch(result.value, number)
        gather.prefetch(result.info, number)
        gather.claim_row(result.out, number * k, k // (LINE // result.out.itemsize))
    # One row ahead: the factors of the positives, by `ask_for_next` once this row has gathered its own.
    next_begin = n_next = 0
    if at + 1 < stop:
        number = order[at + 1]
        next_begin = rows.indptr[number]
        n_next = min(rows.indptr[number + 1] - next_begin, _PREFETCHED)
    number = order[at]
    return Row(number, rows.indptr[number], rows.indptr[number + 1], next_begin, n_next)


@inner
def ask_for_next(row, rows, fixed):
    """Prefetch the factors of the next row's first positives: they arrive while this row is solved."""
    kp = len(fixed.d)
    n_lines = kp // (LINE // fixed.d.itemsize)
    gather.prefetch_rows(fixed.factors, 0, rows.indices, row.next_begin, kp, row.n_next, n_lines)


@inner(forceinline=True)
def is_solvable(number, smallest, largest, rows, result):
    """Whether D is positive and finite for d from ``smallest`` to ``largest``; if not, zeros and a code."""
    # Subnormal numbers count as zero: they have lost digits.
    scale, ridge = rows.scale[number], rows.ridge[number]
    tiny = np.finfo(result.out.dtype).tiny
    if scale * smallest + ridge > tiny and scale * largest + ridge < np.inf:
        return True
    for j in range(result.out.shape[1]):
        result.out[number, j] = 0.0
    result.info[number] = NOT_POSITIVE
    return False


@kernel("pppprrri")
def _scale_row(e, inv_root, c, d, s, scale, ridge, linear, n_blocks):
    with e.blocks(n_blocks) as at:
        root = e.ones() / e.root(ridge + d[at] * scale)
        inv_root[at] = root
        c[at] = s[at] * (root * linear)


@inner(forceinline=True)
def scale_row(number, rows, fixed, scratch, prior):
    """``D^-1/2`` of a row and ``c = D^-1/2 (linear s + ridge prior)``."""
    # The only arithmetic that a row spends on all pairs: D = scale d + ridge and s, of length K.
    n_blocks = len(fixed.d) // (LINE // fixed.d.itemsize)
    scale, ridge, linear = rows.scale[number], rows.ridge[number], rows.linear[number]
    inv_root, c = scratch.inv_root, scratch.rhs
    _scale_row(inv_root, 0, c, 0, fixed.d, 0, fixed.s, 0, scale, ridge, linear, n_blocks)
    if len(prior):
        for j in range(prior.shape[1]):
            c[j] += inv_root[j] * c.dtype.type(ridge) * prior[number, j]


@inner(inline="always")
def coefficients(k, number, rows):
    """The weight m and the linear coefficient l of the pair at position ``k``; see `Rows`."""
    u = rows.row_terms[number]
    v = rows.values[k] if len(rows.values) else u.dtype.type(1.0)
    if len(rows.col_terms):
        col = rows.col_terms[rows.indices[k]]
        if v < 0.0 and len(u) > 4:  # a pair that is no positive
            return -v * (u[4] * col[4]), -v * (u[5] * col[5])
        return v * (u[0] * col[0]) + u[1] * col[1], v * (u[2] * col[2]) + u[3] * col[3]
    if v < 0.0 and len(u) > 4:
        return -v * u[4], -v * u[5]
    return v * u[0] + u[1], v * u[2] + u[3]


@inner
def gather_weights(start, stop, number, rows, scratch):
    """Fill ``cols``, ``roots``, ``w`` and ``linear`` of `Scratch` for the positives ``start:stop``."""
    # They are padded with zeros to whole blocks. A positive without weight has root 0 and w 0; only its l
    # counts (`add_unweighted`). Returns the numbers of positive and of negative weights.
    cols, roots, w, linear = scratch.cols, scratch.roots, scratch.w, scratch.linear
    none = roots.dtype.type(0.0)
    n = stop - start
    n_positive, n_negative = 0, 0
    terms = rows.row_terms[number]
    same = terms[0] + terms[1]
    if len(rows.values) == 0 and len(rows.col_terms) == 0 and same > none:
        # All positives of the row have one weight: a single square root for all of them.
        slope = terms[2] + terms[3]
        root = np.sqrt(same)
        for i in range(n):
            cols[i] = rows.indices[start + i]
            roots[i] = root
            linear[i] = slope
            w[i] = slope / root
        n_positive = n
    else:
        for i in range(n):
            m, term = coefficients(start + i, number, rows)
            n_positive += m > none
            n_negative += m < none
            root = np.sqrt(abs(m))
            cols[i] = rows.indices[start + i]
            roots[i] = root if m > none else -root
            linear[i] = term
            w[i] = term / root if m != none else none
    # Products work on whole blocks of W: the padding adds zeros, gathered from a column that exists.
    width = LINE // roots.itemsize
    for i in range(n, (n + width - 1) // width * width):
        cols[i] = cols[0]
        roots[i] = none
        linear[i] = none
        w[i] = none
    return n_positive, n_negative


@inner
def add_unweighted(n, fixed, scratch):
    """Add ``D^-1/2 l f`` of the positives with m = 0 to the right-hand side."""
    # Few losses give a row positives with and without weight; so this is a plain loop.
    kp = len(fixed.d)
    for i in range(n):
        if scratch.roots[i] == 0.0:
            for j in range(kp):
                f = fixed.factors[scratch.cols[i] * kp + j]
                scratch.rhs[j] += scratch.linear[i] * scratch.inv_root[j] * f


@entry(nogil=True, _nrt=False)
def _weigh(first, stop, rows, n_zero, n_negative, heaviest):
    for number in range(first, stop):
        begin = rows.indptr[number]
        for k in range(begin, rows.indptr[number + 1]):
            m, _ = coefficients(k, number, rows)
            n_zero[number] += m == 0.0
            n_negative[number] += m < 0.0
            if k < begin + _WEIGHED:
                heaviest[number] = max(heaviest[number], m)


def weigh(rows: Rows, n_threads: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per row: the number of zero weights, of negative weights, and the largest of the first weights."""
    n_rows = len(rows.scale)
    n_zero, n_negative = np.zeros(n_rows, np.int64), np.zeros(n_rows, np.int64)
    heaviest = np.full(n_rows, -np.inf)
    spread(_weigh, n_rows, n_threads, rows, n_zero, n_negative, heaviest)
    return n_zero, n_negative, heaviest
