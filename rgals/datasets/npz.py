"""Interactions in npz files: checked before anything is loaded, never with pickle."""

import errno
import math
import struct
import zipfile
import zlib
from collections.abc import Callable
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


def _array(archive: zipfile.ZipFile, key: str, path: Path) -> np.ndarray:
    """A member, once the shape and dtype that it declares are checked against its stored size."""
    info = archive.getinfo(f"{key}.npy")
    with archive.open(info) as member:
        major, _ = np.lib.format.read_magic(member)
        if major > 2:
            raise FileFormatError(f"{path}: {key} is stored in npy version {major}, which is not supported")
        read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(member)
        needed = member.tell() + math.prod(shape) * dtype.itemsize
    if dtype.hasobject:
        raise FileFormatError(f"{path}: {key} holds Python objects; only plain numbers are read")
    if needed != info.file_size:
        problem = f"which needs {needed} bytes, but {info.file_size} are stored"
        raise FileFormatError(f"{path}: {key} declares shape {shape} of {dtype}, {problem}")
    with archive.open(info) as member:
        return np.lib.format.read_array(member, allow_pickle=False)


def _refuse_hidden(archive: zipfile.ZipFile, path: Path) -> None:
    """Members must lie one behind the other: a damaged directory must not make an array disappear."""
    assert archive.fp is not None
    end, gaps = 0, []
    for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
        gaps.append(info.header_offset - end)
        archive.open(info).close()  # compares the name in the directory with that before the data
        archive.fp.seek(info.header_offset + 26)  # lengths of the name and of the rest of the local header
        end = info.header_offset + 30 + sum(struct.unpack("<HH", archive.fp.read(4))) + info.compress_size
    if not all(0 <= gap <= 24 for gap in (*gaps, archive.start_dir - end)):  # sizes may be behind the data
        raise FileFormatError(f"{path} is damaged: the members of the archive do not lie side by side")


def _load(path: Path) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if len(set(names)) < len(names):
            raise FileFormatError(f"{path}: a member occurs twice")
        _refuse_hidden(archive, path)
        keys = [name.removesuffix(".npy") for name in names if name.endswith(".npy")]
        if {"user", "item"} <= set(keys):
            wanted = [key for key in (*_COLUMNS, *_ID_KEYS) if key in keys]
        elif set(_SPARSE) <= set(keys):
            wanted = list(_SPARSE)
        else:
            needed = "the arrays user and item (and may hold rating, timestamp, split)"
            matrix = f"a matrix written by scipy.sparse.save_npz; it holds: {', '.join(keys) or 'nothing'}"
            raise FileFormatError(f"{path} needs {needed}, or {matrix}")
        arrays = {key: _array(archive, key, path) for key in wanted}
    for key in (key for key in _COLUMNS if key in arrays):
        array, kinds = arrays[key], _COLUMNS[key]
        if array.dtype.kind not in kinds:
            what = "numbers" if "f" in kinds else "integers"
            raise FileFormatError(f"{path}: {key} must hold {what}, not {array.dtype}")
        if array.ndim != 1 or array.shape != arrays["user"].shape:
            advice = f"all arrays must be as long as user, {arrays['user'].shape}"
            raise FileFormatError(f"{path}: {key} has shape {array.shape}; {advice}")
    return arrays


def holds_arrays(path: Path) -> bool:
    """Whether a file is a zip archive of npy members, whatever its name."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith(".npy") for name in archive.namelist())
    except zipfile.BadZipFile:
        return False


def read_npz(path: Path) -> Columns:
    """Columns of a npz in the project's form, or of a matrix that scipy wrote."""
    try:
        arrays = _load(path)
        matrix = as_csr(sp.load_npz(path), name=str(path), dislikes=True) if "indptr" in arrays else None
    except FileFormatError:
        raise
    except (*UNREADABLE, zlib.error, OSError) as error:
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
