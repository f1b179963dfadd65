"""In full: kill -9 at any moment, full disks and failing system calls."""

from __future__ import annotations

from datasets.test_convert import test_a_killed_conversion_leaves_nothing_that_opens
from files.test_disk import test_disk_faults
from files.test_kill import folder, test_kill_while_fitting, test_kill_while_saving

__all__ = [
    "folder",
    "test_a_killed_conversion_leaves_nothing_that_opens",
    "test_disk_faults",
    "test_kill_while_fitting",
    "test_kill_while_saving",
]
