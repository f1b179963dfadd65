"""A scratch file of finished batches: what a killed run leaves behind, and the next one goes on from."""

import os
import stat
import struct
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from typing import Any

import numpy as np

from rgals.files.atomic import OPEN, close_and_remove, lock
from rgals.runtime.errors import InputError

_OURS = b"rgals-recommendations-"  # every version's files start like this, and nobody else's
_MAGIC = _OURS + b"2\n"
_HEAD = struct.Struct("<II")  # of a batch: its number of users, the CRC-32 of the key, its ids and its scores


class Scratch(AbstractContextManager):
    """Lists of users, batch after batch, in a file that can be cut off anywhere and is still of use."""

    # A batch counts when its checksum does, which depends on the key, that is, on all that the lists depend
    # on: two runs cannot mix, and a file with another key is started anew. The file is locked while it is
    # open, where the file system can do that; one that another process has open, or that is no scratch file,
    # is refused and left as it is.

    def __init__(
        self, path: str, key: bytes, n_users: int, batch_size: int, n: int, dtype: Any, resume: bool = True
    ) -> None:
        self.path = path
        self.n_users, self.batch_size, self.n, self.dtype = n_users, batch_size, n, np.dtype(dtype)
        self.done = 0  # users
        self._start = _MAGIC + key
        self._crc = zlib.crc32(self._start)
        self._file = os.fdopen(_open_locked(path), "r+b")
        self._fresh = False
        try:
            self._find_end(resume)
        except BaseException:
            if self._fresh:
                self.remove()
            else:
                self._file.close()
            raise

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def _find_end(self, resume: bool) -> None:
        start, end = self._file.read(len(self._start)), len(self._start)
        if start and not start.startswith(_OURS):  # an empty file holds nothing to lose
            raise _not_ours(self.path)
        self._fresh = not resume or start != self._start
        if self._fresh:
            self._file.seek(0)
            self._file.truncate()
            self._file.write(self._start)
        else:
            for ids, _ in self.batches():
                self.done += len(ids)
                end = self._file.tell()
        self._file.seek(end)
        self._file.truncate()

    def append(self, ids: np.ndarray, scores: np.ndarray) -> None:
        """Add the next batch: ids of int32 and scores, both of shape (users, n)."""
        body = ids.astype("<i4", copy=False).tobytes() + scores.astype(self.dtype, copy=False).tobytes()
        self._file.write(self._head(len(ids), body))
        self._file.write(body)
        self._file.flush()
        self.done += len(ids)

    def _head(self, n_users: int, body: bytes) -> bytes:
        return _HEAD.pack(n_users, zlib.crc32(body, self._crc))

    def batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Ids and scores of every whole batch, from the first on."""
        self._file.seek(len(self._start))
        for start in range(0, self.n_users, self.batch_size):
            size = min(self.batch_size, self.n_users - start)
            head = self._file.read(_HEAD.size)
            body = self._file.read(size * self.n * (4 + self.dtype.itemsize))
            if head != self._head(size, body):
                return
            split = size * self.n * 4
            ids = np.frombuffer(body[:split], "<i4").reshape(size, self.n)
            yield ids, np.frombuffer(body[split:], self.dtype).reshape(size, self.n)

    def remove(self) -> None:
        """Close and delete the file."""
        close_and_remove(self._file, self.path)


def _not_ours(path: str) -> InputError:
    return InputError(
        f"{path} is where a killed run would leave its lists, but it is something else; it stays as it is. "
        "Move it away or choose another output"
    )


def _open_locked(path: str) -> int:
    """Descriptor of the file, made if it is not there, and locked where the file system can do that."""
    while True:
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(os.lstat(path).st_mode):
                raise _not_ours(path)
        descriptor = os.open(path, OPEN | os.O_CREAT, 0o666)
        free = lock(descriptor)
        if free is not False and os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)  # the run that had it has it still, or has just removed it
        if free is False:
            advice = "wait for it or choose another output"
            raise InputError(f"{path} is being written by another process; {advice}")
