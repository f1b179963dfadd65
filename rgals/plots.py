"""Plots of fits, searches and recommendations; matplotlib is needed, ``pip install "rgals[plot]"``.

Every function takes fitted models or searches, draws into ``ax`` or a new figure, and returns the axes:
``plots.learning_curve(model).figure.savefig("curve.png")``. Without matplotlib: `MissingDependencyError`.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from textwrap import fill
from typing import Any

import numpy as np

from rgals.metrics._judged import numbers
from rgals.metrics._served import served, source_of
from rgals.metrics._table import parse
from rgals.metrics.catalogue import exposure
from rgals.runtime.checks import check_int
from rgals.runtime.errors import InputError, InputTypeError, ParameterError
from rgals.runtime.lazy import optional

__all__ = ["learning_curve", "popularity_bias", "spectrum", "sweep", "time_to_quality"]

#: Colours for thin lines; the colour-blind can distinguish the first eight (Okabe and Ito, 2008).
COLORS: tuple[str, ...] = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F3C8D")
COLORS += ("#555555", "#A05A2C", "#F07C7C", "#E7298A", "#66A61E", "#A6761D", "#444499", "#994455")
_WIDTH, _ROWS = 40, 18  # characters of a line, and lines of a column, of a legend
_NEEDED = "plots need matplotlib: pip install 'rgals[plot]'"
LINES = ("-", "--", "-.")  # for as many models as have colours, and again as many
SHARES = (0.95, 0.99)  # of the best quality: marked in plots of quality over seconds


def new_figure(width: float = 7, height: float = 4.3) -> Any:
    """A figure of this size in inches."""
    figure = optional("matplotlib.figure", _NEEDED)
    # Without pyplot, which keeps every figure in memory; notebooks show this one, too.
    return figure.Figure(figsize=(width, height), layout="constrained")


def mark_shares(ax: Any, best: float) -> None:
    """Draw and label lines at shares of the best quality."""
    for share in SHARES:
        ax.axhline(share * best, color="#999999", linewidth=0.8, linestyle=":")
        where = {"xy": (0.01, share * best), "xycoords": ("axes fraction", "data"), "va": "top"}
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5}  # over curves
        ax.annotate(f"{share:.0%} of best", **where, fontsize=8, color="#555555", bbox=box, zorder=5)


def axes(ax: Any) -> Any:
    """The given axes, or those of a new figure, with a grid and without the upper and right spines."""
    ax = new_figure().subplots() if ax is None else ax
    if "right" not in getattr(ax, "spines", ()):
        raise InputTypeError(f"ax is a {type(ax).__name__}; give plain axes of matplotlib's, or None")
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25)
    return ax


def as_text(name: Any) -> str:
    """A name as matplotlib shows it literally, in legends too."""
    # Two dollars enclose a formula, and labels that begin with an underscore are left out of legends.
    text = str(name).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _styled(models: Any) -> list[tuple[dict[str, Any], Any]]:
    """Colour and label of the line of each model, and the model; ``models`` is one, or several by name."""
    named = models if isinstance(models, Mapping) else {"": models}
    if not named:
        raise InputError("models: nothing is given to draw; for example {'RG2': model}")
    labels = [as_text(name) or None for name in named]
    n = len(COLORS)
    styles = [{"color": COLORS[k % n], "linestyle": LINES[k // n % len(LINES)]} for k in range(len(labels))]
    return [({**s, "label": label}, m) for s, label, m in zip(styles, labels, named.values(), strict=True)]


def legend(ax: Any, **options: Any) -> Any:
    """Add a legend if any line has a label, beside the axes if it is large, and return the axes."""
    lines, names = ax.get_legend_handles_labels()
    large = len(names) > 8 or max(map(len, names), default=0) > _WIDTH
    names = [fill(name, _WIDTH, initial_indent=name[: name.startswith(" ")]) for name in names]
    if large and ax.figure.get_layout_engine() is not None:  # which makes room
        options |= {"loc": "upper left", "bbox_to_anchor": (1, 1), "ncols": -(-len(names) // _ROWS)}
    if names:
        ax.legend(lines, names, **{"frameon": False, "fontsize": 9, **options})
    return ax


def whole_ticks(axis: Any) -> None:
    """Ticks of an axis at whole numbers."""
    locator = axis.get_major_locator()
    if isinstance(locator, optional("matplotlib.ticker", _NEEDED).MaxNLocator):  # no logarithmic one
        locator.set_params(integer=True, min_n_ticks=1)


def _scale_by(ax: Any, values: Sequence[float] | np.ndarray, which: str = "x") -> None:
    """Make an axis logarithmic if its values are positive and span a factor of 20 or more."""
    if len(values) > 1 and min(values) > 0 and max(values) >= 20 * min(values):
        # Labels at 1, 2 and 5, or over three decades at 1 alone, so that they do not overlap.
        getattr(ax, f"set_{which}scale")("log", subs=range(2, 10))
        axis = getattr(ax, f"{which}axis")
        axis.get_major_locator().set_params(subs=(1, 2, 5) if max(values) < 1000 * min(values) else (1,))
        axis.set_major_formatter("{x:g}")


def _is_metric(name: Any) -> bool:
    with suppress(ParameterError):
        return bool(parse(name))
    return False


def _history(fit: Any) -> list[dict[str, Any]]:
    history = getattr(fit, "history_", fit)
    if not isinstance(history, Sequence) or not all(isinstance(row, Mapping) for row in history):
        needed = "a fitted model or its history_ is needed, or a dict of them by name"
        raise InputTypeError(f"{needed}, not {type(fit).__name__}")
    if not history:
        raise InputError("the history is empty: there is nothing to draw")
    return [dict(row) for row in history]


def _draw(models: Any, x: str, y: str | None, ax: Any) -> tuple[Any, str, list[dict[str, Any]]]:
    """Plot ``y`` over ``x`` of all histories: the axes, the ``y`` chosen, and the rows that have it."""
    histories = [(style, _history(fit)) for style, fit in _styled(models)]
    shared = set.intersection(*({name for row in history for name in row} for _, history in histories))
    if y is None:
        y = min(filter(_is_metric, shared), default="objective")
    elif y not in shared:
        known = ", ".join(sorted(name for name in shared if name == "objective" or _is_metric(name)))
        problem = f"the history has {known}; fit(..., validation=) records a metric"
        raise ParameterError("y", y, problem)
    ax, drawn = axes(ax), list[dict[str, Any]]()
    for style, history in histories:
        rows = [row for row in history if y in row and np.isfinite(row[y])]
        drawn += rows
        at, values = [row[x] for row in rows], [row[y] for row in rows]
        ax.plot(at, values, marker="o" if len(rows) == 1 else None, **style)
        if _is_metric(y) and len(rows) > 1:  # a dot at the best iteration
            best = int((np.argmin if parse(y).falls else np.argmax)(values))
            ax.plot(at[best], values[best], "o", color=style["color"], markersize=5)
    if not drawn:
        raise InputError(f"{y} is a number in no iteration: there is nothing to draw")
    ax.set_ylabel(y.upper() if _is_metric(y) else y)
    _scale_by(ax, [row[y] for row in drawn if y == "objective"], "y")
    return ax, y, drawn


def learning_curve(models: Any, y: str | None = None, *, ax: Any = None) -> Any:
    """Draw the objective or the validation metric over the iterations of fits.

    Parameters
    ----------
    models : fitted model, history, or dict of str to either
        `rgals.RGALS`, `rgals.sgd.SGDRanker`, or their ``history_``; several by name.
    y : str, optional
        ``"objective"`` or a metric of the history, such as ``"ndcg@10"``. By default the metric, if all fits
        recorded one (``fit(..., validation=)`` or ``early_stopping=True``), else the objective.
    ax : matplotlib axes, by default those of a new figure

    Returns
    -------
    matplotlib axes
        The best iteration of a metric has a dot. Objectives that span decades have a logarithmic axis.

    Raises
    ------
    ParameterError
        The histories do not have ``y``.

    Examples
    --------
    >>> from rgals import RGALS, plots
    >>> from rgals.datasets import make_implicit
    >>> X = make_implicit(200, 100, random_state=0).matrix
    >>> models = {loss: RGALS(8, loss, random_state=0).fit(X) for loss in ("rg2", "ials")}
    >>> plots.learning_curve(models["rg2"]).get_ylabel()
    'objective'
    """
    ax, *_ = _draw(models, "iteration", y, ax)
    ax.set_xlabel("iteration")
    whole_ticks(ax.xaxis)
    return legend(ax)


def time_to_quality(models: Any, y: str | None = None, *, ax: Any = None) -> Any:
    """Draw the validation metric, or the objective, over the seconds of training.

    Parameters
    ----------
    models, y
        As in `learning_curve`. Lines mark 95 % and 99 % of the best value of a metric.
    ax : matplotlib axes, by default those of a new figure

    Returns
    -------
    matplotlib axes
        Seconds exclude evaluation; their axis is logarithmic if they span decades. The first fit of a process
        may compile: run `rgals.warmup` before.

    Raises
    ------
    ParameterError
        The histories do not have ``y``.

    Examples
    --------
    >>> from rgals import RGALS, plots
    >>> from rgals.datasets import make_implicit
    >>> X = make_implicit(200, 100, random_state=0).matrix
    >>> model = RGALS(8, early_stopping=True, random_state=0).fit(X)
    >>> plots.time_to_quality({"RG2": model}).get_ylabel()
    'NDCG@10'
    """
    ax, y, rows = _draw(models, "seconds", y, ax)
    ax.set_xlabel("seconds of training")
    _scale_by(ax, [row["seconds"] for row in rows])
    if rows and _is_metric(y) and not parse(y).falls:
        mark_shares(ax, max(row[y] for row in rows))
    return legend(ax)


def sweep(search: Any, parameter: str, *, ax: Any = None) -> Any:
    """Draw the score of a search over one of its parameters.

    Parameters
    ----------
    search : fitted search, its ``cv_results_``, or dict
        `rgals.RGALSCV`, scikit-learn's ``GridSearchCV`` and the like; or scores by values of the parameter.
    parameter : str
        As in ``cv_results_`` without ``param_``: ``"reg"``, ``"K"``, ``"loss__alpha"``.
    ax : matplotlib axes, by default those of a new figure

    Returns
    -------
    matplotlib axes
        A dot for every trial, a line through the best trial of each value, a band of its standard deviation
        over folds, and a ring at the highest score. If the search tried settings on a smaller scale first
        (``level``), only trials of the last scale are drawn: scores of different scales do not compare.

    Raises
    ------
    ParameterError
        The search has no such parameter, or no trial with a number for it.

    Examples
    --------
    >>> from rgals import plots
    >>> ax = plots.sweep({0.01: 0.31, 0.1: 0.34, 1.0: 0.29}, "reg")
    >>> ax.get_xlabel(), ax.get_xscale()
    ('reg', 'log')
    """
    values, scores, spread = _trials(search, parameter)
    distinct, group = np.unique(values, return_inverse=True)
    best = np.array([np.flatnonzero(group == k)[scores[group == k].argmax()] for k in range(len(distinct))])
    ax = axes(ax)
    ax.plot(values, scores, ".", color="#BBBBBB", markersize=5)
    ax.plot(distinct, scores[best], "o-", color=COLORS[0], markersize=4)
    if np.isfinite(spread).any():
        low, high = scores[best] - spread[best], scores[best] + spread[best]
        ax.fill_between(distinct, low, high, color=COLORS[0], alpha=0.12, linewidth=0)
    at = values[scores.argmax()], scores.max()
    ax.plot(*at, "o", color=COLORS[1], markersize=10, fillstyle="none")
    where = {"xytext": (0, 8), "textcoords": "offset points", "ha": "center"}
    ax.annotate(f"{at[0]:g}", at, **where, fontsize=9, color=COLORS[1])
    ax.margins(y=0.12)
    _scale_by(ax, distinct)
    if (distinct % 1 == 0).all():
        whole_ticks(ax.xaxis)
    ax.set_xlabel(parameter)
    score = getattr(search, "metric", None) or "score"
    ax.set_ylabel(score.upper() if _is_metric(score) else score)
    return ax


def _trials(search: Any, parameter: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values of a parameter, mean scores and standard deviations, of trials with a number for it."""
    found = getattr(search, "cv_results_", search)
    if not isinstance(found, Mapping) or not found:
        needed = "a fitted search, its cv_results_ or a dict of scores is needed"
        raise InputTypeError(f"{needed}, not {type(search).__name__}")
    if "mean_test_score" not in found:  # a dict of scores by value
        found = {f"param_{parameter}": list(found), "mean_test_score": list(found.values())}
    column = found.get(f"param_{parameter}")
    if column is None:
        known = sorted(name.removeprefix("param_") for name in found if name.startswith("param_"))
        raise ParameterError("parameter", parameter, f"the search has {', '.join(known)}")
    values: Any = np.ma.filled(np.ma.asarray(column, object), None)
    # Trials with another value, such as "auto", are not drawn.
    places = np.array([v if isinstance(v, int | float | np.number) else np.nan for v in values], float)
    scores = numbers("search", found["mean_test_score"], "value", "; of folds give the mean")
    spread = np.asarray(found.get("std_test_score", np.full(len(scores), np.nan)), float)
    if "level" in found:
        level = np.asarray(found["level"])
        places = np.where(level == level[np.isfinite(scores)].max(), places, np.nan)
    drawn = np.isfinite(places) & np.isfinite(scores)
    if not drawn.any():
        raise ParameterError("parameter", parameter, "no trial has a number for it and a score")
    return places[drawn], scores[drawn], spread[drawn]


