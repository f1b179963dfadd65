"""Interactions of any size written to a store in bounded memory, by an external bucket sort."""

# 1. Spill: batches of rows are read; users and items get codes in the order of their first occurrence
#    (`Numbering`); codes and values are appended to two files.
# 2. Deal: codes are replaced by the ranks of their labels. Every interaction gets an integer key, the bits of
#    its row above those of its column, and is written to its bucket. A bucket is a range of keys (consecutive
#    rows, or a part of one long row) that fits into memory.
# 3. Sort: bucket after bucket is sorted, its duplicates are merged, and it is appended to the row files.
# 4. Steps 2 and 3 once more, from the row files to the column files.

import glob
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rgals.datasets.batches import files_of, read
from rgals.datasets.given import wanted_columns
from rgals.datasets.interactions import Rules, check_rules, check_values, stored_values
from rgals.datasets.layout import NoRowsError
from rgals.datasets.numbering import Numbering
from rgals.files.atomic import close_and_remove, lock, locked, naming
from rgals.matrix.csr import CSR
from rgals.matrix.mapped import read_ahead
from rgals.matrix.store import HEAD, ArrayFile, Store, Writer, open_matrix
from rgals.runtime.bars import Bar
from rgals.runtime.checks import check_choice
from rgals.runtime.errors import InputError, InsufficientMemoryError, ParameterError
from rgals.runtime.lazy import optional
from rgals.runtime.memory import of_process, readable

_LEAST_MEMORY = 400_000_000  # bytes; the interpreter and its packages alone take half of that
_SHARE_OF_IDS = 0.8  # of the memory beside the interpreter, at most; buckets get what ids leave
_CHUNK = 1 << 20  # interactions that are dealt at once, while the next ones are read
_SORT_BYTES = 80  # memory per interaction of a bucket while it is sorted
_LEAST_FOR_BUCKETS = 1 << 25  # bytes, also if the process already holds more than its memory
_MOST_BUCKETS = 30_000  # or three times as many in bad cases; every dealt chunk writes to each of them
_OVERFULL = 6  # times its planned size that a bucket may have, as when one pair is repeated
_CELL_BITS = 18  # interactions of long rows are counted in 2**18 cells, ranges of columns, in all
#: Spilled files with all rows, and their types: codes, and values if any source has values.
_SPILLED = {"codes": np.dtype([("user", np.int32), ("item", np.int32)]), "values": np.dtype(np.float64)}
_PART, _LOCK = ".part", ".lock"  # suffixes of an unfinished folder and of its lock file
MERGES = ("sum", "max", "error")
Sides = tuple[Numbering, Numbering]
Parts = Callable[[], Iterator[tuple[Any, ...]]]


