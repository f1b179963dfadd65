"""The methods that can be compared: how each is built, and the ladders that its parameters are tuned on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from sklearn.base import clone

from rgals.estimator import RGALS
from rgals.losses import IALS, RG2, RGX, WRMF, Degrees, rule
from rgals.losses.base import Loss
from rgals.runtime.errors import ParameterError
from rgals.sgd import SGDRanker

Params = Mapping[str, float]
Tuned = Mapping[str, tuple[tuple[float, ...], float]]  # the ladder of a parameter, and where tuning starts


def params_text(params: Params) -> str:
    """Parameters as the keys of a journal hold them."""
    return json.dumps(dict(params), sort_keys=True)


def _rungs(low: float, high: float) -> tuple[float, ...]:
    """1, 1.5, 2, 3, 5 and 7 times powers of ten, from low to high."""
    values = [float(f"{m}e{power}") for power in range(-5, 4) for m in (1, 1.5, 2, 3, 5, 7)]
    return tuple(v for v in values if low <= v <= high)


_SMALL = _rungs(0.002, 2)
_REG = _rungs(0.0003, 1)
_SOFTMAX_RIDGE = 0.6  # best on MovieLens 1M: 0.06 for softmax, 0.1 for RG2
_BETA = (0.0, 0.25, 0.5, 0.75, 1.0)
_ALPHA = _rungs(0.5, 100)
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

    def start_for(self, train: Any, K: int) -> dict[str, float]:
        """Where tuning of a model with K factors starts on a matrix with these margins."""
        known = {} if self.loss is None else rule(self.loss, train, K)
        if known and "weight_decay" in self.start:
            known = {"weight_decay": _SOFTMAX_RIDGE * known["reg"]}
        return {name: known.get(name, value) for name, value in self.start.items()}


def _als(
    name: str, label: str, loss: Callable[..., Loss], rule_of: type[Loss] | None, tuned: Tuned, **fixed: Any
) -> Method:
    """A method by alternating least squares; ``tuned`` are parameters of the loss and ``reg``."""

    def build(params: Params, **common: Any) -> RGALS:
        own = {k: v for k, v in params.items() if k != "reg"}
        return RGALS(loss=loss(**own), reg=params["reg"], n_iter=60, **fixed, **common)

    return Method(name, f"{label} (ALS)", "ALS", build, *_ladders_and_start(tuned), rule_of)


def _sgd(name: str, label: str, loss: str, tuned: Tuned, **fixed: Any) -> Method:
    """A method by stochastic gradient descent; ``tuned`` are parameters of `SGDRanker`."""

    def build(params: Params, **common: Any) -> SGDRanker:
        return SGDRanker(loss=loss, n_epochs=200, **{**fixed, **params}, **common)

    rule_of = RG2 if fixed.get("decay") == "frequency" else None
    return Method(name, f"{label} (SGD)", "SGD", build, *_ladders_and_start(tuned), rule_of)


def _ladders_and_start(tuned: Tuned) -> tuple[dict[str, tuple[float, ...]], dict[str, float]]:
    return {k: ladder for k, (ladder, _) in tuned.items()}, {k: start for k, (_, start) in tuned.items()}


def _cosine(loss: str, label: str, **fixed: Any) -> Method:
    tuned = {"temperature": (_TEMPERATURE, 0.2), "lr": (_LR, 0.03)}
    return _sgd(loss, f"{label}, cosine", loss, tuned, score="cosine", **fixed)


def _dot(loss: str, label: str, **fixed: Any) -> Method:
    tuned = {"lr": (_LR, 0.01), "weight_decay": (_DECAY, 1e-4)}
    if fixed.get("decay") == "frequency":
        tuned = {"lr": (_LR, 0.03), "weight_decay": (_FREQUENCY, 0.06)}
    return _sgd(f"{loss}_dot", f"{label}, dot", loss, tuned, score="dot", temperature=1.0, **fixed)


_RG = {"alpha": (_SMALL, 0.05), "reg": (_REG, 0.1)}
# At beta = 1 nothing holds the scores of what was not observed in the published form.
_GRAMIAN = {**_RG, "beta": (_BETA[:-1], 0.5)}
_FREQUENCY_SCALED = {"alpha": (_ALPHA, 7.0), "reg": (_REG, 0.01)}
_PLAIN = {"alpha": (_ALPHA, 3.0), "reg": (_rungs(0.1, 1000), 50.0)}
_ALL = (
    _als("rg2", "RG2", RG2, RG2, _RG),
    _als("rgx", "RGx", RGX, RGX, {**_RG, "beta": (_BETA, 1.0)}),
    _als("rgx_gramian", "RGx as published", partial(RGX, form="gramian"), RGX, _GRAMIAN),
    _als("ials", "iALS", IALS, IALS, {"alpha0": (_SMALL, 0.1), "reg": (_REG, 0.01)}),
    _als("wrmf", "WRMF, frequency-scaled", WRMF, WRMF, _FREQUENCY_SCALED),
    _als("wrmf_plain", "WRMF, plain ridge", WRMF, None, _PLAIN, reg_exponent=0.0),
    _cosine("softmax", "Softmax"),
    _cosine("sampled_softmax", "Sampled softmax", n_negatives=100),
    _cosine("bpr", "BPR", n_negatives=10),
    _cosine("bce", "BCE", n_negatives=10),
    _cosine("sampled_cce", "Sampled CCE", n_negatives=100),
    _dot("softmax", "Softmax", decay="frequency", batch_size=1024),
    _dot("sampled_softmax", "Sampled softmax", n_negatives=100),
    _dot("bpr", "BPR", n_negatives=10),
    _dot("bce", "BCE", n_negatives=10),
    _dot("sparsemax", "Sparsemax", decay="frequency"),
)
METHODS: dict[str, Method] = {method.name: method for method in _ALL}
DEFAULT = ("rg2", "rgx", "ials", "wrmf", "wrmf_plain", "softmax", "softmax_dot", "sampled_softmax", "bpr_dot")


def _of_loss(loss: Loss) -> Method:
    """A loss of somebody's own, by ALS: what its rule knows is tuned, from there on."""
    start = loss.defaults(Degrees.even(1000, 1000, 100_000), 64)
    tuned = {k: (_rungs(1e-5, 7e3), v) for k, v in start.items() if not k.endswith("_exponent")}
    return _als(loss.name, loss.name, lambda **own: clone(loss).set_params(**own), type(loss), tuned)


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
