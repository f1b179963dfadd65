"""Synthetic implicit feedback of known structure."""

from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import scipy.sparse as sp

from rgals.datasets.interactions import Interactions
from rgals.matrix.entries import at_positions, shuffled_within_rows
from rgals.runtime.checks import check_choice, check_int, check_random_state, check_real
from rgals.runtime.errors import ParameterError

_GENRES = (
    "drama", "jazz", "comedy", "western", "opera", "thriller", "folk", "noir", "sci-fi", "ballet", "mystery",
    "punk", "fantasy", "tango", "horror", "choral", "romance", "techno", "anime", "blues", "musical", "ska",
    "crime", "ambient",
)  # fmt: skip
_START, _YEAR = 1_600_000_000, 365 * 86_400  # seconds; users join within a year from the start
_MIN_DEGREE = 5  # interactions of a user, at least
_MAX_ROUNDS = 30  # of drawing pairs until enough are distinct
_SIGMA = 0.9  # standard deviation of the logarithm of the number of interactions per user


@dataclass(frozen=True, eq=False, repr=False)
class SyntheticInteractions(Interactions):
    """What `make_implicit` returns: interactions and the structure they were drawn from.

    Attributes
    ----------
    matrix, user_ids, item_ids, timestamp, split
        As in `Interactions`.
    user_clusters : ndarray of int64, shape (n_users,)
        Favourite cluster of every user.
    item_clusters : ndarray of int64, shape (n_items,)
        Cluster of every item.
    user_tastes : ndarray of float64, shape (n_users, n_clusters)
        Probability with which a user picks from each cluster; rows sum to 1.
    item_popularity : ndarray of float64, shape (n_items,)
        Probability of an item in a pick that ignores taste; sums to 1.
    """

    user_clusters: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    item_clusters: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    user_tastes: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))
    item_popularity: np.ndarray = field(default_factory=lambda: np.empty(0))


