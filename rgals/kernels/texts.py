"""Numbers for distinct texts, in the order in which they come: a hash table in a few flat arrays."""

from typing import NamedTuple

import numpy as np

from rgals.kernels.compile import entry, inner
from rgals.kernels.gather import prefetch

_AHEAD = 16  # texts ahead whose place in the table is asked for: memory answers meanwhile
_FULL = 0.7  # share of the places that are taken at most


class Names(NamedTuple):
    """Texts and how often each came: text k is ``text[ends[k]:ends[k + 1]]``.

    ``table`` (a power of two) has k + 1 at the place that the text's hash says, or behind it; 0 is free.
    """

    table: np.ndarray  # int32
    ends: np.ndarray  # int64
    text: np.ndarray  # uint8
    counts: np.ndarray  # int64


@inner(forceinline=True)
def _hash(text, begin, end):
    value = np.uint64(14695981039346656037)
    for k in range(begin, end):
        value = (value ^ np.uint64(text[k])) * np.uint64(1099511628211)
    return value ^ (value >> np.uint64(32))


@inner(forceinline=True)
def _same(text, begin, end, names, code):
    at = names.ends[code]
    if names.ends[code + 1] - at != end - begin:
        return False
    for k in range(end - begin):
        if names.text[at + k] != text[begin + k]:
            return False
    return True


@entry(nogil=True)
def number(first, known, offsets, text, names, hashes, codes):
    """Number the texts from ``first`` on; ends early where ``names`` are full.

    Text i is ``text[offsets[i]:offsets[i + 1]]``; ``hashes`` (uint64, (n,)) is work space. Returns the text
    at which it ended and how many distinct ones there are now.
    """
    n, mask = len(codes), np.uint64(len(names.table) - 1)
    most = min(len(names.counts), np.int64(_FULL * len(names.table)))
    for i in range(first, n):
        hashes[i] = _hash(text, offsets[i], offsets[i + 1])
    for i in range(first, n):
        if i + _AHEAD < n:
            prefetch(names.table, np.int64(hashes[i + _AHEAD] & mask))
        begin, end = offsets[i], offsets[i + 1]
        at = hashes[i] & mask
        while True:
            code = names.table[at] - 1
            if code < 0:
                place = names.ends[known]
                if known >= most or place + end - begin > len(names.text):
                    return i, known
                for k in range(end - begin):
                    names.text[place + k] = text[begin + k]
                names.ends[known + 1] = place + end - begin
                code = known
                known += 1
                names.table[at] = known
                break
            if _same(text, begin, end, names, code):
                break
            at = (at + np.uint64(1)) & mask
        names.counts[code] += 1
        codes[i] = code
    return n, known


@entry(nogil=True)
def fill(names, known):
    """Put the texts that are known into a table that is empty."""
    mask = np.uint64(len(names.table) - 1)
    for code in range(known):
        at = _hash(names.text, names.ends[code], names.ends[code + 1]) & mask
        while names.table[at] > 0:
            at = (at + np.uint64(1)) & mask
        names.table[at] = code + 1
