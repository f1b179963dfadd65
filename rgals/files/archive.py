"""npz archives of plain arrays, written atomically and checked when they are read."""

# A `FileSpec` describes a kind of file: `save_npz` writes and `load_npz` reads nothing that it does not
# allow.

import hashlib
import json
import math
import os
import re
import stat
import struct
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO
from zipfile import BadZipFile

import numpy as np

from rgals.files.atomic import atomic_file
from rgals.files.journal import as_json
from rgals.runtime.errors import InputError, InputTypeError, ModelFileError
from rgals.runtime.version import __version__

META = "meta"
MAX_META_BYTES = 4 << 20
_CHUNK = 1 << 20  # values that are checked at once
_END, _END64, _LOCATOR64 = 22, 56, 20  # bytes of the records at the end of a zip file
_MAX_DIRECTORY_BYTES = 1 << 16
_HEADER = re.compile(
    rb"\{'descr': '([<|][a-zA-Z]\d{1,9})', 'fortran_order': False, 'shape': \(([\d, ]{0,200})\), \} *\n"
)
# What zipfile, numpy and json raise on damaged files.
UNREADABLE = (BadZipFile, EOFError, ValueError, LookupError, ArithmeticError, RuntimeError, struct.error)


@dataclass(frozen=True)
class ArraySpec:
    """Type and shape that one array of a file must have."""

    dtypes: tuple[str, ...]  # as in dtype.str without the byte order: "f4", "i8", "u1"
    # Sizes by name: equal names mean equal sizes throughout the file, and "n_users+1" means one more.
    shape: tuple[str, ...]
    required: bool = True


@dataclass(frozen=True)
class FileSpec:
    """Format name, version and arrays of a kind of file."""

    format: str  # for example "rgals-model"
    version: int  # that is written, and the newest that is read
    arrays: Mapping[str, ArraySpec]  # every array that may occur


