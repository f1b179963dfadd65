"""The data of a comparison: training, validation and test interactions."""

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rgals.datasets import read_interactions
from rgals.datasets.given import given, wanted_columns
from rgals.datasets.ids import as_labels
from rgals.matrix.csr import CSR
from rgals.matrix.entries import union
from rgals.matrix.validate import as_csr
from rgals.metrics._served import sample_users
from rgals.model_selection.protocol import Protocol, named_protocol
from rgals.runtime.errors import InputError, ParameterError, ShapeError


@dataclass(frozen=True)
class Split:
    """Training, validation and test interactions, each users x items, and the ids of the users.

    Attributes
    ----------
    train, validation, test : CSR, shape (n_users, n_items)
        Made from any matrix, sparse or dense.
    user_ids : ndarray or None
    """

    train: CSR
    validation: CSR
    test: CSR
    user_ids: np.ndarray | None = None

    def __post_init__(self) -> None:
        n_rows = n_cols = None
        for name in ("train", "validation", "test"):
            part = as_csr(getattr(self, name), name=name, n_rows=n_rows, n_cols=n_cols, dislikes=True)
            n_rows, n_cols = part.shape
            if part.nnz == 0:
                raise InputError(f"the {name} part has no interactions; the data are too small to be split")
            object.__setattr__(self, name, part)
        if self.user_ids is not None:
            object.__setattr__(self, "user_ids", as_labels(self.user_ids))
            if len(self.user_ids) != n_rows:
                raise ShapeError(
                    f"user_ids has {len(self.user_ids)} ids; give one for each of {n_rows} users"
                )

    @property
    def known(self) -> CSR:
        """Training and validation interactions, which are left out of rankings on test."""
        return union([self.train, self.validation]) or self.train


def prepare(
    data: Any,
    *,
    min_value: float | None = None,
    core: int | None = None,
    random_state: int = 0,
    protocol: Protocol | str | None = None,
    columns: Any = None,
) -> Split:
    """Read data and split them.

    Parameters
    ----------
    data : path, matrix, Interactions, frame or Split
        A marked test part is kept, and a tenth of every user's training part becomes validation; without
        one, the interactions of every user are split 80 / 10 / 10.
    min_value : float, optional
        Keep values >= ``min_value`` as positives of weight 1.
    core : int, optional
        Drop users and items with fewer interactions, repeatedly. A marked test part is then drawn anew.
    random_state : int
        Seed of the split.
    protocol : Protocol or str, optional
        How the parts are made, instead of the three options above; a string names one of
        `rgals.model_selection.PROTOCOLS`. Protocols that hold users out are not possible.
    columns : dict or "matrix", optional
        Of a frame, as in `rgals.RGALS.fit`; of a file, a dict with the name of the column of each role.

    Returns
    -------
    Split

    Raises
    ------
    InputError
        A part has no interactions.
    ParameterError
        The protocol is unknown, holds out users, or comes with an option that it decides itself.

    Examples
    --------
    >>> from rgals.compare import prepare
    >>> from rgals.datasets import make_implicit
    >>> split = prepare(make_implicit(100, 90, random_state=0), core=3)
    >>> split.train.shape == split.test.shape
    True
    """
    if isinstance(data, Split):
        if (min_value, core, random_state, protocol, columns) != (None, None, 0, None, None):
            raise ParameterError("data", "Split(...)", "it is split already; give options where it is made")
        return data
    protocol = named_protocol(protocol)
    if protocol is not None and not (min_value is None and core is None and random_state == 0):
        raise ParameterError("protocol", str(protocol), "it decides on min_value, core and seed itself")
    if isinstance(data, str | os.PathLike):
        if isinstance(columns, str):
            raise ParameterError("columns", columns, "columns of a file are named by their roles, in a dict")
        data = read_interactions(data, min_value=min_value, **wanted_columns(columns))
        min_value = columns = None
    data = given(data, columns, name="data")
    if not data.labelled:  # drop users and items without interactions
        data = given(read_interactions(data.csr()))
    if protocol is None:
        data = data if core is None else replace(data, split=None)
        kind = "user" if data.split is None else "given"
        protocol = Protocol(kind, min_value=min_value, core=core, seed=random_state)
    elif protocol.split == "held_out_users":
        raise ParameterError("protocol", str(protocol), "methods are compared on users of the training part")
    found = protocol.apply(data)
    return Split(found.train, found.validation, found.test, data.user_ids[found.users])


def some_users(validation: CSR, n_users: int | None) -> CSR:
    """The rows of ``n_users`` random users with positives (None: of all users); other rows become empty."""
    return validation.where(np.isin(validation.rows, sample_users(validation.likes, n_users)))
