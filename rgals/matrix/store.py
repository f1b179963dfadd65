"""A store: a folder with an interaction matrix in both orientations, and the ids of users and items."""

# =========================== =======================================================================
# file                        content
# =========================== =======================================================================
# ``store.json``              version, shape, number of interactions, size and SHA-256 of every file
# ``rows_indptr.npy``         CSR indptr of users x items, int64, shape (n_users + 1,)
# ``rows_indices.npy``        items, int32, shape (nnz,), ascending within a user
# ``rows_values.npy``         values, float32, shape (nnz,); no such file if all are 1
# ``columns_*.npy``           the same of the transposed matrix, items x users
# ``user_ids.npy``            sorted distinct ids, int64, uint64 or fixed-width text; also ``item_ids.npy``
# ``user_text.npy``           instead, if a fixed width would waste space: the ids one after the other in
#                             UTF-8, with ``user_offsets.npy``: where each begins, and where the last ends
# =========================== =======================================================================
#
# Opening a store reads only ``store.json``, the headers of the files, and ids in UTF-8.

import hashlib
import io
import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rgals.matrix.mapped import Column, Ids, StoredCSR
from rgals.runtime.checks import check_int
from rgals.runtime.errors import FileFormatError

DESCRIPTION, FORMAT, VERSION = "store.json", "rgals-store", 1
HEAD = 128  # bytes of the header of a one-dimensional npy file


class Sample(NamedTuple):
    """Some users of a store in memory, and all of its items."""

    matrix: Any
    user_ids: np.ndarray
    item_ids: np.ndarray


class Store:
    """Interactions in a folder, accepted wherever a matrix is: see `open_matrix`.

    Attributes
    ----------
    path : Path
    matrix : CSR
        Users x items; entries stay on the disk.
    user_ids, item_ids : ndarray
        Sorted labels, which stay on the disk too, unless they are texts of very different lengths.
    shape : (int, int)
        ``(n_users, n_items)``.
    nnz : int
        Number of interactions.
    """

    def __init__(self, path: Path, matrix: StoredCSR, user_ids: np.ndarray, item_ids: np.ndarray) -> None:
        self.path, self.matrix, self.user_ids, self.item_ids = path, matrix, user_ids, item_ids
        self.shape, self.nnz = matrix.shape, matrix.nnz

    def __repr__(self) -> str:
        users, items = self.shape
        return f"Store({str(self.path)!r}: {users:,} users x {items:,} items, {self.nnz:,} interactions)"

    def sample(self, n_users: int, random_state: int = 0) -> Sample:
        """Random users with all their interactions, in memory: to tune on if all do not fit.

        Parameters
        ----------
        n_users : int
            0 or more; all users if there are fewer.
        random_state : int, default 0

        Returns
        -------
        Sample
            ``matrix`` (csr_array of float32), ``user_ids``, ``item_ids``; estimators take it as it is.

        Raises
        ------
        ParameterError
            ``n_users`` or ``random_state`` is no integer of 0 or more.
        """
        n, rng = self.shape[0], np.random.default_rng(check_int("random_state", random_state, 0))
        users = np.sort(rng.choice(n, min(check_int("n_users", n_users, 0), n), replace=False))
        rows = self.matrix.take_rows(users)
        return Sample(rows.to_scipy(), np.array(self.user_ids[users]), np.asarray(self.item_ids))


def open_matrix(path: str | os.PathLike, *, verify: bool = False) -> Store:
    r"""Open a store that `convert` wrote; nothing is read yet but its description.

    Parameters
    ----------
    path : str or path
        The folder.
    verify : bool, default False
        Read all files, and compare each with its stored SHA-256. Without this, files that are missing,
        truncated or of another type are noticed here, and indices out of range when they are read, but
        changed values are not.

    Returns
    -------
    Store
        Accepted by `fit`, `evaluate`, ``exclude`` and others in place of a matrix. It has ids.

    Raises
    ------
    FileFormatError
        The folder is no store, of a newer version or damaged; the message names the file.

    Examples
    --------
    >>> import os, tempfile
    >>> from rgals import RGALS
    >>> from rgals.matrix import convert, open_matrix
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     events, path = os.path.join(folder, "events.csv"), os.path.join(folder, "data.rgals")
    ...     with open(events, "w") as file:
    ...         n = file.write("user,item\nann,tea\nann,milk\nbob,tea\n")
    ...     store = convert(events, path)
    ...     print(open_matrix(path).shape, RGALS(K=2, random_state=0).fit(store).user_ids_)
    (2, 2) ['ann' 'bob']
    """
    folder = Path(path).absolute()  # so that the working directory may change
    about = _description(folder)
    n_users, n_items = shape = tuple(about["shape"])
    known = about["files"]
    for name, told in known.items():
        try:
            size = os.stat(folder / name).st_size
        except FileNotFoundError:
            raise FileFormatError(f"{folder / name} is missing; convert the data again") from None
        if size != told["bytes"]:
            found = f"it has {size:,} bytes of {told['bytes']:,}"
            raise FileFormatError(f"{folder / name} is damaged: {found}; convert the data again")
        if verify and file_digest(folder / name) != told["sha256"]:
            wrong = "its content is not what was written"
            raise FileFormatError(f"{folder / name} is damaged: {wrong}; convert the data again")
    sides = []
    for side, n_rows, n_cols in (("rows", n_users, n_items), ("columns", n_items, n_users)):
        indptr = _column(folder / f"{side}_indptr.npy", n_rows + 1, "<i8").mapped()
        indices = _column(folder / f"{side}_indices.npy", about["nnz"], "<i4")
        values: Any = np.empty(0, np.float32)
        if f"{side}_values.npy" in known:
            values = _column(folder / f"{side}_values.npy", about["nnz"], "<f4")
        sides.append(StoredCSR(indptr, indices, values, n_cols))
    ids = (_ids(folder, side, n, known) for side, n in zip(("user", "item"), shape, strict=True))
    return Store(folder, replace(sides[0], turned=sides[1]), *ids)


