"""Interactions of any size into a store, in bounded memory: what is read is spilled, dealt out and sorted.

1. Batches of rows are read; users and items get codes as they come (`Numbering`); codes and values go to the
   disk one behind the other.
2. Codes are ranked by their labels. Every interaction becomes a key, ``row * n_columns + column``, and goes
   to one of some buckets: consecutive rows that fit into memory.
3. Bucket after bucket is sorted, its duplicates are merged, and it is appended to the files of the rows.
4. The same again for the columns, of what was written.
"""

import glob
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rgals.datasets.batches import files_of, read
from rgals.datasets.given import wanted_columns
from rgals.datasets.interactions import check_options, check_values, stored_values
from rgals.datasets.numbering import Numbering
from rgals.files.atomic import close_and_remove, lock, locked
from rgals.matrix.csr import CSR
from rgals.matrix.mapped import read_ahead
from rgals.matrix.store import HEAD, Store, Writer, open_matrix
from rgals.runtime.bars import Bar
from rgals.runtime.checks import check_choice
from rgals.runtime.errors import InputError, ParameterError
from rgals.runtime.lazy import optional

_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_LEAST = 400_000_000  # bytes: the interpreter and its packages alone take half of that
_IDS = 0.8  # share of the memory beside them that ids may take; buckets have what is left
_CHUNK = 1 << 21  # interactions that are dealt out together
_EVENT = 80  # bytes that an interaction of a bucket takes while it is sorted
_SOME = 1 << 25  # bytes that buckets take in a process that holds more than its memory already
_BUCKETS = 30_000  # half as many as a number of 16 bits can count
_PART, _LOCK = ".part", ".lock"  # ends of the names of a folder that is not complete, and of its lock
MERGES = ("sum", "max", "error")


class _Options(NamedTuple):
    threshold: float | None
    binary: bool
    duplicates: str
    wanted: dict[str, Any]
    text: dict[str, Any]
    progress: bool


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
    values. Times and splits are left out. It is complete, or not there: a conversion that ends before,
    however it ends, leaves nothing that opens, and the next one to the same name removes its leftovers. On
    the disk it takes about 3 times the size of the store meanwhile.

    Parameters
    ----------
    sources : path or sequence of paths
        Parquet files, text files as `read_interactions` takes them (csv, ``::``, jsonl ...), or folders, of
        which names that begin with ``.`` or ``_`` are left out, and links to folders refused.
    out : path
        The folder of the store, which must not be there yet.
    memory : str or int, default "1GB"
        Bytes that the process may hold, at least 400 MB; also as "800MB" or "8GB". The distinct ids must
        fit: a text takes its bytes and about 30 more.
    columns : dict, optional
        Columns by role, ``{"user": "who", "item": "what", "value": None}``, as in `fit`; by default those
        with usual names.
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
        As in `read_interactions`; or ``out`` is there already.
    InsufficientMemoryError
        The distinct ids do not fit into ``memory``.
    MissingDependencyError
        There is no pyarrow.

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
    threshold, binary = check_options(min_value, binarize, duplicates)
    wanted = {"user": None, "item": None, "value": "auto", **wanted_columns(columns)}
    wanted |= {"timestamp": None, "split": None}
    text = {"delimiter": delimiter, "header": header, "encoding": encoding}
    options = _Options(threshold, binary, duplicates, wanted, text, progress)
    # What packages load later, and what the system keeps of freed memory, is not counted: a tenth is left.
    room = int(0.9 * _bytes(memory)) - max(_resident(), 200_000_000)
    target = Path(os.path.realpath(out))
    if target.exists():
        raise InputError(f"{out} exists; give another name, or remove it first")
    files = files_of(sources)
    with _folder(target) as folder:
        spilled = _spill(files, folder, room, options)
        writer = Writer(folder)
        shape, nnz = _write(writer, spilled, room, options)
        writer.describe(shape, nnz)
    return open_matrix(out)


def _bytes(memory: str | int) -> int:
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", str(memory), re.IGNORECASE)
    n = 0 if found is None else float(found[1]) * (1024 if found[3] else 1000) ** _UNITS[found[2].upper()]
    if n < _LEAST:
        raise ParameterError("memory", memory, f"give at least {_LEAST / 1e6:.0f}MB, as a number or as '1GB'")
    return int(n)


