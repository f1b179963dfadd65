"""The plan of a side (`rgals.solvers.plan`) in batches of rows of similar length, for a device."""

from dataclasses import dataclass

import numpy as np

from rgals.kernels.row import DUAL, PRIMAL
from rgals.matrix.csr import CSR

SEGMENT = 1024  # positives that are packed at once for one row; longer rows are cut
PIECE = 512  # positives that one warp adds up; longer rows are cut
VALUED, COLUMNS, UNWEIGHTED, SIGNED = 1, 2, 4, 8  # flags of the kernels


@dataclass(frozen=True)
class Pieces:
    """Consecutive positives of rows: arrays of int32, but for ``begin``, which is int64."""

    row: np.ndarray  # of each piece
    begin: np.ndarray  # where it begins in the matrix's arrays
    count: np.ndarray  # its positives
    slot: np.ndarray  # -1 where the piece is a whole row, else its number among the pieces of cut rows
    cut_row: np.ndarray  # the cut rows,
    cut_first: np.ndarray  # the slot of their first piece,
    cut_count: np.ndarray  # and how many they have


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
    cut_first = np.cumsum(cut_count) - cut_count
    arrays = row, begin, count, slot, rows[is_cut], cut_first, cut_count
    return Pieces(*(a if a is begin else a.astype(np.int32) for a in arrays))


@dataclass(frozen=True)
class Bucket:
    """Rows that are solved as one batch of matrices."""

    length: int  # positives that every row is padded to; 0 for rows longer than `SEGMENT`, which are cut
    rows: np.ndarray  # int32
    kind: int  # `DUAL` or `PRIMAL`
    signed: bool  # whether weights may be negative


def padded_length(counts: np.ndarray) -> np.ndarray:
    """The next length on a ladder of multiples of 4 with steps of at most a quarter."""
    counts = np.maximum(np.asarray(counts, np.int64), 1)
    octave = np.maximum(np.floor(np.log2(counts)).astype(np.int64), 4)
    step = np.int64(1) << (octave - 2)
    return -(-counts // step) * step


def buckets(matrix: CSR, kind: np.ndarray, n_negative: np.ndarray) -> list[Bucket]:
    """Batches of the rows that are factored, long rows first."""
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
