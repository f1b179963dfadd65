"""Splitting interactions into training, validation and test parts."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from rgals.datasets.given import Given, given
from rgals.datasets.interactions import timestamps
from rgals.datasets.times import in_unit_of, is_moment, moments
from rgals.matrix.csr import CSR
from rgals.matrix.entries import entry_rows, part_sizes, parts_by_position, random_parts
from rgals.runtime.checks import check_choice, check_int, check_random_state
from rgals.runtime.errors import InputError, InputTypeError, ParameterError, ShapeError


def check_ratios(ratios: Any) -> np.ndarray:
    """The ``ratios`` as an array: two or more shares >= 0 that sum to 1, the first above 0."""
    try:
        shares = np.asarray(ratios, dtype=np.float64)
    except (TypeError, ValueError):
        shares = np.empty(0)
    good = shares.ndim == 1 and len(shares) >= 2 and (shares >= 0).all()
    if not good or shares[0] <= 0 or abs(shares.sum() - 1) > 1e-6:
        give = "give at least two shares >= 0 that sum to 1, the first above 0"
        raise ParameterError("ratios", ratios, give)
    return shares


def _parts(found: Given, matrix: sp.csr_array, part: np.ndarray, n_parts: int) -> tuple[Any, ...]:
    return tuple(found.where(matrix, part == k) for k in range(n_parts))


def split_interactions(
    X: Any,
    ratios: Sequence[float] = (0.8, 0.1, 0.1),
    *,
    by: str = "user",
    random_state: int | np.random.RandomState | np.random.Generator | None = None,
    columns: Any = None,
) -> tuple[Any, ...]:
    """Split interactions at random into training and held-out parts.

    Parameters
    ----------
    X : sparse matrix, array, Interactions or frame, shape (n_users, n_items)
    ratios : sequence of float, default (0.8, 0.1, 0.1)
        Shares of training, validation and test, or of training and test; they sum to 1.
    by : {"user", "global"}, default "user"
        "user" applies the shares to every user. "global" applies them to all interactions together, so that
        some users may have none in a part.
    random_state : int, RandomState, Generator or None, default None
    columns : dict or "matrix", optional
        Where ``X`` is a frame: as in `rgals.RGALS.fit`.

    Returns
    -------
    tuple of csr_array, one for each ratio, each of shape (n_users, n_items)
        Their sum is ``X``; values are kept. Of Interactions and of frames of users and items: Interactions
        with the ids of ``X``, and its timestamps.

    Raises
    ------
    ParameterError
        The ratios do not sum to 1, or ``by`` is unknown.

    Notes
    -----
    Rounding. Of n interactions each held-out part gets floor(ratio * n), training the rest. A held-out part
    that would get none, though its ratio is above 0, takes one from training as long as training keeps one;
    the last part (test) comes first. With (0.8, 0.1, 0.1) a user with 1 interaction has it in training, with
    2 one in training and one in test, with 3 to 19 one each in validation and test. This is the rule of
    RecStudio, with which the RG losses were published. With ``by="global"`` n counts all interactions.

    Examples
    --------
    >>> import numpy as np
    >>> from rgals.model_selection import split_interactions
    >>> train, validation, test = split_interactions(np.ones((2, 20)), random_state=0)
    >>> train.shape, train.nnz, validation.nnz, test.nnz
    ((2, 20), 32, 4, 4)
    """
    shares = check_ratios(ratios)
    check_choice("by", by, ("user", "global"))
    found = given(X, columns)
    matrix = found.csr()
    rng = check_random_state(random_state)
    if by == "user":
        part = random_parts(matrix, shares, rng)
    else:
        sizes = part_sizes(np.array([matrix.nnz]), shares)[0]
        part = rng.permutation(np.repeat(np.arange(len(shares)), sizes))
    return _parts(found, matrix, part, len(shares))


def _with_timestamp(X: Any, timestamp: Any, columns: Any) -> tuple[Given, sp.csr_array, np.ndarray]:
    """What was given, its canonical matrix, and the time of every entry of that."""
    found = given(X, columns)
    found.refuse_beside(timestamp=timestamp)
    timestamp, X = found.timestamp if timestamp is None else timestamp, found.matrix
    if timestamp is None:
        raise InputError("these interactions have no timestamps; give timestamp= one for every entry")
    if not sp.issparse(X) and not isinstance(X, CSR):
        raise InputTypeError("give a sparse CSR matrix, so that timestamps can belong to its stored entries")
    matrix = found.csr()
    if not isinstance(X, CSR) and (X.format != "csr" or not np.array_equal(X.indices, matrix.indices)):
        raise InputError(
            "timestamps belong to the stored entries, so the matrix must be canonical: CSR with sorted rows, "
            "no duplicates and no stored zeros (call tocsr, sum_duplicates and eliminate_zeros first)"
        )
    if np.shape(timestamp) != (matrix.nnz,):
        raise ShapeError(f"timestamp has shape {np.shape(timestamp)}; the matrix stores {matrix.nnz} entries")
    return found, matrix, timestamps(timestamp, lambda k: f"timestamp[{k}] (row {entry_rows(matrix)[k]})")


def leave_last_out(
    X: Any, timestamp: Any = None, n: int | tuple[int, int] = 1, *, columns: Any = None
) -> tuple[Any, ...]:
    """Hold out the latest interactions of every user.

    Parameters
    ----------
    X : sparse CSR matrix, Interactions or frame, shape (n_users, n_items)
    timestamp : array-like, shape (nnz,), optional
        Time of every stored entry, in the order of ``X.data``; by default those that ``X`` has.
    n : int or (int, int), default 1
        How many interactions of each user are held out; two numbers: validation and test (the latest).
    columns : dict or "matrix", optional
        Where ``X`` is a frame: as in `rgals.RGALS.fit`.

    Returns
    -------
    (train, test) or (train, validation, test) of csr_array, shape (n_users, n_items)
        Interactions if `split_interactions` returns them. A user with no more than n interactions (the sum
        of the two) keeps all of them in training. Of equal times the higher column counts as the later one.

    Raises
    ------
    InputError
        There are no timestamps, or the matrix is not canonical so that they cannot be assigned; or no user
        has more than n interactions.
    ShapeError
        The timestamps are not as many as the entries.

    Examples
    --------
    >>> import numpy as np, scipy.sparse as sp
    >>> from rgals.model_selection import leave_last_out
    >>> train, test = leave_last_out(sp.csr_array(np.ones((1, 3))), timestamp=[5, 9, 7])
    >>> train.toarray(), test.toarray()
    (array([[1., 0., 1.]]), array([[0., 1., 0.]]))
    """
    held = tuple(n) if isinstance(n, tuple | list) else (n,)
    if len(held) not in (1, 2):
        raise ParameterError("n", n, "give one number, or two for validation and test")
    for k in held:
        check_int("n", k, 1)
    found, matrix, times = _with_timestamp(X, timestamp, columns)
    order = np.lexsort((times, entry_rows(matrix)))
    counts = np.diff(matrix.indptr)
    if 0 < (most := counts.max(initial=0)) <= sum(held):
        problem = "give fewer than some user has, as one interaction stays in training"
        raise ParameterError("n", n, f"{problem}; the most of any user is {most}")
    sizes = np.outer(counts > sum(held), (0, *held))
    sizes[:, 0] = counts - sizes.sum(axis=1)
    return _parts(found, matrix, parts_by_position(matrix, order, sizes), len(held) + 1)


def temporal_split(X: Any, cut: Any, timestamp: Any = None, *, columns: Any = None) -> tuple[Any, ...]:
    """Split at points in time: everything before the cut is training, the rest is held out.

    Parameters
    ----------
    X : sparse CSR matrix, Interactions or frame, shape (n_users, n_items)
    cut : number, date, or sequence of increasing numbers or dates
        A number is in the unit of the timestamps; a date is a text such as ``"2024-06-01"``, a datetime or
        a pandas Timestamp, UTC where it names no zone. An entry at the time of a cut belongs to the later
        part. `numpy.quantile` of the timestamps gives a cut for a share.
    timestamp, columns
        As in `leave_last_out`.

    Returns
    -------
    tuple of csr_array, one more than cuts, each of shape (n_users, n_items)
        Interactions if `split_interactions` returns them. What first occurs after the cut has no training.

    Raises
    ------
    InputError
        There are no timestamps, or the matrix is not canonical.
    ParameterError
        The cuts do not increase, or all interactions lie on one side of them.

    Examples
    --------
    >>> import numpy as np, scipy.sparse as sp
    >>> from rgals.model_selection import temporal_split
    >>> train, test = temporal_split(sp.csr_array(np.ones((1, 3))), cut=7, timestamp=[5, 9, 7])
    >>> train.toarray(), test.toarray()
    (array([[1., 0., 0.]]), array([[0., 1., 1.]]))
    """
    found, matrix, times = _with_timestamp(X, timestamp, columns)
    points = [cut] if is_moment(cut) or np.ndim(cut) == 0 else list(cut)
    dates = [is_moment(point) for point in points]
    if any(dates) != all(dates):
        raise ParameterError("cut", cut, "give times in the unit of the timestamps, or dates")
    try:
        cuts = in_unit_of(moments(points), times) if any(dates) else np.asarray(points)
    except (ValueError, TypeError) as error:
        raise ParameterError("cut", cut, f"{error}") from None
    bad = cuts.ndim != 1 or len(cuts) == 0 or cuts.dtype.kind not in "iuf"
    if bad or (cuts != cuts).any() or (cuts[1:] <= cuts[:-1]).any():
        raise ParameterError("cut", cut, "give one time, or several that increase")
    part = np.searchsorted(cuts, times, side="right")
    if len(part) and part.min() == part.max():  # the cut is a share, or in another unit
        problem = f"all timestamps, {times.min()} to {times.max()}, lie on one side"
        advice = "for a share give numpy.quantile of them (a number is in the unit of the timestamps)"
        raise ParameterError("cut", cut, f"{problem}; {advice}")
    return _parts(found, matrix, part, len(cuts) + 1)
