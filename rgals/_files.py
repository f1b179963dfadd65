"""Atomic writing: a file appears under its name when it is complete, or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from rgals._errors import InputError


@contextmanager
def atomic_file(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Open a file for writing that appears under its name only when it is complete.

    The bytes go to a temporary file in the same folder; at the end they are flushed to the disk and the file
    is renamed. If anything fails before that, the temporary file is removed and what stood under the name
    stays. Permissions of an existing file are kept, a symbolic link keeps pointing to the file.

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
    temporary = os.path.join(folder, f".rgals-{secrets.token_hex(8)}.tmp")
    # os.open and not tempfile: the permissions follow the umask, as for any other file of the user.
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield file
            file.flush()
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        _remove(temporary)
        raise
    _sync_folder(folder)


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
