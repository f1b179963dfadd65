"""The records of row systems, and what every way to solve one begins with.

In the rotated basis (see `rgals.solvers.cpu`) the system of a row with positives ``f_1 .. f_n`` is::

    (diag(D) + sum_k m_k f_k f_k^T) p = b,      b = sum_k l_k f_k + linear s,      D = scale d + ridge

Scaled by ``D^-1/2``, with ``X`` the n x K matrix of rows ``sqrt(m_k) D^-1/2 f_k``, ``w_k = l_k / sqrt(m_k)``
and ``c = D^-1/2 (linear s)``, it reads ``(I + X^T X) x = X^T w + c`` and ``p = D^-1/2 x``. Where no weight is
negative all its eigenvalues are at least 1. `rgals.solvers.plan` says which way it is solved:

- `DIAGONAL`, no positive has a weight m: nothing to factor (`rgals.kernels.diagonal`);
- `CG`, by conjugate gradients to rounding (`rgals.kernels.ways.cg`), where they take few steps;
- `DUAL`, n x n, where n is below about K, or `PRIMAL`, K x K: by Cholesky (`rgals.kernels.ways.cholesky`).

Numbers of factors are padded to whole blocks of W (`rgals.kernels.tiles`): ``kp``; padded entries are zero.
"""

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

#: How a row is solved. `rgals.kernels.ways` has flags beside these: what is tried before a factorisation.
EMPTY, DIAGONAL, DUAL, PRIMAL = 0, 1, 2, 3
FACTORED = 3  # kind & FACTORED: the kind without flags

NOT_POSITIVE = -1  # info: the diagonal is not positive and finite
NEXT = -3  # of a way: it gave up
SAMPLE = 128  # positives of a row that the estimate of its largest weight looks at
_SOON = 128  # positives of the next row that are asked for while this row is solved


class Rows(NamedTuple):
    """The systems of a side: CSR arrays of the positives, and coefficients of the rows.

    ``values`` is empty for ones. ``scale, linear, ridge`` are float64 (n_rows,). ``row_terms`` U (n_rows, 4)
    and ``col_terms`` V (n_fixed, 4), or (0, 4) for ones, give the weight ``m = v U_0 V_0 + U_1 V_1`` and the
    linear coefficient ``l = v U_2 V_2 + U_3 V_3`` of a positive of value v. Where both have six
    columns, a value below 0 marks a pair with ``m = -v U_4 V_4`` and ``l = -v U_5 V_5``. Where ``prior``
    is (n_rows, K) and not (0, 0), b has ``ridge prior`` besides.
    """

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
    """The fixed side in the basis where its Gramian is diagonal.

    ``factors`` are turned, padded and flat (n_fixed * kp,); ``d`` (kp,) is the Gramian's diagonal, padded
    with a positive number, ``s`` (kp,) the all-pairs linear term, padded with 0.
    """

    factors: np.ndarray
    d: np.ndarray
    s: np.ndarray


class Work(NamedTuple):
    """Rows to solve: ``order[bounds[i]:bounds[i + 1]]`` is one piece of work.

    ``kind`` (n_rows,) says how a row is solved, ``worth`` (n_rows,) how many steps of conjugate gradients
    cost as much as its factorisation. Up to ``most`` positives are packed at once; a thread has memory for
    ``room``.
    """

    order: np.ndarray
    bounds: np.ndarray
    kind: np.ndarray
    worth: np.ndarray
    most: int
    room: int


class Result(NamedTuple):
    """``out`` (n_rows, K) receives solutions, ``value`` (n_rows,) ``b . p``, ``info`` (n_rows,) codes.

    A code is 0, `NOT_POSITIVE` or the number of a failing pivot.
    """

    out: np.ndarray
    value: np.ndarray
    info: np.ndarray


class Row(NamedTuple):
    """One row: its positives lie at ``begin:end``; the next row's first ``n_then`` lie at ``then``."""

    number: int
    begin: int
    end: int
    then: int
    n_then: int


class Way(NamedTuple):
    """A way to solve a row: ``solve(row, work, rows, fixed, scratch)``, compiled by `inner`.

    It finds ``D^-1/2`` and c in ``scratch.inv_root`` and ``scratch.rhs``, and leaves x in
    ``scratch.solution`` and ``X^T w + c`` in ``scratch.rhs``. It returns 0, the number of a failing pivot, or
    `NEXT` with ``scratch.rhs`` as it was. ``kind`` is a factorisation or a flag; ``name`` follows "9 rows".
    """

    kind: int
    name: str
    solve: Callable[..., Any]


class Scratch(NamedTuple):
    """A thread's work space; each array is named by what it holds most of the time."""

    x: np.ndarray  # packed rows X
    c: np.ndarray  # a packed triangle: I + X X^T or I + X^T X, then its Cholesky factor U
    inverse: np.ndarray  # 1 / diag(U)
    cols: np.ndarray  # of every positive its column, sqrt(|m|), l / sqrt(|m|), l and the sign of m
    roots: np.ndarray
    w: np.ndarray
    linear: np.ndarray
    sign: np.ndarray
    inv_root: np.ndarray  # D^-1/2
    rhs: np.ndarray  # the right-hand side X^T w + c
    solution: np.ndarray  # x
    rest: np.ndarray  # residual, direction and its image of conjugate gradients, and their right-hand side
    direction: np.ndarray
    image: np.ndarray
    right: np.ndarray
    batch: np.ndarray  # a packed triangle: inverses of some rows, added up


