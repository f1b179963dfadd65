"""Interactions in npz files: checked before anything is loaded, never with pickle."""

from __future__ import annotations

import errno
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from rgals.datasets.ids import IdMap, encode
from rgals.datasets.interactions import Columns
from rgals.matrix.validate import MAX_INDEX, as_csr
from rgals.runtime.errors import FileFormatError, InputError

# What zipfile and numpy raise on damaged files, besides their own errors.
_UNREADABLE = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, KeyError, ValueError, RuntimeError, OSError
)  # fmt: skip
# Key, kinds of dtype that it may have.
_COLUMNS = {"user": "iu", "item": "iu", "rating": "fiub", "timestamp": "iufM", "split": "iub"}
_ID_KEYS = [f"{side}_{key}" for side in ("user", "item") for key in ("labels", "text", "offsets", "integer")]
_SPARSE = ("indptr", "indices", "data", "shape", "format")


def _header(archive: zipfile.ZipFile, key: str, path: Path) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype that a member declares, checked against its stored size."""
    info = archive.getinfo(f"{key}.npy")
    with archive.open(info) as member:
        version = np.lib.format.read_magic(member)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if read is None:
            raise FileFormatError(f"{path}: {key} is stored in npy version {version}, which is not supported")
        shape, _, dtype = read(member)
        start = member.tell()
    size = int(dtype.itemsize)
    for n in shape:
        size *= int(n)
    if dtype.hasobject:
        raise FileFormatError(f"{path}: {key} holds Python objects; only plain numbers are read")
    if start + size != info.file_size:
        raise FileFormatError(
            f"{path}: {key} declares shape {shape} of {dtype}, which needs {start + size} bytes, but "
            f"{info.file_size} are stored"
        )
    return shape, dtype


def _refuse_hidden(archive: zipfile.ZipFile, path: Path) -> None:
    """Members must lie one behind the other: a damaged directory must not make an array disappear."""
    local = struct.Struct("<26xHH")  # at the end of a local header: length of the name and of the rest
    infos = sorted(archive.infolist(), key=lambda info: info.header_offset)
    starts = [info.header_offset for info in infos] + [archive.start_dir]
    for info, start, following in zip(infos, starts[:-1], starts[1:], strict=True):
        archive.open(info).close()  # compares the name in the directory with that before the data
        assert archive.fp is not None
        archive.fp.seek(start)
        end = start + local.size + sum(local.unpack(archive.fp.read(local.size))) + info.compress_size
        if not 0 <= following - end <= 24:  # some writers put the sizes behind the data
            raise FileFormatError(f"{path} is damaged: the archive has a gap after {info.filename}")
    if starts[0] != 0:
        raise FileFormatError(f"{path} is damaged: the archive does not start with its first member")


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
            raise FileFormatError(
                f"{path} needs the arrays user and item (and may hold rating, timestamp, split), or a matrix "
                f"written by scipy.sparse.save_npz; it holds: {', '.join(keys) or 'nothing'}"
            )
        headers = {key: _header(archive, key, path) for key in wanted}
    for key, kinds in _COLUMNS.items():
        if key not in headers or wanted[0] != "user":
            continue
        shape, dtype = headers[key]
        if dtype.kind not in kinds:
            what = "integers" if kinds.startswith("iu") and "f" not in kinds else "numbers"
            raise FileFormatError(f"{path}: {key} must hold {what}, not {dtype}")
        if len(shape) != 1 or shape != headers["user"][0]:
            raise FileFormatError(
                f"{path}: {key} has shape {shape}; all arrays must be as long as user, {headers['user'][0]}"
            )
    with np.load(path, allow_pickle=False) as file:
        return {key: file[key] for key in wanted}


def holds_arrays(path: Path) -> bool:
    """Whether a file is a zip archive of npy members, whatever its name."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith(".npy") for name in archive.namelist())
    except zipfile.BadZipFile:
        return False


def read_npz(path: Path) -> Columns | sp.csr_array:
    """Columns of a npz in the project's form, or the matrix of one written by scipy."""
    try:
        arrays = _load(path)
        if "indptr" in arrays:
            return as_csr(sp.load_npz(path), name=str(path)).to_scipy()
    except FileFormatError:
        raise
    except _UNREADABLE as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise FileFormatError(f"{path} is no readable npz file: {error}") from error

    def where(k: int) -> str:
        return f"{path}, row {k} (user {arrays['user'][k]}, item {arrays['item'][k]})"

    if len(arrays["user"]) == 0:
        raise FileFormatError(f"{path} holds no rows")
    sides: dict[str, Any] = {}
    for side in ("user", "item"):
        codes = arrays[side]
        try:
            ids = _ids(arrays, side)
        except InputError as error:
            raise FileFormatError(f"{path}: {error}") from error
        limit = MAX_INDEX if ids is None else len(ids) - 1
        bad = np.flatnonzero((codes < 0) | (codes > limit))
        if len(bad):
            raise FileFormatError(f"{where(int(bad[0]))}: the {side} is outside 0..{limit}")
        codes = codes.astype(np.int64)
        sides[side] = encode(codes) if ids is None else (codes, ids.labels)
    value, timestamp, split = (arrays.get(key) for key in ("rating", "timestamp", "split"))
    (user, users), (item, items) = sides["user"], sides["item"]
    return Columns(user, users, item, items, value, timestamp, split, where)


def _ids(arrays: dict[str, np.ndarray], side: str) -> IdMap | None:
    if not any(f"{side}_{key}" in arrays for key in ("labels", "text")):
        return None
    return IdMap.from_arrays(arrays, f"{side}_", side)
