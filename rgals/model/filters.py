"""Filters of recommendations: matrices with a row for each query, or one list for all."""

from __future__ import annotations

from typing import Any

import numpy as np

from rgals.matrix.csr import CSR
from rgals.matrix.validate import as_csr
from rgals.runtime.errors import ShapeError


def aligned(name: str, matrix: Any, n_rows: int, n_users: int, n_items: int) -> CSR:
    """A filter matrix with a row for each user of the call."""
    shape = getattr(matrix, "shape", None)
    if shape == (n_users, n_items) and n_rows != n_users:
        raise ShapeError(
            f"{name} has shape {shape}, a row for every user of the model, but it takes one for each of the "
            f"{n_rows} users asked for: give {name}[users]"
        )
    return as_csr(matrix, name=name, n_rows=n_rows, n_cols=n_items)


def is_matrix(filter_: Any) -> bool:
    """Whether a filter has a row for each query, rather than one list for all."""
    return isinstance(filter_, CSR) or getattr(filter_, "ndim", 1) == 2


def rows_of(filter_: Any, rows: np.ndarray) -> Any:
    """The part of a filter that belongs to some of the queries."""
    return filter_.take_rows(rows) if isinstance(filter_, CSR) else filter_
