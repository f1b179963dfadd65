"""Where negatives come from, and the correction for not drawing them uniformly."""

from dataclasses import KW_ONLY, dataclass

import numpy as np

from rgals.kernels import sgd as kernel
from rgals.kernels.queue import spread
from rgals.matrix.csr import CSR
from rgals.runtime.errors import InputError, ParameterError

SAMPLERS = ("uniform", "popularity", "in_batch")
_TWO32 = 1 << 32


def alias_table(probability: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Walker's alias table: a drawn column i is kept if 32 random bits are below accept[i], else alias[i]."""
    n = len(probability)
    height = probability * n
    accept = np.full(n, _TWO32, np.uint64)
    alias = np.arange(n, dtype=np.int32)
    small = list(np.flatnonzero(height < 1))
    large = list(np.flatnonzero(height >= 1))
    while small and large:
        low, high = small.pop(), large[-1]
        accept[low] = np.uint64(height[low] * _TWO32)
        alias[low] = high
        height[high] -= 1 - height[low]
        if height[high] < 1:
            small.append(large.pop())
    return accept, alias


@dataclass(eq=False)
class Sampler:
    """Draws negatives for the users of a matrix; its parameters are those of `SGDRanker`."""

    X: CSR
    sampler: str
    n: int  # negatives of a row, or of a batch that shares them
    _: KW_ONLY
    gamma: float = 1.0
    shared: bool = False
    # Otherwise users' positives are drawn, too. A row's own one stays if rows draw for themselves with
    # replacement; it is not drawn without replacement, and masked in shared and in-batch negatives.
    exclude_positives: bool = False
    replacement: bool = True
    for_lists: bool = False  # draw `lists`, whose negatives are no positives and may be fewer than asked

    def __post_init__(self) -> None:
        X, self.in_batch = self.X, self.sampler == "in_batch"
        self.shared = self.shared or self.in_batch
        self.users = np.repeat(np.arange(X.n_rows, dtype=np.int32), X.row_counts)
        # In-batch negatives, the positives of the other rows, amount to gamma = 1. Items without interactions
        # have probability 0 for gamma < 0, too.
        power = {"uniform": 0.0, "in_batch": 1.0}.get(self.sampler, self.gamma)
        counts, weight = X.col_counts.astype(np.float64), np.zeros(X.n_cols)
        with np.errstate(over="ignore", under="ignore"):
            np.power(counts, power, out=weight, where=(counts > 0) | (power >= 0))
        if not 0 < weight.sum() < np.inf:
            raise ParameterError("gamma", self.gamma, "give one with finite powers of the degrees, not all 0")
        probability = weight / weight.sum()
        # log(N q_y), which Pu et al., Eq. 9, subtract from the score of a negative; inf where q_y = 0. A row
        # that has nothing else left to draw takes such an item, which inf makes absent.
        self.correction = np.log(X.n_cols * probability, out=np.full(X.n_cols, np.inf), where=weight > 0)
        uniform = bool(np.ptp(weight) == 0)
        if uniform:
            self.correction[:] = 0
        table = alias_table(probability[:0] if uniform or self.in_batch else probability)
        self._source = X.indptr, X.indices, X.n_cols, *table  # arguments of every `kernel.draw`
        if not self.in_batch and not self.for_lists:
            self._check_room(int(np.count_nonzero(weight)))

    def _check_room(self, n_drawable: int) -> None:
        longest = int(self.X.row_counts.max(initial=1))
        if not self.replacement:
            taken = 0 if self.shared else longest if self.exclude_positives else 1
            room = n_drawable - taken
            if self.n > room:
                whose = "for the user with most positives" if taken > 1 else "of the catalogue"
                advice = f"without replacement only {room} items {whose} can be drawn"
                raise ParameterError("n_negatives", self.n, advice)
        elif self.exclude_positives and longest >= self.X.n_cols:
            what = f"user {np.argmax(self.X.row_counts)} has interacted with all {longest} items"
            advice = "leave that user out or set exclude_positives=False"
            raise InputError(f"{what}, which leaves no negative to draw: {advice}")

    def draw(self, key: np.uint64, users: np.ndarray, items: np.ndarray, n_threads: int = 1) -> None:
        """Fill ``items[:, 1:]`` (B, 1 + n) with negatives of the users; column 0 holds the positives."""
        how = self.exclude_positives, not self.replacement
        spread(kernel.draw, len(users), n_threads, key, users, *self._source, *how, items)

    def lists(
        self, key: np.uint64, users: np.ndarray, needed: np.ndarray | int, *, distinct: bool = False
    ) -> np.ndarray:
        """Each user's positives, then ``needed`` negatives or as many as exist, then -1; (B, width)."""
        distinct = distinct or not self.replacement
        block = self.X.take_rows(users)
        count, room = block.row_counts, self.X.n_cols - block.row_counts
        needed = np.minimum(needed, room) if distinct else np.where(room > 0, needed, 0)
        items = np.full((len(users), int((count + needed).max(initial=0))), -1, np.int32)
        items[block.rows, np.arange(block.nnz) - block.indptr[block.rows]] = block.indices
        # Lists are drawn in groups of similar length, by powers of two: `kernel.draw` fills a rectangle, in
        # which no list then draws more than twice what it needs.
        groups = np.frexp(needed)[1]
        for group in np.unique(groups[needed > 0]):
            some = np.flatnonzero(groups == group)
            width = int(needed[some].max())
            drawn = np.full((len(some), 1 + width), -1, np.int32)
            own = np.uint64((int(key) + int(group)) % (1 << 64))
            kernel.draw(0, len(some), own, users[some], *self._source, True, distinct, drawn)
            row, at = np.nonzero(np.arange(width) < needed[some][:, None])
            items[some[row], count[some][row] + at] = drawn[row, 1 + at]
        return items

    def draw_shared(self, key: np.uint64, positives: np.ndarray) -> np.ndarray:
        """Negatives that all rows of a batch share, (n,) int32; in-batch ones are its ``positives`` (B,)."""
        if self.in_batch:
            return positives
        items = np.full((1, 1 + self.n), -1, np.int32)
        # User 0 stands for all: nobody's positives are left out.
        kernel.draw(0, 1, key, np.zeros(1, np.int32), *self._source, False, not self.replacement, items)
        return items[0, 1:].copy()