def convert(
    sources: Any,
    out: str | os.PathLike,
    *,
    memory: str | int = "1GB",
    columns: Mapping[str, Any] | None = None,
    min_value: float | None = None,
    binarize: bool | None = None,
    duplicates: str = "sum",
    delimiter: str | None = None,
    header: bool | None = None,
    encoding: str = "utf-8",
    progress: bool = False,
) -> Store:
    r"""Write interactions of any size to a store, which is fitted from its disk: see `open_matrix`.

    The store holds what `rgals.datasets.read_interactions` would read: the same rows, columns, ids and
    values. Times and splits are left out. The store appears once it is complete: a conversion that fails or
    is killed leaves nothing that opens, and the next one to the same name removes its leftovers. Meanwhile it
    takes about 3 times the size of the store on the disk.

    Parameters
    ----------
    sources : path or sequence of paths
        Parquet files, text files as `read_interactions` takes them (csv, ``::``, jsonl ...), or folders of
        them. Within folders, names that begin with ``.`` or ``_`` are skipped and links to folders refused.
    out : path
        The folder of the store, which must not exist yet.
    memory : str or int, default "1GB"
        Bytes that the process may use beside pages of files, at least 400 MB; also as "800MB" or "8GB". The
        distinct ids must fit: a text takes its bytes and about 40 more.
    columns : dict, optional
        Columns by role, ``{"user": "who", "item": "what", "value": None}``, as in `fit`; else by their names.
    min_value, binarize, duplicates, delimiter, header, encoding
        As in `read_interactions`; ``duplicates`` is "sum", "max" or "error".
    progress : bool, default False
        Show bars with the time that is left.

    Returns
    -------
    Store

    Raises
    ------
    InputError, FileFormatError
        As in `read_interactions`; or ``out`` exists.
    InsufficientMemoryError
        The distinct ids do not fit into ``memory``, or one pair is repeated millions of times.
    MissingDependencyError
        pyarrow is not installed.

    Examples
    --------
    >>> import os, tempfile
    >>> from rgals.matrix import convert
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "ratings.csv")
    ...     with open(path, "w") as file:
    ...         n = file.write("userId,movieId,rating\n7,10,5\n7,20,1\n9,10,4\n")
    ...     store = convert(path, os.path.join(folder, "data.rgals"), min_value=3)
    ...     print(store.shape, store.nnz, store.user_ids)
    (2, 1) 2 [7 9]
    """
    optional("pyarrow", 'a conversion needs pyarrow: pip install "rgals[parquet]"')
    check_choice("duplicates", duplicates, MERGES)
    check_choice("header", header, (None, True, False))
    rules = check_rules(min_value, binarize, duplicates)
    wanted = wanted_columns(columns) | {"timestamp": None, "split": None}
    text = {"delimiter": delimiter, "header": header, "encoding": encoding}
    # A tenth is kept back for packages that are loaded later, and for freed memory that malloc holds.
    room = int(0.9 * _bytes(memory)) - max(of_process(1), 200_000_000)
    files = files_of(sources)
    with _folder(Path(os.path.realpath(out))) as folder:
        rows = partial(read, wanted=wanted, options=text, alone=len(files) == 1)
        sides, n, valued = _spill(files, rows, folder, room, rules, progress)
        _write(Writer(folder), sides, n, valued, room, rules, progress)
    return open_matrix(out)


def _bytes(memory: str | int) -> int:
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(I?)B?\s*", str(memory).upper())
    n = float(found[1]) * (1024 if found[3] else 1000) ** " KMGT".index(found[2] or " ") if found else 0
    if n < _LEAST_MEMORY:
        least = f"{_LEAST_MEMORY / 1e6:.0f}MB"
        raise ParameterError("memory", memory, f"give at least {least}, as a number or as '1GB'")
    return int(n)


@contextmanager
def _folder(target: Path) -> Iterator[Path]:
    """A temporary folder beside the target, renamed to it at the end, or removed after an error."""
    # First the leftovers of killed conversions are removed. A folder in use has a locked file beside it.
    there = InputError(f"{target} exists; give another name, or remove it first")
    if target.exists():
        raise there
    for left in target.parent.glob(f".{glob.escape(target.name)}-*{_LOCK}"):
        with suppress(OSError), open(left, "ab") as held:
            if lock(held.fileno()):
                shutil.rmtree(left.with_suffix(_PART), ignore_errors=True)
                close_and_remove(held, str(left))
    folder = target.parent / f".{target.name}-{secrets.token_hex(6)}{_PART}"
    with locked(folder.with_suffix(_LOCK)), naming(target):
        folder.mkdir()
        try:
            yield folder
            try:
                os.rename(folder, target)
            except OSError:
                if target.exists():  # another conversion took the name meanwhile
                    raise there from None
                raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # after the rename there is none


# ---------------------------------------------------------------------------------------------- spill


