"""How values (counts, hours, money) become the weights of a loss."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from rgals.matrix.csr import CSR
from rgals.matrix.mapped import Computed, StoredCSR
from rgals.runtime.errors import InputError, ParameterError

AUTO = "auto"
VALUES = (AUTO, "raw", "log1p", "binary", "bm25")
_K1, _B = 1.2, 0.75  # the usual constants of BM25
_CHUNK = 1 << 20  # entries weighted at a time: bounds temporary memory
OLDEST = 40.0  # age in half-lives above which weights fall no further: 2^-40 is 9e-13
_UNIT_SAMPLE = 1000  # times whose median tells their unit
# The years 1980 to 2200 in seconds since 1970: a number in this range, or 10^3, 10^6 or 10^9 times as large,
# is taken for a time.
_SINCE, _UNTIL = 10 * 365 * 86_400, 230 * 365 * 86_400
# What values need to pass for ratings: this many, of this many levels, and this share in the lower half.
_MIN_RATINGS, _MIN_LEVELS, _MIN_LOW = 1000, 4, 0.1


@dataclass(frozen=True)
class Weighting:
    """A transformation of values into weights, with the statistics it takes from the fitted matrix."""

    # ======== =====================================================================================
    # kind     weight of a value v of user x and item y
    # ======== =====================================================================================
    # raw      v
    # binary   1
    # log1p    log(1 + v) / scale
    # bm25     idf_y v (k1 + 1) / (v + k1 (1 - b + b c_x / mean_length)) / scale, k1 = 1.2, b = 0.75
    # ======== =====================================================================================
    #
    # with ``c_x`` the sum of the user's values and ``idf_y = log(1 + (M - n_y + 1/2) / (n_y + 1/2))`` for an
    # item that ``n_y`` of M users have (Robertson and Zaragoza, "The probabilistic relevance framework: BM25
    # and beyond", 2009). ``scale`` makes the mean weight of the fitted interactions 1, as the rules for
    # hyperparameters assume. Dislikes keep their values and enter no statistic.
    #
    # With a half-life h, weights and dislikes are multiplied by ``2^(-age / h) / left``. Ages are counted
    # from the newest interaction, and are 40 half-lives at most; ``left`` keeps the mean weight of the likes.

    kind: str = "raw"
    scale: float = 1.0
    mean_length: float = 1.0  # mean sum of a user's values
    n_users: int = 0
    idf: np.ndarray | None = None  # float64, shape (n_items,)
    half_life: float | None = field(default=None, compare=False)  # in the unit of the times
    newest: float = field(default=0.0, compare=False)  # time of the newest interaction
    left: float = field(default=1.0, compare=False)  # mean weight of the likes with ages, over that without

    @classmethod
    def of(cls, kind: str, matrix: CSR) -> "Weighting":
        """The weighting of a kind (one of `VALUES`, not "auto") for the matrix that is fitted."""
        matrix = matrix.likes
        if kind == "log1p" and matrix.is_binary:
            return cls(kind, float(np.log1p(1.0)))
        length, counts = (0.0, None) if kind != "bm25" else (float(matrix.row_sums.sum()), matrix.col_counts)
        made = cls.unscaled(kind, length, counts, matrix.n_rows)
        return made if kind in ("raw", "binary") else made.scaled(made.total(matrix), matrix.nnz)

    @classmethod
    def unscaled(cls, kind: str, length: float, counts: np.ndarray | None, n_users: int) -> "Weighting":
        """The weighting with ``scale=1``; BM25 needs the sum of all values and the counts of the items."""
        if kind != "bm25" or counts is None:
            return cls(kind)
        return cls(kind, 1.0, length / max(n_users, 1) or 1.0, n_users, _idf(counts, n_users))

    def total(self, matrix: CSR) -> float:
        """Sum of the unscaled weights of the likes in ``matrix``."""
        matrix = matrix.likes
        starts, norms = range(0, matrix.nnz, _CHUNK), self._norms(matrix)
        return sum(float(self._unscaled(matrix, norms, False, at, at + _CHUNK).sum()) for at in starts)

    def scaled(self, total: float, nnz: int) -> "Weighting":
        """The same with a mean weight of 1, given the `total` of all ``nnz`` likes."""
        return replace(self, scale=total / nnz) if total else self

    def halving(self, half_life: float, matrix: CSR) -> "Weighting":
        """The same with weights that halve every ``half_life``, for the matrix that is fitted."""
        self = replace(self, half_life=half_life, newest=0.0, left=1.0)
        self.check_times(matrix)
        assert matrix.times is not None
        if not np.isfinite(matrix.times).all():
            at = int(np.flatnonzero(~np.isfinite(matrix.times))[0])
            raise InputError(f"the time of interaction {at} is {matrix.times[at]}; it must be finite")
        made = replace(self, newest=float(matrix.times.max()))
        plain, aged = (w.rows(matrix.likes).row_sums.sum() for w in (replace(made, half_life=None), made))
        return replace(made, left=float(aged / plain) if plain else 1.0)  # 0: there are only dislikes

    def check_times(self, matrix: CSR) -> None:
        """Raise if weights have a half-life and the interactions no times, or times of another unit."""
        if self.half_life is not None and matrix.times is None and matrix.nnz:
            problem = (
                "the interactions have no times (stores keep none); give a frame with a column of times or "
                "rgals.datasets.read_interactions((users, items, values, times)), with timestamp_column= "
                "where it has a name of its own, or half_life=None"
            )
            raise ParameterError("half_life", self.half_life, problem)
        if self.newest and matrix.times is not None and matrix.nnz:
            middle = float(np.median(matrix.times[:_UNIT_SAMPLE]))
            if len({unit_of(middle), unit_of(self.newest)} - {None}) == 2:
                why = f"times of about {middle:.3g} are in another unit than those of the fit"
                raise InputError(f"{why}, {self.newest:.3g}; give them in that unit (dates: nanoseconds)")

    def rows(self, matrix: CSR) -> CSR:
        """Histories of users (users x items) with weights as values; those of a store stay on disk."""
        norms = self._norms(matrix)
        found = self._weighted(matrix, norms, by_item=False)
        if found is matrix or not isinstance(found, StoredCSR):
            return found
        items: Any = found.turned
        values = items.values[:0] if found.is_binary else self._values(items, norms, by_item=True)
        return replace(found, turned=replace(items, values=values))

    def columns(self, matrix: CSR, users: CSR) -> CSR:
        """Histories of some items (items x users) with weights; ``users`` is the matrix of all users."""
        own = self if self.idf is None else replace(self, idf=_idf(matrix.likes.row_counts, self.n_users))
        return own._weighted(matrix, self._norms(users), by_item=True)

    def with_counts(self, at: np.ndarray, counts: np.ndarray) -> "Weighting":
        """The same with items ``at``, known or new, that so many users (``counts``) have."""
        if self.idf is None:
            return self
        idf = np.zeros(max(len(self.idf), int(at.max(initial=-1)) + 1))
        idf[: len(self.idf)] = self.idf
        idf[at] = _idf(counts, self.n_users)
        return replace(self, idf=idf)

    def bytes(self, matrix: CSR) -> int:
        """Bytes that the weights of a matrix need beside its values."""
        if self.half_life is not None:  # the times, and two arrays of this length while `left` is computed
            return matrix.nnz * (2 * matrix.values.dtype.itemsize + 24)
        if self.kind in ("raw", "binary"):
            return 0
        held = 0 if isinstance(matrix, StoredCSR) else matrix.nnz * matrix.values.dtype.itemsize
        return held + 56 * min(matrix.nnz, _CHUNK)

    def _norms(self, users: CSR) -> np.ndarray | None:
        """BM25's ``k1 (1 - b + b c_x / mean_length)`` of each user, or None for other kinds."""
        if self.idf is None:
            return None
        return _K1 * (1.0 - _B + _B * users.likes.row_sums / self.mean_length)

    def _weighted(self, matrix: CSR, norms: np.ndarray | None, by_item: bool) -> CSR:
        self.check_times(matrix)
        if self.half_life is None:
            if self.kind == "raw" or (self.kind == "binary" and matrix.is_binary):
                return matrix
            if self.kind == "binary" and not matrix.has_dislikes:
                return replace(matrix, values=matrix.values[:0])
        values: Any = self._values(matrix, norms, by_item)
        if not isinstance(matrix, StoredCSR):
            values = values.mapped()
        ones = all((values[start : start + _CHUNK] == 1).all() for start in range(0, matrix.nnz, _CHUNK))
        return replace(matrix, values=values[:0] if ones else values, times=None)

    def _values(self, matrix: CSR, norms: np.ndarray | None, by_item: bool) -> Computed:
        """Scaled weights of stored entries with their ages, computed in parts when they are read."""
        dtype = matrix.values.dtype
        least = np.finfo(dtype).tiny  # no weight becomes 0, which would drop the interaction

        def make(first: int, last: int) -> np.ndarray:
            values = np.empty(last - first, dtype)
            for start in range(first, last, _CHUNK):
                stop = min(start + _CHUNK, last)
                part = self._unscaled(matrix, norms, by_item, start, stop) / self.scale
                if self.half_life is not None and matrix.times is not None:
                    halvings = (matrix.times[start:stop] - self.newest) / self.half_life
                    part = part * (np.exp2(np.clip(halvings, -OLDEST, OLDEST)) / self.left)
                values[start - first : stop - first] = np.copysign(np.maximum(np.abs(part), least), part)
            return values

        return Computed(make, matrix.nnz, dtype)

    def _unscaled(
        self, matrix: CSR, norms: np.ndarray | None, by_item: bool, start: int, stop: int
    ) -> np.ndarray:
        """Unscaled weights of the stored entries ``[start, stop)``, float64."""
        item = matrix.indices[start:stop]
        v = np.ones(len(item)) if matrix.is_binary else matrix.values[start:stop].astype(np.float64)
        likes = np.abs(v)
        if self.kind == "binary":
            likes = np.ones(len(item))
        elif self.kind == "log1p":
            likes = np.log1p(likes)
        elif norms is not None and self.idf is not None:
            user = matrix.rows_between(start, start + len(item))
            user, item = (item, user) if by_item else (user, item)
            with np.errstate(over="ignore"):  # for tiny values the quotient is infinite and the weight 0
                likes = self.idf[item] * (_K1 + 1.0) / (1.0 + norms[user] / likes)
        return np.where(v < 0, v * self.scale, likes)


