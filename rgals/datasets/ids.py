"""External ids ("labels") of users and items: lookup, coding, and storage without pickle."""

import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from itertools import count, pairwise
from typing import Any

import numpy as np

from rgals.datasets.columns import column_at, column_names, is_column, is_frame
from rgals.matrix.validate import integers
from rgals.runtime.checks import check_choice
from rgals.runtime.errors import InputError, InputTypeError, UnknownIdError

# A fixed-width string array takes four bytes per character of the longest label. Labels become Python strings
# instead if that is more than both _WIDE_BYTES and _WIDE_FACTOR times what their characters need.
_WIDE_BYTES, _WIDE_FACTOR = 1 << 24, 4
_KINDS = {"i": "integers", "u": "integers", "U": "text"}
LABELS = 1 << 13  # labels per part in which arrays are written
PLAIN = r"0|-?(?:[1-9][0-9]{0,17}|[1-8][0-9]{18})"  # texts that are read as integers, all of 64 bits
is_plain_int = re.compile(PLAIN).fullmatch
Names = Callable[[int, int], np.ndarray]  # (start, stop) -> labels [start, stop)
Parts = tuple[str, tuple[int, ...], Any, Iterable[np.ndarray]]  # an array: name, shape, dtype, its parts
Coded = tuple[np.ndarray, np.ndarray]  # codes (int64) of a column, and the sorted labels that they number


def as_labels(labels: Any) -> np.ndarray:
    """One or more ids as a 1-D array: int64 (uint64 where they do not fit), ``<U``, or objects."""
    # Bytes, UUIDs, dates and times become strings. An array of objects holds integers and strings, or strings
    # few of which are very long. All else is an `InputTypeError`.
    labels = column_at(labels, 0) if is_column(labels) else labels
    if len(getattr(labels, "shape", ())) > 1 or (isinstance(labels, np.ndarray) and labels.ndim == 0):
        line = f"; give one of the columns, {column_names(labels)}" if is_frame(labels) else ""
        raise InputTypeError(f"ids must be one-dimensional, not of shape {labels.shape}{line}")
    if not isinstance(labels, np.ndarray) or np.ma.is_masked(labels):
        single = isinstance(labels, str | bytes) or not hasattr(labels, "__iter__")
        return _from_items([labels] if single else list(labels))
    if labels.dtype.kind in "iu":
        return labels.astype(np.uint64 if labels.dtype == np.uint64 else np.int64, copy=False)
    if labels.dtype.kind == "U":
        return labels
    if labels.dtype.kind in "OSfTM":  # objects, bytes, floats, variable-width text, datetimes
        return _from_items(list(labels) if labels.dtype.kind == "M" else labels.tolist())
    raise InputTypeError(f"ids must be integers or strings, not {labels.dtype}")


def _from_items(items: list) -> np.ndarray:
    if set(map(type, items)) <= {str}:
        return _text_array(items)
    out: list[Any] = []
    for row, label in enumerate(items):
        if hasattr(label, "as_py"):  # a scalar of arrow
            label = label.as_py()
        if isinstance(label, np.str_ | np.integer | np.floating):
            label = label.item()
        if isinstance(label, bytes):
            label = label.decode("utf-8", "surrogateescape")
        elif isinstance(label, uuid.UUID):
            label = str(label)
        elif isinstance(label, date | np.datetime64) and label == label:  # not NaT
            label = _time_text(label)
        elif isinstance(label, float) and label.is_integer() and abs(label) < 2.0**53:
            label = int(label)
        elif isinstance(label, bool) or not isinstance(label, int | str):
            raise InputTypeError(f"ids must be integers or strings; row {row} holds {label!r}")
        out.append(label)
    kinds = {isinstance(label, int) for label in out}
    if kinds == {False}:
        return _text_array(out)
    if kinds == {True, False}:
        return np.array(out, object)
    for dtype in (np.int64, np.uint64):
        try:
            return np.array(out, dtype)
        except OverflowError:
            continue
    raise InputTypeError("integer ids must fit 64 bits; give larger ones as strings")


