"""Processes as Linux, Windows and macOS have them: ``python journey.py FOLDER``, one forked for each.

What only other systems have is hidden from the package: modules, functions of `os`, /proc. On Windows what
is open is neither renamed nor removed, folders are not opened, and text goes out in the code page. Other
packages are imported before, and keep what they need. Then: fit, recommend, save, load, checkpoints, export,
the command line; at last a line of JSON for each: the system, and what came out.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import sys
import types
import urllib.request  # noqa: F401
from pathlib import Path

import numba.core.caching  # noqa: F401
import scipy.linalg  # noqa: F401
import sklearn.base  # noqa: F401
import threadpoolctl
import tqdm  # noqa: F401

#: Modules and functions that a system does not have.
MODULES = {
    "win32": ("fcntl", "resource", "pwd", "grp", "termios", "posix", "syslog"),
    "darwin": ("msvcrt", "winreg"),
}
FUNCTIONS = {
    "win32": """
        register_at_fork fork forkpty fchmod fchown chown lchown mkfifo mknod getuid geteuid getgid getegid
        getgroups getpgid getpgrp setpgid setsid killpg wait sysconf statvfs fstatvfs pread pwrite preadv
        pwritev posix_fallocate posix_fadvise fdatasync sync getloadavg nice sendfile memfd_create
        posix_spawn pipe2 readv writev sched_getaffinity sched_setaffinity sched_yield O_CLOEXEC O_NOFOLLOW
        O_DIRECTORY
    """,
    "darwin": """
        posix_fallocate posix_fadvise fdatasync memfd_create sched_getaffinity sched_setaffinity pipe2
    """,
}


def asks_for_the_package() -> bool:
    """Whether a call comes from it, directly or through the standard library."""
    frame, names = sys._getframe(2), sys.stdlib_module_names - {"__main__"}
    while frame is not None and frame.f_globals["__name__"].partition(".")[0] in names:
        frame = frame.f_back
    return frame is not None and frame.f_globals["__name__"].partition(".")[0] == "rgals"


class Msvcrt(types.ModuleType):
    """Locks of bytes, which a process loses when it closes the file; here there is one process."""

    LK_NBLCK = 2

    def locking(self, descriptor: int, mode: int, n_bytes: int) -> None:
        assert mode == self.LK_NBLCK and n_bytes == 1
        assert os.lseek(descriptor, 0, os.SEEK_CUR) >= os.fstat(descriptor).st_size


def without_posix() -> None:
    """Windows's rules for files that are open, and for folders."""
    sys.modules["msvcrt"] = Msvcrt("msvcrt")
    os.O_BINARY = 0  # only Windows has it

    def closed(function):
        def call(*paths, **more):
            links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
            taken = [os.readlink(link) for link in links if os.path.lexists(link)]
            if asks_for_the_package() and any(os.path.realpath(path) in taken for path in paths):
                raise PermissionError(errno.EACCES, "used by another process", str(paths[0]))
            return function(*paths, **more)

        return call

    for name in ("replace", "rename", "unlink", "remove"):
        setattr(os, name, closed(getattr(os, name)))
    open_here = os.open

    def files_only(path, *arguments, **more):
        if asks_for_the_package() and os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return open_here(path, *arguments, **more)

    os.open = files_only


def become(platform: str) -> None:
    """From here on the package finds another system."""
    if platform == "linux":
        return
    if platform == "win32":
        without_posix()
    else:
        import fcntl

        fcntl.F_FULLFSYNC = 51
    for name in MODULES[platform]:
        sys.modules[name] = None
    for name in FUNCTIONS[platform].split():
        if hasattr(os, name):
            delattr(os, name)

    def hide(event, arguments):
        linux = event == "open" and str(arguments[0]).startswith(("/proc", "/sys", "/dev/shm"))
        if linux and asks_for_the_package():
            raise FileNotFoundError(errno.ENOENT, "No such file", arguments[0])

    sys.addaudithook(hide)
    threadpoolctl.sys = types.SimpleNamespace(**vars(sys))
    sys.platform = platform
    if platform == "win32":
        os.name = "nt"  # while the package is imported: pathlib asks for it, too
        import rgals.files.atomic as atomic

        os.name = "posix"
        assert atomic._WINDOWS and atomic.fcntl is None and atomic.msvcrt is not None


