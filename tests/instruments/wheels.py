"""Wheels of the tree, and environments of their own to install them into. Packages come from the index."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from instruments.harness import ROOT


def call(*command: str | Path, cwd: Path, timeout: float = 1200, **changes: str) -> str:
    """Run a command outside the checkout, without its path; returns what it printed."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "NUMBA_CACHE_DIR")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment | {name: str(value) for name, value in changes.items()},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def sources(to: Path) -> Path:
    """A copy of what a wheel is built from, with its time stamps, and a cache as every checkout has one."""
    to.mkdir()
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "tests/test_house.py"):
        (to / name).parent.mkdir(exist_ok=True)
        shutil.copy2(ROOT / name, to / name)
    shutil.copytree(ROOT / "rgals", to / "rgals", ignore=shutil.ignore_patterns("__pycache__"))
    (to / "rgals" / "kernels" / "__pycache__").mkdir()
    for name in ("rows._run-71.py311.nbi", "rows._run-71.py311.1.nbc", "rows.cpython-311.pyc"):
        (to / "rgals" / "kernels" / "__pycache__" / name).write_text("compiled")
    return to


def wheel(tree: Path, to: Path) -> Path:
    """Build a wheel as ``pip install`` does."""
    call(
        sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", to, tree, cwd=tree.parent
    )
    (built,) = to.glob("*.whl")
    return built


class Environment:
    """A virtual environment, empty or with the packages of this one but rgals."""

    def __init__(self, folder: Path, *, borrow: bool) -> None:
        self.folder = folder
        venv.create(folder, with_pip=not borrow)
        scripts = folder / ("Scripts" if os.name == "nt" else "bin")
        self.python = scripts / ("python.exe" if os.name == "nt" else "python")
        self.rgals = scripts / ("rgals.exe" if os.name == "nt" else "rgals")
        told = "import sysconfig; print(sysconfig.get_path('purelib'))"
        self.site = Path(call(self.python, "-c", told, cwd=folder).strip())
        if borrow:  # a line in a .pth adds a folder at the end, without the .pth files that lie in it
            (self.site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def install(self, *arguments: str | Path) -> None:
        """By this environment's pip, or where it has none by that of the tests."""
        pip = [sys.executable, "-m", "pip", "--python", self.python]
        call(*pip, "install", "--quiet", "--disable-pip-version-check", *arguments, cwd=self.folder)
