"""Numbering of the ids of a conversion: codes in the order of arrival, and sorted labels in the end."""

from typing import Any

import numpy as np

from rgals.datasets.ids import PLAIN, label_parts, text_arrays, wasteful
from rgals.kernels import texts
from rgals.kernels.texts import Names
from rgals.matrix.store import Writer
from rgals.matrix.validate import MAX_INDEX
from rgals.runtime.errors import InputError, InputTypeError, InsufficientMemoryError, ShapeError
from rgals.runtime.memory import readable

_FIRST = 1 << 16  # ids for which memory is allocated at the beginning
_MAX_LOAD = 0.7  # share of the slots of the hash table that are taken before it grows


def _integers(labels: Any) -> Any:
    """An arrow array of texts as integers if all of them are plain ones; else None."""
    import pyarrow.compute as pc

    is_plain = pc.match_substring_regex(labels, f"^({PLAIN})$")
    return labels.cast("int64") if pc.all(is_plain).as_py() else None


class Numbering:
    """The distinct users or items of a conversion, in memory of at most ``room`` bytes with ``beside``."""

    def __init__(self, what: str, room: int) -> None:
        self.what, self.room, self.known, self.kind, self.negative = what, room, 0, "", False
        self.beside: Numbering | None = None  # the other side, which shares the memory
        self.order = np.empty(0, np.int32)  # codes in the order of their labels, after `sort`
        self.trimmed = True  # whether all texts come from text files, so that they may become integers
        table, ends = np.zeros(2 * _FIRST, np.uint64), np.zeros(_FIRST + 1, np.int64)
        self._names = Names(table, ends, np.empty(_FIRST * 16, np.uint8), np.zeros(_FIRST, np.int64))

    @property
    def counts(self) -> np.ndarray:
        """Number of interactions of every id, by its code."""
        return self._names.counts[: self.known]

    def codes(self, column: Any, trimmed: bool = False) -> np.ndarray:
        """Codes (int32) of an arrow array of integers or texts without nulls; ``trimmed``: of a text file."""
        import pyarrow as pa

        if pa.types.is_dictionary(column.type):
            # Each value is counted once by numbering the dictionary: this is undone, and rows are counted.
            of_value = self.codes(column.dictionary, trimmed)
            np.subtract.at(self._names.counts, of_value, 1)
            codes = of_value[np.asarray(column.indices)]
            np.add.at(self._names.counts, codes, 1)
            return codes
        if self.kind in ("i", "u") and trimmed:
            column = _integers(column) or column
        kind, offsets, text = self._flat(column, pa)
        self.negative |= kind == "i" and bool(len(column)) and int(text.view(np.int64).min()) < 0
        self.trimmed &= trimmed or kind != "U"
        if kind != "U" and self._are_integers():
            ends = np.arange(0, 8 * len(self._names.counts) + 8, 8)
            # A copy of the text: arrow's memory is read-only.
            self._names = self._names._replace(text=self._names.text.copy(), ends=ends)
            self._names.table[:] = 0
            texts.fill(self._names, self.known)
        kind = "u" if {kind, self.kind} == {"i", "u"} else kind
        if "U" in (kind, self.kind) and self.kind not in ("", kind):
            names = {"U": "texts", "i": "integers", "u": "integers"}
            found = f"{names[self.kind]} in one source and {names[kind]} in another"
            raise InputError(f"the {self.what}s are {found}; write them alike in all sources")
        self.kind = kind
        codes, hashes, at = np.empty(len(column), np.int32), np.zeros(len(column) + texts.AHEAD, np.uint64), 0
        while True:
            at, self.known = texts.number(at, self.known, offsets, text, self._names, hashes, codes)
            if at == len(codes):
                return codes
            self._grow(int(offsets[at + 1] - offsets[at]))

    def _flat(self, column: Any, pa: Any) -> tuple[str, np.ndarray, np.ndarray]:
        """Kind of the labels ("i", "u" or "U"), their offsets, and their concatenated bytes."""
        types, n = pa.types, len(column)
        if not n:
            return self.kind or "i", np.zeros(1, np.int64), np.empty(0, np.uint8)
        if types.is_integer(column.type):
            unsigned = column.type == pa.uint64()
            numbers = np.asarray(column if unsigned else column.cast(pa.int64()))
            kind = "u" if unsigned and numbers.max() > np.iinfo(np.int64).max else "i"
            return kind, np.arange(0, 8 * n + 8, 8), np.ascontiguousarray(numbers).view(np.uint8)
        column = column.cast(pa.large_string())
        _, ends, text = column.buffers()
        offsets = np.frombuffer(ends, np.int64)[column.offset : column.offset + n + 1]
        return "U", offsets, np.frombuffer(text or b"", np.uint8)

    def _grow(self, length: int) -> None:
        if self.known > MAX_INDEX - 1:
            raise ShapeError(f"there are more than {MAX_INDEX:,} {self.what}s, which is the most")
        slots, _, size, n = map(len, self._names)
        n, size = max(n, self.known * 3 // 2), max(size, int(self._names.ends[self.known]) * 3 // 2 + length)
        is_full = n >= _MAX_LOAD * slots
        slots *= 1 + is_full
        copied = max(array.nbytes for array in self._names)
        needed = 8 * slots + 16 * n + size + copied + (0 if self.beside is None else self.beside.bytes)
        if needed > self.room:
            raise InsufficientMemoryError(
                f"ids, {self.known:,} {self.what}s and more, take {readable(needed)} beside what else a "
                f"conversion holds, and its memory leaves them {readable(self.room)}; give more: memory='8GB'"
            )
        # New arrays, not resized ones: they lie in huge pages, so that fewer random reads miss the TLB.
        for name, entries in zip(Names._fields, (slots, n + 1, size, n), strict=True):
            old = getattr(self._names, name)  # one at a time, so that only one is in memory twice
            new = np.zeros(entries, old.dtype)
            new[: len(old)] = old
            self._names = self._names._replace(**{name: new})
        if is_full:
            self._names.table[:] = 0
            texts.fill(self._names, self.known)

    def sort(self) -> None:
        """Sort the labels, and free what numbering needs, including the counts."""
        self._names = self._names._replace(table=np.zeros(1, np.uint64), counts=np.zeros(0, np.int64))
        import pyarrow.compute as pc

        self._are_integers()
        if self.kind == "u" and self.negative:
            raise InputTypeError("integer ids must fit 64 bits; give larger ones as strings")
        self.order = np.asarray(pc.sort_indices(self._labels())).astype(np.int32)

    def _are_integers(self) -> bool:
        """Convert labels to integers if all are plain integers of text files; return whether they were."""
        found = _integers(self._labels()) if self.kind == "U" and self.trimmed else None
        if found is not None:
            numbers, self.kind = np.asarray(found), "i"
            self.negative = bool((numbers < 0).any())
            self._names = self._names._replace(text=numbers.view(np.uint8), ends=np.zeros(1, np.int64))
        return found is not None

    def _labels(self) -> Any:
        """All labels by code, an arrow array that shares their memory."""
        import pyarrow as pa

        _, ends, text, _ = self._names
        if self.kind != "U":
            return pa.array(text[: 8 * self.known].view(np.uint64 if self.kind == "u" else np.int64))
        return pa.LargeStringArray.from_buffers(self.known, pa.py_buffer(ends), pa.py_buffer(text))

    @property
    def bytes(self) -> int:
        """Bytes of memory in use."""
        return sum(array.nbytes for array in self._names)

    def label(self, k: int) -> Any:
        """The k-th label in sorted order."""
        return self._labels()[int(self.order[k])].as_py()

    def write(self, writer: Writer, kept: np.ndarray) -> None:
        """Write the sorted labels of the numbers ``kept`` into the files of a store."""
        labels, prefix, order = self._labels(), f"{self.what}_", self.order[kept]

        def names(start: int, stop: int) -> np.ndarray:
            return np.asarray(labels.take(order[start:stop]))

        kind = names(0, 0).dtype
        if self.kind == "U":
            import pyarrow.compute as pc

            found = pc.utf8_length(labels), pc.ends_with(labels, "\0")
            lengths, ends_in_nul = (np.asarray(each)[order] for each in found)
            width = int(lengths.max())
            if wasteful(width, len(order), int(lengths.sum())) or ends_in_nul.any():
                for name, _, dtype, parts in text_arrays(prefix, names, len(order)):
                    writer.save(f"{name}.npy", dtype, parts)
                return
            kind = np.dtype(f"<U{max(width, 1)}")
        writer.save(f"{prefix}ids.npy", kind, label_parts(names, len(order)))
