"""k-core: users and items that have k interactions among themselves."""

from typing import Any, NamedTuple

import numpy as np

from rgals.datasets.given import given
from rgals.matrix.entries import core_members
from rgals.runtime.checks import check_int
from rgals.runtime.errors import ParameterError


class Core(NamedTuple):
    """What `k_core` returns.

    Attributes
    ----------
    matrix : csr_array or Interactions, shape (n_kept_users, n_kept_items)
        Interactions where ``X`` has ids.
    users : ndarray of int64, shape (n_kept_users,)
        Row numbers kept, increasing.
    items : ndarray of int64, shape (n_kept_items,)
        Column numbers kept, increasing.
    """

    matrix: Any  # csr_array or Interactions
    users: np.ndarray
    items: np.ndarray


def check_core(k: Any) -> tuple[int, int]:
    """The two minimum degrees, of users and of items."""
    if isinstance(k, tuple | list):
        if len(k) != 2:
            raise ParameterError("k", k, "give one integer, or two: for users and for items")
        return check_int("k", k[0], 0), check_int("k", k[1], 0)
    return (check_int("k", k, 0),) * 2


def k_core(X: Any, k: int | tuple[int, int], *, columns: Any = None) -> Core:
    """Drop users and items with too few interactions until none is left that has too few.

    Parameters
    ----------
    X : sparse matrix, array, Interactions or frame, shape (n_users, n_items)
        Interactions are counted, whatever their values.
    k : int or (int, int)
        Minimum number of interactions of a user and of an item that stays; two numbers where they differ.
        0 keeps even empty rows or columns.
    columns : dict or "matrix", optional
        Where ``X`` is a frame: as in `rgals.RGALS.fit`.

    Returns
    -------
    Core
        ``(matrix, users, items)``: the largest part in which every user and item has enough, and which rows
        and columns of ``X`` it consists of. It may be empty. It does not depend on the order of removal.

    Raises
    ------
    ParameterError
        ``k`` is not one or two integers >= 0.

    Examples
    --------
    >>> import numpy as np
    >>> from rgals.model_selection import k_core
    >>> core = k_core(np.array([[1, 1, 0], [1, 1, 1], [0, 0, 1]]), 2)
    >>> core.users, core.items
    (array([0, 1]), array([0, 1]))
    """
    k_user, k_item = check_core(k)
    found = given(X, columns)
    matrix = found.csr()
    users, items = core_members(matrix, k_user, k_item)
    return Core(found.take(matrix, users, items), users, items)
