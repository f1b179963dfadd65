"""Atomic writing: a file appears under its name when it is complete, or not at all; locks of files."""

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

_WINDOWS = os.name == "nt"  # where an open file can be neither renamed nor removed
#: The module that locks files on this system; the other one does not exist.
fcntl: Any = None if _WINDOWS else importlib.import_module("fcntl")
msvcrt: Any = importlib.import_module("msvcrt") if _WINDOWS else None
_PREFIX, _SUFFIX = ".rgals-", ".tmp"
_LOCKED_BYTE = 1 << 40  # Windows locks byte ranges against reading, too: this byte is far beyond the end
_PAUSE = 0.1  # seconds between attempts to lock or to rename
_RENAME_ATTEMPTS = 20  # on Windows, while another process has the file open
_LEFTOVER_SECONDS = 3600.0  # on Windows, age from which an unlocked temporary file counts as left over
OPEN = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


@contextmanager
def atomic_file(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Open a file for writing that appears under its name, exactly ``path``, only when it is complete."""
    # The bytes go to a temporary file in the same folder; at the end they are flushed to the disk and the
    # file is renamed. If anything fails before that, the temporary file is removed and what stood under the
    # name stays. A process that is killed leaves its temporary file behind: the next writer in the folder
    # removes it, on Windows after an hour. Permissions of an existing file are kept, a symbolic link keeps
    # pointing to the file. A path to anything but a file, such as a folder, is an `InputError`.
    if not isinstance(path, str | os.PathLike):
        raise InputTypeError(f"give the path of a file, as a text or a pathlib.Path, not {path!r}")
    target, mode = os.path.realpath(os.fspath(path)), None
    with suppress(FileNotFoundError):
        mode = os.stat(target).st_mode
        if not stat.S_ISREG(mode):
            raise InputError(f"{target} exists and is not a file; give the name of a file")
    folder = os.path.dirname(target)
    _remove_leftovers(folder)
    descriptor = None
    while descriptor is None:  # until it is locked, another writer may take the file for a leftover
        temporary = os.path.join(folder, f"{_PREFIX}{secrets.token_hex(8)}{_SUFFIX}")
        if (descriptor := open_locked(temporary, os.O_EXCL)) is None:
            Path(temporary).unlink(missing_ok=True)
    try:
        with naming(target), os.fdopen(descriptor, "w+b") as file:
            yield file
            file.flush()
            if mode is not None and not _WINDOWS:  # Windows has no more than a read-only flag
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            _sync(file.fileno())
            if not _WINDOWS:
                os.replace(temporary, target)  # while it is open and locked, no other writer removes it
        if _WINDOWS:
            _replace_closed(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_folder(folder)


@contextmanager
def naming(path: str | os.PathLike) -> Iterator[None]:
    """Name a file in errors of the system that name none, as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise


def _remove_leftovers(folder: str) -> None:
    """Remove the temporary files of writers that were killed."""
    # A writer holds a lock on its file, which the system releases at the end of the process, also when it is
    # killed. Files that cannot be locked are in use or on a file system without locks: they stay.
    try:
        names = [name for name in os.listdir(folder) if name.startswith(_PREFIX) and name.endswith(_SUFFIX)]
    except PermissionError:  # the folder may be written but not listed
        return
    for name in names:
        path = os.path.join(folder, name)
        try:
            descriptor = os.open(path, OPEN | getattr(os, "O_NOFOLLOW", 0))
        except OSError:  # removed in the meantime, or another user's
            continue
        with os.fdopen(descriptor, "r+b") as file, suppress(PermissionError):
            # Removing another user's file in a shared folder may be denied. On Windows a writer has to close,
            # and so to unlock, its file before it renames it.
            young = _WINDOWS and time.time() - os.fstat(descriptor).st_mtime < _LEFTOVER_SECONDS
            if lock(descriptor) and not young:
                close_and_remove(file, path)


def open_locked(path: str, flags: int = 0, *, wait: bool = False) -> int | None:
    """The descriptor of a file, created if absent and locked; None if another process has it locked."""
    # os.open instead of tempfile, so that permissions follow the umask, as those of other new files.
    while True:
        descriptor = os.open(path, OPEN | os.O_CREAT | flags, 0o666)
        if (free := lock(descriptor, wait=wait)) is not False and os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)
        if free is False:
            return None
        # Otherwise another process has removed it between the two lines: create a new one.


def lock(descriptor: int, *, wait: bool = False) -> bool | None:
    """Lock a file: True if this descriptor holds the lock now, False if another does, None if none can."""
    # None: a file system without locks, such as some network and FUSE mounts, which raise various errors.
    # `wait` blocks until the lock is free; Windows cannot wait and returns at once.
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
    """A lock between processes: one at a time is inside with this path, a file that is removed afterwards."""
    # After ``patience`` seconds of waiting enter all the same: the holder may have been stopped, or hang.
    if not path.parent.is_dir():  # open would name the lock file, which the caller does not know
        raise FileNotFoundError(errno.ENOENT, "No such folder; make it first (mkdir -p)", str(path.parent))
    until = None if patience is None else time.monotonic() + patience
    while (descriptor := open_locked(str(path), wait=until is None)) is None:
        if until is not None and time.monotonic() > until:
            yield
            return
        time.sleep(_PAUSE)
    with os.fdopen(descriptor, "r+b") as held:
        try:
            yield
        finally:
            with suppress(OSError):
                close_and_remove(held, str(path))


def _replace_closed(temporary: str, target: str) -> None:
    """Rename a closed file on Windows; retried while readers or virus scanners have the target open."""
    for _ in range(_RENAME_ATTEMPTS):
        with suppress(PermissionError):
            return os.replace(temporary, target)
        time.sleep(_PAUSE)
    os.replace(temporary, target)


def close_and_remove(file: BinaryIO, path: str) -> None:
    """Remove an open file, before its lock is released if the system can (all but Windows)."""
    if not _WINDOWS:
        Path(path).unlink(missing_ok=True)
    with suppress(OSError):  # on a full disk, closing fails to flush what is dropped anyway
        file.close()
    if _WINDOWS:
        Path(path).unlink(missing_ok=True)


def _sync(descriptor: int) -> None:
    """Flush a file to the disk; on macOS, fsync alone stops at the disk's own cache."""
    if hasattr(fcntl, "F_FULLFSYNC"):
        with suppress(OSError):  # unsupported by the file system: fsync then reports real errors
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)


def _sync_folder(folder: str) -> None:
    """Flush a folder, so that a rename survives a crash; systems that cannot do this are ignored."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # the folder may be written but not opened
        return
    try:
        _sync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise
    finally:
        os.close(descriptor)
