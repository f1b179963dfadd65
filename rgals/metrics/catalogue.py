"""What the lists do to the catalogue: how much of it they show, how evenly, and how little known it is."""

from typing import Any

import numpy as np

from rgals.metrics._judged import as_lists, documented, numbers, of_catalogue, ratio
from rgals.runtime.checks import check_int

_OF_LISTS = "ndarray of float64, shape (B,)\n    NaN for empty lists. Padding does not count."


@documented("ndarray of int64, shape (n_items,)")
def exposure(ranked: Any, n_items: int, k: int | None = None) -> np.ndarray:
    """How many of the lists hold each item among the first k.

    Raises
    ------
    InputError
        A list holds an item that the catalogue does not have.

    >>> exposure([[0, 1], [0, -1]], 4)
    array([2, 1, 0, 0])
    """
    ids = of_catalogue(as_lists(ranked, k), check_int("n_items", n_items, 0))
    return np.bincount(ids[ids >= 0], minlength=n_items)


@documented("float", "import numpy as np")
def coverage(exposures: np.ndarray) -> float:
    """Share of the catalogue that is in at least one list (``"coverage@k"``).

    References
    ----------
    Herlocker et al., "Evaluating collaborative filtering recommender systems", TOIS 22(1), 2004, section 4.2.

    >>> coverage(np.array([2, 1, 0, 0]))
    0.5
    """
    return float(np.mean(numbers("exposures", exposures, "item") > 0))


@documented("float\n    NaN where nothing is shown or the catalogue has a single item.", "import numpy as np")
def gini(exposures: np.ndarray) -> float:
    """Gini index of the exposure (``"gini@k"``): 0 if all items are shown equally often, 1 if only one is.

    ``sum_j (2 j - N - 1) x_j / ((N - 1) sum x)`` with ``x_1 <= ... <= x_N``.

    References
    ----------
    Shani and Gunawardana, "Evaluating recommendation systems", Recommender Systems Handbook, 2011.

    >>> gini(np.array([0, 3, 0])), gini(np.array([3, 3, 3]))
    (1.0, 0.0)
    """
    ordered = np.sort(numbers("exposures", exposures, "item"))
    n, total = len(ordered), ordered.sum()
    if n < 2 or total == 0:
        return float("nan")
    return float((ordered * (2.0 * np.arange(1, n + 1) - n - 1)).sum() / ((n - 1) * total))


@documented(_OF_LISTS)
def novelty(ranked: Any, counts: np.ndarray, n_users: int, k: int | None = None) -> np.ndarray:
    """Mean self-information of the first k items, in bits (``"novelty@k"``).

    ``mean_i log2(n_users / max(counts[i], 1))`` over the items of the list: an item that half of the users
    know carries 1 bit; one that nobody knows counts like one that a single user knows.

    References
    ----------
    Zhou et al., "Solving the apparent diversity-accuracy dilemma of recommender systems", PNAS 107(10), 2010.

    >>> novelty([[0, 1], [1, -1]], [4, 1], n_users=4)
    array([1., 2.])
    """
    known = np.maximum(numbers("counts", counts, "item"), 1)
    return _mean_of_lists(ranked, np.log2(check_int("n_users", n_users, 1)) - np.log2(known), k)


@documented(_OF_LISTS)
def average_popularity(ranked: Any, counts: np.ndarray, k: int | None = None) -> np.ndarray:
    """Average recommendation popularity: mean training interactions of the first k items (``"arp@k"``).

    ``mean_i counts[i]`` over the items of the list.

    References
    ----------
    Yin et al., "Challenging the long tail recommendation", PVLDB 5(9), 2012. Abdollahpouri et al., "Managing
    popularity bias in recommender systems with personalized re-ranking", FLAIRS 2019.

    >>> average_popularity([[0, 1], [1, -1]], [4, 1])
    array([2.5, 1. ])
    """
    return _mean_of_lists(ranked, numbers("counts", counts, "item"), k)


def _mean_of_lists(ranked: Any, values: np.ndarray, k: int | None) -> np.ndarray:
    """Mean of a value of the items over the first k of each list; NaN where a list is empty."""
    ids = of_catalogue(as_lists(ranked, k), len(values))
    return ratio(np.append(values, 0.0)[ids].sum(axis=1), (ids >= 0).sum(axis=1))
