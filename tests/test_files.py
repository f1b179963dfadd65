"""A file that rgals writes is the old one or the new one, never a piece of it, and no stray file is left."""

from __future__ import annotations

import errno
import os
import stat

import pytest

from rgals._errors import InputError
from rgals._files import atomic_file


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


@pytest.mark.parametrize("function", ["fsync", "replace", "fchmod"])
def test_a_failing_system_call_leaves_the_old_file(target, monkeypatch, function):
    monkeypatch.setattr(os, function, fail)
    with pytest.raises(OSError, match="No space left"):
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


def test_the_folder_is_made_durable(target, monkeypatch):
    synced = []
    original = os.fsync

    def fsync(descriptor):
        synced.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), target.read_bytes()))
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write(target)
    assert synced == [(False, b"old"), (True, b"new")]


def test_permissions_and_links_are_kept(target):
    target.chmod(0o640)
    link = target.parent / "link"
    link.symlink_to(target.name)
    write(link)
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_new_files_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write(tmp_path / "out")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o640


def test_what_is_no_file_is_refused(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):
        with pytest.raises(InputError, match="is not a file"):
            write(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "absent" / "out")
    assert sorted(os.listdir(tmp_path)) == ["folder", "pipe"]
