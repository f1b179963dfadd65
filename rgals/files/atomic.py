"""Atomic writing: a file appears under its name when it is complete, or not at all."""

import errno
import importlib
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from rgals.runtime.errors import InputError, InputTypeError


def _module(name: str) -> Any:
    """A module that only some systems have, or None."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


fcntl, msvcrt = _module("fcntl"), _module("msvcrt")  # POSIX's, Windows's
_PREFIX, _SUFFIX = ".rgals-", ".tmp"
_WINDOWS = os.name == "nt"  # where an open file can be neither renamed nor removed
_LOCKED_BYTE = 1 << 40  # Windows locks bytes, and nobody else can read those: one far behind the end
_PAUSE = 0.1  # seconds between attempts at what cannot be waited for
_ATTEMPTS = 20  # at a name that somebody has open
_HOUR = 3600.0  # seconds
OPEN = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


@contextmanager
def atomic_file(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Open a file for writing that appears under its name, exactly ``path``, only when it is complete.

    The bytes go to a temporary file in the same folder; at the end they are flushed to the disk and the file
    is renamed. If anything fails before that, the temporary file is removed and what stood under the name
    stays. A process that is killed leaves its temporary file behind: the next writer in the folder removes
    it, on Windows after an hour. Permissions of an existing file are kept, a symbolic link keeps pointing to
    the file. A name that is no file's is an `InputError`.
    """
    if not isinstance(path, str | os.PathLike):
        raise InputTypeError(f"give the path of a file, as a text or a pathlib.Path, not {path!r}")
    target, mode = os.path.realpath(os.fspath(path)), None
    with suppress(FileNotFoundError):
        mode = os.stat(target).st_mode
        if not stat.S_ISREG(mode):
            raise InputError(f"{target} exists and is not a file; give the name of a file")
    folder = os.path.dirname(target)
    _remove_leftovers(folder)
    temporary, descriptor = _create(folder)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield file
            file.flush()
            if mode is not None and not _WINDOWS:  # there it would say read-only, and nothing else
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            _sync(file.fileno())
            if not _WINDOWS:
                os.replace(temporary, target)  # still open, and so locked: nobody takes it for a leftover
        if _WINDOWS:
            _replace_closed(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_folder(folder)


def _remove_leftovers(folder: str) -> None:
    """Remove the temporary files of writers that were killed."""
    # A writer holds a lock on its file, which the system releases when the process ends, however it ends.
    # Files that cannot be locked are in use, or belong to a file system without locks, and stay.
    try:
        names = [name for name in os.listdir(folder) if name.startswith(_PREFIX) and name.endswith(_SUFFIX)]
    except PermissionError:  # a folder that may be written but not listed
        return
    for name in names:
        path = os.path.join(folder, name)
        try:
            descriptor = os.open(path, OPEN | getattr(os, "O_NOFOLLOW", 0))
        except OSError:  # gone in the meantime, or somebody else's
            continue
        with os.fdopen(descriptor, "r+b") as file, suppress(PermissionError):
            # Another user's file in a shared folder is that user's business. On Windows a writer closes its
            # file, and so unlocks it, before it renames it.
            young = _WINDOWS and time.time() - os.fstat(descriptor).st_mtime < _HOUR
            if lock(descriptor) and not young:
                close_and_remove(file, path)


def _create(folder: str) -> tuple[str, int]:
    """Name and descriptor of a new, locked file."""
    while True:
        path = os.path.join(folder, f"{_PREFIX}{secrets.token_hex(8)}{_SUFFIX}")
        # os.open and not tempfile: the permissions follow the umask, as for any other file of the user.
        descriptor = os.open(path, OPEN | os.O_CREAT | os.O_EXCL, 0o666)
        # Before the lock, another writer may take the file for a leftover: what it holds or has removed is
        # given up.
        if lock(descriptor) is not False and os.fstat(descriptor).st_nlink:
            return path, descriptor
        os.close(descriptor)
        Path(path).unlink(missing_ok=True)


def lock(descriptor: int, *, wait: bool = False) -> bool | None:
    """Lock a file: True where this descriptor now holds it, False where another does, None where none can."""
    # None is what file systems without locks give (some network and FUSE mounts), each by an error of its
    # own, and systems without a way to lock. `wait`: where the system can, which Windows cannot.
    if fcntl is None and msvcrt is None:
        return None
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            return True
        at = os.lseek(descriptor, 0, os.SEEK_CUR)
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        finally:
            os.lseek(descriptor, at, os.SEEK_SET)
        return True
    except OSError as error:
        return False if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES) else None


@contextmanager
def locked(path: Path, patience: float | None = None) -> Iterator[None]:
    """Wait until nobody else is inside with this path: a file that is locked meanwhile and then gone.

    After ``patience`` seconds go in beside whoever is: it may have been stopped, or hang.
    """
    if not path.parent.is_dir():  # else the error would name a file that the caller does not know
        raise FileNotFoundError(errno.ENOENT, "No such folder; make it first (mkdir -p)", str(path.parent))
    until = None if patience is None else time.monotonic() + patience
    while True:
        with open(path, "ab") as held:
            while lock(held.fileno(), wait=until is None) is False:
                if until is not None and time.monotonic() > until:
                    yield
                    return
                time.sleep(_PAUSE)
            if os.fstat(held.fileno()).st_nlink:  # else its last holder removed it: others lock a new one
                try:
                    yield
                finally:
                    with suppress(OSError):
                        close_and_remove(held, str(path))
                return


def _replace_closed(temporary: str, target: str) -> None:
    """Rename a file on Windows; readers of the old one, and virus scanners, are given a moment."""
    for _ in range(_ATTEMPTS):
        with suppress(PermissionError):
            return os.replace(temporary, target)
        time.sleep(_PAUSE)
    os.replace(temporary, target)


def close_and_remove(file: BinaryIO, path: str) -> None:
    """Remove a file that was written to; it stays locked until it is gone, where the system allows that."""
    if not _WINDOWS:
        Path(path).unlink(missing_ok=True)
    with suppress(OSError):  # what is not written yet, on a full disk, is not wanted any more
        file.close()
    if _WINDOWS:
        Path(path).unlink(missing_ok=True)


def _sync(descriptor: int) -> None:
    """Bring what was written to the disk: on macOS fsync ends at the disk's own cache."""
    if hasattr(fcntl, "F_FULLFSYNC"):
        with suppress(OSError):  # a file system that has only fsync; an error that matters comes there again
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)


def _sync_folder(folder: str) -> None:
    """Make the new name durable; the file itself is complete, so a system that cannot do this may go on."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # a folder that may be written but not listed
        return
    try:
        _sync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise
    finally:
        os.close(descriptor)