_BATCH_USERS = 4096
_BINS = 12  # bins of popularity, of equal width on a logarithmic axis
_MIN_RATIO = 1e-3  # smaller ratios, zero among them, are drawn as this


def popularity_bias(models: Any, train: Any, *, n: int = 10, columns: Any = None, ax: Any = None) -> Any:
    """Draw how often items are recommended over how often they occur in the training data.

    Parameters
    ----------
    models : fitted model, pair of factors, callable, or dict of str to these
        As in `rgals.metrics.evaluate`; several by name.
    train : sparse matrix, Interactions or frame
        Training interactions, which are left out of the lists.
    n : int, default 10
        Length of the list of every user with training interactions.
    columns : dict or "matrix", optional
        If ``train`` is a frame: as in `rgals.RGALS.fit`.
    ax : matplotlib axes, by default those of a new figure

    Returns
    -------
    matplotlib axes
        A line for each model, over groups of items of similar popularity: their share of all recommendations,
        divided by their share of the training interactions. A line at 1 recommends in proportion to the data;
        a rising one favours popular items. Ratios below a thousandth are drawn as a thousandth.

    Raises
    ------
    InputError
        No user has a training interaction.

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
    pairs, ax = _styled(models), axes(ax)
    for style, model in pairs:
        popularity, shown, total = _exposure(model, train, n, columns)
        edges = np.geomspace(1, popularity.max() + 1, _BINS + 1)
        bin_of = np.clip(np.searchsorted(edges, popularity, "right") - 1, 0, _BINS - 1)
        items, interactions, lists = (np.bincount(bin_of, w, _BINS) for w in (None, popularity, shown))
        full = items > 0
        ratio = lists[full] / interactions[full] * (popularity.sum() / max(total, 1))
        ax.plot(
            interactions[full] / items[full], np.maximum(ratio, _MIN_RATIO), marker="o", markersize=4, **style
        )
    ax.axhline(1, color="#999999", linewidth=0.8, linestyle=":")
    ax.set(xlabel="training interactions of an item", ylabel="share of the lists / share of the data")
    _scale_by(ax, ax.dataLim.intervalx)
    _scale_by(ax, ax.dataLim.intervaly, "y")
    return legend(ax)


def _exposure(model: Any, train: Any, n: int, columns: Any) -> tuple[np.ndarray, np.ndarray, int]:
    """Training interactions, and lists with it, of every item in ``train``; lists with any item."""
    judged = served(model, train, train, "empty", columns, "train")
    users, counts = np.flatnonzero(judged.seen.row_counts), judged.seen.likes.col_counts
    if not counts.any():
        raise InputError("train: no user has an interaction; there is nothing to recommend from")
    n_items = judged.seen.n_cols
    shown = np.zeros(n_items, np.int64)
    for part in np.split(users, range(_BATCH_USERS, len(users), _BATCH_USERS)):
        lists = judged.lists(judged.answers(part), judged.seen.take_rows(part), min(n, n_items), None)
        shown += exposure(lists, n_items)
    return counts[counts > 0], shown[counts > 0], int(shown.sum())


def spectrum(models: Any, *, ax: Any = None) -> Any:
    """Draw the singular values of the score matrices of factor models.

    Parameters
    ----------
    models : fitted model, pair (P, Q), or dict of str to either
        Any model with ``user_factors_`` and ``item_factors_``; several by name.
    ax : matplotlib axes, by default those of a new figure

    Returns
    -------
    matplotlib axes
        The K singular values of ``P Q^T`` in descending order, at most as many as there are users or items.
        Those far below the first add little; whether they pay is told by validation (`sweep`).

    Raises
    ------
    InputTypeError
        A model has no factors.
    InputError
        All factors of a model are zero.

    Examples
    --------
    >>> from rgals import RGALS, plots
    >>> from rgals.datasets import make_implicit
    >>> X = make_implicit(200, 100, random_state=0).matrix
    >>> ax = plots.spectrum(RGALS(8, random_state=0).fit(X))
    >>> len(ax.lines[0].get_ydata())
    8
    """
    pairs, ax = _styled(models), axes(ax)
    names = list(models) if isinstance(models, Mapping) else ["the model"]
    for name, (style, model) in zip(names, pairs, strict=True):
        if callable(source := source_of(model)):
            raise InputTypeError(f"a model with factors or a pair of them is needed, not {type(model)}")
        # With P = A R and Q = B S, A and B orthonormal, P Q^T and R S^T have the same singular values.
        roots: list[Any] = [np.linalg.qr(factors.astype(np.float64), "r") for factors in source]
        found = np.linalg.svd(roots[0] @ roots[1].T, compute_uv=False)
        if not found.any():
            raise InputError(f"all factors of {name} are zero: there is nothing to draw")
        ax.plot(np.arange(1, len(found) + 1), found, marker=".", markersize=4, **style)
    ax.set(yscale="log", xlabel="number, from the largest", ylabel="singular value of the scores")
    whole_ticks(ax.xaxis)
    return legend(ax)