def make_implicit(
    n_users: int = 2000,
    n_items: int = 1500,
    *,
    n_clusters: int | None = None,
    mean_interactions: float | None = None,
    popularity_exponent: float = 1.0,
    noise: float = 0.15,
    valued: bool = False,
    timestamps: bool = False,
    labels: str = "text",
    random_state: int | np.random.RandomState | np.random.Generator | None = None,
) -> SyntheticInteractions:
    r"""Implicit feedback with clusters of taste, skewed popularity and a long tail of heavy users.

    Every item belongs to one cluster and has a popularity :math:`\propto (r + 10)^{-e}` with its random rank
    :math:`r` and :math:`e` = ``popularity_exponent``. A user has a favourite cluster and some taste for
    others, and a lognormal number of interactions. An interaction ignores taste with probability ``noise``;
    else a cluster is drawn by the user's taste. The item is then drawn by popularity, without repetition.

    Parameters
    ----------
    n_users, n_items : int, default 2000 and 1500
    n_clusters : int, optional
        Clusters of items, at most ``n_items``; None is 16, or as many as that.
    mean_interactions : float, optional
        Expected interactions per user, from 5 to half of the items; None is 40, or that half. No user has
        fewer or more, so a mean near half of the items is not reached.
    popularity_exponent : float, default 1.0
        0: all items of a cluster are equally popular.
    noise : float in [0, 1], default 0.15
        Share of interactions that follow popularity alone.
    valued : bool, default False
        Values are counts >= 1, higher in a user's favourite clusters; else 1.
    timestamps : bool, default False
        Add times in seconds since 1970: every user joins on a day of one year and goes on from there.
    labels : {"text", "int"}, default "text"
        Ids such as ``"user-0007"`` and ``"jazz-012"`` (the cluster and a number), or the row numbers.
    random_state : int, RandomState, Generator or None, default None

    Returns
    -------
    SyntheticInteractions
        `Interactions` of shape (n_users, n_items) with the true clusters. Rare items may have no interaction.

    Raises
    ------
    ParameterError
        A parameter is out of its range.

    Examples
    --------
    >>> from rgals.datasets import make_implicit
    >>> data = make_implicit(300, 200, n_clusters=4, mean_interactions=20, random_state=0)
    >>> data.matrix.shape, data.user_tastes.shape
    ((300, 200), (300, 4))
    >>> bool((data.matrix.sum(axis=1) >= 5).all())
    True
    """
    n_users, n_items = check_int("n_users", n_users, 1), check_int("n_items", n_items, 2 * _MIN_DEGREE)
    n_clusters = check_int("n_clusters", min(16, n_items) if n_clusters is None else n_clusters, 1, n_items)
    mean = min(40.0, n_items / 2) if mean_interactions is None else mean_interactions
    mean = check_real("mean_interactions", mean, _MIN_DEGREE, n_items / 2)
    popularity_exponent = check_real("popularity_exponent", popularity_exponent, 0.0)
    check_real("noise", noise, 0.0, 1.0)
    check_choice("labels", labels, ("text", "int"))
    rng = check_random_state(random_state)

    popularity = (rng.permutation(n_items) + 10.0) ** -popularity_exponent
    if popularity.sum() < np.finfo(float).tiny:
        problem = f"give less: of {n_items} items none has a probability above 0"
        raise ParameterError("popularity_exponent", popularity_exponent, problem)
    popularity /= popularity.sum()
    item_clusters = rng.permutation(np.arange(n_items) % n_clusters)
    user_clusters = rng.choice(n_clusters, n_users, p=rng.dirichlet(np.full(n_clusters, 3.0)))
    tastes = 0.4 * rng.dirichlet(np.full(n_clusters, 0.3), n_users)
    tastes[np.arange(n_users), user_clusters] += 0.6

    raw = rng.lognormal(-(_SIGMA**2) / 2, _SIGMA, n_users)
    degrees = np.rint(_MIN_DEGREE + (mean - _MIN_DEGREE) * raw)
    degrees = np.clip(degrees, _MIN_DEGREE, n_items // 2).astype(np.int64)
    keys = _draw(degrees, tastes, popularity, item_clusters, noise, rng)
    users, items = np.divmod(keys, n_items)
    values = np.ones(len(keys), np.float32)
    if valued:
        values += rng.poisson(6.0 * tastes[users, item_clusters[items]] * rng.gamma(0.7, size=len(keys)))
    matrix = at_positions(keys, (n_users, n_items), values).to_scipy()
    user_ids, item_ids = np.arange(n_users), np.arange(n_items)
    if labels == "text":
        width = max(4, len(str(n_users - 1)))
        user_ids, item_ids = np.array([f"user-{k:0{width}d}" for k in user_ids]), _item_labels(item_clusters)
    times = _times(matrix, users, rng) if timestamps else None
    truth = user_clusters, item_clusters, tastes, popularity
    return SyntheticInteractions(matrix, user_ids, item_ids, times, None, *truth)


def _draw(
    degrees: np.ndarray,
    tastes: np.ndarray,
    popularity: np.ndarray,
    clusters: np.ndarray,
    noise: float,
    rng: Any,
) -> np.ndarray:
    """Distinct pairs as sorted keys ``user * n_items + item``, about ``degrees[user]`` of each user."""
    n_users, n_clusters = tastes.shape
    n_items = len(popularity)
    by_cluster = np.argsort(clusters, kind="stable")
    ends = np.cumsum(np.bincount(clusters, popularity, minlength=n_clusters))
    starts = np.concatenate([[0.0], ends[:-1]])
    within = np.cumsum(popularity[by_cluster])
    overall = np.cumsum(popularity)
    taste_ends = np.cumsum(tastes, axis=1)
    taste_ends[:, -1] = 1.0
    # The distribution of user x over clusters becomes the interval [x, x + 1) of one increasing array: one
    # `searchsorted` draws for all users.
    taste_line = (taste_ends + np.arange(n_users)[:, None]).ravel()
    keys = np.empty(0, np.int64)
    for _ in range(_MAX_ROUNDS):
        missing = degrees - np.bincount(keys // n_items, minlength=n_users)
        users = np.repeat(np.arange(n_users), missing)
        if len(users) <= degrees.sum() // 1000:  # few: heavy users draw what they have
            break
        by_taste = rng.random_sample(len(users)) >= noise
        cell = np.searchsorted(taste_line, users + rng.random_sample(len(users)), side="right")
        cluster = np.clip(cell - users * n_clusters, 0, n_clusters - 1)
        height = rng.random_sample(len(users))
        inside = starts[cluster] + height * (ends[cluster] - starts[cluster])
        liked = by_cluster[np.minimum(np.searchsorted(within, inside, side="right"), n_items - 1)]
        popular = np.minimum(np.searchsorted(overall, height * overall[-1], side="right"), n_items - 1)
        keys = np.union1d(keys, users * n_items + np.where(by_taste, liked, popular))
    # Users who are still below the minimum get the most popular items.
    short = np.flatnonzero(np.bincount(keys // n_items, minlength=n_users) < _MIN_DEGREE)
    best = np.argsort(-popularity, kind="stable")[:_MIN_DEGREE]
    return np.union1d(keys, short[:, None] * n_items + best)


def _times(matrix: sp.csr_array, users: np.ndarray, rng: np.random.RandomState) -> np.ndarray:
    """Times of the entries, int64 seconds; each user's entries are in random order of time."""
    order = shuffled_within_rows(matrix, rng)
    gaps = np.cumsum(1.0 + rng.exponential(86_400.0 * 2, len(users)))
    before = np.concatenate([[0.0], gaps])[matrix.indptr[:-1]]
    joined = rng.randint(0, _YEAR, matrix.shape[0])
    times = np.empty(len(users), np.int64)
    times[order] = (_START + joined[users] + gaps - before[users]).astype(np.int64)
    return times


def _item_labels(clusters: np.ndarray) -> np.ndarray:
    """Ids such as "jazz-012": the genre of the cluster, and a number that counts from 1 in each."""
    width = max(3, len(str(len(clusters))))
    genres = [*_GENRES, *(f"genre{k}" for k in range(len(_GENRES), clusters.max() + 1))]
    numbers = [count(1) for _ in genres]
    return np.array([f"{genres[k]}-{next(numbers[k]):0{width}d}" for k in clusters.tolist()])
