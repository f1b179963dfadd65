"""The losses, and the table of their names. A new loss is one file and one row here."""

from __future__ import annotations

from rgals._errors import InputTypeError, ParameterError
from rgals.losses.base import Coefficients, Degrees, Loss, Side
from rgals.losses.ials import IALS
from rgals.losses.rg2 import RG2
from rgals.losses.rgx import RGX
from rgals.losses.rules import rule
from rgals.losses.wrmf import WRMF

LOSSES: dict[str, type[Loss]] = {"rg2": RG2, "rgx": RGX, "wrmf": WRMF, "ials": IALS}

__all__ = [
    "IALS",
    "LOSSES",
    "RG2",
    "RGX",
    "WRMF",
    "Coefficients",
    "Degrees",
    "Loss",
    "Side",
    "get_loss",
    "rule",
]


def get_loss(loss: str | Loss) -> Loss:
    """The loss object for a name (with its defaults) or an object (checked).

    Parameters
    ----------
    loss : str or Loss
        ``"rg2"``, ``"rgx"``, ``"wrmf"``, ``"ials"`` or an instance.

    Returns
    -------
    Loss

    Raises
    ------
    ParameterError
        Unknown name, or a parameter of the object is out of range.
    InputTypeError
        Neither a name nor a loss object.

    Examples
    --------
    >>> from rgals.losses import get_loss
    >>> get_loss("ials")
    IALS()
    """
    if isinstance(loss, str):
        if loss.lower() not in LOSSES:
            raise ParameterError(
                "loss", loss, "choose one of " + ", ".join(map(repr, LOSSES)) + " or an object"
            )
        loss = LOSSES[loss.lower()]()
    if isinstance(loss, type) and issubclass(loss, Loss):
        raise InputTypeError(f"loss must be an instance: write {loss.__name__}() with brackets")
    if not isinstance(loss, Loss):
        raise InputTypeError(f"loss must be a name or a Loss object, not {type(loss).__name__}")
    loss.validate()
    return loss
