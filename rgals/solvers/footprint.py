"""Bytes that a fit by least squares takes, from the sizes of its matrix and of its factors."""

from dataclasses import dataclass

from rgals.runtime.aligned import LINE
from rgals.solvers.plan import padded, room_of


@dataclass(frozen=True)
class Footprint:
    """What decides the memory of a fit; `peak` is its figure."""

    shape: tuple[int, int]
    nnz: int
    K: int
    itemsize: int
    valued: bool = True  # interactions have values other than 1
    coupled: bool = False  # the loss has an interaction term, which takes sums of inverses
    best: bool = False  # the best iterate is kept, as early stopping does
    threads: int = 1
    longest: int | None = None  # interactions of the longest row or column
    closed_form: int = 0  # bytes that the closed form takes,
    iterates: bool = True  # and whether there are iterations besides
    start: int = 0  # columns of the tables of a spectral start
    hard: tuple[int, int] = (0, 0)  # bytes that hard negatives take in iterations, and in the end
    blocks: int | None = None  # that blocks of a matrix on its disk take, which has its transpose there

    def peak(self) -> int:
        """Bytes that are allocated at most at once, beyond the matrix in canonical form."""
        K, itemsize, start = self.K, self.itemsize, self.start
        n_rows, n_items = sum(self.shape), self.shape[1]
        entry = 4 + (itemsize if self.valued else 0)
        transpose = 8 * (n_items + 1) + (self.nnz * entry if self.blocks is None else self.blocks)
        # Per row: margins and coefficients (float64). For half-steps: ridges, terms in the dtype of the
        # factors, its place in the order, its value and code, and temporary arrays of numpy.
        always, rows = transpose + n_rows * (16 + 48), n_rows * (16 + 8 * itemsize + 8 + 12 + 64)
        # A row of factors, and a padded one, which a copy has if K is not a multiple of a cache line.
        kp = padded(K, LINE // itemsize)
        row, copied = K * itemsize, 0 if kp == K else kp * itemsize
        # All the time: the work space of every thread, Gramians, and the best iterate.
        room = room_of(kp, itemsize, max(self.shape) if self.longest is None else self.longest)
        held = self.threads * kp * (room + 2 * kp) * itemsize + (16 if K <= 256 else 8) * K * K * 8
        held += (16 if K <= 256 else 4) * kp * kp * 4 if self.coupled else 0
        held += n_items * row if self.best else 0
        # In iterations: both tables of factors, and a copy of the fixed one if it is padded or turned.
        iterated = n_rows * row + max(max(self.shape) * copied, n_items * row) + held + self.hard[0]
        # In the last half-step: new user factors; item factors, and the same turned in a copy.
        ended = (n_rows + n_items) * row + n_items * copied + held + self.hard[1]
        # A spectral start takes a wider table for either side, and squares of its width.
        begun = n_rows * start * itemsize + (16 if start <= 256 else 8) * start * start * 8
        first = max(self.closed_form, rows + max(begun, iterated) if self.iterates else 0)
        # Before the factors are allocated: sums over the interactions, a chunk at a time (rgals.losses.base).
        chunk = 16 * min(self.nnz, 1 << 20)
        return always + max(first, rows + ended, chunk)
