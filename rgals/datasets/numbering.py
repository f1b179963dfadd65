"""Ids that come in any order and number: codes as they come, and in the end their sorted labels."""

from typing import Any

import numpy as np

from rgals.datasets.ids import PLAIN, label_parts, text_arrays, wasteful
from rgals.kernels import texts
from rgals.kernels.texts import Names
from rgals.matrix.store import Writer
from rgals.matrix.validate import MAX_INDEX
from rgals.runtime.errors import InputError, InputTypeError, InsufficientMemoryError, ShapeError
from rgals.runtime.memory import readable

_FIRST = 1 << 16  # ids that there is room for at the beginning
_FULL = 0.7  # share of the table's places that are taken at most


def _integers(labels: Any) -> Any:
    """Texts of arrow as integers, where all of them are plain ones; else None."""
    import pyarrow.compute as pc

    is_plain = pc.match_substring_regex(labels, f"^({PLAIN})$")
    return labels.cast("int64") if pc.all(is_plain).as_py() else None


class Numbering:
    """Distinct ids of a side in memory: at most ``room`` bytes of them, with those of ``beside``."""

    def __init__(self, what: str, room: int) -> None:
        self.what, self.room, self.known, self.kind, self.negative = what, room, 0, "", False
        self.beside: Numbering | None = None
        self.order = np.empty(0, np.int32)  # codes in the order of their labels, once they are sorted
        self.trimmed = True  # whether all texts are those of text files, which may be integers
        table, ends = np.zeros(2 * _FIRST, np.uint64), np.zeros(_FIRST + 1, np.int64)
        self._names = Names(table, ends, np.empty(_FIRST * 16, np.uint8), np.zeros(_FIRST, np.int64))

    @property
    def counts(self) -> np.ndarray:
        """How often every id came, by its code."""
        return self._names.counts[: self.known]

    def codes(self, column: Any, trimmed: bool = False) -> np.ndarray:
        """Codes (int32) of an arrow array of integers or texts, of which none is missing."""
        # `trimmed`: they are those of a text file.
        import pyarrow as pa

        if pa.types.is_dictionary(column.type):
            # Its values may hold more than occur: they are numbered, and go again as no interaction has them.
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
            known, ends = self._names.text.copy(), np.arange(0, 8 * len(self._names.counts) + 8, 8)
            self._names = self._names._replace(text=known, ends=ends)  # which can be written to
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
        """Kind of the labels, and their bytes one behind the other with the ends of each."""
        types, n = pa.types, len(column)
        if not n:
            return self.kind or "i", np.zeros(1, np.int64), np.empty(0, np.uint8)
        if types.is_integer(column.type):
            unsigned = column.type == pa.uint64()
            numbers = np.asarray(column if unsigned else column.cast(pa.int64()))
            kind = "u" if unsigned and numbers.max() > np.iinfo(np.int64).max else "i"
            return kind, np.arange(0, 8 * n + 8, 8), np.ascontiguousarray(numbers).view(np.uint8)
        column = column.cast(pa.large_string())  # of a slice, this may begin at 0
        _, ends, text = column.buffers()
        offsets = np.frombuffer(ends, np.int64)[column.offset : column.offset + n + 1]
        return "U", offsets, np.frombuffer(text or b"", np.uint8)

    def _grow(self, length: int) -> None:
        if self.known > MAX_INDEX - 1:
            raise ShapeError(f"there are more than {MAX_INDEX:,} {self.what}s, which is the most")
        slots, _, size, n = map(len, self._names)
        n, size = max(n, self.known * 3 // 2), max(size, int(self._names.ends[self.known]) * 3 // 2 + length)
        is_full = n >= _FULL * slots
        slots *= 1 + is_full
        copied = max(array.nbytes for array in self._names)
        needed = 8 * slots + 16 * n + size + copied + (0 if self.beside is None else self.beside.bytes)
        if needed > self.room:
            raise InsufficientMemoryError(
                f"ids, {self.known:,} {self.what}s and more, take {readable(needed)} beside what else a "
                f"conversion holds, and its memory leaves them {readable(self.room)}; give more: memory='8GB'"
            )
        # Not in place: new arrays lie in large pages, so that few random reads wait for a page's address.
        for name, entries in zip(Names._fields, (slots, n + 1, size, n), strict=True):
            old = getattr(self._names, name)  # one of them beside its copy
            new = np.zeros(entries, old.dtype)
            new[: len(old)] = old
            self._names = self._names._replace(**{name: new})
        if is_full:
            self._names.table[:] = 0
            texts.fill(self._names, self.known)

    def sort(self) -> None:
        """Order the labels; what was needed to number more is freed, counts too."""
        self._names = self._names._replace(table=np.zeros(1, np.uint64), counts=np.zeros(0, np.int64))
        self._are_integers()
        labels = self._labels()
        if isinstance(labels, np.ndarray):
            if self.kind == "u" and self.negative:
                raise InputTypeError("integer ids must fit 64 bits; give larger ones as strings")
            order = np.argsort(labels, kind="stable")
        else:
            import pyarrow.compute as pc

            order = np.asarray(pc.sort_indices(labels))
        self.order = order.astype(np.int32)

    def _are_integers(self) -> bool:
        """Make texts integers, if all of them are those of text files and can be: whether they are now."""
        found = _integers(self._labels()) if self.kind == "U" and self.trimmed else None
        if found is not None:
            numbers, self.kind = np.asarray(found), "i"
            self.negative = bool((numbers < 0).any())
            self._names = self._names._replace(text=numbers.view(np.uint8), ends=np.zeros(1, np.int64))
        return found is not None

    def _labels(self) -> Any:
        """All labels: integers as an array, texts as arrow has them."""
        import pyarrow as pa

        _, ends, text, _ = self._names
        if self.kind != "U":
            return text[: 8 * self.known].view(np.uint64 if self.kind == "u" else np.int64)
        return pa.LargeStringArray.from_buffers(self.known, pa.py_buffer(ends), pa.py_buffer(text))

    @property
    def bytes(self) -> int:
        """Memory that the ids take."""
        return sum(array.nbytes for array in self._names)

    def label(self, k: int) -> Any:
        """Label k of those that are sorted."""
        label = self._labels()[int(self.order[k])]
        return label.item() if self.kind != "U" else label.as_py()

    def write(self, writer: Writer, kept: np.ndarray) -> None:
        """Some of the sorted labels into the files of a store."""
        labels, prefix, order = self._labels(), f"{self.what}_", self.order[kept]

        def names(start: int, stop: int) -> np.ndarray:
            part = labels.take(order[start:stop])
            return part if isinstance(part, np.ndarray) else np.array(part.to_pylist(), object)

        if isinstance(labels, np.ndarray):
            kind = labels.dtype
        else:
            import pyarrow.compute as pc

            found = pc.utf8_length(labels), pc.ends_with(labels, "\0")
            lengths, ends_in_nul = (np.asarray(each)[order] for each in found)
            width = int(lengths.max())
            if wasteful(width, len(order), int(lengths.sum())) or ends_in_nul.any():
                for name, _, dtype, parts in text_arrays(prefix, names, len(order)):
                    writer.save(f"{name}.npy", dtype, parts)
                return
            kind = np.dtype(f"<U{max(width, 1)}")
        parts = (part.astype(kind, copy=False) for part in label_parts(names, len(order)))
        writer.save(f"{prefix}ids.npy", kind, parts)
