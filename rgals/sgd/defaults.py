"""What "auto" stands for in an `SGDRanker`: good settings by the matrix, K and the loss."""

from __future__ import annotations

from typing import Any

import numpy as np

from rgals.losses import AUTO, Degrees, fitted
from rgals.matrix.csr import CSR
from rgals.sgd.losses import BCE, RGX, Sparsemax, get_loss

#: Parameters that may be "auto".
AUTOMATIC = ("score", "temperature", "lr", "n_epochs", "batch_size", "n_negatives")
# Losses that compare a score with a number instead of with other scores: bounded scores do not suit them.
_ABSOLUTE = (RGX, Sparsemax, BCE)
# Temperature of cosine scores over reg of RG2's rule, and at reg=0.
_TEMPERATURE, _COLDEST = 0.6, 0.1
_PATIENT = 10  # times the epochs where early stopping ends a fit


def is_auto(value: Any) -> bool:
    """Whether a parameter is left to the rule."""
    return isinstance(value, str) and value == AUTO


def choose(model: Any, matrix: CSR) -> dict[str, Any]:
    """What takes the place of the parameters of an `SGDRanker` that are "auto", by name."""
    left = [name for name in AUTOMATIC if is_auto(getattr(model, name))]
    found = setting(model, Degrees.of(matrix)) if left else {}
    return {name: found[name] for name in left}


def setting(model: Any, degrees: Degrees) -> dict[str, Any]:
    """Where good settings lie for the loss and K of an `SGDRanker`; ``score`` as it is set, unless "auto"."""
    loss = get_loss(model.loss)
    score = model.score
    if is_auto(score):
        score = "dot" if isinstance(loss, _ABSOLUTE) else "cosine"
    found: dict[str, Any] = {"score": score, "n_epochs": 20, "n_negatives": 25}
    if loss.kind == "full":
        found |= {"batch_size": int(np.clip(degrees.filled[0] // 100, 32, 512)), "lr": 0.1}
    else:
        found |= {"batch_size": 1024, "lr": 0.05}
    if model.early_stopping:
        found["n_epochs"] *= _PATIENT
    if score == "dot":
        return {**found, "temperature": 1.0, "lr": 0.03 if loss.kind == "full" else 0.01}
    return {**found, "temperature": _COLDEST + _TEMPERATURE * fitted.setting(degrees, model.K).reg}
