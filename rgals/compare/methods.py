"""The methods that can be compared: how each is built, and the ladders that its parameters are tuned on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rgals._errors import ParameterError
from rgals.estimator import RGALS
from rgals.losses import IALS, RG2, RGX, WRMF
from rgals.sgd import SGDRanker

Params = Mapping[str, float]

_SMALL = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_REG = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
_PLAIN_REG = (0.01, 0.1, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
_LR = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
_TEMPERATURE = (0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7)
_DECAY = (0.0, 1e-6, 1e-5, 3e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3)
_FREQUENCY = (0.01, 0.03, 0.07, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)


@dataclass(frozen=True)
class Method:
    """A method of the comparison.

    Attributes
    ----------
    name, label : str
    family : {"ALS", "SGD"}
    build : callable
        ``build(params, **common)`` gives the estimator; ``common`` holds K, n_jobs and random_state.
    ladders : mapping of str to tuple of float
        Every tuned parameter with its values in ascending order.
    start : mapping of str to float
        Where tuning starts.
    """

    name: str
    label: str
    family: str
    build: Callable[..., Any]
    ladders: Mapping[str, tuple[float, ...]]
    start: Params


def _als(loss: Callable[..., Any], **fixed: Any) -> Callable[..., Any]:
    def build(params: Params, **common: Any) -> RGALS:
        rest = {k: v for k, v in params.items() if k != "reg"}
        return RGALS(loss=loss(**rest), reg=params["reg"], n_iter=60, **fixed, **common)

    return build


def _sgd(loss: str, **fixed: Any) -> Callable[..., Any]:
    def build(params: Params, **common: Any) -> SGDRanker:
        return SGDRanker(loss=loss, n_epochs=200, **{**fixed, **params}, **common)

    return build


def _cosine(name: str, label: str, **fixed: Any) -> Method:
    ladders = {"temperature": _TEMPERATURE, "lr": _LR}
    start = {"temperature": 0.2, "lr": 0.03}
    return Method(name, label, "SGD", _sgd(name, score="cosine", **fixed), ladders, start)


def _dot(loss: str, label: str, **fixed: Any) -> Method:
    full = fixed.get("decay") == "frequency"
    ladders = {"lr": _LR, "weight_decay": _FREQUENCY if full else _DECAY}
    start = {"lr": 0.01, "weight_decay": 0.15 if full else 1e-4}
    build = _sgd(loss, score="dot", temperature=1.0, **fixed)
    return Method(f"{loss}_dot", f"{label}, dot", "SGD", build, ladders, start)


_ALL = (
    Method("rg2", "RG2 (ALS)", "ALS", _als(RG2), {"alpha": _SMALL, "reg": _REG}, {"alpha": 0.05, "reg": 0.1}),
    Method(
        "rgx",
        "RGx (ALS)",
        "ALS",
        _als(RGX),
        {"alpha": _SMALL, "reg": _REG, "beta": (0.0, 0.25, 0.5, 0.75, 1.0)},
        {"alpha": 0.05, "reg": 0.1, "beta": 1.0},
    ),
    Method(
        "ials", "iALS (ALS)", "ALS", _als(IALS), {"alpha0": _SMALL, "reg": _REG}, {"alpha0": 0.1, "reg": 0.01}
    ),
    Method(
        "wrmf",
        "WRMF, frequency-scaled (ALS)",
        "ALS",
        _als(WRMF),
        {"alpha": (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0), "reg": _REG},
        {"alpha": 8.0, "reg": 0.01},
    ),
    Method(
        "wrmf_plain",
        "WRMF, plain ridge (ALS)",
        "ALS",
        _als(WRMF, reg_exponent=0.0),
        {"alpha": (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0), "reg": _PLAIN_REG},
        {"alpha": 8.0, "reg": 10.0},
    ),
    _cosine("softmax", "Softmax (SGD)"),
    _cosine("sampled_softmax", "Sampled softmax (SGD)", n_negatives=100),
    _cosine("bpr", "BPR (SGD)", n_negatives=10),
    _cosine("bce", "BCE (SGD)", n_negatives=10),
    _cosine("sampled_cce", "Sampled CCE (SGD)", n_negatives=100),
    _dot("softmax", "Softmax (SGD)", decay="frequency"),
    _dot("sampled_softmax", "Sampled softmax (SGD)", n_negatives=100),
    _dot("bpr", "BPR (SGD)", n_negatives=10),
    _dot("bce", "BCE (SGD)", n_negatives=10),
    _dot("sparsemax", "Sparsemax (SGD)", decay="frequency"),
)
METHODS: dict[str, Method] = {method.name: method for method in _ALL}
DEFAULT = ("rg2", "rgx", "ials", "wrmf", "wrmf_plain", "softmax", "softmax_dot", "sampled_softmax", "bpr_dot")


def get_methods(names: Any) -> list[Method]:
    """The methods of the given names.

    Parameters
    ----------
    names : str (separated by commas) or sequence of str

    Returns
    -------
    list of Method

    Raises
    ------
    ParameterError
        Unknown or repeated name, or none.

    Examples
    --------
    >>> [method.label for method in get_methods("rg2,bpr")]
    ['RG2 (ALS)', 'BPR (SGD)']
    """
    listed = names.split(",") if isinstance(names, str) else list(names)
    listed = [str(name).strip() for name in listed]
    if not listed or len(set(listed)) != len(listed):
        raise ParameterError("methods", names, "give at least one method, each once")
    for name in listed:
        if name not in METHODS:
            raise ParameterError("methods", name, "choose from " + ", ".join(METHODS))
    return [METHODS[name] for name in listed]