def _time_text(time: date | np.datetime64) -> str:
    """ISO 8601 without trailing zero units; a time with a zone is given in UTC and ends in "Z"."""
    zone = getattr(time, "tzinfo", None)
    if isinstance(time, datetime) and zone is not None:
        time = time.astimezone(UTC).replace(tzinfo=None)
    exact = time.to_datetime64() if hasattr(time, "to_datetime64") else np.datetime64(time)
    return str(np.datetime_as_string(exact, unit="auto")) + ("Z" if zone is not None else "")


def _text_array(items: list[str]) -> np.ndarray:
    width = max(map(len, items), default=1)
    # A fixed-width array drops trailing NULs, so that two labels could become equal.
    if wasteful(width, len(items), sum(map(len, items))) or any(s.endswith("\0") for s in items):
        return np.array(items, object)
    return np.array(items, dtype=f"<U{max(width, 1)}")


def wasteful(width: int, n: int, total: int) -> bool:
    """Whether an array of this width would waste memory on ``n`` texts of ``total`` characters."""
    return 4 * width * n > max(_WIDE_BYTES, _WIDE_FACTOR * 4 * total)


def narrowest(labels: np.ndarray) -> np.ndarray:
    """A copy as wide as its longest label, as from a file: a selection may have none of the long ones."""
    if labels.dtype == object:
        return as_labels(labels.tolist())
    width = max(np.char.str_len(labels).max(initial=1), 1) if labels.dtype.kind == "U" else 0
    return labels.astype(f"<U{width}" if width else labels.dtype)


