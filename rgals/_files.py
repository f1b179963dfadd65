"""Atomic writing: a file appears under its name when it is complete, or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from rgals._errors import InputError

_PREFIX, _SUFFIX = ".rgals-", ".tmp"


@contextmanager
def atomic_file(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Open a file for writing that appears under its name only when it is complete.

    The bytes go to a temporary file in the same folder; at the end they are flushed to the disk and the file
    is renamed. If anything fails before that, the temporary file is removed and what stood under the name
    stays. A process that is killed leaves its temporary file behind: the next writer in the folder removes
    it. Permissions of an existing file are kept, a symbolic link keeps pointing to the file.

    Parameters
    ----------
    path : str or path
        Used exactly as it is: no suffix is added.

    Yields
    ------
    binary file

    Raises
    ------
    OSError
        The folder does not exist or cannot be written, the disk is full, and so on.
    InputError
        The name belongs to something that is not a file.

    Examples
    --------
    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_file(os.path.join(folder, "out.csv")) as file:
    ...         n = file.write(b"1,2")
    ...     os.listdir(folder)
    ['out.csv']
    """
    target = os.path.realpath(os.fspath(path))
    mode = _existing_mode(target)
    folder = os.path.dirname(target)
    remove_leftovers(folder)
    temporary, descriptor = _create(folder)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield file
            file.flush()
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
            os.replace(temporary, target)  # still open, and so locked: nobody takes it for a leftover
    except BaseException:
        _remove(temporary)
        raise
    _sync_folder(folder)


def remove_leftovers(folder: str) -> list[str]:
    """Remove the temporary files of writers that were killed.

    A writer holds a lock on its file, which the system releases when the process ends, however it ends. Files
    that cannot be locked are in use, or belong to a file system without locks, and stay.

    Parameters
    ----------
    folder : str

    Returns
    -------
    list of str
        What was removed.
    """
    removed: list[str] = []
    try:
        names = [name for name in os.listdir(folder) if name.startswith(_PREFIX) and name.endswith(_SUFFIX)]
    except PermissionError:  # a folder that may be written but not listed
        return removed
    for name in names:
        path = os.path.join(folder, name)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:  # gone in the meantime, or somebody else's
            continue
        try:
            if lock(descriptor):
                _remove(path)
                removed.append(path)
        except PermissionError:  # in a shared folder such as /tmp: its owner's business
            continue
        finally:
            os.close(descriptor)
    return removed


def _create(folder: str) -> tuple[str, int]:
    """Name and descriptor of a new, locked file."""
    while True:
        path = os.path.join(folder, f"{_PREFIX}{secrets.token_hex(8)}{_SUFFIX}")
        # os.open and not tempfile: the permissions follow the umask, as for any other file of the user.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        # Before the lock, another writer may take the file for a leftover: what it holds or has removed is
        # given up.
        if lock(descriptor) is not False and os.fstat(descriptor).st_nlink:
            return path, descriptor
        os.close(descriptor)
        _remove(path)


def lock(descriptor: int, *, wait: bool = False) -> bool | None:
    """Lock a file: True where this descriptor now holds it, False where another does, None where none can."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno == errno.EWOULDBLOCK:
            return False
        if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL):
            return None
        raise
    return True


def _existing_mode(target: str) -> int | None:
    try:
        status = os.stat(target)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{target} exists and is not a file; give the name of a file")
    return stat.S_IMODE(status.st_mode)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def _sync_folder(folder: str) -> None:
    """Make the new name durable; the file itself is complete, so a system that cannot do this may go on."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # a folder that may be written but not listed
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
