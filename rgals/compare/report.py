"""Tables, pictures and one HTML page from the journal of a comparison."""

from __future__ import annotations

import html
import io
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rgals.compare.analysis import linear_rate, mean_and_spread, seconds_to
from rgals.compare.methods import Method, params_text
from rgals.files.atomic import atomic_file
from rgals.runtime.errors import MissingDependencyError

SHARES = (0.95, 0.99)
_COLORS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F3C8D", "#555555",
    "#A05A2C", "#1B9E77", "#E7298A", "#66A61E", "#A6761D", "#444499", "#994455",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One method's results; where there are several seeds, the mean and standard deviation over them."""

    method: str
    label: str
    family: str
    params: dict[str, float]
    # trials, whether every neighbour was tried, parameters at an end of their ladder, and the best
    # validation quality that tuning saw
    tuning: dict[str, Any]
    test: dict[str, tuple[float, float]]  # by metric
    validation: tuple[float, float]  # of each seed's best
    # median of the training seconds to that share of the best method's validation quality
    seconds_to: dict[float, float]
    seconds: float  # median training seconds of a whole run
    epochs: float  # median number of iterations or epochs
    # lowest share of the CPU time of its threads that a run got; work beside it, or parts on one thread,
    # lower it
    cpu_share: float
    errors: list[str] = field(default_factory=list)
    curves: list[list[list[float]]] = field(default_factory=list)


@dataclass(frozen=True)
class Comparison:
    """What a comparison found.

    Attributes
    ----------
    name : str
    setting : dict
        With the ``machine`` of the timed runs; empty where only tuning was done.
    metric : str
    best : float
        Validation quality of the best method, mean over seeds of each seed's best.
    rows : list of Row
        In the order of test quality.
    objectives : dict of str to dict
        ``objective`` and ``seconds`` per iteration, and the fitted ``rate`` (or None).
    compile_seconds : float
    """

    name: str
    setting: dict[str, Any]
    metric: str
    best: float
    rows: list[Row]
    objectives: dict[str, dict[str, Any]]
    compile_seconds: float

    def text(self) -> str:
        """The tables as plain text."""
        lines = [self.name, ""]
        for header, rows in self._tables():
            widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
            for first, *rest in [header, *rows] if rows else []:
                cells = [first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]
                lines.append("  ".join(cells).rstrip())
            lines.append("")
        return "\n".join(lines)

    def markdown(self) -> str:
        """The tables as Markdown."""
        lines = [f"**{self.name}**", ""]
        for header, rows in self._tables():
            for row in [header, ["---"] * len(header), *rows] if rows else []:
                lines.append("| " + " | ".join(row) + " |")
            lines.append("")
        return "\n".join(lines)

    def _tables(self) -> list[tuple[list[str], list[list[str]]]]:
        ran = any(row.curves or row.errors for row in self.rows)
        return [_quality_table(self), _rate_table(self)] if ran else [_tuning_table(self)]


def summarise(
    name: str, records: dict[str, dict[str, Any]], methods: Sequence[Method], seeds: int
) -> Comparison:
    """Gather a comparison from the records of its journal."""
    timing = dict(records["timing"]["timing"]) if "timing" in records else {}
    limit = timing.pop("time_limit", math.nan)
    setting = {**records["setting"]["setting"], "machine": timing, "time_limit": limit}
    runs: dict[str, list[dict[str, Any]]] = {}
    for method in methods:
        run = f"run {method.name} {params_text(records[f'tuned {method.name}']['params'])}"
        runs[method.name] = [records[f"{run} {k}"] for k in range(seeds) if f"{run} {k}" in records]
    peaks = {
        m: [max(value for _, value in r["curve"]) for r in found if r["curve"] and not r["error"]]
        for m, found in runs.items()
    }
    best = max((float(np.mean(values)) for values in peaks.values() if values), default=0.0)
    rows = []
    for method in methods:
        found = runs[method.name]
        good = [r for r in found if not r["error"]]
        tuned = records[f"tuned {method.name}"]
        times = {s: [seconds_to(r["curve"], s * best) for r in found] for s in SHARES}
        metrics = good[0]["test"] if good else {}
        rows.append(
            Row(
                method.name,
                method.label,
                method.family,
                tuned["params"],
                {k: tuned[k] for k in ("trials", "finished", "edges", "best")},
                {m: mean_and_spread([r["test"][m] for r in good]) for m in metrics},
                mean_and_spread(peaks[method.name]) if peaks[method.name] else (math.nan, 0.0),
                {s: float(np.median(t)) if t else math.inf for s, t in times.items()},
                float(np.median([r["curve"][-1][0] for r in good])) if good else math.nan,
                float(np.median([len(r["curve"]) for r in good])) if good else math.nan,
                min((r["cpu_share"] for r in good), default=math.nan),
                [r["error"] for r in found if r["error"]],
                [r["curve"] for r in good],
            )
        )
    rows.sort(key=lambda row: (-row.test.get(setting["metric"], (-1.0, 0.0))[0], -row.tuning["best"]))
    compiled = records.get("compile", {"seconds": math.nan})["seconds"]
    objectives = _objectives(records, methods)
    return Comparison(name, setting, setting["metric"], best, rows, objectives, compiled)


