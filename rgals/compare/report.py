"""Results of a comparison, from its journal: metrics, significance tests, tables."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rgals.compare.methods import Method, params_text
from rgals.compare.runner import Runner, unpacked
from rgals.metrics import significance
from rgals.metrics._table import parse
from rgals.plots import SHARES
from rgals.runtime.checks import check_choice, check_real
from rgals.runtime.errors import ParameterError
from rgals.runtime.lazy import optional

LEVEL = 0.05  # of significance
_PANDAS_NEEDED = "to_frame needs pandas: pip install pandas"


def seconds_to(curve: Sequence[Sequence[float]], target: float) -> float:
    """Training seconds until a curve of (seconds, value) first reaches a value; infinity if it never does."""
    return next((float(seconds) for seconds, value in curve if value >= target), math.inf)


def linear_rate(objective: Sequence[float], limit: float | None = None, skip: int = 1) -> dict | None:
    """Fit a linear rate to an objective that decreases to ``limit``; None below 4 usable iterations."""
    # From iteration ``first`` to ``last`` the gap to the limit shrinks by ``factor`` per iteration; ``r2`` is
    # the R² of this line in log(gap). ``power_r2`` is that of the best power law, gap ~ t^-``power``: a
    # higher one means sublinear convergence.
    values = np.asarray(objective, dtype=np.float64)
    # Without a given limit, the smallest value stands for it. The gap to it is too small near the end of the
    # run, so only the first half of the iterations is used. The first ``skip`` iterations are left out.
    floor, end = (values.min(), (len(values) + 1) // 2) if limit is None else (limit, len(values))
    gap = values[:end] - floor
    t = np.arange(1, end + 1)
    usable = (t > skip) & (gap > 1e-10 * max(abs(floor), np.ptp(values)))
    if usable.sum() < 4:
        return None
    from scipy.stats import linregress  # costly to import

    t, y = t[usable], np.log(gap[usable])
    line, power = linregress(t, y), linregress(np.log(t), y)
    found = {"factor": float(np.exp(line.slope)), "r2": float(line.rvalue**2)}
    found |= {"first": int(t[0]), "last": int(t[-1])}
    return found | {"power": -float(power.slope), "power_r2": float(power.rvalue**2)}


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (0 for one value)."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


@dataclass(frozen=True)
class Row:
    """Results of one method; pairs are mean and standard deviation over seeds."""

    method: str
    label: str
    family: str
    params: dict[str, float]
    # "trials": number of fits; "finished": whether every neighbour was tried; "edges": parameters at an end
    # of their ladder; "best": highest validation quality
    tuning: dict[str, Any]
    test: dict[str, tuple[float, float]]  # by metric
    validation: tuple[float, float]  # best iteration of each run
    # By share of the best method's validation quality: median training seconds until a run reaches it.
    seconds_to: dict[float, float]
    seconds: float  # median training seconds of a whole run
    epochs: float  # median number of iterations or epochs
    # Lowest CPU time of a run, as a share of its wall time on all its threads: other work on the machine and
    # single-threaded parts lower it.
    cpu_share: float
    errors: list[str]
    curves: list[list[list[float]]]  # of each run: [training seconds, validation quality] per iteration
    # By metric: the mean over seeds for every test user, in the order of `Comparison.user_ids`. Without
    # metrics that no user has.
    users: dict[str, np.ndarray] = field(compare=False, repr=False)


@dataclass(frozen=True, repr=False)
class Comparison:
    """Results of a comparison of methods on one data set.

    Attributes
    ----------
    name : str
    setting : dict
        Data, options, and the ``machine`` of the timed runs, which is empty after tuning alone.
    metric : str
    best : float
        Validation quality of the best method: the mean over seeds of the best iteration.
    rows : list of Row
        In the order of test quality.
    objectives : dict of str to dict
        ``objective`` and ``seconds`` per iteration, and the fitted ``rate`` (or None).
    compile_seconds : float
    metrics : tuple of str
        Measured on test; the first was tuned.
    user_ids : ndarray or None
        Test users, in the order of the arrays in ``users`` of the rows.
    """

    name: str
    setting: dict[str, Any]
    metric: str
    best: float
    rows: list[Row]
    objectives: dict[str, dict[str, Any]]
    compile_seconds: float
    metrics: tuple[str, ...] = ()
    user_ids: np.ndarray | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        return self.text()

    def against(
        self, reference: str | None = None, metric: str | None = None, test: str = "t"
    ) -> dict[str, significance.Against]:
        """Test every method against a reference on the same test users: paired tests with Holm's correction.

        Parameters
        ----------
        reference : str, optional
            Name of a method; by default the best.
        metric : str, optional
            By default the one that was tuned.
        test : {"t", "wilcoxon", "randomisation"}, default "t"
            As in `rgals.metrics.paired_test`, on each user's mean over seeds.

        Returns
        -------
        dict of str to Against
            By method, with ``difference``, ``p_value``, ``corrected`` and ``effect``; without the reference
            and without methods that failed.

        Raises
        ------
        ParameterError
            The metric has no value for single users, as coverage and gini, or the reference has none.
        """
        metric = self.metric if metric is None else metric
        rows = [row for row in self.rows if metric in row.users]
        if not rows:
            known = ", ".join(self.rows[0].users) or "none"
            raise ParameterError("metric", metric, f"metrics with figures of users are: {known}")
        if reference is None:
            reference = min(rows, key=lambda row: _sort_key(row, metric)).method
        figures = {row.method: row.users[metric] for row in rows}
        return significance.against(figures, reference, check_choice("test", test, significance.METHODS))

    def to_frame(
        self,
        metric: str | None = None,
        *,
        reference: str | None = None,
        test: str = "t",
        level: float = LEVEL,
    ) -> Any:
        r"""A pandas DataFrame with one row per method, the best first.

        Parameters
        ----------
        metric : str, optional
            One of ``metrics``, by which rows are sorted and tested; by default the one that was tuned.
        reference, test
            As in `against`.
        level : float, default 0.05
            Significance level of ``tied``.

        Returns
        -------
        pandas.DataFrame
            Columns ``data``, ``method``, ``label``, ``family``, ``parameters``, ``seeds``; every metric, its
            mean over test users and seeds, and ``METRIC_std`` over seeds; ``validation``; ``difference``,
            ``p_value``, ``p_corrected`` and ``effect`` against the reference; ``best``; ``tied``: not
            significantly different from the reference; median ``seconds`` of a run, ``seconds_to_95`` and
            ``seconds_to_99`` percent of the best validation quality, ``iterations``.

        Raises
        ------
        MissingDependencyError
            Without pandas.
        ParameterError
            No such metric, reference or test.

        Examples
        --------
        A table in LaTeX: the best in bold, with a dagger what is not significantly worse.

        >>> from rgals.compare import Effort, compare
        >>> from rgals.datasets import make_implicit
        >>> data = {f"set_{seed}": make_implicit(200, 100, random_state=seed) for seed in (0, 1)}
        >>> result = compare(data, "popularity,ease", effort=Effort(max_trials=0), verbose=0)
        >>> frame = result.to_frame().replace(r"([#$%&_{}])", r"\\\1", regex=True)  # as LaTeX reads names
        >>> frame = frame.replace(r"([\^~])", r"\\\1{}", regex=True)
        >>> frame["cell"] = [
        ...     rf"\textbf{{{value:.3f}}}" if best else rf"{value:.3f}" + r"$^\dagger$" * tied
        ...     for value, best, tied in zip(frame["ndcg@10"], frame["best"], frame["tied"])
        ... ]
        >>> table = frame.pivot(index="label", columns="data", values="cell").fillna("--")
        >>> table = table.loc[frame["label"].unique()]  # the best of the first set first
        >>> rows = [["method", *table.columns], *map(list, table.itertuples())]
        >>> head, *body = [" & ".join(row) + r" \\" for row in rows]
        >>> lines = [r"\hline", head, r"\hline", *body, r"\hline"]
        >>> columns = "l" * (1 + table.shape[1])  # digits stand below each other, daggers behind
        >>> print("\n".join([rf"\begin{{tabular}}{{{columns}}}", *lines, r"\end{tabular}"]))
        \begin{tabular}{lll}
        \hline
        method & set\_0 & set\_1 \\
        \hline
        EASE & \textbf{0...} & \textbf{0...} \\
        Popularity & 0... & 0... \\
        \hline
        \end{tabular}
        """
        check_real("level", level, 0.0, 1.0)
        metric = self.metric if metric is None else check_choice("metric", metric, self.metrics)
        pd = optional("pandas", _PANDAS_NEEDED)
        rows = sorted(self.rows, key=lambda row: _sort_key(row, metric))
        judged = reference is not None or any(metric in row.users for row in rows)
        others = self.against(reference, metric, test) if judged else {}
        none, lines = significance.Against(math.nan, math.nan, math.nan, math.nan), []
        for place, row in enumerate(rows):
            line: dict[str, Any] = {"data": self.name, "method": row.method, "label": row.label}
            line |= {"family": row.family, "parameters": _parameters(row), "seeds": len(row.curves)}
            for name in self.metrics:
                line[name], line[f"{name}_std"] = row.test.get(name, (math.nan, math.nan))
            found = others.get(row.method, none)
            line |= {"validation": row.validation[0], "difference": found.difference}
            line |= {"p_value": found.p_value, "p_corrected": found.corrected, "effect": found.effect}
            line |= {"best": place == 0 and metric in row.test, "tied": found.corrected >= level}
            line |= {"seconds": row.seconds, "iterations": row.epochs}
            lines.append(line | {f"seconds_to_{100 * s:.0f}": row.seconds_to[s] for s in SHARES})
        return pd.DataFrame(lines)

    def text(self) -> str:
        """The tables as plain text."""
        lines = [self.name, ""]
        for header, rows in self._tables():
            widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
            for first, *rest in [header, *rows] if rows else []:
                lines.append("  ".join([first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]).rstrip())
            lines.append("")
        return "\n".join(lines)

    def markdown(self) -> str:
        """The tables as Markdown."""
        lines = [f"**{self.name}**", ""]
        for header, rows in self._tables():
            for row in [header, ["---"] * len(header), *rows] if rows else []:
                cells = (" ".join(cell.split()).replace("|", r"\|") for cell in row)
                lines.append("| " + " | ".join(cells) + " |")
            lines.append("")
        return "\n".join(lines)

    def _tables(self) -> list[tuple[list[str], list[list[str]]]]:
        if not any(row.curves or row.errors for row in self.rows):  # no timed runs yet
            tuned = [(row, row.tuning["best"], row.tuning["trials"]) for row in self.rows]
            body = [[row.label, _number(best), str(trials), _parameters(row)] for row, best, trials in tuned]
            return [(["method", f"validation {self.metric.upper()}", "trials", "parameters"], body)]
        return [quality_table(self), significance_table(self), rate_table(self)]


class Comparisons(dict[str, Comparison]):
    """Results of a comparison on several data sets: a dict of `Comparison` by the name of the data."""

    def __repr__(self) -> str:
        return self.text()

    def to_frame(self, metric: str | None = None, **options: Any) -> Any:
        """The rows of all data sets as one pandas DataFrame; see `Comparison.to_frame`."""
        frames = [found.to_frame(metric, **options) for found in self.values()]
        return optional("pandas", _PANDAS_NEEDED).concat(frames, ignore_index=True)

    def text(self) -> str:
        """The tables of all data sets as plain text."""
        return "\n".join(found.text() for found in self.values())

    def markdown(self) -> str:
        """The tables of all data sets as Markdown."""
        return "\n".join(found.markdown() for found in self.values())


def _sort_key(row: Row, metric: str) -> tuple[float, float]:
    """Sort key of rows: best test metric first, then best in tuning; methods without a value come last."""
    measured = row.test.get(metric, (math.nan, 0.0))[0] * (-1 if parse(metric).falls else 1)
    return tuple(math.inf if math.isnan(value) else -value for value in (measured, row.tuning["best"]))  # type: ignore[return-value]


def summarise(name: str, runner: Runner) -> Comparison:
    """Gather a comparison from the records of its journal."""
    records, user_ids = runner.journal, runner.split.user_ids
    timing = dict(records["timing"]["timing"]) if "timing" in records else {}
    limit = timing.pop("time_limit", math.nan)
    setting = {**records["setting"]["setting"], "machine": timing, "time_limit": limit}
    metrics = tuple(metric.name for metric in runner.metrics)
    tuned = {m.name: records[f"tuned {m.key()}"] for m in runner.methods}
    keys = {m.name: m.key(tuned[m.name]["params"]) for m in runner.methods}
    runs: dict[str, list[dict]] = {}
    for method, key in keys.items():
        names = [f"run {key} {seed}" for seed in range(runner.seeds)]
        runs[method] = [records[run] for run in names if run in records]
    peaks = [[max(v for _, v in r["curve"]) for r in each if not r["error"]] for each in runs.values()]
    best = max((float(np.mean(values)) for values in peaks if values), default=0.0)
    followed = {method: records.get(f"objective {key}", {}) for method, key in keys.items()}
    rows = [_row(m, tuned[m.name], runs[m.name], followed[m.name], metrics, best) for m in runner.methods]
    rows.sort(key=lambda row: _sort_key(row, runner.metric))
    if user_ids is not None and "users" in records:
        user_ids = user_ids[unpacked(records["users"]["rows"]).astype(np.int64)]
    compiled = records.get("compile", {}).get("seconds", math.nan)
    objectives = _objectives(records, runner.methods, tuned)
    return Comparison(name, setting, runner.metric, best, rows, objectives, compiled, metrics, user_ids)


def _row(method: Method, tuned: dict, runs: list[dict], followed: dict, metrics: tuple, best: float) -> Row:
    """Results of a method from its timed runs, one per seed, and the run that recorded its objective."""
    good = [run for run in runs if not run["error"]]
    curves = [run["curve"] for run in good]
    peaks = [max(value for _, value in curve) for curve in curves]
    times = {share: [seconds_to(run["curve"], share * best) for run in runs] for share in SHARES}
    each = good[0].get("users", {}) if good else {}  # rgals 0.1 stored no figures of users
    users = {k: np.mean([unpacked(run["users"][k]) for run in good], axis=0) for k in each}
    return Row(
        method=method.name,
        label=method.label,
        family=method.family,
        params=tuned["params"],
        tuning={k: tuned[k] for k in ("trials", "finished", "edges", "best")},
        test={k: mean_and_spread([run["test"][k] for run in good]) for k in metrics if good},
        validation=mean_and_spread(peaks) if good else (math.nan, 0.0),
        seconds_to={share: float(np.median(t)) if t else math.inf for share, t in times.items()},
        seconds=float(np.median([curve[-1][0] for curve in curves])) if good else math.nan,
        epochs=float(np.median([len(curve) for curve in curves])) if good else math.nan,
        cpu_share=min((run["cpu_share"] for run in good), default=math.nan),
        errors=[record["error"] for record in [*runs, followed] if record.get("error")],
        curves=curves,
        users={k: values for k, values in users.items() if not np.isnan(values).all()},
    )


def _objectives(records: dict[str, dict], methods: list[Method], tuned: dict[str, dict]) -> dict[str, dict]:
    """Curves of the objective; of gradient descent, the one whose learning rate ended lowest."""
    out: dict[str, dict[str, Any]] = {}
    for method in methods:
        params = tuned[method.name]["params"]
        own = records.get(f"objective {method.key(params)}")
        if own is None or own.get("error"):
            continue
        out[method.label] = dict(own)
        prefix = f"objective gradient {params_text(params)} "
        tried = [record for key, record in records.items() if key.startswith(prefix)]
        tried = [record for record in tried if record["objective"] and not record["error"]]
        if method.key() == "rg2" and tried:
            best = min(tried, key=lambda record: record["objective"][-1])
            out[f"RG2 by gradient (Adam, lr={best['lr']:g})"] = best | {"same_as": method.label}
    for found in out.values():
        values, other = found["objective"], out.get(found.get("same_as", ""))
        limit = None if other is None else min(*values, *other["objective"])
        found["rate"] = linear_rate(values, limit, skip=len(values) // 5)
    return out


def _number(value: float, digits: int = 4) -> str:
    return "-" if not math.isfinite(value) else f"{value:.{digits}f}"


def _parameters(row: Row) -> str:
    text = ", ".join(f"{k}={v:g}" for k, v in row.params.items())
    notes = [f"{k} at an end of its ladder" for k in row.tuning["edges"]]
    if not text:
        return "as given"
    if row.tuning["trials"] == 0:
        notes.append("not tuned")
    elif not row.tuning["finished"]:
        notes.append("trials ran out")
    return text + (f" ({'; '.join(notes)})" if notes else "")


def quality_table(result: Comparison) -> tuple[list[str], list[list[str]]]:
    """Test and validation metrics, training seconds and parameters of each method."""
    metrics = [m for m in result.metrics if any(m in row.test for row in result.rows)]
    header = ["method", *(f"test {m.upper()}" for m in metrics), f"validation {result.metric.upper()}"]
    header += [f"to {s:.0%} of best" for s in SHARES] + ["whole run", "iterations", "parameters"]
    body = []
    for row in result.rows:
        figures = [*(row.test.get(m, (math.nan, 0.0)) for m in metrics), row.validation]
        several = len(row.curves) > 1  # a single run has no standard deviation
        spreads = (f" ± {_number(b)}" if several and math.isfinite(a) else "" for a, b in figures)
        line = [row.label, *(_number(a) + spread for (a, _), spread in zip(figures, spreads, strict=True))]
        for took in (*(row.seconds_to[share] for share in SHARES), row.seconds):
            line.append(f"{took:.3g} s" if math.isfinite(took) else "-" if took != took else "not reached")
        failed = row.errors and not row.curves
        body.append([*line, _number(row.epochs, 0), "diverged" if failed else _parameters(row)])
    return header, body


def significance_table(result: Comparison) -> tuple[list[str], list[list[str]]]:
    """Tests against the best method by the tuned metric; no rows if that has no values of single users."""
    header = [f"test {result.metric.upper()} below the best", "difference", "effect", "p", "p (Holm)", ""]
    if sum(result.metric in row.users for row in result.rows) < 2:
        return header, []
    labels, body = {row.method: row.label for row in result.rows}, []
    for name, found in result.against().items():
        figures = [f"{found.difference:+.4f}", f"{found.effect:+.3f}", f"{found.p_value:.2g}"]
        verdict = "" if found.corrected < LEVEL else "not significant"
        body.append([labels[name], *figures, f"{found.corrected:.2g}", verdict])
    return header, body


def rate_table(result: Comparison) -> tuple[list[str], list[list[str]]]:
    """Rates of convergence of the objectives."""
    columns = {"factor of the gap per iteration": ("factor", 4), "R² of linear": ("r2", 3)}
    columns |= {"R² of power law": ("power_r2", 3), "power": ("power", 2)}
    body = []
    for label, found in result.objectives.items():
        rate, fitted, figures = found["rate"], "too few iterations above rounding", ["-"] * len(columns)
        if rate is not None:
            fitted = f"iterations {rate['first']} to {rate['last']}"
            figures = [f"{rate[name]:.{digits}f}" for name, digits in columns.values()]
        body.append([label, *figures, fitted])
    return ["objective of", *columns, "fitted to"], body