def unit_of(time: float) -> int | None:
    """Unit of a time since 1980, by its size: 0 (seconds), 3 (milliseconds), 6 or 9; else None."""
    return next((power for power in (0, 3, 6, 9) if _SINCE <= time / 10**power < _UNTIL), None)


def _idf(counts: np.ndarray, n_users: int) -> np.ndarray:
    """BM25's weight of items, which falls with the number of users that have them and stays above 0."""
    return np.log1p((np.maximum(n_users - counts, 0) + 0.5) / (counts + 0.5))


class Values(NamedTuple):
    """Statistics of the values of likes, by which a weighting is chosen."""

    nnz: int
    ends: tuple[float, float]  # minimum and maximum
    mean: float
    spread: float  # standard deviation over mean: about 0.3 for stars and 5 for play counts
    halves: np.ndarray  # counts of the values 0, 0.5, 1, ..., 10, shape (21,)

    @classmethod
    def of(cls, matrix: CSR) -> "Values":
        """Statistics of a matrix without dislikes."""
        if matrix.is_binary:
            return cls(matrix.nnz, (1.0, 1.0), 1.0, 0.0, matrix.nnz * np.eye(21, dtype=np.int64)[2])
        starts = range(0, matrix.nnz, _CHUNK)
        return cls.together([cls._of(matrix.values[start : start + _CHUNK]) for start in starts])

    @classmethod
    def _of(cls, values: np.ndarray) -> "Values":
        ends, twice, halves = (float(values.min()), float(values.max())), 2.0 * values, np.zeros(21, np.int64)
        if ends[1] <= 10.0:
            whole = twice[twice == np.rint(twice)].astype(np.int64)
            halves = np.bincount(whole, minlength=len(halves))
        part = (values / values.max()).astype(np.float64)  # so that squares do not overflow
        mean = float(part.mean())
        return cls(len(values), ends, mean * ends[1], float(part.std()) / mean, halves)

    @classmethod
    def together(cls, parts: Iterable["Values"]) -> "Values":
        """Statistics of the union of parts."""
        parts = [part for part in parts if part.nnz]
        if not parts:
            return cls(0, (0.0, 0.0), 0.0, 0.0, np.zeros(21, np.int64))
        counts, least, most, means, spreads = np.array([(p.nnz, *p.ends, *p[2:4]) for p in parts]).T
        nnz, means, largest = counts.sum(), means / most.max(), float(most.max())
        mean = float(counts @ means / nnz)
        square = float(counts @ (means**2 * (spreads**2 + 1.0)) / nnz)
        spread = max(0.0, square / mean**2 - 1.0) ** 0.5
        halves = np.sum([part.halves for part in parts], axis=0)
        return cls(int(nnz), (float(least.min()), largest), mean * largest, spread, halves)

    @property
    def are_ratings(self) -> bool:
        """Whether they look like stars: up to 5 or 10, in half steps, most of them high and many low."""
        top = int(np.flatnonzero(self.halves).max(initial=0))
        if self.nnz < _MIN_RATINGS or self.halves.sum() != self.nnz or top not in (10, 20):
            return False
        low = self.halves[: top // 2 + 1].sum() / self.nnz
        return bool(np.count_nonzero(self.halves) >= _MIN_LEVELS and _MIN_LOW <= low <= 0.5)
