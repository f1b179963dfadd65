"""The methods that can be compared: how each is built, and the ladders that its parameters are tuned on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from sklearn.base import clone

from rgals.estimator import RGALS
from rgals.losses import IALS, RG2, RGX, WRMF, rule
from rgals.losses.base import Loss
from rgals.runtime.errors import ParameterError
from rgals.sgd import SGDRanker

Params = Mapping[str, float]


def _rungs(low: float, high: float) -> tuple[float, ...]:
    """1, 1.5, 2, 3, 5 and 7 times powers of ten, from low to high."""
    values = [float(f"{m}e{power}") for power in range(-5, 4) for m in (1, 1.5, 2, 3, 5, 7)]
    return tuple(v for v in values if low <= v <= high)


_SMALL = _rungs(0.002, 2)
_REG = _rungs(0.0003, 1)
_SOFTMAX_RIDGE = 0.6  # best on MovieLens 1M: 0.06 for softmax, 0.1 for RG2
_RG = {"alpha": _SMALL, "reg": _REG}
_BETA = (0.0, 0.25, 0.5, 0.75, 1.0)
_ALPHA = _rungs(0.5, 100)
_PLAIN_REG = _rungs(0.1, 1000)
_LR = (0.001, 0.003, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3)
_TEMPERATURE = (0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7)
_DECAY = (0.0, 1e-6, 1e-5, 3e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3)
_FREQUENCY = (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3)


@dataclass(frozen=True)
class Method:
    """A method of the comparison."""

    name: str
    label: str
    family: str  # "ALS" or "SGD"
    # build(params, **common) gives the estimator; common holds K, n_jobs and random_state
    build: Callable[..., Any]
    ladders: Mapping[str, tuple[float, ...]]  # every tuned parameter with its values in ascending order
    start: Params  # where tuning starts,
    # unless `rgals.losses.rule` knows better for this; softmax takes its ridge from RG2, its 2nd-order form
    loss: type[Loss] | None = None

    def start_for(self, n_users: int, n_items: int, nnz: int) -> dict[str, float]:
        """Where tuning starts on data of this shape and number of interactions."""
        known = {} if self.loss is None else rule(self.loss, n_users, n_items, nnz)
        if known and "weight_decay" in self.start:
            known = {"weight_decay": _SOFTMAX_RIDGE * known["reg"]}
        return {name: known.get(name, value) for name, value in self.start.items()}


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
    start = {"lr": 0.03, "weight_decay": 0.06} if full else {"lr": 0.01, "weight_decay": 1e-4}
    build = _sgd(loss, score="dot", temperature=1.0, **fixed)
    return Method(f"{loss}_dot", label, "SGD", build, ladders, start, RG2 if full else None)


_ALL = (
    Method("rg2", "RG2 (ALS)", "ALS", _als(RG2), _RG, {"alpha": 0.05, "reg": 0.1}, RG2),
    Method(
        "rgx",
        "RGx (ALS)",
        "ALS",
        _als(RGX),
        {**_RG, "beta": _BETA},
        {"alpha": 0.05, "reg": 0.1, "beta": 1.0},
        RGX,
    ),
    Method(
        "rgx_gramian",
        "RGx as published (ALS)",
        "ALS",
        _als(partial(RGX, form="gramian")),
        {**_RG, "beta": _BETA[:-1]},  # at 1 nothing holds the scores of what was not observed
        {"alpha": 0.05, "reg": 0.1, "beta": 0.5},
        RGX,
    ),
    Method(
        "ials",
        "iALS (ALS)",
        "ALS",
        _als(IALS),
        {"alpha0": _SMALL, "reg": _REG},
        {"alpha0": 0.1, "reg": 0.01},
        IALS,
    ),
    Method(
        "wrmf",
        "WRMF, frequency-scaled (ALS)",
        "ALS",
        _als(WRMF),
        {"alpha": _ALPHA, "reg": _REG},
        {"alpha": 7.0, "reg": 0.01},
        WRMF,
    ),
    Method(
        "wrmf_plain",
        "WRMF, plain ridge (ALS)",
        "ALS",
        _als(WRMF, reg_exponent=0.0),
        {"alpha": _ALPHA, "reg": _PLAIN_REG},
        {"alpha": 3.0, "reg": 50.0},
    ),
    _cosine("softmax", "Softmax, cosine (SGD)"),
    _cosine("sampled_softmax", "Sampled softmax, cosine (SGD)", n_negatives=100),
    _cosine("bpr", "BPR, cosine (SGD)", n_negatives=10),
    _cosine("bce", "BCE, cosine (SGD)", n_negatives=10),
    _cosine("sampled_cce", "Sampled CCE, cosine (SGD)", n_negatives=100),
    _dot("softmax", "Softmax, dot (SGD)", decay="frequency", batch_size=1024),
    _dot("sampled_softmax", "Sampled softmax, dot (SGD)", n_negatives=100),
    _dot("bpr", "BPR, dot (SGD)", n_negatives=10),
    _dot("bce", "BCE, dot (SGD)", n_negatives=10),
    _dot("sparsemax", "Sparsemax, dot (SGD)", decay="frequency"),
)
METHODS: dict[str, Method] = {method.name: method for method in _ALL}
DEFAULT = ("rg2", "rgx", "ials", "wrmf", "wrmf_plain", "softmax", "softmax_dot", "sampled_softmax", "bpr_dot")


def _of_loss(loss: Loss) -> Method:
    """A loss of somebody's own, by ALS: what its rule knows is tuned, from there on."""
    tuned = loss.defaults(1000, 1000, 100_000)

    def build(params: Params, **common: Any) -> RGALS:
        own = {name: value for name, value in params.items() if name != "reg"}
        return RGALS(loss=clone(loss).set_params(**own), reg=params["reg"], n_iter=60, **common)

    ladders = dict.fromkeys(tuned, _rungs(1e-5, 7e3))
    return Method(loss.name, f"{loss.name} (ALS)", "ALS", build, ladders, tuned, type(loss))


def get_methods(names: Any) -> list[Method]:
    """The methods of names (a sequence, or one text with commas) and of losses, each once."""
    if isinstance(names, str | Loss):
        names = names.split(",") if isinstance(names, str) else [names]
    found = []
    for name in names:
        if not isinstance(name, Loss) and str(name).strip() not in METHODS:
            raise ParameterError("methods", name, "give a Loss, or choose from " + ", ".join(METHODS))
        found.append(_of_loss(name) if isinstance(name, Loss) else METHODS[str(name).strip()])
    if not found or len({method.name for method in found}) != len(found):
        raise ParameterError("methods", names, "give at least one method, each once")
    return found
