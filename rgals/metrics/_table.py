"""The names of the metrics. Adding one is a function and a row of `METRICS`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rgals.metrics import catalogue, full, lists
from rgals.runtime.errors import InputTypeError, ParameterError

LISTS, WHOLE, EXPOSURE, NOVELTY = "lists", "whole", "exposure", "novelty"


@dataclass(frozen=True)
class Row:
    """A metric by name."""

    function: Callable[..., Any]
    needs: str = LISTS  # what it is computed from, one of the constants above
    parameter: str | None = None  # keyword of the number in parentheses
    check: Callable[[Any], float] | None = None  # returns that number as a float or raises `ParameterError`


METRICS = {
    "ndcg": Row(lists.ndcg),
    "mrr": Row(lists.mrr),
    "map": Row(lists.average_precision),
    "capped_map": Row(lists.capped_average_precision),
    "recall": Row(lists.recall),
    "capped_recall": Row(lists.capped_recall),
    "precision": Row(lists.precision),
    "hit_rate": Row(lists.hit_rate),
    "rbp": Row(lists.rbp, parameter="p", check=lists.check_persistence),
    "nrbp": Row(lists.nrbp, parameter="p", check=lists.check_persistence),
    "auc": Row(full.auc, WHOLE),
    "pauc": Row(full.partial_auc, WHOLE, parameter="max_fpr", check=full.check_rate),
    "coverage": Row(catalogue.coverage, EXPOSURE),
    "gini": Row(catalogue.gini, EXPOSURE),
    "novelty": Row(catalogue.novelty, NOVELTY),
}

_FORM = re.compile(r"([a-z_]+)(?:\(([^()]*)\))?(?:@(\d+))?")


@dataclass(frozen=True)
class Metric:
    """A metric with its cutoff and parameter, as one name asks for it."""

    name: str
    row: Row
    k: int | None
    options: dict[str, float]


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
    return Metric(name, row, None if cutoff is None else int(cutoff), options)


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
