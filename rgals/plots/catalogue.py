"""What recommendations do to the catalogue, and what factors hold."""

from typing import Any

import numpy as np

from rgals.metrics._served import served
from rgals.metrics.catalogue import exposure
from rgals.plots._axes import axes, legend, styled
from rgals.runtime.checks import check_int
from rgals.runtime.errors import InputError, InputTypeError

_BATCH = 4096  # users
_BINS = 12  # of popularity, of equal width on the logarithmic axis
_LEAST = 1e-3  # of the ratio that is drawn


def popularity_bias(models: Any, train: Any, *, n: int = 10, columns: Any = None, ax: Any = None) -> Any:
    """Draw how often items are recommended over how often they occur in the training data.

    Parameters
    ----------
    models : fitted model, pair of factors, callable, or dict of str to these
        As in `rgals.metrics.evaluate`; several by name.
    train : sparse matrix, Interactions or frame
        Training interactions, which leave the lists.
    n : int, default 10
        Length of the lists of all users with training interactions.
    columns : dict or "matrix", optional
        Where ``train`` is a frame: as in `rgals.RGALS.fit`.
    ax : matplotlib axes, by default those of a new figure

    Returns
    -------
    matplotlib axes
        A line for each model: recommendations of an item, mean over items of about the same popularity,
        divided by what it would get in proportion to its interactions. A line at 1 recommends as the data
        are, one that rises recommends what is popular anyway. Less than a thousandth is drawn as that.

    Raises
    ------
    InputError
        No user has a training interaction.
    MissingDependencyError
        matplotlib is not installed.

    Examples
    --------
    >>> from rgals import RGALS, plots
    >>> from rgals.baselines import Popularity
    >>> from rgals.datasets import make_implicit
    >>> X = make_implicit(200, 100, random_state=0).matrix
    >>> models = {"RG2": RGALS(8, random_state=0).fit(X), "popularity": Popularity().fit(X)}
    >>> plots.popularity_bias(models, X).get_yscale()
    'log'
    """
    n = check_int("n", n, 1)
    pairs, ax = styled(models), axes(ax)
    for style, model in pairs:
        popularity, shown = _exposure(model, train, n, columns)
        edges = np.geomspace(1, popularity.max() + 1, _BINS + 1)
        bin_of = np.clip(np.searchsorted(edges, popularity, "right") - 1, 0, _BINS - 1)
        items, interactions, lists = (np.bincount(bin_of, w, _BINS) for w in (None, popularity, shown))
        full = items > 0
        ratio = lists[full] / interactions[full] * (popularity.sum() / max(shown.sum(), 1))
        at = interactions[full] / items[full]
        ax.plot(at, np.maximum(ratio, _LEAST), "o-", markersize=4, **style)
    ax.axhline(1, color="#999999", linewidth=0.8, linestyle=":")
    ax.set(xlabel="training interactions of an item", ylabel="recommended, over in proportion")
    ax.set(xscale="log", yscale="log")
    ax.xaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_major_formatter("{x:g}")
    legend(ax)
    return ax


def _exposure(model: Any, train: Any, n: int, columns: Any) -> tuple[np.ndarray, np.ndarray]:
    """Of every item that occurs: its training interactions, and how many lists hold it."""
    judged = served(model, train, train, "empty", columns)
    users = np.flatnonzero(judged.seen.row_counts)
    if len(users) == 0:
        raise InputError("train: no user has an interaction; there is nothing to recommend from")
    n_items = judged.seen.n_cols
    shown = np.zeros(n_items, np.int64)
    for start in range(0, len(users), _BATCH):
        part = users[start : start + _BATCH]
        lists = judged.lists(judged.answers(part), judged.seen.take_rows(part), min(n, n_items), None)
        shown += exposure(lists, n_items)
    counts = judged.seen.col_counts
    return counts[counts > 0], shown[counts > 0]


def spectrum(models: Any, *, ax: Any = None) -> Any:
    """Draw the singular values of the score matrices of factor models.

    Parameters
    ----------
    models : fitted model, pair (P, Q), or dict of str to either
        What has ``user_factors_`` and ``item_factors_``; several by name.
    ax : matplotlib axes, by default those of a new figure

    Returns
    -------
    matplotlib axes
        The K singular values of ``P Q^T``, or as many as there are users or items, largest first, over their
        number. Where they fall to nothing before the last, a smaller K or a lower ``reg`` would do.

    Raises
    ------
    MissingDependencyError
        matplotlib is not installed.

    Examples
    --------
    >>> from rgals import RGALS, plots
    >>> from rgals.datasets import make_implicit
    >>> X = make_implicit(200, 100, random_state=0).matrix
    >>> ax = plots.spectrum(RGALS(8, random_state=0).fit(X))
    >>> len(ax.lines[0].get_ydata())
    8
    """
    pairs, ax = styled(models), axes(ax)
    for style, model in pairs:
        # Of P Q^T they are those of R S^T, where P = A R and Q = B S with orthonormal A and B.
        roots: list[Any] = [np.linalg.qr(factors, "r") for factors in _factors(model)]
        found = np.linalg.svd(roots[0] @ roots[1].T, compute_uv=False)
        ax.plot(np.arange(1, len(found) + 1), found, ".-", markersize=4, **style)
    ax.set(yscale="log", xlabel="number", ylabel="singular value of the scores")
    legend(ax)
    return ax


def _factors(model: Any) -> tuple[np.ndarray, np.ndarray]:
    pair = getattr(model, "factors_", None) or model
    if hasattr(pair, "user_factors_"):
        pair = pair.user_factors_, pair.item_factors_
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise InputTypeError(f"a model with factors or a pair of them is needed, not {type(model).__name__}")
    return np.asarray(pair[0], np.float64), np.asarray(pair[1], np.float64)
