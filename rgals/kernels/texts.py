"""Numbers the distinct texts of a column in order of appearance, by a hash table in flat arrays."""

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from rgals.kernels.compile import entry, inner
from rgals.kernels.gather import prefetch

_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_STEP = 8  # texts between two prefetches of one text: the first has arrived when the second needs it
AHEAD = 3 * _STEP


class Names(NamedTuple):
    """Distinct texts and their counts: text k is ``text[ends[k]:ends[k + 1]]``."""

    # ``table`` is a hash table with open addressing, longer than ``counts``; its length is a power of two. An
    # entry has k + 1 in its lower half, and in its upper half that of the hash, so that few texts are
    # compared.

    table: np.ndarray  # uint64; 0 is free
    ends: np.ndarray  # int64
    text: np.ndarray  # uint8
    counts: np.ndarray  # int64


@intrinsic
def _word(typingctx, text, at):
    """Eight bytes of a text as a uint64."""

    def codegen(context, builder, signature, arguments):
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        at = context.cast(builder, arguments[1], signature.args[1], types.int64)
        word = builder.load(builder.bitcast(builder.gep(view.data, [at]), ir.IntType(64).as_pointer()))
        word.align = 1
        return word

    return types.uint64(text, at), codegen


@inner(forceinline=True)
def _mix(value, word):
    value = (value ^ word) * np.uint64(0x9E3779B97F4A7C15)
    return value ^ (value >> np.uint64(32))


@inner(forceinline=True)
def _hash(text, begin, end):
    value, rest = np.uint64(end - begin), np.uint64(0)
    whole = end - (end - begin) % 8
    for k in range(begin, whole, 8):
        value = _mix(value, _word(text, k))
    for k in range(whole, end):
        rest = (rest << np.uint64(8)) ^ np.uint64(text[k])
    # Mixed once more, because the last bytes have reached the highest bits only.
    return _mix(_mix(value, rest), np.uint64(0))


@inner(forceinline=True)
def _same(text, begin, end, names, code):
    at = names.ends[code]
    if names.ends[code + 1] - at != end - begin:
        return False
    whole = end - (end - begin) % 8
    for k in range(begin, whole, 8):
        if _word(names.text, at + k - begin) != _word(text, k):
            return False
    same = True
    for k in range(whole, end):
        same &= names.text[at + k - begin] == text[k]
    return same


@inner(forceinline=True)
def _find(hashed, at, table):
    """The next place from ``at`` on with the upper half of this hash, and its text; or a free one and -1."""
    mask = np.uint64(len(table) - 1)
    while table[at & mask] != 0 and (table[at & mask] ^ hashed) >> _HALF != 0:
        at += np.uint64(1)
    return at & mask, np.int64(table[at & mask] & _LOW) - 1


@entry(nogil=True)
def number(first, known, offsets, text, names, hashes, codes):
    """Number the texts from ``first`` on; stops when ``names`` are full."""
    # Text i is ``text[offsets[i]:offsets[i + 1]]``, and ``codes[i]`` receives its number. ``hashes`` (uint64)
    # is work space for all texts and `AHEAD` zeros behind them. ``known`` is the number of distinct texts so
    # far. Returns the text at which it stopped and the number of distinct texts now.
    n, table = len(codes), names.table
    for i in range(first, n):
        hashes[i] = _hash(text, offsets[i], offsets[i + 1])
    for i in range(first, n):
        # Prefetch what later texts will read, `_STEP` texts apart: the entry of the table, what the entry
        # leads to, the text itself. Prefetching at -1 does no harm.
        prefetch(table, np.int64(hashes[i + AHEAD] & np.uint64(len(table) - 1)))
        soon = hashes[i + 2 * _STEP]
        code = _find(soon, soon, table)[1]
        prefetch(names.ends, code)
        prefetch(names.counts, code)
        soon = hashes[i + _STEP]
        prefetch(names.text, names.ends[_find(soon, soon, table)[1]])
        begin, end = offsets[i], offsets[i + 1]
        at, code = _find(hashes[i], hashes[i], table)
        while code >= 0 and not _same(text, begin, end, names, code):
            at, code = _find(hashes[i], at + np.uint64(1), table)
        if code < 0:  # a new text, unless there is no room for it
            place = names.ends[known]
            if known == len(names.counts) or place + end - begin > len(names.text):
                return i, known
            for k in range(end - begin):
                names.text[place + k] = text[begin + k]
            names.ends[known + 1] = place + end - begin
            code = known
            known += 1
            table[at] = hashes[i] & ~_LOW | np.uint64(known)
        names.counts[code] += 1
        codes[i] = code
    return n, known


@entry(nogil=True)
def fill(names, known):
    """Enter the known texts into an empty table, as after it has grown."""
    mask = np.uint64(len(names.table) - 1)
    for code in range(known):
        hashed = _hash(names.text, names.ends[code], names.ends[code + 1])
        at = hashed & mask
        while names.table[at] != 0:
            at = (at + np.uint64(1)) & mask
        names.table[at] = hashed & ~_LOW | np.uint64(code + 1)