def _spill(
    files: list[Path], rows: Callable[[Path], Any], folder: Path, room: int, rules: Rules, progress: bool
) -> tuple[Sides, int, bool]:
    """Write codes and values of all rows; return the ids, the number of rows, and whether any has a value."""
    users, items = (Numbering(what, int(_SHARE_OF_IDS * room)) for what in ("user", "item"))
    users.beside, items.beside = items, users
    n, valued, before, total = 0, False, 0, sum(map(os.path.getsize, files))
    named: bool | None = None
    bar = Bar(total=total, unit="B", unit_scale=True, desc="reading", disable=not progress)
    with bar, ThreadPoolExecutor(1) as pool, ExitStack() as opened:
        codes, values = (opened.enter_context(open(folder / name, "wb")) for name in _SPILLED)
        for path in files:
            for batch in read_ahead(rows(path)):
                named = batch.named if named is None else named
                if batch.named not in (None, named):  # its columns would be guessed anew
                    found = (
                        f"{path} has {'a' if batch.named else 'no'} line of names of columns, unlike others"
                    )
                    raise InputError(f"{found}; give one to all or none, or the columns by position")
                check_values(batch.value, batch.where, rules)
                item_codes = pool.submit(items.codes, batch.item, batch.trimmed)  # a thread for each side
                part = np.empty(len(batch.user), _SPILLED["codes"])
                part["user"], part["item"] = users.codes(batch.user, batch.trimmed), item_codes.result()
                codes.write(part.view(np.uint8).data)
                # Rows without values count 1. The file of values is begun, with ones for all rows before,
                # by the first batch that has values.
                for left in range(0 if batch.value is None or valued else n, 0, -_CHUNK):
                    values.write(np.ones(min(left, _CHUNK)).data)
                valued |= batch.value is not None
                if valued:
                    value = np.ones(len(part)) if batch.value is None else batch.value.astype(np.float64)
                    values.write(value.data)
                n += len(part)
                bar.update(max(min(before + batch.done, total) - bar.n, 0))
            before += os.path.getsize(path)
            bar.update(max(before - bar.n, 0))
    if not n:
        raise NoRowsError(f"{files[0]}{' and others hold' if files[1:] else ' holds'} no rows")
    return (users, items), n, valued


# ------------------------------------------------------------------------------------------- buckets


def _chunks(path: Path, dtype: Any, head: int = 0) -> Iterator[np.ndarray]:
    """The numbers of a file behind ``head`` bytes, `_CHUNK` at a time."""
    for start in range(head, os.path.getsize(path), _CHUNK * np.dtype(dtype).itemsize):
        yield np.fromfile(path, dtype, _CHUNK, offset=start)


def _ranked(folder: Path, sides: Sides, valued: bool) -> Iterator[tuple[Any, ...]]:
    """Ranks of the users and of the items of all spilled rows, and values; `_CHUNK` at a time."""
    ranks = [np.argsort(side.order).astype(np.int32) for side in sides]
    files = [_chunks(folder / name, dtype) for name, dtype in _SPILLED.items()][: 1 + valued]
    for codes, *values in zip(*files, strict=True):
        yield ranks[0][codes["user"]], ranks[1][codes["item"]], *values


