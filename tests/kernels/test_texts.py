"""Texts are dealt out evenly over the places of their table, whatever their length."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from rgals.kernels import texts

_HASH = njit(lambda text, begin, end: texts._hash(text, begin, end))


@pytest.mark.parametrize("width", [1, 3, 6, 7, 8, 9, 15, 16, 17, 40])
@pytest.mark.parametrize("changing", ["first", "last"])
def test_few_texts_share_a_place(width, changing):
    n = min(4096, 200**width)
    digits = [bytes(1 + (k // 200**at) % 200 for at in range(min(width, 2))) for k in range(n)]
    fill = b"x" * (width - len(digits[0]))
    words = [part + fill if changing == "first" else fill + part for part in digits]
    assert len(set(words)) == n
    text = np.frombuffer(b"".join(words), np.uint8)
    found = np.array([_HASH(text, k * width, (k + 1) * width) for k in range(n)], np.uint64)
    assert len(np.unique(found)) == n
    for shift in (0, 20):  # as many places as texts: of random ones 63 % are taken
        taken = len(np.unique((found >> np.uint64(shift)) % np.uint64(n)))
        assert taken > 0.5 * n
