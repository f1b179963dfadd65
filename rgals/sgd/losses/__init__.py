"""Ranking losses in score space, one small class a formula, and the table that names them."""

from __future__ import annotations

from typing import Any

from rgals.runtime.checks import check_choice
from rgals.runtime.errors import InputTypeError
from rgals.sgd.losses._base import Full, Sampled
from rgals.sgd.losses.sampled import BCE, BPR, SampledCCE, SampledSoftmax
from rgals.sgd.losses.softmax import Softmax, SoftmaxAtK, Sparsemax
from rgals.sgd.losses.squared import RG2, RGX

FullLoss, SampledLoss = Full, Sampled  # their names in 0.1
LOSSES: dict[str, type] = {
    "softmax": Softmax,
    "softmax_at_k": SoftmaxAtK,
    "sparsemax": Sparsemax,
    "rg2": RG2,
    "rgx": RGX,
    "sampled_softmax": SampledSoftmax,
    "sampled_cce": SampledCCE,
    "bpr": BPR,
    "bce": BCE,
}


def get_loss(loss: Any) -> Any:
    """The loss object that a name or an object stands for.

    Parameters
    ----------
    loss : str or loss object
        A key of `LOSSES`, or what is returned as it is.

    Returns
    -------
    loss object

    Raises
    ------
    InputTypeError, ParameterError
        It is neither, or no such name.

    Examples
    --------
    >>> from rgals.sgd.losses import get_loss
    >>> get_loss("bpr").kind
    'sampled'
    """
    if isinstance(loss, str):
        return LOSSES[check_choice("loss", loss, tuple(LOSSES))]()
    if isinstance(loss, type) or getattr(loss, "kind", None) not in ("full", "sampled"):
        raise InputTypeError(f"loss must be a name or a loss object of rgals.sgd.losses, not {loss!r}")
    return loss


__all__ = [
    "BCE",
    "BPR",
    "LOSSES",
    "RG2",
    "RGX",
    "Full",
    "FullLoss",
    "Sampled",
    "SampledCCE",
    "SampledLoss",
    "SampledSoftmax",
    "Softmax",
    "SoftmaxAtK",
    "Sparsemax",
    "get_loss",
]