class _Buckets:
    """Interactions in buckets, which are consecutive ranges of keys, all in one file."""

    # `counts` are the interactions of every row, `room` the bytes of memory that buckets may take.
    # `parts` gives all interactions, some at a time: rows, columns, and values if `dtype` is not None.
    def __init__(self, folder: Path, counts: Any, n_cols: int, room: int, parts: Parts, dtype: Any) -> None:
        self.path, self.bits, self.parts = folder / "buckets", max(n_cols - 1, 0).bit_length(), parts
        self.dtype = np.dtype([("key", np.int64), ("value", dtype)][: 1 if dtype is None else 2])
        ends = np.cumsum(counts, dtype=np.int64)
        # A bucket holds the rows that begin within the same `planned` interactions, all of its last row, too.
        self.planned = planned = max(room // 4 // _SORT_BYTES, int(ends[-1]) // _MOST_BUCKETS, 1)
        of_row = (ends - counts) // planned
        last = np.searchsorted(of_row, np.arange(of_row[-1] + 1), side="right")
        # As all counts are known before anything is dealt, every bucket has its place in the file: bucket k
        # has the keys below keys[k] that no earlier bucket has.
        keys, places = last << self.bits, ends[last - 1]
        if len(heavy := np.flatnonzero(counts > planned)):
            # Rows longer than a bucket are cut between cells, equal ranges of columns, which are counted.
            shift = max(self.bits + len(heavy).bit_length() - _CELL_BITS, 0)
            cells = self._cells(heavy, shift)
            before = (ends - counts)[heavy, None] + np.cumsum(cells, 1) - cells
            row, cell = np.nonzero(np.diff(before // planned))
            keys = np.sort(np.append(keys, (heavy[row] << self.bits) + (cell + 1 << shift)))
            places = np.sort(np.append(places, before[row, cell + 1]))
        self._ends, self._places = keys, [0, *places.tolist()]
        # Interactions of the fullest bucket, and the last key that it may have.
        self.largest = max(zip(np.diff(self._places).tolist(), (keys - 1).tolist(), strict=True))

    def _cells(self, heavy: np.ndarray, shift: int) -> np.ndarray:
        """Interactions of the ``heavy`` rows in every range of ``2**shift`` columns."""
        cells = np.zeros((len(heavy), 1 << self.bits - shift), np.int64)
        for rows, cols, *_ in read_ahead(self.parts()):
            at = np.searchsorted(heavy, rows)
            here = heavy.take(at, mode="clip") == rows
            cell = at[here] << self.bits - shift | cols[here] >> shift
            cells += np.bincount(cell, minlength=cells.size).reshape(cells.shape)
        return cells

    def deal(self, bar: Bar) -> None:
        """Write all interactions to their buckets."""
        free, size = self._places[:-1], self.dtype.itemsize
        with open(self.path, "wb") as file:
            for dealt, ends in read_ahead(map(self._in_order, read_ahead(self.parts()))):
                for k, (start, stop) in enumerate(pairwise([0, *ends.tolist()])):
                    if stop > start:
                        file.seek(size * free[k])
                        file.write(dealt[start:stop].view(np.uint8).data)
                        free[k] += stop - start
                bar.update(len(dealt))

    def _in_order(self, part: tuple[Any, ...]) -> tuple[np.ndarray, np.ndarray]:
        rows, cols, *values = part
        dealt = np.empty(len(rows), self.dtype)
        dealt["key"] = rows.astype(np.int64) << self.bits | cols
        for value in values:
            dealt["value"] = value
        dealt = self._by_key(dealt)
        return dealt, np.searchsorted(dealt["key"], self._ends)

    def _by_key(self, part: np.ndarray) -> np.ndarray:
        """Interactions sorted by their keys; equal keys stay in the order of the source."""
        if self.dtype.names != ("key",):
            return part.take(np.argsort(part["key"], kind="stable"))
        part["key"].sort()  # without values, equal keys cannot be told apart
        return part

    def pairs(self, keys: Any) -> tuple[Any, Any]:
        """Rows and columns of keys."""
        return keys >> self.bits, keys & ((1 << self.bits) - 1)

    def sorted(self) -> Iterator[np.ndarray]:
        """The sorted interactions of one bucket after the other."""
        for start, stop in pairwise(self._places):
            part = np.fromfile(self.path, self.dtype, stop - start, offset=start * self.dtype.itemsize)
            yield self._by_key(part)
        os.unlink(self.path)


def _write(
    writer: Writer, sides: Sides, n: int, valued: bool, room: int, rules: Rules, progress: bool
) -> None:
    """Deal, sort and merge what was spilled; write all files of the store."""
    users, items = sides
    counts = users.counts.copy()
    for side in sides:
        side.sort()
    left = max(room - sum(side.bytes + 16 * side.known for side in sides), room // 4, _LEAST_FOR_BUCKETS)
    parts, kind = partial(_ranked, writer.folder, sides, valued), np.float64 if valued else None
    buckets = _Buckets(writer.folder, counts[users.order], items.known, left, parts, kind)
    most, last = buckets.largest
    needed = 4 * _SORT_BYTES * most // _OVERFULL
    if most > _OVERFULL * buckets.planned and needed > left:
        user, more = users.label(buckets.pairs(last)[0]), readable((needed - left) * 10 // 9)
        raise InsufficientMemoryError(
            f"user {user} has {most:,} interactions with one item or a few, which are merged in memory: that "
            f"takes {readable(needed)}, and {readable(left)} are left; raise memory by at least {more}"
        )
    indices, values = ArrayFile(writer, "rows_indices.npy", np.int32), None
    row_counts, col_counts = (np.zeros(side.known, np.int64) for side in sides)
    with Bar(total=2 * n, unit=" rows", unit_scale=True, desc="rows", disable=not progress) as bar:
        buckets.deal(bar)
        for name in _SPILLED:
            os.unlink(writer.folder / name)
        for held, keys, data in read_ahead(_merged(part, buckets, sides, rules) for part in buckets.sorted()):
            rows, cols = buckets.pairs(keys)
            if values is None and (data != 1).any():
                values = ArrayFile(writer, "rows_values.npy", np.float32)
                for written in range(indices.size, 0, -_CHUNK):
                    values.add(np.ones(min(written, _CHUNK)))
            indices.add(cols.astype(np.int32))
            if values is not None:
                values.add(data)
            first = rows[0] if len(rows) else 0
            of_rows = np.bincount(rows - first)
            row_counts[first : first + len(of_rows)] += of_rows
            col_counts += np.bincount(cols, minlength=items.known)
            bar.update(held)
    for file in filter(None, (indices, values)):
        file.close()
    kept = [np.flatnonzero(row_counts), np.flatnonzero(col_counts)]
    if not len(kept[0]):
        raise InputError("no interaction is left; see min_value and the values of the data")
    for side, ids in zip(sides, kept, strict=True):
        side.write(writer, ids)
    shape = len(kept[0]), len(kept[1])
    indptr = np.concatenate([[0], np.cumsum(row_counts[kept[0]])])
    writer.save("rows_indptr.npy", indptr.dtype, [indptr])
    if shape[1] < items.known:
        # Some columns have no interaction left: number the others without gaps.
        places = np.cumsum(col_counts > 0, dtype=np.int32) - 1
        old, before = "rows_indices.npy", writer.folder / "before.npy"
        os.rename(writer.folder / old, before)
        writer.save(old, np.int32, (places[part] for part in _chunks(before, np.int32, HEAD)))
        os.unlink(before)
    _columns(writer, indptr, col_counts[kept[1]], values is not None, left, progress)
    writer.describe(shape, int(indptr[-1]))


def _merged(part: np.ndarray, buckets: _Buckets, sides: Sides, rules: Rules) -> tuple[int, Any, Any]:
    """Interactions of a sorted bucket, and its keys and values, duplicates merged, that are kept."""
    keys = part["key"]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))

    def pair(k: int) -> str:
        row, col = buckets.pairs(int(keys[starts[k]]))
        return f"user {sides[0].label(row)}, item {sides[1].label(col)}"

    if rules.duplicates == "error" and len(starts) < len(keys):
        both = f"{pair(int(np.diff(keys).argmin()))} occur together more than once"
        raise InputError(f"{both}; give duplicates='sum' or 'max' to merge")
    value = part["value"] if part.dtype.names != ("key",) else np.ones(len(keys))
    value = (np.add if rules.duplicates == "sum" else np.maximum).reduceat(value, starts)
    data, kept = stored_values(value, rules, pair)
    return len(part), keys[starts][kept], data[kept]


def _columns(
    writer: Writer, indptr: np.ndarray, counts: np.ndarray, valued: bool, room: int, progress: bool
) -> None:
    """Write the files of the columns from those of the rows."""
    n_users, n, rows = len(indptr) - 1, int(indptr[-1]), replace(CSR.empty(0, 0), indptr=indptr)
    arrays = [("rows_indices.npy", np.int32), ("rows_values.npy", np.float32)][: 1 + valued]

    def parts() -> Iterator[tuple[Any, ...]]:
        columns = (_chunks(writer.folder / name, dtype, HEAD) for name, dtype in arrays)
        for k, (cols, *values) in enumerate(zip(*columns, strict=True)):
            yield cols, rows.rows_between(_CHUNK * k, _CHUNK * k + len(cols)), *values

    buckets = _Buckets(writer.folder, counts, n_users, room, parts, np.float32 if valued else None)
    with Bar(total=2 * n, unit=" rows", unit_scale=True, desc="columns", disable=not progress) as bar:
        buckets.deal(bar)
        files = [ArrayFile(writer, name.replace("rows", "columns"), dtype) for name, dtype in arrays]
        for part in read_ahead(buckets.sorted()):
            files[0].add(buckets.pairs(part["key"])[1].astype(np.int32))
            if valued:
                files[1].add(part["value"])
            bar.update(len(part))
    for file in files:
        file.close()
    writer.save("columns_indptr.npy", np.int64, [np.concatenate([[0], np.cumsum(counts)])])
