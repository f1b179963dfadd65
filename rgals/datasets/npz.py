"""Interactions in npz files: checked before anything is loaded, never with pickle."""

import errno
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from rgals.datasets.frames import matrix_columns
from rgals.datasets.ids import Coded, IdMap, encode
from rgals.datasets.interactions import Columns
from rgals.files.archive import UNREADABLE
from rgals.matrix.validate import MAX_INDEX, as_csr
from rgals.runtime.errors import FileFormatError, InputError

# Key, kinds of dtype that it may have.
_COLUMNS = {"user": "iu", "item": "iu", "rating": "fiub", "timestamp": "iufM", "split": "iub"}
_ID_KEYS = [f"{side}_{key}" for side in ("user", "item") for key in ("labels", "text", "offsets", "integer")]
_SPARSE = ("indptr", "indices", "data", "shape", "format")


def holds_arrays(path: Path) -> bool:
    """Whether a file is a zip archive of npy members, whatever its name."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith(".npy") for name in archive.namelist())
    except zipfile.BadZipFile:
        return False


def read_npz(path: Path) -> Columns:
    """Columns of a npz in the project's form, or of a matrix that scipy wrote."""
    arrays, matrix = {}, None
    try:
        with open(path, "rb") as raw, zipfile.ZipFile(raw) as archive:
            damaged = archive.testzip()  # also names, and members that are not read
            raw.seek(-12, os.SEEK_END)
            if damaged or int.from_bytes(raw.read(2), "little") != len(archive.namelist()):
                # A damaged entry of the directory can swallow those behind it.
                raise zipfile.BadZipFile(f"{damaged or 'the directory'} is damaged")
        with np.load(path) as file:
            if {"user", "item"} <= set(file):
                arrays = _checked(file, path)
            elif set(_SPARSE) <= set(file):
                matrix = as_csr(sp.load_npz(path), name=str(path), dislikes=True)
            else:
                needed = "the arrays user and item (and may hold rating, timestamp, split)"
                other = f"a matrix written by scipy.sparse.save_npz; it holds: {', '.join(file) or 'nothing'}"
                raise FileFormatError(f"{path} needs {needed}, or {other}")
    except FileFormatError:
        raise
    except (*UNREADABLE, zlib.error, MemoryError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise FileFormatError(f"{path} is no readable npz file: {error}") from error
    if matrix is not None:
        return matrix_columns(matrix)

    def where(k: int) -> str:
        return f"{path}, row {k} (user {arrays['user'][k]}, item {arrays['item'][k]})"

    if len(arrays["user"]) == 0:
        raise FileFormatError(f"{path} holds no rows")
    user, item = (_side(arrays, side, path, where) for side in ("user", "item"))
    value, timestamp, split = (arrays.get(key) for key in ("rating", "timestamp", "split"))
    return Columns(*user, *item, value, timestamp, split, where)


def _checked(file: Mapping[str, np.ndarray], path: Path) -> dict[str, np.ndarray]:
    """The arrays of the project's form: plain numbers of the right kinds, all as long."""
    arrays = {}
    for key in (key for key in (*_COLUMNS, *_ID_KEYS) if key in file):
        try:
            array = arrays[key] = file[key]
        except ValueError as error:
            advice = f"only plain numbers are read ({error})"
            raise FileFormatError(f"{path}: {key} holds Python objects or is damaged; {advice}") from error
        kinds = _COLUMNS.get(key)
        if kinds is not None and array.dtype.kind not in kinds:
            what = "numbers" if "f" in kinds else "integers"
            raise FileFormatError(f"{path}: {key} must hold {what}, not {array.dtype}")
        if kinds is not None and (array.ndim != 1 or array.shape != arrays["user"].shape):
            advice = f"all arrays must be as long as user, {arrays['user'].shape}"
            raise FileFormatError(f"{path}: {key} has shape {array.shape}; {advice}")
    return arrays


def _side(arrays: dict[str, np.ndarray], side: str, path: Path, where: Callable[[int], str]) -> Coded:
    """Codes and labels of the users or of the items."""
    codes, labels = arrays[side], None
    if f"{side}_labels" in arrays or f"{side}_text" in arrays:
        try:
            labels = IdMap.from_arrays(arrays, f"{side}_", side).labels
        except InputError as error:
            raise FileFormatError(f"{path}: {error}") from error
    limit = MAX_INDEX if labels is None else len(labels) - 1
    bad = np.flatnonzero((codes < 0) | (codes > limit))
    if len(bad):
        raise FileFormatError(f"{where(int(bad[0]))}: the {side} is outside 0..{limit}")
    codes = codes.astype(np.int64)
    return encode(codes) if labels is None else (codes, labels)