def save_npz(
    path: str | os.PathLike, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any], *, spec: FileSpec
) -> None:
    """Write arrays and metadata atomically to exactly ``path``, as an npz archive."""
    # The same content gives the same bytes. ``numpy.load(path, allow_pickle=False)`` reads the file too.
    # ``meta`` is anything that JSON can express; it is stored beside the name and version of the format, the
    # version of the package and a SHA-256 of every array. Content that does not follow ``spec`` is an
    # `InputError`, and metadata that JSON cannot express an `InputTypeError`.
    stored = {name: np.asarray(a, a.dtype.newbyteorder("<"), order="C") for name, a in arrays.items()}
    try:
        _check_layout({name: (array.dtype, array.shape) for name, array in stored.items()}, spec)
        for name, array in stored.items():
            _check_finite(name, array)
    except ModelFileError as fault:
        raise InputError(f"{fault}; nothing was written to {os.fspath(path)}") from None
    header = {"format": spec.format, "format_version": spec.version, "rgals_version": __version__}
    header |= {"checksums": {name: _digest(array) for name, array in stored.items()}, "content": dict(meta)}
    try:
        text = as_json(header).encode()
    except (TypeError, ValueError) as error:
        raise InputTypeError(f"metadata cannot be stored as JSON: {error}") from error
    if len(text) > MAX_META_BYTES:
        raise InputError(f"metadata are {len(text)} bytes long; at most {MAX_META_BYTES} can be stored")
    with atomic_file(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in {META: np.frombuffer(text, np.uint8), **stored}.items():
            write_member(archive, name, array.shape, array.dtype, [array])


def write_member(
    archive: zipfile.ZipFile, name: str, shape: tuple[int, ...], dtype: Any, parts: Iterable[np.ndarray]
) -> None:
    """Add an array, given in consecutive parts, to an npz file; same content has same bytes everywhere."""
    header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
    is_large = math.prod(shape) * np.dtype(dtype).itemsize >= 1 << 31
    entry = zipfile.ZipInfo(f"{name}.npy")  # of a fixed date
    entry.create_system = 3
    with archive.open(entry, "w", force_zip64=is_large) as member:
        np.lib.format.write_array_header_1_0(member, header)  # type: ignore[arg-type]
        for part in parts:
            member.write(_bytes(np.ascontiguousarray(part, dtype)))


def _bytes(array: np.ndarray) -> memoryview:
    """The bytes of a C-contiguous array, without a copy."""
    return array.reshape(-1).view(np.uint8).data


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(_bytes(array)).hexdigest()


class OtherFormatError(ModelFileError):
    """The file is of rgals, but of another format than the one that was expected."""


def _check_layout(arrays: Mapping[str, tuple[np.dtype, tuple[int, ...]]], spec: FileSpec) -> None:
    """Refuse names, types and shapes that the specification does not allow."""
    known: dict[str, tuple[int, str]] = {}
    for name, (dtype, shape) in arrays.items():
        if name not in spec.arrays:
            raise ModelFileError(f"{name!r} is not an array of a {spec.format} file")
        wanted = spec.arrays[name]
        if dtype.str[1:] not in wanted.dtypes:
            raise ModelFileError(f"array {name!r} holds {dtype} values, not {' or '.join(wanted.dtypes)}")
        expected = str(wanted.shape).replace("'", "")
        problem = f"array {name!r} has shape {shape}, expected {expected}"
        if len(shape) != len(wanted.shape):
            raise ModelFileError(problem)
        for size, rule in zip(shape, wanted.shape, strict=True):
            symbol, _, more = rule.partition("+")
            value = size - int(more or 0)
            earlier, where = known.setdefault(symbol, (value, name))
            if value != earlier or value < 0:
                raise ModelFileError(f"{problem} with {symbol} = {earlier} as in {where!r}")
    for name, wanted in spec.arrays.items():
        if wanted.required and name not in arrays:
            raise ModelFileError(f"array {name!r} is missing")


def _check_finite(name: str, array: np.ndarray) -> None:
    for start in range(0, array.size if array.dtype.kind == "f" else 0, _CHUNK):
        good = np.isfinite(array.reshape(-1)[start : start + _CHUNK])
        if not good.all():
            at = tuple(map(int, np.unravel_index(start + int(np.argmin(good)), array.shape)))
            raise ModelFileError(f"array {name!r} holds a value that is not finite at {at}")


def load_npz(path: str | os.PathLike, *, expected: FileSpec) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read arrays and metadata of a file that `save_npz` wrote, without trusting its content."""
    # Names, types, shapes and sizes are checked against ``expected`` and against the size of the file before
    # any array is allocated; then every array is checked against its checksum. A `ModelFileError` names the
    # file and the fault.
    if not isinstance(path, str | os.PathLike):
        raise InputTypeError(f"give the path of a file, as a text or a pathlib.Path, not {path!r}")
    name = os.fspath(path)
    if not stat.S_ISREG(os.stat(name).st_mode):
        raise ModelFileError(f"{name} is not a file")
    with open(name, "rb") as file:
        return _read(file, os.fstat(file.fileno()).st_size, name, expected)


def _read(file: BinaryIO, size: int, name: str, expected: FileSpec) -> tuple[dict[str, np.ndarray], dict]:
    try:
        _check_end(file, size)
        with zipfile.ZipFile(file) as archive:
            entries = _entries(archive, size, expected)
            header = _read_meta(archive, entries.pop(META), expected)
            layouts = {key: _read_layout(archive, entry) for key, entry in entries.items()}
            _check_layout(layouts, expected)
            if any(length > size for _, shape in layouts.values() for length in shape):
                raise ModelFileError("an empty array declares a dimension larger than the file")
            checksums = header.get("checksums")
            if not isinstance(checksums, dict) or checksums.keys() != layouts.keys():
                raise ModelFileError("the checksums are missing, or do not belong to the arrays")
            arrays = {}
            for key, entry in entries.items():
                arrays[key] = array = _read_array(archive, entry)
                if _digest(array) != checksums[key]:
                    raise ModelFileError(f"array {key!r} does not match its checksum")
                _check_finite(key, array)
            return arrays, header["content"]
    except ModelFileError as fault:
        raise type(fault)(f"{name}: {fault}") from None
    except UNREADABLE as error:
        reason = str(error) or type(error).__name__
        raise ModelFileError(f"{name}: damaged or not a {expected.format} file ({reason})") from error


def _check_end(file: BinaryIO, size: int) -> None:
    """Refuse files with other bytes before or after the archive, or a directory of another size."""
    file.seek(0)
    if file.read(4) != b"PK\3\4":
        raise ModelFileError("not an npz file" if size else "the file is empty")
    file.seek(max(0, size - _END64 - _LOCATOR64 - _END))
    tail = file.read()
    end = tail[-_END:]
    if len(end) < _END or end[:4] != b"PK\5\6" or end[-2:] != b"\0\0":
        raise ModelFileError("the end of the file is missing")
    length, start = struct.unpack("<12xII2x", end)
    closing = _END
    if tail[-_END - _LOCATOR64 :][:4] == b"PK\6\7":  # zip64, for files beyond 4 GiB
        if tail[:4] != b"PK\6\6":
            raise ModelFileError("the end of the file is damaged")
        length, start = struct.unpack("<40xQQ", tail[:_END64])
        closing += _END64 + _LOCATOR64
    if length > _MAX_DIRECTORY_BYTES or start + length + closing != size:
        raise ModelFileError("the directory of the file is damaged")


def _entries(archive: zipfile.ZipFile, size: int, expected: FileSpec) -> dict[str, zipfile.ZipInfo]:
    """Members by array name, checked: uncompressed, distinct, and together no larger than the file."""
    found: dict[str, zipfile.ZipInfo] = {}
    if f"{META}.npy" not in archive.namelist():
        raise ModelFileError(f"not a {expected.format} file: it holds no metadata")
    for entry in archive.infolist():
        key = entry.filename.removesuffix(".npy")
        if entry.filename == key or key in found:
            raise ModelFileError(f"unexpected member {entry.filename[:80]!r}")
        if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
            raise ModelFileError(f"member {entry.filename[:80]!r} is compressed, which rgals never does")
        found[key] = entry
    if sum(entry.file_size for entry in found.values()) > size:
        raise ModelFileError("the members overlap or reach past the end of the file")
    return found


def _read_meta(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, expected: FileSpec) -> dict[str, Any]:
    """Read the metadata and refuse other kinds of files and newer versions."""
    if entry.file_size > MAX_META_BYTES + 256:
        raise ModelFileError(f"{entry.file_size} bytes of metadata; at most {MAX_META_BYTES} are allowed")
    dtype, shape = _read_layout(archive, entry)
    if dtype != np.uint8 or len(shape) != 1:
        raise ModelFileError("the metadata are not bytes")
    header = json.loads(_read_array(archive, entry).tobytes())
    if not isinstance(header, dict) or not isinstance(header.get("content"), dict):
        raise ModelFileError(f"not a {expected.format} file: its metadata are of another kind")
    kind, version = header.get("format"), header.get("format_version")
    if kind != expected.format:
        raise OtherFormatError(f"not a {expected.format} file but {str(kind)[:80]!r}")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ModelFileError(f"{str(version)[:80]!r} is not a format version")
    if version > expected.version:
        writer = str(header.get("rgals_version"))[:40]
        reads = f"this rgals {__version__} reads up to version {expected.version}"
        raise ModelFileError(f"written by rgals {writer} in format version {version}; {reads}: upgrade rgals")
    return header


def _read_layout(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> tuple[np.dtype, tuple[int, ...]]:
    """Type and shape that a member declares, checked against its size before anything is allocated."""
    name = f"member {entry.filename!r}"
    with archive.open(entry) as member:
        prefix = member.read(10)
        length = int.from_bytes(prefix[8:], "little")
        header = member.read(length)
    if prefix[:8] != b"\x93NUMPY\x01\x00":
        raise ModelFileError(f"{name} is not an array")
    # Only headers as numpy writes them for plain arrays: its own parser evaluates any Python literal.
    match = _HEADER.fullmatch(header)
    if match is None:
        raise ModelFileError(f"{name} declares an array of a kind that rgals never writes")
    try:
        dtype = np.dtype(match[1].decode())
    except TypeError:
        raise ModelFileError(f"{name} declares the unknown type {match[1].decode()}") from None
    shape = tuple(int(number) for number in match[2].split(b",") if number.strip())
    if 10 + length + math.prod(shape) * dtype.itemsize != entry.file_size:
        raise ModelFileError(f"{name} declares {dtype} of shape {shape}, but has another size")
    return dtype, shape


def _read_array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    """Read a member whose layout was checked; zipfile checks the CRC at its last byte."""
    with archive.open(entry) as member:
        return np.lib.format.read_array(member, allow_pickle=False)
