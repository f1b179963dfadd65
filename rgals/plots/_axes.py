"""Axes, colours and labels that all plots share."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rgals.runtime.errors import InputError
from rgals.runtime.lazy import optional

#: Colours for thin lines; the first eight can be told apart by the colour-blind (Okabe and Ito, 2008).
COLORS: tuple[str, ...] = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F3C8D")
COLORS += ("#555555", "#A05A2C", "#1B9E77", "#E7298A", "#66A61E", "#A6761D", "#444499", "#994455")
SHARES = (0.95, 0.99)  # of the best quality, marked where quality is drawn over seconds


def new_figure(width: float = 7, height: float = 4.3) -> Any:
    """A figure of some inches."""
    figure = optional("matplotlib.figure", "plots need matplotlib: pip install 'rgals[plot]'")
    # Not by pyplot, which keeps every figure alive; a notebook shows this one when asked for it.
    return figure.Figure(figsize=(width, height), layout="constrained")


def mark_shares(ax: Any, best: float) -> None:
    """Lines at shares of the best quality."""
    for share in SHARES:
        ax.axhline(share * best, color="#999999", linewidth=0.8, linestyle=":")
        where = {"xy": (1, share * best), "xycoords": ("axes fraction", "data")}
        ax.annotate(f"{share:.0%} of best", **where, ha="right", va="top", fontsize=8, color="#777777")


def axes(ax: Any) -> Any:
    """The given axes, or those of a new figure, without the frame at the top and at the right."""
    ax = new_figure().subplots() if ax is None else ax
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25)
    return ax


def styled(models: Any) -> list[tuple[dict[str, Any], Any]]:
    """The colour and the label of a line for each model, and the model: one, or several by name."""
    named = models if isinstance(models, Mapping) else {"": models}
    if not named:
        raise InputError("models: nothing is given to draw; for example {'RG2': model}")
    styles = [{"color": COLORS[k % len(COLORS)], "label": str(n) or None} for k, n in enumerate(named)]
    return list(zip(styles, named.values(), strict=True))


def legend(ax: Any, **options: Any) -> None:
    """A legend, where anything has a name."""
    if ax.get_legend_handles_labels()[1]:
        ax.legend(frameon=False, fontsize=9, **options)


def scale_by(ax: Any, values: Sequence[float] | np.ndarray) -> None:
    """A logarithmic x axis where the values are positive and the largest is 20 times the least."""
    if len(values) > 1 and min(values) > 0 and max(values) >= 20 * min(values):
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter("{x:g}")
