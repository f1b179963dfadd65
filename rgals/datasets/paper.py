"""The data preparation of the RG-loss paper: threshold, k-core, per-user 80/10/10."""

import os
from inspect import signature
from typing import Any

import numpy as np

from rgals.datasets.fetching import fetch
from rgals.datasets.given import given
from rgals.datasets.interactions import TEST, TRAIN, VALIDATION, Interactions
from rgals.datasets.read import read_interactions
from rgals.matrix.entries import core_members, random_parts
from rgals.runtime.checks import check_choice, check_random_state
from rgals.runtime.errors import InputError

# By data set: the smallest positive rating (None: all interactions are positive), the k of the k-core, and
# the numbers of users, items and interactions after that in Table 5 of the paper.
#
# The paper removes ratings below 3 from Electronics too. The numbers of its Table 5 are those of the
# published 5-core file with all ratings, though, so none can have been removed.
_SIZES = ("100k", "1m", "10m", "20m", "25m")
_Recipe = tuple[float | None, int, tuple[int, int, int] | None]
RECIPES: dict[str, _Recipe] = dict.fromkeys([f"ml-{size}" for size in _SIZES], (3.0, 5, None))
RECIPES["ml-10m"] = (3.0, 5, (69_815, 9_888, 8_240_192))
RECIPES["amazon-electronics"] = (None, 5, (192_403, 63_001, 1_689_188))
RECIPES["steam"] = (None, 5, (281_204, 11_961, 3_484_497))
RECIPES["simplewiki-links"] = (None, 20, (129_404, 129_432, 13_715_724))


def prepare_paper(
    name: str,
    data: Any = None,
    *,
    random_state: int | np.random.RandomState | np.random.Generator | None = 0,
    check: bool | None = None,
    folder: str | os.PathLike | None = None,
    **fetch_options: Any,
) -> Interactions:
    """A data set prepared as in the RG-loss paper (appendix B.1), split 80/10/10 within every user.

    Parameters
    ----------
    name : str
        "ml-10m" (ratings >= 3, 5-core), "amazon-electronics" (5-core; the paper states ratings >= 3 here too,
        but its Table 5 counts all of the published 5-core file), "steam" (5-core) or "simplewiki-links"
        (20-core), the sets of the paper; other MovieLens sets are prepared like "ml-10m".
    data : Interactions, or another source of `read_interactions`, optional
        Raw interactions to prepare by the recipe of ``name``; by default they are fetched.
    random_state : int, RandomState, Generator or None, default 0
        Of the split, rounded as by `rgals.model_selection.split_interactions`; the paper's is not published.
    check : bool, optional
        Compare the result with Table 5 of the paper. Default: True for fetched data, False for given data.
    folder, **fetch_options
        Passed to `fetch`.

    Returns
    -------
    Interactions
        All values are 1; ``train``, ``validation`` and ``test`` are the parts.

    Raises
    ------
    InputError
        The numbers are not those of Table 5, or nothing is left.

    Examples
    --------
    >>> from rgals.datasets import make_implicit, prepare_paper
    >>> raw = make_implicit(200, 150, mean_interactions=20, valued=True, random_state=0)
    >>> ready = prepare_paper("steam", raw)
    >>> ready.train.shape == ready.test.shape, bool(ready.matrix.data.max() == 1)
    (True, True)
    """
    min_value, core, size = RECIPES[check_choice("name", name, tuple(RECIPES))]
    signature(fetch).bind(name, **fetch_options)  # unknown options are refused with given data, too
    check = data is None if check is None else check
    if data is None:
        data = fetch(name, folder=folder, **fetch_options)
    elif not isinstance(data, Interactions):
        data = read_interactions(data)
    if min_value is not None:
        data = given(data).where(data.matrix, data.matrix.data >= np.float32(min_value))
    users, items = core_members(data.matrix, core, core)
    data = data.take(users, items)
    got = (data.n_users, data.n_items, data.nnz)
    if data.nnz == 0:
        raise InputError(f"{name}: nothing is left, no users and items have {core} interactions each")
    if check and size is not None and got != size:
        but = f"but Table 5 states {size}. Give check=False to use it all the same"
        raise InputError(f"{name}, prepared as in the paper, has users, items and interactions {got}, {but}")
    matrix = data.matrix.astype(bool).astype(np.float32)
    part = random_parts(matrix, np.array([0.8, 0.1, 0.1]), check_random_state(random_state))
    split = np.array([TRAIN, VALIDATION, TEST], np.int8)[part]
    return Interactions(matrix, data.user_ids, data.item_ids, data.timestamp, split)
