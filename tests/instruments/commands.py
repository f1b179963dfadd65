"""Jobs that run a command of the command line."""

from __future__ import annotations

import contextlib
import io
import resource
import signal

from rgals.cli import main


def measured(words: list[str], room: int | None = None) -> tuple[int, str, int]:
    """Exit code, errors and KiB of memory; files may have ``room`` bytes."""
    if room is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = main(words)
    return code, said.getvalue(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
