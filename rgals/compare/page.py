"""The picture of a comparison, and one HTML page."""

import html
import io
import math
from pathlib import Path
from typing import Any

import numpy as np

from rgals.compare.report import LEVEL, Comparison, quality_table, rate_table, significance_table
from rgals.files.atomic import atomic_file
from rgals.plots._axes import COLORS, mark_shares, new_figure


def draw(result: Comparison) -> Any:
    """A figure with two panels: quality against training time, and objective gaps against iterations."""
    figure = new_figure(13, 5.2)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    order = sorted(result.rows, key=lambda row: row.method)
    color = {row.label: COLORS[i % len(COLORS)] for i, row in enumerate(order)}
    for row in result.rows:
        style: dict[str, Any] = {"color": color[row.label], "linestyle": "-" if row.family == "ALS" else "--"}
        for k, curve in enumerate(row.curves):
            style |= {"label": row.label if k == 0 else None, "marker": "." if len(curve) == 1 else None}
            left.plot(*zip(*curve, strict=True), **style, linewidth=1.4)
    mark_shares(left, result.best)
    values = [v for row in result.rows for curve in row.curves for _, v in curve]
    if values:
        left.set_ylim(min(0.5 * result.best, max(0.0, np.quantile(values, 0.05))), max(values) * 1.04)
    left.set(xscale="log", xlabel="training seconds (evaluation excluded), log scale")
    left.xaxis.set_major_formatter("{x:g}")
    left.set_ylabel(f"validation {result.metric.upper()}")
    left.set_title(f"{result.name}, K={result.setting['K']}, {result.setting['machine']['threads']} threads")
    left.grid(alpha=0.25)
    if result.rows:
        left.legend(fontsize=8, loc="lower right")
    for label, found in result.objectives.items():
        objective = np.asarray(found["objective"])
        floor = objective.min()
        if "same_as" in found:
            floor = min(floor, min(result.objectives[found["same_as"]]["objective"]))
        start = objective[0] - floor
        gap = (objective - floor) / start if start > 0 else np.zeros(len(objective))
        t, shown = np.arange(1, len(gap) + 1), gap > 1e-12
        if "same_as" not in found:  # a run that found the limit itself says nothing near its end
            shown &= t <= (len(gap) + 1) // 2
        style = {"color": color.get(label, "#000000"), "linewidth": 1.4, "label": label}
        right.plot(t[shown], gap[shown], "--" if "same_as" in found else "-", **style)
    right.set(yscale="log", xlabel="iterations or epochs", title="convergence of the objective")
    right.set_ylabel("objective minus its smallest value, relative")
    right.grid(alpha=0.25)
    if result.objectives:
        right.legend(fontsize=8)
    return figure


_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 80rem;
margin: 2rem auto; padding: 0 1rem; } h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
table { border-collapse: collapse; font-size: .8rem; display: block; overflow-x: auto; }
th, td { padding: .3rem .4rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
th:first-child, td:first-child, td:last-child, th:last-child { text-align: left; }
td:last-child { white-space: normal; min-width: 8rem; }
th { border-bottom: 2px solid #888; } tr.best td { font-weight: 600; }
svg { width: 100%; height: auto; } .note { color: #555; font-size: .9rem; }
"""


def _html_table(header: list[str], rows: list[list[str]], mark_first: bool) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = []
    for i, row in enumerate(rows):
        cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in row)
        body.append(f'<tr class="best">{cells}</tr>' if mark_first and i == 0 else f"<tr>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def page(result: Comparison, svg: str) -> str:
    """The report as one HTML page that loads nothing from elsewhere."""
    shape, counts = result.setting["shape"], result.setting["interactions"]
    machine = ", ".join(f"{k}: {v}" for k, v in result.setting["machine"].items())
    facts = (
        f"{shape[0]:,} users × {shape[1]:,} items; {counts[0]:,} interactions to train on, {counts[1]:,} for "
        f"validation, {counts[2]:,} for test. K = {result.setting['K']}. {machine}. Compiling and first "
        f"calls took {result.compile_seconds:.1f} s and are in no curve."
    )
    shares = [row.cpu_share for row in result.rows if math.isfinite(row.cpu_share)]
    if shares:
        share = f"got {min(shares):.0%} or more of the CPU time of their threads"
        facts += f" The timed runs {share}; other work on the machine, and parts on one thread, lower this."
    how = (
        "Methods with ladders of parameters climb them on validation "
        f"{result.metric.upper()} (seed 0), others run as they were given; those with random choices run "
        "with several seeds. A run ends when validation has not improved for "
        f"{result.setting['patience']} iterations or after {result.setting['time_limit']:g} s; "
        f"validation looks at {result.setting['validation_users']:,} users. The best iteration is measured "
        "on test, for all users, training and validation items left out of the ranking. ± is the standard "
        "deviation over seeds. Times are medians over seeds; “best” is the best method's "
        "validation figure. Solid lines: alternating least squares; dashed: stochastic gradient descent."
    )
    rates = (
        "A method converges linearly if the logarithm of the gap falls along a straight line over iterations "
        "(R² of linear near 1), sublinearly if a power of the iteration describes it better. The limit of "
        "each objective is the smallest value found; the fit leaves out the first fifth of a run and, of the "
        "run that found the limit, the second half."
    )
    tests = (
        "Paired t-tests over test users, whose figures are means over seeds, corrected for the number of "
        f"methods (Holm) at a level of {LEVEL:.0%}; the effect is Cohen's d of the differences."
    )
    title = html.escape(f"{result.name}: time to quality")
    parts = [
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{title}</title>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1><p>{html.escape(facts)}</p>",
        f"<figure style='margin:0'>{svg}</figure><h2>Quality and time</h2>",
        _html_table(*quality_table(result), mark_first=True),
        f"<p class='note'>{html.escape(how)}</p>",
    ]
    beside = significance_table(result)
    if beside[1]:
        parts += ["<h2>Significance</h2>", _html_table(*beside, mark_first=False)]
        parts.append(f"<p class='note'>{html.escape(tests)}</p>")
    if result.objectives:
        parts += ["<h2>Rate of convergence</h2>", _html_table(*rate_table(result), mark_first=False)]
        parts.append(f"<p class='note'>{html.escape(rates)}</p>")
    errors = [f"{row.label}: {error}" for row in result.rows for error in row.errors]
    if errors:
        lines = "".join(f"<li>{html.escape(one)}</li>" for one in errors)
        parts.append(f"<h2>Runs that failed</h2><ul>{lines}</ul>")
    return "".join([*parts, "</body></html>\n"])


def write(result: Comparison, folder: Path) -> None:
    """Write ``convergence.png`` and ``report.html``."""
    figure = draw(result)
    png, svg = io.BytesIO(), io.StringIO()
    figure.savefig(png, format="png", dpi=130, metadata={"Software": None})
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "rgals"}):  # the same page for the same results
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    picture = svg.getvalue()
    picture = picture[picture.index("<svg") :]  # without the XML declaration, which HTML does not have
    contents = {"convergence.png": png.getvalue(), "report.html": page(result, picture).encode()}
    for name, content in contents.items():
        with atomic_file(folder / name) as file:
            file.write(content)
