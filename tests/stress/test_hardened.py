"""Hardened containers, made of namespaces: everything read-only but one folder, another user, no home."""

from __future__ import annotations

import pytest
from instruments.hardened import installed
from runtime.test_hardened import used, warm

__all__ = ["warm"]

#: Commands of root's shell, before the process starts in these mounts.
READ_ONLY = "mount --bind {out} {out} && mount -o remount,bind,ro / && ! touch /written 2>/dev/null"
SHELLS = {
    "read-only": READ_ONLY,
    "without shared memory": "mount -t tmpfs -o ro,size=4k none /dev/shm && " + READ_ONLY,
}


def test_a_cache_beside_the_package_is_read_where_it_cannot_be_written(warm):
    assert used(warm) == ([], "")


@pytest.mark.parametrize("shell", SHELLS.values(), ids=SHELLS.keys())
def test_a_container_that_was_warmed_up_compiles_nothing(warm, shell):
    compiled, said = used(warm, shell.format(out=warm / "out"))
    assert compiled == []
    assert "rgals" not in said, said


@pytest.mark.parametrize("shell", SHELLS.values(), ids=SHELLS.keys())
def test_a_container_that_was_not_compiles_and_says_once_what_to_set(shell):
    with installed(cached=False) as folder:
        compiled, said = used(folder, shell.format(out=folder / "out"))
    assert len(compiled) > 5
    assert said.count("compiled kernels are not cached") == 1 and "NUMBA_CACHE_DIR" in said, said
