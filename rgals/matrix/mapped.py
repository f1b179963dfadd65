"""A matrix that stays on its disk: a `CSR` whose entries are read in parts, block after block of rows."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from rgals.matrix.csr import CSR
from rgals.runtime import memory as _memory
from rgals.runtime.errors import FileFormatError

#: Bytes of indices and values that are read at once. Two blocks are in memory: one is solved, one read ahead.
BLOCK = 1 << 26
_GAP = 1 << 14  # entries between two rows up to which reading them, too, costs less than to read twice
_PART = 1 << 22  # entries that rows are taken from at once: bounds temporary memory
_mark = attrgetter("st_ino", "st_size", "st_mtime_ns")  # of a file, by which another one is told from it


class Ids(np.ndarray):
    """Ids in a file. Where ``ordered``, they are known to be sorted and distinct: nobody looks at all."""

    ordered = False

    def __array_finalize__(self, of: Any) -> None:
        # A view of all of them is, what was taken from them may not be.
        same = isinstance(of, Ids) and of.ordered and self.shape == of.shape and self.dtype == of.dtype
        self.ordered = same and self.ctypes.data == of.ctypes.data


class Column:
    """A one-dimensional array in a file; slices are read, the whole is never held.

    What a slice gives has the type of `astype`, whatever the file holds. A file that was removed, replaced or
    cut off since it was opened is a `FileFormatError`.
    """

    def __init__(self, path: Path, offset: int, kind: Any, size: int) -> None:
        self.path, self.offset, self.kind = path, offset, np.dtype(kind)
        self._is_like(size, self.kind)
        self.mark = _mark(os.stat(path))

    def _is_like(self, size: int, dtype: np.dtype) -> None:
        # What an array of these numbers says of itself.
        self.size, self.shape, self.dtype, self.itemsize = size, (size,), dtype, dtype.itemsize

    def astype(self, dtype: Any) -> "Column":
        """The same numbers in another type."""
        found = self if self.dtype == dtype else copy(self)
        found._is_like(self.size, np.dtype(dtype))
        return found

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: Any) -> Any:
        at = range(self.size)[key]  # negative keys count from the end; arrays are a TypeError
        if isinstance(at, int):
            return self.read(at, at + 1)[0]
        low, high = sorted((at[0], at[-1])) if at else (0, -1)
        return self.read(low, high + 1)[:: at.step]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.mapped().astype(self.dtype if dtype is None else dtype, copy=bool(copy))

    def read(self, start: int, stop: int) -> np.ndarray:
        """The numbers from ``start`` on, before ``stop``, in an array of their own."""
        with self._opened() as file:
            part = np.fromfile(file, self.kind, stop - start, offset=self.offset + start * self.kind.itemsize)
        if len(part) < stop - start:
            raise FileFormatError(f"{self.path} is cut off: {stop - start - len(part)} numbers are missing")
        return part.astype(self.dtype, copy=False)

    def mapped(self) -> np.ndarray:
        """All numbers of the file, as memory that the system fills where it is looked at."""
        with self._opened() as file:
            if not self.size:
                return np.empty(0, self.kind)
            return np.asarray(np.memmap(file, self.kind, "r", self.offset, (self.size,)))

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        try:
            file = open(self.path, "rb", buffering=0)  # noqa: SIM115 (closed below)
        except FileNotFoundError:
            why = "the store is gone, and a model reads its store until it is saved and loaded"
            raise FileFormatError(f"{self.path}: {why}; put it back, or fit again") from None
        with file:
            if _mark(os.fstat(file.fileno())) != self.mark:
                raise FileFormatError(f"{self.path} has changed since it was opened; open the store again")
            yield file


class Computed(Column):
    """Numbers as long as a matrix has entries, made when they are asked for: ``make(start, stop)``."""

    def __init__(self, make: Callable[[int, int], np.ndarray], size: int, dtype: Any) -> None:
        self.make = make
        self._is_like(size, np.dtype(dtype))

    def read(self, start: int, stop: int) -> np.ndarray:
        """The numbers from ``start`` on, before ``stop``."""
        return self.make(start, stop).astype(self.dtype, copy=False)

    def mapped(self) -> np.ndarray:
        """All numbers."""
        return self.read(0, self.size)


@dataclass(frozen=True)
class StoredCSR(CSR):
    """A side of a store: ``indptr`` is mapped, ``indices`` and ``values`` are each a `Column`.

    What looks at rows or at slices of the entries takes it for a `CSR`. `transpose` gives the stored other
    side; `blocks` streams. What needs all entries at once calls `load`.
    """

    indices: Any
    values: Any  # an array of length 0 where all values are 1
    turned: "StoredCSR | None" = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Nothing to protect: columns have no items to set, and ``indptr`` is mapped for reading."""

    @property
    def has_dislikes(self) -> bool:
        """Stores hold none."""
        return False

    @property
    def col_counts(self) -> np.ndarray:
        """Stored entries per column, int64."""
        return self.transpose().row_counts

    @property
    def row_sums(self) -> np.ndarray:
        """Sum of the values of each row, float64."""
        # Block after block, whose indices are looked at: a fit asks for this before it follows any of them.
        return np.concatenate([np.empty(0), *(block.row_sums for *_, block in self.blocks())])

    def transpose(self, *, give_back: bool = True) -> "StoredCSR":
        """The other side of the store."""
        assert self.turned is not None
        return replace(self.turned, turned=self)

    def as_dtype(self, dtype: Any) -> "StoredCSR":
        """The same with values of another type; every matrix that is given passes here, so it is checked."""
        indptr = self.indptr
        if indptr[0] != 0 or indptr[-1] != self.nnz or (indptr[1:] < indptr[:-1]).any():
            name = self.indices.path.name.replace("indices", "indptr")
            raise FileFormatError(f"{self.indices.path.with_name(name)} is damaged: it does not ascend")
        turned = None if self.turned is None else self.turned.as_dtype(dtype)
        return replace(self, values=self.values.astype(dtype), turned=turned)

    def cuts(self, starts: np.ndarray | None = None) -> np.ndarray:
        """Numbers of the rows at which blocks begin, and that of all rows; only ``starts`` if given."""
        entry = self.indices.itemsize + (len(self.values) and self.values.itemsize)
        starts = np.arange(self.n_rows) if starts is None else starts
        size = max(BLOCK // entry, 1)
        # A block ends with the row in which it gets as long as that.
        found = np.searchsorted(self.indptr[starts], np.arange(size, self.nnz, size))
        return np.unique([0, *starts[found[found < len(starts)]], self.n_rows])

    def blocks(self, cuts: np.ndarray | None = None) -> Iterator[tuple[int, int, CSR]]:
        """First row, row behind the last, and matrix of every block; the next is read meanwhile."""
        spans = pairwise((self.cuts() if cuts is None else cuts).tolist())
        yield from read_ahead((*span, self.slice_rows(*span)) for span in spans)

    def slice_rows(self, start: int, stop: int) -> CSR:
        """The matrix of the rows from ``start`` on, before ``stop``, in memory."""
        a, b = int(self.indptr[start]), int(self.indptr[stop])
        indptr, indices = self.indptr[start : stop + 1] - a, self.indices[a:b]
        # Kernels follow these numbers wherever they lead.
        if len(indices) and not 0 <= indices.min() <= indices.max() < self.n_cols:
            raise FileFormatError(f"{self.indices.path} is damaged: an index is outside 0..{self.n_cols - 1}")
        return CSR(indptr, indices, self.values[a:b], self.n_cols)

    def take_rows(self, rows: np.ndarray) -> CSR:
        """The matrix of the given rows, in the given order, in memory."""
        found, places = np.unique(rows, return_inverse=True)  # in the order of the file
        starts, stops = self.indptr[found], self.indptr[found + 1]
        apart = (starts[1:] - stops[:-1] > _GAP) | (np.diff(starts // _PART) > 0)
        parts = [replace(CSR.empty(0, self.n_cols), values=self.values[:0])]
        for some in np.split(found, np.flatnonzero(apart) + 1) if len(found) else ():
            between = self.slice_rows(int(some[0]), int(some[-1]) + 1)
            parts.append(between if len(some) == between.n_rows else between.take_rows(some - some[0]))
        taken = CSR.stacked(parts)
        return taken if np.array_equal(places, np.arange(len(found))) else taken.take_rows(places)

    def load(self) -> CSR:
        """The whole matrix in memory; what does not fit is refused before it is read."""
        size = self.nnz * (4 + (len(self.values) and self.values.itemsize)) + 8 * (self.n_rows + 1)
        what = f"loading a store with {self.nnz:,} interactions"
        _memory.require(size, what, "give a sample of its users: store.sample(100_000)")
        return self.slice_rows(0, self.n_rows)


def read_ahead(found: Iterator[Any]) -> Iterator[Any]:
    """What an iterator finds, none of it None, each made while the one before is in use: by one thread."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        ahead = [pool.submit(next, found, None)]
        while (done := [ahead.pop().result()])[0] is not None:  # in a list, so that nothing keeps it here
            ahead.append(pool.submit(next, found, None))
            yield done.pop()