def _resident() -> int:
    """Bytes that the process holds now; 0 where the system does not say."""
    with suppress(OSError, ValueError, IndexError, AttributeError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


@contextmanager
def _folder(target: Path) -> Iterator[Path]:
    """A folder beside the target that takes its name at the end, or is removed.

    Those of conversions that were killed are removed first; one that is in use has a locked file beside it.
    """
    for left in target.parent.glob(f".{glob.escape(target.name)}-*{_LOCK}"):
        with suppress(OSError), open(left, "ab") as held:
            if lock(held.fileno()):
                shutil.rmtree(left.with_suffix(_PART), ignore_errors=True)
                close_and_remove(held, str(left))
    folder = target.parent / f".{target.name}-{secrets.token_hex(6)}{_PART}"
    with locked(folder.with_suffix(_LOCK)):
        folder.mkdir()
        try:
            yield folder
            os.rename(folder, target)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


# ---------------------------------------------------------------------------------------- what is read


class _Spilled(NamedTuple):
    """Codes of users and items in files of int32, values in one of float64, if there are any."""

    folder: Path
    users: Numbering
    items: Numbering
    n: int
    valued: bool


def _spill(files: list[Path], folder: Path, room: int, options: _Options) -> _Spilled:
    users, items = (Numbering(what, int(_IDS * room)) for what in ("user", "item"))
    users.beside, items.beside = items, users
    n, valued, negatives = 0, False, options.threshold is not None
    total = sum(map(os.path.getsize, files))
    bar = Bar(total=total, unit="B", unit_scale=True, desc="reading", disable=not options.progress)
    before = 0
    with bar, ThreadPoolExecutor(1) as other:
        for path in files:
            batches = read(path, options.wanted, options.text)
            for batch in read_ahead(lambda _, found=batches: next(found, None), count()):  # type: ignore[misc]
                if batch is None:
                    break
                check_values(batch.value, batch.where, negatives)
                beside = other.submit(items.codes, batch.item)  # each side by a thread of its own
                codes = users.codes(batch.user), beside.result()
                users.trimmed, items.trimmed = (side.trimmed | batch.trimmed for side in (users, items))
                if batch.value is not None and not valued:
                    valued = True
                    for start in range(0, n, _CHUNK):  # rows of files without values count 1
                        _append(folder / "values", np.ones(min(_CHUNK, n - start)))
                _append(folder / "users", codes[0])
                _append(folder / "items", codes[1])
                if valued:
                    value = np.ones(len(codes[0])) if batch.value is None else batch.value
                    _append(folder / "values", value.astype(np.float64))
                n += len(codes[0])
                bar.update(max(min(before + batch.done, total) - bar.n, 0))
            before += os.path.getsize(path)
            bar.update(max(before - bar.n, 0))
    if not n:
        raise InputError(f"{files[0]}{' and others hold' if files[1:] else ' holds'} no rows")
    return _Spilled(folder, users, items, n, valued)


# ------------------------------------------------------------------------------------------- buckets


def _append(path: Path, numbers: np.ndarray) -> None:
    """Spill to a file, which is open no longer than that: there may be more than a process may open."""
    with open(path, "ab") as file:
        file.write(np.ascontiguousarray(numbers).data)


def _taken(path: Path, dtype: Any) -> np.ndarray:
    """All numbers of a file, which is removed; none where nothing was added."""
    numbers = np.fromfile(path, dtype) if path.exists() else np.empty(0, dtype)
    path.unlink(missing_ok=True)
    return numbers


def _chunks(path: Path, dtype: Any, head: int = 0) -> Iterator[np.ndarray]:
    """The numbers of a file behind its head, some at a time."""
    for start in range(head, os.path.getsize(path), _CHUNK * np.dtype(dtype).itemsize):
        yield np.fromfile(path, dtype, _CHUNK, offset=start)


class _Buckets:
    """Interactions by consecutive rows, a file each: keys, and values if there are any."""

    def __init__(self, folder: Path, counts: np.ndarray, n_cols: int, room: int, dtype: Any = None) -> None:
        self.folder, self.n_cols, self.dtype = folder, n_cols, dtype
        ends = np.cumsum(counts, dtype=np.int64)
        most = max(room // 2 // _EVENT, int(ends[-1]) // _BUCKETS, 1)
        cuts = [0]
        while cuts[-1] < len(counts):
            done = int(ends[cuts[-1] - 1]) if cuts[-1] else 0
            cuts.append(max(int(np.searchsorted(ends, done + most, side="right")), cuts[-1] + 1))
        self.cuts = cuts
        self._of_row = np.repeat(np.arange(len(cuts) - 1, dtype=np.uint16), np.diff(cuts))

    def add(self, rows: np.ndarray, cols: np.ndarray, values: np.ndarray | None) -> None:
        """Deal interactions out."""
        keys = rows * np.int64(self.n_cols) + cols
        bucket = self._of_row[rows]
        if len(self.cuts) > 2:
            order = np.argsort(bucket, kind="stable")
            keys, values = keys[order], None if values is None else values[order]
        ends = np.cumsum(np.bincount(bucket, minlength=len(self.cuts) - 1))
        for k, (start, stop) in enumerate(pairwise([0, *ends.tolist()])):
            if stop > start:
                _append(self.folder / f"keys{k}", keys[start:stop])
                if values is not None:
                    _append(self.folder / f"values{k}", values[start:stop])

    def sorted(self) -> Iterator[tuple[int, int, np.ndarray, np.ndarray | None]]:
        """First row, row behind the last, keys in order and their values, as they came, of every bucket."""

        def take(k: int) -> tuple[int, int, np.ndarray, np.ndarray | None]:
            keys, values = _taken(self.folder / f"keys{k}", np.int64), None
            if self.dtype is None:
                keys.sort()
            else:
                order = np.argsort(keys, kind="stable")
                keys, values = keys[order], _taken(self.folder / f"values{k}", self.dtype)[order]
            return self.cuts[k], self.cuts[k + 1], keys, values

        yield from read_ahead(take, range(len(self.cuts) - 1))


def _write(writer: Writer, spilled: _Spilled, room: int, options: _Options) -> tuple[tuple[int, int], int]:
    """All files of the store; its shape and number of interactions."""
    sides = spilled.users, spilled.items
    counts, ranks = spilled.users.counts.copy(), []
    for side in sides:
        side.sort()
        ranks.append(np.empty_like(side.order))
        ranks[-1][side.order] = np.arange(side.known, dtype=np.int32)
    held = sum(side.bytes + 16 * side.known for side in sides)
    left = max(room - held, room // 4, _SOME)
    n_items = spilled.items.known
    kind = np.float64 if spilled.valued else None
    buckets = _Buckets(spilled.folder, counts[spilled.users.order], n_items, left, kind)
    bar = Bar(total=2 * spilled.n, unit=" rows", unit_scale=True, desc="rows", disable=not options.progress)
    with bar:
        kinds = [("users", np.int32), ("items", np.int32), ("values", np.float64)][: 2 + spilled.valued]
        for user, item, *value in zip(
            *(_chunks(spilled.folder / name, of) for name, of in kinds), strict=True
        ):
            buckets.add(ranks[0][user], ranks[1][item], value[0] if value else None)
            bar.update(len(user))
        del ranks, counts
        for name, _ in kinds:
            (spilled.folder / name).unlink()
        merge = _Merge(writer, sides, options)
        for first, stop, keys, values in buckets.sorted():
            bar.update(len(keys))
            merge.add(first, stop, keys, values)
    valued = merge.close()
    row_counts, col_counts = np.concatenate(merge.row_counts), merge.col_counts
    kept = [np.flatnonzero(row_counts), np.flatnonzero(col_counts)]
    if not len(kept[0]):
        raise InputError("no interaction is left; see min_value and the values of the data")
    for side, alive in zip(sides, kept, strict=True):
        side.write(writer, alive)
    shape = len(kept[0]), len(kept[1])
    indptr = np.concatenate([[0], np.cumsum(row_counts[kept[0]])])
    writer.save("rows_indptr.npy", indptr.dtype, [indptr])
    if shape[1] < n_items:
        # Columns by their numbers among those that are left.
        places = np.cumsum(col_counts > 0, dtype=np.int32) - 1
        old, before = "rows_indices.npy", writer.folder / "before.npy"
        os.rename(writer.folder / old, before)
        writer.save(old, np.int32, (places[part] for part in _chunks(before, np.int32, HEAD)))
        os.unlink(before)
    _columns(writer, indptr, col_counts[kept[1]], valued, left, options.progress)
    return shape, int(indptr[-1])


class _Merge:
    """Merges the duplicates of sorted buckets and appends what is kept to the files of the rows."""

    def __init__(self, writer: Writer, sides: tuple[Numbering, Numbering], options: _Options) -> None:
        self.sides, self.options, self.n_cols = sides, options, sides[1].known
        self.indices = writer.open("rows_indices.npy", np.int32)
        self.values = writer.open("rows_values.npy", np.float32)
        self.row_counts: list[np.ndarray] = []
        self.col_counts = np.zeros(self.n_cols, np.int64)
        self.plain = True  # all values were 1 so far, and are not written yet

    def add(self, first: int, stop: int, keys: np.ndarray, value: np.ndarray | None) -> None:
        """The next bucket."""
        new, options = np.ones(len(keys), bool), self.options
        np.not_equal(keys[1:], keys[:-1], out=new[1:])
        if options.duplicates == "error" and not new.all():
            user, item = self._pair(keys[~new][0])
            both = f"user {user} and item {item} occur together more than once"
            raise InputError(f"{both}; give duplicates='sum' or 'max' to merge")
        starts = np.flatnonzero(new)
        by = np.add if options.duplicates == "sum" else np.maximum
        value = by.reduceat(np.ones(len(keys)) if value is None else value, starts)
        data, kept = stored_values(value, options.threshold, options.binary)
        keys, data = keys[starts][kept], np.ones(kept.sum(), np.float32) if options.binary else data[kept]
        bad = np.flatnonzero(~np.isfinite(data) | (data < 0))
        if len(bad):
            user, item = self._pair(keys[bad[0]])
            problem = f"the value {data[bad[0]]:g} is not usable; values must be >= 0 and fit float32"
            raise InputError(f"user {user}, item {item}: {problem}")
        if self.plain and not (data == 1).all():
            self.plain = False
            for start in range(0, self.indices.size, _CHUNK):
                self.values.add(np.ones(min(_CHUNK, self.indices.size - start), np.float32))
        rows, cols = np.divmod(keys, self.n_cols)
        self.indices.add(cols.astype(np.int32))
        if not self.plain:
            self.values.add(data)
        self.row_counts.append(np.bincount(rows - first, minlength=stop - first))
        self.col_counts += np.bincount(cols, minlength=self.n_cols)

    def _pair(self, key: np.int64) -> tuple[Any, Any]:
        row, col = divmod(int(key), self.n_cols)
        return self.sides[0].label(row), self.sides[1].label(col)

    def close(self) -> bool:
        """End the files; whether there are values."""
        self.indices.close()
        self.values.close()
        if self.plain:
            self.values.remove()
        return not self.plain


def _columns(
    writer: Writer, indptr: np.ndarray, counts: np.ndarray, valued: bool, room: int, progress: bool
) -> None:
    """The files of the columns, from those of the rows."""
    n_users, n, rows = len(indptr) - 1, int(indptr[-1]), replace(CSR.empty(0, 0), indptr=indptr)
    buckets = _Buckets(writer.folder, counts, n_users, room, np.float32 if valued else None)
    kinds = [("rows_indices.npy", np.int32), ("rows_values.npy", np.float32)][: 1 + valued]
    bar = Bar(total=2 * n, unit=" rows", unit_scale=True, desc="columns", disable=not progress)
    with bar:
        at = 0
        for cols, *values in zip(
            *(_chunks(writer.folder / name, of, HEAD) for name, of in kinds), strict=True
        ):
            users = rows.rows_between(at, at + len(cols))
            buckets.add(cols, users, values[0] if values else None)
            at += len(cols)
            bar.update(len(cols))
        indices = writer.open("columns_indices.npy", np.int32)
        values_ = writer.open("columns_values.npy", np.float32) if valued else None
        for _, _, keys, data in buckets.sorted():
            indices.add((keys % n_users).astype(np.int32))
            if values_ is not None and data is not None:
                values_.add(data)
            bar.update(len(keys))
    for file in (indices, values_):
        if file is not None:
            file.close()
    writer.save("columns_indptr.npy", np.int64, [np.concatenate([[0], np.cumsum(counts)])])
