"""Processes as a hardened container has them: another user, no home, nothing that can be written."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from instruments.harness import PATIENCE, ROOT

USER = 12345


def _reachable(path: str) -> bool:
    """Whether anybody may enter all folders above a file."""
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in Path(path).parents)


def interpreter() -> str:
    """A Python of this version that every user can start; skips the test where there is none."""
    if os.name != "posix" or os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("another user's process needs root and setpriv")
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for path in (os.path.realpath(sys.executable), f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        if os.path.exists(path) and _reachable(path) and _reachable(sysconfig.get_path("purelib")):
            return path
    pytest.skip("this Python lies where other users cannot start it, and there is no other of its version")


@contextmanager
def installed(*, cached: bool) -> Iterator[Path]:
    """A folder that everybody can read and only root write, with the package, with or without its cache."""
    with tempfile.TemporaryDirectory(prefix="rgals-hardened-") as folder:
        os.chmod(folder, 0o755)
        ignored = shutil.ignore_patterns() if cached else shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "rgals", Path(folder, "site", "rgals"), ignore=ignored)
        for name in ("out", "home", "cwd"):  # of the user, where a test says so
            Path(folder, name).mkdir()
            os.chown(Path(folder, name), USER, USER)
        yield Path(folder)


def run(folder: Path, script: str, *arguments: str, shell: str = "", cwd: str = "/", **changes: object):
    """Run a script as that user, in an environment that holds nothing else, after commands of root's shell.

    The shell has mounts of its own, which it may change as it likes, and no network.
    """
    python = interpreter()
    command = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", python, "-c", script]
    if shell:
        told = [
            "unshare",
            "--mount",
            "--net",
            "sh",
            "-c",
            f'mount --make-rprivate / && {shell} && exec "$@"',
            "sh",
        ]
        if subprocess.run([*told, "true"], capture_output=True).returncode:
            pytest.skip("this system gives a test no mounts of its own")
        command = told + command
    environment = {"PYTHONPATH": f"{folder / 'site'}{os.pathsep}{sysconfig.get_path('purelib')}"}
    environment |= {"PATH": os.defpath, "PYTHONWARNINGS": "always::RuntimeWarning"}
    environment |= {name: str(value) for name, value in changes.items()}
    return subprocess.run(
        [*command, *arguments], env=environment, cwd=cwd, capture_output=True, text=True, timeout=3 * PATIENCE
    )
