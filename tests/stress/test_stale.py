"""Stale code: every kernel file, in every place where a cache can lie, with and without new time stamps."""

from __future__ import annotations

import platform

import pytest
from kernels.test_stale import EDITS, PLACES, Installation, check


@pytest.fixture(scope="module", params=PLACES)
def installed(request, tmp_path_factory):
    """One installation for all files: each is edited, and the edit taken back."""
    if request.param == "shared home" and platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("the other processor is one of x86")
    return Installation(tmp_path_factory.mktemp("stale"), request.param)


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_kernel_file_is_seen_by_the_next_process(installed, name):
    check(installed, name)
