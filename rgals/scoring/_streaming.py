"""`recommend_all`: the lists of all users in one file, batch by batch; interrupted runs resume."""

import copy
import hashlib
import os
import stat
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from rgals.datasets.given import by_ids, given
from rgals.datasets.ids import IdMap, Positions
from rgals.files.atomic import atomic_file, close_and_remove, naming, open_locked
from rgals.matrix.csr import CSR
from rgals.matrix.digest import update
from rgals.matrix.validate import as_csr
from rgals.runtime.bars import Bar
from rgals.runtime.checks import RANGES, check_int
from rgals.runtime.errors import InputError, ParameterError, hear, warn
from rgals.runtime.progress import LOG
from rgals.runtime.version import __version__
from rgals.scoring import _tables
from rgals.scoring._topk import check_model, is_matrix

_OURS = b"rgals-recommendations-"  # first bytes of the scratch files of every version, and of no other file
_MAGIC = _OURS + b"2\n"
_HEAD = struct.Struct("<II")  # of a batch: number of users; CRC-32 over the key, its ids and its scores


class Written(NamedTuple):
    """What `recommend_all` did.

    Attributes
    ----------
    path : str
    users : int
        Users that were asked for.
    served : int
        Users with at least one recommendation.
    rows : int
        Recommendations in the file.
    resumed : int
        Users whose lists an interrupted run had left behind.
    seconds : float
        Spent on scoring and writing.
    """

    path: str
    users: int
    served: int
    rows: int
    resumed: int
    seconds: float


def recommend_all(
    model: Any,
    out: str | os.PathLike,
    n: int = 10,
    *,
    users: Any = None,
    X_new: Any = None,
    new_ids: Any = None,
    batch_size: int = 8192,
    exclude: Any = "train",
    candidates: Any = None,
    exclude_items: Any = None,
    cold: str = "empty",
    format: str | None = None,
    resume: bool = True,
    verbose: int = 0,
) -> Written:
    """Write the best items of every user to a file, in bounded memory; an interrupted run can be resumed.

    Lists are computed for ``batch_size`` users at a time and appended to a scratch file ``<out>.partial``.
    After the last batch the table is written beside its final place and renamed, and the scratch file is
    removed. A call with the same model and arguments as an interrupted one resumes from its scratch file and
    writes the same bytes as an uninterrupted run. Any other file of that name is an error.

    Parameters
    ----------
    model : fitted RGALS or SGDRanker
        Its fit at the time of the call is used throughout.
    out : str or path
        Its ending decides the format: ``.parquet`` (needs pyarrow), ``.csv``, ``.tsv``, ``.jsonl``, ``.npz``.
    n : int, default 10
        Items for each user, at most all of them.
    users, candidates, exclude_items, cold
        As in `recommend`, for all users by default.
    X_new : sparse matrix of shape (B, N), Interactions or frame, optional
        New users instead, who are folded in by their interactions.
    new_ids : sequence of B distinct labels, optional
        Labels of the rows of ``X_new``; by default its ids, or row numbers if it has none.
    batch_size : int, default 8192
        Users in memory at once. Other sizes may change the last bits of scores.
    exclude : "train", None, sparse matrix with a row for each user asked for, or a tuple; default "train"
        As in `recommend`. For new users ``"train"`` stands for ``X_new``.
    format : {"parquet", "csv", "tsv", "jsonl", "npz"}, optional
        Instead of what the ending of the name says.
    resume : bool, default True
        False starts anew, and leaves no scratch file behind when it fails.
    verbose : int, default 0
        1 shows a progress bar.

    Returns
    -------
    Written
        Named tuple: path, users, served, rows, resumed, seconds.

    Raises
    ------
    ParameterError, InputError, InputTypeError, UnknownIdError, ShapeError
        As in `recommend`; an unknown format; labels that the format cannot tell apart; for npz, a user asked
        for twice; ``<out>.partial`` is being written by another process or is no scratch file.
    MissingDependencyError
        parquet without pyarrow.
    OSError
        The file cannot be written; an earlier file of that name stays.

    Warns
    -----
    UserWarning
        Some users have no recommendations: how many.

    Notes
    -----
    Tables have the columns ``user``, ``item`` (labels where the model has them, else row and column numbers),
    ``rank`` (from 1) and ``score``; users come in the order asked for, items best first. A mixture of
    integers and text is written as text to csv and parquet. An npz holds ``item`` (int32, shape (users, n),
    -1 for an empty place) and ``score``, and the labels of the rows and of the numbers in ``item``, which
    ``rgals.datasets.IdMap.from_arrays(arrays, "user_")`` and ``"item_"`` read.

    Beyond the model, memory holds one batch and, for parquet, a quarter million rows, however many users.

    Examples
    --------
    >>> import os, tempfile
    >>> from rgals import RGALS
    >>> from rgals.datasets import make_implicit
    >>> from rgals.scoring import recommend_all
    >>> model = RGALS(K=8, random_state=0).fit(make_implicit(200, 100, random_state=0))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = recommend_all(model, os.path.join(folder, "recs.csv"), n=5)
    >>> written.users, written.rows
    (200, 1000)
    """
    kind = _tables.choose_format(out, format)
    batch_size = check_int("batch_size", batch_size, 1)
    RANGES["bool"]("resume", resume)
    filters = {"exclude": exclude, "candidates": candidates, "exclude_items": exclude_items}
    task = Task(model, n, users, X_new, new_ids, filters, cold)
    _tables.check_writable(kind, task.labels, "user")
    _tables.check_writable(kind, task.items, "item")
    if kind == "npz" and users is not None:
        IdMap(task.names(0, len(task)), "users")  # refuses users that occur twice
    target, started = os.path.realpath(os.fspath(out)), time.perf_counter()
    if os.path.exists(out) and not os.path.isfile(out):
        raise InputError(f"{os.fspath(out)} exists and is not a file; give the name of a file")
    with naming(target), Scratch(target + ".partial", task, batch_size, resume) as scratch:
        resumed = scratch.done
        with Bar(total=len(task), initial=resumed, desc="users", unit="user", disable=not verbose) as bar:
            for start in range(resumed, len(task), batch_size):
                stop = min(start + batch_size, len(task))
                scratch.append(*task.score(start, stop))
                bar.update(stop - start)
        with atomic_file(target) as file:
            _tables.write(file, kind, scratch.table, task)
    served = scratch.served
    if served < len(task):
        why = "nothing is known of them, or the filters left nothing"
        warn(f"{len(task) - served} of {len(task)} users have no recommendations: {why}")
    seconds = time.perf_counter() - started
    LOG.info("lists of %d of %d users written to %s in %.3g s", served, len(task), os.fspath(out), seconds)
    return Written(os.fspath(out), len(task), served, scratch.rows, resumed, seconds)


