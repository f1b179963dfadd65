"""The names of the metrics. Adding one is a function and a row of `METRICS`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rgals.metrics import catalogue, full, lists
from rgals.runtime.errors import InputTypeError, ParameterError

LISTS, WHOLE, EXPOSURE, NOVELTY = "lists", "whole", "exposure", "novelty"


@dataclass(frozen=True)
class Metric:
    """A metric of the table; as one name asks for it, with a cutoff and a parameter."""

    function: Callable[..., Any]
    needs: str = LISTS  # what it is computed from, one of the constants above
    parameter: str | None = None  # keyword of the number in parentheses
    check: Callable[[Any], float] | None = None  # returns that number as a float or raises `ParameterError`
    name: str = ""  # as given
    k: int | None = None
    options: Mapping[str, float] = field(default_factory=dict)


METRICS = {
    "ndcg": Metric(lists.ndcg),
    "mrr": Metric(lists.mrr),
    "map": Metric(lists.average_precision),
    "capped_map": Metric(lists.capped_average_precision),
    "recall": Metric(lists.recall),
    "capped_recall": Metric(lists.capped_recall),
    "precision": Metric(lists.precision),
    "hit_rate": Metric(lists.hit_rate),
    "rbp": Metric(lists.rbp, parameter="p", check=lists.check_persistence),
    "nrbp": Metric(lists.nrbp, parameter="p", check=lists.check_persistence),
    "auc": Metric(full.auc, WHOLE),
    "pauc": Metric(full.partial_auc, WHOLE, parameter="max_fpr", check=full.check_rate),
    "coverage": Metric(catalogue.coverage, EXPOSURE),
    "gini": Metric(catalogue.gini, EXPOSURE),
    "novelty": Metric(catalogue.novelty, NOVELTY),
}

_FORM = re.compile(r"([a-z_]+)(?:\(([^()]*)\))?(?:@(\d+))?")


def parse(name: Any) -> Metric:
    """Read a name such as ``"ndcg@10"``, ``"rbp(0.9)@20"`` or ``"auc"``; errors list what is known."""
    match = _FORM.fullmatch(name.strip()) if isinstance(name, str) else None
    row = METRICS.get(match[1]) if match else None
    if match is None or row is None:
        raise ParameterError("metrics", name, f"the form is 'name@k'; names: {', '.join(METRICS)}")
    _, parameter, cutoff = match.groups()
    if row.needs == WHOLE and cutoff is not None:
        raise ParameterError(
            "metrics", name, f"{match[1]} is computed from the whole ranking; give no cutoff"
        )
    if row.needs != WHOLE and (cutoff is None or int(cutoff) < 1):
        raise ParameterError("metrics", name, f"give a cutoff >= 1, for instance '{match[1]}@10'")
    options = {}
    if parameter is not None:
        if row.parameter is None or row.check is None:
            raise ParameterError("metrics", name, f"{match[1]} takes no parameter")
        try:
            value = float(parameter)
        except ValueError:
            raise ParameterError("metrics", name, f"{parameter!r} is not a number") from None
        options[row.parameter] = row.check(value)
    return replace(row, name=name, k=None if cutoff is None else int(cutoff), options=options)


def parse_all(names: str | Iterable[str]) -> list[Metric]:
    """Read one name or several."""
    if isinstance(names, str):
        names = (names,)
    if not isinstance(names, Iterable):
        raise InputTypeError(f"metrics must be names such as 'ndcg@10', not {type(names).__name__}")
    metrics = [parse(name) for name in dict.fromkeys(names)]
    if not metrics:
        raise ParameterError("metrics", (), "give at least one name, such as 'ndcg@10'")
    return metrics
