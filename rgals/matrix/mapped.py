"""A matrix that stays on disk: a `CSR` whose entries are read block by block of rows."""

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

#: Bytes of indices and values read at a time. Two blocks are in memory: one is solved while one is read.
BLOCK = 1 << 26
_GAP = 1 << 14  # unwanted entries between two rows up to which one long read is faster than two reads
_PART = 1 << 22  # entries read at a time by `take_rows`: bounds temporary memory
_mark = attrgetter("st_ino", "st_size", "st_mtime_ns")  # changes when a file is replaced or written to


class Ids(np.ndarray):
    """Ids in a file. If ``ordered``, they are known to be sorted and distinct, and need not all be read."""

    ordered = False

    def __array_finalize__(self, of: Any) -> None:
        # Views of the whole stay ordered; a selection may not be.
        same = isinstance(of, Ids) and of.ordered and self.shape == of.shape and self.dtype == of.dtype
        self.ordered = same and self.ctypes.data == of.ctypes.data


class Column:
    """A one-dimensional array in a file; slices are read from it, the whole is never held."""

    # ``kind`` is the type in the file, ``dtype`` that of the numbers it gives. A file that was removed,
    # replaced or cut off since it was opened is a `FileFormatError`.

    def __init__(self, path: Path, offset: int, kind: Any, size: int) -> None:
        self.path, self.offset, self.size, self.shape = path, offset, size, (size,)
        self.kind = self.dtype = np.dtype(kind)
        self.mark = _mark(os.stat(path))

    def astype(self, dtype: Any) -> "Column":
        """The same numbers in another type."""
        found = copy(self)
        found.dtype = np.dtype(dtype)
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
        """The numbers ``[start, stop)``."""
        with self._opened() as file:
            part = np.fromfile(file, self.kind, stop - start, offset=self.offset + start * self.kind.itemsize)
        if len(part) < stop - start:
            raise FileFormatError(f"{self.path} is cut off: {stop - start - len(part)} numbers are missing")
        return part.astype(self.dtype, copy=False)

    def mapped(self) -> np.ndarray:
        """All numbers of the file, memory-mapped, in the type that the file has."""
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
                why = "has changed since it was opened; open the store again, and fit again a model of it"
                raise FileFormatError(f"{self.path} {why} that was not saved and loaded")
            yield file


class Computed(Column):
    """A column whose numbers are computed when they are read, by ``make(start, stop)``."""

    def __init__(self, make: Callable[[int, int], np.ndarray], size: int, dtype: Any) -> None:
        self.make, self.size, self.shape, self.dtype = make, size, (size,), np.dtype(dtype)

    def read(self, start: int, stop: int) -> np.ndarray:
        """The numbers ``[start, stop)``."""
        return self.make(start, stop).astype(self.dtype, copy=False)

    def mapped(self) -> np.ndarray:
        """All numbers, in memory."""
        return self.read(0, self.size)


@dataclass(frozen=True)
class StoredCSR(CSR):
    """One orientation of a store: ``indptr`` is memory-mapped, ``indices`` and ``values`` are `Column`."""

    # Code that works on rows, or on slices of the entries, takes it as a `CSR`; `blocks` streams it, and what
    # needs all entries at once calls `load`. `transpose` gives the other stored orientation.

    indices: Any
    values: Any  # an empty array if all values are 1
    turned: "StoredCSR | None" = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Nothing is writable: columns have no ``__setitem__``, and ``indptr`` is mapped read-only."""

    @property
    def has_dislikes(self) -> bool:
        """False: stores hold no dislikes."""
        return False

    @property
    def col_counts(self) -> np.ndarray:
        """Stored entries per column, int64."""
        return self.transpose().row_counts

    @property
    def row_sums(self) -> np.ndarray:
        """Sum of the values of each row, float64."""
        # Reading the blocks validates their indices: every fit asks for this before kernels follow them.
        return np.concatenate([np.empty(0), *(block.row_sums for *_, block in self.blocks())])

    def transpose(self, *, give_back: bool = True) -> "StoredCSR":
        """The other orientation, as it is stored."""
        assert self.turned is not None
        return replace(self.turned, turned=self)

    def as_dtype(self, dtype: Any) -> "StoredCSR":
        """The same with values of this type; ``indptr`` is checked: `as_csr` calls this for every store."""
        indptr = self.indptr
        if indptr[0] != 0 or indptr[-1] != self.nnz or (indptr[1:] < indptr[:-1]).any():
            name = self.indices.path.name.replace("indices", "indptr")
            raise FileFormatError(f"{self.indices.path.with_name(name)} is damaged: it does not ascend")
        turned = None if self.turned is None else self.turned.as_dtype(dtype)
        return replace(self, values=self.values.astype(dtype), turned=turned)

    def cuts(self, starts: np.ndarray | None = None) -> np.ndarray:
        """First row of every block, one of ``starts`` if these are given, then the number of rows."""
        entry = self.indices.dtype.itemsize + (len(self.values) and self.values.dtype.itemsize)
        starts = np.arange(self.n_rows) if starts is None else starts
        size = max(BLOCK // entry, 1)
        # A block ends with the row in which it reaches this size.
        found = np.searchsorted(self.indptr[starts], np.arange(size, self.nnz, size))
        return np.unique([0, *starts[found[found < len(starts)]], self.n_rows])

    def blocks(self, cuts: np.ndarray | None = None) -> Iterator[tuple[int, int, CSR]]:
        """``(start, stop, matrix of these rows)`` of every block; the next one is read meanwhile."""
        spans = pairwise((self.cuts() if cuts is None else cuts).tolist())
        yield from read_ahead((*span, self.slice_rows(*span)) for span in spans)

    def slice_rows(self, start: int, stop: int) -> CSR:
        """The matrix of the rows ``[start, stop)``, in memory."""
        a, b = int(self.indptr[start]), int(self.indptr[stop])
        indptr, indices = self.indptr[start : stop + 1] - a, self.indices[a:b]
        # Kernels do not check bounds.
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
        """The whole matrix in memory; memory is checked before it is read."""
        size = self.nnz * (4 + (len(self.values) and self.values.dtype.itemsize)) + 8 * (self.n_rows + 1)
        what = f"loading a store with {self.nnz:,} interactions"
        _memory.require(size, what, "give a sample of its users: store.sample(100_000)")
        return self.slice_rows(0, self.n_rows)


def read_ahead(found: Iterator[Any]) -> Iterator[Any]:
    """The items of an iterator, none of them None; a thread makes the next while the caller uses one."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        ahead = [pool.submit(next, found, None)]
        # In a list that is emptied, so that no reference keeps an item in memory here.
        while (done := [ahead.pop().result()])[0] is not None:
            ahead.append(pool.submit(next, found, None))
            yield done.pop()
