"""Progress bars of tqdm, with a lock that no other process shares."""

import os
import sys
import threading
from typing import Any

from tqdm import tqdm


class Bar(tqdm):
    """A tqdm bar that no other process can block."""

    # tqdm's own lock is shared with forked children. A child that is killed while it holds the lock leaves it
    # locked for ever, and the next bar of its parent or siblings waits for it.
    # Nor does this bar start tqdm's monitor thread, which refreshes bars that got slow: with ``miniters=1``
    # every update checks the clock itself.

    monitor_interval = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        if sys.stderr is None and "file" not in options:  # under pythonw
            options["disable"] = True
        options = {k: v for k, v in options.items() if k != "disable" or v}  # False: TQDM_DISABLE decides
        super().__init__(*args, **{"miniters": 1, **options})


def _renew_lock() -> None:
    Bar.set_lock(threading.RLock())


_renew_lock()
if hasattr(os, "register_at_fork"):  # another thread may hold the lock at a fork
    os.register_at_fork(after_in_child=_renew_lock)