def _description(folder: Path) -> dict[str, Any]:
    path = folder / DESCRIPTION
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        problem = "has no store.json: it is no store, or its conversion never ended"
        raise FileFormatError(f"{folder} {problem}; make one with rgals.matrix.convert") from None
    try:
        about = json.loads(text)
        newer = about["format"] == FORMAT and about["version"] > VERSION
        if not newer and (about.pop("digest") != _digest(about) or about["format"] != FORMAT):
            raise ValueError("its content is not what was written")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(f"{path} is damaged: {error}; convert the data again") from error
    if newer:
        raise FileFormatError(f"{path} is of a newer version ({about['version']}); update rgals")
    return about


def _digest(about: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file: its numbers, then its header, in the order in which `ArrayFile` writes them."""
    with open(path, "rb", buffering=0) as file:
        head = file.read(HEAD)
        digest = hashlib.file_digest(file, "sha256")  # of what follows the header
    digest.update(head)
    return digest.hexdigest()


def _column(path: Path, size: int | None, kind: str = "") -> Column:
    """A one-dimensional npy file; a `FileFormatError` if it has not this ``size`` and dtype ``kind``."""
    try:
        found = np.lib.format.open_memmap(path, mode="r")
    except SystemError:  # a race in the parser of Python 3.11, where numpy parses headers in two threads
        return _column(path, size, kind)
    except (ValueError, OSError) as error:
        raise FileFormatError(f"{path} is damaged: {error}; convert the data again") from error
    whole = found.ndim == 1 and found.offset + found.nbytes == os.stat(path).st_size
    if not whole or (size is not None and len(found) != size) or (kind and found.dtype != np.dtype(kind)):
        said = f"it says to hold {found.dtype} of shape {found.shape}"
        raise FileFormatError(f"{path} is damaged: {said}; convert the data again")
    return Column(path, found.offset, found.dtype, len(found))


def _ids(folder: Path, side: str, n: int, known: dict[str, Any]) -> np.ndarray:
    if f"{side}_ids.npy" in known:
        column = _column(folder / f"{side}_ids.npy", n)
        if column.dtype.kind not in "iuU":
            raise FileFormatError(f"{column.path} is damaged: it holds {column.dtype}")
        ids = column.mapped().view(Ids)
        ids.ordered = True  # the writer sorts them
        return ids
    text = _column(folder / f"{side}_text.npy", None, "u1").mapped().tobytes()
    ends = _column(folder / f"{side}_offsets.npy", n + 1, "<i8").mapped().tolist()
    try:
        return np.array([text[a:b].decode() for a, b in zip(ends[:-1], ends[1:], strict=True)], object)
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{folder / side}_text.npy is damaged: {error}") from error


class Writer:
    """Writes the files of a store into an empty folder, and ``store.json`` at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.files = folder, dict[str, dict[str, Any]]()

    def save(self, name: str, dtype: Any, parts: Iterable[np.ndarray]) -> None:
        """Write a whole file from its consecutive parts."""
        file = ArrayFile(self, name, dtype)
        for part in parts:
            file.add(part)
        file.close()

    def describe(self, shape: tuple[int, int], nnz: int) -> None:
        """Write ``store.json``, which makes the folder a store."""
        about: dict[str, Any] = {"format": FORMAT, "version": VERSION, "shape": list(shape), "nnz": nnz}
        about["files"] = self.files
        about["digest"] = _digest(about)
        with open(self.folder / DESCRIPTION, "w", encoding="utf-8") as file:
            file.write(json.dumps(about, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())


class ArrayFile:
    """A one-dimensional npy file written in parts, then its header, which has the length; and its SHA-256."""

    def __init__(self, writer: Writer, name: str, dtype: Any) -> None:
        self.writer, self.name, self.dtype, self.size = writer, name, np.dtype(dtype), 0
        self.file = open(writer.folder / name, "w+b")  # noqa: SIM115 (closed by `close`)
        self.file.write(bytes(HEAD))
        self.digest = hashlib.sha256()

    def add(self, part: np.ndarray) -> None:
        """Append numbers."""
        data = np.ascontiguousarray(part, self.dtype).view(np.uint8).data
        self.file.write(data)
        self.digest.update(data)
        self.size += len(part)

    def close(self) -> None:
        """Write the header, flush the file to disk and tell the writer its size and digest."""
        head = io.BytesIO()
        descr = np.lib.format.dtype_to_descr(self.dtype)
        header = {"descr": descr, "fortran_order": False, "shape": (self.size,)}
        np.lib.format.write_array_header_1_0(head, header)
        assert head.tell() == HEAD
        n_bytes = self.file.tell()
        self.file.seek(0)
        self.file.write(head.getvalue())
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        self.digest.update(head.getvalue())
        self.writer.files[self.name] = {"bytes": n_bytes, "sha256": self.digest.hexdigest()}
