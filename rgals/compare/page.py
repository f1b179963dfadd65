"""The report of a comparison: a figure, and an HTML page that contains it."""

import html
import io
import math
import re
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from rgals.compare.report import LEVEL, Comparison, quality_table, rate_table, significance_table
from rgals.files.atomic import atomic_file
from rgals.plots import COLORS, as_text, axes, legend, mark_shares, new_figure, whole_ticks


def draw(result: Comparison) -> Any:
    """Quality over training time and, if objectives were recorded, their gaps over iterations."""
    figure = new_figure(13, 5.2)
    ratios = (3, 2) if result.objectives else (1,)
    left, right = map(axes, figure.subplots(1, len(ratios), width_ratios=ratios, squeeze=False)[0, [0, -1]])
    order = sorted(result.rows, key=lambda row: row.method)
    color = {row.label: COLORS[i % len(COLORS)] for i, row in enumerate(order)}
    for row in result.rows:
        style: dict[str, Any] = {"color": color[row.label], "linestyle": "-" if row.family == "ALS" else "--"}
        for k, curve in enumerate(row.curves):
            style["label"] = None if k else as_text(row.label)
            dot = {"marker": ".", "linestyle": ""} if len(curve) == 1 else {}  # a dot in the legend, too
            left.plot(*zip(*curve, strict=True), **style | dot, linewidth=1.4)
    values = [v for row in result.rows for curve in row.curves for _, v in curve if math.isfinite(v)]
    if values:
        mark_shares(left, result.best)
        # Curves may start below the axes, but methods with a single value, such as popularity, must not.
        alone = [0.96 * curve[0][1] for row in result.rows for curve in row.curves if len(curve) == 1]
        low = min(0.5 * result.best, np.nanmin([max(0.0, np.quantile(values, 0.05)), *alone]))
        left.set_ylim(low, max(values) * 1.04)
    left.set(xscale="log", xlabel="training seconds (evaluation excluded), log scale")
    left.xaxis.set_major_formatter("{x:g}")
    left.set_ylabel(f"validation {result.metric.upper()}")
    left.set_title("{}, K={K}, {machine[threads]} threads".format(as_text(result.name), **result.setting))
    legend(left, frameon=True)
    for label, found in result.objectives.items():
        objective, other = np.asarray(found["objective"]), result.objectives[found.get("same_as", label)]
        floor = min(objective.min(), *other["objective"])
        gap = (objective - floor) / ((objective[0] - floor) or np.inf)
        t, shown = np.arange(1, len(gap) + 1), gap > 1e-12
        if "same_as" not in found:  # the limit is this run's own, so the gap is too small near its end
            shown &= t <= (len(gap) + 1) // 2
        style = {"color": color.get(label, "#000000"), "linewidth": 1.4, "label": as_text(label)}
        right.plot(t[shown], gap[shown], "--" if "same_as" in found else "-", **style)
    if result.objectives:
        right.set(yscale="log", xlabel="iterations or epochs", title="convergence of the objective")
        right.set_ylabel("objective minus its smallest value, relative")
        whole_ticks(right.xaxis)
        legend(right)
    return figure


def _html_table(header: list[str], rows: list[list[str]]) -> str:
    def line(tag: str, cells: list[str]) -> str:
        return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f"<table><thead>{line('th', header)}</thead><tbody>{body}</tbody></table>"


def page(result: Comparison, svg: str) -> str:
    """The report as one HTML page without external resources: the template ``page.html``, filled in."""
    setting, counts = result.setting, ("users", "items", "train", "validation", "test")
    words = setting | dict(zip(counts, map("{:,}".format, (*setting["shape"], *setting["interactions"]))))
    words |= {"name": result.name, "metric": result.metric.upper(), "level": f"{LEVEL:.0%}"}
    words["machine"] = ", ".join(f"{k}: {v}" for k, v in setting["machine"].items())
    words |= {"time_limit": f"{setting['time_limit']:g}", "watched": f"{setting['validation_users']:,}"}
    shares = [row.cpu_share for row in result.rows if math.isfinite(row.cpu_share)]
    used = f" Timed runs used at least {min(shares, default=0):.0%} of the CPU time of their threads"
    used += "; other work on the machine and single-threaded parts lower this."
    words |= {"share": used if shares else "", "compiling": f"{result.compile_seconds:.1f}"}
    parts = {name: html.escape(str(word)) for name, word in words.items()}
    errors = [f"{row.label}: {error}" for row in result.rows for error in row.errors]
    parts["failures"] = "".join(f"<li>{html.escape(one)}</li>" for one in errors)
    tables = {"quality": quality_table, "significance": significance_table, "rates": rate_table}
    parts |= {name: _html_table(*table(result)) for name, table in tables.items()}
    form = resources.files("rgals.compare").joinpath("page.html").read_text(encoding="utf-8")
    text = Template(form).substitute(parts, svg=svg)
    # Remove sections that hold neither a table row nor a failure.
    return re.sub(r"<section>(?:(?!<td>|<li>).)*?</section>\n", "", text, flags=re.DOTALL)


def write(result: Comparison, folder: Path) -> None:
    """Write ``convergence.png`` and ``report.html``."""
    figure, svg = draw(result), io.StringIO()
    with atomic_file(folder / "convergence.png") as file:
        figure.savefig(file, format="png", dpi=130, metadata={"Software": None})
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "rgals"}):  # the same results give the same bytes
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    _, mark, rest = svg.getvalue().partition("<svg")  # HTML takes no XML declaration
    with atomic_file(folder / "report.html") as file:
        file.write(page(result, mark + rest).encode())