@inner(_nrt=True)
def make_scratch(kp, room, with_sums, like):
    """The work space of a thread, for rows of up to ``room`` positives that are packed at once."""
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
    """The row ``order[at]``; asks for what the next ones will read."""
    # Three rows ahead what is found by the row's number; two ahead what its pointers lead to, and the place
    # of its result; one ahead the factors of its positives, which `ask_for_next` asks for when there is time.
    if at + 3 < stop:
        number = order[at + 3]
        gather.prefetch(rows.indptr, number)
        gather.prefetch(rows.scale, number)
        gather.prefetch(rows.linear, number)
        gather.prefetch(rows.ridge, number)
        gather.prefetch(rows.row_terms, number)
    if at + 2 < stop:
        number = order[at + 2]
        k = result.out.shape[1]
        gather.prefetch(rows.indices, rows.indptr[number])
        gather.prefetch(result.value, number)
        gather.prefetch(result.info, number)
        gather.claim_row(result.out, number * k, k // (LINE // result.out.itemsize))
    then = n_then = 0
    if at + 1 < stop:
        number = order[at + 1]
        then = rows.indptr[number]
        n_then = min(rows.indptr[number + 1] - then, _SOON)
    number = order[at]
    return Row(number, rows.indptr[number], rows.indptr[number + 1], then, n_then)


@inner
def ask_for_next(row, rows, fixed):
    """Ask for the factors of the next row's first positives: memory works while this row is solved."""
    kp = len(fixed.d)
    n_lines = kp // (LINE // fixed.d.itemsize)
    gather.prefetch_rows(fixed.factors, 0, rows.indices, row.then, kp, row.n_then, n_lines)


@inner(forceinline=True)
def is_solvable(number, smallest, largest, rows, result):
    """Whether D is positive and finite for d from ``smallest`` to ``largest``; else zeros and a code."""
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
    # D = scale d + ridge is as long as K: the only thing that a row computes of all pairs.
    n_blocks = len(fixed.d) // (LINE // fixed.d.itemsize)
    scale, ridge, linear = rows.scale[number], rows.ridge[number], rows.linear[number]
    inv_root, c = scratch.inv_root, scratch.rhs
    _scale_row(inv_root, 0, c, 0, fixed.d, 0, fixed.s, 0, scale, ridge, linear, n_blocks)
    if len(prior):
        for j in range(prior.shape[1]):
            c[j] += inv_root[j] * c.dtype.type(ridge) * prior[number, j]


@inner(inline="always")
def coefficients(k, number, rows):
    """The weight ``m`` and the linear coefficient ``l`` of the pair at position ``k``."""
    m = rows.row_terms[number]
    v = rows.values[k] if len(rows.values) else m.dtype.type(1.0)
    if len(rows.col_terms):
        col = rows.col_terms[rows.indices[k]]
        if v < 0.0 and len(m) > 4:  # a pair with terms of its own
            return -v * (m[4] * col[4]), -v * (m[5] * col[5])
        return v * (m[0] * col[0]) + m[1] * col[1], v * (m[2] * col[2]) + m[3] * col[3]
    if v < 0.0 and len(m) > 4:
        return -v * m[4], -v * m[5]
    return v * m[0] + m[1], v * m[2] + m[3]


@inner
def gather_weights(start, stop, number, rows, scratch):
    """Columns, ``sqrt(|m|)`` with the sign of m, ``l / sqrt(|m|)`` and ``l`` of the positives ``start:stop``.

    Padded with zeros to whole blocks. A positive without weight has root 0 and w 0: only its ``l`` counts.
    Returns how many weights are positive and how many negative.
    """
    cols, roots, w, linear = scratch.cols, scratch.roots, scratch.w, scratch.linear
    none = roots.dtype.type(0.0)
    n = stop - start
    n_positive, n_negative = 0, 0
    terms = rows.row_terms[number]
    same = terms[0] + terms[1]
    if len(rows.values) == 0 and len(rows.col_terms) == 0 and same > none:
        # All positives of the row count alike: one square root and one division for all.
        slopes = terms[2] + terms[3]
        root = np.sqrt(same)
        for i in range(n):
            cols[i] = rows.indices[start + i]
            roots[i] = root
            linear[i] = slopes
            w[i] = slopes / root
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
    # Products work on whole blocks: what is beyond the last positive counts as zero.
    width = LINE // roots.itemsize
    for i in range(n, (n + width - 1) // width * width):
        cols[i] = cols[0]
        roots[i] = none
        linear[i] = none
        w[i] = none
    return n_positive, n_negative


@inner
def add_unweighted(n, fixed, scratch):
    """Linear terms of the positives that carry no weight, to the right-hand side."""
    # Rare: a loss in which some positives of a row have m = 0. D^-1/2 l f is added number by number.
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
            if k < begin + SAMPLE:
                heaviest[number] = max(heaviest[number], m)


def weigh(rows: Rows, n_threads: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of every row how many weights are 0, how many negative, and the largest of its first positives."""
    n_rows = len(rows.scale)
    n_zero, n_negative = np.zeros(n_rows, np.int64), np.zeros(n_rows, np.int64)
    heaviest = np.full(n_rows, -np.inf)
    spread(_weigh, n_rows, n_threads, rows, n_zero, n_negative, heaviest)
    return n_zero, n_negative, heaviest