def joined(labels: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Labels followed by ``new`` ones; both are from `as_labels`."""
    if not len(new):
        return labels
    alike = labels.dtype == new.dtype and labels.dtype.kind in "iu"
    if alike or (labels.dtype.kind == new.dtype.kind == "U" and new.dtype.itemsize <= labels.dtype.itemsize):
        return np.concatenate([labels, new])
    return as_labels([*labels.tolist(), *new.tolist()])


def encode(column: np.ndarray) -> Coded:
    """Codes (int64) and sorted distinct labels of a column from `as_labels`: ``labels[codes] == column``."""
    if column.dtype.kind in "iu":
        labels, codes = np.unique(column, return_inverse=True)
        return codes.astype(np.int64), labels
    known = numbering()
    return sort_codes(codes_of(column.tolist(), known), list(known))


def numbering() -> dict[Any, int]:
    """A dict of codes in which a missing key gets the next number when it is looked up."""
    return defaultdict(count().__next__)


def codes_of(items: Any, known: dict[Any, int]) -> np.ndarray:
    """Codes (int64) of a sequence or an arrow array of items, by the `numbering` ``known``."""
    if not hasattr(items, "dictionary_encode"):
        return np.fromiter(map(known.__getitem__, items), np.int64)
    coded = items if hasattr(items, "dictionary") else items.dictionary_encode()
    return codes_of(coded.dictionary.to_pylist(), known)[np.asarray(coded.indices)]


def sort_codes(codes: np.ndarray, distinct: Any) -> Coded:
    """Renumber codes so that their labels are sorted."""
    labels = as_labels(distinct)
    if labels.dtype == object:  # integers by value, then texts by code point
        items = labels.tolist()
        order = np.array(sorted(range(len(items)), key=lambda k: (isinstance(items[k], str), items[k])), int)
    else:
        order = np.argsort(labels, kind="stable")
    return np.argsort(order)[codes], labels[order]


def text_to_labels(codes: np.ndarray, distinct: Sequence[str]) -> Coded:
    """Codes and sorted labels of texts, as integers if all are plain ones (``007`` is not)."""
    known = numbering()
    codes = np.array([known[text.strip()] for text in distinct], np.int64)[codes]
    return sort_codes(codes, [int(t) for t in known] if all(map(is_plain_int, known)) else list(known))


class Positions:
    """Row or column numbers of a model, accepted wherever ids are.

    Parameters
    ----------
    numbers : int or sequence of int, shape (n,)

    Raises
    ------
    InputTypeError
        They are no integers in one dimension.

    Examples
    --------
    >>> from rgals import Positions
    >>> from rgals.datasets import IdMap
    >>> IdMap([70, 80, 90]).index(Positions([2, 0]))
    array([2, 0])
    """

    def __init__(self, numbers: Any) -> None:
        self.numbers = integers("positions", numbers).astype(np.int64)

    def __len__(self) -> int:
        return len(self.numbers)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.numbers.astype(dtype or np.int64, copy=bool(copy))

    def __repr__(self) -> str:
        shown = ", ".join(map(str, self.numbers[:3]))
        return f"Positions([{shown}{', ...' if len(self) > 3 else ''}])"


class IdMap:
    """Translation between external labels and row (or column) numbers.

    Parameters
    ----------
    labels : sequence of int or str, shape (n,)
        Label of every row, distinct.
    what : str, default "id"
        What a label names ("user", "item"); used in messages.

    Attributes
    ----------
    labels : ndarray, shape (n,)
        Read-only.

    Raises
    ------
    InputError
        A label occurs twice; the message names it and two of its positions.
    InputTypeError
        A label is neither an integer nor a string.

    Examples
    --------
    >>> from rgals.datasets import IdMap
    >>> ids = IdMap(["tea", "café", "東京"])
    >>> ids.index(["東京", "tea"])
    array([2, 0])
    >>> ids.labels[1]
    np.str_('café')
    """

    def __init__(self, labels: Any, what: str = "id") -> None:
        array = as_labels(labels).view()
        array.flags.writeable = False
        self.labels = array
        self.what = what
        self._order: np.ndarray | None = None
        self._table: dict[Any, int] | None = None
        twice: list = []
        if array.dtype == object:
            self._table = {label: k for k, label in enumerate(array.tolist())}
            twice = [label for k, label in enumerate(array.tolist()) if self._table[label] > k]
        elif not getattr(array, "ordered", False) and not (array[1:] > array[:-1]).all():  # stores': ordered
            self._order = np.argsort(array, kind="stable")
            ordered = array[self._order]
            twice = ordered[1:][ordered[1:] == ordered[:-1]].tolist()
        if twice:
            first, second = [k for k, label in enumerate(array.tolist()) if label == twice[0]][:2]
            problem = f"{what} {twice[0]!r} occurs twice in the labels, at positions {first} and {second}"
            raise InputError(f"{problem}; each must occur once")

    def __len__(self) -> int:
        return len(self.labels)

    def __contains__(self, label: object) -> bool:
        try:
            return bool(self.index([label], missing="mark")[0] >= 0)
        except InputTypeError:
            return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdMap) and self.labels.tolist() == other.labels.tolist()

    def __hash__(self) -> int:
        return hash(len(self))

    def __repr__(self) -> str:
        shown = ", ".join(repr(label) for label in self.labels[:3].tolist())
        return f"IdMap({len(self)} {self.what}s: {shown}{', ...' if len(self) > 3 else ''})"

    def index(self, ids: Any, *, missing: str = "error") -> np.ndarray:
        """Row numbers of labels.

        Parameters
        ----------
        ids : label, sequence of labels, or Positions, shape (m,)
        missing : {"error", "mark"}, default "error"
            Whether an unknown label raises, or gives -1.

        Returns
        -------
        ndarray of int64, shape (m,)
            ``labels[result] == ids``; shape (1,) for a single label.

        Raises
        ------
        UnknownIdError
            A label is not known; the message names it.
        """
        check_choice("missing", missing, ("error", "mark"))
        if isinstance(ids, Positions):
            outside = (ids.numbers < 0) | (ids.numbers >= len(self))
            if outside.any() and missing == "error":
                at = f"position {ids.numbers[outside][0]}: they run from 0 to {len(self) - 1}"
                raise UnknownIdError(f"there is no {self.what} at {at}")
            return np.where(outside, -1, ids.numbers)
        query = as_labels(ids)
        return self._found(self._find(query), query, missing)

    def parse(self, text: str | Sequence[str], *, missing: str = "error") -> np.ndarray:
        """Row numbers of labels typed as text, as on a command line: ``"7"`` finds the integer label 7.

        Parameters
        ----------
        text : str or sequence of str, shape (m,)
        missing : {"error", "mark"}, default "error"
            As in `index`.

        Returns
        -------
        ndarray of int64, shape (m,)

        Raises
        ------
        UnknownIdError
            A label is not known; the message names it.

        Examples
        --------
        >>> from rgals.datasets import IdMap
        >>> IdMap([7, 9]).parse(["9", "seven"], missing="mark")
        array([ 1, -1])
        """
        check_choice("missing", missing, ("error", "mark"))
        words = list(map(str, as_labels(text).tolist()))
        found = self.index(words, missing="mark")
        # All of 64 bits, and so longer ones than `PLAIN`.
        is_integer = re.compile(r"\s*(0|-?[1-9][0-9]{0,19})\s*").fullmatch
        integers = [k for k in np.flatnonzero(found < 0) if is_integer(words[k])]
        found[integers] = self._find(np.array([int(words[k]) for k in integers], object))
        return self._found(found, words, missing)

    def _found(self, rows: np.ndarray, asked: Any, missing: str) -> np.ndarray:
        """``rows``; if unknown labels (-1) are an error, an `UnknownIdError` names the first of ``asked``."""
        bad = np.flatnonzero(rows < 0)
        if len(bad) and missing == "error":
            label = asked[bad[0]]
            label = label.item() if isinstance(label, np.generic) else label
            more = f" (and {len(bad) - 1} more are not known either)" if len(bad) > 1 else ""
            example = f", for example {self.labels[:1].tolist()[0]!r}" if len(self) else ""
            problem = f"{self.what} {label!r} is not known{more}"
            raise UnknownIdError(f"{problem}; there are {len(self)} {self.what}s{example}")
        return rows

    def _find(self, query: np.ndarray) -> np.ndarray:
        if self._table is not None:
            get = self._table.get
            return np.fromiter((get(x, -1) for x in query.tolist()), dtype=np.int64, count=len(query))
        found = np.full(len(query), -1, np.int64)
        if len(self) == 0 or len(query) == 0:
            return found
        both_text = query.dtype.kind == self.labels.dtype.kind == "U"
        wide = query.dtype.itemsize > self.labels.dtype.itemsize  # searchsorted would copy all labels
        if query.dtype != self.labels.dtype and (not both_text or wide):
            # Only queries that the labels' dtype can hold are converted to it and looked up: a fixed width
            # cuts long text and trailing NULs, and int64 is compared with uint64 in float64, where large
            # neighbours are equal.
            asked, kind = query.tolist(), self.labels.dtype
            if kind.kind == "U":
                fits = [isinstance(x, str) and 4 * len(x) <= kind.itemsize and x[-1:] != "\0" for x in asked]
            else:
                low, high = np.iinfo(kind).min, np.iinfo(kind).max
                fits = [isinstance(x, int) and low <= x <= high for x in asked]
            found[fits] = self._find(np.array(query[fits].tolist(), kind))
            return found
        at = np.minimum(np.searchsorted(self.labels, query, sorter=self._order), len(self) - 1)
        row = at if self._order is None else self._order[at]
        return np.where(self.labels[row] == query, row, -1).astype(np.int64)

    def to_arrays(self, prefix: str = "") -> dict[str, np.ndarray]:
        """Arrays from which `from_arrays` makes this map again; none needs pickle.

        Parameters
        ----------
        prefix : str, default ""
            Put before every name, so that several maps fit one file.

        Returns
        -------
        dict of str to ndarray
            ``labels`` (integers), or ``text`` (uint8, UTF-8) with ``offsets`` (int64), and for a mixture
            ``integer`` (bool: which of the texts are integers).
        """
        arrays = label_arrays(prefix, lambda start, stop: self.labels[start:stop], len(self))
        return {name: np.concatenate([np.empty(0, dtype), *parts]) for name, _, dtype, parts in arrays}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], prefix: str = "", what: str = "id") -> "IdMap":
        """The map that `to_arrays` wrote.

        Parameters
        ----------
        arrays : mapping of str to ndarray
            A dict or an open npz file.
        prefix : str, default ""
            That of `to_arrays`.
        what : str, default "id"
            What a label names.

        Returns
        -------
        IdMap

        Raises
        ------
        InputError
            Arrays are missing, of the wrong type or do not belong together.

        Examples
        --------
        >>> from rgals.datasets import IdMap
        >>> IdMap.from_arrays(IdMap(["tea", "milk"]).to_arrays("item_"), "item_", "item")
        IdMap(2 items: 'tea', 'milk')
        """
        try:
            if f"{prefix}labels" in arrays:
                return cls(integers(f"{prefix}labels", arrays[f"{prefix}labels"]), what)
            for key in (f"{prefix}text", f"{prefix}offsets"):
                if key not in arrays:
                    raise ValueError(f"{key} is missing")
            text, offsets = (np.asarray(arrays[prefix + name]) for name in ("text", "offsets"))
            whole = text.dtype == np.uint8 and offsets.dtype == np.int64 and text.ndim == offsets.ndim == 1
            ends = whole and len(offsets) and offsets[0] == 0 and offsets[-1] == len(text)
            if not ends or (np.diff(offsets) < 0).any():
                raise ValueError("offsets do not fit the text")
            spans = list(pairwise(offsets.tolist()))
            integer = np.asarray(arrays.get(f"{prefix}integer", np.zeros(len(spans), bool)))
            if integer.dtype != bool or integer.shape != (len(spans),):
                raise ValueError(f"{prefix}integer does not fit")
            raw = text.tobytes()
            items: list[Any] = [raw[start:stop].decode("utf-8", "surrogatepass") for start, stop in spans]
            items = [int(x) if is_integer else x for x, is_integer in zip(items, integer, strict=True)]
            return cls(items, what)
        except (ValueError, InputTypeError) as error:
            raise InputError(f"the id map {prefix!r} is damaged: {error}") from error


def same_kind(known: IdMap, ids: np.ndarray) -> bool:
    """Whether known ids and ``ids`` are not integers here and text there, so that some may be equal."""
    own, theirs = (_KINDS.get(labels.dtype.kind) for labels in (known.labels, ids))
    return not (len(known) and len(ids) and own and theirs and own != theirs)


def refuse_kind(known: IdMap, ids: np.ndarray, name: str) -> None:
    """Raise if known ids are integers and ``ids`` text, or vice versa, so that none could be found."""
    if not same_kind(known, ids):
        own, theirs = (_KINDS[labels.dtype.kind] for labels in (known.labels, ids))
        one, other = (labels[:1].tolist()[0] for labels in (ids, known.labels))
        said = f"its {known.what} ids are {theirs} ({one!r}), those of the model {own} ({other!r})"
        raise InputError(f"{name}: {said}, so that none is known; give ids as in training (--text-ids)")


def label_arrays(prefix: str, names: Names, n: int) -> Iterator[Parts]:
    """The arrays of `IdMap.to_arrays`, in parts, so that they need not be in memory as a whole."""
    kind = names(0, 0).dtype
    if kind.kind in "iu":
        yield f"{prefix}labels", (n,), kind, label_parts(names, n)
        return
    yield from text_arrays(prefix, names, n)
    if kind.kind == "O":
        flags = (np.array([isinstance(x, int) for x in part.tolist()]) for part in label_parts(names, n))
        yield f"{prefix}integer", (n,), np.bool_, flags


def text_arrays(prefix: str, names: Names, n: int) -> Iterator[Parts]:
    """Labels as concatenated UTF-8, and the offset of each."""

    def encoded() -> Iterator[list[bytes]]:
        parts = label_parts(names, n)
        return ([str(x).encode("utf-8", "surrogatepass") for x in part.tolist()] for part in parts)

    offsets = np.zeros(n + 1, np.int64)
    offsets[1:] = np.cumsum(np.fromiter((len(text) for texts in encoded() for text in texts), np.int64, n))
    text = (np.frombuffer(b"".join(texts), np.uint8) for texts in encoded())
    yield f"{prefix}text", (int(offsets[-1]),), np.uint8, text
    yield f"{prefix}offsets", (n + 1,), np.int64, [offsets]


def label_parts(names: Names, n: int) -> Iterator[np.ndarray]:
    """All labels in parts of `LABELS`."""
    return (names(start, min(start + LABELS, n)) for start in range(0, n, LABELS))
