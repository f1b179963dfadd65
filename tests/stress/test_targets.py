"""Kernels for every processor and system that is named, of both element types."""

from __future__ import annotations

import pytest
from kernels.test_targets import SYSTEMS, check


@pytest.mark.parametrize(("triple", "cpu"), SYSTEMS)
@pytest.mark.parametrize("real", ["float32", "float64"])
def test_kernels_become_object_code(real, triple, cpu):
    check(real, triple, cpu)
