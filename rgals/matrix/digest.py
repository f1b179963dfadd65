"""Digests of matrices, arrays and settings: whether a file belongs to these data."""

import hashlib
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from rgals.matrix.csr import CSR
from rgals.matrix.mapped import Column

_AT_ONCE = 1 << 22  # numbers read from a file at a time, which may be larger than memory


def update(digest: Any, value: Any) -> None:
    """Add a value to a digest: arrays by their bytes, dataclasses field by field, all else by its repr."""
    if isinstance(value, np.ndarray | Column) and value.dtype != object:
        digest.update(f"{value.dtype.str} {value.shape}".encode())
        _feed(digest, value if isinstance(value, Column) else value.reshape(-1))
    elif is_dataclass(value) and not hasattr(value, "get_params"):  # not losses: their repr has the class
        for part in fields(value):
            if part.compare:
                digest.update(part.name.encode())
                update(digest, getattr(value, part.name))
    elif isinstance(value, tuple):
        digest.update(f"{len(value)} parts".encode())
        for part in value:
            update(digest, part)
    else:
        text = repr(value.tolist() if isinstance(value, np.ndarray) else value)
        digest.update(text.encode("utf-8", "surrogatepass"))


def short_digest(*parts: CSR | np.ndarray) -> str:
    """16 hexadecimal digits of matrices and arrays; journals hold them, so what is hashed must not change."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, CSR):
            times = () if part.times is None else (part.times,)
            _feed(digest, np.array(part.shape), part.indptr, part.indices, part.values, *times)
        else:
            _feed(digest, part)
    return digest.hexdigest()[:16]


def fingerprint(matrix: CSR) -> str:
    """SHA-256 of the shape, structure and values of a matrix, not of its times; checkpoints hold it."""
    digest = hashlib.sha256(repr((matrix.shape, matrix.nnz, str(matrix.values.dtype))).encode())
    _feed(digest, matrix.indptr, matrix.indices, matrix.values)
    return digest.hexdigest()


def _feed(digest: Any, *arrays: Any) -> None:
    for array in arrays:
        for start in range(0, len(array), _AT_ONCE):
            digest.update(np.ascontiguousarray(array[start : start + _AT_ONCE]).view(np.uint8).data)
