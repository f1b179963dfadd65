"""The names of the metrics. Adding one is a function and a row of `METRICS`."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rgals.matrix.validate import MAX_INDEX
from rgals.metrics import catalogue, lists
from rgals.runtime.errors import InputTypeError, ParameterError

LISTS, WHOLE, EXPOSURE, NOVELTY, POPULARITY = "lists", "whole", "exposure", "novelty", "popularity"
DISLIKES = "dislikes"


@dataclass(frozen=True)
class Metric:
    """A metric of the table; as one name asks for it, with a cutoff and a parameter."""

    function: Callable[..., Any]
    needs: str = LISTS  # what it is computed from, one of the constants above
    also: tuple[str, ...] = ()  # other names
    # keyword of the number in parentheses, and what returns that as a float or raises `ParameterError`
    number: tuple[str, Callable[[Any], float]] | None = None
    falls: bool = False  # whether less is better
    name: str = ""  # as given
    options: Mapping[str, Any] = field(default_factory=dict)  # of the function: the cutoff is k


METRICS = {
    "ndcg": Metric(lists.ndcg, also=("normalized_dcg",)),
    "mrr": Metric(lists.mrr, also=("rr", "reciprocal_rank")),
    "map": Metric(lists.average_precision, also=("ap", "average_precision", "mean_average_precision")),
    "capped_map": Metric(lists.capped_average_precision, also=("capped_average_precision", "kaggle_map")),
    "recall": Metric(lists.recall, also=("r", "rec")),
    "capped_recall": Metric(lists.capped_recall, also=("truncated_recall",)),
    "precision": Metric(lists.precision, also=("p", "prec")),
    "f1": Metric(lists.f1, also=("f", "f_score", "f_measure")),
    "hit_rate": Metric(lists.hit_rate, also=("hr", "hitrate", "hit", "hits", "hit_ratio", "success")),
    "rbp": Metric(lists.rbp, number=("p", lists.check_persistence)),
    "nrbp": Metric(lists.nrbp, number=("p", lists.check_persistence)),
    "dislike_rate": Metric(lists.dislike_rate, DISLIKES, falls=True),
    "auc": Metric(lists.auc, WHOLE, also=("roc_auc", "auroc")),
    "pauc": Metric(lists.partial_auc, WHOLE, ("partial_auc",), ("max_fpr", lists.check_rate)),
    "coverage": Metric(
        catalogue.coverage, EXPOSURE, also=("item_coverage", "catalog_coverage", "catalogue_coverage")
    ),
    "gini": Metric(catalogue.gini, EXPOSURE, also=("gini_index",), falls=True),
    "novelty": Metric(catalogue.novelty, NOVELTY, also=("self_information", "mean_self_information")),
    "arp": Metric(catalogue.average_popularity, POPULARITY, also=("average_popularity", "popularity")),
}
_BY_NAME = {other: name for name, row in METRICS.items() for other in (name, *row.also)}

_FORM = re.compile(r"([a-z][a-z_]*1?)(?:\(([^()]*)\))?(?:(?:@|_at_)(\d+))?")


def parts(name: Any) -> tuple[str, re.Match]:
    """The row of a metric by any of its names, with or without a cutoff, and the parts of the name."""
    plain = name.strip().lower().replace("-", "_") if isinstance(name, str) else ""
    match = _FORM.fullmatch(plain)
    if match is None or match[1] not in _BY_NAME:
        form = "several are given as a tuple" if "," in plain else "the form is 'name@k'"
        raise ParameterError("metrics", name, f"{form}; names: {', '.join(METRICS)}")
    return _BY_NAME[match[1]], match


def parse(name: Any) -> Metric:
    """Read a name such as ``"ndcg@10"``, ``"rbp(0.9)@20"`` or ``"HR@10"``; errors list what is known."""
    kind, match = parts(name)
    row, (_, number, cutoff) = METRICS[kind], match.groups()
    if row.needs == WHOLE and cutoff is not None:
        raise ParameterError("metrics", name, f"{match[1]} judges the whole ranking; give no cutoff")
    if row.needs != WHOLE and not 0 < float(cutoff or 0) <= MAX_INDEX:
        advice = f"give a cutoff >= 1 and <= {MAX_INDEX}, for instance '{match[1]}@10'"
        raise ParameterError("metrics", name, advice)
    options: dict[str, Any] = {} if cutoff is None else {"k": int(cutoff)}
    if number is not None:
        if row.number is None:
            raise ParameterError("metrics", name, f"{match[1]} takes no parameter")
        keyword, check = row.number
        try:
            options[keyword] = check(float(number.replace("_", "-")))  # as of 1e-3
        except ValueError as error:
            told = getattr(error, "expected", f"{number!r} is not a number")
            raise ParameterError("metrics", name, f"{keyword}: {told}") from None
    return replace(row, name=name, options=options)


def rising(metric: Any) -> Any:
    """The metric that something is chosen by, whose larger values are better, or a `ParameterError`."""
    if parse(metric).falls:
        raise ParameterError("metric", metric, "give one that is better when larger: 'ndcg@10'")
    return metric


def parse_all(names: str | Iterable[str]) -> list[Metric]:
    """Read one name or several."""
    names = (names,) if isinstance(names, str) else names
    if not isinstance(names, Iterable):
        raise InputTypeError(f"metrics must be names such as 'ndcg@10', not {type(names).__name__}")
    metrics = {metric.name: metric for metric in map(parse, names)}
    if not metrics:
        raise ParameterError("metrics", (), "give at least one name, such as 'ndcg@10'")
    return list(metrics.values())


def definitions() -> dict[str, tuple[tuple[str, ...], str]]:
    """By the form of its name, the other names of every metric, and its definition."""
    found = {}
    for name, row in METRICS.items():
        form = name if row.number is None else f"{name}({row.number[0]})"
        form += "" if row.needs == WHOLE else "@k"
        text = inspect.getdoc(row.function) or ""
        found[form] = row.also, re.split(r"\n\n[A-Z][\w ]*\n---", text)[0]
    return found
