"""Rows of a half-step by how they are solved, in batches of similar length. Host code: numpy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rgals.losses.base import Side
from rgals.matrix.csr import CSR

#: How a row is solved.
FREE, DUAL, PRIMAL = 0, 1, 2

SEGMENT = 1024  # positives that are packed at once for one row; longer rows are cut
PIECE = 512  # positives that one warp adds up; longer rows are cut
VALUED, COLUMNS, UNWEIGHTED, SIGNED = 1, 2, 4, 8  # flags of the kernels
_CHUNK = 1 << 22  # interactions looked at together: bounds temporary memory


@dataclass(frozen=True)
class Pieces:
    """Consecutive positives of rows.

    Attributes
    ----------
    row : ndarray of int32, shape (n,)
        Row of each piece.
    begin : ndarray of int64, shape (n,)
        Where it begins in the matrix's arrays.
    count : ndarray of int32, shape (n,)
    slot : ndarray of int32, shape (n,)
        -1 where the piece is a whole row, otherwise its number among the pieces of cut rows.
    cut_row, cut_first, cut_count : ndarray of int32
        The cut rows: their first piece's slot, and how many they have.
    """

    row: np.ndarray
    begin: np.ndarray
    count: np.ndarray
    slot: np.ndarray
    cut_row: np.ndarray
    cut_first: np.ndarray
    cut_count: np.ndarray


def cut(rows: np.ndarray, indptr: np.ndarray, longest: int) -> Pieces:
    """Pieces of at most ``longest`` positives, row after row."""
    counts = indptr[rows + 1] - indptr[rows]
    n_pieces = -(-counts // longest)
    row = np.repeat(rows, n_pieces)
    ends = np.cumsum(n_pieces)
    nth = np.arange(len(row)) - np.repeat(ends - n_pieces, n_pieces)
    begin = indptr[row] + nth * longest
    count = np.minimum(indptr[row + 1] - begin, longest)
    is_cut = n_pieces > 1
    in_cut_row = np.repeat(is_cut, n_pieces)
    slot = np.where(in_cut_row, np.cumsum(in_cut_row) - 1, -1)
    cut_count = n_pieces[is_cut]
    return Pieces(
        row.astype(np.int32),
        begin.astype(np.int64),
        count.astype(np.int32),
        slot.astype(np.int32),
        rows[is_cut].astype(np.int32),
        (np.cumsum(cut_count) - cut_count).astype(np.int32),
        cut_count.astype(np.int32),
    )


@dataclass(frozen=True)
class Bucket:
    """Rows that are solved as one batch of matrices.

    Attributes
    ----------
    length : int
        Positives that every row is padded to; 0 for rows longer than `SEGMENT`, which are cut.
    rows : ndarray of int32
    kind : int
        `DUAL` or `PRIMAL`.
    signed : bool
        Whether weights may be negative.
    """

    length: int
    rows: np.ndarray
    kind: int
    signed: bool


def padded_length(counts: np.ndarray) -> np.ndarray:
    """The next length on a ladder of multiples of 4 with steps of at most a quarter."""
    counts = np.maximum(np.asarray(counts, np.int64), 1)
    octave = np.maximum(np.floor(np.log2(counts)).astype(np.int64), 4)
    step = np.int64(1) << (octave - 2)
    return -(-counts // step) * step


def folded_terms(side: Side, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients of rows and columns; where all columns count alike their terms move to the rows.

    Returns
    -------
    row_terms : ndarray, shape (n_rows, 4)
    col_terms : ndarray, shape (n_fixed, 4), or (0, 4)
    """
    row_terms, col_terms = side.row_terms, side.col_terms
    if len(col_terms) and (col_terms == col_terms[0]).all():
        row_terms, col_terms = row_terms * col_terms[0], np.empty((0, 4))
    return row_terms.astype(dtype), col_terms.astype(dtype)


def signs(matrix: CSR, row_terms: np.ndarray, col_terms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many positives of each row have weight 0, and how many less.

    Returns
    -------
    (n_zero, n_negative) : ndarrays of int64, shape (n_rows,)
    """
    counts = matrix.row_counts
    none = np.zeros(matrix.n_rows, np.int64)
    weights, columns = row_terms[:, :2], col_terms[:, :2]
    if (weights >= 0).all() and (columns > 0).all():
        return np.where(weights.any(axis=1), 0, counts), none
    n_zero, n_negative = none, none.copy()
    for start in range(0, matrix.nnz, _CHUNK):
        stop = min(start + _CHUNK, matrix.nnz)
        first = int(np.searchsorted(matrix.indptr, start, side="right")) - 1
        last = int(np.searchsorted(matrix.indptr, stop, side="left"))
        rows = np.repeat(
            np.arange(first, last), np.diff(np.clip(matrix.indptr[first : last + 1], start, stop))
        )
        v = row_terms.dtype.type(1) if matrix.is_binary else matrix.values[start:stop].astype(row_terms.dtype)
        r = weights[rows]
        c = columns[matrix.indices[start:stop]] if len(columns) else np.ones((1, 2), row_terms.dtype)
        m = v * (r[:, 0] * c[:, 0]) + r[:, 1] * c[:, 1]
        n_zero += np.bincount(rows[m == 0], minlength=matrix.n_rows)
        n_negative += np.bincount(rows[m < 0], minlength=matrix.n_rows)
    return n_zero, n_negative


def classify(matrix: CSR, n_zero: np.ndarray, n_negative: np.ndarray, k: int) -> np.ndarray:
    """`FREE`, `DUAL` or `PRIMAL` for every row."""
    counts = matrix.row_counts
    kind = np.where((counts > k) | (n_negative > 0), PRIMAL, DUAL)
    return np.where(n_zero == counts, FREE, kind)


def buckets(matrix: CSR, kind: np.ndarray, n_negative: np.ndarray) -> list[Bucket]:
    """Batches of the rows that are not `FREE`, long rows first."""
    counts = matrix.row_counts
    length = np.where((kind == PRIMAL) & (counts > SEGMENT), 0, padded_length(counts))
    found = []
    for what in (PRIMAL, DUAL):
        for signed in (False, True):
            rows = np.flatnonzero((kind == what) & ((n_negative > 0) == signed))
            rows = rows[np.argsort(-counts[rows], kind="stable")]
            for value in dict.fromkeys(length[rows].tolist()):
                same = rows[length[rows] == value].astype(np.int32)
                found.append(Bucket(value, same, what, signed))
    return found


def common_ridge(side: Side, counts: np.ndarray) -> float | None:
    """``ridge / scale`` where it is the same number for all rows with something to solve; None otherwise."""
    pulled = (counts > 0) | (side.linear != 0)
    scale, ridge = side.scale[pulled], side.ridge[pulled]
    if not len(scale) or not (scale > 0).all():
        return None
    ratio = ridge / scale
    return float(ratio[0]) if np.ptp(ratio) <= 1e-9 * ratio.max() else None
