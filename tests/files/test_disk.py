"""A full disk, a read-only folder, a failing system call: the old file stays, nothing is left lying about."""

from __future__ import annotations

import errno
import os
import signal

import numpy as np
import pytest
from helpers import interactions

from rgals import RGALS, Checkpoint
from rgals.datasets import read_interactions
from rgals.files import atomic as files

resource = pytest.importorskip("resource", reason="limits of the size of files are POSIX's")

OLD = b"what was there before"


def model():
    return RGALS(K=8, n_iter=1, random_state=0).fit(interactions(300, 100, seed=1))


def write_model(path):
    model().save(path)


def write_interactions(path):
    data = read_interactions((np.arange(3_000) % 997, np.arange(3_000) % 89))
    data.save(path)


def write_checkpoint(path):
    RGALS(K=8, n_iter=1, random_state=0).fit(
        interactions(300, 100, seed=1), checkpoint=Checkpoint(os.path.dirname(path))
    )


WRITERS = {"model": write_model, "interactions": write_interactions, "checkpoint": write_checkpoint}
FAULTS = ("file too large", "read-only folder", "fsync", "replace", "fchmod", "write")


def attempt(kind: str, fault: str, path: str) -> str:
    """In a process of its own: try to write with a fault of the system, then say what is there."""
    real = {name: getattr(os, name) for name in ("fsync", "replace", "fchmod", "fdopen")}
    if kind == "checkpoint":
        os.remove(path)  # an old checkpoint would be read first
    if fault == "file too large":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, 2_000))
    elif fault == "read-only folder":
        os.chmod(os.path.dirname(path), 0o555)
        if os.geteuid() == 0:  # root may write everywhere
            os.chmod(os.path.dirname(os.path.dirname(path)), 0o755)
            os.setgid(65534)
            os.setuid(65534)
    elif fault == "write":

        class Full:
            def __init__(self, file):
                self.file = file

            def __getattr__(self, name):
                return getattr(self.file, name)

            def __enter__(self):
                self.file.__enter__()
                return self

            def __exit__(self, *exc):
                return self.file.__exit__(*exc)

            def write(self, data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        opened = os.fdopen
        os.fdopen = lambda *args: Full(opened(*args))
    else:

        def fail(*args):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        setattr(os, fault, fail)
    try:
        WRITERS[kind](path)
    except OSError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        for name, function in real.items():
            setattr(os, name, function)
    return "written"


def test_disk_faults(zygote, tmp_path, tally):
    count = tally("disk full, read-only, failing calls", 15, 15)
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:3]:
        if os.access(parent, os.W_OK) and os.stat(parent).st_uid == os.getuid() and parent != parent.parent:
            parent.chmod(parent.stat().st_mode | 0o055)
    for kind in WRITERS:
        for fault in FAULTS:
            if (kind, fault) == ("checkpoint", "fchmod"):
                continue  # nothing stood there whose permissions could be kept
            folder = tmp_path / f"{kind} {fault}"
            folder.mkdir()
            name = Checkpoint.name if kind == "checkpoint" else "old.npz"
            path = folder / name
            path.write_bytes(OLD)
            outcome = zygote.run("files.test_disk:attempt", kind, fault, str(path))
            folder.chmod(0o755)
            gone = kind == "checkpoint" and fault != "read-only folder"
            wanted = [] if kind == "checkpoint" else [name]
            wrong = None
            if not outcome.returned or outcome.value == "written":
                wrong = f"{outcome}"
            elif sorted(os.listdir(folder)) != wanted:
                wrong = f"the folder holds {os.listdir(folder)}"
            elif not gone and path.exists() and path.read_bytes() != OLD:
                wrong = "the old file is another one"
            count.add(outcome.seconds, wrong and f"{kind}, {fault}: {wrong}")
    count.check()


def test_a_naive_writer_is_caught_by_a_full_disk(zygote, tmp_path):
    path = tmp_path / "old.npz"
    path.write_bytes(OLD)
    assert "Error" in zygote.run("files.test_disk:naive", str(path)).value
    assert path.read_bytes() != OLD


def naive(path: str) -> str:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, 2_000))
    try:
        np.savez(path, a=np.ones(10_000))
    except OSError as error:
        return repr(error)
    return "written"


# ------------------------------------------------------------------ leftovers


def test_the_leftover_of_a_killed_writer_is_removed_and_a_living_ones_stays(tmp_path):
    dead = tmp_path / ".rgals-0123456789abcdef.tmp"
    dead.write_bytes(b"half a file")
    other = tmp_path / "data.tmp"
    other.write_bytes(b"somebody else's")
    with files.atomic_file(tmp_path / "one") as first:
        assert not dead.exists()
        first.write(b"1")
        with files.atomic_file(tmp_path / "two") as second:  # does not take the first for a leftover
            second.write(b"2")
    assert (tmp_path / "one").read_bytes() == b"1"
    assert (tmp_path / "two").read_bytes() == b"2"
    assert other.exists()
    assert len(os.listdir(tmp_path)) == 3


def test_a_name_taken_for_a_leftover_is_given_up(tmp_path, monkeypatch):
    """Another writer removes the file between its creation and its lock."""
    answers = iter([False, True])
    real = files.lock

    def lock(descriptor, **how):
        return next(answers, True) and real(descriptor, **how)

    monkeypatch.setattr(files, "lock", lock)
    with files.atomic_file(tmp_path / "out") as file:
        file.write(b"x")
    assert os.listdir(tmp_path) == ["out"]
