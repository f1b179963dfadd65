"""What a fit went through, and what a search found."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rgals.metrics._table import parse
from rgals.plots._axes import COLORS, axes, legend, mark_shares, scale_by, styled
from rgals.runtime.errors import InputError, InputTypeError, ParameterError


def _is_metric(name: Any) -> bool:
    try:
        parse(name)
    except ParameterError:
        return False
    return True


def _history(fit: Any) -> list[dict[str, Any]]:
    history = getattr(fit, "history_", fit)
    if not isinstance(history, Sequence) or not all(isinstance(row, Mapping) for row in history):
        needed = "a fitted model or its history_ is needed, or a dict of them by name"
        raise InputTypeError(f"{needed}, not {type(fit).__name__}")
    if not history:
        raise InputError("the history is empty: there is nothing to draw")
    return [dict(row) for row in history]


def _drawn(histories: list[list[dict[str, Any]]], y: str | None) -> str:
    """What is drawn: the metric that every fit measured, or else the objective, unless it is named."""
    shared = set.intersection(*({name for row in history for name in row} for history in histories))
    if y is None:
        return min(filter(_is_metric, shared), default="objective")
    if y not in shared:
        known = ", ".join(sorted(name for name in shared if name == "objective" or _is_metric(name)))
        problem = f"the history has {known}; a metric is there after fit(..., validation=)"
        raise ParameterError("y", y, problem)
    return y


def _draw(models: Any, x: str, y: str | None, ax: Any) -> tuple[Any, str, list[dict[str, Any]]]:
    """The axes, what is drawn, and the rows of all histories."""
    histories = [(style, _history(fit)) for style, fit in styled(models)]
    y = _drawn([history for _, history in histories], y)
    ax = axes(ax)
    for style, history in histories:
        rows = [row for row in history if y in row]
        at, values = [row[x] for row in rows], [row[y] for row in rows]
        ax.plot(at, values, marker="o" if len(rows) == 1 else None, **style)
        if _is_metric(y) and len(rows) > 1:  # which iteration was the best
            best = int(np.argmax(values))
            ax.plot(at[best], values[best], "o", color=style["color"], markersize=5)
    ax.set_ylabel(y.upper() if _is_metric(y) else y)
    return ax, y, [row for _, history in histories for row in history]


def learning_curve(models: Any, y: str | None = None, *, ax: Any = None) -> Any:
    """Draw the objective or the validation metric over the iterations of fits.

    Parameters
    ----------
    models : fitted model, history, or dict of str to either
        `rgals.RGALS`, `rgals.sgd.SGDRanker`, or their ``history_``; several by name.
    y : str, optional
        ``"objective"`` or a metric of the history, as ``"ndcg@10"``. By default the metric, if all fits
        measured one (``fit(..., validation=)`` or ``early_stopping=True``), else the objective.
    ax : matplotlib axes, by default those of a new figure

    Returns
    -------
    matplotlib axes
        The best iteration of a metric has a dot.

    Raises
    ------
    ParameterError
        The histories do not have ``y``.
    MissingDependencyError
        matplotlib is not installed.

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
    ax.xaxis.get_major_locator().set_params(integer=True)
    legend(ax)
    return ax


def time_to_quality(models: Any, y: str | None = None, *, ax: Any = None) -> Any:
    """Draw the validation metric, or the objective, over the seconds of training.

    Parameters
    ----------
    models, y
        As in `learning_curve`. Of a metric, 95 % and 99 % of the best value are marked.
    ax : matplotlib axes, by default those of a new figure

    Returns
    -------
    matplotlib axes
        Seconds without those of evaluation, on a logarithmic axis where they span decades.

    Raises
    ------
    ParameterError
        The histories do not have ``y``.
    MissingDependencyError
        matplotlib is not installed.

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
    scale_by(ax, [row["seconds"] for row in rows])
    if _is_metric(y):
        mark_shares(ax, max(row[y] for row in rows if y in row))
    legend(ax, loc="lower right" if _is_metric(y) else "upper right")
    return ax


def sweep(search: Any, parameter: str, *, ax: Any = None) -> Any:
    """Draw the score of a search over one of its parameters.

    Parameters
    ----------
    search : fitted search, its ``cv_results_``, or dict
        `rgals.RGALSCV`, scikit-learn's ``GridSearchCV`` and the like; or a dict from values of the parameter
        to scores.
    parameter : str
        As in ``cv_results_`` without ``param_``: ``"reg"``, ``"K"``, ``"loss__alpha"``.
    ax : matplotlib axes, by default those of a new figure

    Returns
    -------
    matplotlib axes
        A dot for every trial, a line through the best of each value, with the standard deviation of this
        best one over the folds, and a ring where the highest score is. Where a search tried trials first on
        a smaller scale (``level``), only those of the last scale are drawn: the others have other scores.

    Raises
    ------
    ParameterError
        The search has no such parameter, or never gave it a number.
    MissingDependencyError
        matplotlib is not installed.

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
    winner = scores.argmax()
    ax.plot(values[winner], scores[winner], "o", color=COLORS[1], markersize=10, fillstyle="none")
    where = {"xytext": (0, 8), "textcoords": "offset points", "ha": "center"}
    at = values[winner], scores[winner]
    ax.annotate(f"{values[winner]:g}", at, **where, fontsize=9, color=COLORS[1])
    ax.margins(y=0.12)
    scale_by(ax, distinct)
    ax.set_xlabel(parameter)
    score = getattr(search, "metric", None) or "score"
    ax.set_ylabel(score.upper() if _is_metric(score) else score)
    return ax


def _trials(search: Any, parameter: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers that a parameter had, and the mean and the standard deviation of the scores."""
    found = getattr(search, "cv_results_", search)
    if not isinstance(found, Mapping) or not found:
        needed = "a fitted search, its cv_results_ or a dict of scores is needed"
        raise InputTypeError(f"{needed}, not {type(search).__name__}")
    if "mean_test_score" not in found:  # scores by value
        found = {f"param_{parameter}": list(found), "mean_test_score": list(found.values())}
    column = found.get(f"param_{parameter}")
    if column is None:
        known = sorted(name.removeprefix("param_") for name in found if name.startswith("param_"))
        raise ParameterError("parameter", parameter, f"the search has {', '.join(known)}")
    values: Any = np.ma.filled(np.ma.asarray(column, object), None)
    # What is no number, as "auto", is not drawn.
    numbers = np.array([v if isinstance(v, int | float | np.number) else np.nan for v in values], float)
    scores = np.asarray(found["mean_test_score"], float)
    spread = np.asarray(found.get("std_test_score", np.full(len(scores), np.nan)), float)
    if "level" in found:
        level = np.asarray(found["level"])
        numbers = np.where(level == level[np.isfinite(scores)].max(), numbers, np.nan)
    drawn = np.isfinite(numbers) & np.isfinite(scores)
    if not drawn.any():
        raise ParameterError("parameter", parameter, "no trial has a number for it and a score")
    return numbers[drawn], scores[drawn], spread[drawn]