class Task:
    """The users who get lists, their labels, the fit and the filters; see `recommend_all`."""

    def __init__(
        self, model: Any, n: int, users: Any, X_new: Any, new_ids: Any, filters: dict[str, Any], cold: str
    ) -> None:
        check_model(model, "; topk takes factors")
        if users is not None and X_new is not None:
            raise ParameterError("users", "...", "give rows of the training matrix or X_new, not both")
        if new_ids is not None and X_new is None:
            raise ParameterError("new_ids", "...", "these are names of the rows of X_new, which is missing")
        self.model = copy.copy(model)  # keeps this fit if the caller's model is fitted again meanwhile
        self.state = state = self.model._state()
        # Places that no item can fill would take memory and room in the files.
        self.n = min(check_int("n", n, 1), max(len(state.item_factors), 1))
        self.cold, self.users, self.new = cold, None, None
        self.dtype = np.result_type(state.user_factors.dtype, state.item_factors.dtype)
        self.labels, self.items = state.user_ids, state.items.labels
        if X_new is not None:
            found = given(X_new, name="X_new")
            self.new = self.model._laid_out(state, found, "X_new")
            self.labels = found.user_ids if new_ids is None else IdMap(new_ids, "new_ids").labels
            if self.labels is not None and len(self.labels) != self.new.n_rows:
                what = f"{len(self.labels)} new_ids name {self.new.n_rows} rows of X_new"
                raise InputError(f"{what}; give one each")
        elif users is not None:
            self.users = state.rows_of("user", users, "users")
        n_users = len(state.user_factors) if self.new is None else self.new.n_rows
        self.rows = np.arange(n_users) if self.users is None else self.users
        self.filters = {name: self._filter(name, value) for name, value in filters.items()}
        # Raises here, before anything is written, if something is wrong with the filters.
        self.score(0, min(1, len(self)))

    def __len__(self) -> int:
        return len(self.rows)

    def _filter(self, name: str, value: Any) -> Any:
        if isinstance(value, tuple | list) and name == "exclude":
            return tuple(self._filter(name, part) for part in value)
        if self.new is None:
            value = by_ids(name, value, self.state, self.users)
        elif isinstance(value, str) and name == "exclude" and value == "train":
            return "given"
        elif self.labels is not None:
            value = by_ids(name, value, self.state, None, self.labels)
        if is_matrix(value):
            n_items = len(self.state.item_factors)
            return as_csr(value, name=name, n_rows=len(self), n_cols=n_items, dislikes=name == "exclude")
        return value if value is None or name == "exclude" else self.state.rows_of("item", value, name)

    def names(self, start: int, stop: int) -> np.ndarray:
        """Labels of the users ``start`` to ``stop - 1``."""
        rows = self.rows[start:stop]
        return rows if self.labels is None else self.labels[rows]

    def score(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Lists of the users ``start`` to ``stop - 1``, without warnings of those who get nothing."""
        options = {name: _part(value, start, stop) for name, value in self.filters.items()}
        options["cold"] = self.cold
        with hear():  # there are no other warnings, as all arguments have been checked
            if self.new is not None:
                return self.model.recommend_new(self.new.slice_rows(start, stop), self.n, **options)
            return self.model.recommend(Positions(self.rows[start:stop]), self.n, **options)

    def key(self, batch_size: int) -> bytes:
        """Digest of everything that determines the lists."""
        digest = hashlib.blake2b(digest_size=32)
        digest.update(self.model.fingerprint().encode())
        digest.update(repr((__version__, self.n, batch_size, len(self), self.cold)).encode())
        update(digest, (self.rows, self.new, getattr(self.new, "times", None), *self.filters.values()))
        return digest.digest()


def _part(filter_: Any, start: int, stop: int) -> Any:
    """The part of a filter for the users ``start`` to ``stop - 1``, as `recommend` takes it."""
    if isinstance(filter_, tuple):
        return tuple(_part(value, start, stop) for value in filter_)
    if isinstance(filter_, np.ndarray):
        return Positions(filter_)
    return filter_.slice_rows(start, stop) if isinstance(filter_, CSR) else filter_


class Scratch(AbstractContextManager):
    """Lists of a task, batch after batch, in a file whose whole batches stay usable if it is cut off."""

    # A batch is valid if its checksum is. The checksum depends on the key, and thus on everything that
    # determines the lists: batches of two runs cannot mix, and a file with another key is started anew. The
    # file is locked while it is open, if the file system supports locks. A file that another process has
    # open, or that is no scratch file, is refused and left as it is.

    def __init__(self, path: str, task: Task, batch_size: int, resume: bool) -> None:
        self.path, self.task, self.batch_size, self.resume = path, task, batch_size, resume
        self.done = self.served = self.rows = 0  # users; in the table, users with a list and recommendations
        self._start = _MAGIC + task.key(batch_size)
        self._crc = zlib.crc32(self._start)
        self._file = _opened(path)
        fresh = False
        try:
            start, end = self._file.read(len(self._start)), len(self._start)
            if start and not start.startswith(_OURS):  # an empty file may be overwritten
                raise _not_ours(path)
            fresh = not resume or start != self._start
            if fresh:
                self._file.seek(0)
                self._file.write(self._start)
            else:
                for ids, _ in self.batches():
                    self.done, end = self.done + len(ids), self._file.tell()
            self._file.seek(end)
            self._file.truncate()
        except BaseException:
            self._leave(remove=fresh)
            raise

    def __exit__(self, kind: object, *error: object) -> None:
        self._leave(remove=kind is None or not self.resume)

    def _leave(self, remove: bool) -> None:
        if remove:
            close_and_remove(self._file, self.path)
        else:
            self._file.close()

    def append(self, ids: np.ndarray, scores: np.ndarray) -> None:
        """Append the next batch: ids and scores, both of shape (users, n)."""
        body = ids.astype("<i4", copy=False).tobytes() + scores.astype(self.task.dtype, copy=False).tobytes()
        self._file.write(self._head(len(ids), body) + body)
        self._file.flush()

    def _head(self, n_users: int, body: bytes) -> bytes:
        return _HEAD.pack(n_users, zlib.crc32(body, self._crc))

    def batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Ids and scores of every whole batch, from the first on."""
        self._file.seek(len(self._start))
        n, dtype = self.task.n, self.task.dtype
        for start in range(0, len(self.task), self.batch_size):
            size = min(self.batch_size, len(self.task) - start)
            head = self._file.read(_HEAD.size)
            body = self._file.read(size * n * (4 + dtype.itemsize))
            if head != self._head(size, body):
                return
            ids = np.frombuffer(body, "<i4", size * n).reshape(size, n)
            yield ids, np.frombuffer(body, dtype, size * n, ids.nbytes).reshape(size, n)

    def table(self) -> Iterator[_tables.Batch]:
        """The batches with the labels of their users; `InputError` if some are missing."""
        self.done = self.served = self.rows = 0
        for ids, scores in self.batches():
            yield self.task.names(self.done, self.done + len(ids)), ids, scores
            self.done += len(ids)
            self.served += int((ids >= 0).any(axis=1).sum())
            self.rows += int((ids >= 0).sum())
        if self.done != len(self.task):
            raise InputError(f"{self.path} was changed while it was in use; run again")


def _opened(path: str) -> BinaryIO:
    """The scratch file, created if absent, and locked if the file system supports locks."""
    os.stat(os.path.dirname(path))  # raises with the name of a missing folder
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise _not_ours(path)
    descriptor = open_locked(path)
    if descriptor is None:
        advice = "wait for it or choose another output"
        raise InputError(f"{path} is being written by another process; {advice}")
    return os.fdopen(descriptor, "r+b")


def _not_ours(path: str) -> InputError:
    return InputError(
        f"{path} is the name of the scratch file, but what is there is none; it stays as it is. "
        "Move it away or choose another output"
    )
