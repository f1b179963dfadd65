"""Progress bars: tqdm's, with a lock of this process alone."""

import os
import sys
import threading
from typing import Any

from tqdm import tqdm


class Bar(tqdm):
    """A tqdm bar that no other process can stop."""

    # tqdm's own lock is shared with forked children: one that is killed while it holds the lock leaves it
    # locked for ever, and the next bar of any process of the family waits for it. Nor does this one start
    # tqdm's thread, which shows again what got slow: every update looks at the clock instead.

    monitor_interval = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        if sys.stderr is None and "file" not in options:  # as under pythonw
            options["disable"] = True
        options = {k: v for k, v in options.items() if k != "disable" or v}  # else TQDM_DISABLE tells
        super().__init__(*args, **{"miniters": 1, **options})


def _renew_lock() -> None:
    Bar.set_lock(threading.RLock())


_renew_lock()
if hasattr(os, "register_at_fork"):  # another thread may have held it when the child was made
    os.register_at_fork(after_in_child=_renew_lock)