def _objectives(records: dict[str, dict[str, Any]], methods: Sequence[Method]) -> dict[str, dict[str, Any]]:
    """Curves of the objective; gradient descent is shown with the learning rate that ended lowest."""
    out: dict[str, dict[str, Any]] = {}

    def add(label: str, record: dict[str, Any], limit: float | None = None, **more: Any) -> None:
        rate = linear_rate(record["objective"], limit, skip=len(record["objective"]) // 5)
        out[label] = {**record, "rate": None if rate is None else asdict(rate), **more}

    for method in methods:
        params = params_text(records[f"tuned {method.name}"]["params"])
        own = records.get(f"objective {method.name} {params}")
        if own is None:
            continue
        add(method.label, own)
        tried = [r for key, r in records.items() if key.startswith(f"objective gradient {params} ")]
        tried = [r for r in tried if r["objective"] and not r["error"]]
        if method.name == "rg2" and tried:
            best = min(tried, key=lambda r: r["objective"][-1])
            limit = min(min(own["objective"]), min(best["objective"]))
            add(f"RG2 by gradient (Adam, lr={best['lr']:g})", best, limit, same_as=method.label)
    return out


def _figure(value: float, digits: int = 4) -> str:
    return "-" if not math.isfinite(value) else f"{value:.{digits}f}"


def _with_spread(pair: tuple[float, float] | None) -> str:
    return "-" if pair is None or math.isnan(pair[0]) else f"{_figure(pair[0])} ± {_figure(pair[1])}"


def _seconds(value: float) -> str:
    return "not reached" if math.isinf(value) else "-" if math.isnan(value) else f"{value:.3g} s"


def _tuned(row: Row) -> str:
    text = ", ".join(f"{k}={v:g}" for k, v in row.params.items())
    notes = [f"{k} at an end of its ladder" for k in row.tuning["edges"]]
    if row.tuning["trials"] == 0:
        notes.append("not tuned")
    elif not row.tuning["finished"]:
        notes.append("trials ran out")
    return text + (f" ({'; '.join(notes)})" if notes else "")


def _tuning_table(result: Comparison) -> tuple[list[str], list[list[str]]]:
    header = ["method", f"validation {result.metric.upper()}", "trials", "parameters"]
    return header, [
        [row.label, _figure(row.tuning["best"]), str(row.tuning["trials"]), _tuned(row)]
        for row in result.rows
    ]


def _quality_table(result: Comparison) -> tuple[list[str], list[list[str]]]:
    metrics = list(dict.fromkeys(name for row in result.rows for name in row.test))
    header = ["method", *(f"test {m.upper()}" for m in metrics), f"validation {result.metric.upper()}"]
    header += [f"to {s:.0%} of best" for s in SHARES] + ["whole run", "iterations", "parameters"]
    body = []
    for row in result.rows:
        line = [row.label, *(_with_spread(row.test.get(m)) for m in metrics), _with_spread(row.validation)]
        line += [_seconds(value) for value in (*(row.seconds_to[s] for s in SHARES), row.seconds)]
        line.append(_figure(row.epochs, 0))
        body.append([*line, "diverged" if row.errors and not row.curves else _tuned(row)])
    return header, body


def _rate_table(result: Comparison) -> tuple[list[str], list[list[str]]]:
    columns = {"factor of the gap per iteration": ("factor", 4), "R² of linear": ("r2", 3)}
    columns |= {"R² of power law": ("power_r2", 3), "power": ("power", 2)}
    body = []
    for label, found in result.objectives.items():
        rate, fitted = found["rate"], "too few iterations above rounding"
        figures = ["-"] * len(columns)
        if rate is not None:
            fitted = f"iterations {rate['first']} to {rate['last']}"
            figures = [f"{rate[name]:.{digits}f}" for name, digits in columns.values()]
        body.append([label, *figures, fitted])
    header = ["objective of", *columns, "fitted to"]
    return header, body


def draw(result: Comparison) -> Any:
    """A figure with two panels: quality against training time, and objective gaps against iterations."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingDependencyError("plots need matplotlib: pip install 'rgals[plot]'") from error
    matplotlib.rcParams["svg.hashsalt"] = "rgals"  # the same page for the same results
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 5.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    order = sorted(result.rows, key=lambda row: row.method)
    color = {row.label: _COLORS[i % len(_COLORS)] for i, row in enumerate(order)}
    for row in result.rows:
        for k, curve in enumerate(row.curves):
            left.plot(
                *zip(*curve, strict=True),
                "-" if row.family == "ALS" else "--",
                marker="." if len(curve) == 1 else None,
                color=color[row.label],
                linewidth=1.4,
                label=row.label if k == 0 else None,
            )
    for share in SHARES:
        left.axhline(share * result.best, color="#999999", linewidth=0.7, linestyle=":")
        style = {"ha": "left", "va": "bottom", "fontsize": 7, "color": "#777777"}
        at = (0, share * result.best)
        left.annotate(f" {share:.0%} of best", at, xycoords=("axes fraction", "data"), **style)
    values = [v for row in result.rows for curve in row.curves for _, v in curve]
    if values:
        left.set_ylim(min(0.5 * result.best, max(0.0, np.quantile(values, 0.05))), max(values) * 1.04)
    left.set_xscale("log")
    left.xaxis.set_major_formatter("{x:g}")
    left.set_xlabel("training seconds (evaluation excluded), log scale")
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
    right.set_yscale("log")
    right.set_xlabel("iterations or epochs")
    right.set_ylabel("objective minus its smallest value, relative")
    right.set_title("convergence of the objective")
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
        facts += (
            f" The timed runs got {min(shares):.0%} or more of the CPU time of their threads; other work on "
            "the machine, and parts on one thread, lower this."
        )
    how = (
        "Every method climbs the ladders of its own parameters on validation "
        f"{result.metric.upper()} (seed 0), then runs with several seeds. A run ends when validation has not "
        f"improved for {result.setting['patience']} iterations or after {result.setting['time_limit']:g} s; "
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
    title = html.escape(f"{result.name}: time to quality")
    parts = [
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{title}</title>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1><p>{html.escape(facts)}</p>",
        f"<figure style='margin:0'>{svg}</figure><h2>Quality and time</h2>",
        _html_table(*_quality_table(result), mark_first=True),
        f"<p class='note'>{html.escape(how)}</p>",
    ]
    if result.objectives:
        parts += ["<h2>Rate of convergence</h2>", _html_table(*_rate_table(result), mark_first=False)]
        parts.append(f"<p class='note'>{html.escape(rates)}</p>")
    errors = [f"{row.label}: {error}" for row in result.rows for error in row.errors]
    if errors:
        items = "".join(f"<li>{html.escape(error)}</li>" for error in errors)
        parts.append(f"<h2>Runs that failed</h2><ul>{items}</ul>")
    return "".join([*parts, "</body></html>\n"])


def write(result: Comparison, folder: Path) -> None:
    """Write ``convergence.png`` and ``report.html``."""
    figure = draw(result)
    png, svg = io.BytesIO(), io.StringIO()
    figure.savefig(png, format="png", dpi=130, metadata={"Software": None})
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    picture = svg.getvalue()
    picture = picture[picture.index("<svg") :]  # without the XML declaration, which HTML does not have
    contents = {"convergence.png": png.getvalue(), "report.html": page(result, picture).encode()}
    for name, content in contents.items():
        with atomic_file(folder / name) as file:
            file.write(content)