def travel(folder: Path) -> dict:
    """Everything that touches the system; returns what must be alike on all of them."""
    import rgals
    from rgals import RGALS, cli
    from rgals.datasets import make_implicit, read_interactions
    from rgals.files.atomic import locked
    from rgals.files.journal import Journal
    from rgals.model.export import export_factors
    from rgals.runtime import memory, threads
    from rgals.scoring import recommend_all
    from rgals.sgd import SGDRanker

    assert threads.n_threads(None) >= 1
    assert memory.available_bytes() > 0
    data = make_implicit(60, 40, mean_interactions=6, random_state=0)
    data.save(folder / "data.npz")
    assert read_interactions(folder / "data.npz").nnz == data.nnz
    answers: dict = {}
    for name, model in (
        ("als", RGALS(K=4, n_iter=2, random_state=0)),
        ("sgd", SGDRanker(K=4, n_epochs=2, random_state=0)),
    ):
        for _ in range(2):  # the second time over the first one's files
            model.fit(data).save(folder / f"{name}.npz")
            again = type(model).load(folder / f"{name}.npz")
            assert recommend_all(again, folder / f"{name}.csv", n=3).users == 60
            assert recommend_all(again, folder / f"{name}-lists.npz", n=3).users == 60
            export_factors(again, folder / f"{name}-factors")
        answers[name] = again.fingerprint()
    half = RGALS(K=4, n_iter=1, random_state=0).fit(data, checkpoint=folder / "checkpoint")
    whole = RGALS(K=4, n_iter=2, random_state=0).fit(data, checkpoint=folder / "checkpoint")
    assert half.fingerprint() != whole.fingerprint() == answers["als"]
    Journal(folder / "trials.jsonl", {"of": "a test"}).add("first", {"value": 1})
    assert Journal(folder / "trials.jsonl", {"of": "a test"}).get("first") == {"key": "first", "value": 1}
    with locked(folder / "file.lock"):
        assert (folder / "file.lock").exists()

    pairs = [(f"Zoë {k % 30}", f"映画{k * 7 % 20}") for k in range(300)]
    lines = "".join(f"{user},{item}\n" for user, item in pairs)
    (folder / "pairs.csv").write_text("user,item\n" + lines, encoding="utf-8")
    path = {name: str(folder / f"{name}") for name in ("pairs.csv", "held.npz", "cli.npz", "cli.csv")}
    commands = [
        ["fit", path["pairs.csv"], "-o", path["cli.npz"], "--K", "4", "--n-iter", "2", "--seed", "0"]
        + ["--hold-out", "0.3", "--held-out", path["held.npz"]],
        ["recommend", path["cli.npz"], "-o", path["cli.csv"], "-n", "3"],
        ["evaluate", path["cli.npz"], path["held.npz"]],
        ["recommend", path["cli.npz"], "-n", "3"],
    ]
    for command in commands:
        sys.stdout = io.TextIOWrapper(io.BytesIO(), "cp1252" if sys.platform == "win32" else "utf-8")
        code, printed = cli.main(command), sys.stdout.buffer.getvalue()
        sys.stdout = sys.__stdout__
        assert code == 0, command
    assert printed.decode("utf-8") == (folder / "cli.csv").read_text(encoding="utf-8")
    assert RGALS.load(path["cli.npz"]).user_ids_[0] == "Zoë 0"
    assert rgals.__version__
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        answers[path.relative_to(folder).as_posix()] = digest
    return answers


if __name__ == "__main__":
    for platform in ("linux", *MODULES):
        child = os.fork()  # nothing has been computed yet, so that there are no threads
        if child == 0:
            folder = Path(sys.argv[1], platform)
            folder.mkdir()
            become(platform)
            print(json.dumps([platform, travel(folder)]), flush=True)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            raise SystemExit(f"as on {platform} it failed")
