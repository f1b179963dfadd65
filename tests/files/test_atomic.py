"""A file that rgals writes is the old one or the new one, never a piece of it, and no stray file is left."""

from __future__ import annotations

import errno
import os
import stat
import time

import pytest
from instruments.harness import POSIX

from rgals.files import atomic as files
from rgals.files.atomic import atomic_file
from rgals.runtime.errors import InputError


def write(path, content=b"new"):
    with atomic_file(path) as file:
        file.write(content)


def fail(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def target(tmp_path):
    path = tmp_path / "out.bin"
    path.write_bytes(b"old")
    return path


def test_the_name_is_used_as_it_is(tmp_path):
    write(tmp_path / "model")
    assert os.listdir(tmp_path) == ["model"]
    assert (tmp_path / "model").read_bytes() == b"new"


def test_nothing_appears_before_the_end(target):
    with atomic_file(target) as file:
        file.write(b"new" * 100_000)
        file.flush()
        assert target.read_bytes() == b"old"
    assert target.read_bytes() == b"new" * 100_000


@POSIX
@pytest.mark.parametrize("function", ["fsync", "replace", "fchmod"])
def test_a_failing_system_call_leaves_the_old_file(target, monkeypatch, function):
    monkeypatch.setattr(os, function, fail)
    with pytest.raises(OSError, match="No space left.*out.bin"):  # which file it was
        write(target)
    monkeypatch.undo()
    assert target.read_bytes() == b"old"
    assert os.listdir(target.parent) == [target.name]


@pytest.mark.parametrize("error", [OSError, ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_of_the_writer_leaves_the_old_file(target, error):
    with pytest.raises(error), atomic_file(target) as file:
        file.write(b"half")
        raise error
    assert target.read_bytes() == b"old"
    assert os.listdir(target.parent) == [target.name]


def test_an_error_leaves_no_new_file(tmp_path):
    with pytest.raises(ValueError), atomic_file(tmp_path / "out"):
        raise ValueError
    assert os.listdir(tmp_path) == []


def test_a_full_disk_leaves_the_old_file(target):
    """A real write error, from a limit on the size of files."""
    resource = pytest.importorskip("resource")
    signal = pytest.importorskip("signal")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        with pytest.raises(OSError) as caught:
            write(target, bytes(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert caught.value.errno == errno.EFBIG
    assert target.read_bytes() == b"old"
    assert os.listdir(target.parent) == [target.name]


@POSIX
def test_the_folder_is_made_durable(target, monkeypatch):
    synced = []
    original = os.fsync

    def fsync(descriptor):
        synced.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), target.read_bytes()))
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write(target)
    assert synced == [(False, b"old"), (True, b"new")]


@POSIX
@pytest.mark.parametrize("name", ["EINVAL", "ENOTSUP", "ENOSYS", "EIO"])
def test_a_folder_that_cannot_be_flushed_is_no_error_and_one_that_fails_is(target, monkeypatch, name):
    original, number = os.fsync, getattr(errno, name)

    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, "no flush of folders here")
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    if name == "EIO":
        with pytest.raises(OSError, match="no flush"):
            write(target)
    else:
        write(target)
    assert target.read_bytes() == b"new" and os.listdir(target.parent) == [target.name]


@POSIX
def test_a_folder_that_may_not_be_opened_is_no_error(target, monkeypatch):
    original = os.open

    def opened(path, *how):
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return original(path, *how)

    monkeypatch.setattr(os, "open", opened)
    write(target)
    assert target.read_bytes() == b"new"


@POSIX
def test_a_lock_of_a_file_that_is_gone_locks_nothing_and_another_is_made(tmp_path, monkeypatch):
    """The holder before removes the file while another process, which has opened it, waits for its lock."""
    path, original, tries = tmp_path / "lock", files.lock, []

    def lock(descriptor, **how):
        tries.append(descriptor)
        if len(tries) % 2:
            path.unlink()
        return original(descriptor, **how)

    monkeypatch.setattr(files, "lock", lock)
    with files.locked(path):
        assert len(tries) == 2 and path.exists()
    assert not path.exists()
    descriptor = files.open_locked(str(path))
    assert len(tries) == 4 and os.path.samestat(os.fstat(descriptor), os.stat(path))
    os.close(descriptor)


@POSIX
def test_permissions_and_links_are_kept(target):
    target.chmod(0o640)
    link = target.parent / "link"
    link.symlink_to(target.name)
    write(link)
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


@POSIX
def test_new_files_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write(tmp_path / "out")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o640


@POSIX
def test_what_is_no_file_is_refused(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):
        with pytest.raises(InputError, match="is not a file"):
            write(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "absent" / "out")
    assert sorted(os.listdir(tmp_path)) == ["folder", "pipe"]


# Errors of flock on file systems that have no locks: NFS, FUSE, SMB and others each answer in their own way.
NO_LOCKS = ["ENOLCK", "ENOTSUP", "ENOSYS", "EINVAL", "EIO", "EPERM", "EBADF", "ENOTTY", "ESTALE", "EREMOTEIO"]


@pytest.mark.parametrize("name", [name for name in NO_LOCKS if hasattr(errno, name)])
def test_file_systems_without_locks_do(tmp_path, monkeypatch, name):
    fcntl = pytest.importorskip("fcntl")

    def flock(descriptor, operation):
        raise OSError(getattr(errno, name), "no locks here")

    monkeypatch.setattr(fcntl, "flock", flock)
    leftover = tmp_path / ".rgals-0123456789abcdef.tmp"  # of a killed writer, or of one at work
    leftover.write_bytes(b"half")
    write(tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"new"
    assert leftover.read_bytes() == b"half"
    with open(leftover, "r+b") as file:
        assert files.lock(file.fileno()) is None
        assert files.lock(file.fileno(), wait=True) is None


class Msvcrt:
    """Windows's locks of bytes, at the place in the file where the descriptor stands."""

    LK_NBLCK = 2

    def __init__(self):
        self.held = {}

    def locking(self, descriptor, mode, n_bytes):
        assert mode == self.LK_NBLCK
        status = os.fstat(descriptor)
        place = status.st_ino, os.lseek(descriptor, 0, os.SEEK_CUR), n_bytes
        assert place[1] >= status.st_size, "a locked byte cannot be read"
        holder = self.held.get(place, descriptor)
        try:
            free = holder == descriptor or os.fstat(holder).st_ino != status.st_ino
        except OSError:  # it was closed
            free = True
        if not free:
            raise PermissionError(errno.EACCES, "Permission denied")
        self.held[place] = descriptor


def test_locks_where_there_is_no_fcntl(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "fcntl", None)
    monkeypatch.setattr(files, "msvcrt", Msvcrt())
    (tmp_path / "file").write_bytes(b"0123456789")
    with open(tmp_path / "file", "r+b") as one, open(tmp_path / "file", "r+b") as other:
        one.seek(4)
        assert files.lock(one.fileno(), wait=True) is True
        assert files.lock(other.fileno()) is False
        assert one.read() == b"456789"


@pytest.fixture
def windows(monkeypatch):
    """Windows's rules: what is open is neither renamed nor removed, and no folder is opened."""
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("nothing says here which files are open")
    held = []  # paths that another process has open

    def checked(function):
        def call(*paths, **kwargs):
            links = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
            taken = [os.readlink(link) for link in links if os.path.lexists(link)] + held
            for path in paths:
                if os.path.realpath(path) in taken:
                    raise PermissionError(errno.EACCES, "used by another process", path)
            return function(*paths, **kwargs)

        return call

    for name in ("replace", "unlink"):
        monkeypatch.setattr(os, name, checked(getattr(os, name)))
    monkeypatch.setattr(files, "_WINDOWS", True)
    monkeypatch.setattr(files, "fcntl", None)
    monkeypatch.setattr(files, "msvcrt", Msvcrt())
    return held


def test_nothing_open_is_renamed_or_removed_on_windows(tmp_path, windows):
    target = tmp_path / "out"
    for content in (b"one", b"two"):
        write(target, content)
        assert target.read_bytes() == content
    with pytest.raises(ValueError), atomic_file(target):
        raise ValueError
    with open(tmp_path / "scratch", "wb") as file:
        files.close_and_remove(file, str(tmp_path / "scratch"))
        assert file.closed
    assert os.listdir(tmp_path) == ["out"]


def test_what_a_killed_writer_left_is_removed_on_windows_too(tmp_path, windows):
    """After an hour: a file that was closed a moment ago is about to get its name."""
    for name, age in (("killed", 7200), ("closed", 0)):
        path = tmp_path / f".rgals-{name}.tmp"
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age,) * 2)
    write(tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == [".rgals-closed.tmp", "out"]


def test_a_reader_on_windows_is_waited_for(target, windows, monkeypatch):
    windows.append(str(target))
    pauses = []

    def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            windows.clear()

    monkeypatch.setattr(files.time, "sleep", sleep)
    write(target)
    assert target.read_bytes() == b"new" and len(pauses) == 3


def test_a_reader_on_windows_is_not_waited_for_forever(target, windows, monkeypatch):
    windows.append(str(target))
    monkeypatch.setattr(files.time, "sleep", lambda seconds: None)
    with pytest.raises(PermissionError):
        write(target)
    assert target.read_bytes() == b"old"
    assert os.listdir(target.parent) == [target.name]


def test_a_file_that_may_not_be_written_leaves_no_stray_file_on_windows(target, windows, monkeypatch):
    """What is read-only is neither replaced nor removed there; since Python 3.13 there is a fchmod, too."""
    replace, unlink = os.replace, os.unlink

    def writable(path):
        if os.path.exists(path) and not os.stat(path).st_mode & stat.S_IWUSR:
            raise PermissionError(errno.EACCES, "read-only", path)

    monkeypatch.setattr(os, "replace", lambda a, b: (writable(a), writable(b), replace(a, b)))
    monkeypatch.setattr(os, "unlink", lambda path: (writable(path), unlink(path)))
    monkeypatch.setattr(files.time, "sleep", lambda seconds: None)
    target.chmod(0o444)
    with pytest.raises(PermissionError):
        write(target)
    assert os.listdir(target.parent) == [target.name]


def test_macos_brings_files_to_the_disk_itself(target, monkeypatch):
    """Its fsync ends at the disk's own cache; some file systems know nothing else."""
    fcntl = pytest.importorskip("fcntl")
    asked, synced = [], []

    def answer(descriptor, command):
        asked.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), command))
        if asked[-1][0]:
            raise OSError(errno.ENOTSUP, "not here")

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", answer)
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_mode))
    write(target)
    assert asked == [(False, 51), (True, 51)]
    assert [stat.S_ISDIR(mode) for mode in synced] == [True]
