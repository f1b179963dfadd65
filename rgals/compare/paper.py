"""The tables of the paper on RG losses: its protocol, and its printed figures beside ours."""

from typing import Any

from rgals.compare.report import Comparison
from rgals.runtime.errors import ParameterError

# Table 2 states the convergence of algorithms, Table 3 (Table 4 for links) the quality of losses, Figure 1
# draws quality over seconds.
TABLES = ("table2", "table3", "fig1")
# Others are MovieLens.
_SET = {"amazon-electronics": "Electronics", "steam": "Steam", "simplewiki-links": "Wiki"}
_MEASURED = {"Wiki": ("mrr@10", "map@10")}  # others: MRR@10 and NDCG@10
#: The paper's name of a method and ours, None for what is not here (UIB and SML); the last two are the best.
METHODS: dict[str, str | None] = {"BPR": "bpr_dot", "BCE": "bce_dot", "SSM": "sampled_softmax"}
METHODS |= {"Sparsemax": "sparsemax_dot", "UIB": None, "SML": None, "WRMF": "wrmf_plain", "SM": "softmax"}
METHODS |= {"RG2": "rg2", "RGx": "rgx"}
#: Tables 3 and 4: figures by data set in the order of `METHODS`; None where none is printed.
_PRINTED: dict[str, tuple[tuple[float | None, float | None], ...]] = {
    "MovieLens": (
        (0.3476, 0.2116), (0.3602, 0.2228), (0.3785, 0.2378), (0.3177, 0.1738), (0.3836, 0.2426),
        (0.3386, 0.2045), (0.4475, 0.2797), (0.4487, 0.2849), (0.4720, 0.2957), (0.4737, 0.2975),
    ),
    "Electronics": (
        (0.0124, 0.0154), (0.0098, 0.0126), (0.0119, 0.0152), (0.0078, 0.0100), (0.0100, 0.0133),
        (0.0076, 0.0103), (0.0146, 0.0178), (0.0172, 0.0212), (0.0186, 0.0229), (0.0189, 0.0233),
    ),
    "Steam": (
        (0.0434, 0.0521), (0.0435, 0.0532), (0.0466, 0.0549), (0.0317, 0.0359), (0.0410, 0.0506),
        (0.0406, 0.0482), (0.0464, 0.0544), (0.0493, 0.0579), (0.0509, 0.0586), (0.0513, 0.0590),
    ),
    "Wiki": (
        (0.5291, 0.3691), (0.5813, 0.4527), (0.6717, 0.5235), (None, None), (None, None),
        (None, None), (None, None), (0.7202, 0.5750), (0.6988, 0.5525), (0.6996, 0.5537),
    ),
}  # fmt: skip
#: Table 2: what it states of non-convex problems, O(.) of the gap after T iterations.
_RATES = {"ALS": "linear, rho^T", "SGD": "sublinear, 1/sqrt(T)"}
_WATCHED = ("rg2", "rgx", "wrmf_plain")  # by ALS; RG2 is followed by gradient descent too


def set_of(data: str) -> str:
    """The paper's data set that one of `rgals.datasets.prepare_paper` is, or stands in for."""
    return _SET.get(data, "MovieLens")


def metrics_of(data: str) -> tuple[str, str]:
    """What the paper measures on a data set; the second is what it tunes by."""
    return _MEASURED.get(set_of(data), ("mrr@10", "ndcg@10"))


def methods_of(table: str) -> list[str]:
    """The methods of a table, by the names of `rgals.compare.METHODS`."""
    if table not in TABLES:
        raise ParameterError("table", table, "choose from " + ", ".join(TABLES))
    return list(_WATCHED) if table == "table2" else [ours for ours in METHODS.values() if ours]


def words_on(data: str) -> str:
    """Where the data differ from the paper's."""
    known = set_of(data)
    if data in _SET or data == "ml-10m":
        return f"{data}: the paper's {known}; it does not publish its split"
    return f"{data}: NOT in the paper, prepared like its {known}, of which the printed figures are"


def quality(result: Comparison, data: str) -> tuple[list[str], list[list[Any]]]:
    """Header and rows of Table 3 (or 4): our figures on test beside the printed ones."""
    metrics = metrics_of(data)
    header = ["method"]
    for metric in metrics:
        header += [f"{metric.upper()} here", f"in the paper ({set_of(data)})"]
    found = {row.method: row for row in result.rows}
    rows = []
    for (paper, ours), printed in zip(METHODS.items(), _PRINTED[set_of(data)], strict=True):
        row: list[Any] = [paper]
        for metric, figure in zip(metrics, printed, strict=True):
            mine = found[ours].test.get(metric) if ours in found else None
            row += [None if mine is None else mine[0], figure]
        rows.append(row)
    return header, rows


def rates(result: Comparison) -> tuple[list[str], list[list[Any]]]:
    """Header and rows of Table 2: how the gap of the objective falls, beside what the paper states."""
    # A straight line is fitted to the logarithm of the gap over iterations (linear convergence) and over
    # their logarithm (a power law): R² near 1 says which of them it is.
    header = ["objective", "algorithm", "in the paper"]
    header += ["factor an iteration", "R² of linear", "R² of a power"]
    rows: list[list[Any]] = []
    for label, found in result.objectives.items():
        algorithm = "SGD" if "same_as" in found else "ALS"
        rate = found["rate"]
        figures = [None] * 3 if rate is None else [rate["factor"], rate["r2"], rate["power_r2"]]
        rows.append([label, algorithm, _RATES[algorithm], *figures])
    return header, rows
