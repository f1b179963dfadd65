"""The one matrix type inside rgals: canonical CSR with int64 indptr, int32 indices and optional values."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from rgals.matrix.cohesion import cohesion
from rgals.runtime.lazy import cached_property
from rgals.runtime.memory import give_back_freed

_CHUNK = 1 << 20  # entries converted to float64 or int64 at a time: bounds temporary memory
# Bytes of the indices of a transposed matrix above which freed memory goes back to the system: the call costs
# as much as a small fit.
_WORTH_GIVING_BACK = 1 << 20


class TimedMatrix(sp.csr_array):
    """A canonical scipy matrix with a time for every entry, which `as_csr` keeps."""

    times: np.ndarray | None = None

    @classmethod
    def of(cls, matrix: sp.csr_array, times: np.ndarray) -> "TimedMatrix":
        """``matrix`` with ``times``, shape (nnz,), in the order of its entries; arrays are shared."""
        made = cls((matrix.data, matrix.indices, matrix.indptr), shape=matrix.shape)
        made.times = np.asarray(times, np.float64)
        return made

    def __getitem__(self, key: Any) -> Any:
        """Some rows and columns with their times; a number or a vector has none."""
        part = super().__getitem__(key)
        # A matrix that was changed in place has other entries than its times.
        if self.times is not None and len(self.times) == self.nnz and isinstance(part, TimedMatrix):
            times = sp.csr_array((self.times, self.indices, self.indptr), shape=self.shape)[key]
            part.times = times.data if part.ndim == 2 and times.nnz == part.nnz else None
        return part


@dataclass(frozen=True)
class CSR:
    """A sparse matrix in canonical form: columns ascend within a row, no duplicates, no stored zeros."""

    # Values are positive weights, or negative for dislikes where a loss takes these. Arrays are read-only.
    # `rgals.matrix.validate.as_csr` makes one of checked input; this class checks nothing.

    indptr: np.ndarray  # int64, shape (n_rows + 1,)
    indices: np.ndarray  # int32, shape (nnz,)
    # float32 or float64, shape (nnz,), or *empty* if every value is 1: plain implicit data need no memory
    values: np.ndarray
    n_cols: int
    # float64, shape (nnz,): when each interaction was, if weights depend on it
    times: np.ndarray | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name in ("indptr", "indices", "values", *(() if self.times is None else ("times",))):
            view = getattr(self, name).view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__.copy()  # atomic: another thread may add a cached property meanwhile

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()  # unpickled arrays are writable, and kernels would be compiled again for these

    @classmethod
    def empty(cls, n_rows: int, n_cols: int) -> "CSR":
        """A matrix without entries."""
        return cls(np.zeros(n_rows + 1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32), n_cols)

    @classmethod
    def stacked(cls, parts: Sequence["CSR"]) -> "CSR":
        """The rows of several matrices one below the other; all or none of them have times."""
        ends = np.cumsum([0, *(part.nnz for part in parts)])
        indptr = np.concatenate([ends[:1], *(part.indptr[1:] + end for part, end in zip(parts, ends))])
        indices, values = np.concatenate([part.indices for part in parts]), parts[0].values[:0]
        if not all(part.is_binary or not part.nnz for part in parts):
            ones = (np.ones(part.nnz, np.int8) if part.is_binary else part.values for part in parts)
            values = np.concatenate([values, *ones])
        times = None
        if parts[0].times is not None:
            times = np.concatenate([part.times for part in parts if part.times is not None])
        return cls(indptr, indices, values, parts[0].n_cols, times)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.indptr) - 1

    @property
    def shape(self) -> tuple[int, int]:
        """``(n_rows, n_cols)``."""
        return self.n_rows, self.n_cols

    @property
    def nnz(self) -> int:
        """Number of stored entries."""
        return len(self.indices)

    @property
    def is_binary(self) -> bool:
        """Whether every stored value is 1."""
        return len(self.values) == 0

    @property
    def likes(self) -> "CSR":
        """The matrix without its negative entries."""
        return self.where(self.values > 0) if self.has_dislikes else self

    @property
    def has_dislikes(self) -> bool:
        """Whether any value is negative."""
        return bool(len(self.values)) and bool(self.values.min() < 0)

    @property
    def rows(self) -> np.ndarray:
        """Row of every stored entry, int64."""
        return np.repeat(np.arange(self.n_rows), self.row_counts)

    @property
    def positions(self) -> np.ndarray:
        """Position of every stored entry in the flattened dense matrix, ascending."""
        return self.rows * self.n_cols + self.indices

    @property
    def row_counts(self) -> np.ndarray:
        """Stored entries per row, int64."""
        return np.diff(self.indptr)

    @cached_property
    def col_counts(self) -> np.ndarray:
        """Stored entries per column, int64."""
        counts = np.zeros(self.n_cols, np.int64)
        for start in range(0, self.nnz, _CHUNK):
            counts += np.bincount(self.indices[start : start + _CHUNK], minlength=self.n_cols)
        counts.flags.writeable = False  # cached: all callers share it
        return counts

    cohesion = cached_property(cohesion)  # several rules of one fit ask for it

    @property
    def row_sums(self) -> np.ndarray:
        """Sum of the values of each row, float64."""
        if self.is_binary:
            return self.row_counts.astype(np.float64)
        return self.sum_rows(self.values.__getitem__)

    def sum_rows(self, of: Callable[[slice], np.ndarray]) -> np.ndarray:
        """Sum of each row, float64, of the numbers that ``of`` gives for a slice of the entries."""
        sums, filled = np.zeros(self.n_rows), np.flatnonzero(self.row_counts)
        starts = np.append(self.indptr[filled], self.nnz)
        # In chunks, as `reduceat` copies all it is given to float64; of whole rows, which keep their bits.
        for first in range(0, self.nnz, _CHUNK):
            some = slice(*np.searchsorted(starts[:-1], (first, first + _CHUNK)))
            if some.start < some.stop:
                start, stop = starts[some.start], starts[some.stop]
                entries, at = slice(start, stop), starts[some] - start
                sums[filled[some]] = np.add.reduceat(of(entries), at, dtype=np.float64)
        return sums

    @property
    def col_sums(self) -> np.ndarray:
        """Sum of the values of each column, float64."""
        if self.is_binary:
            return self.col_counts.astype(np.float64)
        sums = np.zeros(self.n_cols)
        for start in range(0, self.nnz, _CHUNK):
            # `add.at` adds entry by entry to the running sums, so that the chunks do not change the rounding.
            stop = start + _CHUNK
            np.add.at(sums, self.indices[start:stop].astype(np.intp), self.values[start:stop].astype(float))
        return sums

    def transpose(self, *, give_back: bool = True) -> "CSR":
        """The transposed matrix; ``give_back=False`` if memory freed here is about to be used again."""
        # By scipy's counting sort. It needs values, for which ones of one byte stand in, and copies the
        # indices unless indptr has their type.
        values = np.ones(self.nnz, np.int8) if self.is_binary else self.values
        starts = self.indptr.astype(np.int32 if self.nnz < 2**31 else np.int64)
        turned = sp.csr_array((values, self.indices, starts), shape=self.shape).tocsc()
        indptr, indices = turned.indptr.astype(np.int64), turned.indices.astype(np.int32, copy=False)
        values, times = self.values if self.is_binary else turned.data, self.times
        del turned
        if times is not None:
            times = sp.csr_array((times, self.indices, starts), shape=self.shape).tocsc().data
        if give_back and indices.nbytes > _WORTH_GIVING_BACK:
            give_back_freed()
        return CSR(indptr, indices, values, self.n_rows, times)

    @property
    def rises(self) -> np.ndarray:
        """For every entry, whether it is the first of its row or right of the entry before it."""
        rises = np.ones(self.nnz, bool)
        np.greater(self.indices[1:], self.indices[:-1], out=rises[1:])
        rises[self.indptr[:-1][self.row_counts > 0]] = True
        return rises

    def take_rows(self, rows: np.ndarray) -> "CSR":
        """The matrix of the given rows, in the given order."""
        counts = self.indptr[rows + 1] - self.indptr[rows]  # not `row_counts`: rows are often few
        indptr = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        where = np.arange(indptr[-1]) + np.repeat(self.indptr[:-1][rows] - indptr[:-1], counts)
        return self._entries(indptr, where)

    def slice_rows(self, start: int, stop: int) -> "CSR":
        """The matrix of the rows ``[start, stop)``; entries are not copied."""
        a, b = self.indptr[start], self.indptr[stop]
        return self._entries(self.indptr[start : stop + 1] - a, slice(a, b))

    def where(self, mask: np.ndarray) -> "CSR":
        """The matrix of the stored entries for which ``mask`` is true."""
        whole = self.load()
        indptr = np.concatenate([[0], np.cumsum(mask, dtype=np.int64)])[whole.indptr]
        return whole._entries(indptr, mask).tidy()

    def _entries(self, indptr: np.ndarray, at: Any) -> "CSR":
        """The matrix of the entries that ``at`` (slice, mask or numbers) selects, in rows by ``indptr``."""
        values = self.values if self.is_binary else self.values[at]
        times = None if self.times is None else self.times[at]
        return CSR(indptr, self.indices[at], values, self.n_cols, times)

    def tidy(self) -> "CSR":
        """The same without stored zeros, and without values if all of them are 1."""
        if not self.values.all():
            return self.where(self.values != 0)
        return replace(self, values=self.values[:0]) if (self.values == 1).all() else self

    def rows_between(self, start: int, stop: int) -> np.ndarray:
        """Row of every stored entry of ``[start, stop)``, int64."""
        first = int(np.searchsorted(self.indptr, start, side="right")) - 1
        last = int(np.searchsorted(self.indptr, stop, side="left"))
        return np.repeat(np.arange(first, last), np.diff(np.clip(self.indptr[first : last + 1], start, stop)))

    def as_dtype(self, dtype: Any) -> "CSR":
        """The same with values of this type."""
        same = self.is_binary or self.values.dtype == dtype
        return self if same else replace(self, values=self.values.astype(dtype))

    def cuts(self, starts: np.ndarray | None = None) -> np.ndarray:
        """First row of every block, then the number of rows; a matrix in memory is one block."""
        return np.array([0, self.n_rows])

    def blocks(self, cuts: np.ndarray | None = None) -> Iterator[tuple[int, int, "CSR"]]:
        """``(start, stop, matrix of these rows)`` of every block; a matrix in memory is one block."""
        yield 0, self.n_rows, self

    def load(self) -> "CSR":
        """The matrix in memory, where this one is already."""
        return self

    def to_scipy(self, dtype: np.dtype | type | str | None = None) -> sp.csr_array:
        """A `scipy.sparse.csr_array` with explicit values (float32 for ones) in memory of its own."""
        whole = self.load()
        values = np.ones(whole.nnz, np.float32) if whole.is_binary else whole.values
        return sp.csr_array((values, whole.indices, whole.indptr), self.shape, dtype, copy=True)
